"""`stashtrace merge` that is interrupted leaves no half written file, and nothing of the run is lost.

The signal comes at an exact place, not at a time: where the merge opens, renames or changes the rights of a half
written file, known from Python's audit events. So the places are the same on each machine.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import environment

from stashtrace.cli.synth import main as write_synthetic
from stashtrace.loading.load import load_trace

#: Runs `stashtrace merge` and sends itself a signal at the numbered event of a half written file; prints their number.
MERGING = """
import os, re, sys
at, number, run = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
half, seen = re.compile(r"(\\.tmp|\\.part[0-9]+-[0-9a-f]+-[0-9a-f]+)$"), []
def look(event, arguments):
    if event in ("open", "os.rename", "os.chmod") and half.search(os.fsdecode(arguments[0]) if isinstance(arguments[0], (str, bytes, os.PathLike)) else ""):
        seen.append(event)
        if len(seen) == at: os.kill(os.getpid(), number)
sys.addaudithook(look)
from stashtrace.cli import main
code = main(["merge", run])
print(len(seen), len([e for e in seen if e == "os.rename"]))
sys.exit(code)
"""  # noqa: E501


def merge(run: Path, at: int, number: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", MERGING, str(at), str(number), str(run)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up run of two ranks, as it was recorded."""
    run = tmp_path_factory.mktemp("made") / "run"
    assert write_synthetic([str(run), "--ranks", "2", "--steps", "20"]) == 0
    return run


@pytest.fixture(scope="module")
def whole(made: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, int]]:
    """What an undisturbed merge does: events of half written files; rows of each table."""
    run = shutil.copytree(made, tmp_path_factory.mktemp("whole") / "run")
    done = merge(run, 0)
    assert done.returncode == 0, done.stderr
    events, renames = map(int, done.stdout.split()[-2:])
    assert renames >= 4  # two files, the timeline, the summary
    return events, rows(run)


def rows(run: Path) -> dict[str, int]:
    trace = load_trace(str(run))
    return {name: len(trace.table(name)) for name in ("io", "phases", "batches", "collectives", "processes")}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_an_interrupted_merge_leaves_nothing_behind(
    made: Path, whole: tuple[int, dict[str, int]], tmp_path: Path, share: float, number: signal.Signals
) -> None:
    events, expected = whole
    run = shutil.copytree(made, tmp_path / "run")
    done = merge(run, max(2, round(share * events)), number)
    assert done.returncode not in (0, 1), (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    left = [p.name for p in run.iterdir() if ".part" in p.name or p.name.endswith(".tmp")]
    assert left == []
    assert json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert rows(run) == expected
