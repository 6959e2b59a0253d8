"""What several analyses need is computed once for a trace and goes with it: counted, not timed."""

from __future__ import annotations

import copy
import gc
import importlib
import pickle
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stashtrace.analysis.findings import findings, summarize
from stashtrace.analysis.registry import analyze
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex, kept_per_thread
from stashtrace.analysis.steps.steps import steps
from stashtrace.analysis.steps.threads import StepThread, step_threads
from stashtrace.format.stash_file import StashFile
from stashtrace.lab import synth
from stashtrace.loading.load import load_trace
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

RANKS, WORKERS, STEPS = 4, 2, 8
#: Functions that a whole summary may call once, and those that it may call once for each rank.
ONCE_PER_TRACE = (
    ("stashtrace.analysis.steps.steps", "number_steps"),
    ("stashtrace.analysis.steps.steps", "DeviceSteps"),
    ("stashtrace.analysis.stalls.rows_by_thread", "match"),
)
ONCE_PER_RANK = (
    ("stashtrace.analysis.steps.steps", "_rank_steps"),
    ("stashtrace.analysis.stalls.budget", "_divide"),
    ("stashtrace.analysis.stalls.collective_blocking", "blocked_on_collectives"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many") / "run"
    job = synth.SyntheticJob(
        ranks=RANKS, workers=WORKERS, steps=STEPS, calls_per_batch=12, late_rank=1, late_ns=5_000_000
    )
    synth.write(folder, job)
    return folder


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counts: Counter[str] = Counter()
    for module_name, name in (*ONCE_PER_TRACE, *ONCE_PER_RANK):
        module = importlib.import_module(module_name)
        monkeypatch.setattr(module, name, counted(getattr(module, name), name, counts))
    monkeypatch.setattr(TraceIndex.trace, "func", counted(TraceIndex.trace.func, "index", counts))
    return counts


def counted(function: Callable[..., Any], name: str, counts: Counter[str]) -> Callable[..., Any]:
    def counting(*given: Any, **named: Any) -> Any:
        counts[name] += 1
        return function(*given, **named)

    return counting


def test_a_summary_computes_what_its_parts_share_once(run: Path, calls: Counter[str]) -> None:
    summarize(load_trace(run))
    assert {name: calls[name] for _, name in ONCE_PER_TRACE} == {name: 1 for _, name in ONCE_PER_TRACE}
    assert {name: calls[name] for _, name in ONCE_PER_RANK} == {name: RANKS for _, name in ONCE_PER_RANK}
    assert calls["index"] == 1, "the collectives were sorted for another index"


def test_analyses_after_a_summary_compute_nothing_again(run: Path, calls: Counter[str]) -> None:
    trace = load_trace(run)
    summarize(trace)
    before = Counter(calls)
    for name in ("steps", "stalls", "straggler_causes", "hidden"):
        analyze(trace, name)
    assert calls == before


def test_indexes_of_a_trace_share_what_is_made_and_others_do_not(run: Path) -> None:
    trace = load_trace(run)
    one, other = TraceIndex(trace), TraceIndex(trace)
    assert one.matched is other.matched
    assert one.steps is other.steps is steps(trace)
    changed = TraceIndex(trace.replace(spans=trace.spans))
    assert changed.matched is not one.matched


def test_a_changed_trace_keeps_separate_results(run: Path) -> None:
    trace = load_trace(run)
    whole = steps(trace)
    half = trace.replace(phases=trace.phases.take(trace.phases["begin_ns"] < int(np.median(whole["begin_ns"]))))
    assert 0 < len(steps(half)) < len(whole)
    assert steps(trace) is whole


def test_memory_of_a_trace_is_free_without_a_collection_of_garbage(run: Path) -> None:
    trace = load_trace(run)
    summarize(trace)
    table, gone = weakref.ref(TraceIndex(trace).trace), weakref.ref(trace)
    gc.collect()  # what the analyses left behind on their way is not what is kept
    gc.disable()
    try:
        del trace
        assert gone() is None
        assert table() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("copied", [copy.copy, lambda trace: pickle.loads(pickle.dumps(trace))])
def test_a_copy_takes_the_tables_and_not_the_results(run: Path, copied: Callable[[Trace], Trace]) -> None:
    trace = load_trace(run)
    trace.table("io")
    expected = rows_of(findings(trace))
    other = copied(trace)
    assert trace.kept
    assert not other.kept
    assert rows_of(findings(other)) == expected


def test_results_of_threads_are_kept_by_thread(run: Path) -> None:
    made: list[StepThread] = []

    @kept_per_thread
    def length(index: TraceIndex, thread: StepThread) -> int:
        made.append(thread)
        return thread.end_ns - thread.begin_ns

    trace = load_trace(run)
    threads = step_threads(trace)
    for _ in range(2):
        for thread in threads:
            assert length(TraceIndex(trace), thread) == thread.end_ns - thread.begin_ns
    assert made == list(threads)


def test_a_file_is_counted_once_and_a_table_of_no_rows_made_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[str] = Counter()
    monkeypatch.setattr(StashFile, "_count_rows", counted(StashFile._count_rows, "files", counts))
    summarize(load_trace(run))
    assert counts["files"] == RANKS * (1 + WORKERS)
    trace = load_trace(run)
    assert trace.kernels is Table.empty(trace.kernels.schema)


def rows_of(table: Table) -> list[dict[str, Any]]:
    return list(table.rows())
