"""A job whose loader is simulated moment by moment, so that its trace and its step time are known for any workers."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass, field

from builders import MS, TraceBuilder

from stashtrace.schema.trace import Trace

TICK_NS = 20_000


@dataclass
class Making:
    """A batch in the hands of a worker."""

    batch: int
    left_ns: float
    begin_ns: int
    ran_ns: float = 0.0


@dataclass
class Job:
    """One rank; workers of ``prefetch`` batches in advance; everything that computes shares ``cpus``.

    Without workers the thread of the rank makes its batches itself.

    Attributes
    ----------
    batch_ns, wait_ns
        CPU time of a batch, and what its worker sleeps before it.
    step_ns
        CPU time of a step beside the wait for its batch.
    """

    workers: int
    batch_ns: int
    step_ns: int
    wait_ns: int = 0
    steps: int = 60
    prefetch: int = 2
    cpus: float = 64.0
    fetches: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    waits: list[tuple[int, int, int]] = field(default_factory=list)
    spans: list[tuple[int, int, int]] = field(default_factory=list)

    def run(self) -> Job:
        """Simulate."""
        if not self.workers:
            return self._alone()
        now, taken, computing, ran = 0, 0, 0.0, 0.0
        waiting_since, computing_since = 0, 0
        asked = {worker: [*range(worker, self.prefetch * self.workers, self.workers)] for worker in range(self.workers)}
        asleep: dict[int, int] = {}
        making: dict[int, Making] = {}
        made: set[int] = set()
        while True:
            for worker, queue in asked.items():
                if worker not in making and queue:
                    making[worker] = Making(queue.pop(0), float(self.batch_ns), now)
                    asleep[worker] = now + self.wait_ns
            if not computing and taken in made:
                self.waits.append((taken, waiting_since, now))
                ahead = taken + self.prefetch * self.workers
                if ahead < self.steps:
                    asked[ahead % self.workers].append(ahead)
                computing, computing_since, ran = float(self.step_ns), now, 0.0
                taken += 1
                continue
            awake = [worker for worker in making if asleep[worker] <= now]
            runnable = len(awake) + bool(computing)
            share = TICK_NS * min(1.0, self.cpus / runnable) if runnable else 0.0
            now += TICK_NS
            for worker in awake:
                one = making[worker]
                one.left_ns -= share
                one.ran_ns += share
                if one.left_ns <= 0:
                    self.fetches.append((worker, one.batch, one.begin_ns, now, round(one.ran_ns)))
                    made.add(one.batch)
                    del making[worker]
            if computing:
                computing, ran = computing - share, ran + share
                if computing <= 0:
                    self.spans.append((computing_since, now, round(ran)))
                    computing, waiting_since = 0.0, now
                    if taken == self.steps:
                        return self

    def _alone(self) -> Job:
        now = 0
        for batch in range(self.steps):
            made = now + self.wait_ns + self.batch_ns
            self.fetches.append((-1, batch, now, made, self.batch_ns))
            self.waits.append((batch, now, made))
            self.spans.append((made, now := made + self.step_ns, self.step_ns))
        return self

    def step_ms(self) -> float:
        """Mean step without the first ten."""
        ends = [end for _, end, _ in self.spans]
        return (ends[-1] - ends[9]) / (len(ends) - 10) / MS

    def trace(self, elsewhere: float = 0.0) -> Trace:
        """What would be recorded of it; CPUs that something else used all the time."""
        build = TraceBuilder()
        rank = build.rank(0)
        for worker, batch, begin, end, cpu in self.fetches:
            queued = max(end - begin - self.wait_ns - cpu, 0)
            maker = rank.worker(worker) if worker >= 0 else rank
            maker.fetch(batch, begin, end, cpu=cpu, runqueue=queued, worker=worker)
        for batch, begin, end in self.waits:
            worker, ran = (batch % self.workers, 0) if self.workers else (-1, self.batch_ns)
            rank.batch_wait(batch, begin, max(end, begin + 1000), worker=worker, cpu=ran, runqueue=0)
        cpu, queue = 0, 0
        for begin, end, ran in self.spans:
            begin += 1000
            waited = max(end - begin - ran, 0)
            middle = (begin + end) // 2
            half = (cpu + ran // 2, queue + waited // 2)
            rank.phase("forward", begin, middle, cpu=(cpu, half[0]), runqueue=(queue, half[1]))
            cpu, queue = cpu + ran, queue + waited
            rank.phase("optimizer", middle, end, cpu=(half[0], cpu), runqueue=(half[1], queue))
        last = self.spans[-1][1]
        worked = sum(ran for *_, ran in self.spans) + sum(cpu for *_, cpu in self.fetches)
        user = elsewhere + worked / last
        for name, rate in (("user", user), ("system", 0), ("iowait", 0), ("steal", 0), ("idle", self.cpus - user)):
            build.counter(0, f"host_{name}_ns_total", {0: 0.0, last: rate * last}, unit="ns")
        return build.trace()
