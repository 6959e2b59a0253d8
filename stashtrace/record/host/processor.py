"""The name of this machine's processor, as a run and a calibration keep it."""

from __future__ import annotations

import os
from pathlib import Path

#: Lines of /proc/cpuinfo that tell a core of aarch64, where the kernel gives numbers in place of a name.
_NUMBERS = ("CPU implementer", "CPU part", "CPU variant", "CPU revision")


def processor_name(listing: Path = Path("/proc/cpuinfo")) -> str:
    """Return the model of the processor.

    On aarch64 the kernel has no name for it: there it is the architecture with the numbers of the first core, such as
    ``aarch64 0x41/0xd4f r0p0`` for a Neoverse V2 (Grace). The architecture alone where there is neither.

    ``listing``: what is read; for tests.
    """
    try:
        text = listing.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        values.setdefault(name.strip(), value.strip())
    if values.get("model name"):
        return values["model name"]
    machine = os.uname().machine
    implementer, part, variant, revision = (values.get(name, "") for name in _NUMBERS)
    if not (implementer and part):
        return machine
    try:
        release = f" r{int(variant, 0)}p{int(revision, 0)}"
    except ValueError:
        release = ""
    return f"{machine} {implementer}/{part}{release}"
