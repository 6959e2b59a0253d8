"""``stashtrace calibrate``: measure what the links of this machine can do, into a file that analyses read."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np

from stashtrace.calibration.file import Calibration, Link
from stashtrace.calibration.fit_link import bus_bytes
from stashtrace.cli.option_values import read_message_sizes
from stashtrace.cli.parsing import OUT_OPTIONS, Parser, add_value
from stashtrace.cli.print_results import check_plot, open_output, print_lines, write_output, write_plot
from stashtrace.cli.screen import Screen
from stashtrace.errors import UsageError
from stashtrace.lab.plot_helpers import check_plot_file, draw_link, save_figure, scale_links
from stashtrace.summary.picture_style import FAINT, new_figure, plain_axes
from stashtrace.text.prose import count_noun, wrap
from stashtrace.text.units import bytes_text, percent_text

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


_TIME_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))
_RATE_UNITS = ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "KB/s"), (1.0, "B/s"))
_WIDTH = 78
#: Points further than this off the line are worth a sentence.
_FAR_OFF = 0.5


def calibration_lines(calibration: Calibration) -> list[str]:
    """Lines of text about a calibration, at most 80 columns."""
    machine = calibration.machine
    what = list(machine.get("devices", ())) or [f"{machine.get('cpu', '?')}, {machine.get('cores_count', '?')} cores"]
    out = [f"stashtrace calibrate  {'; '.join(dict.fromkeys(what))}", ""]
    heads = list(dict.fromkeys((link.backend, link.ranks_count) for link in calibration.links))
    for number, (backend, ranks) in enumerate(heads):
        of_group = [link for link in calibration.links if (link.backend, link.ranks_count) == (backend, ranks)]
        name = f"{backend}, {ranks} ranks" if ranks > 1 else backend
        bus = "bus" if ranks > 1 else ""
        out += [""] if number else []
        out.append(f"  {name:<16}{'latency':>19}{'bandwidth':>21}{bus:>11}{'scatter':>9}")
        out += [_line(link) for link in of_group]
    remarks = [r for link in calibration.links for r in _remarks(link)]
    remarks += [f"{name} was left out: {why}" for name, why in calibration.left_out.items()]
    remarks += [f"{name}, meanwhile: {said}" for name, said in calibration.others.items()]
    if remarks:
        out.append("")
        for remark in remarks:
            out += wrap(remark, width=_WIDTH)
    return out


def with_error(value: float, error: float, units: tuple[tuple[float, str], ...]) -> str:
    """A value and its error in one unit, with as many digits as the error allows.

    Examples
    --------
    >>> with_error(340_416, 39_263, _TIME_UNITS), with_error(2.54e9, 1.4e8, _RATE_UNITS)
    ('340 ± 39 us', '2.54 ± 0.14 GB/s')
    """
    size, unit = next(((s, u) for s, u in units if abs(value) >= s * 0.9995), units[-1])
    shown, spread = value / size, error / size
    digits = 0 if spread >= 9.95 else 1 if spread >= 0.995 else 2
    return f"{shown:.{digits}f} ± {spread:.{digits}f} {unit}"


def latency_text(link: Link) -> str:
    """Latency of a link with its error."""
    return with_error(link.fit.alpha_ns, link.fit.alpha_error_ns, _TIME_UNITS)


def bandwidth_text(link: Link) -> str:
    """Bandwidth of a link with its error."""
    if not math.isfinite(link.fit.bandwidth_bytes_per_s):
        return "not seen"
    return with_error(link.fit.bandwidth_bytes_per_s, link.fit.bandwidth_error_bytes_per_s, _RATE_UNITS)


def _line(link: Link) -> str:
    fit, bus = link.fit, ""
    if link.ranks_count > 1 and math.isfinite(fit.bandwidth_bytes_per_s):
        bus = bytes_text(bus_bytes(link.op, link.ranks_count, fit.bandwidth_bytes_per_s)) + "/s"
    scatter = percent_text(fit.residual_ratio)
    return f"  {link.op:<16}{latency_text(link):>19}{bandwidth_text(link):>21}{bus:>11}{scatter:>9}"


def _remarks(link: Link) -> list[str]:
    fit, out = link.fit, []
    if len(fit.pieces) > 1:
        borders = ", ".join(bytes_text(p.min_bytes) for p in fit.pieces[1:])
        rates = " then ".join(
            bytes_text(p.bandwidth_bytes_per_s) + "/s" if math.isfinite(p.bandwidth_bytes_per_s) else "flat"
            for p in fit.pieces
        )
        out.append(f"{link.name}: one line does not hold; it changes at {borders} ({rates})")
    off = fit.residuals(link.points.sizes_bytes, link.points.median_ns)
    far = [(s, o) for s, o in zip(link.points.sizes_bytes, off.tolist(), strict=True) if abs(o) > _FAR_OFF]
    if far:
        worst = max(far, key=lambda pair: abs(pair[1]))
        share = f"{abs(worst[1]) * 100:.0f} % {'above' if worst[1] > 0 else 'below'}"
        sizes = ", ".join(bytes_text(s) for s, _ in far[:4]) + (", ..." if len(far) > 4 else "")
        out.append(f"{link.name}: {sizes} lie off the line, {bytes_text(worst[0])} by {share} it")
    if not math.isfinite(fit.bandwidth_bytes_per_s):
        out.append(f"{link.name}: time did not grow with the size; larger messages would show a bandwidth")
    return out


# The picture of a calibration: times with their fit above, residuals below, one column per backend.
#
# matplotlib is an optional package and is imported by the functions that need it.


def plot_calibration(calibration: Calibration, path: str) -> None:
    """Draw a calibration into a file; the suffix chooses the format."""
    check_plot_file(path)
    heads = list(dict.fromkeys((link.kind, link.backend, link.ranks_count) for link in calibration.links))
    figure = new_figure(7.2 * len(heads), 7.0)
    axes = figure.subplots(2, len(heads), squeeze=False, sharex="col", height_ratios=(3, 1))
    for column, head in enumerate(heads):
        of_group = [link for link in calibration.links if (link.kind, link.backend, link.ranks_count) == head]
        _draw(axes[0][column], axes[1][column], of_group)
        ranks = f", {head[2]} ranks" if head[2] > 1 else ""
        axes[0][column].set_title(f"{head[1]}{ranks}", loc="left", fontweight="bold")
    machine = calibration.machine
    what = ", ".join(dict.fromkeys(machine.get("devices", ()))) or machine.get("cpu", "")
    figure.suptitle(f"{what}    {calibration.date[:10]}", x=0.01, ha="left", fontsize=10, color=FAINT)
    save_figure(figure, path)


def _draw(above: Any, below: Any, links: list[Link]) -> None:
    for number, link in enumerate(links):
        label = f"{link.op}   {latency_text(link)}, {bandwidth_text(link)}"
        draw_link(above, below, number, link.points, link.fit, label)
    _limit_residuals(below, links)
    size_title = "message size, one rank's input" if links[0].ranks_count > 1 else "size"
    scale_links(above, below, "time of one message", size_title)
    for axes in (above, below):
        plain_axes(axes)


def _limit_residuals(axes: Any, links: list[Link]) -> None:
    """Limit the axis so that a single outlier does not flatten the others; count those beyond in the corner."""
    off = np.concatenate([np.abs(link.fit.residuals(link.points.sizes_bytes, link.points.median_ns)) for link in links])
    limit = 100 * max(3 * float(np.percentile(off, 75)), 0.05)
    axes.set_ylim(-limit, limit)
    beyond = int(np.count_nonzero(100 * off > limit))
    if beyond:
        text = f"{count_noun(beyond, 'point')} beyond"
        axes.text(1, 1.02, text, transform=axes.transAxes, ha="right", va="bottom", fontsize=8, color=FAINT)
