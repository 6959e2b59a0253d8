"""benchmarks/gpu/day.py without a device: its order, its seconds, what ends it early, what travels, and the page."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from traced import ROOT

FOLDER = ROOT / "benchmarks/gpu"
ORDER = ["probe", "ask", "job", "nccl", "training", "attribution", "ranks"]


@pytest.fixture
def day(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("day")
    for name in ("day", "collect"):
        sys.modules.pop(name, None)


class Clock:
    """A clock that parts move on."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def play(
    day: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    out: Path,
    took: dict[str, float],
    found: dict[str, Any] | None = None,
) -> tuple[dict[str, float], dict[str, Any]]:
    """Run the plan with parts that take the given seconds, cut at their limits; the limits, and the result."""
    clock, given = Clock(), dict[str, float]()

    def part(name: str) -> Callable[[Any, float], dict[str, Any]]:
        def takes(run: Any, limit_s: float) -> dict[str, Any]:
            given[name] = limit_s
            clock.now += min(took.get(name, 1.0), limit_s)
            return {"status": "passed", **(found or {}).get(name, {})}

        return takes

    monkeypatch.setattr(day.collect, "time", clock)
    monkeypatch.setattr(day, "PLAN", tuple(one._replace(part=part(one.name)) for one in day.PLAN))
    monkeypatch.setattr(day, "missing", list)
    day.main(["run", "--out", str(out)])
    return given, json.loads((out / "result.json").read_text(encoding="utf-8"))["parts"]


def test_each_part_has_its_seconds_in_the_order_of_the_page(
    day: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given, parts = play(day, monkeypatch, tmp_path, {})
    assert list(given) == ORDER
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    table = re.search(r"## Nine hundred seconds.*?\n\|---.*?\n(.*?)\n\n", text, re.S)
    assert table is not None
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()]
    assert [(name.strip("`"), float(seconds)) for name, seconds, *_ in rows] == list(given.items())
    assert {part["status"] for part in parts.values()} == {"passed"}


def test_what_takes_too_long_costs_later_parts_no_more_than_its_seconds(
    day: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given, parts = play(day, monkeypatch, tmp_path, dict.fromkeys(ORDER, 1e9))
    seconds = {one.name: one.limit_s for one in day.PLAN}
    before = sum(seconds[name] for name in ORDER[:-1])
    assert given == seconds | {"ranks": day.LIMIT_S - before}, "the last one has what is left"
    assert given["ranks"] > 30
    assert list(parts) == ORDER


@pytest.mark.parametrize("answer", ["bare_thread_mode", "capture_beside_polling"])
def test_an_answer_that_recording_does_harm_ends_the_day(
    day: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: str
) -> None:
    bad = {"ask": {"status": "failed", "problems": [f"{answer}: wrong", "green_context: kept"]}}
    given, parts = play(day, monkeypatch, tmp_path, {}, bad)
    assert list(given) == ["probe", "ask"]
    assert parts["ask"]["problems"] == bad["ask"]["problems"]
    assert {parts[name]["status"] for name in ORDER[2:]} == {"not reached"}
    assert parts["job"]["reason"] == f"recording may break the job: {answer}: wrong"


def test_another_bad_answer_ends_nothing(day: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bad = {"ask": {"status": "failed", "problems": ["green_context: kept"]}}
    given, _ = play(day, monkeypatch, tmp_path, {}, bad)
    assert list(given) == ORDER


WRITES = """
import pathlib, sys, time
pathlib.Path(sys.argv[1]).touch()
print('{"known": 1}', flush=True)
while True: time.sleep(0.05)
"""


class Until(Clock):
    """A clock that stands still until a file is there, and is then past the seconds of one part."""

    def __init__(self, file: Path, limit_s: float) -> None:
        super().__init__()
        self.file, self.limit_s = file, limit_s

    def monotonic(self) -> float:
        return self.limit_s + 1 if self.file.exists() else 0.0


def test_a_part_that_hangs_is_cut_and_what_was_known_stays(
    day: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    marker = tmp_path / "runs"

    def hangs(run: Any, limit_s: float) -> dict[str, Any]:
        code, printed = run.call([sys.executable, "-c", WRITES, str(marker)], limit_s)
        day.collect.keep_printed(printed, run.work / "ask.json")
        return {"status": "timed out" if code is None else "passed"}

    def quick(run: Any, limit_s: float) -> dict[str, Any]:
        return {"status": "passed", "limit_s": limit_s}

    parts = {"ask": hangs}
    monkeypatch.setattr(day.collect, "time", Until(marker, 60))
    monkeypatch.setattr(day.collect, "LOOK_S", 0.05)
    monkeypatch.setattr(day, "PLAN", tuple(one._replace(part=parts.get(one.name, quick)) for one in day.PLAN))
    monkeypatch.setattr(day, "missing", list)
    assert day.main(["run", "--out", str(tmp_path / "out")]) == 1
    result = json.loads((tmp_path / "out/result.json").read_text(encoding="utf-8"))
    assert result["parts"]["ask"]["status"] == "timed out"
    assert json.loads((tmp_path / "out/ask.json").read_text(encoding="utf-8")) == {"known": 1}
    assert [result["parts"][name]["status"] for name in ORDER[2:]] == ["passed"] * 5
    files = list((tmp_path / "out").iterdir())
    assert len(files) <= 8
    assert all(re.fullmatch(r"[a-z0-9_]+\.(json|txt|xml)", file.name) for file in files)


def test_what_did_not_travel_is_named_and_built_first(
    day: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(day, "PLAN", ())
    monkeypatch.setattr(day, "ROOT", tmp_path)
    monkeypatch.setattr(day, "BUILD", day.BUILD._replace(part=lambda run, limit_s: {"status": "passed"}))
    assert day.main(["run", "--out", str(tmp_path / "out")]) == 0
    result = json.loads((tmp_path / "out/result.json").read_text(encoding="utf-8"))
    assert list(result["parts"]) == ["build"]
    said = capsys.readouterr().err
    assert "stashtrace/libstashtrace.so" in said
    assert "build/day/commit" in said


def test_a_copy_without_the_repository_says_its_commit(day: ModuleType, tmp_path: Path) -> None:
    harness = day.harness
    (tmp_path / harness.COMMIT_FILE).parent.mkdir(parents=True)
    (tmp_path / harness.COMMIT_FILE).write_text("0123abc-dirty\n", encoding="utf-8")
    assert harness.commit_of(tmp_path) == "0123abc-dirty"
    if shutil.which("git") is None:
        pytest.skip("no git")
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], [*author, "commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    assert "0123abc" not in harness.commit_of(tmp_path), "a repository knows better"
