"""The two things a user does first, for real: trace the example under torchrun, then ask where the time went."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from example_job import STEPS, stashtrace
from installed import needs_torch

needs_torch()
pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture(scope="module")
def trace(job):
    import stashtrace

    return stashtrace.load(job[0] / "run")


def test_job_runs_as_without_the_tracer(job) -> None:
    folder, done = job
    assert done.returncode == 0, done.stderr
    assert [line.split("  loss")[0] for line in done.stdout.splitlines()] == [
        f"epoch 0  step {step}/{STEPS}" for step in (4, 8, 12)
    ]
    assert (folder / "model.pt").exists()
    assert "stashtrace" not in done.stdout


def test_summary_names_ranks_and_steps(job) -> None:
    _, done = job
    assert "2 ranks" in done.stderr, done.stderr
    assert "stashtrace view" in done.stderr


def test_info(job) -> None:
    folder, _ = job
    done = stashtrace("info", "run", "--format", "json", cwd=folder)
    assert done.returncode == 0, done.stderr
    info = json.loads(done.stdout)
    assert info["ranks"] == [0, 1] or info["ranks"] == 2
    assert info["steps"] == STEPS or set(np.ravel(info["steps"])) == {STEPS}
    assert {"posix_io", "torch_dataloader", "torch_step", "torch_distributed"} <= {
        name for name, count in info["records"].items() if count
    }


def test_nothing_was_lost(trace) -> None:
    from stashtrace.schema.kinds import Severity

    lost = [
        (*(trace.text(row[c]) for c in ("collector_code", "name_code", "advice_code")), row["lost_count"])
        for row in trace.losses.rows()
        if row["severity_code"] != Severity.INFO
    ]
    assert lost == []


def test_steps_are_the_scripts_own(job, trace) -> None:
    """Same number of steps, and they end where the script says they ended."""
    import stashtrace

    folder, _ = job
    table = stashtrace.analyze(trace, "steps")
    for rank in (0, 1):
        own = [json.loads(line) for line in (folder / "truth" / f"rank-{rank}.jsonl").read_text().splitlines()]
        chosen = table["rank"] == rank
        assert table["step"][chosen].tolist() == list(range(STEPS))
        walls = np.diff(table["end_ns"][chosen])
        truth = np.diff([row["end_ns"] for row in own])
        # Who else wants the CPU may come between the end of a step and the script's look at its clock.
        assert np.median(np.abs(walls - truth)) < 2e6, (walls, truth)


def test_stalls_sum_to_the_wall_time(job, trace) -> None:
    import stashtrace

    folder, _ = job
    done = stashtrace_json(folder, "analyze", "stalls", "run", "--by", "step", "--warmup", "--format", "json")
    steps = stashtrace.analyze(trace, "steps")
    walls = {(r["rank"], r["step"]): r["end_ns"] - r["begin_ns"] for r in steps.rows()}
    sums: dict[tuple[int, int], int] = {}
    for row in done:
        assert isinstance(row["stall_ns"], int)
        key = (row["rank"], row["step"])
        sums[key] = sums.get(key, 0) + row["stall_ns"]
    assert {key: sums[key] for key in walls} == walls
    assert "compute" in {row["kind"] for row in done}


def stashtrace_json(folder: Path, *arguments: str) -> list[dict[str, object]]:
    done = stashtrace(*arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert isinstance(rows, list)
    return rows


def test_collectives_are_matched_on_both_ranks(trace) -> None:
    table = trace.collectives
    keys = [{(row["group_hash"], row["sequence"]) for row in table.rows() if row["rank"] == rank} for rank in (0, 1)]
    assert keys[0] == keys[1]
    assert len(keys[0]) >= STEPS
    assert np.all(table["end_ns"] > table["call_ns"])
    groups = trace.groups
    compared = groups["backend_count"] >= 0
    assert np.array_equal(groups["observed_count"][compared], groups["backend_count"][compared])


def test_batches_are_linked_to_the_worker_that_made_them(trace) -> None:
    from stashtrace.schema.kinds import BatchPhase, ProcessRole

    batches = trace.batches
    roles = dict(zip(trace.processes["process_id"].tolist(), trace.processes["role_code"].tolist(), strict=True))
    for rank in (0, 1):
        of_rank = batches["rank"] == rank
        waited = of_rank & (batches["phase_code"] == BatchPhase.WAIT) & (batches["batch_index"] >= 0)
        fetched = of_rank & (batches["phase_code"] == BatchPhase.FETCH)
        assert set(range(STEPS)) <= set(batches["batch_index"][waited].tolist())
        assert set(batches["batch_index"][waited].tolist()) <= set(batches["batch_index"][fetched].tolist())
        assert {roles[p] for p in batches["process_id"][fetched].tolist()} == {ProcessRole.WORKER}
        assert {roles[p] for p in batches["process_id"][waited].tolist()} == {ProcessRole.RANK}
