"""late on real jobs: the rank, the cause, the worker and the file, and the amount against the job's stopwatch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from measurements import Measurements
from traced import TracedRun, run_traced

import stashtrace
from ground_truth import late_plan, machine
from stashtrace.analysis.registry import analyze
from stashtrace.schema.table import Table

pytestmark = pytest.mark.truth

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FILE_BYTES = 192 << 20


def rows(kind: str, folder: Path) -> tuple[Table, list[dict[str, int]]]:
    """Rows of late for the steps with a fault, and the stopwatch of the late rank."""
    folder.mkdir()
    shard = folder / "shard-0117"
    if kind == "fetch":
        with open(shard, "wb") as file:
            file.write(os.urandom(FILE_BYTES))
            file.flush()
            os.fsync(file.fileno())
        if not machine.can_evict(folder):
            pytest.skip("posix_fadvise(DONTNEED) does not empty the page cache here")
    job = [sys.executable, str(HERE / "late_job.py"), kind, str(shard), str(folder)]
    command = [sys.executable, "-m", "stashtrace", "run", "--out", str(folder / "run"), "--", sys.executable]
    done = subprocess.run(
        [*command, str(HERE / "launch_ranks.py"), "--", *job],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    late_rank = 0 if kind == "checkpoint" else late_plan.FAULTY
    clock = [json.loads(line) for line in (folder / f"clock-{late_rank}.jsonl").read_text().splitlines()]
    found = analyze(stashtrace.load(folder / "run"), "late")
    chosen = [
        np.flatnonzero((found["step"] == note["step"]) & (found["late_rank"] == late_rank) & (found["op"] != "barrier"))
        for note in clock
    ]
    kept = [(int(at[0]), note) for at, note in zip(chosen, clock, strict=True) if len(at)]
    return found.take(np.array([at for at, _ in kept], dtype=np.int64)), [note for _, note in kept]


@pytest.mark.parametrize("kind", ["compute", "gc", "sleep", "checkpoint", "fetch"])
def test_the_cause_of_a_late_rank_is_what_the_job_did(kind: str, tmp_path: Path) -> None:
    def right(run: tuple[Table, list[dict[str, int]]]) -> None:
        assert problems(kind, *run) == []

    Measurements(lambda folder: rows(kind, folder), tmp_path).agree(right)


def problems(kind: str, found: Table, clock: list[dict[str, int]]) -> list[str]:
    """What is not as the job says; each of its faults must be there."""
    faults = sum(late_plan.faulty_step(step) for step in range(late_plan.STEPS))
    out = [] if len(found) >= faults - 1 else [f"{len(found)} of {faults} faults made the rank late"]
    named = [row for row, note in zip(found.rows(), clock, strict=True) if row["cause_kind"] == kind]
    if len(named) < faults - 1:
        return [*out, f"causes: {found['cause_kind'].tolist()}"]
    spent = {note["step"]: note for note in clock}
    # A worker began to read before its batch was awaited: the reading itself has the length that the job measured.
    amount = "named_ns" if kind == "fetch" else "cause_ns"
    ratio = float(np.median([row[amount] / spent[row["step"]]["spent_ns"] for row in named]))
    if abs(ratio - 1) > 0.05:
        out.append(f"{kind}: {ratio:.3f} of what the job measured")
    if kind == "fetch":
        names = {(Path(row["cause_name"]).name, row["cause_worker_id"]) for row in named}
        out += [] if names == {("shard-0117", spent[named[0]["step"]]["worker"])} else [f"named {names}"]
    return out


#: Rank 0 enters the next operation at once, often before rank 1 has left the last one.
SLEEPER = """
    import time
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    weight = torch.nn.Parameter(torch.zeros(500_000))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(100):
        if dist.get_rank() == 1:
            time.sleep(0.02)
        weight.grad = torch.ones_like(weight)
        dist.all_reduce(weight.grad)
        optimizer.step()
    dist.destroy_process_group()
"""
STEPS = 100
SLEEP_NS, NOISE_NS = 20_000_000, 5_000_000


def test_no_rank_slept_longer_than_it_did_in_one_step(tmp_path: Path) -> None:
    def right(run: TracedRun) -> None:
        found = analyze(run.trace, "late")
        found = found.take(found["step"] >= 0)
        slept = found["cause_ns"][(found["late_rank"] == 1) & (found["cause_kind"] == "sleep")]
        assert len(slept) >= STEPS - 5, found["cause_kind"].tolist()
        assert slept.min() >= SLEEP_NS - NOISE_NS
        assert found["cause_ns"].max() <= SLEEP_NS + NOISE_NS, sorted(found["cause_ns"].tolist())[-5:]

    Measurements(lambda folder: run_traced(SLEEPER, folder, ranks=2), tmp_path).agree(right)
