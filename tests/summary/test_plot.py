"""Pictures of stalls: bars are the means of the table, and the map its steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stashtrace
from stashtrace.analysis.stalls.budget import STALLS
from stashtrace.cli.synth import main as write_synthetic
from stashtrace.errors import UsageError
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.stall_kinds import KIND_COLOURS, words_of
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.summary import picture_style

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    folder = tmp_path_factory.mktemp("made") / "run"
    assert write_synthetic([str(folder), "--ranks", "3", "--steps", "7", "--late-rank", "1", "--late", "20"]) == 0
    return stashtrace.load(str(folder))


def bars(axes: object) -> dict[str, list[float]]:
    """Lengths of the bars of each kind, rank by rank."""
    return {c.get_label(): [bar.get_width() for bar in c] for c in axes.containers}  # type: ignore[attr-defined]


def test_bars_are_means_of_steps(trace: Trace) -> None:
    stalls = stashtrace.analyze(trace, "stalls")
    above, below = stalls.plot().axes[:2]
    inside = stalls[stalls["step"] >= 0]
    drawn = bars(above)
    words = {words_of(kind): kind for kind in inside["kind"].tolist()}
    assert set(drawn) == set(words)
    for name, lengths in drawn.items():
        kind = words[name]
        own = inside[inside["kind"] == kind]
        assert lengths == pytest.approx([own["stall_ns"][own["rank"] == rank].sum() / 7 for rank in range(3)])
    assert above.get_title(loc="left").endswith("mean of 7 steps")
    (image,) = below.images
    lost = inside[inside["kind"] != "compute"]
    expected = [
        [lost["stall_ns"][(lost["rank"] == rank) & (lost["step"] == step)].sum() for step in range(7)]
        for rank in range(3)
    ]
    assert np.array_equal(image.get_array(), expected)


@pytest.mark.parametrize("by", ["rank", "run"])
def test_sums_have_bars_alone(trace: Trace, by: str) -> None:
    table = stashtrace.analyze(trace, "stalls", by=by)
    figure = table.plot()
    (axes,) = figure.axes
    drawn = bars(axes)
    compute = table[table["kind"] == "compute"]
    assert drawn["compute"] == pytest.approx((compute["stall_ns"] / compute["steps_count"]).tolist())
    assert axes.get_ylabel() == {"rank": "rank", "run": "all ranks"}[by]
    assert [text.get_text() for text in axes.get_yticklabels()] == {"rank": ["0", "1", "2"], "run": [""]}[by]


def test_a_notebook_and_a_file_get_it(trace: Trace, tmp_path: Path) -> None:
    figure = stashtrace.analyze(trace, "stalls").plot()
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    figure.savefig(tmp_path / "stalls.svg")
    assert (tmp_path / "stalls.svg").stat().st_size > 1000


def test_steps_that_a_rank_lacks_stay_white() -> None:
    rows = [(rank, step, "fetch", 5, "host", 5, 5, -1, -1.0) for rank, step in ((0, 3), (0, 9), (4, 9))]
    figure = Table.from_rows(STALLS, rows).plot()
    image = figure.axes[1].images[0].get_array()
    assert np.isnan(np.ma.filled(image, np.nan)).tolist() == [[False, False], [True, False]]
    assert [text.get_text() for text in figure.axes[1].get_xticklabels()] == ["3", "9"]
    assert "1 to 2 steps" in figure.axes[0].get_title(loc="left")


def test_what_cannot_be_drawn(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no picture of the table io") as caught:
        trace.io.plot()
    assert "stalls" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="no step to draw"):
        Table.empty(STALLS).plot()
    monkeypatch.setattr(picture_style, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs matplotlib") as missing:
        stashtrace.analyze(trace, "stalls").plot()
    assert "stashtrace[plot]" in (missing.value.hint or "")


def test_each_kind_of_stall_has_a_different_colour() -> None:
    assert set(KIND_COLOURS) == {kind.name.lower() for kind in StallKind}
    assert len(set(KIND_COLOURS.values())) == len(KIND_COLOURS)
