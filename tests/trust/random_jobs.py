"""Jobs at random: what ranks do in a step grows, jumps, comes back or stops, and rows of any kind lie between."""

from __future__ import annotations

import random
from collections.abc import Callable

from builders import MS, ProcessBuilder
from wait_chains import REST, Job, noisy, pipeline_of

from stashtrace.replay.communication.messages import BUCKET, GRADIENTS
from stashtrace.schema.kinds import (
    Awaited,
    CollectiveOp,
    CopyDirection,
    DeviceCall,
    ElementType,
    IoOp,
    PhaseFlag,
    SpanKind,
    ThreadRole,
    WaitOp,
)
from stashtrace.schema.trace import DEVICE_WORK_NOT_READ, HOST_NOT_RECORDED, OPERATORS_RECORDED, Trace

#: Step -> milliseconds.
Shape = Callable[[int], float]
_WORK = ("compute", "backward", "optimizer", "sleep", "read", "load")
_STEPS = (3, 6, 8, 12, 20, 40, 60, 115)


def random_job(seed: int) -> Trace:
    """Return the job of a seed: it is always the same one."""
    draw = random.Random(seed)
    return _pipeline(draw) if draw.random() < 0.15 else _data_parallel(draw)


def _shape(draw: random.Random, steps: int) -> Shape:
    """A time that each step has, or that changes with the steps in one of the ways that ``over_time`` distinguishes."""
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
    alternates, meets_twice = draw.random() < 0.15, draw.random() < 0.3
    buckets = _buckets(draw) if draw.random() < 0.4 else []

    def spent(kind: str, step: int, rank: int) -> float:
        if alternates and step % ranks != rank:
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
        if buckets and len(there) > 1:
            _send(job, there, buckets, MS * 10)
        if len(there) > 1:
            if meets_twice:
                job.meet(there, group=0x77, op=CollectiveOp.ALL_GATHER)
            job.meet(there, group=REST)
        for rank in there:
            job.compute(rank, 1 + spent("optimizer", step, rank), "optimizer")
    if draw.random() < 0.7:
        _add_rows(draw, job)
    if buckets:
        _say_buckets(draw, job, buckets)
    if draw.random() < 0.25:
        _as_of_a_profiler(draw, job)
    return job.trace()


def _buckets(draw: random.Random) -> list[tuple[int, ElementType]]:
    """Bytes and elements of what a backward pass sends: buckets of gradients, maps of parameters, counts of tokens."""
    count = draw.choice([1, 2, 3, 5, 12])
    sizes = [draw.choice([8, 48, 4096, 1 << 20, 13_000_000, 100_000_000, 3_000_000_000]) for _ in range(count)]
    return [(size, draw.choice([ElementType.FLOAT32] * 3 + list(ElementType))) for size in sizes]


def _send(job: Job, ranks: list[int], buckets: list[tuple[int, ElementType]], backward_ns: int) -> None:
    """Send buckets while the backward pass that has just ended still ran."""
    for at, (size, element) in enumerate(buckets):
        calls = {rank: job.now[rank] - backward_ns + at * backward_ns // len(buckets) for rank in ranks}
        end = max(calls.values()) + MS // 2
        job.build.collective({rank: (call, end) for rank, call in calls.items()}, message_bytes=size, element=element)


def _say_buckets(draw: random.Random, job: Job, buckets: list[tuple[int, ElementType]]) -> None:
    """Say what DistributedDataParallel says of itself; it need not be what is sent."""
    cap, gradients = draw.choice(["25 default", "1e-05 script", "100 applied", "x y"]), [size for size, _ in buckets]
    if draw.random() < 0.5:
        gradients = [part for size in gradients for part in (size // 2, size - size // 2)]
    facts = {f"{BUCKET} 0": cap, f"{GRADIENTS} 0": " ".join(map(str, gradients))}
    for process in job.build.ranks.values():
        for key, value in facts.items() if draw.random() < 0.9 else ():
            _say(process, key, value)


def _say(process: ProcessBuilder, key: str, value: str) -> None:
    strings = process.build.strings
    process.build.add(
        "metadata", process_id=process.process_id, key_code=strings.code(key), value_code=strings.code(value)
    )


def _as_of_a_profiler(draw: random.Random, job: Job) -> None:
    """Leave out what files of profilers lack, and say what their importers say of them."""
    rows = job.build.rows
    for table in ("waits", "batches", "io", "collective_waits", "phases"):
        if draw.random() < 0.5:
            rows[table].clear()
    facts = [name for name in (OPERATORS_RECORDED, HOST_NOT_RECORDED, DEVICE_WORK_NOT_READ) if draw.random() < 0.5]
    for process in job.build.ranks.values():
        for key in ("imported", *facts):
            _say(process, key, "kineto")


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
