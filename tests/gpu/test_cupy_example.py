"""The CuPy example under the tracer, on a device: steps on its clock; with two devices, its collectives too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stashtrace
from stashtrace.schema.kinds import Bracket

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = [pytest.mark.gpu, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
STEPS = 30


def devices_count() -> int:
    """0 where there is no driver."""
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0


def run(out: Path, world_size: int, *options: str) -> stashtrace.Trace:
    """The example on ``world_size`` ranks."""
    job = [sys.executable, str(ROOT / "examples/train_cupy.py"), "--steps", str(STEPS)]
    if world_size > 1:
        job = [sys.executable, str(ROOT / "tests/ground_truth/launch_ranks.py"), "--", *job]
    command = [sys.executable, "-m", "stashtrace", "run", "--out", str(out), *options, "--", *job]
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return stashtrace.load(out)


def test_steps_lie_on_the_clock_of_the_device(tmp_path: Path) -> None:
    if devices_count() < 1:
        pytest.skip("no device")
    trace = run(tmp_path / "run", 1)
    marks = trace.device_brackets.take(trace.device_brackets["bracket_code"] == Bracket.STEP)
    assert len(marks) >= STEPS
    assert (marks["begin_ns"] >= 0).all()
    assert len(stashtrace.analyze(trace, "steps")) in (STEPS - 1, STEPS)


def test_copies_are_seen_with_the_look_up_hook(tmp_path: Path) -> None:
    if devices_count() < 1:
        pytest.skip("no device")
    trace = run(tmp_path / "run", 1, "--lookup-hook")
    copies = trace.device_brackets.take(trace.device_brackets["bracket_code"] == Bracket.COPY)
    assert len(copies) + len(trace.device_calls) >= STEPS


def test_collectives_of_two_devices(tmp_path: Path) -> None:
    if devices_count() < 2:
        pytest.skip("needs two devices")
    trace = run(tmp_path / "run", 2)
    assert sorted(set(trace.collectives["rank"].tolist())) == [0, 1]
    assert len(trace.collectives) >= 2 * 2 * STEPS
    assert (trace.collectives["device_end_ns"] > 0).mean() > 0.9
