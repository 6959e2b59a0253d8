"""Burnt CPU, a slow disk and a slow link, all at once: each moves the stall that it belongs to, by what it takes."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from measurements import Measurements

from ground_truth.five_steps_truth import BURNT, READ, exposed_ms
from ground_truth.machine import Missing, slow_disk

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "tests" / "ground_truth" / "five_steps_job.py"
RANKS, BATCH, FILE_BYTES, WIDTH = 2, 4, 256 << 10, 512
BURN_MS, DISK_BYTES_PER_S, LINK_BITS_PER_S = 6.0, 20_000_000, 200_000_000
GRADIENT_BYTES = 4 * (256 * WIDTH + WIDTH + WIDTH * WIDTH + WIDTH)
WARMUP, ITERATIONS = 4, 12
#: A ring of two: each sends its gradients once.
LINK_MS = GRADIENT_BYTES * 8 / LINK_BITS_PER_S * 1e3
#: Beside what is injected: collating a batch, the inside of the host for the gradients.
OWN_MS = 4.0
#: Runs of each step, whose median counts. Where the stalls are off, more are added to those that there are.
REPEATS = (3, 5, 7)


def characterize(folder: Path, repeats: int) -> dict[str, Any]:
    """Steps 2 to 5 with everything injected; the disk only slows down what is not in the page cache."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    job = [*torchrun, str(JOB), "--data", str(folder / "data"), "--burn-ms", str(BURN_MS), "--width", str(WIDTH)]
    command = [
        sys.executable, "-m", "stashtrace", "characterize", "--out", str(folder / "answer"), "--format", "json",
        "--steps", "2,3,4,5", "--repeat", str(repeats), "--iterations", str(ITERATIONS), "--warmup", str(WARMUP),
        "--emulate-network", f"{LINK_BITS_PER_S // 10**6}mbit", "--", *job,
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    (folder / "data").mkdir(exist_ok=True)
    with slow_disk(folder / "data", DISK_BYTES_PER_S) as limit:
        limit.begin()
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=500, preexec_fn=limit.join
        )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.root
def test_each_stall_is_what_was_injected(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    repeats = iter(REPEATS)

    def measured(folder: Path) -> dict[str, Any]:
        return characterize(tmp_path, next(repeats))

    try:
        answers = Measurements(measured, tmp_path, most=len(REPEATS))
        states = {name: (entry["status"], entry["why"]) for name, entry in answers.first["steps"].items()}
    except Missing as missing:
        pytest.skip(str(missing))
    for name in ("t3_ns", "t5_ns"):
        if states[name][0] == "not measured":  # no cold cache, or no namespaces here
            pytest.skip(states[name][1])
    answers.agree(lambda answer: stalls_are_what_was_injected(tmp_path / "answer", answer))


def stalls_are_what_was_injected(folder: Path, answer: dict[str, Any]) -> None:
    def exposed(step: int, *columns: int) -> float:
        return exposed_ms(folder, step, columns, WARMUP, ITERATIONS)

    assert exposed(4, BURNT) >= 0.99 * BATCH * BURN_MS
    assert exposed(3, READ) > exposed(4, READ) + 4 * OWN_MS, "the disk was not slow enough to tell"
    # Nothing is loaded while the step computes: what the job's own clock says of loading is exposed.
    loading_ms = {step: exposed(step, READ, BURNT) for step in (3, 4)}
    expected_ms = {"prep": loading_ms[4], "fetch": loading_ms[3] - loading_ms[4], "network": LINK_MS}
    for stall, injected_ms in expected_ms.items():
        lost_ms = answer["stalls"][stall]["lost_ns"] / 1e6
        assert lost_ms == pytest.approx(injected_ms, rel=0.10, abs=OWN_MS), (stall, answer["steps"], answer["stalls"])
