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
from stashtrace.model.row_order import SORT_KEYS, in_order_of, number_collectives, offset_keys
from stashtrace.model.schemas import TABLES
from stashtrace.model.table import Array, Table
from stashtrace.model.trace import EventTables
from stashtrace.model.track_registry import TrackRegistry

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
    joined = join_rows(parts, wanted)
    if "groups" in joined:
        collectives = joined.get("collectives", Table.empty(TABLES["collectives"]))
        joined["groups"] = name_communicators(joined["groups"], collectives, session.group_notes, session.tracks)
    joined["processes"] = session.process_table()
    joined["losses"] = session.loss_table([p.losses for p in parts])
    joined["metadata"] = session.metadata_table([p.metadata for p in parts])
    joined["alignment"] = session.alignment_table()
    joined["tracks"] = session.tracks.table()
    return joined


def join_rows(parts: Sequence[EventTables], wanted: frozenset[str] | None = None) -> dict[str, Table]:
    """The tables whose rows stand for what happened, but ``io``: numbered and sorted, of some or all processes."""
    joined: dict[str, Table] = {}
    offset_keys(parts)
    for name in TABLES:
        if name in _SMALL or name == "io" or (wanted is not None and name not in wanted):
            continue
        joined[name] = join_table(name, parts)
    if "spans" in joined:
        joined["spans"] = joined["spans"].replace(span_id=np.arange(len(joined["spans"]), dtype=np.int64))
    if "collectives" in joined:
        joined.update(
            number_collectives(joined["collectives"], joined.get("collective_waits"), joined.get("collective_details"))
        )
    return joined


def join_table(name: str, parts: Sequence[EventTables]) -> Table:
    """One table of all processes. The parts are used up: each column is let go once it is joined."""
    schema = TABLES[name]
    keys = SORT_KEYS.get(name, ())
    pieces: list[dict[str, Array]] = []
    for part in parts:
        table = part.table(name)
        if len(table):
            # Tracks rise with the processes, so what begins with track_id is sorted piece by piece.
            table = in_order_of(table, keys) if keys[:1] == ("track_id",) else table
            pieces.append({column: table[column] for column in schema.names})
        part._tables[name] = Table.empty(schema)
    if not pieces:
        return Table.empty(schema)
    if len(pieces) == 1:
        joined = Table(schema, pieces[0])
    else:
        joined = Table(schema, {n: np.concatenate([p.pop(n) for p in pieces]) for n in schema.names})
    return in_order_of(joined, keys)
