"""A job that is recorded under valgrind: it reports no errors of ours, nor any that it would not report without us."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from collectors.recorded import record

PROGRAM = Path(__file__).resolve().parent / "programs/threads_and_child.c"


@pytest.mark.thorough
def test_valgrind_sees_no_error(tmp_path: Path) -> None:
    valgrind, compiler = shutil.which("valgrind"), shutil.which("gcc")
    if valgrind is None or compiler is None:
        pytest.skip("no valgrind, or no C compiler")
    program = tmp_path / "job"
    subprocess.run([compiler, "-g", "-w", "-o", program, PROGRAM, "-pthread"], check=True)
    command = [valgrind, "--quiet", "--error-exitcode=9", "--trace-children=no", program]
    done = record(command, tmp_path / "run", exit_code=None)
    assert (done.exit_code, done.stderr) == (0, "")
    assert len(done.trace.processes) >= 2
    assert done.trace.io_rows_count > 50_000
