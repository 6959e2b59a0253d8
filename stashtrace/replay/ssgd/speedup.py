"""Iteration times and speed-ups by the number of workers, with the cost of a ring.

A ring of N workers sends a message in 2 (N - 1) hops, and 2 (N - 1) / N of its bytes over each link.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stashtrace.errors import UsageError
from stashtrace.replay.ssgd.merging import best, layer_by_layer
from stashtrace.replay.ssgd.tasks import replay
from stashtrace.replay.ssgd.variants import Variant
from stashtrace.replay.ssgd.workload import Workload


@dataclass(frozen=True, slots=True)
class Ring:
    """Cost of a hop between neighbours of the ring.

    Attributes
    ----------
    latency_ns : float
    ns_per_byte : float
        Reciprocal bandwidth of one link.

    Examples
    --------
    >>> ring = Ring.of_messages(600.0, 1.5, workers=4)
    >>> ring.latency_ns, ring.ns_per_byte, ring.message_line(8)
    (100.0, 1.0, (1400.0, 1.75))
    """

    latency_ns: float
    ns_per_byte: float

    @classmethod
    def of_messages(cls, alpha_ns: float, beta_ns_per_byte: float, *, workers: int) -> Ring:
        """Derive the cost of a hop from the cost of a message in a ring.

        Raises
        ------
        UsageError
            For less than two workers.
        """
        if workers < 2:
            raise UsageError(f"{workers} worker sends no messages", hint="give the number of measured workers")
        return cls(alpha_ns / (2 * (workers - 1)), beta_ns_per_byte * workers / (2 * (workers - 1)))

    def message_line(self, workers: int) -> tuple[float, float]:
        """Return alpha (ns) and beta (ns per byte) of an all-reduce by the number of workers."""
        return 2 * (workers - 1) * self.latency_ns, 2 * (workers - 1) / workers * self.ns_per_byte


@dataclass(frozen=True, slots=True)
class Speedup:
    """One number of workers."""

    workers: int
    iteration_ns: float
    #: Throughput relative to one worker that overlaps the same tasks.
    speedup: float
    messages_count: int

    @property
    def efficiency_ratio(self) -> float:
        """Speed-up divided by the number of workers."""
        return self.speedup / self.workers


def speedups(
    workload: Workload, variant: Variant, ring: Ring, workers: Iterable[int], *, merging: bool = False
) -> list[Speedup]:
    """Replay iterations with several numbers of workers, each worker with the same batch.

    Parameters
    ----------
    workload : Workload
    variant : Variant
    ring : Ring
    workers : iterable of int
    merging : bool
        Gradients are sent in the best merge for each number of workers; otherwise layer by layer.

    Raises
    ------
    UsageError
        If there is no worker, or an iteration takes no time or too much of it.
    """
    alone = replay(workload, variant, workers=1).iteration_ns
    if not alone:
        raise UsageError("an iteration of these layers takes no time", hint="columns without a unit are microseconds")
    results = []
    for count in workers:
        if count < 1:
            raise UsageError(f"cannot train with {count} workers", hint="for example 1,2,4,8")
        if count == 1:
            results.append(Speedup(1, float(alone), 1.0, 0))
            continue
        messages = (best if merging else layer_by_layer)(workload, *ring.message_line(count))
        # Workers are alike, so two of them take as long as any number with the same messages.
        layers, times = messages.last_layers, messages.time_ns
        took = float(replay(workload, variant, workers=2, last_layers=layers, message_ns=times).iteration_ns)
        results.append(Speedup(count, took, count * alone / took, len(messages)))
    return results
