"""The groups and operations that a dump lists; entries without their main fields are none."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stashtrace.importers.collective_names import collective_op, element_bytes, element_type
from stashtrace.importers.import_limits import HIGHEST, integer_or
from stashtrace.schema.kinds import CollectiveOp, ElementType

#: Tensors of one operation that are read; a damaged or hostile dump may name any number.
_MOST_TENSORS = 4096
MOST_RANKS = 1 << 20


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: torch's name, the script's description, global ranks in group order (empty if unknown)."""

    name: str
    description: str
    members: tuple[int, ...]

    @property
    def title(self) -> str:
        """Name for people."""
        described = self.description if self.description not in ("", "undefined") else ""
        return described or f"group {self.name}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One operation of one rank. Times are 0 where the dump has none; ``duration_ns`` is -1 then."""

    record: int
    group: str
    group_number: str
    sequence: int
    op: CollectiveOp
    messages: bool
    name: str
    peer: int
    size_bytes: int
    element: ElementType
    called_ns: int
    started_ns: int
    ended_ns: int
    duration_ns: int
    finished: bool
    thread: tuple[str, str]
    place: str


def read_groups(dump: Mapping[Any, Any]) -> dict[str, Group]:
    """Return the groups by name, as ``pg_config`` describes them."""
    groups = {}
    config = dump.get("pg_config")
    for name, row in config.items() if isinstance(config, dict) else ():
        if not isinstance(row, dict):
            continue
        listed = re.findall(r"\d+", str(row.get("ranks", "")))[:MOST_RANKS]
        members = tuple(map(int, listed)) if all(len(rank) < 7 for rank in listed) else ()
        if str(name) or members:
            groups[str(name)] = Group(str(name), str(row.get("desc", "")), members)
    return groups


def read_status(dump: Mapping[Any, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the rows of ``pg_status`` by ``pg_id``."""
    status = dump.get("pg_status")
    rows = status.items() if isinstance(status, dict) else ()
    return {str(key): row for key, row in rows if isinstance(row, dict)}


def read_entry(raw: Any, groups: dict[str, Group]) -> Entry | None:
    """Return one operation, and note its group; None if its name or its call is missing."""
    if not isinstance(raw, dict):
        return None
    called, sequence = _number(raw, "time_created_ns"), _number(raw, "collective_seq_id", _number(raw, "seq_id"))
    name = raw.get("profiling_name")
    if called <= 0 or sequence < 0 or not isinstance(name, str):
        return None
    group = raw.get("process_group", raw.get("pg_name", raw.get("pg_id", 0)))
    pair = group if isinstance(group, list | tuple) else (group, "")
    key = str(pair[0]) if pair else ""
    if key not in groups:
        groups[key] = Group(key, str(pair[1]) if len(pair) > 1 else "", ())
    op = collective_op(name.rpartition(":")[2].partition(" ")[0])
    messages = raw.get("is_p2p") is True or op in (CollectiveOp.SEND, CollectiveOp.RECEIVE)
    ended = max(_number(raw, "time_discovered_completed_ns", 0), 0)
    duration = raw.get("duration_ms")
    return Entry(
        record=_number(raw, "record_id"),
        group=key,
        group_number=str(raw.get("pg_id", "")),
        sequence=_number(raw, "p2p_seq_id", sequence) if messages else sequence,
        op=op,
        messages=messages,
        name=name,
        peer=_peer(name),
        size_bytes=_bytes_of(raw.get("input_sizes"), raw.get("input_dtypes")),
        element=_type_of(raw.get("input_dtypes")),
        called_ns=called,
        started_ns=max(_number(raw, "time_discovered_started_ns", 0), 0),
        ended_ns=ended,
        duration_ns=round(duration * 1e6) if isinstance(duration, int | float) and 0 < duration < 1e9 else -1,
        finished=ended > 0 or raw.get("retired") is True or raw.get("state") == "completed",
        thread=(str(raw.get("thread_id", "")), str(raw.get("thread_name", ""))),
        place=_place(raw.get("frames")),
    )


def _number(raw: Mapping[Any, Any], key: str, default: int = -1) -> int:
    return integer_or(raw.get(key), default)


def _peer(name: str) -> int:
    """Return the peer of ``nccl:send 0->1`` and ``nccl:recv 1<-0``, -1 of others."""
    match = re.search(r"\d+\s*(?:->|<-)\s*(\d+)", name)
    return int(match.group(1)) if match and len(match.group(1)) < 10 else -1


def _bytes_of(sizes: Any, types: Any) -> int:
    """Return the bytes of the inputs; 0 if a type is unknown."""
    if not isinstance(sizes, list | tuple) or not isinstance(types, list | tuple):
        return 0
    total = 0
    for shape, kind in zip(sizes[:_MOST_TENSORS], types[:_MOST_TENSORS], strict=False):
        item = element_bytes(str(kind))
        if not item or not isinstance(shape, list | tuple) or not all(isinstance(s, int) for s in shape[:64]):
            return 0
        total += item * math.prod(shape[:64])
        if not 0 <= total < HIGHEST:
            return 0
    return total


def _type_of(types: Any) -> ElementType:
    """Return the element type of the first input; unknown if there is none."""
    return element_type(str(types[0])) if isinstance(types, list | tuple) and types else ElementType.UNKNOWN


def _place(frames: Any) -> str:
    """Return the innermost frame of the user's own code as ``function at file:line``; empty if there is none."""
    for frame in frames if isinstance(frames, list | tuple) else ():
        file = str(frame.get("filename", "")) if isinstance(frame, dict) else ""
        if file and "/torch/" not in file and "??" not in file:
            return f"{frame.get('name', '')} at {file}:{frame.get('line', 0)}"
    return ""
