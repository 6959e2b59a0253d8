"""Names beside points: inside the picture, none on another, each at its point."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from stashtrace.lab.plot import Name, place_names
from stashtrace.summary.pictures import new_figure


def placed(points: list[tuple[float, float]], lines: Any = (), *, log: bool = False) -> tuple[Any, list[Any]]:
    figure = new_figure(6.0, 4.0)
    axes = figure.subplots()
    axes.plot([x for x, _ in points], [y for _, y in points], "o")
    if log:
        axes.set_xscale("log")
        axes.set_yscale("log")
    place_names(figure, axes, [Name(x, y, f"point {n}") for n, (x, y) in enumerate(points)], lines)
    figure.draw_without_rendering()
    return axes, [text.get_window_extent() for text in axes.texts]


@pytest.mark.parametrize("log", [False, True])
def test_no_name_lies_on_another_or_outside(log: bool) -> None:
    axes, boxes = placed([(1, 1), (1.05, 1.02), (1, 3), (5, 4), (5.1, 4), (10, 10), (10, 1)], log=log)
    frame = axes.get_window_extent()
    assert len(boxes) == 7
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)
    for box in boxes:
        assert frame.x0 <= box.x0
        assert box.x1 <= frame.x1
        assert frame.y0 <= box.y0
        assert box.y1 <= frame.y1


def test_a_name_keeps_off_lines() -> None:
    rising = ([0.0, 10.0], [0.0, 10.0])
    axes, (_, middle, _) = placed([(0, 0), (5, 5), (10, 10)], [rising])
    corners = axes.transData.inverted().transform([(middle.x0, middle.y0), (middle.x1, middle.y1)])
    (left, low), (right, high) = corners
    assert right < low or left > high, "the diagonal does not pass"


def test_a_line_from_nothing_on_a_logarithmic_axis() -> None:
    _, boxes = placed([(1, 1), (10, 10)], [([0.0, 10.0], [0.0, 10.0]), ([float("nan")] * 2, [1.0, 2.0])], log=True)
    assert len(boxes) == 2
