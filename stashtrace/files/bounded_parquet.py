"""Decode Parquet files whose size in memory their description bounds: repeated values need nearly no space in one.

Values of a fixed width are counted by the description of the columns, and what pages unpack to by their sizes. A text
that is decoded by itself may be as long as all of its column: where that could be too much, rows are read in batches.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stashtrace.errors import FormatError
from stashtrace.files.whole_files import FREE_BYTES, MOST_EXPANSION, open_regular
from stashtrace.text.units import bytes_text

if TYPE_CHECKING:
    import pyarrow

#: Bytes of a value by its physical type. Of a text or a list of bytes: its place, or its number in a dictionary.
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12, "BYTE_ARRAY": 8}


class TooLargeError(FormatError):
    """A Parquet file that would take more memory than any of its size needs."""


def damage_errors() -> tuple[type[Exception], ...]:
    """Return what a damaged file raises: pyarrow cannot decode its own message where that quotes bytes of the file."""
    import pyarrow

    return OSError, TooLargeError, UnicodeDecodeError, pyarrow.ArrowException


@contextmanager
def parquet_file(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open a regular file as a ``pyarrow.parquet.ParquetFile``, and require that its description is within bounds."""
    import pyarrow
    import pyarrow.parquet

    with (
        pyarrow.PythonFile(os.fdopen(open_regular(path), "rb"), mode="r") as opened,
        pyarrow.parquet.ParquetFile(opened, pre_buffer=False) as file,
    ):
        yield file


def read_parquet(file: Any, size_bytes: int, columns: Sequence[str] | None = None) -> pyarrow.Table:
    """Return some columns of a file of this many bytes; raise TooLargeError before more memory is used than it may."""
    import pyarrow

    most_bytes = max(FREE_BYTES, MOST_EXPANSION * size_bytes)
    decoded, texts = _decoded_bytes(file, columns)
    _require(decoded, most_bytes)
    if decoded + sum(longest * count for longest, count in texts) <= most_bytes:
        return file.read(columns=columns, use_threads=False)
    rows = max(1, FREE_BYTES // max(longest for longest, _ in texts))
    batches, held_bytes = [], 0
    for batch in file.iter_batches(batch_size=rows, columns=columns, use_threads=False):
        batches.append(batch)
        held_bytes += batch.nbytes
        _require(held_bytes, most_bytes)
    return pyarrow.Table.from_batches(batches, schema=batches[0].schema if batches else None)


def _require(decoded_bytes: int, most_bytes: int) -> None:
    if decoded_bytes > most_bytes:
        raise TooLargeError(
            f"it would take {bytes_text(decoded_bytes)} of memory, which no file of its size does",
            hint="no tool writes such files: copy it again from where it was written, or leave it out",
        )


def _decoded_bytes(file: Any, columns: Sequence[str] | None) -> tuple[int, list[tuple[int, int]]]:
    """Return the bytes of pages and values; of each part with texts the longest that can be in it, and how many."""
    described = file.metadata
    kept = {f.name for f in file.schema_arrow if str(f.type).startswith("dictionary")}
    decoded, texts = 0, []
    for group in map(described.row_group, range(described.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            name = chunk.path_in_schema.partition(".")[0]
            if columns is not None and name not in columns:
                continue
            width = _WIDTHS.get(chunk.physical_type) or file.schema.column(_place(described, chunk)).length
            count = max(chunk.num_values, group.num_rows)
            decoded += chunk.total_uncompressed_size + count * width
            if chunk.physical_type == "BYTE_ARRAY" and name not in kept:
                texts.append((max(chunk.total_uncompressed_size, 1), count))
    return decoded, texts


def _place(described: Any, chunk: Any) -> int:
    names = [described.schema.column(at).path for at in range(described.num_columns)]
    return names.index(chunk.path_in_schema)
