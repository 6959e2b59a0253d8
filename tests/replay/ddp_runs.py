"""Made-up runs of DistributedDataParallel whose every time follows from the sizes of its gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from builders import MS, US, TraceBuilder

from stashtrace.replay.communication.messages import BUCKET, GRADIENTS
from stashtrace.replay.communication.overlap import bucket_starts
from stashtrace.schema.kinds import ElementType, WaitOp

#: What a message takes: 400 us and 1 ns a byte.
ALPHA_NS, BETA_NS = 400 * US, 1.0
MIB = 2**20
#: Gradients in the order in which they are made, and how long backward takes for each.
SIZES = (MIB // 4, MIB // 2, MIB, MIB // 2, 2 * MIB, MIB // 4, 3 * MIB, MIB)
BACKWARD_NS = (2 * MS, MS, MS, 2 * MS, MS, 3 * MS, MS, 2 * MS)
FORWARD_NS, UPDATE_NS, STEPS = 6 * MS, 2 * MS, 12


def transfer_ns(size: float, latency_ns: int = ALPHA_NS) -> int:
    return round(latency_ns + BETA_NS * size)


def buckets_of(cap_bytes: float, sizes: Sequence[int] = SIZES) -> list[tuple[int, int]]:
    starts = bucket_starts(sizes, cap_bytes).tolist()
    return list(zip(starts, [*starts[1:], len(sizes)], strict=True))


def step_ns(cap_bytes: float, latency_ns: int = ALPHA_NS) -> int:
    """Length of a step with buckets of this size, by the recurrence on its numbers."""
    ready = np.cumsum(BACKWARD_NS)
    free = 0
    for first, end in buckets_of(cap_bytes):
        free = max(free, int(ready[end - 1])) + transfer_ns(sum(SIZES[first:end]), latency_ns)
    return FORWARD_NS + max(free, int(ready[-1])) + UPDATE_NS


def ddp_run(
    cap_bytes: float,
    *,
    wrapper: str = "DistributedDataParallel",
    ranks: int = 2,
    facts: bool = False,
    latency_ns: int = ALPHA_NS,
    used_map: ElementType | None = None,
) -> TraceBuilder:
    """A run with buckets of this size; each rank waits for the last message at the end of backward.

    ``used_map``: the type of the map of used parameters that ``find_unused_parameters`` sends behind the last bucket.
    """
    build = TraceBuilder()
    build.group(range(ranks), backend="one lane")
    reported = {f"{BUCKET} 0": f"{cap_bytes / MIB:g} script", f"{GRADIENTS} 0": " ".join(map(str, SIZES))}
    for rank in range(ranks if facts else 0):
        for key, value in reported.items():
            build.say(key, value, build.rank(rank).process_id)
    begin = 0
    ready = np.cumsum(BACKWARD_NS)
    for _ in range(STEPS):
        backward = begin + FORWARD_NS
        computed, free = backward + int(ready[-1]), backward
        for first, end in buckets_of(cap_bytes):
            call = backward + int(ready[end - 1])
            free = max(free, call) + transfer_ns(sum(SIZES[first:end]), latency_ns)
            build.collective(
                dict.fromkeys(range(ranks), (call, free)),
                message_bytes=sum(SIZES[first:end]),
                element=ElementType.FLOAT32,
            )
        if used_map is not None:
            free += transfer_ns(4 * len(SIZES), latency_ns)
            sent = dict.fromkeys(range(ranks), (call + 1, free))
            build.collective(sent, message_bytes=4 * len(SIZES), element=used_map)
        done = max(free, computed)
        for rank in range(ranks):
            process = build.rank(rank).phase("forward", begin, backward, name=wrapper)
            process.phase("backward", backward, done).phase("optimizer", done, done + UPDATE_NS)
            if free > computed:
                process.wait(WaitOp.COND_WAIT, computed, free)
        begin = done + UPDATE_NS
    return build
