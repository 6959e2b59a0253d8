"""The calibration file: what is written is read, what is damaged is said in one line, what is asked is answered."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stashtrace.calibration.file import (
    Calibration,
    Link,
    Points,
    calibration_text,
    find_calibration,
    host_hash,
    load_calibration,
)
from stashtrace.calibration.fit_link import fit_alpha_beta
from stashtrace.errors import FormatError, MissingDataError, StashtraceError, UnsupportedVersionError

SIZES = tuple(int(s) for s in np.geomspace(1024, 2**22, 8))


def made(alpha: float = 1e5, beta: float = 0.5, **options: object) -> Calibration:
    times = tuple(alpha + beta * s for s in SIZES)
    points = Points(SIZES, times, tuple(0.9 * t for t in times), tuple(1.1 * t for t in times), (10,) * len(SIZES))
    fit = fit_alpha_beta(SIZES, times, points.errors_ns())
    machine = {"cpu": 'A "fast" CPU', "cores_count": 2, "devices": [], "host_hash": host_hash("node00")}
    links = (Link("collective", "gloo", "all_reduce", 2, fit, points), Link("copy", "cuda", "d2d", 1, fit, points))
    given = {
        "date": "2026-11-21T05:00:00+00:00",
        "command": "stashtrace calibrate",
        "machine": machine,
        "versions": {"python": "3"},
        "links": links,
        "left_out": {"gloo all_to_all": "not \\ here"},
        "others": {"gloo, 2 ranks": "other programs used 0.1 of 2 CPUs"},
    }
    return Calibration(**{**given, **options})  # type: ignore[arg-type]


@given(st.floats(1, 1e9), st.floats(1e-4, 1e3))
@settings(max_examples=30, deadline=None)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, alpha: float, beta: float) -> None:
    path = tmp_path_factory.mktemp("file") / "calibration.toml"
    before = made(alpha, beta)
    path.write_text(calibration_text(before), encoding="utf-8")
    after = load_calibration(path)
    assert (after.date, after.command, dict(after.machine)) == (before.date, before.command, dict(before.machine))
    assert (dict(after.left_out), dict(after.others)) == (dict(before.left_out), dict(before.others))
    for one, other in zip(before.links, after.links, strict=True):
        assert other.name == one.name
        assert other.points.sizes_bytes == one.points.sizes_bytes
        assert other.points.median_ns == pytest.approx(one.points.median_ns, rel=1e-6)
        assert other.fit.expected(SIZES)[0] == pytest.approx(one.fit.expected(SIZES)[0], rel=1e-5)


def test_expected_times() -> None:
    calibration = made()
    answer = calibration.expected("all_reduce", [1 << 20, 1 << 30, 1], ranks=2, backend="gloo")
    assert answer.time_ns == pytest.approx([1e5 + 0.5 * 2**20, 1e5 + 0.5 * 2**30, 1e5], rel=1e-3)
    assert answer.extrapolated.tolist() == [False, True, True]
    assert calibration.expected("all_reduce", [1], ranks=4) is None
    assert calibration.expected("all_reduce", [1], ranks=2, backend="nccl") is None
    assert calibration.expected("d2d", [1]) is not None


def test_error_is_as_large_as_the_misfit_nearby() -> None:
    times = [1e5 + 0.5 * s for s in SIZES]
    times[-1] *= 3
    points = Points(SIZES, tuple(times), tuple(times), tuple(times), (10,) * len(SIZES))
    link = Link("collective", "gloo", "all_reduce", 2, fit_alpha_beta(SIZES, times, max_pieces=1), points)
    answer = made(links=(link,)).expected("all_reduce", SIZES, ranks=2)
    assert answer.error_ns[-1] == pytest.approx(2 * answer.time_ns[-1], rel=0.01)
    assert answer.error_ns[0] < 0.01 * answer.time_ns[0]


def test_another_machine_is_said_to_be_one() -> None:
    calibration = made(path="c.toml")
    assert not calibration.is_foreign(["node00", "node01"])
    assert not calibration.is_foreign([])
    assert calibration.is_foreign(["node07"])
    assert calibration.machine_text == 'A "fast" CPU'


def test_a_file_is_found_next_to_the_run(tmp_path: Path) -> None:
    assert find_calibration([str(tmp_path)]) is None
    (tmp_path / "calibration.toml").write_text(calibration_text(made()))
    found = find_calibration(["nowhere", str(tmp_path)])
    assert found.path == str(tmp_path / "calibration.toml")


GOOD = calibration_text(made())


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("", FormatError, "neither version nor link stands in it"),
        ("version = ", FormatError, "no TOML: "),
        ("\0", FormatError, "no TOML: "),
        ("version = 1", FormatError, "it holds no link"),
        (GOOD.replace("version = 1", "version = 2"), UnsupportedVersionError, "this stashtrace reads up to 1"),
        (GOOD.replace("version = 1", 'version = "1"'), FormatError, "version is '1'"),
        (GOOD.replace("version = 1", "version = 0"), FormatError, "version is 0"),
        (GOOD.replace('op = "all_reduce"', ""), FormatError, "link 1: op is missing"),
        (GOOD.replace('op = "all_reduce"', "op = 3"), FormatError, "link 1: op is 3, not a text"),
        (GOOD.replace("ranks_count = 2", "ranks_count = 0"), FormatError, "ranks_count is 0, out of range"),
        (GOOD.replace("per_byte = 0.5", "per_byte = -0.5"), FormatError, "beta_ns_per_byte is -0.5, out of range"),
        (GOOD.replace("per_byte = 0.5", "per_byte = inf"), FormatError, "beta_ns_per_byte is inf, not a number"),
        (GOOD.replace("[[link.piece]]", "[link.other]"), FormatError, "has no piece"),
        (
            GOOD.replace("sizes_bytes = [1024", 'sizes_bytes = ["x"'),
            FormatError,
            "sizes_bytes is not a list of numbers",
        ),
        (GOOD.replace("sizes_bytes = [1024,", "sizes_bytes = ["), FormatError, "columns of different lengths"),
        (GOOD.replace("min_bytes = 1024", "min_bytes = 99999999"), FormatError, "makes no sense"),
        ("version = 1\nlink = 3", FormatError, "it holds no link"),
        ("version = 1\nlink = [3]", FormatError, "link 1 is not a table"),
        (GOOD.replace("[machine]", "[[machine]]"), FormatError, "machine is not a table"),
    ],
)
def test_damage_is_said_in_one_line(tmp_path: Path, text: str, kind: type[StashtraceError], words: str) -> None:
    assert text != GOOD
    path = tmp_path / "c.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(kind) as error:
        load_calibration(path)
    assert words in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert "stashtrace calibrate" in (error.value.hint or "")


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="does not exist"):
        load_calibration(tmp_path / "no.toml")
    with pytest.raises(FormatError, match="is a directory"):
        load_calibration(tmp_path)
    (tmp_path / "b").write_bytes(b"\xff\xfe")
    with pytest.raises(FormatError, match="not UTF-8"):
        load_calibration(tmp_path / "b")


def test_unknown_keys_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(GOOD.replace("[versions]", "[future]\nx = 1\n\n[versions]").replace("kind =", "colour = 1\nkind ="))
    assert len(load_calibration(path).links) == 2


def test_the_published_example_is_read() -> None:
    path = Path(__file__).resolve().parents[2] / "benchmarks/results/calibration_gloo.toml"
    link = load_calibration(path).link("all_reduce", ranks=2, backend="gloo")
    assert link.fit.bandwidth_bytes_per_s > 1e8


def test_sizes_of_few_repetitions_spread_as_others_do() -> None:
    """One repetition has no quartiles: that is not a measurement without an error."""
    points = Points((10, 20, 30), (100.0, 200.0, 400.0), (100.0, 190.0, 380.0), (100.0, 210.0, 420.0), (1, 100, 100))
    assert points.errors_ns() == pytest.approx(1.2533 / 1.349 * np.array([10.0, 2.0, 4.0]))
    alone = Points((10, 20), (100.0, 200.0), (100.0, 200.0), (100.0, 200.0), (1, 1))
    assert alone.errors_ns().tolist() == [0.0, 0.0]


def test_a_line_is_as_sure_as_its_points_are() -> None:
    """Five sizes that came once and three that came often: the truth lies within two errors in most of 60 cases."""
    random = np.random.default_rng(1)
    sizes, counts = (1e3, 3e3, 1e4, 5e4, 2e5, 1e6, 4e6, 9e6), (1, 1, 1, 1, 1, 20, 20, 20)
    held = 0
    for _ in range(60):
        parts = [(2e5 + 2 * s) * (1 + 0.1 * random.normal(size=c)) for s, c in zip(sizes, counts, strict=True)]
        low, middle, high = (tuple(q) for q in np.array([np.percentile(part, (25, 50, 75)) for part in parts]).T)
        points = Points(tuple(map(int, sizes)), middle, low, high, counts)
        piece = fit_alpha_beta(sizes, middle, points.errors_ns(), max_pieces=1).pieces[0]
        held += abs(piece.alpha_ns - 2e5) < 2 * piece.alpha_error_ns
    assert held >= 48
