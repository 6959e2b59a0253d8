"""Step threads that waited for a CPU, and who else wanted one: other programs, torch's threads, workers.

``contention`` is a verdict above 20 % of the step, else a note about the machine. ``rank`` waited longest,
``share_ratio`` of its step. This time is part of other kinds in the budget (``counted_as``), since it cannot be
distinguished from computing. ``cause_kind`` says who held the CPUs: ``others``, ``threads``, ``workers``, ``ranks`` or
``limit``; it is empty if no sample shows it. That torch began with many threads is no reason while they sleep.
"""

from __future__ import annotations

from dataclasses import dataclass

from stashtrace.analysis.findings.claim_rows import Claim, Evidence, Facts, claim, fact
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.findings.summary_input import RankFacts, RunFacts
from stashtrace.analysis.stalls.cpu_waits import cpu_waits
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.stalls.sampled_cpus import HostCpu, thread_demand
from stashtrace.analysis.steps.epochs import workers_count
from stashtrace.analysis.steps.steps import rank_and_steps
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import ProcessRole
from stashtrace.schema.trace import facts_named, run_facts
from stashtrace.text.units import percent_text, ranks_text


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
    crowded = {r.rank: r for r in facts.ranks if r.contention_ratio > POLICY.contention_noted_ratio}
    if not crowded:
        return []
    worst = max(crowded.values(), key=lambda rank: rank.contention_ratio)
    counted_as = _counted_as(facts, worst)
    one = len(crowded) == 1
    whose = "rank {rank}'s step thread" if one else "the step threads of ranks {ranks}"
    said = (
        f"CPU contention: {whose} waited for a CPU for {'' if one else 'up to '}{{share_ratio:percent}} of the step"
        f"{' (counted as {counted_as})' if counted_as else ''}"
    )
    figures = Facts(ranks=ranks_text(sorted(crowded)), rank=worst.rank, items_count=len(crowded))
    figures |= Facts(share_ratio=worst.contention_ratio, counted_as=counted_as)
    if worst.contention_ratio <= POLICY.contention_verdict_ratio:
        shared = _shared(facts, worst)
        return [claim("machine", "contention", f"{said}{_SHARED}" if shared else said, **figures, **shared)]
    who = f"{'rank' if one else 'ranks'} {figures['ranks']} {'waits' if one else 'wait'}"
    figures |= Facts(short=f"{who} {percent_text(worst.contention_ratio)} of a step for a CPU")
    rows = _reasons(facts, worst)
    cause = next((cause for code, cause in _CAUSES.items() if any(row.code == code for row in rows)), "")
    return [claim("verdict", "contention", said, rows, cause_kind=cause, **figures)]


_SHARED = "; {ranks_count:rank} share {cpus_count:CPU}"


def _shared(facts: RunFacts, rank: RankFacts) -> Facts:
    """Return how many ranks and CPUs the host of a rank has, if there are more ranks; else nothing."""
    cpu = facts.trust.hosts.get(rank.host)
    ranks = sum(other.host == rank.host for other in facts.ranks)
    count = _usable_count(facts, cpu) if cpu is not None else ranks
    return Facts(ranks_count=ranks, cpus_count=count) if ranks > count else Facts()


def _counted_as(facts: RunFacts, rank: RankFacts) -> str:
    """Return the columns of the budget that hold most of these waits of a rank, the longest first."""
    index = TraceIndex(facts.trace)
    known = rank_and_steps(index.origin, facts.tables["steps"], rank.rank)
    waits = cpu_waits(index, *known) if known is not None else {}
    least_ns = POLICY.contention_part_ratio * sum(waits.values())
    columns = sorted((name for name in waits if waits[name] > least_ns), key=lambda name: -waits[name])
    return " and ".join(filter(None, (", ".join(columns[:-1]), *columns[-1:])))


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
    ranks, workers, of_host = demand.ranks_count, demand.workers_count, max(round(cpu.count), count)
    used = ""
    if cpu.others_count >= POLICY.others_named_ratio * of_host:  # they are not bound to the CPUs that the job may use
        of = "these" if of_host == count else "the host's {host_cpus_count}"
        used = f"; other programs used {{others_count:number}} of {of}"
    known = Facts(cpus_count=count, ranks_count=ranks, workers_count=workers, others_count=cpu.others_count)
    threads_said = "{threads_count:number} {threads_count:thread|threads} of the job"
    said = f"on average {threads_said} ran on, or waited for, {{cpus_count:CPU}}{used}"
    threads = Facts(rank=rank.rank, host=rank.host, threads_count=demand.whole, host_cpus_count=of_host)
    rows = [fact("cpu_demand", said, "counters", **known, **threads)]
    # Others are the reason where they hold a good part of what is wanted beyond the CPUs that there are.
    excess = demand.whole + cpu.others_count - count
    others = cpu.others_count > max(POLICY.others_hold_ratio * cpu.count, POLICY.others_of_excess_ratio * excess)
    if not others and cpu.busy_ratio < 1 - POLICY.cpus_idle_ratio:
        said = (
            "meanwhile {idle_ratio:percent} of the CPU time of the host was idle: look for a limit on the job's CPUs"
            " (quota of a container, pinned threads)"
        )
        rows.append(fact("idle_cpus", said, "counters", idle_ratio=1 - cpu.busy_ratio))
        allowed = _fact(facts, rank.rank, "cpus_allowed")
        said = "rank {rank} began with the CPUs {cpus} of its host"
        return [*rows, *([fact("pinned_to", said, "metadata", rank=rank.rank, cpus=allowed)] if allowed else [])]
    was_set = _fact(facts, rank.rank, "torch_threads_set")
    stated = was_set or _fact(facts, rank.rank, "torch_threads")
    number = int(stated) if stated.isdecimal() else 0
    # Threads that meet at the end of each operator wait for the one that others keep from a CPU.
    left = count * max(1 - cpu.others_count / cpu.count, 0.0) if others else count
    if number > 1 and ranks * number > left and demand.busy_count > 1:
        given = _fact(facts, rank.rank, "omp_num_threads")
        began = f"OMP_NUM_THREADS{'={given}' if given else ' is not set'}"
        said = (
            f"{{ranks_count:rank}} {'set' if was_set else 'began with'} {{threads_count}} torch threads"
            f"{' each' if ranks > 1 else ''} ({'torch.set_num_threads' if was_set else began}), {{all_threads_count}}"
            f" for {{cpus_count:CPU}}{' that other programs use, too' if others else ''}:"
            f" try {'torch.set_num_threads({advised_count})' if was_set else 'OMP_NUM_THREADS={advised_count}'}"
        )
        threads = Facts(threads_count=number, all_threads_count=ranks * number, given=given)
        advised = max(int(left // ranks), 1)
        rows.append(fact("fewer_threads", said, "metadata", **known, **threads, advised_count=advised))
    elif not others and _is_of_workers(demand, count):
        said = (
            "{ranks_count:rank} and {workers_count:loader worker} share {cpus_count:CPU}: workers account for"
            " {of_workers_count:number} of these threads; cheaper decoding or more CPUs would help"
        )
        rows.append(fact("workers_hold_cpus", said, "counters", **known, of_workers_count=demand.workers))
    elif not others and ranks > count:
        said = "{ranks_count:rank} share {cpus_count:CPU}: fewer ranks on this machine, or more CPUs, would help"
        rows.append(fact("ranks_share_cpus", said, "counters", **known))
    if others:
        said = "stop other programs on this machine, or record while they are idle"
        rows.append(fact("others_hold_cpus", said, "counters", **known))
    return rows


def _is_of_workers(demand: _Demand, count: int) -> bool:
    """Return True if all CPUs are taken, a good part of them by workers, and there are more processes than CPUs."""
    taken = demand.whole >= POLICY.cpus_taken_ratio * count and demand.ranks_count + demand.workers_count > count
    return taken and demand.workers >= POLICY.workers_of_threads_ratio * demand.whole


def _usable_count(facts: RunFacts, cpu: HostCpu) -> int:
    """Return the CPUs that the job may use: those of the host, or fewer where its launcher was bound to some."""
    bound = run_facts(facts.trace).get("cores_count", "")
    count = round(cpu.count)
    return min(count, int(bound)) if facts.hosts_count == 1 and bound.isdecimal() and int(bound) > 0 else count


def _fact(facts: RunFacts, rank: int, key: str) -> str:
    """Return what the process of a rank recorded of itself, last; empty if it did not."""
    processes = facts.trace.processes
    ids = processes["process_id"][(processes["role_code"] == ProcessRole.RANK) & (processes["rank"] == rank)]
    values = [value for process, value in facts_named(facts.trace, key) if process in ids[:1]]
    return values[-1] if values else ""


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
        sum(part >= POLICY.busy_thread_ratio for role, of, part in here if (role, of) == (ProcessRole.RANK, rank.rank)),
        sum(role == ProcessRole.RANK for role, _ in roles.values()),
        sum(workers_count(workers["worker_id"][rows]) for rows in GroupBy(workers["rank"])),
    )
