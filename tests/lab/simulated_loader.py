"""A training job whose loader reads through a cache, simulated event by event: workers, queue, cache and storage.

It knows what the closed forms of ``lab.cache_model`` leave out: batches that miss more than others, the limited queue
of prepared batches, workers that are stuck in storage at the same time. Seeded, so that it can be repeated.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.calibration.robust_line import Floats
from stashtrace.lab.cache_model import LRU, POLICIES, LoadingJob

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
