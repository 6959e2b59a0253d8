"""Use of the CPUs of the hosts while they were sampled, from the counters of ``collectors/proc.py``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stashtrace.analysis.intervals import Floats, Int64
from stashtrace.schema.groupby import RowsBy
from stashtrace.schema.kinds import TrackKind
from stashtrace.schema.trace import Trace

_PARTS = ("user", "system", "idle", "iowait", "steal")


@dataclass(frozen=True, slots=True)
class HostCpu:
    """Use of the CPUs of a host while they were sampled."""

    #: Number of CPUs of the host.
    count: float
    #: Mean number of CPUs used by processes outside the job and by other guests of the hypervisor.
    others_count: float
    #: Shares of all CPU time: used by any process, and taken by the hypervisor.
    busy_ratio: float
    steal_ratio: float


def host_cpus(trace: Trace, window: tuple[int, int] | None) -> dict[str, HostCpu]:
    """Map each host to its CPUs in the counted steps, by the process of the job that sampled them for longest."""
    hosts = trace.processes.lookup("process_id", "host_code")
    grown = {part: dict(_grown_by_series(trace, f"host_{part}_ns_total", window)) for part in _PARTS}
    looks: dict[int, tuple[float, tuple[int, int], dict[str, float]]] = {}
    for key, (_, span) in grown["idle"].items():
        values = {part: grown[part].get(key, (0.0, span))[0] for part in _PARTS}
        whole, host = sum(values.values()), hosts[key[0]]
        if span[1] > span[0] and whole > looks.get(host, (0.0, span, {}))[0]:
            looks[host] = whole, span, values
    cpus = {}
    for host, (whole, span, values) in looks.items():
        seconds = (span[1] - span[0]) / 1e9
        busy = values["user"] + values["system"] + values["steal"]
        of_job = sum(ns / seconds for process, ns in _cpu_ns(trace, span).items() if hosts[process] == host)
        cpus[trace.text(host)] = HostCpu(
            whole / seconds / 1e9, max(busy / seconds - of_job, 0.0) / 1e9, busy / whole, values["steal"] / whole
        )
    return cpus


def runqueue_of_ranks(trace: Trace, window: tuple[int, int]) -> dict[int, float]:
    """Map each rank to the time for which its threads and those of its workers could run but had no CPU, ns.

    Threads that wait at the same time count each. A rank of which no thread was sampled is left out.
    """
    rank_of = trace.processes.lookup("process_id", "rank")
    waited: dict[int, float] = {}
    for (process, _), ns in runqueue_of_threads(trace, window):
        rank = rank_of.get(process, -1)
        if rank >= 0:
            waited[rank] = waited.get(rank, 0.0) + ns
    return waited


def runqueue_of_threads(trace: Trace, window: tuple[int, int]) -> Iterator[tuple[tuple[int, int], float]]:
    """Give each sampled thread, as process and thread id, with the time for which it could run but had no CPU, ns."""
    return _of_threads(trace, "thread_runqueue_ns_total", window)


def thread_demand(trace: Trace, window: tuple[int, int]) -> dict[tuple[int, int], float]:
    """Map each thread, by process and thread id, to the part of a window in which it ran or waited for a CPU."""
    wanted: dict[tuple[int, int], float] = {}
    for name in ("thread_run_ns_total", "thread_runqueue_ns_total"):
        for key, ns in _of_threads(trace, name, window):
            wanted[key] = wanted.get(key, 0.0) + ns / max(window[1] - window[0], 1)
    return wanted


def _of_threads(trace: Trace, name: str, window: tuple[int, int]) -> Iterator[tuple[tuple[int, int], float]]:
    """Give each thread with the growth of one of its counters in a window, ns."""
    for key, at, values in timed_samples(trace, name):
        # A thread that began inside the window cannot have used, or waited for, more than since the window began.
        before = max(float(values[0]) - max(float(at[0]) - window[0], 0.0), 0.0)
        yield key, _growth(at, values, window, before)


def _cpu_ns(trace: Trace, span: tuple[int, int]) -> dict[int, float]:
    """Map each process to the CPU time that it used in a span, all of it where the process began inside."""
    begins = trace.processes.lookup("process_id", "begin_ns")
    used: dict[int, float] = {}
    for name in ("process_user_ns_total", "process_system_ns_total"):
        for (process, _), at, values in timed_samples(trace, name):
            before = 0.0 if begins.get(process, -1) >= span[0] else float(values[0])
            used[process] = used.get(process, 0.0) + _growth(at, values, span, before)
    return used


def _growth(at: Int64, values: Floats, span: tuple[int, int], before: float) -> float:
    """Growth of a cumulative counter in a span, which was ``before`` until its first sample; linear between samples."""
    base = int(at[0])
    early, late = np.interp([span[0] - base, span[1] - base], at - base, values, left=before)
    return float(late - early)


def _grown_by_series(
    trace: Trace, name: str, window: tuple[int, int] | None
) -> Iterator[tuple[tuple[int, int], tuple[float, tuple[int, int]]]]:
    """Give each series of a cumulative counter with its growth in a window, and between which samples that is.

    If fewer than two samples are inside, all samples of the counter are used.
    """
    for key, at, values in timed_samples(trace, name):
        inside = (at >= window[0]) & (at <= window[1]) if window else np.ones(len(at), dtype=bool)
        rows = np.flatnonzero(inside) if np.count_nonzero(inside) > 1 else np.array([0, len(at) - 1])
        yield key, (float(values[rows[-1]] - values[rows[0]]), (int(at[rows[0]]), int(at[rows[-1]])))


def last_values(trace: Trace, name: str) -> dict[tuple[int, int], float]:
    """Map (process, native id) to the last value of a cumulative counter."""
    return {key: float(values[-1]) for key, _, values in timed_samples(trace, name)}


class HostCounters:
    """Counters of the hosts, each from the process of a host that sampled it most often."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._host_of: dict[int, int] = trace.processes.lookup("process_id", "host_code")
        self._longest: dict[str, dict[int, tuple[Int64, Floats]]] = {}

    def host_of(self, process_id: int) -> int:
        """Return the code of the host of a process, -1 if it is unknown."""
        return self._host_of.get(process_id, -1)

    def of_host(self, host: int, name: str) -> tuple[Int64, Floats] | None:
        """Return moments and values of a counter; None if no process of the host sampled it twice."""
        if name not in self._longest:
            longest: dict[int, tuple[Int64, Floats]] = {}
            for of, at, values in self.samples(name):
                if len(at) > (len(longest[of][0]) if of in longest else 1):
                    longest[of] = at, values
            self._longest[name] = longest
        return self._longest[name].get(host)

    def samples(self, name: str) -> Iterator[tuple[int, Int64, Floats]]:
        """Give the samples of a counter by each process, behind the host of that."""
        for (process, _), at, values in timed_samples(self._trace, name):
            yield self.host_of(process), at, values


def growth_between(at: Int64, values: Floats | Int64, begin: Int64, end: Int64) -> Floats:
    """Return the growth of a cumulative value over windows, linear between its readings."""
    base = int(at[0])  # relative to the first reading, so floats hold durations
    late, early = (np.interp(moments - base, at - base, values - values[0]) for moments in (end, begin))
    return np.asarray(late - early)


def timed_samples(trace: Trace, name: str) -> Iterator[tuple[tuple[int, int], Int64, Floats]]:
    tracks, counters = trace.tracks, trace.counters
    wanted = tracks.take((tracks["kind_code"] == TrackKind.COUNTER) & (tracks["name_code"] == trace.strings.find(name)))
    by_track = RowsBy(counters["track_id"])
    for track, process, native in zip(
        *(wanted[c].tolist() for c in ("track_id", "process_id", "native_id")), strict=True
    ):
        mine = by_track.rows(track)
        if len(mine):
            yield (process, native), counters["ts_ns"][mine], counters["value"][mine]
