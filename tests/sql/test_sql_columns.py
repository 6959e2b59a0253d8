"""Columns in a query: numbers in place, texts for codes, units and meanings next to them."""

from __future__ import annotations

import numpy as np
import pytest

from stashtrace.schema.columns import Column, schema
from stashtrace.schema.events import COUNTERS, TABLES
from stashtrace.schema.kinds import IoOp
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Table
from stashtrace.sql import query as query_of_runs
from stashtrace.sql.query import Texts, describing, query_names, to_arrow

pytest.importorskip("pyarrow")

MIXED = schema(
    "mixed",
    "A column of each kind",
    Column("size_bytes", "i8", "bytes", "how much"),
    Column("path_code", "i8", "", "of the file", role="path"),
    Column("op_code", "i2", "", "", of=IoOp, missing=-1),
    Column("kind", "U8", "", "what"),
    Column("is_late", "?", "", "whether"),
)


def mixed(strings: StringPool, ops: list[int]) -> Table:
    paths = strings.codes(["/b", "/a", "/b"])
    values = {"size_bytes": [5, 6, 7], "path_code": paths, "op_code": ops, "kind": ["x", "", "y"]}
    return Table(MIXED, {**values, "is_late": [True, False, True]})


def test_numbers_and_codes_share_the_memory_of_the_table() -> None:
    own = np.arange(1000)
    table = Table(COUNTERS, {"ts_ns": own, "track_id": own, "value": np.zeros(1000)})
    arrow = to_arrow(table, Texts(StringPool()))
    for name in table.columns:
        assert arrow.column(name).chunk(0).buffers()[1].address == table[name].ctypes.data, name
    strings = StringPool()
    table = mixed(strings, [1, 9, 1])
    arrow = to_arrow(table, Texts(strings))
    for name, shown in (("size_bytes", "size_bytes"), ("path_code", "path"), ("op_code", "op")):
        array = arrow.column(shown).chunk(0)
        indices = array.indices if hasattr(array, "indices") else array
        assert indices.buffers()[1].address == table[name].ctypes.data, name


def test_codes_are_texts_and_names() -> None:
    strings = StringPool(["unused", "/a"])
    arrow = to_arrow(mixed(strings, [IoOp.READ, IoOp.CLOSE, 200]), Texts(strings))
    assert arrow.column_names == ["size_bytes", "path", "op", "kind", "is_late"]
    assert arrow.column("path").to_pylist() == ["/b", "/a", "/b"]
    assert arrow.column("op").to_pylist() == ["read", "close", "unknown_200"]
    assert arrow.column("kind").to_pylist() == ["x", "", "y"]
    assert arrow.column("is_late").to_pylist() == [True, False, True]


def test_a_missing_code_is_no_text() -> None:
    strings = StringPool()
    arrow = to_arrow(mixed(strings, [-1, IoOp.READ, 30000]), Texts(strings))
    assert arrow.column("op").to_pylist() == ["", "read", "unknown_30000"]


def test_of_very_many_texts_only_those_in_use_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    strings = StringPool(f"text {number}" for number in range(50))
    table, texts = mixed(strings, [1, 1, 1]), Texts(strings)
    monkeypatch.setattr(query_of_runs, "_MOST_TEXTS", 10)
    path = to_arrow(table, texts).column("path")
    assert path.to_pylist() == ["/b", "/a", "/b"]
    assert sorted(path.chunk(0).dictionary.to_pylist()) == ["/a", "/b"]


def test_texts_that_an_analysis_adds_are_seen() -> None:
    strings = StringPool(["a"])
    texts = Texts(strings)
    assert texts.array().to_pylist() == ["", "a"]
    assert texts.array() is texts.array()
    strings.code("b")
    assert texts.array().to_pylist() == ["", "a", "b"]


@pytest.mark.parametrize("name", TABLES)
def test_every_table_of_a_trace_has_its_columns_without_rows_too(name: str) -> None:
    arrow = to_arrow(Table.empty(TABLES[name]), Texts(StringPool()))
    assert len(set(arrow.column_names)) == len(TABLES[name].columns)
    assert len(arrow) == 0


def test_a_name_that_is_taken_keeps_its_ending() -> None:
    both = schema("both", "x", Column("op", "U4", "", ""), Column("op_code", "i8", "", "", of=IoOp))
    assert query_names(both) == {"op": "op", "op_code": "op_code"}


def test_describing_gives_types_units_and_meanings() -> None:
    rows = describing(MIXED).to_pylist()
    assert rows[0] == {"column": "size_bytes", "type": "integer", "unit": "bytes", "meaning": "how much"}
    assert [row["type"] for row in rows] == ["integer", "text", "text", "text", "boolean"]
    assert rows[1]["meaning"] == "of the file"
    assert rows[2]["meaning"] == "IoOp"
