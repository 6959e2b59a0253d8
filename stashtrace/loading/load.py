"""Load a run, a store, or the files of another tool as one :class:`Trace`.

A run directory passes through these modules, each stage once and in this order:

    load                         the kind of input; calls each stage below and passes its result to the next
    loading.temporary_archives   an archive -> a temporary folder with what it holds; other paths as they are
    format.reader                the run's files, opened without their rows
      format.stash_file          clock readings, and the facts that processes recorded about themselves
    loading.clocks.host_clock    one clock for each host
    loading.process_identity     parents, ranks and roles of processes; the processes to load
    loading.clocks.device_clock  one clock for each GPU
    loading.decode               process by process: rows -> tables on the common clock; rows are freed here
      collectors.decode_context  the decoder of each collector, and its arguments
      collectors.*               the decoders, one for each collector with rows
      loading.join_collectives   one row per collective, from the records of torch and NCCL
    loading.io_calls             I/O calls, in pieces: into memory, or left on disk if they are many
    loading.join                 tables of all processes -> tables of the trace
    loading.run_tables           processes, losses, metadata, alignment

Runs of several hosts take one more step before ``clocks.device_clock``: collectives are decoded on a first guess of the
clocks, and ``loading.clocks.align_recorded`` corrects these by the common operations of the hosts.

``load_growing`` takes the same way with what is in memory of a run that still records.
"""

from __future__ import annotations

import os
import pathlib
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stashtrace.errors import DataLossWarning, FormatError, StashtraceError, UsageError
from stashtrace.format.reader import RUN_FILE, RawRun, open_run
from stashtrace.format.stash_file import StashFile
from stashtrace.loading import io_calls, process_identity
from stashtrace.loading.clocks import device_clock
from stashtrace.loading.clocks.align_recorded import MEETING_TABLES, align_run
from stashtrace.loading.clocks.host_clock import RunClocks, host_clocks
from stashtrace.loading.decode import decode_processes
from stashtrace.loading.foreign import Progress, load_imported
from stashtrace.loading.foreign_files import files_of
from stashtrace.loading.io_calls import read_io
from stashtrace.loading.join import join_tables
from stashtrace.loading.join_collectives import GroupNotes
from stashtrace.loading.run_tables import OpenedRun, describe, recorded_window, without_torn_collectives
from stashtrace.loading.temporary_archives import named, unpacked_paths
from stashtrace.schema.events import TABLES
from stashtrace.schema.kinds import Severity
from stashtrace.schema.possible import without_impossible
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Array, Table
from stashtrace.schema.trace import LossRow, Trace
from stashtrace.schema.tracks import TrackRegistry
from stashtrace.store.files import load_store, read_partitions
from stashtrace.store.layout import NO_RANK, STORE_FILE, read_facts

_OWN_FILES = (".stash", ".ring")
#: Records that are read before anything is decoded.
_CORE_RECORDS = ("clock_sync", "clock_ping", "metadata", "thread_info", *device_clock.RECORDS)

Path = str | os.PathLike[str]


def load_trace(
    path: Path | Sequence[Path],
    *,
    tables: Collection[str] | None = None,
    ranks: Collection[int] | None = None,
    run_id: str | None = None,
    strict: bool = False,
    progress: Progress | None = None,
) -> Trace:
    """Load a run, or the files that another tool wrote, as a :class:`Trace`.

    Parameters
    ----------
    path : path or sequence of paths
        Run directory, a single .stash file, or the directories that several hosts left of one run; or files, or a
        folder of files, of another tool (``stashtrace.importers.registry.IMPORTERS``); or a store (``export parquet``).
        A tar or zip archive is read like the folder that it holds; it is unpacked into a temporary folder.
    tables : collection of str, optional
        Tables to load; the others stay empty. ``io`` is the one that takes memory: above some million calls it
        stays on disk until ``trace.io`` is used. Processes, tracks, losses, alignment and metadata are always there.
    ranks : collection of int, optional
        Ranks to load, with their workers; processes that serve no rank are always there.
    run_id : str, optional
        Id of the run if a directory holds several; a prefix is enough.
    strict : bool
        Raise on damage that otherwise becomes a row of ``losses`` and a :class:`DataLossWarning`.

    progress : callable, optional
        Called with (bytes read, bytes in all, name of the file) while files of other tools are read.

    Raises
    ------
    FormatError
        If there is nothing to read.
    ImporterError
        If files of other tools hold no usable row.
    UsageError
        If a table or rank does not exist.
    """
    if tables is not None and set(tables) - set(TABLES):
        raise UsageError(
            f"no such table: {', '.join(sorted(set(tables) - set(TABLES)))}", hint=f"there are {', '.join(TABLES)}"
        )
    wanted = None if tables is None else frozenset(tables)
    try:
        return _load(*unpacked_paths(_list_names(path)), wanted, ranks, run_id, strict, progress)
    except StashtraceError as error:
        error.args = (named(str(error)), *error.args[1:])
        raise


def _load(
    paths: list[str],
    shown: str,
    wanted: frozenset[str] | None,
    ranks: Collection[int] | None,
    run_id: str | None,
    strict: bool,
    progress: Progress | None,
) -> Trace:
    """Load what is at the paths, none of which is an archive; messages call them ``shown``. See :func:`load_trace`."""
    kinds = [_kind_of(one) for one in paths]
    if kinds and set(kinds) == {_FOREIGN}:
        trace = load_imported(paths, tables=wanted, ranks=ranks, strict=strict, progress=progress)
    elif kinds == [_STORE]:
        trace = load_stored(paths[0], wanted, ranks)
    elif set(kinds) - {_RUN}:
        other, kind = next(pair for pair in zip(paths, kinds, strict=True) if pair[1] != _RUN)
        raise UsageError(f"cannot load {other} ({kind}) together with other inputs", hint="load each apart")
    else:
        trace = _load_run(open_processes(paths, run_id=run_id, strict=strict, ranks=ranks), wanted, shown)
    losses = trace.losses
    serious = losses.take(losses["severity_code"] == int(Severity.DATA_LOSS))
    if len(serious):
        reasons = sorted({trace.text(c) for c in serious["name_code"]})
        warnings.warn(
            f"{trace.path}: something is missing ({', '.join(reasons)}); see the losses table",
            DataLossWarning,
            stacklevel=4,
        )
    return trace


#: Kinds of input, as they appear in messages.
_RUN, _STORE, _FOREIGN = "a run", "a store", "of another tool"


def _kind_of(path: str) -> str:
    if not os.path.isdir(path):
        return _FOREIGN if os.path.exists(path) and not path.endswith(_OWN_FILES) else _RUN
    names = os.listdir(path)
    if STORE_FILE in names:
        return _STORE
    if any(name.endswith(_OWN_FILES) or name == RUN_FILE for name in names):
        return _RUN
    return _FOREIGN if any(True for _ in files_of([path])) else _RUN


def is_foreign(path: str) -> bool:
    """Return True for files, and folders of files, that are neither a run nor a store."""
    return _kind_of(path) == _FOREIGN


def is_own_run(path: str) -> bool:
    """Return True for a run directory of ours, in which processes may still record."""
    return os.path.isdir(path) and _kind_of(path) == _RUN


def _load_run(run: OpenedRun, wanted: frozenset[str] | None, shown: str) -> Trace:
    """Decode the rows of an opened run and join them."""
    decoded = decode_processes(run.processes, run.tracks, wanted)
    parts = [one.tables for one in decoded]
    outline, io = None, None
    if wanted is None or "io" in wanted:
        outline, io = read_io([one.io for one in decoded], parts, len(run.tracks))
    notes = GroupNotes.of_all(one.notes for one in decoded)
    tables = join_tables(parts, wanted, notes, run.tracks) | describe(run, decoded)
    if io is not None:
        tables["io"] = io
    trace = Trace(run.strings, tables, path=shown, io_outline=outline)
    window = recorded_window(run)
    return trace if window is None else without_torn_collectives(trace, window)


def open_processes(
    path: Path | Sequence[Path],
    *,
    run_id: str | None = None,
    strict: bool = False,
    ranks: Collection[int] | None = None,
) -> OpenedRun:
    """Open a run, identify its processes and align its clocks, without decoding rows. See :func:`load_trace`."""
    paths = _list_names(path)
    if not paths:
        raise UsageError("no path given")
    runs = [open_run(one, strict=strict, run_id=run_id) for one in paths]
    return identify_run(runs, os.pathsep.join(paths), _start_of(run_id), ranks)


def identify_run(
    runs: list[RawRun], path: str, start: int | None, ranks: Collection[int] | None, others: Sequence[StashFile] = ()
) -> OpenedRun:
    """Identify the processes of opened directories and align their clocks.

    ``others``: processes that other hosts report to a follower of this host. They are numbered behind the own ones,
    and common time is that of the own ones.
    """
    own_files = [file for run in runs for file in run.processes]
    files = [*own_files, *others]
    core = [file.load(_CORE_RECORDS) for file in files]
    clocks = host_clocks(runs[0].path, core)
    everyone = process_identity.identify_processes(files, core, clocks, start, runs[0].run_id)
    of_host = everyone[: len(own_files)]
    clocks.refer_to(process_identity.leader(of_host).clock)
    clock_losses = _align(runs, everyone, clocks) if len(clocks.of_boots()) > 1 else []
    clocks.count_from(_first_ns(runs, of_host, clocks))
    processes = process_identity.own_first(process_identity.choose_processes(everyone, ranks, path), others)
    shown, starts = process_identity.generations([process.identity for process in everyone])
    tracks = thread_tracks(processes)
    processes, device_losses = _with_device_clocks(processes)
    return OpenedRun(
        path,
        runs,
        everyone,
        processes,
        shown,
        starts,
        ranks is None,
        clocks,
        tracks.strings,
        tracks,
        clock_losses,
        device_losses,
    )


def _list_names(path: Path | Sequence[Path]) -> list[str]:
    return [os.fspath(path)] if isinstance(path, str | os.PathLike) else [os.fspath(one) for one in path]


def _start_of(run_id: str | None) -> int | None:
    """Return the start of an elastic job in ``--run ID.N``; None if it names none.

    Raises UsageError if N is not a number.
    """
    _, point, number = (run_id or "").partition(".")
    if not point:
        return None
    if not number.isdecimal():
        raise UsageError(f"{run_id} names no start of a run", hint="`--run ID.1` is the second start of run ID")
    return int(number)


def _align(runs: Sequence[RawRun], everyone: Sequence[process_identity.Process], clocks: RunClocks) -> list[LossRow]:
    """Correct the clocks of several hosts by their common operations, decoded on the first guess."""
    clocks.count_from(_first_ns(runs, everyone, clocks))
    processes = process_identity.choose_processes(everyone, None, "")
    tracks = thread_tracks(processes)
    processes, _ = _with_device_clocks(processes)
    decoded = decode_processes(processes, tracks, MEETING_TABLES)
    return align_run(clocks, processes, [one.tables for one in decoded], [one.end_ns for one in decoded])


def _first_ns(runs: Sequence[RawRun], everyone: Sequence[process_identity.Process], clocks: RunClocks) -> int:
    """Return the begin of the run in ns on the reference's monotonic clock."""
    clocks.count_from(0)
    begins = [process.begin_ns for process in everyone]
    known = [run.run.get("begin_monotonic_ns") for run in runs if run.run.get("boot_id") == clocks.reference]
    return min(begins + [begin for begin in known if isinstance(begin, int)])


def thread_tracks(processes: Sequence[process_identity.Process], tracks: TrackRegistry | None = None) -> TrackRegistry:
    """Register the tracks of all threads first, so that ids do not depend on which tables are loaded.

    ``tracks``: where they are added; a new registry by default.
    """
    tracks = TrackRegistry(StringPool()) if tracks is None else tracks
    for process in processes:
        for tid in process.file.thread_ids():
            tracks.thread(process.number, tid)
    return tracks


def _with_device_clocks(
    processes: Sequence[process_identity.Process],
) -> tuple[list[process_identity.Process], list[tuple[int, LossRow]]]:
    """Return the processes with their device clocks, and losses; a host's processes share readings of one device."""
    times, losses = device_clock.device_times((p.core, p.clock, p.clock.boot_id) for p in processes)
    return [replace(p, device_times=device_times) for p, device_times in zip(processes, times, strict=True)], losses


# What is in memory of a run that still records, and what other hosts report of their ranks.
#
#     own processes of this host    all tables   -> trace    what the analyses read
#     ranks of other hosts          a few tables -> joint    with the trace: numbers of steps, collectives matched

#: Tables of other hosts' ranks: those that steps are found in, and those that collectives are matched by.
_JOINT_TABLES = frozenset(
    {
        *("phases", "batches", "spans", "device_brackets", "streams", "devices"),
        *("groups", "collectives", "collective_waits", "collective_details", "device_clocks"),
    }
)


@dataclass(frozen=True, slots=True)
class GrownRun:
    """What is known of a run that still records."""

    #: Of the processes of this host.
    trace: Trace
    #: With ranks of other hosts, which have :data:`_JOINT_TABLES` alone; the trace itself if there are none.
    joint: Trace
    #: All processes, those of this host first.
    opened: OpenedRun


def load_growing(run: RawRun, others: Sequence[StashFile] = ()) -> GrownRun:
    """Load what is in memory of a run that still records, as ``load_trace`` does; nothing is warned of.

    ``run``: of ``format.growing.GrowingRun.take_in``. ``others``: what other hosts report of their ranks. Of an elastic
    job the last start is loaded. Raises FormatError if no process has a clock reading.
    """
    opened = identify_run([run], run.path, None, None, others)
    if opened.starts and opened.start != opened.starts[-1]:
        opened = identify_run([run], run.path, opened.starts[-1], None, others)
    known = {id(file) for file in others}
    ours = [process for process in opened.processes if id(process.file) not in known]
    theirs = opened.processes[len(ours) :]
    # Tracks of this host come first, so that those of others can be left out.
    opened = replace(opened, tracks=thread_tracks(ours, TrackRegistry(opened.strings)))
    decoded = decode_processes(ours, opened.tracks, None)
    tracks_count = len(opened.tracks)
    outline, io = read_io([one.io for one in decoded], [one.tables for one in decoded], tracks_count)
    decoded += decode_processes(theirs, thread_tracks(theirs, opened.tracks), _JOINT_TABLES)
    notes = GroupNotes.of_all(one.notes for one in decoded)
    tables = join_tables([one.tables for one in decoded], None, notes, opened.tracks) | describe(opened, decoded)
    mine = (
        {name: _of_first(name, table, len(ours), tracks_count) for name, table in tables.items()}
        if theirs
        else dict(tables)
    )
    if io is not None:
        mine["io"] = io
    trace = Trace(opened.strings, mine, path=run.path, io_outline=outline)
    return GrownRun(trace, Trace(opened.strings, tables, path=run.path) if theirs else trace, opened)


def _of_first(name: str, table: Table, count: int, tracks_count: int) -> Table:
    """Return the rows of the first processes and tracks. Tracks of others stay, so that numbers do, as of nobody."""
    if name == "tracks":
        return table.replace(process_id=np.where(table["process_id"] < count, table["process_id"], -1))
    if "process_id" in table:
        return table.take(table["process_id"] < count)
    return table.take(table["track_id"] < tracks_count) if name == "spans" else table


#: Rows of a piece: about as many as when a run is loaded.
_PIECE_ROWS = 1 << 16


class _DamagedCallsError(FormatError):
    """A call has an impossible number or an unknown track; the reader of whole tables can repair that."""


class CallsOfStore:
    """The I/O calls of some ranks of a store.

    ``trace``: the other tables of these ranks. ``track_numbers``: number in the store of each track of the trace,
    ascending. ``rows_count``: see :class:`stashtrace.loading.io_calls.IoSource`.
    """

    def __init__(self, path: pathlib.Path, trace: Trace, track_numbers: Array, rows_count: int) -> None:
        self.rows_count = rows_count
        self._path, self._strings, self._numbers = path, trace.strings, track_numbers
        self._rank_of_process = np.array(trace.processes["rank"])
        self._process_of_track = np.array(trace.tracks["process_id"])

    def pieces(self, process_ids: Collection[int] | None = None) -> Iterator[Table]:
        """See :class:`stashtrace.loading.io_calls.IoSource`. Raises FormatError if a file cannot be read."""
        ranks = self._rank_of_process if process_ids is None else self._rank_of_process[sorted(process_ids)]
        # Calls of processes without a rank come last, as do their tracks.
        listed = sorted(set(ranks.tolist()), key=lambda rank: (rank == NO_RANK, rank))
        waiting: list[Table] = []
        for part in read_partitions(self._path, "io", listed, self._strings):
            rows = self._of_trace(part)
            if process_ids is not None:
                rows = rows.take(np.isin(self._process_of_track[rows["track_id"]], list(process_ids)))
            waiting += [rows] if len(rows) else []
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
    folder = pathlib.Path(path)
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
