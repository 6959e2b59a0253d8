"""Execution traces: PyTorch's JSON (schemas 1.0 and 1.1) and Chakra's protobuf (``.et``), with an order and no times.

    {"schema": "1.0.2-chakra.0.0.4", "pid": 3974, ..., "nodes": [{"id": 5, "name": "aten::empty", ...}, ...]}

Each node becomes a row of ``execution_nodes``: its place in the tree, the bytes of its tensors, and for
``record_param_comms`` the collective, its group and number. ``record_function_id`` is the "Record function id" of a
newer Kineto trace of the same process. Chakra's data dependencies become rows of ``execution_dependencies``. The page
``docs/importers/chakra.md`` says what cannot be known.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from stashtrace.errors import ImporterError
from stashtrace.files.protobuf import LENGTH, fields_of, read_varint, read_varints
from stashtrace.importers.collective_names import collective_op
from stashtrace.importers.import_context import ImportContext
from stashtrace.importers.import_limits import HIGHEST, LONGEST_LINE_BYTES, parse_next
from stashtrace.importers.source import READ_ERRORS, Source
from stashtrace.schema.chakra import COLLECTIVE_OPS, MESSAGES, SEQUENCE, NodeType
from stashtrace.schema.kinds import Severity

#: Error of an analysis of times on such a file.
NO_TIMES = (
    "an execution trace holds operators, sizes and their order, and no times; "
    "give the torch.profiler trace of the same run, or see `stashtrace analyze operators`"
)
_RECORD = "record one with torch.profiler.ExecutionTraceObserver"
_KNOWN_SCHEMAS = ("1.0.", "1.1.")
_RANKS_IN_NAME = (
    re.compile(r"rank[_.\-]?(\d+)", re.IGNORECASE),
    re.compile(r"(?:^|[_.\-])e[tg][_.\-]?(\d+)", re.IGNORECASE),
    re.compile(r"\.(\d+)\.et$"),
)
_PIECE_BYTES = 1 << 20
#: Bound of the characters of a node.
_LARGEST_NODE = 16 << 20
#: Nodes that are collected before they are added.
_PIECE_NODES = 1 << 15
_NOT_COLLECTIVES = frozenset(("wait", "init", "end", "coalesced"))


def sniff(head: bytes, path: Path) -> bool:
    """Return True for execution traces, as JSON or as protobuf."""
    start = head[:4096].lstrip()
    if start[:1] == b"{":
        return b'"nodes"' in start and b'"schema"' in start
    return ".et" in path.suffixes and looks_like_protobuf(head)


def load(source: Source, context: ImportContext) -> None:
    """Read the nodes of one process."""
    matches = (pattern.search(source.path.name) for pattern in _RANKS_IN_NAME)
    rank = next((int(match[1]) for match in matches if match and len(match[1]) < 8), -1)
    is_json = source.head.lstrip()[:1] == b"{"
    reader = _Json(source) if is_json else None
    nodes = reader.nodes() if reader else nodes_of(source)
    process_id = -1
    count = damaged = 0
    rows: list[dict[str, Any]] = []
    cut_reason: str | None = None
    while True:
        try:
            node = next(nodes, None)
        except (*READ_ERRORS, ValueError) as error:
            node, cut_reason = None, str(error)
        if node is not None:
            try:
                rows.append(_row(node))
            except (RecursionError, OverflowError, ValueError):
                damaged += 1
        if rows and (node is None or len(rows) >= _PIECE_NODES):
            if process_id < 0:
                process_id = context.process(pid=reader.pid if reader else 0, rank=rank)
            _add(rows, process_id, context)
            count += len(rows)
            rows = []
        if node is None:
            break
    if not count:
        raise ImporterError(f"{source.path} holds no node of an execution trace", hint=cut_reason or _RECORD)
    if cut_reason is not None:
        advice = f"{source.path.name} ends early ({cut_reason}); the {count} nodes before are used"
        context.lose("file_cut", advice=advice)
    if damaged:
        context.lose("damaged_nodes", damaged, advice=f"{source.path.name}: nodes without id or name")
    schema = reader.schema if reader else "chakra protobuf"
    if reader and not schema.startswith(_KNOWN_SCHEMAS):
        advice = f"{source.path.name} has schema {schema or 'unknown'}; what has the known names is used"
        context.lose("schema_unknown", severity=Severity.INFO, advice=advice)
    context.say("trace_schema", schema, process_id)
    context.say("nodes_count", str(count), process_id)
    context.say("no_times", NO_TIMES, process_id)
    if rank >= 0:
        context.say("rank_from", "file name", process_id)


class _Json:
    """Reads nodes one by one from a JSON file of any size; ``pid`` and ``schema`` are known with the first."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.pid, self.schema = 0, ""

    def nodes(self) -> Iterator[Mapping[str, Any]]:
        """Yield the objects of the list ``nodes``; raise ValueError where the text ends in the middle."""
        utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        with self.source.open() as stream:
            text, at = "", -1
            while at < 0:
                piece = stream.read1(_PIECE_BYTES)  # type: ignore[attr-defined]
                if not piece:
                    raise ValueError("no list of nodes")
                text += utf8.decode(piece)
                if len(text) > LONGEST_LINE_BYTES:
                    raise ValueError("no list of nodes in its first 16 MiB")
                match = re.search(r'"nodes"\s*:\s*\[', text)
                at = match.end() if match else -1
            self._head(text[:at])
            ended = False
            while True:
                while at < len(text) and text[at] in " \t\r\n,":
                    at += 1
                if at < len(text) and text[at] == "]":
                    return
                try:
                    node, at = parse_next(text, at)
                except ValueError:
                    if ended or len(text) - at > _LARGEST_NODE:
                        raise ValueError("a node is damaged, or the list of nodes is not closed") from None
                    piece = stream.read1(_PIECE_BYTES)  # type: ignore[attr-defined]
                    ended = not piece
                    text, at = text[at:] + utf8.decode(piece), 0
                    continue
                yield node

    def _head(self, text: str) -> None:
        pid, schema = (re.search(rf'"{name}"\s*:\s*"?([^",\s]+)', text) for name in ("pid", "schema"))
        self.schema = schema[1] if schema else ""
        self.pid = int(pid[1]) if pid and pid[1].isdecimal() and len(pid[1]) < 19 else 0


@dataclass(frozen=True, slots=True)
class _Communication:
    """Arguments of ``record_param_comms``."""

    name: str = ""
    sequence: int = -1
    group: str = ""
    group_size: int = -1


def _row(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of one node of either schema; raise ValueError if it has no id or name."""
    if not isinstance(node, dict) or not isinstance(node.get("id"), int) or not isinstance(node.get("name"), str):
        raise ValueError("a node without id or name")
    listed = node.get("attrs")
    attrs: Mapping[str, Any] = node
    if isinstance(listed, list) and listed:
        attrs = {a["name"]: a.get("value") for a in listed if isinstance(a, dict) and isinstance(a.get("name"), str)}
    inputs, outputs = _values(node.get("inputs")), _values(node.get("outputs"))
    comm = _communication(inputs, attrs) if node["name"] == "record_param_comms" else _Communication()
    comm_bytes = attrs.get("comm_bytes")
    if isinstance(comm_bytes, int) and "comm_name" in attrs:  # protobuf: the size alone, and the kind as a name
        comm = _Communication(str(attrs["comm_name"]), _number(attrs.get(SEQUENCE)), str(attrs.get("pg_name", "")))
    return {
        "node_id": _number(node["id"]),
        "parent_node_id": _number(node.get("ctrl_deps", node.get("parent"))),
        "record_function_id": _number(attrs.get("rf_id")),
        "sequence_id": _number(attrs.get("seq_id")),
        "native_thread_id": _number(attrs.get("tid")),
        "duration_ns": _number(node.get("duration_ns")),
        "input_bytes": _size(comm_bytes if isinstance(comm_bytes, int) else _bytes(inputs)),
        "output_bytes": _size(_bytes(outputs)),
        "name": node["name"],
        "op_code": int(collective_op(comm.name)) if comm.name and comm.name not in _NOT_COLLECTIVES else -1,
        "collective_sequence": comm.sequence,
        "group": comm.group,
        "group_size": comm.group_size,
        "needed_node_ids": [_number(node_id) for node_id in _values(node.get("data_deps"))],
    }


def _number(value: Any) -> int:
    if isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, int) and -(1 << 63) <= value < 1 << 63 else -1


def _size(count: int) -> int:
    """Return a number of bytes; 0 if no tensors can have it."""
    return count if 0 <= count < HIGHEST else 0


def _values(field: Any) -> Sequence[Any]:
    """Return inputs, outputs or dependencies of a node: a list, or since 1.0.2 a list in an object; none if damaged."""
    values = field.get("values") if isinstance(field, dict) else field
    return values if isinstance(values, list) else ()


def _bytes(values: Sequence[Any]) -> int:
    """Return the bytes of all tensors, at any depth: [tensor, storage, offset, elements, bytes of one, device]."""
    total = 0
    for value in values:
        if not isinstance(value, list):
            continue
        if len(value) >= 6 and isinstance(value[5], str) and all(isinstance(v, int) for v in value[:5]):
            total += value[3] * value[4]
        else:
            total += _bytes(value)
    return total


def _communication(values: Sequence[Any], attrs: Mapping[str, Any]) -> _Communication:
    """Read [tensors,] number, group, rank, name, splits...; the group is an address or (name, description)."""
    rest = list(values[1:] if values and isinstance(values[0], list) else values)
    if len(rest) < 4 or not isinstance(rest[3], str):
        return _Communication(str(attrs.get("collective_name", "")))
    group = rest[1]
    if isinstance(group, list):
        name = ":".join(str(part) for part in group if part)
    else:
        name = f"{group:#x}" if isinstance(group, int) and group else str(group or "")
    size = attrs.get("pg_size", rest[8] if len(rest) > 8 else -1)
    return _Communication(rest[3], _number(rest[0]), name, _number(size))


def _add(rows: list[dict[str, Any]], process_id: int, context: ImportContext) -> None:
    needed = [row.pop("needed_node_ids") for row in rows]
    columns: dict[str, Any] = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    columns["name_code"] = context.codes(columns.pop("name").tolist())
    columns["group_code"] = context.codes(columns.pop("group").tolist())
    context.add("execution_nodes", process_id=process_id, **columns)
    counts = np.array([len(ids) for ids in needed], dtype=np.int64)
    if counts.any():
        context.add(
            "execution_dependencies",
            process_id=process_id,
            node_id=np.repeat(columns["node_id"], counts),
            needed_node_id=np.array([node_id for ids in needed for node_id in ids], dtype=np.int64),
        )


_NODE, _ATTRIBUTE = MESSAGES["Node"], MESSAGES["AttributeProto"]
_ID, _NAME, _TYPE, _CTRL_DEPS, _DATA_DEPS, _DURATION, _ATTRIBUTES = (
    _NODE[name].number for name in ("id", "name", "type", "ctrl_deps", "data_deps", "duration_micros", "attr")
)
_ATTRIBUTE_NAME, _TEXT = (_ATTRIBUTE[name].number for name in ("name", "string_val"))
_INTEGERS = tuple(
    _ATTRIBUTE[name].number for name in ("int32_val", "int64_val", "uint32_val", "uint64_val", "bool_val")
)
_COMMUNICATION = {NodeType.COMM_SEND_NODE: "send", NodeType.COMM_RECV_NODE: "recv", NodeType.COMM_COLL_NODE: ""}
_COLLECTIVES = {int(kind): op.name.lower() for kind, op in COLLECTIVE_OPS.items()}
#: The first message holds a version, or attributes of the trace that a converter read, or both.
_FIRST_FIELDS = tuple(field.number << 3 | LENGTH for field in MESSAGES["GlobalMetadata"].values())
#: Bound of the length of a message.
_LARGEST_BYTES = 64 << 20


def looks_like_protobuf(head: bytes) -> bool:
    """Return True if a file begins with GlobalMetadata: a version such as 0.0.4, or an attribute with a name."""
    try:
        length, at = read_varint(head, 0)
        key, at = read_varint(head, at)
        size, at = read_varint(head, at)
    except ValueError:
        return False
    if key not in _FIRST_FIELDS or not 0 < size <= length <= _LARGEST_BYTES:
        return False
    if key == _FIRST_FIELDS[0]:
        return re.fullmatch(rb"[0-9]+\.[0-9.]+", head[at : at + size]) is not None
    return re.match(rb"\x0a[\x01-\x7f][A-Za-z_]", head[at : at + 3]) is not None


def nodes_of(source: Source) -> Iterator[Mapping[str, Any]]:
    """Yield nodes with the names of PyTorch's JSON; raise ValueError where the file ends in the middle."""
    with source.open() as stream:
        if not _message(stream):  # GlobalMetadata
            raise ImporterError(f"{source.path} holds no message of Chakra", hint=_CONVERT)
        while (message := _message(stream)) is not None:
            yield _node(message)


_CONVERT = "convert it to JSON with chakra_jsonizer, of the package chakra"


def _message(stream: BinaryIO) -> bytes | None:
    length = shift = 0
    while True:
        byte = stream.read(1)
        if not byte:
            if shift:
                raise ValueError("cut in the length of a message")
            return None
        length |= (byte[0] & 0x7F) << shift
        shift += 7
        if byte[0] < 0x80:
            break
    if length > _LARGEST_BYTES or shift > 35:
        raise ValueError("a message of impossible length")
    message = stream.read(length)
    if len(message) < length:
        raise ValueError("cut in the middle of a node")
    return message


def _node(message: bytes) -> dict[str, Any]:
    node: dict[str, Any] = {"id": 0, "name": ""}
    attrs: dict[str, Any] = {}
    data_deps: list[int] = []
    kind = 0
    for number, value in fields_of(message):
        if number == _ID:
            node["id"] = value
        elif number == _NAME and isinstance(value, bytes):
            node["name"] = value.decode(errors="replace")
        elif number == _TYPE and isinstance(value, int):
            kind = value
        elif number == _CTRL_DEPS and "ctrl_deps" not in node:
            node["ctrl_deps"] = value if isinstance(value, int) else read_varint(value, 0)[0]
        elif number == _DATA_DEPS:
            data_deps += [value] if isinstance(value, int) else read_varints(value)
        elif number == _DURATION and isinstance(value, int):
            node["duration_ns"] = value * 1000
        elif number == _ATTRIBUTES and isinstance(value, bytes):
            attrs.update(_attribute(value))
    if kind in _COMMUNICATION:
        collective = _COLLECTIVES.get(attrs.get("comm_type", -1), node["name"])
        attrs["comm_name"] = _COMMUNICATION[NodeType(kind)] or collective
        attrs["comm_bytes"] = attrs.get("comm_size", 0)
    node["data_deps"] = data_deps
    node["attrs"] = [{"name": name, "value": value} for name, value in attrs.items()]
    return node


def _attribute(message: bytes) -> dict[str, Any]:
    name = ""
    value: int | str | None = None
    for number, field in fields_of(message):
        if number == _ATTRIBUTE_NAME and isinstance(field, bytes):
            name = field.decode(errors="replace")
        elif number in _INTEGERS and isinstance(field, int):
            value = field - (1 << 64) if field >= 1 << 63 else field
        elif number == _TEXT and isinstance(field, bytes):
            value = field.decode(errors="replace")
    return {name: value} if name and value is not None else {}
