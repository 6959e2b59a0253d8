"""Shifts, drifts and periods: found where they were planted, with rank, kind and amount, and nowhere else."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from builders import MS, TraceBuilder

from examples import examples
from stashtrace.analysis.findings import summarize
from stashtrace.analysis.findings.over_time.attribute_change import Budgets, Change
from stashtrace.analysis.findings.over_time.detect_changes import drift, period, stretches
from stashtrace.analysis.findings.over_time.step_changes import over_time
from stashtrace.analysis.registry import analyze
from stashtrace.calibration.noise import Floats
from stashtrace.replay.causes import causes
from stashtrace.schema.kinds import PhaseFlag, SpanKind, WaitOp
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_document import document
from stashtrace.summary.summary_text import summary

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


def test_eleven_steps_and_stretches_of_five_tell_nothing() -> None:
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
        assert line is not None
        assert abs(line.slope - 0.5) < 0.05
        waved = noise.copy()
        waved[19::20] += 300
        found_period = period(waved, stretches(waved))
        assert found_period is not None
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
        keys = build.collective({rank: (at, end) for rank, at in entered.items()})
        for rank, at in entered.items():
            build.rank(rank).collective_wait(keys[rank], at, end)
            build.rank(rank).phase("optimizer", end, end + MS // 2)
            clock[rank] = end + MS // 2
    return build


def claims(trace: Trace) -> list[dict[str, object]]:
    return [row for row in document(summarize(trace))["findings"] if row["section"] == "time"]


def test_a_shift_names_the_step_the_rank_the_kind_and_the_file() -> None:
    trace = job(
        200, prep=lambda rank, step: 25 * MS if rank == 1 and step >= 118 else 0, file="/data/shard-17.tar"
    ).trace()
    (row,) = over_time(trace).rows()
    assert (row["kind"], row["place"], row["first_step_index"], row["rank"]) == ("shift", "end", 118, 1)
    assert row["stall_kind"] in ("fetch", "prep")
    assert abs(row["delta_ns"] - 25 * MS) < 0.05 * 25 * MS
    assert (row["cause_kind"], row["cause_name"]) == ("file", "/data/shard-17.tar")
    (claim,) = claims(trace)
    assert str(claim["text"]).startswith("from step 118 on a step takes 34.")
    assert "rank 1 waits 25.0 ms longer for batches" in str(claim["text"])
    assert claim["evidence_text"] == ["calls on /data/shard-17.tar take all of it"]
    shown = " ".join(summary(trace).split())
    assert "but 34." in shown.split("rank step")[0]
    assert "from step 118 on" in shown.split("rank step")[0]


def test_a_drift_of_few_steps_has_its_amount() -> None:
    trace = job(24, compute=lambda rank, step: 3 * MS * step if rank == 1 else 0).trace()
    (row,) = over_time(trace).rows()
    assert (row["kind"], row["rank"], row["steps_count"]) == ("drift", 1, 19)
    assert abs(row["delta_ns"] - 54 * MS) < 0.02 * 54 * MS
    assert abs(row["rank_delta_ns"] - 54 * MS) < 0.02 * 54 * MS


def test_a_shift_back_is_a_stretch() -> None:
    trace = job(200, compute=lambda rank, step: 12 * MS if 60 <= step < 100 else 0).trace()
    (claim,) = claims(trace)
    assert str(claim["text"]).startswith("in steps 60 to 99 a step takes 2")
    assert "ranks 0-1 compute 12" in str(claim["text"]) or "ranks 0,1 compute 1" in str(claim["text"])


def test_a_period_names_every_which_step_and_what_is_in_it() -> None:
    trace = job(160, save=lambda rank, step: 200 * MS if rank == 0 and step % 20 == 19 else 0).trace()
    (row,) = over_time(trace).rows()
    assert (row["kind"], row["every_count"], row["first_step_index"] % 20, row["rank"]) == ("period", 20, 19, 0)
    assert abs(row["delta_ns"] - 200 * MS) < 2 * MS
    (claim,) = claims(trace)
    assert str(claim["text"]).startswith("every 20th step (19, 39, ...) takes 209 ms, the others 9.")
    assert "rank 0 spends 200 ms more in checkpoints" in str(claim["text"])
    assert "mean 1" in " ".join(summary(trace).splitlines()[:5])
    assert "in 19 of 20 steps" in " ".join(summary(trace).split())


def test_garbage_collection_in_every_30th_step() -> None:
    build = job(180, compute=lambda rank, step: 40 * MS if rank == 1 and step % 30 == 10 else 0)
    phases = [row for row in build.rows["phases"] if row["process_id"] == build.rank(1).process_id]
    for row in phases:
        if row["end_ns"] - row["begin_ns"] > 40 * MS:
            build.add(
                "spans",
                span_id=len(build.rows["spans"]),
                begin_ns=row["begin_ns"] + MS,
                end_ns=row["begin_ns"] + 41 * MS,
                track_id=row["track_id"],
                kind_code=int(SpanKind.GC),
                name_code=build.strings.code("gc"),
            )
    (row,) = over_time(build.trace()).rows()
    assert (row["kind"], row["every_count"], row["rank"], row["cause_kind"]) == ("period", 30, 1, "gc")
    assert abs(row["cause_ns"] - 40 * MS) < MS


def test_a_drift_has_its_slope() -> None:
    trace = job(150, compute=lambda rank, step: step * MS // 10 if rank == 1 else 0).trace()
    (row,) = over_time(trace).rows()
    assert (row["kind"], row["rank"], row["stall_kind"]) == ("drift", 1, "compute")
    assert abs(row["step_delta_ns"] - MS / 10) < 0.05 * MS / 10
    assert str(claims(trace)[0]["text"]).startswith("steps get 100 us longer each, from 9.")


@pytest.mark.parametrize("steps", [12, 40, 160])
def test_a_balanced_job_has_no_change(steps: int) -> None:
    trace = job(steps).trace()
    assert len(over_time(trace)) == 0
    assert claims(trace) == []


def test_one_onset_under_noise_of_the_machine_is_one_change() -> None:
    """Rank 1 sleeps from step 150 on; all steps are longer in steps 170 to 239, when the machine is slow."""
    trace = job(
        300,
        sleep=lambda rank, step: (32 if step < 240 else 28) * MS if rank == 1 and step >= 150 else 0,
        transfer=lambda step: 20 * MS if 170 <= step < 240 else 0,
    ).trace()
    (row,) = over_time(trace).rows()
    assert (row["kind"], row["place"], row["first_step_index"], row["last_step_index"]) == ("shift", "end", 150, 299)
    assert row["rank"] == 1
    assert 28 * MS <= row["rank_delta_ns"] <= 33 * MS
    (claim,) = claims(trace)
    assert str(claim["text"]).startswith("from step 150 on a step takes ")
    assert ", before 9." in str(claim["text"])


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


def test_what_is_behind_a_change_is_never_more_than_it() -> None:
    """An annotation of 30 ms, of which the loop computes 20 ms."""
    build = job(120, sleep=lambda rank, step: 20 * MS if rank == 1 and step >= 60 else 0)
    process = build.rank(1)
    track = next(r["track_id"] for r in build.rows["phases"] if r["process_id"] == process.process_id)
    own = [r for r in build.rows["phases"] if r["track_id"] == track]
    for backward in [r for i, r in enumerate(own) if i % 3 == 1][60:]:
        end = backward["end_ns"]
        build.add(
            "spans",
            span_id=len(build.rows["spans"]),
            begin_ns=end - 4 * MS,
            end_ns=end + 20 * MS,
            track_id=track,
            kind_code=int(SpanKind.USER),
            name_code=build.strings.code("tokenize"),
        )
    trace = build.trace()
    (row,) = over_time(trace).rows()
    assert (row["rank"], row["cause_kind"], row["cause_name"]) == (1, "annotation", "tokenize")
    assert row["cause_ns"] <= row["rank_delta_ns"]
    (claim,) = claims(trace)
    assert claim["evidence_text"] == ["the annotation tokenize takes all of it"]


def test_waits_for_a_lock_are_not_what_a_transfer_is_made_of() -> None:
    build = job(120, transfer=lambda step: 20 * MS if step >= 60 else 0)
    for row in build.rows["collective_waits"]:
        rank = 0 if row["process_id"] == build.rank(0).process_id else 1
        build.rank(rank).wait(WaitOp.COND_WAIT, row["begin_ns"], row["end_ns"])
    (row,) = over_time(build.trace()).rows()
    assert row["stall_kind"] in ("network", "interconnect")
    assert (row["cause_kind"], row["cause_ns"]) == ("", -1)
    (claim,) = claims(build.trace())
    assert claim["evidence_text"] == []


def test_a_wait_is_behind_the_kind_of_time_that_it_is_part_of_alone() -> None:
    """Of a sleep of 30 ms at the end of a forward none is a part of the 30 ms that the backward computes longer."""
    build = job(
        120,
        compute=lambda rank, step: 30 * MS if rank == 1 and step >= 60 else 0,
        sleep=lambda rank, step: 20 * MS if rank == 1 and step >= 60 else 0,
    )
    process = build.rank(1)
    backwards = [
        r
        for r in build.rows["phases"]
        if r["process_id"] == process.process_id and r["end_ns"] - r["begin_ns"] == 5 * MS
    ]
    for backward in backwards[60:]:
        process.wait(WaitOp.SLEEP, backward["end_ns"], backward["end_ns"] + 20 * MS)
    (row,) = over_time(build.trace()).rows()
    assert (row["rank"], row["stall_kind"]) == (1, "compute")
    assert (row["cause_kind"], row["cause_name"]) == ("phase", "forward")
    assert abs(row["cause_ns"] - 30 * MS) < MS


def test_what_is_behind_a_drift_grows_as_much_as_it() -> None:
    build = job(150, compute=lambda rank, step: step * MS // 10 if rank == 1 else 0)
    (row,) = over_time(build.trace()).rows()
    assert (row["kind"], row["cause_kind"], row["cause_name"]) == ("drift", "phase", "forward")
    assert abs(row["cause_ns"] - row["rank_delta_ns"]) < 0.1 * row["rank_delta_ns"]


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


def test_reads_of_a_file_in_several_kinds_of_time_are_behind_the_one_that_changes_most() -> None:
    trace = _reads(120, 70, 66).trace()
    (row,) = over_time(trace).rows()
    assert (row["kind"], row["every_count"], row["rank"], row["stall_kind"]) == ("period", 8, 0, "python")
    assert abs(row["rank_delta_ns"] - 70 * MS) < MS
    assert (row["cause_kind"], row["cause_name"]) == ("file", "/data/shard-0000.bin")
    (claim,) = claims(trace)
    assert "rank 0 spends 70.0 ms more in code of the loop" in str(claim["text"])
    assert claim["evidence_text"] == ["calls on /data/shard-0000.bin take all of it"]
    (cause,) = causes(trace).rows()
    assert (cause["file"], cause["every_count"], round(cause["event_ns"], -6)) == ("/data/shard-0000.bin", 8, 136 * MS)


def test_a_rank_with_several_kinds_of_longer_time_is_named() -> None:
    trace = job(
        120,
        prep=lambda rank, step: 30 * MS if rank == 1 and step >= 60 else 0,
        compute=lambda rank, step: 30 * MS if rank == 1 and step >= 60 else 0,
        sleep=lambda rank, step: 30 * MS if rank == 1 and step >= 60 else 0,
    ).trace()
    (row,) = over_time(trace).rows()
    assert (row["rank"], row["stall_kind"]) == (1, "together")
    assert abs(row["rank_delta_ns"] - 90 * MS) < 2 * MS
    (claim,) = claims(trace)
    assert str(claim["text"]).endswith(": rank 1 works 90.0 ms longer, in several kinds of time")


def test_an_evaluation_of_one_rank_that_the_others_wait_for_is_work_of_its_step() -> None:
    """Rank 0 evaluates before every eighth step, while rank 1 waits in it already."""
    build, clock = TraceBuilder(), [0, 0]
    for step in range(120):
        entered = {}
        for rank in (0, 1):
            process, now = build.rank(rank), clock[rank]
            for _ in range(20 if rank == 0 and step % 8 == 0 and step else 0):
                process.phase("forward", now, now + 5 * MS, flags=PhaseFlag.NO_GRAD)
                now += 5 * MS
            process.phase("forward", now, now + 3 * MS).phase("backward", now + 3 * MS, now + 8 * MS)
            entered[rank] = now + 8 * MS
        end = max(entered.values()) + MS // 2
        keys = build.collective({rank: (at, end) for rank, at in entered.items()})
        for rank, at in entered.items():
            build.rank(rank).collective_wait(keys[rank], at, end)
            build.rank(rank).phase("optimizer", end, end + MS // 2)
            clock[rank] = end + MS // 2
    trace = build.trace()
    (row,) = over_time(trace).rows()
    assert (row["kind"], row["every_count"], row["rank"], row["stall_kind"]) == ("period", 8, 0, "compute")
    assert abs(row["rank_delta_ns"] - 100 * MS) < MS
    (claim,) = claims(trace)
    assert str(claim["text"]).endswith(": rank 0 computes 100 ms longer")


def test_a_step_that_a_rank_does_not_make_is_no_short_one() -> None:
    """Rank 0 computes 20 ms in each of 50 steps, rank 1 does so in 80: no time of either gets shorter."""
    build = TraceBuilder()
    for rank, steps in ((0, 50), (1, 80)):
        for number in range(steps):
            begin = number * 30 * MS
            build.rank(rank).phase("forward", begin, begin + 20 * MS)
            build.rank(rank).phase("optimizer", begin + 20 * MS, begin + 21 * MS)
    trace = build.trace()
    counted = analyze(trace, "steps")
    half = np.arange(80) >= 40
    budgets = Budgets(trace, counted, analyze(trace, "stalls", warmup=True))
    assert budgets.whose(Change("drift", half, ~half, 20.0 * MS, 10.0 * MS, slope=-MS / 8)).rank == -1
