"""Which launcher is believed when a process has the variables of several."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from stashtrace.loading.process_identity import Place, places


def step(task: int, tasks: int, local: int = 0) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(task),
        "SLURM_LOCALID": str(local),
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_NTASKS": "99",
    }


def elastic(rank: int, world: int, local: int = 0) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(local), "GROUP_RANK": str(rank // 2)}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, Place()),
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}, Place(3, 1, 4)),
        (elastic(3, 4, 1), Place(3, 1, 4, elastic=True)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}, Place(2, 0, 4)),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_LOCAL_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"}, Place(1, 1, 2)),
        ({"PMI_RANK": "5", "PMI_SIZE": "6", "MPI_LOCALRANKID": "1"}, Place(5, 1, 6)),
        ({"PMI_RANK": "5", "PMI_SIZE": "6", "PMI_LOCAL_RANK": "2"}, Place(5, 2, 6)),
        ({"PALS_RANKID": "5", "PALS_LOCAL_RANKID": "1"}, Place(5, 1, -1)),
        ({"PMIX_RANK": "1", **step(1, 2, 1)}, Place(1, 1, 2)),
        ({"FLUX_TASK_RANK": "1", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_SIZE": "2"}, Place(1, 1, 2)),
        (step(1, 4, 1), Place(1, 1, 4)),
        ({"JOB_COMPLETION_INDEX": "3"}, Place(3)),
        ({"RANK": "minus one", "WORLD_SIZE": "2"}, Place()),
        ({"RANK": "7", "WORLD_SIZE": "2"}, Place(7)),
    ],
)
def test_each_launcher(environment: dict[str, str], place: Place) -> None:
    assert places([environment]) == [place]


@pytest.mark.parametrize("special", [{}, {"SLURM_STEP_ID": "4294967290"}])
def test_a_batch_script_has_no_tasks_beside_it(special: dict[str, str]) -> None:
    """Else a job of one process under sbatch would miss all ranks but one."""
    batch = {k: v for k, v in step(0, 4).items() if k != "SLURM_STEP_ID"} | special
    assert places([batch]) == [Place(0, 0, -1)]


def test_torchrun_under_srun_counts_processes_not_tasks() -> None:
    agents = [step(task, 2) for task in (0, 1)]
    ranks = [step(r // 2, 2) | elastic(r, 4, r % 2) for r in range(4)]
    assert [p.rank for p in places([*agents, *ranks])] == [-1, -1, 0, 1, 2, 3]


def test_torchrun_in_pods_that_have_a_rank_of_their_own() -> None:
    pods = [{"RANK": str(pod), "WORLD_SIZE": "2", "PET_NODE_RANK": str(pod)} for pod in (0, 1)]
    ranks = [pods[r // 2] | elastic(r, 4, r % 2) for r in range(4)]
    found = places([*pods, *ranks])
    assert [(p.rank, p.world_size) for p in found] == [(-1, -1), (-1, -1), (0, 4), (1, 4), (2, 4), (3, 4)]


def test_a_worker_does_not_decide() -> None:
    """A script may set RANK for itself, from SLURM's, after it began; its workers then begin with it."""
    ranks = [step(r, 2) for r in (0, 1)]
    worker = step(1, 2) | {"RANK": "1", "WORLD_SIZE": "2"}
    assert [p.rank for p in places([*ranks, worker], aside={2})] == [0, 1, 1]
