"""Reads from storage that no recorded call explains: io_uring above all.

The kernel counts what a process read from storage, whoever asked for it. Recorded calls, mapped files and what the
loader mapped explain their part; the bounds are wide, since read-ahead reads more than a call asked for, and swapped
pages count too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from stashtrace.analysis.io.calls import READING, moves, process_pieces
from stashtrace.analysis.io.policy import POLICY
from stashtrace.analysis.stalls.sampled_cpus import last_values
from stashtrace.schema.kinds import NOT_FILES, IoFlag, IoOp
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace, facts_named
from stashtrace.text.units import bytes_text

#: Libraries whose rings wait for sockets and read no files: libuv, on which torch builds the store of its rendezvous,
#: which the launcher hosts, or rank 0.
_WAIT_FOR_SOCKETS = ("libtorch_cpu.so", "libuv.so.1")


@dataclass(slots=True)
class _Process:
    """What the images of one process id read, which share the kernel's count."""

    images: list[int] = field(default_factory=list)
    storage_bytes: float = 0.0
    loaded_bytes: int = 0
    seen_bytes: int = 0
    mapped_bytes: int = 0
    ahead_bytes: int = 0
    #: The kernel adds what a child has read to the count of the parent that waits for its end.
    children_bytes: float = 0.0

    def unseen_bytes(self) -> float:
        """Return the bytes that nothing explains; 0 unless they are clearly more than could be explained."""
        explained = self.seen_bytes + self.mapped_bytes + self.loaded_bytes
        own = self.storage_bytes - self.children_bytes
        surely = own > explained + self.seen_bytes + self.ahead_bytes + POLICY.slack_bytes
        return own - explained if surely else 0.0


def unseen_reads(trace: Trace, facts: Callable[[str], Mapping[int, int]]) -> list[str]:
    """Return what to list as invisible: processes that use io_uring, and reads from storage past the recorded calls.

    ``facts`` gives the largest whole number that each process recorded under a key.
    """
    rings = len({process for process, name in facts_named(trace, "io_uring") if name not in _WAIT_FOR_SOCKETS})
    amount = sum(process.unseen_bytes() for process in _processes(trace, facts))
    read = f"{bytes_text(amount)} read from storage" if amount else ""
    if rings:
        whose = "a process" if rings == 1 else f"{rings} processes"
        return [f"I/O of {whose} by io_uring" + (f" ({read} past the recorded calls)" if read else "")]
    return [f"{read} past the recorded calls"] if read else []


def _processes(trace: Trace, facts: Callable[[str], Mapping[int, int]]) -> Iterable[_Process]:
    """Return the processes that may have read more than their loaders and the slack explain, with their calls."""
    table = trace.processes
    identity = zip(*(table[c].tolist() for c in ("host_code", "boot_code", "parent_process_id", "pid")), strict=True)
    of_image: dict[int, _Process] = {}
    by_identity: dict[tuple[int, ...], _Process] = {}
    for image, key in zip(table["process_id"].tolist(), identity, strict=True):
        process = of_image[image] = by_identity.setdefault(key, _Process())
        process.images.append(image)
    samples = ((image, value) for (image, _), value in last_values(trace, "process_read_bytes_total").items())
    for image, value in itertools.chain(samples, facts("storage_read_bytes").items()):
        if image in of_image:
            of_image[image].storage_bytes = max(of_image[image].storage_bytes, value)
    for image, parent in zip(table["process_id"].tolist(), table["parent_process_id"].tolist(), strict=True):
        child = of_image[image]
        if parent in of_image and of_image[parent] is not child and image == child.images[0]:
            of_image[parent].children_bytes += child.storage_bytes
    loaded = facts("loaded_bytes")
    for process in by_identity.values():
        process.loaded_bytes = sum(loaded.get(image, POLICY.unknown_loaded_bytes) for image in process.images)
    suspects = [p for p in by_identity.values() if p.unseen_bytes()]
    if suspects:
        wanted = {image for process in suspects for image in process.images}
        for image, pieces in process_pieces(trace):
            if image in wanted:
                for piece in pieces():
                    _add(of_image[image], piece)
    return suspects


def _add(process: _Process, piece: Table) -> None:
    of_file = (piece["io_flags"] & NOT_FILES) == 0
    moved = np.maximum(piece["result_bytes"], 0)
    reads = of_file & (moves(piece) == READING)
    slow = piece["end_ns"] - piece["begin_ns"] > POLICY.went_to_storage_ns
    cached = (piece["io_flags"] & (IoFlag.SAMPLED | IoFlag.BLOCK_INPUT)) == IoFlag.SAMPLED
    process.seen_bytes += int(moved[reads].sum())
    process.mapped_bytes += int(moved[piece["op_code"] == IoOp.MMAP].sum())
    process.ahead_bytes += int((of_file & slow & ~cached).sum()) * POLICY.read_ahead_at_most_bytes
