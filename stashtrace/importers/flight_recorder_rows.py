"""Rows of the tables from the entries of a Flight Recorder dump. Called by ``flight_recorder`` alone."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.importers.collective_names import lane_hash
from stashtrace.importers.context import ImportContext
from stashtrace.model.kinds import CollectiveOp, CollectiveSource, DeviceClock

Int64 = npt.NDArray[np.int64]

_COUNT = re.compile(r"\d{1,18}", re.ASCII)
#: ``collectives.status_code``: the end was seen late, or not at all.
_LATE, _UNSEEN = 2, 3


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: torch's name of it, what the script called it, global ranks in its order if they are known."""

    name: str
    description: str
    members: tuple[int, ...]

    @property
    def title(self) -> str:
        """What a person calls it."""
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
    called_ns: int
    started_ns: int
    ended_ns: int
    duration_ns: int
    finished: bool
    thread: tuple[str, str]
    place: str


def add_entries(
    entries: Sequence[Entry],
    groups: Mapping[str, Group],
    status: Mapping[str, Mapping[str, Any]],
    process: int,
    rank: int,
    context: ImportContext,
) -> None:
    """Fill ``collectives``, ``groups`` and ``device_clocks``."""
    listed = sorted(entries, key=lambda e: (e.called_ns, e.record))
    lanes = _lanes(listed)
    hashes = {lane: _hash(lane, groups) for lane in lanes}
    for lane in dict.fromkeys(lanes):
        mine = [e for e, other in zip(listed, lanes, strict=True) if other == lane]
        _add_group(lane, mine, groups[lane[0]], hashes[lane], status, (process, rank), context)
    if not listed:
        return
    called = _column([e.called_ns for e in listed])
    end = _ends(listed)
    duration = _column([e.duration_ns for e in listed])
    timed = (duration >= 0) & _column([e.ended_ns for e in listed]).astype(bool)
    started = _column([e.started_ns for e in listed])
    context.add(
        "collectives",
        process_id=process,
        track_id=_column([_thread(e, process, context) for e in listed]),
        communicator_track_id=_column(
            [context.tracks.communicator(process, hashes[lane], _title(lane, groups)) for lane in lanes]
        ),
        group_hash=np.array([hashes[lane] for lane in lanes], dtype=np.uint64),
        sequence=_column([e.sequence for e in listed]),
        op_code=_column([int(e.op) for e in listed]),
        name_code=context.codes(e.name for e in listed),
        message_bytes=_column([e.size_bytes for e in listed]),
        peer_rank=_column([e.peer for e in listed]),
        call_ns=called,
        return_ns=-1,
        begin_ns=np.where(started > 0, started, -1),
        end_ns=end,
        status_code=np.where(end >= 0, _LATE, _UNSEEN),
        source_code=np.where(timed, int(CollectiveSource.EVENTS), int(CollectiveSource.HOST)),
        device_begin_ns=np.where(timed, np.maximum(end - duration, called), -1),
        device_end_ns=np.where(timed, end, -1),
    )
    if timed.any():
        # The device's duration is exact, its place is not: it ended at some time before the end was noticed.
        slack = (end - called - duration)[timed]
        context.add(
            "device_clocks",
            process_id=process,
            device_index=-1,
            clock_code=int(DeviceClock.EVENT),
            anchors_count=int(np.count_nonzero(timed)),
            error_ns=max(int(slack.max()), 1),
        )


def _column(values: Sequence[int]) -> Int64:
    return np.array(values, dtype=np.int64)


def _lanes(entries: Sequence[Entry]) -> list[tuple[str, str, int]]:
    """(group, kind, part) of each entry: messages count on their own; parts of a coalesced call share a number."""
    seen: dict[tuple[str, int], int] = {}
    found = []
    for each in entries:
        if each.messages:
            found.append((each.group, "messages", 0))
            continue
        part = seen.get((each.group, each.sequence), 0)
        seen[each.group, each.sequence] = part + 1
        found.append((each.group, "", part))
    return found


def _hash(lane: tuple[str, str, int], groups: Mapping[str, Group]) -> int:
    return lane_hash("torch", lane[0], ",".join(map(str, groups[lane[0]].members)), *lane[1:])


def _title(lane: tuple[str, str, int], groups: Mapping[str, Group]) -> str:
    title = groups[lane[0]].title
    if lane[1]:
        return f"{title} · {lane[1]}"
    return f"{title} · part {lane[2] + 1}" if lane[2] else title


def _add_group(
    lane: tuple[str, str, int],
    entries: Sequence[Entry],
    group: Group,
    value: int,
    status: Mapping[str, Mapping[str, Any]],
    own: tuple[int, int],
    context: ImportContext,
) -> None:
    process, rank = own
    backend = next((e.name.partition(":")[0] for e in entries if ":" in e.name), "")
    row = status.get(entries[0].group_number, {}) if entries else {}
    counted = str(row.get("last_enqueued_collective", ""))
    context.add(
        "groups",
        process_id=process,
        group_hash=np.array([value], dtype=np.uint64),
        name_code=context.code(_title(lane, {lane[0]: group})),
        backend_code=context.code(backend),
        members_code=context.code(",".join(map(str, group.members))),
        group_rank=group.members.index(rank) if rank in group.members else -1,
        group_size=len(group.members) or -1,
        observed_count=len(entries),
        backend_count=int(counted) if _COUNT.fullmatch(counted) and not lane[1] and not lane[2] else -1,
        crosses_hosts=-1,
        locality_code=context.code("a dump does not say"),
    )


def _ends(entries: Sequence[Entry]) -> Int64:
    """When each operation was seen to have ended; -1 if it never was.

    Backends without events (gloo) tell that an operation ended, but not when. Its end is taken to be the next call on
    the group, which is right for calls that wait, and the last stamp of the dump where there is no next one.
    """
    latest = max(max(e.called_ns, e.started_ns, e.ended_ns) for e in entries)
    following: dict[str, int] = {}
    ends = []
    for each in reversed(entries):
        if each.ended_ns:
            ends.append(max(each.ended_ns, each.started_ns, each.called_ns))
        else:
            ends.append(following.get(each.group, latest) if each.finished else -1)
        following[each.group] = each.called_ns
    return _column(ends[::-1])


def _thread(entry: Entry, process: int, context: ImportContext) -> int:
    number, name = entry.thread
    native = int(number) & ((1 << 63) - 1) if number.isdecimal() else 0
    context.tracks.describe_thread(process, native, name=name or "callers")
    return context.tracks.thread(process, native)
