"""How far a summary can be trusted: what was measured, what was lost, what the tracing itself cost.

Used by ``facts``. Counter names are those of ``stashtrace/collectors/proc.py``.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.matching import contact_errors, match
from stashtrace.analysis.step_threads import how_to_get_steps
from stashtrace.analysis.trace_index import blocked_by_guess
from stashtrace.model.kinds import (
    SYNCHRONISING_OPS,
    CollectiveSource,
    Phase,
    ProcessRole,
    Severity,
    ThreadRole,
    TrackKind,
)
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace
from stashtrace.units import duration_text

_LOSSES_AT_MOST = 3
#: Who reports that files are missing, unreadable or of different jobs.
_WHOLE_FILES = "importers"
#: How a process that put itself under a filter ended its recording, and what that hides beside the process.
_SANDBOXED = {"sandboxed": "", "sandboxed_with_children": ", with what it starts from there"}
_TRAINERS_AT_MOST = 3
#: A process that was killed is last seen in a sample; ends nearer than this to each other have no order.
_CLEARLY_BEFORE_NS = 50_000_000
#: What one record of a native hook costs, from benchmarks/results.
HOOK_COST_NS = 40
#: The same where the job has emptied the caches between two calls: two stamps, a row and their code from memory.
HOOK_MOST_NS = 150
#: Between computations, what a probe evicts is fetched again by the job, outside the probe's own account of itself.
PROBE_MOST_RATIO = 3.0
#: A wake-up of a thread of the recorder: two switches, and a core's second-level cache to fill again.
WAKE_MOST_NS = 50_000


@dataclass(frozen=True, slots=True)
class Trust:
    """What stands behind the numbers.

    Attributes
    ----------
    measured, inferred, invisible : tuple of str
    own_cost_ratio : float
        Of the CPU time of the job (its processes and the children that they waited for), as far as clocks and
        counts of ours see it; -1 if not measured.
    own_cost_most_ratio : float
        The same with bounds for what they do not see: caches and switches between threads; -1 if not measured.
    lost_records_count : int
    losses : tuple of str
        The worst ones as sentences.
    clocks : str
    steal_ratio : float
        CPU time that the hypervisor took from the host that lost most.
    steal_host : str
    cpu_busy_ratio : float
        Of the CPU time of the busiest host while it was sampled.
    ending : str
        A sentence about a job that did not end well, empty otherwise.
    scope : tuple of str
        Sentences about what the numbers leave out: steps that were not wanted, other processes that trained.
    first_to_end : str
        A sentence about the rank whose records end clearly before those of the others, empty if there is none.
    """

    measured: tuple[str, ...] = ()
    inferred: tuple[str, ...] = ()
    invisible: tuple[str, ...] = ()
    own_cost_ratio: float = -1.0
    own_cost_most_ratio: float = -1.0
    lost_records_count: int = 0
    losses: tuple[str, ...] = ()
    clocks: str = "one host"
    steal_ratio: float = 0.0
    steal_host: str = ""
    cpu_busy_ratio: float = 0.0
    ending: str = ""
    first_to_end: str = ""
    scope: tuple[str, ...] = ()


def trust(trace: Trace, ranks: Sequence[int], tables: Mapping[str, Table]) -> Trust:
    """Collect what a reader must know before believing the rest."""
    measured, inferred, invisible = _sources(trace)
    if "hidden" in tables and (tables["hidden"]["estimated_ns"] > 0).any():
        inferred += ("network by what transfers inside a host take",)
    lost, sentences = _losses(trace)
    shares = _host_shares(trace)
    own_cost_ratio, own_cost_most_ratio = _own_cost(trace)
    steal_host = max(shares, key=lambda host: shares[host][0], default="")
    return Trust(
        measured,
        inferred,
        invisible,
        own_cost_ratio=own_cost_ratio,
        own_cost_most_ratio=own_cost_most_ratio,
        lost_records_count=lost,
        losses=sentences,
        clocks=_clocks(trace),
        steal_ratio=shares.get(steal_host, (0.0, 0.0))[0],
        steal_host=steal_host,
        cpu_busy_ratio=max((busy for _, busy in shares.values()), default=0.0),
        ending=_ending(trace),
        first_to_end=_first_to_end(trace),
        scope=(*_unwanted_steps(trace), *_other_trainers(trace), *_unordered(trace)),
    )


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
    # gloo tells no begin of its work; it is estimated from the entries of all ranks.
    inferred = ["begin of gloo's transfers"] if "gloo" in backends else []
    if blocked_by_guess(trace):
        inferred.append("which calls waited for storage")
    seen, bounded = _device_sources(trace)
    measured += seen
    inferred += bounded
    driver = {"none": "GPU (no driver)", "present": "GPU (not recorded)"}.get(
        _run_facts(trace).get("gpu_driver", ""), "GPU"
    )
    if (trace.losses["name_code"] == trace.strings.find("timing_events_off")).any():
        driver = "what the GPU does beside NCCL (CUDA_DEVICE_MAX_CONNECTIONS=1: no timing events)"
        seen = []
    invisible = ([] if seen else [driver]) + ([] if len(trace.counters) else ["CPU contention"])
    invisible += [part for part in _run_facts(trace).get("not_recorded", "").split(", ") if part]
    invisible += _untraced_programs(trace)
    return tuple(measured), tuple(inferred), tuple(invisible)


def _untraced_programs(trace: Trace) -> list[str]:
    """Programs that were started without the library, and processes that ended their recording in a sandbox."""
    counts: dict[str, int] = {}
    for row in trace.losses.rows():
        if trace.text(row["name_code"]) == "started_untraced":
            program = trace.text(row["advice_code"])
            counts[program] = counts.get(program, 0) + max(row["lost_count"], 1)
    told = [f"{count} x {program}" if count > 1 else program for program, count in sorted(counts.items())]
    for name, what in _SANDBOXED.items():
        count = int((trace.losses["name_code"] == trace.strings.find(name)).sum())
        if count:
            whose = "a process" if count == 1 else f"{count} processes"
            told.append(f"{whose} after entering a sandbox of its own{what}")
    return told


def _device_sources(trace: Trace) -> tuple[list[str], list[str]]:
    """What devices were watched by, and what follows from it only as a bound."""
    seen, bounded = [], []
    if (trace.device_brackets["begin_ns"] >= 0).any():
        seen.append("GPU by timing events")
        bounded.append("launch and sync (bounds)")
    if len(trace.kernels):
        seen.append("GPU by kernels")
    sources = np.unique(trace.collectives["source_code"][trace.collectives["device_begin_ns"] >= 0]).tolist()
    words = {CollectiveSource.PLUGIN: "NCCL by its plugin", CollectiveSource.EVENTS: "NCCL by timing events"}
    return seen + [text for source, text in words.items() if source in sources], bounded


def _losses(trace: Trace) -> tuple[int, tuple[str, ...]]:
    losses = trace.losses
    lost = int(losses["lost_count"][losses["severity_code"] == Severity.DATA_LOSS].sum())
    serious = losses.take(losses["severity_code"] >= Severity.ERROR)
    totals: dict[tuple[str, str], int] = {}
    advices: dict[tuple[str, str], dict[str, None]] = {}
    for row in serious.rows():
        key = (trace.text(row["collector_code"]), trace.text(row["name_code"]))
        totals[key] = totals.get(key, 0) + row["lost_count"]
        advices.setdefault(key, {})[trace.text(row["advice_code"])] = None
    # What is wrong with the files as a whole comes before what single rows lack.
    order = sorted(totals, key=lambda key: (key[0] != _WHOLE_FILES, -totals[key]))
    sentences = [_loss(*key, totals[key], list(advices[key])) for key in order[:_LOSSES_AT_MOST]]
    if len(order) > _LOSSES_AT_MOST:
        more = len(order) - _LOSSES_AT_MOST
        sentences.append(f"{more} more kind{'' if more == 1 else 's'} of loss, see `stashtrace info`")
    return lost, tuple(sentences)


def _loss(collector: str, reason: str, count: int, advices: Sequence[str]) -> str:
    """One kind of loss as a sentence; of many files the first stands for all. Some losses are no number of rows."""
    alike = f" (and {len(advices) - 1:,} more like it)" if len(advices) > 1 else ""
    if collector == _WHOLE_FILES and advices[0]:
        return advices[0] + alike
    many = f"{count:,} " if count > 0 else ""
    return f"{many}{reason.replace('_', ' ')} ({collector})" + (f": {advices[0]}" if advices[0] else "") + alike


def _own_cost(trace: Trace) -> tuple[float, float]:
    """CPU share of the tracing, and an upper end for it.

    Its threads count as the kernel counts them, and all of a process wake up for each of its samples; its probes count
    as they time themselves, its hooks by the number of their records.
    """
    used = _job_cpu_ns(trace)
    if used <= 0:
        return -1.0, -1.0
    tracks = trace.tracks
    tracers = tracks.take((tracks["kind_code"] == TrackKind.THREAD) & (tracks["role_code"] == ThreadRole.TRACER))
    owned = set(zip(tracers["process_id"].tolist(), tracers["native_id"].tolist(), strict=True))
    threads = sum(ns for key, ns in _last(trace, "thread_run_ns_total").items() if key in owned)
    probes = _probe_cost_ns(trace)
    hooked = trace.io_rows_count + len(trace.waits)
    threads_of = Counter(tracers["process_id"].tolist())
    samples = _samples(trace, "process_user_ns_total")
    wakes = sum(len(values) * max(threads_of[process], 1) for (process, _), values in samples)
    least = threads + probes + hooked * HOOK_COST_NS
    most = threads + wakes * WAKE_MOST_NS + probes * PROBE_MOST_RATIO + hooked * HOOK_MOST_NS
    return least / used, most / used


def _job_cpu_ns(trace: Trace) -> float:
    """CPU time of the traced processes and of the children that they waited for, each counted once.

    What a process says at its end goes before its samples, which most processes do not have. Its children's time holds
    that of traced ones, and that of vfork children, whose I/O rows are their parent's.
    """
    processes = trace.processes
    # Images of one process, one after the other by exec, count on: the last one's figures are those of all.
    identity = zip(
        *(processes[c].tolist() for c in ("host_code", "boot_code", "parent_process_id", "pid")), strict=True
    )
    one_of = dict(zip(processes["process_id"].tolist(), identity, strict=True))
    own: dict[tuple[int, ...], float] = dict.fromkeys(one_of.values(), 0.0)
    children, traced_children = dict(own), dict(own)
    user, system = _last(trace, "process_user_ns_total"), _last(trace, "process_system_ns_total")
    for sampled, value in user.items():
        process = one_of[sampled[0]]
        own[process] = max(own[process], value + system.get(sampled, 0.0))
    for totals, fact in ((own, "cpu_ns"), (children, "children_cpu_ns")):
        for process_id, value in _whole_facts(trace, fact).items():
            totals[one_of[process_id]] = max(totals[one_of[process_id]], value)
    for process in own:
        parent = one_of.get(process[2])
        if parent is not None:
            traced_children[parent] += own[process] + children[process]
    untraced = sum(max(children[process] - traced_children[process], 0.0) for process in own)
    return sum(own.values()) + untraced


def _probe_cost_ns(trace: Trace) -> int:
    """What the Python probes of all processes say they took; each says it at its end, a worker with its last batch."""
    return sum(_whole_facts(trace, "probe_cost_ns").values())


def _whole_facts(trace: Trace, key: str) -> dict[int, int]:
    """Process -> the largest whole number that it recorded as a fact."""
    facts = trace.metadata.take(trace.metadata["key_code"] == trace.strings.find(key))
    told: dict[int, int] = {}
    for process_id, value_code in zip(facts["process_id"].tolist(), facts["value_code"].tolist(), strict=True):
        value = trace.text(value_code)
        if process_id >= 0 and value.isdecimal():
            told[process_id] = max(told.get(process_id, 0), int(value))
    return told


def _host_shares(trace: Trace) -> dict[str, tuple[float, float]]:
    """Host -> shares of its CPU time that its hypervisor took, and that were busy."""
    parts = ("user", "system", "idle", "iowait", "steal")
    grown = {part: _growth(trace, f"host_{part}_ns_total") for part in parts}
    hosts = dict(zip(trace.processes["process_id"].tolist(), trace.processes["host_code"].tolist(), strict=True))
    found: dict[str, tuple[float, float]] = {}
    longest: dict[str, float] = {}
    for key in grown["idle"]:
        values = {part: grown[part].get(key, 0.0) for part in parts}
        whole, host = sum(values.values()), trace.text(hosts[key[0]])
        if whole > longest.get(host, 0.0):  # every process samples its host; the longest look is the best
            longest[host] = whole
            found[host] = values["steal"] / whole, (values["user"] + values["system"] + values["steal"]) / whole
    return found


def _last(trace: Trace, name: str) -> dict[tuple[int, int], float]:
    """(process, native id) -> last value of a cumulative counter."""
    return {key: float(values[-1]) for key, values in _samples(trace, name)}


def _growth(trace: Trace, name: str) -> dict[tuple[int, int], float]:
    """(process, native id) -> growth of a cumulative counter while it was sampled."""
    return {key: float(values[-1] - values[0]) for key, values in _samples(trace, name)}


def _samples(trace: Trace, name: str) -> Iterator[tuple[tuple[int, int], npt.NDArray[np.float64]]]:
    tracks, counters = trace.tracks, trace.counters
    wanted = tracks.take((tracks["kind_code"] == TrackKind.COUNTER) & (tracks["name_code"] == trace.strings.find(name)))
    for track, process, native in zip(
        *(wanted[c].tolist() for c in ("track_id", "process_id", "native_id")), strict=True
    ):
        values = counters["value"][counters["track_id"] == track]
        if len(values):
            yield (process, native), values


def _ending(trace: Trace) -> str:
    """A sentence about a job that ended badly or has not ended."""
    facts = _run_facts(trace)
    code = facts.get("exit_code", "0")
    if facts.get("signal", "0") not in ("", "0", "None"):
        return f"the job was ended by signal {facts['signal']}: a step that was not finished is not counted"
    return f"the job ended with exit code {code}" if code not in ("", "0", "None") else ""


def _first_to_end(trace: Trace) -> str:
    """Which rank was gone before the others: where to look when a job broke off."""
    processes = trace.processes
    ranks = processes.take(processes["role_code"] == ProcessRole.RANK).sort_by("end_ns")
    if len(ranks) < 2:
        return ""
    ahead = int(ranks["end_ns"][1] - ranks["end_ns"][0])
    if ahead < _CLEARLY_BEFORE_NS:
        return ""
    first, second = ranks["rank"][0], ranks["rank"][1]
    return f"the records of rank {first} end first, {duration_text(ahead)} before those of rank {second}"


def _unwanted_steps(trace: Trace) -> list[str]:
    steps = _run_facts(trace).get("steps", "")
    return [f"recorded were only steps {steps} of the job, counted in updates"] if steps else []


def _other_trainers(trace: Trace) -> list[str]:
    """Processes beside the ranks that made updates too: a second job of a script, or a rank started again."""
    phases, processes = trace.phases, trace.processes
    updates = phases["process_id"][np.isin(phases["phase_code"], (Phase.OPTIMIZER, Phase.UPDATE_SKIPPED))]
    found = []
    for row in processes.rows():
        count = int(np.count_nonzero(updates == row["process_id"]))
        if count and row["role_code"] != ProcessRole.RANK:
            found.append(f"{trace.text(row['name_code'])} ({row['pid']}, {count} update{'' if count == 1 else 's'})")
    if not found:
        return []
    more = f" and {len(found) - _TRAINERS_AT_MOST} more" if len(found) > _TRAINERS_AT_MOST else ""
    return [f"not in these numbers: {', '.join(found[:_TRAINERS_AT_MOST])}{more} trained too; run each job by itself"]


def _unordered(trace: Trace) -> list[str]:
    """What the clocks of several hosts cannot tell."""
    alignment = trace.alignment
    if len(alignment) < 2 or not len(trace.collectives):
        return []
    matched, table = match(trace), trace.collectives
    error = duration_text(2 * int(contact_errors(trace).max()))
    shared = np.isin(table["op_code"], SYNCHRONISING_OPS) & (matched.last_rank >= 0)
    keys = np.stack([table["group_hash"], table["sequence"].astype(np.uint64)], axis=1)
    count = len(np.unique(keys[shared], axis=0))
    doubtful = len(np.unique(keys[shared & ~matched.ordered], axis=0))
    by_duration = len(np.unique(keys[shared & ~matched.by_clock], axis=0))
    told = f"events that different hosts share are not ordered where closer than {error}"
    if doubtful:
        told += f": in {doubtful} of {count} collectives nobody is called last"
    if by_duration:
        told += f"{';' if doubtful else ':'} {by_duration} of {count} are split by durations instead of by clocks"
    return [told]


def without_steps(trace: Trace) -> str:
    """Why a run may show no steps."""
    if "no_times" in _run_facts(trace) or "imported" in _run_facts(trace):
        return how_to_get_steps(trace)
    collectors = _run_facts(trace).get("collectors", "").split()
    if collectors and "torch_step" not in collectors and "annotations" not in collectors:
        return "no step can be seen: --collectors left out torch_step and annotations"
    alone = _isolated_options(trace)
    if alone:
        return f"no step can be seen: `python {alone}` starts without the environment that carries the probes"
    return "steps are seen where a torch optimizer or stashtrace.step() is called; see `stashtrace doctor`"


def _isolated_options(trace: Trace) -> str:
    """The option that kept a Python of the job from loading the probes, empty if there is none."""
    rows = trace.metadata.rows()
    for words in (trace.text(r["value_code"]).split() for r in rows if trace.text(r["key_code"]) == "argv"):
        if not words or "python" not in words[0].rpartition("/")[2]:
            continue
        options = itertools.takewhile(lambda word: word.startswith("-") and word not in ("-c", "-m"), words[1:])
        for option in options:
            if not option.startswith("--") and set(option[1:]) & set("IES"):
                return option
    return ""


def _run_facts(trace: Trace) -> dict[str, str]:
    """What ``run.json`` says."""
    own = trace.metadata.take(trace.metadata["process_id"] == -1)
    return {trace.text(row["key_code"]): trace.text(row["value_code"]) for row in own.rows()}


def _clocks(trace: Trace) -> str:
    alignment = trace.alignment
    told = "not aligned"
    if len(alignment):
        error = duration_text(int(contact_errors(trace).max()))
        methods = {trace.text(code) for code in alignment["method_code"].tolist()}
        agree = "of the files taken to agree"
        if methods == {"assumed"}:
            return agree
        found = sorted(methods - {"same_clock", "assumed"})
        by = f" by {', '.join(found)}" if found else ""
        if "assumed" in methods:
            by += f"; those {agree} where no host is named"
        told = f"{'one host' if len(alignment) == 1 else f'{len(alignment)} hosts'}, ±{error}{by}"
    if len(trace.device_clocks):
        told += f"; devices ±{duration_text(int(trace.device_clocks['error_ns'].max()))}"
    return told
