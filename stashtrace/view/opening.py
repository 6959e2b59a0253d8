"""What the UI should show first, read from a time line file, and the address that makes it do so.

The exporter leaves a `ui_state` packet at the head of the file (worst step, rank to look at). Viewers ignore it, so
it is turned into what they understand: `visStart`, `visEnd` and startup commands in the address.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

_HEAD_BYTES = 4096
_PACKET, _UI_STATE = 1, 78


@dataclass(frozen=True, slots=True)
class Opening:
    """Time range to show and process to look at; empty name: nothing is known."""

    begin_ns: int = 0
    end_ns: int = 0
    process_name: str = ""


def read_opening(path: Path) -> Opening:
    """Opening noted in a .pftrace or .pftrace.gz file; an empty one if there is none or it cannot be understood."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    try:
        if head[:2] == b"\x1f\x8b":
            head = zlib.decompressobj(31).decompress(head, _HEAD_BYTES)
        for field, packet in _fields(head):
            if field != _PACKET or not isinstance(packet, bytes):
                break
            state = dict(_fields(packet)).get(_UI_STATE)
            if isinstance(state, bytes):
                return _opening(state)
    except (IndexError, ValueError, zlib.error):
        return Opening()  # not one of ours, or older: the UI shows the whole trace
    return Opening()


def page_address(base: str, trace_address: str, opening: Opening) -> str:
    """Address of the UI page that loads the trace and shows the opening."""
    parts = [f"url={quote(trace_address, safe='')}"]
    if opening.end_ns > opening.begin_ns:
        parts += [f"visStart={opening.begin_ns}", f"visEnd={opening.end_ns}"]
    rank = re.match(r"rank \d+", opening.process_name)
    if rank:
        wanted = [("Expand", name) for name in (r"^rank \d+ ·", "^step · rank", "^data loader$", r"^GPU \d")]
        wanted += [("Pin", rf"^{track} · {rank[0]}$") for track in ("step", "phases", "(?!step|phases|GPU).*")]
        commands = [{"id": f"dev.perfetto.{verb}TracksByRegex", "args": [regex]} for verb, regex in wanted]
        parts.append(
            f"startupCommands={quote(json.dumps(commands, ensure_ascii=False, separators=(',', ':')), safe='')}"
        )
    return f"{base}/#!/?{'&'.join(parts)}"


def _opening(state: bytes) -> Opening:
    found = dict(_fields(state))
    process = found.get(3, b"")
    name = dict(_fields(process)).get(2, b"") if isinstance(process, bytes) else b""
    begin, end = found.get(1, 0), found.get(2, 0)
    if not isinstance(begin, int) or not isinstance(end, int) or not isinstance(name, bytes):
        return Opening()
    return Opening(begin, end, name.decode("utf-8", "replace"))


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Fields of a protobuf message; raises ValueError for wire types that the exporter does not write here."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        value, at = _varint(data, at)
        if tag & 7 == 0:
            yield tag >> 3, value
        elif tag & 7 == 2:
            yield tag >> 3, data[at : at + value]
            at += value
        else:
            raise ValueError("fixed-width field")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at
