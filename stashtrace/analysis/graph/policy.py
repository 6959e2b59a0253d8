"""Thresholds of the graph of dependencies."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """From which times on work is taken to have waited, each with its reason."""

    # Batches.

    #: A worker that was idle for longer than this before a batch had not been asked for it.
    idle_ns: int = 50_000
    #: A worker that held a batch back hands it over this soon after it has made the next one.
    held_ns: int = 1_000_000
    #: Reading an index that is there takes less than this. Workers that have to wait do so before this part of their
    #: batches.
    waited_ns: int = 1_000_000
    often_ratio: float = 0.25
    #: The next index goes out at most this long before the loop has its batch: pinning and unpickling lie between.
    asked_ns: int = 5_000_000
    #: A thread goes on this soon after the end of a save that it waited for: the interpreter's lock changes hands.
    lock_changes_ns: int = 5_000_000
    #: On a busy machine it goes on later: after this part of the time for which it stood, and no later than this.
    later_ratio: float = 0.1
    later_ns: int = 50_000_000

    # Collectives that are waited for.

    #: A wait for a collective ends this soon after the collective, by the collective's events.
    soon_ns: int = 50_000
    #: On a busy machine a thread may go on before the backend notes the end of an operation, by this much.
    noted_late_ns: int = 1_000_000

    # Transfers.

    #: A thread that asks for the end of an operation and goes on so soon did not wait for it.
    instant_ns: int = 200_000

    # Work of devices.

    #: Work that begins no later than this after the end of another stream's work may have waited for it.
    handed_over_ns: int = 20_000
    #: Work that begins later than its launch and its stream allow by more than this has waited for something else.
    on_time_ns: int = 1_000
    #: The usual latency of a launch is this quantile of all; up to this many times as long is still usual.
    quick_launch_quantile: float = 0.1
    usual_launch_times: float = 2.0
    #: A launch takes microseconds: what takes longer has waited for something.
    longest_launch_ns: float = 100_000.0
    #: Error of a device's times where its clock reports none, as in the matching of collectives.
    least_device_error_ns: int = 1

    # Pipelines.

    #: Timers of two streams of one device agree to this.
    same_moment_ns: int = 1_000_000
    #: A send and a receive of one rank that begin and end together are one kernel.
    one_kernel_ns: int = 20_000
    #: Ranks waited for one another if at least the first part of their entries came after all of them were free, and
    #: at most the second part of their idle time remains without a cause.
    nearly_all_ratio: float = 0.99
    most_idle_ratio: float = 0.5

    # Facts of nodes.

    #: Other programs are taken for threads that compete with the job if they use this part of the CPUs.
    notable_others_ratio: float = 0.1
    #: Least number of reads of a size that give bounds.
    enough_reads_count: int = 20
    #: Bounds: these parts of the reads of a size took less time per byte.
    quick_reads_ratio: float = 0.1
    slow_reads_ratio: float = 0.75
    #: Reads whose sizes are at most this many powers of two apart are similar.
    similar_octaves_count: int = 1
    #: At most this many calls of a run are examined.
    examined_calls_count: int = 8_000_000


POLICY = Policy()
