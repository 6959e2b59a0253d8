"""The GPUs of a machine and the links between them: read by nvidia-ml-py, kept in ``run.json``, shown in words.

``doctor`` reads the inventory of this machine; ``run`` reads it while the job runs, so that a recording says on what it
was made. Where the package is not installed, or there is no driver, one line says so and nothing else changes.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stashtrace.files.run_facts import GPU_INVENTORY, json_object, valid_facts
from stashtrace.record.environment import untraced_environment
from stashtrace.record.launchers import launchers

#: What to do where the package is missing.
INSTALL = "`pip install 'stashtrace[gpu]'`"
_LIMIT_S = 15.0
#: Variables by which a profiler puts itself into a process.
PROFILER_VARIABLES = ("CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")


def package_folder() -> str:
    """Return the folder that holds the module of nvidia-ml-py; empty if it is not installed."""
    spec = find_spec("pynvml")
    if spec is None or spec.origin is None:
        return ""
    place = Path(spec.origin).parent  # an older package of the same module is a folder
    return str(place.parent if spec.submodule_search_locations else place)


def quiet_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which neither our hooks nor another profiler sees the process."""
    kept = untraced_environment(environment)
    for name in ("LD_PRELOAD", *PROFILER_VARIABLES):
        kept.pop(name, None)
    return kept


class InventoryReader:
    """Reads the inventory of this machine in another process; :meth:`result` gives it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._begin_s = time.monotonic()
        # A file and not a pipe: nobody reads while the job runs.
        self._output = os.memfd_create("stashtrace-gpus")
        self._process: subprocess.Popen[bytes] | None = None
        folder = package_folder()
        if folder:
            script = str(Path(__file__).with_name("nvml.py"))
            with contextlib.suppress(OSError):
                self._process = subprocess.Popen(
                    [sys.executable, "-S", "-I", script, folder],
                    env=quiet_environment(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=self._output,
                    stderr=subprocess.DEVNULL,
                )

    def result(self, limit_s: float = _LIMIT_S) -> dict[str, Any] | None:
        """Return the inventory, ``{"error": reason}`` if NVML gives none, or None without the package.

        Waits until ``limit_s`` after the begin, and then ends the process.
        """
        if self._process is None:
            os.close(self._output)
            return None
        left_s = max(self._begin_s + limit_s - time.monotonic(), 0.0)
        try:
            self._process.wait(left_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            os.close(self._output)
            return {"error": f"NVML gave no answer within {limit_s:.0f} s"}
        with open(self._output, "rb") as output:
            output.seek(0)
            text = output.read()
        try:
            facts = valid_facts({GPU_INVENTORY: json_object(text)})
        except ValueError:
            return {"error": "the process that asked NVML ended without an answer"}
        inventory: dict[str, Any] = facts.get(GPU_INVENTORY, {"error": "NVML gave an answer that makes no sense"})
        return inventory


def read_inventory(environment: Mapping[str, str] | None = None) -> dict[str, Any] | None:
    """Return the inventory of this machine; see :meth:`InventoryReader.result`."""
    return InventoryReader(os.environ if environment is None else environment).result()


def inventories_of(directory: Path, run: Mapping[str, Any]) -> dict[str, dict[str, Any] | None]:
    """Return the inventory that each host of a run recorded, None for a host with a GPU that recorded none.

    Hosts without a GPU are left out.
    """
    parts: list[Mapping[str, Any]] = [*(run.get("parts") or launchers(directory))]
    found: dict[str, dict[str, Any] | None] = {}
    for part in parts or [run]:
        if GPU_INVENTORY in part or part.get("gpu_driver") == "present":
            host = str(part.get("host") or "unknown host")
            found[host] = part.get(GPU_INVENTORY) or found.get(host)
    return found


def inventory_lines(inventory: Mapping[str, Any] | None) -> list[str]:
    """Return the inventory in words: the driver, a line for each device, and how devices are linked."""
    if inventory is None:
        return [f"no inventory of GPUs was recorded; a run has one where nvidia-ml-py is installed ({INSTALL})"]
    if "error" in inventory:
        return [f"no inventory of GPUs: {inventory['error']}"]
    cuda = f" for CUDA {inventory['cuda']}" if "cuda" in inventory else ""
    lines = [f"driver {inventory.get('driver', 'of unknown version')}{cuda}"]
    lines += [f"GPU {device['index']}  {device_text(device)}" for device in inventory["devices"]]
    return [*lines, *ways_lines(inventory)]


def device_text(device: Mapping[str, Any]) -> str:
    """Return one device in words: name, memory, place, PCIe, ECC, NVLink; what it does not show is left out."""
    parts = [str(device.get("name", "unknown device"))]
    if "memory_bytes" in device:
        parts.append(f"{device['memory_bytes'] / 2**30:.0f} GiB")
    parts += [part for part in (device.get("bus", ""), _pcie_text(device), _ecc_text(device)) if part]
    parts.append(_nvlink_text(device))
    return ", ".join(parts)


def _pcie_text(device: Mapping[str, Any]) -> str:
    generation = f" {device['pcie_most_generation']}" if "pcie_most_generation" in device else ""
    width, most = device.get("pcie_width"), device.get("pcie_most_width")
    lanes = "" if width is None else f" x{width}" + (f" (of x{most})" if most is not None and width < most else "")
    return f"PCIe{generation}{lanes}" if generation or lanes else ""


def _ecc_text(device: Mapping[str, Any]) -> str:
    if "ecc" not in device:
        return ""
    count = device.get("ecc_uncorrected_count")
    errors = "" if not count else f" ({count:,} uncorrected error{'s' * (count > 1)} so far)"
    return f"ECC {'on' if device['ecc'] else 'off'}{errors}"


def _nvlink_text(device: Mapping[str, Any]) -> str:
    count, switched = device.get("nvlinks_count", 0), device.get("nvswitch_links_count", 0)
    if not count:
        return "no NVLink"
    ends = "" if not switched else " to switches" if switched == count else f" ({switched} of them to switches)"
    return f"{count} NVLink{'s' * (count > 1)}{ends}"


def ways_lines(inventory: Mapping[str, Any]) -> list[str]:
    """Return a line for each kind of way between two devices, with the pairs that have it."""
    switched = {d["index"] for d in inventory["devices"] if d.get("nvswitch_links_count")}
    pairs: dict[str, list[str]] = {}
    for way in inventory.get("ways", ()):
        count = way.get("nvlinks_count", 0)
        if count:
            text = f"{count} NVLink{'s' * (count > 1)}"
        elif {way["first"], way["second"]} <= switched:
            text = "NVLink by switches"
        else:
            text = f"PCIe, {way['path']}" if "path" in way else "PCIe"
        pairs.setdefault(text, []).append(f"{way['first']}-{way['second']}")
    if len(pairs) == 1:
        ((text, named),) = pairs.items()
        devices_count = len(inventory["devices"])
        if len(named) == devices_count * (devices_count - 1) // 2:
            return [f"between {'the two' if devices_count == 2 else 'any two'}: {text}"]
    return [f"between {' '.join(named)}: {text}" for text, named in pairs.items()]


def narrow_devices(inventory: Mapping[str, Any]) -> list[int]:
    """Return the devices whose PCIe link has fewer lanes than it could have."""
    return [d["index"] for d in inventory["devices"] if d.get("pcie_width", 0) < d.get("pcie_most_width", 0)]


def same_text(inventory: Mapping[str, Any]) -> Sequence[tuple[str, list[int]]]:
    """Return each distinct device in words without its place, and the devices that it describes."""
    similar: dict[str, list[int]] = {}
    for device in inventory["devices"]:
        text = device_text({key: value for key, value in device.items() if key != "bus"})
        similar.setdefault(text, []).append(device["index"])
    return list(similar.items())
