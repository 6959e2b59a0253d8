"""A number's name ends in its unit, in the files' schema and in every table."""

from __future__ import annotations

import re

from source_tree import declared_schemas

from stashtrace import _native
from stashtrace.schema.columns import Column

SUFFIXES = (
    *("_ns", "_bytes", "_bytes_per_s", "_ratio", "_watts", "_celsius", "_hz", "_hours", "_kwh", "_count", "_per_s"),
    *("_ticks", "_ppb", "_id", "_code", "_hash", "_flags", "_padding", "_rank", "_size", "_index", "_key"),
)
# Ordinals, plain identities and texts, which have no unit.
UNITLESS = {
    *("line", "waiting_line", "first_line", "depth", "complete", "grew_in_step", "start", "ticks", "tid", "pid"),
    *("part", "text", "value", "rank", "local_rank", "world_size", "step", "step_a", "step_b", "sequence"),
    *("collective_sequence", "order", "kind", "method", "warmup", "thinned", "staged", "partial", "ambiguous"),
    *("critical", "crosses_hosts", "op", "communicator", "path", "directory", "verdict", "name"),
    "cost",  # in the currency of the prices, which the answer names
    "bytes",  # says its unit
    *("mean", "median", "low", "high", "error"),  # of loader_rates: the quantity next to it says its unit
}


#: Ends of names -> roles that such a number may have.
ROLES = {
    "_code": {"code", "text", "path", "host"},
    "_flags": {"flags"},
    "_id": {"key", "id"},
    "_key": {"key", "id"},
    "_hash": {"id"},
}


def accepted(name: str) -> bool:
    return name.endswith(SUFFIXES) or name in UNITLESS


RECORD_FIELDS = [(r["name"], f["name"]) for r in _native.schema()["records"] for f in r["fields"]]
#: Kept in stores alone, by the names of the fields that it keeps.
INSIDE = {"matched_collectives"}
TABLES = [table for table in declared_schemas() if table.name not in INSIDE]
COLUMNS = [(t.name, c) for t in TABLES for c in t.columns]


def test_fields_of_records_say_their_units() -> None:
    assert len(RECORD_FIELDS) > 200
    assert [f"{record}.{field}" for record, field in RECORD_FIELDS if not accepted(field)] == []


def test_columns_of_tables_say_what_they_hold() -> None:
    assert len(COLUMNS) > 700
    for table, column in COLUMNS:
        check_column(table, column)


def check_column(table: str, column: Column) -> None:
    numeric = column.dtype[0] in "iuf"
    assert not numeric or accepted(column.name), f"{table}.{column.name} says no unit"
    assert column.meaning, f"{table}.{column.name} has no meaning"
    for ends, roles in ROLES.items():
        if numeric and column.name.endswith(ends):
            assert column.role in roles, f"{table}.{column.name} declares role {column.role!r}"
    assert column.missing == 0 or str(column.missing) in column.doc, f"{table}.{column.name} does not explain its -1"
    reported = re.search(r"(^|[,;:] )-1 (if|for|when|where|otherwise|outside)\b", column.doc)
    assert not reported or column.missing == -1, f"{table}.{column.name} does not declare its -1"
    for unit in ("ns", "bytes"):
        if column.name.endswith(f"_{unit}"):
            assert column.unit == unit, f"{table}.{column.name} declares unit {column.unit!r}"


def test_keys_refer_to_rows_of_a_table() -> None:
    own = {f"{t.name}.{c.name}" for t in declared_schemas() for c in t.columns if c.role == "key"}
    assert {key for table in declared_schemas() for key in table.keys.values()} == own
    assert own >= {"processes.process_id", "tracks.track_id", "collectives.collective_key", "findings.finding_id"}


def test_tables_are_found_where_they_stand() -> None:
    assert len(TABLES) > 60
    assert {"stalls", "io", "late", "critical_path", "findings", "slowdown"} <= {table.name for table in TABLES}
