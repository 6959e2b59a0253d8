"""Exposed times per rank, step and kind, from nothing but the example's clock.

Reads what `examples/plain_clock.py` wrote and applies the definitions of docs/concepts/stalls.md to the script's
laps. Knows no trace: this is the other side of the comparison.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

Interval = tuple[int, int]


@dataclass(frozen=True)
class StepTruth:
    """One step of one rank: wall time and what the script says it spent on each kind."""

    rank: int
    step: int
    wall_ns: int
    kinds: dict[str, int]


@dataclass(frozen=True)
class _Piece:
    what: str
    worker: int
    begin_ns: int
    end_ns: int


def overlap_ns(intervals: list[Interval], within: Interval) -> int:
    """Length of the union of `intervals` inside `within`."""
    total, reached = 0, within[0]
    for begin, end in sorted(intervals):
        begin, end = max(begin, reached), min(end, within[1])
        if end > begin:
            total += end - begin
            reached = end
    return total


def load(folder: Path, *, link: str, workers: int) -> list[StepTruth]:
    """Truth of a run: one row per rank and step.

    Parameters
    ----------
    folder : Path
        The `--truth` folder.
    link : str
        What a transfer between the ranks is on this machine: "network" or "interconnect".
    workers : int
        DataLoader workers per rank; with some, the run must stay within one epoch.
    """
    steps = {
        path.stem.split("-")[1]: [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(folder.glob("rank-*.jsonl"))
    }
    pieces = {rank: _pieces(folder, rank) for rank in steps}
    # Only steps that every rank has finished: a collective needs all entries.
    count = min(len(rows) for rows in steps.values())
    result = []
    for rank, rows in steps.items():
        for number in range(count):
            others = [steps[other][number] for other in steps if other != rank]
            result.append(_step(rows[number], others, pieces[rank], link, workers))
    return result


def _pieces(folder: Path, rank: str) -> list[_Piece]:
    rows = []
    for path in folder.glob(f"samples-{rank}-*.jsonl"):
        for line in path.read_text().splitlines():
            what, worker, begin, end, own_ns = json.loads(line)
            if what == "cold_touch":  # page faults: the thread waits in them and does the rest of the work itself
                what, end = "cold_read", max(begin, end - own_ns)
            rows.append(_Piece(what, worker, begin, end))
    return rows


def _step(
    row: dict[str, object], others: list[dict[str, object]], pieces: list[_Piece], link: str, workers: int
) -> StepTruth:
    kinds = dict.fromkeys(("fetch", "prep", "handoff", "straggler", link, "checkpoint", "other"), 0)
    for name, begin, end in _laps(row):
        if name == "wait":
            _add_wait(kinds, (begin, end), pieces, int(str(row["step"])), workers)
        elif name == "sleep":
            kinds["other"] += end - begin
        elif name == "checkpoint":
            kinds["checkpoint"] += end - begin
    for (begin, end), entered in zip(_collectives(row), zip(*map(_collectives, others), strict=True), strict=True):
        late = max([peer_begin for peer_begin, _ in entered], default=begin)
        waited = min(max(late, begin), end)
        kinds["straggler"] += waited - begin
        kinds[link] += end - waited
    wall = int(str(row["end_ns"])) - int(str(row["begin_ns"]))
    kinds["compute"] = wall - sum(kinds.values())
    return StepTruth(int(str(row["rank"])), int(str(row["step"])), wall, kinds)


def _laps(row: dict[str, object]) -> list[tuple[str, int, int]]:
    laps = row["laps"]
    assert isinstance(laps, list)
    return [(name, begin, end) for name, begin, end in laps]


def _collectives(row: dict[str, object]) -> list[Interval]:
    """Intervals in which the script's thread is blocked on an all-reduce, in order.

    By hand each call is a lap. In DDP with one bucket it is the end of backward, from the last gradient on.
    """
    by_hand = [(begin, end) for name, begin, end in _laps(row) if name == "all_reduce"]
    if by_hand:
        return by_hand
    return [(int(str(row["gradients_ready_ns"])), end) for name, _, end in _laps(row) if name == "backward"]


def _add_wait(kinds: dict[str, int], wait: Interval, pieces: list[_Piece], step: int, workers: int) -> None:
    worker = step % workers if workers else -1
    own = [p for p in pieces if p.worker == worker]
    if workers:
        produced = sorted(p.end_ns for p in own if p.what == "collate")[step // workers]
        making = (wait[0], min(max(produced, wait[0]), wait[1]))
    else:
        making = wait
    fetch = overlap_ns([(p.begin_ns, p.end_ns) for p in own if p.what == "cold_read"], making)
    kinds["fetch"] += fetch
    kinds["prep"] += making[1] - making[0] - fetch
    kinds["handoff"] += wait[1] - making[1]
