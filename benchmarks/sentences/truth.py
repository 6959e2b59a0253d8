"""What is known of a run without its trace: from the job's clock, by plain arithmetic.

Amounts are ns per step of a rank, by the columns of a summary (``data``, ``late``, ``link``, ``copy``, ``save``,
``host``, ``other``, ``compute``); where a clock cannot give an amount, it is the range that it can give.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Interval = tuple[int, int]
STALLS = ("data", "late", "link", "copy", "save", "host", "other")


@dataclass(frozen=True)
class Amount:
    """A time per step, between two bounds that are one where it is known.

    A ``rough`` range is that of our arithmetic: more could be known. Of any other, nobody can know more.
    """

    low_ns: float
    high_ns: float
    rough: bool = False

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
    handed_ns : float
        Per step: in waits for a batch whose last sample was there; None if not known.
    loading_ns : float
        Per step: a worker made a batch, and the rank waited for none; -1 if not known.
    queued_ns : float
        Per step: in the queue for a CPU outside of laps, which is part of ``compute``; -1 if not known.
    waited_for_cpu_ns : float
        Per step: in the queue for a CPU, whatever the thread was about; -1 if not known.
    """

    rank: int
    steps_count: int
    step_ns: float
    columns: dict[str, Amount]
    late_ns: dict[int, float] | None = None
    asleep_ns: float = 0.0
    blocked_ns: float = 0.0
    making: dict[str, float] = field(default_factory=dict)
    handed_ns: float | None = None
    loading_ns: float = -1.0
    queued_ns: float = 0.0
    waited_for_cpu_ns: float = -1.0

    def share(self, column: str) -> Amount:
        """Share of the step, as an amount without unit."""
        amount, step = self.columns.get(column, NOTHING), max(self.step_ns, 1.0)
        return Amount(amount.low_ns / step, amount.high_ns / step)


@dataclass(frozen=True)
class LateWait:
    """One rank in one collective: how long for whom, and the transfer behind it.

    ``surplus`` is what the late rank spent longer in the step of this collective than the waiting one, ns by column,
    with "queue" (waiting for a CPU) next to "compute", which holds it.
    """

    rank: int
    for_rank: int
    moment_ns: int
    late_ns: int
    link_ns: int
    queued_ns: int
    surplus: dict[str, float]


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
    waits : list of LateWait
        Each wait of a rank for a late one within the counted steps.
    cpus_count : int
        CPUs that the job may use; 0 if not known.
    beside : dict of str to Truth
        Of steps other than those that train, by their kind.
    files : dict of str to (int, int)
        File -> calls that open, read or write it, and bytes that they moved; empty if not known.
    ours : bool
        A job that was recorded here, so that it is known what there was to see.
    """

    ranks: dict[int, RankTruth]
    ranks_count: int = -1
    missing: tuple[int, ...] = ()
    steps: dict[str, tuple[int, float]] = field(default_factory=dict)
    steps_known: bool = True
    waits: list[LateWait] = field(default_factory=list)
    cpus_count: int = 0
    beside: dict[str, Truth] = field(default_factory=dict)
    files: dict[str, tuple[int, int]] = field(default_factory=dict)
    ours: bool = False


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


def of_clock(folder: Path, windows: Mapping[int, Sequence[Interval]]) -> Truth:
    """Truth of a job by what its ranks wrote (``jobs.py`` or the example's ``--truth``).

    Parameters
    ----------
    folder : Path
        Holds ``rank-R.jsonl``.
    windows : dict of int to list of (int, int)
        Rank -> the steps that a summary counts, monotonic ns: the job's steps whose middle lies in one count here.
    """
    rows = {
        int(path.stem.split("-")[1]): [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(folder.glob("rank-*.jsonl"))
    }
    waits = _waits(rows)
    ranks: dict[int, RankTruth] = {}
    lengths: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    for rank, own in rows.items():
        counted = [row for row in own if _inside((row["begin_ns"] + row["end_ns"]) // 2, windows.get(rank, ()))]
        for kind in {_kind(row) for row in own}:
            chosen = [row["end_ns"] - row["begin_ns"] for row in counted if _kind(row) == kind] or [0]
            counts[kind] = max(counts.get(kind, 0), sum(_kind(row) == kind for row in own))
            lengths.setdefault(kind, []).append(sum(chosen) / len(chosen))
        if counted:
            mine = [json.loads(line) for p in folder.glob(f"made-{rank}-*.jsonl") for line in p.open()]
            ranks[rank] = _rank(rank, counted, [w for w in waits if w.rank == rank], mine)
    begin = min((w[0] for own in windows.values() for w in own), default=0)
    steps = {kind: (counts[kind], sorted(many)[len(many) // 2]) for kind, many in lengths.items()}
    counted_waits = [w for w in waits if w.moment_ns >= begin]
    kept = folder / "files.json"
    files = (
        {name: (calls, moved) for name, (calls, moved) in json.loads(kept.read_text()).items()} if kept.exists() else {}
    )
    cpus = len(os.sched_getaffinity(0))
    return Truth(ranks, max(len(rows), 1), steps=steps, waits=counted_waits, cpus_count=cpus, files=files, ours=True)


def _kind(row: Mapping[str, Any]) -> str:
    return str(row.get("kind", "train"))


#: The example's clock does not look at its thread's: so much of a step may have been waiting for a CPU.
_UNKNOWN_RATIO = 0.05
#: Less than this part of a step is not looked into.
_MATTERS_RATIO = 0.01
#: What the example calls its laps.
_SAME = {"all_reduce": "collective", "checkpoint": "save"}


def _laps(row: Mapping[str, Any], name: str) -> list[tuple[int, int, int]]:
    """Begin, end and run-queue time of the laps of one name."""
    found = [
        (lap[1], lap[2], lap[3] if len(lap) > 3 else 0) for lap in row["laps"] if _SAME.get(lap[0], lap[0]) == name
    ]
    if name == "collective" and not found and row.get("gradients_ready_ns"):
        # DDP with one bucket waits at the end of backward, from the last gradient on.
        found = [(row["gradients_ready_ns"], lap[2], 0) for lap in row["laps"] if lap[0] == "backward"]
    return found


def _inside(moment: int, windows: Sequence[Interval]) -> bool:
    return any(begin <= moment < end for begin, end in windows)


def _waits(rows: Mapping[int, Sequence[Mapping[str, Any]]]) -> list[LateWait]:
    """The n-th collective of each rank is one; nobody can be done before all have come."""
    if len(rows) < 2:
        return []
    collectives = {rank: [(row, lap) for row in own for lap in _laps(row, "collective")] for rank, own in rows.items()}
    found = []
    done: dict[int, int] = {}  # when each rank left the collective before
    for entries in zip(*collectives.values(), strict=False):
        by_rank = dict(zip(collectives, entries, strict=True))
        last = max(by_rank, key=lambda r: by_rank[r][1][0])
        for rank, (row, (begin, end, queued)) in by_rank.items():
            arrived = min(max(by_rank[last][1][0], begin), end)
            surplus = _surplus(by_rank[last][0], row)
            # A transfer that let one rank go later than the other is what that one did longer since both were level.
            surplus["link"] = max(surplus["link"], float(done.get(last, 0) - done.get(rank, 0)))
            found.append(LateWait(rank, last, begin, arrived - begin, end - arrived, queued, surplus))
        done = {rank: lap[1] for rank, (_, lap) in by_rank.items()}
    return found


def _surplus(late: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float]:
    a, b = _spent(late), _spent(other)
    return {name: a[name] - b[name] for name in a}


def _spent(row: Mapping[str, Any]) -> dict[str, float]:
    """Time of one step by column; the queue for a CPU stands next to compute."""
    found = {
        column: float(sum(end - begin for name in names for begin, end, _ in _laps(row, name)))
        for column, names in (("data", ("wait",)), ("save", ("save",)), ("other", ("sleep", "blocked")))
    }
    inside = sum(end - begin for begin, end, _ in _laps(row, "collective"))
    whole = row["end_ns"] - row["begin_ns"]
    found["compute"] = whole - inside - sum(found.values()) - row.get("idle_ns", 0)
    found["other"] += row.get("idle_ns", 0)
    found["late"] = found["link"] = float(inside)  # one or the other
    queued = row.get("queued_ns", -1)
    queued_laps = sum(lap[3] for lap in row["laps"] if len(lap) > 3)
    # Where nobody looked, all that was no lap of another kind may have been waiting for a CPU.
    found["queue"] = float(queued + queued_laps) if queued >= 0 else found["compute"] + found["data"]
    return found


def _rank(
    rank: int, counted: Sequence[Mapping[str, Any]], waits: Sequence[LateWait], made: Sequence[Sequence[Any]]
) -> RankTruth:
    count = len(counted)
    spans = [(row["begin_ns"], row["end_ns"]) for row in counted]

    def spent(name: str) -> float:
        return sum(end - begin for row in counted for begin, end, _ in _laps(row, name)) / count

    step = sum(end - begin for begin, end in spans) / count
    mine = [w for w in waits if _inside(w.moment_ns, spans)]
    late_ns: dict[int, float] = {}
    for wait in mine:
        if wait.for_rank != rank:
            late_ns[wait.for_rank] = late_ns.get(wait.for_rank, 0.0) + wait.late_ns / count
    asleep, blocked = spent("sleep"), spent("blocked")
    idle = sum(row.get("idle_ns", 0) for row in counted) / count
    # Who was blocked stands in the queue before it runs again, as who was preempted does: which it was, nobody noted.
    stood = sum(row.get("queued_ns", 0) for row in counted) / count
    queued = stood if idle > _MATTERS_RATIO * step else 0.0
    # A thread that stands in the queue for a CPU does not know any more how long its transfer took.
    known = all("queued_ns" in row for row in counted)
    queued = queued if known else _UNKNOWN_RATIO * step
    waited = sum(_spent(row)["queue"] for row in counted) / count if known else -1.0
    link, in_queue = (sum(getattr(w, name) for w in mine) / count for name in ("link_ns", "queued_ns"))
    columns = {
        "data": Amount.of(spent("wait")),
        "late": Amount.of(sum(late_ns.values())),
        "link": Amount(max(link - (in_queue if known else _UNKNOWN_RATIO * step), 0.0), link, rough=True),
        "save": Amount.of(spent("save")),
        "other": Amount(asleep + blocked + idle, asleep + blocked + idle + queued, rough=True),
    }
    low, high = (sum(getattr(a, bound) for a in columns.values()) for bound in ("low_ns", "high_ns"))
    columns["compute"] = Amount(step - high, step - low)
    # What the loop runs outside of modules, the job's clock does not separate from its forward and backward.
    columns["host"] = Amount(0.0, step - low, rough=True)
    asked = {batch[0] for row in counted for batch in row.get("batches", ())}
    inside = [row for row in made if spans[0][0] <= row[0] < spans[-1][1] and (not asked or row[4] in asked)]
    making = {}
    if inside:
        cpu, queue = (sum(row[n] for row in inside) / count for n in (2, 3))
        whole = sum(row[1] - row[0] for row in inside) / count
        making = {"cpu": cpu, "queue": queue, "waiting": max(whole - cpu - queue, 0.0)}
    handed = _handed(counted, made)
    making_spans = union([(row[0], row[1]) for row in made])
    in_waits = union([(begin, end) for row in counted for begin, end, _ in _laps(row, "wait")])
    loading = length(without(common(making_spans, union(spans)), in_waits)) / count
    return RankTruth(
        rank,
        count,
        step,
        columns,
        late_ns,
        asleep,
        blocked + idle + queued,
        making,
        handed,
        loading if made else -1.0,
        stood if known else -1.0,
        waited,
    )


def _handed(counted: Sequence[Mapping[str, Any]], made: Sequence[Sequence[Any]]) -> float | None:
    """Time per step in waits for batches whose samples were all made, None where nobody noted which they were."""
    waits = [batch for row in counted for batch in row.get("batches", ())]
    if not waits or not made:
        return None
    ends: dict[tuple[str, int], list[int]] = {}
    for _, end, _, _, loader, number in made:
        ends.setdefault((loader, number), []).append(end)
    handed = 0
    for loader, epoch, number, begin, end in waits:
        moments = sorted(ends.get((loader, number), ()))
        if len(moments) > epoch:
            handed += end - min(max(begin, moments[epoch]), end)
    return handed / len(counted)
