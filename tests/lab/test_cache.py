"""Closed forms of the cache model: known values and properties."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from stashtrace.lab.cache_model import (
    LRU,
    MINIO,
    SLACK_RATIO,
    LoadingJob,
    hit_ratio,
    predict,
    storage_without_fetch_stall,
    workers_without_prep_stall,
)

JOB = LoadingJob(
    compute_ns=20e6,
    prep_ns=80e6,
    batch_bytes=2.4e6,
    workers_count=2,
    ranks_count=1,
    cached_bytes_per_s=5e9,
    reader_bytes_per_s=40e6,
    storage_bytes_per_s=60e6,
)


def random_jobs(count: int) -> list[LoadingJob]:
    random = np.random.default_rng(11)
    jobs = []
    for _ in range(count):
        compute, prep, size = random.uniform(5e6, 80e6), random.uniform(1e6, 200e6), random.uniform(1e5, 2e7)
        reader = size / random.uniform(0.002, 0.2)
        jobs.append(
            LoadingJob(
                compute,
                prep,
                size,
                int(random.integers(1, 6)),
                int(random.integers(1, 4)),
                reader * random.uniform(5, 100),
                reader,
                reader * random.uniform(1, 4),
            )
        )
    return jobs


@pytest.mark.parametrize(("share", "lru"), [(0.35, 0.070), (0.5, 0.153), (0.8, 0.478), (0.9, 0.670)])
def test_known_hit_ratios(share: float, lru: float) -> None:
    assert float(hit_ratio(share, LRU)) == pytest.approx(lru, abs=5e-4)
    assert float(hit_ratio(share, MINIO)) == share


def test_lru_thrashes_and_minio_never_does_worse() -> None:
    share = np.linspace(0, 1, 101)
    lru, minio = hit_ratio(share, LRU), hit_ratio(share, MINIO)
    assert (lru <= minio + 1e-12).all()
    assert (np.diff(lru) > 0).all()
    assert (lru[0], lru[-1]) == (0.0, 1.0)


def test_hit_ratio_refuses_what_is_no_share() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        hit_ratio(1.01, LRU)
    with pytest.raises(ValueError, match="no cache policy"):
        hit_ratio(0.5, "clock")


def test_a_step_by_hand() -> None:
    # One worker needs 80 + 0.48 ms for a cached batch, 80 + 60 ms for a cold one; two share that.
    warm, cold = predict(JOB, [1.0, 0.0]).step_ns
    assert warm == pytest.approx(40.24e6)
    assert cold == pytest.approx(70e6)
    assert predict(JOB, 0.0).fetch_ns[0] == pytest.approx(29.76e6)
    assert predict(JOB, 0.0).prep_ns[0] == pytest.approx(20.24e6)
    # Four ranks want 9.6 MB a step, and the host has 60 MB/s for them.
    assert predict(replace(JOB, ranks_count=4), 0.0).step_ns[0] == pytest.approx(160e6)
    # Without workers nothing overlaps.
    assert predict(replace(JOB, workers_count=0), 0.0).step_ns[0] == pytest.approx(160e6)


def test_what_limits() -> None:
    assert predict(replace(JOB, workers_count=8, storage_bytes_per_s=1e9), [1.0]).limits() == ["compute"]
    assert predict(JOB, [1.0]).limits() == ["prep"]
    assert predict(replace(JOB, workers_count=8), [0.0]).limits() == ["fetch"]


@pytest.mark.parametrize("job", random_jobs(60))
def test_properties(job: LoadingJob) -> None:
    hits = np.linspace(0, 1, 21)
    found = predict(job, hits)
    assert (np.diff(found.step_ns) <= 1e-3).all()  # more hits never hurt
    assert found.compute_ns + found.prep_ns + found.fetch_ns == pytest.approx(found.step_ns)
    assert (found.prep_ns >= 0).all()
    assert (found.fetch_ns >= 0).all()
    assert found.fetch_ns[-1] == 0
    for change in (
        {"workers_count": job.workers_count + 1},
        {"reader_bytes_per_s": 2 * job.reader_bytes_per_s},
        {"storage_bytes_per_s": 2 * job.storage_bytes_per_s},
        {"prep_ns": job.prep_ns / 2},
    ):
        assert (predict(replace(job, **change), hits).step_ns <= found.step_ns + 1e-3).all(), change


@pytest.mark.parametrize("job", random_jobs(30))
def test_enough_workers_are_enough_and_one_less_is_not(job: LoadingJob) -> None:
    enough = workers_without_prep_stall(job)
    assert predict(replace(job, workers_count=enough), 1.0).prep_ns[0] <= 1e-3
    if enough > 1:
        assert predict(replace(job, workers_count=enough - 1), 1.0).prep_ns[0] > 0


@pytest.mark.parametrize("job", random_jobs(30))
@pytest.mark.parametrize("hits", [0.0, 0.4, 0.9])
def test_storage_that_is_fast_enough_leaves_the_slack_and_no_more(job: LoadingJob, hits: float) -> None:
    need = storage_without_fetch_stall(job, hits)
    if math.isinf(need.total_bytes_per_s):
        fastest = replace(job, reader_bytes_per_s=1e18, storage_bytes_per_s=1e18)
        assert predict(fastest, hits).fetch_ns[0] >= 0
        return
    warm = predict(job, 1.0).step_ns[0]

    def step_ns(part: float) -> float:
        """Step on storage of this part of the rates that are needed."""
        rates = {"reader_bytes_per_s": need.reader_bytes_per_s, "storage_bytes_per_s": need.total_bytes_per_s}
        on_it = replace(job, **{name: part * rate for name, rate in rates.items()})
        return float(predict(on_it, hits).step_ns[0])

    assert step_ns(1.0) <= warm * (1 + SLACK_RATIO) * (1 + 1e-9)
    if need.reader_bytes_per_s < job.cached_bytes_per_s:
        assert step_ns(0.8) > warm * (1 + SLACK_RATIO)


def test_all_cached_needs_no_storage() -> None:
    assert storage_without_fetch_stall(JOB, 1.0).total_bytes_per_s == 0


@pytest.mark.parametrize("change", [{"reader_bytes_per_s": 0.0}, {"prep_ns": -1.0}, {"ranks_count": 0}])
def test_a_job_that_makes_no_sense(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a job has"):
        replace(JOB, **change)
