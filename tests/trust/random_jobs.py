"""Jobs at random: what ranks do in a step grows, jumps, comes back or stops, and rows of any kind lie between."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random
from collections.abc import Callable

from builders import MS, ProcessBuilder
from wait_chains import REST, Job, noisy, pipeline_of

from stashtrace.schema.kinds import (
    Awaited,
    CollectiveOp,
    CopyDirection,
    DeviceCall,
    IoOp,
    PhaseFlag,
    SpanKind,
    ThreadRole,
    WaitOp,
)
from stashtrace.schema.trace import Trace

#: Step -> milliseconds.
Shape = Callable[[int], float]
_WORK = ("compute", "backward", "optimizer", "sleep", "read", "load")
_STEPS = (3, 6, 8, 12, 20, 40, 60, 115)


def random_job(seed: int) -> Trace:
    """Return the job of a seed: it is always the same one."""
    draw = random.Random(seed)
    return _pipeline(draw) if draw.random() < 0.15 else _data_parallel(draw)


def _shape(draw: random.Random, steps: int) -> Shape:
    """A time that each step has, or that changes with the steps in one of the ways that ``over_time`` tells apart."""
    most = draw.choice([0.5, 2, 8, 30, 120, 600])
    least, at, every = draw.choice([0, 0, most / 5, most / 2]), draw.randrange(steps), draw.choice([2, 3, 5, 10, 20])
    until, long = at + draw.randrange(1, max(2, steps // 2)), draw.randrange(1, every)
    by_chance = [abs(draw.gauss(0, draw.choice([0, 0.05, 0.3, 1]) * most)) for _ in range(steps)]
    shape: Shape = draw.choice(
        [
            lambda step: most,
            lambda step: most if step >= at else least,
            lambda step: most if step < at else least,
            lambda step: most if at <= step < until else least,
            lambda step: least if at <= step < until else most,
            lambda step: most if step % every == 0 else least,
            lambda step: most if step % every < long else least,
            lambda step: most * step / steps,
            lambda step: most * (steps - step) / steps,
            lambda step: most * max(step - at, 0) / steps,
            lambda step: most * (5 * step // steps),
            lambda step: 20 * most if step == at else 0,
        ]
    )
    return lambda step: shape(step) + by_chance[step]


def _data_parallel(draw: random.Random) -> Trace:
    ranks, steps = draw.choice([1, 1, 2, 2, 2, 3, 4, 8]), draw.choice(_STEPS)
    job, noise = Job(ranks), noisy(draw.randrange(1000), draw.choice([0, 0.2, 2]))
    acts = [
        (draw.choice(_WORK), draw.sample(range(ranks), draw.randrange(ranks) + 1), _shape(draw, steps))
        for _ in range(draw.randrange(5))
    ]
    last = [steps - (draw.randrange(1, steps) if draw.random() < 0.05 else 0) for _ in range(ranks)]
    by_turns, meets_twice = draw.random() < 0.15, draw.random() < 0.3

    def spent(kind: str, step: int, rank: int) -> float:
        if by_turns and step % ranks != rank:
            return 0.0
        return sum(shape(step) for act, who, shape in acts if act == kind and rank in who)

    for step in range(steps):
        there = [rank for rank in range(ranks) if step < last[rank]]
        for rank in there:
            job.sleep(rank, spent("sleep", step, rank))
            job.read(rank, spent("read", step, rank))
            if any(act == "load" for act, _, _ in acts):
                job.load(rank, step, spent("load", step, rank))
            job.compute(rank, 5 + noise(step, rank) + spent("compute", step, rank))
            job.compute(rank, 10 + spent("backward", step, rank), "backward")
        if len(there) > 1:
            if meets_twice:
                job.meet(there, group=0x77, op=CollectiveOp.ALL_GATHER)
            job.meet(there, group=REST)
        for rank in there:
            job.compute(rank, 1 + spent("optimizer", step, rank), "optimizer")
    if draw.random() < 0.7:
        _add_rows(draw, job)
    return job.trace()


def _pipeline(draw: random.Random) -> Trace:
    stages, microbatches, steps, replicas = (draw.choice(c) for c in ((2, 3, 4), (2, 4, 8), (6, 12, 25), (1, 1, 2)))
    work, sleeps = (
        {rank: _shape(draw, steps) for rank in range(stages * replicas) if draw.random() < part} for part in (0.4, 0.2)
    )
    return pipeline_of(
        stages,
        microbatches,
        lambda step, rank: min(work[rank](step), 40) if rank in work else 0,
        steps,
        lambda step, rank: sleeps[rank](step) if rank in sleeps else 0,
        replicas,
    )


def _add_rows(draw: random.Random, job: Job) -> None:
    """Add rows of some kinds at any moment; what they say need not be possible."""
    kinds = draw.sample(_ROWS, draw.randrange(1, 7))
    for process in list(job.build.ranks.values()):
        for add in kinds if draw.random() < 0.8 else ():
            add(draw, process, max(job.now.values()) + 1)


def _between(draw: random.Random, last_ns: int, longest_ms: int = 40) -> tuple[int, int]:
    begin = draw.randrange(last_ns)
    return begin, min(last_ns, begin + draw.randrange(1, longest_ms * MS))


def _spans(draw: random.Random, process: ProcessBuilder, last_ns: int) -> None:
    for _ in range(draw.randrange(1, 40)):
        begin, end = _between(draw, last_ns)
        process.span(draw.choice(list(SpanKind)), begin, end, draw.choice(["", "x"]), draw.randrange(5))


def _marks(draw: random.Random, process: ProcessBuilder, last_ns: int) -> None:
    for _ in range(draw.randrange(1, 40)):
        process.step_mark(draw.randrange(last_ns))


def _phases(draw: random.Random, process: ProcessBuilder, last_ns: int) -> None:
    for _ in range(draw.randrange(1, 4)):
        begin, end = _between(draw, last_ns, 200)
        name = draw.choice(["checkpoint", "forward", "backward", "optimizer"])
        process.phase(name, begin, end, flags=draw.choice(list(PhaseFlag)))


def _waits(draw: random.Random, process: ProcessBuilder, last_ns: int) -> None:
    helper = process.thread("helper", draw.choice(list(ThreadRole)))
    for _ in range(draw.randrange(1, 40)):
        draw.choice([process, helper]).wait(draw.choice(list(WaitOp)), *_between(draw, last_ns))


def _calls(draw: random.Random, process: ProcessBuilder, last_ns: int) -> None:
    for _ in range(draw.randrange(1, 40)):
        begin, end = _between(draw, last_ns, 20)
        process.io(
            begin,
            end,
            op=draw.choice(list(IoOp)),
            path=draw.choice(["/data/a", "/data/b", "", "socket:192.0.2.1"]),
            blocked=draw.random() < 0.5,
            result_bytes=draw.choice([0, -1, 5, 1 << 20]),
            offset_bytes=draw.choice([-1, 0, 4096, 1 << 30]),
        )


def _batches(draw: random.Random, process: ProcessBuilder, last_ns: int) -> None:
    worker = process.worker(draw.randrange(3))
    for index in range(draw.randrange(1, 40)):
        begin, end = _between(draw, last_ns)
        worker.fetch(index, begin, end, cpu=draw.choice([-1, end - begin]), runqueue=draw.choice([-1, 0]))
        if draw.random() < 0.7:
            process.batch_wait(
                index, *_between(draw, last_ns), worker=draw.choice([None, 0, 1]), loader=draw.choice([1, 2])
            )


def _device(draw: random.Random, process: ProcessBuilder, last_ns: int) -> None:
    gpu, has_kernels = process.gpu(), draw.random() < 0.5
    stream, side = gpu.stream("main", compute=True), gpu.stream("side")
    own = (row for row in process.build.rows["phases"] if row["process_id"] == process.process_id)
    for end in sorted(row["end_ns"] for row in own)[2::3]:
        begin = max(end - 6 * MS, 0)
        stream.step(min(last_ns, end + draw.randrange(1, 3 * MS)), host_ns=end)
        if has_kernels:
            name, launched = draw.choice(["gemm", "ncclDevKernel_AllReduce", "relu"]), (begin, begin + 1000)
            stream.kernel(begin, begin + MS, name, launch=launched if draw.random() < 0.8 else None)
            side.kernel(begin, begin + 2 * MS, "side")
        if draw.random() < 0.5:
            stream.copy(begin, begin + MS, pinned=draw.random() < 0.5, direction=draw.choice(list(CopyDirection)))
        if draw.random() < 0.3:
            stream.wait(begin, begin + MS, awaited=draw.choice(list(Awaited)))
        if draw.random() < 0.3:
            stream.batch_wait(begin, begin + MS)
        if draw.random() < 0.3:
            stream.mark(end, host_ns=begin)
        if draw.random() < 0.5:
            gpu.call(draw.choice(list(DeviceCall)), begin, end, stream=draw.choice([None, stream]))


def _life(draw: random.Random, process: ProcessBuilder, last_ns: int) -> None:
    process.lives(draw.randrange(last_ns // 4 + 1), last_ns - draw.randrange(last_ns // 4 + 1))


_ROWS = (_spans, _marks, _phases, _waits, _calls, _batches, _device, _life)
