"""``stashtrace calibrate``: what the links of this machine can do, into a file that the analyses read."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from stashtrace.cli.parsing import OUT_OPTIONS, Parser
from stashtrace.cli.screen import Screen
from stashtrace.errors import UsageError
from stashtrace.output_files import complete_file, require_writable

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_EPILOG = """without options: copies to and from the GPU and NCCL between all GPUs of this
machine; without a GPU gloo between two ranks. Run it while nothing else does."""


def parser() -> Parser:
    """Options of ``stashtrace calibrate``."""
    from stashtrace.lab.calibrate.measure import BACKENDS, LAUNCHES

    parser = Parser("calibrate", "Measure what the links of this machine can do.", _EPILOG)
    parser.add_out("FILE", "where to write it (default calibration.toml)", default="calibration.toml")
    parser.add_argument("--backend", choices=BACKENDS, default="auto", help="measure this alone")
    parser.add_argument("--ranks", type=int, metavar="N", help="processes of a collective (default: 2, or one per GPU)")
    parser.add_argument("--sizes", metavar="A:B", help="smallest and largest message, as in 1K:32M")
    parser.add_argument(
        "--seconds", type=float, metavar="S", default=30.0, help="measuring time of everything (default 30)"
    )
    parser.add_argument(
        "--launches", type=int, metavar="N", default=LAUNCHES, help=f"start the processes N times (default {LAUNCHES})"
    )
    parser.add_argument("--disk", metavar="DIR", help="read from the disk of this folder too")
    parser.add_argument("--plot", metavar="FILE", help="draw points, fit and residuals (.png, .svg, .pdf)")
    return parser


def main(argv: Sequence[str]) -> int:
    """Measure, write the file, show what was found."""
    arguments = parser().read(argv)
    from stashtrace import __version__
    from stashtrace.calibration.file import calibration_text
    from stashtrace.lab.calibrate.measure import Request, calibrate
    from stashtrace.lab.calibrate.report import calibration_lines

    if arguments.plot:
        from stashtrace.lab.plot import check_plot_file, check_plot_folder

        check_plot_file(arguments.plot)
        check_plot_folder(arguments.plot)
    out = _checked_out(arguments.out)
    if arguments.disk is not None and not os.path.isdir(arguments.disk):
        raise UsageError(f"{arguments.disk} is no folder", hint="--disk takes a folder on the disk to measure")
    request = Request(
        backend=arguments.backend,
        ranks=arguments.ranks,
        sizes_bytes=parsed_sizes(arguments.sizes),
        seconds=arguments.seconds,
        disk=arguments.disk,
        launches=arguments.launches,
    )
    screen = Screen()
    with screen.progress("measuring") as bar:
        found = calibrate(request, version=__version__, command=_command(argv), on_progress=bar.step)
    with complete_file(out) as partial:
        partial.write_text(calibration_text(found), encoding="utf-8")
    sys.stdout.write("\n".join(calibration_lines(found)) + "\n")
    screen.say(f"\nwrote {out}")
    if arguments.plot:
        from stashtrace.lab.calibrate.report import plot_calibration

        plot_calibration(found, arguments.plot)
        screen.say(f"wrote {arguments.plot}")
    screen.say(f"\n  use it     stashtrace analyze link_efficiency RUN --calibration {out}")
    return 0


def parsed_sizes(text: str | None) -> tuple[int, int] | None:
    """Smallest and largest message of ``1K:32M``.

    Raises
    ------
    UsageError
        If it says something else.

    Examples
    --------
    >>> parsed_sizes("512:1K")
    (512, 1024)
    """
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)([KMG]?)i?B?:(\d+)([KMG]?)i?B?", text.strip(), re.I)
    if found is None:
        raise UsageError(f"--sizes {text} is no range of sizes", hint="for example --sizes 1K:32M")
    low, low_unit, high, high_unit = found.groups()
    return int(low) * _UNITS[low_unit.upper()], int(high) * _UNITS[high_unit.upper()]


def _checked_out(name: str) -> Path:
    """A path that can be written, found out before anything is measured."""
    path = Path(name)
    if path.is_dir():
        raise UsageError(f"{path} is a directory", hint=f"--out {path / 'calibration.toml'}")
    require_writable(path, hint="choose another place with `--out FILE`")
    return path


def _command(argv: Sequence[str]) -> str:
    """What was typed, without the places of this machine."""
    words, skip = [], False
    for word in argv:
        if skip:
            word, skip = os.path.basename(os.path.abspath(word)), False
        elif word in ("-o", *OUT_OPTIONS, "--disk", "--plot"):
            skip = True
        elif "=" in word and word.split("=")[0] in (*OUT_OPTIONS, "--disk", "--plot"):
            option, _, value = word.partition("=")
            word = f"{option}={os.path.basename(os.path.abspath(value))}"
        words.append(word)
    return shlex.join(["stashtrace", "calibrate", *words])
