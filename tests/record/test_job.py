"""job_of: launchers of one job agree on its name, and others do not."""

from __future__ import annotations

import os
import re

import pytest

from stashtrace.errors import UsageError
from stashtrace.record.launchers import Job, job_of

HERE = re.sub(r"[^A-Za-z0-9._-]+", "-", os.uname().nodename)
TRAIN = ["python", "train.py"]
STEP = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}
MEETING = ["--rdzv-backend", "c10d", "--rdzv-endpoint=node0:29400"]


def torchrun(*options: str) -> list[str]:
    return ["torchrun", *options, "train.py", "--nnodes", "9"]


def test_a_command_by_itself_is_a_separate_run() -> None:
    one, other = job_of(TRAIN, {}), job_of(TRAIN, {})
    assert (one.name, one.launchers_count) == ("", 1)
    assert len(one.run_id) == 16
    assert one.run_id != other.run_id


@pytest.mark.parametrize(
    ("command", "environment", "name", "count", "unique"),
    [
        (TRAIN, STEP | {"SLURM_PROCID": "1"}, "slurm-4711.0", 2, True),
        (TRAIN, STEP | {"SLURM_RESTART_COUNT": "2"}, "slurm-4711.0-restart2", 2, True),
        (torchrun("--nnodes", "2", *MEETING), STEP, "slurm-4711.0", 2, True),
        (TRAIN, {"PMIX_NAMESPACE": "prterun-n0-77@1", "OMPI_COMM_WORLD_SIZE": "4"}, "mpi-prterun-n0-77-1", 4, True),
        (TRAIN, {"PALS_APID": "3f-1", "PMI_SIZE": "8"}, "pals-3f-1", 8, True),
        (TRAIN, {"FLUX_JOB_ID": "f2Kx", "FLUX_JOB_SIZE": "3"}, "flux-f2Kx", 3, True),
        (torchrun("--nnodes=2", "--rdzv-id", "j7", *MEETING), {}, "torchrun-j7", 2, False),
        (torchrun("--nnodes", "2", *MEETING), {}, "torchrun-node0-29400", 2, False),
        (torchrun("--nnodes", "1:4", "--rdzv_id=j7"), {}, "torchrun-j7", -1, False),
        (torchrun("--nnodes=2", "--master-addr=10.0.0.1", "--node-rank=1"), {}, "torchrun-10.0.0.1-29500", 2, False),
        (torchrun(), {"PET_NNODES": "3", "PET_RDZV_ID": "pods"}, "torchrun-pods", 3, False),
        (["python", "-m", "torch.distributed.run", "--nnodes", "2", "--rdzv-id=j", "x.py"], {}, "torchrun-j", 2, False),
        (torchrun("--nnodes", "2"), {}, f"torchrun-{HERE}-29500", 2, False),
        (torchrun("--nnodes=2", "--rdzv-endpoint", "localhost:29400"), {}, f"torchrun-{HERE}-29400", 2, False),
        (torchrun("--nnodes=2", "--master-addr=127.0.0.1", "--master-port=7"), {}, f"torchrun-{HERE}-7", 2, False),
    ],
)
def test_the_name(command: list[str], environment: dict[str, str], name: str, count: int, unique: bool) -> None:
    job = job_of(command, environment)
    assert job == Job(job.run_id, name, count, unique)
    assert job_of(command, environment | {"SLURM_PROCID": "0"}) == job, "the same on another host"


@pytest.mark.parametrize(
    ("command", "environment"),
    [
        # The batch script has the job's variables, and no step: what it starts with srun learns it from srun.
        (["srun", "python", "train.py"], {"SLURM_JOB_ID": "4711", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}),
        (TRAIN, STEP | {"SLURM_STEP_ID": "4294967290"}),
        (TRAIN, STEP | {"SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1"}),
        (TRAIN, {"FLUX_JOB_ID": "f2Kx"}),
        (TRAIN, {"PET_NNODES": "3", "PET_RDZV_ID": "pods"}),
        (torchrun("--standalone", "--nnodes", "2"), {}),
        (torchrun("--nproc-per-node", "2", "--nnodes", "1"), {}),
        (torchrun("--nnodes", "2", "--rdzv-endpoint=localhost:0"), {}),
    ],
)
def test_no_part_of_a_larger_job(command: list[str], environment: dict[str, str]) -> None:
    assert job_of(command, environment).name == ""


def test_hydra_says_how_many_but_not_which() -> None:
    """Processes of MPICH have no name of their job: it has to be said."""
    assert job_of(TRAIN, {"PMI_RANK": "1", "PMI_SIZE": "4"}).name == ""
    said = job_of(TRAIN, {"PMI_RANK": "1", "PMI_SIZE": "4"}, "night run")
    assert (said.name, said.launchers_count, said.unique) == ("night-run", 4, True)


def test_what_the_user_says_goes_before() -> None:
    said = job_of(torchrun("--nnodes=2", "--rdzv-id", "j7"), STEP, "abc")
    assert (said.name, said.launchers_count) == ("abc", 2)
    assert said.run_id == job_of(TRAIN, {}, "abc").run_id
    assert job_of(TRAIN, {}, "00ff00ff00ff").run_id == "00ff00ff00ff", "an id is taken as it is"
    with pytest.raises(UsageError, match="empty"):
        job_of(TRAIN, {}, " ")
