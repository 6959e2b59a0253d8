"""The checks of ``stashtrace doctor`` of GPUs: what is there, what is seen of it, and which hazards are known.

``gpu.probe`` and ``gpu.nvml`` ask the libraries, in separate processes. What is installed is read from package
metadata, so that neither torch nor CuPy is imported. Each hazard here has caused a crash or a wrong number.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stashtrace.record.gpu.inventory import (
    INSTALL,
    PROFILER_VARIABLES,
    narrow_devices,
    quiet_environment,
    read_inventory,
    same_text,
    ways_lines,
)

_PROBE_S = 15.0
_DRIVER = "libcuda.so.1"
#: First version of NCCL (as ncclGetVersion gives it) and the plugin interface that it speaks.
_PLUGIN_VERSIONS = ((23100, 7), (22902, 6), (22803, 5), (22700, 4))
#: What the recorder knows of stamps, by ``csrc/collectors/nccl/hazards.cpp``: the first NCCL that mixes them up after a
#: broadcast, and the room in /dev/shm without which it can crash with them (nccl#2326).
_BROADCASTS_SINCE = 22900
_SMALL_SHM_BYTES = 128 << 20
#: Source of NCCL's times (``nccl_source`` of a run) -> what that means for them.
_SOURCES = {
    "events": "collectives are timed by events around the calls",
    "plugin": "collectives get times of the device, per channel",
    "host": "collectives have the times of their calls alone",
}
_CUPTI_KNOWN = ((18, 28), (130000, 130599))
_NSIGHT_PROCESSES = {"nsys", "nsys-launcher", "ncu", "cuda-gdb"}

#: State, detail and meaning of a :class:`Check`.
Answer = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of ``stashtrace doctor``."""

    #: What is checked.
    name: str
    #: ``ok``, ``measured``, ``inferred``, ``partly``, ``invisible`` or ``broken``; of a package, ``not installed``.
    state: str
    #: What was found here.
    detail: str
    #: What that means for a run.
    meaning: str

    def as_dict(self) -> dict[str, str]:
        """Return the fields for ``--format json``."""
        return asdict(self)


def gpu_checks(environment: Mapping[str, str] | None = None) -> list[Check]:
    """Check the GPUs of this machine as a job with ``environment`` finds them; by default with our own."""
    environment = os.environ if environment is None else environment
    libraries = probe(environment)
    answers: list[tuple[str, Answer | None]] = [("GPU", _driver(libraries))]
    if _devices(libraries):
        answers += [
            ("CUDA runtime", _runtime(libraries)),
            ("GPU counters", _nvml(libraries)),
            ("GPU inventory", _inventory(environment)),
            ("GPU clocks", _CLOCKS),
        ]
    answers += [
        ("NCCL", _nccl(libraries, environment)),
        ("NCCL plugin", _nccl_plugin(libraries, environment)),
        ("broadcasts", _nccl_broadcasts(libraries, environment)),
        ("NCCL and shm", _nccl_shared_memory(libraries, environment)),
        ("timing events", _timing_events(libraries, environment)),
        ("driver calls", _driver_calls(libraries)),
        ("kernels", _deep_mode(libraries, environment)),
    ]
    return [Check(name, *answer) for name, answer in answers if answer is not None]


def probe(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the answers of the libraries by name; one that is not installed, or does not answer, is missing."""
    kept = quiet_environment(environment)
    script = Path(__file__).parent / "gpu" / "probe.py"
    command = [sys.executable, "-S", "-I", str(script), *nccl_candidates()]
    try:
        done = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=_PROBE_S)
        output, hung = done.stdout, done.returncode != 0
    except subprocess.TimeoutExpired as late:
        output, hung = (late.stdout or b"").decode(errors="replace"), True
    except OSError:
        return {}
    libraries: dict[str, Any] = {"stopped": True} if hung else {}
    for line in output.splitlines():
        try:
            libraries.update(json.loads(line))
        except ValueError:
            continue
    return libraries


def nccl_candidates() -> list[str]:
    """Return the places of libnccl in the order of torch and CuPy: the wheel next to them, then the loader's path."""
    paths = []
    for package in ("nvidia-nccl-cu13", "nvidia-nccl-cu12"):
        try:
            files = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        paths += [str(file.locate()) for file in files if file.name == "libnccl.so.2"]
    return [*paths, "libnccl.so.2"]


def version_text(version: int) -> str:
    """Return a version as text: ``22809`` of NCCL is 2.28.9, ``13010`` of CUDA is 13.1."""
    if version >= 20000 and version < 100000:
        return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
    return f"{version // 1000}.{version // 10 % 100}"


def _devices(libraries: Mapping[str, Any]) -> list[dict[str, Any]]:
    devices: list[dict[str, Any]] = (libraries.get("driver") or {}).get("devices") or []
    return devices


def _driver(libraries: Mapping[str, Any]) -> Answer:
    driver = libraries.get("driver")
    host_only = "the step thread of the CPU is taken as the critical resource"
    if driver is None and libraries.get("stopped"):
        return "invisible", f"{_DRIVER} gave no answer within {_PROBE_S:.0f} s", "`nvidia-smi` may say why"
    if not driver:
        return "invisible", f"no {_DRIVER}", host_only
    if "error" in driver:
        return "invisible", f"{_DRIVER} is no CUDA driver ({driver['error']})", host_only
    known = driver["version"] > 0
    version = f"driver for CUDA {version_text(driver['version'])}" if known else "driver of no known version"
    if driver["init"] != 0:
        reason = {100: " (no device)", 803: " (driver too old)"}.get(driver["init"], "")
        detail = f"{version}, cuInit answers {driver['init']}{reason}"
        return "invisible", detail, "check CUDA_VISIBLE_DEVICES, the container's devices, `nvidia-smi`"
    devices = driver["devices"]
    if not devices:
        return "invisible", f"{version}, no device", "check CUDA_VISIBLE_DEVICES; " + host_only
    names = sorted({f"{d['name']} ({d['memory_bytes'] / 2**30:.0f} GiB, {d['capability']})" for d in devices})
    meaning = "waits, copies, steps and collectives get times of the device"
    return "measured", f"{len(devices)} x {', '.join(names)}, {version}", meaning


def _runtime(libraries: Mapping[str, Any]) -> Answer:
    parts = [f"libcudart {version_text(v)} on the library path" for v in libraries.get("runtime", [])]
    torch = _package("torch")
    if torch:
        parts.append(f"torch {torch}")
    cupy = next((name for name in ("cupy-cuda13x", "cupy-cuda12x", "cupy") if _package(name)), "")
    if cupy:
        detail = ", ".join([*parts, f"{cupy} {_package(cupy)} has a runtime of its own, statically linked"])
        meaning = "of CuPy, collectives and steps are seen; its copies, waits and syncs with `run --lookup-hook`"
        return "partly", detail, meaning
    if "+cpu" in torch:
        return "partly", ", ".join(parts), "this torch cannot use the GPU; install a CUDA build"
    if not parts:
        return "invisible", "no libcudart and no torch here", "nothing here calls the GPU"
    return "measured", ", ".join(parts), "programs that load it dynamically are seen"


def _nvml(libraries: Mapping[str, Any]) -> Answer:
    nvml = libraries.get("nvml") or {}
    if nvml.get("init") != 0:
        reason = f"nvmlInit answers {nvml['init']}" if "init" in nvml else "no libnvidia-ml.so.1"
        return "invisible", reason, "no bytes of links, no power, clocks and throttle reasons"
    return "measured", "libnvidia-ml.so.1 answers", "which path the bytes took; a field a device lacks is said once"


def _inventory(environment: Mapping[str, str]) -> Answer:
    """Name the devices and their links; a narrow PCIe link and errors of memory are in the words of the device."""
    inventory = read_inventory(environment)
    if inventory is None:
        meaning = f"{INSTALL} names driver, NVLink, PCIe and ECC here and in each run"
        return "invisible", "nvidia-ml-py is not installed", meaning
    if "error" in inventory:
        return "invisible", inventory["error"], "a run does not say what PCIe and NVLink it was made on"
    similar = same_text(inventory)
    parts = [f"driver {inventory.get('driver', 'of unknown version')}"]
    parts += [f"GPU {_numbers(of)}: {text}" if len(similar) > 1 else f"{len(of)} x {text}" for text, of in similar]
    narrow = narrow_devices(inventory)
    if narrow:
        meaning = f"copies of GPU {_numbers(narrow)} are slower: its PCIe link lacks lanes; reseat it, or ask the host"
        return "partly", "; ".join([*parts, *ways_lines(inventory)]), meaning
    meaning = "`info` and the report name it for each run"
    return "measured", "; ".join([*parts, *ways_lines(inventory)]), meaning


def _numbers(indices: Sequence[int]) -> str:
    return ",".join(map(str, indices))


_CLOCKS: Answer = (
    "inferred",
    "read against the host's every 2 to 4 s while the job runs",
    "the error of each clock is in the run's alignment; events count in 0.5 us",
)


def _nccl_version(libraries: Mapping[str, Any]) -> int:
    """Return the version of NCCL; not above 0 if there is none, or it does not say."""
    return int((libraries.get("nccl") or {}).get("version", 0))


def _plugin_version(version: int) -> int:
    """Return the newest interface for profiler plugins that an NCCL speaks; 0 for none with times of the device."""
    return next((interface for first, interface in _PLUGIN_VERSIONS if version >= first), 0)


def _needs_stamps(environment: Mapping[str, str]) -> bool:
    """Return whether NCCL's device stamps are the only device times of its operations, or asked for."""
    chosen = environment.get("STASHTRACE_NCCL_SOURCE")
    return chosen == "plugin" or (chosen != "events" and not _has_events(environment))


def _has_events(environment: Mapping[str, str]) -> bool:
    forced = environment.get("STASHTRACE_FORCE_EVENTS") == "1"
    return forced or environment.get("CUDA_DEVICE_MAX_CONNECTIONS") != "1"


def nccl_source(version: int, environment: Mapping[str, str]) -> str:
    """Return where a job with ``environment`` gets NCCL's times from, as ``nccl_source`` of its run will name it."""
    if not _needs_stamps(environment):
        return "events" if _has_events(environment) else "host"
    return "plugin" if _plugin_version(version) and not _is_shm_small() else "host"


def _is_shm_small() -> bool:
    free_bytes = _shm_bytes()
    return free_bytes is not None and free_bytes < _SMALL_SHM_BYTES


def _nccl(libraries: Mapping[str, Any], environment: Mapping[str, str]) -> Answer | None:
    version = _nccl_version(libraries)
    on_gpu = bool(_devices(libraries))
    if version <= 0:
        detail = "no libnccl.so.2 next to torch or CuPy, nor on the library path"
        meaning = "a statically linked NCCL is seen by its profiler plugin alone"
        return ("invisible", detail, meaning) if on_gpu else None
    source = "of the wheel" if "/" in libraries["nccl"]["path"] else "of the library path"
    interface = _plugin_version(version)
    speaks = f"profiler interface v{interface}" if interface else "no profiler interface with device times before 2.27"
    detail, times = f"{version_text(version)} {source}, {speaks}", nccl_source(version, environment)
    meaning = _SOURCES[times]
    if not on_gpu:
        return "ok", detail, f"on a GPU, {meaning}"
    return "partly" if times == "host" else "measured", detail, meaning


def _nccl_plugin(libraries: Mapping[str, Any], environment: Mapping[str, str]) -> Answer | None:
    plugin = environment.get("NCCL_PROFILER_PLUGIN", "")
    if not plugin or not _plugin_version(_nccl_version(libraries)):
        return None
    return "ok", f"NCCL_PROFILER_PLUGIN is {plugin}", "it is called behind ours, both work"


def _nccl_broadcasts(libraries: Mapping[str, Any], environment: Mapping[str, str]) -> Answer | None:
    version = _nccl_version(libraries)
    if nccl_source(version, environment) != "plugin" or version < _BROADCASTS_SINCE:
        return None
    if environment.get("NCCL_ALLGATHERV_ENABLE") == "0":
        return None
    detail = f"NCCL {version_text(version)} mixes up times after one (nccl#2368)"
    return "partly", detail, f"from there on {_SOURCES['host']}; NCCL_ALLGATHERV_ENABLE=0 prevents it, but slows NCCL"


def _nccl_shared_memory(libraries: Mapping[str, Any], environment: Mapping[str, str]) -> Answer | None:
    if not _needs_stamps(environment) or not _plugin_version(_nccl_version(libraries)) or not _is_shm_small():
        return None
    detail = f"{(_shm_bytes() or 0) >> 20} MiB free in /dev/shm: NCCL can crash if asked for its times (nccl#2326)"
    return "partly", detail, f"not asked: {_SOURCES['host']}; enlarge it (docker: --shm-size=1g)"


def _timing_events(libraries: Mapping[str, Any], environment: Mapping[str, str]) -> Answer | None:
    if environment.get("CUDA_DEVICE_MAX_CONNECTIONS") != "1":
        return None
    detail = "CUDA_DEVICE_MAX_CONNECTIONS=1: an event may delay work that runs at the same time"
    if _has_events(environment):
        return "partly", detail, "used nevertheless, as STASHTRACE_FORCE_EVENTS=1 says"
    times = _SOURCES[nccl_source(_nccl_version(libraries), environment)]
    return "partly", detail, f"off; {times}; STASHTRACE_FORCE_EVENTS=1 measures at that price"


def _driver_calls(libraries: Mapping[str, Any]) -> Answer | None:
    direct = [name for name in ("triton", "jax") if _package(name)] if _devices(libraries) else []
    if not direct:
        return None
    detail = f"{' and '.join(direct)} may call the driver past the CUDA runtime"
    return "partly", detail, "`run --lookup-hook` sees their copies and waits too"


def _deep_mode(libraries: Mapping[str, Any], environment: Mapping[str, str]) -> Answer | None:
    """Check whether ``--kernels`` works; None where there is no GPU and no reason against it."""
    injected = [name for name in environment if name in PROFILER_VARIABLES]
    if injected:
        return "invisible", f"{injected[0]} is set: another profiler has CUPTI", "`run --kernels` gives way to it"
    if not _devices(libraries):
        return None
    version = (libraries.get("cupti") or {}).get("version", 0)
    if not version:
        meaning = "`run --kernels` works where the job brings a library (as torch does)"
        return "partly", "no libcupti on the library path", meaning
    if version < 0:
        return "invisible", f"libcupti answers {-version}", "`run --kernels` records nothing here"
    if not any(low <= version <= high for low, high in _CUPTI_KNOWN):
        return "invisible", f"libcupti is of version {version}", "newer than this stashtrace: update it"
    profilers = sorted(_process_names() & _NSIGHT_PROCESSES)
    if profilers:
        detail = f"{', '.join(profilers)} is running"
        return "partly", detail, "in processes it profiles, `run --kernels` gives way"
    meaning = "`run --kernels` names kernels for a few steps; gives way to torch.profiler"
    return "ok", f"libcupti version {version}, nobody else uses it", meaning


def _package(name: str) -> str:
    """Return the version of an installed package, empty if it is not installed; of torch, with the CUDA it is for."""
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
    if name != "torch" or "+" in version:
        return version
    # The metadata of the wheels of PyPI do not show for which CUDA they were built.
    file = next((f for f in importlib.metadata.files(name) or [] if f.as_posix() == "torch/version.py"), None)
    text = Path(str(file.locate())).read_text(encoding="utf-8") if file is not None else ""
    cuda = re.search(r"^cuda(?::[^=]*)? *= *'([\d.]+)'", text, re.M)
    return f"{version} for CUDA {cuda[1]}" if cuda else f"{version}+cpu"


def _shm_bytes() -> int | None:
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return None
    return room.f_bavail * room.f_frsize


def _process_names() -> set[str]:
    """Return the names of the processes of this machine that we may see."""
    names = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                names.add((folder / "comm").read_text(encoding="utf-8", errors="replace").strip())
            except OSError:
                continue
    return names
