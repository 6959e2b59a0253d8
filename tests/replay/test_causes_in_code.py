"""Causes that are code: Python or operators, the calls of backward passes, and where transfers are waited for."""

from __future__ import annotations

from typing import Any

import pytest
from builders import MS, ProcessBuilder, TraceBuilder
from stack_rows import FORKED, TORCH, long_call, sample, stack_of

from stashtrace.analysis.graph import build as build_graph
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.replay.causes import causes
from stashtrace.replay.causes.candidates import Candidates
from stashtrace.replay.causes.work_by_line import work_by_line
from stashtrace.replay.whatif import ReplayedRun
from stashtrace.schema.kinds import StackCause, StackFlag, StallKind, WaitOp
from stashtrace.schema.trace import Trace
from stashtrace.summary.words.cause_templates import cause_lines

MAIN, LOOP = "main /jobs/train.py:30", "Decay.backward /jobs/model.py:12"
ENGINE = "_engine_run_backward /venv/lib/python3.11/site-packages/torch/autograd/graph.py:829"
STEPS = 40


def job(*, python_ms: float = 0, phase: str = "backward", holds_gil: bool = True, late: int = -1) -> Trace:
    """Two ranks compute for 20 ms in ``main``, and for some time more in a function of the user.

    ``late``: the only rank that does so. ``phase``: in which it is; empty: between the phases.
    """
    build, now = TraceBuilder(), 0
    build.group(range(2))
    for _ in range(STEPS):
        called = {}
        for rank in range(2):
            process, at = build.rank(rank), now
            process.phase("forward", at, at + 20 * MS, cpu=(at, at + 20 * MS))
            for moment in range(at + MS, at + 20 * MS, 2 * MS):
                sample(process, moment, stack_of(process, MAIN, ENGINE), flags=StackFlag(0))
            at += 20 * MS
            if python_ms and late in (-1, rank):
                end = at + round(python_ms * MS)
                if phase:
                    process.phase(phase, at, end, cpu=(at, end))
                flags = StackFlag.HOLDS_GIL if holds_gil else StackFlag(0)
                for moment in range(at + MS // 2, end, MS):
                    sample(process, moment, stack_of(process, MAIN, LOOP), flags=flags)
                at = end
            called[rank] = at
        end = max(called.values()) + 4 * MS
        build.meet(called, end)
        for rank, at in called.items():
            process = build.rank(rank)
            long_call(process, at, end, stack_of(process, MAIN), StackCause.COLLECTIVE)
            process.phase("optimizer", end, end + MS, cpu=(end, end + MS))
        now = end + MS
    return build.trace("./run")


def first(trace: Trace) -> dict[str, Any]:
    return next(iter(causes(trace).rows()))


def test_python_in_a_backward_pass_is_code_that_may_go() -> None:
    found = first(job(python_ms=12))
    assert (found["kind"], found["level"], found["place"]) == ("compute", "half", "Decay.backward (model.py:12)")
    what, _, saving = cause_lines(found, "RUN")
    assert (
        what
        == "all ranks run Python in forward or backward up to 12.0 ms a step (32 %) in Decay.backward (model.py:12)"
    )
    assert saving.startswith("this code twice as fast (operators of whole tensors instead of Python): ")


def test_operators_in_a_backward_pass_are_computation() -> None:
    found = list(causes(job(python_ms=12, holds_gil=False)).rows())
    assert [row["where"] for row in found] == ["link"], "half of the computation is said where nothing else is"


@pytest.mark.parametrize(("holds_gil", "does"), [(True, "runs Python in the loop"), (False, "computes in the loop")])
def test_code_between_phases_is_python_or_operators(holds_gil: bool, does: str) -> None:
    found = first(job(python_ms=12, phase="", holds_gil=holds_gil, late=1))
    assert (found["ranks"], found["kind"]) == ("1", "python")
    longer = "12.0 ms a step (32 %) longer than the others"
    with_place = "spends" if holds_gil else "computes"
    assert cause_lines(found, "RUN")[0] == f"rank 1 {with_place} {longer} in Decay.backward (model.py:12)"
    assert cause_lines({**found, "place": ""}, "RUN")[0] == f"rank 1 {does} {longer}"


def test_the_call_of_a_backward_pass_says_nothing_of_what_is_longer() -> None:
    """Rank 1 computes longer in a function, and the rest of its samples are below the call of the backward pass."""
    found = first(job(python_ms=12, late=1, holds_gil=False))
    assert (found["ranks"], found["place"]) == ("1", "Decay.backward (model.py:12)")


def test_transfers_have_the_line_that_waits_for_them() -> None:
    (link,) = (row for row in causes(job()).rows() if row["where"] == "link")
    assert (link["place"], round(link["place_ratio"], 3)) == ("main (train.py:30)", 1.0)
    assert cause_lines(link, "RUN")[0].endswith(", waited for in main (train.py:30)")


def test_a_function_is_named_with_the_one_that_the_loop_calls() -> None:
    """Both ranks run ``Block.forward`` in each step; every fifth step rank 0 does so in ``sample_text`` as well."""
    build, now = TraceBuilder(), 0
    build.group(range(2))
    block = "Block.forward /jobs/model.py:9"
    for step in range(60):
        called = {}
        for rank in range(2):
            process, at = build.rank(rank), now
            calls = [("Model.forward /jobs/model.py:20", 20)]
            calls += [("sample_text /jobs/train.py:12", 40)] if rank == 0 and step % 5 == 4 else []
            for outer, ms in calls:
                end = at + ms * MS
                process.phase("forward", at, end, cpu=(at, end))
                for moment in range(at + MS, end, 2 * MS):
                    sample(process, moment, stack_of(process, MAIN, outer, block))
                for moment in range(at + MS // 2, end, 20 * MS):
                    sample(process, moment, stack_of(process, MAIN))
                at = end
            called[rank] = at
        end = max(called.values()) + 2 * MS
        build.meet(called, end)
        for rank in called:
            build.rank(rank).phase("optimizer", end, end + MS, cpu=(end, end + MS))
        now = end + MS
    found = first(build.trace("./run"))
    assert (found["ranks"], found["place"], found["caller"]) == ("0", "Block.forward (model.py:9)", "sample_text")
    assert cause_lines(found, "RUN")[0].endswith(" in Block.forward (model.py:9), called by sample_text")


def test_code_between_phases_takes_its_cpu_from_those_of_the_host() -> None:
    """Two ranks compute for 20 ms of 37 and run code of the loop for 12: nothing else uses one of two CPUs."""
    trace = job(python_ms=12, phase="")
    graph = build_graph(trace)
    python = graph.is_thread & (graph.kind == StallKind.PYTHON) & (graph.work_ns >= 12 * MS)
    assert python.sum() >= STEPS
    assert (graph.facts.cpu_ns[python] == graph.work_ns[python]).all()


def test_a_function_of_several_lines_is_named_where_each_step_has_few_samples() -> None:
    """Every fifth step runs ``score`` for 80 ms: four samples, each in another one of its lines."""
    build, now = TraceBuilder(), 0
    build.group(range(2))
    for step in range(60):
        at = now + 20 * MS
        for rank in range(2):
            process = build.rank(rank)
            process.phase("forward", now, at, cpu=(now, at))
            sample(process, now + 10 * MS, stack_of(process, MAIN))
            for n in range(4) if step % 5 == 4 else ():
                sample(process, at + (10 + 20 * n) * MS, stack_of(process, MAIN, f"score /jobs/train.py:{50 + n}"))
        end = at + 80 * MS * (step % 5 == 4) + MS
        build.meet(dict.fromkeys(range(2), end), end + 2 * MS)
        for rank in range(2):
            build.rank(rank).phase("optimizer", end + 2 * MS, end + 3 * MS, cpu=(end, end + MS))
        now = end + 3 * MS
    found = first(build.trace("./run"))
    assert (found["kind"], found["every_count"], found["place"].partition(" ")[0]) == ("python", 5, "score")


def test_equal_work_in_other_functions_makes_no_rank_longer() -> None:
    """Both compute 24 ms, rank 1 all of it in ``Glass.forward`` and rank 0 half of it."""
    build, now = TraceBuilder(), 0
    build.group(range(2))
    glass, rest = "Glass.forward /jobs/model.py:9", "Glass.mix /jobs/model.py:20"
    for _ in range(STEPS):
        end = now + 24 * MS
        for rank in range(2):
            process = build.rank(rank)
            process.phase("forward", now, end, cpu=(now, end))
            for number, moment in enumerate(range(now + MS, end, 2 * MS)):
                named = rest if rank == 0 and number % 2 else glass
                sample(process, moment, stack_of(process, MAIN, named), flags=StackFlag(0))
        build.meet(dict.fromkeys(range(2), end), end + 2 * MS)
        for rank in range(2):
            build.rank(rank).phase("optimizer", end + 2 * MS, end + 3 * MS, cpu=(end + 2 * MS, end + 3 * MS))
        now = end + 3 * MS
    trace = build.trace("./run")
    graph = build_graph(trace)
    run, work = ReplayedRun(graph, budgets=False), work_by_line(TraceIndex(trace), graph)
    found = Candidates(graph, work, run.steps, run.measured_ns).all()
    assert {one.level for one in found} == {"half"}


def test_what_runs_in_few_steps_is_not_divided_with_what_runs_in_all() -> None:
    """Each step seals for 9 ms, of which every second has a sample; every sixth plots for 45 ms, with two samples."""
    build, now = TraceBuilder(), 0
    process = build.rank(0)
    for step in range(60):
        at = now + 20 * MS
        process.phase("forward", now, at, cpu=(now, at))
        sample(process, now + 10 * MS, stack_of(process, MAIN))
        if step % 2:
            sample(process, at + 4 * MS, stack_of(process, MAIN, "seal /jobs/train.py:70"))
        plots = step % 6 == 4
        for n in range(2) if plots else ():
            sample(process, at + (20 + 20 * n) * MS, stack_of(process, MAIN, "plot /jobs/train.py:80"))
        end = at + (9 + 45 * plots) * MS
        process.phase("optimizer", end, end + MS)
        now = end + MS
    found = [row for row in causes(build.trace()).rows() if row["every_count"] == 6]
    assert [row["place"] for row in found] == ["plot (train.py:80)"]


TRAIN = "main /jobs/train.py:23"
HOOK = (f"Tensor.backward {TORCH}/_tensor.py:6", "hook /jobs/train.py:11")
PARSE = ("parse /jobs/train.py:14", "JSONDecoder.decode /usr/lib/python3.11/json/decoder.py:337")


def sleeper(build: TraceBuilder, *, python_ms: int = 0) -> ProcessBuilder:
    """A rank of steps of 40 ms: 20 computing, 10 asleep; the rest is Python of the loop if ``python_ms`` are."""
    rank = build.rank(0)
    for step in range(12):
        now, ran = step * 40 * MS, step * (20 + python_ms) * MS
        rank.phase("forward", now, now + 10 * MS, cpu=(ran, ran + 10 * MS), runqueue=(0, 0))
        rank.wait(WaitOp.SLEEP, now + 10 * MS, now + 20 * MS)
        clocks = (ran + (10 + python_ms) * MS, ran + (20 + python_ms) * MS)
        rank.phase("optimizer", now + (20 + python_ms) * MS, now + 40 * MS, cpu=clocks, runqueue=(0, 0))
    return rank


def test_a_long_call_is_said_with_its_line() -> None:
    build = TraceBuilder()
    rank = sleeper(build)
    for step in range(12):
        long_call(rank, (step * 40 + 10) * MS, (step * 40 + 20) * MS, stack_of(rank, TRAIN, *HOOK))
    assert next(causes(build.trace()).rows())["place"] == "hook (train.py:11)"


def test_a_function_with_most_of_the_samples_is_said_with_what_it_calls() -> None:
    build = TraceBuilder()
    rank = sleeper(build, python_ms=10)
    parse, main = stack_of(rank, TRAIN, *PARSE), stack_of(rank, TRAIN)
    for step in range(12):
        sample(rank, step * 40 * MS + MS, main)
        for moment in (21, 24, 27):
            sample(rank, (step * 40 + moment) * MS, parse)
    (place,) = (row["place"] for row in causes(build.trace()).rows() if row["kind"] == "python")
    assert place == "parse (train.py:14, in json JSONDecoder.decode)"


def test_a_line_with_too_few_samples_is_not_said() -> None:
    build = TraceBuilder()
    rank = sleeper(build, python_ms=10)
    sample(rank, MS, stack_of(rank, TRAIN))
    sample(rank, 24 * MS, stack_of(rank, TRAIN, *PARSE))
    sample(rank, 479 * MS, stack_of(rank, TRAIN))
    assert not any("parse" in row["place"] for row in causes(build.trace()).rows())


def test_where_the_workers_make_batches() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    worker = rank.worker(0)
    augment = stack_of(
        worker, *FORKED, "augment /jobs/data.py:57", f"resize {TORCH.replace('torch', 'PIL')}/Image.py:9"
    )
    for step in range(12):
        now = step * 40 * MS
        rank.batch_wait(step, now, now + 30 * MS, worker=0)
        rank.phase("forward", now + 30 * MS, now + 38 * MS, cpu=(step * 10 * MS, step * 10 * MS + 8 * MS))
        rank.phase("optimizer", now + 38 * MS, now + 40 * MS, cpu=(step * 10 * MS + 8 * MS, step * 10 * MS + 10 * MS))
        worker.fetch(step, now, now + 29 * MS, worker=0, cpu=29 * MS)
        for moment in (3, 9, 15, 21, 27):
            sample(worker, now + moment * MS, augment)
    first = next(causes(build.trace()).rows())
    assert (first["change"], first["place"]) == ("workers=3", "augment (data.py:57, in PIL resize)")
