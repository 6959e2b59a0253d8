"""How far a summary can be trusted: what was measured, inferred and invisible, the cost of the tracing, the clocks.

``own_cost`` has the cost as a share of ``used_ns``, the CPU time of the job's processes from start to end:
``least_ratio`` by the tracer's own clocks and counts, ``share_ratio`` with bounds for what these do not show. ``part``
is the largest of its parts; `stashtrace info` lists them. Probes run in the steps: ``step_ns`` is what they add to one
at most, mean of all; threads of the recorder run next to them. ``agreement`` is that of the kind of time that differs
most between brackets and kernels, in steps that have both. Counter names are those of
``stashtrace/collectors/proc.py``.

``clocks`` and ``unordered`` have the error in ``stall_ns``: -1 if the clocks are not aligned. ``unordered`` counts
collectives in which no rank is called last (``nobody_count``), and those that are split into waiting and transfer by
how long they took (``durations_count``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from stashtrace.analysis.collectives.matching import contact_errors, is_imported, match
from stashtrace.analysis.findings.claim_rows import Claim, Facts, claim, fact
from stashtrace.analysis.findings.rules.losses import lost_claim
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.io.unseen_reads import unseen_reads
from stashtrace.analysis.stalls.rows_by_thread import blocked_by_guess
from stashtrace.analysis.stalls.sampled_cpus import HostCpu, host_cpus, last_values, timed_samples
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import SYNCHRONISING_OPS, CollectiveSource, ThreadRole, TrackKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import HOST_NOT_RECORDED, Trace, facts_named, is_stated, run_facts
from stashtrace.text.units import percent_text, range_text

#: Parts of the tracing's cost.
_PROBES, _THREADS = "probes", "recorder threads"
#: How NCCL's own stamps are called.
_BY_PLUGIN = "NCCL by its plugin"
#: Losses of processes that ended their recording under a filter, and what is invisible besides the process.
_SANDBOXED = {"sandboxed": "", "sandboxed_with_children": ", with what it starts from there"}


@dataclass(frozen=True, slots=True)
class OwnCost:
    """CPU time of the tracing, and that of the job, the tracing included."""

    #: Of the processes and the children that they waited for, from their start to their end; 0 if unknown.
    used_ns: float = 0.0
    #: Part -> by the tracer's own clocks and counts, and with bounds for what these do not show: caches, and switches
    #: between threads.
    parts: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    #: Steps of all ranks; 0 if unknown.
    steps_count: int = 0

    @property
    def least_ratio(self) -> float:
        """Share of the job's CPU time, at least; -1 if not measured."""
        return sum(least for least, _ in self.parts.values()) / self.used_ns if self.used_ns > 0 else -1.0

    @property
    def most_ratio(self) -> float:
        """Share of the job's CPU time, at most; -1 if not measured."""
        return sum(most for _, most in self.parts.values()) / self.used_ns if self.used_ns > 0 else -1.0


@dataclass(frozen=True, slots=True)
class Trust:
    """Sources of the numbers, and the cost of the tracing."""

    measured: tuple[str, ...] = ()
    inferred: tuple[str, ...] = ()
    invisible: tuple[str, ...] = ()
    own_cost: OwnCost = field(default_factory=OwnCost)
    hosts: dict[str, HostCpu] = field(default_factory=dict)


def trust(trace: Trace, tables: Mapping[str, Table], *, missing: bool = False) -> Trust:
    """Collect what limits the trust in a summary; with ``missing``, ranks of the job were not recorded."""
    measured, inferred, invisible = _sources(trace)
    if missing:  # a rank that was not recorded may have been late
        measured = tuple("link and late together" if name == "link, late" else name for name in measured)
    if "hidden" in tables and (tables["hidden"]["estimated_ns"] > 0).any():
        inferred += ("network by what transfers inside a host take",)
    steps = tables.get("steps")
    window = (int(steps["begin_ns"].min()), int(steps["end_ns"].max())) if steps is not None and len(steps) else None
    cost = replace(own_cost(trace), steps_count=0 if steps is None else len(steps))
    return Trust(measured, inferred, invisible, cost, host_cpus(trace, window))


def trust_claims(trace: Trace, known: Trust) -> list[Claim]:
    """Return claims about what was measured, inferred and invisible, the cost of tracing, the losses and the clocks."""
    sources = {"measured": known.measured, "inferred": known.inferred, "invisible": known.invisible}
    claims = []
    for kind, names in sources.items():
        parts = [fact("source", "{name}", name=name) for name in names]
        said = f"{kind}{' here' if kind == 'invisible' else ''}: {'{parts}' if names else '-'}"
        claims.append(claim("trust", kind, said, parts=parts, items_count=len(names)))
    claims.append(_own_cost_claim(known.own_cost))
    return [*claims, lost_claim(trace), _clock_claim(trace)]


def agreement_claims(table: Table | None) -> list[Claim]:
    """Return a claim about how far brackets and kernels differ in steps that have both."""
    if table is None or not len(table):
        return []
    kinds = GroupBy(table["kind"])
    difference = kinds.sum(np.abs(table["difference_ratio"])) / len(GroupBy(table["rank"], table["step"]))
    worst = int(difference.argmax())
    said = (
        "brackets and kernels agree to {share_ratio:percent} of a step over {items_count:step}"
        " (largest difference: {name})"
    )
    facts = Facts(share_ratio=float(difference[worst]), name=str(kinds.values[worst]))
    return [claim("trust", "agreement", said, items_count=len(np.unique(table["step"])), **facts)]


def _sources(trace: Trace) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    measured = [
        name
        for name, count in (
            ("data", len(trace.batches)),
            ("link, late", len(trace.collectives)),
            ("files", trace.io_rows_count),
        )
        if count
    ]
    backends = {trace.text(code) for code in np.unique(trace.groups["backend_code"])}
    # gloo does not report the begin of its work; it is estimated from the entries of all ranks.
    inferred = ["begin of gloo's transfers"] if "gloo" in backends else []
    if blocked_by_guess(trace):
        inferred.append("which calls waited for storage")
    seen, bounded = _device_sources(trace)
    measured += seen
    inferred += bounded
    driver = {"none": "GPU (no driver)", "present": "GPU (not recorded)"}.get(
        run_facts(trace).get("gpu_driver", ""), "GPU"
    )
    if (trace.losses["name_code"] == trace.strings.find("timing_events_off")).any():
        without_nccl = " apart from NCCL" if _BY_PLUGIN in seen else ""
        driver = f"what the GPU does{without_nccl} (CUDA_DEVICE_MAX_CONNECTIONS=1: no timing events)"
        seen = []
    invisible = ([] if seen else [driver]) + ([] if len(trace.counters) else ["CPU contention"])
    invisible += [part for part in run_facts(trace).get("not_recorded", "").split(", ") if part]
    invisible += _untraced_programs(trace)
    invisible += unseen_reads(trace, lambda key: _whole_facts(trace, key))
    if is_stated(trace, "mpi_loaded"):
        invisible.append("MPI calls")
    invisible += _unread_stacks(trace)
    return tuple(measured), tuple(inferred), tuple(invisible)


def _unread_stacks(trace: Trace) -> list[str]:
    """Return which Python functions were not recorded, and why."""
    losses = trace.losses
    reasons = losses["advice_code"][losses["name_code"] == trace.strings.find("no_stacks")]
    parts = [f"Python functions ({trace.text(code)})" for code in np.unique(reasons)]
    if (losses["name_code"] == trace.strings.find("stacks_not_readable")).any():
        parts.append("Python functions between long calls (the system lets no process read its own memory)")
    elif run_facts(trace).get("stack_hz") == "0":
        parts.append("Python functions between long calls (--stack-hz 0)")
    return parts


def _untraced_programs(trace: Trace) -> list[str]:
    """Return programs that were started without the library, and processes that ended their recording in a sandbox."""
    counts: dict[str, int] = {}
    for row in trace.losses.rows():
        if trace.text(row["name_code"]) == "started_untraced":
            program = trace.text(row["advice_code"])
            counts[program] = counts.get(program, 0) + max(row["lost_count"], 1)
    programs = [f"{count} x {program}" if count > 1 else program for program, count in sorted(counts.items())]
    for name, children in _SANDBOXED.items():
        count = int((trace.losses["name_code"] == trace.strings.find(name)).sum())
        if count:
            whose = "a process" if count == 1 else f"{count} processes"
            programs.append(f"{whose} after entering a sandbox of its own{children}")
    return programs


def _device_sources(trace: Trace) -> tuple[list[str], list[str]]:
    """Return how devices were recorded, and what is known from that only as a bound."""
    seen, bounded = [], []
    if (trace.device_brackets["begin_ns"] >= 0).any():
        seen.append("GPU by timing events")
        bounded.append("launch and sync (bounds)")
    if len(trace.kernels):
        silent = is_stated(trace, HOST_NOT_RECORDED)
        seen.append("operations of the loop on the GPU" if silent else "GPU by kernels")
    sources = np.unique(trace.collectives["source_code"][trace.collectives["device_begin_ns"] >= 0]).tolist()
    plugin = "NCCL by device times" if is_imported(trace) else _BY_PLUGIN
    words = {CollectiveSource.PLUGIN: plugin, CollectiveSource.EVENTS: "NCCL by timing events"}
    return seen + [text for source, text in words.items() if source in sources], bounded


def _own_cost_claim(cost: OwnCost) -> Claim:
    if cost.used_ns <= 0:
        return claim("trust", "own_cost", "own cost not measured", share_ratio=-1.0, least_ratio=-1.0)
    part = max(cost.parts, key=lambda name: cost.parts[name][1])
    said = "own cost {between} of {used_ns:time} CPU, mostly {part}"
    facts = Facts(share_ratio=cost.most_ratio, least_ratio=cost.least_ratio, used_ns=cost.used_ns, part=part)
    facts |= Facts(phrases={"between": range_text(percent_text(cost.least_ratio), percent_text(cost.most_ratio))})
    if part == _PROBES and cost.steps_count:
        step_ns = cost.parts[part][1] / cost.steps_count
        return claim("trust", "own_cost", f"{said}: at most {{step_ns:time}} of a step", **facts, step_ns=step_ns)
    return claim("trust", "own_cost", said, **facts)


def own_cost(trace: Trace) -> OwnCost:
    """Return what the tracing cost.

    Threads of the recorder count by the kernel's account, and all of a process wake up for each of its samples. Probes
    count by their own account, hooks by the number of their records.
    """
    used = _job_cpu_ns(trace)
    if used <= 0:
        return OwnCost()
    tracks = trace.tracks
    tracers = tracks.take((tracks["kind_code"] == TrackKind.THREAD) & (tracks["role_code"] == ThreadRole.TRACER))
    owned = set(zip(tracers["process_id"].tolist(), tracers["native_id"].tolist(), strict=True))
    threads = sum(ns for key, ns in last_values(trace, "thread_run_ns_total").items() if key in owned)
    probes = sum(_whole_facts(trace, "probe_cost_ns").values())  # each process reports it at its end
    hooked = trace.io_rows_count + len(trace.waits)
    threads_of = Counter(tracers["process_id"].tolist())
    samples = timed_samples(trace, "process_user_ns_total")
    wakes = sum(len(values) * max(threads_of[process], 1) for (process, _), _, values in samples)
    parts = {
        _PROBES: (float(probes), probes * POLICY.probe_most_ratio),
        _THREADS: (threads, threads + wakes * POLICY.wake_most_ns),
        "hooks": (float(hooked * POLICY.hook_ns), float(hooked * POLICY.hook_most_ns)),
    }
    return OwnCost(used, parts)


def _job_cpu_ns(trace: Trace) -> float:
    """Return the CPU time of the traced processes and of the children that they waited for, each counted once.

    What a process reports at its end counts before its samples, which most processes do not have. Its children's time
    includes that of traced children, and of vfork children, whose I/O rows are their parent's.
    """
    processes = trace.processes
    # The counters of a process go on after exec: the figures of its last image are those of all.
    identity = zip(
        *(processes[c].tolist() for c in ("host_code", "boot_code", "parent_process_id", "pid")), strict=True
    )
    one_of = dict(zip(processes["process_id"].tolist(), identity, strict=True))
    own_ns: dict[tuple[int, ...], float] = dict.fromkeys(one_of.values(), 0.0)
    children, traced_children = dict(own_ns), dict(own_ns)
    user, system = last_values(trace, "process_user_ns_total"), last_values(trace, "process_system_ns_total")
    for sampled, value in user.items():
        process = one_of[sampled[0]]
        own_ns[process] = max(own_ns[process], value + system.get(sampled, 0.0))
    for totals, key in ((own_ns, "cpu_ns"), (children, "children_cpu_ns")):
        for process_id, value in _whole_facts(trace, key).items():
            totals[one_of[process_id]] = max(totals[one_of[process_id]], value)
    for process in own_ns:
        parent = one_of.get(process[2])
        if parent is not None:
            traced_children[parent] += own_ns[process] + children[process]
    untraced = sum(max(children[process] - traced_children[process], 0.0) for process in own_ns)
    return sum(own_ns.values()) + untraced


def _whole_facts(trace: Trace, key: str) -> dict[int, int]:
    """Return the largest whole number that each process recorded as a fact."""
    numbers: dict[int, int] = {}
    for process_id, value in facts_named(trace, key):
        if process_id >= 0 and value.isdecimal():
            numbers[process_id] = max(numbers.get(process_id, 0), int(value))
    return numbers


def _clock_claim(trace: Trace) -> Claim:
    """Return the claim about the hosts, and by what their clocks were aligned."""
    alignment = trace.alignment
    methods = {trace.text(code) for code in np.unique(alignment["method_code"])}
    error = int(contact_errors(trace).max()) if len(alignment) else -1
    # Files that name no host may be of any.
    hosts = int(np.count_nonzero(alignment["method_code"] != trace.strings.find("assumed"))) or len(alignment)
    said = "clocks not aligned"
    if methods == {"assumed"}:
        said = "clocks assumed to agree"
    elif hosts:
        # One clock stamped everything that a file of one host holds: there is nothing to be wrong about.
        exact = error <= 0 and hosts == 1
        named = ", ".join(sorted(methods - {"same_clock", "assumed"}))
        said = f"clocks {'one host' if hosts == 1 else '{items_count} hosts'}{'' if exact else ', ±{stall_ns:time}'}"
        said += f" by {named}" if named else ""
        said += "; assumed to agree between files that name no host" if "assumed" in methods else ""
    device = Facts()
    if len(trace.device_clocks):
        device = Facts(device_ns=int(trace.device_clocks["error_ns"].max()))
        said += "; devices ±{device_ns:time}" if methods != {"assumed"} else ""
    return claim("trust", "clocks", said, items_count=hosts, stall_ns=error, **device)


def unordered_claims(trace: Trace) -> list[Claim]:
    """Return a claim about the order that the clocks of several hosts leave open."""
    if len(trace.alignment) < 2 or not len(trace.collectives):
        return []
    matched, table = match(trace), trace.collectives
    shared = np.isin(table["op_code"], SYNCHRONISING_OPS) & (matched.last_rank >= 0)
    operations = GroupBy(table["group_hash"][shared], table["sequence"][shared])
    nobody, durations = (int(operations.any(rows[shared]).sum()) for rows in (~matched.ordered, ~matched.by_clock))
    said = ["in {nobody_count} of {all_count} collectives no rank is called last"] if nobody else []
    if durations:
        said.append("{durations_count} of {all_count} are split into waiting and transfer by durations, not by clocks")
    head = f"the order of events on different hosts is unknown within {{stall_ns:time}}{': ' if said else ''}"
    facts = Facts(nobody_count=nobody, durations_count=durations, all_count=len(operations))
    error = 2 * int(contact_errors(trace).max())
    return [claim("machine", "unordered", head + "; ".join(said), stall_ns=error, **facts)]
