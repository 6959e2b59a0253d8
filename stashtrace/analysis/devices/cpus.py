"""Use of the CPUs of the hosts while they were sampled, from the counters of ``collectors/proc.py``."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stashtrace.schema.kinds import ProcessRole, TrackKind
from stashtrace.schema.trace import Trace


@dataclass(frozen=True, slots=True)
class HostCpu:
    """Use of the CPUs of a host while they were sampled.

    Attributes
    ----------
    count : float
        Number of CPUs of the host.
    others_count : float
        Mean number of CPUs used by processes outside the job and by other guests of the hypervisor.
    busy_ratio, steal_ratio : float
        Shares of all CPU time: used by any process, and taken by the hypervisor.
    main_ns_per_s : dict of int to float
        CPU time of the process of each rank, all of its threads, per second.
    """

    count: float
    others_count: float
    busy_ratio: float
    steal_ratio: float
    main_ns_per_s: dict[int, float] = field(default_factory=dict)


def host_cpus(trace: Trace, window: tuple[int, int] | None) -> dict[str, HostCpu]:
    """Map each host to its CPUs in the counted steps, by the process of the job that sampled them for longest."""
    parts = ("user", "system", "idle", "iowait", "steal")
    grown = {part: counter_growth(trace, f"host_{part}_ns_total", window) for part in parts}
    processes = trace.processes
    hosts = dict(zip(processes["process_id"].tolist(), processes["host_code"].tolist(), strict=True))
    looks: dict[int, tuple[float, float, dict[str, float]]] = {}
    for key, (_, seconds) in grown["idle"].items():
        values = {part: grown[part].get(key, (0.0, 0.0))[0] for part in parts}
        whole, host = sum(values.values()), hosts[key[0]]
        if seconds > 0 and whole > looks.get(host, (0.0, 0.0, {}))[0]:
            looks[host] = whole, seconds, values
    rates: dict[int, float] = dict.fromkeys(hosts, 0.0)
    for name in ("process_user_ns_total", "process_system_ns_total"):
        for (process, _), (ns, seconds) in counter_growth(trace, name, window).items():
            rates[process] += ns / seconds if seconds > 0 else 0.0
    ranks = processes.take(processes["role_code"] == ProcessRole.RANK)
    cpus = {}
    for host, (whole, seconds, values) in looks.items():
        busy = values["user"] + values["system"] + values["steal"]
        job_per_s = sum(rate for process, rate in rates.items() if hosts[process] == host)
        own = ranks.take(ranks["host_code"] == host)
        main = {r: rates[p] for r, p in zip(own["rank"].tolist(), own["process_id"].tolist(), strict=True)}
        cpus[trace.text(host)] = HostCpu(
            whole / seconds / 1e9,
            max(busy / seconds - job_per_s, 0.0) / 1e9,
            busy / whole,
            values["steal"] / whole,
            main,
        )
    return cpus


def last_values(trace: Trace, name: str) -> dict[tuple[int, int], float]:
    """Map (process, native id) to the last value of a cumulative counter."""
    return {key: float(values[-1]) for key, values in counter_samples(trace, name)}


def counter_growth(
    trace: Trace, name: str, window: tuple[int, int] | None
) -> dict[tuple[int, int], tuple[float, float]]:
    """Map (process, native id) to the growth of a cumulative counter in a window, and the seconds between its samples.

    If fewer than two samples are inside, all samples of the counter are used.
    """
    grown = {}
    for key, at, values in timed_samples(trace, name):
        inside = (at >= window[0]) & (at <= window[1]) if window else np.ones(len(at), dtype=bool)
        rows = np.flatnonzero(inside) if np.count_nonzero(inside) > 1 else np.array([0, len(at) - 1])
        grown[key] = float(values[rows[-1]] - values[rows[0]]), float(at[rows[-1]] - at[rows[0]]) / 1e9
    return grown


def counter_samples(trace: Trace, name: str) -> Iterator[tuple[tuple[int, int], npt.NDArray[np.float64]]]:
    for key, _, values in timed_samples(trace, name):
        yield key, values


def timed_samples(
    trace: Trace, name: str
) -> Iterator[tuple[tuple[int, int], npt.NDArray[np.int64], npt.NDArray[np.float64]]]:
    tracks, counters = trace.tracks, trace.counters
    wanted = tracks.take((tracks["kind_code"] == TrackKind.COUNTER) & (tracks["name_code"] == trace.strings.find(name)))
    for track, process, native in zip(
        *(wanted[c].tolist() for c in ("track_id", "process_id", "native_id")), strict=True
    ):
        mine = counters["track_id"] == track
        if mine.any():
            yield (process, native), counters["ts_ns"][mine], counters["value"][mine]
