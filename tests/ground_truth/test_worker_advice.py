"""What the summary says to do first about workers is done: the step gets shorter by what was promised.

Two ranks, timed by the job's clock without the recorder, with the change and without it alternately. Each job plants
one thing that takes most of its step.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from installed import needs_torch
from measurements import Measurements

import stashtrace
from stashtrace.analysis.graph import build
from stashtrace.replay import Change, what_if

needs_torch()
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.truth]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: By this part of the step the ratio of two jobs differs on a loaded machine.
BETWEEN_RATIO = 0.1
RESTARTED = ("--start-ms", "400")
SLOW = ("--slow-ms", "150", "--epochs", "1", "--steps", "48")


def ranks(options: Sequence[str]) -> list[str]:
    return [sys.executable, str(HERE / "launch_ranks.py"), "--", sys.executable, str(HERE / "workers_job.py"), *options]


def run(command: Sequence[str], folder: Path) -> str:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = dict(os.environ, PYTHONPATH=path)
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def step_ms(options: Sequence[str], folder: Path) -> float:
    return float(run(ranks(options), folder).split("step_ms ")[1].split()[0])


@dataclass
class Followed:
    """What was advised for a recorded job, what a change of it promised, and steps without and with it alternately."""

    first: dict[str, Any]
    low_ratio: float
    high_ratio: float
    saved_ratio: float


def follow(options: Sequence[str], changed: Sequence[str], change: str, folder: Path) -> Followed:
    folder.mkdir()
    run([sys.executable, "-m", "stashtrace", "run", "--out", str(folder / "run"), "--", *ranks(options)], folder)
    trace = stashtrace.load(folder / "run")
    first = next(stashtrace.analyze(trace, "causes").rows())
    answer = what_if(build(trace), [Change.parse(change)])
    pairs = [(step_ms(options, folder), step_ms(changed, folder)) for _ in range(2)]
    saved = 1 - sum(then for _, then in pairs) / sum(now for now, _ in pairs)
    low, high = (ns / answer.replayed_ns for ns in answer.saved_ns)
    return Followed(first, low, high, saved)


@pytest.mark.parametrize(
    ("options", "changed", "change", "is_first"),
    [
        (RESTARTED, (*RESTARTED, "--kept"), "persistent_workers=1", True),
        (SLOW, (*SLOW, "--slow-ms", "2"), "slow_worker=0", True),
        (SLOW, (*SLOW, "--workers", "3"), "workers=3", False),
    ],
)
def test_it_saves_what_is_promised(
    options: Sequence[str], changed: Sequence[str], change: str, is_first: bool, tmp_path: Path
) -> None:
    def check(followed: Followed) -> None:
        assert (followed.first["change"] == change) == is_first, followed
        assert followed.low_ratio - BETWEEN_RATIO <= followed.saved_ratio <= followed.high_ratio + BETWEEN_RATIO, (
            followed
        )
        if change == "slow_worker=0":
            assert followed.first["worker_id"] == 1, followed

    Measurements(lambda folder: follow(options, changed, change, folder), tmp_path, most=3).agree(check)
