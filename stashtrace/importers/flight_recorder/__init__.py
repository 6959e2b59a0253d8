"""Imports dumps of torch's Flight Recorder: the last collectives that one rank called, and which never ended.

``torch._C._distributed_c10d._dump_nccl_trace`` and ``_dump_fr_trace`` give pickles, their ``_json`` forms JSON. A job
that hangs writes one file per rank, whose name ends in the rank. Times are of the host's wall clock: calls are exact,
ends are late, because a polling thread notices them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stashtrace.errors import ImporterError
from stashtrace.importers.collective_names import collective_op, element_bytes, element_type, subgroup_hash
from stashtrace.importers.flight_recorder.pickle import read_pickle
from stashtrace.importers.import_context import RANK_IN_NAME, ImportContext, Int64
from stashtrace.importers.import_limits import HIGHEST, integer_or, parse_json, parse_next
from stashtrace.importers.source import Source
from stashtrace.schema.kinds import (
    LATE_STATUS,
    UNSEEN_STATUS,
    CollectiveOp,
    CollectiveSource,
    DeviceClock,
    ElementType,
    Severity,
)

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
    """Return the innermost frame of the user's code as ``function at file:line``; empty if there is none."""
    for frame in frames if isinstance(frames, list | tuple) else ():
        file = str(frame.get("filename", "")) if isinstance(frame, dict) else ""
        if file and "/torch/" not in file and "??" not in file:
            return f"{frame.get('name', '')} at {file}:{frame.get('line', 0)}"
    return ""


#: A dump of 2,000 operations with their stacks takes a few MiB.
_LARGEST_BYTES = 256 << 20
_TRAILING_NUMBER = re.compile(r"(\d+)$")
_KNOWN_MAJORS = ("1.", "2.")
#: Unfinished operations that are reported one by one.
_REPORTED_COUNT = 8


def sniff(head: bytes, path: Path) -> bool:
    """Return True for dumps, as pickle or JSON."""
    if head[:1] == b"\x80":
        return b"pg_config" in head or (b"profiling_name" in head and b"time_created_ns" in head)
    start = head.lstrip()[:1] == b"{"
    return start and (b'"time_created_ns"' in head or (b'"pg_status"' in head and b'"pg_config"' in head))


def load(source: Source, context: ImportContext) -> None:
    """Read the dump of one rank."""
    name = source.path.name
    with source.open() as stream:
        data = stream.read(_LARGEST_BYTES + 1)
    if len(data) > _LARGEST_BYTES:
        raise ImporterError(f"{source.path} is larger than any dump of the Flight Recorder (256 MiB)")
    dump, whole = read_pickle(data, name) if data[:1] == b"\x80" else _read_json(data.decode(errors="replace"))
    if not isinstance(dump, dict):
        raise ImporterError(f"{source.path} is not a dump of the Flight Recorder: it holds a {type(dump).__name__}")
    if not whole:
        context.lose("file_cut", advice=f"{name} is cut: its last operations, or its groups, are missing")
    groups = read_groups(dump)
    raw = dump.get("entries")
    parsed = [read_entry(entry, groups) for entry in (raw if isinstance(raw, list | tuple) else ())]
    entries = [entry for entry in parsed if entry is not None]
    if len(entries) < len(parsed):
        damaged = len(parsed) - len(entries)
        context.lose("damaged_entries", damaged, advice=f"{name} has entries without their main fields")
    if not entries and not groups:
        raise ImporterError(
            f"{source.path} holds no operation",
            hint="set TORCH_FR_BUFFER_SIZE, or TORCH_NCCL_TRACE_BUFFER_SIZE for an older torch, to 2000",
        )
    version = str(dump.get("version", ""))
    context.say("flight_recorder.version", version or "unknown")
    library = dump.get("comm_lib_version", dump.get("nccl_version"))
    if isinstance(library, str) and library:
        context.say("flight_recorder.library", library)
    if version and not version.startswith(_KNOWN_MAJORS):
        context.doubt_newer(f"{name} is of version {version}", "2.x")
    rank = _rank_of(source.path, dump)
    world = next((g for g in groups.values() if g.description == "default_pg"), None)
    process = context.process(
        pid=0, rank=rank, world_size=len(world.members) if world is not None and world.members else -1
    )
    if rank < 0:
        context.lose(
            "rank_unknown",
            process_id=process,
            severity=Severity.ERROR,
            advice=f"{name} does not say its rank: let its name end in it, such as nccl_trace_rank_3",
        )
    add_entries(entries, groups, read_status(dump), process, context)
    _report(entries, groups, process, context)


def _read_json(text: str) -> tuple[Any, bool]:
    """Return the dump, and whether it is whole; of a cut one the entries before the cut."""
    try:
        return parse_json(text), True
    except ValueError:
        pass
    entries = []
    match = re.search(r'"entries"\s*:\s*\[', text)
    at = match.end() if match else len(text)
    while at < len(text):
        at += len(text[at : at + 64]) - len(text[at : at + 64].lstrip(", \n\r\t"))
        try:
            entry, at = parse_next(text, at)
        except ValueError:
            break
        entries.append(entry)
    return {"entries": entries}, False


def _rank_of(path: Path, dump: Mapping[Any, Any]) -> int:
    """Return the rank that a dump says, as those of torchcomms may, else that of its file's name; -1 if unknown."""
    said = dump.get("rank")
    if isinstance(said, int) and not isinstance(said, bool) and 0 <= said < MOST_RANKS:
        return said
    stem = path.name
    for suffix in (".gz", ".zst", ".json", ".pickle", ".pkl", ".pt", ".bin"):
        stem = stem.removesuffix(suffix)
    numbers = RANK_IN_NAME.findall(stem) or _TRAILING_NUMBER.findall(stem)
    return int(numbers[-1]) if numbers and len(numbers[-1]) < 10 else -1


def _report(entries: Sequence[Entry], groups: Mapping[str, Group], process: int, context: ImportContext) -> None:
    """Report operations that were overwritten, and those that never ended."""
    first = min((e.record for e in entries if e.record >= 0), default=0)
    if first > 0:
        context.lose(
            "ring_overwritten",
            first,
            process_id=process,
            severity=Severity.INFO,
            advice="the recorder keeps the last operations only: TORCH_FR_BUFFER_SIZE says how many",
        )
    unfinished = [e for e in entries if not e.finished]
    context.say("flight_recorder.unfinished", str(len(unfinished)), process)
    for entry in unfinished[:_REPORTED_COUNT]:
        place = f", called in {entry.place}" if entry.place else ""
        operation = f"{entry.op.name.lower()} {entry.sequence} of {groups[entry.group].title}{place}"
        context.say("flight_recorder.unfinished_operation", operation, process)


_COUNT = re.compile(r"\d{1,18}", re.ASCII)


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
        status_code=np.where(end >= 0, LATE_STATUS, UNSEEN_STATUS),
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

    Backends without events (gloo) record that an operation ended, but not when. Then its end is taken to be the next
    call on the group, which is right for calls that wait; the last operation ends with the last stamp of the dump.
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
