"""Collectives of an Nsight Systems export, from NCCL's ranges and kernels.

    ranges with a communicator    ncclGroupStart  ncclAllReduce  ncclGroupEnd[launch]      one row per call of NCCL
    kernels alone                 one row per kernel; which processes belong together is told by common ends

A recording begins at some time, not at some operation: of processes that share a clock, numbers are moved against each
other until operations that belong together end together.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.importers.collective_names import PER_PEER, algorithm_and_protocol, collective_op, lane_hash
from stashtrace.importers.context import ImportContext
from stashtrace.importers.nsys.database import Int64, Processes
from stashtrace.importers.nsys.device import Work
from stashtrace.importers.nsys.nvtx import CollectiveRanges
from stashtrace.schema.kernel_names import is_nccl_kernel, plain_kernel_name
from stashtrace.schema.kinds import CollectiveOp, CollectiveSource, DeviceWork, NcclFlag, Severity

_MESSAGES = (CollectiveOp.SEND, CollectiveOp.RECEIVE)
#: Calls of NCCL that are collectives, by what their names hold.
_NO_OPERATIONS = ("Group", "Comm", "GetUniqueId", "Mem", "RedOp", "Init")
#: How far the beginnings of recordings may be apart, in operations.
_MOST_APART = 64
#: Ends of one operation differ by less than this share of its length, or this much.
_END_SHARE, _END_NS = 0.2, 100_000


@dataclass(slots=True)
class _Rows:
    """Collectives of one process, in the order of their calls; times of the device are -1 where unknown."""

    call: Int64
    returned: Int64
    begin: Int64
    end: Int64
    op: Int64
    track: Int64
    stream: Int64
    size: Int64
    peer: Int64
    name: list[str]
    kernel: list[str]
    channels: Int64
    batch: Int64

    def take(self, rows: Int64) -> _Rows:
        """Chosen rows."""
        values: list[Any] = []
        for name in self.__slots__:
            value = getattr(self, name)
            values.append([value[r] for r in rows.tolist()] if isinstance(value, list) else value[rows])
        return _Rows(*values)


def add_collectives(
    ranges: CollectiveRanges, work: Work, processes: Processes, source: str, context: ImportContext
) -> None:
    """Fill ``collectives``, ``collective_details`` and ``groups``."""
    talks = np.flatnonzero(work.rows["work_code"] == DeviceWork.COMMUNICATION)
    unknown = 0
    lanes: dict[tuple[object, ...], list[tuple[int, _Rows, tuple[int, int]]]] = {}
    for process, process_id in enumerate(processes.ids.tolist()):
        own = np.flatnonzero(ranges.process == process)
        kernels = talks[work.rows["process_id"][talks] == process_id]
        kernels = kernels[np.lexsort((work.rows["begin_ns"][kernels], work.rows["launch_ns"][kernels]))]
        calls = [row for row in own.tolist() if _is_operation(ranges.names[row])]
        if any(ranges.payloads[row].communicator >= 0 for row in calls):
            of_nccl = np.array([is_nccl_kernel(work.names.get(n, "")) for n in work.name[kernels].tolist()], dtype=bool)
            for key, rows, place in _from_ranges(ranges, own, calls, work, kernels[of_nccl], processes):
                lanes.setdefault(key, []).append((process, rows, place))
            kernels = kernels[~of_nccl]  # NCCL's ranges say nothing of these
        unknown += len(kernels)
        for key, rows in _from_kernels(work, kernels):
            lanes.setdefault(key, []).append((process, rows, (-1, -1)))
    added = 0
    for key, members in lanes.items():
        for title, value, numbered in _numbered(key, members, source):
            for (process, rows, place), first in numbered:
                keys = np.arange(added, added + len(rows.call), dtype=np.int64)
                _add(title, value, rows, first, keys, int(processes.ids[process]), place, context)
                added += len(keys)
    if unknown:
        context.lose(
            "communicators_unknown",
            unknown,
            severity=Severity.INFO,
            advice="record with --trace=nvtx and export with --include-json=true, so that NCCL says which it used",
        )


def _is_operation(name: str) -> bool:
    return name.startswith("nccl") and not any(part in name for part in _NO_OPERATIONS)


def _from_ranges(
    ranges: CollectiveRanges, own: Int64, calls: list[int], work: Work, kernels: Int64, processes: Processes
) -> list[tuple[tuple[object, ...], _Rows, tuple[int, int]]]:
    """(lane, rows, (rank in the communicator, its size)) of one process from NCCL's own ranges."""
    places: dict[int, tuple[int, int]] = {}
    for row in own.tolist():
        payload = ranges.payloads[row]
        if payload.ranks > 0 and payload.communicator >= 0:
            places[payload.communicator] = (payload.rank, payload.ranks)
    chosen = np.array([row for row in calls if ranges.payloads[row].communicator >= 0], dtype=np.int64)
    batch, kernel = _launched(ranges, own, chosen, work, kernels)
    known = kernel >= 0
    at = np.where(known, kernel, 0)
    op = np.array([int(collective_op(ranges.names[row])) for row in chosen.tolist()], dtype=np.int64)
    payloads = [ranges.payloads[row] for row in chosen.tolist()]
    size = np.array([p.size_bytes for p in payloads], dtype=np.int64)
    spread = np.array([max(places.get(p.communicator, (-1, 1))[1], 1) for p in payloads], dtype=np.int64)
    peers = [p.peer if p.peer >= 0 else p.root for p in payloads]
    columns = work.rows
    rows = _Rows(
        ranges.begin[chosen],
        ranges.end[chosen],
        np.where(known, columns["begin_ns"][at] if len(kernels) else -1, -1),
        np.where(known, columns["end_ns"][at] if len(kernels) else -1, -1),
        op,
        processes.threads(ranges.process[chosen], ranges.tid[chosen]),
        np.where(known, columns["track_id"][at] if len(kernels) else -1, -1),
        np.where(size >= 0, size, 0) * np.where(np.isin(op, PER_PEER), spread, 1),
        np.array(peers, dtype=np.int64),
        [ranges.names[row] for row in chosen.tolist()],
        [work.names.get(int(work.name[k]), "") if k >= 0 else "" for k in kernel.tolist()],
        np.array([max(p.channels, 0) for p in payloads], dtype=np.int64),
        batch,
    )
    keys = np.array([p.communicator % (1 << 64) for p in payloads], dtype=np.uint64)
    message = np.isin(op, _MESSAGES)
    found: list[tuple[tuple[object, ...], _Rows, tuple[int, int]]] = []
    for value in np.unique(keys).tolist():
        for kind, mask in (("", ~message), ("messages", message)):
            mine = np.flatnonzero((keys == np.uint64(value)) & mask)
            if len(mine):
                found.append((("nccl", value, kind), rows.take(mine), places.get(value, (-1, -1))))
    return found


def _launched(ranges: CollectiveRanges, own: Int64, chosen: Int64, work: Work, kernels: Int64) -> tuple[Int64, Int64]:
    """Number of the group that each call was part of, 0 if none, and the kernel that carried it out, -1 if unknown.

    A call outside a group launches inside its own range. Inside a group the end of the outermost group launches: its
    kernels are those of its calls one by one if there are as many, else one kernel carried out all of a kind.
    """
    batch, kernel = np.zeros(len(chosen), dtype=np.int64), np.full(len(chosen), -1, dtype=np.int64)
    launch = work.rows["launch_ns"][kernels]
    ends = np.array([r for r in own.tolist() if ranges.names[r].startswith("ncclGroupEnd")], dtype=np.int64)
    first = np.searchsorted(launch, ranges.begin[chosen])
    padded = np.append(launch, np.iinfo(np.int64).max)
    inside = padded[first] <= ranges.end[chosen]
    kernel[inside] = kernels[first[inside]]
    waiting = np.flatnonzero(~inside & (first < len(kernels)))
    if not len(waiting) or not len(ends):
        return batch, kernel
    # The group end in which the next launch of all lies.
    of_launch = np.searchsorted(ranges.begin[ends], launch, side="right") - 1
    at = of_launch[np.searchsorted(launch, ranges.end[chosen[waiting]]).clip(max=len(launch) - 1)]
    fits = (at >= 0) & (ranges.begin[ends[at]] >= ranges.end[chosen[waiting]])
    for number in np.unique(at[fits]).tolist():
        mine = waiting[fits & (at == number)]
        its = kernels[(launch >= ranges.begin[ends[number]]) & (launch <= ranges.end[ends[number]])]
        batch[mine] = number + 1
        if len(its) == len(mine):
            kernel[mine] = its
        elif len(its):
            kernel[mine] = its[0]
    return batch, kernel


def _from_kernels(work: Work, kernels: Int64) -> list[tuple[tuple[object, ...], _Rows]]:
    """(lane, rows) of one process from its kernels alone: by their stream's place among those of NCCL, and by kind."""
    columns = work.rows
    found: list[tuple[tuple[object, ...], _Rows]] = []
    streams = columns["track_id"][kernels]
    _, first = np.unique(streams, return_index=True)
    for place, stream in enumerate(streams[np.sort(first)].tolist()):
        own = kernels[streams == stream]
        names = [work.names.get(n, "") for n in work.name[own].tolist()]
        op = np.array([int(collective_op(name)) for name in names], dtype=np.int64)
        launch = columns["launch_ns"][own]
        for kind in np.unique(op).tolist():
            mine = np.flatnonzero(op == kind)
            rows = own[mine]
            nothing = np.full(len(rows), -1, dtype=np.int64)
            kernel_names = [names[m] for m in mine.tolist()]
            call = np.where(launch[mine] >= 0, launch[mine], columns["begin_ns"][rows])
            made = _Rows(
                call,
                columns["return_ns"][rows],
                columns["begin_ns"][rows],
                columns["end_ns"][rows],
                op[mine],
                columns["thread_track_id"][rows],
                columns["track_id"][rows],
                nothing + 1,
                nothing,
                [plain_kernel_name(name) for name in kernel_names],
                kernel_names,
                nothing + 1,
                nothing + 1,
            )
            key = ("stream", place, CollectiveOp(kind).name.lower())
            found.append((key, made.take(np.argsort(call, kind="stable"))))
    return found


_Member = tuple[int, _Rows, tuple[int, int]]


def _numbered(
    key: tuple[object, ...], members: list[_Member], source: str
) -> list[tuple[str, int, list[tuple[_Member, int]]]]:
    """(title, hash, [(member, number of its first operation)]) of each communicator behind a lane."""
    if key[0] == "nccl":
        title = f"nccl {key[1]:x}" + (f" · {key[2]}" if key[2] else "")
        reference = max(members, key=lambda m: len(m[1].call))[1]
        firsts = [0 if key[2] else _shift(reference, rows)[0] for _, rows, _ in members]
        lowest = min(firsts)
        value = int(str(key[1])) if not key[2] else lane_hash(*key)
        return [(title, value, [(m, first - lowest) for m, first in zip(members, firsts, strict=True)])]
    clusters: list[list[tuple[_Member, int]]] = []
    for member in sorted(members, key=lambda m: -len(m[1].call)):
        for cluster in clusters:
            shift, together = _shift(cluster[0][0][1], member[1])
            if together:
                cluster.append((member, shift))
                break
        else:
            clusters.append([(member, 0)])
    found = []
    for number, cluster in enumerate(clusters):
        lowest = min(first for _, first in cluster)
        which = f" · communicator {number + 1}" if len(clusters) > 1 else ""
        title = f"NCCL stream {int(str(key[1])) + 1} · {key[2]}{which}"
        # Of other files nothing is known that would tell which of theirs is the same.
        found.append((title, lane_hash("nsys", source, *key, number), [(m, first - lowest) for m, first in cluster]))
    return found


def _shift(reference: _Rows, rows: _Rows) -> tuple[int, bool]:
    """Number of the first of ``rows`` in the count of ``reference``, and whether their ends are then common."""
    if rows is reference:
        return 0, True
    one, other = reference.end, rows.end
    if not (one >= 0).any() or not (other >= 0).any():
        return 0, False
    best, best_apart = 0, np.inf
    for shift in sorted(range(-_MOST_APART, _MOST_APART + 1), key=abs):
        low, high = max(shift, 0), min(len(one), len(other) + shift)
        if high - low < max(1, min(len(one), len(other)) // 2):
            continue
        a, b = one[low:high], other[low - shift : high - shift]
        both = (a >= 0) & (b >= 0)
        if both.any():
            apart = float(np.median(np.abs(a - b)[both]))
            if apart < best_apart:
                best, best_apart = shift, apart
    length = float(np.median((other - rows.begin)[other >= 0]))
    return best, bool(best_apart <= max(_END_SHARE * length, _END_NS))


def _add(
    title: str,
    value: int,
    rows: _Rows,
    first: int,
    keys: Int64,
    process_id: int,
    place: tuple[int, int],
    context: ImportContext,
) -> None:
    count = len(keys)
    known = rows.end >= 0
    hashes: npt.NDArray[np.uint64] = np.full(count, value, dtype=np.uint64)
    context.add(
        "collectives",
        collective_key=keys,
        process_id=process_id,
        track_id=rows.track,
        communicator_track_id=context.tracks.communicator(process_id, value, title),
        group_hash=hashes,
        sequence=first + np.arange(count),
        op_code=rows.op,
        name_code=context.codes(rows.name),
        message_bytes=rows.size,
        peer_rank=rows.peer,
        call_ns=rows.call,
        return_ns=rows.returned,
        begin_ns=rows.begin,
        end_ns=rows.end,
        status_code=np.where(known, 0, 3),
        source_code=np.where(known, int(CollectiveSource.PLUGIN), int(CollectiveSource.HOST)),
        device_begin_ns=rows.begin,
        device_end_ns=rows.end,
        stream_track_id=rows.stream,
    )
    how = [algorithm_and_protocol(name) for name in rows.kernel]
    context.add(
        "collective_details",
        collective_key=keys,
        process_id=process_id,
        algorithm_code=context.codes(a for a, _ in how),
        protocol_code=context.codes(p for _, p in how),
        channels_count=rows.channels,
        nccl_flags=np.where(rows.batch > 0, int(NcclFlag.GROUPED), 0),
        batch_key=rows.batch,
    )
    context.add(
        "groups",
        process_id=process_id,
        group_hash=hashes[:1],
        name_code=context.code(title),
        backend_code=context.code("nccl"),
        group_rank=place[0],
        group_size=place[1],
        observed_count=count,
        crosses_hosts=-1,
        locality_code=context.code("an export does not say"),
    )
