"""Load a store as a Trace; if its I/O calls are many, they stay on disk."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from stashtrace.errors import FormatError
from stashtrace.loading import io_calls
from stashtrace.schema.events import TABLES
from stashtrace.schema.possible import without_impossible
from stashtrace.schema.table import Array, Table
from stashtrace.schema.trace import Trace
from stashtrace.store.files import load_store, read_partitions
from stashtrace.store.layout import NO_RANK, read_facts

#: Rows of a piece: about as many as when a run is loaded.
_PIECE_ROWS = 1 << 16


class _DamagedCallsError(FormatError):
    """A call has an impossible number or an unknown track; the reader of whole tables can repair that."""


class CallsOfStore:
    """The I/O calls of some ranks of a store.

    ``path``: the store. ``trace``: the other tables of these ranks. ``track_numbers``: number in the store of each
    track of the trace, ascending. ``rows_count``: see :class:`stashtrace.loading.io_calls.IoSource`.
    """

    def __init__(self, path: Path, trace: Trace, track_numbers: Array, rows_count: int) -> None:
        self.rows_count = rows_count
        self._path, self._strings, self._numbers = path, trace.strings, track_numbers
        self._rank_of_process = np.array(trace.processes["rank"])
        self._process_of_track = np.array(trace.tracks["process_id"])

    def pieces(self, process_ids: Collection[int] | None = None) -> Iterator[Table]:
        """See :class:`stashtrace.loading.io_calls.IoSource`.

        Raises FormatError if a file cannot be read.
        """
        ranks = self._rank_of_process if process_ids is None else self._rank_of_process[sorted(process_ids)]
        # Calls of processes without a rank come last, as do their tracks.
        listed = sorted(set(ranks.tolist()), key=lambda rank: (rank == NO_RANK, rank))
        waiting: list[Table] = []
        for part in read_partitions(self._path, "io", listed, self._strings):
            own = self._of_trace(part)
            if process_ids is not None:
                own = own.take(np.isin(self._process_of_track[own["track_id"]], list(process_ids)))
            waiting += [own] if len(own) else []
            if sum(map(len, waiting)) >= _PIECE_ROWS:
                yield from _cut_pieces(waiting)
                waiting = []
        yield from _cut_pieces(waiting)

    def _of_trace(self, part: Table) -> Table:
        """Return the calls of a rank with the trace's numbers of tracks."""
        if not len(part):
            return part
        tracks, numbers = part["track_id"], self._numbers
        at = np.minimum(np.searchsorted(numbers, tracks), len(numbers) - 1)
        if without_impossible(part)[1] or (numbers[at] != tracks).any():
            raise _DamagedCallsError(f"{self._path} holds damaged I/O calls", hint="export the run again")
        return part.replace(track_id=at)


def _cut_pieces(waiting: list[Table]) -> Iterator[Table]:
    """Yield the rows of tables in pieces of bounded size."""
    joined = Table.concat(TABLES["io"], waiting)
    for begin in range(0, len(joined), 2 * _PIECE_ROWS):
        yield joined.take(slice(begin, begin + 2 * _PIECE_ROWS))


def load_stored(path: str, tables: frozenset[str] | None = None, ranks: Collection[int] | None = None) -> Trace:
    """Load a store; parameters and errors are those of ``load_trace``.

    Calls stay on disk only if all ranks are loaded and no call is missing or damaged.
    """
    folder = Path(path)
    calls_count = read_facts(folder)["rows"].get("io", 0)
    if calls_count > io_calls.KEPT_ROWS and ranks is None and (tables is None or "io" in tables):
        others = frozenset(TABLES if tables is None else tables) - {"io"}
        trace, numbers = load_store(folder, tables=others)
        calls = CallsOfStore(folder, trace, numbers["tracks.track_id"], calls_count)
        try:
            outline = io_calls.outline_io(calls, [trace], len(trace.tracks))
        except _DamagedCallsError:
            outline = None
        if outline is not None and outline.rows_count == calls_count:
            tables_there = {name: trace.table(name) for name in others}
            return Trace(trace.strings, tables_there, path=trace.path, io_outline=outline)
    return load_store(folder, tables=tables, ranks=ranks)[0]
