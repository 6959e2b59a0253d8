"""Where the ranks of a run are: the job by its site's name, the pod, the GPU of each rank."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stashtrace.schema.kinds import ProcessRole
from stashtrace.schema.trace import Trace

_JOB_VARIABLES = ("SLURM_JOB_ID", "FLUX_JOB_ID", "PBS_JOBID", "LSB_JOBID")
#: As manifests of Kubernetes name what they take from the downward API.
_POD_VARIABLES = ("POD_NAME", "MY_POD_NAME", "K8S_POD_NAME")


def job_of(environment: Mapping[str, str], facts: Mapping[str, Any]) -> str:
    """Return the job by its scheduler's id, else by the name that the run was given, else by its run id."""
    named = [environment.get(name) for name in _JOB_VARIABLES]
    return next(filter(None, named), None) or str(facts.get("job") or facts.get("run_id") or "")


def pod_of(environment: Mapping[str, str]) -> str:
    """Return the pod that this process runs in, empty outside Kubernetes; a pod's host name is its own name."""
    named = [environment.get(name) for name in _POD_VARIABLES]
    if environment.get("KUBERNETES_SERVICE_HOST"):
        named.append(environment.get("HOSTNAME"))
    return next(filter(None, named), None) or ""


def gpus_of(window: Trace) -> dict[str, str]:
    """Return the UUID of the GPU that each rank uses, of several with commas between; of a MIG instance its GPU's."""
    processes, devices = window.processes, window.devices
    ranks = processes["process_id"][processes["role_code"] == ProcessRole.RANK]
    own = devices.take(np.isin(devices["process_id"], ranks)).sort_by("rank", "device_index")
    found: dict[str, list[str]] = {}
    for row in own.rows():
        uuid = window.text(row["gpu_uuid_code"]) or window.text(row["uuid_code"])
        known = found.setdefault(str(row["rank"]), [])
        if uuid and uuid not in known:
            known.append(uuid)
    return {rank: ",".join(uuids) for rank, uuids in found.items()}
