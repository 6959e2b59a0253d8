"""The advice about loaders is followed: what it promises happens, and what it calls useless is.

Steps are timed by the job's own clock, without the recorder. Six kinds of loaders; which advice each gets depends on
the machine, so a test asks whether the advice is true, not which it is.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from measurements import Measurements

import stashtrace
from ground_truth.loader_job import KINDS

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.truth]

JOB = Path(__file__).with_name("loader_job.py")
STEPS = 60
#: More than these are not tried: the machine of a test is small.
MOST_WORKERS = 8
#: A step that more workers shorten by less than this was not helped.
HELPS_RATIO = 0.8
HELPING = ("more_workers", "use_workers")
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
    """Mean step by the job's own clock."""
    command = [sys.executable, str(JOB), kind, str(workers), str(STEPS), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return float(done.stdout.split("step_ms ")[1].split()[0])


def advised(kind: str, workers: int, folder: Path, run: Path) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The finding about waits for batches of a recorded run, and its evidence."""
    command = [sys.executable, str(JOB), kind, str(workers), str(STEPS), str(folder)]
    tool = [sys.executable, "-m", "stashtrace", "run", "--out", str(run), "--", *command]
    subprocess.run(tool, capture_output=True, text=True, check=True, timeout=120, cwd=folder.parent)
    trace = stashtrace.load(run)
    findings = stashtrace.analyze(trace, "findings")
    found = [row for row in findings.rows() if row["section"] == "verdict" and row["kind"] == "data"]
    if not found:
        return None, []
    evidence = stashtrace.analyze(trace, "finding_evidence")
    return found[0], [row for row in evidence.rows() if row["finding_id"] == found[0]["finding_id"]]


@pytest.mark.parametrize("kind", KINDS)
def test_advice_is_true(kind: str, tmp_path: Path) -> None:
    if kind == "columns":
        pytest.importorskip("pyarrow")

    def measure(run: Path) -> tuple[dict[str, Any] | None, list[dict[str, Any]], float, float, int]:
        finding, evidence = advised(kind, 1, tmp_path / "data", run)
        now_ms = step_ms(kind, 1, tmp_path / "data")
        wanted = 2
        if finding is not None and finding["advice_code"] in HELPING:
            advice = next(row for row in evidence if row["code"] == finding["advice_code"])
            wanted = min(advice["items_count"], MOST_WORKERS)
        return finding, evidence, now_ms, step_ms(kind, wanted, tmp_path / "data"), wanted

    def check(measured: tuple[dict[str, Any] | None, list[dict[str, Any]], float, float, int]) -> None:
        finding, evidence, now_ms, then_ms, workers = measured
        if finding is None:  # quick storage: there was nothing to advise
            assert kind in ("mapped", "columns")
            return
        assert finding["cause_kind"] in PARTS[kind] | {"handoff"}, (finding, evidence)
        said = f"{finding['advice_code']}: {now_ms:.1f} ms with 1 worker, {then_ms:.1f} ms with {workers}"
        if finding["advice_code"] in HELPING:
            assert then_ms < HELPS_RATIO * now_ms, said
        elif finding["advice_code"] == "cpus_are_full":
            assert then_ms > HELPS_RATIO * now_ms, f"{said}, {os.cpu_count()} CPUs"

    Measurements(measure, tmp_path, most=3).agree(check)
