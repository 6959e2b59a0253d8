"""A library in front of libc bends the clocks of a job: it runs, times are the kernel's, and this is said."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from collectors.recorded import NATIVE, compiled, record

from stashtrace.analysis.findings import summarize
from stashtrace.summary.style import Style
from stashtrace.summary.summary_text import render

#: Reads a file, waits by the true clock, reads it again.
SCRIPT = """
import os, select, sys
for _ in range(2):
    os.close(os.open(sys.argv[1], os.O_RDONLY))
    select.select([], [], [], 0.2)
"""


@pytest.fixture(scope="module")
def bending(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("bent") / "libbent.so"
    compiled("io_uring.c")  # skips where there is no compiler
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", library, NATIVE / "bent_clock.c"], check=True)
    return library


@pytest.mark.parametrize(
    ("how", "said"),
    [("still", "stands still"), ("fast", "runs 10 times as fast"), ("ahead", "is 30 d ahead")],
)
def test_times_are_the_kernel_s_and_the_bent_clock_is_said(bending: Path, tmp_path: Path, how: str, said: str) -> None:
    file = tmp_path / "data"
    file.touch()
    before_ns = time.time_ns()
    env = {"LD_PRELOAD": str(bending), "BENT_CLOCK": how}
    done = record([sys.executable, "-S", "-c", SCRIPT, file], tmp_path / "run", env=env)
    after_ns = time.time_ns()
    first, second = (row.begin_ns for row in done.of(file) if row.op.name == "OPEN")
    assert 200_000_000 <= second - first < after_ns - before_ns, "neither stopped nor 10 times as long"
    (metadata,) = [p.metadata for p in open_run_of(done.directory)]
    assert before_ns <= metadata["start_realtime_ns"] <= after_ns
    text = " ".join(render(summarize(done.trace), Style(), "run").split())
    assert f"bent clock (core): the job's clock {said}, by libbent.so; the times here are the kernel's" in text


def open_run_of(directory: Path):  # type: ignore[no-untyped-def]
    from stashtrace.format.reader import open_run

    return open_run(directory).processes


def test_nothing_is_said_of_a_clock_that_nobody_bends(tmp_path: Path) -> None:
    done = record(["cat", "/etc/hostname"], tmp_path / "run")
    assert all("job_clock_ahead_ns" not in process.metadata for process in open_run_of(done.directory))
