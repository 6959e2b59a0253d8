"""Who used the CPUs while a job ran, and how much of a growth other work on the machine can explain.

A thread that could run and has no CPU waits in a run queue. Whether its own job or another program holds the CPU, the
queue does not say, so two figures are compared: how much longer the threads of the job waited, and how much more CPU
time went to programs outside the job. Other work cannot have added more to a step than either.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stashtrace.analysis.stalls.sampled_cpus import host_cpus, runqueue_of_ranks
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import BatchPhase, ProcessRole
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace


@dataclass(frozen=True, slots=True)
class CpuUse:
    """Use of the CPUs during the compared steps of a run, mean over its ranks."""

    #: Time of a step for which threads of the rank and of its workers could run but had no CPU; threads that wait at
    #: the same time count each.
    wait_ns: float
    #: CPUs of the host that programs outside the recording used.
    others_count: float
    #: Part of the CPU time that the programs of the host asked for, which its hypervisor gave to other guests.
    stolen_ratio: float

    @property
    def by_others(self) -> float:
        """What programs outside the recording and other guests used."""
        return self.others_count + self.stolen_ratio


@dataclass(frozen=True, slots=True)
class OtherWork:
    """What other work on the machine can have added to a step of the second job, beyond what it added to the first."""

    #: At most this; negative where the first job had more of it, and then at least this.
    added_ns: float = 0.0
    #: CPUs that programs outside the job used; -1 where it is not recorded, and ``added_ns`` is all that the
    #: waits for a CPU grew by, whoever made them.
    before_count: float = -1.0
    after_count: float = -1.0
    #: Parts of the CPU time that the hypervisor took; -1 where it is not recorded.
    before_stolen: float = -1.0
    after_stolen: float = -1.0

    @property
    def is_known(self) -> bool:
        """Whether both recordings show how much CPU time went to other programs."""
        return min(self.before_count, self.after_count) >= 0


def cpu_use(trace: Trace, counted: Table) -> CpuUse | None:
    """Return the use of the CPUs during the counted steps; None if a host or a rank was not sampled."""
    window = int(counted["begin_ns"].min()), int(counted["end_ns"].max())
    hosts, waited = host_cpus(trace, window), runqueue_of_ranks(trace, window)
    host_of = trace.processes[trace.processes["role_code"] == ProcessRole.RANK].lookup("rank", "host_code")
    steps = GroupBy(counted["rank"])
    waits, others, stolen = [], [], []
    for rank, steps_count in zip(steps.values.tolist(), steps.sizes.tolist(), strict=True):
        host = hosts.get(trace.text(host_of[rank])) if rank in host_of else None
        if host is None or rank not in waited:
            return None
        waits.append(waited[rank] / steps_count)
        # A stolen CPU is no wait in a run queue: it counts by itself.
        others.append(max(host.others_count - host.steal_ratio * host.count, 0.0))
        stolen.append(host.steal_ratio / host.busy_ratio if host.busy_ratio > 0 else 0.0)
    means = (float(np.mean(values)) for values in (waits, others, stolen))
    return CpuUse(*(round(value, 6) for value in means))


def worker_wait_ns(trace: Trace, counted: Table) -> float | None:
    """Return how long workers of a rank waited for a CPU per step while they made batches, mean over ranks.

    None if no worker made a batch, or it was not recorded.
    """
    window = int(counted["begin_ns"].min()), int(counted["end_ns"].max())
    batches = trace.batches
    made = (batches["phase_code"] == BatchPhase.FETCH) & (batches["worker_id"] >= 0) & (batches["runqueue_ns"] >= 0)
    made &= np.isin(batches["rank"], np.unique(counted["rank"]))
    made &= (batches["end_ns"] > window[0]) & (batches["begin_ns"] < window[1])
    return round(float(batches["runqueue_ns"][made].sum()) / len(counted), 1) if made.any() else None


def added_by_others(before: CpuUse, after: CpuUse, before_ns: float, after_ns: float) -> OtherWork:
    """Return what other work can have added to a step of the second job.

    ``before_ns``, ``after_ns``: length of a step.
    """

    def taken(more: float) -> float:
        """Time that others took from a step of the job that had more of them."""
        return more * (after_ns if more > 0 else before_ns)

    taken_ns, waited_ns = taken(after.others_count - before.others_count), after.wait_ns - before.wait_ns
    # Waits that grew while others took less are of the job's own making.
    queued_ns = min((taken_ns, waited_ns), key=abs) if taken_ns * waited_ns > 0 else 0.0
    stolen_ns = taken(after.stolen_ratio - before.stolen_ratio)
    return OtherWork(
        queued_ns + stolen_ns, before.others_count, after.others_count, before.stolen_ratio, after.stolen_ratio
    )
