"""Chakra's ``.et``: messages of ``et_def.proto`` one after the other, each after its length. Used by ``chakra``.

The few fields of use are read from the wire format directly; what is not known is skipped, as protobuf has it.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from stashtrace.errors import ImporterError
from stashtrace.importers.source import Source

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
#: Fields of Node, of an attribute, and of the attribute's values that are of use.
_ID, _NAME, _TYPE, _CTRL_DEPS, _DURATION, _ATTRIBUTE = 1, 2, 3, 4, 7, 10
_INTEGERS, _TEXT = (7, 9, 11, 13, 27), 29
_COMMUNICATION = {5: "send", 6: "recv", 7: ""}
_COLLECTIVES = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter",
    "reduce_scatter", "barrier",
)  # fmt: skip
#: No node is larger; a length beyond it is damage.
_LARGEST_BYTES = 64 << 20
_MASK = (1 << 64) - 1


def looks_like_protobuf(head: bytes) -> bool:
    """Whether a file begins with GlobalMetadata: a short message whose first field is a version."""
    return re.match(rb"[\x03-\x7f]\x0a[\x01-\x20][0-9]+\.[0-9.]+", head, re.DOTALL) is not None


def nodes_of(source: Source) -> Iterator[Mapping[str, Any]]:
    """Nodes with the names that PyTorch's JSON has; raises ValueError where the file ends in the middle."""
    with source.open() as stream:
        if not _message(stream):  # GlobalMetadata
            raise ImporterError(f"{source.path} holds no message of Chakra", hint=_CONVERT)
        while (message := _message(stream)) is not None:
            yield _node(message)


_CONVERT = "convert it to JSON with chakra_jsonizer, of the package chakra"


def _message(stream: BinaryIO) -> bytes | None:
    """The next message, None at the end."""
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


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of each field: an int, or bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield number, value
        elif wire == _LENGTH:
            length, at = _varint(message, at)
            if at + length > len(message):
                raise ValueError("a field reaches beyond its message")
            yield number, message[at : at + length]
            at += length
        elif wire in (_FIXED64, _FIXED32):
            at += 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"a field of wire type {wire}")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError("a number that does not end")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value & _MASK, at


def _node(message: bytes) -> dict[str, Any]:
    node: dict[str, Any] = {"id": 0, "name": ""}
    attrs: dict[str, Any] = {}
    kind = 0
    for number, value in _fields(message):
        if number == _ID:
            node["id"] = value
        elif number == _NAME and isinstance(value, bytes):
            node["name"] = value.decode(errors="replace")
        elif number == _TYPE:
            kind = value
        elif number == _CTRL_DEPS and "ctrl_deps" not in node:
            node["ctrl_deps"] = _varint(value, 0)[0] if isinstance(value, bytes) else value
        elif number == _DURATION:
            node["duration_ns"] = value * 1000
        elif number == _ATTRIBUTE and isinstance(value, bytes):
            attrs.update(_attribute(value))
    if kind in _COMMUNICATION:
        which = attrs.get("comm_type", -1)
        known = _COLLECTIVES[which] if isinstance(which, int) and 0 <= which < len(_COLLECTIVES) else node["name"]
        attrs["comm_name"] = _COMMUNICATION[kind] or known
        attrs["comm_bytes"] = attrs.get("comm_size", 0)
    node["attrs"] = [{"name": name, "value": value} for name, value in attrs.items()]
    return node


def _attribute(message: bytes) -> dict[str, Any]:
    name = ""
    value: int | str | None = None
    for number, field in _fields(message):
        if number == 1 and isinstance(field, bytes):
            name = field.decode(errors="replace")
        elif number in _INTEGERS and isinstance(field, int):
            value = field - (1 << 64) if field >= 1 << 63 else field
        elif number == _TEXT and isinstance(field, bytes):
            value = field.decode(errors="replace")
    return {name: value} if name and value is not None else {}
