"""The critical path of a run in one sentence."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.graph.node_names import LATER
from stashtrace.schema.stall_kinds import words_of
from stashtrace.text.prose import wrap
from stashtrace.text.units import percent_text

if TYPE_CHECKING:
    from stashtrace.analysis.graph.critical_path_tables import CriticalPath
    from stashtrace.schema.table import Table

#: Groups that a sentence names, and the share below which one is not worth a name.
_MOST_NAMES, _WORTH_NAMING = 3, 0.01
#: Share of its kind from which a rank or an operation is named alone; share of steps above which an order is usual.
_MAJORITY = 0.5
_WIDTH = 79
#: A space at which no line ends.
_KEPT = "\u00a0"
#: Groups that are not a kind of stall.
_UNEXPLAINED, _LATER = "unexplained", "began later than the first rank"


@dataclass(frozen=True, slots=True)
class Group:
    """A part of the path that the sentence names as one."""

    #: Of the time of the critical path in the counted steps. Long steps weigh more, as they do in what a change saves;
    #: ``critical_share`` counts each step alike.
    share_ratio: float
    #: StallKind in lower case; or ``unexplained``: gaps, and delays of no known kind; or that the rank began later.
    kind: str
    is_transfer: bool
    #: -1 for transfers, and for several ranks.
    rank: int = -1
    #: How many ranks have some of it; 0 for transfers.
    ranks_count: int = 0
    #: The operation, if it stands for the transfers of its kind.
    name: str = ""

    def __str__(self) -> str:
        if self.is_transfer:
            return self.name.replace("_", "-") or words_of(self.kind)
        word = words_of(self.kind)
        return f"rank {self.rank} {word}" if self.rank >= 0 else f"{word} of {self.ranks_count} ranks in turn"

    def rows(self, table: Table) -> npt.NDArray[np.bool_]:
        """Return a mask of its rows in a table with rank, kind and name."""
        chosen: npt.NDArray[np.bool_] = (_kinds(table) == self.kind) & ((table["rank"] < 0) == self.is_transfer)
        if self.rank >= 0:
            chosen &= table["rank"] == self.rank
        return chosen & (table["name"] == self.name) if self.name else chosen


def critical_lines(path: CriticalPath) -> list[str]:
    """Return the sentence in lines for the terminal; empty if no step of the run counts."""
    lines = wrap(_sentence(path, kept=_KEPT), "", width=_WIDTH, rest=2)
    return [line.replace(_KEPT, " ") for line in lines]


def critical_sentence(path: CriticalPath) -> str:
    """Return a sentence with the at most three largest parts of the critical path; empty if no step counts.
    They are in their usual order if most steps have one. Percents are of the time of the path in the counted steps:
    ``critical path: 41 % rank 3 data: prep -> 22 % all-reduce 0 -> 12 % rank 3 compute``"""
    return _sentence(path)


def _sentence(path: CriticalPath, kept: str = " ") -> str:
    """Return the sentence; ``kept`` is the space between words that stay on one line."""
    shares = path.shares
    found = groups(shares)[:_MOST_NAMES]
    if not found:
        return ""
    order = usual_order(path, found)
    named = found if order is None else [found[at] for at in order]
    joint = ", " if order is None else " -> "
    parts = [f"{percent_text(each.share_ratio)} {each}".replace(" ", kept) for each in named]
    text = f"critical path: {joint.join(parts)}"
    counted = path.stretches.take(np.isin(path.stretches["step"], path.counted_steps))
    doubt = float((counted["held_ns"] * counted["ambiguous"]).sum()) / max(float(counted["held_ns"].sum()), 1.0)
    if doubt < _WORTH_NAMING:
        return text
    rival = _rival(path).replace(" ", kept)
    share = percent_text(doubt).replace(" ", kept)
    return f"{text}; for {share} of it another path is as long within the clocks' error: {rival}"


def groups(shares: Table) -> list[Group]:
    """Group the rows of ``critical_share``, the largest group first.
    Each rank and kind is a group, and so is each operation. A kind of which no rank has half is one group of all ranks
    instead, and transfers of which no operation has half are one group of all transfers of that kind."""
    found, total_ns = [], max(float(shares["held_ns"].sum()), 1.0)
    for kind in np.unique(_kinds(shares)).tolist():
        for is_transfer in (False, True):
            mine = shares.take(Group(0.0, kind, is_transfer).rows(shares))
            if not len(mine):
                continue
            values, at = np.unique(mine["name" if is_transfer else "rank"], return_inverse=True)
            parts = np.bincount(at, mine["held_ns"] / total_ns)
            whole = float(parts.sum())
            if parts.max() < _MAJORITY * whole:
                found.append(Group(whole, kind, is_transfer, ranks_count=0 if is_transfer else len(values)))
                continue
            for who, part in zip(values.tolist(), parts.tolist(), strict=True):
                found.append(Group(part, kind, True, name=who) if is_transfer else Group(part, kind, False, rank=who))
    found = [each for each in found if each.share_ratio >= _WORTH_NAMING]
    return sorted(found, key=lambda each: (-each.share_ratio, str(each)))


def usual_order(path: CriticalPath, found: list[Group]) -> list[int] | None:
    """Return the order in which most counted steps pass these groups, by the longest stretch of each, or None."""
    table = path.divided.take(np.isin(path.divided["step"], path.counted_steps))
    begins: list[dict[int, tuple[int, bool]]] = []
    for each in found:
        own = table.take(each.rows(table))
        longest = np.lexsort((own["held_ns"], own["step"]))  # of a step the last one
        # The reads of a batch come before its preparation.
        moments = [(int(own["begin_ns"][at]), each.kind != "fetch") for at in longest.tolist()]
        begins.append(dict(zip(own["step"][longest].tolist(), moments, strict=True)))
    seen: Counter[tuple[int, ...]] = Counter()
    for step in path.counted_steps.tolist():
        present = [at for at in range(len(found)) if step in begins[at]]
        if len(present) == len(found):
            seen[tuple(sorted(present, key=lambda at: begins[at][step]))] += 1
    order, count = max(seen.items(), key=lambda item: item[1], default=((), 0))
    return list(order) if count > _MAJORITY * len(path.counted_steps) else None


def _kinds(table: Table) -> npt.NDArray[np.str_]:
    unexplained = np.where(table["name"] == LATER, _LATER, _UNEXPLAINED)
    return np.where((table["resource"] == "") & (table["kind"] == "other"), unexplained, table["kind"])


def _rival(path: CriticalPath) -> str:
    """Return what most of the ambiguous time may be instead."""
    table = path.stretches
    doubtful = table.take(np.isin(table["step"], path.counted_steps) & (table["ambiguous"] == 1))
    held: Counter[tuple[int, str]] = Counter()
    for row in doubtful.rows():
        held[row["rival_rank"], row["rival_kind"]] += row["held_ns"]
    rank, kind = max(held, key=lambda key: (held[key], -key[0], key[1]))
    text = str(Group(0.0, kind, rank < 0, rank=rank))
    return text if len(held) == 1 else f"mostly {text}"
