"""Columns: what a declaration says, it says in fields."""

from __future__ import annotations

import pickle

import pytest

from stashtrace.schema.columns import INTERVAL, TRACK_ID, Column, schema
from stashtrace.schema.kinds import IoFlag, IoOp


def test_a_column_of_an_enumeration_says_which() -> None:
    code, flags = Column("op_code", "i2", "", "", of=IoOp), Column("io_flags", "i2", "", "of the call", of=IoFlag)
    assert (code.role, code.meaning) == ("code", "IoOp")
    assert (flags.role, flags.meaning) == ("flags", "IoFlag bits: of the call")


def test_texts_are_shown_under_another_name() -> None:
    path = Column("path_code", "i8", "", "the file", role="path")
    assert path.is_text
    assert (path.shown_name, path.meaning) == ("path", "string: the file")
    op = Column("op_code", "i8", "", "", of=IoOp)
    assert not op.is_text
    assert op.shown_name == "op_code"


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(ValueError, match="column rank has no known role: 'rnak'"):
        Column("rank", "i8", "", "", role="rnak")  # type: ignore[arg-type]


def test_a_schema_knows_its_moments_and_keys() -> None:
    table = schema(
        "calls",
        "Calls",
        Column("call_id", "i8", "", "row number", role="key"),
        Column("parent_call_id", "i8", "", "-1 if none", missing=-1, of="calls.call_id"),
        *INTERVAL,
        TRACK_ID,
        Column("length_ns", "i8", "ns", "how long"),
    )
    assert table.moments == ("begin_ns", "end_ns")
    assert table.keys == {"call_id": "calls.call_id", "parent_call_id": "calls.call_id", "track_id": "tracks.track_id"}
    assert [column.missing for column in table.columns] == [0, -1, 0, 0, 0, 0]
    assert pickle.loads(pickle.dumps(table)) == table
