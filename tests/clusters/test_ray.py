"""The example of Ray Train, in an environment that has ray: STASHTRACE_RAY_PYTHON names its Python."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from stashtrace.loading.load import load_trace

ROOT = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("STASHTRACE_RAY_PYTHON", "")


@pytest.mark.skipif(not PYTHON, reason="STASHTRACE_RAY_PYTHON names no Python with ray[train], torch and this package")
@pytest.mark.skipif(" " in PYTHON, reason="Ray starts no worker whose Python has a space in its path")
def test_every_worker_records_itself(tmp_path: Path) -> None:
    own = tmp_path / "stashtrace"
    own.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{PYTHON}" -P -m stashtrace "$@"\n')
    own.chmod(0o755)
    words = [PYTHON, str(ROOT / "examples/cluster/ray_train.py"), "--runs", str(tmp_path / "runs")]
    environment = dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}")
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stderr
    command = done.stdout.splitlines()[-1]
    assert command.startswith("stashtrace merge ")
    trace = load_trace(command.removeprefix("stashtrace merge "))
    assert trace.ranks.tolist() == [0, 1]
    assert len(trace.collectives) >= 100
