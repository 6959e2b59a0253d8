"""Another number of workers: predicted from one simulated job, against the simulation of the other."""

from __future__ import annotations

import numpy as np
import pytest
from builders import MS, TraceBuilder
from replay.loader_jobs import Job

from stashtrace.analysis.graph import Graph, build
from stashtrace.errors import MissingDataError
from stashtrace.replay import Answer, Change, what_if
from stashtrace.replay.loaders.passes import Passes
from stashtrace.replay.loaders.worker_count import _prefetch_factor
from stashtrace.schema.kinds import BatchPhase

WORKERS = (1, 2, 3, 4)
PAIRS = [(one, other) for one in WORKERS for other in WORKERS if one != other]


def predicted(job: Job, *changes: str) -> Answer:
    return what_if(build(job.trace()), map(Change.parse, changes))


def job(workers: int, **options: int) -> Job:
    return Job(workers, **{"batch_ns": 9 * MS, "step_ns": 4 * MS, **options}).run()


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_workers_that_set_the_pace(one: int, other: int) -> None:
    """9 ms a batch, 4 ms a step: 9, 4.5 and 4 ms a step with 1, 2, and 3 workers or more."""
    assert job(other).step_ms() == pytest.approx({1: 9, 2: 4.5}.get(other, 4), rel=0.02)
    answer = predicted(job(one), f"workers={other}")
    assert answer.high_ns / MS == pytest.approx(job(other).step_ms(), rel=0.02)
    assert answer.low_ns == answer.high_ns


@pytest.mark.parametrize("factor", [1, 3])
def test_workers_run_ahead_as_far_as_they_are_asked(factor: int) -> None:
    one, other = (job(workers, prefetch=factor) for workers in (4, 2))
    assert predicted(one, "workers=2").high_ns / MS == pytest.approx(other.step_ms(), rel=0.03)


def test_how_far_workers_run_ahead_is_the_most_of_any_pass() -> None:
    """Counted pass by pass here, over passes of different lengths with batches that nobody took."""
    random = np.random.default_rng(7)
    for _ in range(50):
        lengths = random.integers(1, 9, random.integers(1, 6))
        start = np.repeat(np.cumsum(lengths) - lengths, lengths)
        count = len(start)
        begin, taken = random.integers(0, 40, count), random.integers(0, 40, count)
        taken[random.random(count) < 0.2] = 10**9
        none = np.zeros(count, dtype=np.int64)
        passes = Passes(none, start, np.arange(count) - start, none, 1)
        most = 0
        for first in np.unique(start).tolist():
            for at in np.flatnonzero(start == first).tolist():
                done = np.count_nonzero((start == first) & (taken <= begin[at]))
                most = max(most, at - first - done + 1)
        assert _prefetch_factor(passes, begin, taken, np.ones(count, dtype=bool)) == max(most, 1)


def test_as_many_workers_as_there_are_change_nothing() -> None:
    made = job(2)
    assert predicted(made, "workers=2").high_ns == predicted(made).replayed_ns
    assert str(Change.parse("workers=x2")) == "workers=x2"
    assert predicted(made, "workers=x0.5").high_ns / MS == pytest.approx(9, rel=0.02)


def test_a_faster_worker_may_be_ahead_though_it_never_was() -> None:
    """A worker that sets the pace is never seen to wait for an index; at half the time it is."""
    assert predicted(job(1), "prep=x0.4").high_ns / MS == pytest.approx(4, rel=0.02)
    assert predicted(job(1), "prep=5ms").high_ns / MS == pytest.approx(5, rel=0.02)


@pytest.mark.parametrize("cpus", [1.0, 2.0])
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_workers_that_share_too_few_cpus(one: int, other: int, cpus: float) -> None:
    answer = predicted(job(one, cpus=cpus), f"workers={other}")
    truth = job(other, cpus=cpus).step_ms() * MS
    assert answer.low_ns * 0.98 <= truth <= answer.high_ns * 1.02
    assert answer.middle_ns == pytest.approx(truth, rel=0.03)


def test_where_cpus_are_shared_a_change_of_nothing_changes_no_column() -> None:
    answer = predicted(job(3, cpus=2.0), "compute=x1")
    assert sum(answer.before_ns.values()) == pytest.approx(answer.replayed_ns)
    assert sum(answer.after_ns.values()) == pytest.approx(answer.high_ns)
    assert answer.after_ns == pytest.approx(answer.before_ns, abs=1.0)


def test_on_one_cpu_more_workers_do_not_help() -> None:
    """9 ms of a batch and 4 ms of a step are 13 ms of one CPU, however many workers there are."""
    answer = predicted(job(1, cpus=1.0, steps=300), "workers=3")
    assert answer.middle_ns / MS == pytest.approx(13, rel=0.03)


def test_what_waits_needs_no_cpu() -> None:
    """Of 9 ms of a batch 7 are spent asleep: one CPU is enough for the rest of three workers' batches and the step."""
    options = {"batch_ns": 2 * MS, "wait_ns": 7 * MS, "step_ns": MS, "cpus": 1.0}
    assert predicted(job(1, **options), "workers=3").middle_ns == pytest.approx(
        job(3, **options).step_ms() * MS, rel=0.04
    )


def test_faster_batches_leave_cpus_to_the_step() -> None:
    truth = job(2, cpus=1.0, batch_ns=3 * MS).step_ms() * MS
    assert predicted(job(2, cpus=1.0, batch_ns=6 * MS), "prep=x0.5").middle_ns == pytest.approx(truth, rel=0.03)


def test_without_workers_their_number_is_no_question() -> None:
    made = job(1)
    made.fetches.clear()
    with pytest.raises(MissingDataError) as error:
        predicted(made, "workers=2")
    assert "no worker made batches" in str(error.value)
    assert error.value.hint == "record it with at least num_workers=1"


def test_a_sampler_stays_with_the_step_thread() -> None:
    """Of 10 ms for a batch the sampler takes 8, which the main process of a loader with workers does as well."""
    build_ = TraceBuilder()
    rank = build_.rank(0)
    for batch in range(30):
        at = 30 * MS * batch
        rank.batch_wait(batch, at, at + 10 * MS, cpu=10 * MS, runqueue=0)
        rank.fetch(batch, at + 8 * MS, at + 10 * MS, cpu=2 * MS, runqueue=0)
        rank.phase("forward", at + 10 * MS, at + 29 * MS, cpu=(at, at))
        rank.phase("optimizer", at + 29 * MS, at + 30 * MS, cpu=(at, at))
    answer = what_if(build(build_.trace()), [Change.parse("workers=2")])
    assert answer.middle_ns / MS == pytest.approx(28, abs=0.2)


def test_the_budget_is_that_of_the_changed_job() -> None:
    """With three workers nobody waits for batches of 9 ms any more."""
    answer = predicted(job(1), "workers=3")
    assert answer.before_ns["data"] / MS == pytest.approx(5, rel=0.02)
    assert answer.after_ns["data"] / MS < 0.2
    assert sum(answer.after_ns.values()) == pytest.approx(answer.high_ns, rel=0.03)


def held_back(workers: int, batch_ms: int = 4) -> Graph:
    """Workers whose batches wait for the one after them to be done before they are handed over; a step takes 1 ms.

    Batch i is begun at i / workers * batch_ms, and had two batches later; the thread runs 0.1 ms to unpack it. In half
    that time a worker is asked for a batch 0.1 ms after the one two before it was had: two batches take 4.1 ms.
    """
    build_ = TraceBuilder()
    rank = build_.rank(0)
    now = 0
    for batch in range(150):
        begin = batch // workers * batch_ms * MS + batch % workers * batch_ms * MS // workers
        rank.worker(batch % workers).fetch(batch, begin, begin + batch_ms * MS, cpu=batch_ms * MS, runqueue=0)
        had = max(begin + 2 * batch_ms * MS, now)
        rank.batch_wait(batch, now, had + MS // 10, worker=batch % workers, cpu=MS // 10, runqueue=0)
        now = had + MS // 10 + MS
        rank.phase("forward", now - MS, now - MS // 2).phase("optimizer", now - MS // 2, now)
    return build(build_.trace())


@pytest.mark.parametrize(
    ("workers", "change", "step_ms"),
    [(1, "workers=2", 2), (1, "workers=4", 1.1), (2, "workers=1", 4), (1, "prep=x0.5", 2.05), (2, "prep=x2", 4)],
)
def test_a_late_hand_over_keeps_the_thread_waiting_not_busy(workers: int, change: str, step_ms: float) -> None:
    graph = held_back(workers)
    assert what_if(graph, []).measured_ns / MS == pytest.approx(4 / workers, rel=0.02)
    assert what_if(graph, [Change.parse(change)]).middle_ns / MS == pytest.approx(step_ms, rel=0.03)


def test_a_read_that_waits_may_cost_the_cpu_as_well() -> None:
    """Of a batch of 6 ms a read takes 5, of which its thread runs 1 ms: without reads 1 ms is left, or 2."""
    build_ = TraceBuilder()
    rank = build_.rank(0)
    for batch in range(60):
        begin = 6 * batch * MS
        rank.worker(0).fetch(batch, begin, begin + 6 * MS, cpu=2 * MS, runqueue=0)
        rank.worker(0).io(begin, begin + 5 * MS, path="/data/x", blocked=True)
        rank.batch_wait(batch, begin + MS, begin + 6 * MS, worker=0)
        rank.phase("forward", begin + 6 * MS, begin + 6 * MS + MS // 2)
        rank.phase("optimizer", begin + 6 * MS + MS // 2, begin + 7 * MS)
    graph = build(build_.trace())
    answer = what_if(graph, [Change.parse("fetch=0")])
    assert (answer.low_ns / MS, answer.high_ns / MS) == pytest.approx((1, 2), abs=0.05)
    answer = what_if(graph, [Change.parse("fetch=x0.5")])
    assert (answer.low_ns / MS, answer.high_ns / MS) == pytest.approx((3.5, 4), abs=0.05)


def reading(cold: int, warm: int, *, elsewhere: int = 0) -> Graph:
    """Each batch reads ``cold`` pieces from storage and ``warm`` from memory, then works for 2 ms.

    A read from storage runs for 75 us. ``elsewhere`` reads of the same size are made by the step thread before all,
    half of them in 20 us and half in 60.
    """
    build_ = TraceBuilder()
    rank = build_.rank(0)
    for number in range(elsewhere):
        begin = number * 100_000
        rank.io(begin, begin + (20_000 if number % 2 else 60_000), path="/usr/lib/x", result_bytes=1 << 17)
    now = elsewhere * 100_000
    for batch in range(60):
        begin = now
        for took_us, blocked, count in ((125, True, cold), (25, False, warm)):
            for _ in range(count):
                rank.worker(0).io(now, now + took_us * 1000, path="/data/x", blocked=blocked, result_bytes=1 << 17)
                now += took_us * 1000
        cpu = 2 * MS + (cold * 75 + warm * 25) * 1000
        now += 2 * MS
        rank.worker(0).fetch(batch, begin, now, cpu=cpu, runqueue=0)
        rank.batch_wait(batch, begin + MS // 5, now, worker=0)
        rank.phase("forward", now, now + MS // 10).phase("optimizer", now + MS // 10, now + MS // 5)
    return build(build_.trace())


@pytest.mark.parametrize(
    ("cold", "warm", "elsewhere", "change", "step_ms", "within"),
    [
        # 40 reads of 125 us, 20 of 25 by the same thread: all from memory they would take 1.5 ms, and the work 2.
        (40, 20, 0, "fetch=0", (3.5, 3.5), 0.03),
        # Half of what storage costs beyond memory: 40 * 50 us.
        (40, 20, 0, "fetch=x0.5", (5.5, 5.5), 0.03),
        # 20 or 60 us each from memory, by what another thread needed; nothing says which.
        (60, 0, 40, "fetch=0", (2 + 1.2, 2 + 3.6), 0.05),
        # Few reads of others say nothing: what these ran, 75 us each, may stay or go.
        (60, 0, 0, "fetch=0", (2, 2 + 4.5), 0.05),
        (60, 0, 10, "fetch=0", (2, 2 + 4.5), 0.05),
    ],
)
def test_what_reads_from_memory_take(
    cold: int, warm: int, elsewhere: int, change: str, step_ms: tuple[float, float], within: float
) -> None:
    answer = what_if(reading(cold, warm, elsewhere=elsewhere), [Change.parse(change)])
    assert (answer.low_ns / MS, answer.high_ns / MS) == pytest.approx(step_ms, abs=within)


def test_a_read_from_memory_runs_no_longer_than_the_one_that_waited_did() -> None:
    """Another thread's reads took 20 or 60 us, but these ran for 30 us only, in addition to the wait for storage."""
    graph = reading(60, 0, elsewhere=40)
    graph.facts.cpu_ns[graph.is_batch] = 2 * MS + 60 * 30_000
    answer = what_if(graph, [Change.parse("fetch=0")])
    assert (answer.low_ns / MS, answer.high_ns / MS) == pytest.approx((2 + 1.2, 2 + 1.8), abs=0.05)


def test_storage_may_be_slower_in_another_recording() -> None:
    """A tenth of 60 * 100 us beyond what memory takes is 0.6 ms, which no number of steps makes less."""
    reads = what_if(reading(60, 20), [])
    assert reads.noise_ns == pytest.approx(MS * ((0.03 * 10.0) ** 2 + 0.6**2) ** 0.5, rel=0.05)
    memory = what_if(reading(60, 20), [Change.parse("fetch=0")])
    assert memory.noise_ns == pytest.approx(0.03 * memory.middle_ns, rel=0.02)


@pytest.mark.parametrize("busy_cpus", [0.0, 1.0])
def test_what_else_runs_on_a_host_leaves_fewer_cpus(busy_cpus: float) -> None:
    """Of two CPUs one is used by threads that are not work of the graph, or is not."""
    facts = build(job(1, cpus=2.0).trace(elsewhere=busy_cpus)).facts
    assert facts.cpus["node00"] == pytest.approx(2.0 - busy_cpus, abs=0.05)


def passes(compute_ms: int, count: int = 6) -> Graph:
    """Passes of four batches over the data; each starts a worker again, which takes 10 ms for that and 2 per batch."""
    build_, now = TraceBuilder(), 0
    rank = build_.rank(0)
    for number in range(count):
        worker, started = rank.worker(number), now + 10 * MS
        for batch in range(4):
            made = started + 2 * (batch + 1) * MS
            worker.fetch(batch, made - 2 * MS, made, worker=number, loader=number)
            end = max(made, now)
            rank.batch_wait(batch, now, end, worker=number, loader=number)
            rank.phase("forward", end, end + (compute_ms - 1) * MS)
            now = end + compute_ms * MS
            rank.phase("optimizer", now - MS, now)
    return build(build_.trace())


@pytest.mark.parametrize("factor", ["0.5", "1.5"])
def test_a_new_worker_of_each_pass_begins_when_the_thread_has_started_it(factor: str) -> None:
    """Steps of 4 ms, the first of each pass 12 ms longer: a faster loop starts the next workers earlier."""
    truth = what_if(passes(round(4 * float(factor))), []).measured_ns
    answer = what_if(passes(4), [Change.parse(f"compute=x{factor}")])
    assert answer.high_ns == pytest.approx(truth, rel=0.02)
    assert abs(answer.high_ns - answer.measured_ns) > MS


def test_batches_that_end_before_they_began_are_left_out() -> None:
    whole = job(2).trace()
    batches = whole.batches
    fetches = np.flatnonzero(batches["phase_code"] == BatchPhase.FETCH)
    end = batches["end_ns"].copy()
    end[fetches[20:23]] = batches["begin_ns"][fetches[20:23]] - MS
    graph = build(whole.replace(batches=batches.replace(end_ns=end)))
    assert (graph.work_ns >= 0).all()
    assert np.count_nonzero(graph.is_batch) == len(fetches) - 3
