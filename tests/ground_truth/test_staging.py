"""`stashtrace stage --check` on a disk with a speed limit: it gains what the disk cost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from installed import needs_torch
from measurements import Measurements

from ground_truth import machine, staging_job

needs_torch()

pytestmark = [pytest.mark.truth, pytest.mark.torch, pytest.mark.root]

ROOT = Path(__file__).resolve().parents[2]
DISK_BYTES_PER_S = 20_000_000
STEPS, WARMUP, ITERATIONS = 26, 3, 20
#: What a step loses to this disk.
INJECTED_NS = staging_job.BATCH * staging_job.FILE_BYTES * 10**9 // DISK_BYTES_PER_S


@pytest.fixture
def tier() -> Iterator[Path]:
    """A folder in memory."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no /dev/shm to write to")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="stashtrace-tier-") as folder:
        yield Path(folder)


def test_copies_gain_what_the_disk_cost(tmp_path: Path, tier: Path) -> None:
    measured = Measurements(lambda folder: staged(folder, tier), tmp_path)
    measured.agree(gains_what_the_disk_cost)


def staged(folder: Path, tier: Path) -> dict[str, Any]:
    """Answer of the command about a new job on the slow disk."""
    folder.mkdir()
    data = folder / "data"
    paths = staging_job.write_files(data, STEPS)
    for path in paths:
        machine.evict(path)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    stashtrace = [sys.executable, "-m", "stashtrace"]
    job = [sys.executable, str(ROOT / "tests/ground_truth/staging_job.py"), str(data), str(STEPS)]

    try:
        with machine.slow_disk(data, DISK_BYTES_PER_S) as limit:
            limit.begin()

            def on_slow_disk(*words: str) -> subprocess.CompletedProcess[str]:
                done = subprocess.run(
                    [*stashtrace, *words],
                    cwd=folder,
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=300,
                    preexec_fn=limit.join,
                )
                assert done.returncode == 0, done.stderr
                return done

            on_slow_disk("run", "--out", "run", "--no-merge", "--", *job)
            done = on_slow_disk(
                "stage",
                "run",
                "--under",
                str(data),
                "--to",
                str(tier),
                "--check",
                "--repeat",
                "1",
                "--iterations",
                str(ITERATIONS),
                "--warmup",
                str(WARMUP),
                "--format",
                "json",
            )
    except machine.Missing as missing:
        pytest.skip(str(missing))
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def gains_what_the_disk_cost(found: dict[str, Any]) -> None:
    assert found["bytes"] >= 0.9 * STEPS * staging_job.BATCH * staging_job.FILE_BYTES
    check = found["check"]
    assert check["notes"] == [], "the files were cold"
    # The job is ended soon after its last step that counts, and copies of files that took no time were not made.
    steps = check["staged_opens_counts"][0] / staging_job.BATCH
    assert 0.9 * (WARMUP + ITERATIONS) <= steps <= STEPS
    assert check["gain_ns"] == pytest.approx(INJECTED_NS, rel=0.25)
    assert found["predicted_step_gain_ns"] == pytest.approx(INJECTED_NS, rel=0.25)
