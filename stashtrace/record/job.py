"""The job that a launcher belongs to: the same answer on every host, from its scheduler or from torchrun.

Several ``stashtrace run`` may start one job together. They need one run id but do not talk to each other, so the id is
a hash of a name that all of them know.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stashtrace.errors import UsageError
from stashtrace.scrubbing import scrub_urls

_RUN_ID_DIGITS = 16
_HEXADECIMAL = re.compile(r"[0-9a-f]{8,64}")
#: From here on SLURM numbers what is not a job step: batch script, interactive shell, extern.
_FIRST_SPECIAL_STEP = 4_294_967_280
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
#: Options of torchrun that take no value; all others take one, as the next word or after "=".
_TORCHRUN_FLAGS = frozenset({"standalone", "module", "m", "no_python", "run_path", "use_env", "virtual_local_rank"})


@dataclass(frozen=True, slots=True)
class Job:
    """What the launchers of one job have in common."""

    #: Hexadecimal; the same for all launchers of the job, random if the job has no name.
    run_id: str
    #: Fit for a file name, such as ``slurm-4711.0``; empty if this is the only launcher.
    name: str = ""
    #: Number of ``stashtrace run`` of the job, -1 if unknown.
    launchers_count: int = 1
    #: Whether no other job has had this name; a rendezvous id or endpoint may be used again.
    unique: bool = True


def job_of(command: Sequence[str], environment: Mapping[str, str], run_id: str | None = None) -> Job:
    """Return the job that ``command`` is a part of.

    ``command``: the command to be started; if it is torchrun, its options are read. ``environment``: of this launcher.
    ``run_id``: given by the user on every host; overrides every other name. Raises UsageError if the run id is empty.
    """
    launchers = -1
    for name, count in (_slurm(environment), _mpi(environment), _torchrun(command, environment)):
        if count != 1:
            launchers = count
            if name and run_id is None:
                return Job(_hash(name), _file_name(scrub_urls(name)), count, unique=not name.startswith("torchrun"))
            break
    if run_id is not None:
        if not run_id.strip():
            raise UsageError("the run id is empty", hint='for example --run-id "$JOB_ID", the same on every host')
        digits = run_id if _HEXADECIMAL.fullmatch(run_id) else _hash(run_id)
        return Job(digits, _file_name(scrub_urls(run_id)), launchers)
    return Job(os.urandom(_RUN_ID_DIGITS // 2).hex())


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:_RUN_ID_DIGITS]


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:80] or "job"


def _slurm(environment: Mapping[str, str]) -> tuple[str, int]:
    """Name and number of tasks of a SLURM job step; the batch script, which starts srun or torchrun, is not one."""
    job, step = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")
    if not job or not step.isdecimal() or int(step) >= _FIRST_SPECIAL_STEP:
        return "", 1
    restarts = environment.get("SLURM_RESTART_COUNT", "0")
    again = "" if restarts in ("", "0") else f"-restart{restarts}"
    return f"slurm-{job}.{step}{again}", _count(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")


def _mpi(environment: Mapping[str, str]) -> tuple[str, int]:
    """Name and number of processes of an MPI job. Hydra (MPICH, Intel MPI) tells its processes no name of the job."""
    for kind, key, sizes in (
        ("mpi", "PMIX_NAMESPACE", ("OMPI_COMM_WORLD_SIZE", "PMIX_SIZE")),
        ("pals", "PALS_APID", ("PALS_SIZE", "PMI_SIZE")),
        ("mpi", "PMI_JOBID", ("PMI_SIZE",)),
        ("flux", "FLUX_JOB_ID", ("FLUX_JOB_SIZE",)),
    ):
        # A shell in an allocation has the job's id too, but no size.
        if environment.get(key) and (count := _count(environment, *sizes)) > 0:
            return f"{kind}-{environment[key]}", count
    return "", _count(environment, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", default=1)


def _torchrun(command: Sequence[str], environment: Mapping[str, str]) -> tuple[str, int]:
    """Name and number of agents of a torchrun job, which is named after its rendezvous."""
    options = _torchrun_options(command)
    if options is None or "standalone" in options:
        return "", 1
    options = {key[4:].lower(): value for key, value in environment.items() if key.startswith("PET_")} | options
    nodes = options.get("nnodes", "1")
    if nodes in ("1", "1:1"):
        return "", 1
    count = int(nodes) if nodes.isdecimal() else -1  # "2:4" may become any of them
    master = f"{options.get('master_addr', '')}:{options.get('master_port', '29500')}"
    name = options.get("rdzv_id", "none")
    if name in ("", "none"):
        name = _endpoint_name(options.get("rdzv_endpoint") or master)
    return (f"torchrun-{name}" if name else ""), count


def _endpoint_name(endpoint: str) -> str:
    """Name of a rendezvous endpoint; this host's for one on the loopback, empty if that has no port."""
    host, _, port = endpoint.rpartition(":")
    if host not in ("", "localhost", "::1", "[::1]") and not host.startswith("127."):
        return endpoint
    return f"{os.uname().nodename}:{port}" if port.isdecimal() and int(port) else ""


def _torchrun_options(command: Sequence[str]) -> dict[str, str] | None:
    """Options of torchrun in a command, spelt with underscores; None if the command does not run torchrun."""
    begin = None
    for index, word in enumerate(command):
        if os.path.basename(word) == "torchrun" or (word in _TORCHRUN_MODULES and command[index - 1] == "-m"):
            begin = index + 1
            break
    if begin is None:
        return None
    options: dict[str, str] = {}
    index = begin
    while index < len(command) and command[index].startswith("-"):
        name, equals, value = command[index].lstrip("-").partition("=")
        name = name.replace("-", "_")
        if not equals and name not in _TORCHRUN_FLAGS and index + 1 < len(command):
            index += 1
            value = command[index]
        options[name] = value
        index += 1
    return options


def _count(environment: Mapping[str, str], *names: str, default: int = -1) -> int:
    return next((int(environment[n]) for n in names if environment.get(n, "").isdecimal()), default)
