"""Collectives of an Nsight Systems export, from NCCL's ranges and kernels.

    ranges with a communicator    ncclGroupStart  ncclAllReduce  ncclGroupEnd[launch]      one row per call of NCCL
    kernels alone                 one row per kernel; common ends show which processes belong together

A recording begins at some time, not at some operation. Therefore the numbers of processes that share a clock are
shifted against each other until the parts of one operation end together.

Of a send or a receive NCCL attaches the communicator, the bytes and the peer's rank in it (src/include/
nvtx_payload_schemas.h: NcclNvtxParamsSendRecv), in versions without that file only "Bytes" and "Peer rank"
(src/collectives.cc: NvtxParamsSendRecv). The messages from one rank to another are a separate group, as in our
recordings. The kernel, ncclDevKernel_SendRecv, shows neither direction nor peer. Where a single ncclSend or ncclRecv
launched it, the range shows the direction. The peer is then known if the kernels of just two processes end together,
and one sends whenever the other receives.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from stashtrace.importers.collective_names import PER_PEER, algorithm_and_protocol, collective_op, subgroup_hash
from stashtrace.importers.import_context import ImportContext, Int64
from stashtrace.importers.nsys.database import Processes
from stashtrace.importers.nsys.device import Work
from stashtrace.importers.nsys.nvtx import CollectiveRanges
from stashtrace.schema.kernel_names import is_nccl_kernel, plain_kernel_name
from stashtrace.schema.kinds import MESSAGES, CollectiveOp, CollectiveSource, DeviceWork, NcclFlag, Severity

#: Kinds of subgroups: what all of a communicator do, and messages of which one end is unknown.
_WHOLE, _UNPAIRED = "", "messages"
#: Fewer messages of two processes do not show that one sends whenever the other receives.
_FEWEST_MESSAGES = 2
#: Parts of the names of NCCL's calls that are not collectives.
_NO_OPERATIONS = ("Group", "Comm", "GetUniqueId", "Mem", "RedOp", "Init")
#: Largest shift between the beginnings of two recordings, in operations.
_MOST_SHIFT = 64
#: Ends of one operation differ by less than this share of its length, or less than this many ns.
_END_RATIO, _END_NS = 0.2, 100_000


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
        """Return the chosen rows."""
        values: list[Any] = []
        for name in self.__slots__:
            value = getattr(self, name)
            values.append([value[r] for r in rows.tolist()] if isinstance(value, list) else value[rows])
        return _Rows(*values)


#: What numbers operations together: ("nccl", communicator, kind) or ("stream", place, kind).
_Subgroup = tuple[str, int, str]
#: (number of the process, its rows, (its rank in the communicator, the communicator's size)).
_Member = tuple[int, _Rows, tuple[int, int]]
#: (title, hash, [(member, numbers of its operations)]).
_Communicator = tuple[str, int, list[tuple[_Member, Int64]]]


def add_collectives(
    ranges: CollectiveRanges, work: Work, processes: Processes, source: str, context: ImportContext
) -> None:
    """Fill ``collectives``, ``collective_details`` and ``groups``."""
    talks = np.flatnonzero(work.rows["work_code"] == DeviceWork.COMMUNICATION)
    unknown = 0
    subgroups: dict[_Subgroup, list[_Member]] = {}
    for process, process_id in enumerate(processes.ids.tolist()):
        at = np.flatnonzero(ranges.process == process)
        kernels = talks[work.rows["process_id"][talks] == process_id]
        kernels = kernels[np.lexsort((work.rows["begin_ns"][kernels], work.rows["launch_ns"][kernels]))]
        calls = [row for row in at.tolist() if _is_operation(ranges.names[row])]
        if any(ranges.payloads[row].communicator >= 0 for row in calls):
            of_nccl = np.array([is_nccl_kernel(work.names.get(n, "")) for n in work.name[kernels].tolist()], dtype=bool)
            for key, rows, place in _from_ranges(ranges, at, calls, work, kernels[of_nccl], processes):
                subgroups.setdefault(key, []).append((process, rows, place))
            kernels = kernels[~of_nccl]  # NCCL has no ranges for these
        unknown += len(kernels)
        op, size = _messages_of_kernels(ranges, at, np.array(calls, dtype=np.int64), work, kernels)
        for key, rows in _from_kernels(work, kernels, op, size):
            subgroups.setdefault(key, []).append((process, rows, (-1, -1)))
    added = 0
    for key, members in subgroups.items():
        for title, group_hash, numbered in _number_operations(key, members, source):
            for (process, rows, place), sequence in numbered:
                keys = np.arange(added, added + len(rows.call), dtype=np.int64)
                _add(title, group_hash, rows, sequence, keys, int(processes.ids[process]), place, context)
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
    ranges: CollectiveRanges, of_process: Int64, calls: list[int], work: Work, kernels: Int64, processes: Processes
) -> list[tuple[_Subgroup, _Rows, tuple[int, int]]]:
    """Return (subgroup, rows, (rank in the communicator, its size)) of one process from NCCL's ranges."""
    places: dict[int, tuple[int, int]] = {}
    for row in of_process.tolist():
        payload = ranges.payloads[row]
        if payload.ranks > 0 and payload.communicator >= 0:
            places[payload.communicator] = (payload.rank, payload.ranks)
    chosen = np.array([row for row in calls if ranges.payloads[row].communicator >= 0], dtype=np.int64)
    batch, kernel = _groups_of_calls(ranges, of_process, chosen, work, kernels)

    def of_kernel(column: str) -> Int64:
        return np.where(kernel >= 0, work.rows[column][kernel], -1) if len(kernels) else np.full(len(kernel), -1)

    op = np.array([int(collective_op(ranges.names[row])) for row in chosen.tolist()], dtype=np.int64)
    payloads = [ranges.payloads[row] for row in chosen.tolist()]
    size = np.array([p.size_bytes for p in payloads], dtype=np.int64)
    spread = np.array([max(places.get(p.communicator, (-1, 1))[1], 1) for p in payloads], dtype=np.int64)
    rows = _Rows(
        call=ranges.begin[chosen],
        returned=ranges.end[chosen],
        begin=of_kernel("begin_ns"),
        end=of_kernel("end_ns"),
        op=op,
        track=processes.threads(ranges.process[chosen], ranges.tid[chosen]),
        stream=of_kernel("track_id"),
        size=np.maximum(size, 0) * np.where(np.isin(op, PER_PEER), spread, 1),
        peer=np.array([p.peer if p.peer >= 0 else p.root for p in payloads], dtype=np.int64),
        name=[ranges.names[row] for row in chosen.tolist()],
        kernel=[work.names.get(int(work.name[k]), "") if k >= 0 else "" for k in kernel.tolist()],
        channels=np.array([max(p.channels, 0) for p in payloads], dtype=np.int64),
        batch=batch,
    )
    keys = np.array([p.communicator % (1 << 64) for p in payloads], dtype=np.uint64)
    # Messages of a pair are a separate group: the sender is the first of its two members, the receiver the second.
    rank = [places.get(p.communicator, (-1, -1))[0] for p in payloads]
    titles = [_title(*each) for each in zip(op.tolist(), rank, rows.peer.tolist(), strict=True)]
    is_pair = np.array([title not in (_WHOLE, _UNPAIRED) for title in titles], dtype=bool)
    rows.peer = np.where(is_pair, op == CollectiveOp.SEND, rows.peer).astype(np.int64)
    members = dict[tuple[int, str], list[int]]()
    for row, key in enumerate(zip(keys.tolist(), titles, strict=True)):
        members.setdefault(key, []).append(row)
    subgroups: list[tuple[_Subgroup, _Rows, tuple[int, int]]] = []
    for (communicator, title), own_rows in sorted(members.items()):
        first = own_rows[0]
        place = (int(op[first] == CollectiveOp.RECEIVE), 2) if is_pair[first] else places.get(communicator, (-1, -1))
        subgroups.append((("nccl", communicator, title), rows.take(np.array(own_rows, dtype=np.int64)), place))
    return subgroups


def _title(op: int, rank: int, peer: int) -> str:
    """Return what the rows of a communicator are numbered with: those between the same two ranks, or all of a kind."""
    if op not in MESSAGES:
        return _WHOLE
    if rank < 0 or peer < 0 or rank == peer:
        return _UNPAIRED
    return f"{rank} to {peer}" if op == CollectiveOp.SEND else f"{peer} to {rank}"


def _messages_of_kernels(
    ranges: CollectiveRanges, of_process: Int64, calls: Int64, work: Work, kernels: Int64
) -> tuple[Int64, Int64]:
    """Return the operation of each kernel that a single send or receive launched, else -1, and its bytes, 0 if unknown.

    ``calls``: NCCL's operations among the ranges ``of_process``, none of which names a communicator.
    """
    op, size = np.full(len(kernels), -1, dtype=np.int64), np.zeros(len(kernels), dtype=np.int64)
    if not len(calls) or not len(kernels):
        return op, size
    _, carrier = _groups_of_calls(ranges, of_process, calls, work, kernels)
    carried, place = Counter(carrier.tolist()), {kernel: at for at, kernel in enumerate(kernels.tolist())}
    for row, kernel in zip(calls.tolist(), carrier.tolist(), strict=True):
        said = int(collective_op(ranges.names[row]))
        if kernel >= 0 and carried[kernel] == 1 and said in MESSAGES:
            op[place[kernel]], size[place[kernel]] = said, max(ranges.payloads[row].size_bytes, 0)
    return op, size


def _groups_of_calls(
    ranges: CollectiveRanges, of_process: Int64, chosen: Int64, work: Work, kernels: Int64
) -> tuple[Int64, Int64]:
    """Return the number of the group of each call, 0 if none, and the kernel that carried it out, -1 if unknown.

    A call outside a group launches inside its range. The calls inside a group are launched at the end of the outermost
    group: by a kernel each if there are as many, else by one kernel for all.
    """
    batch, kernel = np.zeros(len(chosen), dtype=np.int64), np.full(len(chosen), -1, dtype=np.int64)
    launch = work.rows["launch_ns"][kernels]
    ends = np.array([r for r in of_process.tolist() if ranges.names[r].startswith("ncclGroupEnd")], dtype=np.int64)
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
        grouped = waiting[fits & (at == number)]
        launched = kernels[(launch >= ranges.begin[ends[number]]) & (launch <= ranges.end[ends[number]])]
        batch[grouped] = number + 1
        if len(launched) == len(grouped):
            kernel[grouped] = launched
        elif len(launched):
            kernel[grouped] = launched[0]
    return batch, kernel


def _from_kernels(work: Work, kernels: Int64, message: Int64, size: Int64) -> list[tuple[_Subgroup, _Rows]]:
    """Return (subgroup, rows) of one process from its kernels alone, by the place of their stream and by kind.

    ``message``, ``size``: of each kernel, its operation if it is known to be a single message, else -1, and its
    bytes.
    """
    columns = work.rows
    subgroups: list[tuple[_Subgroup, _Rows]] = []
    streams = columns["track_id"][kernels]
    _, first = np.unique(streams, return_index=True)
    for place, stream in enumerate(streams[np.sort(first)].tolist()):
        on_stream = np.flatnonzero(streams == stream)
        of_stream = kernels[on_stream]
        names = [work.names.get(n, "") for n in work.name[of_stream].tolist()]
        said = np.array([int(collective_op(name)) for name in names], dtype=np.int64)
        op = np.where(message[on_stream] >= 0, message[on_stream], said)
        launch = columns["launch_ns"][of_stream]
        kinds = [_UNPAIRED if one in MESSAGES else CollectiveOp(one).name.lower() for one in op.tolist()]
        for kind in sorted(set(kinds)):
            at = np.array([row for row, of_row in enumerate(kinds) if of_row == kind], dtype=np.int64)
            rows = of_stream[at]
            zeros = np.zeros(len(rows), dtype=np.int64)
            kernel_names = [names[row] for row in at.tolist()]
            call = np.where(launch[at] >= 0, launch[at], columns["begin_ns"][rows])
            operations = _Rows(
                call=call,
                returned=columns["return_ns"][rows],
                begin=columns["begin_ns"][rows],
                end=columns["end_ns"][rows],
                op=op[at],
                track=columns["thread_track_id"][rows],
                stream=columns["track_id"][rows],
                size=size[on_stream[at]],
                peer=zeros - 1,
                name=[plain_kernel_name(name) for name in kernel_names],
                kernel=kernel_names,
                channels=zeros,
                batch=zeros,
            )
            key = ("stream", place, kind)
            subgroups.append((key, operations.take(np.argsort(call, kind="stable"))))
    return subgroups


def _number_operations(key: _Subgroup, members: list[_Member], source: str) -> list[_Communicator]:
    """Return each communicator of a subgroup."""
    form, number_of_subgroup, kind = key
    if form == "nccl":
        title = f"nccl {number_of_subgroup:x}" + (f" · {kind}" if kind else "")
        reference = max(members, key=lambda m: len(m[1].call))[1]
        shifts = [_shift(reference, rows) for _, rows, _ in members]
        # A send that left its bytes may end long before its receive: then the first ones belong together.
        firsts = [shift if together or kind == _WHOLE else 0 for shift, together in shifts]
        parts = _directions(_numbered(members, firsts)) if kind == _UNPAIRED and all(t for _, t in shifts) else {}
        if parts:
            return [(f"{title} · {name}", subgroup_hash("nsys", source, *key, name), parts[name]) for name in parts]
        group_hash = subgroup_hash(*key) if kind else number_of_subgroup
        return [(title, group_hash, _numbered(members, [0] * len(members) if kind == _UNPAIRED else firsts))]
    clusters: list[list[tuple[_Member, int]]] = []
    for member in sorted(members, key=lambda m: -len(m[1].call)):
        for cluster in clusters:
            shift, together = _shift(cluster[0][0][1], member[1])
            if together:
                cluster.append((member, shift))
                break
        else:
            clusters.append([(member, 0)])
    communicators: list[_Communicator] = []
    for number, cluster in enumerate(clusters):
        suffix = f" · communicator {number + 1}" if len(clusters) > 1 else ""
        title = f"NCCL stream {number_of_subgroup + 1} · {kind}{suffix}"
        numbered = _numbered([member for member, _ in cluster], [first for _, first in cluster])
        parts = _directions(numbered) if kind == _UNPAIRED else {}
        # The hash is of this file alone: nothing shows which communicator of another file is the same.
        for name, part in (parts or {"": numbered}).items():
            group_hash = subgroup_hash("nsys", source, *key, number, *([name] if name else []))
            communicators.append((f"{title} · {name}" if name else title, group_hash, part))
    return communicators


def _numbered(members: list[_Member], firsts: list[int]) -> list[tuple[_Member, Int64]]:
    """Number the operations of each member from its first one on; the lowest is 0."""
    lowest = min(firsts)
    return [(m, first - lowest + np.arange(len(m[1].call))) for m, first in zip(members, firsts, strict=True)]


def _directions(numbered: list[tuple[_Member, Int64]]) -> dict[str, list[tuple[_Member, Int64]]]:
    """Divide the messages of two processes by direction, if one sends whenever the other receives; else empty."""
    if len(numbered) != 2:
        return {}
    (a, of_a), (b, of_b) = sorted(numbered, key=lambda one: one[0][0])
    _, at_a, at_b = np.intersect1d(of_a, of_b, assume_unique=True, return_indices=True)
    if len(at_a) < _FEWEST_MESSAGES or (a[1].op[at_a] == b[1].op[at_b]).any():
        return {}
    parts: dict[str, list[tuple[_Member, Int64]]] = {"first to second": [], "second to first": []}
    for (process, rows, _), numbers, from_first in ((a, of_a, CollectiveOp.SEND), (b, of_b, CollectiveOp.RECEIVE)):
        for name, chosen in zip(parts, (rows.op == from_first, rows.op != from_first), strict=True):
            taken = rows.take(np.flatnonzero(chosen))
            sends = taken.op == CollectiveOp.SEND
            taken.peer = sends.astype(np.int64)
            if len(taken.call):
                parts[name].append(((process, taken, (int(not sends[0]), 2)), numbers[chosen]))
    return {name: part for name, part in parts.items() if part}


def _shift(reference: _Rows, rows: _Rows) -> tuple[int, bool]:
    """Return the number of the first of ``rows`` in the count of ``reference``, and whether their ends then agree."""
    if rows is reference:
        return 0, True
    expected, end = reference.end, rows.end
    if not (expected >= 0).any() or not (end >= 0).any():
        return 0, False
    best, best_difference_ns = 0, np.inf
    for shift in sorted(range(-_MOST_SHIFT, _MOST_SHIFT + 1), key=abs):
        low, high = max(shift, 0), min(len(expected), len(end) + shift)
        if high - low < max(1, min(len(expected), len(end)) // 2):
            continue
        a, b = expected[low:high], end[low - shift : high - shift]
        both = (a >= 0) & (b >= 0)
        if both.any():
            difference_ns = float(np.median(np.abs(a - b)[both]))
            if difference_ns < best_difference_ns:
                best, best_difference_ns = shift, difference_ns
    length_ns = float(np.median((end - rows.begin)[end >= 0]))
    return best, bool(best_difference_ns <= max(_END_RATIO * length_ns, _END_NS))


def _add(
    title: str,
    group_hash: int,
    rows: _Rows,
    sequence: Int64,
    keys: Int64,
    process_id: int,
    place: tuple[int, int],
    context: ImportContext,
) -> None:
    known = rows.end >= 0
    context.add(
        "collectives",
        collective_key=keys,
        process_id=process_id,
        track_id=rows.track,
        communicator_track_id=context.tracks.communicator(process_id, group_hash, title),
        group_hash=np.full(len(keys), group_hash, dtype=np.uint64),
        sequence=sequence,
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
    ways = [algorithm_and_protocol(name) for name in rows.kernel]
    context.add(
        "collective_details",
        collective_key=keys,
        process_id=process_id,
        algorithm_code=context.codes(algorithm for algorithm, _ in ways),
        protocol_code=context.codes(protocol for _, protocol in ways),
        channels_count=rows.channels,
        nccl_flags=np.where(rows.batch > 0, int(NcclFlag.GROUPED), 0),
        batch_key=rows.batch,
    )
    context.add_group(
        process_id,
        group_hash,
        title,
        locality="an export does not say",
        group_rank=place[0],
        group_size=place[1],
        observed_count=len(keys),
    )
