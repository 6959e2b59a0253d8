"""Jobs for the tests of advice: every time in them is chosen, so what could be saved follows by arithmetic."""

from __future__ import annotations

from typing import Any

from builders import MS, US, TraceBuilder

from stashtrace.replay.advice import overlap_advice
from stashtrace.schema.kinds import CollectiveOp, DeviceWork
from stashtrace.schema.trace import Trace

#: 2^21 elements of 4 bytes: eight chunks of the smallest size that is advised on.
MEDIUM_BYTES = 1 << 23
STEPS = 8
STEP_NS = 20 * MS


def host_job(*, ranks: int = 2, message_bytes: int = MEDIUM_BYTES, small_bytes: int = 0) -> Trace:
    """Forward 4 ms, backward 6 ms, an all-reduce of 4 ms that the loop waits for, an update of 6 ms, each step.

    With ``small_bytes`` a message of that size takes 0.5 ms at the end of the update.
    """
    build = TraceBuilder()
    for step in range(STEPS):
        at = step * STEP_NS
        for rank in range(ranks):
            process = build.rank(rank)
            process.phase("forward", at, at + 4 * MS).phase("backward", at + 4 * MS, at + 10 * MS)
            process.phase("optimizer", at + 14 * MS, at + 20 * MS)
        spans = [(10 * MS, 14 * MS, message_bytes)] + [(19 * MS + 500 * US, 20 * MS, small_bytes)] * (small_bytes > 0)
        for begin, end, size in spans:
            build.meet(dict.fromkeys(range(ranks), at + begin), at + end, message_bytes=size)
    return build.trace()


def gpu_job(
    *,
    ranks: int = 2,
    recorded: int | None = None,
    message_bytes: int = MEDIUM_BYTES,
    hidden: bool = False,
    update_us: int = 1000,
    op: CollectiveOp = CollectiveOp.ALL_REDUCE,
    kernels: bool = True,
    element: str = "f32",
) -> TraceBuilder:
    """Backward 6 ms, an all-reduce of 4 ms, an update of 4 kernels with 0.25 ms between them, on devices.

    The host is ahead: it launches a step in its first 3 ms. ``hidden``: a kernel of backward runs during the
    all-reduce, all along. ``recorded``: how many of the ranks are.
    """
    build = TraceBuilder()
    build.group(range(ranks), backend="nccl")
    for step in range(STEPS):
        at = step * STEP_NS
        times = {}
        for rank in range(ranks if recorded is None else recorded):
            process = build.rank(rank)
            process.phase("forward", at, at + MS).phase("backward", at + MS, at + 2 * MS)
            process.phase("optimizer", at + 2 * MS, at + 3 * MS)
            times[rank] = (at + 1500 * US, at + 1600 * US, at + 10 * MS, at + 14 * MS)
            compute, side = process.gpu().stream("compute", compute=True), process.gpu().stream("nccl")
            if not kernels:
                continue
            compute.kernel(at + 2 * MS, at + 4 * MS, "forward", launch=(at + 100 * US, at + 110 * US))
            backward = (at + 1200 * US, at + 1210 * US)
            compute.kernel(at + 4 * MS, at + 10 * MS, "backward", launch=backward)
            if hidden:
                compute.kernel(at + 10 * MS, at + 14 * MS, "more backward", launch=backward)
            side.kernel(
                at + 10 * MS,
                at + 14 * MS,
                f"ncclDevKernel_AllReduce_Sum_{element}_RING_LL",
                work=DeviceWork.COMMUNICATION,
                launch=(at + 1510 * US, at + 1520 * US),
            )
            for number in range(4):
                begin = at + 14 * MS + number * 1250 * US
                launched = at + 2 * MS + number * 10 * US
                compute.kernel(begin, begin + update_us * US, "adam", launch=(launched, launched + 5 * US))
        build.device_collective(
            times, streams={r: build.rank(r).gpu().stream("nccl") for r in times}, message_bytes=message_bytes, op=op
        )
    return build


def rows(trace: Trace, **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in overlap_advice(trace).rows() if all(row[name] == value for name, value in wanted.items())]


def row(trace: Trace, transformation: str, **wanted: Any) -> dict[str, Any]:
    (found,) = rows(trace, transformation=transformation, **wanted)
    return found


def in_ms(found: dict[str, Any], *names: str) -> tuple[float, ...]:
    """Columns of a row in milliseconds."""
    return tuple(found[f"{name}_ns"] / MS for name in names)
