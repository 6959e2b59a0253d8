"""Forwards without gradients inside a training step: of one rank while the others wait, and token by token."""

from __future__ import annotations

import pytest
from analysis.table_text import expected, step_text
from builders import MS, TraceBuilder, trace_from_text

from stashtrace.analysis.graph.build import build
from stashtrace.analysis.registry import analyze
from stashtrace.analysis.steps.rank_steps import join_as
from stashtrace.analysis.steps.step_time import step_time_of
from stashtrace.analysis.steps.steps import local_steps
from stashtrace.replay.causes import causes
from stashtrace.replay.changes import Change
from stashtrace.replay.whatif import what_if
from stashtrace.schema.kinds import PhaseFlag
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_text import summary

STEPS, EVERY, TOKENS = 64, 8, 300
FORWARD, BACKWARD, UPDATE, SLOWER = 6 * MS, 30 * MS, 4 * MS, 9 * MS
STEP, TOKEN = FORWARD + BACKWARD + UPDATE, 7 * MS // 10
GENERATE = TOKENS * TOKEN


def generating(
    ranks: int,
    by: tuple[int, ...],
    *,
    slow: int = -1,
    token: int = TOKEN,
    tokens: int = TOKENS,
    flags: PhaseFlag = PhaseFlag.NO_GRAD,
    last: bool = False,
) -> Trace:
    """A job in lockstep; before every 8th step, and after the last if asked, these ranks run single-token forwards.

    One rank may have a longer forward in every step, for which the others wait.
    """
    job, at = TraceBuilder(), 0
    for number in range(STEPS + last):
        begin, quiet = at, number % EVERY == 0 and number > 0
        if quiet:
            at += token * tokens
            for rank in by:
                for one in range(tokens):
                    t = begin + one * token
                    job.rank(rank).phase("forward", t, t + token, flags=flags, name="LM")
        if number == STEPS:
            break
        done = at + FORWARD + BACKWARD
        called = {}
        for rank in range(ranks):
            t = at if rank in by else begin
            forward = FORWARD + (SLOWER if rank == slow else 0)
            job.rank(rank).phase("forward", t, t + forward, name="DDP").phase("backward", t + forward, done)
            job.rank(rank).phase("optimizer", done, done + UPDATE)
            called[rank] = t + forward + 2 * MS
        job.meet(called, done - MS)
        at = done + UPDATE
    return job.trace()


@pytest.mark.parametrize(("ranks", "by"), [(3, (0,)), (3, (0, 1)), (3, (0, 1, 2)), (1, (0,))])
def test_generation_belongs_to_the_step_that_follows(ranks: int, by: tuple[int, ...]) -> None:
    trace = generating(ranks, by)
    steps = analyze(trace, "steps")
    for rank in range(ranks):
        own = steps.take(steps["rank"] == rank)
        assert own["step"].tolist() == list(range(STEPS))
        assert set(own["kind"].tolist()) == {"train"}
        length = (own["end_ns"] - own["begin_ns"]).tolist()
        assert length == [STEP + (GENERATE if n and n % EVERY == 0 else 0) for n in range(STEPS)]
    time = step_time_of(trace)
    assert time.mean_ns == STEP + 7 * GENERATE / 59


def words_of(trace: Trace) -> str:
    return " ".join(summary(trace).split())


@pytest.mark.parametrize("slow", [-1, 2], ids=["equal ranks", "another rank is slower in every step"])
def test_the_summary_says_what_the_job_does(slow: int) -> None:
    text = words_of(generating(3, (0,), slow=slow))
    assert "validation" not in text
    assert "no kind of time of one rank explains it" not in text
    first = next(iter(causes(generating(3, (0,), slow=slow)).rows()))
    assert (first["ranks"], first["kind"], first["every_count"]) == ("0", "compute", EVERY)
    assert first["work_ns"] == pytest.approx(7 * GENERATE / 59, rel=0.02)
    assert "every 8th step (8, 16, ...) takes 250 ms, the others 40.0 ms" in text


def test_what_a_rank_does_longer_in_every_8th_step_is_not_made_up_for_by_a_rank_that_is_slower_in_the_others() -> None:
    first = next(iter(causes(generating(3, (0,), slow=2, flags=PhaseFlag.TRAINING)).rows()))
    assert (first["ranks"], first["kind"], first["every_count"]) == ("0", "compute", EVERY)
    assert first["work_ns"] == pytest.approx(7 * GENERATE / 59, rel=0.03)


def test_what_if_saves_all_of_it() -> None:
    trace = generating(3, (0,))
    answer = what_if(build(trace), [Change.parse("straggler=0")])
    assert answer.measured_ns - answer.middle_ns == pytest.approx(7 * GENERATE / 59, rel=0.1)


def test_evaluation_of_all_ranks_stays_validation() -> None:
    kinds = analyze(generating(3, (0, 1, 2), token=7 * MS, tokens=20), "step_kinds")
    counts = {row["kind"]: row["steps_count"] for row in kinds.rows() if row["rank"] == -1}
    assert counts == {"train": 59, "validation": 7 * 20}


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_job_that_generates_between_steps_and_after_the_last_has_no_other_steps(ranks: int) -> None:
    steps = analyze(generating(ranks, (0,), last=True), "steps")
    assert steps["kind"].tolist() == ["train"] * STEPS * ranks


def test_what_is_generated_after_the_training_is_one_inference_step() -> None:
    job = TraceBuilder()
    for at in range(0, 20 * STEP, STEP):
        job.rank(0).phase("forward", at, at + FORWARD).phase("optimizer", at + FORWARD, at + STEP)
    for at in range(20 * STEP, 20 * STEP + GENERATE, TOKEN):
        job.rank(0).phase("forward", at, at + TOKEN, flags=PhaseFlag.NO_GRAD)
    steps = analyze(job.trace(), "steps")
    assert steps["kind"].tolist() == ["train"] * 20 + ["inference"]
    assert (steps["end_ns"] - steps["begin_ns"]).tolist() == [STEP] * 20 + [GENERATE]


@pytest.mark.parametrize("ranks", [1, 3])
def test_one_rank_of_a_store_joins_its_steps_as_they_were_among_all(ranks: int) -> None:
    trace = generating(ranks, (0,), last=True)
    steps = analyze(trace, "steps")
    for rank in local_steps(trace):
        own = steps.take(steps["rank"] == rank.thread.rank)
        joined = join_as(rank, own["kind"])
        assert joined.begin_ns.tolist() == own["begin_ns"].tolist()
        assert joined.end_ns.tolist() == own["end_ns"].tolist()


def test_tokens_without_training_stay_inference() -> None:
    job = TraceBuilder()
    for at in range(0, 300 * MS, MS):
        job.rank(0).phase("forward", at, at + MS // 2, flags=PhaseFlag.NO_GRAD)
    assert analyze(job.trace(), "steps")["kind"].tolist() == ["inference"] * 300


@pytest.mark.parametrize("late", [False, True])
def test_all_ranks_validate_also_if_one_was_recorded_later_and_then_one_alone(late: bool) -> None:
    phases, collectives = "FBOFBOFBOFBOVVFBO.FBO", ".0..1..2..3....4...5."
    if late:
        phases, collectives = "..." + phases[3:], "..." + collectives[3:]
    found = step_text(
        trace_from_text(
            f"""
            rank 0 phase  : FBOFBOFBOFBOVVFBOVFBO
            rank 0 coll   : .0..1..2..3....4...5.
            rank 1 phase  : {phases}
            rank 1 coll   : {collectives}
            """
        )
    ).splitlines()
    steps = ["0: 0-3 train", "1: 3-6 train", "2: 6-9 train", "3: 9-12 train"]
    steps += ["4: 12-14 validation", "5: 14-17 train", "6: 17-21 train"]
    assert found == [f"0 {step}" for step in steps] + [f"1 {step}" for step in steps[late:]]


def test_a_rank_that_evaluates_while_no_other_waits_keeps_its_steps() -> None:
    assert step_text(
        trace_from_text(
            """
            rank 0 phase  : FBOFBO.VVVVVVVVVFBO
            rank 1 phase  : FBOFBOFBO.........
            """
        )
    ) == expected(
        """
        0 0: 0-3 train
        0 1: 3-6 train
        0 2: 6-16 validation
        0 3: 16-19 train
        1 0: 0-3 train
        1 1: 3-6 train
        1 3: 6-9 train
        """
    )
