"""Device work of an Nsight Systems export, and the calls that launched it.

RUNTIME   |launch|        |synchronize ..........|      device_calls; launch_ns and return_ns by correlationId
stream        #### kernel ####  ~~ copy ~~              kernels
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stashtrace.importers.import_context import ImportContext, Int64, per_distinct
from stashtrace.importers.nsys.database import Database, Processes
from stashtrace.schema.kernel_names import communicates
from stashtrace.schema.kinds import CopyDirection, DeviceCall, DeviceWork, StreamFlag

KERNELS, COPIES, SETS, GRAPHS, WAITS, CALLS = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
)
_WORK = {"start": 0, "end": 0, "deviceId": -1, "contextId": 0, "streamId": 0, "correlationId": 0, "globalPid": 0}
#: CUPTI's kinds of copies -> (direction, name as the profilers write it).
_COPIES = {
    1: (CopyDirection.HOST_TO_DEVICE, "HtoD"),
    2: (CopyDirection.DEVICE_TO_HOST, "DtoH"),
    3: (CopyDirection.HOST_TO_DEVICE, "HtoA"),
    4: (CopyDirection.DEVICE_TO_HOST, "AtoH"),
    5: (CopyDirection.DEVICE_TO_DEVICE, "AtoA"),
    6: (CopyDirection.DEVICE_TO_DEVICE, "AtoD"),
    7: (CopyDirection.DEVICE_TO_DEVICE, "DtoA"),
    8: (CopyDirection.DEVICE_TO_DEVICE, "DtoD"),
    9: (CopyDirection.HOST_TO_HOST, "HtoH"),
    10: (CopyDirection.PEER, "PtoP"),
    11: (CopyDirection.HOST_TO_DEVICE, "unified HtoD"),
    12: (CopyDirection.DEVICE_TO_HOST, "unified DtoH"),
    13: (CopyDirection.PEER, "unified DtoD"),
}
_MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device Static", 6: "Managed Static"}
_SYNCHRONISATIONS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
#: Names of calls, without prefix and version, and their kinds; the first pattern that fits decides.
_CALLS = (
    (re.compile(r"StreamSynchronize$"), DeviceCall.STREAM_SYNCHRONIZE),
    (re.compile(r"(Device|Ctx)Synchronize$"), DeviceCall.DEVICE_SYNCHRONIZE),
    (re.compile(r"EventSynchronize$"), DeviceCall.EVENT_SYNCHRONIZE),
    (re.compile(r"Memcpy(?!.*Async)"), DeviceCall.COPY),
    (re.compile(r"MallocHost|(Mem)?Host(Alloc|Register)|MemAllocHost"), DeviceCall.ALLOCATE_HOST),
    (re.compile(r"(Malloc|MemAlloc)(?!.*Async)"), DeviceCall.ALLOCATE),
    (re.compile(r"(FreeHost|HostUnregister|Free|MemFree|MemFreeHost)(?!.*Async)"), DeviceCall.FREE),
    (re.compile(r"Mem(Create|Map|SetAccess)(?!.*Async)"), DeviceCall.MAP_MEMORY),
    (re.compile(r"Mem(Unmap|Release)"), DeviceCall.UNMAP_MEMORY),
    (re.compile(r"GraphLaunch"), DeviceCall.GRAPH_LAUNCH),
    (re.compile(r"Launch"), DeviceCall.LAUNCH),
    (re.compile(r"(ModuleLoad|LibraryLoad)"), DeviceCall.MODULE_LOAD),
)
#: Suffixes of a function's name: its version, and its kind of default stream.
_VERSION = re.compile(r"(_ptsz|_ptds)?(_v\d+)?(_ptsz|_ptds)?$")
#: Id for no stream or no event: the wait was for a device, or for a stream.
_NO_STREAM = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls into CUDA, sorted by ``key``: process and correlation id."""

    begin: Int64
    end: Int64
    process: Int64
    tid: Int64
    name: Int64
    status: Int64
    key: Int64
    names: Mapping[int, str]

    def launching(self, process: Int64, correlation: Int64) -> Int64:
        """Return the row of the call that launched each piece of work, -1 if it is not in the file."""
        if not len(self.key):
            return np.full(len(process), -1, dtype=np.int64)
        wanted = _key(process, correlation)
        at = np.minimum(np.searchsorted(self.key, wanted), len(self.key) - 1)
        return np.where((self.key[at] == wanted) & (correlation > 0), at, -1)


def _key(process: Int64, correlation: Int64) -> Int64:
    return np.asarray((process << 40) | (correlation & ((1 << 40) - 1)), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Work:
    """Kernels of one file."""

    #: Columns as in the table ``kernels``.
    rows: dict[str, Int64]
    #: Texts of the ids in ``name``.
    names: dict[int, str]
    #: Id of each kernel's name.
    name: Int64
    #: First and last moment of all work of each process, launches included.
    extents: dict[int, tuple[int, int]]


def read_calls(database: Database, processes: Processes) -> Calls:
    """Read the calls of runtime and driver. Of a call recorded twice (with its call chain) the outer one counts."""
    rows = database.integers(CALLS, start=0, end=0, globalTid=0, correlationId=0, nameId=0, returnValue=0)
    process = processes.of(rows["globalTid"])
    key = _key(process, rows["correlationId"])
    order = np.lexsort((-rows["end"], rows["start"], key))
    if len(order):
        numbered = rows["correlationId"][order] > 0
        is_repeated = np.append(False, (key[order][1:] == key[order][:-1]) & numbered[1:])
        order = order[~is_repeated]
    return Calls(
        rows["start"][order] + processes.base_ns,
        np.maximum(rows["end"], rows["start"])[order] + processes.base_ns,
        process[order],
        rows["globalTid"][order] & 0xFFFFFF,
        rows["nameId"][order],
        rows["returnValue"][order],
        key[order],
        database.texts(rows["nameId"]),
    )


def add_calls(calls: Calls, processes: Processes, context: ImportContext) -> None:
    """Fill ``device_calls`` with the calls that block, allocate or launch."""
    code = per_distinct(calls.name, lambda name: _call_code(calls.names.get(name, "")))
    name_code = per_distinct(calls.name, lambda name: context.code(_VERSION.sub("", calls.names.get(name, ""))))
    rows = np.flatnonzero(code > 0)
    context.add(
        "device_calls",
        begin_ns=calls.begin[rows],
        end_ns=calls.end[rows],
        track_id=processes.threads(calls.process[rows], calls.tid[rows]),
        process_id=processes.ids[calls.process[rows]],
        stream_track_id=-1,
        device_index=-1,
        call_code=code[rows],
        name_code=name_code[rows],
        status_code=calls.status[rows],
    )


def _call_code(name: str) -> int:
    plain = re.sub(r"^(cuda|cu)", "", _VERSION.sub("", name))
    return next((int(code) for pattern, code in _CALLS if pattern.match(plain)), 0)


def add_work(database: Database, calls: Calls, processes: Processes, context: ImportContext) -> Work:
    """Fill ``kernels``, ``devices`` and ``streams``; return the kernels."""
    add = _Adder(calls, processes, context)
    rows = database.integers(KERNELS, **_WORK, demangledName=0, shortName=0, graphNodeId=0)
    name = np.where(rows["demangledName"] > 0, rows["demangledName"], rows["shortName"])
    names = database.texts(name)
    is_talk = per_distinct(name, lambda n: communicates(names.get(n, "")))
    work = np.where(is_talk, int(DeviceWork.COMMUNICATION), int(DeviceWork.KERNEL))
    name_code = per_distinct(name, lambda n: context.code(names.get(n, "unknown kernel")))
    kernels = add(rows, name_code, work, graph_key=rows["graphNodeId"])
    add.copies(
        database.integers(
            COPIES, **_WORK, bytes=0, copyKind=0, srcKind=-1, dstKind=-1, srcDeviceId=-1, dstDeviceId=-1, graphNodeId=0
        )
    )
    rows = database.integers(SETS, **_WORK, bytes=0, graphNodeId=0)
    add(rows, context.code("Memset"), int(DeviceWork.MEMSET), size_bytes=rows["bytes"], graph_key=rows["graphNodeId"])
    rows = database.integers(GRAPHS, **_WORK, graphId=0)
    add(rows, context.code("CUDA graph"), int(DeviceWork.GRAPH), graph_key=rows["graphId"])
    add.waits(database.integers(WAITS, **_WORK, syncType=0, eventId=-1))
    add.describe(database)
    return Work(kernels, names, name, add.extents)


class _Adder:
    """Adds rows of ``kernels`` and collects the streams and devices that they ran on."""

    def __init__(self, calls: Calls, processes: Processes, context: ImportContext) -> None:
        self._calls, self._processes, self._context = calls, processes, context
        self.extents: dict[int, tuple[int, int]] = {}
        self._computing: set[int] = set()
        self._streams: dict[int, tuple[int, int, int]] = {}
        #: Device of each process's context.
        self._devices: dict[tuple[int, int], int] = {}

    def __call__(
        self, rows: Mapping[str, Int64], name: Int64 | int, work: Int64 | int, **more: Int64
    ) -> dict[str, Int64]:
        """Add the rows of one table of the export; return them as columns of ``kernels``."""
        process = self._processes.of(rows["globalPid"])
        at = self._calls.launching(process, rows["correlationId"])
        known = at >= 0
        padded = {n: np.append(getattr(self._calls, n), -1)[at] for n in ("begin", "end", "process", "tid")}
        base = self._processes.base_ns
        made: dict[str, Int64] = {
            "begin_ns": rows["start"] + base,
            "end_ns": np.maximum(rows["end"], rows["start"]) + base,
            "process_id": self._processes.ids[process],
            "device_index": rows["deviceId"],
            "track_id": self._tracks(process, rows),
            "thread_track_id": np.full(len(process), -1, dtype=np.int64),
            "launch_ns": np.where(known, padded["begin"], -1),
            "return_ns": np.where(known, padded["end"], -1),
            "name_code": np.broadcast_to(np.asarray(name, dtype=np.int64), process.shape),
            "work_code": np.broadcast_to(np.asarray(work, dtype=np.int64), process.shape),
            "correlation_id": rows["correlationId"],
            **more,
        }
        made["thread_track_id"][known] = self._processes.threads(padded["process"][known], padded["tid"][known])
        if len(process):
            self._context.add("kernels", **made)
            self._extend(process, np.where(known, padded["begin"], made["begin_ns"]), made["end_ns"])
            self._computing.update(np.unique(made["track_id"][made["work_code"] == DeviceWork.KERNEL]).tolist())
        return made

    def _extend(self, process: Int64, begin: Int64, end: Int64) -> None:
        for owner in np.unique(process).tolist():
            chosen = process == owner
            first, last = int(begin[chosen].min()), int(end[chosen].max())
            low, high = self.extents.get(owner, (first, last))
            self.extents[owner] = (min(low, first), max(high, last))

    def copies(self, rows: Mapping[str, Int64]) -> None:
        """Add copies, with their direction, and the kinds of memory in their name."""
        kinds = np.stack([rows["copyKind"], rows["srcKind"], rows["dstKind"]], axis=1)
        distinct, inverse = np.unique(kinds, axis=0, return_inverse=True)
        listed = [_copy_name(*each) for each in distinct.tolist()]
        inverse = inverse.reshape(-1)
        direction = np.array([int(d) for d, _ in listed], dtype=np.int64)[inverse]
        apart = (rows["srcDeviceId"] >= 0) & (rows["dstDeviceId"] >= 0) & (rows["srcDeviceId"] != rows["dstDeviceId"])
        direction = np.where(apart & (direction == CopyDirection.DEVICE_TO_DEVICE), int(CopyDirection.PEER), direction)
        self(
            rows,
            self._context.codes([name for _, name in listed])[inverse],
            int(DeviceWork.COPY),
            copy_code=direction,
            size_bytes=rows["bytes"],
            graph_key=rows["graphNodeId"],
        )

    def waits(self, rows: dict[str, Int64]) -> None:
        """Add waits of host and streams. The export puts all on device 0, and calls waits for streams event waits."""
        owners = self._processes.of(rows["globalPid"])
        pairs = zip(owners.tolist(), rows["contextId"].tolist(), rows["deviceId"].tolist(), strict=True)
        device = np.array([self._devices.get((o, c), d) for o, c, d in pairs], dtype=np.int64)
        kind = np.where((rows["syncType"] == 2) & (rows["eventId"] == _NO_STREAM), 3, rows["syncType"])
        name = per_distinct(kind, lambda k: self._context.code(_SYNCHRONISATIONS.get(k, "Sync")))
        self({**rows, "deviceId": device}, name, int(DeviceWork.SYNCHRONIZATION))

    def _tracks(self, process: Int64, rows: Mapping[str, Int64]) -> Int64:
        """Return the track of the stream of each row. Contexts of one device number their streams apart."""
        key = np.stack([process, rows["deviceId"], rows["contextId"], rows["streamId"] & 0xFFFFFFFF], axis=1)
        distinct, inverse = np.unique(key, axis=0, return_inverse=True)
        tracks = []
        for owner, device, cuda_context, stream in distinct.tolist():
            process_id = int(self._processes.ids[owner])
            name = "no stream" if stream == _NO_STREAM else f"stream {stream}"
            native_id = ((device & 0xFFF) << 48) | ((cuda_context & 0xFFFF) << 32) | stream
            track = self._context.tracks.stream(process_id, native_id, f"{name} · GPU {device}")
            if stream != _NO_STREAM:
                self._streams[track] = (owner, device, stream)
                self._devices.setdefault((owner, cuda_context), device)
            tracks.append(track)
        return np.array(tracks, dtype=np.int64)[inverse.reshape(-1)]

    def describe(self, database: Database) -> None:
        """Fill ``streams``, and ``devices`` as far as the export describes them."""
        described = database.integers("TARGET_INFO_CUDA_STREAM", streamId=0, processId=0, priority=0, flag=0)
        columns = (described[name].tolist() for name in ("processId", "streamId", "priority", "flag"))
        known = {(pid, stream): (priority, flag) for pid, stream, priority, flag in zip(*columns, strict=True)}
        for track, (owner, device, stream) in sorted(self._streams.items()):
            priority, flag = known.get((self._processes.pids[owner], stream), (0, 0))
            flags = StreamFlag.NON_BLOCKING if flag == 2 else StreamFlag.LEGACY if flag == 3 else StreamFlag(0)
            flags |= StreamFlag.CARRIES_COMPUTE if track in self._computing else StreamFlag(0)
            self._context.add(
                "streams",
                track_id=track,
                process_id=int(self._processes.ids[owner]),
                device_index=device,
                stream_flags=int(flags),
                priority_index=priority - (1 << 32) if priority >= 1 << 31 else priority,
            )
        gpus = _gpus(database)
        for owner, device in sorted({(owner, device) for owner, device, _ in self._streams.values()}):
            gpu = gpus.get(device, {})
            process_id = int(self._processes.ids[owner])
            name = str(gpu.get("name") or "")
            title = f"GPU {device} · {name}" if name else f"GPU {device}"
            self._context.add_device(
                process_id,
                device,
                title,
                name=name,
                uuid=str(gpu.get("uuid") or ""),
                bus=str(gpu.get("busLocation") or ""),
                memory_bytes=gpu.get("totalMemory"),
                multiprocessors_count=gpu.get("smCount"),
                capability=(gpu.get("computeMajor"), gpu.get("computeMinor")),
            )


def _gpus(database: Database) -> dict[int, dict[str, Any]]:
    """Return the description of each GPU, by CUDA's ordinal."""
    wanted = ("id", "cuDevice", "name", "uuid", "busLocation", "totalMemory", "smCount", "computeMajor", "computeMinor")
    present = [name for name in wanted if database.has("TARGET_INFO_GPU", name)]
    if "id" not in present:
        return {}
    gpus = {}
    for row in database.small(f"SELECT {', '.join(present)} FROM TARGET_INFO_GPU", "TARGET_INFO_GPU"):
        gpu = dict(zip(present, row, strict=True))
        ordinal = gpu["id"] if gpu.get("cuDevice") is None else gpu["cuDevice"]
        if isinstance(ordinal, int):
            gpus[ordinal] = gpu
    return gpus


def _copy_name(kind: int, source: int, target: int) -> tuple[CopyDirection, str]:
    direction, short = _COPIES.get(kind, (CopyDirection.UNKNOWN, "of unknown kind"))
    memory = f" ({_MEMORY[source]} -> {_MEMORY[target]})" if source in _MEMORY and target in _MEMORY else ""
    return direction, f"Memcpy {short}{memory}"
