"""What happened beside a step: on its rank, on its host, and on its device.

Each of them is a figure of all steps that are compared, so that a reader sees what was more than usual in one of them.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.devices.device_identity import counted_gpu
from stashtrace.analysis.intervals import Int64, TimeSet
from stashtrace.analysis.stalls.sampled_cpus import timed_samples
from stashtrace.analysis.steps.training_loop import QUIET_KINDS
from stashtrace.schema.groupby import RowsBy
from stashtrace.schema.kinds import BatchPhase, TrackKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

Floats = npt.NDArray[np.float64]

_SM_CLOCK = "sm_clock_hz"
_DEVICE = re.compile(rf"gpu_{_SM_CLOCK}\.(.+)")


class Beside:
    """What the hosts, devices and loaders of a run did, by step of a rank."""

    def __init__(self, trace: Trace, steps: Table, hidden: Table) -> None:
        """``steps``: all steps of all ranks. ``hidden``: the analysis of that name."""
        self._trace, self._hidden = trace, hidden
        self._quiet = steps.take(np.isin(steps["kind"], QUIET_KINDS))
        processes = trace.processes
        pairs = zip(processes["process_id"].tolist(), processes["host_code"].tolist(), strict=True)
        self._host_of = dict(pairs)
        self._of_host = {host: _HostUse(trace, self._host_of, host) for host in set(self._host_of.values())}
        self._clocks = _clocks(trace)

    def figures(self, rank: int, steps: Table) -> dict[str, Floats]:
        """Return each figure of the steps of a rank, in their order; -1 where it is unknown.

        ``steps``: rows of ``steps`` of one rank.
        """
        begin, end, process = steps["begin_ns"], steps["end_ns"], int(steps["process_id"][0])
        own = self._hidden.take(self._hidden["rank"] == rank)
        row = np.searchsorted(own["step"], steps["step"])
        row = np.minimum(row, max(len(own) - 1, 0))
        known = own["step"][row] == steps["step"] if len(own) else np.zeros(len(steps), dtype=bool)

        def of_step(name: str) -> Floats:
            values = own[name][row] if len(own) else np.zeros(len(steps))
            return np.where(known, values, -1.0)

        others = self._quiet.take(self._quiet["rank"] != rank)
        use = self._of_host[self._host_of[process]]
        return {
            "gc_ns": of_step("gc_ns"),
            "background_save_ns": of_step("hidden_checkpoint_ns"),
            "cpu_contention_ns": of_step("cpu_contention_ns"),
            "evaluation_ns": TimeSet.of_rows(others).within(begin, end).astype(np.float64),
            "epoch_begin_ns": self._epochs(rank).within(begin, end).astype(np.float64),
            "steal_ratio": of_step("steal_ratio"),
            "other_cpus_count": use.other_cpus(begin, end),
            "io_pressure_ratio": use.growth_ratio("host_psi_io_some_ns_total", begin, end),
            "memory_pressure_ratio": use.growth_ratio("host_psi_memory_some_ns_total", begin, end),
            "sm_clock_hz": self._clock(process, begin, end),
        }

    def _epochs(self, rank: int) -> TimeSet:
        """Return when a rank's loaders began anew: workers that ended, and waits for first batches."""
        batches = self._trace.batches.take(self._trace.batches["rank"] == rank)
        waits = (batches["phase_code"] == BatchPhase.WAIT) & (batches["batch_index"] <= 0)
        between = batches.take(waits | (batches["phase_code"] == BatchPhase.WORKERS_END))
        return TimeSet.of(between["begin_ns"], between["end_ns"])

    def _clock(self, process: int, begin: Int64, end: Int64) -> Floats:
        """Return the lowest of the mean clocks of the devices of a process in each window."""
        clocks = [
            _mean(*self._clocks[uuid], begin, end) for uuid in _gpus(self._trace, process) if uuid in self._clocks
        ]
        return np.min(clocks, axis=0) if clocks else np.full(len(begin), -1.0)


class _HostUse:
    """Counters of a host, from the process that sampled each of them most often."""

    def __init__(self, trace: Trace, host_of: dict[int, int], host: int) -> None:
        self._trace = trace
        self._processes = {process for process, of in host_of.items() if of == host}
        self._series: dict[str, tuple[Int64, Floats] | None] = {}

    def growth_ratio(self, name: str, begin: Int64, end: Int64) -> Floats:
        """Return by how much a counter of time grows, as a part of the length of each window."""
        series = self._most_sampled(name)
        if series is None:
            return np.full(len(begin), -1.0)
        return np.where(
            _covered(series[0], begin, end), _growth(*series, begin, end) / np.maximum(end - begin, 1), -1.0
        )

    def other_cpus(self, begin: Int64, end: Int64) -> Floats:
        """Return how many CPUs the processes outside the job use in each window."""
        busy = [self._most_sampled(f"host_{part}_ns_total") for part in ("user", "system")]
        if any(series is None for series in busy):
            return np.full(len(begin), -1.0)
        known = [series for series in busy if series is not None]
        used = np.sum([_growth(*series, begin, end) for series in known], axis=0)
        for name in ("process_user_ns_total", "process_system_ns_total"):
            for at, values in self._own(name):
                used = used - _growth(at, values, begin, end)
        ratio = np.maximum(used, 0.0) / np.maximum(end - begin, 1)
        return np.where(_covered(known[0][0], begin, end), ratio, -1.0)

    def _own(self, name: str) -> Iterator[tuple[Int64, Floats]]:
        for (process, _), at, values in timed_samples(self._trace, name):
            if process in self._processes:
                yield at, values

    def _most_sampled(self, name: str) -> tuple[Int64, Floats] | None:
        if name not in self._series:
            best = max(self._own(name), key=lambda series: len(series[0]), default=None)
            self._series[name] = best if best is not None and len(best[0]) > 1 else None
        return self._series[name]


def _growth(at: Int64, values: Floats, begin: Int64, end: Int64) -> Floats:
    """Return the growth of a cumulative counter in windows, linear between samples."""
    base = int(at[0])
    late, early = (np.interp(moments - base, at - base, values - values[0]) for moments in (end, begin))
    return np.asarray(late - early)


def _covered(at: Int64, begin: Int64, end: Int64) -> npt.NDArray[np.bool_]:
    """Return which windows lie between samples."""
    return np.asarray((begin >= at[0]) & (end <= at[-1]))


def _mean(at: Int64, values: Floats, begin: Int64, end: Int64) -> Floats:
    """Return the mean of a quantity in windows, linear between samples; -1 outside of them."""
    base = int(at[0])
    whole = np.concatenate([[0.0], np.cumsum(np.diff(at - base) * (values[1:] + values[:-1]) / 2)])
    mean = _growth(at, whole, begin, end) / np.maximum(end - begin, 1)
    return np.where(_covered(at, begin, end), mean, -1.0)


def _clocks(trace: Trace) -> dict[str, tuple[Int64, Floats]]:
    """Return the samples of the clock of each GPU."""
    tracks, by_track = trace.tracks, RowsBy(trace.counters["track_id"])
    found = {}
    for row in tracks.take(tracks["kind_code"] == TrackKind.COUNTER).rows():
        device = _DEVICE.fullmatch(trace.text(row["name_code"]))
        rows = by_track.rows(row["track_id"])
        if device and len(rows) > 1:
            found[device[1]] = trace.counters["ts_ns"][rows], trace.counters["value"][rows]
    return found


def _gpus(trace: Trace, process: int) -> Iterable[str]:
    return {counted_gpu(trace, row) for row in trace.devices.rows() if row["process_id"] == process}
