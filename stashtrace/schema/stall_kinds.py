"""The words and colours of the kinds of time of a step in one table. All other lists derive from it.

A *column* is what the bars of the summary show, and sums one kind or several: ``data`` is ``data: storage``,
``data: prep`` and ``data: hand-off``. People read these words everywhere; tables, options and metrics have ids of kinds
(``fetch``, ``prep``, ``handoff``). Each option takes both (:func:`kinds_of_word`). ``docs/concepts/stalls.md`` defines
the kinds.
"""

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
    #: Which part of its column it is; empty if it is all of it.
    part: str
    #: What it is, where there is room for it; empty where the words say enough.
    about: str
    #: In pictures and pages on a light and on a dark ground: both stand out from it. One hue a column, a shade each.
    colour: str
    on_dark: str

    @property
    def name(self) -> str:
        """Id in tables and options."""
        return self.code.name.lower()

    @property
    def words(self) -> str:
        """What people read: ``late``, ``data: prep``."""
        return f"{self.column}: {self.part}" if self.part else self.column

    @property
    def label(self) -> str:
        """The words and what they mean."""
        return f"{self.words} ({self.about})" if self.about else self.words


@dataclass(frozen=True, slots=True)
class ColumnOfTime:
    """A column of the budget."""

    name: str
    #: What it holds.
    label: str
    #: SGR code in a terminal, near the hue of its kinds.
    sgr: str


#: Every kind, column by column in the order of the budget. The first of a column lends it its colour.
STALL_KINDS = (
    KindOfTime(StallKind.COMPUTE, "compute", "", "", "#208b67", "#51ad88"),
    KindOfTime(StallKind.FETCH, "data", "storage", "batches wait for reads", "#956300", "#c78600"),
    KindOfTime(StallKind.PREP, "data", "prep", "batches are being made", "#bb7e05", "#eca93d"),
    KindOfTime(StallKind.HANDOFF, "data", "hand-off", "finished batches are on their way", "#704a00", "#9c6800"),
    KindOfTime(StallKind.NETWORK, "link", "network", "transfers between hosts", "#0465a0", "#4193d2"),
    KindOfTime(StallKind.INTERCONNECT, "link", "in-host", "transfers inside a host", "#348dcf", "#80c5ff"),
    KindOfTime(StallKind.STRAGGLER, "late", "", "waits for ranks that are late", "#af518a", "#d174ab"),
    KindOfTime(StallKind.H2D, "copy", "", "between host and device", "#716ac0", "#918ce1"),
    KindOfTime(StallKind.CHECKPOINT, "save", "", "checkpoints", "#7a7e13", "#9a9f45"),
    KindOfTime(StallKind.SYNC, "host", "sync", "device idle after the host waited for it", "#b8431a", "#e26f4b"),
    KindOfTime(StallKind.LAUNCH, "host", "launch", "device idle until the host launches work", "#db633c", "#ff9878"),
    KindOfTime(StallKind.PYTHON, "host", "Python", "the loop's code outside its operators", "#922800", "#bc4d28"),
    KindOfTime(StallKind.OTHER, "other", "", "blocked or asleep", "#777777", "#989898"),
)
#: Every column in the order of the budget.
BUDGET_COLUMNS = (
    ColumnOfTime("compute", "forward, backward, optimizer, and annotations of a loop without them", "32"),
    ColumnOfTime("data", "waits for batches: storage, preparation, hand-off", "33"),
    ColumnOfTime("link", "transfers of collectives, after the last rank has entered", "36"),
    ColumnOfTime("late", "waits in collectives for a rank that is late", "35"),
    ColumnOfTime("copy", "copies between host and device", "34"),
    ColumnOfTime("save", "checkpoints that stop the step", "93"),
    ColumnOfTime("host", "the host: the loop's Python outside operators, or a device idle because of its host", "31"),
    ColumnOfTime("other", "none of these: blocked or asleep, with or without a recorded reason", "2"),
)
#: Column of the budget -> what it holds.
COLUMN_LABELS: dict[str, str] = {column.name: column.label for column in BUDGET_COLUMNS}
#: Column of the budget -> its SGR code.
COLUMN_SGR: dict[str, str] = {column.name: column.sgr for column in BUDGET_COLUMNS}
#: Column of the budget -> its kinds, in the order of the bars.
COLUMNS: dict[str, tuple[str, ...]] = {
    column: tuple(kind.name for kind in STALL_KINDS if kind.column == column) for column in COLUMN_LABELS
}
#: Kind -> its column.
COLUMN_OF: dict[str, str] = {kind.name: kind.column for kind in STALL_KINDS}
#: Kind -> what people read: ``late``, ``data: prep``.
KIND_WORDS: dict[str, str] = {kind.name: kind.words for kind in STALL_KINDS}
#: Kind -> the same, and what it means.
KIND_LABELS: dict[str, str] = {kind.name: kind.label for kind in STALL_KINDS}
#: Kind -> its colour in a picture on a light ground.
KIND_COLOURS: dict[str, str] = {kind.name: kind.colour for kind in STALL_KINDS}
#: Kinds of time of a worker that makes a batch.
WORKER_KINDS: dict[str, str] = {name: KIND_LABELS[name] for name in ("prep", "fetch")}
#: Kinds in the order of the enumeration, as tables and comparisons list them.
KIND_NAMES: tuple[str, ...] = tuple(kind.name.lower() for kind in StallKind)
#: Kind -> its words without the column, as an option takes them: ``late``, ``prep``, ``in-host``.
OPTION_WORDS: dict[str, str] = {kind.name: (kind.part or kind.column).lower() for kind in STALL_KINDS}
#: What an option takes -> id of a column or a kind.
_IDS: dict[str, str] = {
    **{kind.words.lower(): kind.name for kind in STALL_KINDS},
    **{OPTION_WORDS[kind.name]: kind.name for kind in STALL_KINDS},
    **{name: name for name in (*KIND_NAMES, *COLUMNS)},
}
#: Words of other tools and of people -> ours.
_OTHER_WORDS: dict[str, str] = {
    **dict.fromkeys(("loader", "dataloader", "loading", "input", "batch", "batches"), "data"),
    **dict.fromkeys(("disk", "read", "reads", "io"), "fetch"),
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


def id_of_word(word: str) -> str:
    """Return the id of the column or kind that a word stands for; empty for an unknown word.

    >>> id_of_word("data"), id_of_word("data: hand-off"), id_of_word("in-host"), id_of_word("fetch")
    ('data', 'handoff', 'interconnect', 'fetch')
    """
    return _IDS.get(" ".join(word.lower().replace(":", ": ").split()), "")


def kinds_of_word(word: str) -> tuple[str, ...]:
    """Return the kinds that a word stands for: those of a column, or the kind itself; none for an unknown word.

    >>> kinds_of_word("data"), kinds_of_word("prep"), kinds_of_word("storage"), kinds_of_word("loader")
    (('fetch', 'prep', 'handoff'), ('prep',), ('fetch',), ())
    """
    name = id_of_word(word)
    return COLUMNS.get(name, (name,) if name else ())


def words_of(name: str) -> str:
    """Return what people read for the id of a kind; other names as they are.

    >>> words_of("straggler"), words_of("prep"), words_of("data"), words_of("step")
    ('late', 'data: prep', 'data', 'step')
    """
    return KIND_WORDS.get(name, name)


def word_text(word: str) -> str:
    """Return a word that an option takes as people read it, with the parts that it sums if these are several.

    >>> word_text("data"), word_text("late"), word_text("straggler"), word_text("workers")
    ("'data' (storage + prep + hand-off)", "'late'", "'late'", "'workers'")
    """
    parts = [OPTION_WORDS[kind] for kind in kinds_of_word(word)]
    if len(parts) > 1:
        return f"'{word}' ({' + '.join(parts)})"
    return f"'{OPTION_WORDS.get(word, word)}'"


def nearest_word(word: str, known: Iterable[str]) -> str:
    """Return the known word that an unknown one most likely means; empty if none is near."""
    choice = list(known)
    meant = _OTHER_WORDS.get(word.lower(), "")
    if meant in choice:
        return meant
    return next(iter(difflib.get_close_matches(word.lower(), choice, 1)), "")


def hint_for(word: str, more: Iterable[str] = ()) -> str:
    """Return the hint for an unknown word of an option: the nearest one, and all that there are.

    ``word``: as it was typed. ``more``: words that are neither a column nor a kind.
    """
    others = list(more)
    near = nearest_word(word, [*others, *COLUMNS, *KIND_NAMES])
    columns = ", ".join(_with_id(name, kinds[0] if len(kinds) == 1 else name) for name, kinds in COLUMNS.items())
    parts = ", ".join(_with_id(OPTION_WORDS[kind.name], kind.name) for kind in STALL_KINDS if kind.part)
    listed = "; ".join(filter(None, [", ".join(others), f"columns of the summary: {columns}", f"their parts: {parts}"]))
    return f"did you mean {word_text(near)}? Choose from {listed}" if near else f"choose from {listed}"


def _with_id(word: str, name: str) -> str:
    """Return a word, and the id that is taken too if it is another.

    >>> _with_id("late", "straggler"), _with_id("prep", "prep")
    ('late (straggler)', 'prep')
    """
    return word if word == name else f"{word} ({name})"
