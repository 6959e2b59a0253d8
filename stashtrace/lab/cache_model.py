"""Training speed as a function of the cached share of the data set: hit ratios of caches, and what they do to a step.

Closed forms, after DS-Analyzer's what-if, for a loader whose workers read and prepare one batch after the other and so
cannot hide reading behind their preparing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from stashtrace.calibration.robust_line import Floats

LRU, MINIO = "lru", "minio"
#: ``lru``: the item that was not used for longest makes room, as in a page cache; ``minio``: what came first stays.
POLICIES = (LRU, MINIO)
#: What limits a step.
COMPUTE, PREP, FETCH = "compute", "prep", "fetch"
#: A stall below this share of the step counts as removed.
SLACK_RATIO = 0.05


def hit_ratio(cached: Any, policy: str) -> Floats:
    """Share of reads that the cache answers when every item is read once per epoch, in a new random order each time.

    ``minio`` answers what it holds: x. Under ``lru`` an item is found again only if fewer than the cache holds were
    read since; with random permutations this is x + (1 - x) ln(1 - x), so half a data set in cache answers 15 %.

    ``cached``: part of the data set that fits into the cache, 0 to 1. ``policy``: one of :data:`POLICIES`.

    Examples
    --------
    >>> [round(float(hit_ratio(0.5, policy)), 3) for policy in POLICIES]
    [0.153, 0.5]
    """
    share: Floats = np.asarray(cached, dtype=np.float64)
    if policy not in POLICIES:
        raise ValueError(f"no cache policy is called {policy!r}")
    if share.size and not ((share >= 0) & (share <= 1)).all():
        raise ValueError("a cached share lies between 0 and 1")
    if policy == MINIO:
        return np.array(share)
    left = 1.0 - share
    # The limit of (1 - x) ln(1 - x) at x = 1 is 0.
    hits: Floats = np.clip(share + left * np.log(np.where(left > 0, left, 1.0)), 0.0, 1.0)
    return hits


@dataclass(frozen=True, slots=True)
class LoadingJob:
    """Times, sizes and rates that the speed of loading depends on."""

    #: A step whose batch is there.
    compute_ns: float
    #: One worker's time for a batch, reading left out.
    prep_ns: float
    #: Read for one batch.
    batch_bytes: float
    #: Workers per rank; 0 means that the step thread loads by itself, and nothing overlaps.
    workers_count: int
    #: Ranks on one host, which share cache and storage.
    ranks_count: int
    #: One reader from the page cache; infinite if not known.
    cached_bytes_per_s: float
    #: One reader alone from storage.
    reader_bytes_per_s: float
    #: All readers of a host together.
    storage_bytes_per_s: float

    def __post_init__(self) -> None:
        rates = (self.cached_bytes_per_s, self.reader_bytes_per_s, self.storage_bytes_per_s)
        if min(rates) <= 0 or min(self.compute_ns, self.prep_ns, self.batch_bytes, self.workers_count) < 0:
            raise ValueError("a job has times and sizes of 0 or more, and rates above 0")
        if self.ranks_count < 1:
            raise ValueError("a job has at least one rank")

    def cached_ns(self, hits: Any = 1.0) -> Floats:
        """Time in which one reader gets its part of a batch from the page cache."""
        return np.asarray(hits, dtype=np.float64) * self.batch_bytes / self.cached_bytes_per_s * 1e9

    def fetch_ns(self, hits: Any) -> Floats:
        """Time in which one reader, alone, gets the rest of a batch from storage."""
        return (1.0 - np.asarray(hits, dtype=np.float64)) * self.batch_bytes / self.reader_bytes_per_s * 1e9


@dataclass(frozen=True, slots=True)
class PredictedSteps:
    """Predicted steps, one entry per hit ratio; compute, prep and fetch add up to the step."""

    #: Step; a step whose batch is there; what waiting for preparing adds, were all data in cache; what storage adds.
    step_ns: Floats
    compute_ns: Floats
    prep_ns: Floats
    fetch_ns: Floats

    def limits(self) -> list[str]:
        """Limit of each step: the larger stall, or compute where both are below :data:`SLACK_RATIO`."""
        slack_ns = SLACK_RATIO * self.step_ns
        larger = np.where(self.fetch_ns > self.prep_ns, FETCH, PREP)
        return list(np.where(np.maximum(self.fetch_ns, self.prep_ns) > slack_ns, larger, COMPUTE).tolist())


def predict(job: LoadingJob, hits: Any) -> PredictedSteps:
    """Predict step time and stalls at these hit ratios; the queue of prepared batches is never the limit.

    A step takes as long as the slowest of three: compute; a worker's time for a batch, divided by the workers; the
    bytes that storage has to bring for all ranks. ``prep`` and ``fetch`` are the differences that DS-Analyzer measures:
    all data in cache against none to load, and this cache against all data in cache.
    """
    ratio = np.atleast_1d(np.asarray(hits, dtype=np.float64))
    if ratio.size and not ((ratio >= 0) & (ratio <= 1)).all():
        raise ValueError("a hit ratio lies between 0 and 1")
    step, warm = _step_ns(job, ratio), _step_ns(job, np.ones(1))[0]
    step = np.maximum(step, warm)  # storage faster than the page cache is not a gain that anybody should count on
    compute = np.full(len(ratio), float(job.compute_ns))
    return PredictedSteps(step, compute, np.full(len(ratio), warm - job.compute_ns), step - warm)


def _step_ns(job: LoadingJob, hits: Floats) -> Floats:
    missed = (1.0 - hits) * job.batch_bytes
    worker = job.prep_ns + job.cached_ns(hits) + job.fetch_ns(hits)
    shared = job.ranks_count * missed / job.storage_bytes_per_s * 1e9
    if job.workers_count == 0:
        own = np.maximum(job.fetch_ns(hits), shared)
        total: Floats = job.compute_ns + job.prep_ns + job.cached_ns(hits) + own
        return total
    slowest: Floats = np.maximum(np.maximum(job.compute_ns, worker / job.workers_count), shared)
    return slowest


def workers_without_prep_stall(job: LoadingJob) -> int:
    """Workers per rank from which preparing is hidden behind compute when all data are in cache."""
    if job.compute_ns <= 0:
        raise ValueError("no number of workers is enough for a step that takes no time")
    exact = (job.prep_ns + float(job.cached_ns())) / job.compute_ns
    return max(1, math.ceil(exact - 1e-9))


@dataclass(frozen=True, slots=True)
class StorageNeed:
    """Rates that storage must have."""

    #: All readers of a host together; never less than one of them needs.
    total_bytes_per_s: float
    #: Each reader; infinite if no storage is fast enough.
    reader_bytes_per_s: float


def storage_without_fetch_stall(job: LoadingJob, hits: float) -> StorageNeed:
    """Storage rates from which the fetch stall is at most :data:`SLACK_RATIO` of the step without it.

    Not zero: where workers are the limit, reading from storage takes their time however fast it is.
    """
    target = float(_step_ns(job, np.ones(1))[0]) * (1.0 + SLACK_RATIO)
    missed = (1.0 - hits) * job.batch_bytes
    if missed <= 0:
        return StorageNeed(0.0, 0.0)
    left_ns = target * max(job.workers_count, 1) - job.prep_ns - float(job.cached_ns(hits))
    left_ns -= 0.0 if job.workers_count else job.compute_ns
    total_ns = target if job.workers_count else left_ns
    if left_ns <= 0 or total_ns <= 0:
        return StorageNeed(math.inf, math.inf)
    reader = missed * 1e9 / left_ns
    return StorageNeed(max(job.ranks_count * missed * 1e9 / total_ns, reader), reader)
