"""Energy of the devices of a run by kind of time, from NVML's samples.

NVML's energy counter says how much there was, its power samples when: each sample counts for the kind of time that the
rank's step thread was in at that moment. Kinds shorter than the distance of the samples are right on average only.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.analysis.devices.device_identity import counted_gpu
from stashtrace.analysis.intervals import Int64
from stashtrace.analysis.stalls.budget import coded_intervals
from stashtrace.errors import MissingDataError
from stashtrace.lab.history.run_files import RunRows
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.stall_kinds import KIND_NAMES
from stashtrace.schema.trace import Trace

#: Name of the energy outside of all steps.
OUTSIDE = "outside"
_ENERGY, _POWER = "gpu_energy_joules_total.", "gpu_power_watts."


def add_energy(out: RunRows, trace: Trace) -> None:
    """Append the energy of each rank's devices by kind of time; nothing where no device was sampled."""
    series = _series(trace)
    owners: dict[str, list[int]] = {}
    for device in trace.devices.rows():
        uuid = counted_gpu(trace, device)
        if device["rank"] >= 0 and device["rank"] not in owners.setdefault(uuid, []):
            owners[uuid].append(device["rank"])
    kinds = _kinds_by_rank(trace) if owners else {}
    totals: dict[tuple[int, str], float] = {}
    for uuid, ranks in owners.items():
        joules, moments, watts = _of_device(series, uuid)
        if joules <= 0:
            continue
        for rank in ranks:  # ranks that share a device share its energy
            for name, part in _shares(moments, watts, kinds.get(rank)).items():
                totals[rank, name] = totals.get((rank, name), 0.0) + joules * part / len(ranks)
    for (rank, name), joules in sorted(totals.items()):
        out.add("energy", kind=name, rank=rank, energy_mj=round(joules * 1e3))


def _series(trace: Trace) -> dict[str, tuple[Int64, np.ndarray]]:
    """Return moments and values of the counters of energy and power, by the name of their track."""
    names = {
        int(track): name
        for track, code in zip(trace.tracks["track_id"].tolist(), trace.tracks["name_code"].tolist(), strict=True)
        if (name := trace.text(code)).startswith((_ENERGY, _POWER))
    }
    counters = trace.counters
    found: dict[str, tuple[Int64, np.ndarray]] = {}
    for track, rows in GroupBy(counters["track_id"]).items():
        if track in names:
            rows = rows[np.argsort(counters["ts_ns"][rows], kind="stable")]
            found[names[track]] = counters["ts_ns"][rows], counters["value"][rows]
    return found


def _of_device(series: dict[str, tuple[Int64, np.ndarray]], uuid: str) -> tuple[float, Int64, np.ndarray]:
    """Return the energy of a device, and its samples of power; the energy is that of the power where nothing counts."""
    nothing = np.empty(0, dtype=np.int64), np.empty(0)
    moments, watts = series.get(_POWER + uuid, nothing)
    _, counted = series.get(_ENERGY + uuid, nothing)
    joules = float(counted[-1] - counted[0]) if len(counted) > 1 else 0.0
    if joules <= 0 and len(moments) > 1:
        joules = float((np.diff(moments) / 1e9 * (watts[1:] + watts[:-1]) / 2).sum())
    return joules, moments, watts


def _kinds_by_rank(trace: Trace) -> dict[int, tuple[Int64, Int64, Int64]]:
    """Return begin, end and kind of the intervals of each rank; those outside of steps have kind -1."""
    try:
        columns = coded_intervals(trace)
    except MissingDataError:
        return {}
    kind = np.where(columns["step"] >= 0, columns["kind"], -1)
    return {
        int(rank): (columns["begin_ns"][rows], columns["end_ns"][rows], kind[rows])
        for rank, rows in GroupBy(columns["rank"]).items()
    }


def _shares(moments: Int64, watts: np.ndarray, intervals: tuple[Int64, Int64, Int64] | None) -> dict[str, float]:
    """Return the part of the energy in each kind of time; all of it outside where nothing says when it was used."""
    if intervals is None or len(moments) < 2 or watts.sum() <= 0:
        return {OUTSIDE: 1.0}
    begin, end, kind = intervals
    weight = watts * np.gradient(moments.astype(np.float64))
    at = np.maximum(np.searchsorted(begin, moments, side="right") - 1, 0)
    inside = (moments >= begin[at]) & (moments < end[at])
    code = np.where(inside, kind[at], -1)
    names = {int(one): name for one, name in zip(StallKind, KIND_NAMES, strict=True)} | {-1: OUTSIDE}
    whole = float(weight.sum())
    return {names[one]: float(weight[code == one].sum()) / whole for one in np.unique(code).tolist()}
