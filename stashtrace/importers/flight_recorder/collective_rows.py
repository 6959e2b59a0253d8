"""Rows of the tables from the operations of a dump."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stashtrace.importers.collective_names import subgroup_hash
from stashtrace.importers.flight_recorder.dump_entries import Entry, Group
from stashtrace.importers.import_context import ImportContext, Int64
from stashtrace.schema.kinds import CollectiveSource, DeviceClock

_COUNT = re.compile(r"\d{1,18}", re.ASCII)
#: ``collectives.status_code``: the end was seen late, or not at all.
_LATE, _UNSEEN = 2, 3


def add_entries(
    entries: Sequence[Entry],
    groups: Mapping[str, Group],
    status: Mapping[str, Mapping[str, Any]],
    process: int,
    context: ImportContext,
) -> None:
    """Fill ``collectives``, ``groups`` and ``device_clocks``."""
    listed = sorted(entries, key=lambda e: (e.called_ns, e.record))
    subgroups = _subgroups(listed)
    hashes = {subgroup: _hash(subgroup, groups) for subgroup in subgroups}
    for subgroup in dict.fromkeys(subgroups):
        of_subgroup = [e for e, value in zip(listed, subgroups, strict=True) if value == subgroup]
        _add_group(subgroup, of_subgroup, groups[subgroup[0]], hashes[subgroup], status, process, context)
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
            [context.tracks.communicator(process, hashes[subgroup], _title(subgroup, groups)) for subgroup in subgroups]
        ),
        group_hash=np.array([hashes[subgroup] for subgroup in subgroups], dtype=np.uint64),
        sequence=_column([e.sequence for e in listed]),
        op_code=_column([int(e.op) for e in listed]),
        name_code=context.codes(e.name for e in listed),
        message_bytes=_column([e.size_bytes for e in listed]),
        element_code=_column([int(e.element) for e in listed]),
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


#: What numbers operations together: (group, "messages" or "", part of a coalesced call).
_Subgroup = tuple[str, str, int]


def _subgroups(entries: Sequence[Entry]) -> list[_Subgroup]:
    """Return the subgroup of each entry: messages count on their own; parts of a coalesced call share a number."""
    parts: Counter[tuple[str, int]] = Counter()
    subgroups = []
    for entry in entries:
        if entry.messages:
            subgroups.append((entry.group, "messages", 0))
            continue
        key = (entry.group, entry.sequence)
        subgroups.append((entry.group, "", parts[key]))
        parts[key] += 1
    return subgroups


def _hash(subgroup: _Subgroup, groups: Mapping[str, Group]) -> int:
    return subgroup_hash("torch", subgroup[0], ",".join(map(str, groups[subgroup[0]].members)), *subgroup[1:])


def _title(subgroup: _Subgroup, groups: Mapping[str, Group]) -> str:
    title = groups[subgroup[0]].title
    if subgroup[1]:
        return f"{title} · {subgroup[1]}"
    return f"{title} · part {subgroup[2] + 1}" if subgroup[2] else title


def _add_group(
    subgroup: _Subgroup,
    entries: Sequence[Entry],
    group: Group,
    group_hash: int,
    status: Mapping[str, Mapping[str, Any]],
    process: int,
    context: ImportContext,
) -> None:
    backend = next((e.name.partition(":")[0] for e in entries if ":" in e.name), "")
    row = status.get(entries[0].group_number, {}) if entries else {}
    counted = str(row.get("last_enqueued_collective", ""))
    context.add_group(
        process,
        group_hash,
        _title(subgroup, {subgroup[0]: group}),
        backend=backend,
        members=group.members,
        locality="a dump does not say",
        group_size=len(group.members) or -1,
        observed_count=len(entries),
        backend_count=int(counted) if _COUNT.fullmatch(counted) and not subgroup[1] and not subgroup[2] else -1,
    )


def _ends(entries: Sequence[Entry]) -> Int64:
    """Return when each operation was seen to have ended; -1 if it never was.

    Backends without events (gloo) tell that an operation ended, but not when. Then its end is taken to be the next call
    on the group, which is right for calls that wait; the last operation ends with the last stamp of the dump.
    """
    latest = max(max(e.called_ns, e.started_ns, e.ended_ns) for e in entries)
    following: dict[str, int] = {}
    ends = []
    for entry in reversed(entries):
        if entry.ended_ns:
            ends.append(max(entry.ended_ns, entry.started_ns, entry.called_ns))
        else:
            ends.append(following.get(entry.group, latest) if entry.finished else -1)
        following[entry.group] = entry.called_ns
    return _column(ends[::-1])


def _thread(entry: Entry, process: int, context: ImportContext) -> int:
    number, name = entry.thread
    native = int(number) & ((1 << 63) - 1) if number.isdecimal() else 0
    context.tracks.describe_thread(process, native, name=name or "callers")
    return context.tracks.thread(process, native)
