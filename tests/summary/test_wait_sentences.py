"""The first sentence about waits: the rank and the work that made them, and nobody where nobody stands out."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from typing import Any

import pytest
from builders import MS, TraceBuilder
from scenes import Verdict, verdicts
from wait_chains import (
    Job,
    data_parallel,
    in_flight_together,
    noisy,
    none,
    on,
    over_a_slow_link,
    pipeline_of,
    reducer_and_broadcast,
    through_a_message,
    through_a_server,
    two_barriers,
)

from stashtrace.analysis.registry import analyze
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_text import summary


def late(trace: Trace) -> Verdict:
    return next(v for v in verdicts(trace) if v.kind == "late")


def row(trace: Trace) -> dict[str, Any]:
    table = analyze(trace, "findings")
    return next(r for r in table.rows() if r["kind"] == "late" and r["section"] == "verdict")


def test_the_rank_that_reads_is_named_and_not_the_one_that_passes_it_on() -> None:
    trace = through_a_message(on(0, 30))
    found = late(trace)
    assert found.text == (
        "rank 0 spends 30.0 ms a step longer than the others reading shard-0017.tar; rank 1 waits for it in receive,"
        " and ranks 2,3 for rank 1 in all-reduce: 87.0 ms of waiting a step in all"
    )
    assert found.evidence[0] == "ranks 1-3 wait 29.0 ms to 29.1 ms a step (56 %)"
    claim = row(trace)
    assert (claim["cause_rank"], claim["cause_kind"], claim["file"]) == (0, "fetch", "/data/shard-0017.tar")


def test_a_server_without_steps_stands_between_the_late_rank_and_who_waits() -> None:
    found = late(through_a_server(on(2, 15)))
    assert found.text == (
        "rank 2 sleeps 15.0 ms a step longer than rank 1; rank 0 waits for it in receive, and rank 1 for rank 0:"
        " 14.8 ms of waiting a step in all"
    )


def test_a_sleep_before_the_second_barrier_is_the_reason() -> None:
    found = late(two_barriers(on(1, 20)))
    assert found.text == (
        "rank 1 sleeps 20.0 ms a step longer than rank 0; rank 0 waits 20.0 ms a step (47 %) for it in barrier"
    )


def test_a_slow_message_makes_its_receiver_late_and_is_named() -> None:
    found = late(over_a_slow_link(30))
    assert found.text == (
        "rank 1 spends 30.0 ms a step longer than the others in transfers (receive with rank 0); ranks 0,2,3 wait for"
        " it in all-reduce: 89.9 ms of waiting a step in all"
    )


def test_operations_in_flight_together_have_one_reason() -> None:
    """The buckets behind the first are late by computation that the other rank had done before: that is no reason."""
    found = late(in_flight_together(on(0, 15)))
    assert found.text == (
        # A millisecond of the 15 is the transfer of a bucket.
        "rank 0 sleeps 15.0 ms a step longer than rank 1; rank 1 waits 14.0 ms a step (25 %) for it in all-reduce"
    )


def test_the_collective_is_the_one_in_which_the_time_was_lost() -> None:
    """Not the one whose wait was recorded: that of DDP's reducer is in C++."""
    trace = reducer_and_broadcast(on(0, 25))
    assert late(trace).text.endswith("rank 1 waits 25.0 ms a step (52 %) for it in all-reduce")
    assert row(trace)["call"] == "all_reduce"


def test_two_reasons_of_one_rank_are_both_said() -> None:
    job = Job(2)
    for step in range(20):
        for rank in range(2):
            job.load(rank, step, 30 if rank == 0 else 0)
            job.compute(rank, 10)
            job.sleep(rank, 20 if rank == 0 else 0)
        job.meet([0, 1], group=0xCAFE)
        for rank in range(2):
            job.update(rank)
    found = late(job.trace())
    assert found.text.startswith("rank 0 spends 30.0 ms a step longer than rank 1 reading shard-0017.tar;")
    assert "rank 0 also sleeps 20.0 ms a step longer than rank 1" in found.evidence


@pytest.mark.parametrize(("rank", "ms"), [(0, 12.0), (1, 25.0), (3, 6.0)])
def test_work_that_is_longer_on_one_rank_is_that_long(rank: int, ms: float) -> None:
    noise = noisy(rank, 1.0)

    def extra(step: int, own: int) -> float:
        return noise(step, own) + (ms if own == rank else 0)

    trace = data_parallel(extra, ranks=4)
    found = late(trace)
    said = re.match(r"rank (\d) computes ([\d.]+) ms a step longer than the others in forward", found.text)
    assert said is not None
    assert int(said[1]) == rank
    assert float(said[2]) == pytest.approx(ms, rel=0.15)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("seed", range(6))
def test_ranks_that_are_alike_are_not_accused(ranks: int, seed: int) -> None:
    trace = data_parallel(noisy(seed, 8), ranks=ranks)
    found = late(trace)
    assert "by turns" in found.text
    assert found.text.endswith(" is within noise")
    claim = row(trace)
    assert (claim["cause_rank"], claim["cause_kind"]) == (-1, "alternates")


def test_two_ranks_with_more_work_are_both_named() -> None:
    """Now one of them comes last and now the other, so that neither makes most of the waiting."""
    noise = noisy(3, 1.5)
    extra = {1: 25.0, 2: 22.0}
    trace = data_parallel(lambda s, r: noise(s, r) + extra.get(r, 0.0) + (6 if (s + r) % 2 else 0), ranks=4)
    found = late(trace)
    said = re.match(
        r"ranks 1,2 have ([\d.]+) ms to ([\d.]+) ms a step more work than the others and come last by turns;",
        found.text,
    )
    assert said is not None
    assert [float(ms) for ms in said.groups()] == pytest.approx([22, 25], rel=0.1)
    assert found.evidence[0].startswith("rank 1 computes ")
    assert (row(trace)["cause_rank"], row(trace)["cause_kind"]) == (1, "compute")


def test_a_rank_with_less_work_waits_for_all_others() -> None:
    noise = noisy(4, 1.0)
    trace = data_parallel(lambda step, rank: noise(step, rank) + (0 if rank == 3 else 12), ranks=4)
    found = late(trace)
    said = re.match(r"rank 3 has ([\d.]+) ms a step less work than the others and waits .* for them in", found.text)
    assert said is not None
    assert float(said[1]) == pytest.approx(12, rel=0.1)
    assert (row(trace)["cause_rank"], row(trace)["cause_kind"]) == (-1, "early")


def test_a_sleep_in_every_twentieth_step_is_an_act_of_its_rank() -> None:
    noise = noisy(5, 1.0)

    def extra(step: int, rank: int) -> float:
        return 200.0 if rank == 1 and step % 20 == 10 else noise(step, rank)

    found = late(data_parallel(extra, steps=60, kind="sleep"))
    assert found.text.startswith("rank 1 sleeps ")
    assert any("rank 0 waited 200 ms" in line or "rank 0 waited 199 ms" in line for line in found.evidence)


def test_longer_work_in_every_tenth_step_is_that_of_its_rank() -> None:
    noise = noisy(6, 1.0)
    trace = data_parallel(lambda s, r: noise(s, r) + (100 if r == 1 and s % 10 == 7 else 0), steps=85)
    assert late(trace).text.startswith("rank 1 computes 10.0 ms a step longer than rank 0 in forward")


def test_long_waits_in_three_steps_prove_nothing() -> None:
    noise = noisy(6, 0.2)
    trace = data_parallel(lambda s, r: noise(s, r) + (150 if r == 1 and s % 20 == 7 else 0), steps=65)
    found = late(trace)
    words = r"rank 0 waits .* in all-reduce for other ranks, 9\d % of it in 3 of 60 steps"
    assert re.fullmatch(words, found.text)
    assert row(trace)["cause_rank"] == -1


def test_of_two_ranks_that_differ_by_chance_neither_is_waited_for() -> None:
    """Rank 0 waits too little to be mentioned by itself."""
    noise = noisy(8, 1.2)
    trace = data_parallel(lambda s, r: noise(s, r) + (0.8 if r == 0 else 0), steps=65)
    assert late(trace).text == (
        "rank 1 waits 979 us a step (4 %) for rank 0 in all-reduce, and rank 0 waits 131 us (0.5 %) for rank 1: the"
        " difference is within noise"
    )
    assert (row(trace)["cause_rank"], row(trace)["cause_kind"]) == (-1, "chance")


def test_two_ranks_wait_by_turns_only_if_both_wait_alike() -> None:
    """Of nine steps rank 0 is last in six, by less than makes it stand out."""
    lengths_ms = (0, 22, 41, -11, 33, 18, 52, -14, 26, 37)
    trace = data_parallel(lambda s, r: max(lengths_ms[s % 10] * (1 if r == 0 else -1), 0.0), steps=14)
    assert re.fullmatch(
        r"rank 1 waits [\d.]+ ms a step \(\d+ %\) for rank 0 in all-reduce, and rank 0 waits [\d.]+ ms \(\d+ %\)"
        r" for rank 1: the difference is within noise",
        late(trace).text,
    )
    alike = data_parallel(lambda s, r: 20.0 if s % 2 == r else 0.0, steps=14)
    assert late(alike).text.startswith("ranks 0 and 1 wait for each other by turns in all-reduce, rank 0 ")


def test_a_rank_that_is_late_in_every_other_step_is_named() -> None:
    """As with one slow worker of two: the steps vary by as much as the rank is late, and it alone makes them."""
    noise = noisy(4, 0.2)
    trace = data_parallel(lambda s, r: noise(s, r) + (150 if r == 1 and s % 2 else 0), steps=65)
    assert re.match(r"rank 1 computes 7[4-7]\.\d ms a step longer than rank 0", late(trace).text)
    assert row(trace)["cause_rank"] == 1


def test_a_rank_without_steps_that_is_waited_for_in_each_step_is_no_chance() -> None:
    """As a parameter server without an optimizer: rank 1 trains and waits 15 ms for it in each of its steps."""
    build, at = TraceBuilder(), 0
    for _ in range(40):
        rank, late_ns = build.rank(1), at + 35 * MS
        rank.phase("forward", at, at + 10 * MS).phase("backward", at + 10 * MS, at + 20 * MS)
        keys = build.collective({0: (late_ns, late_ns + MS), 1: (at + 20 * MS, late_ns + MS)})
        rank.collective_wait(keys[1], at + 20 * MS, late_ns + MS)
        rank.phase("optimizer", late_ns + MS, late_ns + 3 * MS)
        at = late_ns + 3 * MS
    assert late(build.trace()).text == (
        "rank 1 waits 15.0 ms a step (39 %) in all-reduce, all of it for rank 0, in 35 of 35 steps"
    )


def test_two_ranks_that_sleep_by_turns_are_both_said_to_sleep() -> None:
    found = late(data_parallel(lambda step, rank: 20.0 if step % 2 == rank else 0.0, kind="sleep"))
    assert "wait for each other by turns" in found.text
    assert found.evidence[0] == "the rank that came last slept longer (100 % of this waiting)"


def test_the_summary_of_a_pipeline_leads_to_its_tables() -> None:
    shown = summary(pipeline_of(2, 4, noisy(2, 0.3)))
    assert "stages     stashtrace analyze pipeline " in shown
    assert "           stashtrace analyze slowdown " in shown
    assert "analyze pipeline" not in summary(data_parallel(lambda step, rank: 20.0 if rank else 0.0))


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (3, 6), (4, 8)])
def test_the_bubble_of_equal_stages_blames_nobody(stages: int, microbatches: int) -> None:
    trace = pipeline_of(stages, microbatches, noisy(stages, 0.3))
    found = late(trace)
    assert "most of it is the bubble that such a pipeline has" in found.text
    assert (row(trace)["cause_rank"], row(trace)["cause_kind"]) == (-1, "bubble")
    batches = f"{stages} stages with {microbatches} micro-batches a step"
    (said,) = [line for line in found.evidence if batches in line]
    # Each micro-batch takes 12 ms on a stage, and about 3 times 0.24 ms more.
    ms = float(re.search(r"bubble of ([\d.]+) ms", said)[1])  # type: ignore[index]
    assert ms == pytest.approx((stages - 1) * 12.7, rel=0.1)


def test_a_slow_rank_of_a_stage_is_no_slow_stage() -> None:
    """Two pipelines side by side, the ranks of a stage meet at the end; rank 5 holds stage 2 of the second one."""
    trace = pipeline_of(4, 8, on(5, 3.0), replicas=2)
    claims = [v for v in verdicts(trace) if v.kind == "late"]
    assert len(claims) == 1
    assert claims[0].text.startswith("rank 5 (stage 2) computes 72.0 ms a step longer than the others of its stage")
    assert row(trace)["cause_rank"] == 5


@pytest.mark.parametrize("slow", [0, 1, 3])
def test_the_slow_stage_is_named_with_what_an_even_split_saves(slow: int) -> None:
    trace = pipeline_of(4, 8, on(slow, 2.0))
    found = late(trace)
    # 8 micro-batches of 18 ms and an update of 1 ms; on the others 12 ms each.
    assert found.text.startswith(f"stage {slow} (rank {slow}) computes 145 ms a step, the others 97.0 ms:")
    even, _ = (pipeline_of(4, 8, spread) for spread in (lambda step, rank: 0.5, none))
    steps = [analyze(one, "steps") for one in (trace, even)]
    now, then = ((table["end_ns"] - table["begin_ns"])[table["step"] > 3].mean() for table in steps)
    saved = float(re.search(r"would save (\d+) %", found.text)[1]) / 100  # type: ignore[index]
    assert saved == pytest.approx(1 - then / now, abs=0.015)
    assert row(trace)["cause_rank"] == slow


def test_a_stage_that_sleeps_once_a_step_sleeps() -> None:
    found = late(pipeline_of(4, 8, sleeps=on(1, 40.0)))
    assert found.text.startswith(
        "stage 1 (rank 1) sleeps 40.0 ms a step longer than the other stages; ranks 0,2,3 wait"
    )


@pytest.mark.parametrize("late", [{"sleeps": on(1, 40.0)}, {"reads": on(0, 60.0)}])
def test_what_a_rank_need_not_do_is_no_part_of_the_bubble(late: dict[str, Any]) -> None:
    """8 micro-batches of 12 ms and an update of 1 ms: three of eight micro-batches without the delay."""
    (said,) = [line for line in verdicts(pipeline_of(4, 8, **late))[0].evidence if "has a bubble" in line]
    ms = float(re.search(r"bubble of ([\d.]+) ms", said)[1])  # type: ignore[index]
    assert ms == pytest.approx(3 / 8 * 97, rel=0.02)


def test_the_steps_with_long_waits_are_those_that_the_claim_names() -> None:
    """Rank 1 sleeps in every tenth step; by noise now one rank waits up to a few milliseconds, and now the other."""
    noise = noisy(5, 3.0)
    trace = data_parallel(
        lambda step, rank: noise(step, rank) + (120.0 if rank == 1 and step % 10 == 9 else 0.0), steps=80, kind="sleep"
    )
    found = late(trace)
    assert "only in every 10th step (9, 19, ...)" in found.text
    assert any(said == "rank 1 makes most of the waiting in all 8 steps with long waits" for said in found.evidence)


def test_amounts_are_bounded_as_the_waits_are() -> None:
    claim = row(data_parallel(on(0, 10)))
    assert claim["low_ns"] <= claim["stall_ns"] <= claim["high_ns"]
    assert claim["stall_ns"] == pytest.approx(10 * MS, rel=0.02)
