"""Whether a rank got on between two moments: the decision that `status`, `analyze hang` and a live alarm share.

A rank that others wait for is stuck if it neither entered what they wait in nor got on with anything else. Long
checkpoints, evaluations and compilations do get on: their records go on, bytes move, or a CPU computes.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Ways of getting on, the one that says most first: collectives or steps, other records, bytes of files, the step
#: thread on a CPU, other threads or children on one, the device.
ENTERED, RECORDS, MOVES, RUNS, OTHERS_RUN, DEVICE_RUNS = "entered", "records", "moves", "runs", "others", "device"
#: A process that stands still writes a log or a heartbeat now and then.
LEAST_BYTES = 1 << 20
#: Nor is a message now and then a transfer: one brings a thread so many wake-ups a second.
LEAST_RECEIVED_PER_S = 10
#: A thread that ran, or waited for a CPU, for less than this share of the time stands still.
STANDS_STILL = 0.05


@dataclass(frozen=True, slots=True)
class Progress:
    """What a rank has done up to a moment; every number only grows, and -1 stands for one that is not known."""

    at_ns: int
    #: Collectives entered and steps ended.
    entered_count: int = -1
    #: Rows of work in the records: phases, batches, spans, calls on files.
    rows_count: int = -1
    #: Bytes that the process and its children read from and wrote to files, or that the kernel wrote back for them.
    moved_bytes: int = -1
    #: How often its step thread was woken while it received from a socket or a pipe: their bytes are counted nowhere.
    received_count: int = -1
    #: Time that the step thread ran, or waited for a CPU.
    thread_run_ns: int = -1
    #: CPU time of the other threads, and of the children: workers, compilers.
    others_run_ns: int = -1
    #: Time that its device computed.
    device_run_ns: int = -1


def way_of_progress(before: Progress, after: Progress) -> str:
    """Return how a rank got on between two moments; empty if it stood still, as far as the numbers say."""
    if _grew(before.entered_count, after.entered_count, 1):
        return ENTERED
    if _grew(before.rows_count, after.rows_count, 1):
        return RECORDS
    window_ns = after.at_ns - before.at_ns
    least_count = max(LEAST_RECEIVED_PER_S * window_ns / 1e9, 1)
    if _grew(before.moved_bytes, after.moved_bytes, LEAST_BYTES) or _grew(
        before.received_count, after.received_count, least_count
    ):
        return MOVES
    least_ns = STANDS_STILL * window_ns
    for way, first, second in (
        (RUNS, before.thread_run_ns, after.thread_run_ns),
        (OTHERS_RUN, before.others_run_ns, after.others_run_ns),
        (DEVICE_RUNS, before.device_run_ns, after.device_run_ns),
    ):
        if first >= 0 and second - first > least_ns > 0:
            return way
    return ""


def _grew(before: int, after: int, least: float) -> bool:
    return before >= 0 and after - before >= least
