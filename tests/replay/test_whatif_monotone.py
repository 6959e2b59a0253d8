"""Less work never makes a step longer, and more work never makes it shorter."""

from __future__ import annotations

from typing import Any

import pytest
from builders import MS, TraceBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from replay.loader_jobs import Job
from replay.test_full_queue import Launcher

from examples import examples
from stashtrace.analysis.graph import Graph, build
from stashtrace.errors import MissingDataError
from stashtrace.replay import Change, what_if

LESS = ("compute=x0.5", "compute=0", "prep=x0.5", "straggler=0", "network.bandwidth=x2", "launch=x0.5")


@st.composite
def ddp_runs(draw: Any) -> Graph:
    """Ranks that make a batch, compute, reduce, and update, each for a different length in each step."""
    lengths = st.integers(1, 12)
    trace, clock = TraceBuilder(), 0
    ranks = draw(st.integers(1, 3))
    for step in range(draw(st.integers(7, 12))):
        called = {}
        for rank in range(ranks):
            process, made = trace.rank(rank), clock + draw(lengths) * MS
            process.batch_wait(step, clock, made, worker=0, cpu=0)
            process.worker(0).fetch(step, max(made - draw(lengths) * MS, 0), made, cpu=MS)
            called[rank] = made + draw(lengths) * MS
            process.phase("forward", made + 1000, called[rank])
        end = max(called.values()) + draw(lengths) * MS
        trace.meet(called, end, update_ns=MS)
        clock = end + MS
    if draw(st.booleans()):
        for name, rate in (("user", 0.9), ("system", 0), ("iowait", 0), ("steal", 0), ("idle", 0.6)):
            trace.counter(0, f"host_{name}_ns_total", {0: 0.0, clock: rate * clock}, unit="ns")
    return build(trace.trace())


@given(ddp_runs(), st.sampled_from(LESS))
@settings(max_examples=examples(60), deadline=None)
def test_less_work_makes_no_step_longer(graph: Graph, change: str) -> None:
    try:
        answer = what_if(graph, [Change.parse(change)])
    except MissingDataError:
        return
    assert answer.low_ns <= answer.high_ns <= answer.replayed_ns * (1 + 1e-9)


@given(ddp_runs(), st.sampled_from([change.replace("0.5", "2") for change in LESS if "x0.5" in change]))
@settings(max_examples=examples(40), deadline=None)
def test_more_work_makes_no_step_shorter(graph: Graph, change: str) -> None:
    try:
        answer = what_if(graph, [Change.parse(change)])
    except MissingDataError:
        return
    assert answer.high_ns >= answer.low_ns >= answer.replayed_ns * (1 - 1e-9)


@pytest.mark.parametrize("change", ["compute=x0.5", "launch=x0.5"])
@pytest.mark.parametrize("kernel_us", [2.0, 6.0, 40.0])
def test_neither_does_it_on_a_device(change: str, kernel_us: float) -> None:
    answer = what_if(build(Launcher(kernel_us=kernel_us, kernels=300).trace()), [Change.parse(change)])
    assert answer.high_ns <= answer.replayed_ns * (1 + 1e-9)


@pytest.mark.parametrize("cpus", [1.0, 2.0])
@pytest.mark.parametrize("workers", [1, 3])
def test_neither_does_it_where_cpus_are_scarce(cpus: float, workers: int) -> None:
    graph = build(Job(workers, batch_ns=9 * MS, step_ns=4 * MS, steps=60, cpus=cpus).run().trace())
    for change in ("compute=x0.5", "prep=x0.5"):
        answer = what_if(graph, [Change.parse(change)])
        assert answer.high_ns <= answer.replayed_ns * (1 + 1e-9)
