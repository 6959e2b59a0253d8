"""The study of ``stashtrace layers``: iterations of a workload by variant and ranks, speed-ups, and the best merge.

S. Shi, X. Chu, B. Li, MG-WFBP: Efficient data communication for distributed synchronous SGD algorithms (INFOCOM 2019).
The paper goes through the layers once with a greedy rule. The dynamic programme of
``replay.communication.best_merge`` finds the best of all merges: it ends no later than the rule, and earlier
where many small waits add up. A ring of N workers sends a message in 2 (N - 1) hops, and 2 (N - 1) / N of its bytes
over each link.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stashtrace.analysis.intervals import Floats, Int64
from stashtrace.calibration.fit_link import fit_alpha_beta
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.replay.communication.buckets import message_line
from stashtrace.replay.communication.communication_model import FEWEST_SIZES, SURE
from stashtrace.replay.communication.overlap import (
    ROUNDING,
    best_merge,
    bucket_starts,
    merge_caps,
    merged,
    rounded_cap,
    schedule,
)
from stashtrace.replay.ssgd.tasks import PRESETS, VARIANTS, WAIT_FREE, Variant, replay
from stashtrace.replay.ssgd.workload import Workload, typical
from stashtrace.schema.groupby import GroupBy
from stashtrace.text.prose import align
from stashtrace.text.units import bytes_text, duration_text, shortened


@dataclass(frozen=True, slots=True)
class Ring:
    """Cost of a hop between neighbours of the ring.

    ``ns_per_byte``: reciprocal bandwidth of one link.

    >>> ring = Ring.of_messages(600.0, 1.5, workers=4)
    >>> ring.latency_ns, ring.ns_per_byte, ring.message_line(8)
    (100.0, 1.0, (1400.0, 1.75))
    """

    latency_ns: float
    ns_per_byte: float

    @classmethod
    def of_messages(cls, alpha_ns: float, beta_ns_per_byte: float, *, workers: int) -> Ring:
        """Derive the cost of a hop from the cost of a message in a ring.

        Raises UsageError: for less than two workers.
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

    ``merging``: gradients are sent in the best merge for each number of workers; otherwise layer by layer. Raises
    UsageError if there is no worker, or an iteration takes no time or too much of it.
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
        # Workers are equal, so two of them take as long as any number with the same messages.
        layers, times = messages.last_layers, messages.time_ns
        took = float(replay(workload, variant, workers=2, last_layers=layers, message_ns=times).iteration_ns)
        results.append(Speedup(count, took, count * alone / took, len(messages)))
    return results


@dataclass(frozen=True, slots=True)
class Merge:
    """Messages of a backward pass that hold the gradients of neighbouring layers."""

    #: Index in ``Workload.sends`` of the first layer of each message.
    starts: Int64
    #: Layer of each message whose gradients are ready last, counted from 0 in the forward order.
    last_layers: Int64
    #: Of each message.
    ready_ns: Floats
    sizes_bytes: Floats
    time_ns: Floats
    #: End of the last message since the begin of the backward pass.
    end_ns: float

    def __len__(self) -> int:
        return len(self.starts)


def merge_of(workload: Workload, starts: Any, alpha_ns: float, beta_ns_per_byte: float) -> Merge:
    """Make messages that begin at these indices of ``Workload.sends``; each takes ``alpha + bytes * beta``."""
    first = np.asarray(starts, dtype=np.int64)
    ready, sizes = merged(workload.ready_ns, workload.sizes_bytes, first)
    times = alpha_ns + beta_ns_per_byte * sizes
    last = workload.sends[np.append(first[1:], len(workload.sends)) - 1]
    end = float(schedule(ready, times).end_ns[-1]) if len(ready) else 0.0
    return Merge(first, last, ready, sizes, times, end)


def layer_by_layer(workload: Workload, alpha_ns: float, beta_ns_per_byte: float) -> Merge:
    """Make a message for each layer with gradients: plain wait-free back-propagation."""
    return merge_of(workload, np.arange(len(workload.sends)), alpha_ns, beta_ns_per_byte)


def best(workload: Workload, alpha_ns: float, beta_ns_per_byte: float) -> Merge:
    """Return the merge whose last message ends earliest."""
    starts = best_merge(workload.ready_ns, workload.sizes_bytes, alpha_ns, beta_ns_per_byte)
    return merge_of(workload, starts, alpha_ns, beta_ns_per_byte)


def best_cap(workload: Workload, alpha_ns: float, beta_ns_per_byte: float) -> tuple[float, Merge]:
    """Return the ``bucket_cap_mb`` in MiB whose last bucket ends earliest, and its buckets.

    Of several that end together it returns the one with the fewest buckets, and of these the smallest.
    """
    sizes = workload.sizes_bytes
    caps = [rounded_cap(cap, sizes) for cap in merge_caps(sizes).tolist()]
    tried = [(merge_of(workload, bucket_starts(sizes, cap * 2**20), alpha_ns, beta_ns_per_byte), cap) for cap in caps]
    earliest = min(merge.end_ns for merge, _ in tried)
    together = [found for found in tried if found[0].end_ns <= earliest * (1 + ROUNDING)]
    merge, cap = min(together, key=lambda found: (len(found[0]), found[1]))
    return cap, merge


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
    if len(sizes) < FEWEST_SIZES or not (middle > 0).all():
        line = message_line(sizes[middle > 0], middle[middle > 0])
        if line is None:
            raise MissingDataError("messages are too similar in size to separate latency from bandwidth", hint=hint)
        return Ring.of_messages(*line, workers=measured_ranks)
    piece = fit_alpha_beta(sizes, middle, max_pieces=1).pieces[0]
    if not piece.beta_ns_per_byte > SURE * piece.beta_error_ns_per_byte:
        raise MissingDataError("the cost of a byte is lost in the scatter of the messages", hint=hint)
    return Ring.of_messages(max(piece.alpha_ns, 0.0), piece.beta_ns_per_byte, workers=measured_ranks)


#: Messages of a merge that are listed; if there are more, the first and the last of them.
_MOST_MESSAGES = 12
_NAME_WIDTH = 22


def layers_lines(study: Study) -> list[str]:
    """Return the lines for the terminal."""
    return [*_facts(study), "", *_iterations(study), "", *_curve(study), "", *_merge(study)]


def layers_json(study: Study) -> dict[str, Any]:
    """Return the study for JSON."""
    work, ring = study.workload, study.ring
    return {
        "layers_count": len(work),
        "gradient_bytes": float(work.sizes_bytes.sum()),
        "forward_ns": float(work.forward_ns.sum()),
        "backward_ns": float(work.backward_ns.sum()),
        "communication_ns": None if work.measured_ns is None else float(work.measured_ns.sum()),
        "io_ns": work.io_ns,
        "copy_ns": work.copy_ns,
        "update_ns": work.update_ns,
        "hop": {
            "latency_ns": ring.latency_ns,
            "bandwidth_bytes_per_s": 1e9 / ring.ns_per_byte if ring.ns_per_byte > 0 else None,
            "fitted_ranks_count": study.fitted_ranks,
        },
        "measured_iteration_ns": study.measured_ns,
        "variants": [
            {
                "variant": row.variant.name,
                "merged": row.merged,
                "overlaps": row.variant.overlaps,
                "iterations": [
                    {"ranks_count": speedup.workers, "iteration_ns": speedup.iteration_ns, "speedup": speedup.speedup}
                    for speedup in row.speedups
                ],
            }
            for row in study.rows
        ],
        "merge": {"ranks_count": study.chosen, **_merge_json(study, study.merged)},
        "bucket": {"bucket_cap_mb": study.cap_mib, **_merge_json(study, study.capped)},
        "layer_by_layer": _merge_json(study, study.layerwise),
    }


def _merge_json(study: Study, merge: Merge) -> dict[str, Any]:
    return {
        "messages_count": len(merge),
        "exposed_ns": study.exposed_ns(merge),
        "message_bytes": merge.sizes_bytes.tolist(),
        "last_layers": [study.workload.names[layer] for layer in merge.last_layers.tolist()],
    }


def _facts(study: Study) -> list[str]:
    work, ring = study.workload, study.ring
    several = f"{len(work)} layers, {len(work.sends)} of them with gradients"
    counts = several if len(work) > 1 else "1 layer with gradients"
    lines = [f"{counts}, {bytes_text(work.sizes_bytes.sum())} in all"]
    parts = {"forward": work.forward_ns.sum(), "backward": work.backward_ns.sum(), "update": work.update_ns}
    parts |= {"reading": work.io_ns, "copy": work.copy_ns}
    lines.append("  " + ", ".join(f"{name} {duration_text(float(ns))}" for name, ns in parts.items() if ns > 0))
    rate = f"{bytes_text(1e9 / ring.ns_per_byte)}/s" if ring.ns_per_byte > 0 else "any number of bytes"
    source = f"fitted to the messages of {study.fitted_ranks} ranks" if study.fitted_ranks else "as given"
    lines.append(f"  a hop of the ring: {duration_text(ring.latency_ns)} and {rate}, {source}")
    return lines


def _iterations(study: Study) -> list[str]:
    rows: list[tuple[str, ...]] = [("variant", "during compute", "iteration", "exposed", "speed-up")]
    if study.measured_ns is not None and study.measured_exposed_ns is not None:
        alone = study.measured_ns - study.measured_exposed_ns
        took, exposed = duration_text(study.measured_ns), duration_text(study.measured_exposed_ns)
        speedup = f"{study.chosen * alone / study.measured_ns:.2f}"
        rows.append(("as measured", WAIT_FREE.overlaps, took, exposed, speedup))
    for row in study.rows:
        at_chosen = next(speedup for speedup in row.speedups if speedup.workers == study.chosen)
        exposed = duration_text(at_chosen.iteration_ns - row.alone_ns)
        times = (duration_text(at_chosen.iteration_ns), exposed, f"{at_chosen.speedup:.2f}")
        rows.append((row.name, row.variant.overlaps, *times))
    return [f"one iteration of {study.chosen} ranks:", *align(rows, range(2))]


def _curve(study: Study) -> list[str]:
    head = ("ranks", *(str(count) for count in study.ranks))
    rows = [head, *((row.name, *(f"{speedup.speedup:.2f}" for speedup in row.speedups)) for row in study.rows)]
    return ["speed-up over ranks, each with the same batch:", *align(rows, range(1))]


def _merge(study: Study) -> list[str]:
    merge, names = study.merged, study.workload.names
    merges = (
        ("layer by layer", study.layerwise),
        (f"bucket_cap_mb={study.cap_mib:g}", study.capped),
        ("best merge", study.merged),
    )
    rows: list[tuple[str, ...]] = [("sent", "messages", "exposed")]
    rows += [(name, str(len(sent)), duration_text(study.exposed_ns(sent))) for name, sent in merges]
    lines = [f"gradients of {study.chosen} ranks; predicted best size of buckets: bucket_cap_mb={study.cap_mib:g}"]
    lines += [*align(rows, range(1)), "", "the best merge:"]
    listed: list[tuple[str, ...]] = [("layers", "size", "ready", "takes")]
    sends = study.workload.sends
    ends = [*merge.starts.tolist()[1:], len(sends)]
    for number in _messages_to_list(len(merge)):
        if number < 0:
            listed.append(("...", "", "", ""))
            continue
        first, last = (shortened(names[sends[at]], _NAME_WIDTH) for at in (merge.starts[number], ends[number] - 1))
        span = first if first == last else f"{first} to {last}"
        times = (float(merge.ready_ns[number]), float(merge.time_ns[number]))
        listed.append((span, bytes_text(float(merge.sizes_bytes[number])), *map(duration_text, times)))
    return lines + align(listed, range(1))


def _messages_to_list(count: int) -> Sequence[int]:
    """Return the messages to list; -1 stands for those left out."""
    if count <= _MOST_MESSAGES:
        return range(count)
    half = math.floor(_MOST_MESSAGES / 2)
    return [*range(half), -1, *range(count - half, count)]
