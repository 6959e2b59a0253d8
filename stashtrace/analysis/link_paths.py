"""Bytes by path: what counters of devices and hosts moved between samples, and what collectives had to move.

Used by ``links`` alone. A *place* is a device (by UUID) or a host; a *path* is NVLink or PCIe of a device, an RDMA port
or a network interface of a host. Bytes of a path are the mean of both directions, and so are expected bytes.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.matching import group_table, match
from stashtrace.analysis.timeset import NEVER, Int64, int64
from stashtrace.model.kinds import CollectiveOp, TrackKind
from stashtrace.model.trace import Trace

Doubles = npt.NDArray[np.float64]

_DEVICE = re.compile(r"gpu_(nvlink|pcie)_(transmit|receive)_bytes_total\.([^:]+)(?::(\d+))?$")
_HOST = re.compile(r"(rdma|net)_(transmit|receive)_bytes_total\.(.+)$")
_WHOLE = -1


@dataclass(frozen=True, slots=True)
class Place:
    """A device or a host: ``("gpu", UUID)`` or ``("host", name)``."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Samples:
    """One path as one process sampled it: bytes moved so far (mean of both directions) at each edge."""

    edges: Int64
    total: Doubles

    def until(self, ts_ns: Int64) -> Doubles:
        """Bytes moved until then, between samples by interpolation."""
        return np.asarray(np.interp(ts_ns, self.edges, self.total), dtype=np.float64)


@dataclass(slots=True)
class _Readings:
    """Series of one path and process, by direction and link."""

    series: dict[tuple[str, int], tuple[Int64, Doubles]] = field(default_factory=dict)

    def both_ways(self) -> list[tuple[Int64, Doubles]]:
        """Whole-device series where there are any, else those of the links; empty if a direction is missing."""
        found: list[tuple[Int64, Doubles]] = []
        for way in ("transmit", "receive"):
            of_way = {link: s for (w, link), s in self.series.items() if w == way}
            found.extend([of_way[_WHOLE]] if _WHOLE in of_way else of_way.values())
            if not of_way:
                return []
        return found


def sampled_paths(trace: Trace) -> dict[tuple[Place, str], list[Samples]]:
    """(place, path) -> what each process that sampled it saw."""
    hosts = dict(zip(trace.processes["process_id"].tolist(), trace.processes["host_code"].tolist(), strict=True))
    counters = trace.counters.sort_by("track_id", "ts_ns")
    raw: dict[tuple[Place, int], dict[str, _Readings]] = {}
    for row in trace.tracks.take(trace.tracks["kind_code"] == TrackKind.COUNTER).rows():
        name = trace.text(row["name_code"])
        device, host = _DEVICE.match(name), _HOST.match(name)
        if device:
            path, way, uuid, link = device.groups()
            place, number = Place("gpu", uuid), int(link) if link else _WHOLE
        elif host:
            kind, way, port = host.groups()
            place, path, number = Place("host", trace.text(hosts[row["process_id"]])), f"{kind} {port}", _WHOLE
        else:
            continue
        first, last = np.searchsorted(counters["track_id"], [row["track_id"], row["track_id"] + 1])
        if last - first > 1:
            readings = raw.setdefault((place, row["process_id"]), {}).setdefault(path, _Readings())
            readings.series[way, number] = (counters["ts_ns"][first:last], counters["value"][first:last])
    found: dict[tuple[Place, str], list[Samples]] = {}
    for (place, _), paths in raw.items():
        # A path that moves nothing has one sample a second; the windows are those of the busiest path of the place.
        densest = max((ts for r in paths.values() for ts, _ in r.both_ways()), key=len, default=int64([]))
        for path, readings in paths.items():
            series = readings.both_ways()
            if series:
                begin, end = max(int(ts[0]) for ts, _ in series), min(int(ts[-1]) for ts, _ in series)
                edges = np.unique(densest[(densest >= begin) & (densest <= end)])
                if len(edges) > 1:
                    moved = sum((np.interp(edges, ts, value) - value[0] for ts, value in series), np.zeros(len(edges)))
                    found.setdefault((place, path), []).append(Samples(edges, moved / 2))
    return found


@dataclass(frozen=True, slots=True)
class Expected:
    """Collectives with a known traffic, one entry each.

    Attributes
    ----------
    begin_ns, end_ns
        While bytes could move: from the last rank's entry to the end.
    sent_bytes
        What one rank has to send, and to receive, by the bus-bandwidth factor of the operation.
    group, op
        Group hash and CollectiveOp.
    device, host
        Place number in ``devices`` and ``hosts``; -1 if not known.
    """

    begin_ns: Int64
    end_ns: Int64
    sent_bytes: Doubles
    group: npt.NDArray[np.uint64]
    op: Int64
    device: Int64
    host: Int64
    devices: list[str]
    hosts: list[str]

    def at(self, place: Place) -> npt.NDArray[np.bool_]:
        """Which of them a place took part in."""
        names, column = (self.devices, self.device) if place.kind == "gpu" else (self.hosts, self.host)
        chosen: npt.NDArray[np.bool_] = column == (names.index(place.name) if place.name in names else -2)
        return chosen


def expected_traffic(trace: Trace) -> Expected:
    """What each collective had to move, when and where."""
    table, matched = trace.collectives, match(trace)
    timed = (table["device_begin_ns"] >= 0) & (table["device_end_ns"] >= 0)
    begin = np.where(timed, table["device_begin_ns"],
                     np.where(table["begin_ns"] >= 0, table["begin_ns"], table["call_ns"]))  # fmt: skip
    end = np.where(timed, table["device_end_ns"], matched.end_ns)
    entered = matched.last_enter_ns
    begin = np.where((entered > begin) & (entered < end), entered, begin)
    sizes = {value: len(group.members) for value, group in group_table(trace).items()}
    size = int64([sizes[value] for value in table["group_hash"].tolist()])
    sent = table["message_bytes"] * _factor(trace, size)
    good = (end > begin) & (end < NEVER) & (sent > 0)
    devices, device = _devices(trace)
    names = {row["process_id"]: trace.text(row["host_code"]) for row in trace.processes.rows()}
    hosts = sorted(set(names.values()))
    host = int64([hosts.index(names[p]) for p in table["process_id"].tolist()])
    return Expected(begin[good], end[good], sent[good], table["group_hash"][good], table["op_code"][good], device[good],
                    host[good], devices, hosts)  # fmt: skip


def _factor(trace: Trace, size: Int64) -> Doubles:
    """Bytes that a rank sends (and receives, on average over ranks) per byte of its input; 0 if it cannot be said."""
    table = trace.collectives
    n = np.maximum(size, 1).astype(np.float64)
    ring = (n - 1) / n
    factors = {
        CollectiveOp.ALL_REDUCE: 2 * ring,
        CollectiveOp.ALL_GATHER: n - 1,
        CollectiveOp.REDUCE_SCATTER: ring,
        CollectiveOp.ALL_TO_ALL: ring,
        CollectiveOp.BROADCAST: ring,
        CollectiveOp.REDUCE: ring,
        CollectiveOp.SEND: np.full(len(n), 0.5),
        CollectiveOp.RECEIVE: np.full(len(n), 0.5),
    }
    out = np.zeros(len(n))
    for op, factor in factors.items():
        out = np.where(table["op_code"] == op, factor, out)
    # In-switch reduction: each rank sends its data once and the reduced share of its own, instead of twice around.
    details = trace.collective_details
    algorithms = np.array(
        [trace.text(code).startswith("NVLS") for code in details["algorithm_code"].tolist()], dtype=bool
    )
    in_switch = np.isin(table["collective_key"], details["collective_key"][algorithms])
    return np.where(in_switch & (table["op_code"] == CollectiveOp.ALL_REDUCE), (n + 1) / n, out)


def _devices(trace: Trace) -> tuple[list[str], Int64]:
    """UUIDs, and for each collective which of them it ran on: by its stream, else its process's only device."""
    table, rows = trace.collectives, trace.devices
    uuid_of = {(r["process_id"], r["device_index"]): trace.text(r["uuid_code"]) for r in rows.rows()}
    owned: dict[int, set[str]] = {}
    for (process, _), uuid in uuid_of.items():
        owned.setdefault(process, set()).add(uuid)
    for track in trace.tracks.take(trace.tracks["kind_code"] == TrackKind.COUNTER).rows():
        # Without the cuda room the sampled devices tell; a process samples only what it uses.
        found = _DEVICE.match(trace.text(track["name_code"]))
        if found and not len(rows):
            owned.setdefault(track["process_id"], set()).add(found.group(3))
    stream = {r["track_id"]: uuid_of.get((r["process_id"], r["device_index"]), "") for r in trace.streams.rows()}
    only = {process: next(iter(names)) for process, names in owned.items() if len(names) == 1}
    devices = sorted(set(uuid_of.values()) | {name for names in owned.values() for name in names})
    place = {name: number for number, name in enumerate(devices)}
    pairs = zip(table["process_id"].tolist(), table["stream_track_id"].tolist(), strict=True)
    return devices, int64([place.get(stream.get(s, "") or only.get(p, ""), -1) for p, s in pairs])


def moved_until(ts_ns: Int64, begin_ns: Int64, end_ns: Int64, amount: Doubles) -> Doubles:
    """Sum of amounts, each spread evenly over its interval, until each time; times ascend."""
    if len(begin_ns) == 0:
        return np.zeros(len(ts_ns))
    rate = amount / (end_ns - begin_ns)
    turns = np.concatenate([begin_ns, end_ns])
    change = np.concatenate([rate, -rate])
    order = np.argsort(turns, kind="stable")
    turns, running = turns[order], np.cumsum(change[order])
    total = np.concatenate([[0.0], np.cumsum(running[:-1] * np.diff(turns))])
    return np.asarray(np.interp(ts_ns, turns, total), dtype=np.float64)
