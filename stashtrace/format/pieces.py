"""Rows of a process in pieces of bounded size, for the one table that may not fit into memory twice.

Called by ``align.session`` for I/O calls. Threads come in ascending order; small ones share a piece, a large
one is cut where a call ends before the next begins, as they do unless a signal handler did I/O.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from stashtrace.format.project import current_layouts
from stashtrace.format.stash_file import Chunk, StashFile, join_chunks
from stashtrace.model.trace import RawProcess, RawRecords

PIECE_ROWS = 1 << 16  # a segment of a merged file: columns stay in the cache, and nothing is copied together


def pieces(file: StashFile, records: Collection[str], rows: int = PIECE_ROWS) -> Iterator[RawProcess]:
    """The rows of ``file.load(records)`` in pieces of about ``rows``.

    Parameters
    ----------
    file : StashFile
        Process to read.
    records : collection of str
        Record names; each must have the field ``begin_ticks``.
    rows : int
        A piece has at most about twice as many.
    """
    counts = file.thread_row_counts(records)
    for group in _groups({tid: sum(c.values()) for tid, c in counts.items()}, rows):
        if len(group) == 1 and sum(counts[group[0]].values()) > 2 * rows:
            yield from _cut(file, records, group[0], counts[group[0]], rows)
        else:
            chunks: dict[str, list[Chunk]] = {}
            for chunk in file.chunks(records, set(group)):
                chunks.setdefault(chunk.layout.name, []).append(chunk)
            current = current_layouts()
            yield _piece(file, {n: join_chunks(c, current[n].dtype) for n, c in chunks.items() if n in current})


def _groups(counts: Mapping[int, int], rows: int) -> Iterator[list[int]]:
    """Threads in ascending order, as many together as make a piece."""
    group: list[int] = []
    gathered = 0
    for tid in sorted(counts):
        if group and gathered + counts[tid] > rows:
            yield group
            group, gathered = [], 0
        group.append(tid)
        gathered += counts[tid]
    if group:
        yield group


def _cut(file: StashFile, records: Collection[str], tid: int, counts: Counter[str], rows: int) -> Iterator[RawProcess]:
    """One large thread: its main record as it comes, rows of the others up to the last begin of each piece."""
    current = current_layouts()
    main = max((n for n in counts if n in current), key=counts.__getitem__, default="")
    if not main:
        return
    others: dict[str, RawRecords] = {}
    for name in set(records) - {main}:
        if chunks := list(file.chunks((name,), {tid})):
            others[name] = join_chunks(chunks, current[name].dtype)
    waiting: list[Chunk] = []
    for chunk in file.chunks((main,), {tid}):
        waiting.append(chunk)
        if sum(len(c.rows) for c in waiting) >= rows:
            joined = join_chunks(waiting, current[main].dtype)
            waiting = []
            until = joined.rows["begin_ticks"].max()
            piece = {main: joined}
            for name, held in others.items():
                early = held.rows["begin_ticks"] <= until
                if early.any():
                    piece[name] = RawRecords(held.rows[early], held.tid[early])
                    others[name] = RawRecords(held.rows[~early], held.tid[~early])
            yield _piece(file, piece)
    rest = {name: held for name, held in others.items() if len(held.rows)}
    if waiting:
        rest[main] = join_chunks(waiting, current[main].dtype)
    if rest:
        yield _piece(file, rest)


def _piece(file: StashFile, records: Mapping[str, RawRecords]) -> RawProcess:
    return RawProcess(file.name, file.metadata, records, file.texts())
