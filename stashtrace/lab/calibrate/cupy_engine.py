"""Collectives and copies by CuPy, where there is no torch. cupy is imported by whoever makes an engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stashtrace.lab.calibrate.sweep import LocalEngine
from stashtrace.whole_files import write_whole

_FLOAT_BYTES = 4
_TIMEOUT_S = 60.0
_POLL_S = 0.01


class CupyCollectives(LocalEngine):
    """NCCL through ``cupy.cuda.nccl``, one device per rank.

    ``cupy``: CuPy. ``nccl``: ``cupy.cuda.nccl``. ``rank``, ``ranks``: this process, and how many there are.
    ``rendezvous``: path through which rank 0 hands its unique id to the others.
    """

    timing = "device"

    def __init__(self, cupy: Any, nccl: Any, rank: int, ranks: int, rendezvous: str) -> None:
        self._cupy, self._nccl, self._rank, self._ranks = cupy, nccl, rank, ranks
        cupy.cuda.Device(rank).use()
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._comm = nccl.NcclCommunicator(ranks, _shared_id(nccl, rank, rendezvous), rank)
        self._flag = cupy.zeros(1, dtype="float32")
        self._buffers: dict[tuple[str, int], tuple[Any, Any]] = {}

    def prepare(self, op: str, size_bytes: int) -> None:
        """Allocate buffers of zeros."""
        count = size_bytes // _FLOAT_BYTES
        out = {"all_gather": count * self._ranks, "reduce_scatter": count // self._ranks}.get(op, count)
        self._buffers[op, size_bytes] = (self._zeros(out), self._zeros(count))

    def timed(self, op: str, size_bytes: int) -> tuple[int, int]:
        """Time one collective between two events."""
        out, given = self._buffers[op, size_bytes]
        return 0, _elapsed_ns(self._cupy, self._stream, lambda: self._call(op, out, given))

    def barrier(self) -> None:
        """A tiny all-reduce, waited for: CuPy has no other group than NCCL's."""
        self._call("all_reduce", self._flag, self._flag)
        self._stream.synchronize()

    def agree(self, value: bool) -> bool:
        """Broadcast rank 0's value: it adds that to a flag, the others nothing."""
        self._flag.fill(float(value) if self._rank == 0 else 0.0)
        self._cupy.cuda.get_current_stream().synchronize()
        self.barrier()
        return bool(self._flag.get()[0] > 0.5)

    def close(self) -> None:
        """Leave the communicator."""
        self._comm.destroy()

    def _zeros(self, count: int) -> Any:
        made = self._cupy.zeros(count, dtype="float32")
        self._cupy.cuda.get_current_stream().synchronize()
        return made

    def _call(self, op: str, out: Any, given: Any) -> None:
        comm, kind, stream = self._comm, self._nccl.NCCL_FLOAT32, self._stream.ptr
        source, target = given.data.ptr, out.data.ptr
        if op == "all_reduce":
            comm.allReduce(source, target, given.size, kind, self._nccl.NCCL_SUM, stream)
        elif op == "all_gather":
            comm.allGather(source, target, given.size, kind, stream)
        elif op == "reduce_scatter":
            comm.reduceScatter(source, target, out.size, kind, self._nccl.NCCL_SUM, stream)
        elif op == "broadcast":
            comm.broadcast(source, target, given.size, kind, 0, stream)
        else:
            part = given.size // self._ranks
            self._nccl.groupStart()
            for peer in range(self._ranks):
                shift = peer * part * _FLOAT_BYTES
                comm.send(source + shift, part, kind, peer, stream)
                comm.recv(target + shift, part, kind, peer, stream)
            self._nccl.groupEnd()


class CupyCopies(LocalEngine):
    """Copies between host and devices, timed by events; operations as those of ``TorchCopies``."""

    timing = "device"

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        cupy.cuda.Device(0).use()
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._buffers: dict[tuple[str, int], tuple[Any, Any, Any]] = {}

    def prepare(self, op: str, size_bytes: int) -> None:
        """Allocate target and source; keep their pointers and what keeps them alive."""
        target_index = int(op.rsplit("_", 1)[1]) if op.startswith("p2p") else 0
        source = self._host(op, size_bytes) if op.startswith("h2d") else self._device(0, size_bytes)
        target = self._host(op, size_bytes) if op.startswith("d2h") else self._device(target_index, size_bytes)
        self._cupy.cuda.runtime.deviceSynchronize()
        self._buffers[op, size_bytes] = (_pointer(target), _pointer(source), (target, source))

    def timed(self, op: str, size_bytes: int) -> tuple[int, int]:
        """Time one copy between two events; the driver finds the direction from the addresses."""
        target, source, _ = self._buffers[op, size_bytes]
        copy, stream = self._cupy.cuda.runtime.memcpyAsync, self._stream
        kind = self._cupy.cuda.runtime.memcpyDefault
        return 0, _elapsed_ns(self._cupy, stream, lambda: copy(target, source, size_bytes, kind, stream.ptr))

    def barrier(self) -> None:
        """Wait until no copy is in flight."""
        self._stream.synchronize()

    def _device(self, index: int, size_bytes: int) -> Any:
        with self._cupy.cuda.Device(index):
            return self._cupy.zeros(size_bytes, dtype="uint8")

    def _host(self, op: str, size_bytes: int) -> Any:
        import numpy as np

        if op.endswith("pinned"):
            return np.frombuffer(self._cupy.cuda.alloc_pinned_memory(size_bytes), dtype=np.uint8, count=size_bytes)
        return np.ones(size_bytes, dtype=np.uint8)


def _elapsed_ns(cupy: Any, stream: Any, work: Callable[[], None]) -> int:
    """Time of work on a stream, between two events."""
    before, after = cupy.cuda.Event(), cupy.cuda.Event()
    before.record(stream)
    work()
    after.record(stream)
    after.synchronize()
    return round(float(cupy.cuda.get_elapsed_time(before, after)) * 1e6)


def cupy_facts(cupy: Any, nccl: Any) -> dict[str, Any]:
    """Versions, devices and backends, as far as CuPy knows them; ``nccl`` is None where it is not built in."""
    runtime = cupy.cuda.runtime
    count = runtime.getDeviceCount()
    facts: dict[str, Any] = {
        "cupy": cupy.__version__,
        "devices": [_device_name(runtime, i) for i in range(count)],
        "free_bytes": [],
        "peers": [i for i in range(1, count) if runtime.deviceCanAccessPeer(0, i)],
        "backends": [] if nccl is None else ["nccl"],
        "cuda": str(runtime.runtimeGetVersion()),
    }
    for index in range(count):
        with cupy.cuda.Device(index):
            facts["free_bytes"].append(runtime.memGetInfo()[0])
    if nccl is not None:
        facts["nccl"] = str(nccl.get_version())
    return facts


def _device_name(runtime: Any, index: int) -> str:
    name = runtime.getDeviceProperties(index)["name"]
    return name.decode() if isinstance(name, bytes) else str(name)


def _pointer(buffer: Any) -> int:
    return int(buffer.ctypes.data if hasattr(buffer, "ctypes") else buffer.data.ptr)


def _shared_id(nccl: Any, rank: int, rendezvous: str) -> tuple[int, ...]:
    """Unique id of rank 0, through a file that appears in one step."""
    path = Path(rendezvous)
    if rank == 0:
        made = tuple(nccl.get_unique_id())
        write_whole(path, " ".join(map(str, made)))
        return made
    deadline = time.monotonic() + _TIMEOUT_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank 0 gave no NCCL id within {_TIMEOUT_S:.0f} s")
        time.sleep(_POLL_S)
    return tuple(int(v) for v in path.read_text(encoding="ascii").split())
