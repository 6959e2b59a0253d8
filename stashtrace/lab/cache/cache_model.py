"""Training speed as a function of the cached share of the data set: hit ratios of caches, and what they do to a step.

Closed forms, after DS-Analyzer's what-if, for a loader whose workers read and prepare one batch after the other and so
cannot hide reading behind their own preparing. :func:`simulate` plays the same job event by event.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

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


def storage_without_fetch_stall(job: LoadingJob, hits: float, *, slack: float = SLACK_RATIO) -> StorageNeed:
    """Storage rates from which the fetch stall is at most ``slack`` of the step without it.

    Not zero: where workers are the limit, reading from storage takes their time however fast it is.
    """
    target = float(_step_ns(job, np.ones(1))[0]) * (1.0 + slack)
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


# The same questions, played event by event: random permutations, a real cache, workers, shared storage. Seeded, so an
# answer can be repeated. It knows what the closed forms leave out: batches that miss more than others, the limited
# queue of prepared batches, workers that are stuck in storage at the same time.

#: Batches that a worker of torch's DataLoader is ahead at most.
PREFETCH_BATCHES = 2
#: Steps at the begin that fill the queue and are not counted.
_HEAD_STEPS = 8

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Played:
    """Result of a simulation."""

    #: Mean over the counted steps.
    step_ns: float
    #: Share of reads that the cache answered, first epoch left out.
    hit_ratio: float


def simulated_hits(items: int, capacity: int, policy: str, *, epochs: int = 3, seed: int = 0) -> Flags:
    """Whether each read was a hit: one row per epoch after the first, in the order of reading.

    ``items``, ``capacity``: items of the data set, all of a size, and how many the cache holds. ``policy``: one of
    ``POLICIES``. ``epochs``: epochs after the one that fills the cache.
    """
    if policy not in POLICIES:
        raise ValueError(f"no cache policy is called {policy!r}")
    random = np.random.default_rng(seed)
    held: OrderedDict[int, None] = OrderedDict()
    hits = np.zeros((epochs + 1, items), dtype=bool)
    for epoch in range(epochs + 1):
        for at, item in enumerate(random.permutation(items).tolist()):
            if item in held:
                hits[epoch, at] = True
                if policy == LRU:
                    held.move_to_end(item)
            elif capacity > 0 and (policy == LRU or len(held) < capacity):
                held[item] = None
                if len(held) > capacity:
                    held.popitem(last=False)
    return hits[1:]


def simulate(
    job: LoadingJob, cached: float, policy: str, *, batch_items: int = 32, steps: int = 150, seed: int = 0
) -> Played:
    """Simulate a job with a cache that holds this share of its data set.

    ``job``: times and rates. ``cached``: part of the data set that fits, 0 to 1. ``policy``: one of ``POLICIES``.
    ``batch_items``: items of a batch; few items make the misses of a batch vary more. ``steps``: steps of an epoch.
    """
    items = batch_items * steps * job.ranks_count
    hits = simulated_hits(items, round(cached * items), policy, epochs=1, seed=seed)[0]
    # A batch is read by one rank; the ranks share the order of the epoch, one batch each in turn.
    missed = ~hits.reshape(steps, job.ranks_count, batch_items)
    return Played(_mean_step_ns(job, missed, seed), float(hits.mean()))


def _mean_step_ns(job: LoadingJob, missed: Flags, seed: int) -> float:
    if job.workers_count == 0:
        return float(_serial_steps(job, missed.mean(axis=2)).mean())
    done = _Loader(job, missed, seed).play()
    head = min(_HEAD_STEPS, len(done) // 2)
    return float(done[-1] - done[head]) / (len(done) - 1 - head) if len(done) > 1 else float(done[0])


def _serial_steps(job: LoadingJob, missed: Floats) -> Floats:
    """Steps without workers: all ranks read at once, then prepare, then compute."""
    alone = missed * job.batch_bytes / job.reader_bytes_per_s
    together = missed.sum(axis=1, keepdims=True) * job.batch_bytes / job.storage_bytes_per_s
    own = job.prep_ns + job.cached_ns(1.0 - missed) + np.maximum(alone, together) * 1e9
    slowest: Floats = own.max(axis=1) + job.compute_ns
    return slowest


class _Loader:
    """Simulation of workers, storage and ranks, event by event.

    Storage gives each of k readers min(reader rate, total rate / k). All of them have the same rate at any time, so one
    running sum of bytes per reader orders their ends: a reader is done when the sum has grown by what it asked for.
    """

    def __init__(self, job: LoadingJob, missed: Flags, seed: int) -> None:
        self._job, self._missed = job, missed
        self._steps, self._ranks, self._items = missed.shape
        item_ns = job.prep_ns / self._items
        # Items differ; workers that all took equally long would march in step and leave storage idle in between.
        prep = np.random.default_rng(seed + 1).uniform(0.5, 1.5, missed.shape) * item_ns
        self._busy_ns = prep + np.where(missed, 0.0, float(job.cached_ns()) / self._items)
        self._item_bytes = job.batch_bytes / self._items
        self._now = 0.0
        self._served = 0.0  # bytes that a reader present all the time would have got
        self._reading: list[tuple[float, int, int, int]] = []  # served at its end; rank, batch, item
        self._preparing: list[tuple[float, int, int, int]] = []  # time of its end; rank, batch, item
        self._made = np.zeros((self._steps, self._ranks), dtype=bool)
        self._begun = np.zeros((self._steps, self._ranks), dtype=bool)
        self._consumed = 0

    def play(self) -> Floats:
        """Run the simulation; return the time at which each step ended."""
        ends: list[float] = []
        for rank in range(self._ranks):
            for batch in range(min(self._job.workers_count, self._steps)):
                self._begin(rank, batch)
        for step in range(self._steps):
            self._advance(step, float("inf"))
            self._consumed = step + 1
            for rank in range(self._ranks):
                for worker in range(self._job.workers_count):
                    self._continue(rank, worker)
            until = self._now + self._job.compute_ns
            self._advance(-1, until)
            ends.append(self._now)
        return np.array(ends)

    def _continue(self, rank: int, worker: int) -> None:
        """Give an idle worker its next batch if the queue has room."""
        workers = self._job.workers_count
        own = range(worker, self._steps, workers)
        column = self._begun[worker::workers, rank]
        following = int(column.sum())
        if following == len(own) or (following and not self._made[own[following - 1], rank]):
            return
        if own[following] < self._consumed + PREFETCH_BATCHES * workers:
            self._begin(rank, own[following])

    def _begin(self, rank: int, batch: int) -> None:
        self._begun[batch, rank] = True
        self._read(rank, batch, 0)

    def _read(self, rank: int, batch: int, item: int) -> None:
        """Let a worker read an item from storage, or find it in the cache."""
        if self._missed[batch, rank, item]:
            heapq.heappush(self._reading, (self._served + self._item_bytes, rank, batch, item))
        else:
            self._prepare(rank, batch, item)

    def _prepare(self, rank: int, batch: int, item: int) -> None:
        heapq.heappush(self._preparing, (self._now + float(self._busy_ns[batch, rank, item]), rank, batch, item))

    def _advance(self, step: int, until: float) -> None:
        """Let workers work until a moment, or until the batches of a step are made (-1: of none)."""
        while step < 0 or not self._made[step].all():
            readers = len(self._reading)
            rate = min(self._job.reader_bytes_per_s, self._job.storage_bytes_per_s / max(readers, 1)) / 1e9
            read_at = self._now + (self._reading[0][0] - self._served) / rate if readers else float("inf")
            made_at = self._preparing[0][0] if self._preparing else float("inf")
            moment = min(read_at, made_at, until)
            if readers:
                self._served += (moment - self._now) * rate
            self._now = moment
            if moment == until:
                return
            if read_at <= made_at:
                _, rank, batch, item = heapq.heappop(self._reading)
                self._prepare(rank, batch, item)
                continue
            _, rank, batch, item = heapq.heappop(self._preparing)
            if item + 1 < self._items:
                self._read(rank, batch, item + 1)
            else:
                self._made[batch, rank] = True
                self._continue(rank, batch % self._job.workers_count)
