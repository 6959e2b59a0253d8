"""Sampled quantities of one rank as counter tracks.

Cumulative samples (names that end in `_total`) become rates, because a line that only rises shows nothing.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stashtrace import _native
from stashtrace.analysis.devices.launches import first_of_each, waiting
from stashtrace.schema.kinds import TrackKind
from stashtrace.timeline.devices import Groups, host_lead
from stashtrace.timeline.host import Order
from stashtrace.timeline.rows import RankRows
from stashtrace.timeline.tracks import Doubles, Ints, Line, TrackTree

#: Counters worth a line, in this order: name (before any ``.interface``) -> title. User counters follow by name.
_SHOWN = {
    "process_user_ns_total": "CPU user",
    "process_system_ns_total": "CPU system",
    "thread_runqueue_ns_total": "waits for a CPU",
    "process_read_bytes_total": "disk read",
    "process_write_bytes_total": "disk write",
    "net_receive_bytes_total": "net in",
    "net_transmit_bytes_total": "net out",
    "rdma_receive_bytes_total": "RDMA in",
    "rdma_transmit_bytes_total": "RDMA out",
    "host_tcp_retransmits_count_total": "host TCP retransmits",
    "host_psi_cpu_some_ns_total": "host pressure CPU",
    "host_psi_io_some_ns_total": "host pressure I/O",
    "host_psi_memory_some_ns_total": "host pressure memory",
    "host_iowait_ns_total": "host I/O wait",
    "host_steal_ns_total": "host steal",
    "process_major_faults_count_total": "major faults",
    "process_resident_bytes": "resident memory",
    "host_page_cache_bytes": "host page cache",
}
_PLACE = {name: place for place, name in enumerate(_SHOWN)}
_OURS = ("process_", "thread_", "host_", "net_", "rdma_", "nvml_")
#: Unit of a cumulative sample -> unit of its rate, and what a step of one in a nanosecond is in it.
_RATES = {"ns": ("%", 100.0), "bytes": ("B/s", 1e9), "count": ("/s", 1e9), "joules": ("W", 1e9)}
#: Unit of any other sample -> unit and factor of what is shown.
_VALUES = {
    "ns": ("ms", 1e-6),
    "bytes": ("B", 1.0),
    "count": ("", 1.0),
    "ratio": ("%", 100.0),
    "watts": ("W", 1.0),
    "hz": ("Hz", 1.0),
    "celsius": ("°C", 1.0),
}
#: Names of what is sampled from a device, which is named after the dot.
_DEVICE = "gpu_"
#: Below the streams and communicators of a device.
_DEVICE_ORDER = 5000


def counter_layer(
    rows: RankRows,
    tree: TrackTree,
    encoder: _native.perfetto.Encoder,
    root: int,
    groups: Groups,
    sequence_id: int,
) -> int:
    """Write the counters of a rank on a sequence of their own, those of a device below it; how many values."""
    below = {
        rows.trace.text(row["uuid_code"]): groups[row["process_id"], row["device_index"]]
        for row in rows.table("devices").rows()
    }
    everything = sorted(_readings(rows), key=lambda each: each[0])
    found = []
    for order, reading_ in enumerate(everything):
        _, title, unit, ts_ns, values = reading_
        words, _, uuid = title.partition(" · ")
        uuid, _, link = uuid.partition(":")
        if uuid not in below:
            found.append(reading_)
            continue
        line = Line(f"{words} · link {link}" if link else words, _DEVICE_ORDER + order)
        encoder.counter(sequence_id, tree.counter(below[uuid], line, unit), ts_ns, values)
    for (process, device), group in groups.items():
        ts_ns, values = host_lead(rows, process, device)
        if len(ts_ns):
            line = Line("host lead", _DEVICE_ORDER, "How long before the device reached an event the host recorded it")
            encoder.counter(sequence_id, tree.counter(group, line, "ms"), ts_ns, values * 1e-6)
            everything.append(((0, 0, ""), "", "", ts_ns, values))
        for place, (title, unit, about, ts_ns, values) in enumerate(device_queues(rows, process, device), 1):
            line = Line(title, _DEVICE_ORDER + place, about)
            encoder.counter(sequence_id, tree.counter(group, line, unit), ts_ns, values)
            everything.append(((0, 0, ""), "", "", ts_ns, values))
    if not found:
        return sum(len(each[3]) for each in everything)
    group = tree.group(
        root,
        Line(
            "counters",
            Order.COUNTERS,
            "Samples of /proc. A rate holds until the next sample; lines that stay at 0 are left out. A wait for a CPU "
            "counts when it ends, so one longer than a period shows as more than 100 %.",
        ),
    )
    for order, (_, title, unit, ts_ns, values) in enumerate(found):
        encoder.counter(sequence_id, tree.counter(group, Line(title, order), unit), ts_ns, values)
    return sum(len(each[3]) for each in everything)


def _readings(rows: RankRows) -> Iterator[tuple[tuple[int, int, str], str, str, Ints, Doubles]]:
    """(sort key, title, unit, times, values) of each counter that is worth a line."""
    tracks = rows.table("tracks")
    tracks = tracks.take(tracks["kind_code"] == TrackKind.COUNTER)
    counters = rows.table("counters").sort_by("track_id", "ts_ns")
    first = np.searchsorted(counters["track_id"], tracks["track_id"])
    last = np.searchsorted(counters["track_id"], tracks["track_id"], side="right")
    worker_of = {p["process_id"]: p["worker_id"] for p in rows.processes.rows()}
    main_threads = {(t.process_id, t.native_id): t.label for t in rows.threads.values() if t.is_main}
    for row, begin, end in zip(tracks.rows(), first.tolist(), last.tolist(), strict=True):
        full_name = rows.trace.text(row["name_code"])
        name, _, interface = full_name.partition(".")
        if name.startswith(_DEVICE) and worker_of[row["process_id"]] < 0:
            kind = name.removeprefix(_DEVICE).removesuffix("_total")
            unit, ts_ns, values = reading(
                name, rows.trace.text(row["unit_code"]), counters["ts_ns"][begin:end], counters["value"][begin:end]
            )
            if len(ts_ns) and (values != 0).any():
                yield (len(_PLACE), -1, full_name), f"{kind.replace('_', ' ')} · {interface}", unit, ts_ns, values
            continue
        worker = worker_of[row["process_id"]]
        whose = f"worker {worker}" if worker >= 0 else ""
        if name.startswith(_OURS):
            if name not in _SHOWN or (worker >= 0 and name.startswith(("host_", "net_", "rdma_"))):
                continue
            if name.startswith("thread_"):
                whose = main_threads.get((row["process_id"], row["native_id"]), "")
                if not whose:
                    continue
            title = " ".join(part for part in (_SHOWN[name], interface) if part)
        else:
            name, title = full_name, full_name.removesuffix("_total").replace("_", " ")
        unit, ts_ns, values = reading(
            name, rows.trace.text(row["unit_code"]), counters["ts_ns"][begin:end], counters["value"][begin:end]
        )
        if len(ts_ns) and (values != 0).any():
            yield (
                (_PLACE.get(name, len(_PLACE)), worker, title),
                f"{title} · {whose}" if whose else title,
                unit,
                ts_ns,
                values,
            )


def reading(name: str, unit: str, ts_ns: Ints, value: Doubles) -> tuple[str, Ints, Doubles]:
    """Unit, times and values that a person can read: rates of what is cumulative. Viewers add the K, M and G."""
    if not name.endswith("_total"):
        shown, factor = _VALUES.get(unit, (unit, 1.0))
        return shown, ts_ns, value * factor
    step = np.maximum(np.diff(ts_ns), 1)
    shown, factor = _RATES.get(unit, (f"{unit}/s", 1e9))
    return shown, ts_ns[:-1], np.maximum(np.diff(value), 0) / step * factor


# Counter tracks of a device that are counted from its work: launches that wait, bytes of collectives under way.
#
#

#: More moments than this are thinned: of each stretch the largest value stays.
_MOMENTS_AT_MOST = 200_000

#: (title, unit, description, times, values)
Series = tuple[str, str, str, Ints, Doubles]


def device_queues(rows: RankRows, process: int, device: int) -> Iterator[Series]:
    """What waited for one device, and what it moved between ranks."""
    kernels = rows.table("kernels")
    mine = (kernels["process_id"] == process) & (kernels["device_index"] == device)
    known = np.flatnonzero(mine & (kernels["launch_ns"] >= 0))
    if len(known):
        known = known[np.argsort(kernels["begin_ns"][known], kind="stable")]
        launch, begin = kernels["launch_ns"][known], kernels["begin_ns"][known]
        first = first_of_each(launch)
        moments, depth = _thinned(*waiting(launch[first], begin[first]))
        about = "Launches whose work had not begun. At 0 the device waits for the host; 1,024 block the host."
        yield "launches waiting", "", about, moments, depth
    bytes_moved = _bytes_under_way(rows, process, device)
    if bytes_moved is not None:
        about = "Payload of the collectives that were called and had not ended on the device"
        yield "bytes under way", "B", about, *_thinned(*bytes_moved)


def _bytes_under_way(rows: RankRows, process: int, device: int) -> tuple[Ints, Ints] | None:
    table, streams = rows.table("collectives"), rows.table("streams")
    here = streams["track_id"][(streams["process_id"] == process) & (streams["device_index"] == device)]
    mine = (table["process_id"] == process) & np.isin(table["stream_track_id"], here)
    chosen = np.flatnonzero(mine & (table["device_end_ns"] >= 0) & (table["message_bytes"] > 0))
    if not len(chosen):
        return None
    call, end, size = (table[c][chosen] for c in ("call_ns", "device_end_ns", "message_bytes"))
    at = np.concatenate([call, np.maximum(end, call)])
    change = np.concatenate([size, -size])
    order = np.argsort(at, kind="stable")
    at, total = at[order], np.cumsum(change[order])
    last = np.append(at[1:] != at[:-1], True)
    return at[last], total[last]


def _thinned(moments: Ints, values: Ints) -> tuple[Ints, Doubles]:
    every = -(-len(moments) // _MOMENTS_AT_MOST)
    if every > 1:
        starts = np.arange(0, len(moments), every)
        moments, values = moments[starts], np.maximum.reduceat(values, starts)
    return moments, values.astype(np.float64)
