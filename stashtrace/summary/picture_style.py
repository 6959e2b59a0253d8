"""What all pictures share: colours, a figure that needs no display, axes of times and sizes. matplotlib is optional."""

from __future__ import annotations

import io
from importlib.util import find_spec
from typing import Any

from stashtrace.errors import UsageError
from stashtrace.text.units import bytes_text, duration_text

#: Okabe and Ito's palette, which the colour-blind can tell apart, without its yellow; and a marker for each.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
FAINT = "#555555"


def require_matplotlib(subject: str) -> None:
    """Raise UsageError, beginning with ``subject``, unless matplotlib is installed."""
    if find_spec("matplotlib") is None:
        raise UsageError(f"{subject} needs matplotlib, which is not installed", hint="`pip install 'stashtrace[plot]'`")


def new_figure(width: float, height: float) -> Any:
    """Make a figure of this size in inches that needs no display; a notebook shows it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        def _repr_png_(self) -> bytes:
            """Picture of a cell's value, also where pyplot was never imported."""
            drawn = io.BytesIO()
            canvas: Any = FigureCanvasAgg(self)
            canvas.print_png(drawn)
            return drawn.getvalue()

    figure = ShownFigure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain_axes(axes: Any) -> None:
    """Give axes a light grid behind the data, and no frame above and to the right."""
    axes.grid(True, color="#DDDDDD", lw=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def duration_axis(axis: Any) -> None:
    """Label an axis of ns as a person reads times."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: duration_text(value)))


def bytes_axis(axis: Any) -> None:
    """Label an axis of bytes as a person reads sizes."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(value)))
