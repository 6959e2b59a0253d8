"""DFTracer's traces of loops whose batches other threads or processes make: what is seen, and what is not claimed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpus import corpus

import stashtrace
from stashtrace.schema.kinds import BatchPhase, ProcessRole
from stashtrace.schema.trace import Trace

PID, T0 = 4711, 1_744_611_912_000_000
STEPS = 12


class Lines:
    """Events of some processes and threads in one file, times in ms."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def add(self, name: str, cat: str, begin_ms: float, ms: float, *, pid: int = PID, tid: int = PID) -> None:
        at, spent = T0 + round(begin_ms * 1000), round(ms * 1000)
        self.lines.append({"name": name, "cat": cat, "ph": "X", "pid": pid, "tid": tid, "ts": at, "dur": spent})

    def write(self, path: Path) -> Path:
        path.write_text("[\n" + "".join(json.dumps({"id": n, **row}) + "\n" for n, row in enumerate(self.lines)))
        return path


def _items(lines: Lines, turn: int, first_ms: float, each_ms: float, *, pid: int = PID, tid: int) -> None:
    for item in range(4):
        lines.add("TorchDataset.__getitem__", "data_loader", first_ms + item * each_ms, each_ms, pid=pid, tid=tid)
        lines.add("HDF5Reader.read_index", "reader", first_ms + item * each_ms, each_ms - 0.1, pid=pid, tid=tid)


def _budget(trace: Trace) -> dict[str, tuple[float, float, float]]:
    """Kind -> point, low and high in ms, over all steps."""
    rows = stashtrace.analyze(trace, "stalls", by="rank", warmup=True)
    return {str(r["kind"]): tuple(r[c] / 1e6 for c in ("stall_ns", "low_ns", "high_ns")) for r in rows.rows()}


def _made(trace: Trace) -> list[tuple[int, int, float, float]]:
    rows = trace.batches.take(trace.batches["phase_code"] == BatchPhase.FETCH)
    return [(r["rank"], r["worker_id"], r["begin_ns"] / 1e6, r["end_ns"] / 1e6) for r in rows.rows()]


def test_loading_that_an_emulated_compute_hides(tmp_path: Path) -> None:
    """DLIO with two reader threads: each step sleeps 100 ms in the place of a model, during 80 ms of reading."""
    lines = Lines()
    for turn in range(STEPS):
        lines.add("TorchFramework.compute", "ai_framework", turn * 100, 100)
        _items(lines, turn, turn * 100 + 10, 20, tid=PID + 1 + turn % 2)
    trace = stashtrace.load(lines.write(tmp_path / "trace-0-of-1.pfw"))
    made = _made(trace)
    assert [m[2:] for m in made] == [(10.0 + 100 * t, 90.0 + 100 * t) for t in range(STEPS)]
    assert [m[:2] for m in made] == [(0, t % 2) for t in range(STEPS)]
    hidden = stashtrace.analyze(trace, "hidden")
    assert hidden["hidden_loading_ns"].tolist() == [80_000_000] * (STEPS - 1), "a step lasts from mark to mark"
    budget = _budget(trace)
    assert budget["compute"] == (1100, 220, 1100), "a sleep while readers work proves no compute"
    assert budget["other"] == (0, 0, 880)
    assert "prep" not in budget, "nobody waits for a batch inside a sleep"
    facts = {trace.text(r["key_code"]): trace.text(r["value_code"]) for r in trace.metadata.rows()}
    assert facts["emulated_compute"] == "TorchFramework.compute"
    assert facts["batches_of_workers"] == "4 items each"


def _unrecorded(tmp_path: Path, compute: bool, **worker: int) -> Trace:
    """30 ms of compute, then 70 ms in which a worker makes the next batch for 60 and nobody recorded the wait."""
    lines = Lines()
    for turn in range(STEPS):
        if compute:
            lines.add("TorchFramework.compute", "ai_framework", turn * 100 + 70, 30)
        else:
            lines.add("loop.yield", "data_loader", turn * 100 + 70, 30)
        _items(lines, turn, turn * 100 + 5, 15, **{"tid": PID + 1, **worker})
    return stashtrace.load(lines.write(tmp_path / "trace-0-of-1.pfw"))


@pytest.mark.parametrize("worker", [{"tid": PID + 1}, {"pid": PID + 9, "tid": PID + 9}], ids=["thread", "process"])
def test_gaps_while_a_worker_works_are_most_likely_waits(tmp_path: Path, worker: dict[str, int]) -> None:
    trace = _unrecorded(tmp_path, True, **worker)
    budget = _budget(trace)
    # The first step begins with the first batch that is awaited, or with the first compute: its gap may be cut off.
    assert budget["compute"][1] == pytest.approx(30 * (STEPS - 1), abs=31)
    assert budget["compute"][2] == pytest.approx(100 * (STEPS - 1), abs=101)
    assert budget["prep"][0] == pytest.approx(60 * (STEPS - 1), abs=61)
    assert budget["prep"][1] == 0
    assert budget["prep"][2] == pytest.approx(70 * (STEPS - 1), abs=71)
    assert budget["fetch"][:2] == budget["handoff"][:2] == (0, 0)
    assert set(stashtrace.analyze(trace, "hidden")["hidden_loading_ns"].tolist()) == {0}, "it is a stall already"
    assert {m[0] for m in _made(trace)} == {0}
    roles = set(trace.processes["role_code"].tolist())
    assert roles == ({ProcessRole.RANK, ProcessRole.WORKER} if "pid" in worker else {ProcessRole.RANK})


def test_where_nothing_shows_what_the_thread_did_nothing_is_likely(tmp_path: Path) -> None:
    budget = _budget(_unrecorded(tmp_path, False))
    assert budget["prep"][0] == 0
    assert budget["compute"][1] == 0, "the body of a loop is not compute"
    assert budget["prep"][2] == budget["fetch"][2] == 100 * (STEPS - 1)


def test_recorded_waits_leave_no_doubt_about_the_rest(tmp_path: Path) -> None:
    """With loop.iter every wait is there: time outside them while a worker works is not wait."""
    lines = Lines()
    for turn in range(STEPS):
        lines.add("loop.iter", "data_loader", turn * 100, 20)
        lines.add("compute", "compute", turn * 100 + 20, 50)
        _items(lines, turn, turn * 100 + 30, 15, tid=PID + 1)
    budget = _budget(stashtrace.load(lines.write(tmp_path / "trace-0-of-1.pfw")))
    assert budget["prep"][0] == pytest.approx(20 * STEPS, abs=21)
    assert budget["prep"][2] == budget["prep"][0]
    assert budget["compute"][1] == pytest.approx(50 * STEPS, abs=51), "an annotation of a job's compute"


class Spans:
    """Microseconds between the moments at which anything begins or ends, which sets of them are masks of."""

    def __init__(self, moments: Iterable[int]) -> None:
        self.moments = np.unique(list(moments))

    def covered(self, intervals: Iterable[tuple[int, int]]) -> Any:
        """True in each span that one of some intervals covers."""
        out = np.zeros(len(self.moments) - 1, dtype=bool)
        for begin, end in intervals:
            assert {begin, end} <= set(self.moments.tolist())
            out[np.searchsorted(self.moments, begin) : np.searchsorted(self.moments, end)] = True
        return out

    def length(self, mask: Any) -> int:
        return int(np.diff(self.moments)[mask].sum())


@pytest.mark.parametrize("rank", [0, 5])
@pytest.mark.parametrize("process", [False, True])
def test_real_lines_with_the_items_moved_to_a_worker(tmp_path: Path, rank: int, process: bool) -> None:
    """DLIO's trace without the records of its waits and with its items made elsewhere, by plain arithmetic."""
    text = gzip.decompress(corpus(f"dftracer/dlio_unet3d-trace-{rank}-of-8.pfw.gz").read_bytes()).decode()
    events = [json.loads(line.rstrip(",")) for line in text.splitlines() if line.startswith("{")]
    main = next(e["pid"] for e in events if e["name"] == "TorchFramework.compute")
    kept = [e for e in events if not e["name"].startswith("loop.") and e.get("cat") not in ("POSIX", "reader")]
    for e in kept:
        if e["name"].endswith("__getitem__"):
            e["tid"] = 99
            e["pid"] = 99 if process else main
    path = tmp_path / f"trace-{rank}-of-8.pfw"
    path.write_text("[\n" + "\n".join(map(json.dumps, kept)))
    trace = stashtrace.load(path)
    calls = [e for e in kept if e["ph"] == "X"]
    base = min(e["ts"] for e in calls)
    ends = np.array(sorted(e["ts"] + e["dur"] for e in calls if e["name"] == "TorchFramework.compute")) - base
    steps = stashtrace.analyze(trace, "steps")
    origin = int(facts_of(trace)["origin_realtime_ns"]) // 1000 - base
    assert (steps["end_ns"] // 1000 + origin).tolist() == ends.tolist()[-len(steps) :]
    within = (int(steps["begin_ns"].min()) // 1000 + origin, int(ends[-1]))
    made = [(round(begin * 1000) + origin, round(end * 1000) + origin) for _, _, begin, end in _made(trace)]

    def of(events: Iterable[dict[str, Any]]) -> list[tuple[int, int]]:
        return [(e["ts"] - base, e["ts"] + e["dur"] - base) for e in events]

    spans = Spans(moment for interval in (*of(calls), *made, within) for moment in interval)
    inside, making = spans.covered([within]), spans.covered(made)
    computing = spans.covered(of(e for e in calls if e["name"] == "TorchFramework.compute"))
    named = spans.covered(of(e for e in calls if e["tid"] == main and _within_a_step(e, base, ends)))
    items = spans.covered(of(e for e in calls if e["name"].endswith("__getitem__")))
    assert not (items & ~making).any()
    assert spans.length(making & ~items) < 0.02 * spans.length(items), "a batch reaches from its first item to its last"
    budget = _budget(trace)
    assert budget["prep"][0] * 1000 == pytest.approx(spans.length(inside & making & ~named), abs=100)
    assert budget["prep"][1] == 0
    assert budget["compute"][1] * 1000 == pytest.approx(spans.length(inside & named & ~(making & computing)), abs=100)
    assert budget["compute"][1] < 0.8 * sum(point for point, _, _ in budget.values())


def _within_a_step(event: dict[str, Any], base: int, ends: Any) -> bool:
    begin, end = event["ts"] - base, event["ts"] + event["dur"] - base
    after = ends[np.searchsorted(ends, begin, side="right") :]
    return len(after) == 0 or end <= after[0]


def facts_of(trace: Trace) -> dict[str, str]:
    """Facts by key; the last of each."""
    return {trace.text(r["key_code"]): trace.text(r["value_code"]) for r in trace.metadata.rows()}


def test_real_trace_that_makes_batches_itself_is_as_before() -> None:
    trace = stashtrace.load(corpus("dftracer/dlio_unet3d-trace-1-of-8.pfw.gz"))
    assert set(trace.batches["worker_id"].tolist()) == {-1}
    compute = _budget(trace)["compute"]
    assert compute[1] == pytest.approx(25 * 1361, rel=0.01), "25 steps of 1.36 s, with nothing during them"
