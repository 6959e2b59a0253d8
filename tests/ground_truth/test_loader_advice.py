"""What the summary says to do first about loaders is done: the step gets shorter by what was promised.

Steps are timed by the job's clock, without the recorder. Six kinds of loaders; which advice each gets depends on
the machine, so a test asks whether the advice is true, not which it is. No constant of the replay was chosen by these
jobs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from installed import needs_torch
from measurements import Measurements

import stashtrace

needs_torch()
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.truth]

JOB = Path(__file__).with_name("loader_job.py")
STEPS = 60
#: More than these are not tried: the machine of a test is small.
MOST_WORKERS = 8
#: Steps of a loaded machine differ by more than those of a quiet one, by this part of the step.
BETWEEN_RATIO = 0.1
#: The part of a worker's time that each kind of loader spends; of several, what the storage at hand makes of it.
PARTS = {
    "sleep": {"asleep"},
    "blocked": {"blocked"},
    "decode": {"cpu", "queue"},
    "network": {"network"},
    "columns": {"cpu", "queue", "storage", "unknown"},
    "mapped": {"cpu", "page_faults", "storage", "unknown"},
}


def step_ms(kind: str, workers: int, folder: Path) -> float:
    """Mean step by the job's clock."""
    command = [sys.executable, str(JOB), kind, str(workers), str(STEPS), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return float(done.stdout.split("step_ms ")[1].split()[0])


def advised(kind: str, workers: int, folder: Path, run: Path) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """The finding about waits for batches of a recorded run, and the first change that is about workers, if one is."""
    command = [sys.executable, str(JOB), kind, str(workers), str(STEPS), str(folder)]
    tool = [sys.executable, "-m", "stashtrace", "run", "--out", str(run), "--", *command]
    subprocess.run(tool, capture_output=True, text=True, check=True, timeout=120, cwd=folder.parent)
    trace = stashtrace.load(run)
    findings = stashtrace.analyze(trace, "findings")
    found = [row for row in findings.rows() if row["section"] == "verdict" and row["kind"] == "data"]
    first = [row for row in stashtrace.analyze(trace, "causes").rows() if row["change"].startswith("workers=")]
    return found[0] if found else None, first[0] if first else {}


@pytest.mark.parametrize("kind", ["sleep", "blocked", "decode", "network", "columns", "mapped"])
def test_advice_is_true(kind: str, tmp_path: Path) -> None:
    if kind == "columns":
        pytest.importorskip("pyarrow")

    def measure(run: Path) -> tuple[dict[str, Any] | None, dict[str, Any], float, float, int]:
        finding, first = advised(kind, 1, tmp_path / "data", run)
        now_ms = step_ms(kind, 1, tmp_path / "data")
        wanted = min(int(first["change"].partition("=")[2]) if first else 2, MOST_WORKERS)
        return finding, first, now_ms, step_ms(kind, wanted, tmp_path / "data"), wanted

    def check(measured: tuple[dict[str, Any] | None, dict[str, Any], float, float, int]) -> None:
        finding, first, now_ms, then_ms, workers = measured
        if finding is None:  # quick storage: there was nothing to advise
            assert kind in ("mapped", "columns")
            return
        assert finding["cause_kind"] in PARTS[kind] | {"handoff", "queue"}, (finding, first)
        said = f"{first}: {now_ms:.1f} ms with 1 worker, {then_ms:.1f} ms with {workers}, {os.cpu_count()} CPUs"
        if not first:
            return
        saved_ms, slack_ms = now_ms - then_ms, BETWEEN_RATIO * now_ms
        assert saved_ms >= first["saved_low_ns"] / 1e6 - slack_ms, said
        if workers < MOST_WORKERS:
            assert saved_ms <= first["saved_high_ns"] / 1e6 + slack_ms, said

    Measurements(measure, tmp_path, most=3).agree(check)
