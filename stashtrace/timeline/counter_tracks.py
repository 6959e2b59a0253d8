"""Sampled quantities of one rank as counter tracks.

Cumulative samples (names that end in `_total`) become rates, because a line that only rises shows nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stashtrace import _native
from stashtrace.analysis.devices.device_identity import counted_gpu
from stashtrace.analysis.devices.launches import first_of_each, waiting
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import TrackKind
from stashtrace.timeline.device_tracks import Groups, host_lead, on_device
from stashtrace.timeline.rows_by_rank import RankRows
from stashtrace.timeline.tracks import Doubles, Ints, Line, Order, TrackTree

#: Our counters with a line, in this order: name (before any ``.interface``) -> title. Users' counters follow by name.
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
#: Unit of a cumulative sample -> unit of its rate, and the rate of an increase by one in a nanosecond.
_RATES = {"ns": ("%", 100.0), "bytes": ("B/s", 1e9), "count": ("/s", 1e9), "joules": ("W", 1e9)}
#: Unit of any other sample -> unit and factor of the shown value.
_VALUES = {
    "ns": ("ms", 1e-6),
    "bytes": ("B", 1.0),
    "count": ("", 1.0),
    "ratio": ("%", 100.0),
    "watts": ("W", 1.0),
    "hz": ("Hz", 1.0),
    "celsius": ("°C", 1.0),
}
#: Beginning of the names of samples from a device, which is named after the dot.
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
) -> None:
    """Write the counters of a rank on a separate sequence, those of a device below it."""

    def write(parent: int, line: Line, unit: str, ts_ns: Ints, values: Doubles) -> None:
        encoder.counter(sequence_id, tree.counter(parent, line, unit), ts_ns, values)

    below = {
        counted_gpu(rows.trace, row): groups[row["process_id"], row["device_index"]]
        for row in rows.table("devices").rows()
    }
    of_rank = []
    for order, (_, title, unit, ts_ns, values) in enumerate(sorted(_readings(rows), key=lambda row: row[0])):
        words, _, uuid = title.partition(" · ")
        uuid, _, link = uuid.partition(":")
        if uuid in below:
            line = Line(f"{words} · link {link}" if link else words, _DEVICE_ORDER + order)
            write(below[uuid], line, unit, ts_ns, values)
        else:
            of_rank.append((title, unit, ts_ns, values))
    for (process, device), group in groups.items():
        ts_ns, values = host_lead(rows, process, device)
        if len(ts_ns):
            line = Line("host lead", _DEVICE_ORDER, "How long before the device reached an event the host recorded it")
            write(group, line, "ms", ts_ns, values * 1e-6)
        for place, (title, unit, about, ts_ns, values) in enumerate(device_queues(rows, process, device), 1):
            write(group, Line(title, _DEVICE_ORDER + place, about), unit, ts_ns, values)
    if not of_rank:
        return
    group = tree.group(
        root,
        Line(
            "counters",
            Order.COUNTERS,
            "Samples of /proc. A rate holds until the next sample; lines that stay at 0 are left out. A wait for a CPU "
            "counts when it ends, so one longer than a period shows as more than 100 %.",
        ),
    )
    for order, (title, unit, ts_ns, values) in enumerate(of_rank):
        write(group, Line(title, order), unit, ts_ns, values)


def _readings(rows: RankRows) -> Iterator[tuple[tuple[int, int, str], str, str, Ints, Doubles]]:
    """Yield (sort key, title, unit, times, values) of each counter with a line."""
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
        worker = worker_of[row["process_id"]]
        owner = f"worker {worker}" if worker >= 0 else ""
        if name.startswith(_DEVICE) and worker < 0:
            quantity = name.removeprefix(_DEVICE).removesuffix("_total").replace("_", " ")
            title, key = f"{quantity} · {interface}", (len(_PLACE), -1, full_name)
        elif name.startswith(_OURS):
            if name not in _SHOWN or (worker >= 0 and name.startswith(("host_", "net_", "rdma_"))):
                continue
            if name.startswith("thread_"):
                owner = main_threads.get((row["process_id"], row["native_id"]), "")
                if not owner:
                    continue
            title = " ".join(part for part in (_SHOWN[name], interface) if part)
            key = (_PLACE[name], worker, title)
        else:
            name, title = full_name, full_name.removesuffix("_total").replace("_", " ")
            key = (len(_PLACE), worker, title)
        unit, ts_ns, values = reading(
            name, rows.trace.text(row["unit_code"]), counters["ts_ns"][begin:end], counters["value"][begin:end]
        )
        if len(ts_ns) and (values != 0).any():
            yield key, f"{title} · {owner}" if owner else title, unit, ts_ns, values


def reading(name: str, unit: str, ts_ns: Ints, value: Doubles) -> tuple[str, Ints, Doubles]:
    """Return unit, times and values for people: rates of cumulative samples. Viewers add the K, M and G."""
    if not name.endswith("_total"):
        shown, factor = _VALUES.get(unit, (unit, 1.0))
        return shown, ts_ns, value * factor
    step = np.maximum(np.diff(ts_ns), 1)
    shown, factor = _RATES.get(unit, (f"{unit}/s", 1e9))
    return shown, ts_ns[:-1], np.maximum(np.diff(value), 0) / step * factor


# Counter tracks of a device that are derived from its work: launches that wait, bytes of collectives under way.

#: More moments than this are thinned: each stretch keeps its largest value.
_MOMENTS_AT_MOST = 200_000

#: (title, unit, description, times, values)
Series = tuple[str, str, str, Ints, Doubles]


def device_queues(rows: RankRows, process: int, device: int) -> Iterator[Series]:
    """Yield the launches that waited for a device, and the bytes that it moved between ranks."""
    kernels = rows.table("kernels")
    known = np.flatnonzero(on_device(kernels, process, device) & (kernels["launch_ns"] >= 0))
    if len(known):
        known = known[np.argsort(kernels["begin_ns"][known], kind="stable")]
        launch, begin = kernels["launch_ns"][known], kernels["begin_ns"][known]
        first = first_of_each(launch)
        moments, depth = _thin(*waiting(launch[first], begin[first]))
        about = "Launches whose work had not begun. At 0 the device waits for the host; 1,024 block the host."
        yield "launches waiting", "", about, moments, depth
    bytes_moved = _bytes_under_way(rows, process, device)
    if bytes_moved is not None:
        about = "Payload of the collectives that were called and had not ended on the device"
        yield "bytes under way", "B", about, *_thin(*bytes_moved)


def _bytes_under_way(rows: RankRows, process: int, device: int) -> tuple[Ints, Ints] | None:
    table, streams = rows.table("collectives"), rows.table("streams")
    own = streams["track_id"][on_device(streams, process, device)]
    is_own = (table["process_id"] == process) & np.isin(table["stream_track_id"], own)
    chosen = np.flatnonzero(is_own & (table["device_end_ns"] >= 0) & (table["message_bytes"] > 0))
    if not len(chosen):
        return None
    call, end, size = (table[c][chosen] for c in ("call_ns", "device_end_ns", "message_bytes"))
    changes = GroupBy(np.concatenate([call, np.maximum(end, call)]))
    return changes.values, np.cumsum(changes.sum(np.concatenate([size, -size])))


def _thin(moments: Ints, values: Ints) -> tuple[Ints, Doubles]:
    every = -(-len(moments) // _MOMENTS_AT_MOST)
    if every > 1:
        moments, values = moments[::every], GroupBy(np.arange(len(moments)) // every).max(values)
    return moments, values.astype(np.float64)
