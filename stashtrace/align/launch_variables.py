"""What launchers tell the processes that they start: rank, place on the host, size of the job.

A process often has the variables of several launchers at once: torchrun under ``srun`` under a batch script. They
number different things, so one launcher is taken at its word for the whole run, the innermost that any process knows.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from stashtrace.model.possible import rank_number

#: SLURM numbers what is no step of its own (batch script, interactive shell, extern) from here.
_FIRST_SPECIAL_STEP = 4_294_967_280


class Place(NamedTuple):
    """Where a process stands in its job; -1 is unknown."""

    rank: int = -1
    local_rank: int = -1
    world_size: int = -1
    elastic: bool = False


class _Launcher(NamedTuple):
    """Variables of one launcher, and those without which the others mean something else."""

    rank: str
    local_rank: tuple[str, ...]
    world_size: tuple[str, ...]
    needed: tuple[str, ...] = ()
    elastic: bool = False


#: Innermost first. A pod of Kubeflow has RANK too, with which it counts pods, until torchrun sets it for each process.
_LAUNCHERS = (
    _Launcher("RANK", ("LOCAL_RANK",), ("WORLD_SIZE",), ("GROUP_RANK",), elastic=True),
    _Launcher("RANK", ("LOCAL_RANK",), ("WORLD_SIZE",)),
    _Launcher("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_LOCAL_RANK",), ("OMPI_COMM_WORLD_SIZE",)),
    _Launcher("MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_LOCAL_RANK",), ("MV2_COMM_WORLD_SIZE",)),
    _Launcher("PMI_RANK", ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"), ("PMI_SIZE",)),
    _Launcher("PALS_RANKID", ("PALS_LOCAL_RANKID",), ("PMI_SIZE",)),
    _Launcher("PMIX_RANK", ("SLURM_LOCALID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
    _Launcher("FLUX_TASK_RANK", ("FLUX_TASK_LOCAL_ID",), ("FLUX_JOB_SIZE",)),
    _Launcher("SLURM_PROCID", ("SLURM_LOCALID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
    _Launcher("JOB_COMPLETION_INDEX", (), ()),
)  # fmt: skip


def places(environments: Sequence[Mapping[str, Any]], aside: Collection[int] = ()) -> list[Place]:
    """Where each process of a run stands, by the innermost launcher that any of them knows.

    Parameters
    ----------
    environments : sequence of mapping
        Variables of each process.
    aside : collection of int
        Processes that do not decide which launcher that is: a worker may have variables that its rank set for itself.
    """
    for launcher in _LAUNCHERS:
        found = [_place(launcher, environment) for environment in environments]
        if any(place.rank >= 0 for index, place in enumerate(found) if index not in aside):
            return found
    return [Place()] * len(environments)


def _place(launcher: _Launcher, environment: Mapping[str, Any]) -> Place:
    rank = _number(environment, launcher.rank)
    if rank < 0 or any(name not in environment for name in launcher.needed):
        return Place()
    world = _number(environment, *launcher.world_size)
    if launcher.rank == "SLURM_PROCID" and not 0 <= _number(environment, "SLURM_STEP_ID") < _FIRST_SPECIAL_STEP:
        world = -1  # a batch script, and what it starts without srun, is task 0 and none of the tasks to come
    return Place(rank, _number(environment, *launcher.local_rank), world if world > rank else -1, launcher.elastic)


def _number(environment: Mapping[str, Any], *names: str) -> int:
    for name in names:
        number = rank_number(str(environment.get(name, "")).strip())
        if number >= 0:
            return number
    return -1
