"""A calibration in words and as a picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from stashtrace.calibration.file import Calibration, Link, Points
from stashtrace.calibration.fit_link import fit_alpha_beta
from stashtrace.cli.commands.calibrate import calibration_lines, plot_calibration
from stashtrace.errors import UsageError
from stashtrace.lab.plot_helpers import check_plot_file

SIZES = tuple(1 << n for n in range(10, 26))


def link(backend: str, op: str, times: list[float], ranks: int = 2) -> Link:
    points = Points(
        SIZES, tuple(times), tuple(0.95 * t for t in times), tuple(1.1 * t for t in times), (9,) * len(SIZES)
    )
    kind = "copy" if backend == "cuda" else "collective"
    return Link(kind, backend, op, ranks, fit_alpha_beta(SIZES, times, points.errors_ns()), points)


def made() -> Calibration:
    straight = [2e5 + 0.5 * s for s in SIZES]
    bent = [2e5 + 0.5 * s if s < 1 << 20 else 2e5 + 2.0 * s for s in SIZES]
    wild = [t * (3 if n == 5 else 1) for n, t in enumerate(straight)]
    links = (
        link("gloo", "all_reduce", straight),
        link("gloo", "all_gather", bent),
        link("gloo", "broadcast", wild),
        link("cuda", "h2d_pinned", [8e3 + s / 50 for s in SIZES], 1),
        link("cuda", "d2d", [5e3 - s * 1e-6 for s in SIZES], 1),
    )
    return Calibration(
        "2026-11-21", "", {"cpu": "EPYC", "cores_count": 2}, {}, links, left_out={"gloo all_to_all": "no"}
    )


def test_words() -> None:
    lines = calibration_lines(made())
    assert lines[0] == "stashtrace calibrate  EPYC, 2 cores"
    assert all(len(line) <= 80 for line in lines)
    text = "\n".join(lines)
    for name in ("all_reduce", "all_gather", "h2d_pinned"):
        assert sum(line.split()[:1] == [name] for line in lines) == 1
    row = next(line for line in lines if "all_reduce" in line)
    assert "200.00 ± 0" in row
    assert "2.00 ± 0" in row
    assert row.split()[-4:-2] == ["2.00", "GB/s"]
    words = " ".join(text.split())
    assert "gloo all_gather, 2 ranks: one line does not hold; it changes at 1.05 MB (2.00 GB/s then 500 MB/s)" in words
    assert "gloo broadcast, 2 ranks: 32.8 KB lie off the line, 32.8 KB by 200 % above it" in words
    assert "not seen" in words
    assert "cuda d2d: time did not grow with the size" in words
    assert "gloo all_to_all was left out: no" in words


def test_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot_calibration(made(), str(tmp_path / "c.svg"))
    content = (tmp_path / "c.svg").read_bytes()
    assert content.startswith(b"<?xml")
    assert content.count(b"<path") > 100


def test_a_suffix_that_is_no_picture() -> None:
    with pytest.raises(UsageError, match="ends in"):
        check_plot_file("c.txt")
