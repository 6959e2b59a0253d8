"""Reads Chakra's ``.et``: messages of ``et_def.proto`` one after the other, each after its length.

The few fields of use are read from the wire format directly; unknown fields are skipped, as protobuf requires.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from stashtrace.errors import ImporterError
from stashtrace.importers.protobuf import LENGTH, fields_of, read_varint, read_varints
from stashtrace.importers.source import Source
from stashtrace.schema.chakra import COLLECTIVE_OPS, MESSAGES, NodeType

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
    """Return the next message, None at the end."""
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
