"""Device work of a Kineto file, and the host calls that launched it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from stashtrace.importers.import_context import Int64
from stashtrace.importers.kineto.events import EventRows, FileRows
from stashtrace.schema.kinds import CopyDirection, DeviceCall, DeviceWork, Severity, StreamFlag

_WORK = {
    "kernels": DeviceWork.KERNEL,
    "talks": DeviceWork.COMMUNICATION,
    "copies": DeviceWork.COPY,
    "memsets": DeviceWork.MEMSET,
}
_DIRECTIONS = (
    ("htod", CopyDirection.HOST_TO_DEVICE),
    ("dtoh", CopyDirection.DEVICE_TO_HOST),
    ("dtod", CopyDirection.DEVICE_TO_DEVICE),
    ("ptop", CopyDirection.PEER),
    ("htoh", CopyDirection.HOST_TO_HOST),
    ("hosttodevice", CopyDirection.HOST_TO_DEVICE),
    ("devicetohost", CopyDirection.DEVICE_TO_HOST),
    ("devicetodevice", CopyDirection.DEVICE_TO_DEVICE),
    ("peer", CopyDirection.PEER),
)
#: Calls that block or allocate, by the beginning of their names after cuda, cu or hip; the first that fits decides.
_CALL_FAMILIES = {
    DeviceCall.STREAM_SYNCHRONIZE: "streamsynchronize",
    DeviceCall.DEVICE_SYNCHRONIZE: "devicesynchronize ctxsynchronize",
    DeviceCall.EVENT_SYNCHRONIZE: "eventsynchronize",
    DeviceCall.ALLOCATE_HOST: "mallochost hostalloc hostmalloc memallochost memhostalloc hostregister",
    DeviceCall.ALLOCATE: "malloc memalloc",
    DeviceCall.FREE: "hostunregister hostfree free memfree",
    DeviceCall.MAP_MEMORY: "memcreate memmap memsetaccess",
    DeviceCall.UNMAP_MEMORY: "memunmap memrelease",
    DeviceCall.MODULE_LOAD: "moduleload libraryload",
}
#: Calls that launch kernels: cudaLaunchKernel, cuLaunchKernelEx, hipModuleLaunchKernel, cudaGraphLaunch.
_LAUNCHES = re.compile(r"launchkernel|launchcooperativekernel|graphlaunch", re.IGNORECASE)
_CALLS = [(mark, call) for call, marks in _CALL_FAMILIES.items() for mark in marks.split()]
#: Copies that return when they are done.
_BLOCKING_COPIES = frozenset(
    ["memcpy", "memcpy2d", "memcpytosymbol", "memcpyfromsymbol", "memcpywithstream", "memcpydtoh", "memcpyhtod"]
)


@dataclass(frozen=True, slots=True)
class Launches:
    """The launching call of each row of device work; -1 where it is not in the file.

    ``row`` is the call's place among the timed ``calls`` of the file, ``thread`` its track.
    """

    row: Int64
    launch_ns: Int64
    return_ns: Int64
    thread: Int64


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """Kernels that communicate, with their launches and stream tracks, and the threads of all launches.

    ``launches_count`` are calls that launch kernels, up to the last one whose work is in the file;
    ``without_work_count`` those of them whose work is not.
    """

    talks: EventRows
    talk_launches: Launches
    talk_streams: Int64
    launch_threads: Int64
    launches_count: int
    without_work_count: int


class _Calls:
    """Runtime and driver calls of a file, by correlation."""

    def __init__(self, rows: FileRows) -> None:
        self.rows = rows.file.rows["calls"].timed()
        self.track = rows.threads(self.rows.tid)
        correlation = self.rows.ints["correlation"]
        self._launch_kernels = rows.file.matching(self.rows.name, _LAUNCHES.search)
        self._order = np.lexsort((self.rows.begin_ns, correlation))
        self._sorted = correlation[self._order]
        self._begin = self.rows.begin_ns[self._order]

    def launches(self, work: EventRows) -> Launches:
        """Return for each row of work the last call with its correlation that began before it."""
        wanted = work.ints["correlation"]
        if not len(self._sorted) or not len(wanted):
            none = np.full(len(wanted), -1, dtype=np.int64)
            return Launches(none, none, none, none)
        first = np.searchsorted(self._sorted, wanted, side="left")
        after = np.where(wanted > 0, np.searchsorted(self._sorted, wanted, side="right"), first)
        hit = after > first
        # Long recordings reuse numbers: an earlier call with the same number may have launched the work.
        low, high = first + 1, after
        while (searched := np.flatnonzero(low < high)).size:
            middle = (low[searched] + high[searched]) // 2
            early = self._begin[middle] <= work.begin_ns[searched]
            low[searched] = np.where(early, middle + 1, low[searched])
            high[searched] = np.where(early, high[searched], middle)
        row = np.where(hit, self._order[np.where(hit, low - 1, 0)], -1)
        return Launches(
            row,
            np.where(hit, self.rows.begin_ns[row], -1),
            np.where(hit, self.rows.end_ns[row], -1),
            np.where(hit, self.track[row], -1),
        )

    def without_work(self, correlations: Int64) -> tuple[int, int]:
        """Return how many calls launched kernels, up to the last one with work in the file, and how many have none."""
        part = self.rows.take(self._launch_kernels)
        has = np.isin(part.ints["correlation"], correlations)
        if not has.any():
            return len(part), len(part)
        early = part.begin_ns <= part.begin_ns[has].max()
        return int(np.count_nonzero(early)), int(np.count_nonzero(early & ~has))


def add_device_work(rows: FileRows) -> DeviceRows:
    """Fill ``kernels``, ``streams``, ``devices`` and ``device_calls``."""
    calls = _Calls(rows)
    seen_streams: dict[int, tuple[int, bool]] = {}
    timeless = orphans = 0
    pageable: list[Int64] = []
    threads: list[Int64] = []
    kept: dict[str, tuple[EventRows, Launches, Int64]] = {}
    for table, code in _WORK.items():
        work = rows.file.rows[table]
        timed = work.begin_ns > 0
        timeless += int(np.count_nonzero(~timed))
        work = work if timed.all() else work.take(timed)
        launches = calls.launches(work)
        device = rows.devices(work)
        stream = rows.streams(work, device)
        kept[table] = (work, launches, stream)
        orphans += int(np.count_nonzero(launches.row < 0))
        threads.append(launches.thread[launches.thread >= 0])
        extra: dict[str, Any] = {}
        if table == "copies":
            extra["copy_code"] = rows.file.coded(work.name, _direction)
            is_pageable = rows.file.matching(work.name, lambda name: "pageable" in name.lower())
            pageable.append(launches.row[is_pageable & (launches.row >= 0)])
        for argument, column in (("bytes", "size_bytes"), ("graph node id", "graph_key")):
            if argument in work.ints:
                extra[column] = np.maximum(work.ints[argument], 0)
        rows.context.add(
            "kernels",
            begin_ns=work.begin_ns,
            end_ns=work.end_ns,
            process_id=np.full(len(work), rows.process_id),
            device_index=device,
            track_id=stream,
            thread_track_id=launches.thread,
            launch_ns=launches.launch_ns,
            return_ns=launches.return_ns,
            name_code=rows.codes(work.name),
            work_code=int(code),
            correlation_id=np.maximum(work.ints["correlation"], 0),
            **extra,
        )
        for track in np.unique(stream).tolist():
            first = int(device[stream == track][0])
            computes = table == "kernels" or seen_streams.get(track, (0, False))[1]
            seen_streams[track] = (first, computes)
    _add_streams(rows, seen_streams)
    _add_devices(rows, {device for device, _ in seen_streams.values()})
    _add_calls(rows, calls, np.concatenate(pageable))
    _report(rows, timeless, orphans)
    talks, launches, stream = kept["talks"]
    counts = calls.without_work(np.concatenate([work.ints["correlation"] for work, _, _ in kept.values()]))
    return DeviceRows(talks, launches, stream, np.concatenate(threads), *counts)


def _add_streams(rows: FileRows, seen: dict[int, tuple[int, bool]]) -> None:
    if not seen:
        return
    tracks = sorted(seen)
    rows.context.add(
        "streams",
        track_id=np.array(tracks, dtype=np.int64),
        process_id=rows.process_id,
        device_index=np.array([seen[t][0] for t in tracks], dtype=np.int64),
        stream_flags=np.array([int(StreamFlag.CARRIES_COMPUTE) * seen[t][1] for t in tracks], dtype=np.int64),
    )


def _add_devices(rows: FileRows, used: set[int]) -> None:
    """Add the devices that did work, described as far as the file describes them."""
    known = {d["id"]: d for d in rows.file.described_devices if isinstance(d, dict) and isinstance(d.get("id"), int)}
    for index in sorted(used):
        device = known.get(index, {})
        rows.context.add_device(
            rows.process_id,
            index,
            f"GPU {index}",
            name=str(device.get("name", "")),
            memory_bytes=device.get("totalGlobalMem"),
            multiprocessors_count=device.get("numSms"),
            capability=(device.get("computeMajor"), device.get("computeMinor")),
        )


def _add_calls(rows: FileRows, calls: _Calls, pageable: Int64) -> None:
    """Add the calls that can leave a device without work; a copy from pageable memory returns when it is done."""
    code = rows.file.coded(calls.rows.name, _call)
    code[pageable] = int(DeviceCall.COPY)
    chosen = np.flatnonzero(code > 0)
    rows.context.add(
        "device_calls",
        begin_ns=calls.rows.begin_ns[chosen],
        end_ns=calls.rows.end_ns[chosen],
        track_id=calls.track[chosen],
        process_id=np.full(len(chosen), rows.process_id),
        call_code=code[chosen],
        name_code=rows.codes(calls.rows.name[chosen]),
    )


def _report(rows: FileRows, timeless: int, orphans: int) -> None:
    if timeless:
        rows.context.lose(
            "kernels_without_times", timeless, process_id=rows.process_id, advice="their time stamp is 0 or missing"
        )
    if orphans:
        rows.context.lose(
            "launches_not_in_file",
            orphans,
            process_id=rows.process_id,
            severity=Severity.INFO,
            advice="work on a device whose launch is not in the file, most of it from before the recording; kept",
        )


def _direction(name: str) -> int:
    lowered = name.lower().replace(" ", "")
    return next((int(code) for mark, code in _DIRECTIONS if mark in lowered), int(CopyDirection.UNKNOWN))


def _call(name: str) -> int:
    lowered = name.lower()
    for prefix in ("cuda", "hip", "cu"):
        if lowered.startswith(prefix):
            verb = lowered.removeprefix(prefix).split("_")[0]
            if verb in _BLOCKING_COPIES:
                return int(DeviceCall.COPY)
            if verb.endswith("async"):
                return 0
            return next((int(code) for mark, code in _CALLS if verb.startswith(mark)), 0)
    return 0
