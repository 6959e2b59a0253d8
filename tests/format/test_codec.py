"""Codec round trips are exact for any rows; malformed payloads are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stashtrace import _native
from stashtrace.errors import FormatError
from stashtrace.format.codec import decode, encode
from stashtrace.format.container import MAX_SEGMENT_ROWS, Codec
from stashtrace.format.project import current_layouts

ROW = np.dtype([("a", "<u8"), ("b", "<i8"), ("c", "<u4"), ("d", "<i4"), ("op_code", "<u2"), ("e", "<u2"), ("f", "<f8")])
_SIZES = [0, 1, 2, 15, 16, 17, 255, 256, 257, 1000]


def column(draw: st.DrawFn, rng: np.random.Generator, dtype: np.dtype[np.generic], count: int) -> np.ndarray:
    """A column as programs make them: constant, counting, jumping, any bits, small, rare outliers."""
    bits = dtype.itemsize * 8
    kind = draw(st.sampled_from(["constant", "count", "walk", "bits", "few", "outliers", "loop", "pages"]))
    if kind == "constant":
        return np.full(count, draw(st.integers(0, 2**bits - 1)), dtype=np.uint64)
    if kind == "count":
        return np.arange(count, dtype=np.uint64) * np.uint64(draw(st.integers(0, 2**40)))
    if kind == "walk":
        return np.cumsum(rng.integers(0, 5000, count)).astype(np.uint64)
    if kind == "bits":
        return np.frombuffer(rng.bytes(8 * count), dtype=np.uint64)
    if kind == "few":
        return rng.integers(0, 5, count).astype(np.uint64)
    if kind == "outliers":
        rare = rng.random(count) < 0.02
        return np.where(rare, rng.integers(0, 2**62, count), rng.integers(0, 9, count)).astype(np.uint64)
    if kind == "pages":
        return rng.integers(0, 2**20, count).astype(np.uint64) << np.uint64(12)
    return np.resize(np.array([9, 12, 11, 1, 1, 10], dtype=np.uint64), count)


@st.composite
def rows(draw: st.DrawFn) -> np.ndarray:
    count = draw(st.sampled_from(_SIZES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    out = np.zeros(count, dtype=ROW)
    for name in ROW.names:
        values = column(draw, rng, ROW[name], count)
        kind = ROW[name]
        out[name] = values.view("<f8") if kind.kind == "f" else values.astype(f"<u{kind.itemsize}").view(kind)
    return out


@settings(max_examples=150, deadline=None)
@given(rows())
def test_columns_come_back_bit_by_bit(given_rows: np.ndarray) -> None:
    packed = _native.column_codec.encode(given_rows.tobytes(), ROW.itemsize, fields(ROW))
    back = _native.column_codec.decode(packed, ROW.itemsize, len(given_rows))
    assert back.tobytes() == given_rows.tobytes()
    codec, payload = encode(given_rows)
    assert decode(codec, payload, len(given_rows), ROW).tobytes() == given_rows.tobytes()
    assert len(payload) <= given_rows.nbytes


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 300))
def test_any_bytes_are_refused_or_decoded_never_worse(payload: bytes, count: int) -> None:
    for codec in (*Codec, 7):
        try:
            assert len(decode(codec, payload, count, ROW)) == count
        except FormatError:
            continue


@settings(max_examples=20, deadline=None)
@given(rows(), st.integers(0, 2**32))
def test_damaged_columns_are_refused_or_other_rows(given_rows: np.ndarray, seed: int) -> None:
    """The checksum catches damage before; the decoder alone must still stay within its bounds."""
    packed = bytearray(_native.column_codec.encode(given_rows.tobytes(), ROW.itemsize, fields(ROW)))
    rng = np.random.default_rng(seed)
    for _ in range(40):
        data = bytearray(packed)
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        for payload in (bytes(data), bytes(data[: rng.integers(len(data))])):
            try:
                assert len(_native.column_codec.decode(payload, ROW.itemsize, len(given_rows))) == given_rows.nbytes
            except ValueError:
                continue


def fields(dtype: np.dtype[np.void]) -> list[tuple[int, int, bool]]:
    return [(dtype.fields[n][1], dtype[n].itemsize, dtype[n].kind == "i") for n in dtype.names]


@pytest.mark.parametrize(
    "bad",
    [
        [(0, 8, False)],
        [(0, 8, False), (8, 16, False)],
        [(0, 8, False), (4, 8, False), (12, 4, False)],
        [(0, 8, False), (8, 3, False), (11, 5, False)],
        [(0, 8, False), (12, 8, False)],
    ],
)
def test_fields_must_cover_the_row(bad: list[tuple[int, int, bool]]) -> None:
    with pytest.raises(ValueError, match="field"):
        _native.column_codec.encode(bytes(160), 16, bad)


def test_bytes_that_no_field_covers_survive() -> None:
    dtype = np.dtype({"names": ["x"], "formats": ["<u4"], "offsets": [3], "itemsize": 9})
    raw = np.random.default_rng(1).bytes(9 * 300)
    codec, payload = encode(np.frombuffer(raw, dtype=dtype))
    assert decode(codec, payload, 300, dtype).tobytes() == raw


STRINGS = current_layouts()["string_part"].dtype


def string_parts(texts: list[bytes]) -> np.ndarray:
    return np.array([(i + 1, 0, len(t), t) for i, t in enumerate(texts)], dtype=STRINGS)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([f"/data/train/{i * 7919 % 100003:06}.jpg".encode() for i in range(2000)], Codec.DEFLATE_TURNED),
        (
            [b"/lib/" + b"%x/" % (i * i * 7919) * (i * i % 5) + b"module%d.py" % (i % 50) for i in range(2000)],
            Codec.TEXTS,
        ),
        ([b"an abstract socket\0with a zero inside %d" % i for i in range(500)], Codec.DEFLATE_TURNED),
        ([b"", b"x" * 56] * 50, Codec.TEXTS),
    ],
)
def test_texts(texts: list[bytes], expected: Codec) -> None:
    parts = string_parts(texts)
    codec, payload = encode(parts)
    assert codec is expected
    assert len(payload) < 10 * len(parts)
    assert decode(codec, payload, len(parts), STRINGS).tobytes() == parts.tobytes()
    for count in (len(parts) - 1, len(parts) + 1):
        with pytest.raises(FormatError):
            decode(codec, payload, count, STRINGS)


def test_two_texts_and_gaps_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stashtrace.format.codec._pack_turned", lambda rows: bytes(1 << 20))
    names, formats, offsets = ["a", "x", "b"], ["S56", "<u4", "S56"], [2, 60, 70]
    dtype = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": 128})
    raw = bytearray(np.random.default_rng(1).bytes(128 * 40))
    rows = np.frombuffer(raw, dtype=dtype)
    rows["a"], rows["b"] = b"one", [b"b" * (i % 56) for i in range(40)]
    codec, payload = encode(rows)
    assert codec is Codec.TEXTS
    assert decode(codec, payload, 40, dtype).tobytes() == bytes(raw)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=56), max_size=40))
def test_any_texts_come_back(texts: list[bytes]) -> None:
    parts = string_parts(texts)
    codec, payload = encode(parts)
    assert decode(codec, payload, len(parts), STRINGS).tobytes() == parts.tobytes()


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=100), st.integers(0, 50))
def test_any_bytes_as_texts_are_refused_or_decoded(payload: bytes, count: int) -> None:
    for codec in (Codec.TEXTS, Codec.DEFLATE_TURNED):
        try:
            assert len(decode(codec, payload, count, STRINGS)) == count
        except FormatError:
            continue


def test_absurd_row_counts_are_refused() -> None:
    with pytest.raises(FormatError, match="packed rows"):
        decode(Codec.COLUMNS, b"", MAX_SEGMENT_ROWS + 1, ROW)


def io_rows(count: int) -> np.ndarray:
    """Calls of a loader: open, stat, lseek, read, read, close of files in random order."""
    rng = np.random.default_rng(0)
    files = count // 6
    out = np.zeros(files * 6, dtype=current_layouts()["io_op"].dtype)
    out["path_id"] = np.repeat(rng.permutation(files) + 1, 6)
    out["op_code"] = np.tile([9, 12, 11, 1, 1, 10], files)
    size = rng.integers(10_000, 73_000, files)
    out["offset_bytes"] = np.tile([-1, -1, 0, 0, 0, -1], files)
    out["offset_bytes"][4::6] = size
    out["result_bytes"][3::6] = size
    out["duration_ticks"] = np.tile([4000, 900, 700, 9000, 800, 1500], files) * rng.gamma(9, 1 / 9, len(out))
    gap = np.tile([500, 3000, 900, 600, 900, 900_000], files) * rng.gamma(4, 1 / 4, len(out))
    out["begin_ticks"] = np.cumsum(out["duration_ticks"].astype(np.int64) + gap.astype(np.int64)) + 10**12
    return out


def test_eight_bytes_a_call() -> None:
    loader = io_rows(60_000)
    assert len(encode(loader)[1]) / len(loader) < 6


def test_finds_what_belongs_together_without_hints() -> None:
    """Next begin from the last duration, next offset from the last bytes: no noise, no bits. End from begin."""
    dtype = np.dtype([("begin", "<u8"), ("end", "<u8"), ("offset", "<i8"), ("size", "<u4"), ("duration", "<u4")])
    rng = np.random.default_rng(2)
    out = np.zeros(20_000, dtype=dtype)
    out["duration"] = rng.integers(1000, 2000, len(out))
    out["begin"] = np.concatenate(([10**15], 10**15 + np.cumsum(out["duration"].astype(np.int64)[:-1] + 17)))
    out["end"] = out["begin"] + out["duration"]
    out["size"] = rng.integers(0, 4096, len(out))
    out["offset"] = np.concatenate(([0], np.cumsum(out["size"].astype(np.int64))[:-1]))
    assert len(encode(out)[1]) * 8 / len(out) < 10 + 10 + 12 + 1
