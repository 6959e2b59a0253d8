"""What NCCL attaches to its NVTX ranges: communicator, bytes, peer. Used by ``nsys``.

An export holds it as JSON (``nsys export --include-json true``) or as bytes (``--include-blobs true``): a head of 32
bytes with the number of the schema and the length, then the fields where the tables of schemas say.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stashtrace.importers.bounds import MOST_DIGITS, parse_json
from stashtrace.importers.nsys_database import Database

_HEAD = struct.Struct("<QQQQ")
#: NVTX's predefined types of fields that are whole numbers -> how they lie in the bytes.
_TYPES = {
    1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "q", 8: "Q", 9: "q", 10: "Q", 11: "b", 12: "B", 13: "h", 14: "H",
    15: "i", 16: "I", 17: "q", 18: "Q", 22: "Q",
}  # fmt: skip
_FIELDS = {
    "NCCL communicator ID": "communicator",
    "Message size [bytes]": "size_bytes",
    "Peer rank": "peer",
    "Peer": "peer",
    "Root": "root",
    "Rank": "rank",
    "No. of ranks": "ranks",
    "No. of channels": "channels",
}


@dataclass(frozen=True, slots=True)
class Payload:
    """Fields of one range; -1 where it has none."""

    communicator: int = -1
    size_bytes: int = -1
    peer: int = -1
    root: int = -1
    rank: int = -1
    ranks: int = -1
    channels: int = -1


def read_payloads(database: Database, texts: Sequence[object], blobs: Sequence[object]) -> list[Payload]:
    """Payload of each range, from whichever form there is."""
    schemas = _schemas(database) if any(isinstance(blob, bytes) for blob in blobs) else {}
    found = []
    for text, blob in zip(texts, blobs, strict=True):
        if isinstance(text, str):
            found.append(_from_text(text))
        else:
            found.append(_from_bytes(blob, schemas) if isinstance(blob, bytes) else Payload())
    return found


def _from_text(text: str) -> Payload:
    try:
        found = parse_json(text)
    except ValueError:
        return Payload()
    return _payload(found) if isinstance(found, dict) else Payload()


def _from_bytes(blob: bytes, schemas: Mapping[int, list[tuple[str, str, int]]]) -> Payload:
    if len(blob) < _HEAD.size:
        return Payload()
    _, schema, length, _ = _HEAD.unpack_from(blob)
    content = blob[_HEAD.size : _HEAD.size + length]
    fields: dict[str, object] = {}
    for name, kind, offset in schemas.get(schema, ()):
        if 0 <= offset <= len(content) - struct.calcsize(f"<{kind}"):
            (fields[name],) = struct.unpack_from(f"<{kind}", content, offset)
    return _payload(fields)


def _payload(fields: Mapping[str, object]) -> Payload:
    values: dict[str, int] = {}
    for name, value in fields.items():
        attribute = _FIELDS.get(name)
        number = _number(value)
        if attribute is not None and number is not None:
            values[attribute] = number
    return Payload(**values)


def _number(value: object) -> int | None:
    if isinstance(value, str):
        plain = value.replace(",", "").strip()
        try:
            value = int(plain, 0) if len(plain) <= MOST_DIGITS else -2
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -1 <= value < 1 << 64 else None


def _schemas(database: Database) -> dict[int, list[tuple[str, str, int]]]:
    """Schema -> (name, form, offset) of its numbers that are wanted here."""
    table = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    if not database.has(table, "schemaId", "type", "name", "offset"):
        return {}
    found: dict[int, list[tuple[str, str, int]]] = {}
    question = f"SELECT DISTINCT schemaId, idx, type, name, ifnull(offset, 0) FROM {table}"
    for schema, _, kind, name, offset in database.small(question, table):
        if name in _FIELDS and kind in _TYPES and isinstance(schema, int) and isinstance(offset, int):
            found.setdefault(schema, []).append((name, _TYPES[kind], offset))
    return found
