"""Which GPU the counters of a device are read from."""

from __future__ import annotations

from collections.abc import Mapping

from stashtrace.schema.trace import Trace


def counted_gpu(trace: Trace, device: Mapping[str, int]) -> str:
    """Return the UUID under which a row of ``devices`` is sampled: of a MIG instance, that of its GPU."""
    return trace.text(device["gpu_uuid_code"]) or trace.text(device["uuid_code"])
