"""``stashtrace stage``: what it prints, its exit codes, its complaints; the runs of --check are made up here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import MS, TraceBuilder

from stashtrace.cli import main
from stashtrace.lab import stage_files as staging
from stashtrace.lab.characterize.run_figures import Figures
from stashtrace.record.staged_files import read_staged_list
from stashtrace.schema.trace import Trace

STEPS = 10


def recorded(folder: Path, *, blocked: bool = True, steps: int = STEPS) -> Trace:
    """A rank that reads two files in each step; the first waits for storage 20 ms, the second 1 ms."""
    build = TraceBuilder()
    rank = build.rank(0)
    for step in range(steps):
        begin = step * 100 * MS
        rank.step_mark(begin)
        for name, cost in (("slow.bin", 20), ("fast.bin", 1)):
            rank.io(
                begin, begin + cost * MS, path=str(folder / name), blocked=blocked, result_bytes=1000, offset_bytes=0
            )
    if not steps:
        rank.io(0, 20 * MS, path=str(folder / "slow.bin"), blocked=blocked, result_bytes=1000)
    else:
        rank.step_mark(steps * 100 * MS)
    return build.trace()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory: a run of a job, its files in `data`."""
    (tmp_path / "data").mkdir()
    for name in ("slow.bin", "fast.bin"):
        (tmp_path / "data" / name).write_bytes(bytes(1000))
    (tmp_path / "run").mkdir()
    record(tmp_path, command=["job"], working_directory=str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stashtrace.loading.load.load_trace", lambda path: recorded(tmp_path / "data"))
    return tmp_path


def record(job: Path, **facts: Any) -> None:
    (job / "run/run.json").write_text(json.dumps(facts), encoding="utf-8")


def measure(monkeypatch: pytest.MonkeyPatch, *, plain_ms: float = 100, staged_ms: float = 80, opens: int = 20) -> None:
    def measured(task: Any, directory: Path, *rest: Any) -> tuple[Figures, int]:
        copies = task.options.staged is not None
        return Figures((staged_ms if copies else plain_ms) * MS, STEPS, 0, 1, 1, 0), opens if copies else 0

    monkeypatch.setattr(staging, "_measure", measured)


def stage(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    assert main(["stage", "run", "--to", "tier", *words]) == code
    said = capsys.readouterr()
    return said.out, said.err


def test_copies_and_what_to_expect(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = stage(capsys)
    assert "staged       2 of 2 files, 2.00 KB" in out
    assert "at most 21.0 ms a step and rank less inside I/O calls" in out
    assert "! the copies lie on the same disk as the files" in out
    assert "stashtrace run --staged tier/staged.list -- COMMAND" in out
    assert set(read_staged_list(job / "tier/staged.list")) == {str(job / "data/slow.bin"), str(job / "data/fast.bin")}
    assert "(2 were there)" in stage(capsys)[0]


def test_a_size_takes_the_best(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = stage(capsys, "--size", "1500")
    assert "1 of 2 files" in out
    assert list(read_staged_list(job / "tier/staged.list")) == [str(job / "data/slow.bin")]


def test_a_tier_that_takes_time(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = stage(capsys, "--tier-latency", "1ms", "--tier-bandwidth", "1MB/s")
    assert "at most 18.0 ms a step and rank less inside I/O calls, all threads added (tier as stated)" in out
    assert "half of the tier" in stage(capsys, "--tier-latency", "1ms", code=2)[1]


def test_a_measured_gain(job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    measure(monkeypatch)
    out, _ = stage(capsys, "--check", "--repeat", "3")
    assert "measured     100 ms a step before, 80.0 ms with the copies: 20.0 ms less (3 pairs, between 20.0 ms" in out
    assert "served       20 opens of each run by copies" in out


def test_the_json(job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    measure(monkeypatch)
    found = json.loads(stage(capsys, "--check", "--repeat", "1", "--format", "json")[0])
    assert found["predicted_step_gain_ns"] == 21 * MS
    check = found["check"]
    assert (check["gain_ns"], check["low_ns"], check["pairs_count"]) == (20 * MS, None, 1)
    assert check["staged_opens_counts"] == [20]


def test_a_loss_is_said_as_one(job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    measure(monkeypatch, staged_ms=110)
    out, _ = stage(capsys, "--check", "--repeat", "1")
    assert "110 ms with the copies: 10.0 ms more (1 pair, which says" in out


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, "does not say which command"),
        ({"command": ["job"], "launchers_count": 2}, "several hosts"),
        ({"command": ["job"], "working_directory": "/nowhere"}, "made in /nowhere"),
    ],
)
def test_a_command_that_cannot_be_run_again(
    job: Path, capsys: pytest.CaptureFixture[str], facts: dict[str, Any], said: str
) -> None:
    """Said before anything is copied."""
    record(job, **facts)
    assert said in stage(capsys, "--check", code=4)[1]
    assert not (job / "tier").exists()


@pytest.mark.parametrize("facts", [{"launchers_count": "many"}, {"launchers_count": []}, {"working_directory": 4}])
def test_facts_of_another_type_are_not_known(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any]
) -> None:
    record(job, command=["job"], **facts)
    measure(monkeypatch)
    assert "staged " in stage(capsys, "--check", "--repeat", "1")[0]


@pytest.mark.parametrize(
    "words", [("--size", "0"), ("--size", "much"), ("--repeat", "0"), ("--iterations", "0"), ("--warmup", "-1")]
)
def test_senseless_options(job: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert words[0] in stage(capsys, *words, code=2)[1]
    assert not (job / "tier").exists()


def test_a_job_that_does_not_wait(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = recorded(job / "data", blocked=False)
    monkeypatch.setattr("stashtrace.loading.load.load_trace", lambda path: trace)
    assert "no file would gain" in stage(capsys, code=4)[1]


def test_no_calls_at_all(job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    build = TraceBuilder()
    build.rank(0).step_mark(0)
    monkeypatch.setattr("stashtrace.loading.load.load_trace", lambda path: build.trace())
    assert "I/O call" in stage(capsys, code=4)[1]


def test_a_run_without_steps(job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Can be staged; there is nothing to compare."""
    monkeypatch.setattr("stashtrace.loading.load.load_trace", lambda path: recorded(job / "data", steps=0))
    assert "the run has none" in stage(capsys, "--check", code=4)[1]
    assert "at most 20.0 ms less inside I/O calls" in stage(capsys)[0]


def test_the_room_of_the_copies_counts_as_free(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a second call finds less room, and removes what the first one copied."""
    free = 2200

    def usage(_: Any) -> Any:
        taken = sum(path.stat().st_size for path in (job / "tier").glob("*.bin")) if (job / "tier").exists() else 0
        return SimpleNamespace(free=free - taken)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    assert "2 of 2 files" in stage(capsys)[0]
    assert "2 of 2 files, 2.00 KB (2 were there)" in stage(capsys)[0]


def test_what_is_no_run_is_not_removed(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said before anything is copied."""
    measure(monkeypatch)
    mine = job / "staging/plain-1/mine.txt"
    mine.parent.mkdir(parents=True)
    mine.touch()
    assert "staging/plain-1 is in the way and no run of ours" in stage(capsys, "--check", code=3)[1]
    assert mine.exists()
    assert not (job / "tier").exists()
    stage(capsys, "--check", "--repeat", "1")
    (job / "file").touch()
    assert "cannot write runs to file" in stage(capsys, "--check", "--out", "file", code=3)[1]
