"""Causes: what was planted comes first, and the repaired job is shorter by the amount that was promised."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from builders import MS, TraceBuilder
from stack_rows import long_call, sample, stack_of
from wait_chains import Job as Chain

from stashtrace.analysis.graph import Graph, build
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.replay import Change
from stashtrace.replay.causes import causes, without_causes
from stashtrace.replay.causes.candidates import kind_word
from stashtrace.replay.causes.choose_causes import Cause, causes_of
from stashtrace.replay.causes.work_by_line import work_by_line
from stashtrace.replay.whatif import ReplayedRun
from stashtrace.schema.kinds import StackCause, StallKind, WaitOp
from stashtrace.schema.trace import Trace
from stashtrace.summary.words.cause_templates import cause_text

MAIN = "<module> /jobs/train.py:30"
PARSE, HOOK, DRAW = "parse /jobs/train.py:9", "hook /jobs/train.py:4", "Sampler.draw /jobs/data.py:7"
#: What a rank does in a step: kind, where, ms. Kinds: compute, python, sleep.
Work = tuple[str, str, float]
STEPS, TRANSFER_MS = 40, 2


@dataclass
class Job:
    """Ranks that do some work in each step and then meet in an all-reduce."""

    ranks: int
    work: Callable[[int, int], Sequence[Work]]
    noise_ms: float = 0.0
    seed: int = 0
    ends: list[int] = field(default_factory=list)

    def trace(self) -> Trace:
        build_, rng, now = TraceBuilder(), random.Random(self.seed), 0
        build_.group(range(self.ranks))
        for step in range(STEPS):
            called = {}
            for rank in range(self.ranks):
                process, at = build_.rank(rank), now
                for kind, where, ms in self.work(step, rank):
                    end = at + round((ms + abs(rng.gauss(0, self.noise_ms))) * MS)
                    stack = stack_of(process, MAIN, where) if where else stack_of(process, MAIN)
                    if kind == "sleep":
                        process.wait(WaitOp.SLEEP, at, end)
                        long_call(process, at, end, stack, StackCause.WAIT)
                    elif kind == "compute":
                        process.phase("forward", at, end, cpu=(at, end))
                    if kind != "sleep":
                        for moment in range(at, end, 2 * MS):
                            sample(process, moment + MS // 2, stack)
                    at = end
                called[rank] = at
            end = max(called.values()) + TRANSFER_MS * MS
            build_.meet(called, end)
            for rank in called:
                build_.rank(rank).phase("optimizer", end, end + MS, cpu=(end, end + MS))
            now = end + MS
            self.ends.append(now)
        return build_.trace("./run")

    def step_ns(self) -> float:
        """Mean of the steps that count."""
        self.ends.clear()
        self.trace()
        return (self.ends[-1] - self.ends[4]) / (STEPS - 5)


def rows(trace: Trace) -> list[dict[str, Any]]:
    return list(causes(trace).rows())


def base(step: int, rank: int) -> list[Work]:
    return [("compute", "", 20)]


def plus(where: Callable[[int, int], bool], *work: Work) -> Callable[[int, int], Sequence[Work]]:
    return lambda step, rank: [*(work if where(step, rank) else ()), *base(step, rank)]


PLANTED = {
    "one rank sleeps": (
        plus(lambda step, rank: rank == 1, ("sleep", HOOK, 15)),
        {"ranks": "1", "kind": "other", "level": "gone", "place": "hook (train.py:4)", "every_count": 0},
    ),
    "all sleep": (
        plus(lambda step, rank: True, ("sleep", HOOK, 15)),
        {"ranks": "", "kind": "other", "level": "gone", "place": "hook (train.py:4)"},
    ),
    "one rank computes longer": (
        plus(lambda step, rank: rank == 0, ("compute", PARSE, 9)),
        {"ranks": "0", "kind": "compute", "level": "peers", "place": "parse (train.py:9)"},
    ),
    "one rank has more of the same": (
        lambda step, rank: [("python", PARSE, 8 + 12 * (rank == 1)), *base(step, rank)],
        {"ranks": "1", "kind": "python", "level": "peers", "place": "parse (train.py:9)"},
    ),
    "every tenth step": (
        plus(lambda step, rank: step % 10 == 9, ("python", DRAW, 120)),
        {"ranks": "", "kind": "python", "level": "usual", "place": "Sampler.draw (data.py:7)", "every_count": 10},
    ),
    "once": (
        plus(lambda step, rank: step == 20 and rank == 1, ("python", DRAW, 900)),
        {"ranks": "1", "kind": "python", "level": "usual", "place": "Sampler.draw (data.py:7)", "steps_count": 1},
    ),
    "two of four ranks": (
        plus(lambda step, rank: rank in (1, 3), ("compute", PARSE, 9)),
        {"ranks": "1,3", "kind": "compute", "level": "peers", "place": "parse (train.py:9)"},
    ),
}


@pytest.mark.parametrize("noise_ms", [0.0, 0.6])
@pytest.mark.parametrize("name", PLANTED)
def test_what_was_planted_comes_first_and_saves_what_it_says(name: str, noise_ms: float) -> None:
    work, expected = PLANTED[name]
    job = Job(4 if "four" in name else 2, work, noise_ms)
    first = rows(job.trace())[0]
    assert {key: first[key] for key in expected} == expected
    if name != "one rank has more of the same":
        repaired = Job(job.ranks, base, noise_ms, seed=1)
    else:
        repaired = Job(job.ranks, lambda step, rank: [("python", PARSE, 8), *base(step, rank)], noise_ms, seed=1)
    saved_ns = job.step_ns() - repaired.step_ns()
    chance_ns = (0.1 + 0.5 * noise_ms) * MS
    assert first["saved_low_ns"] - chance_ns <= saved_ns <= first["saved_high_ns"] + chance_ns
    assert first["saved_low_ns"] - chance_ns <= first["saved_ns"] <= first["saved_high_ns"] + chance_ns


@pytest.mark.parametrize("name", PLANTED)
def test_a_question_about_the_first_cause_has_its_figures(name: str) -> None:
    work, _ = PLANTED[name]
    trace = Job(4 if "four" in name else 2, work, noise_ms=0.6).trace()
    row, answer = rows(trace)[0], without_causes(trace, [1])
    low, high = answer.replayed_ns - answer.high_ns, answer.replayed_ns - answer.low_ns
    assert row["saved_low_ns"] <= row["saved_ns"] <= row["saved_high_ns"]
    assert row["saved_low_ns"] - 0.02 * MS <= low <= high <= row["saved_high_ns"] + 0.02 * MS


def test_who_waits_is_said_with_the_operation_and_how_long() -> None:
    work, _ = PLANTED["one rank sleeps"]
    row = rows(Job(3, work).trace())[0]
    assert (row["call"], row["work_ns"]) == ("asleep", pytest.approx(15 * MS, rel=0.01))
    assert (row["waiting_ranks"], row["waiting_op"], row["through_ranks"]) == ("0,2", "all_reduce", "")
    assert row["waiting_ns"] == pytest.approx(15 * MS, rel=0.01)
    row = rows(Job(2, PLANTED["all sleep"][0]).trace())[0]
    assert (row["call"], row["waiting_ranks"], row["waiting_ns"]) == ("asleep", "", 0)


def test_a_rank_between_is_named() -> None:
    """Rank 1 waits for rank 0, and rank 2 for rank 1."""
    chain = Chain(3)
    for _ in range(20):
        chain.sleep(0, 30)
        for rank in range(3):
            chain.compute(rank, 10)
        chain.meet([0, 1], group=0xA)
        chain.meet([1, 2], group=0xB)
        for rank in range(3):
            chain.update(rank)
    row = rows(chain.trace())[0]
    assert (row["ranks"], row["call"], row["waiting_ranks"]) == ("0", "asleep", "1,2")
    assert cause_text(row, "RUN").startswith("rank 0 sleeps 30.0 ms a step")
    assert row["through_ranks"] in ("", "1")  # half of the waits are for rank 0 itself


def causes_in(graph: Graph, trace: Trace) -> list[Cause]:
    run = ReplayedRun(graph, budgets=False)
    return causes_of(run, work_by_line(TraceIndex(trace), graph))


def test_a_kind_of_time_has_the_function_that_most_of_it_is_in() -> None:
    """Rank 1 computes longer in three functions; none is half of that, and the largest is named."""
    parts = [("compute", where, ms) for where, ms in ((PARSE, 6), (HOOK, 4), (DRAW, 4))]
    trace = Job(2, plus(lambda step, rank: rank == 1, *parts)).trace()
    row = rows(trace)[0]
    assert (row["ranks"], row["level"], row["place"]) == ("1", "peers", "parse (train.py:9)")
    assert row["place_ratio"] == pytest.approx(6 / 14, abs=0.1)
    assert row["saved_ns"] == pytest.approx(14 * MS, rel=0.02)


def test_comprehensions_are_part_of_their_function() -> None:
    inner = "Encoder.encode.<locals>.<listcomp> /jobs/data.py:9"
    work = plus(lambda step, rank: rank == 1, ("python", "Encoder.encode /jobs/data.py:8", 4), ("python", inner, 12))
    row = rows(Job(2, work).trace())[0]
    assert (row["ranks"], row["place"]) == ("1", "Encoder.encode (data.py:9)")


def test_stages_of_a_pipeline_are_compared_with_their_mean() -> None:
    """Work of a stage moves to others: of 12 ms more, 6 go to the other one."""
    trace = Job(2, plus(lambda step, rank: rank == 0, ("compute", PARSE, 12))).trace()
    (one, *_) = causes_in(replace(build(trace), stage_of={0: 0, 1: 1}), trace)
    assert (one.candidate.level, one.candidate.ranks) == ("even", (0,))
    assert one.candidate.most_ns == pytest.approx(6 * MS, rel=0.01)
    assert one.saved_ns == pytest.approx(6 * MS, rel=0.02)


@pytest.mark.parametrize(
    ("name", "kinds"), [("", ["contention"]), ("one rank computes longer", ["contention", "compute"])]
)
def test_waits_for_a_cpu_push_no_other_cause_away(name: str, kinds: list[str]) -> None:
    """All computation waits for a CPU for half of it."""
    trace = Job(2, PLANTED[name][0] if name else base).trace()
    graph = build(trace)
    assert graph.facts is not None
    own = graph.is_thread & (graph.kind == StallKind.COMPUTE)
    facts = replace(graph.facts, queued_ns=np.where(own, graph.work_ns / 2, 0).astype(np.int64))
    found = [cause.candidate for cause in causes_in(replace(graph, facts=facts), trace)]
    assert [kind_word(one.kind) for one in found if one is not None][: len(kinds)] == kinds


def test_the_second_cause_saves_what_it_does_with_the_first_taken_away() -> None:
    """Rank 0 sleeps 30 ms, which hides that rank 1 parses for 18 ms."""

    def work(step: int, rank: int) -> list[Work]:
        return [("python", PARSE, 18) if rank else ("sleep", HOOK, 30), *base(step, rank)]

    first, second = rows(Job(2, work).trace())[:2]
    assert (first["ranks"], first["place"], second["ranks"], second["place"]) == (
        "0",
        "hook (train.py:4)",
        "1",
        "parse (train.py:9)",
    )
    assert first["saved_ns"] == pytest.approx(12 * MS, rel=0.02)
    assert second["saved_ns"] == pytest.approx(18 * MS, rel=0.02)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_differ_by_chance_are_no_cause(seed: int, ranks: int) -> None:
    trace = Job(ranks, lambda step, rank: [*base(step, rank), ("python", PARSE, 6)], 3.0, seed).trace()
    assert [row for row in rows(trace) if row["level"] in ("peers", "usual", "gone")] == []


def test_bound_by_computation_is_said_last() -> None:
    (only,) = rows(Job(2, lambda step, rank: [("compute", "", 80)]).trace())
    assert (only["kind"], only["level"], only["ranks"]) == ("compute", "half", "")
    both = Job(2, lambda step, rank: [("python", PARSE, 28), *base(step, rank)]).trace()
    assert [(row["kind"], row["level"]) for row in rows(both)] == [("python", "half")]


def test_less_work_is_what_a_change_of_all_of_it_is() -> None:
    graph = build(Job(2, plus(lambda step, rank: rank == 1, ("sleep", HOOK, 15))).trace())
    run = ReplayedRun(graph)
    asleep = graph.work_ns * (graph.kind == run.graph.kind[graph.kind.argmax()])
    sleeps = run.what_if([Change.parse("other=0")])
    gone = run.shorter([asleep.astype(float)])
    assert (gone.low_ns, gone.high_ns) == (sleeps.low_ns, sleeps.high_ns)


def test_what_less_work_saves_in_each_step_comes_from_its_replay() -> None:
    graph = build(Job(2, plus(lambda step, rank: rank == 1, ("sleep", HOOK, 15))).trace())
    run = ReplayedRun(graph)
    most = graph.work_ns * 0.5
    answer, saved_ns, _ = run.shorter_by_step((most, most))
    assert answer == run.shorter([most])
    assert saved_ns.tolist() == run.saved_ns(most).tolist()
    _, between_ns, _ = run.shorter_by_step((0 * most, most))
    assert between_ns.tolist() == run.saved_ns(most / 2).tolist()
