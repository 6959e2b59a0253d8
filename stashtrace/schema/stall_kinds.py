"""The kinds of time of a step in one table: name, column of the budget, words, colour. All other lists derive from it.

A *column* is what the bars of the summary show, and sums one kind or several; both are words for the same time, so each
option takes either (:func:`kinds_of_word`). ``docs/concepts/stalls.md`` defines them.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from stashtrace.schema.kinds import StallKind


@dataclass(frozen=True, slots=True)
class KindOfTime:
    """A kind of time of a step."""

    code: StallKind
    #: Column of the budget that counts it.
    column: str
    #: What a person calls it.
    label: str
    #: In pictures and pages on a light and on a dark ground: both stand out from it.
    colour: str
    on_dark: str

    @property
    def name(self) -> str:
        """Name in tables and options."""
        return self.code.name.lower()


#: Every kind, column by column in the order of the budget.
STALL_KINDS = (
    KindOfTime(StallKind.COMPUTE, "compute", "compute", "#2a8a6a", "#35a884"),
    KindOfTime(StallKind.FETCH, "data", "waits for storage (fetch)", "#8a5a00", "#b07d28"),
    KindOfTime(StallKind.PREP, "data", "waits for batches in the making (prep)", "#b87800", "#e0a33a"),
    KindOfTime(StallKind.HANDOFF, "data", "hand-off of batches", "#9a8a5a", "#b5a574"),
    KindOfTime(StallKind.NETWORK, "link", "transfers between hosts", "#0072b2", "#3b9ad6"),
    KindOfTime(StallKind.INTERCONNECT, "link", "transfers inside a host", "#3a8fc4", "#7cc0ea"),
    KindOfTime(StallKind.STRAGGLER, "late", "waits for late ranks", "#a94f80", "#d283ad"),
    KindOfTime(StallKind.H2D, "copy", "copies between host and device", "#5b6fb5", "#8f9fdc"),
    KindOfTime(StallKind.CHECKPOINT, "save", "checkpoints", "#7a7a00", "#b3b33c"),
    KindOfTime(StallKind.SYNC, "host", "device idle after the host waited for it", "#c05000", "#e5732b"),
    KindOfTime(StallKind.LAUNCH, "host", "device idle until the host launches work", "#d26c2c", "#f2a477"),
    KindOfTime(StallKind.PYTHON, "host", "host Python: the loop's code outside its operators", "#8a5a36", "#c99a72"),
    KindOfTime(StallKind.OTHER, "other", "other: blocked or asleep", "#757575", "#949494"),
)
#: Column of the budget -> what it holds.
COLUMN_LABELS: dict[str, str] = {
    "compute": "forward, backward, optimizer, and annotations of a loop without them",
    "data": "waits for batches: storage, preparation, hand-off",
    "link": "transfers of collectives, after the last rank has entered",
    "late": "waits in collectives for a rank that is late",
    "copy": "copies between host and device",
    "save": "checkpoints that stop the step",
    "host": "the host: the loop's Python outside operators, or a device idle because of its host",
    "other": "none of these: blocked or asleep, with or without a recorded reason",
}
#: Column of the budget -> its kinds, in the order of the bars.
COLUMNS: dict[str, tuple[str, ...]] = {
    column: tuple(kind.name for kind in STALL_KINDS if kind.column == column) for column in COLUMN_LABELS
}
#: Kind -> its column.
COLUMN_OF: dict[str, str] = {kind.name: kind.column for kind in STALL_KINDS}
#: Kind -> what a person calls it.
KIND_LABELS: dict[str, str] = {kind.name: kind.label for kind in STALL_KINDS}
#: Kinds of time of a worker that makes a batch.
WORKER_KINDS = {"prep": "making batches", "fetch": "waiting for storage"}
#: Kinds in the order of the enumeration, as tables and comparisons list them.
KIND_NAMES: tuple[str, ...] = tuple(kind.name.lower() for kind in StallKind)
#: Words of other tools and of people -> ours.
_OTHER_WORDS: dict[str, str] = {
    **dict.fromkeys(("loader", "dataloader", "loading", "input", "batch", "batches"), "data"),
    **dict.fromkeys(("storage", "disk", "read", "reads", "io"), "fetch"),
    **dict.fromkeys(("decode", "decoding", "transform", "augment", "preprocess", "preprocessing"), "prep"),
    **dict.fromkeys(("communication", "comm", "comms", "transfer", "transfers", "nccl", "allreduce"), "link"),
    **dict.fromkeys(("nvlink", "pcie"), "interconnect"),
    **dict.fromkeys(("wait", "waiting", "imbalance", "skew", "lateness", "stragglers"), "late"),
    **dict.fromkeys(("memcpy", "copies", "d2h"), "copy"),
    **dict.fromkeys(("ckpt", "checkpoints", "saving"), "save"),
    **dict.fromkeys(("cpu", "idle", "tokenize", "sampling", "logging"), "host"),
    **dict.fromkeys(("gpu", "kernel", "kernels", "forward", "backward", "optimizer"), "compute"),
    **dict.fromkeys(("blocked", "asleep", "sleep", "lock"), "other"),
}


def kinds_of_word(word: str) -> tuple[str, ...]:
    """Return the kinds that a word stands for: those of a column, or the kind itself; none for an unknown word.

    Examples
    --------
    >>> kinds_of_word("data"), kinds_of_word("prep"), kinds_of_word("loader")
    (('fetch', 'prep', 'handoff'), ('prep',), ())
    """
    if word in COLUMNS:
        return COLUMNS[word]
    return (word,) if word in COLUMN_OF else ()


def word_text(word: str) -> str:
    """Return a word, with the kinds that it sums if these are several.

    Examples
    --------
    >>> word_text("data"), word_text("late"), word_text("prep")
    ("'data' (fetch + prep + handoff)", "'late' (straggler)", "'prep'")
    """
    kinds = kinds_of_word(word)
    return f"'{word}'" + (f" ({' + '.join(kinds)})" if kinds and kinds != (word,) else "")


def nearest_word(word: str, known: Iterable[str]) -> str:
    """Return the known word that an unknown one most likely means; empty if none is near."""
    choice = list(known)
    meant = _OTHER_WORDS.get(word.lower(), "")
    if meant in choice:
        return meant
    return next(iter(difflib.get_close_matches(word.lower(), choice, 1)), "")


def hint_for(word: str, known: Iterable[str] = (), more: Iterable[str] = ()) -> str:
    """Return the hint for an unknown word: the nearest one, and all that there are.

    ``word``: as it was typed. ``known``: columns and kinds that can be named here; all of them if left out. ``more``:
    words that are neither a column nor a kind.
    """
    allowed = list(known) or [*COLUMNS, *KIND_NAMES]
    beside = list(more)
    near = nearest_word(word, [*beside, *allowed])
    columns = ", ".join(name for name in COLUMNS if name in allowed)
    kinds = ", ".join(name for name in KIND_NAMES if name in allowed and name not in COLUMNS)
    listed = "; ".join(filter(None, [", ".join(beside), f"columns of the summary: {columns}", f"kinds: {kinds}"]))
    return f"did you mean {word_text(near)}? Choose from {listed}" if near else f"choose from {listed}"
