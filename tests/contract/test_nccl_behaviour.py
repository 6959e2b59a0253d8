"""The double of NCCL and the real library give the same answers, for one rank on one device, as any GPU machine can."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from contract.real_interfaces import need_device, need_nccl
from device import fake_environment

#: argv: name of the library. Real collectives of one rank are copies; what counts here is who waits for what.
QUESTIONS = r"""
import ctypes, json, sys
cuda = ctypes.CDLL("libcuda.so.1")
nccl = ctypes.CDLL(sys.argv[1])
P, I, B, Q, Z = ctypes.c_void_p, ctypes.c_int, ctypes.byref, ctypes.c_ulonglong, ctypes.c_size_t
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]
said, version, first, second = {}, I(), Id(), Id()
said["version"] = [nccl.ncclGetVersion(B(version)), version.value > 21800]
said["id"] = nccl.ncclGetUniqueId(B(first))
nccl.ncclGetUniqueId(B(second))
said["ids_differ"] = bytes(first) != bytes(second)
said["group_end_alone"] = nccl.ncclGroupEnd()
cuda.cuInit(0)
context, comm, made, size, rank, device = P(), P(), P(), I(), I(), I()
cuda.cuDevicePrimaryCtxRetain(B(context), 0); cuda.cuCtxSetCurrent(context)
said["bad_rank"] = nccl.ncclCommInitRank(B(made), 1, first, 5)
said["init"] = nccl.ncclCommInitRank(B(comm), 1, second, 0)
said["of"] = [nccl.ncclCommCount(comm, B(size)), size.value, nccl.ncclCommUserRank(comm, B(rank)), rank.value,
              nccl.ncclCommCuDevice(comm, B(device)), device.value]
stream, data, state = P(), Q(), I(-1)
cuda.cuStreamCreateWithPriority(B(stream), 1, 0); cuda.cuMemAlloc_v2(B(data), Z(1 << 22))
pointer = P(data.value)
reduce = lambda: nccl.ncclAllReduce(pointer, pointer, Z(1 << 20), 7, 0, comm, stream)
said["all_reduce"] = reduce()
said["grouped"] = [nccl.ncclGroupStart(), nccl.ncclGroupStart(), reduce(), reduce(), nccl.ncclGroupEnd(),
                   nccl.ncclGroupEnd()]
said["to_itself"] = [nccl.ncclGroupStart(), nccl.ncclSend(pointer, Z(1024), 7, 0, comm, stream),
                     nccl.ncclRecv(P(data.value + 8192), Z(1024), 7, 0, comm, stream), nccl.ncclGroupEnd()]
said["bad_peer"] = nccl.ncclSend(pointer, Z(1024), 7, 3, comm, stream)
said["async_error"] = [nccl.ncclCommGetAsyncError(comm, B(state)), state.value]
said["synchronized"] = cuda.cuStreamSynchronize(stream)
said["split"] = [nccl.ncclCommSplit(comm, 0, 0, B(made), None), made.value is not None]
none = P()
said["no_color"] = [nccl.ncclCommSplit(comm, -1, 0, B(none), None), none.value is None]
said["destroy"] = [nccl.ncclCommDestroy(made), nccl.ncclCommFinalize(comm), nccl.ncclCommDestroy(comm)]
print(json.dumps(said))
"""
EXPECTED: dict[str, Any] = {
    "version": [0, True],
    "id": 0,
    "ids_differ": True,
    "group_end_alone": 5,
    "bad_rank": 4,
    "init": 0,
    "of": [0, 1, 0, 0, 0, 0],
    "all_reduce": 0,
    "grouped": [0] * 6,
    "to_itself": [0] * 4,
    "bad_peer": 4,
    "async_error": [0, 0],
    "synchronized": 0,
    "split": [0, True],
    "no_color": [0, True],
    "destroy": [0, 0, 0],
}


def answers(library: str, environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-c", QUESTIONS, library]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def test_the_double(tmp_path: Path) -> None:
    assert answers("libnccl.so.2", os.environ | fake_environment(tmp_path)) == EXPECTED


@pytest.mark.gpu
def test_the_real_library() -> None:
    need_device()
    for library in need_nccl():
        assert answers(str(library), dict(os.environ)) == EXPECTED
