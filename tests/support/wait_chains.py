"""Jobs by hand in which waits are passed on: who is late is known, and what it did longer in which step."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from builders import MS, TraceBuilder

from stashtrace.schema.kinds import CollectiveOp, WaitOp
from stashtrace.schema.trace import Trace

#: Extra time of a rank in a step: (step, rank) -> ms.
Extra = Callable[[int, int], float]
PAIR, REST = 0xBEEF, 0xCAFE


def none(step: int, rank: int) -> float:
    return 0.0


def on(rank: int, ms: float) -> Extra:
    """So much on one rank in each step."""
    return lambda step, own: ms if own == rank else 0.0


def noisy(seed: int, ms: float) -> Extra:
    """Work of each rank and step that differs by chance; the standard deviation is ``ms``."""
    rows = random.Random(seed)
    drawn: dict[tuple[int, int], float] = {}
    return lambda step, rank: drawn.setdefault((step, rank), abs(rows.gauss(0, ms)))


@dataclass
class Job:
    """Ranks with a clock each; every method lets one rank, or a group, go on."""

    ranks: int
    build: TraceBuilder = field(default_factory=TraceBuilder)
    now: dict[int, int] = field(default_factory=dict)
    loaded: int = 0
    sent: dict[int, int] = field(default_factory=dict)  # messages by group

    def __post_init__(self) -> None:
        self.now = dict.fromkeys(range(self.ranks), 0)

    def compute(self, rank: int, ms: float, phase: str = "forward") -> None:
        end = self.now[rank] + round(ms * MS)
        self.build.rank(rank).phase(phase, self.now[rank], end)
        self.now[rank] = end

    def sleep(self, rank: int, ms: float) -> None:
        if ms <= 0:
            return
        end = self.now[rank] + round(ms * MS)
        self.build.rank(rank).wait(WaitOp.SLEEP, self.now[rank], end)
        self.now[rank] = end

    def read(self, rank: int, ms: float, path: str = "/data/shard-0000.bin") -> None:
        """Read a file without a loader: blocked for three fifths of the time, then from memory."""
        if ms <= 0:
            return
        begin, cached, end = (self.now[rank] + round(part * ms * MS) for part in (0.0, 0.6, 1.0))
        self.build.rank(rank).io(begin, cached, path=path, blocked=True).io(cached, end, path=path)
        self.now[rank] = end

    def load(self, rank: int, step: int, ms: float, path: str = "/data/shard-0017.tar") -> None:
        """Wait for a batch that a worker makes by reading a file for so long."""
        process, begin, end = self.build.rank(rank), self.now[rank], self.now[rank] + round(ms * MS)
        worker = process.worker(0).fetch(step, begin, end + MS, cpu=MS, runqueue=0)
        if ms > 0:
            worker.io(begin, end, path=path, blocked=True, result_bytes=1 << 20)
        process.batch_wait(step, begin, end + MS, worker=0)
        self.now[rank] = end + MS

    def meet(self, ranks: Sequence[int], *, group: int, op: CollectiveOp = CollectiveOp.ALL_REDUCE) -> None:
        """A collective of a millisecond: all wait for the last."""
        end = max(self.now[rank] for rank in ranks) + MS
        keys = self.build.collective({rank: (self.now[rank], end) for rank in ranks}, group=group, op=op)
        for rank in ranks:
            if op != CollectiveOp.BARRIER or end > self.now[rank]:
                self.build.rank(rank).collective_wait(keys[rank], self.now[rank], end)
            self.now[rank] = end

    def send(self, source: int, target: int, *, group: int, ms: float = 0.1) -> None:
        """A message that moves for so long: the receiver waits for the sender, which does not wait."""
        sent = self.now[source]
        end = max(sent, self.now[target]) + round(ms * MS)
        # The position of a rank in a group of two is its place by number.
        low = min(source, target)
        number = self.sent[group] = self.sent.get(group, -1) + 1
        self.build.collective(
            {source: (sent, sent + MS // 10)},
            group=group,
            sequence=number,
            op=CollectiveOp.SEND,
            peer_rank=int(target != low),
        )
        keys = self.build.collective(
            {target: (self.now[target], end)},
            group=group,
            sequence=number,
            op=CollectiveOp.RECEIVE,
            peer_rank=int(source != low),
        )
        self.build.rank(target).collective_wait(keys[target], self.now[target], end)
        self.now[source], self.now[target] = sent + MS // 10, end

    def update(self, rank: int) -> None:
        self.compute(rank, 1, "optimizer")

    def trace(self) -> Trace:
        return self.build.trace("./run")


def through_a_message(reads: Extra, steps: int = 20) -> Trace:
    """Rank 0 loads, sends to rank 1, which works on and meets ranks 2 and 3; all four work for 20 ms."""
    job = Job(4)
    job.build.group([0, 1], group=PAIR, name="pair")
    job.build.group([1, 2, 3], group=REST, name="rest")
    for step in range(steps):
        for rank in range(4):
            job.load(rank, step, reads(step, rank))
        job.compute(0, 20)
        job.compute(1, 10)
        job.send(0, 1, group=PAIR)
        job.compute(1, 10, "backward")
        for rank in (2, 3):
            job.compute(rank, 20)
        job.meet([1, 2, 3], group=REST)
        for rank in range(4):
            job.update(rank)
    return job.trace()


def through_a_server(sleeps: Extra, steps: int = 20) -> Trace:
    """Rank 0 has no loop: it sends weights to ranks 1 and 2, which train for 30 ms, and receives their gradients."""
    job = Job(3)
    pairs = {(0, 1): 0xF00D, (0, 2): 0xFEED, (1, 0): 0xD00F, (2, 0): 0xDEEF}
    for pair, group in pairs.items():
        job.build.group(sorted(pair), group=group, name="weights" if pair[0] == 0 else "gradients")
    for step in range(steps):
        for rank in (1, 2):
            job.send(0, rank, group=pairs[0, rank])
        for rank in (1, 2):
            job.compute(rank, 20)
            job.compute(rank, 10, "backward")
            job.sleep(rank, sleeps(step, rank))
            job.send(rank, 0, group=pairs[rank, 0])
            job.update(rank)
    return job.trace()


def over_a_slow_link(ms: float, steps: int = 20) -> Trace:
    """Rank 0 sends to rank 1, which takes so long, then all meet; they work for the same time."""
    job = Job(4)
    job.build.group([0, 1], group=PAIR, name="pair")
    for _ in range(steps):
        for rank in range(4):
            job.compute(rank, 10)
        job.send(0, 1, group=PAIR, ms=ms)
        for rank in range(4):
            job.compute(rank, 10, "backward")
        job.meet(range(4), group=REST)
        for rank in range(4):
            job.update(rank)
    return job.trace()


def in_flight_together(sleeps: Extra, steps: int = 20) -> Trace:
    """Each step calls three all-reduces during its backward, and waits for them behind it, as DDP does."""
    job = Job(2)
    for step in range(steps):
        calls: list[dict[int, int]] = []
        for rank in range(2):
            job.sleep(rank, sleeps(step, rank))
            job.compute(rank, 10)
        for _ in range(3):
            for rank in range(2):
                job.compute(rank, 10, "backward")
            calls.append(dict(job.now))
        end = 0
        for called in calls:
            end = max(end, *called.values()) + MS
            keys = job.build.collective({rank: (called[rank], end) for rank in range(2)}, group=REST)
            for rank in range(2):
                if end > job.now[rank]:
                    job.build.rank(rank).collective_wait(keys[rank], job.now[rank], end)
                    job.now[rank] = end
        for rank in range(2):
            job.update(rank)
    return job.trace()


def data_parallel(extra: Extra, ranks: int = 2, steps: int = 40, kind: str = "compute") -> Trace:
    """Each step 20 ms of work and an all-reduce; ``extra`` comes on top, as computation or as a sleep."""
    job = Job(ranks)
    for step in range(steps):
        for rank in range(ranks):
            work = 20 + (extra(step, rank) if kind == "compute" else 0)
            job.compute(rank, work / 2)
            job.compute(rank, work / 2, "backward")
            if kind == "sleep":
                job.sleep(rank, extra(step, rank))
        job.meet(range(ranks), group=REST)
        for rank in range(ranks):
            job.update(rank)
    return job.trace()


def two_barriers(sleeps: Extra, ranks: int = 2, steps: int = 20) -> Trace:
    """An all-reduce, and behind it a barrier before which a rank sleeps."""
    job = Job(ranks)
    for step in range(steps):
        for rank in range(ranks):
            job.compute(rank, 20)
        job.meet(range(ranks), group=REST)
        for rank in range(ranks):
            job.sleep(rank, sleeps(step, rank))
        job.meet(range(ranks), group=REST, op=CollectiveOp.BARRIER)
        for rank in range(ranks):
            job.update(rank)
    return job.trace()


def reducer_and_broadcast(sleeps: Extra, steps: int = 20) -> Trace:
    """An all-reduce that DDP's reducer awaits, in no ``Work.wait``, then a short broadcast that the loop awaits."""
    job = Job(2)
    for step in range(steps):
        for rank in range(2):
            job.sleep(rank, sleeps(step, rank))
            job.compute(rank, 20)
        end = max(job.now.values()) + MS
        job.build.collective({rank: (job.now[rank], end) for rank in range(2)}, group=REST)
        for rank in range(2):
            job.build.rank(rank).phase("backward", job.now[rank] - MS, end).wait(WaitOp.COND_WAIT, job.now[rank], end)
            job.now[rank] = end
        job.meet([0, 1], group=REST, op=CollectiveOp.BROADCAST)
        for rank in range(2):
            job.update(rank)
    return job.trace()


def pipeline_of(
    stages: int,
    microbatches: int,
    work: Extra = none,
    steps: int = 12,
    sleeps: Extra = none,
    replicas: int = 1,
    reads: Extra = none,
) -> Trace:
    """Pipelines side by side: all forwards, then all backwards; ``work`` is more for each micro-batch.

    The ranks of stage s are ``replicas * s`` and those behind it; with several, they meet at the end of a step.
    """
    job = Job(stages * replicas)
    for low in range((stages - 1) * replicas):
        job.build.group([low, low + replicas], group=0x100 + low, name=f"ranks {low} {low + replicas}")
    for step in range(steps):
        for rank in range(stages * replicas):
            job.sleep(rank, sleeps(step, rank))
            job.read(rank, reads(step, rank))
        for replica in range(replicas):
            ranks = range(replica, stages * replicas, replicas)
            _pass_through(job, ranks, microbatches, lambda rank, step=step: work(step, rank))
        for stage in range(stages if replicas > 1 else 0):
            job.meet(range(stage * replicas, (stage + 1) * replicas), group=0x800 + stage)
        for rank in range(stages * replicas):
            job.update(rank)
    return job.trace()


def _pass_through(job: Job, ranks: Sequence[int], microbatches: int, work: Callable[[int], float]) -> None:
    """Take a step's micro-batches through the ranks of one pipeline, and back."""
    done = [[0] * microbatches for _ in ranks]
    for batch in range(microbatches):
        for stage, rank in enumerate(ranks):
            if stage > 0:
                _hand_on(job, done[stage - 1][batch], ranks[stage - 1], rank)
            job.compute(rank, 4 + work(rank))
            done[stage][batch] = job.now[rank]
    for batch in range(microbatches):
        for stage, rank in reversed(list(enumerate(ranks))):
            if stage < len(ranks) - 1:
                _hand_on(job, done[stage + 1][batch], ranks[stage + 1], rank)
            job.compute(rank, 8 + 2 * work(rank), "backward")
            done[stage][batch] = job.now[rank]


def _hand_on(job: Job, sent: int, source: int, target: int) -> None:
    """A message that left when it was made, whatever its sender has done since."""
    group, low = 0x100 + min(source, target), min(source, target)
    end = max(sent, job.now[target]) + MS // 100
    job.build.collective(
        {source: (sent, sent + MS // 100)}, group=group, op=CollectiveOp.SEND, peer_rank=int(target != low)
    )
    keys = job.build.collective(
        {target: (job.now[target], end)}, group=group, op=CollectiveOp.RECEIVE, peer_rank=int(source != low)
    )
    job.build.rank(target).collective_wait(keys[target], job.now[target], end)
    job.now[target] = end
