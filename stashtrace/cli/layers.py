"""``stashtrace layers``: an iteration layer by layer, what of it can overlap, and how it scales."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stashtrace.cli.parsing import Parser, existing_run
from stashtrace.cli.whatif_cache import parsed_size
from stashtrace.errors import UsageError

if TYPE_CHECKING:
    from stashtrace.replay.ssgd import Workload

_EPILOG = """PATH is a file with a row per layer (id, name, forward, backward, communication
in microseconds, size in bytes; iterations repeat the rows), a workload file of
ASTRA-sim, or a recorded run, whose messages count as layers. Its iterations are
replayed as the DAG model of S-SGD has them (arXiv 1805.03812)."""
_RANKS = (1, 2, 4, 8, 16, 32)


def parser() -> Parser:
    """Options of ``stashtrace layers``."""
    parser = Parser("layers", "Replay training iterations layer by layer, for any number of ranks.", _EPILOG)
    parser.add_argument("path", metavar="PATH", help="file of layers, or recorded run")
    parser.add_argument(
        "--ranks",
        metavar="N,N",
        type=_counts,
        default=_RANKS,
        help=f"numbers of ranks (default {','.join(map(str, _RANKS))})",
    )
    parser.add_argument(
        "--measured-ranks",
        metavar="N",
        type=_count,
        default=0,
        help="ranks on which the communication of a file was measured; a run knows",
    )
    parser.add_argument("--latency", metavar="US", type=_time, help="of a hop of the ring, in microseconds")
    parser.add_argument("--bandwidth", metavar="SIZE", help="of a hop, bytes a second, as in 1.1G")
    for name, what in (("io", "reading a batch"), ("copy", "its copy to the device"), ("update", "the update")):
        parser.add_argument(f"--{name}-ms", metavar="MS", type=_time, help=f"time of {what}, if not that of PATH")
    parser.add_out("FILE", "write the layers to a file")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="aligned text (default) or JSON")
    return parser


def main(argv: Sequence[str]) -> int:
    """Read, replay and print."""
    arguments = parser().read(argv)
    from stashtrace.replay.ssgd import Ring, write_layers
    from stashtrace.replay.ssgd.report import layers_json, layers_lines
    from stashtrace.replay.ssgd.study import study
    from stashtrace.summary.words.parts import plural

    if (arguments.latency is None) != (arguments.bandwidth is None):
        raise UsageError("--latency and --bandwidth belong together", hint="for example --latency 45 --bandwidth 1.1G")
    ring = None
    if arguments.latency is not None:
        rate = parsed_size(arguments.bandwidth, "--bandwidth")
        if not rate:
            raise UsageError("--bandwidth 0 moves nothing", hint="for example --bandwidth 1.1G")
        ring = Ring(arguments.latency * 1e3, 1e9 / rate)
    untimed, measured = _iterations(arguments)
    iterations = [_with_times(one, arguments) for one in untimed]
    if arguments.out:
        write_layers(arguments.out, iterations)
        count, layers = len(iterations), len(iterations[0])
        sys.stderr.write(f"wrote {arguments.out}: {count} iteration{plural(count)} of {layers} layer{plural(layers)}\n")
    found = study(iterations, arguments.ranks, ring=ring, measured_ranks=measured)
    if arguments.format == "json":
        sys.stdout.write(json.dumps(layers_json(found), indent=1) + "\n")
    else:
        sys.stdout.write("\n".join(layers_lines(found)) + "\n")
    return 0


def _iterations(arguments: argparse.Namespace) -> tuple[list[Workload], int]:
    """Iterations of a file or a run, and the ranks that their communication was measured on; 0 if nothing says."""
    from stashtrace.replay.ssgd import read_layers

    path = existing_run(arguments.path)
    if path.is_file() and not _is_trace(path):
        return read_layers(path), arguments.measured_ranks
    if arguments.measured_ranks:
        raise UsageError("--measured-ranks belongs to a file of layers", hint="a run knows how many ranks it had")
    from stashtrace.cli.loading import load_watched
    from stashtrace.replay.ssgd.from_run import layers_of_run

    return layers_of_run(load_watched(str(path)))


def _is_trace(path: Path) -> bool:
    """Whether a file is JSON or binary, as those of traces are, and not text of layers."""
    try:
        with open(path, "rb") as file:
            head = file.read(4096)
    except OSError:
        return False  # said when it is read
    return b"\0" in head or head.lstrip()[:1] in (b"{", b"[") or head.startswith(b"\x1f\x8b")


def _with_times(workload: Workload, arguments: argparse.Namespace) -> Workload:
    from dataclasses import replace

    given = {f"{name}_ns": getattr(arguments, f"{name}_ms") for name in ("io", "copy", "update")}
    return replace(workload, **{name: ms * 1e6 for name, ms in given.items() if ms is not None})


def _counts(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} are no numbers of ranks, for example 2,4,8")
    return tuple(int(part) for part in text.split(","))


def _count(text: str) -> int:
    if not re.fullmatch(r"\d+", text) or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of ranks that send messages")
    return int(text)


def _time(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no time")
    return value
