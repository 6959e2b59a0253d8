"""The judge of benchmarks/bench_whatif.py: predictions against recordings whose step times are known."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from stashtrace.cli.synth import main as write_synthetic
from stashtrace.replay import Change


@pytest.fixture
def judging(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1]))
    from whatif import judging as module

    return module


def test_each_question_is_of_jobs_that_are_recorded(judging: ModuleType) -> None:
    from whatif.pairs import QUESTIONS, SETUPS, SHAPES

    for job, change, other in QUESTIONS:
        assert job != other
        assert {job, other} <= set(SETUPS)
        assert change.startswith(("compute=", "python=")) or Change.parse(change).option == change
    assert set(SHAPES.values()) <= set(SETUPS)
    assert len({(job, change) for job, change, _ in QUESTIONS}) == len(QUESTIONS) >= 20


def test_a_prediction_is_held_against_the_mean_of_the_other_job(
    judging: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Made-up steps of 123, 123 and 145 ms; workers keep the first one at its pace also without its late rank."""
    from whatif import page

    options = {"late": ["--late-rank", "2", "--late", "8"], "same": ["--wait", "28"], "longer": ["--forward", "60"]}
    for name, more in options.items():
        assert write_synthetic([str(tmp_path / name / "run"), "--ranks", "4", "--steps", "30", *more]) == 0
    late, same, longer = (tmp_path / name for name in options)
    folders = {"late": [late], "same": [same], "both": [same, longer]}
    questions = [("late", "straggler=0", name) for name in ("same", "both", "missing")]
    good, bad = judging.predictions(folders, questions)
    assert (good.measured_ms, good.real_ms, bad.real_ms) == pytest.approx((123, 123, 134), rel=0.002)
    assert good.error_ratio == pytest.approx(0, abs=0.002)
    assert bad.error_ratio == pytest.approx(123 / 134 - 1, abs=0.002)
    assert (good.covered, bad.covered) == (True, False)
    assert 0.03 <= good.wide_ratio <= 0.05  # what recordings differ by, and how these steps scatter
    assert "2 predictions: median error 4.1%, worst 8.2%, within 5 % in 1;" in page.totals([good, bad])
    assert "holds the real step in 1," in page.totals([good, bad])
    spread = judging.spreads(folders)
    assert spread == pytest.approx({"late": 0, "same": 0, "both": 145 / 123 - 1}, abs=0.002)
    assert "| 17.9% |" in page.all_rows([bad], spread)[2]
    assert judging.replay_of("late", late).error_worst_ratio < 1e-6
