"""Asks the GPU libraries of this machine who they are; prints one JSON object.

Run by ``doctor_gpu`` as a script in a process of its own with a time limit, since a driver may hang, and what a
library does to a process is none of the caller's business. Makes no context: only calls that need none. Arguments:
libnccl.so.2 candidates, best first. Stdlib only.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76


def _load(*names: str) -> Any:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _number(library: Any, function: str) -> int:
    """What ``function(int*)`` tells, minus its error where it fails, 0 where it is missing."""
    call = getattr(library, function, None)
    if call is None:
        return 0
    value = ctypes.c_int(0)
    status = int(call(ctypes.byref(value)))
    return value.value if status == 0 else -status


def driver() -> dict[str, Any]:
    """``libcuda``: its error from cuInit, its version, its devices."""
    cuda = _load("libcuda.so.1")
    if cuda is None:
        return {}
    found: dict[str, Any] = {"init": int(cuda.cuInit(0)), "version": _number(cuda, "cuDriverGetVersion")}
    if found["init"] != 0:
        return found
    found["devices"] = []
    for index in range(max(0, _number(cuda, "cuDeviceGetCount"))):
        device, name, size = ctypes.c_int(0), ctypes.create_string_buffer(128), ctypes.c_size_t(0)
        if cuda.cuDeviceGet(ctypes.byref(device), index) != 0:
            continue
        cuda.cuDeviceGetName(name, len(name), device)
        cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
        capability = [ctypes.c_int(0), ctypes.c_int(0)]
        for value, attribute in zip(capability, (_CAPABILITY_MAJOR, _CAPABILITY_MINOR), strict=True):
            cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        found["devices"].append(
            {
                "name": name.value.decode(errors="replace"),
                "memory_bytes": size.value,
                "capability": f"{capability[0].value}.{capability[1].value}",
            }
        )
    return found


def runtime() -> list[int]:
    """Versions of the dynamic CUDA runtimes on the library path."""
    versions = (_number(_load(f"libcudart.so.{major}"), "cudaRuntimeGetVersion") for major in (13, 12))
    return [version for version in versions if version > 0]


def nvml() -> dict[str, Any]:
    """``libnvidia-ml``: its error, the driver's name of itself, the number of devices."""
    library = _load("libnvidia-ml.so.1")
    if library is None:
        return {}
    found: dict[str, Any] = {"init": int(library.nvmlInit_v2())}
    if found["init"] == 0:
        text = ctypes.create_string_buffer(80)
        if library.nvmlSystemGetDriverVersion(text, len(text)) == 0:
            found["driver"] = text.value.decode(errors="replace")
        found["devices_count"] = max(0, _number(library, "nvmlDeviceGetCount_v2"))
        library.nvmlShutdown()
    return found


def nccl(candidates: list[str]) -> dict[str, Any]:
    """The first libnccl that loads, and its version."""
    for path in candidates:
        library = _load(path)
        if library is not None:
            return {"path": path, "version": _number(library, "ncclGetVersion")}
    return {}


def cupti() -> dict[str, Any]:
    """libcupti of the library path; some versions tell theirs only where a driver is."""
    library = _load("libcupti.so.13", "libcupti.so.12")
    return {} if library is None else {"version": _number(library, "cuptiGetVersion")}


def main() -> None:
    """Each part is flushed as it is known: what a hanging library follows is not lost."""
    candidates = sys.argv[1:]
    parts = (
        ("nccl", lambda: nccl(candidates)),
        ("driver", driver),
        ("runtime", runtime),
        ("nvml", nvml),
        ("cupti", cupti),
    )
    for name, ask in parts:
        try:
            answer: Any = ask()
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps({name: answer}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
