"""Ask the GPU libraries of this machine for their versions and devices; print a JSON object a line, one per library.

``doctor_gpu`` runs this as a script in a separate process and with a time limit, since a driver may hang, and loading
a library may change a process. It makes no context, and calls only what needs none. Arguments: paths of libnccl.so.2,
best first. Imports the standard library alone.
"""

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
    """Return the number that ``function(int*)`` writes; minus its error if it fails, 0 if it is missing."""
    call = getattr(library, function, None)
    if call is None:
        return 0
    value = ctypes.c_int(0)
    status = int(call(ctypes.byref(value)))
    return value.value if status == 0 else -status


def driver() -> dict[str, Any]:
    """Return the error of cuInit, the version of ``libcuda`` and its devices; empty without the library."""
    cuda = _load("libcuda.so.1")
    if cuda is None:
        return {}
    facts: dict[str, Any] = {"init": int(cuda.cuInit(0)), "version": _number(cuda, "cuDriverGetVersion")}
    if facts["init"] != 0:
        return facts
    facts["devices"] = []
    for index in range(max(0, _number(cuda, "cuDeviceGetCount"))):
        device, name, size = ctypes.c_int(0), ctypes.create_string_buffer(128), ctypes.c_size_t(0)
        if cuda.cuDeviceGet(ctypes.byref(device), index) != 0:
            continue
        cuda.cuDeviceGetName(name, len(name), device)
        cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
        capability = [ctypes.c_int(0), ctypes.c_int(0)]
        for value, attribute in zip(capability, (_CAPABILITY_MAJOR, _CAPABILITY_MINOR), strict=True):
            cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        facts["devices"].append(
            {
                "name": name.value.decode(errors="replace"),
                "memory_bytes": size.value,
                "capability": f"{capability[0].value}.{capability[1].value}",
            }
        )
    return facts


def runtime() -> list[int]:
    """Return the versions of the dynamic CUDA runtimes on the library path."""
    versions = (_number(_load(f"libcudart.so.{major}"), "cudaRuntimeGetVersion") for major in (13, 12))
    return [version for version in versions if version > 0]


def nvml() -> dict[str, Any]:
    """Return the error of nvmlInit; empty without the library. It says whether our sampler can read counters.

    What NVML knows of the devices is read by nvidia-ml-py; see :mod:`stashtrace.record.gpu.inventory`.
    """
    library = _load("libnvidia-ml.so.1")
    if library is None:
        return {}
    facts: dict[str, Any] = {"init": int(library.nvmlInit_v2())}
    if facts["init"] == 0:
        library.nvmlShutdown()
    return facts


def nccl(candidates: list[str]) -> dict[str, Any]:
    """Return path and version of the first libnccl that loads; empty if none does."""
    for path in candidates:
        library = _load(path)
        if library is not None:
            return {"path": path, "version": _number(library, "ncclGetVersion")}
    return {}


def cupti() -> dict[str, Any]:
    """Return the version of libcupti on the library path; some say it only where there is a driver."""
    library = _load("libcupti.so.13", "libcupti.so.12")
    return {} if library is None else {"version": _number(library, "cuptiGetVersion")}


def main() -> None:
    """Print each part as soon as it is known, so that a library that hangs costs no other part."""
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
