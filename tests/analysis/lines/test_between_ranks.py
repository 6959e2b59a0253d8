"""lines_between_ranks: what takes longer on one rank, and nothing where ranks are equal."""

from __future__ import annotations

import numpy as np
import pytest
from builders import MS, ProcessBuilder, TraceBuilder
from stack_rows import FORKED, long_call, sample, stack_of

from stashtrace.analysis.lines.between_ranks import lines_between_ranks, longer_lines
from stashtrace.schema.kinds import WaitOp
from stashtrace.schema.trace import Trace

MAIN = "main /jobs/late.py:23"
FUNCTIONS = ("load /jobs/late.py:5", "parse /jobs/late.py:14", "clip /jobs/late.py:30", "log /jobs/late.py:40")
STEPS = 45


def noise(random: np.random.Generator, lasts: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Deviations of steps, a part of which lasts to the next one."""
    values = random.normal(0, 1, STEPS)
    for at in range(1, STEPS):
        values[at] = lasts * values[at - 1] + (1 - lasts**2) ** 0.5 * values[at]
    return np.asarray(values)


def trains(build: TraceBuilder, number: int, random: np.random.Generator, lasts: float, sleeps_ms: float = 8.0) -> None:
    """A rank whose loop sleeps in `hook` and is sampled at random in four functions, each for a quarter of 60 ms."""
    rank = build.rank(number)
    hook, at = stack_of(rank, MAIN, "hook /jobs/late.py:11"), 0
    for deviation in noise(random, lasts).tolist():
        asleep = max(int((sleeps_ms + 2 * deviation) * MS), 2 * MS)
        busy = int(max(60 + 15 * deviation, 10) * MS)
        rank.phase("forward", at, at + busy + asleep)
        rank.wait(WaitOp.SLEEP, at + busy, at + busy + asleep)
        long_call(rank, at + busy, at + busy + asleep, hook)
        samples(rank, at, busy, random)
        rank.phase("optimizer", at + busy + asleep, at + busy + asleep + MS)
        at += busy + asleep + MS


def samples(rank: ProcessBuilder, at: int, busy: int, random: np.random.Generator) -> None:
    for moment in np.sort(random.integers(0, busy, random.poisson(busy / (20 * MS)))).tolist():
        function = FUNCTIONS[int(4 * moment / busy)]
        sample(rank, at + moment, stack_of(rank, MAIN, function))


def longer(trace: Trace) -> list[tuple[int, str, float]]:
    """Rank, function and the least of how much longer it takes, of the rows that are longer."""
    rows = lines_between_ranks(trace).rows()
    return [(row["rank"], trace.text(row["function_code"]), row["low_ns"] / MS) for row in rows if row["low_ns"] > 0]


@pytest.mark.parametrize("lasts", [0.0, 0.6])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_of_equal_ranks_nothing_is_longer(ranks: int, lasts: float) -> None:
    found = []
    for seed in range(12):
        random, build = np.random.default_rng([seed, ranks]), TraceBuilder()
        for number in range(ranks):
            trains(build, number, random, lasts)
        found += longer(build.trace())
    assert found == []


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_sleep_of_one_rank_is_named_by_its_function(ranks: int) -> None:
    random, build = np.random.default_rng(ranks), TraceBuilder()
    for number in range(ranks):
        trains(build, number, random, 0.3, sleeps_ms=30 if number == 1 else 8)
    (row, *_) = lines_between_ranks(build.trace()).rows()
    assert (row["rank"], build.strings.text(row["function_code"]), row["step_kind"]) == (1, "hook", "train")
    assert row["low_ns"] < row["longer_ns"] < row["high_ns"]
    assert row["low_ns"] > 15 * MS
    assert row["low_ns"] < 22 * MS < row["high_ns"]
    assert longer(build.trace()) == [(1, "hook", row["low_ns"] / MS)]


def test_a_function_that_only_samples_know_is_named() -> None:
    random, build = np.random.default_rng(5), TraceBuilder()
    for number in range(3):
        rank = build.rank(number)
        for step in range(STEPS):
            at, parsed = step * 100 * MS, (50 if number == 2 else 20) * MS
            rank.phase("forward", at, at + 90 * MS).phase("optimizer", at + 90 * MS, at + 100 * MS)
            for moment in random.integers(0, 100 * MS, random.poisson(5)).tolist():
                calls = (MAIN, "parse /jobs/late.py:14") if moment < parsed else (MAIN,)
                sample(rank, at + moment, stack_of(rank, *calls))
    ((rank_number, function, low_ms),) = longer(build.trace())
    assert (rank_number, function) == (2, "parse")
    assert 10 < low_ms < 30


def test_time_whose_function_is_unknown_may_be_in_any() -> None:
    build = TraceBuilder()
    for number in (0, 1):
        rank = build.rank(number)
        for step in range(STEPS):
            at = step * 100 * MS
            rank.phase("forward", at, at + 40 * MS).phase("optimizer", at + 40 * MS, at + 100 * MS)
            if number:
                sample(rank, at + step * MS, stack_of(rank, MAIN))
            else:
                sample(rank, at + step * MS, 0)
    assert longer(build.trace()) == [], "the samples of rank 0 could not be read"


def test_waits_for_a_late_rank_are_no_separate_time() -> None:
    build = TraceBuilder()
    for number in (0, 1):
        rank = build.rank(number)
        for step in range(STEPS):
            at = step * 100 * MS
            late = at + (80 if number else 20) * MS
            rank.phase("backward", at, at + 90 * MS).phase("optimizer", at + 90 * MS, at + 100 * MS)
            rank.wait(WaitOp.SLEEP, at + 10 * MS, late)
            if number:
                long_call(rank, at + 10 * MS, late, stack_of(rank, MAIN, "hook /jobs/late.py:11"))
            else:
                long_call(rank, late, at + 84 * MS, stack_of(rank, "main /jobs/late.py:24"))
    for step in range(STEPS):
        at = step * 100 * MS
        keys = build.collective({0: (at + 20 * MS, at + 84 * MS), 1: (at + 80 * MS, at + 84 * MS)})
        build.rank(0).collective_wait(keys[0], at + 20 * MS, at + 84 * MS)
    assert [row[:2] for row in longer(build.trace())] == [(1, "hook")]


def test_one_rank_or_no_functions_have_no_rows() -> None:
    random, build = np.random.default_rng(1), TraceBuilder()
    trains(build, 0, random, 0.0)
    assert len(lines_between_ranks(build.trace())) == 0
    build.rows["stack_samples"], build.rows["stack_spans"] = [], []
    assert len(lines_between_ranks(build.trace())) == 0


def makes_batches(build: TraceBuilder, number: int, random: np.random.Generator, decodes_ms: int) -> None:
    """A rank whose two workers take some 40 ms a batch, and in `decode` as long as is said of these."""
    rank = build.rank(number)
    for step in range(STEPS):
        at, worker = step * 100 * MS, rank.worker(step % 2)
        rank.batch_wait(step, at, at + 60 * MS, worker=step % 2)
        rank.phase("forward", at + 60 * MS, at + 80 * MS).phase("optimizer", at + 80 * MS, at + 100 * MS)
        taken = int((40 + 2 * random.normal()) * MS)
        worker.fetch(step, at, at + taken)
        for moment in range(at + int(random.integers(0, 5 * MS)), at + taken, 5 * MS):
            calls = ("decode /jobs/images.py:67",) if moment - at < decodes_ms * MS else ()
            sample(worker, moment, stack_of(worker, *FORKED, "Images.__getitem__ /jobs/images.py:80", *calls))


def test_workers_of_one_rank_are_longer_in_a_function() -> None:
    random, build = np.random.default_rng(3), TraceBuilder()
    for number in range(3):
        makes_batches(build, number, random, decodes_ms=30 if number == 1 else 10)
    trace = build.trace()
    row = next(lines_between_ranks(trace).rows())
    assert (row["rank"], row["where"], trace.text(row["function_code"])) == (1, "worker", "decode")
    assert 12 * MS < row["low_ns"] < 20 * MS < row["high_ns"]
    ((_, line),) = longer_lines(trace, 1, 1, where="worker")
    assert line.place == "decode (images.py:67)"
    assert longer_lines(trace, 1, 1) == []
