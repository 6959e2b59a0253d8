"""Clocks of several hosts from what they did together: the truth lies inside the stated error."""

from __future__ import annotations

import numpy as np
import pytest
from host_simulation import MS, US, Hosts, Job, S

from stashtrace.loading.clocks.align_recorded import Alignment, align_tables
from stashtrace.loading.clocks.fit_host_pair import PING, STRAIGHT, Bend
from stashtrace.loading.clocks.host_clock import HostClock, Readings, tick_map
from stashtrace.loading.clocks.meetings import Meetings
from stashtrace.schema.kinds import CollectiveOp

OWN_ERROR_NS = 50


def times(count: int, gap_ns: float = 50 * MS, first_ns: float = 5 * S) -> np.ndarray:
    return first_ns + np.arange(count) * float(gap_ns)


def job_of(seed: int, *, hosts: int, per_host: int = 1) -> Job:
    rng = np.random.default_rng(seed)
    return Job(Hosts.random(hosts, rng), np.repeat(np.arange(hosts), per_host), rng)


def align(job: Job, end_ns: float, pings: Meetings | None = None, bends: tuple[Bend, ...] = ()) -> Alignment:
    own, lifes = np.full(len(job.hosts.offset_ns), OWN_ERROR_NS), job.lifes(0, end_ns)
    return align_tables(job.collectives(), job.group_table(), job.host_of, own, lifes, pings=pings, bends=bends)


def inside(job: Job, found: Alignment, end_ns: float) -> list[bool]:
    """Of each host but the reference: whether the true offset lies inside the error during the whole run."""
    out = []
    for host in range(1, len(job.hosts.offset_ns)):
        miss, error = job.hosts.miss(host, np.linspace(0, end_ns, 60), found.offsets[host])
        out.append(bool((np.abs(miss) <= error).all()))
    return out


def worst(job: Job, found: Alignment, host: int, begin_ns: float, end_ns: float) -> tuple[int, int]:
    """Largest miss and largest stated error between two moments."""
    miss, error = job.hosts.miss(host, np.linspace(begin_ns, end_ns, 60), found.offsets[host])
    return int(np.abs(miss).max()), int(error.max())


def exchanges(job: Job, at_ns: np.ndarray) -> Meetings:
    """Pings of host 1 to host 0 at these moments."""
    count = len(at_ns)
    hosts = job.hosts
    there, back = (15 * US + job.rng.exponential(10 * US, count) for _ in range(2))
    sent, got = hosts.shown(1, at_ns), hosts.shown(0, at_ns + there)
    replied, heard = hosts.shown(0, at_ns + there + 2 * US), hosts.shown(1, at_ns + there + 2 * US + back)
    number = np.repeat(np.arange(count), 2)
    none = np.zeros(2 * count, dtype=bool)
    enter, end = np.stack([replied, sent], axis=1).ravel(), np.stack([got, heard], axis=1).ravel()
    return Meetings(
        number,
        number,
        np.tile([0, 1], count),
        enter,
        end,
        np.zeros(2 * count, dtype=np.int64),
        none,
        none,
        np.full(2 * count, PING, dtype=np.int8),
    )


def test_true_offsets_lie_inside_the_stated_error_for_many_jobs() -> None:
    good = []
    for seed in range(150):
        rng = np.random.default_rng(seed)
        hosts = Hosts.random(int(rng.integers(2, 6)), rng)
        job = Job(hosts, np.repeat(np.arange(len(hosts.offset_ns)), int(rng.integers(1, 4))), rng)
        everyone = np.arange(len(job.host_of))
        at = times(int(rng.integers(4, 300)), rng.choice([2, 30, 300]) * MS)
        late = rng.choice([0, 1, 5]) * MS * rng.random(len(everyone))
        job.operate(
            at,
            everyone,
            jitter_ns=rng.choice([0.05, 1, 10]) * MS,
            latency_ns=rng.choice([5, 60, 2000]) * US,
            noise_ns=rng.choice([1, 20]) * US,
            late_ns=late,
            on_device=bool(rng.integers(0, 2)),
        )
        if rng.integers(0, 2):
            job.operate(at + 1 * MS, everyone, op=CollectiveOp.BROADCAST, root=0, group=2)
        if rng.integers(0, 2):
            job.message(at, 0, len(everyone) - 1, group=3)
        good += inside(job, align(job, at[-1] + 1 * S), at[-1] + 1 * S)
    assert np.mean(good) >= 0.99, f"{np.mean(good):.3f} of {len(good)}"


def test_offsets_of_a_long_job_are_found_to_a_few_microseconds() -> None:
    job = job_of(1, hosts=4, per_host=2)
    job.operate(times(2000), np.arange(8))
    found = align(job, 105 * S)
    assert found.rejected_count == 0
    for host in (1, 2, 3):
        miss, error = worst(job, found, host, 5 * S, 105 * S)
        assert miss < 10 * US
        assert error < 100 * US
        drift = (1 + job.hosts.drift[0]) / (1 + job.hosts.drift[host]) - 1
        assert abs(found.offsets[host].drift_ppb * 1e-9 - drift) < 2e-6
        assert found.offsets[host].method == "collectives"


def test_device_times_align_to_five_microseconds() -> None:
    job = job_of(2, hosts=2, per_host=4)
    job.operate(times(1000, 10 * MS), np.arange(8), latency_ns=10 * US, noise_ns=0.2 * US, on_device=True)
    miss, error = worst(job, align(job, 16 * S), 1, 5 * S, 15 * S)
    assert miss < 1 * US
    assert error < 5 * US


@pytest.mark.parametrize("return_ns", [1 * US, 10 * US, 50 * US])
def test_a_kernel_that_events_show_to_begin_too_late_limits_nothing(return_ns: float) -> None:
    for seed in range(20):
        job = job_of(seed, hosts=2)
        for half in range(2):  # each rank is the last one half of the time
            late = np.array([half, 1 - half]) * 2.0 * MS
            job.operate(
                times(150),
                np.arange(2),
                latency_ns=10 * US,
                noise_ns=0.2 * US,
                jitter_ns=1 * US,
                late_ns=late,
                on_device=True,
                return_ns=return_ns,
            )
        found = align(job, 21 * S)
        assert all(inside(job, found, 21 * S))
        miss, error = worst(job, found, 1, 5 * S, 12 * S)
        assert miss < 2 * US
        assert error < 20 * US
        assert found.rejected_count == 0


def test_wrongly_matched_operations_are_left_out_and_counted() -> None:
    good, rejected = [], 0
    for seed in range(20):
        job = job_of(seed, hosts=3)
        job.operate(times(300), np.arange(3))
        table = job.collectives()
        wrong = np.flatnonzero(
            (table["process_id"] == 1) & np.isin(table["sequence"], job.rng.choice(300, 12, replace=False))
        )
        shift = job.rng.choice([-1, 1], len(wrong)) * job.rng.integers(1 * MS, 200 * MS, len(wrong))
        call, end = table["call_ns"].copy(), table["end_ns"].copy()
        call[wrong] += shift
        end[wrong] += shift
        job.parts = [table.replace(call_ns=call, end_ns=end)]
        found = align(job, 21 * S)
        good += inside(job, found, 21 * S)
        rejected += found.rejected_count
        miss, error = worst(job, found, 1, 5 * S, 20 * S)
        assert miss < 50 * US
        assert error < 300 * US
    assert np.mean(good) >= 0.95
    assert rejected >= 20 * 8


def test_a_clock_that_was_set_is_named_and_covered_by_the_error() -> None:
    job = job_of(3, hosts=3)
    job.hosts.wander = lambda t: np.where(t > 14 * S, 3.0 * MS, 0.0)
    job.operate(times(300), np.arange(3))
    found = align(job, 21 * S)
    assert found.stepped
    assert found.rejected_count >= 50
    assert all(inside(job, found, 21 * S))


def test_a_wandering_clock_is_followed_over_hours() -> None:
    job = job_of(4, hosts=2)
    job.hosts.wander = lambda t: 40 * US * np.sin(2 * np.pi * t / (3600 * S))
    at = times(3000, 2400 * MS)
    job.operate(at, np.arange(2))
    found = align(job, at[-1])
    assert all(inside(job, found, at[-1]))
    miss, error = worst(job, found, 1, 300 * S, 7000 * S)
    assert miss < 30 * US
    assert error < 150 * US


def slewed(true_ns: np.ndarray) -> np.ndarray:
    """NTP changes the rate by 10 ppm after half a minute."""
    return np.asarray(np.maximum(true_ns - 30 * S, 0.0) * 10e-6)


def clock_of(course_ns: np.ndarray, noise_ns: float = 8.0) -> HostClock:
    """A host whose clock goes so against its counter, which was read once a second."""
    at = 10 * S + np.arange(len(course_ns), dtype=np.int64) * S
    off = course_ns + np.random.default_rng(0).uniform(-noise_ns, noise_ns, len(at))
    shown = at + np.rint(off).astype(np.int64)
    return HostClock("boot", tick_map(Readings(at * 2, shown, shown, np.full(len(at), 40)), 2e9), 0, 0)


@pytest.mark.parametrize(("latency_ns", "on_device"), [(60 * US, False), (20 * US, True)])
def test_a_clock_that_ntp_slews_is_seen_to_bend_and_lies_inside_the_error(latency_ns: float, on_device: bool) -> None:
    rng = np.random.default_rng(1)
    bend = clock_of(slewed(np.arange(61) * float(S))).bend()
    assert bend.bow_ns == pytest.approx(75 * US, rel=0.02)
    assert bend.rate_ratio == pytest.approx(5e-6, rel=0.05)
    job = Job(Hosts(np.array([0.0, 3e6]), np.array([0.0, 20e-6]), wander=slewed), np.array([0, 0, 1, 1]), rng)
    job.operate(np.sort(rng.uniform(0, 60 * S, 2000)), np.arange(4), latency_ns=latency_ns, on_device=on_device)
    found = align(job, 60 * S, bends=(STRAIGHT, bend))
    assert all(inside(job, found, 60 * S))
    assert not found.stepped
    assert worst(job, found, 1, 0, 60 * S)[1] < 200 * US


def test_readings_of_a_straight_clock_do_not_bend_it() -> None:
    assert clock_of(np.arange(61) * 5_000.0).bend() == STRAIGHT
    assert clock_of(np.zeros(2)).bend() == STRAIGHT


def test_a_rank_that_is_never_last_has_a_wide_error_and_is_inside_it() -> None:
    for seed in range(10):
        job = job_of(seed, hosts=2)
        job.operate(times(200), np.arange(2), late_ns=np.array([0.0, 30.0 * MS]), jitter_ns=1 * MS)
        found = align(job, 16 * S)
        assert all(inside(job, found, 16 * S))
        assert found.offsets[1].error_ns.min() > 5 * MS


def test_ends_that_always_come_later_on_one_host_do_not_narrow_the_error() -> None:
    for seed in range(10):
        job = job_of(seed, hosts=2)
        job.operate(times(400), np.arange(2), noise_ns=1 * US)
        table = job.collectives()
        job.parts = [table.replace(end_ns=table["end_ns"] + np.where(table["process_id"] == 1, 100 * US, 0))]
        assert all(inside(job, align(job, 26 * S), 26 * S))


def test_hosts_that_share_no_group_are_reached_over_others() -> None:
    job = job_of(5, hosts=5)
    for group, members in enumerate([(3, 4), (0, 1), (1, 2), (2, 3)]):
        job.operate(times(300), members, group=group + 1)
    found = align(job, 21 * S)
    assert sorted(found.offsets) == [1, 2, 3, 4]
    assert all(inside(job, found, 21 * S))
    errors = [int(found.offsets[h].error_ns.max()) for h in (1, 2, 3, 4)]
    assert errors == sorted(errors)


def test_messages_in_both_directions_are_enough_and_in_one_are_not() -> None:
    job = job_of(6, hosts=3)
    job.message(times(200), 0, 1, group=1)
    job.message(times(200), 1, 0, group=2)
    job.message(times(200), 0, 2, group=3)
    found = align(job, 16 * S)
    assert sorted(found.offsets) == [1]
    assert all(inside_one for inside_one in [worst(job, found, 1, 0, 16 * S)[0] <= worst(job, found, 1, 0, 16 * S)[1]])


def test_broadcasts_of_every_root_align_and_the_root_is_found_by_its_place() -> None:
    job = job_of(7, hosts=3)
    for root in range(3):
        members = [2, 0, 1]
        job.operate(times(200) + root * 7 * MS, members, op=CollectiveOp.BROADCAST, root=root, group=root + 1)
    found = align(job, 16 * S)
    assert sorted(found.offsets) == [1, 2]
    assert all(inside(job, found, 16 * S))


def test_pings_at_begin_and_end_narrow_what_long_operations_leave_open() -> None:
    job = job_of(8, hosts=2)
    job.operate(times(100), np.arange(2), latency_ns=20 * MS)
    at = np.concatenate([1 * S + np.arange(8) * 100.0 * US, 11 * S + np.arange(8) * 100.0 * US])
    plain, found = align(job, 12 * S), align(job, 12 * S, exchanges(job, at))
    assert found.offsets[1].method == "ping"
    assert all(inside(job, found, 12 * S))
    assert worst(job, found, 1, 1 * S, 11 * S)[1] < 25 * US < worst(job, plain, 1, 1 * S, 11 * S)[1]


def test_operations_under_one_number_that_differ_are_not_used() -> None:
    job = job_of(9, hosts=2)
    job.operate(times(20), np.arange(2))
    table = job.collectives()
    op = table["op_code"].copy()
    op[0] = int(CollectiveOp.BARRIER)
    found = align_tables(
        table.replace(op_code=op), job.group_table(), job.host_of, np.zeros(2, dtype=np.int64), job.lifes(0, 7 * S)
    )
    assert found.rejected_count == 1
    assert 1 in found.offsets


@pytest.mark.parametrize("rows", [0, 1])
def test_little_or_nothing_in_common(rows: int) -> None:
    job = job_of(10, hosts=2)
    job.operate(times(max(rows, 1)), np.arange(2))
    table = job.collectives().take(np.arange(2 * rows))
    found = align_tables(table, job.group_table(), job.host_of, np.zeros(2, dtype=np.int64), job.lifes(0, 7 * S))
    assert len(found.offsets) == rows
    if rows:
        assert all(inside(job, found, 7 * S))
