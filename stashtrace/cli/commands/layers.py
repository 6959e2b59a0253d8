"""``stashtrace layers``: replay an iteration layer by layer; what can overlap, and how the job scales."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stashtrace.cli.option_values import read_length, read_size, read_whole, read_wholes
from stashtrace.cli.parsing import NEWEST, TEXT_FORMATS, Parser, add_value, existing_run, newest_run
from stashtrace.cli.print_results import print_answer
from stashtrace.cli.screen import Screen
from stashtrace.errors import UsageError
from stashtrace.text.prose import align, count_noun
from stashtrace.text.units import bytes_text, duration_text, shortened

if TYPE_CHECKING:
    from stashtrace.replay.ssgd import Workload
    from stashtrace.replay.ssgd.iteration_study import Merge, Study

_EPILOG = """PATH is a file with a row for each layer (id, name, times of forward, backward
and communication in microseconds, size in bytes; iterations repeat the rows),
a workload file of ASTRA-sim, or a recorded run, whose messages count as
layers. Iterations are replayed by the DAG model of S-SGD (arXiv 1805.03812)."""
_RANKS = (1, 2, 4, 8, 16, 32)


def parser() -> Parser:
    """Return the parser of ``stashtrace layers``."""
    parser = Parser("layers", "Replay training iterations layer by layer, for any number of ranks.", _EPILOG)
    parser.add_argument("path", metavar="PATH", nargs="?", help=f"file of layers, or run directory (default: {NEWEST})")
    ranks = f"numbers of ranks to predict (default {','.join(map(str, _RANKS))})"
    add_value(parser, "--ranks", "N,N", ranks, read_wholes, default=_RANKS)
    measured = "number of ranks on which the communication in a file was measured"
    add_value(parser, "--measured-ranks", "N", measured, partial(read_whole, least=2), default=0)
    latency = "latency of a hop of the ring, in microseconds; needs --bandwidth"
    add_value(parser, "--latency", "US", latency, read_length)
    bandwidth = "bandwidth of a hop in bytes per second, as in 1.1G; needs --latency"
    add_value(parser, "--bandwidth", "SIZE", bandwidth, read_size)
    for name, work in (("io", "reading a batch"), ("copy", "copying it to the device"), ("update", "the update")):
        add_value(parser, f"--{name}-ms", "MS", f"time of {work}, ms (default: as recorded in PATH)", read_length)
    parser.add_out("FILE", "write the layers to this file")
    parser.add_format(TEXT_FORMATS)
    return parser


def main(argv: Sequence[str]) -> int:
    """Read, replay and print."""
    arguments = parser().read(argv)
    from stashtrace.replay.ssgd import Ring, write_layers
    from stashtrace.replay.ssgd.iteration_study import study

    if (arguments.latency is None) != (arguments.bandwidth is None):
        raise UsageError("--latency and --bandwidth need each other", hint="for example --latency 45 --bandwidth 1.1G")
    ring = None
    if arguments.latency is not None:
        if not arguments.bandwidth:
            raise UsageError("--bandwidth must be more than 0", hint="for example --bandwidth 1.1G")
        ring = Ring(arguments.latency * 1e3, 1e9 / arguments.bandwidth)
    untimed, measured = _iterations(arguments)
    iterations = [_with_times(iteration, arguments) for iteration in untimed]
    if arguments.out:
        write_layers(arguments.out, iterations)
        count = f"{count_noun(len(iterations), 'iteration')} of {count_noun(len(iterations[0]), 'layer')}"
        Screen().say(f"wrote {arguments.out}: {count}")
    scaling = study(iterations, arguments.ranks, ring=ring, measured_ranks=measured)
    print_answer(arguments.format, layers_lines(scaling), layers_json(scaling))
    return 0


def _iterations(arguments: argparse.Namespace) -> tuple[list[Workload], int]:
    """Return the iterations of a file or run, and how many ranks their communication was measured on; 0 if unknown."""
    from stashtrace.replay.ssgd import read_layers

    path = existing_run(arguments.path or newest_run())
    if path.is_file() and not _is_trace(path):
        return read_layers(path), arguments.measured_ranks
    if arguments.measured_ranks:
        raise UsageError("--measured-ranks is for files of layers", hint="leave it out: a run has its number of ranks")
    from stashtrace.cli.find_runs import read_runs
    from stashtrace.replay.ssgd.workload import layers_of_run

    return layers_of_run(read_runs(str(path)))


def _is_trace(path: Path) -> bool:
    """Return whether a file is a trace (JSON or binary) rather than a text of layers."""
    try:
        with open(path, "rb") as file:
            head = file.read(4096)
    except OSError:
        return False  # reading it raises the error
    return b"\0" in head or head.lstrip()[:1] in (b"{", b"[") or head.startswith(b"\x1f\x8b")


def _with_times(workload: Workload, arguments: argparse.Namespace) -> Workload:
    from dataclasses import replace

    given = {f"{name}_ns": getattr(arguments, f"{name}_ms") for name in ("io", "copy", "update")}
    return replace(workload, **{name: ms * 1e6 for name, ms in given.items() if ms is not None})


# What is printed.

#: Messages of a merge that are listed; if there are more, the first and the last of them.
_MOST_MESSAGES = 12
_NAME_WIDTH = 22


def layers_lines(study: Study) -> list[str]:
    """Return the lines for the terminal."""
    return [*_facts(study), "", *_iteration_table(study), "", *_curve(study), "", *_merge(study)]


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


def _iteration_table(study: Study) -> list[str]:
    from stashtrace.replay.ssgd.tasks import WAIT_FREE

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
