"""Table and StringPool: shapes are checked, memory is shared, nothing can be changed."""

from __future__ import annotations

import numpy as np
import pytest
from builders import MS, TraceBuilder

from stashtrace.analysis.stalls.budget import STALLS
from stashtrace.schema.events import COUNTERS, IO, TABLES, TRACKS
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import GrowingTable, Table
from stashtrace.schema.trace import EventTables, Trace


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
    assert table.lookup("track_id", "value") == {1: 1.0, 0: 2.0}
    assert table.replace(value=[7, 8, 9])["value"].tolist() == [7.0, 8.0, 9.0]
    assert len(Table.concat(COUNTERS, [table, table, Table.empty(COUNTERS)])) == 6
    assert len(Table.concat(COUNTERS, [])) == 0


def test_masks_and_slices_choose_rows() -> None:
    table = counters((3, 1, 0.0), (1, 1, 1.0), (2, 0, 2.0))
    late = table[table["ts_ns"] > 1]
    assert isinstance(late, Table)
    assert late["ts_ns"].tolist() == [3, 2]
    assert table[[False, True, False]]["value"].tolist() == [1.0]
    assert len(table[table["ts_ns"] > 9]) == 0
    assert table[1:]["value"].tolist() == [1.0, 2.0]
    assert np.shares_memory(table[1:]["value"], table["value"])
    assert table["value"].tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(IndexError, match="mask of 2 for table counters, which has 3 rows"):
        table[np.array([True, False])]
    for wrong in (0, np.array([0, 1]), ["ts_ns"], np.zeros((3, 1), dtype=bool), None):
        with pytest.raises(TypeError, match="by a column name, a boolean mask or a slice"):
            table[wrong]  # type: ignore[call-overload]


def test_head_is_the_first_rows() -> None:
    table = counters((3, 1, 0.0), (1, 1, 1.0), (2, 0, 2.0))
    assert table.head(2)["ts_ns"].tolist() == [3, 1]
    assert table.head()["ts_ns"].tolist() == [3, 1, 2]
    assert len(table.head(0)) == 0
    with pytest.raises(ValueError, match="-1 rows"):
        table.head(-1)


def test_repr_shows_the_first_rows_aligned() -> None:
    table = Table.from_rows(
        STALLS, [(0, 10, "fetch", 5_000, "host", 5, 5, -1, -1.0), (0, 11, "straggler", 70, "host", 5, 5, 1, 0.5)]
    )
    lines = repr(table).splitlines()
    assert lines[0] == "Table(stalls: 2 rows x 9 columns)"
    assert lines[1].split() == list(table.columns)
    assert lines[2].split() == ["0", "10", "fetch", "5000", "host", "5", "5", "-1", "-1"]
    assert lines[3].split() == ["0", "11", "straggler", "70", "host", "5", "5", "1", "0.5"]
    ends = [line.index(word) + len(word) for line, word in zip(lines[1:], ("stall_ns", "5000", "70"), strict=True)]
    assert len(set(ends)) == 1  # numbers end below each other
    assert len({line.index(word) for line, word in zip(lines[1:], ("kind", "fetch", "straggler"), strict=True)}) == 1


def test_repr_of_a_large_table_stays_small() -> None:
    own = np.arange(100_000)
    lines = repr(Table(COUNTERS, {"ts_ns": own, "track_id": own, "value": own / 3})).splitlines()
    assert lines[0] == "Table(counters: 100,000 rows x 3 columns)"
    assert len(lines) == 2 + 5 + 1
    assert lines[-1] == "... 99,995 more rows"
    wide = Table.empty(TABLES["matched_collectives"])
    assert repr(wide) == f"Table(matched_collectives: 0 rows x {len(wide.columns)} columns)"
    row = wide.schema, {c.name: [0] for c in wide.schema.columns}
    lines = repr(Table(*row)).splitlines()
    assert max(map(len, lines)) <= 100
    shown = lines[1].split()
    assert shown == list(wide.columns[: len(shown)])
    assert lines[-1] == "... columns not shown: " + ", ".join(wide.columns[len(shown) :])[: 100 - 23 - 4] + " ..."


def test_repr_cuts_and_escapes_long_texts() -> None:
    rows = [(0, 0, "a" * 500 + "\x1b[2J\n", 5, "host", 5, 5, -1, -1.0)]
    lines = repr(Table.from_rows(STALLS, rows)).splitlines()
    assert lines[0] == "Table(stalls: 1 row x 9 columns)"
    assert lines[3:] == ["... columns not shown: cause_share_ratio"]
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in lines[2]


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
    with pytest.raises(ValueError, match="unknown"):
        EventTables(StringPool(), {"nonsense": Table.empty(IO)})


def test_repr_of_a_trace_names_path_ranks_and_tables() -> None:
    build = TraceBuilder()
    for rank in (0, 1, 3):
        build.rank(rank).phase("forward", 0, MS).phase("backward", MS, 2 * MS).io(0, MS, path="/d/a")
    trace = build.trace(path="./first")
    lines = repr(trace).splitlines()
    assert lines[0] == "Trace(./first: 3 ranks (0,1,3))"
    counts = dict(line.split() for line in lines[1:])
    assert counts["phases"] == "6"
    assert counts["io"] == "3"
    assert counts["processes"] == "3"
    assert "kernels" not in counts
    assert repr(Trace(StringPool(), {})) == "Trace(in memory: no ranks, no rows)"


def test_repr_of_a_trace_says_steps_that_the_files_number() -> None:
    build = TraceBuilder()
    build.rank(0)
    for step in (4, 5, 6):
        build.add("numbered_steps", rank=0, step=step)
    assert repr(build.trace()).splitlines()[0] == "Trace(in memory: 1 rank (0), 3 numbered steps)"


def test_repr_of_a_trace_leaves_calls_on_disk() -> None:
    class OnDisk:
        rows_count = 12_345_678

        def whole(self) -> Table:
            raise AssertionError("a preview must not load the calls")

    trace = Trace(StringPool(), {}, path="big", io_outline=OnDisk())  # type: ignore[arg-type]
    assert repr(trace).splitlines()[1].split(maxsplit=2) == ["io", "12,345,678", "(on disk until used)"]


def test_a_table_grows_piece_by_piece() -> None:
    schema = TABLES["waits"]
    pieces = [Table(schema, {name: np.arange(n) + n for name in schema.names}) for n in (3, 0, 7000, 2)]
    growing = GrowingTable(schema)
    for piece in pieces:
        growing.add(piece, len(piece))
    grown, joined = growing.table(), Table.concat(schema, pieces)
    for name in schema.names:
        assert grown[name].dtype == joined[name].dtype
        assert grown[name].tolist() == joined[name].tolist()
        assert not grown[name].flags.writeable
    assert GrowingTable(schema).table() is Table.empty(schema)


def test_chosen_rows_are_a_locked_copy() -> None:
    schema = TABLES["waits"]
    table = Table(schema, {name: np.arange(5) for name in schema.names})
    masked, chosen = table.take(np.array([True, False, True, False, False])), table.take(np.array([4, 0]))
    assert masked["begin_ns"].tolist() == [0, 2]
    assert chosen["begin_ns"].tolist() == [4, 0]
    for part in (masked, chosen):
        with pytest.raises(ValueError, match="read-only"):
            part["begin_ns"][0] = 1
    for wrong in (np.array([True]), np.array([5])):
        with pytest.raises(IndexError):
            table.take(wrong)
    with pytest.raises(ValueError, match="shape"):
        table.take(np.array([[0, 1]]))


def test_an_array_of_the_caller_stays_writable() -> None:
    schema = TABLES["waits"]
    given = {name: np.arange(2) for name in schema.names}
    table = Table(schema, given)
    given["begin_ns"][0] = 9
    assert not table["begin_ns"].flags.writeable
