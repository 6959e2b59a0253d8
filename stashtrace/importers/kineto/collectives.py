"""Collectives of a Kineto file: NCCL's kernels, and the host events that torch recorded around their launches.

    thread   [record_param_comms: group, dtype, elements ......]     the host's side, if it was recorded
               [nccl:all_reduce ...[cudaLaunchKernel 77].....]
    stream                                [ncclDevKernel_AllReduce.. 77]    one row for each of these

The number of a collective within its group is ``Seq`` where torch gives it. Elsewhere it is counted from the begin of
each step, so that ranks agree although their recordings began at different steps or with work under way.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.importers.collective_names import collective_op, element_bytes
from stashtrace.importers.import_context import Int64
from stashtrace.importers.import_limits import parse_json
from stashtrace.importers.kineto.device import DeviceRows
from stashtrace.importers.kineto.events import ABSENT, Codes, EventRows, FileRows, is_rank, ranks_in
from stashtrace.importers.kineto.host import Steps
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kernel_names import plain_kernel_name
from stashtrace.schema.kinds import MESSAGES, CollectiveOp, CollectiveSource, Severity

#: Distance of the numbers of two steps' first collectives; more than any step has.
PER_STEP = 1 << 20


@dataclass(frozen=True, slots=True)
class Group:
    """A process group as this file knows it."""

    name: str
    #: Global ranks; empty if unknown.
    members: tuple[int, ...]
    #: Number of members, -1 if unknown.
    size: int
    #: Identity of the group, the same on all its ranks.
    key: str
    #: Whether the file names no group, and a stream stands for one.
    guessed: bool = False

    @property
    def hash(self) -> int:
        """Number of the group, the same on all its ranks."""
        return int.from_bytes(hashlib.blake2b(self.key.encode(), digest_size=8).digest(), "big") or 1


class _HostEvents:
    """Events of torch on the host that enclose launches, and the place of the one around each launch, -1 if none."""

    def __init__(self, rows: FileRows, events: EventRows, thread: Int64, launch_ns: Int64) -> None:
        self.events = events.take(np.lexsort((events.begin_ns, events.tid)))
        self.place = self._enclosing(rows.threads(self.events.tid), thread, launch_ns)

    def _enclosing(self, track: Int64, thread: Int64, launch_ns: Int64) -> Int64:
        """Return the place of the last event on the thread that began before the launch, if it had not ended."""
        place = np.full(len(launch_ns), -1, dtype=np.int64)
        for value in np.unique(thread[thread >= 0]).tolist():
            rows, asked = np.flatnonzero(track == value), np.flatnonzero(thread == value)
            if len(rows):
                at = np.searchsorted(self.events.begin_ns[rows], launch_ns[asked], side="right") - 1
                hit = (at >= 0) & (self.events.end_ns[rows[np.maximum(at, 0)]] >= launch_ns[asked])
                place[asked[hit]] = rows[at[hit]]
        return place

    def reorder(self, order: Int64) -> None:
        """Put the launches in another order."""
        self.place = self.place[order]

    def value(self, column: npt.NDArray[Any], otherwise: Any) -> npt.NDArray[Any]:
        """Return the value of each launch's event in a column of the events, ``otherwise`` where there is no event."""
        if not len(column):
            return np.broadcast_to(np.asarray(otherwise, dtype=column.dtype), self.place.shape)
        return np.where(self.place >= 0, column[self.place], otherwise).astype(column.dtype)


def add_collectives(rows: FileRows, work: DeviceRows, steps: Steps) -> None:
    """Fill ``collectives`` and ``groups``."""
    talks, launches = work.talks, work.talk_launches
    comms = rows.file.rows["comms"].timed()
    is_record = rows.file.matching(comms.name, "record_param_comms".__eq__)
    records, calls = (
        _HostEvents(rows, comms.take(chosen), launches.thread, launches.launch_ns) for chosen in (is_record, ~is_record)
    )
    if not len(talks):
        return
    order = np.lexsort((talks.begin_ns, work.talk_streams))  # NCCL's order within a stream
    talks, stream = talks.take(order), work.talk_streams[order]
    launch, returned, thread = launches.launch_ns[order], launches.return_ns[order], launches.thread[order]
    for events in (records, calls):
        events.reorder(order)

    detail = _Details(rows, talks, records, calls)
    group_at, groups = detail.groups(stream)
    sequence = _sequences(talks, launch, group_at, stream, steps, detail.number("Seq"))
    began = records.value(records.events.begin_ns, calls.value(calls.events.begin_ns, launch))
    ended = records.value(records.events.end_ns, calls.value(calls.events.end_ns, returned))
    op = detail.ops()
    hashes = np.array([g.hash for g in groups], dtype=np.uint64)
    tracks = [rows.context.tracks.communicator(rows.process_id, g.hash, g.name) for g in groups]
    peer = np.where(op == CollectiveOp.SEND, detail.number("Dst Rank"), detail.number("Src Rank"))
    rows.context.add(
        "collectives",
        process_id=np.full(len(talks), rows.process_id),
        track_id=np.where(thread >= 0, thread, stream),
        communicator_track_id=np.array(tracks, dtype=np.int64)[group_at],
        group_hash=hashes[group_at],
        sequence=sequence,
        op_code=op,
        name_code=detail.names(),
        message_bytes=detail.message_bytes(),
        peer_rank=np.where(peer == ABSENT, -1, peer),
        call_ns=np.where(began >= 0, began, talks.begin_ns),
        return_ns=np.where(ended >= 0, ended, -1),
        begin_ns=talks.begin_ns,
        end_ns=talks.end_ns,
        device_begin_ns=talks.begin_ns,
        device_end_ns=talks.end_ns,
        source_code=int(CollectiveSource.IMPORTED),
        stream_track_id=stream,
    )
    if (detail.number("Seq") == ABSENT).any():
        for group in groups:
            rows.context.number_anew(group.hash)
    add_groups(rows, groups, "nccl")
    if sum(g.guessed for g in groups) > 1:
        rows.context.lose(
            "groups_not_in_file",
            process_id=rows.process_id,
            severity=Severity.INFO,
            advice="no metadata of collectives: kernels of one stream are taken as one group of all ranks",
        )


class _Details:
    """Arguments of each collective: those of the kernel itself, else those of the record around its launch."""

    def __init__(self, rows: FileRows, talks: EventRows, records: _HostEvents, calls: _HostEvents) -> None:
        self._file, self._rows, self._talks = rows.file, rows, talks
        self._records, self._calls = records, calls

    def number(self, key: str) -> Int64:
        """Return an integer argument, ``ABSENT`` where it is not given."""
        values = self._talks.ints[key]
        return np.where(values == ABSENT, self._records.value(self._records.events.ints[key], ABSENT), values)

    def text(self, key: str) -> Codes:
        """Return a text argument, -1 where it is not given."""
        values = self._talks.texts[key]
        return np.where(values < 0, self._records.value(self._records.events.texts[key], -1), values)

    def _named(self) -> Codes:
        """Return the most specific name: torch's call, else NCCL's metadata, else the kernel."""
        called, described = self._calls.value(self._calls.events.name, -1), self.text("Collective name")
        is_coalesced = self._file.matching(called, lambda name: "coalesced" in name)
        called = np.where(is_coalesced & (described >= 0), -1, called)
        return np.where(called >= 0, called, np.where(described >= 0, described, self._talks.name))

    def ops(self) -> Int64:
        """Return the CollectiveOp of each."""
        return self._file.coded(self._named(), collective_op)

    def names(self) -> Int64:
        """Return the string codes of the names as torch or NCCL writes them."""
        return self._rows.codes(self._named(), lambda name: plain_kernel_name(name).removeprefix("nccl:"))

    def message_bytes(self) -> Int64:
        """Return the payload of this rank's input; 0 if unknown."""
        elements = self.number("In msg nelems")
        known = np.maximum(elements, 0) * self._file.coded(self.text("dtype"), element_bytes)
        shapes, types = (self._calls.value(self._calls.events.texts[k], -1) for k in ("Input Dims", "Input type"))
        count = self._file.coded(shapes, _elements_count)
        return np.where(known > 0, known, np.maximum(count, 0) * self._file.coded(types, _first_type_bytes))

    def groups(self, stream: Int64) -> tuple[Int64, list[Group]]:
        """Return the group of each row, as a place in a list of groups, and the list."""
        texts = [self.text(f"Process Group {part}") for part in ("Name", "Ranks", "Description")]
        numbers = [self.number(key) for key in ("Group size", "Global rank start", "Global rank stride")]
        is_named = (texts[0] >= 0) | (texts[1] >= 0)
        columns = np.stack([*(t.astype(np.int64) for t in texts), *numbers, np.where(is_named, -1, stream)])
        distinct, inverse = np.unique(columns, axis=1, return_inverse=True)
        streams = list(dict.fromkeys(stream[~is_named].tolist()))
        groups = [self._group(row, streams) for row in distinct.T.tolist()]
        unique = list(dict.fromkeys(groups))
        place = np.array([unique.index(group) for group in groups], dtype=np.int64)[inverse.reshape(-1)]
        for value in streams:  # launched before the recording, among others whose group torch names
            named = np.unique(place[is_named & (stream == value)])
            if len(named) == 1:
                place[~is_named & (stream == value)] = named[0]
        used, place = np.unique(place, return_inverse=True)
        return place, [unique[at] for at in used.tolist()]

    def _group(self, row: Sequence[int], streams: Sequence[int]) -> Group:
        name, ranks, title, size, start, stride, stream = row
        text = self._file.text
        if stream >= 0:
            shown = "all ranks" if len(streams) == 1 else f"all ranks, NCCL stream {streams.index(stream)}"
            world = self._rows.process.world_size
            return Group(shown, tuple(range(max(world, 0))), world, f"{shown} of {world}", guessed=True)
        listed = _ranks(text(ranks)) or _configured(self._rows, text(name))
        size = size if is_rank(size) else -1
        if not listed and is_rank(start) and size > 0 and ((is_rank(stride) and stride > 0) or size == 1):
            apart = stride if is_rank(stride) and stride > 0 else 1
            listed = tuple(range(start, start + size * apart, apart))
        if size > 0 and len(listed) != size:
            listed = ()
        count = len(listed) or (size if size > 0 else -1)
        called = text(title) if text(title) not in ("", "undefined") else f"group {text(name)}"
        key = f"{text(name)}|{','.join(map(str, listed)) if listed else f'{count} ranks'}"
        return Group(called, listed, count, key)


def _sequences(talks: EventRows, launch: Int64, group: Int64, stream: Int64, steps: Steps, given: Int64) -> Int64:
    """Return the number of each row within its group: torch's if every row has it, else by step and order in it."""
    if len(given) and (given != ABSENT).all():
        return given
    moment = launch.copy()
    for value in np.unique(stream).tolist():  # a kernel without a launch was launched after those that ran before it
        rows = np.flatnonzero(stream == value)
        moment[rows] = np.maximum.accumulate(moment[rows])
    step = steps.at(moment)
    step[moment < 0] = -1
    number = steps.numbers_at(step, int(steps.number[0]) if len(steps.number) else 0)
    out = np.empty(len(talks), dtype=np.int64)
    order = np.lexsort((talks.begin_ns, step, group))
    key_group, key_step = group[order], step[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (key_group[1:] != key_group[:-1]) | (key_step[1:] != key_step[:-1])
    starts = np.flatnonzero(new)
    length = np.diff(np.append(starts, len(order)))
    nth = np.arange(len(order)) - np.repeat(starts, length)
    # Before the first step count backwards from it: a recording begins in the middle of a step's work.
    before = key_step < 0
    nth = np.where(before, nth - np.repeat(length, length), nth)
    out[order] = (number[order] + 1) * PER_STEP + nth
    return out


def add_groups(rows: FileRows, groups: Sequence[Group], backend: str) -> None:
    """Fill ``groups``."""
    for group in groups:
        crosses, evidence = _locality(group.members, len(rows.file.described_devices))
        rows.context.add_group(
            rows.process_id,
            group.hash,
            group.name,
            backend=backend,
            members=group.members,
            locality=evidence,
            group_size=group.size,
            crosses_hosts=crosses,
        )


def _locality(members: tuple[int, ...], devices: int) -> tuple[int, str]:
    """Return ``crosses_hosts`` of a group, and the evidence: ranks fill hosts in order, with a rank per GPU seen."""
    if devices < 2 or not members:
        return -1, ""
    hosts = {rank // devices for rank in members}
    if len(hosts) > 1:
        return 1, f"{len(members)} members, {devices} GPUs on this host"
    return 0, f"its members fit one host of {devices} GPUs"


def _ranks(text: str) -> tuple[int, ...]:
    """Return the ranks of ``[0, 1, 2]``; none of a list that torch cut short."""
    parts = text.strip().strip("[]").split(",")
    return ranks_in([int(p) for p in parts]) if all(p.strip().isdecimal() and len(p) < 20 for p in parts) else ()


def _configured(rows: FileRows, name: str) -> tuple[int, ...]:
    """Return the members of a group by ``distributedInfo.pg_config``."""
    config = rows.file.distributed_info.get("pg_config")
    for entry in config if isinstance(config, list) else []:
        if isinstance(entry, dict) and str(entry.get("pg_name")) == name and (ranks := ranks_in(entry.get("ranks"))):
            return ranks
    return ()


def _list_in(text: str) -> list[Any]:
    """Return the list that a JSON text holds; empty if it holds none."""
    try:
        value = parse_json(text)
    except ValueError:
        return []
    return value if isinstance(value, list) else []


def _elements_count(shapes: str) -> int:
    """Return the number of elements of all tensors in ``[[6144], [3, 2]]``."""
    return sum(_product(shape) for shape in _list_in(shapes) if isinstance(shape, list))


def _product(shape: list[Any]) -> int:
    if any(isinstance(length, list) for length in shape):
        return sum(_product(inner) for inner in shape if isinstance(inner, list))
    return math.prod(length if isinstance(length, int) else 0 for length in shape) if shape else 0


def _first_type_bytes(types: str) -> int:
    listed = _list_in(types)
    return element_bytes(str(listed[0])) if listed else 0


# Collectives that the host carries out (gloo, MPI, UCC), in a Kineto file.
#
# Torch records one event for each, on the backend's thread, from the begin of the work to its end. It records neither
# the caller nor the group. All are taken as of one group: the only one of ``pg_config``, else that of all ranks. A send
# or a receive is between two ranks: who the other one is stands in the operator that it was called by, if shapes were
# recorded, and follows from the group if that has two members. The pair is a separate group, as in our recordings.

_ON_HOST = re.compile(r"^(gloo|mpi|ucc):")


def add_host_collectives(rows: FileRows, steps: Steps) -> bool:
    """Fill ``collectives`` and ``groups`` with collectives that ran on the host; return whether there was one."""
    work = rows.file.rows["comms"].timed()
    work = work.take(rows.file.matching(work.name, _ON_HOST.search))
    if not len(work):
        return False
    work = work.take(np.argsort(work.begin_ns, kind="stable"))
    backend = rows.file.text(int(work.name[0])).partition(":")[0]
    op = rows.file.coded(work.name, collective_op)
    place, groups = _host_groups(rows, work, op)
    at = steps.at(work.begin_ns)
    number = steps.numbers_at(at, int(steps.number[0]) - 1 if len(steps.number) else -1)
    tracks = [rows.context.tracks.communicator(rows.process_id, g.hash, g.name) for g in groups]
    rows.context.add(
        "collectives",
        process_id=np.full(len(work), rows.process_id),
        track_id=rows.threads(work.tid),
        communicator_track_id=np.array(tracks, dtype=np.int64)[place],
        group_hash=np.array([g.hash for g in groups], dtype=np.uint64)[place],
        sequence=(number + 1) * PER_STEP + GroupBy(place, at).position,
        op_code=op,
        name_code=rows.codes(work.name, lambda name: name.partition(":")[2]),
        peer_rank=np.where((place > 0) & (op == CollectiveOp.SEND), 1, np.where(place > 0, 0, -1)),
        call_ns=work.begin_ns,
        begin_ns=work.begin_ns,
        end_ns=work.end_ns,
        source_code=int(CollectiveSource.HOST),
    )
    for group in groups:
        rows.context.number_anew(group.hash)
    add_groups(rows, [group for n, group in enumerate(groups) if n or (place == 0).any()], backend)
    return True


def _host_group(rows: FileRows) -> Group:
    config = rows.file.distributed_info.get("pg_config")
    only = config[0] if isinstance(config, list) and len(config) == 1 and isinstance(config[0], dict) else {}
    world = rows.process.world_size
    members = ranks_in(only.get("ranks")) or tuple(range(max(world, 0)))
    name = str(only.get("pg_desc") or "all ranks")
    return Group(name, members, len(members) or -1, f"host {name} of {world}")


def _host_groups(rows: FileRows, work: EventRows, op: Int64) -> tuple[Int64, list[Group]]:
    """Return the group of each row, as a place in a list of groups, and the list: the group of all is the first one."""
    everybody, rank = _host_group(rows), rows.process.rank
    place, pairs = np.zeros(len(work), dtype=np.int64), dict[tuple[int, int, int], int]()
    messages = np.flatnonzero(np.isin(op, MESSAGES))
    for row, (peer, tag) in zip(messages.tolist(), _peers(rows, work.take(messages), everybody), strict=True):
        if peer >= 0 and rank >= 0:
            ends = (rank, peer) if op[row] == CollectiveOp.SEND else (peer, rank)
            place[row] = pairs.setdefault((*ends, tag), len(pairs) + 1)
    named = [
        Group(
            f"{everybody.name} {sender} to {receiver}",
            (sender, receiver),
            2,
            f"{everybody.key} {sender} {receiver} {tag}",
        )
        for sender, receiver, tag in pairs
    ]
    return place, [everybody, *named]


def _peers(rows: FileRows, work: EventRows, group: Group) -> list[tuple[int, int]]:
    """Return the global rank at the other end of each send or receive, -1 if unknown, and its tag.

    torch begins the event of the work inside the operator, on the thread that calls it.
    """
    operators = rows.file.rows["messages"].timed()
    calls = _HostEvents(rows, operators, rows.threads(work.tid), work.begin_ns)
    given = calls.value(calls.events.texts["Concrete Inputs"], -1)
    others = [member for member in group.members if member != rows.process.rank]
    only = others[0] if len(others) == 1 == len(group.members) - 1 else -1
    found = []
    for code in given.tolist():
        # ["", "", "1", "0"]: tensors, process group, rank within it, tag
        texts = [str(value) for value in _list_in(rows.file.text(code))] if code >= 0 else []
        place, tag = (
            int(text) if text.isdecimal() and len(text) < 10 else -1 for text in (*texts, "", "", "", "")[2:4]
        )
        found.append((group.members[place] if 0 <= place < len(group.members) else only, max(tag, 0)))
    return found
