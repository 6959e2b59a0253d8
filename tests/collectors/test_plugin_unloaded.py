"""The recorder as NCCL's plugin alone, without the preload: NCCL unloads it, and the job goes on."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from collectors.recorded import NATIVE, record
from device import build, fake_environment

from stashtrace.record.environment import LIBRARY_PATH


@functools.cache
def program() -> Path:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    path = Path(tempfile.mkdtemp(prefix="stashtrace-test-")) / "plugin_unloading"
    nccl = build() / "fakes" / "nccl" / "libnccl.so.2"
    sources = [NATIVE / "plugin_unloading.c", nccl, f"-Wl,-rpath-link,{nccl.parent}"]
    subprocess.run([compiler, "-O1", "-w", "-o", path, *sources, "-ldl", "-pthread"], check=True)
    return path


@pytest.mark.parametrize("scene", ["thread", "imports"])
def test_a_job_outlives_the_plugin(tmp_path: Path, scene: str) -> None:
    run = record(
        [program(), scene, LIBRARY_PATH],
        tmp_path / "run",
        collectors=("nccl",),
        env=fake_environment(tmp_path / "doubles"),
        preload=False,
    )
    assert run.stdout == "used 0\n"
    # The recorder is still the same: it has what it received before it was closed, and since.
    assert {run.trace.text(row["name_code"]) for row in run.trace.groups.rows()} == {"first", "second"}
