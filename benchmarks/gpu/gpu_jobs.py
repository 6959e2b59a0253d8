"""Two jobs to be traced that need libcuda, or libcuda and libnccl, alone: what they did is written next to the run.

``device_job`` copies, waits and launches a graph in each step; its kernels stamp themselves with %globaltimer.
``nccl_rank`` is one rank of a job of collectives, an all-to-all and a late rank, without torch: two of them can share
a device. Called by gpu_job.py. Standard library only, and `stashtrace.step()` where the package can be imported.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from ctypes import byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from pathlib import Path
from typing import Any

from cuda_driver import CAPTURE_GLOBAL, DISABLE_TIMING, CallFailedError, Driver

PINNED_BYTES, PAGEABLE_BYTES = 64 << 20, 8 << 20
#: Of the graph's kernels, the first of which stamps itself.
STAMPED_NS, SECOND_NS = 1_500_000, 500_000
#: Of the kernel before the graph: while it runs the host gets ahead, so that the graph alone is between the events.
AHEAD_NS = 3_000_000
FLOAT32, SUM = 7, 0  # ncclDataType_t, ncclRedOp_t
FLOATS_COUNT = 1 << 18
LATE_EVERY, LATE_S = 4, 0.03
RENDEZVOUS_LIMIT_S = 60.0


def end_of_step() -> Callable[[], None]:
    """Give the call that marks the end of a step; nothing where the package cannot be imported."""
    with contextlib.suppress(ImportError):
        import stashtrace

        return stashtrace.step
    return lambda: None


def device_job(truth: Path, steps_count: int) -> None:
    """Run the steps; what the kernels said of themselves goes to `truth`."""
    step_ended, driver = end_of_step(), Driver()
    compute, side, ready = driver.new_stream(), driver.new_stream(), driver.new_event(DISABLE_TIMING)
    stamps, pageable = driver.new_stamps(), ctypes.create_string_buffer(PAGEABLE_BYTES)
    pinned, data = c_void_p(), c_ulonglong()
    driver.require("cuMemHostAlloc", byref(pinned), c_size_t(PINNED_BYTES), 0)
    driver.require("cuMemAlloc_v2", byref(data), c_size_t(PINNED_BYTES))
    driver.require("cuStreamBeginCapture_v2", compute, CAPTURE_GLOBAL)
    driver.launch(compute, STAMPED_NS, stamps)
    driver.launch(compute, SECOND_NS)
    code, graph = driver.end_capture(compute)
    if code:
        raise CallFailedError(f"cuStreamEndCapture: {code}")
    executable, stamped_ns = driver.instantiate(graph), []
    for _ in range(steps_count):
        driver.require("cuMemcpyHtoDAsync_v2", data, pinned, c_size_t(PINNED_BYTES), side)
        driver.require("cuEventRecord", ready, side)
        driver.require("cuStreamWaitEvent", compute, ready, 0)
        driver.require("cuMemcpyHtoDAsync_v2", data, pageable, c_size_t(PAGEABLE_BYTES), side)
        driver.launch(compute, AHEAD_NS)
        driver.require("cuGraphLaunch", executable, compute)
        driver.require("cuStreamSynchronize", compute)
        stamped_ns.append(stamps.duration_ns())
        step_ended()
    driver.require("cuCtxSynchronize")
    done = {"job": "device", "steps": steps_count, "stamped_ns": stamped_ns, "second_ns": SECOND_NS}
    truth.write_text(
        json.dumps(done | {"pinned_bytes": PINNED_BYTES, "pageable_bytes": PAGEABLE_BYTES}), encoding="utf-8"
    )


#: Two ranks share a device only if each believes that it is on a separate host; then all goes over sockets.
SOCKETS_ONLY = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
}


class UniqueId(ctypes.Structure):
    """ncclUniqueId, which is passed by value."""

    _fields_ = [("internal", c_char * 128)]


IN_PROGRESS = 7  # ncclInProgress
UNDEFINED = -(2**31)  # NCCL_CONFIG_UNDEF_INT


class Config(ctypes.Structure):
    """ncclConfig_t as of 2.18, which later releases take by its size; `blocking` is all that is set."""

    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        *((name, c_int) for name in ("blocking", "cga_cluster_size", "min_ctas", "max_ctas")),
        ("net_name", c_char_p),
        ("split_share", c_int),
    ]

    @classmethod
    def not_blocking(cls) -> Config:
        """Calls on the communicator return before they are done."""
        return cls(ctypes.sizeof(cls), 0xCAFEBEEF, 21800, 0, UNDEFINED, UNDEFINED, UNDEFINED, None, UNDEFINED)


def nccl_path() -> str:
    """The libnccl that STASHTRACE_NCCL_LIBRARY names, else that of NCCL's wheel, else the loader's."""
    if named := os.environ.get("STASHTRACE_NCCL_LIBRARY"):
        return named
    for folder in sys.path:
        for found in sorted(Path(folder or ".").glob("nvidia/*/lib/libnccl.so.2")):
            return str(found)
    return "libnccl.so.2"


def meet(folder: Path, nccl: Any, rank: int) -> UniqueId:
    """Agree on the unique id through a file."""
    file = folder / "unique_id"
    if rank == 0:
        unique_id = UniqueId()
        if code := nccl.ncclGetUniqueId(byref(unique_id)):
            raise CallFailedError(f"ncclGetUniqueId: {code}")
        part = folder / "unique_id.part"
        part.write_bytes(bytes(unique_id))
        part.rename(file)
    deadline_s = time.monotonic() + RENDEZVOUS_LIMIT_S
    while not file.exists():
        if time.monotonic() > deadline_s:
            raise CallFailedError(f"rank 0 wrote no unique id within {RENDEZVOUS_LIMIT_S:g} s")
        time.sleep(0.01)
    return UniqueId.from_buffer_copy(file.read_bytes())


def nccl_rank(rank: int, ranks_count: int, folder: Path, steps_count: int, blocking: bool) -> None:
    """Run one rank; what it did goes to ``rank<N>.json`` in `folder`, where the ranks also meet.

    Each step has an all-reduce, an all-gather, a reduce-scatter, an all-to-all as torch makes it (a group of sends and
    receives, with the part for the rank itself) and another all-reduce. The last rank is late in each fourth step.
    """
    step_ended, driver = end_of_step(), Driver()
    ctypes.CDLL(nccl_path(), ctypes.RTLD_GLOBAL)
    nccl = ctypes.CDLL(None)  # by the global scope, as a linked program finds it: the preloaded hooks stand in front

    communicator, version, stream = c_void_p(), c_int(), driver.new_stream()

    def require(name: str, *arguments: Any) -> None:
        code, state = getattr(nccl, name)(*arguments), c_int(IN_PROGRESS)
        while (
            code == IN_PROGRESS and state.value == IN_PROGRESS
        ):  # a communicator that is not blocking goes on meanwhile
            code = nccl.ncclCommGetAsyncError(communicator, byref(state)) or IN_PROGRESS
            time.sleep(0.0001)
        if code := state.value if code == IN_PROGRESS else code:
            raise CallFailedError(f"{name}: {code}")

    require("ncclGetVersion", byref(version))
    with_others = (ranks_count, meet(folder, nccl, rank), rank)
    if blocking:
        require("ncclCommInitRank", byref(communicator), *with_others)
    else:
        require("ncclCommInitRankConfig", byref(communicator), *with_others, byref(Config.not_blocking()))
    allocated = [c_ulonglong(), c_ulonglong()]
    for one in allocated:
        driver.require("cuMemAlloc_v2", byref(one), c_size_t(4 * FLOATS_COUNT * ranks_count))
    first, second = (c_void_p(one.value) for one in allocated)
    floats, on = c_size_t(FLOATS_COUNT), (communicator, stream)
    for step in range(steps_count):
        if rank == ranks_count - 1 and step % LATE_EVERY == LATE_EVERY - 1:
            time.sleep(LATE_S)
        require("ncclAllReduce", first, first, floats, FLOAT32, SUM, *on)
        require("ncclAllGather", first, second, floats, FLOAT32, *on)
        require("ncclReduceScatter", second, first, floats, FLOAT32, SUM, *on)
        require("ncclGroupStart")
        for peer in range(ranks_count):
            require("ncclSend", first, c_size_t(1024), FLOAT32, peer, *on)
            require("ncclRecv", second, c_size_t(1024), FLOAT32, peer, *on)
        require("ncclGroupEnd")
        require("ncclAllReduce", first, first, floats, FLOAT32, SUM, *on)
        driver.require("cuStreamSynchronize", stream)
        step_ended()
    if not blocking:
        require("ncclCommFinalize", communicator)
    require("ncclCommDestroy", communicator)
    done = {"job": "nccl", "rank": rank, "ranks": ranks_count, "steps": steps_count, "nccl_version": version.value}
    done["blocking"] = blocking
    (folder / f"rank{rank}.json").write_text(json.dumps(done), encoding="utf-8")


def nccl_ranks(script: Path, ranks_count: int, folder: Path, steps_count: int, blocking: bool) -> int:
    """Run all ranks on one device; the first exit code that is not 0. A rank that fails ends the others."""
    processes = []
    for rank in range(ranks_count):
        own = {"RANK": str(rank), "WORLD_SIZE": str(ranks_count), "LOCAL_RANK": "0", "NCCL_HOSTID": f"rank{rank}"}
        words = ["rank", str(rank), str(ranks_count), str(folder), "--steps", str(steps_count)]
        words += [] if blocking else ["--non-blocking"]
        processes.append(
            subprocess.Popen([sys.executable, str(script), *words], env={**os.environ, **SOCKETS_ONLY, **own})
        )
    failed = 0
    while not failed and any(process.poll() is None for process in processes):
        time.sleep(0.05)
        failed = next((process.returncode for process in processes if process.returncode), 0)
    for process in processes:
        if failed and process.poll() is None:
            process.terminate()
        process.wait()
    return next((process.returncode for process in processes if process.returncode), failed)
