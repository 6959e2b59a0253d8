"""`stashtrace calibrate` for real over gloo, briefly; its file in the analysis; what it refuses."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Answer
from test_reading import write_run

from stashtrace.calibration.file import load_calibration

Run = Callable[..., Answer]
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@needs_torch
@pytest.mark.torch
@pytest.mark.slow
def test_measure_write_and_use(run: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "one")
    words = ["--sizes", "1K:64K", "--seconds", "0.2", "--launches", "1", "--out", "one/calibration.toml"]
    answer = run("calibrate", "--backend", "gloo", *words, timeout=170)
    assert answer.code == 0, answer.err
    assert "gloo, 2 ranks" in answer.out
    assert all(len(line) <= 80 for line in answer.out.splitlines())
    assert "gloo, 2 ranks, meanwhile: other programs used" in answer.out
    first, *others = answer.err.strip().splitlines()
    assert first == "measuring gloo, 2 ranks: 5 operations, start 1 of 1"
    assert "wrote one/calibration.toml" in others
    found = load_calibration(tmp_path / "one/calibration.toml")
    assert {link.op for link in found.links} >= {"all_reduce", "all_gather", "broadcast"}
    assert all(0 < link.fit.alpha_ns < 1e9 for link in found.links)
    assert found.command.startswith("stashtrace calibrate --backend gloo")
    assert str(tmp_path) not in (tmp_path / "one/calibration.toml").read_text()

    answer = run("analyze", "link_efficiency", "one", "--format", "json")
    assert "was measured on another machine" in answer.err  # the run's host has a made-up name
    (row,) = json.loads(answer.out)
    assert (row["op"], row["message_bytes"], row["method"]) == ("all_reduce", 4096, "calibration")
    assert row["expected_ns"] > 0
    assert row["efficiency_ratio"] == pytest.approx(row["expected_ns"] / row["transfer_ns"], rel=1e-3)


def test_the_disk_alone_needs_no_torch(run: Run, tmp_path: Path) -> None:
    answer = run(
        "calibrate",
        "--backend",
        "disk",
        "--disk",
        ".",
        "--seconds",
        "0.3",
        "--launches",
        "1",
        "--sizes",
        "4K:256K",
        timeout=170,
    )
    if answer.code == 4:  # a temporary folder in memory
        assert "came from the page cache" in answer.err
        return
    assert (answer.code, "random_read" in answer.out) == (0, True), answer.err
    assert {link.op for link in load_calibration(tmp_path / "calibration.toml").links} == {
        "random_read",
        "sequential_read",
    }


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["--backend", "carrier-pigeon"], 2, "--backend cannot be 'carrier-pigeon'"),
        (["--sizes", "big"], 2, "--sizes big is not a range of sizes"),
        (["--ranks", "two"], 2, "--ranks two is not a whole number"),
        (["--plot", "x.gif"], 2, "x.gif: a plot ends in .png, .svg, .pdf"),
        (["--out", "."], 3, "cannot write .: it is a folder"),
        (["--out", "no/where/c.toml"], 3, "cannot write no/where/c.toml"),
        (["--disk", "nowhere"], 2, "nowhere is not a folder"),
        (["--backend", "disk"], 2, "--backend disk does not say which disk"),
        # Said when a process has looked at the machine, which imports torch.
        *(
            pytest.param(["--backend", "disk", "--disk", ".", *more], 2, error, marks=pytest.mark.thorough)
            for more, error in (
                (["--seconds", "0"], "measuring takes time"),
                (["--sizes", "4K:8K"], "--sizes 4096:8192 holds 2 sizes"),
            )
        ),
        (["extra"], 2, "'extra' is one argument too many"),
    ],
)
def test_bad_words(run: Run, tmp_path: Path, words: list[str], code: int, error: str) -> None:
    answer = run("calibrate", *words, timeout=120)
    assert (answer.code, answer.out) == (code, "")
    assert answer.err.startswith("error: ")
    assert error in answer.err.splitlines()[0]
    assert "\nhint: " in answer.err
    assert list(tmp_path.iterdir()) == []


def test_a_plot_without_matplotlib(run: Run, tmp_path: Path) -> None:
    if importlib.util.find_spec("matplotlib") is not None:
        pytest.skip("matplotlib is installed")
    answer = run("calibrate", "--plot", "x.png")
    assert answer == Answer(
        2, "", "error: --plot needs matplotlib, which is not installed\n\nhint: `pip install 'stashtrace[plot]'`\n"
    )


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["link_efficiency", "one", "--calibration", "no.toml"], 4, "no.toml does not exist"),
        (["link_efficiency", "one", "--calibration", "one"], 4, "one is a directory, not a calibration file"),
        (
            ["link_efficiency", "one", "--calibration", "bad.toml"],
            4,
            "bad.toml is not a usable calibration file: no TOML",
        ),
        (["steps", "one", "--calibration", "bad.toml"], 2, "analysis 'steps' has no option --calibration"),
    ],
)
def test_bad_calibrations(run: Run, tmp_path: Path, words: list[str], code: int, error: str) -> None:
    write_run(tmp_path / "one")
    (tmp_path / "bad.toml").write_text("= 3")
    answer = run("analyze", *words)
    assert (answer.code, answer.out) == (code, "")
    assert answer.err.splitlines()[0].startswith(f"error: {error}")
    assert "\nhint: " in answer.err
