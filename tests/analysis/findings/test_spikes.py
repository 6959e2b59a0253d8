"""Slow steps: found where they were planted, with rank, kind, amount, file and worker, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from builders import MS
from test_over_time import claims, job
from work_after_meeting import work_after_meeting

from stashtrace.analysis.findings.spikes.slow_steps import STEP_TIMES, SlowSteps, slow_steps_of, step_times
from stashtrace.analysis.findings.spikes.spikes import spikes
from stashtrace.analysis.stalls.budget import stalls
from stashtrace.analysis.steps.steps import steps as find_steps
from stashtrace.live.table import LIVE_STEPS
from stashtrace.schema.kinds import Phase, PhaseFlag
from stashtrace.schema.trace import Trace

SLOW = (60, 101, 150)


def test_a_slow_read_names_the_rank_the_file_and_the_worker() -> None:
    trace = job(
        200, prep=lambda rank, step: 120 * MS if rank == 1 and step in SLOW else 0, file="/data/shard-17.tar"
    ).trace()
    table = spikes(trace)
    assert table["step"].tolist() == list(SLOW)
    assert set(table["rank"].tolist()) == {1}
    assert set(table["kind"].tolist()) == {"fetch"}
    assert np.abs(table["extra_ns"] - 120 * MS).max() < MS
    assert np.abs(table["length_ns"] - table["usual_ns"] - 120 * MS).max() < MS
    assert set(table["cause_kind"].tolist()) == {"file"}
    assert set(table["cause_name"].tolist()) == {"/data/shard-17.tar"}
    assert set(table["worker_id"].tolist()) == {0}
    assert set(table["every_count"].tolist()) == {0}
    (claim,) = claims(trace)
    assert claim["text"] == (
        "3 of 195 steps (60, 101, 150) take 120 ms longer than others like them (median), 17 % of the time of all"
        " steps: rank 1 waits 120 ms longer for batches, which its storage delays"
    )
    assert claim["evidence_text"] == ["calls on /data/shard-17.tar take all of it"]
    assert (claim["file"], claim["cause_rank"], claim["items_count"]) == ("/data/shard-17.tar", 1, 3)


def test_one_slow_step_is_a_separate_sentence() -> None:
    trace = job(200, sleep=lambda rank, step: 300 * MS if (rank, step) == (0, 77) else 0).trace()
    (row,) = spikes(trace).rows()
    assert (row["step"], row["rank"], row["kind"]) == (77, 0, "python")
    assert abs(row["extra_ns"] - 300 * MS) < MS
    (claim,) = claims(trace)
    assert str(claim["text"]).startswith("step 77 takes 300 ms longer than others like it, ")
    whose = "rank 0 spends 300 ms more in code of the loop outside forward, backward and optimizer"
    assert str(claim["text"]).endswith(f" of the time of all steps: {whose}")


@pytest.mark.parametrize("steps", [12, 40, 300])
def test_a_balanced_job_has_no_slow_step(steps: int) -> None:
    trace = job(steps).trace()
    assert len(spikes(trace)) == 0
    assert claims(trace) == []


def test_a_slow_transfer_is_of_all_ranks() -> None:
    trace = job(120, transfer=lambda step: 60 * MS if step in (50, 91) else 0).trace()
    table = spikes(trace)
    assert table["step"].tolist() == [50, 91]
    assert set(table["ranks"].tolist()) == {"0-1"} or set(table["ranks"].tolist()) == {"0,1"}
    assert set(table["kind"].tolist()) <= {"network", "interconnect"}
    assert np.abs(table["extra_ns"] - 60 * MS).max() < MS


def test_steps_that_come_back_are_known_as_such_and_reported_once() -> None:
    trace = job(240, save=lambda rank, step: 200 * MS if rank == 0 and step % 20 == 19 else 0).trace()
    assert len(spikes(trace)) == 0, "steps with a checkpoint are compared with each other"
    trace = job(400, sleep=lambda rank, step: 200 * MS if rank == 0 and step % 50 == 49 else 0).trace()
    table = spikes(trace)
    assert table["step"].tolist() == list(range(49, 400, 50))
    assert table["every_count"].tolist() == [0, 0, 0, 50, 50, 50, 50, 50]
    (claim,) = claims(trace)
    assert claim["kind"] == "period"


def test_a_longer_checkpoint_is_slow_among_checkpoints() -> None:
    long = 20 * 30 + 19
    trace = job(
        900, save=lambda rank, step: (500 if step == long else 50) * MS if rank == 0 and step % 20 == 19 else 0
    ).trace()
    (row,) = spikes(trace).rows()
    assert (row["step"], row["rank"], row["kind"]) == (long, 0, "checkpoint")
    assert abs(row["extra_ns"] - 450 * MS) < MS


def test_computing_that_grows_alone_may_be_the_data() -> None:
    """Without sizes of batches, it is slow only far beyond what was seen."""
    varied = np.random.default_rng(3).lognormal(0, 0.5, (2, 400))

    def lengths(rank: int, step: int) -> int:
        return int(20 * MS * varied[rank, step])

    assert len(spikes(job(400, compute=lengths).trace())) == 0
    beyond = job(400, compute=lambda rank, step: lengths(rank, step) + (2000 * MS if (rank, step) == (1, 300) else 0))
    (row,) = spikes(beyond.trace()).rows()
    assert (row["step"], row["rank"], row["kind"]) == (300, 1, "compute")
    assert abs(row["extra_ns"] - 2000 * MS) < 0.05 * 2000 * MS


def test_a_wait_for_data_is_found_among_batches_of_any_length() -> None:
    """What data makes longer, and waits for it, do not hide what they have no part in."""
    varied = np.random.default_rng(3).lognormal(0, 0.5, (2, 400))
    last = varied.argmax(axis=0)
    trace = job(
        400,
        compute=lambda rank, step: int(20 * MS * varied[rank, step]),
        prep=lambda rank, step: 40 * MS if step in (200, 333) and rank == last[step] else 0,
    ).trace()
    table = spikes(trace)
    assert table["step"].tolist() == [200, 333]
    assert table["rank"].tolist() == last[[200, 333]].tolist()
    assert set(table["kind"].tolist()) == {"prep"}


def test_work_behind_the_last_meeting_is_followed_from_the_step_that_waited_for_it() -> None:
    """Rank 1 sleeps 90 ms at the end of step 49; rank 0 waits for it in step 50."""
    build, _, _ = work_after_meeting()
    table = spikes(build.trace())
    rows = {row["step"]: row for row in table.rows()}
    assert set(rows) <= {49, 50}
    assert {row["rank"] for row in rows.values()} == {1}
    assert {row["grew_step_index"] for row in rows.values()} == {49}
    assert all(abs(row["extra_ns"] - 90 * MS) < 2 * MS for row in rows.values())


def test_what_ran_during_a_slow_step_is_named() -> None:
    """Garbage collection inside, and a checkpoint in the background of one of two slow steps."""
    build = job(200, sleep=lambda rank, step: 100 * MS if rank == 1 and step in (70, 131) else 0)
    process = build.rank(1)
    phases = [row for row in build.rows["phases"] if row["process_id"] == process.process_id]
    optimizers = [row for row in phases if row["phase_code"] == int(Phase.OPTIMIZER)]
    for step, kind in ((70, "gc"), (131, "save")):
        begin = optimizers[step - 1]["end_ns"] + 20 * MS
        if kind == "gc":
            process.gc(begin, begin + 60 * MS)
        else:
            process.phase("checkpoint", begin, begin + 80 * MS, flags=PhaseFlag.BACKGROUND)
    first, second = spikes(build.trace()).rows()
    assert (first["step"], first["beside"], first["cause_kind"]) == (70, "gc", "gc")
    assert abs(first["gc_ns"] - 60 * MS) < MS
    assert (second["step"], second["beside"]) == (131, "background_save")
    assert abs(second["background_save_ns"] - 80 * MS) < MS


def test_the_verdict_on_a_step_is_made_of_earlier_ones_alone() -> None:
    """Steps that come one by one, or are followed by no others, are judged as in one call; live rows are fit for it."""
    trace = job(160, prep=lambda rank, step: 90 * MS if rank == 1 and step in SLOW else 0).trace()
    rows = step_times(find_steps(trace), stalls(trace, warmup=True))
    whole = SlowSteps().add(rows)
    assert [slow.step for slow in whole] == list(SLOW)
    search = SlowSteps()
    by_one = [slow for step in range(160) for slow in search.add(rows.take(rows["step"] == step))]
    assert by_one == whole
    assert SlowSteps().add(rows.take(rows["step"] <= SLOW[1])) == whole[:2]
    assert set(STEP_TIMES.names) <= set(LIVE_STEPS.names)


def test_batch_sizes_distinguish_long_computing_from_long_data() -> None:
    """As long a computing as that of a long batch is slow on a short one."""
    sizes = np.random.default_rng(5).choice([100, 400], 300)
    slow = 250 + int(np.flatnonzero(sizes[250:] == 100)[0])
    lengths = np.where(sizes == 400, 40 * MS, 10 * MS)
    lengths[slow] = 40 * MS
    trace = job(300, compute=lambda rank, step: int(lengths[step]) if rank == 0 else 0).trace()
    rows = step_times(find_steps(trace), stalls(trace, warmup=True))
    (found,) = SlowSteps().add(rows, sizes[rows["step"]].astype(np.float64))
    assert (found.step, found.rank, found.kind) == (slow, 0, "compute")
    assert abs(found.extra_ns - 30 * MS) < MS
    assert SlowSteps().add(rows) == []


def test_a_step_that_fewer_ranks_make() -> None:
    trace = job(120, sleep=lambda rank, step: 90 * MS if (rank, step) == (1, 90) else 0).trace()
    rows = step_times(find_steps(trace), stalls(trace, warmup=True))
    cut = rows.take((rows["rank"] == 1) | (rows["step"] != 20))
    assert [slow.step for slow in slow_steps_of(cut)] == [90]


def test_slow_steps_in_the_middle_of_a_short_run() -> None:
    """With fewer than two dozen steps on either side, all others show what is usual."""
    trace = job(36, sleep=lambda rank, step: 270 * MS if rank == 0 and step in (9, 18, 29) else 0).trace()
    assert spikes(trace)["step"].tolist() == [9, 18, 29]


def test_one_step_in_five_is_not_what_steps_are_like() -> None:
    """At random moments: the first ones are judged by what comes later."""
    planted = np.flatnonzero(np.random.default_rng(1).random(55) < 0.2).tolist()
    trace = job(55, sleep=lambda rank, step: 30 * MS if rank == 1 and step in planted else 0).trace()
    assert spikes(trace)["step"].tolist() == [step for step in planted if step >= 5]
    rows = step_times(find_steps(trace), stalls(trace, warmup=True))
    assert SlowSteps().add(rows) == [], "while the job runs, each of them would be an alarm"


@pytest.mark.parametrize("planted", [(10, 15), (60, 130)])
@pytest.mark.parametrize("slow_rank", [1, -1])
def test_a_rank_that_computes_longer_than_it_ever_does(planted: tuple[int, int], slow_rank: int) -> None:
    """Computing that hardly varies; on one rank, or on all."""

    def compute(rank: int, step: int) -> int:
        return 24 * MS + (41 * MS if step in planted and slow_rank in (rank, -1) else 0) + (7 * step % 5) * MS // 10

    table = spikes(job(200, compute=compute).trace())
    assert table["step"].tolist() == list(planted)
    assert set(table["kind"].tolist()) == {"compute"}
    assert np.abs(table["extra_ns"] - 41 * MS).max() < MS


def test_a_new_level_is_reported_a_few_times_and_then_usual() -> None:
    trace = job(300, sleep=lambda rank, step: 100 * MS if rank == 0 and step >= 150 else 0).trace()
    reported = [slow.step for slow in SlowSteps().add(step_times(find_steps(trace), stalls(trace, warmup=True)))]
    assert reported == [150, 151, 152, 153]


CPUS = 8
#: The slow step of rank 1, and by how much it is longer.
SLOW_STEP, EXTRA_NS = 70, 300 * MS
EVERY = 20 * MS
Rate = Callable[[bool], float]


def made(*counters: tuple[str, Rate], every_ns: int = EVERY, clock: Rate | None = None) -> Trace:
    """A job with one slow step. ``counters``: name -> growth per ns, inside the slow step or not; sampled by rank 0.

    ``clock``: of the device of rank 1.
    """
    build = job(120, sleep=lambda rank, step: EXTRA_NS if (rank, step) == (1, SLOW_STEP) else 0)
    begin, end = bounds(build.trace(), SLOW_STEP)
    last = bounds(build.trace(), 119)[1]
    at = np.arange(0, last + 2 * every_ns, every_ns)
    inside = np.clip(np.minimum(at[1:], end) - np.maximum(at[:-1], begin), 0, None) / every_ns
    for name, rate in counters:
        grown = np.concatenate([[0.0], np.cumsum(every_ns * (rate(True) * inside + rate(False) * (1 - inside)))])
        build.counter(0, name, dict(zip(at.tolist(), grown.tolist(), strict=True)))
    if clock is not None:
        build.rank(1).gpu(uuid="GPU-1")
        hertz = np.where((at >= begin) & (at < end), clock(True), clock(False))
        build.counter(1, "gpu_sm_clock_hz.GPU-1", dict(zip(at.tolist(), hertz.tolist(), strict=True)))
    return build.trace()


def bounds(trace: Trace, step: int) -> tuple[int, int]:
    table = find_steps(trace)
    (row,) = table.take((table["rank"] == 1) & (table["step"] == step)).rows()
    return row["begin_ns"], row["end_ns"]


def cpu(user: Rate, steal: Rate, own: Rate = lambda slow: 1.0) -> tuple[tuple[str, Rate], ...]:
    """CPUs of the host: used by anybody, taken by the hypervisor, and used by the job."""
    return (
        ("host_user_ns_total", user),
        ("host_system_ns_total", lambda slow: 0.0),
        ("host_idle_ns_total", lambda slow: CPUS - user(slow) - steal(slow)),
        ("host_iowait_ns_total", lambda slow: 0.0),
        ("host_steal_ns_total", steal),
        ("process_user_ns_total", own),
        ("process_system_ns_total", lambda slow: 0.0),
    )


def only(trace: Trace) -> dict[str, object]:
    (row,) = spikes(trace).rows()
    assert (row["step"], row["rank"]) == (SLOW_STEP, 1)
    return row


def test_steal() -> None:
    """The hypervisor takes 3 of 8 CPUs; programs outside the job use none."""
    trace = made(*cpu(user=lambda slow: 1.0, steal=lambda slow: 3.0 if slow else 0.0))
    row = only(trace)
    assert row["beside"] == "steal"
    assert row["steal_ratio"] == pytest.approx(3 / CPUS, rel=0.1)
    assert row["other_cpus_count"] == pytest.approx(0.0, abs=0.01)
    (claim,) = claims(trace)
    assert "meanwhile the hypervisor took CPU time" in claim["evidence_text"]


def test_programs_outside_the_job() -> None:
    trace = made(*cpu(user=lambda slow: 4.0 if slow else 1.5, steal=lambda slow: 0.0))
    row = only(trace)
    assert row["beside"] == "other_cpus"
    assert row["other_cpus_count"] == pytest.approx(3.0, rel=0.1)
    assert row["steal_ratio"] == 0.0


@pytest.mark.parametrize(("name", "column"), [("io", "io_pressure"), ("memory", "memory_pressure")])
def test_pressure(name: str, column: str) -> None:
    trace = made((f"host_psi_{name}_some_ns_total", lambda slow: 0.6 if slow else 0.02))
    row = only(trace)
    assert row["beside"] == column
    assert row[f"{column}_ratio"] == pytest.approx(0.6, rel=0.1)


def test_a_lower_clock_of_the_device() -> None:
    row = only(made(clock=lambda slow: 0.9e9 if slow else 1.8e9))
    assert row["beside"] == "sm_clock"
    assert row["sm_clock_hz"] == pytest.approx(0.9e9, rel=0.1)


def test_samples_further_apart_than_steps() -> None:
    """One a second: the amount is that of the second, and the step is still the one that stands out."""
    row = only(made(("host_psi_io_some_ns_total", lambda slow: 0.9 if slow else 0.0), every_ns=400 * MS))
    assert row["beside"] == "io_pressure"
    assert 0.2 < row["io_pressure_ratio"] <= 0.9


def test_what_is_as_usual_or_unknown_is_not_named() -> None:
    always = made(
        *cpu(user=lambda slow: 4.0, steal=lambda slow: 2.0),
        ("host_psi_io_some_ns_total", lambda slow: 0.5),
        ("host_psi_memory_some_ns_total", lambda slow: 0.5),
        clock=lambda slow: 1.2e9,
    )
    assert only(always)["beside"] == ""
    unknown = only(made())
    assert unknown["beside"] == ""
    names = ("steal_ratio", "other_cpus_count", "io_pressure_ratio", "memory_pressure_ratio", "sm_clock_hz")
    assert {unknown[name] for name in names} == {-1.0}


def test_without_other_steps_to_compare_with_nothing_is_named() -> None:
    """The samples begin with the slow step: what was usual before is not known."""
    build = job(90, sleep=lambda rank, step: EXTRA_NS if (rank, step) == (1, SLOW_STEP) else 0)
    begin, end = bounds(build.trace(), SLOW_STEP)
    build.counter(0, "host_psi_io_some_ns_total", {begin - MS: 0.0, end + MS: 0.8 * (end - begin)})
    row = only(build.trace())
    assert row["io_pressure_ratio"] == pytest.approx(0.8, rel=0.1)
    assert row["beside"] == ""


def test_the_step_in_which_it_grew_is_looked_at() -> None:
    """Rank 1 is late at the end of step 49, with pressure of I/O then; only in step 50 does rank 0 wait for it."""
    build, work, ends_at = work_after_meeting()
    grown = 0.7 * 90 * MS
    build.counter(0, "host_psi_io_some_ns_total", {0: 0.0, work[0]: 0.0, work[1]: grown, ends_at: grown})
    rows = {row["step"]: row for row in spikes(build.trace()).rows()}
    assert rows
    assert all(row["beside"] == "io_pressure" for row in rows.values()), rows
