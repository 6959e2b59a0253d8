"""The text of ``stashtrace layers``: iterations by variant, speed-ups over ranks, which gradients to send together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stashtrace.replay.ssgd.iteration_study import Merge, Study
from stashtrace.replay.ssgd.tasks import WAIT_FREE
from stashtrace.text.prose import align
from stashtrace.text.units import bytes_text, duration_text, shortened

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
