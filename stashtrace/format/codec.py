"""Payload of a segment <-> rows, for each codec of ``csrc/schema/container.h``.

The columnar codec is native. Rows with texts are few, and
zlib packs them here.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stashtrace import _native
from stashtrace.errors import FormatError
from stashtrace.format.container import MAX_SEGMENT_ROWS, Codec

Bytes = npt.NDArray[np.uint8]

#: Higher levels take ten times as long and save less than a percent.
_ZLIB_LEVEL = 6
#: Rows on which both ways to pack texts are tried.
_SAMPLE_ROWS = 1024


def encode(rows: npt.NDArray[np.void], raw: bytes | None = None) -> tuple[Codec, bytes]:
    """Codec and payload that take the least room; ``raw`` are the bytes of the rows, if the caller has them."""
    raw = rows.tobytes() if raw is None else raw
    if _text_fields(rows.dtype):
        sample = rows[:_SAMPLE_ROWS]
        texts, turned = _pack_texts(sample), _pack_turned(sample)
        if texts is not None and len(texts) <= len(turned) and (packed := _pack_texts(rows)) is not None:
            codec = Codec.TEXTS
        else:
            codec, packed = Codec.DEFLATE_TURNED, _pack_turned(rows)
    else:
        codec = Codec.COLUMNS
        packed = _native.column_codec.encode(raw, rows.dtype.itemsize, _number_fields(rows.dtype))
    return (codec, packed) if len(packed) < len(raw) else (Codec.RAW, raw)


def decode(codec: int, payload: bytes, row_count: int, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """Rows of a payload.

    Raises FormatError if the payload does not hold exactly ``row_count`` rows, or the codec is unknown.
    """
    data: Any
    if codec == Codec.RAW:
        data = payload
    elif row_count > MAX_SEGMENT_ROWS:
        raise FormatError(f"segment of {row_count} packed rows")
    elif codec == Codec.COLUMNS:
        data = _columns(payload, dtype.itemsize, row_count)
    elif codec == Codec.TEXTS:
        data = _unpack_texts(payload, row_count, dtype)
    elif codec == Codec.DEFLATE_TURNED:
        data = _inflate(payload, row_count * dtype.itemsize)
        if len(data) == row_count * dtype.itemsize:
            matrix = np.frombuffer(data, dtype=np.uint8).reshape(dtype.itemsize, row_count)
            data = np.ascontiguousarray(matrix.T).reshape(-1)
    else:
        raise FormatError(f"segment of unknown codec {codec}")
    if len(data) != row_count * dtype.itemsize:
        raise FormatError(f"segment of {len(data)} bytes instead of {row_count * dtype.itemsize}")
    return np.frombuffer(data, dtype=dtype)


# Rows with texts ------------------------------------------------------------------------------------


class _Split(NamedTuple):
    """(offset, size) of the texts of a row, and its other bytes as separate rows."""

    texts: list[tuple[int, int]]
    rest: npt.NDArray[np.intp]
    rest_dtype: np.dtype[np.void]


def _split_texts(dtype: np.dtype[np.void]) -> _Split:
    texts = _text_fields(dtype)
    kept = np.ones(dtype.itemsize, dtype=bool)
    for offset, size in texts:
        kept[offset : offset + size] = False
    moved = np.cumsum(kept) - 1
    names = [n for n in dtype.names or () if dtype[n].kind != "S"]
    assert dtype.fields is not None
    formats = [dtype[n] for n in names]
    offsets = [int(moved[dtype.fields[n][1]]) for n in names]
    rest_dtype: np.dtype[np.void] = np.dtype(
        {"names": names, "formats": formats, "offsets": offsets, "itemsize": int(kept.sum())}
    )
    return _Split(texts, np.flatnonzero(kept), rest_dtype)


def _matrix(rows: npt.NDArray[np.void]) -> Bytes:
    return np.frombuffer(rows.tobytes(), dtype=np.uint8).reshape(len(rows), rows.dtype.itemsize)


def _pack_texts(rows: npt.NDArray[np.void]) -> bytes | None:
    """Payload of codec TEXTS; None if a text has a zero byte inside."""
    split, matrix = _split_texts(rows.dtype), _matrix(rows)
    listed: list[bytes] = []
    for offset, size in split.texts:
        column: list[bytes] = np.ascontiguousarray(matrix[:, offset : offset + size]).view(f"S{size}")[:, 0].tolist()
        listed += column
    joined = b"".join(text + b"\0" for text in listed)
    if joined.count(0) != len(listed):
        return None
    size = len(split.rest)
    numbers = b""
    if size:
        numbers = _native.column_codec.encode(matrix[:, split.rest].tobytes(), size, _number_fields(split.rest_dtype))
    return struct.pack("<I", len(numbers)) + numbers + zlib.compress(joined, _ZLIB_LEVEL)


def _unpack_texts(payload: bytes, row_count: int, dtype: np.dtype[np.void]) -> Bytes:
    if len(payload) < 4:
        raise FormatError("segment of texts ends early")
    numbers_end = 4 + struct.unpack_from("<I", payload)[0]
    split = _split_texts(dtype)
    out = np.zeros((row_count, dtype.itemsize), dtype=np.uint8)
    if len(split.rest):
        numbers = _columns(payload[4:numbers_end], len(split.rest), row_count)
        out[:, split.rest] = numbers.reshape(row_count, len(split.rest))
    longest = sum(size + 1 for _, size in split.texts) * row_count
    texts = _inflate(payload[numbers_end:], longest).split(b"\0")
    if len(texts) != len(split.texts) * row_count + 1 or texts[-1]:
        raise FormatError("segment does not hold one text a row")
    for n, (offset, size) in enumerate(split.texts):
        texts_of_column = texts[n * row_count : (n + 1) * row_count]
        if max(map(len, texts_of_column), default=0) > size:
            raise FormatError("segment holds a text that is too long")
        column = np.array(texts_of_column, dtype=f"S{size}")
        out[:, offset : offset + size] = np.frombuffer(column.tobytes(), dtype=np.uint8).reshape(row_count, size)
    return out.reshape(-1)


def _pack_turned(rows: npt.NDArray[np.void]) -> bytes:
    return zlib.compress(np.ascontiguousarray(_matrix(rows).T).tobytes(), _ZLIB_LEVEL)


# Shared ------------------------------------------------------------------------------------


def _inflate(data: bytes, longest: int) -> bytes:
    """Inflated bytes, at most one more than ``longest``: a damaged length must not fill the memory."""
    try:
        return zlib.decompressobj().decompress(data, longest + 1)
    except zlib.error as error:
        raise FormatError(f"segment does not inflate: {error}") from error


def _columns(payload: bytes, row_bytes: int, row_count: int) -> Bytes:
    try:
        return _native.column_codec.decode(payload, row_bytes, row_count)
    except ValueError as error:
        raise FormatError(str(error)) from error


def _text_fields(dtype: np.dtype[np.void]) -> list[tuple[int, int]]:
    assert dtype.fields is not None
    return [(dtype.fields[n][1], dtype[n].itemsize) for n in dtype.names or () if dtype[n].kind == "S"]


def _number_fields(dtype: np.dtype[np.void]) -> list[tuple[int, int, bool]]:
    """(offset, size, signed) of each field; bytes no field covers become separate fields."""
    assert dtype.fields is not None
    known = sorted((dtype.fields[n][1], dtype[n].itemsize, dtype[n].kind == "i") for n in dtype.names or ())
    fields: list[tuple[int, int, bool]] = []
    position = 0
    for offset, size, signed in [*known, (dtype.itemsize, 0, False)]:
        fields += [(at, 1, False) for at in range(position, offset)]
        if size and offset >= position:
            fields.append((offset, size, signed))
            position = offset + size
    return fields
