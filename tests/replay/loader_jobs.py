"""A job whose loader is simulated moment by moment, so that its trace and its step time are known for any workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from builders import MS, TraceBuilder

from stashtrace.schema.kinds import ProcessRole
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
        CPU time of a step other than the wait for its batch.
    uneven
        Factor of the CPU time and the sleep of a batch, by its number.
    epochs
        This number of equal passes is recorded; each starts its workers again.
    """

    workers: int
    batch_ns: int
    step_ns: int
    wait_ns: int = 0
    steps: int = 60
    prefetch: int = 2
    cpus: float = 64.0
    uneven: Callable[[int], float] = lambda batch: 1.0
    epochs: int = 1
    fetches: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    waits: list[tuple[int, int, int]] = field(default_factory=list)
    spans: list[tuple[int, int, int]] = field(default_factory=list)

    def run(self) -> Job:
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
                    batch = queue.pop(0)
                    making[worker] = Making(batch, self.uneven(batch) * self.batch_ns, now)
                    asleep[worker] = now + round(self.uneven(batch) * self.wait_ns)
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
        cpu, queue, length = 0, 0, self.spans[-1][1]
        for epoch in range(self.epochs):
            since, loader = epoch * length, 1 + epoch
            makers = {-1: rank}
            for worker in range(self.workers):
                role = ProcessRole.WORKER
                makers[worker] = build.process(rank=0, role=role, worker=worker, parent=rank.process_id)
            for worker, batch, begin, end, made_ns in self.fetches:
                queued = max(end - begin - round(self.uneven(batch) * self.wait_ns) - made_ns, 0)
                times = {"cpu": made_ns, "runqueue": queued, "worker": worker, "loader": loader}
                makers[worker].fetch(batch, since + begin, since + end, **times)
            for batch, begin, end in self.waits:
                worker, ran = (batch % self.workers, 0) if self.workers else (-1, self.batch_ns)
                waited = (since + begin, since + max(end, begin + 1000))
                rank.batch_wait(batch, *waited, worker=worker, cpu=ran, runqueue=0, loader=loader)
            for begin, end, ran in self.spans:
                begin += 1000
                waited_ns = max(end - begin - ran, 0)
                middle = (begin + end) // 2
                half = (cpu + ran // 2, queue + waited_ns // 2)
                rank.phase("forward", since + begin, since + middle, cpu=(cpu, half[0]), runqueue=(queue, half[1]))
                cpu, queue = cpu + ran, queue + waited_ns
                rank.phase("optimizer", since + middle, since + end, cpu=(half[0], cpu), runqueue=(half[1], queue))
        last = self.epochs * length
        worked = self.epochs * (sum(ran for *_, ran in self.spans) + sum(made_ns for *_, made_ns in self.fetches))
        user = elsewhere + worked / last
        for name, rate in (("user", user), ("system", 0), ("iowait", 0), ("steal", 0), ("idle", self.cpus - user)):
            build.counter(0, f"host_{name}_ns_total", {0: 0.0, last: rate * last}, unit="ns")
        return build.trace()
