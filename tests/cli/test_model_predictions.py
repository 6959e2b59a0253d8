"""``stashtrace model STUDY --predict``: a study that cannot predict is shown all the same."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab.test_layer_study import resnets, study

from stashtrace.cli import main


def test_what_was_measured_is_shown_before_the_complaint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One network carries no fit; minutes of measuring are not thrown away for that."""
    (tmp_path / "study.json").write_text(json.dumps(study(resnets(10))), encoding="utf-8")
    capsys.readouterr()
    assert main(["model", str(tmp_path), "--predict", "resnet50"]) == 4
    told = capsys.readouterr()
    assert "interconnect stall, step of 2 ranks minus step of one" in told.out
    assert "predicted:" not in told.out
    assert told.err.startswith("error: the study carries no fit to predict with")
    assert main(["model", str(tmp_path), "--predict", "resnet50", "--format", "json"]) == 4
    found = json.loads(capsys.readouterr().out)
    assert found["predictions"] == []
    assert [one["name"] for one in found["variants"]] == ["resnet10"]


def test_a_damaged_study_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = study(resnets(10, 12, 18))
    del content["settings"]["backend"]
    (tmp_path / "study.json").write_text(json.dumps(content), encoding="utf-8")
    capsys.readouterr()
    assert main(["model", str(tmp_path)]) == 4
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: this is not a study: its settings lack backend")
