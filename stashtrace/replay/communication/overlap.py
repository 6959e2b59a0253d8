"""Exposed communication of a backward pass: when gradients are ready, when the link sends them, what is exposed.

    backward  |--- layer 4 ---|--- 3 ---|--- 2 ---|--- 1 ---|            gradients are ready at the end of each layer
    link                      [== 4 ==] [=== 3 ===][=== 2 ===][== 1 ==]  start = max(ready, end of the one before)
                                                            |<--------->|  exposed = last end - end of backward

The recurrence is that of wait-free back-propagation (S. Shi, Q. Wang, X. Chu, arXiv 1805.03812), merging that of
MG-WFBP (S. Shi, X. Chu, B. Li, INFOCOM 2019). One message takes ``alpha + bytes * beta``. Times are lengths since the
begin of the backward pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from stashtrace.analysis.intervals import Floats, Int64
from stashtrace.errors import UsageError
from stashtrace.replay.policy import POLICY

#: Ends that differ by less than this part of them differ by rounding alone, which is not the same on all machines.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Schedule:
    """When the link sends the messages of one backward pass."""

    #: Of each message.
    start_ns: Floats
    end_ns: Floats
    #: Time that communication adds to the backward pass: callers wait for their messages, and after backward for the
    #: last end.
    exposed_ns: float


def schedule(
    ready_ns: Any, transfer_ns: Any, *, blocking: Any = None, lane: Any = None, backward_end_ns: float | None = None
) -> Schedule:
    """Send messages one after the other, each when it is ready and its link is free.

    ``ready_ns``: when each message could be sent, in the order of sending, in the caller's compute time: the waits for
    ``blocking`` messages are left out. ``transfer_ns``: time of each message on the link. ``blocking``: messages whose
    caller waits for their end before it goes on; none by default. ``lane``: link of each message, if there are several:
    each communicator has its own. ``backward_end_ns``: when the caller has computed everything; with the last message
    by default.

    Three layers of 10 ms whose gradients take 8, 12 and 5 ms: 10-18, 20-32, then not at 30 but at 32.

    >>> found = schedule([10, 20, 30], [8, 12, 5])
    >>> found.start_ns.tolist(), found.end_ns.tolist(), found.exposed_ns
    ([10.0, 20.0, 32.0], [18.0, 32.0, 37.0], 7.0)

    The same after backward, each waited for: nothing is hidden.

    >>> schedule([30, 30, 30], [8, 12, 5], blocking=[True] * 3).exposed_ns
    25.0

    Or over a link each.

    >>> schedule([30, 30, 30], [8, 12, 5], lane=[0, 1, 2]).exposed_ns
    12.0
    """
    ready, transfer = _check(ready_ns, transfer_ns)
    if not len(ready):
        return Schedule(ready, ready, 0.0)
    backward = float(ready[-1]) if backward_end_ns is None else max(float(backward_end_ns), float(ready.max()))
    waits = np.zeros(len(ready), dtype=bool) if blocking is None else np.asarray(blocking, dtype=bool)
    lanes = np.zeros(len(ready), dtype=np.int64) if lane is None else np.asarray(lane, dtype=np.int64)
    start, end = np.empty(len(ready)), np.empty(len(ready))
    if not waits.any():
        for link in np.unique(lanes):
            chosen = lanes == link
            before = np.cumsum(transfer[chosen]) - transfer[chosen]
            end[chosen] = np.maximum.accumulate(ready[chosen] - before) + before + transfer[chosen]
        return Schedule(end - transfer, end, max(0.0, float(end.max()) - backward))
    waited = 0.0
    free = dict.fromkeys(lanes.tolist(), 0.0)
    for number, link in enumerate(lanes.tolist()):
        called = ready[number] + waited
        start[number] = max(called, free[link])
        end[number] = free[link] = start[number] + transfer[number]
        if waits[number]:
            waited += end[number] - called
    return Schedule(start, end, float(waited + max(0.0, max(free.values()) - backward - waited)))


def link_times(ready_ns: Any, end_ns: Any, *, parallel: int = 1) -> Floats:
    """Return how long the link worked for each message, by when messages were ready and when they had arrived.

    A backend works on up to ``parallel`` messages at a time, in their order, and each gets an equal part of the time.
    So the times add up to the time in which the link worked, they include no waiting behind others, and
    :func:`schedule` with them ends when the last message really ended.

    ``ready_ns``, ``end_ns``: in the order of sending. ``parallel``: messages that the backend works on at a time.

    The second waited for the first; of two at a time, each has half of the time that they share.

    >>> link_times([0, 2], [10, 14]).tolist(), link_times([0, 2], [10, 14], parallel=2).tolist()
    ([10.0, 4.0], [6.0, 8.0])
    """
    ready, end = np.asarray(ready_ns, dtype=np.float64), np.asarray(end_ns, dtype=np.float64)
    if not len(ready):
        return ready
    # The backend is free for a message when all but parallel - 1 of those before it have ended.
    stream, free = end, end
    for level in range(parallel):
        free = np.maximum.accumulate(stream)
        if level + 1 < parallel:
            stream = np.minimum(stream, np.concatenate(([-np.inf], free[:-1])))
    begin = np.maximum(ready, np.concatenate(([-np.inf], free[:-1])))
    begin = np.minimum(begin, end)
    moments = np.unique(np.concatenate((begin, end)))
    change = np.bincount(np.searchsorted(moments, begin), minlength=len(moments))
    change = change - np.bincount(np.searchsorted(moments, end), minlength=len(moments))
    active = np.cumsum(change)[:-1]
    worked = np.concatenate(([0.0], np.cumsum(np.where(active > 0, np.diff(moments) / np.maximum(active, 1), 0.0))))
    times: Floats = worked[np.searchsorted(moments, end)] - worked[np.searchsorted(moments, begin)]
    return times


def bucket_starts(sizes_bytes: Any, bucket_bytes: float) -> Int64:
    """Return the first message of each bucket of DistributedDataParallel: a bucket closes once it has its size.

    >>> bucket_starts([4, 4, 4, 20, 1], 8).tolist()
    [0, 2, 4]
    """
    starts, filled = [0], 0.0
    for number, size in enumerate(np.asarray(sizes_bytes, dtype=np.float64).tolist()):
        if filled >= bucket_bytes:
            starts.append(number)
            filled = 0.0
        filled += size
    return np.array(starts, dtype=np.int64)


def merged(ready_ns: Any, sizes_bytes: Any, starts: Int64) -> tuple[Floats, Floats]:
    """Return ready times and sizes of buckets; a bucket is ready with the last of its gradients.

    >>> ready, sizes = merged([1, 2, 3, 4], [10, 20, 30, 40], np.array([0, 3]))
    >>> ready.tolist(), sizes.tolist()
    ([3.0, 4.0], [60.0, 40.0])
    """
    ready, sizes = np.asarray(ready_ns, dtype=np.float64), np.asarray(sizes_bytes, dtype=np.float64)
    if not len(ready):
        return ready, sizes
    return np.maximum.reduceat(ready, starts), np.add.reduceat(sizes, starts)


def are_made_of(sizes_bytes: Any, gradients_bytes: Any) -> bool:
    """Return True if these messages are buckets of these gradients, in their order."""
    sent, made = (np.cumsum(np.asarray(sizes, dtype=np.float64)) for sizes in (sizes_bytes, gradients_bytes))
    return bool(len(made) and len(sent) and made[-1] == sent[-1] and np.isin(sent, made).all())


def divides(sizes_bytes: Any, bucket_bytes: float, recorded_bytes: float | None = None) -> bool:
    """Return True if buckets of this size would have to divide messages of a run.

    They do only if the run's buckets were larger. Where their size is not known and more messages than the first
    and the last are smaller than this, the run closed its buckets earlier, and its larger messages are single tensors,
    which are never divided.

    >>> divides([1, 25, 26, 9], 4), divides([1, 2, 3, 25], 4), divides([1, 2, 3], 4)
    (True, False, False)
    """
    if recorded_bytes is not None:
        return bucket_bytes < recorded_bytes * POLICY.same_cap_ratio
    sizes = np.asarray(sizes_bytes, dtype=np.float64)
    return bool((sizes > bucket_bytes).any()) and int((sizes < bucket_bytes).sum()) <= POLICY.smaller_messages_count


def bucket_ends(
    sizes_bytes: Any, bucket_bytes: float, *, gradients_bytes: Any = (), recorded_bytes: float | None = None
) -> tuple[Floats, bool]:
    """Return where buckets of another size would end in the stream of gradients, in bytes since its begin.

    If the gradients are known and the messages are made of them, a bucket closes with the gradient that fills it. Else
    buckets larger than those of the run are made of whole messages, and smaller ones divide messages anywhere.

    ``sizes_bytes``: messages of a backward pass. ``gradients_bytes``: in the order in which they are made.
    ``recorded_bytes``: size of the run's buckets; by default a guess from the messages (:func:`divides`). The second
    value is True if messages were divided, and it is unknown where.

    >>> ends, anywhere = bucket_ends([100, 100], 50)
    >>> ends.tolist(), anywhere
    ([50.0, 100.0, 150.0, 200.0], True)
    >>> bucket_ends([100, 100], 50, gradients_bytes=[60, 40, 10, 90])[0].tolist()
    [60.0, 110.0, 200.0]
    """
    sizes, gradients = np.asarray(sizes_bytes, dtype=np.float64), np.asarray(gradients_bytes, dtype=np.float64)
    if not bucket_bytes > 0:
        raise UsageError(f"a bucket cannot have {bucket_bytes} bytes", hint="for example 25M")
    sent, made = np.cumsum(sizes), np.cumsum(gradients)
    if are_made_of(sizes, gradients):
        return np.append(made[bucket_starts(gradients, bucket_bytes)[1:] - 1], made[-1]), False
    if not divides(sizes, bucket_bytes, recorded_bytes):
        return np.append(sent[bucket_starts(sizes, bucket_bytes)[1:] - 1], sent[-1:]), False
    total = float(sizes.sum())
    if total > POLICY.most_buckets_count * bucket_bytes:
        raise UsageError(
            f"buckets of {bucket_bytes:g} bytes would divide a backward pass into more than"
            f" {POLICY.most_buckets_count:,} messages",
            hint="ask for larger buckets",
        )
    return np.append(np.arange(bucket_bytes, total * (1 - 1e-12), bucket_bytes), total), True


def ready_at(ready_ns: Any, sizes_bytes: Any, ends_bytes: Any) -> Floats:
    """Return when gradients up to a byte of the stream were made, at an even rate between ready times of messages.

    It is unknown in which order the gradients inside a message were made, and when.

    >>> ready_at([10, 20], [100, 100], [50, 100, 150]).tolist()
    [5.0, 10.0, 15.0]
    """
    ready, sizes = np.asarray(ready_ns, dtype=np.float64), np.asarray(sizes_bytes, dtype=np.float64)
    sent = np.append(0.0, np.cumsum(sizes))
    ready_of_ends: Floats = np.interp(ends_bytes, sent, np.append(0.0, np.maximum.accumulate(ready)))
    return ready_of_ends


def rebucketed(
    ready_ns: Any,
    sizes_bytes: Any,
    bucket_bytes: float,
    *,
    gradients_bytes: Any = (),
    recorded_bytes: float | None = None,
) -> tuple[Floats, Floats, bool]:
    """Regroup gradients into buckets of another size (:func:`bucket_ends`, :func:`ready_at`).

    Returns when each bucket is ready, its size, and whether messages were divided, and it is unknown where.

    >>> ready, sizes, anywhere = rebucketed([10, 20], [100, 100], 50)
    >>> ready.tolist(), sizes.tolist(), anywhere
    ([5.0, 10.0, 15.0, 20.0], [50.0, 50.0, 50.0, 50.0], True)
    """
    ends, anywhere = bucket_ends(
        sizes_bytes, bucket_bytes, gradients_bytes=gradients_bytes, recorded_bytes=recorded_bytes
    )
    return ready_at(ready_ns, sizes_bytes, ends), np.diff(np.append(0.0, ends)), anywhere


def best_merge(ready_ns: Any, sizes_bytes: Any, alpha_ns: float, beta_ns_per_byte: float) -> Int64:
    """Return the first message of each bucket, for the buckets whose last one ends earliest.

    MG-WFBP searches them by a greedy rule; this is exact. Of several merges that end together it returns the one with
    the fewest buckets, and of these the one whose buckets end earliest. Ends that differ by rounding alone count as
    equal, so that the result is the same on every machine.

    The first has arrived before the others are ready; these two together save one alpha of 4.

    >>> best_merge([1, 20, 21], [8, 1, 1], 4.0, 1.0).tolist()
    [0, 1]

    The last one decides the end: one bucket before it does as well as two.

    >>> best_merge([1, 2, 50], [1, 1, 1], 4.0, 1.0).tolist()
    [0, 2]
    """
    ready, sizes = _check(ready_ns, sizes_bytes)
    count = len(ready)
    if not count:
        return np.zeros(0, dtype=np.int64)
    summed = np.append(0.0, np.cumsum(sizes))
    latest = np.maximum.accumulate(ready)

    def ends(free: Floats, end: int) -> Floats:
        """Return when a bucket up to the message before ``end`` ends, by the message that it begins with."""
        return np.asarray(
            np.maximum(free[:end], latest[end - 1]) + (alpha_ns + beta_ns_per_byte * (summed[end] - summed[:end]))
        )

    earliest = np.zeros(count + 1)
    for end in range(1, count + 1):
        earliest[end] = ends(earliest, end).min()
    # The same with a given number of buckets: one more until the last ends as early as with any number.
    free = np.append(0.0, np.full(count, np.inf))
    chosen: list[Int64] = []
    while free[count] > earliest[count] * (1 + ROUNDING):  # at the latest with a bucket for each message
        with_one_more, first = np.full(count + 1, np.inf), np.zeros(count + 1, dtype=np.int64)
        for end in range(len(chosen) + 1, count + 1):
            options = ends(free, end)
            with_one_more[end] = options.min()
            first[end] = np.argmax(options <= with_one_more[end] * (1 + ROUNDING))
        chosen.append(first)
        free = with_one_more
    starts, at = [], count
    for first in reversed(chosen):
        at = int(first[at])
        starts.append(at)
    return np.array(starts[::-1], dtype=np.int64)


def merge_caps(sizes_bytes: Any) -> Floats:
    """Return the sizes of buckets that merge these messages in different ways, ascending; one merges them all.

    A bucket closes once it holds the cap, so only the sums of neighbouring messages matter.

    >>> merge_caps([4, 4, 8]).tolist()
    [4.0, 8.0, 12.0, 16.0]
    """
    ends = np.append(0.0, np.cumsum(np.asarray(sizes_bytes, dtype=np.float64)))
    first, last = np.triu_indices(len(ends), k=1)
    sums = np.unique(ends[last] - ends[first])
    sums = sums[sums > 0]
    if len(sums) > POLICY.tried_caps_count:
        wanted = np.geomspace(sums[0], sums[-1], POLICY.tried_caps_count)
        sums = sums[np.unique(np.minimum(np.searchsorted(sums, wanted), len(sums) - 1))]
    caps: Floats = sums
    return caps


def rounded_cap(cap_bytes: float, sizes_bytes: Any) -> float:
    """Return the roundest number of MiB that merges messages as ``cap_bytes`` does.

    >>> mib = 2**20
    >>> rounded_cap(8.5 * mib, [4.1 * mib, 4.4 * mib, 9.7 * mib])
    5.0
    """
    ends = np.append(0.0, np.cumsum(np.asarray(sizes_bytes, dtype=np.float64)))
    # The largest sum of neighbours below the cap.
    last = np.searchsorted(ends, ends + cap_bytes * (1 - 1e-9), side="left") - 1
    low, high = float((ends[last] - ends).max(initial=0.0)) / 2**20, cap_bytes / 2**20
    for digits in range(-3, 12):
        unit = 10.0**-digits
        number = round(math.floor(low / unit + 1) * unit, max(digits, 0))
        if low < number <= high:
            return number
    return high


def ready_by_sizes(sizes_bytes: Any, backward_ns: float) -> Floats:
    """Return ready times from sizes alone: gradients come at an even rate of bytes over the backward pass.

    >>> ready_by_sizes([10, 30], 80.0).tolist()
    [20.0, 80.0]
    """
    sizes = np.asarray(sizes_bytes, dtype=np.float64)
    total = float(sizes.sum())
    ready: Floats = np.cumsum(sizes) / total * backward_ns if total > 0 else np.full(len(sizes), float(backward_ns))
    return ready


def _check(ready_ns: Any, lengths: Any) -> tuple[Floats, Floats]:
    ready, length = np.asarray(ready_ns, dtype=np.float64), np.asarray(lengths, dtype=np.float64)
    if ready.ndim != 1 or ready.shape != length.shape:
        raise UsageError(f"ready times and messages have different lengths: {ready.shape}, {length.shape}")
    if not (np.isfinite(ready).all() and np.isfinite(length).all() and (length >= 0).all()):
        raise UsageError("ready times and messages must be finite, sizes and lengths not negative")
    return ready, length
