"""``stashtrace layers``: replay an iteration layer by layer; what can overlap, and how the job scales."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stashtrace.cli.option_values import read_length, read_size, read_whole, read_wholes
from stashtrace.cli.parsing import NEWEST, TEXT_FORMATS, Parser, add_value, existing_run, newest_run
from stashtrace.cli.print_results import print_answer
from stashtrace.cli.screen import Screen
from stashtrace.errors import UsageError

if TYPE_CHECKING:
    from stashtrace.replay.ssgd import Workload

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
    from stashtrace.replay.ssgd.iteration_study import layers_json, layers_lines, study
    from stashtrace.text.prose import count_noun

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
