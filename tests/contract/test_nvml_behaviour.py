"""The double of NVML and the real library give the same answers, as far as any device does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from contract.real_interfaces import need_device
from device import fake_environment

QUESTIONS = r"""
import ctypes, json, time
nvml = ctypes.CDLL("libnvidia-ml.so.1")
cuda = ctypes.CDLL("libcuda.so.1")
P, I, U, B, Q = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.byref, ctypes.c_ulonglong
class Field(ctypes.Structure):
    _fields_ = [("id", U), ("scope", U), ("timestamp_us", ctypes.c_int64), ("latency_us", ctypes.c_int64),
                ("type", I), ("result", I), ("value", Q)]
said, count, device, uuid = {}, U(), P(), ctypes.create_string_buffer(96)
said["init"] = nvml.nvmlInitWithFlags(0)
said["count"] = [nvml.nvmlDeviceGetCount_v2(B(count)), count.value > 0]
said["handle"] = nvml.nvmlDeviceGetHandleByIndex_v2(0, B(device))
said["no_such_index"] = nvml.nvmlDeviceGetHandleByIndex_v2(999, B(P()))
said["uuid"] = [nvml.nvmlDeviceGetUUID(device, uuid, 96), uuid.value.decode()[:4], len(uuid.value)]
cuda.cuInit(0)
own = (ctypes.c_ubyte * 16)()
uuids = set()
for index in range(count.value):
    one = P(); nvml.nvmlDeviceGetHandleByIndex_v2(index, B(one)); nvml.nvmlDeviceGetUUID(one, uuid, 96)
    uuids.add(uuid.value.decode()[4:].replace("-", ""))
cuda.cuDeviceGetUuid_v2(own, 0)
said["cuda_device_is_one_of_them"] = bytes(own).hex() in uuids
fields = (Field * 2)(Field(83, 0), Field(60000, 0))
said["fields"] = [nvml.nvmlDeviceGetFieldValues(device, 2, fields), fields[1].result != 0]
known = fields[0].result == 0
before = fields[0].value
time.sleep(0.3)
nvml.nvmlDeviceGetFieldValues(device, 2, fields)
said["energy_grows_or_is_refused"] = fields[0].value > before if known else fields[0].result in (2, 3)
said["stamp_is_unix_time"] = not known or abs(fields[0].timestamp_us / 1e6 - time.time()) < 60
power = U()
said["power"] = nvml.nvmlDeviceGetPowerUsage(device, B(power)) in (0, 3)
said["shutdown"] = nvml.nvmlShutdown()
print(json.dumps(said))
"""
EXPECTED: dict[str, Any] = {
    "init": 0,
    "count": [0, True],
    "handle": 0,
    "no_such_index": 2,
    "uuid": [0, "GPU-", 40],
    "cuda_device_is_one_of_them": True,
    "fields": [0, True],
    "energy_grows_or_is_refused": True,
    "stamp_is_unix_time": True,
    "power": True,
    "shutdown": 0,
}


def answers(environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", QUESTIONS], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_the_double(tmp_path: Path) -> None:
    assert answers(os.environ | fake_environment(tmp_path, "devices 2\npower 400W")) == EXPECTED


@pytest.mark.gpu
def test_the_real_library() -> None:
    need_device()
    assert answers(dict(os.environ)) == EXPECTED
