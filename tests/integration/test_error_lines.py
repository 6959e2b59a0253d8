"""The recorder's error lines reach the stderr of the start and nothing else (`tests/native/test_log.cpp` has more)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from collectors.recorded import RUN_ID, compiled, plain_environment

from stashtrace.record.environment import traced_environment


def traced(run_dir: Path) -> dict[str, str]:
    run_dir.mkdir(exist_ok=True)
    return traced_environment(plain_environment(), run_dir=run_dir, run_id=RUN_ID)


def test_a_data_file_with_descriptor_2_stays_as_it_is(tmp_path: Path) -> None:
    data, run_dir = tmp_path / "data", tmp_path / "run"
    data.write_text("0123456789abcdef")
    command = [compiled("reused_stderr.c"), data, run_dir]
    done = subprocess.run(command, env=traced(run_dir), capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert list((tmp_path / "run.moved").glob("*.stash")), "the parent was recorded"
    assert data.read_text() == "0123456789abcdef"


@pytest.mark.parametrize("limit", ["", "ulimit -f 0; "])
def test_a_job_outlives_a_stderr_that_takes_nothing(tmp_path: Path, limit: str) -> None:
    """A pipe that nobody reads, and a file at its limit of size: no signal ends the job."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(tmp_path / "errors", "wb") as file:
        env = traced(tmp_path) | {"STASHTRACE_DIR": str(tmp_path / "nowhere")}
        done = subprocess.run(
            ["sh", "-c", f"{limit}exec cat /etc/hostname"],
            env=env,
            stdout=subprocess.PIPE,
            stderr=file if limit else writer,
            timeout=120,
            restore_signals=True,
        )
    os.close(writer)
    assert done.returncode == 0
