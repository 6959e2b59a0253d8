"""``stashtrace calibrate``: measure what the links of this machine can do, into a file that analyses read."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from stashtrace.cli.option_values import read_message_sizes
from stashtrace.cli.parsing import OUT_OPTIONS, Parser, add_value
from stashtrace.cli.print_results import check_plot, open_output, print_lines, write_output, write_plot
from stashtrace.cli.screen import Screen
from stashtrace.errors import UsageError

_FILE = "calibration.toml"
#: Options whose values are paths: the file that is written keeps their last parts alone.
_PATH_OPTIONS = ("-o", *OUT_OPTIONS, "--disk", "--plot")
_EPILOG = """Without options it measures copies to and from the GPU and NCCL between all
GPUs of this machine; without a GPU, gloo between two ranks. Nothing else
should run on the machine meanwhile: what other programs take is said, and a
start that suffers is made again once."""


def parser() -> Parser:
    """Return the parser of ``stashtrace calibrate``."""
    from stashtrace.lab.calibrate.measure import BACKENDS, LAUNCHES

    parser = Parser("calibrate", "Measure what the links of this machine can do.", _EPILOG)
    parser.add_out("FILE", f"file to write (default {_FILE})", default=_FILE)
    parser.add_argument("--backend", choices=BACKENDS, default="auto", help="what to measure (default auto: all)")
    add_value(parser, "--ranks", "N", "ranks of a collective (default: one per GPU, else 2)", type=int)
    add_value(parser, "--sizes", "A:B", "smallest and largest message, as in 1K:32M", read_message_sizes)
    add_value(parser, "--seconds", "S", "time to measure for (default 30)", type=float, default=30.0)
    launches = f"start the processes N times (default {LAUNCHES})"
    add_value(parser, "--launches", "N", launches, type=int, default=LAUNCHES)
    add_value(parser, "--disk", "DIR", "also measure reads from the disk that DIR is on")
    parser.add_plot("points, fit and residuals")
    return parser


def main(argv: Sequence[str]) -> int:
    """Measure, write the file, print what was measured."""
    arguments = parser().read(argv)
    from stashtrace import __version__
    from stashtrace.calibration.file import calibration_text
    from stashtrace.lab.calibrate.calibration_text import calibration_lines, plot_calibration
    from stashtrace.lab.calibrate.measure import CalibrationRequest, calibrate

    check_plot(arguments.plot)
    out = open_output(arguments.out, _FILE)
    if arguments.disk is not None and not os.path.isdir(arguments.disk):
        raise UsageError(f"{arguments.disk} is not a folder", hint="--disk takes a folder on the disk to measure")
    request = CalibrationRequest(
        backend=arguments.backend,
        ranks=arguments.ranks,
        sizes_bytes=arguments.sizes,
        seconds=arguments.seconds,
        disk=arguments.disk,
        launches=arguments.launches,
    )
    screen = Screen()
    with screen.progress("measuring", lines=True) as bar:
        calibration = calibrate(request, version=__version__, command=_command(argv), on_progress=bar.step)
    write_output(out, calibration_text(calibration))
    print_lines(calibration_lines(calibration))
    screen.say(f"\nwrote {out}")
    write_plot(arguments.plot, plot_calibration, calibration)
    screen.say(f"\n  use it     stashtrace analyze link_efficiency RUN --calibration {out}")
    return 0


def _command(argv: Sequence[str]) -> str:
    """Return the command line as it was typed, with the last parts of paths alone."""
    words: list[str] = []
    for word in argv:
        option, equals, value = word.partition("=")
        if words and words[-1] in _PATH_OPTIONS:
            word = os.path.basename(os.path.abspath(word))
        elif equals and option in _PATH_OPTIONS:
            word = f"{option}={os.path.basename(os.path.abspath(value))}"
        words.append(word)
    return shlex.join(["stashtrace", "calibrate", *words])
