"""A job of several passes over the data, whose workers start again or are kept as torch does it: its trace and step.

again  [ workers end ][ start 0 ][ start 1 ][ indices ]| wait for the first batch |
kept   [ all answer  ][ indices ]| wait for the first batch |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from builders import MS, TraceBuilder

from stashtrace.analysis.steps.epochs import FACT
from stashtrace.schema.kinds import BatchPhase, ProcessRole
from stashtrace.schema.trace import Trace

US = 1000
#: Steps that do not count.
WARMUP = 5


@dataclass
class EpochJob:
    """One or several ranks that do the same, without a lack of CPUs.

    Attributes
    ----------
    batch_ns
        Of a batch, by the number of its worker and of the batch.
    start_ns, boot_ns, end_ns
        To start one worker; until it can be asked then; until all have ended.
    first_ns
        What the first batch of a new worker takes longer.
    samples_ns
        What it takes each time to find out which samples are next, before the first indices go out.
    read_ns
        What it takes a worker to read an index that is there; recorded if not 0.
    in_order
        Whether batches are taken by their numbers; else as they become ready, and the worker of each makes the next.
    parted
        Whether the data set is iterable, so that each worker makes the batches of its part: those with its numbers.
    taken
        Batches that the loop takes of a pass before it leaves it; -1: all.
    """

    workers: int = 1
    kept: bool = False
    in_order: bool = True
    epochs: int = 8
    batches: int = 8
    step_ns: int = 10 * MS
    batch_ns: Callable[[int, int], int] = lambda worker, batch: 3 * MS
    start_ns: int = 10 * MS
    boot_ns: int = 40 * MS
    end_ns: int = 15 * MS
    first_ns: int = 0
    samples_ns: int = 0
    taken: int = -1
    read_ns: int = 0
    parted: bool = False
    prefetch: int = 2
    makings: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    fetches: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    waits: list[tuple[int, int, int, int]] = field(default_factory=list)
    ends: list[tuple[int, int, int]] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)

    def run(self) -> EpochJob:
        now, free = 0, [0] * self.workers
        takes = self.batches if self.taken < 0 else self.taken
        for epoch in range(self.epochs):
            begun = now
            restarts = not self.kept or not epoch
            if restarts:
                for worker in range(self.workers):
                    now += self.start_ns
                    self.makings.append((epoch, worker, begun, now, 0))
                    free[worker] = now + self.boot_ns
            else:
                now = max([now, *free]) + 200 * US  # all have answered
            now += self.samples_ns + 100 * US
            self.waits.append((epoch, -1, begun, now))
            asked = dict.fromkeys(range(min(self.prefetch * self.workers, self.batches)), now)
            made: dict[int, int] = {}
            workers: dict[int, int] = {}

            def make(
                batch: int,
                epoch: int = epoch,
                asked: dict[int, int] = asked,
                made: dict[int, int] = made,
                workers: dict[int, int] = workers,
            ) -> None:
                worker = workers.setdefault(batch, batch % self.workers)
                begin = max(free[worker] + self.read_ns, asked[batch] + 50 * US)
                first = not self.kept or not epoch
                took = self.batch_ns(worker, batch) + self.first_ns * (first and batch < self.workers)
                self.fetches.append((epoch, worker, batch, begin, begin + took))
                made[batch] = begin + took + 200 * US
                free[worker] = begin + took

            for batch in asked:
                make(batch)
            for place in range(takes):
                batch = place if self.in_order else min(made, key=made.__getitem__)
                begin, now = now, max(now, made.pop(batch))
                self.waits.append((epoch, batch, begin, now + 20 * US))
                further = place + self.prefetch * self.workers
                if further < self.batches:
                    asked[further] = now
                    if not self.in_order:  # the one that has made this one has a place
                        workers[further] = workers[batch]
                    make(further)
                self.steps.append((now + 20 * US, now := now + 20 * US + self.step_ns))
            if not self.kept:
                self.ends.append((epoch, now, now + self.end_ns))
                now += self.end_ns
                if takes < self.batches:  # workers that end make nothing more
                    self.fetches = [one for one in self.fetches if one[0] < epoch or one[3] < now]
        return self

    @property
    def step_mean_ns(self) -> float:
        ends = [end for _, end in self.steps]
        return (ends[-1] - ends[WARMUP - 1]) / (len(ends) - WARMUP)

    def trace(self, ranks: int = 1) -> Trace:
        """What would be recorded of it."""
        build = TraceBuilder()
        for rank in range(ranks):
            self._record(build, rank)
        return build.trace()

    def _record(self, build: TraceBuilder, rank: int) -> None:
        process = build.rank(rank)
        first = 1 + 1000 * rank
        makers = {}
        for epoch, worker, _, started, _ in self.makings:
            one = build.process(rank=rank, role=ProcessRole.WORKER, worker=worker, parent=process.process_id)
            makers[epoch, worker] = one.lives(started, self.steps[-1][1])
        for epoch, worker, batch, begin, end in self.fetches:
            of = 0 if self.kept else epoch
            makers[of, worker].fetch(batch, begin, end, loader=first + epoch, cpu=0, runqueue=0)
            if self.read_ns:
                index_wait = BatchPhase.INDEX_WAIT, batch, begin - self.read_ns, begin
                makers[of, worker].batch(*index_wait, worker=worker, loader=first + epoch)
        for epoch, batch, begin, end in self.waits:
            worker = batch % self.workers if batch >= 0 else -1
            process.batch_wait(batch, begin, end, worker=worker, loader=first + epoch, cpu=0, runqueue=0)
        for epoch, begin, end in self.ends:
            process.batch(BatchPhase.WORKERS_END, -1, begin, end, worker=-1, loader=first + epoch)
            process.batch_wait(-1, begin, end, worker=-1, loader=first + epoch, cpu=0, runqueue=0)
        for epoch in range(self.epochs if self.parted else 0):
            build.say(f"{FACT}{first + epoch:016x}", "4 0 0 iterable", process.process_id)
        for begin, end in self.steps:
            middle = (begin + end) // 2
            process.phase("forward", begin, middle).phase("optimizer", middle, end)
