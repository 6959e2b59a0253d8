"""Payload of a segment <-> rows, for each codec. The columnar one is native (``csrc/kernels/column_codec.h``).

Called by ``reader`` (decode) and ``compact`` (encode).
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace import _native
from stashtrace.errors import FormatError
from stashtrace.format.container import MAX_SEGMENT_ROWS, Codec

#: Above 6 a run's texts take ten times as long and not a percent less room.
_ZLIB_LEVEL = 6
#: Texts by which the way to deflate is chosen.
_SAMPLE_ROWS = 1024
TEXT_CODECS = (Codec.DEFLATE, Codec.DEFLATE_TURNED)


def encode(rows: npt.NDArray[np.void]) -> tuple[Codec, bytes]:
    """Codec and payload that take least room for these rows."""
    raw = rows.tobytes()
    if _holds_text(rows.dtype):
        size = rows.dtype.itemsize
        sample = raw[: _SAMPLE_ROWS * size]
        codec = min(TEXT_CODECS, key=lambda c: len(deflate(c, sample, size)))
        packed = deflate(codec, raw, size)
    else:
        codec = Codec.COLUMNS
        packed = _native.column_codec.encode(raw, rows.dtype.itemsize, _fields(rows.dtype))
    return (codec, packed) if len(packed) < len(raw) else (Codec.RAW, raw)


def deflate(codec: Codec, raw: bytes, row_bytes: int) -> bytes:
    """Rows as one zlib stream, turned or not: numbered paths differ in the same places, other texts do not."""
    if codec is Codec.DEFLATE_TURNED:
        raw = np.ascontiguousarray(np.frombuffer(raw, dtype=np.uint8).reshape(-1, row_bytes).T).tobytes()
    return zlib.compress(raw, _ZLIB_LEVEL)


def decode(codec: int, payload: bytes, row_count: int, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """Rows of a payload.

    Raises
    ------
    FormatError
        If the payload does not hold exactly ``row_count`` rows, or the codec is not known.
    """
    expected = row_count * dtype.itemsize
    if codec == Codec.RAW:
        data: Any = payload
    elif row_count > MAX_SEGMENT_ROWS:
        raise FormatError(f"segment of {row_count} packed rows")
    elif codec == Codec.COLUMNS:
        try:
            data = _native.column_codec.decode(payload, dtype.itemsize, row_count)
        except ValueError as error:
            raise FormatError(str(error)) from error
    elif codec in (Codec.DEFLATE, Codec.DEFLATE_TURNED):
        engine = zlib.decompressobj()
        try:
            data = engine.decompress(payload, expected + 1)
        except zlib.error as error:
            raise FormatError(f"segment does not inflate: {error}") from error
    else:
        raise FormatError(f"segment of unknown codec {codec}")
    if len(data) != expected:
        raise FormatError(f"segment of {len(data)} bytes instead of {expected}")
    if codec == Codec.DEFLATE_TURNED:
        turned = np.frombuffer(data, dtype=np.uint8).reshape(dtype.itemsize, row_count)
        return np.ascontiguousarray(turned.T).reshape(-1).view(dtype)
    return np.frombuffer(data, dtype=dtype)


def _holds_text(dtype: np.dtype[np.void]) -> bool:
    assert dtype.names is not None
    return any(dtype[name].kind == "S" for name in dtype.names)


def _fields(dtype: np.dtype[np.void]) -> list[tuple[int, int, bool]]:
    """(offset, size, signed) of each field; bytes no field covers become fields of their own."""
    assert dtype.names is not None
    assert dtype.fields is not None
    known = sorted((dtype.fields[n][1], dtype[n].itemsize, dtype[n].kind == "i") for n in dtype.names)
    fields: list[tuple[int, int, bool]] = []
    position = 0
    for offset, size, signed in [*known, (dtype.itemsize, 0, False)]:
        fields += [(at, 1, False) for at in range(position, offset)]
        if size and offset >= position:
            fields.append((offset, size, signed))
            position = offset + size
    return fields
