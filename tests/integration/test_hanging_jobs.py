"""Real jobs that stand still: `analyze hang` names rank and reason while they live; a long checkpoint is no hang.

All kinds, with the time that the answer takes: ``benchmarks/bench_hangs.py``.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from example_job import ENVIRONMENT, ROOT, stashtrace

pytestmark = pytest.mark.torch
JOB = [sys.executable, str(ROOT / "tests/ground_truth/launch_ranks.py"), "--", sys.executable]
#: Nothing is judged by time here: a busy machine may take long.
LIMIT_S = 200.0


@contextmanager
def job(scene: str, folder: Path) -> Iterator[Path]:
    """Run a job until it stands still, or takes long; its run directory."""
    pytest.importorskip("torch")
    files = folder / "files"
    files.mkdir()
    script = [*JOB, str(ROOT / "benchmarks/hangs/job.py"), scene, str(files)]
    command = [sys.executable, "-m", "stashtrace", "run", "--out", str(folder / "run"), "--", *script]
    with open(folder / "output", "wb") as output:
        started = subprocess.Popen(command, env=ENVIRONMENT, stdout=output, stderr=output, start_new_session=True)
    try:
        wait_for(lambda: (files / "began").exists() or started.poll() is not None)
        assert started.poll() is None, (folder / "output").read_text(errors="replace")
        yield folder / "run"
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def wait_for(happens: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.2)


def said(run: Path, pattern: str) -> str:
    """What `analyze hang` says, once it says something of this form; all that it said before is quiet."""
    end = time.monotonic() + LIMIT_S
    while True:
        text = stashtrace("analyze", "hang", str(run), cwd=run.parent).stdout
        if re.search(pattern, text):
            return text
        assert time.monotonic() < end, text
        assert not text.startswith(("mismatched", "the job")), text


@pytest.mark.thorough
@pytest.mark.parametrize(("scene", "worker"), [("worker_read", 0), ("worker_of_eight", 6)])
def test_a_worker_in_a_read_that_does_not_return(scene: str, worker: int, tmp_path: Path) -> None:
    with job(scene, tmp_path) as run:
        text = said(run, r"no progress for .*: rank 1 has not entered all-reduce \d+ of default_pg")
        in_read = rf"worker {worker} of rank 1 is inside read\(\) of \S*/queue\.fifo"
        assert re.search(in_read, text), text
        reported = stashtrace("analyze", "hang", str(run), "--format", "json", cwd=tmp_path).stdout
        (row,) = json.loads(reported)
        assert (row["rank"], row["reason"], row["waiting"]) == (1, "not_entered", "0")
        assert row["workers"] == f"{worker} read {tmp_path / 'files' / 'queue.fifo'}"
        live = " ".join(stashtrace("live", str(run), "--once", cwd=tmp_path).stdout.split())
        assert re.search(in_read, live), live


def test_a_rank_that_is_stopped(tmp_path: Path) -> None:
    with job("sigstop", tmp_path) as run:
        text = said(run, r"no progress for .*: rank 1 has not entered all-reduce \d+ of default_pg")
        assert "  the process of rank 1 is stopped by a signal (SIGSTOP) or a debugger" in text
    text = stashtrace("analyze", "hang", str(run), cwd=tmp_path).stdout
    assert re.search(r"rank 1 has not entered all-reduce \d+ of default_pg", text), text


def test_a_long_copy_of_a_checkpoint_is_no_hang(tmp_path: Path) -> None:
    with job("long_copy", tmp_path) as run:
        text = said(run, r"rank 1 has not entered all-reduce \d+ of default_pg, 4.10 KB, but it still reads or writes")
        assert "no progress" not in text
