"""Shifts, drifts, growth and periods: found where they were planted, with rank, kind and amount, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from builders import MS, TraceBuilder
from wait_chains import data_parallel

from examples import examples
from stashtrace.analysis.findings import summarize
from stashtrace.analysis.findings.over_time.detect_changes import drift, onset, period, stretches
from stashtrace.analysis.findings.over_time.step_changes import over_time
from stashtrace.calibration.noise import Floats
from stashtrace.replay.causes import causes
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_document import document
from stashtrace.summary.summary_text import summary
from stashtrace.summary.words import claim_text, findings_of

Noise = Callable[[np.random.Generator, int], Floats]


def _lasting(rng: np.random.Generator, count: int) -> Floats:
    noise = rng.standard_normal(count)
    for at in range(1, count):
        noise[at] += 0.6 * noise[at - 1]
    return 100 + 8 * noise


def _bursts(rng: np.random.Generator, count: int) -> Floats:
    lengths = 100 + 3 * rng.standard_normal(count)
    for _ in range(count // 60 + 1):
        at = int(rng.integers(count))
        lengths[at : at + int(rng.integers(1, 5))] *= 1.6
    return lengths


NOISES: dict[str, Noise] = {
    "gauss": lambda rng, n: 100 + 5 * rng.standard_normal(n),
    "exponential": lambda rng, n: 100 + 10 * rng.exponential(size=n),
    "student of 2": lambda rng, n: np.abs(100 + 5 * rng.standard_t(2, n)),
    "pareto of 1.5": lambda rng, n: 80 + 20 * (1 + rng.pareto(1.5, n)),
    "lognormal": lambda rng, n: 100 * rng.lognormal(0, 0.4, n),
    "two levels": lambda rng, n: 100 + 30 * (rng.random(n) < 0.4) + 2 * rng.standard_normal(n),
    "single long steps": lambda rng, n: 100 + 3 * rng.standard_normal(n) + (rng.random(n) < 0.05) * 200 * rng.random(n),
    "lasting": _lasting,
    "bursts": _bursts,
}
SEEDS = examples(60)


@pytest.mark.parametrize("name", NOISES)
def test_noise_makes_no_finding(name: str) -> None:
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        lengths = NOISES[name](rng, int(rng.choice([30, 60, 120, 300])))
        found = stretches(lengths)
        assert len(found) == 1, seed
        assert period(lengths, found) is None, seed


@pytest.mark.parametrize("count", [12, 13, 14, 16, 20, 23, 36, 47])
@pytest.mark.parametrize("name", NOISES)
def test_noise_of_few_steps_makes_no_finding(name: str, count: int) -> None:
    for seed in range(SEEDS):
        lengths = NOISES[name](np.random.default_rng(seed), count)
        found = stretches(lengths)
        assert len(found) == 1, seed
        assert drift(lengths, found) is None, seed
        assert period(lengths, found) is None, seed


def _few(kind: str, count: int, noise: Floats) -> Floats:
    """Steps of 47 ms with noise, of which the second half, or each step, or every fourth one is longer."""
    lengths = 47 + noise
    if kind == "shift":
        lengths[count // 2 :] += 40
    elif kind == "drift":
        lengths += np.linspace(0, 69, count)
    else:
        lengths[3::4] += 160
    return lengths


@pytest.mark.parametrize(
    ("kind", "count"),
    [("shift", 12), ("shift", 16), ("shift", 20), ("drift", 12), ("drift", 16), ("drift", 20), ("period", 20)],
)
@pytest.mark.parametrize("noise_ms", [0.0, 2.0])
def test_what_was_planted_is_found_in_few_steps(kind: str, count: int, noise_ms: float) -> None:
    for seed in range(20):
        lengths = _few(kind, count, noise_ms * np.random.default_rng(seed).standard_normal(count))
        found = stretches(lengths)
        line, wave = drift(lengths, found), period(lengths, found)
        assert (len(found) > 1, line is not None, wave is not None) == tuple(
            kind == one for one in ("shift", "drift", "period")
        ), seed
        if kind == "shift":
            assert (len(found), found[1].begin) == (2, count // 2), seed
        elif line is not None:
            assert abs(line.slope * (count - 1) - 69) < 0.15 * 69, seed
        elif wave is not None:
            assert (wave.every, wave.first, wave.count) == (4, 3, count // 4), seed


def test_eleven_steps_and_stretches_of_five_show_nothing() -> None:
    assert len(stretches(np.array([47.0] * 5 + [87.0] * 6))) == 1
    assert len(stretches(np.array([47.0] * 5 + [87.0] * 14))) == 1


@pytest.mark.parametrize("name", ["gauss", "exponential", "student of 2", "single long steps"])
def test_what_was_planted_is_found_under_noise(name: str) -> None:
    for seed in range(12):
        rng = np.random.default_rng(seed)
        noise = NOISES[name](rng, 200)
        shifted = noise.copy()
        shifted[118:] += 40
        found = stretches(shifted)
        assert [abs(stretch.begin - at) <= 2 for stretch, at in zip(found, (0, 118), strict=True)] == [True, True]
        grown = noise + 0.5 * np.arange(200)
        line = drift(grown, stretches(grown))
        assert abs(line.slope - 0.5) < 0.05
        waved = noise.copy()
        waved[19::20] += 300
        found_period = period(waved, stretches(waved))
        assert (found_period.every, found_period.first) == (20, 19)


# Made-up jobs: two ranks, a batch wait, forward, backward, all-reduce, optimizer.


def job(
    steps: int,
    *,
    prep: Callable[[int, int], int] = lambda rank, step: 0,
    compute: Callable[[int, int], int] = lambda rank, step: 0,
    sleep: Callable[[int, int], int] = lambda rank, step: 0,
    save: Callable[[int, int], int] = lambda rank, step: 0,
    transfer: Callable[[int], int] = lambda step: 0,
    file: str = "",
) -> TraceBuilder:
    """Extra nanoseconds of a rank in a step: in its worker, its forward, before the all-reduce, a checkpoint, in it."""
    build = TraceBuilder()
    rng = np.random.default_rng(7)
    clock = [0, 0]
    for step in range(steps):
        entered = {}
        for rank in (0, 1):
            process, now = build.rank(rank), clock[rank]
            noise = int(rng.integers(0, 300_000))
            slow = prep(rank, step)
            worker = process.worker(0)
            begin = now if slow else now - 4 * MS
            worker.fetch(step, begin, begin + max(slow, 3 * MS), cpu=max(slow, 3 * MS), runqueue=0)
            if slow and file:
                worker.io(begin, begin + slow, path=file, blocked=True, result_bytes=1 << 20)
            process.batch_wait(step, now, now + slow + MS // 10, worker=0)
            now += slow + MS // 10
            forward = 3 * MS + noise + compute(rank, step)
            process.phase("forward", now, now + forward).phase("backward", now + forward, now + forward + 5 * MS)
            now += forward + 5 * MS
            if save(rank, step):
                process.phase("checkpoint", now, now + save(rank, step))
                now += save(rank, step)
            entered[rank] = now + sleep(rank, step)
        end = max(entered.values()) + MS // 2 + transfer(step)
        build.meet(entered, end)
        for rank in entered:
            build.rank(rank).phase("optimizer", end, end + MS // 2)
            clock[rank] = end + MS // 2
    return build


def claims(trace: Trace) -> list[dict[str, object]]:
    return [row for row in document(summarize(trace))["findings"] if row["section"] == "time"]


def test_a_shift_names_the_step() -> None:
    trace = job(
        200, prep=lambda rank, step: 25 * MS if rank == 1 and step >= 118 else 0, file="/data/shard-17.tar"
    ).trace()
    (row,) = over_time(trace).rows()
    assert (row["kind"], row["place"], row["first_step_index"]) == ("shift", "end", 118)
    assert abs(row["delta_ns"] - 25 * MS) < 0.05 * 25 * MS
    (claim,) = claims(trace)
    assert str(claim["text"]).startswith("from step 118 on a step takes 34.")
    shown = " ".join(summary(trace).split())
    assert "but 34." in shown.split("rank step")[0]
    assert "from step 118 on" in shown.split("rank step")[0]


def test_a_drift_of_few_steps_has_its_amount() -> None:
    trace = job(24, compute=lambda rank, step: 3 * MS * step if rank == 1 else 0).trace()
    (row,) = over_time(trace).rows()
    assert (row["kind"], row["steps_count"]) == ("drift", 19)
    assert abs(row["delta_ns"] - 54 * MS) < 0.02 * 54 * MS


def test_a_shift_back_is_a_stretch() -> None:
    trace = job(200, compute=lambda rank, step: 12 * MS if 60 <= step < 100 else 0).trace()
    (claim,) = claims(trace)
    assert str(claim["text"]).startswith("in steps 60 to 99 a step takes 2")


def test_a_period_names_every_which_step() -> None:
    trace = job(160, save=lambda rank, step: 200 * MS if rank == 0 and step % 20 == 19 else 0).trace()
    (row,) = over_time(trace).rows()
    assert (row["kind"], row["every_count"], row["first_step_index"] % 20) == ("period", 20, 19)
    assert abs(row["delta_ns"] - 200 * MS) < 2 * MS
    (claim,) = claims(trace)
    assert str(claim["text"]).startswith("every 20th step (19, 39, ...) takes 209 ms, the others 9.")
    assert "mean 1" in " ".join(summary(trace).splitlines()[:5])
    assert "in 19 of 20 steps" in " ".join(summary(trace).split())


def test_a_drift_has_its_slope() -> None:
    trace = job(150, compute=lambda rank, step: step * MS // 10 if rank == 1 else 0).trace()
    (row,) = over_time(trace).rows()
    assert row["kind"] == "drift"
    assert abs(row["step_delta_ns"] - MS / 10) < 0.05 * MS / 10
    assert str(claims(trace)[0]["text"]).startswith("steps get 100 us longer each, from 9.")


@pytest.mark.parametrize("steps", [12, 40, 160])
def test_a_balanced_job_has_no_change(steps: int) -> None:
    trace = job(steps).trace()
    assert len(over_time(trace)) == 0
    assert claims(trace) == []


def test_of_several_changes_each_is_compared_with_the_usual_step() -> None:
    trace = job(
        200,
        compute=lambda rank, step: 30 * MS if rank == 0 and 100 <= step < 150 else 0,
        save=lambda rank, step: 15 * MS if rank == 1 and step >= 150 else 0,
    ).trace()
    said = [str(claim["text"]) for claim in claims(trace)]
    assert said[0].startswith("in steps 100 to 149 a step takes 39."), said
    assert " instead of the usual 9." in said[0]
    assert said[1].startswith("from step 150 on a step takes 24."), said
    assert " instead of the usual 9." in said[1]
    head = " ".join(summary(trace).split("rank  ")[0].split())
    assert "195 steps of usually 9." in head, head


def _reads(steps: int, ran_ms: int, blocked_ms: int) -> TraceBuilder:
    """Rank 0 reads a file in every eighth step: blocked for one part of it, while it runs for the other."""
    whole = (ran_ms + blocked_ms) * MS
    build = job(steps, sleep=lambda rank, step: whole if rank == 0 and step % 8 == 7 else 0)
    process = build.rank(0)
    own = [r for r in build.rows["phases"] if r["process_id"] == process.process_id]
    for step in range(7, steps, 8):
        begin = own[3 * step + 1]["end_ns"]
        middle = begin + blocked_ms * MS
        process.io(begin, middle, path="/data/shard-0000.bin", blocked=True, result_bytes=1 << 20)
        process.io(middle, begin + whole, path="/data/shard-0000.bin", blocked=False, result_bytes=1 << 20)
    return build


def test_reads_of_a_file_in_several_kinds_of_time_are_one_cause() -> None:
    trace = _reads(120, 70, 66).trace()
    (cause,) = causes(trace).rows()
    assert (cause["file"], cause["every_count"], round(cause["event_ns"], -6)) == ("/data/shard-0000.bin", 8, 136 * MS)


GROWTH_SEEDS = 12


def lasting(seed: int, count: int, ms: float) -> Floats:
    """Noise of a machine, of which three fifths last to the next step."""
    noise = np.random.default_rng(seed).normal(0, ms, count)
    for at in range(1, count):
        noise[at] += 0.6 * noise[at - 1]
    return noise


def kind_of(lengths: Floats) -> str:
    found = stretches(lengths)
    return "drift" if drift(lengths, found) is not None else onset(lengths, found)[1] if len(found) > 1 else "none"


@pytest.mark.parametrize("count", [75, 150, 300])
def test_steady_growth_under_noise_that_lasts_is_no_shift(count: int) -> None:
    kinds = [kind_of(30 + np.linspace(0, 40, count) + lasting(seed, count, 6.0)) for seed in range(GROWTH_SEEDS)]
    assert "sudden" not in kinds
    assert kinds.count("drift") >= GROWTH_SEEDS - 1


@pytest.mark.parametrize("count", [75, 150, 300])
def test_a_shift_under_noise_that_lasts_does_not_grow(count: int) -> None:
    steps = np.where(np.arange(count) < count // 2, 30.0, 70.0)
    kinds = [kind_of(steps + lasting(seed, count, 5.0)) for seed in range(GROWTH_SEEDS)]
    assert set(kinds) <= {"sudden", "either"}
    assert kinds.count("sudden") >= GROWTH_SEEDS - 2


def test_growth_from_the_middle_on_is_one_change() -> None:
    for seed in range(GROWTH_SEEDS):
        lengths = 30 + np.maximum(np.arange(300) - 150, 0) * 0.25 + lasting(seed, 300, 1.0)
        found = stretches(lengths)
        place, how = onset(lengths, found)
        assert (drift(lengths, found), how) == (None, "gradual")
        assert place == pytest.approx(150, abs=15)


def test_where_lengths_do_not_decide_it_is_said() -> None:
    """Of 40 slow steps the first ten grow into it."""
    lengths = 30 + np.clip((np.arange(80) - 35) / 14, 0, 1) * 12
    kinds = {kind_of(lengths + lasting(seed, 80, 3.0)) for seed in range(40)}
    assert "either" in kinds


def changes(trace: Trace) -> list[str]:
    tables = summarize(trace)
    return [claim_text(f) for f in findings_of(tables.findings, tables.evidence) if f.row["section"] == "time"]


def test_growth_is_worded_as_it_is_known() -> None:
    noise = lasting(3, 200, 0.3)
    trace = data_parallel(lambda step, rank: max(step - 100, 0) * 0.3 + noise[step] + 1 if rank else 0.0, steps=200)
    (said,) = changes(trace)
    assert said.startswith("from about step ")
    assert " on, each step takes longer than the one before, in the median " in said


LEVELS = (0.0, 10.0, 20.0, 30.0, 40.0, 50.0)


def test_of_a_staircase_the_costliest_levels_are_said() -> None:
    """Five times in 240 steps rank 1 computes 10 ms longer than before."""
    noise = lasting(3, 240, 0.3)
    trace = data_parallel(lambda step, rank: LEVELS[step // 40] + noise[step] + 1 if rank else 0.0, steps=240)
    said = changes(trace)
    assert len(said) == 3
    assert all(" instead of the usual " in text for text in said)


def _echo(lag: int, part: float) -> Noise:
    """Noise of which each step repeats a part of the step ``lag`` before it."""

    def noise(rng: np.random.Generator, count: int) -> Floats:
        steps = rng.standard_normal(count)
        for at in range(lag, count):
            steps[at] += part * steps[at - lag]
        return 100 + 8 * steps

    return noise


ALTERNATING: dict[str, Noise] = {
    **NOISES,
    "turns back": _echo(1, -0.6),
    "turns back for long": _echo(1, -0.75),
    "like the step before the last": _echo(2, 0.6),
    "unlike the step before the last": _echo(2, -0.7),
    "as many long as short": lambda rng, n: 50 + 100 * (rng.random(n) < 0.5) + 2 * rng.standard_normal(n),
}


@pytest.mark.parametrize("name", ALTERNATING)
def test_noise_is_no_alternation(name: str) -> None:
    for seed in range(4 * SEEDS):
        rng = np.random.default_rng(1000 + seed)
        lengths = ALTERNATING[name](rng, int(rng.choice([12, 14, 16, 20, 24, 30, 48, 60, 120, 300])))
        assert period(lengths, stretches(lengths)) is None, seed


@pytest.mark.parametrize("count", [16, 24, 60, 125, 300])
@pytest.mark.parametrize(("every", "first"), [(2, 0), (2, 1), (4, 0), (4, 3)])
@pytest.mark.parametrize("noise", [0.0, 8.0])
def test_every_second_step_is_long(count: int, every: int, first: int, noise: float) -> None:
    for seed in range(5):
        long = (np.arange(count) - first) % every < every // 2
        lengths = 35 + 165.0 * long + noise * np.random.default_rng(seed).standard_normal(count)
        found = period(lengths, stretches(lengths))
        assert found is not None, seed
        assert (found.every, found.first, found.width) == (every, first, every // 2), seed
        assert abs(found.excess - 165) < 10


def test_alternation_with_single_long_steps_is_found() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        lengths = 100 + 40.0 * (np.arange(100) % 2) + NOISES["single long steps"](rng, 100)
        found = period(lengths, stretches(lengths))
        assert found is not None, seed
        assert (found.every, found.first) == (2, 1), seed


def test_a_period_of_more_time_is_said_before_an_alternation() -> None:
    """Steps that grow from the first of eight to the last, which takes 50 times as long."""
    lengths = np.tile([2.2, 2.5, 2.7, 3.0, 4.0, 4.8, 5.2, 156.0], 10)
    lengths += np.random.default_rng(1).normal(0, 0.05, 80)
    found = period(lengths, stretches(lengths))
    assert (found.every, found.first, found.width) == (8, 7, 1)


@pytest.mark.parametrize("every", [4, 6, 8])
def test_steps_that_grow_over_and_over_again_are_not_alternately_long(every: int) -> None:
    lengths = np.tile(30 + 10.0 * np.arange(every), 12) + np.random.default_rng(1).normal(0, 1, 12 * every)
    assert period(lengths, stretches(lengths)) is None


def _words(slow: Callable[[int], bool]) -> str:
    (change,) = claims(job(120, prep=lambda rank, step: 100 * MS if rank == 1 and slow(step) else 0).trace())
    return str(change["text"])


def test_every_other_batch_slow() -> None:
    change = _words(lambda step: step % 2 == 1)
    assert change.startswith("every other step (5, 7, ...) takes 109 ms, the others 9.")


def test_the_header_says_both_lengths() -> None:
    trace = job(120, prep=lambda rank, step: 100 * MS if rank == 1 and step % 2 else 0).trace()
    shown = " ".join(summary(trace).split())
    assert "mean 59.7 ms: 109 ms in every other step, 9.32 ms in the others" in shown, shown[:400]


def test_two_of_four_batches_slow() -> None:
    change = _words(lambda step: step % 4 in (2, 3))
    assert change.startswith("in 2 of every 4 steps (6, 7, 10, 11, ...) a step takes 109 ms, in the others 9.")


def test_the_table_has_each_changed_step() -> None:
    trace = job(120, prep=lambda rank, step: 100 * MS if rank == 1 and step % 4 in (2, 3) else 0).trace()
    (row,) = over_time(trace).rows()
    assert (row["kind"], row["every_count"], row["together_count"], row["first_step_index"]) == ("period", 4, 2, 6)
    assert abs(row["delta_ns"] - 100 * MS) < 2 * MS
