"""Collectives and copies by torch, for the workers of ``calibrate``. torch is imported by whoever makes an engine.

A collective is timed as the tracer sees it: on the host from the call to its return, on a device between two events
on its stream.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import datetime
import time
from typing import Any

_TIMEOUT_S = 60
_FLOAT_BYTES = 4


class TorchCollectives:
    """``torch.distributed`` over gloo (host) or NCCL (one device per rank).

    Parameters
    ----------
    torch : module
        With ``torch.distributed`` imported.
    backend : str
        ``gloo`` or ``nccl``.
    rank, ranks : int
        This process, and how many there are.
    rendezvous : str
        Path of a file that all ranks can write.
    """

    def __init__(self, torch: Any, backend: str, rank: int, ranks: int, rendezvous: str) -> None:
        self._torch, self._ranks, self._on_device = torch, ranks, backend == "nccl"
        self.timing = "device" if self._on_device else "host"
        if self._on_device:
            torch.cuda.set_device(rank)
        # The barrier goes over the host even for NCCL: one on the device would be part of what is timed.
        torch.distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if self._on_device else "gloo",
            init_method=f"file://{rendezvous}",
            rank=rank,
            world_size=ranks,
            timeout=datetime.timedelta(seconds=_TIMEOUT_S),
        )
        self._device = f"cuda:{rank}" if self._on_device else "cpu"
        self._flag = torch.zeros(1, dtype=torch.int32)
        self._token = torch.zeros(1)
        self._buffers: dict[tuple[str, int], tuple[Any, Any]] = {}
        self._calls = {
            "all_reduce": lambda out, given: torch.distributed.all_reduce(given),
            "all_gather": torch.distributed.all_gather_into_tensor,
            "reduce_scatter": torch.distributed.reduce_scatter_tensor,
            "all_to_all": torch.distributed.all_to_all_single,
            "broadcast": lambda out, given: torch.distributed.broadcast(given, 0),
        }

    def prepare(self, op: str, size_bytes: int) -> None:
        """Buffers of zeros, which never overflow, written once so that their pages are there."""
        count = size_bytes // _FLOAT_BYTES
        outputs = {"all_gather": count * self._ranks, "reduce_scatter": count // self._ranks, "all_to_all": count}
        out = outputs.get(op, 0)
        self._buffers[op, size_bytes] = (self._zeros(out), self._zeros(count))

    def timed(self, op: str, size_bytes: int) -> tuple[int, int]:
        """One collective."""
        out, given = self._buffers[op, size_bytes]
        call = self._calls[op]
        if not self._on_device:
            begin = time.monotonic_ns()
            call(out, given)
            return begin, time.monotonic_ns()
        before, after = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        call(out, given)
        after.record()
        after.synchronize()
        return 0, round(before.elapsed_time(after) * 1e6)

    def barrier(self) -> None:
        """Over gloo, always."""
        self._torch.distributed.all_reduce(self._token)

    def agree(self, wish: bool) -> bool:
        """Broadcast from rank 0 over gloo."""
        self._flag.fill_(int(wish))
        self._torch.distributed.broadcast(self._flag, 0)
        return bool(self._flag.item())

    def close(self) -> None:
        """Leave the group."""
        self._torch.distributed.destroy_process_group()

    def _zeros(self, count: int) -> Any:
        return self._torch.empty(count, dtype=self._torch.float32, device=self._device).fill_(0.0)


class TorchCopies:
    """Copies between host and devices, timed by events.

    Operations are ``h2d_pinned``, ``h2d_pageable``, ``d2h_pinned``, ``d2h_pageable``, ``d2d`` and ``p2p_0_N`` (device 0
    to device N).
    """

    timing = "device"

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        torch.cuda.set_device(0)
        self._buffers: dict[tuple[str, int], tuple[Any, Any]] = {}

    def prepare(self, op: str, size_bytes: int) -> None:
        """Target and source."""
        torch = self._torch

        def device(index: int = 0) -> Any:
            return torch.empty(size_bytes, dtype=torch.uint8, device=f"cuda:{index}").fill_(0)

        def host(pinned: bool) -> Any:
            return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=pinned).fill_(0)

        if op.startswith("h2d"):
            pair = device(), host(op.endswith("pinned"))
        elif op.startswith("d2h"):
            pair = host(op.endswith("pinned")), device()
        elif op == "d2d":
            pair = device(), device()
        else:
            pair = device(int(op.rsplit("_", 1)[1])), device()
        self._buffers[op, size_bytes] = pair

    def timed(self, op: str, size_bytes: int) -> tuple[int, int]:
        """One copy on the current stream."""
        target, source = self._buffers[op, size_bytes]
        before, after = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        target.copy_(source, non_blocking=True)
        after.record()
        after.synchronize()
        return 0, round(before.elapsed_time(after) * 1e6)

    def barrier(self) -> None:
        """Nothing may be in flight when the next copy begins."""
        self._torch.cuda.synchronize()

    def agree(self, wish: bool) -> bool:
        """One process agrees with itself."""
        return wish

    def close(self) -> None:
        """Nothing to leave."""


def torch_facts(torch: Any) -> dict[str, Any]:
    """Versions, devices and backends, as far as torch knows them."""
    facts: dict[str, Any] = {"torch": torch.__version__, "devices": [], "free_bytes": [], "backends": []}
    distributed = torch.distributed
    if distributed.is_available():
        facts["backends"] = [n for n in ("gloo", "nccl") if getattr(distributed, f"is_{n}_available")()]
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        facts["devices"] = [torch.cuda.get_device_name(i) for i in range(count)]
        facts["free_bytes"] = [torch.cuda.mem_get_info(i)[0] for i in range(count)]
        facts["peers"] = [i for i in range(1, count) if torch.cuda.can_device_access_peer(0, i)]
        facts["cuda"] = str(torch.version.cuda)
        if "nccl" in facts["backends"]:
            facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return facts
