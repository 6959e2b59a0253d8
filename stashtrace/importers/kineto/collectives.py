"""Collectives of a Kineto file: NCCL's kernels, and what torch recorded around their launches.

    thread   [record_param_comms: group, dtype, elements ......]     the host's side, if it was recorded
               [nccl:all_reduce ...[cudaLaunchKernel 77].....]
    stream                                [ncclDevKernel_AllReduce.. 77]    one row for each of these

The number of a collective within its group is ``Seq`` where torch gives it. Elsewhere it is counted from the begin of
each step, so that ranks agree although their recordings began at different steps or with work under way.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stashtrace.importers.bounds import parse_json
from stashtrace.importers.collective_names import collective_op
from stashtrace.importers.kineto.device import DeviceRows
from stashtrace.importers.kineto.events import ABSENT, Codes, EventRows, FileRows, Int64, is_rank
from stashtrace.importers.kineto.host import Steps
from stashtrace.schema.kernel_names import plain_kernel_name
from stashtrace.schema.kinds import OPERATORS, CollectiveOp, CollectiveSource, Severity, SpanKind

#: Bytes of an element by torch's names of types, without namespace and in lower case.
_ELEMENT_BYTES = {
    "double": 8,
    "long": 8,
    "int64": 8,
    "long int": 8,
    "float64": 8,
    "complexfloat": 8,
    "unsigned long": 8,
    "float": 4,
    "int": 4,
    "int32": 4,
    "float32": 4,
    "half": 2,
    "bfloat16": 2,
    "short": 2,
    "float16": 2,
    "int16": 2,
    "char": 1,
    "byte": 1,
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "unsigned char": 1,
    "signed char": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
#: Collectives of a step that are numbered apart from those of the next; more than any step has.
PER_STEP = 1 << 20


@dataclass(frozen=True, slots=True)
class Group:
    """A process group as this file knows it."""

    name: str
    members: tuple[int, ...]  # empty if unknown
    size: int  # -1 if unknown
    key: str  # the same on all its ranks
    guessed: bool = False

    @property
    def hash(self) -> int:
        """Number that stands for the group on all its ranks."""
        return int.from_bytes(hashlib.blake2b(self.key.encode(), digest_size=8).digest(), "big") or 1


class _Around:
    """Host events of torch's that enclose launches."""

    def __init__(self, rows: FileRows, chosen: EventRows) -> None:
        chosen = chosen.take(np.lexsort((chosen.begin_ns, chosen.tid)))
        self.events = chosen
        self._track = rows.threads(chosen.tid)

    def enclosing(self, thread: Int64, moment: Int64) -> Int64:
        """Row of the last event of the thread that began before the moment, if it had not ended; else -1."""
        out = np.full(len(moment), -1, dtype=np.int64)
        for track in np.unique(thread[thread >= 0]).tolist():
            own = np.flatnonzero(self._track == track)
            asked = np.flatnonzero(thread == track)
            if len(own):
                at = np.searchsorted(self.events.begin_ns[own], moment[asked], side="right") - 1
                hit = (at >= 0) & (self.events.end_ns[own[np.maximum(at, 0)]] >= moment[asked])
                out[asked[hit]] = own[at[hit]]
        return out


def add_collectives(rows: FileRows, work: DeviceRows, steps: Steps) -> None:
    """Fill ``collectives`` and ``groups``."""
    talks, launches = work.talks, work.talk_launches
    comms = rows.file.rows["comms"]
    comms = comms.take(comms.begin_ns != ABSENT)
    is_record = rows.coded(comms.name, lambda name: int(name == "record_param_comms")) == 1
    records, calls = _Around(rows, comms.take(is_record)), _Around(rows, comms.take(~is_record))
    if not len(talks):
        return
    record = records.enclosing(launches.thread, launches.launch_ns)
    call = calls.enclosing(launches.thread, launches.launch_ns)
    order = np.lexsort((talks.begin_ns, work.talk_streams))  # NCCL's order within a stream
    talks, record, call = talks.take(order), record[order], call[order]
    launch, returned, thread = launches.launch_ns[order], launches.return_ns[order], launches.thread[order]
    stream = work.talk_streams[order]

    detail = _Details(rows, talks, records.events, record, calls.events, call)
    group_at, groups = detail.groups(stream)
    sequence = _sequences(talks, launch, group_at, stream, steps, detail.first("Seq"))
    began = _chosen(launch, (records.events.begin_ns, record), (calls.events.begin_ns, call))
    ended = _chosen(returned, (records.events.end_ns, record), (calls.events.end_ns, call))
    op = detail.ops()
    hashes = np.array([g.hash for g in groups], dtype=np.uint64)
    tracks = [rows.context.tracks.communicator(rows.process_id, g.hash, g.name) for g in groups]
    peer = np.where(op == CollectiveOp.SEND, detail.first("Dst Rank"), detail.first("Src Rank"))
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
    if (detail.first("Seq") == ABSENT).any():
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


def _chosen(otherwise: Int64, *parts: tuple[Int64, Int64]) -> Int64:
    """Values of the first part that has a row, else ``otherwise``."""
    out = otherwise
    for values, row in reversed(parts):
        if len(values):
            out = np.where(row >= 0, values[row], out)
    return out


class _Details:
    """What the kernel itself, else the record around its launch, says of each collective."""

    def __init__(
        self, rows: FileRows, talks: EventRows, records: EventRows, record: Int64, calls: EventRows, call: Int64
    ) -> None:
        self._rows, self._talks = rows, talks
        self._records, self._record = records, record
        self._calls, self._call = calls, call

    def first(self, key: str) -> Int64:
        """Integer argument, ``ABSENT`` where nobody gives it."""
        own = self._talks.ints[key]
        if not len(self._records):
            return own
        around = np.where(self._record >= 0, self._records.ints[key][self._record], ABSENT)
        return np.where(own == ABSENT, around, own)

    def text(self, key: str) -> Codes:
        """Text argument, -1 where nobody gives it."""
        own = self._talks.texts[key]
        if not len(self._records):
            return own
        around = np.where(self._record >= 0, self._records.texts[key][self._record], -1)
        return np.where(own < 0, around, own).astype(np.int32)

    def _called(self) -> Codes:
        if not len(self._calls):
            return np.full(len(self._talks), -1, dtype=np.int32)
        return np.where(self._call >= 0, self._calls.name[self._call], -1).astype(np.int32)

    def _named(self) -> Codes:
        """Name that says most: torch's call, else NCCL's metadata, else the kernel."""
        called, said = self._called(), self.text("Collective name")
        coalesced = self._rows.coded(called, lambda name: int("coalesced" in name)) == 1
        called = np.where(coalesced & (said >= 0), -1, called)
        return np.where(called >= 0, called, np.where(said >= 0, said, self._talks.name)).astype(np.int32)

    def ops(self) -> Int64:
        """CollectiveOp of each."""
        return self._rows.coded(self._named(), op_of)

    def names(self) -> Int64:
        """String codes of the names as torch or NCCL calls them."""
        return self._rows.codes(self._named(), lambda name: plain_kernel_name(name).removeprefix("nccl:"))

    def message_bytes(self) -> Int64:
        """Payload of this rank's input; 0 if unknown."""
        elements = self.first("In msg nelems")
        each = self._rows.coded(self.text("dtype"), lambda name: _ELEMENT_BYTES.get(_type(name), 0))
        known = np.where((elements >= 0) & (each > 0), np.maximum(elements, 0) * each, 0)
        if not len(self._calls):
            return known
        shapes = np.where(self._call >= 0, self._calls.texts["Input Dims"][self._call], -1).astype(np.int32)
        types = np.where(self._call >= 0, self._calls.texts["Input type"][self._call], -1).astype(np.int32)
        count = self._rows.coded(shapes, _elements)
        size = self._rows.coded(types, _first_type_bytes)
        return np.where(known > 0, known, np.maximum(count, 0) * size)

    def groups(self, stream: Int64) -> tuple[Int64, list[Group]]:
        """Group of each row, as a place in the list of groups."""
        texts = [self.text(f"Process Group {what}") for what in ("Name", "Ranks", "Description")]
        numbers = [self.first(key) for key in ("Group size", "Global rank start", "Global rank stride")]
        said = (texts[0] >= 0) | (texts[1] >= 0)
        columns = np.stack([*(t.astype(np.int64) for t in texts), *numbers, np.where(said, -1, stream)])
        distinct, inverse = np.unique(columns, axis=1, return_inverse=True)
        streams = list(dict.fromkeys(stream[~said].tolist()))
        made = [self._group(row, streams) for row in distinct.T.tolist()]
        unique = list(dict.fromkeys(made))
        place = np.array([unique.index(g) for g in made], dtype=np.int64)[inverse.reshape(-1)]
        for one in streams:  # launched before the recording, beside others of which torch told the group
            told = np.unique(place[said & (stream == one)])
            if len(told) == 1:
                place[~said & (stream == one)] = told[0]
        used, place = np.unique(place, return_inverse=True)
        return place, [unique[at] for at in used.tolist()]

    def _group(self, row: Sequence[int], streams: Sequence[int]) -> Group:
        name, ranks, title, size, start, stride, stream = row
        text, top = self._rows.file.text, self._rows.file.top
        process = self._rows.context.processes[self._rows.process_id]
        if stream >= 0:
            place = streams.index(stream)
            shown = "all ranks" if len(streams) == 1 else f"all ranks, NCCL stream {place}"
            world = process.world_size
            return Group(shown, tuple(range(max(world, 0))), world, f"{shown} of {world}", guessed=True)
        listed = _ranks(text(ranks)) or _configured(top, text(name))
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
    """Number within the group: torch's own if every row has it, else by step and order in it."""
    if len(given) and (given != ABSENT).all():
        return given
    moment = launch.copy()
    for one in np.unique(stream).tolist():  # what was launched unseen was launched after what ran before it
        own = np.flatnonzero(stream == one)
        moment[own] = np.maximum.accumulate(moment[own])
    step = steps.at(moment)
    step[moment < 0] = -1
    first = int(steps.number[0]) if len(steps.number) else 0
    number = np.where(step >= 0, np.append(steps.number, first)[step], first)
    out = np.empty(len(talks), dtype=np.int64)
    order = np.lexsort((talks.begin_ns, step, group))
    key_group, key_step = group[order], step[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (key_group[1:] != key_group[:-1]) | (key_step[1:] != key_step[:-1])
    starts = np.flatnonzero(new)
    length = np.diff(np.append(starts, len(order)))
    nth = np.arange(len(order)) - np.repeat(starts, length)
    # Before the first step: counted back from it, for a recording begins in the middle of a step's work.
    before = key_step < 0
    nth = np.where(before, nth - np.repeat(length, length), nth)
    out[order] = (number[order] + 1) * PER_STEP + nth
    return out


def add_groups(rows: FileRows, groups: Sequence[Group], backend: str) -> None:
    """Fill ``groups``."""
    process = rows.context.processes[rows.process_id]
    listed = rows.file.top.get("deviceProperties") or rows.file.top.get("computeProperties") or []
    for group in groups:
        crosses, evidence = _locality(group.members, len(listed))
        rows.context.add(
            "groups",
            process_id=rows.process_id,
            group_hash=np.array([group.hash], dtype=np.uint64),
            name_code=rows.context.code(group.name),
            backend_code=rows.context.code(backend),
            members_code=rows.context.code(",".join(map(str, group.members))),
            group_rank=group.members.index(process.rank) if process.rank in group.members else -1,
            group_size=group.size,
            crosses_hosts=crosses,
            locality_code=rows.context.code(evidence),
        )


def _locality(members: tuple[int, ...], devices: int) -> tuple[int, str]:
    """Whether a group's traffic leaves the host, by the GPUs that a process sees: ranks fill hosts in order."""
    if devices < 2 or not members:
        return -1, ""
    hosts = {rank // devices for rank in members}
    if len(hosts) > 1:
        return 1, f"{len(members)} members, {devices} GPUs on this host"
    return 0, f"its members fit one host of {devices} GPUs"


def op_of(name: str) -> int:
    """CollectiveOp of a name as torch, NCCL or its kernels spell it."""
    return int(collective_op(name))


def _type(name: str) -> str:
    return name.strip().removeprefix("c10::").lower()


def _ranks(text: str) -> tuple[int, ...]:
    """Ranks of ``[0, 1, 2]``; none of a list that torch cut short."""
    parts = text.strip().strip("[]").split(",")
    ranks = tuple(int(p) for p in parts) if all(p.strip().isdecimal() and len(p) < 20 for p in parts) else ()
    return ranks if all(map(is_rank, ranks)) else ()


def _configured(top: dict[str, Any], name: str) -> tuple[int, ...]:
    """Members of a group by ``distributedInfo.pg_config``."""
    listed = (top.get("distributedInfo") or {}).get("pg_config") or []
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, dict) and str(entry.get("pg_name")) == name:
            ranks = entry.get("ranks")
            if isinstance(ranks, list) and all(map(is_rank, ranks)):
                return tuple(ranks)
    return ()


def _json(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return None


def _elements(shapes: str) -> int:
    """Elements of all tensors in ``[[6144], [3, 2]]``."""
    return sum(_product(shape) for shape in _json(shapes) or [] if isinstance(shape, list))


def _product(shape: list[Any]) -> int:
    if any(isinstance(each, list) for each in shape):
        return sum(_product(each) for each in shape if isinstance(each, list))
    count = 1
    for each in shape:
        count *= each if isinstance(each, int) else 0
    return count if shape else 0


def _first_type_bytes(types: str) -> int:
    listed = _json(types)
    first = listed[0] if isinstance(listed, list) and listed else ""
    return _ELEMENT_BYTES.get(_type(str(first)), 0)


# Collectives that the host carries out (gloo, MPI, UCC), in a Kineto file.
#
# Torch records one event for each, on the backend's thread, from the begin of the work to its end; who called it, and
# in which group, is not said. All are taken as of one group: the only one of ``pg_config``, else that of all ranks.

#: Operators less than this apart belong to one stretch of work.
_SAME_STRETCH_NS = 50_000
_ON_HOST = re.compile(r"^(gloo|mpi|ucc):")


def add_host_collectives(rows: FileRows, steps: Steps) -> bool:
    """Fill ``collectives`` and ``groups`` with what ran on the host; whether there was any."""
    work = rows.file.rows["comms"]
    work = work.take((work.begin_ns != ABSENT) & rows.file.matching(work.name, _ON_HOST))
    if not len(work):
        return False
    work = work.take(np.argsort(work.begin_ns, kind="stable"))
    backend = rows.file.text(int(work.name[0])).partition(":")[0]
    group = _group(rows)
    place = steps.at(work.begin_ns)
    first = int(steps.number[0]) if len(steps.number) else 0
    number = np.where(place >= 0, np.append(steps.number, first)[place], first - 1)
    nth = np.arange(len(work)) - np.searchsorted(place, place)
    rows.context.add(
        "collectives",
        process_id=np.full(len(work), rows.process_id),
        track_id=rows.threads(work.tid),
        communicator_track_id=rows.context.tracks.communicator(rows.process_id, group.hash, group.name),
        group_hash=np.full(len(work), group.hash, dtype=np.uint64),
        sequence=(number + 1) * PER_STEP + nth,
        op_code=rows.coded(work.name, op_of),
        name_code=rows.codes(work.name, lambda name: name.partition(":")[2]),
        call_ns=work.begin_ns,
        begin_ns=work.begin_ns,
        end_ns=work.end_ns,
        source_code=int(CollectiveSource.HOST),
    )
    rows.context.number_anew(group.hash)
    add_groups(rows, [group], backend)
    return True


def add_operators(rows: FileRows, operators: Mapping[int, tuple[Int64, Int64]], steps: Steps) -> None:
    """Annotations where threads ran operators: beside them, a thread with a collective in flight may wait for it.

    Operators with little between them are one stretch; it is cut where steps begin and end, so that each lies in one.
    """
    edges = np.union1d(steps.begin_ns, steps.end_ns)
    borders = np.append(edges, np.iinfo(np.int64).max)
    for number, (begin, end) in sorted(operators.items()):
        order = np.argsort(begin, kind="stable")
        begin, reach = begin[order], np.maximum.accumulate(end[order])
        first = np.flatnonzero(np.append(True, begin[1:] - reach[:-1] > _SAME_STRETCH_NS))
        last = np.append(first[1:], len(begin)) - 1
        begin, end = begin[first], reach[last]
        after, until = np.searchsorted(edges, begin, "right"), np.searchsorted(edges, end, "left")
        parts = until - after + 1
        row = np.repeat(np.arange(len(begin)), parts)
        nth = np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)
        rows.context.add(
            "spans",
            begin_ns=np.where(nth == 0, begin[row], borders[after[row] + nth - 1]),
            end_ns=np.where(nth == parts[row] - 1, end[row], borders[np.minimum(after[row] + nth, len(borders) - 1)]),
            track_id=np.full(len(row), rows.context.tracks.thread(rows.process_id, number)),
            kind_code=int(SpanKind.USER),
            name_code=rows.context.code(OPERATORS),
        )


def _group(rows: FileRows) -> Group:
    listed = (rows.file.top.get("distributedInfo") or {}).get("pg_config")
    only = listed[0] if isinstance(listed, list) and len(listed) == 1 and isinstance(listed[0], dict) else {}
    world = rows.context.processes[rows.process_id].world_size
    ranks = only.get("ranks")
    known = ranks if isinstance(ranks, list) and all(map(is_rank, ranks)) else []
    members = tuple(known or range(max(world, 0)))
    name = str(only.get("pg_desc") or "all ranks")
    return Group(name, members, len(members) or -1, f"host {name} of {world}")
