"""Choose the rows of ``overlap_advice`` that are worth a sentence: the largest three remedies."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stashtrace.schema.table import Table

#: Share of the step that a remedy must be able to save, and how many remedies are named.
WORTH_NAMING_RATIO = 0.02
MOST_NAMED = 3
#: Remedies that no software offers today stand only in the table.
_NO_SWITCH = ("fused_collective",)


@dataclass(frozen=True, slots=True)
class Advice:
    """One remedy for the collectives of one communicator."""

    transformation: str
    switch: str
    communicator: str
    op: str
    work: str
    ranks_count: int
    #: Sizes of the messages.
    message_bytes: tuple[int, ...]
    #: Sums per step over the kinds that it is for; ``gap_ns`` is -1 where gaps were not recorded.
    moved_bytes: float
    work_ns: float
    gap_ns: float
    transfer_ns: float
    exposed_ns: float
    saving_low_ns: float
    saving_high_ns: float
    #: Largest saving, relative to the step.
    share_ratio: float
    #: Overlap: most chunks of any of the kinds.
    chunks_count: int
    #: Any smaller saving is possible too.
    is_bound: bool
    #: Codes of all of the kinds.
    limits: tuple[str, ...]


def named_advice(table: Table, limited: Callable[[Advice], Advice] | None = None) -> list[Advice]:
    """Return the remedies that may save 2 % of the step and cost nothing at worst: at most three, the largest first.

    Communicators of one job do the same at the same time, so of several with one remedy only the largest is named.

    Parameters
    ----------
    table : Table
        From ``overlap_advice``.
    limited : callable, optional
        Maps advice to advice that saves no more than is possible: ``ReplayedAdvice.limited``.
    """
    together: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
    for row in table.rows():
        if row["validity"] != "none" and row["switch"] not in _NO_SWITCH:
            key = (str(row["transformation"]), str(row["switch"]), str(row["op"]), str(row["communicator"]))
            together.setdefault(key, []).append(row)
    best: dict[tuple[str, str, str], Advice] = {}
    for key, rows in together.items():
        advice = _join(rows)
        known = best.get(key[:3])
        if known is None or advice.saving_high_ns > known.saving_high_ns:
            best[key[:3]] = advice
    worth = [a for a in best.values() if _is_worth(a)]
    if limited is not None:
        worth = [a for a in map(limited, worth) if _is_worth(a)]
    return sorted(worth, key=lambda a: -a.saving_high_ns)[:MOST_NAMED]


def _is_worth(advice: Advice) -> bool:
    return advice.share_ratio >= WORTH_NAMING_RATIO and advice.saving_low_ns >= 0


def _join(rows: list[dict[str, Any]]) -> Advice:
    summed = ("work_ns", "transfer_ns", "exposed_ns", "saving_low_ns", "saving_high_ns", "share_ratio")
    alike = ("transformation", "switch", "communicator", "op", "work", "ranks_count")
    columns: dict[str, Any] = {name: rows[0][name] for name in alike}
    columns |= {name: float(sum(row[name] for row in rows)) for name in summed}
    return Advice(
        **columns,
        message_bytes=tuple(sorted({row["message_bytes"] for row in rows})),
        moved_bytes=float(sum(row["message_bytes"] * row["calls_count"] for row in rows)),
        gap_ns=float(sum(row["gap_ns"] for row in rows)) if all(row["gap_ns"] >= 0 for row in rows) else -1.0,
        chunks_count=max(row["chunks_count"] for row in rows),
        is_bound=any(row["validity"] == "bound" for row in rows),
        limits=tuple(dict.fromkeys(code for row in rows for code in row["limits"].split(",") if code)),
    )
