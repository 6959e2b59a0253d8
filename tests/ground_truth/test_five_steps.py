"""Burnt CPU, a slow disk and a slow link, all at once: each moves the stall that it belongs to, by what it takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from measurements import Measurements

from ground_truth.five_steps_truth import BURNT, READ, exposed_ms
from ground_truth.machine import Missing, slow_disk

pytestmark = pytest.mark.truth

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "tests" / "ground_truth" / "five_steps_job.py"
RANKS, BATCH, FILE_BYTES, WIDTH = 2, 4, 512 << 10, 512
BURN_MS, DISK_BYTES_PER_S, LINK_BITS_PER_S = 6.0, 20_000_000, 200_000_000
GRADIENT_BYTES = 4 * (256 * WIDTH + WIDTH + WIDTH * WIDTH + WIDTH)
WARMUP, ITERATIONS = 4, 12
#: A ring of two: each sends its gradients once.
LINK_MS = GRADIENT_BYTES * 8 / LINK_BITS_PER_S * 1e3
#: In addition to what is injected: collating a batch, the inside of the host for the gradients.
OWN_MS = 4.0
#: Runs of each step, whose median counts. Where the stalls are off, more are added to those that there are.
REPEATS = (3, 5, 7)


def characterize(folder: Path, repeats: int) -> dict[str, Any]:
    """Steps 2 to 5 with everything injected; the disk only slows down what is not in the page cache."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    job = [
        *(*torchrun, str(JOB), "--data", str(folder / "data"), "--burn-ms", str(BURN_MS), "--width", str(WIDTH)),
        *("--file-bytes", str(FILE_BYTES), "--files", "300"),
    ]
    command = [
        *(sys.executable, "-m", "stashtrace", "characterize", "--out", str(folder / "answer"), "--format", "json"),
        *("--steps", "2,3,4,5", "--repeat", str(repeats), "--iterations", str(ITERATIONS), "--warmup", str(WARMUP)),
        *("--emulate-network", f"{LINK_BITS_PER_S // 10**6}mbit", "--", *job),
    ]
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
    try:
        answers = Measurements(lambda _: measured(tmp_path, next(repeats)), tmp_path, most=len(REPEATS))
        states = {name: (entry["status"], entry["why"]) for name, entry in answers.first.steps.items()}
    except Missing as missing:
        pytest.skip(str(missing))
    for name in ("t3_ns", "t5_ns"):
        if states[name][0] == "not measured":  # no cold cache, or no namespaces here
            pytest.skip(states[name][1])
    for stall in ("prep", "fetch", "network"):
        answers.agree(partial(stall_is_what_was_injected, stall))


@dataclass(frozen=True)
class Answer:
    """What is said of the steps, and of each stall other than what was injected, in ms."""

    steps: dict[str, Any]
    lost: dict[str, float]
    injected: dict[str, float]


def measured(folder: Path, repeats: int) -> Answer:
    answer = characterize(folder, repeats)

    def exposed(step: int, *columns: int) -> float:
        return exposed_ms(folder / "answer", step, columns, WARMUP, ITERATIONS)

    if not {"prep", "fetch", "network"} <= answer["stalls"].keys():
        return Answer(answer["steps"], {}, {})
    assert exposed(4, BURNT) >= 0.99 * BATCH * BURN_MS
    # Nothing is loaded while the step computes: what the job's clock says of loading is exposed.
    loading = {step: exposed(step, READ, BURNT) for step in (3, 4)}
    injected = {"prep": loading[4], "fetch": loading[3] - loading[4], "network": LINK_MS}
    lost = {stall: answer["stalls"][stall]["lost_ns"] / 1e6 for stall in injected}
    return Answer(answer["steps"], lost, injected)


def stall_is_what_was_injected(stall: str, answer: Answer) -> None:
    # There is more of each than the comparison allows for, so that it can fail.
    assert answer.injected[stall] > 4 * OWN_MS
    assert answer.lost[stall] == pytest.approx(answer.injected[stall], rel=0.10, abs=OWN_MS), answer
