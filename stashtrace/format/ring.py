"""Reads a .ring file: the rows that a process had recorded but not yet written to its .stash.

The writer may still be running, so the ring is copied before its .stash is opened. A row that is drained in between is
in both, and ``stash_file`` drops one of the two by its sequence. A row that is overwritten while it is copied was
drained before, so the .stash has it.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import struct
from dataclasses import dataclass

from stashtrace.errors import FormatError
from stashtrace.format.container import ByteFile, refuse_newer

RING_MAGIC = b"STASHRG\n"
LANE_MAGIC = 0x454E414C
PAGE_BYTES = 4096
RING_HEADER = struct.Struct("<8sHHIQQII")
LANE_HEADER = struct.Struct("<IHHIIQII32xQQQ40xQ")  # up to and including consumed
LANE_HEADER_BYTES = 192
assert LANE_HEADER.size == 136


@dataclass(frozen=True, slots=True)
class Lane:
    """Content of one lane: ``rows`` are the bytes of rows [first_sequence, first_sequence + row_count)."""

    lane_id: int
    record_id: int
    row_bytes: int
    tid: int
    first_sequence: int
    row_count: int
    dropped: int
    rows: bytes


@dataclass(frozen=True, slots=True)
class RingImage:
    """All lanes of a ring file; the errors (errno, 0 for none) tell why rows were lost that no loss row counts."""

    pid: int
    lost_lanes: int
    grow_error: int
    write_error: int
    lanes: list[Lane]
    damaged_lanes: int


def read_ring(path: str) -> RingImage | None:
    """Copy the content of a ring; None if there is no such file.

    Raises
    ------
    FormatError
        If the file is not a ring or its header is damaged.
    """
    if not os.path.exists(path):
        return None
    with ByteFile(path) as source:
        raw = source.read(0, RING_HEADER.size)
        if len(raw) < RING_HEADER.size or not raw.startswith(RING_MAGIC):
            raise FormatError(f"{path} is not a stashtrace ring")
        _, major, minor, pid, used_bytes, lost_lanes, grow_error, write_error = RING_HEADER.unpack(raw)
        refuse_newer(path, major, minor)
        lanes: list[Lane] = []
        damaged = 0
        offset = PAGE_BYTES
        end = min(used_bytes, source.size)
        while offset + LANE_HEADER_BYTES <= end:
            header = LANE_HEADER.unpack(source.read(offset, LANE_HEADER.size))
            (
                magic,
                record_id,
                row_bytes,
                lane_id,
                capacity,
                lane_bytes,
                tid,
                _state,
                _claimed,
                committed,
                dropped,
                consumed,
            ) = header
            plausible = (
                magic == LANE_MAGIC
                and row_bytes > 0
                and capacity > 0
                and capacity & (capacity - 1) == 0
                and lane_bytes % PAGE_BYTES == 0
                and lane_bytes >= PAGE_BYTES + capacity * row_bytes
            )
            if not plausible:  # the length of a damaged lane is unknown: look for the next page that starts one
                damaged += magic != 0
                offset += PAGE_BYTES
                continue
            lane = _copy(source, offset + PAGE_BYTES, capacity, row_bytes, consumed, committed)
            if lane is None:
                damaged += 1
            elif consumed or lane[1] or dropped:  # an empty one still tells how many rows the .stash must have
                first, count, rows = lane
                lanes.append(Lane(lane_id, record_id, row_bytes, tid, first, count, dropped, rows))
            offset += lane_bytes
    return RingImage(pid, lost_lanes, grow_error, write_error, lanes, damaged)


def _copy(
    source: ByteFile, rows_offset: int, capacity: int, row_bytes: int, consumed: int, committed: int
) -> tuple[int, int, bytes] | None:
    """(first sequence, rows, bytes) of [consumed, committed), unwrapped; None if the counters make no sense."""
    count = committed - consumed
    if count < 0 or count > capacity:
        return None
    begin = consumed & (capacity - 1)
    head = min(count, capacity - begin)
    data = source.read(rows_offset + begin * row_bytes, head * row_bytes)
    data += source.read(rows_offset, (count - head) * row_bytes)
    return consumed, len(data) // row_bytes, data
