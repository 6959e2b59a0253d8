"""The lines of ``stashtrace doctor`` about GPUs: what is there, what will be seen of it, and what is known to go wrong.

The libraries are asked by ``gpu_probe`` in a process of its own; what is installed is read from package metadata, so
neither torch nor CuPy is imported. Each hazard here was somebody's crash or wrong number.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

#: Variables by which a profiler puts itself into a process.
PROFILER_VARIABLES = ("CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
_PROBE_S = 15.0
_DRIVER = "libcuda.so.1"
#: First NCCL version (as ncclGetVersion) -> profiler plugin interface that it speaks.
_PLUGIN_VERSIONS = ((23100, 7), (22902, 6), (22803, 5), (22700, 4))
_BROADCAST_HAZARD = (22900, 23199)
#: Below this NCCL's profiler may not get the connection it needs, and then crashes (nccl#2326).
_SMALL_SHM_BYTES = 256 << 20
_CUPTI_KNOWN = ((18, 28), (130000, 130599))
_NSIGHT_PROCESSES = {"nsys", "nsys-launcher", "ncu", "cuda-gdb"}


def gpu_checks(environment: Mapping[str, str] | None = None) -> list[Check]:
    """Examine the GPUs of this machine as a job with ``environment`` would find them."""
    environment = os.environ if environment is None else environment
    found = probe(environment)
    lines = [_driver(found)]
    if found.get("driver", {}).get("devices"):
        lines += [_runtime(found), _nvml(found), _clocks()]
    lines += _nccl(found, environment)
    lines += _hazards(found, environment)
    lines += _deep_mode(found, environment)
    return lines


def probe(environment: Mapping[str, str]) -> dict[str, Any]:
    """What the libraries answered; a part is missing if its library is, or if it never answered."""
    # Neither our hooks nor another profiler belong into this look.
    kept = {k: v for k, v in environment.items() if not k.startswith("STASHTRACE_")}
    for name in ("LD_PRELOAD", *PROFILER_VARIABLES):
        kept.pop(name, None)
    script = Path(__file__).with_name("gpu_probe.py")
    command = [sys.executable, "-S", "-I", str(script), *nccl_candidates()]
    try:
        done = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=_PROBE_S)
        output, hung = done.stdout, done.returncode != 0
    except subprocess.TimeoutExpired as late:
        output, hung = (late.stdout or b"").decode(errors="replace"), True
    except OSError:
        return {}
    found: dict[str, Any] = {"stopped": True} if hung else {}
    for line in output.splitlines():
        try:
            found.update(json.loads(line))
        except ValueError:
            continue
    return found


def nccl_candidates() -> list[str]:
    """libnccl as torch and CuPy find it: the wheel beside them first, then the loader's path."""
    paths = []
    for package in ("nvidia-nccl-cu13", "nvidia-nccl-cu12"):
        try:
            files = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        paths += [str(file.locate()) for file in files if file.name == "libnccl.so.2"]
    return [*paths, "libnccl.so.2"]


def version_text(version: int) -> str:
    """``22809`` of NCCL is 2.28.9, ``13010`` of CUDA 13.1."""
    if version >= 20000 and version < 100000:
        return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
    return f"{version // 1000}.{version // 10 % 100}"


def _driver(found: Mapping[str, Any]) -> Check:
    driver = found.get("driver")
    host = "the step thread of the CPU is taken as the critical resource"
    if driver is None and found.get("stopped"):
        return Check(
            "GPU", "invisible", f"{_DRIVER} gave no answer within {_PROBE_S:.0f} s", "`nvidia-smi` may say why"
        )
    if not driver:
        return Check("GPU", "invisible", f"no {_DRIVER}", host)
    if "error" in driver:
        return Check("GPU", "invisible", f"{_DRIVER} is no CUDA driver ({driver['error']})", host)
    version = (
        f"driver for CUDA {version_text(driver['version'])}" if driver["version"] > 0 else "driver of no known version"
    )
    if driver["init"] != 0:
        detail = f"{version}, cuInit answers {driver['init']}" + {100: " (no device)", 803: " (driver too old)"}.get(
            driver["init"], ""
        )
        return Check("GPU", "invisible", detail, "look at CUDA_VISIBLE_DEVICES, the container's devices, `nvidia-smi`")
    devices = driver["devices"]
    if not devices:
        return Check("GPU", "invisible", f"{version}, no device", "look at CUDA_VISIBLE_DEVICES; " + host)
    names = sorted({f"{d['name']} ({d['memory_bytes'] / 2**30:.0f} GiB, {d['capability']})" for d in devices})
    meaning = "waits, copies, steps and collectives get times of the device"
    return Check("GPU", "measured", f"{len(devices)} x {', '.join(names)}, {version}", meaning)


def _runtime(found: Mapping[str, Any]) -> Check:
    parts = [f"libcudart {version_text(v)} on the library path" for v in found.get("runtime", [])]
    torch = _package("torch")
    if torch:
        parts.append(f"torch {torch}")
    cupy = next((name for name in ("cupy-cuda13x", "cupy-cuda12x", "cupy") if _package(name)), "")
    if cupy:
        detail = ", ".join([*parts, f"{cupy} {_package(cupy)} has its own, statically linked"])
        return Check(
            "CUDA runtime",
            "partly",
            detail,
            "of CuPy, collectives and steps are seen; its copies, waits and syncs with `run --lookup-hook`",
        )
    if "+cpu" in torch:
        return Check("CUDA runtime", "partly", ", ".join(parts), "this torch cannot use the GPU; install a CUDA build")
    if not parts:
        return Check("CUDA runtime", "invisible", "no libcudart and no torch here", "nothing here calls the GPU")
    return Check("CUDA runtime", "measured", ", ".join(parts), "programs that load it dynamically are seen")


def _nvml(found: Mapping[str, Any]) -> Check:
    nvml = found.get("nvml") or {}
    if "devices_count" not in nvml:
        why = f"nvmlInit answers {nvml['init']}" if "init" in nvml else "no libnvidia-ml.so.1"
        return Check("GPU counters", "invisible", why, "no bytes of links, no power, clocks and throttle reasons")
    detail = f"driver {nvml.get('driver', 'unknown')}, {nvml['devices_count']} devices"
    return Check("GPU counters", "measured", detail, "which path the bytes took; a field a device lacks is said once")


def _clocks() -> Check:
    return Check(
        "GPU clocks",
        "inferred",
        "read against the host's every 2 to 4 s while the job runs",
        "the error of each clock is in the run's alignment; events count in 0.5 us",
    )


def _nccl(found: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[Check]:
    nccl = found.get("nccl") or {}
    version = nccl.get("version", 0)
    if version <= 0:
        if (found.get("driver") or {}).get("devices"):
            yield Check(
                "NCCL",
                "invisible",
                "no libnccl.so.2 beside torch or CuPy, nor on the library path",
                "a statically linked NCCL is seen by its profiler plugin alone",
            )
        return
    where = "of the wheel" if "/" in nccl["path"] else "of the library path"
    speaks = next((api for first, api in _PLUGIN_VERSIONS if version >= first), 0)
    if speaks:
        detail = f"{version_text(version)} {where}, profiler interface v{speaks}"
        here = bool((found.get("driver") or {}).get("devices"))
        meaning = ("" if here else "on a GPU, ") + "collectives get the device's own times, per channel"
        yield Check("NCCL", "measured" if here else "ok", detail, meaning)
    else:
        yield Check(
            "NCCL",
            "measured",
            f"{version_text(version)} {where}, no profiler interface with device times before 2.27",
            "collectives are timed by events around the calls",
        )
    plugin = environment.get("NCCL_PROFILER_PLUGIN", "")
    if plugin and speaks:
        yield Check("NCCL plugin", "ok", f"NCCL_PROFILER_PLUGIN is {plugin}", "it is called behind ours, both work")
    first, last = _BROADCAST_HAZARD
    if first <= version <= last and environment.get("NCCL_ALLGATHERV_ENABLE") != "0":
        yield Check(
            "broadcasts",
            "partly",
            f"NCCL {version_text(version)} may time them as other operations (nccl#2368)",
            "set NCCL_ALLGATHERV_ENABLE=0 for a job that broadcasts",
        )
    room = _shm_bytes()
    if speaks and 0 <= room < _SMALL_SHM_BYTES:
        yield Check(
            "NCCL and shm",
            "partly",
            f"{room >> 20} MiB free in /dev/shm: NCCL's profiler may crash (nccl#2326)",
            "enlarge it (docker: --shm-size=1g) or set STASHTRACE_NCCL_SOURCE=events",
        )


def _hazards(found: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[Check]:
    if environment.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
        yield Check(
            "timing events",
            "partly",
            "CUDA_DEVICE_MAX_CONNECTIONS=1: an event may hold up what runs beside it",
            "off; collectives keep NCCL's times; STASHTRACE_FORCE_EVENTS=1 measures at that price",
        )
    if not (found.get("driver") or {}).get("devices"):
        return
    direct = [name for name in ("triton", "jax") if _package(name)]
    if direct:
        yield Check(
            "driver calls",
            "partly",
            f"{' and '.join(direct)} may call the driver past the CUDA runtime",
            "`run --lookup-hook` sees their copies and waits too",
        )


def _deep_mode(found: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[Check]:
    """Whether ``--kernels`` would work; said where there is a GPU, or a reason why it could not."""
    injected = [name for name in environment if name in PROFILER_VARIABLES]
    watching = sorted(_running() & _NSIGHT_PROCESSES)
    if injected:
        yield Check(
            "kernels",
            "invisible",
            f"{injected[0]} is set: another profiler has CUPTI",
            "`run --kernels` gives way to it",
        )
        return
    if not (found.get("driver") or {}).get("devices"):
        return
    version = (found.get("cupti") or {}).get("version", 0)
    if not version:
        yield Check(
            "kernels",
            "partly",
            "no libcupti on the library path",
            "`run --kernels` works where the job brings its own (torch)",
        )
    elif version < 0:
        yield Check("kernels", "invisible", f"libcupti answers {-version}", "`run --kernels` records nothing here")
    elif not any(low <= version <= high for low, high in _CUPTI_KNOWN):
        yield Check(
            "kernels", "invisible", f"libcupti is of version {version}", "newer than this stashtrace: update it"
        )
    elif watching:
        yield Check(
            "kernels",
            "partly",
            f"{', '.join(watching)} is running",
            "in processes it profiles, `run --kernels` gives way",
        )
    else:
        yield Check(
            "kernels",
            "ok",
            f"libcupti version {version}, nobody else uses it",
            "`run --kernels` names kernels for a few steps; gives way to torch.profiler",
        )


def _package(name: str) -> str:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
    if name != "torch" or "+" in version:
        return version
    # The metadata of PyPI's wheels leave out for which CUDA they were built.
    file = next((f for f in importlib.metadata.files(name) or [] if f.as_posix() == "torch/version.py"), None)
    text = Path(str(file.locate())).read_text(encoding="utf-8") if file is not None else ""
    cuda = re.search(r"^cuda(?::[^=]*)? *= *'([\d.]+)'", text, re.M)
    return f"{version} for CUDA {cuda[1]}" if cuda else f"{version}+cpu"


def _shm_bytes() -> int:
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return -1
    return room.f_bavail * room.f_frsize


def _running() -> set[str]:
    """Names of the processes of this machine that we may see."""
    names = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                names.add((folder / "comm").read_text(encoding="utf-8", errors="replace").strip())
            except OSError:
                continue
    return names


# One line of ``stashtrace doctor``.


@dataclass(frozen=True, slots=True)
class Check:
    """One line of ``doctor``: what, how well (ok, measured, inferred, partly, invisible, broken), why, meaning."""

    name: str
    state: str
    detail: str
    meaning: str

    def as_dict(self) -> dict[str, str]:
        """For ``--format json``."""
        return asdict(self)
