"""Table and StringPool: shapes are checked, memory is shared, nothing can be changed."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from stashtrace.model.schemas import COUNTERS, IO, STALLS, TABLES, TRACKS
from stashtrace.model.strings import StringPool
from stashtrace.model.table import Table
from stashtrace.model.trace import EventTables, Trace


def counters(*rows: tuple[int, int, float]) -> Table:
    return Table.from_rows(COUNTERS, rows)


def test_columns_have_the_declared_type_and_order() -> None:
    table = Table(COUNTERS, {"value": [1, 2], "ts_ns": [5, 6], "track_id": np.array([0, 0], dtype=np.int16)})
    assert table.columns == ("ts_ns", "track_id", "value")
    assert [table[n].dtype.str for n in table.columns] == ["<i8", "<i8", "<f8"]
    assert len(table) == 2
    assert "ts_ns" in table
    assert "other" not in table


@pytest.mark.parametrize(
    "columns",
    [
        {"ts_ns": [1], "track_id": [1]},
        {"ts_ns": [1], "track_id": [1], "value": [1], "more": [1]},
        {"ts_ns": [1, 2], "track_id": [1], "value": [1]},
        {"ts_ns": [[1]], "track_id": [[1]], "value": [[1]]},
    ],
)
def test_wrong_columns_are_refused(columns: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="counters"):
        Table(COUNTERS, columns)


def test_same_memory_and_read_only() -> None:
    own = np.arange(3)
    table = Table(COUNTERS, {"ts_ns": own, "track_id": own, "value": np.zeros(3)})
    assert np.shares_memory(table["ts_ns"], own)
    with pytest.raises(ValueError, match="read-only"):
        table["ts_ns"][0] = 7
    own[0] = 9  # the giver's array stays writable
    assert Table.concat(COUNTERS, [table]) is table


def test_rows_and_empty() -> None:
    table = counters((1, 2, 0.5), (3, 4, 1.5))
    assert list(table.rows()) == [{"ts_ns": 1, "track_id": 2, "value": 0.5}, {"ts_ns": 3, "track_id": 4, "value": 1.5}]
    for schema in TABLES.values():
        assert len(Table.empty(schema)) == 0
        assert list(Table.from_rows(schema, []).rows()) == []
        assert Table.empty(schema).sort_by(schema.names[0]).columns == schema.names


def test_take_sort_replace_concat() -> None:
    table = counters((3, 1, 0.0), (1, 1, 1.0), (2, 0, 2.0))
    assert table.sort_by("track_id", "ts_ns")["value"].tolist() == [2.0, 1.0, 0.0]
    assert table.take(table["track_id"] == 1)["ts_ns"].tolist() == [3, 1]
    assert table.take(np.array([2]))["ts_ns"].tolist() == [2]
    assert table.replace(value=[7, 8, 9])["value"].tolist() == [7.0, 8.0, 9.0]
    assert len(Table.concat(COUNTERS, [table, table, Table.empty(COUNTERS)])) == 6
    assert len(Table.concat(COUNTERS, [])) == 0


def test_to_numpy_has_named_fields() -> None:
    array = counters((1, 2, 0.5)).to_numpy()
    assert array.dtype.names == ("ts_ns", "track_id", "value")
    assert array[0].tolist() == (1, 2, 0.5)


def test_arrow_shares_memory_of_numbers_and_reads_texts() -> None:
    pytest.importorskip("pyarrow")
    own = np.arange(1000)
    table = Table(COUNTERS, {"ts_ns": own, "track_id": own, "value": np.zeros(1000)})
    arrow = table.to_arrow()
    address = arrow.column("ts_ns").chunk(0).buffers()[1].address
    assert address == own.ctypes.data
    assert arrow.column_names == list(table.columns)
    stalls = Table.from_rows(STALLS, [(0, 0, "fetch", 5, "host", 5, 5, -1, -1.0)])
    assert stalls.to_arrow().column("kind").to_pylist() == ["fetch"]
    assert str(stalls.to_arrow().schema.field("kind").type) == "string"


def test_arrow_keeps_narrow_types() -> None:
    pytest.importorskip("pyarrow")
    schema = Table.empty(IO).to_arrow().schema
    assert str(schema.field("op_code").type) == "int16"
    assert str(Table.empty(TABLES["collectives"]).to_arrow().schema.field("group_hash").type) == "uint64"


def test_pandas_shares_memory() -> None:
    pytest.importorskip("pandas")
    own = np.arange(1000)
    table = Table(COUNTERS, {"ts_ns": own, "track_id": own + 1, "value": np.zeros(1000)})
    frame = table.to_pandas()
    assert np.shares_memory(frame["ts_ns"].to_numpy(), own)
    assert list(frame.columns) == list(table.columns)


def test_string_pool() -> None:
    pool = StringPool(["a", "b", "a"])
    assert [pool.code(t) for t in ("", "a", "b", "c", "a")] == [0, 1, 2, 3, 1]
    assert (pool.find("b"), pool.find("zebra")) == (2, -1)
    assert pool.codes(["c", "new"]).tolist() == [3, 4]
    assert pool.texts(np.array([[1, 0], [4, 2]])).tolist() == [["a", ""], ["new", "b"]]
    assert list(pool) == ["", "a", "b", "c", "new"]
    assert len(pool) == 5
    assert pool.codes([]).dtype == np.int64


def test_trace_tables_are_there_even_if_empty() -> None:
    trace = Trace(StringPool(), {"tracks": Table.from_rows(TRACKS, [(0, 0, 1, 7, 0, 0, 0)])}, path="x")
    assert len(trace.tracks) == 1
    assert len(trace.io) == 0
    assert trace.io is trace.io
    assert trace.ranks.tolist() == []
    assert len(trace.replace(counters=counters((1, 2, 3.0))).counters) == 1
    with pytest.raises(AttributeError, match=r"no table 'steps': .* phases, .* stashtrace.analyze\(trace, 'steps'\)"):
        _ = trace.steps
    with pytest.raises(KeyError, match="no table 'steps'"):
        trace.table("steps")
    with pytest.raises(KeyError, match="table tracks has no column 'rank'; it has track_id, process_id"):
        _ = trace.tracks["rank"]
    assert not hasattr(trace, "_repr_html_")
    with pytest.raises(ValueError, match="unknown"):
        EventTables(StringPool(), {"nonsense": Table.empty(IO)})
