"""The study behind ``stashtrace layers``: iterations of one workload by variant and ranks, and the best merge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stashtrace.calibration.fit_link import fit_alpha_beta
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.replay.communication.buckets import message_line
from stashtrace.replay.ssgd.layer_file import typical
from stashtrace.replay.ssgd.merging import Merge, best, best_cap, layer_by_layer
from stashtrace.replay.ssgd.speedup import Ring, Speedup, speedups
from stashtrace.replay.ssgd.tasks import replay
from stashtrace.replay.ssgd.variants import PRESETS, VARIANTS, WAIT_FREE, Variant
from stashtrace.replay.ssgd.workload import Workload
from stashtrace.schema.groupby import GroupBy

_FEWEST_SIZES = 3
#: A cost of bytes is significant from this many standard errors on.
_SURE = 2.0
#: Iterations that a median is taken of.
_MOST_ITERATIONS = 100


@dataclass(frozen=True, slots=True)
class Row:
    """One variant over all numbers of ranks.

    ``alone_ns`` is its iteration on one rank; with ``merged``, gradients are sent in the best merge.
    """

    variant: Variant
    merged: bool
    alone_ns: float
    speedups: tuple[Speedup, ...]

    @property
    def name(self) -> str:
        """Name for tables."""
        return f"{self.variant.name}, merged" if self.merged else self.variant.name


@dataclass(frozen=True, slots=True)
class Study:
    """Iterations of one workload."""

    workload: Workload
    ring: Ring
    #: Ranks whose measured communication the ring was fitted to; 0 if the ring was given.
    fitted_ranks: int
    ranks: tuple[int, ...]
    #: Number of ranks that the merges are for.
    chosen: int
    rows: tuple[Row, ...]
    #: Wait-free iteration with messages as measured, and the time that they add to it; None without measurements.
    #: Medians over the iterations.
    measured_ns: float | None
    measured_exposed_ns: float | None
    #: A message per layer, and the best merge, for ``chosen`` ranks.
    layerwise: Merge
    merged: Merge
    #: The ``bucket_cap_mb`` that is predicted to be best; ``capped`` has its buckets.
    cap_mib: float
    capped: Merge

    def exposed_ns(self, merge: Merge) -> float:
        """Return the time that messages add to an iteration: from the end of backward to the last message's end."""
        return max(merge.end_ns - float(self.workload.backward_ns.sum()), 0.0)


def study(
    iterations: Sequence[Workload], ranks: Sequence[int], *, ring: Ring | None = None, measured_ranks: int = 0
) -> Study:
    """Replay all variants over these numbers of ranks.

    ``iterations``: of the same layers; medians are replayed. ``ring``: cost of a hop; by default from the measured
    communication of the layers. ``measured_ranks``: ranks that this was measured on; 0 if unknown. Raises
    MissingDataError if no layer has gradients, or the cost of a message is unknown. Raises UsageError if no number of
    ranks has a message to send, or an iteration takes no time or too much of it.
    """
    workload = typical(iterations)
    if not len(workload.sends):
        raise MissingDataError("no layer has gradients", hint="their size in bytes is the last column of a row")
    fitted = 0
    if ring is None:
        ring, fitted = _fitted_ring(workload, measured_ranks), measured_ranks
    counts = tuple(sorted({*ranks, *([measured_ranks] if measured_ranks else [])}))
    if not counts or counts[-1] < 2:
        raise UsageError("one rank has nothing to merge", hint="for example --ranks 2,4,8")
    chosen = measured_ranks or counts[-1]
    cost = ring.message_line(chosen)
    combinations = (
        [(variant, False) for variant in VARIANTS] + [(WAIT_FREE, True)] + [(preset, False) for preset in PRESETS]
    )
    rows = [
        Row(
            variant,
            merged,
            float(replay(workload, variant, workers=1).iteration_ns),
            tuple(speedups(workload, variant, ring, counts, merging=merged)),
        )
        for variant, merged in combinations
    ]
    cap, capped = best_cap(workload, *cost)
    measured = _measured_iteration(iterations) if measured_ranks else (None, None)
    return Study(
        workload,
        ring,
        fitted,
        counts,
        chosen,
        tuple(rows),
        *measured,
        layer_by_layer(workload, *cost),
        best(workload, *cost),
        cap,
        capped,
    )


def _measured_iteration(iterations: Sequence[Workload]) -> tuple[float | None, float | None]:
    """Return the iteration with messages as measured, and its exposed part; two workers stand for any number."""
    times = []
    for iteration in iterations[:: max(len(iterations) // _MOST_ITERATIONS, 1)]:
        if iteration.measured_ns is None:
            return None, None
        took = replay(
            iteration, WAIT_FREE, workers=2, last_layers=iteration.sends, message_ns=iteration.measured_ns
        ).iteration_ns
        times.append((took, took - replay(iteration, WAIT_FREE, workers=1).iteration_ns))
    whole, exposed = np.median(np.array(times, dtype=np.float64), axis=0).tolist()
    return whole, exposed


def _fitted_ring(workload: Workload, measured_ranks: int) -> Ring:
    times = workload.measured_ns
    hint = "give the cost of a hop of the ring: --latency 45 --bandwidth 1.1G"
    if times is None:
        raise MissingDataError("the cost of a message is unknown: no communication was measured", hint=hint)
    if not measured_ranks:
        raise MissingDataError(
            "communication was measured on an unknown number of ranks", hint="for example --measured-ranks 8"
        )
    by_size = GroupBy(workload.sizes_bytes)
    sizes, middle = by_size.values, by_size.median(times)
    if len(sizes) < _FEWEST_SIZES or not (middle > 0).all():
        line = message_line(sizes[middle > 0], middle[middle > 0])
        if line is None:
            raise MissingDataError("messages are too similar in size to tell latency from bandwidth", hint=hint)
        return Ring.of_messages(*line, workers=measured_ranks)
    piece = fit_alpha_beta(sizes, middle, max_pieces=1).pieces[0]
    if not piece.beta_ns_per_byte > _SURE * piece.beta_error_ns_per_byte:
        raise MissingDataError("the cost of a byte is lost in the scatter of the messages", hint=hint)
    return Ring.of_messages(max(piece.alpha_ns, 0.0), piece.beta_ns_per_byte, workers=measured_ranks)
