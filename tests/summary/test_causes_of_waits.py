"""What ranks wait for, as causes: the rank and the work that made the waits, and nobody where nobody stands out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import MS, TraceBuilder
from interleaved import interleaved
from scenes import verdicts
from wait_chains import (
    REST,
    Job,
    data_parallel,
    in_flight_together,
    noisy,
    on,
    over_a_slow_link,
    pipeline_of,
    reducer_and_broadcast,
    through_a_message,
    through_a_server,
    two_barriers,
)

from stashtrace.analysis.graph import build as build_graph
from stashtrace.analysis.registry import analyze
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.errors import MissingDataError
from stashtrace.replay.causes import causes, without_causes
from stashtrace.replay.causes.candidates import Candidates
from stashtrace.replay.causes.work_by_line import work_by_line
from stashtrace.replay.whatif import ReplayedRun
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_text import summary
from stashtrace.summary.words.cause_templates import cause_lines


def first(trace: Trace) -> dict[str, Any]:
    return next(iter(causes(trace).rows()))


def step_ns(trace: Trace) -> float:
    table = analyze(trace, "steps")
    return float((table["end_ns"] - table["begin_ns"])[table["step"] > 4].mean())


def two_of_four() -> Trace:
    """Now one of them comes last and now the other, so that neither makes most of the waiting."""
    noise, extra = noisy(3, 1.5), {1: 25.0, 2: 22.0}
    return data_parallel(lambda s, r: noise(s, r) + extra.get(r, 0.0) + (6 if (s + r) % 2 else 0), ranks=4)


def in_some_steps(ms: float, every: int, kind: str = "compute") -> Trace:
    noise = noisy(5, 1.0)
    return data_parallel(
        lambda step, rank: ms if rank == 1 and step % every == every - 1 else noise(step, rank), steps=80, kind=kind
    )


#: What a scene has -> the scene, and columns of its first cause. Waits are ms.
SCENES: dict[str, tuple[Callable[[], Trace], dict[str, Any], float]] = {
    "a sleep before the second barrier": (
        lambda: two_barriers(on(1, 20)),
        {"ranks": "1", "call": "asleep", "waiting_ranks": "0", "waiting_op": "barrier"},
        20,
    ),
    "a rank without steps passes the wait on": (
        lambda: through_a_server(on(2, 15)),
        {"ranks": "2", "call": "asleep", "waiting_ranks": "1", "through_ranks": "0"},
        14.5,
    ),
    "operations in flight together": (
        lambda: in_flight_together(on(0, 15)),
        {"ranks": "0", "call": "asleep", "waiting_ranks": "1", "waiting_op": "all_reduce"},
        15,
    ),
    "the wait that was recorded is another one": (
        lambda: reducer_and_broadcast(on(0, 25)),
        {"ranks": "0", "call": "asleep", "waiting_op": "all_reduce"},
        25,
    ),
    "a slow message": (
        lambda: over_a_slow_link(30),
        {"ranks": "0,1", "where": "link", "op": "send", "level": "half"},
        15,
    ),
    "a rank that reads, and another one that passes its wait on": (
        lambda: through_a_message(on(0, 30)),
        {"ranks": "0", "kind": "workers", "present_count": 1},
        30.2,
    ),
    "two of four ranks": (two_of_four, {"ranks": "1,2", "kind": "compute", "waiting_ranks": "0,3"}, 23),
    "a rank with less work": (
        lambda: data_parallel(lambda step, rank: noisy(4, 1.0)(step, rank) + 12 * (rank != 3), ranks=4),
        {"ranks": "", "kind": "compute", "level": "even"},
        3,
    ),
    "a sleep in every twentieth step": (
        lambda: in_some_steps(200.0, 20, "sleep"),
        {"ranks": "1", "call": "asleep", "every_count": 20},
        10,
    ),
    "computation in every tenth step": (
        lambda: in_some_steps(100.0, 10),
        {"ranks": "1", "kind": "compute", "level": "peers", "every_count": 10},
        10,
    ),
    "computation in every second step": (
        lambda: in_some_steps(150.0, 2),
        {"ranks": "1", "kind": "compute", "level": "peers", "every_count": 2},
        75,
    ),
    "ranks that compute alternately": (
        lambda: data_parallel(lambda step, rank: 20.0 if step % 2 == rank else 0.0),
        {"ranks": "", "kind": "compute", "level": "even"},
        10,
    ),
    "ranks that sleep alternately": (
        lambda: data_parallel(lambda step, rank: 20.0 if step % 2 == rank else 0.0, kind="sleep"),
        {"ranks": "", "call": "asleep"},
        20,
    ),
    "a slow rank of a stage": (
        lambda: pipeline_of(4, 8, on(5, 3.0), replicas=2),
        {"ranks": "5", "kind": "compute", "level": "peers"},
        70,
    ),
    "a stage that sleeps": (
        lambda: pipeline_of(4, 8, sleeps=on(1, 40.0)),
        {"ranks": "1", "call": "asleep", "level": "gone"},
        28,
    ),
    "a stage that reads a file": (
        lambda: pipeline_of(4, 8, reads=on(0, 60.0)),
        {"ranks": "0", "kind": "fetch", "level": "gone"},
        36,
    ),
    "a rank that holds two stages and sleeps": (
        lambda: interleaved(3, 2, 6, sleeps=on(1, 40.0)),
        {"ranks": "1", "call": "asleep", "level": "gone"},
        27,
    ),
    "a slow rank of those that hold the same stages": (
        lambda: interleaved(3, 2, 6, on(3, 2.0), replicas=2),
        {"ranks": "3", "kind": "compute", "level": "peers"},
        69,
    ),
}


@pytest.mark.parametrize("name", SCENES)
def test_the_work_that_others_wait_for_is_the_first_cause(name: str) -> None:
    make, expected, saved_ms = SCENES[name]
    found = first(make())
    assert {key: found[key] for key in expected} == expected
    assert found["saved_ns"] / MS == pytest.approx(saved_ms, rel=0.2)


@pytest.mark.parametrize(("rank", "ms"), [(0, 12.0), (1, 25.0), (3, 6.0)])
def test_work_that_is_longer_on_one_rank_is_that_long(rank: int, ms: float) -> None:
    noise = noisy(rank, 1.0)
    found = first(data_parallel(lambda step, own: noise(step, own) + (ms if own == rank else 0), ranks=4))
    assert (found["ranks"], found["kind"]) == (str(rank), "compute")
    assert found["work_ns"] / MS == pytest.approx(ms, rel=0.15)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("seed", range(6))
def test_similar_ranks_are_not_accused(ranks: int, seed: int) -> None:
    """Steps vary by a third: batches of even cost would help, and no rank is to blame."""
    found = list(causes(data_parallel(noisy(seed, 8), ranks=ranks)).rows())
    assert [row["ranks"] for row in found] == [""] * len(found)


def test_both_causes_of_one_rank_are_said() -> None:
    job = Job(2)
    for step in range(20):
        for rank in range(2):
            job.load(rank, step, 30 if rank == 0 else 0)
            job.compute(rank, 10)
            job.sleep(rank, 20 if rank == 0 else 0)
        job.meet([0, 1], group=0xCAFE)
        for rank in range(2):
            job.update(rank)
    found = list(causes(job.trace()).rows())
    assert [(row["ranks"], row["kind"]) for row in found] == [("0", "workers"), ("0", "other")]


def test_reads_of_one_file_are_one_cause() -> None:
    """A part of them blocks, and a part is Python: reported once with all of their time; saved is what blocks."""
    trace = pipeline_of(4, 8, reads=on(0, 60.0))
    (found,) = causes(trace).rows()
    assert found["work_ns"] / MS == pytest.approx(60, rel=0.02)
    assert found["saved_ns"] / MS == pytest.approx(36, rel=0.02)
    with pytest.raises(MissingDataError, match="cause=2: the run has 1 cause"):
        without_causes(trace, [2])


@pytest.mark.parametrize("ranks", [2, 8, 16])
def test_noise_of_many_ranks_is_no_uneven_work(ranks: int) -> None:
    """What chance adds in forward says nothing of backward; the slowest of many ranks is longer by chance alone."""
    random = np.random.default_rng(ranks)
    job = Job(ranks)
    for _ in range(40):
        for rank in range(ranks):
            job.compute(rank, 10 + 1.5 * abs(random.normal()))
            job.compute(rank, 10 + 1.5 * abs(random.normal()), "backward")
        job.meet(range(ranks), group=REST)
        for rank in range(ranks):
            job.update(rank)
    assert {row["level"] for row in causes(job.trace()).rows()} <= {"half"}


def test_a_few_steps_show_no_uneven_work() -> None:
    trace = data_parallel(lambda step, rank: 40.0 * (rank == 1), ranks=4, steps=4)
    assert {row["level"] for row in causes(trace).rows()} <= {"half", "peers", ""}


def test_one_event_may_not_come_again() -> None:
    trace = data_parallel(lambda step, rank: 900.0 * (rank == 1 and step == 20), kind="sleep")
    found = first(trace)
    assert (found["steps_count"], found["saved_low_ns"], found["sure"]) == (1, 0, "perhaps")
    saving = cause_lines(found, "RUN")[2]
    assert "saves" in saving
    assert saving.endswith("of another run only if it comes again")
    assert "may save" not in saving


def test_a_saving_that_is_larger_than_the_cause_says_why() -> None:
    """Ranks that sleep in turns wait for each other as well."""
    found = first(data_parallel(lambda step, rank: 40.0 * (step % 2 == rank), ranks=2, kind="sleep"))
    assert found["saved_ns"] > 1.5 * found["work_ns"]
    assert "; waits for it get shorter too)" in cause_lines(found, "RUN")[2]


def test_a_rank_alone_in_its_stage_hides_no_peer_of_another_stage() -> None:
    job = Job(5)
    for _ in range(30):
        for rank in range(5):
            job.compute(rank, 20 + 15 * (rank == 1))
            job.compute(rank, 20, "backward")
        job.meet(range(5), group=REST)
        for rank in range(5):
            job.update(rank)
    graph = build_graph(job.trace())
    staged = replace(graph, stage_of={0: 0, 1: 0, 2: 0, 3: 0, 4: 1})
    run = ReplayedRun(staged, budgets=False)
    work = work_by_line(TraceIndex(job.trace()), staged)
    found = Candidates(staged, work, run.steps, run.measured_ns).all()
    assert any(one.level == "peers" and one.ranks == (1,) for one in found)


@pytest.mark.parametrize(("collects", "call"), [((0.0, 12.0), "garbage"), ((12.0, 12.0), "")])
def test_garbage_is_the_cause_only_if_the_others_collect_less(collects: tuple[float, float], call: str) -> None:
    """Rank 1 runs 15 ms longer, and collects garbage for 12 ms: as the other one does, or not."""
    job = Job(2)
    for _ in range(30):
        for rank in (0, 1):
            begin = job.now[rank]
            job.compute(rank, 30 + 15 * rank)
            if collects[rank]:
                job.build.rank(rank).gc(begin + MS, begin + MS + round(collects[rank] * MS))
        job.meet(range(2), group=REST)
        for rank in (0, 1):
            job.update(rank)
    found = first(job.trace())
    assert (found["ranks"], found["call"]) == ("1", call)


def test_a_rank_without_steps_that_all_wait_for_is_not_said_to_compute() -> None:
    """As a parameter server without an optimizer: rank 1 trains and waits 15 ms for it in each of its steps."""
    build, at = TraceBuilder(), 0
    for _ in range(40):
        rank, late_ns = build.rank(1), at + 35 * MS
        rank.phase("forward", at, at + 10 * MS).phase("backward", at + 10 * MS, at + 20 * MS)
        keys = build.collective({0: (late_ns, late_ns + MS), 1: (at + 20 * MS, late_ns + MS)})
        rank.collective_wait(keys[1], at + 20 * MS, late_ns + MS)
        rank.phase("optimizer", late_ns + MS, late_ns + 3 * MS)
        at = late_ns + 3 * MS
    found = first(build.trace())
    assert (found["ranks"], found["kind"], found["level"], found["waiting_ranks"]) == ("0", "", "half", "1")
    assert cause_lines(found, "RUN")[0].startswith("rank 0 (it makes no steps) takes 3")


@pytest.mark.parametrize(
    "make",
    [
        lambda extra: pipeline_of(4, 8, extra),
        lambda extra: interleaved(4, 2, 8, extra),
    ],
)
@pytest.mark.parametrize("slow", [1, 3])
def test_a_slow_stage_saves_what_an_even_split_does(make: Callable[..., Trace], slow: int) -> None:
    trace, even = make(on(slow, 2.0)), make(lambda step, rank: 0.5)
    found = first(trace)
    assert (found["ranks"], found["kind"], found["level"]) == (str(slow), "compute", "even")
    saved = 1 - step_ns(even) / step_ns(trace)
    assert found["saved_ns"] / found["step_ns"] == pytest.approx(saved, abs=0.02)


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (3, 6), (4, 8)])
def test_a_pipeline_of_equal_stages_is_bound_by_its_computation_and_has_a_bubble(
    stages: int, microbatches: int
) -> None:
    trace = pipeline_of(stages, microbatches, noisy(stages, 0.3))
    (found,) = causes(trace).rows()
    assert (found["kind"], found["level"], found["ranks"]) == ("compute", "half", "")
    shown = " ".join(summary(trace, first=causes(trace)).split())
    # Each micro-batch takes 12 ms on a stage, and about 3 times 0.24 ms more.
    said = f"a pipeline of {stages} stages with {microbatches} micro-batches a step has a bubble of about "
    bubble_ms = float(shown.partition(said)[2].split()[0])
    assert bubble_ms == pytest.approx((stages - 1) * 12.7, rel=0.1)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_pipeline_leads_to_its_tables(replicas: int) -> None:
    shown = summary(pipeline_of(2, 4, noisy(2, 0.3), replicas=replicas), everything=True)
    assert "stages     stashtrace analyze pipeline " in shown
    assert "analyze pipeline" not in summary(data_parallel(on(0, 20.0)), everything=True)


def test_a_wait_is_said_with_the_rank_at_which_it_ends() -> None:
    (late,) = (v for v in verdicts(data_parallel(on(0, 25.0), ranks=3)) if v.kind == "late")
    assert late.text == ("ranks 1,2 wait 25.0 ms a step (53 %) for other ranks in all-reduce, all of it for rank 0")
    table = analyze(data_parallel(on(0, 10)), "findings")
    claim = next(row for row in table.rows() if row["kind"] == "late")
    assert claim["low_ns"] <= claim["stall_ns"] <= claim["high_ns"]
    assert claim["stall_ns"] == pytest.approx(10 * MS, rel=0.02)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (lambda step: 40.0 if step >= 40 else 0.0, "rank 1 sleeps 40.0 ms a step from step 40 on"),
        (lambda step: 40.0 if step < 40 else 0.0, "rank 1 sleeps 40.0 ms a step up to step 39"),
        (lambda step: 40.0 if 20 <= step < 35 else 0.0, "rank 1 sleeps 40.0 ms a step in steps 20 to 34"),
        (lambda step: 200.0 if step % 10 == 9 else 0.0, "rank 1 sleeps 200 ms in every 10th step"),
        (lambda step: 900.0 if step == 50 else 0.0, "rank 1 sleeps 900 ms once in 75 steps"),
        (lambda step: float(step), "rank 1 sleeps 42.0 ms a step (66 %), growing over the run"),
        (lambda step: 30.0 + step % 3, "rank 1 sleeps 31.0 ms a step (58 %)"),
    ],
)
def test_a_cause_says_in_which_steps_it_is(extra: Callable[[int], float], said: str) -> None:
    trace = data_parallel(lambda step, rank: extra(step) if rank == 1 else 0.0, steps=80, kind="sleep")
    lines = summary(trace, first=causes(trace)).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("  ▶ "))
    line = lines[at].removeprefix("  ▶ ") + (" " + lines[at + 1].strip() if lines[at + 1].startswith("    r") else "")
    assert line == said
