"""Write the execution traces of a run: one file per rank, and the members of communicators.

Messages are encoded by the ``protobuf`` package from the definition in ``schema.chakra``.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from stashtrace import __version__
from stashtrace.analysis.collectives.matching import Group, group_table
from stashtrace.analysis.graph import PipelineGraph, Resource, build
from stashtrace.analysis.intervals import Int64
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.errors import MissingDataError, OutputError, StashtraceError, UsageError
from stashtrace.exporters.chakra.work import IDLE, RankWork, rank_work
from stashtrace.exporters.registry import Exported
from stashtrace.files.protobuf import sized
from stashtrace.files.whole_files import folder_next_to, written_to
from stashtrace.schema import chakra
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import MESSAGES, CollectiveOp, StallKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Value of an attribute.
Value = bool | int | str
#: Field of ``AttributeProto`` of each type of value; readers take these types for these attributes.
_VALUE_FIELDS = {bool: "bool_val", int: "int64_val", str: "string_val"}
#: Attributes that feeders read as 32 bits.
_NARROW = frozenset({"comm_src", "comm_dst", "comm_tag"})


@dataclass(frozen=True, slots=True)
class Messages:
    """Message classes of the ``protobuf`` package, made once.

    Raises StashtraceError: by :meth:`load`, if the package is missing or too old.
    """

    node: Any
    metadata: Any

    @staticmethod
    @lru_cache(maxsize=1)
    def load() -> Messages:
        """Build the classes from the definition."""
        try:
            from google.protobuf import descriptor_pb2, descriptor_pool
            from google.protobuf.message_factory import GetMessageClass
        except ImportError as error:
            raise StashtraceError(
                "Chakra traces are written by the package protobuf (4.25 or newer), which is not installed",
                hint="pip install 'stashtrace[chakra]'",
            ) from error
        pool = descriptor_pool.DescriptorPool()
        pool.Add(_definition(descriptor_pb2))
        node, metadata = (
            GetMessageClass(pool.FindMessageTypeByName(f"{chakra.PACKAGE}.{name}"))
            for name in ("Node", "GlobalMetadata")
        )
        return Messages(node, metadata)

    def head(self, attributes: Mapping[str, Value]) -> bytes:
        """Return the first message of a file, after its length."""
        message = self.metadata(version=chakra.SCHEMA_VERSION)
        _add_attributes(message, attributes)
        return sized(message.SerializeToString())

    def attributes(self, values: Mapping[str, Value]) -> bytes:
        """Return attributes as a piece of a node; the pieces of a message in a row are the message."""
        message = self.node()
        _add_attributes(message, values)
        data: bytes = message.SerializeToString()
        return data

    def base(
        self, node_id: int, name: str, kind: int, needs: Iterable[int], start_micros: int, duration_micros: int
    ) -> bytes:
        """Return a node without attributes, as a piece of a message."""
        message = self.node(
            id=node_id,
            name=name,
            type=kind,
            data_deps=needs,
            start_time_micros=start_micros,
            duration_micros=duration_micros,
        )
        data: bytes = message.SerializeToString()
        return data


def _add_attributes(message: Any, values: Mapping[str, Value]) -> None:
    for name, value in values.items():
        field = "int32_val" if name in _NARROW else _VALUE_FIELDS[type(value)]
        message.attr.add(name=name, **{field: value})


def _definition(descriptor_pb2: Any) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package=chakra.PACKAGE, syntax="proto3")
    for name, members in chakra.ENUMS.items():
        enum = file.enum_type.add(name=name)
        for member in members:
            enum.value.add(name=member.name, number=member.value)
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in chakra.MESSAGES.items():
        message = file.message_type.add(name=name)
        choices: dict[str, int] = {}
        for field_name, field in fields.items():
            made = message.field.add(name=field_name, number=field.number)
            made.label = kinds.LABEL_REPEATED if field.repeated else kinds.LABEL_OPTIONAL
            if field.type in chakra.MESSAGES or field.type in chakra.ENUMS:
                made.type = kinds.TYPE_MESSAGE if field.type in chakra.MESSAGES else kinds.TYPE_ENUM
                made.type_name = f".{chakra.PACKAGE}.{field.type}"
            else:
                made.type = getattr(kinds, f"TYPE_{field.type.upper()}")
            if field.choice:
                if field.choice not in choices:
                    choices[field.choice] = len(choices)
                    message.oneof_decl.add(name=field.choice)
                made.oneof_index = choices[field.choice]
    return file


#: Number of the communicator of all ranks; simulators need no list of its members.
ALL_RANKS = 0


@dataclass(frozen=True, slots=True)
class Communication:
    """Attributes of the parts of collectives; columns are parallel to ``collectives``."""

    #: Sorted as ``TraceIndex`` does.
    collectives: Table
    #: Communicators that are used, by their hash.
    groups: dict[int, Group]
    #: Their numbers; ``ALL_RANKS`` is that of the first one that all ranks are in.
    numbers: dict[int, int]
    #: Their names in the job.
    names: dict[int, str]
    #: Payload of each rank's input, -1 if unknown.
    size_bytes: Int64
    #: Of sends and receives: global ranks, -1 if unknown, and the number of the message between the two.
    source: Int64
    target: Int64
    tag: Int64
    #: Ranks without a file, up to the highest rank of any communicator.
    absent: list[int]
    #: Collectives in which a member has no part.
    incomplete_count: int
    #: Sends and receives whose other side is not in the files.
    unpaired_count: int


def communication(trace: Trace, collectives: Table, work: RankWork) -> Communication:
    """Return the attributes of the parts that are written."""
    part = np.flatnonzero(work.row >= 0)
    rows, transfer = work.row[part], work.transfer[part]
    hashes, op = collectives["group_hash"][rows], collectives["op_code"][rows]
    known = group_table(trace)
    order = np.argsort(work.begin_ns[part], kind="stable")
    used = list(dict.fromkeys(hashes[order].tolist()))
    groups = {value: known[value] for value in used}
    ranks = np.unique(work.rank)
    everyone = np.unique(np.concatenate([ranks, *(g.members for g in groups.values())]))
    absent = np.setdiff1d(np.arange(int(everyone.max()) + 1), ranks).tolist()

    numbers: dict[int, int] = {}
    for value in used:
        whole = np.array_equal(np.unique(groups[value].members), everyone)
        first = whole and ALL_RANKS not in numbers.values()
        numbers[value] = ALL_RANKS if first else max(numbers.values(), default=ALL_RANKS) + 1

    size = collectives["message_bytes"].copy()
    # Where all members have inputs of one size, one that knows its size shows the others'.
    is_same = np.isin(op, (CollectiveOp.ALL_REDUCE, CollectiveOp.REDUCE, CollectiveOp.BROADCAST))
    same, transfers = rows[is_same], GroupBy(transfer[is_same])
    size[same] = np.where(size[same] < 0, transfers.max(size[same])[transfers.number], size[same])

    paired = np.isin(op, MESSAGES)
    operations = GroupBy(transfer[~paired])
    members_count = [len(groups[value].members) for value in hashes[~paired][operations.first].tolist()]
    source, target, tag, unpaired = _messages(collectives, rows[paired], groups)
    names = {value: _group_name(trace, value) for value in used}
    return Communication(
        collectives,
        groups,
        numbers,
        names,
        size,
        source,
        target,
        tag,
        absent,
        int((operations.sizes < np.array(members_count, dtype=np.int64)).sum()),
        unpaired,
    )


def _group_name(trace: Trace, value: int) -> str:
    rows = np.flatnonzero(trace.groups["group_hash"] == np.uint64(value))
    return max((trace.text(code) for code in trace.groups["name_code"][rows].tolist()), key=len, default="")


def _messages(collectives: Table, rows: Int64, groups: Mapping[int, Group]) -> tuple[Int64, Int64, Int64, int]:
    """Return ends and number of each message, by row of ``collectives``; and the number of those without other side.

    The n-th send from a rank to another belongs to the n-th receive there, so both have the number n.
    """
    count = len(collectives)
    source, target, tag = (np.full(count, -1, dtype=np.int64) for _ in range(3))
    if not len(rows):
        return source, target, tag, 0
    peer = collectives["peer_rank"][rows]
    for value, group in groups.items():
        of_group = np.flatnonzero(collectives["group_hash"][rows] == np.uint64(value))
        place = peer[of_group]
        within = (place >= 0) & (place < len(group.members))
        peer[of_group] = np.where(within, group.members[np.where(within, place, 0)], -1)
    sends = collectives["op_code"][rows] == CollectiveOp.SEND
    rank = collectives["rank"][rows]
    source[rows], target[rows] = np.where(sends, rank, peer), np.where(sends, peer, rank)
    by_call = np.argsort(collectives["call_ns"][rows], kind="stable")
    listed = rows[by_call]
    tag[listed] = GroupBy(source[listed], target[listed], sends[by_call]).position
    known = rows[(source[rows] >= 0) & (target[rows] >= 0)]
    messages = GroupBy(source[known], target[known], tag[known])
    return source, target, tag, int(np.count_nonzero(messages.sizes == 1))


#: Workers' batches: as waits, as measured, or as separate nodes.
LOADERS = ("waits", "nodes")
#: Collectives of Chakra by ours, and those that ASTRA-sim simulates.
_COMM_TYPES = {op: kind for kind, op in reversed(chakra.COLLECTIVE_OPS.items())}
_SIMULATED = frozenset(
    (CollectiveOp.ALL_REDUCE, CollectiveOp.ALL_GATHER, CollectiveOp.REDUCE_SCATTER, CollectiveOp.ALL_TO_ALL)
)
_HINT = "choose another folder with -o"
_ON_DEVICES = (Resource.STREAM, Resource.DEVICE)
_OF_A_FILE = re.compile(re.escape(chakra.FILE_STEM) + r"\.\d+\.et")


def export_chakra(
    trace: Trace, path: Path, *, steps: tuple[int, int] | None = None, loaders: str = "waits"
) -> Exported:
    """Write one Chakra execution trace per rank, for simulators of networks such as ASTRA-sim.

    The folder gets ``workload.RANK.et`` of each rank and ``comm_groups.json``, the members of communicators of fewer
    than all ranks. The page ``docs/guides/chakra.md`` describes the nodes; ``work`` cuts the graph.

    ``trace``: a trace with a graph. ``path``: folder to make; traces of an earlier export in it are replaced, a folder
    with other files is refused. ``steps``: only steps with ``first <= step < last``. ``loaders``: ``waits`` keeps the
    waits for workers' batches as measured. ``nodes`` writes each batch as work on a CPU; simulators that run one CPU
    node of a rank at a time serialise these. Raises StashtraceError if the package protobuf is missing, or the folder
    has other files or cannot be written. Raises MissingDataError if the run has no graph, or only one of operations by
    name, or none of the wanted steps.
    """
    if loaders not in LOADERS:
        raise UsageError(f"loaders cannot be {loaders!r}", hint=f"it is one of {', '.join(LOADERS)}")
    messages = Messages.load()
    # Raise OutputError if the folder has files that no export of traces has written
    if path.exists() and (not path.is_dir() or any(not _is_own(entry) for entry in path.iterdir())):
        raise OutputError(f"cannot write {path}: it is there and holds no execution traces", hint=_HINT)
    graph = build(trace, reads=False)
    if isinstance(graph, PipelineGraph):
        raise MissingDataError(
            "a pipeline whose operations alone were recorded cannot be a Chakra trace: its ranks wait for one another"
            " where no collective was recorded",
            hint="record each rank with `stashtrace run` or torch.profiler",
        )
    collectives = TraceIndex(trace).trace.collectives
    work = rank_work(graph, collectives, steps=steps, workers=loaders == "nodes")
    if not len(work):
        raise MissingDataError("none of these steps is in the run", hint="`stashtrace analyze steps` lists them")
    if int(work.rank.min()) < 0:
        raise MissingDataError(
            "the recording does not name the ranks of its processes", hint="traces are written rank by rank"
        )
    talk = communication(trace, collectives, work)
    with written_to(path, _HINT):
        written = _write(path, messages, work, talk)
    return Exported(path, written, len(work), tuple(_notes(work, talk)))


def _is_own(path: Path) -> bool:
    return path.name == chakra.GROUPS_FILE or _OF_A_FILE.fullmatch(path.name) is not None


# Files ------------------------------------------------------------------------------------------


def _write(path: Path, messages: Messages, work: RankWork, talk: Communication) -> int:
    """Write all files next to the folder, then move them into it; return their size in bytes."""
    ranks, first = np.unique(work.rank, return_index=True)
    bounds = zip(ranks.tolist(), first.tolist(), np.append(first[1:], len(work)).tolist(), strict=True)
    columns = columns_of(work)
    path.parent.mkdir(parents=True, exist_ok=True)
    with folder_next_to(path) as half:
        for rank, begin, end in bounds:
            with (half / f"{chakra.FILE_STEM}.{rank}.et").open("wb") as out:
                out.write(messages.head({"rank": rank, "ranks": len(ranks), "writer": f"stashtrace {__version__}"}))
                out.writelines(_nodes(messages, work, talk, columns, begin, end))
        groups = {str(n): talk.groups[v].members.tolist() for v, n in talk.numbers.items() if n != ALL_RANKS}
        (half / chakra.GROUPS_FILE).write_text(json.dumps(groups, indent=1) + "\n", encoding="utf-8")
        sizes = {entry.name: entry.stat().st_size for entry in half.iterdir()}
        path.mkdir(exist_ok=True)
        for name in sizes:
            os.replace(half / name, path / name)
    for entry in path.iterdir():  # an earlier export may have had more ranks
        if _is_own(entry) and entry.name not in sizes:
            entry.unlink()
    return sum(sizes.values())


def columns_of(work: RankWork) -> dict[str, list[int]]:
    """Return columns as lists. Times are in microseconds; those of work are rounded so that sums are right."""
    shared = work.row >= 0  # each rank has the same duration of a transfer
    duration = np.diff((np.cumsum(np.where(shared, 0, work.duration_ns)) + 500) // 1000, prepend=0)
    duration[shared] = np.maximum((work.duration_ns[shared] + 500) // 1000, 1)
    start = (work.begin_ns - int(work.begin_ns.min())) // 1000
    place = np.arange(len(work)) - np.searchsorted(work.rank, work.rank)
    listed = {"id": place + 1, "start": start, "duration": duration, "kind": work.kind}
    for name in ("row", "step", "idle_ns", "duration_ns", "resource", "needs_first"):
        listed[name] = getattr(work, name)
    return {name: values.tolist() for name, values in listed.items()}


def _nodes(
    messages: Messages, work: RankWork, talk: Communication, columns: Mapping[str, list[int]], begin: int, end: int
) -> Iterator[bytes]:
    """Yield the messages of the nodes of one rank; ``begin`` and ``end`` are their places."""
    encoded: dict[tuple[int, int, int], tuple[str, bytes]] = {}
    first = columns["needs_first"][begin]
    needs = (work.needs[first : columns["needs_first"][end]] - begin + 1).tolist()
    for at in range(begin, end):
        row = columns["row"][at]
        if row >= 0:
            name, kind, values = _part(talk, row)
            attributes = messages.attributes(values | {chakra.MEASURED_NS: columns["duration_ns"][at]})
        else:
            key = columns["kind"][at], columns["resource"][at], columns["step"][at]
            if key not in encoded:
                name, values = _work(*key)
                encoded[key] = name, messages.attributes(values)
            kind = chakra.NodeType.COMP_NODE
            name, attributes = encoded[key]
            if columns["idle_ns"][at]:
                attributes += messages.attributes({chakra.IDLE_NS: columns["idle_ns"][at]})
        low, high = columns["needs_first"][at] - first, columns["needs_first"][at + 1] - first
        base = messages.base(
            columns["id"][at], name, kind, needs[low:high], columns["start"][at], columns["duration"][at]
        )
        yield sized(base + attributes)


def _work(kind: int, resource: int, step: int) -> tuple[str, dict[str, Value]]:
    """Return name and attributes of a node of work: its kind, or ``batch`` for batches of workers."""
    values: dict[str, Value] = {"is_cpu_op": resource not in _ON_DEVICES}
    if step >= 0:
        values[chakra.STEP] = step
    if resource == Resource.WORKER:
        return "batch", values
    return "idle" if kind == IDLE else StallKind(kind).name.lower(), values


def _part(talk: Communication, row: int) -> tuple[str, chakra.NodeType, dict[str, Value]]:
    """Return name, type and attributes of a rank's part of a collective, without unknown ones."""
    table = talk.collectives
    op, value = CollectiveOp(int(table["op_code"][row])), int(table["group_hash"][row])
    values: dict[str, Value] = {"is_cpu_op": False}
    size = int(talk.size_bytes[row])
    if op in MESSAGES:
        kind = chakra.NodeType.COMM_SEND_NODE if op is CollectiveOp.SEND else chakra.NodeType.COMM_RECV_NODE
        ends = {"comm_src": talk.source[row], "comm_dst": talk.target[row], "comm_tag": talk.tag[row]}
        values |= {name: int(end) for name, end in ends.items() if end >= 0}
    else:
        kind = chakra.NodeType.COMM_COLL_NODE
        values |= {"comm_type": int(_COMM_TYPES[op])} if op in _COMM_TYPES else {}
        values["pg_name"] = str(talk.numbers[value])
    if size >= 0:
        values["comm_size"] = size
    values[chakra.SEQUENCE] = int(table["sequence"][row])
    if talk.names[value]:
        values[chakra.GROUP_NAME] = talk.names[value]
    return op.name.lower(), kind, values


# Notes ------------------------------------------------------------------------------------------


def _notes(work: RankWork, talk: Communication) -> Iterator[str]:
    """Yield the sentences that a user should read before a simulation: sizes, and what the files leave out."""
    dropped = work.dropped
    rows, transfers = work.row[work.row >= 0], work.transfer[work.row >= 0]
    op, size = talk.collectives["op_code"][rows], talk.size_bytes[rows]
    _, once = np.unique(transfers, return_index=True)
    yield ", ".join(
        (
            _many(len(np.unique(work.rank)), "rank", "ranks"),
            _many(len(work), "node", "nodes"),
            _many(len(once), "collective", "collectives"),
            _many(len(talk.groups), "communicator", "communicators"),
        )
    )
    if talk.absent:
        listed = ", ".join(map(str, talk.absent[:8])) + (", ..." if len(talk.absent) > 8 else "")
        yield f"no file of {_many(len(talk.absent), 'rank', 'ranks')}, which a simulator needs: {listed}"
    collectives, messages = ("collective", "collectives"), ("send or receive", "sends and receives")
    batches, dependencies = ("batch", "batches"), ("dependency", "dependencies")
    unknown = len(np.unique(transfers[size < 0]))
    unnamed = int((op[once] == CollectiveOp.OTHER).sum())
    peers = int((np.isin(op, MESSAGES) & ((talk.source[rows] < 0) | (talk.target[rows] < 0))).sum())
    written = int((work.resource == Resource.WORKER).sum())
    for count, names, rest in (
        (unknown, collectives, "of unknown payload got no comm_size: ASTRA-sim stops there"),
        (unnamed, collectives, "of unknown kind got no comm_type: ASTRA-sim stops there"),
        (peers, messages, "of which the other rank is unknown: ASTRA-sim stops there"),
        (talk.incomplete_count, collectives, "without the part of a member, for which simulators wait without end"),
        (talk.unpaired_count, messages, "without the other side, for which simulators wait without end"),
        (dropped.outside_count, collectives, "before the first step or after the last one left out"),
        (dropped.unended_count, collectives, "that did not end, or whose sides do not match, left out"),
        (dropped.batches_count, batches, "of workers left out, the waits for them kept as measured"),
        (written, batches, "of workers written: ASTRA-sim runs one CPU node of a rank at a time"),
        (dropped.cycle_edges_count, dependencies, "left out: by the clocks of the run they form cycles"),
        (dropped.foreign_edges_count, dependencies, "between ranks left out, other than collectives"),
    ):
        if count:
            yield f"{_many(count, *names)} {rest}"
    others = Counter(op[once][~np.isin(op[once], (*_SIMULATED, *MESSAGES, CollectiveOp.OTHER))].tolist())
    for code, count in sorted(others.items()):
        treatment = "replays as measured" if code == CollectiveOp.BROADCAST else "does not simulate"
        yield f"ASTRA-sim {treatment}: {count} {CollectiveOp(code).name.lower()}"


def _many(count: int, singular: str, plural: str) -> str:
    return f"{count:,} {singular if count == 1 else plural}"
