"""How far a summary can be trusted: what was measured, what was lost, what the tracing itself cost.

Used by ``facts``. Counter names are those of ``stashtrace/collectors/proc.py``.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.model.kinds import Severity, SpanKind, ThreadRole, TrackKind
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace
from stashtrace.units import duration_text

_LOSSES_AT_MOST = 3
#: What one record of a native hook costs, from benchmarks/results.
HOOK_COST_NS = 40


@dataclass(frozen=True, slots=True)
class Trust:
    """What stands behind the numbers.

    Attributes
    ----------
    measured, inferred, invisible : tuple of str
    own_cost_ratio : float
        Of the CPU time of the traced processes; -1 if not measured.
    lost_records_count : int
    losses : tuple of str
        The worst ones as sentences.
    clocks : str
    steal_ratio : float
        CPU time that the hypervisor took from the host that lost most.
    steal_host : str
    ending : str
        A sentence about a job that did not end well, empty otherwise.
    """

    measured: tuple[str, ...] = ()
    inferred: tuple[str, ...] = ()
    invisible: tuple[str, ...] = ()
    own_cost_ratio: float = -1.0
    lost_records_count: int = 0
    losses: tuple[str, ...] = ()
    clocks: str = "one host"
    steal_ratio: float = 0.0
    steal_host: str = ""
    ending: str = ""


def trust(trace: Trace, ranks: Sequence[int], tables: Mapping[str, Table]) -> Trust:
    """Collect what a reader must know before believing the rest."""
    measured, inferred, invisible = _sources(trace)
    lost, sentences = _losses(trace)
    steal_ratio, steal_host = _steal(trace)
    return Trust(
        measured,
        inferred,
        invisible,
        _own_cost(trace),
        lost,
        sentences,
        _clocks(trace),
        steal_ratio,
        steal_host,
        _ending(trace),
    )


def _sources(trace: Trace) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    measured: list[str] = []
    inferred: list[str] = []
    if len(trace.batches):
        measured.append("data")
    if len(trace.collectives):
        measured += ["link", "late"]
    if len(trace.io):
        measured.append("file I/O")
    return tuple(measured), tuple(inferred), ("GPU",)


def _losses(trace: Trace) -> tuple[int, tuple[str, ...]]:
    losses = trace.losses
    lost = int(losses["lost_count"][losses["severity_code"] == Severity.DATA_LOSS].sum())
    serious = losses.take(losses["severity_code"] >= Severity.ERROR)
    totals: dict[tuple[str, str, str], int] = {}
    for row in serious.rows():
        key = (trace.text(row["collector_code"]), trace.text(row["name_code"]), trace.text(row["advice_code"]))
        totals[key] = totals.get(key, 0) + row["lost_count"]
    sentences = []
    for (collector, reason, advice), count in sorted(totals.items(), key=lambda item: -item[1])[:_LOSSES_AT_MOST]:
        sentences.append(f"{count:,} {reason.replace('_', ' ')} ({collector})" + (f": {advice}" if advice else ""))
    if len(totals) > _LOSSES_AT_MOST:
        sentences.append(f"{len(totals) - _LOSSES_AT_MOST} more kinds of loss, see `stashtrace info`")
    return lost, tuple(sentences)


def _own_cost(trace: Trace) -> float:
    """CPU share of the tracing: its threads as the kernel counts them, its probes as they time themselves, its hooks
    by the number of their records."""
    used = sum(_last(trace, "process_user_ns_total").values()) + sum(_last(trace, "process_system_ns_total").values())
    if used <= 0:
        return -1.0
    tracks = trace.tracks
    tracers = tracks.take((tracks["kind_code"] == TrackKind.THREAD) & (tracks["role_code"] == ThreadRole.TRACER))
    owned = set(zip(tracers["process_id"].tolist(), tracers["native_id"].tolist(), strict=True))
    threads = sum(ns for key, ns in _last(trace, "thread_run_ns_total").items() if key in owned)
    spans = trace.spans.take(trace.spans["kind_code"] == SpanKind.PROBE)
    probes = int((spans["end_ns"] - spans["begin_ns"]).sum())
    hooks = (len(trace.io) + len(trace.waits)) * HOOK_COST_NS
    return (threads + probes + hooks) / used


def _steal(trace: Trace) -> tuple[float, str]:
    """Largest share of its CPU time that a host lost to its hypervisor, and the host."""
    parts = ("user", "system", "idle", "iowait", "steal")
    grown = {part: _growth(trace, f"host_{part}_ns_total") for part in parts}
    worst, where = 0.0, ""
    hosts = dict(zip(trace.processes["process_id"].tolist(), trace.processes["host_code"].tolist(), strict=True))
    for key, stolen in grown["steal"].items():
        whole = sum(grown[part].get(key, 0.0) for part in parts)
        if whole > 0 and stolen / whole > worst:
            worst, where = stolen / whole, trace.text(hosts[key[0]])
    return worst, where


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
    facts = {
        trace.text(row["key_code"]): trace.text(row["value_code"])
        for row in trace.metadata.rows()
        if row["process_id"] == -1
    }
    code = facts.get("exit_code", "0")
    if facts.get("signal", "0") not in ("", "0", "None"):
        return f"the job was ended by signal {facts['signal']}: the last step of each rank is not counted"
    return f"the job ended with exit code {code}" if code not in ("", "0", "None") else ""


def _clocks(trace: Trace) -> str:
    alignment = trace.alignment
    if not len(alignment):
        return "not aligned"
    error = duration_text(int(alignment["error_ns"].max()))
    return f"{'one host' if len(alignment) == 1 else f'{len(alignment)} hosts'}, ±{error}"
