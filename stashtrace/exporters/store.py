"""Writes a store of Parquet files, partitioned by rank; each rank's partition includes results that need all ranks.

    first pass    rank by rank: rows -> STORE/<table>/rank=<r>/
    second pass   rank by rank: a few columns -> steps numbered and collectives matched among all ranks -> partitions

After the second pass any rank can be analysed alone, in its own process on its own machine, with the results that it
would have within the whole run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from stashtrace import __version__
from stashtrace.analysis.stalls.rows_by_thread import matched_among_all
from stashtrace.analysis.steps.rank_steps import RankSteps
from stashtrace.analysis.steps.steps import first_recorded_step, local_steps, number_steps
from stashtrace.errors import MissingDataError
from stashtrace.exporters.registry import Exported
from stashtrace.loading.decode import Decoded, decode_processes
from stashtrace.loading.join import join_rows, name_communicators
from stashtrace.loading.join_collectives import GroupNotes
from stashtrace.loading.load import open_processes
from stashtrace.loading.run_tables import describe
from stashtrace.schema.events import TABLES
from stashtrace.schema.groupby import GroupBy, RowsBy
from stashtrace.schema.kinds import DeviceWork
from stashtrace.schema.order import number_collectives, offset_keys
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Array, Table
from stashtrace.schema.trace import EventTables, Trace
from stashtrace.store.files import DERIVED, StoreWriter, read_partition
from stashtrace.store.layout import NO_RANK

#: Called with (share done, current task).
Progress = Callable[[float, str], None]

#: Tables that steps are found in, and those that the match of collectives reads.
_STEP_TABLES = ("phases", "batches", "spans", "device_brackets", "kernels")
_MATCH_TABLES = ("collectives", "collective_waits", "collective_details", "device_clocks", "kernels")


def export_store(trace: Trace, path: Path, *, ranks: Iterable[int] | None = None) -> Exported:
    """Write a trace as a store.

    ``trace``: whole, or of some ranks. ``path``: folder to make; one that holds a store is replaced. ``ranks``: only
    these ranks; steps and collectives are numbered and matched among them.
    """
    return _write(_Split(trace), path, trace.path, ranks, None)


def store_run(
    run: str | Path | Sequence[str | Path],
    path: Path,
    *,
    ranks: Collection[int] | None = None,
    run_id: str | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Write a run of ours as a store, one rank in memory at a time; parameters as of ``load_trace``."""
    parts = RanksOfRun(run, run_id=run_id)
    return _write(parts, path, parts.path, ranks, progress)


def _write(
    parts: RanksOfRun | _Split, path: Path, source: str, ranks: Iterable[int] | None, progress: Progress | None
) -> Exported:
    report = progress or (lambda share, task: None)
    chosen = None if ranks is None else {*ranks, NO_RANK}
    with StoreWriter(path, parts.strings) as writer:
        return _write_ranks(parts, path, writer, source, chosen, report)


def _write_ranks(
    parts: RanksOfRun | _Split, path: Path, writer: StoreWriter, source: str, chosen: set[int] | None, report: Progress
) -> Exported:
    for done, (rank, tables) in enumerate(parts):
        if chosen is None or rank in chosen:
            writer.write(rank, {name: table for name, table in tables.items() if name not in DERIVED})
        report(0.7 * (done + 1) / max(len(parts), 1), f"rank {rank}")
    rest = parts.rest()
    rank_of, rank_of_track = _owners(rest["processes"], rest["tracks"])
    for name, table in rest.items():
        for rank, of_rank in GroupBy(_ranks(table, rank_of, rank_of_track)).items():
            if chosen is None or rank in chosen:
                writer.write(rank, {name: table.take(of_rank)})
    _second_pass(path, writer, rest, parts.strings, source, lambda share, task: report(0.7 + 0.3 * share, task))
    writer.finish(source=os.path.basename(source.rstrip("/")), stashtrace=__version__)
    rows = sum(count for name, count in writer.rows.items())
    note = f"{len(writer.ranks)} ranks, {rows} rows: `stashtrace analyze NAME {path}`, or any reader of Parquet"
    return Exported(path, writer.file_bytes, rows, (note,))


# First pass: a trace in memory ------------------------------------------------------------------


class _Split:
    """A trace, one rank after the other, in the form of ``RanksOfRun``."""

    _REST = ("processes", "tracks", "groups", "losses", "alignment", "metadata")

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.strings: StringPool = trace.strings
        self._ranks = sorted({NO_RANK, *trace.processes["rank"].tolist()})

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[tuple[int, dict[str, Table]]]:
        trace = self._trace
        rank_of, rank_of_track = _owners(trace.processes, trace.tracks)
        names = [n for n in TABLES if n not in self._REST and n not in DERIVED and n != "io"]
        tables = {n: trace.table(n) for n in names if len(trace.table(n))}
        grouped = {n: RowsBy(_ranks(t, rank_of, rank_of_track)) for n, t in tables.items()}
        for rank in self._ranks:
            part = {n: t.take(grouped[n].rows(rank)) for n, t in tables.items()}
            part |= self._io(rank, rank_of)
            yield rank, _counted_from_0(part)

    def _io(self, rank: int, rank_of: dict[int, int]) -> dict[str, Table]:
        processes = [process for process, of in rank_of.items() if of == rank]
        streamed = self._trace.streamed_io
        if streamed is not None:
            return {"io": Table.concat(TABLES["io"], list(streamed.pieces(processes)))}
        table = self._trace.io
        tracks = self._trace.tracks
        chosen = tracks["track_id"][np.isin(tracks["process_id"], processes)]
        return {"io": table.take(np.isin(table["track_id"], chosen))}

    def rest(self) -> dict[str, Table]:
        """Return the small tables of the whole trace."""
        return {name: self._trace.table(name) for name in self._REST}


def _counted_from_0(tables: dict[str, Table]) -> dict[str, Table]:
    """Return the tables with row numbers of this partition as keys of collectives."""
    collectives = tables.get("collectives")
    if collectives is not None:
        tables.update(number_collectives(collectives, tables.get("collective_waits"), tables.get("collective_details")))
    return tables


def _owners(processes: Table, tracks: Table) -> tuple[dict[int, int], Array]:
    rank_of = dict(zip(processes["process_id"].tolist(), processes["rank"].tolist(), strict=True))
    by_track = np.full(int(tracks["track_id"].max()) + 1 if len(tracks) else 0, NO_RANK, dtype=np.int64)
    by_track[tracks["track_id"]] = [rank_of.get(p, NO_RANK) for p in tracks["process_id"].tolist()]
    return rank_of, by_track


def _ranks(table: Table, rank_of: Mapping[int, int], rank_of_track: Array) -> Array:
    """Return the rank of each row: its own, its process's, or its track's; -1 if it has none."""
    if "rank" in table:
        return table["rank"]
    if "process_id" in table:
        known, inverse = np.unique(table["process_id"], return_inverse=True)
        return np.array([rank_of.get(p, NO_RANK) for p in known.tolist()], dtype=np.int64)[inverse]
    track = next((c for c in ("track_id", "source_track_id") if c in table), None)
    if track is None or not len(rank_of_track):
        return np.full(len(table), NO_RANK, dtype=np.int64)
    at = table[track]
    return np.where(at >= 0, rank_of_track[np.maximum(at, 0)], NO_RANK)


# Second pass --------------------------------------------------------------------------------------


def _second_pass(
    path: Path, writer: StoreWriter, rest: Mapping[str, Table], strings: StringPool, source: str, report: Progress
) -> None:
    """Number steps and match collectives among all ranks, and write each rank's part into its partition."""
    ranks = sorted(writer.ranks)
    steps: list[RankSteps] = []
    thin: list[EventTables] = []
    for done, rank in enumerate(ranks):
        trace = read_partition(path, rank, {*_STEP_TABLES, *_MATCH_TABLES})
        steps += _steps_of(trace)
        thin.append(_rows_for_matching(trace))
        report(0.9 * (done + 1) / len(ranks), f"rank {rank} among the others")
    counts = [len(part.collectives) for part in thin]
    offset_keys(thin)
    joined = {name: Table.concat(TABLES[name], [part.table(name) for part in thin]) for name in _MATCH_TABLES}
    whole = {name: rest[name] for name in ("groups", "processes", "alignment", "metadata")}
    together = Trace(strings, {**joined, **whole}, path=source)
    for rank, part in _number_steps(steps, together):
        writer.write(rank, {"numbered_steps": part})
    if sum(counts):
        matched = matched_among_all(together)
        ends = np.cumsum(counts)
        for rank, count, end in zip(ranks, counts, ends.tolist(), strict=True):
            taken = matched.take(slice(end - count, end))
            key = taken["collective_key"] - (end - count)
            writer.write(rank, {"matched_collectives": taken.replace(collective_key=key)})


def _steps_of(trace: Trace) -> Sequence[RankSteps]:
    """Return the steps of one rank; none if it has none. Analyses that need steps report that for the whole run."""
    try:
        return local_steps(trace)
    except MissingDataError:
        return []


def _rows_for_matching(trace: Trace) -> EventTables:
    """Return what a match of collectives reads of one rank: kernels of communication, waits for unended rows."""
    kernels, waits, collectives = trace.kernels, trace.collective_waits, trace.collectives
    unended = collectives["collective_key"][collectives["end_ns"] < 0]
    tables = {
        "collectives": collectives,
        "collective_waits": waits.take(np.isin(waits["collective_key"], unended)),
        "kernels": kernels.take(kernels["work_code"] == DeviceWork.COMMUNICATION),
        "collective_details": trace.collective_details,
        "device_clocks": trace.device_clocks,
    }
    return EventTables(trace.strings, tables)


def _number_steps(steps: Sequence[RankSteps], together: Trace) -> Iterator[tuple[int, Table]]:
    """Yield the steps of each rank as numbered among all; nothing if no rank has steps."""
    if any(len(rank.columns.begin) for rank in steps):
        numbered = number_steps(steps, together.collectives, first_recorded_step(together))
        for rank, rows in GroupBy(numbered["rank"]).items():
            rank_steps = numbered.take(rows)
            yield rank, Table(TABLES["numbered_steps"], {name: rank_steps[name] for name in rank_steps.columns})


class RanksOfRun:
    """Ranks of a run, to be iterated once before ``rest`` is called. ``path``, ``run_id``: as in ``load_trace``."""

    def __init__(self, path: str | Path | Sequence[str | Path], *, run_id: str | None = None) -> None:
        self._run = open_processes(path, run_id=run_id)
        self._decoded: list[Decoded] = []
        self._groups: list[Table] = []
        self._collectives: list[Table] = []

    @property
    def strings(self) -> StringPool:
        """Texts of the run that have been read so far."""
        return self._run.strings

    @property
    def path(self) -> str:
        """Path of the run."""
        return self._run.path

    def __len__(self) -> int:
        """Return the number of parts that iterating gives."""
        return len({process.identity.rank for process in self._run.processes})

    def __iter__(self) -> Iterator[tuple[int, dict[str, Table]]]:
        """Yield each rank (-1: processes without one) with its big tables, in order of ranks."""
        processes = self._run.processes
        for rank in sorted({process.identity.rank for process in processes}):
            decoded = decode_processes([p for p in processes if p.identity.rank == rank], self._run.tracks, None)
            tables = join_rows([one.tables for one in decoded])
            io = [piece for one in decoded for piece in one.io.pieces()]
            tables["io"] = Table.concat(TABLES["io"], io).sort_by("track_id", "begin_ns")
            self._decoded += decoded
            self._groups.append(tables.pop("groups"))
            backends = {self.strings.text(code) for code in np.unique(self._groups[-1]["backend_code"]).tolist()}
            if "nccl" in backends:
                self._collectives.append(tables["collectives"])
            yield rank, tables

    def rest(self) -> dict[str, Table]:
        """Return the small tables of the whole run: processes, tracks, groups, losses, alignment, metadata."""
        groups = Table.concat(TABLES["groups"], self._groups)
        collectives = Table.concat(TABLES["collectives"], self._collectives)
        notes = GroupNotes.of_all(one.notes for one in self._decoded)
        named = name_communicators(groups, collectives, notes, self._run.tracks)
        return {"groups": named, **describe(self._run, self._decoded)}
