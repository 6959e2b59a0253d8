"""What all pictures of reports share: the file they go to and the look of their axes. matplotlib is optional."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from stashtrace.errors import CaptureError, UsageError
from stashtrace.output_files import complete_file, why_not_writable

_SUFFIXES = (".png", ".svg", ".pdf")


def check_plot_file(path: str) -> None:
    """Say what is wrong before anything is measured or computed.

    Raises
    ------
    UsageError
        If the suffix is unknown or matplotlib is not installed.
    """
    stem, suffix = os.path.splitext(path)
    if suffix.lower() not in _SUFFIXES:
        raise UsageError(f"{path}: a plot ends in {', '.join(_SUFFIXES)}", hint=f"--plot {stem or 'plot'}.png")
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib, which is not installed", hint="`pip install 'stashtrace[plot]'`")


def check_plot_folder(path: str, *, option: str = "--plot", made: Path | None = None) -> None:
    """Say before anything is measured that a file cannot be written.

    Parameters
    ----------
    path : str
    option : str
        Which told the path.
    made : Path, optional
        Folder that the command makes, if it is not there.

    Raises
    ------
    CaptureError
        If there is no such folder, or it may not be written to.
    """
    folder = Path(path).absolute().parent
    if made is not None and folder == made.absolute() and not folder.exists():
        return
    if why := why_not_writable(Path(path)):
        raise CaptureError(f"cannot write {path}: {why}", hint=f"choose another with {option} FILE")


def new_figure(width: float, height: float) -> Any:
    """Figure of this size in inches that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: str) -> None:
    """Write a figure into a file, whole or not at all; the suffix chooses the format.

    Raises
    ------
    StashtraceError
        If the system refuses.
    """
    target = Path(path)
    with complete_file(target, hint="choose another file with --plot") as partial:
        figure.savefig(partial, dpi=150, format=target.suffix[1:].lower())


def plain_axes(axes: Any) -> None:
    """A light grid behind the data, no frame above and to the right."""
    axes.grid(True, color="#DDDDDD", lw=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
