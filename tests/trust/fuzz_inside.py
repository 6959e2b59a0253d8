"""Damage that no checksum finds: the parts of a .stash are changed, and its checksums are made right again.

What a mapping of a file or a broken writer may leave, and what somebody may make on purpose. Used by ``fuzz_worker``.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from stashtrace.errors import FormatError
from stashtrace.format.codec import decode
from stashtrace.format.container import FILE_HEADER, ByteFile, FileHead, Segment, pack_segment, read_head, scan_segments
from stashtrace.format.project import layouts

_MOST_ROWS_CHANGED = 3


def changed_inside(
    path: Path,
    rng: random.Random,
    damage_text: Callable[[bytearray], bytearray],
    damage_bytes: Callable[[bytearray], bytearray],
) -> bytes | None:
    """The bytes of a .stash with one to three of its parts changed, under right checksums; None if it is none.

    Parameters
    ----------
    path : Path
    rng : Random
    damage_text : callable
        Puts another value in the place of one of JSON.
    damage_bytes : callable
        Any damage to a payload.
    """
    with ByteFile(str(path)) as source:
        try:
            head = read_head(source)
        except FormatError:
            return None
        segments = list(scan_segments(source, head.data_offset).segments)
        payloads = [source.read(s.payload_offset, s.payload_bytes) for s in segments]
        raw = source.read(0, head.data_offset)
    for _ in range(rng.choice([1, 1, 2, 3])):
        if rng.random() < 0.25 or not segments:
            raw = _head(raw, rng, damage_text)
            continue
        at = rng.randrange(len(segments))
        kind = rng.randrange(4)
        if kind == 0:
            segments[at] = _numbered_otherwise(segments[at], rng)
        elif kind == 1:
            payloads[at] = bytes(damage_bytes(bytearray(payloads[at])))
        else:
            segments[at], payloads[at] = _odd_rows(segments[at], payloads[at], head, rng)
    return raw + b"".join(
        pack_segment(
            payload,
            record_id=s.record_id,
            codec=s.codec,
            tid=s.tid,
            ring_id=s.ring_id,
            row_count=s.row_count,
            first_sequence=s.first_sequence,
        )
        for s, payload in zip(segments, payloads, strict=True)
    )


def _head(raw: bytes, rng: random.Random, damage_text: Callable[[bytearray], bytearray]) -> bytes:
    """Field table or metadata with another value in them, and its header."""
    magic, major, minor, header_bytes, table_bytes, metadata_bytes, _, _, flags = FILE_HEADER.unpack(
        raw[: FILE_HEADER.size]
    )
    table = bytearray(raw[header_bytes : header_bytes + table_bytes])
    facts = bytearray(raw[header_bytes + table_bytes : header_bytes + table_bytes + metadata_bytes])
    if rng.random() < 0.3:
        table = damage_text(table)
    else:
        facts = damage_text(facts)
    text = bytes(table + facts)
    offset = (header_bytes + len(text) + 7) & ~7
    flags ^= int(rng.random() < 0.1)
    sizes = (header_bytes, len(table), len(facts))
    header = FILE_HEADER.pack(magic, major, minor, *sizes, offset, zlib.crc32(text), flags)
    return (header + raw[FILE_HEADER.size : header_bytes] + text).ljust(offset, b"\0")


def _numbered_otherwise(segment: Segment, rng: random.Random) -> Segment:
    """Another number in the header of a segment."""
    name = rng.choice(("record_id", "codec", "tid", "ring_id", "row_count", "first_sequence"))
    limit = {"codec": 0xFFFF, "record_id": 0xFFFF, "first_sequence": (1 << 64) - 1}.get(name, 0xFFFFFFFF)
    odd = (0, 1, 2, 3, limit, limit // 2, limit // 2 + 1, rng.randint(0, limit), getattr(segment, name) + 1)
    return segment._replace(**{name: min(rng.choice(odd), limit)})


def _odd_rows(segment: Segment, payload: bytes, head: FileHead, rng: random.Random) -> tuple[Segment, bytes]:
    """Odd numbers in fields of some rows; the payload is then as it was recorded, not packed."""
    layout = layouts(head.records).get(segment.record_id)
    if layout is None:
        return segment, payload
    try:
        rows = decode(segment.codec, payload, segment.row_count, layout.dtype).copy()
    except FormatError:
        return segment, payload
    if not len(rows) or not rows.dtype.names:
        return segment, payload
    for _ in range(rng.randint(1, _MOST_ROWS_CHANGED)):
        name = rng.choice(rows.dtype.names)
        chosen = slice(None) if rng.random() < 0.2 else rng.randrange(len(rows))
        rows[name][chosen] = odd_value(rows.dtype[name], rng, rows[name][0])
    return segment._replace(codec=0, row_count=len(rows)), rows.tobytes()


def odd_value(dtype: np.dtype[np.generic], rng: random.Random, usual: object = 0) -> object:
    """A value of this type that code may not expect; ``usual``: one that it does."""
    if dtype.kind == "S":
        return rng.randbytes(rng.randint(0, dtype.itemsize))
    if dtype.kind == "f":
        return rng.choice([0.0, -1.0, float("nan"), float("inf"), 1e308, 5e-324])
    limits = np.iinfo(dtype)  # type: ignore[type-var]
    near = int(usual) + rng.choice([-1, 1, 1_000, 10**6, 10**9, 10**15])  # type: ignore[call-overload]
    bits = rng.getrandbits(limits.bits) + int(limits.min)
    odd = [0, 1, 2, limits.max, limits.min, limits.max // 2, limits.max // 2 + 1, (1 << 62) - 1, near, near, bits]
    return fitting(dtype, rng.choice(odd))


def fitting(dtype: np.dtype[np.generic], value: int) -> int:
    """The number nearest to a value that an integer of this type can hold."""
    limits = np.iinfo(dtype)  # type: ignore[type-var]
    return min(int(limits.max), max(int(limits.min), value))


def changed_columns(path: Path, rng: random.Random) -> bytes | None:
    """The bytes of a Parquet file with other values, types or columns; None if it is none."""
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(path).read(use_threads=False)
    except (OSError, pyarrow.ArrowException):
        return None
    for _ in range(rng.choice([1, 1, 2, 3])):
        at = rng.randrange(table.num_columns)
        field, column = table.schema.field(at), table.column(at)
        kind = rng.randrange(6)
        if kind == 0:
            table = table.remove_column(at) if table.num_columns > 1 else table
            continue
        if kind == 1:
            odd: object = rng.choice([[None], ["x"], [1.5], [[1]], [True], [b"\xff"]])
            changed = pyarrow.array(list(odd) * len(column))  # type: ignore[call-overload]
        elif kind == 2:
            changed = pyarrow.array([None if rng.random() < 0.5 else v for v in column.to_pylist()], field.type)
        elif pyarrow.types.is_integer(field.type) or pyarrow.types.is_floating(field.type):
            values = column.to_numpy().copy()
            for place in range(len(values)):
                if rng.random() < 0.3:
                    values[place] = odd_value(values.dtype, rng, values[0])
            changed = pyarrow.array(values)
        else:
            odd_text = rng.choice(["", "\0", "\x1b[2J", "9" * 400, "1,2,-3", "999999999999", "é" * 50])
            changed = pyarrow.array([odd_text] * len(column))
        table = table.set_column(at, field.with_type(changed.type), changed)
    with pyarrow.BufferOutputStream() as sink:
        pyarrow.parquet.write_table(table, sink)
        return bytes(sink.getvalue())
