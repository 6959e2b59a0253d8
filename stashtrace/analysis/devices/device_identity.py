"""Which GPU the counters of a device are read from, and which job the site says owns it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from stashtrace.schema.trace import Trace, facts_with_key


def counted_gpu(trace: Trace, device: Mapping[str, int]) -> str:
    """Return the UUID under which a row of ``devices`` is sampled: of a MIG instance, that of its GPU."""
    return trace.text(device["gpu_uuid_code"]) or trace.text(device["uuid_code"])


#: The same in ``probes/surroundings.py``.
FACT = "gpu_job"
#: Variables with the id of the job in which a process runs, by the scheduler whose prologs write such files.
_OWN_JOB = ("env.SLURM_JOB_ID", "env.SLURM_JOBID")


@dataclass(frozen=True, slots=True)
class GpuJob:
    """A device of a process, and whose it is."""

    process_id: int
    device_index: int
    rank: int
    uuid: str
    #: Job that the site names for it, and the job of the process; empty if that is not known.
    site_job: str
    own_job: str

    @property
    def is_of_another(self) -> bool:
        """Whether the site says that another job has the device."""
        return bool(self.own_job) and self.site_job != self.own_job


def gpu_jobs(trace: Trace) -> list[GpuJob]:
    """Return the devices whose job the site named, in the order of ``devices``."""
    facts: dict[int, dict[str, str]] = defaultdict(dict)
    for row in facts_with_key(trace, lambda key: key.startswith(f"{FACT} ") or key in _OWN_JOB).rows():
        facts[row["process_id"]][trace.text(row["key_code"])] = trace.text(row["value_code"])
    found = []
    for row in trace.devices.rows():
        own = facts[row["process_id"]]
        uuids = trace.text(row["uuid_code"]), trace.text(row["gpu_uuid_code"])
        site_job = next((job for uuid in uuids if uuid and (job := own.get(f"{FACT} {uuid}"))), "")
        if site_job:
            own_job = next((own[name] for name in _OWN_JOB if name in own), "")
            found.append(GpuJob(row["process_id"], row["device_index"], row["rank"], uuids[0], site_job, own_job))
    return found
