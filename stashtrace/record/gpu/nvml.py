"""Ask NVML, by the package nvidia-ml-py, which GPUs this machine has and how they are linked; print one JSON object.

``inventory`` runs this as a script in a separate process and with a time limit, since a driver may hang. Argument:
the folder of the package. It reads only, and makes no context on a device. Imports the standard library and ``pynvml``.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

#: Ways between two devices without NVLink, by the name of the constant.
_PATHS = {
    "NVML_TOPOLOGY_INTERNAL": "one board",
    "NVML_TOPOLOGY_SINGLE": "one PCIe switch",
    "NVML_TOPOLOGY_MULTIPLE": "several PCIe switches",
    "NVML_TOPOLOGY_HOSTBRIDGE": "one host bridge",
    "NVML_TOPOLOGY_NODE": "one NUMA node",
    "NVML_TOPOLOGY_SYSTEM": "across NUMA nodes",
}


def inventory(nvml: ModuleType) -> dict[str, Any]:
    """Return driver, devices and the ways between them; what a device does not show is left out."""
    nvml.nvmlInit()
    try:
        ask = _asking(nvml)
        facts: dict[str, Any] = {"driver": _text(ask("nvmlSystemGetDriverVersion"))}
        cuda = ask("nvmlSystemGetCudaDriverVersion_v2")
        if cuda:
            facts["cuda"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        facts["devices"] = [_device(nvml, ask, index, handle) for index, handle in enumerate(handles)]
        places = {device["bus"]: index for index, device in enumerate(facts["devices"]) if "bus" in device}
        ends = [_link_ends(nvml, ask, handle, places) for handle in handles]
        for device, of_device in zip(facts["devices"], ends, strict=True):
            device["nvlinks_count"] = len(of_device)
            device["nvswitch_links_count"] = of_device.count(_SWITCH)
        facts["ways"] = [
            {
                "first": first,
                "second": second,
                "nvlinks_count": ends[first].count(second),
                "path": _path(nvml, ask, handles[first], handles[second]),
            }
            for first, second in itertools.combinations(range(len(handles)), 2)
        ]
        known: dict[str, Any] = _drop_none(facts)
        return known
    finally:
        nvml.nvmlShutdown()


#: Ends of a link that are no device of this machine.
_SWITCH, _ELSEWHERE = -1, -2
_Ask = Callable[..., Any]


def _asking(nvml: ModuleType) -> _Ask:
    """Return a function that calls another by name; None if the driver or an old package cannot answer."""

    def ask(name: str, *arguments: Any) -> Any:
        function = getattr(nvml, name, None)
        if function is None:
            return None
        try:
            return function(*arguments)
        except nvml.NVMLError:
            return None

    return ask


def _device(nvml: ModuleType, ask: _Ask, index: int, handle: Any) -> dict[str, Any]:
    memory, modes = ask("nvmlDeviceGetMemoryInfo", handle), ask("nvmlDeviceGetEccMode", handle)
    errors = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_AGGREGATE_ECC)
    return {
        "index": index,
        "name": _text(ask("nvmlDeviceGetName", handle)),
        "memory_bytes": None if memory is None else int(memory.total),
        "bus": _bus(ask("nvmlDeviceGetPciInfo", handle)),
        # The present generation says little: an idle device lowers it.
        "pcie_most_generation": ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "pcie_width": ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
        "pcie_most_width": ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
        "ecc": None if modes is None else modes[0] == nvml.NVML_FEATURE_ENABLED,
        "ecc_uncorrected_count": ask("nvmlDeviceGetTotalEccErrors", handle, *errors),
        "nvlink_version": ask("nvmlDeviceGetNvLinkVersion", handle, 0),
    }


def _link_ends(nvml: ModuleType, ask: _Ask, handle: Any, places: dict[str, int]) -> list[int]:
    """Return for each active NVLink of a device where it ends: the index of a device, a switch, or elsewhere."""
    ends = []
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        if ask("nvmlDeviceGetNvLinkState", handle, link) != nvml.NVML_FEATURE_ENABLED:
            continue
        if ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            ends.append(_SWITCH)
        else:
            bus = _bus(ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link))
            ends.append(_ELSEWHERE if bus is None else places.get(bus, _ELSEWHERE))
    return ends


def _path(nvml: ModuleType, ask: _Ask, first: Any, second: Any) -> str | None:
    level = ask("nvmlDeviceGetTopologyCommonAncestor", first, second)
    return next((text for name, text in _PATHS.items() if level == getattr(nvml, name)), None)


def _bus(place: Any) -> str | None:
    text = None if place is None else _text(place.busId)
    return None if text is None else text.lower()


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _drop_none(value: Any) -> Any:
    """Return the facts without those that are None."""
    if isinstance(value, dict):
        return {key: _drop_none(part) for key, part in value.items() if part is not None}
    return [_drop_none(part) for part in value] if isinstance(value, list) else value


def main() -> None:
    """Print the inventory, or why there is none."""
    sys.path.append(sys.argv[1])
    try:
        import pynvml

        answer = inventory(pynvml)
    except Exception as error:
        answer = {"error": str(error) or type(error).__name__}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
