"""`run --idle`: nothing is recorded until a window is asked for; its steps have separate numbers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from example_job import ENVIRONMENT, stashtrace

from stashtrace.analysis.steps.steps import steps
from stashtrace.live.state import read_events
from stashtrace.loading.load import load_trace
from stashtrace.schema.kinds import IoOp
from stashtrace.schema.trace import Trace

#: Two ranks that read a file in each step and write down when each began; rank 1 is a step behind. A file ends them.
LOOP = """
import os, subprocess, sys, time, stashtrace
if 'RANK' not in os.environ:
    ranks = [subprocess.Popen([sys.executable, *sys.orig_argv[1:]],
             env={**os.environ, 'RANK': str(r), 'WORLD_SIZE': '2', 'LOCAL_RANK': str(r)}) for r in (0, 1)]
    sys.exit(max(rank.wait() for rank in ranks))
rank = int(os.environ['RANK'])
time.sleep(0.1 * rank)
begin = time.monotonic()
with open(f'begins{rank}', 'w') as begins:
    for step in range(100000):
        begins.write(f'{step} {time.monotonic_ns()}\\n')
        begins.flush()
        with open('data', 'rb') as file: file.read(1 << 16)
        time.sleep(0.05)
        stashtrace.step()
        if os.path.exists('enough') or time.monotonic() - begin > 120: break
"""


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path], int]:
    """The folder of a job that was idle but for two windows, these, and the bytes of records before the first one."""
    folder = tmp_path_factory.mktemp("idle")
    (folder / "data").write_bytes(bytes(1 << 16))
    words = [sys.executable, "-m", "stashtrace", "run", "--idle", "--out", "run", "--"]
    command = [*words, sys.executable, "-c", LOOP]
    windows = []
    with subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as job:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not list((folder / "run").glob("live-*.json")):
            time.sleep(0.2)
        time.sleep(3)
        before = sum(path.stat().st_size for path in (folder / "run").glob("*.stash"))
        for _ in range(2):
            answer = stashtrace("capture", "run", "--steps", "20", cwd=folder)
            assert answer.returncode == 0, answer.stderr
            windows.append(Path(answer.stdout.strip()))
            time.sleep(2)
        (folder / "enough").touch()
        assert job.stderr is not None
        said = job.stderr.read()
    assert job.returncode == 0, said
    return folder, windows, before


@pytest.mark.parametrize("which", [0, 1])
def test_a_window_has_the_steps_that_were_asked_for(idle: tuple[Path, list[Path], int], which: int) -> None:
    """With their numbers, which count the steps that nobody recorded, and their begins."""
    folder, windows, _ = idle
    table = steps(load_trace(windows[which]))
    by_rank = {rank: table.take(table["rank"] == rank) for rank in (0, 1)}
    first, last = int(table["step"].min()), int(table["step"].max())
    assert last - first + 1 >= 20
    assert [own["step"].tolist() for own in by_rank.values()] == [[*range(first, last + 1)]] * 2
    origin = load_trace(windows[which]).metadata
    trace = load_trace(windows[which])
    named = origin["key_code"] == trace.strings.find("origin_monotonic_ns")
    zero = int(trace.text(int(origin["value_code"][named][-1])))
    for rank, own in by_rank.items():
        lines = (folder / f"begins{rank}").read_text().split()
        begins = dict(zip(map(int, lines[::2]), map(int, lines[1::2]), strict=True))
        for step, begin in zip(own["step"].tolist(), own["begin_ns"].tolist(), strict=True):
            # A step begins where the one before ends: after that has slept, and before the job notes the next begin.
            assert begins[step - 1] + 40_000_000 < begin + zero < begins[step] + 1_000_000


def test_the_second_window_comes_later(idle: tuple[Path, list[Path], int]) -> None:
    first, second = (steps(load_trace(window)) for window in idle[1])
    assert second["step"].min() > first["step"].max()


def test_reads_are_recorded_in_windows_alone(idle: tuple[Path, list[Path], int]) -> None:
    folder, windows, before = idle
    assert before < 3 * 22_000, "heads of three files, clock readings and facts of processes alone"
    for window in windows:
        trace = load_trace(window)
        assert _reads_count(trace) >= 40
    made = sum(len((folder / f"begins{rank}").read_text().splitlines()) for rank in (0, 1))
    assert _reads_count(load_trace(folder / "run")) < 0.9 * made


def _reads_count(trace: Trace) -> int:
    reads = trace.io.take(trace.io["op_code"] == IoOp.READ)
    return sum(trace.text(code).endswith("/data") for code in reads["path_code"].tolist())


def test_the_run_itself_is_its_last_window(idle: tuple[Path, list[Path], int]) -> None:
    folder, windows, _ = idle
    assert steps(load_trace(folder / "run"))["step"].tolist() == steps(load_trace(windows[-1]))["step"].tolist()
    assert not list((folder / "run").glob("control-*"))
    sealed = [event.window for event in read_events(folder / "run") if event.kind == "capture"]
    assert sealed == [str(window) for window in windows]


def test_a_job_without_steps_is_said(tmp_path: Path) -> None:
    """It ends before a rank has begun a step: `capture` says so."""
    code = "import os, time\nwhile not os.path.exists('enough'): time.sleep(0.1)"
    words = [sys.executable, "-m", "stashtrace", "run", "--idle", "--no-merge", "--out", "run", "--"]
    with subprocess.Popen([*words, sys.executable, "-c", code], cwd=tmp_path, env=ENVIRONMENT) as job:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not list((tmp_path / "run").glob("live-*.json")):
            time.sleep(0.2)
        with subprocess.Popen(
            [sys.executable, "-m", "stashtrace", "capture", "run"],
            cwd=tmp_path,
            env=ENVIRONMENT,
            stderr=subprocess.PIPE,
            text=True,
        ) as asked:
            while time.monotonic() < deadline and not _asked(tmp_path / "run"):
                time.sleep(0.1)
            (tmp_path / "enough").touch()
            assert asked.stderr is not None
            said = asked.stderr.read()
        assert asked.returncode == 3
    assert job.returncode == 0
    assert "no window is sealed as asked: the job has ended" in said


def _asked(run: Path) -> bool:
    """Whether the follower has taken a request and asked the processes to record."""
    control = run / f"control-{os.uname().nodename}"
    return control.exists() and control.read_bytes()[:1] != b"\0"


@pytest.mark.parametrize("words", [["--keep-last", "5"], ["--steps", "3:5"]])
def test_options_that_contradict_are_refused(tmp_path: Path, words: list[str]) -> None:
    answer = stashtrace("run", "--idle", *words, "--", "true", cwd=tmp_path)
    assert answer.returncode == 2
    assert "--idle" in answer.stderr
