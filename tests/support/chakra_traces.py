"""Chakra execution traces as a reader that shares no code with ours sees them, and a simulator that takes any of them.

The messages are built from the field numbers of ``et_def.proto`` as published, not from ``schema.chakra``, by
the package protobuf. ``simulate`` knows nothing but what stands in the files: nodes begin when what they wait for has
ended, a collective when all members of its communicator have come to it, in the order in which each of them does.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

COMP, SEND, RECV, COLL = 4, 5, 6, 7
_SCALARS = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64"),
    *("sfixed32", "sfixed64", "bool", "string", "bytes"),
)


@lru_cache(maxsize=1)
def classes() -> tuple[Any, Any]:
    """GlobalMetadata and Node."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="published.proto", package="Published", syntax="proto3")

    def add(message: Any, name: str, number: int, kind: str, repeated: bool = False, choice: bool = False) -> None:
        made = message.field.add(name=name, number=number, label=3 if repeated else 1)
        if kind[0].isupper():
            made.type, made.type_name = kinds.TYPE_MESSAGE, f".Published.{kind}"
        else:
            made.type = getattr(kinds, f"TYPE_{kind.upper()}")
        if choice:
            made.oneof_index = 0

    attribute = file.message_type.add(name="AttributeProto")
    attribute.oneof_decl.add(name="value")
    add(attribute, "name", 1, "string")
    add(attribute, "doc_string", 2, "string")
    for place, kind in enumerate(_SCALARS):
        values = file.message_type.add(name=f"{kind.capitalize()}List")
        add(values, "values", 1, kind, repeated=True)
        add(attribute, f"{kind}_val", 3 + 2 * place, kind, choice=True)
        add(attribute, f"{kind}_list", 4 + 2 * place, f"{kind.capitalize()}List", choice=True)
    metadata = file.message_type.add(name="GlobalMetadata")
    add(metadata, "version", 1, "string")
    add(metadata, "attr", 2, "AttributeProto", repeated=True)
    values = file.message_type.add(name="IOInfo")
    for number, name in enumerate(("values", "shapes", "types"), 1):
        add(values, name, number, "string")
    node = file.message_type.add(name="Node")
    for number, (name, kind, repeated) in enumerate(
        (
            ("id", "uint64", False),
            ("name", "string", False),
            ("type", "int32", False),
            ("ctrl_deps", "uint64", True),
            ("data_deps", "uint64", True),
            ("start_time_micros", "uint64", False),
            ("duration_micros", "uint64", False),
            ("inputs", "IOInfo", False),
            ("outputs", "IOInfo", False),
            ("attr", "AttributeProto", True),
        ),
        1,
    ):
        add(node, name, number, kind, repeated)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = (pool.FindMessageTypeByName(f"Published.{name}") for name in ("GlobalMetadata", "Node"))
    first, other = map(message_factory.GetMessageClass, found)
    return first, other


@dataclass
class Node:
    """One node; ``types`` are the fields in which the values of its attributes stand."""

    id: int
    name: str
    type: int
    needs: list[int]
    start_us: int
    duration_us: int
    attrs: dict[str, Any]
    types: dict[str, str]


@dataclass
class Traces:
    """The files of a folder."""

    nodes: dict[int, list[Node]] = field(default_factory=dict)
    heads: dict[int, dict[str, Any]] = field(default_factory=dict)
    versions: set[str] = field(default_factory=set)
    groups: dict[str, list[int]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Traces:
        found = cls(groups=json.loads((folder / "comm_groups.json").read_text()))
        metadata, node = classes()
        for path in sorted(folder.glob("workload.*.et")):
            rank = int(path.name.split(".")[1])
            head, *rest = split(path.read_bytes())
            first = metadata.FromString(head)
            found.versions.add(first.version)
            found.heads[rank] = attributes(first)[0]
            found.nodes[rank] = [_node(node.FromString(message)) for message in rest]
        return found

    def members(self, group: str) -> list[int]:
        return self.groups[group] if group != "0" else sorted(self.nodes)

    def of_type(self, rank: int, *types: int) -> list[Node]:
        return [n for n in self.nodes[rank] if n.type in types]


def split(data: bytes) -> list[bytes]:
    """Messages, each after its length."""
    found, at = [], 0
    while at < len(data):
        length = shift = 0
        while True:
            byte = data[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        assert at + length <= len(data)
        found.append(data[at : at + length])
        at += length
    return found


def attributes(message: Any) -> tuple[dict[str, Any], dict[str, str]]:
    types = {a.name: a.WhichOneof("value") for a in message.attr}
    assert len(types) == len(message.attr), "two attributes of one name"
    return {a.name: getattr(a, types[a.name]) for a in message.attr}, types


def _node(message: Any) -> Node:
    assert not message.ctrl_deps
    values, types = attributes(message)
    return Node(
        message.id,
        message.name,
        message.type,
        list(message.data_deps),
        message.start_time_micros,
        message.duration_micros,
        values,
        types,
    )


def feeder_problems(traces: Traces) -> list[str]:
    """What ASTRA-sim's feeder and workload layer would stop at, by their rules; empty if nothing.

    Ids are unique, dependencies are there and form no cycle, each file has a node to begin with. Attributes have the
    types in which the older feeder reads them (a newer one converts). What communicates is on no CPU, has a size, and a
    kind that is simulated; communicators are numbers with known members. All members come to the collectives of a
    communicator in one order.
    """
    found = []
    wanted = {
        COMP: {"is_cpu_op": "bool_val"},
        COLL: {"is_cpu_op": "bool_val", "comm_type": "int64_val", "comm_size": "int64_val", "pg_name": "string_val"},
        SEND: {
            "is_cpu_op": "bool_val",
            "comm_size": "int64_val",
            "comm_src": "int32_val",
            "comm_dst": "int32_val",
            "comm_tag": "int32_val",
        },
    }
    wanted[RECV] = wanted[SEND]
    order: dict[str, dict[int, list[int]]] = defaultdict(dict)
    if sorted(traces.nodes) != list(range(len(traces.nodes))):
        found.append(f"ranks {sorted(traces.nodes)}")
    for rank, nodes in traces.nodes.items():
        known: set[int] = set()
        if not any(not n.needs for n in nodes):
            found.append(f"rank {rank}: nothing to begin with")
        for node in nodes:
            where = f"rank {rank}, node {node.id}"
            if node.id in known:
                found.append(f"{where}: id twice")
            if not known.issuperset(node.needs):  # written after what it waits for: no cycle
                found.append(f"{where}: needs {set(node.needs) - known}")
            known.add(node.id)
            if node.type not in wanted:
                found.append(f"{where}: type {node.type}")
                continue
            missing = {n: t for n, t in wanted[node.type].items() if node.types.get(n) != t}
            if missing:
                found.append(f"{where}: no {missing}")
            if node.type != COMP and node.attrs.get("is_cpu_op"):
                found.append(f"{where}: communicates on a CPU")
            if node.type == COLL and not missing:
                group = node.attrs["pg_name"]
                if group != "0" and (not group.isdecimal() or int(group) < 1 or rank not in traces.groups[group]):
                    found.append(f"{where}: communicator {group}")
                if node.attrs["comm_type"] not in (0, 2, 5, 6, 7):
                    found.append(f"{where}: kind {node.attrs['comm_type']}")
                order[group].setdefault(rank, []).append(node.attrs["comm_type"])
    for group, of_rank in order.items():
        if sorted(of_rank) != sorted(traces.members(group)) or len({tuple(o) for o in of_rank.values()}) > 1:
            found.append(f"communicator {group}: its members do not come to the same collectives")
    return found


def simulate(traces: Traces, transfer_us: Callable[[Node], float] | None = None) -> dict[int, dict[int, float]]:
    """When each node ends, by rank and id, in microseconds; transfers take as long as measured by default.

    Everything that waits for nothing begins at 0. A send ends with its receive.
    """
    length = transfer_us or (lambda node: node.attrs["stashtrace_measured_ns"] / 1000)
    end: dict[int, dict[int, float]] = {rank: {} for rank in traces.nodes}
    place = dict.fromkeys(traces.nodes, 0)
    waiting: dict[tuple[Any, ...], dict[int, tuple[Node, float]]] = defaultdict(dict)
    came: dict[tuple[int, str], int] = defaultdict(int)
    joined: set[tuple[int, int]] = set()
    moved = True
    while moved:
        moved = False
        for rank, nodes in traces.nodes.items():
            for node in nodes[place[rank] :]:
                if node.id in end[rank] or (rank, node.id) in joined or any(n not in end[rank] for n in node.needs):
                    continue
                moved = True
                begin = max((end[rank][n] for n in node.needs), default=0.0)
                if node.type == COMP:
                    end[rank][node.id] = begin + node.duration_us
                    continue
                joined.add((rank, node.id))
                if node.type == COLL:
                    group = node.attrs["pg_name"]
                    key: tuple[Any, ...] = (group, came[rank, group])
                    came[rank, group] += 1
                    members = traces.members(group)
                else:
                    key = ("message", node.attrs["comm_src"], node.attrs["comm_dst"], node.attrs["comm_tag"])
                    members = [node.attrs["comm_src"], node.attrs["comm_dst"]]
                waiting[key][rank] = node, begin
                if len(waiting[key]) == len(set(members)):
                    done = max(b for _, b in waiting[key].values()) + max(length(n) for n, _ in waiting[key].values())
                    for other, (part, _) in waiting.pop(key).items():
                        end[other][part.id] = done
            while place[rank] < len(nodes) and nodes[place[rank]].id in end[rank]:
                place[rank] += 1
    stuck = {rank: len(nodes) - len(end[rank]) for rank, nodes in traces.nodes.items() if len(nodes) > len(end[rank])}
    assert not stuck, f"nodes that never end: {stuck}"
    return end


def step_ends_us(traces: Traces, end: dict[int, dict[int, float]]) -> dict[int, list[float]]:
    """When the last node of each step of each rank ends."""
    found: dict[int, list[float]] = {}
    for rank, nodes in traces.nodes.items():
        last: dict[int, float] = {}
        for node in nodes:
            step = node.attrs.get("stashtrace_step")
            if step is not None:
                last[step] = max(last.get(step, 0.0), end[rank][node.id])
        found[rank] = [last[step] for step in sorted(last)]
    return found
