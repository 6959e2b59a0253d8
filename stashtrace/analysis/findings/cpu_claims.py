"""Claims about step threads that waited for a CPU, and who else wanted one: other programs, torch's threads, workers.

A reason is named only where samples of the machine show it: that torch began with many threads is no reason while they
sleep.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stashtrace.analysis.findings.batch_making import OTHERS_RATIO
from stashtrace.analysis.findings.claim_rows import Claim, Evidence
from stashtrace.analysis.findings.summary_input import RankFacts, RunFacts
from stashtrace.analysis.findings.trust import run_facts
from stashtrace.analysis.stalls.sampled_cpus import HostCpu, thread_demand
from stashtrace.analysis.steps.epochs import workers_count
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import ProcessRole
from stashtrace.units import ranks_text

#: Waits for a CPU are noted from the first share of the step on; from the second on they are a verdict.
_NOTED_RATIO, WAITS_MATTER_RATIO = 0.05, 0.2
#: A thread that could run for this part of the time takes part in the computation.
_BUSY_RATIO = 0.1
#: Workers matter if they are this part of the threads that could run.
_WORKERS_RATIO = 0.2
#: Other programs matter if they use this part of what is wanted beyond the CPUs.
_OF_EXCESS_RATIO = 0.5
#: CPUs are taken if the threads that could run are at least this part of them, on average.
_TAKEN_RATIO = 0.8
#: CPUs that are idle for this part of the time are not what is scarce.
_IDLE_RATIO = 0.3


@dataclass(frozen=True, slots=True)
class _Demand:
    """Threads of the job that could run on a host, on average over the counted steps."""

    #: Of all processes, and of loader workers.
    whole: float
    workers: float
    #: Threads of the rank that could run for a good part of the time.
    busy_count: int
    #: Processes of the host.
    ranks_count: int
    #: Of the host; workers that were started again with each epoch count once.
    workers_count: int


def contention_claims(facts: RunFacts) -> list[Claim]:
    """Return a claim about ranks whose step threads waited for a CPU: a verdict if that was long, else a note."""
    crowded = {r.rank: r for r in facts.ranks if r.contention_ratio > _NOTED_RATIO}
    if not crowded:
        return []
    worst = max(crowded.values(), key=lambda rank: rank.contention_ratio)
    in_loop = worst.per_step_ns("python") > _NOTED_RATIO * worst.step_ns
    columns = ["compute", *(["host"] if in_loop else []), *(["link"] if facts.ranks_count > 1 else [])]
    counted_as = " or ".join(filter(None, (", ".join(columns[:-1]), columns[-1])))
    claim = Claim(
        "machine",
        "contention",
        name=counted_as,
        ranks=ranks_text(sorted(crowded)),
        rank=worst.rank,
        items_count=len(crowded),
        share_ratio=worst.contention_ratio,
    )
    if worst.contention_ratio <= WAITS_MATTER_RATIO:
        return [claim]
    rows = _reasons(facts, worst)
    cause = next((_CAUSES[row.code] for row in rows if row.code in _CAUSES), "")
    advice = next((row.code for row in rows if row.code in _CAUSES), "")
    # The name of a verdict is the kind of steps that it is about.
    inside = Evidence("counted_as", "hidden", name=counted_as)
    return [replace(claim, section="verdict", name="", cause_kind=cause, advice_code=advice, evidence=(inside, *rows))]


#: Code of evidence -> what holds the CPUs.
_CAUSES = {
    "others_hold_cpus": "others",
    "fewer_threads": "threads",
    "workers_hold_cpus": "workers",
    "ranks_share_cpus": "ranks",
    "idle_cpus": "limit",
}


def _reasons(facts: RunFacts, rank: RankFacts) -> list[Evidence]:
    """Return who wanted the CPUs of a rank's host, and what would help; nothing where they were not sampled."""
    cpu = facts.trust.hosts.get(rank.host)
    demand = _demand(facts, rank)
    if cpu is None or demand is None:
        return []
    count = _usable_count(facts, cpu)
    rows = [
        Evidence(
            "cpu_demand",
            "counters",
            rank=rank.rank,
            part_ratio=demand.whole,
            items_count=round(cpu.count),
            of_count=count,
            low_ns=round(1e9 * cpu.others_count),
            name=rank.host,
        )
    ]
    # Others are the reason where they hold a good part of what is wanted beyond the CPUs that there are.
    excess = demand.whole + cpu.others_count - count
    others = cpu.others_count > max(OTHERS_RATIO * cpu.count, _OF_EXCESS_RATIO * excess)
    if others:
        rows.append(Evidence("others_hold_cpus", "counters", low_ns=round(1e9 * cpu.others_count), of_count=count))
    elif cpu.busy_ratio < 1 - _IDLE_RATIO:
        allowed = _fact(facts, rank.rank, "cpus_allowed")
        pinned = [Evidence("pinned_to", "metadata", rank=rank.rank, name=allowed)] if allowed else []
        return [*rows, Evidence("idle_cpus", "counters", part_ratio=1 - cpu.busy_ratio), *pinned]
    threads = _fact(facts, rank.rank, "torch_threads")
    number = int(threads) if threads.isdecimal() else 0
    if number > 1 and demand.ranks_count * number > count and demand.busy_count > 1:
        rows.append(
            Evidence(
                "fewer_threads",
                "metadata",
                items_count=number,
                of_count=demand.ranks_count,
                part_ratio=max(count // demand.ranks_count, 1),
                name=_fact(facts, rank.rank, "omp_num_threads"),
            )
        )
    elif not others and not _is_of_workers(demand, count) and demand.ranks_count > count:
        rows.append(Evidence("ranks_share_cpus", "counters", items_count=demand.ranks_count, of_count=count))
    elif not others and _is_of_workers(demand, count):
        rows.append(
            Evidence(
                "workers_hold_cpus",
                "counters",
                items_count=demand.workers_count,
                of_count=demand.ranks_count,
                part_ratio=demand.workers,
            )
        )
    return rows


def _is_of_workers(demand: _Demand, count: int) -> bool:
    """Return True if all CPUs are taken, a good part of them by workers, and there are more processes than CPUs."""
    taken = demand.whole >= _TAKEN_RATIO * count and demand.ranks_count + demand.workers_count > count
    return taken and demand.workers >= _WORKERS_RATIO * demand.whole


def _usable_count(facts: RunFacts, cpu: HostCpu) -> int:
    """Return the CPUs that the job may use: those of the host, or fewer where its launcher was bound to some."""
    bound = run_facts(facts.trace).get("cores_count", "")
    count = round(cpu.count)
    return min(count, int(bound)) if facts.hosts_count == 1 and bound.isdecimal() and int(bound) > 0 else count


def _fact(facts: RunFacts, rank: int, key: str) -> str:
    """Return what the process of a rank recorded of itself; empty if it did not."""
    trace = facts.trace
    processes, metadata = trace.processes, trace.metadata
    own = processes["process_id"][(processes["role_code"] == ProcessRole.RANK) & (processes["rank"] == rank)]
    rows = np.flatnonzero((metadata["key_code"] == trace.strings.find(key)) & np.isin(metadata["process_id"], own[:1]))
    return trace.text(int(metadata["value_code"][rows[0]])) if len(rows) else ""


def _demand(facts: RunFacts, rank: RankFacts) -> _Demand | None:
    """Return who could run on the host of a rank during the counted steps; None if no thread of it was sampled."""
    trace, steps = facts.trace, facts.tables["steps"]
    processes = trace.processes
    mine = processes["host_code"] == trace.strings.find(rank.host)
    roles = {
        int(process): (int(role), int(of_rank))
        for process, role, of_rank in zip(
            processes["process_id"][mine], processes["role_code"][mine], processes["rank"][mine], strict=True
        )
    }
    workers = processes.take(mine & (processes["role_code"] == ProcessRole.WORKER))
    wanted = thread_demand(trace, (int(steps["begin_ns"].min()), int(steps["end_ns"].max())))
    here = [(*roles[process], part) for (process, _), part in wanted.items() if process in roles]
    if not here:
        return None
    return _Demand(
        sum(part for _, _, part in here),
        sum(part for role, _, part in here if role == ProcessRole.WORKER),
        sum(role == ProcessRole.RANK and of == rank.rank and part >= _BUSY_RATIO for role, of, part in here),
        sum(role == ProcessRole.RANK for role, _ in roles.values()),
        sum(workers_count(workers["worker_id"][rows]) for rows in GroupBy(workers["rank"])),
    )
