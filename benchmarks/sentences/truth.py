"""What is known of a run without its trace: from the job's own clock, by plain arithmetic.

Amounts are ns per step of a rank, by the columns of a summary (``data``, ``late``, ``link``, ``copy``, ``save``,
``host``, ``other``, ``compute``); where a clock cannot tell an amount, it is the range that it can tell.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Interval = tuple[int, int]
STALLS = ("data", "late", "link", "copy", "save", "host", "other")


@dataclass(frozen=True)
class Amount:
    """A time per step, between two bounds that are one where it is known."""

    low_ns: float
    high_ns: float

    @classmethod
    def of(cls, ns: float) -> Amount:
        """A known amount."""
        return cls(ns, ns)


NOTHING = Amount(0.0, 0.0)


@dataclass
class RankTruth:
    """One rank's steps.

    Attributes
    ----------
    columns : dict of str to Amount
    late_ns : dict of int to float
        Time per step that it waited for each other rank; None where nobody can know.
    asleep_ns, blocked_ns : float
        Per step: in calls of sleep, and blocked otherwise without a cause that could be recorded.
    making : dict of str to float
        What making its batches took: "waiting", "cpu" and "queue", ns a step over all workers; empty if not known.
    """

    rank: int
    steps_count: int
    step_ns: float
    columns: dict[str, Amount]
    late_ns: dict[int, float] | None = None
    asleep_ns: float = 0.0
    blocked_ns: float = 0.0
    making: dict[str, float] = field(default_factory=dict)

    def share(self, column: str) -> Amount:
        """Share of the step, as an amount without unit."""
        amount, step = self.columns.get(column, NOTHING), max(self.step_ns, 1.0)
        return Amount(amount.low_ns / step, amount.high_ns / step)


@dataclass
class Truth:
    """All that is known of a run.

    Attributes
    ----------
    ranks : dict of int to RankTruth
        Ranks whose steps are known.
    ranks_count : int
        Ranks that left a record; -1 if not known.
    missing : tuple of int
        Ranks of the job that left none.
    steps : dict of str to (int, float)
        Kind of step -> how many there were on a rank in all, and the mean ns of those that count.
    steps_known : bool
        Whether kinds and numbers of steps can be held against the headline.
    wait_for : dict of int to float
        Late rank -> the longest that anybody waited for it in one collective, ns.
    cpus_count : int
        CPUs that the job may use; 0 if not known.
    """

    ranks: dict[int, RankTruth]
    ranks_count: int = -1
    missing: tuple[int, ...] = ()
    steps: dict[str, tuple[int, float]] = field(default_factory=dict)
    steps_known: bool = True
    wait_for: dict[int, float] = field(default_factory=dict)
    cpus_count: int = 0


def union(intervals: Sequence[Interval]) -> list[Interval]:
    """Sorted intervals without overlap."""
    result: list[Interval] = []
    for begin, end in sorted(intervals):
        if end <= begin:
            continue
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((begin, end))
    return result


def length(intervals: Sequence[Interval]) -> int:
    """Sum of disjoint intervals."""
    return sum(end - begin for begin, end in intervals)


def common(a: Sequence[Interval], b: Sequence[Interval]) -> list[Interval]:
    """Intersection of two unions."""
    result, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        begin, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if begin < end:
            result.append((begin, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return result


def without(a: Sequence[Interval], b: Sequence[Interval]) -> list[Interval]:
    """What a union has and another has not."""
    result = []
    for begin, end in a:
        at = begin
        for other_begin, other_end in b:
            if other_end <= at:
                continue
            if other_begin >= end:
                break
            if other_begin > at:
                result.append((at, other_begin))
            at = max(at, other_end)
        if at < end:
            result.append((at, end))
    return result


@dataclass(frozen=True)
class _Wait:
    """One rank in one collective: how long for whom, and the transfer behind it."""

    moment_ns: int
    late_ns: int
    for_rank: int
    link_ns: int


def of_clock(folder: Path, windows: Mapping[int, Sequence[Interval]]) -> Truth:
    """Truth of a job by what its ranks wrote (``jobs.py`` or the example's ``--truth``).

    Parameters
    ----------
    folder : Path
        Holds ``rank-R.jsonl``.
    windows : dict of int to list of (int, int)
        Rank -> the steps that a summary counts, monotonic ns: the job's own steps whose middle lies in one count here.
    """
    rows = {
        int(path.stem.split("-")[1]): [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(folder.glob("rank-*.jsonl"))
    }
    waits = _waits({rank: [lap for row in own for lap in _laps(row, "collective")] for rank, own in rows.items()})
    made = [json.loads(line) for path in folder.glob("made-*.jsonl") for line in path.read_text().splitlines()]
    ranks, lengths, counts = {}, {}, {}
    for rank, own in rows.items():
        counted = [row for row in own if _inside((row["begin_ns"] + row["end_ns"]) // 2, windows.get(rank, ()))]
        for kind in {row.get("kind", "train") for row in own}:
            of_kind = [row for row in own if row.get("kind", "train") == kind]
            chosen = [row["end_ns"] - row["begin_ns"] for row in of_kind if row in counted] or [0]
            counts.setdefault(kind, []).append(len(of_kind))
            lengths.setdefault(kind, []).append(sum(chosen) / len(chosen))
        if counted:
            mine = [json.loads(line) for p in folder.glob(f"made-{rank}-*.jsonl") for line in p.open()]
            ranks[rank] = _rank(rank, counted, waits[rank], mine)
    longest: dict[int, float] = {}
    begin = min((w[0] for own in windows.values() for w in own), default=0)
    for wait in (w for own in waits.values() for w in own if w.moment_ns >= begin):
        longest[wait.for_rank] = max(longest.get(wait.for_rank, 0.0), wait.late_ns)
    steps = {kind: (max(many), sorted(lengths[kind])[len(many) // 2]) for kind, many in counts.items()}
    return Truth(ranks, len(rows), steps=steps, wait_for=longest, cpus_count=_cpus()) if made or rows else Truth({})


def _cpus() -> int:
    import os

    return len(os.sched_getaffinity(0))


#: What the example calls its laps.
_SAME = {"all_reduce": "collective", "checkpoint": "save"}


def _laps(row: Mapping[str, Any], name: str) -> list[Interval]:
    found = [(begin, end) for lap, begin, end in row["laps"] if _SAME.get(lap, lap) == name]
    if name == "collective" and not found and row.get("gradients_ready_ns"):
        # DDP with one bucket waits at the end of backward, from the last gradient on.
        found = [(row["gradients_ready_ns"], end) for lap, _, end in row["laps"] if lap == "backward"]
    return found


def _inside(moment: int, windows: Sequence[Interval]) -> bool:
    return any(begin <= moment < end for begin, end in windows)


def _waits(collectives: Mapping[int, Sequence[Interval]]) -> dict[int, list[_Wait]]:
    """The n-th collective of each rank is one; nobody can be done before all have come."""
    result: dict[int, list[_Wait]] = {rank: [] for rank in collectives}
    if len(collectives) < 2:
        return result
    for entries in zip(*collectives.values(), strict=False):
        by_rank = dict(zip(collectives, entries, strict=True))
        last = max(by_rank, key=lambda r: by_rank[r][0])
        for rank, (begin, end) in by_rank.items():
            arrived = min(max(by_rank[last][0], begin), end)
            result[rank].append(_Wait(begin, arrived - begin, last, end - arrived))
    return result


def _rank(rank: int, counted: Sequence[Mapping[str, Any]], waits: Sequence[_Wait], made: list[list[int]]) -> RankTruth:
    count = len(counted)
    spans = [(row["begin_ns"], row["end_ns"]) for row in counted]

    def spent(name: str) -> float:
        return sum(end - begin for row in counted for begin, end in _laps(row, name)) / count

    step = sum(end - begin for begin, end in spans) / count
    mine = [w for w in waits if _inside(w.moment_ns, spans)]
    late_ns: dict[int, float] = {}
    for wait in mine:
        if wait.for_rank != rank:
            late_ns[wait.for_rank] = late_ns.get(wait.for_rank, 0.0) + wait.late_ns / count
    asleep, blocked = spent("sleep"), spent("blocked")
    idle = sum(row.get("idle_ns", 0) for row in counted) / count
    columns = {
        "data": Amount.of(spent("wait")),
        "late": Amount.of(sum(late_ns.values())),
        "link": Amount.of(sum(w.link_ns for w in mine) / count),
        "save": Amount.of(spent("save")),
        "other": Amount(asleep + blocked, asleep + blocked + idle),
    }
    low, high = (sum(getattr(a, bound) for a in columns.values()) for bound in ("low_ns", "high_ns"))
    columns["compute"] = Amount(step - high, step - low)
    inside = [row for row in made if _inside(row[0], [(spans[0][0], spans[-1][1])])]
    making = {}
    if inside:
        cpu, queue = (sum(row[n] for row in inside) / count for n in (2, 3))
        whole = sum(row[1] - row[0] for row in inside) / count
        making = {"cpu": cpu, "queue": queue, "waiting": max(whole - cpu - queue, 0.0)}
    return RankTruth(rank, count, step, columns, late_ns, asleep, blocked + idle, making)
