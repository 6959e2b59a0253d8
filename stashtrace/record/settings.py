"""Settings of the recorder, by their variables.

Generated from csrc/core/settings.def by scripts/docs/generate_guest_words.py; do not edit.
"""

from __future__ import annotations

from typing import NamedTuple


class Setting(NamedTuple):
    """What holds without a variable, and its smallest and largest number, or the words that it may be."""

    default: str
    limits: tuple[int, int] | None = None
    choices: tuple[str, ...] = ()


SETTINGS = {
    "STASHTRACE_RUN_ID": Setting(""),
    "STASHTRACE_STEPS": Setting(""),
    "STASHTRACE_IDLE": Setting("0"),
    "STASHTRACE_FOLLOWED": Setting("0"),
    "STASHTRACE_STAGED": Setting(""),
    "STASHTRACE_COLLECTORS": Setting(""),
    "STASHTRACE_WAIT_THRESHOLD_NS": Setting("20000", limits=(0, 3_600_000_000_000)),
    "STASHTRACE_SAMPLE_MS": Setting("100", limits=(1, 3_600_000)),
    "STASHTRACE_STACK_HZ": Setting("50", limits=(0, 1_000)),
    "STASHTRACE_NVML_HZ": Setting("10", limits=(0, 1_000)),
    "STASHTRACE_NVML_LINKS": Setting("0"),
    "STASHTRACE_RING_BYTES": Setting(""),
    "STASHTRACE_FORCE_EVENTS": Setting("0"),
    "STASHTRACE_LOOKUP_HOOK": Setting("0"),
    "STASHTRACE_EVENT_BUDGET": Setting("10000", limits=(0, 1_000_000_000)),
    "STASHTRACE_NCCL_SOURCE": Setting("auto", choices=("auto", "plugin", "events")),
    "STASHTRACE_NCCL_CHAIN": Setting(""),
    "STASHTRACE_DRAINER": Setting("auto", choices=("auto", "thread", "self", "off")),
    "STASHTRACE_LOG": Setting("error", choices=("error", "info", "debug")),
    "STASHTRACE_KERNELS": Setting(""),
    "STASHTRACE_KERNELS_STEPS": Setting("10:13"),
}
