"""Decode the rows of one process into tables on the common clock; I/O calls, which can be many, in pieces.

A process's rows are read here and freed as soon as they are decoded, so memory holds only the tables. The two records
that torch and NCCL made of one collective are merged into one row per process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from stashtrace.collectors.decode_context import DecodeContext, Decoder, resolve
from stashtrace.format.project import current_layouts
from stashtrace.format.stash_file import pieces
from stashtrace.loading.join_collectives import GroupNotes, merge_collectives
from stashtrace.loading.process_identity import Process
from stashtrace.schema.events import TABLES
from stashtrace.schema.kinds import Severity
from stashtrace.schema.possible import without_impossible
from stashtrace.schema.table import Table
from stashtrace.schema.trace import EventTables, LossRow
from stashtrace.schema.tracks import TrackRegistry

#: Tables that are always decoded.
_ALWAYS = ("losses", "metadata")
#: Records that are read before anything is decoded, or with every load of a file.
_READ_BEFORE = frozenset({"clock_sync", "clock_ping", "string_part"})
_resolved = cache(resolve)


class IoRows:
    """The I/O calls of one process, decoded on each use.

    ``rows_count``: upper bound of the number of calls. ``losses``: losses in the decoders when the calls were last read
    to the end. ``end_ns``: latest end of a call that has been read; 0 before any was read.
    """

    def __init__(self, process: Process, decoders: Sequence[Decoder], tracks: TrackRegistry) -> None:
        self.file = process.file
        self._process, self._decoders, self._tracks = process, decoders, tracks
        counts = process.file.row_counts() if decoders else {}
        self.rows_count = sum(counts.get(record, 0) for decoder in decoders for record in decoder.records)
        self.losses: list[LossRow] = []
        self.end_ns = 0

    def pieces(self) -> Iterator[Table]:
        """Yield the ``io`` table in pieces of bounded size, by thread and time."""
        for decoder in self._decoders:
            context: DecodeContext | None = None
            for raw in pieces(self.file, decoder.records):
                if context is None:  # one context for all pieces, because it caches lookups
                    context = self._process.context(raw, self._tracks, frozenset({"io"}))
                table = _without_impossible(decoder.decode(raw, context).io, context)
                if len(table):
                    self.end_ns = max(self.end_ns, int(table["end_ns"].max()))
                    yield table
            if context is not None:
                self.losses = context.losses


@dataclass(frozen=True, slots=True)
class Decoded:
    """Decoded rows of one process."""

    #: Of the process.
    number: int
    #: All but ``io``. Joining removes the large ones.
    tables: EventTables
    #: Without calls if ``io`` is not wanted.
    io: IoRows
    #: Latest moment in ``tables`` and in the records read before.
    end_ns: int
    #: Losses in the decoders.
    losses: list[LossRow]
    #: Collectors with rows in the file that have no decoder.
    unknown_collectors: list[str]
    notes: GroupNotes


def decode_processes(
    processes: Sequence[Process], tracks: TrackRegistry, wanted: frozenset[str] | None
) -> list[Decoded]:
    """Decode processes one after the other, in their order.

    ``processes``: chosen and numbered. ``wanted``: tables to fill; all if None.
    """
    return [_decode(process, tracks, wanted) for process in processes]


def _decode(process: Process, tracks: TrackRegistry, wanted: frozenset[str] | None) -> Decoded:
    # The collectors that have rows in a file, the core first
    current, counts = current_layouts(), process.file.row_counts()
    filled = (x.collector for x in process.file.layouts.values() if counts.get(x.name) and x.name in current)
    names = list(dict.fromkeys(("core", *filled)))
    known = {name: decoder for name in names if (decoder := _resolved(name)) is not None}
    filling = [
        decoder
        for decoder in known.values()
        if wanted is None or decoder.name == "core" or not decoder.tables or wanted.intersection(decoder.tables)
    ]
    # The size of ``io`` alone does not follow from the number of steps, so only ``io`` is never held twice.
    streamed = [decoder for decoder in filling if decoder.tables == ("io",)]
    decoders = [decoder for decoder in filling if decoder not in streamed]
    raw = process.file.load({record for decoder in decoders for record in decoder.records} - _READ_BEFORE)
    context = process.context(raw, tracks, wanted)
    parts: dict[str, list[Table]] = {}
    for decoder in decoders:
        for name, table in decoder.decode(raw, context).filled():
            if wanted is None or name in wanted or name in _ALWAYS:
                parts.setdefault(name, []).append(table)
    notes = GroupNotes()
    parts |= merge_collectives(parts, context, notes)
    tables = {name: _add_tracks(Table.concat(TABLES[name], listed), context) for name, listed in parts.items()}
    return Decoded(
        process.number,
        EventTables(tracks.strings, tables),
        IoRows(process, streamed, tracks),
        _end_of(process, tables),
        context.losses,
        [name for name in names if name not in known],
        notes,
    )


def _add_tracks(table: Table, context: DecodeContext) -> Table:
    """Return the table with a track for each row; a row without a recorded track gets an unknown one."""
    # Losses are reported even if a number in them is impossible.
    table = table if table.schema.name == "losses" else _without_impossible(table, context)
    table, count = context.registry.placed(table)
    if count:
        text = f"{count} rows of {table.schema.name} do not say on what they ran; they are shown on an unknown track"
        context.add_loss("format", "track_unknown", count, text, Severity.ERROR)
    return table


def _without_impossible(table: Table, context: DecodeContext) -> Table:
    """Return the rows whose numbers are possible; the others are counted as losses."""
    table, count = without_impossible(table)
    if count:
        text = f"rows of {table.schema.name} hold numbers that no run has; they are left out"
        context.add_loss("format", "impossible_values", count, text, Severity.DATA_LOSS)
    return table


def _end_of(process: Process, tables: dict[str, Table]) -> int:
    """Return the latest moment in any row, in ns."""
    latest = [process.begin_ns]
    latest += [
        int(process.clock(records.rows["ticks"]).max())
        for name, records in process.core.records.items()
        if name in ("clock_sync", "metadata", "thread_info") and len(records.rows)
    ]
    for table in tables.values():
        latest += [int(table[n].max()) for n in ("end_ns", "ts_ns", "return_ns") if n in table and len(table)]
    return max(latest)
