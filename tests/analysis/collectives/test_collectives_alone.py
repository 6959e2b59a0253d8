"""A trace of torch.profiler without a device: what a collective of gloo in flight says of the thread next to it."""

from __future__ import annotations

import gzip
import warnings
from pathlib import Path
from typing import Any

import pytest
from importers.kineto_files import PID, host, step, write

import stashtrace
from stashtrace.errors import DataLossWarning
from stashtrace.schema.trace import Trace

STEPS, WORLD = 5, 300
AUTOGRAD, BACKEND = PID + 7, PID + 9


def _load(*paths: Path) -> Trace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        return stashtrace.load(list(paths))


def _rank(path: Path, more: list[tuple[str, float, float, int]], *, rank: int = 0, enter: float = 100.0) -> Path:
    """Steps of 1,000 us with an all-reduce up to 930 us; ``more`` are operators of each: name, begin, us, thread."""
    events: list[dict[str, Any]] = []
    for n in range(STEPS):
        at = 1000.0 * n
        events += [
            step(n, at, 1000),
            host("gloo:all_reduce", at + enter, 930 - enter, cat="user_annotation", tid=BACKEND),
            *(host(name, at + begin, spent, tid=tid) for name, begin, spent, tid in more),
        ]
    return write(path, events, distributedInfo={"backend": "gloo", "rank": rank, "world_size": WORLD})


def _budget(trace: Trace, rank: int = 0) -> dict[str, tuple[int, int, int]]:
    """Kind -> point, low and high of a rank's steps, in microseconds a step."""
    rows = stashtrace.analyze(trace, "stalls", by="rank", warmup=True)
    own = rows.take(rows["rank"] == rank)
    return {str(r["kind"]): tuple(r[c] // 1000 // STEPS for c in ("stall_ns", "low_ns", "high_ns")) for r in own.rows()}


def test_no_operator_runs_anywhere(tmp_path: Path) -> None:
    """One of 300 ranks, an all-reduce 83 % of the time: nothing proves that the rank computed at all."""
    trace = _load(_rank(tmp_path / "rank0.json", []))
    budget = _budget(trace)
    assert budget["compute"] == (0, 0, 0)
    assert budget["interconnect"] == (830, 0, 830)
    assert budget["straggler"] == (0, 0, 830)
    assert budget["python"] == (0, 0, 1000)
    assert budget["other"] == (170, 0, 1000)
    hidden = stashtrace.analyze(trace, "hidden")
    assert hidden["hidden_communication_ns"].tolist() == [0] * STEPS


@pytest.mark.parametrize("suffix", ["json", "json.gz"])
@pytest.mark.parametrize("thread", [PID, AUTOGRAD])
def test_operators_next_to_it_are_compute(tmp_path: Path, thread: int, suffix: str) -> None:
    """400 us of operators under the all-reduce, of the thread of the loop or of the one that it waits for."""
    operators = [("aten::mm", 300, 250, thread), ("aten::add", 310, 40, thread), ("aten::relu", 560, 140, thread)]
    launch = [("c10d::allreduce_", 100, 500, PID), ("_c10d_functional::wait_tensor", 705, 200, PID)]
    trace = _load(_rank(tmp_path / f"rank0.{suffix}", [*operators, *launch]))
    budget = _budget(trace)
    assert budget["interconnect"] == (430, 0, 430), "launching and awaiting it is not work"
    low = 400 if thread == PID else 0
    assert budget["compute"] == (400, low, 400), "what is 10 us apart is one stretch"
    hidden = stashtrace.analyze(trace, "hidden")
    assert hidden["hidden_communication_ns"].tolist() == [400_000] * STEPS


def test_late_rank_of_two_files(tmp_path: Path) -> None:
    paths = [_rank(tmp_path / f"rank{r}.json", [], rank=r, enter=100 + 500 * r) for r in range(2)]
    trace = _load(*paths)
    budget = _budget(trace)
    assert budget["straggler"] == (500, 0, 830)
    assert budget["interconnect"] == (330, 0, 330)
    rows = stashtrace.analyze(trace, "stalls")
    waited = rows.take((rows["kind"] == "straggler") & (rows["rank"] == 0) & (rows["step"] >= 0))
    assert set(waited["cause_rank"].tolist()) == {1}


def test_an_operator_over_the_end_of_a_step_counts_in_both(tmp_path: Path) -> None:
    trace = _load(_rank(tmp_path / "rank0.json", [("aten::mm", 900, 250, PID)]))
    budget = _budget(trace)
    # Of each step 900 to 930 us and, but in the first, 100 to 150.
    assert budget["interconnect"][0] == (4 * 750 + 800) // STEPS
    assert budget["compute"][1] == (4 * 250 + 100) // STEPS


def test_a_cut_file_still_has_its_operators(tmp_path: Path) -> None:
    path = _rank(tmp_path / "rank0.json.gz", [("aten::mm", 300, 400, PID)])
    whole = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(whole[: int(len(whole) * 0.9)]))
    assert _budget(_load(path))["compute"][1] > 0
