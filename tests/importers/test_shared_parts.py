"""What importers share in addition to the context: a file's content, limits on numbers, columns, the wire format."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from stashtrace.files.protobuf import fields_of, read_varints, sized
from stashtrace.importers.collective_names import element_bytes
from stashtrace.importers.import_context import is_nested, per_distinct, stretches
from stashtrace.importers.import_limits import HIGHEST, integer_or
from stashtrace.importers.source import Source


def column(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def all_lines(source: Source, longest_bytes: int) -> tuple[list[bytes], int]:
    batches = list(source.lines(longest_bytes))
    return [line for lines, _ in batches for line in lines], sum(count for _, count in batches)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_lines_of_a_file(suffix: str, tmp_path: Path) -> None:
    path, text = tmp_path / f"x{suffix}", b"one\n\ntwo\nthree"
    path.write_bytes(gzip.compress(text) if suffix else text)
    source = Source(path)
    assert all_lines(source, 100) == ([b"one", b"", b"two", b"three"], 0)
    assert source.cut_reason is None


@pytest.mark.parametrize("begin", [b"", b"first\n"])
def test_lines_that_are_too_long_are_counted_once(begin: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(begin + b"x" * (5 << 20) + b"\n" + b"y" * 11 + b"\nlast\n")
    lines, too_long_count = all_lines(Source(path), 10)
    assert lines == [*begin.split(), b"last"]
    assert too_long_count == 2


def test_a_cut_file_gives_what_was_before_and_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    rng = np.random.default_rng(0)
    text = b"\n".join(b"%d" % number for number in rng.integers(0, 1 << 60, 20_000))
    path.write_bytes(gzip.compress(text)[:-2000])
    source = Source(path)
    lines, _ = all_lines(source, 100)
    assert 1000 < len(lines) < 20_000
    assert text.startswith(b"\n".join(lines))
    assert source.cut_reason == "the compressed stream ends early"
    path.write_bytes(gzip.compress(text))
    assert len(all_lines(source, 100)[0]) == 20_000
    assert source.cut_reason is None  # that of the last pass


def test_a_plain_file_is_the_file_itself(tmp_path: Path) -> None:
    path, packed = tmp_path / "x.sqlite", tmp_path / "x.sqlite.gz"
    path.write_bytes(b"content")
    packed.write_bytes(gzip.compress(b"content"))
    with Source(path).plain_file(".sqlite") as plain:
        assert plain == path
    with Source(packed).plain_file(".sqlite") as plain:
        assert plain != packed
        assert plain.suffix == ".sqlite"
        assert plain.read_bytes() == b"content"
    assert not plain.exists()


@pytest.mark.parametrize("odd", [None, "7", 7.0, True, [7], HIGHEST, -HIGHEST, 1 << 70])
def test_integers_of_documents(odd: object) -> None:
    assert integer_or(odd, -1) == -1
    assert integer_or(HIGHEST - 1, -1) == HIGHEST - 1
    assert integer_or(0, -1, lowest=1) == -1


@pytest.mark.parametrize(
    ("name", "size"),
    [("Half", 2), ("c10::BFloat16", 2), ("long int", 8), ("ComplexDouble", 16), ("Float8_e5m2fnuz", 1), ("Tensor", 0)],
)
def test_sizes_of_elements(name: str, size: int) -> None:
    assert element_bytes(name) == size


def test_a_function_is_called_once_per_distinct_value() -> None:
    called: list[int] = []

    def square(value: int) -> int:
        called.append(value)
        return value * value

    assert per_distinct(column(3, 1, 3, 3), square).tolist() == [9, 1, 9, 9]
    assert called == [1, 3]
    assert len(per_distinct(column(), square)) == 0


def test_rows_inside_an_earlier_row_of_their_track() -> None:
    track, begin, end = column(1, 1, 1, 1, 2), column(0, 10, 30, 100, 20), column(50, 20, 40, 110, 25)
    assert is_nested(track, begin, end).tolist() == [False, True, True, False, False]


def test_stretches_end_at_pauses_and_borders() -> None:
    begin, end = column(0, 5, 30, 80), column(20, 10, 40, 90)
    first, end_ns = stretches(begin, end, 30)
    assert (first.tolist(), end_ns.tolist()) == ([0, 3], [40, 90])
    first, end_ns = stretches(begin, end, 30, np.array([False, True, False]))
    assert (first.tolist(), end_ns.tolist()) == ([0, 2, 3], [20, 40, 90])
    assert [len(part) for part in stretches(column(), column(), 30)] == [0, 0]


def test_fields_of_a_message() -> None:
    message = b"\x08\x96\x01" + b"\x12\x02hi" + b"\x19" + bytes(8) + b"\x25" + bytes(4)
    assert list(fields_of(message)) == [(1, 150), (2, b"hi")]
    assert read_varints(b"\x01\x96\x01") == [1, 150]
    assert sized(b"x" * 150) == b"\x96\x01" + b"x" * 150


@pytest.mark.parametrize("damaged", [b"\x08\x96", b"\x12\x05hi", b"\x0b", b"\x08" + b"\xff" * 11])
def test_damaged_messages(damaged: bytes) -> None:
    with pytest.raises(ValueError, match=r"number|field"):
        list(fields_of(damaged))
