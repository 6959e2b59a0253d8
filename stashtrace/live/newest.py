"""What the newest steps say, read from the trace of a round: verdicts, the costliest lines, losses, GPUs.

The tables of lines are those of ``analyze lines`` and ``lines_between_ranks``, made of the steps in memory.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

from stashtrace.analysis.findings import summarize
from stashtrace.analysis.lines.between_ranks import longer_lines
from stashtrace.analysis.lines.lines import CostlyLine, costliest_of_all
from stashtrace.analysis.lines.place_times import STEP, WORKER
from stashtrace.analysis.stalls.sampled_cpus import last_values
from stashtrace.errors import MissingDataError, StashtraceError, guarded
from stashtrace.live.state import LATE, MOST, LineNow
from stashtrace.schema.kinds import ProcessRole, Severity, ThreadRole, TrackKind
from stashtrace.schema.trace import Trace
from stashtrace.summary.words import Finding, claim_text, findings_of

_VERDICTS_COUNT = 3


def said_of(window: Trace) -> tuple[list[str], list[LineNow]]:
    """Return the sentences of the summary about the newest steps, worst first, and the lines that cost most in them.

    Both are empty if they cannot be made.
    """
    verdicts = guarded("the verdicts", lambda: _verdicts_of(window), lambda line: [line])
    faults, lines = guarded("the costliest line", lambda: ([], _lines_of(window)), lambda line: ([line], []))
    return [*verdicts, *faults], lines


def _verdicts_of(window: Trace) -> list[str]:
    return [claim_text(f) for f in _findings_of(window) if f.row["section"] == "verdict"][:_VERDICTS_COUNT]


def _lines_of(window: Trace) -> list[LineNow]:
    found = _findings_of(window)
    with contextlib.suppress(MissingDataError):  # no rank has made a step
        return lines_now(window, found) if found else []
    return []


def _findings_of(window: Trace) -> list[Finding]:
    with contextlib.suppress(StashtraceError):
        tables = summarize(window)  # kept on the trace
        return findings_of(tables.findings, tables.evidence)
    return []


def lines_now(window: Trace, found: Sequence[Finding]) -> list[LineNow]:
    """Return the costliest line of all ranks, and that of each rank that the others wait for.

    ``found``: the summary of these steps, which says who is late. Without recorded stacks the list is empty. Raises
    MissingDataError if no rank has steps.
    """
    lines = []
    if (most := costliest_of_all(window)) is not None and most[1].low_ns > 0:
        lines.append(_line(MOST, -1, *most))
    late = {f.row["cause_rank"] for f in found if f.row["section"] == "verdict" and f.row["kind"] == "late"}
    for rank in sorted(late - {-1}):
        lines += _of_late(window, rank)
    return lines


def _of_late(window: Trace, rank: int) -> list[LineNow]:
    """Return the line in which a late rank certainly spends longest beyond the others; without one, its workers'."""
    return [
        LineNow(LATE, rank, where, line.kind, line.place_and_leaf, row["longer_ns"], row["low_ns"], row["high_ns"])
        for where in (STEP, WORKER)
        for row, line in longer_lines(window, rank, 1, where=where)
    ][:1]


def _line(why: str, rank: int, where: str, line: CostlyLine) -> LineNow:
    return LineNow(why, rank, where, line.kind, line.place_and_leaf, line.time_ns, line.low_ns, line.high_ns)


def losses_by_process(window: Trace) -> dict[Hashable, int]:
    """Return the records that are missing, by process and reason; numbers of processes change from round to round."""
    losses, found = window.losses, Counter[Hashable]()
    for row in losses.take(losses["severity_code"] == int(Severity.DATA_LOSS)).rows():
        reason = (_process_key(window, row["process_id"]), window.text(row["collector_code"]))
        found[reason, window.text(row["name_code"])] += row["lost_count"]
    return found


def recorder_cpu_ns(window: Trace) -> dict[Hashable, int]:
    """Return the CPU time of each thread of the recorder."""
    tracks = window.tracks
    tracers = tracks.take((tracks["kind_code"] == TrackKind.THREAD) & (tracks["role_code"] == ThreadRole.TRACER))
    threads = set(zip(tracers["process_id"].tolist(), tracers["native_id"].tolist(), strict=True))
    run_ns = last_values(window, "thread_run_ns_total")
    return {(_process_key(window, key[0]), key[1]): int(value) for key, value in run_ns.items() if key in threads}


def _process_key(window: Trace, process_id: int) -> Hashable:
    """Return what a process image is known by in every round."""
    if process_id < 0:
        return ""
    processes = window.processes
    host, pid, name = (processes[column][process_id] for column in ("host_code", "pid", "name_code"))
    return window.text(host), int(pid), window.text(name)


def lost_count(window: Trace) -> int:
    """Return how many records are lost."""
    losses = window.losses
    return int(losses["lost_count"][losses["severity_code"] == int(Severity.DATA_LOSS)].sum())


def gpus_of(window: Trace) -> dict[str, str]:
    """Return the UUID of the GPU that each rank uses, of several with commas between; of a MIG instance its GPU's."""
    processes, devices = window.processes, window.devices
    ranks = processes["process_id"][processes["role_code"] == ProcessRole.RANK]
    of_ranks = devices.take(np.isin(devices["process_id"], ranks)).sort_by("rank", "device_index")
    found: dict[str, list[str]] = {}
    for row in of_ranks.rows():
        uuid = window.text(row["gpu_uuid_code"]) or window.text(row["uuid_code"])
        known = found.setdefault(str(row["rank"]), [])
        if uuid and uuid not in known:
            known.append(uuid)
    return {rank: ",".join(uuids) for rank, uuids in found.items()}
