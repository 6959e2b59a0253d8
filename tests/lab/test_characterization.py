"""Runs to an answer: statuses, the second opinion, the file, and the words."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from stashtrace.errors import FormatError, MissingDataError
from stashtrace.lab.characterize.answer import (
    FAILED,
    FILE_NAME,
    MEASURED,
    Characterization,
    ConfigurationRun,
    read_characterization,
)
from stashtrace.lab.characterize.characterization_document import bottleneck, characterization_blocks
from stashtrace.lab.characterize.run_figures import Figures
from stashtrace.report.blocks import text_lines

FACTS = {"command": ["torchrun", "t.py"], "devices_count": 2, "device": "cpu", "network": None, "quick": False}
MS = 1e6


def figures(step_ms: float, **kinds_ms: float) -> Figures:
    stalls = {kind: (ms * MS, 0.9 * ms * MS, 1.1 * ms * MS) for kind, ms in kinds_ms.items()}
    return Figures(step_ms * MS, 60, 0, 2, 1, 2, stalls, 3.0, 1000.0)


def runs(step: int, *times_ms: float, **kinds_ms: float) -> list[ConfigurationRun]:
    return [
        ConfigurationRun(step, i, MEASURED, f"runs/step{step}-{i}", "", figures(time, **kinds_ms))
        for i, time in enumerate(times_ms)
    ]


@pytest.fixture
def found() -> Characterization:
    """10 ms alone, 14 together, 20 with warm data, 32 with cold data."""
    made = Characterization({"command": ["torchrun", "t.py"]}, dict(FACTS))
    made.runs = [
        *runs(1, 10.0, 10.1, 9.9, 10.0, compute=10.0),
        *runs(2, 14.0, 14.1, 13.9, 14.0, compute=10.0, interconnect=4.0),
        *runs(4, 20.0, 20.1, 19.9, 20.0, compute=10.0, interconnect=4.0, prep=5.0, handoff=1.0),
        *runs(3, 32.0, 32.1, 31.9, 32.0, compute=10.0, interconnect=4.0, prep=5.0, handoff=1.0, fetch=12.0),
    ]
    made.absent[5] = ("not measured", "no second host")
    return made


def test_stalls_and_their_second_opinion(found: Characterization) -> None:
    stalls = found.stalls()
    assert set(stalls) == {"interconnect", "prep", "fetch"}
    assert stalls["interconnect"].clean.value == pytest.approx(4 / 14)
    assert stalls["prep"].clean.value == pytest.approx(0.3)
    assert stalls["fetch"].clean.value == pytest.approx(0.375)
    for name, ms in (("interconnect", 4.0), ("prep", 6.0), ("fetch", 12.0)):
        attributed = found.attributed_difference_ns(name)
        assert attributed.value == pytest.approx(ms * MS)
        assert attributed.low <= attributed.value <= attributed.high
    assert found.attributed_difference_ns("network") is None
    assert found.disagreements() == []


def test_a_disagreement_is_said(found: Characterization) -> None:
    found.runs = [run for run in found.runs if run.configuration != 3]
    found.runs += runs(3, 32.0, 32.1, 31.9, 32.0, compute=20.0, interconnect=4.0, prep=5.0, handoff=1.0, fetch=2.0)
    (said,) = found.disagreements()
    assert said.startswith("fetch: the steps differ by 12.0 ms, the attribution of the same runs says 2.00 ms")


def test_the_file_holds_all_and_comes_back(found: Characterization, tmp_path: Path) -> None:
    found.runs.append(ConfigurationRun(5, 0, FAILED, "runs/step5-0", "exit code 1"))
    found.save(tmp_path)
    data = json.loads((tmp_path / FILE_NAME).read_text())
    assert data["steps"]["t1_ns"]["status"] == "measured"
    assert data["steps"]["t1_ns"]["low_ns"] < data["steps"]["t1_ns"]["value_ns"] == pytest.approx(10 * MS)
    assert (data["steps"]["t5_ns"]["status"], data["steps"]["t5_ns"]["why"]) == ("failed", "exit code 1")
    assert data["stalls"]["prep"]["clean"] == pytest.approx(0.3)
    assert data["stalls"]["fetch"]["as_published"] == pytest.approx((32 - 6) / 32)
    assert data["attribution"]["3"]["fetch"] == pytest.approx(12 / 32)
    again = read_characterization(tmp_path)
    assert again.to_json() == found.to_json()
    assert again.status(5) == ("failed", "exit code 1")


def test_one_repetition_has_no_interval(found: Characterization, tmp_path: Path) -> None:
    found.runs = [run for run in found.runs if run.repeat == 0]
    found.save(tmp_path)
    assert json.loads((tmp_path / FILE_NAME).read_text())["stalls"]["prep"]["low"] is None
    text = "\n".join(text_lines(characterization_blocks(found), 80))
    assert "no interval" in text
    assert "nan" not in text
    assert bottleneck(found) is None


def test_words(found: Characterization) -> None:
    lines = text_lines(characterization_blocks(found), 80)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 80
    assert "the bottleneck is fetch: with the data set in memory a step would take" in text
    assert "1.60 times as fast" in " ".join(text.split())
    assert "no second host" in text
    published = "\n".join(text_lines(characterization_blocks(found, published=True), 80))
    assert "81 %" in published


def test_a_failed_repetition_leaves_the_others(found: Characterization) -> None:
    bad = next(run for run in found.runs if run.configuration == 2)
    bad.figures, bad.status = None, FAILED
    assert math.isnan(found.times_ns()[2][0])
    assert found.stalls()["interconnect"].clean.runs_count == 3
    assert found.status(2) == (MEASURED, "")


@pytest.mark.parametrize(
    "content", ["", "{}", '{"format": 99, "plan": {}}', "[1]", '{"format": 1, "plan": {}, "steps": 3}']
)
def test_files_that_are_none(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    with pytest.raises(FormatError) as raised:
        read_characterization(tmp_path)
    assert raised.value.hint


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="does not exist"):
        read_characterization(tmp_path)
