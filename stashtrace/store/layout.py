"""Files and folders of a store, and the Arrow form of a table.

    STORE/stashtrace-store.json            format, version, ranks, rows of each table
    STORE/kernels/rank=3/part-0.parquet    rows of table ``kernels`` of rank 3, without the column ``rank``
    STORE/losses/rank=-1/part-0.parquet    rows of no rank

The folders are Hive partitions: pyarrow, DuckDB, polars and Spark read a table with its rank as a column. Texts are
dictionaries, so each file can be read alone; ``name_code`` becomes ``name``. Unit and meaning are in the metadata of a
column.
pyarrow is imported on use.
"""

from __future__ import annotations

import functools
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stashtrace.errors import FormatError, StashtraceError, UnsupportedVersionError
from stashtrace.files.run_facts import json_object
from stashtrace.files.whole_files import read_whole
from stashtrace.schema.columns import Column, Schema
from stashtrace.schema.events import TABLES
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.possible import HIGHEST
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Array, Table

if TYPE_CHECKING:
    import pyarrow

STORE_FILE = "stashtrace-store.json"
PART_FILE = "part-0.parquet"
VERSION = 1
#: Partition of what belongs to no rank.
NO_RANK = -1
#: Columns that number the rows of ``tracks`` and ``processes``.
TRACK, PROCESS = "track_id", "process_id"
#: The most rows of a small file.
_SMALL_ROWS = 1 << 14


def is_store(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a store."""
    return os.path.isfile(os.path.join(path, STORE_FILE))


def read_facts(path: Path) -> dict[str, Any]:
    """Content of the store's file.

    Raises FormatError if it is damaged, or the export did not end. Raises UnsupportedVersionError if a newer stashtrace
    wrote it.
    """
    file = path / STORE_FILE
    try:
        facts = json_object(read_whole(file))
        version = int(facts["version"])
        facts["ranks"] = [int(rank) for rank in facts.get("ranks", [])]
        facts["rows"] = {str(name): int(count) for name, count in dict(facts.get("rows", {})).items()}
        if not all(-1 <= number <= HIGHEST for number in (*facts["ranks"], *facts["rows"].values())):
            raise ValueError("a number that no store has")
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise FormatError(f"{file} is not a description of a store: {error}", hint="export the run again") from error
    if version > VERSION:
        raise UnsupportedVersionError(f"{path} is a store of version {version}, this stashtrace reads {VERSION}")
    return facts


def partition(path: Path, table: str, rank: int) -> Path:
    """File of one table of one rank."""
    return Path(partition_of(path / table, rank))


def partition_of(folder: str | Path, rank: int) -> str:
    """File of one rank in the folder of a table; as text, since a store of many ranks has very many."""
    return f"{folder}{os.sep}rank={rank}{os.sep}{PART_FILE}"


def require_pyarrow() -> None:
    """Raise StashtraceError if pyarrow is not there."""
    if find_spec("pyarrow") is None:
        raise StashtraceError("a store of Parquet files needs pyarrow", hint="pip install 'stashtrace[arrow]'")


def to_arrow(table: Table, strings: StringPool) -> pyarrow.Table:
    """Arrow form of a table, without its column ``rank``."""
    import pyarrow

    fields, arrays = [], []
    for column in _columns_to_keep(table.schema):
        values = table[column.name]
        if column.is_text:
            codes = GroupBy(values)
            texts = pyarrow.array(map(strings.text, codes.values.tolist()), pyarrow.string())
            array = pyarrow.DictionaryArray.from_arrays(codes.number.astype(np.int32), texts)
        elif values.dtype.kind == "U":
            array = pyarrow.array(values.tolist(), pyarrow.string())
        else:
            array = pyarrow.array(values)
        note = {"doc": column.meaning} | ({"unit": column.unit} if column.unit else {})
        fields.append(pyarrow.field(column.shown_name, array.type, metadata=note))
        arrays.append(array)
    return pyarrow.Table.from_arrays(
        arrays, schema=pyarrow.schema(fields, metadata={"stashtrace.table": table.schema.name})
    )


def from_arrow(content: pyarrow.Table, schema: Schema, rank: Array, strings: StringPool) -> Table:
    """Table from its Arrow form, with the rank of each row.

    A column that the file lacks gets its missing value, an unknown one is left out. Raises pyarrow.ArrowException if a
    column has another type, or a number that does not fit.
    """
    columns: dict[str, Any] = {}
    given = dict(zip(content.column_names, content.columns, strict=True))
    for name, arrow, dtype, missing, kind in _arrow_columns(schema.name):
        values = given.get(arrow)
        if name == "rank":
            columns["rank"] = rank.astype(dtype)
        elif values is None:
            columns[name] = np.full(len(content), missing, dtype=dtype)
        elif kind is None:
            columns[name] = _codes(values, strings)
        elif dtype.kind == "U":
            columns[name] = np.array(values.cast(kind).fill_null(missing).to_pylist(), dtype=dtype)
        else:
            values = values if values.type == kind else values.cast(kind)
            columns[name] = (values.fill_null(missing) if values.null_count else values).to_numpy()
    return Table(schema, columns)


@functools.cache
def _arrow_columns(table: str) -> tuple[tuple[str, str, np.dtype[Any], int | str, pyarrow.DataType | None], ...]:
    """Name, name in Arrow, type, missing value, and type in Arrow (None for codes) of each column of a table.

    Kept, because a store has as many files of a table as ranks.
    """
    import pyarrow

    def kind(column: Column) -> pyarrow.DataType | None:
        if column.is_text:
            return None
        dtype = np.dtype(column.dtype)
        return pyarrow.string() if dtype.kind == "U" else pyarrow.from_numpy_dtype(dtype)

    return tuple(
        (c.name, c.shown_name, np.dtype(c.dtype), "" if c.dtype.startswith("U") else c.missing, kind(c))
        for c in TABLES[table].columns
    )


def parquet_options(schema: Schema, rows_count: int) -> dict[str, Any]:
    """How ``pyarrow.parquet.write_table`` should encode: rising times as differences, texts as dictionaries.

    A store of many ranks has many small files, and zstd takes longer to set up for each of their columns than all else
    that is done to read them; snappy makes them no larger.
    """
    texts = [c.shown_name for c in _columns_to_keep(schema) if c.is_text or c.dtype.startswith("U")]
    whole = [c.name for c in _columns_to_keep(schema) if not c.is_text and c.dtype in ("i8", "i4")]
    return {
        "compression": "zstd" if rows_count > _SMALL_ROWS else "snappy",
        "use_dictionary": texts,
        "column_encoding": dict.fromkeys(whole, "DELTA_BINARY_PACKED"),
    }


def _columns_to_keep(schema: Schema) -> list[Column]:
    return [c for c in schema.columns if c.name != "rank"]


def _codes(column: pyarrow.ChunkedArray, strings: StringPool) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Codes of a dictionary column, whose chunks may have separate dictionaries."""
    import pyarrow

    parts = [np.empty(0, dtype=np.int64)]
    for chunk in column.chunks:
        plain = not isinstance(chunk, pyarrow.DictionaryArray) or chunk.null_count or chunk.dictionary.null_count
        array = chunk.cast(pyarrow.string()).fill_null("").dictionary_encode() if plain else chunk
        known = strings.codes(array.dictionary.cast(pyarrow.string()).to_pylist())
        parts.append(known[array.indices.to_numpy(zero_copy_only=False)] if len(known) else parts[0])
    return np.concatenate(parts)
