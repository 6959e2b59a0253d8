"""What ``calibrate`` times: collectives and copies by torch, or by CuPy where there is no torch, and reads of a disk.

A collective is timed as the tracer sees it: on the host from the call to its return, on a device between two events
on its stream. Whoever makes an engine imports torch or cupy.
"""

from __future__ import annotations

import datetime
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stashtrace.errors import MissingDataError
from stashtrace.files.whole_files import write_whole

_TIMEOUT_S = 60
_FLOAT_BYTES = 4
_POLL_S = 0.01


class LocalEngine:
    """Base of engines of a single process."""

    def agree(self, value: bool) -> bool:
        """Return the value: one process agrees with itself."""
        return value

    def check(self) -> None:
        """Do nothing: everything that was timed counts."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class TorchCollectives(LocalEngine):
    """``torch.distributed`` over gloo (host) or NCCL (one device per rank).

    ``rendezvous``: path of a file that all ranks can write.
    """

    def __init__(self, torch: Any, backend: str, rank: int, ranks: int, rendezvous: str) -> None:
        self._torch, self._ranks, self._on_device = torch, ranks, backend == "nccl"
        self.timing = "device" if self._on_device else "host"
        if self._on_device:
            torch.cuda.set_device(rank)
        # The barrier goes over the host even for NCCL: one on the device would be part of what is timed.
        torch.distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if self._on_device else "gloo",
            init_method=f"file://{rendezvous}",
            rank=rank,
            world_size=ranks,
            timeout=datetime.timedelta(seconds=_TIMEOUT_S),
        )
        self._device = f"cuda:{rank}" if self._on_device else "cpu"
        self._flag = torch.zeros(1, dtype=torch.int32)
        self._token = torch.zeros(1)
        self._buffers: dict[tuple[str, int], tuple[Any, Any]] = {}
        self._calls = {
            "all_reduce": lambda out, given: torch.distributed.all_reduce(given),
            "all_gather": torch.distributed.all_gather_into_tensor,
            "reduce_scatter": torch.distributed.reduce_scatter_tensor,
            "all_to_all": torch.distributed.all_to_all_single,
            "broadcast": lambda out, given: torch.distributed.broadcast(given, 0),
        }

    def prepare(self, op: str, size_bytes: int) -> None:
        """Allocate buffers of zeros, which never overflow, written once so that their pages are there."""
        count = size_bytes // _FLOAT_BYTES
        outputs = {"all_gather": count * self._ranks, "reduce_scatter": count // self._ranks, "all_to_all": count}
        out = outputs.get(op, 0)
        self._buffers[op, size_bytes] = (self._zeros(out), self._zeros(count))

    def timed(self, op: str, size_bytes: int) -> tuple[int, int]:
        """Time one collective."""
        out, given = self._buffers[op, size_bytes]
        call = self._calls[op]
        if not self._on_device:
            begin = time.monotonic_ns()
            call(out, given)
            return begin, time.monotonic_ns()
        return 0, _elapsed_ns(self._torch, lambda: call(out, given))

    def barrier(self) -> None:
        """Wait for all ranks over gloo, also where NCCL is timed."""
        self._torch.distributed.all_reduce(self._token)

    def agree(self, value: bool) -> bool:
        """Broadcast rank 0's value over gloo."""
        self._flag.fill_(int(value))
        self._torch.distributed.broadcast(self._flag, 0)
        return bool(self._flag.item())

    def close(self) -> None:
        """Leave the group."""
        self._torch.distributed.destroy_process_group()

    def _zeros(self, count: int) -> Any:
        return self._torch.empty(count, dtype=self._torch.float32, device=self._device).fill_(0.0)


class TorchCopies(LocalEngine):
    """Copies between host and devices, timed by events.

    Operations are ``h2d_pinned``, ``h2d_pageable``, ``d2h_pinned``, ``d2h_pageable``, ``d2d`` and ``p2p_0_N`` (device 0
    to device N).
    """

    timing = "device"

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        torch.cuda.set_device(0)
        self._buffers: dict[tuple[str, int], tuple[Any, Any]] = {}

    def prepare(self, op: str, size_bytes: int) -> None:
        """Allocate target and source."""
        torch = self._torch

        def device(index: int = 0) -> Any:
            return torch.empty(size_bytes, dtype=torch.uint8, device=f"cuda:{index}").fill_(0)

        def host(pinned: bool) -> Any:
            return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=pinned).fill_(0)

        if op.startswith("h2d"):
            pair = device(), host(op.endswith("pinned"))
        elif op.startswith("d2h"):
            pair = host(op.endswith("pinned")), device()
        elif op == "d2d":
            pair = device(), device()
        else:
            pair = device(int(op.rsplit("_", 1)[1])), device()
        self._buffers[op, size_bytes] = pair

    def timed(self, op: str, size_bytes: int) -> tuple[int, int]:
        """Time one copy on the current stream."""
        target, source = self._buffers[op, size_bytes]
        return 0, _elapsed_ns(self._torch, lambda: target.copy_(source, non_blocking=True))

    def barrier(self) -> None:
        """Wait until no copy is in flight."""
        self._torch.cuda.synchronize()


def _elapsed_ns(torch: Any, work: Callable[[], Any]) -> int:
    """Time of work on the current stream, between two events."""
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    work()
    after.record()
    after.synchronize()
    return round(float(before.elapsed_time(after)) * 1e6)


def torch_facts(torch: Any) -> dict[str, Any]:
    """Versions, devices and backends, as far as torch knows them."""
    facts: dict[str, Any] = {"torch": torch.__version__, "devices": [], "free_bytes": [], "backends": []}
    distributed = torch.distributed
    if distributed.is_available():
        facts["backends"] = [n for n in ("gloo", "nccl") if getattr(distributed, f"is_{n}_available")()]
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        facts["devices"] = [torch.cuda.get_device_name(i) for i in range(count)]
        facts["free_bytes"] = [torch.cuda.mem_get_info(i)[0] for i in range(count)]
        facts["peers"] = [i for i in range(1, count) if torch.cuda.can_device_access_peer(0, i)]
        facts["cuda"] = str(torch.version.cuda)
        if "nccl" in facts["backends"]:
            facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return facts


# Reads of a disk, for the workers of ``calibrate``: cold ones, and proof that they were cold.

_CHUNK_BYTES = 128 * 1024
_BLOCK_BYTES = 4096
_FILL_BYTES = 4 << 20
#: The largest size fits this often, so that reads of one round do not meet.
_ROOM = 4
#: More reads than this share from the page cache, and the figures would be those of memory.
_WARM_RATIO = 0.05


class DiskReads(LocalEngine):
    """Reads of a file that is not in the page cache.

    ``random_read`` is one ``pread`` of the size with read-ahead off; ``sequential_read`` is the size in calls of 128
    KiB with read-ahead on. Each begins at a random place whose pages were dropped before. ``folder``: where the file is
    made, and removed at the end. ``largest_bytes``: largest size that will be read.
    """

    timing = "host"

    def __init__(self, folder: str, largest_bytes: int) -> None:
        self._file_bytes = largest_bytes * _ROOM
        self._random = random.Random(7)
        self._reads_count = self._warm_count = 0
        # Unlinked at once on Linux: nothing is left behind, however this process ends.
        self._file = tempfile.TemporaryFile(prefix=".stashtrace-calibrate-", dir=folder)  # noqa: SIM115
        self._descriptor = self._file.fileno()
        block = os.urandom(_FILL_BYTES)
        for at in range(0, self._file_bytes, _FILL_BYTES):
            os.pwrite(self._descriptor, block[: min(_FILL_BYTES, self._file_bytes - at)], at)
        os.fsync(self._descriptor)
        self._buffer = memoryview(bytearray(largest_bytes))

    def prepare(self, op: str, size_bytes: int) -> None:
        """Check the operation; all sizes share the file and the buffer."""
        if op not in ("random_read", "sequential_read"):
            raise ValueError(f"no such read: {op}")

    def timed(self, op: str, size_bytes: int) -> tuple[int, int]:
        """Time one read of a range that was dropped from the cache."""
        blocks = max((self._file_bytes - size_bytes) // _BLOCK_BYTES, 1)
        at = self._random.randrange(blocks) * _BLOCK_BYTES
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        advice = os.POSIX_FADV_RANDOM if op == "random_read" else os.POSIX_FADV_SEQUENTIAL
        os.posix_fadvise(self._descriptor, 0, 0, advice)
        self._reads_count += 1
        self._warm_count += self._is_cached(at)
        chunk = size_bytes if op == "random_read" else _CHUNK_BYTES
        begin = time.monotonic_ns()
        done = 0
        while done < size_bytes:
            part = os.preadv(self._descriptor, [self._buffer[done : min(done + chunk, size_bytes)]], at + done)
            if part == 0:
                raise OSError(f"the file ends at {at + done}")
            done += part
        return begin, time.monotonic_ns()

    def barrier(self) -> None:
        """Do nothing: one process waits for nobody."""

    def check(self) -> None:
        """Raise MissingDataError if more than a few reads came from the page cache."""
        if self._warm_count > _WARM_RATIO * self._reads_count:
            share = round(100 * self._warm_count / self._reads_count)
            raise MissingDataError(
                f"{share} % of the reads came from the page cache, which cannot be dropped here (tmpfs?)",
                hint="--disk takes a folder on a disk",
            )

    def close(self) -> None:
        """Remove the file."""
        self._file.close()

    def _is_cached(self, at: int) -> bool:
        try:
            return os.preadv(self._descriptor, [self._buffer[:1]], at, os.RWF_NOWAIT) > 0
        except OSError:  # it would block, or the file system cannot say
            return False


class CupyCollectives(LocalEngine):
    """NCCL through ``cupy.cuda.nccl``, one device per rank.

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
        return 0, _cupy_elapsed_ns(self._cupy, self._stream, lambda: self._call(op, out, given))

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
        return 0, _cupy_elapsed_ns(self._cupy, stream, lambda: copy(target, source, size_bytes, kind, stream.ptr))

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


def _cupy_elapsed_ns(cupy: Any, stream: Any, work: Callable[[], None]) -> int:
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
            raise TimeoutError(f"rank 0 gave no NCCL id within {_TIMEOUT_S} s")
        time.sleep(_POLL_S)
    return tuple(int(v) for v in path.read_text(encoding="ascii").split())
