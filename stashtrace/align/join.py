"""Tables of all processes -> tables of the trace: numbered, sorted, joined column by column.

Called by ``align.align``. Column by column, so that no table exists twice.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from stashtrace.align.collective_merge import GroupNotes
from stashtrace.align.communicators import name_communicators
from stashtrace.model.schemas import TABLES
from stashtrace.model.table import Array, Table
from stashtrace.model.trace import EventTables
from stashtrace.model.track_registry import TrackRegistry

#: Columns that order each table; the others keep the order of processes.
SORT_KEYS = {
    "spans": ("begin_ns",),
    "phases": ("begin_ns",),
    "batches": ("begin_ns",),
    "io": ("track_id", "begin_ns"),
    "waits": ("begin_ns",),
    "collectives": ("call_ns",),
    "collective_waits": ("begin_ns",),
    "counters": ("track_id", "ts_ns"),
    "flows": ("source_ns",),
    "device_brackets": ("call_ns",),
    "device_calls": ("begin_ns",),
    "kernels": ("begin_ns",),
}
#: Rows looked at in one go to see whether a table is sorted.
_CHECK_ROWS = 1 << 20
_SMALL = ("processes", "tracks", "losses", "alignment", "metadata")


class Parts(Protocol):
    """What is known of the parts beside their rows; ``session.Session`` and ``imported.Imported`` are such."""

    tracks: TrackRegistry
    group_notes: GroupNotes

    def process_table(self) -> Table: ...
    def loss_table(self, parts: Sequence[Table]) -> Table: ...
    def metadata_table(self, parts: Sequence[Table]) -> Table: ...
    def alignment_table(self) -> Table: ...


def join_tables(session: Parts, parts: Sequence[EventTables], wanted: frozenset[str] | None) -> dict[str, Table]:
    """All tables of the trace but ``io``. ``parts`` is one EventTables per process, in order; they are used up."""
    joined: dict[str, Table] = {}
    _offset_keys(parts)
    for name in TABLES:
        if name in _SMALL or name == "io" or (wanted is not None and name not in wanted):
            continue
        joined[name] = join_table(name, parts)
    if "spans" in joined:
        joined["spans"] = joined["spans"].replace(span_id=np.arange(len(joined["spans"]), dtype=np.int64))
    if "collectives" in joined:
        joined.update(
            _number_collectives(joined["collectives"], joined.get("collective_waits"), joined.get("collective_details"))
        )
    if "groups" in joined:
        collectives = joined.get("collectives", Table.empty(TABLES["collectives"]))
        joined["groups"] = name_communicators(joined["groups"], collectives, session.group_notes, session.tracks)
    joined["processes"] = session.process_table()
    joined["losses"] = session.loss_table([p.losses for p in parts])
    joined["metadata"] = session.metadata_table([p.metadata for p in parts])
    joined["alignment"] = session.alignment_table()
    joined["tracks"] = session.tracks.table()
    return joined


def _offset_keys(parts: Sequence[EventTables]) -> None:
    """Keys that decoders counted from 0 within each process become unique in the trace."""
    first = 0
    for part in parts:
        count = len(part.collectives)
        if count and first:
            part._tables["collectives"] = part.collectives.replace(
                collective_key=part.collectives["collective_key"] + first
            )
        details = part.collective_details
        if len(details) and first:
            part._tables["collective_details"] = details.replace(collective_key=details["collective_key"] + first)
        waits = part.collective_waits
        if len(waits) and first:
            keys = waits["collective_key"]
            part._tables["collective_waits"] = waits.replace(collective_key=np.where(keys >= 0, keys + first, keys))
        first += count


def join_table(name: str, parts: Sequence[EventTables]) -> Table:
    """One table of all processes. The parts are used up: each column is let go once it is joined."""
    schema = TABLES[name]
    keys = SORT_KEYS.get(name, ())
    pieces: list[dict[str, Array]] = []
    for part in parts:
        table = part.table(name)
        if len(table):
            # Tracks rise with the processes, so what begins with track_id is sorted piece by piece.
            table = _sorted(table, keys) if keys[:1] == ("track_id",) else table
            pieces.append({column: table[column] for column in schema.names})
        part._tables[name] = Table.empty(schema)
    if not pieces:
        return Table.empty(schema)
    if len(pieces) == 1:
        joined = Table(schema, pieces[0])
    else:
        joined = Table(schema, {n: np.concatenate([p.pop(n) for p in pieces]) for n in schema.names})
    return _sorted(joined, keys)


def _sorted(table: Table, keys: Sequence[str]) -> Table:
    """Sorted by the keys; no copy if it is already."""
    if not keys or len(table) < 2:
        return table
    in_order = all(
        _in_order([table[name][at : at + _CHECK_ROWS + 1] for name in keys])
        for at in range(0, len(table) - 1, _CHECK_ROWS)
    )
    return table if in_order else table.sort_by(*keys)


def _in_order(columns: Sequence[Array]) -> bool:
    in_order = np.ones(max(len(columns[0]) - 1, 0), dtype=bool)
    for column in reversed(columns):
        in_order &= column[1:] == column[:-1]
        in_order |= column[1:] > column[:-1]
    return bool(in_order.all())


def _number_collectives(collectives: Table, *others: Table | None) -> dict[str, Table]:
    """``collective_key`` becomes the row number, here and in the tables that refer to it."""
    old = collectives["collective_key"]
    rows = np.arange(len(old), dtype=np.int64)
    tables = {"collectives": collectives.replace(collective_key=rows)}
    for other in others:
        if other is not None and len(other) and len(old):
            order = np.argsort(old, kind="stable")
            at = np.clip(np.searchsorted(old[order], other["collective_key"]), 0, len(old) - 1)
            found = old[order][at] == other["collective_key"]
            tables[other.schema.name] = other.replace(collective_key=np.where(found, order[at], -1))
    return tables
