"""Load files of other tools as one Trace: the importer that recognises a file reads it, and all share one timeline.

If a file cannot be read, only its rows are lost.
"""

from __future__ import annotations

import os
import shlex
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from stashtrace.errors import ImporterError, UsageError
from stashtrace.importers.import_context import Claim, ImportContext, ImportedProcess, NamedJob
from stashtrace.importers.registry import Importer, plugins
from stashtrace.importers.source import Source
from stashtrace.loading.clocks.align_recorded import ImportedClocks, imported_clocks
from stashtrace.loading.foreign_files import (
    HINT,
    ArchiveAmongFilesError,
    MemoryLimit,
    RefusedFileError,
    UnknownFileError,
    files_of,
    importer_of,
    known,
    require_trace_among,
    size_of,
)
from stashtrace.loading.join import join_table, join_tables
from stashtrace.loading.join_collectives import GroupNotes
from stashtrace.loading.temporary_archives import named
from stashtrace.schema.events import TABLES
from stashtrace.schema.kinds import ProcessRole, Severity, SpanKind
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Array, Table
from stashtrace.schema.trace import EventTables, Trace
from stashtrace.text.units import ranks_named

#: Called with (bytes read, bytes in all, name of the file).
Progress = Callable[[int, int, str], None]

#: Progress is reported once per this many files while a folder is listed.
_COUNTED_AT_ONCE = 1000
_APART = "put the files of each job into a folder of its own; `stashtrace diff A B` compares two"
#: Suffixes of files that often lie next to traces; such a file is skipped without a loss row.
_FOREIGN_SUFFIXES = (".md", ".txt", ".log", ".py", ".toml", ".yaml", ".csv", ".png", ".html")


def _newest_run_in(folder: Path) -> Path | None:
    """Return the folder inside another one that holds the newest run; None if none does."""
    found = [path.parent for path in folder.glob("*/run.json")] if folder.is_dir() else []
    return max(found, key=lambda run: run.stat().st_mtime, default=None)


class Imported:
    """State of one load: importers, tracks, clocks and errors."""

    def __init__(self, paths: Sequence[str], strict: bool) -> None:
        self.strings = StringPool()
        self.context = ImportContext(self.strings)
        self.tracks = self.context.tracks
        self.paths = paths
        self.strict = strict
        self.origin_ns = 0
        self.clocks = ImportedClocks([])
        self.spans_ns: dict[int, tuple[int, int]] = {}
        self.importers: Counter[str] = Counter()
        self.errors: list[ImporterError] = []
        self.part_names: list[str] = []

    def read(self, progress: Progress | None) -> list[EventTables]:
        """Return the tables of every file that can be read.

        Raises ImporterError if no file can be read; with ``strict``, for the first file that cannot be read.
        """
        files = list[Path]()
        for file in files_of(self.paths):
            files.append(file)
            if progress is not None and len(files) % _COUNTED_AT_ONCE == 0:
                progress(0, 0, f"{len(files):,} files found")
        require_trace_among(files, os.pathsep.join(self.paths), progress)
        total = sum(map(size_of, files))
        done, parts = 0, list[EventTables]()
        limit = MemoryLimit()
        for file in files:
            at = [done]

            def advance(count: int, at: list[int] = at, name: str = file.name) -> None:
                at[0] += count
                limit.check(count, name)
                if progress is not None:
                    progress(at[0], total, name)

            source = Source(file, advance)
            try:
                name, importer = importer_of(source)
            except ImporterError as error:
                if file.suffix not in _FOREIGN_SUFFIXES:
                    self._pass_over(file, error)
                elif isinstance(error, RefusedFileError):
                    self.errors.append(error)  # reported if nothing else is there
            else:
                self._import(source, name, importer)
                parts.append(self.context.take())
                self.part_names.append(file.name)
            done += size_of(file)
            if progress is not None:
                progress(done, total, file.name)
        if not any(len(part.table(name)) for part in parts for name in TABLES):
            raise self._nothing()
        return parts

    def _pass_over(self, file: Path, error: ImporterError) -> None:
        """Record a file that no importer reads as a loss; if ``strict``, raise the error of a file that is damaged."""
        refused = isinstance(error, RefusedFileError) and not error.is_wrapper
        unknown = refused or isinstance(error, UnknownFileError | ArchiveAmongFilesError)
        if self.strict and not unknown:
            raise error
        self.errors.append(error)
        if unknown or not (file.suffix or file.is_dir()):
            self._lose(file.name, "file_not_recognised", Severity.INFO, str(error))
        else:
            self._lose(file.name, "unreadable_file", Severity.DATA_LOSS, str(error))

    def _nothing(self) -> ImporterError:
        """Return the error for a load in which no file gave a row."""
        errors = self.errors
        if inside := _newest_run_in(Path(self.paths[0])):
            hint = f"give the run itself, the newest in it is {shlex.quote(str(inside))}"
            return ImporterError(f"{self.paths[0]} is no run, but holds some", hint=hint)
        readable = [error for error in errors if not isinstance(error, UnknownFileError)]
        if len(errors) == 1:
            return errors[0]
        if readable:
            more = f"; nor can {len(errors) - 1} more file{'s' if len(errors) > 2 else ''} in the same place be read"
            return ImporterError(f"{readable[0]}{more}", hint=readable[0].hint)
        if not os.path.isdir(self.paths[0]):
            return UnknownFileError(Path(self.paths[0]))
        hint = "give the directory of `stashtrace run --out DIR -- CMD`, or files of another tool"
        return ImporterError(f"{self.paths[0]} holds no trace", hint=f"{hint} ({known()})")

    def _import(self, source: Source, name: str, importer: Importer) -> None:
        """Fill the context from a file. A file that cannot be read becomes a loss, or raises if ``strict``."""
        self.context.begin(name, source.path.name, str(source.path))
        try:
            _fill(self.context, source, name, importer)
        except ImporterError as error:
            if self.strict:
                raise
            self.context.drop()
            self.errors.append(error)
            self._lose(source.path.name, "unreadable_file", Severity.DATA_LOSS, str(error))
        else:
            self.importers[name] += 1

    def _lose(self, file: str, reason: str, severity: Severity, advice: str) -> None:
        self.context.begin("importers", file)
        self.context.lose(reason, severity=severity, advice=named(advice))

    # Times ----------------------------------------------------------------------------------------

    def settle(self, parts: Sequence[EventTables]) -> None:
        """Move times so that the first one is 0, and store when each process was seen first and last."""
        _add_bases(parts, self.context.bases_ns, np.array(self.tracks.table()["process_id"]))
        firsts, lasts = dict[int, int](), dict[int, int]()
        owner = np.array(self.tracks.table()["process_id"])
        for table, names in _tables_with_moments(parts):
            processes = _processes_of(table, owner)
            for name in names:
                stamps = table[name]
                seen = stamps >= 0
                for process_id in np.unique(processes[seen]).tolist():
                    chosen = stamps[seen & (processes == process_id)]
                    firsts[process_id] = min(firsts.get(process_id, int(chosen.min())), int(chosen.min()))
                    lasts[process_id] = max(lasts.get(process_id, int(chosen.max())), int(chosen.max()))
        _renumber(parts, self.context.renumbered)
        known = self.context.processes
        refuse_several_jobs(self.context, self.paths, {p: (firsts[p], lasts[p]) for p in firsts})
        note_steps(self.context, parts, owner)
        note_steps_twice(self.context, parts, self.part_names, owner)
        part_by_time(self.context, parts, {p: (firsts[p], lasts[p]) for p in firsts})
        self.clocks = imported_clocks(parts, [p.clock for p in known], [p.rank for p in known], firsts, lasts)
        firsts, lasts = self.clocks.seen(firsts), self.clocks.seen(lasts)
        self.origin_ns = min(firsts.values(), default=0)
        for part in parts:
            for name in TABLES:
                table = part.table(name)
                if len(table):
                    if self.clocks.offsets and table.schema.moments:
                        table = self.clocks.moved(table, _processes_of(table, owner))
                    part.put(table.replace(**_move(table, -self.origin_ns)))
        self.spans_ns = {p: (firsts[p] - self.origin_ns, lasts[p] - self.origin_ns) for p in firsts}

    # Small tables -----------------------------------------------------------------------------------

    def process_table(self) -> Table:
        """Return the ``processes`` table."""
        code = self.strings.code
        rows = []
        for index, process in enumerate(self.context.processes):
            begin, end = self.spans_ns.get(index, (0, 0))
            rows.append(
                (
                    index,
                    code(process.host),
                    code(process.clock),
                    code(process.host),
                    process.pid,
                    process.parent,
                    process.rank,
                    process.local_rank,
                    process.world_size,
                    int(process.role),
                    process.worker_id,
                    code(process.name),
                    begin,
                    end,
                )
            )
        return Table.from_rows(TABLES["processes"], rows)

    def loss_table(self, parts: Sequence[Table]) -> Table:
        """Return the ``losses`` table: what importers missed, and what the files as a whole lack."""
        self.context.begin("importers", "")
        self.context.losses += [(-1, row) for row in self.clocks.losses]
        note_ranks(self.context)
        return Table.concat(TABLES["losses"], [self.context.loss_table(), *parts])

    def metadata_table(self, parts: Sequence[Table]) -> Table:
        """Return the ``metadata`` table: the facts that importers gave, the origin of times and the formats read."""
        facts = [
            (-1, "origin_monotonic_ns", str(self.origin_ns)),
            (-1, "imported", ", ".join(f"{n} {name}" for name, n in sorted(self.importers.items()))),
        ]
        if self.context.realtime:
            facts.append((-1, "origin_realtime_ns", str(self.origin_ns)))
        rows = [(p, self.strings.code(k), self.strings.code(v)) for p, k, v in [*facts, *self.context.metadata]]
        return Table.concat(TABLES["metadata"], [Table.from_rows(TABLES["metadata"], rows), *parts])


def _fill(context: ImportContext, source: Source, name: str, importer: Importer) -> None:
    """Let an importer read a file; every error is raised as an ImporterError."""
    try:
        importer.load(source, context)
    except ImporterError:
        raise
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ImporterError(f"{source.path} cannot be read: {error}") from error
    except MemoryError as error:
        context.drop()
        error.__traceback__ = None  # its frames hold the rows read so far
        raise ImporterError(f"{source.path} does not fit into memory", hint=HINT) from error
    except Exception as error:
        # A file can be broken in more ways than an importer can name; the load goes on without this file.
        said = f"{type(error).__name__}: {error}"[:200]
        package = plugins()[name].package if name in plugins() else "stashtrace"
        raise ImporterError(
            f"{source.path} holds what no {name} file holds ({said})",
            hint=f"write it again with the tool it comes from, and tell the authors of {package} if that opens it",
        ) from error


def load_imported(
    paths: Sequence[str],
    *,
    tables: frozenset[str] | None = None,
    ranks: Collection[int] | None = None,
    strict: bool = False,
    progress: Progress | None = None,
) -> Trace:
    """Load files, or folders of files, that other tools wrote. See ``load_trace``.

    Raises ImporterError if nothing can be read. If the files belong to several jobs. Raises UsageError if a rank does
    not exist.
    """
    imported = Imported(paths, strict)
    parts = imported.read(progress)
    if ranks is not None:
        _choose(imported.context.processes, imported.tracks.table(), parts, ranks)
    imported.settle(parts)
    joined = join_tables(parts, tables, GroupNotes(), imported.tracks)
    joined |= {
        "processes": imported.process_table(),
        "losses": imported.loss_table([part.losses for part in parts]),
        "metadata": imported.metadata_table([part.metadata for part in parts]),
        "alignment": imported.clocks.table(imported.strings, imported.origin_ns),
        "tracks": imported.tracks.table(),
    }
    if tables is None or "io" in tables:
        joined["io"] = join_table("io", parts)
    return Trace(imported.strings, joined, path=named(os.pathsep.join(paths)))


def _tables_with_moments(parts: Sequence[EventTables]) -> Iterator[tuple[Table, tuple[str, ...]]]:
    for part in parts:
        for name in TABLES:
            table = part.table(name)
            if len(table) and table.schema.moments:
                yield table, table.schema.moments


def _processes_of(table: Table, owner: Array) -> Array:
    """Return the process of each row, from its column ``process_id`` or from its track."""
    if "process_id" in table:
        return table["process_id"]
    track = "track_id" if "track_id" in table else "source_track_id"
    return np.asarray(owner[table[track]])


def _move(table: Table, by_ns: int) -> Mapping[str, Array]:
    """Return the moments of a table moved by ``by_ns``; negative ones (not seen) stay as they are."""
    return {c: np.where(table[c] >= 0, table[c] + by_ns, table[c]) for c in table.schema.moments}


def _add_bases(parts: Sequence[EventTables], bases_ns: Mapping[int, int | None], owner: Array) -> None:
    """Add the most common origin of the other files to the times of files that do not name their origin."""
    known = Counter(base for base in bases_ns.values() if base)
    unknown = [process for process, base in bases_ns.items() if base is None]
    if not known or not unknown:
        return
    base = known.most_common(1)[0][0]
    for part in parts:
        for name in TABLES:
            table = part.table(name)
            stamps = table.schema.moments
            if len(table) and stamps:
                chosen = np.isin(_processes_of(table, owner), unknown)
                moved = {c: np.where(chosen & (table[c] >= 0), table[c] + base, table[c]) for c in stamps}
                part.put(table.replace(**moved))


def _renumber(parts: Sequence[EventTables], hashes: Collection[int]) -> None:
    """Renumber the collectives of these groups from 0; order and matching across ranks stay as they were."""
    for value in hashes:
        chosen = [part.collectives["group_hash"] == np.uint64(value) for part in parts]
        used = [part.collectives["sequence"][rows] for part, rows in zip(parts, chosen, strict=True)]
        numbers = np.unique(np.concatenate(used))
        for part, rows in zip(parts, chosen, strict=True):
            if rows.any():
                sequence = part.collectives["sequence"].copy()
                sequence[rows] = np.searchsorted(numbers, sequence[rows])
                part.put(part.collectives.replace(sequence=sequence))


def _choose(
    processes: Sequence[ImportedProcess], tracks: Table, parts: Sequence[EventTables], ranks: Collection[int]
) -> None:
    """Keep the rows of these ranks, and of processes that serve no rank."""
    there = sorted({p.rank for p in processes if p.rank >= 0})
    missing = sorted(set(ranks) - set(there))
    if missing:
        names = ", ".join(map(str, missing))
        raise UsageError(f"no such rank: {names}", hint=f"there are {', '.join(map(str, there))}")
    kept = np.array([p.rank < 0 or p.rank in ranks for p in processes], dtype=bool)
    owner = np.array(tracks["process_id"])
    for part in parts:
        for name in TABLES:
            table = part.table(name)
            if len(table) and ("process_id" in table or "track_id" in table or "source_track_id" in table):
                part.put(table.take(kept[_processes_of(table, owner)]))


# Do the files of one load belong together? Checks for ranks that are missing, doubled, of other jobs or other times.
#
# Rows that do not fit stay in the trace. They are not matched with other ranks, and a loss row says so.

#: Recordings further apart than this were not made at the same time, however much their clocks differ.
_APART_NS = 60_000_000_000
_SHOWN_WIDTH = 60
_FILES_AT_MOST, _JOBS_AT_MOST = 3, 4


def note_ranks(context: ImportContext) -> None:
    """Add losses for missing ranks, for ranks that two processes claim, and for job sizes that differ."""
    ranks = Counter(p.rank for p in context.processes if p.rank >= 0 and p.role == ProcessRole.RANK)
    twice = sorted(rank for rank, count in ranks.items() if count > 1)
    if twice:
        context.lose(
            "rank_seen_twice",
            len(twice),
            advice=f"two processes say that they are rank {twice[0]} ({_sources(context, twice[0])}):"
            " files of different runs lie here together",
        )
    worlds = sorted({p.world_size for p in context.processes if p.world_size > 0})
    if len(worlds) > 1:
        context.lose(
            "jobs_of_different_size",
            len(worlds),
            severity=Severity.ERROR,
            advice=f"files say that their job has {' and '.join(map(str, worlds))} ranks: they are not of one job",
        )
    missing = [rank for rank in range(worlds[-1]) if rank not in ranks] if ranks and worlds else []
    if missing:
        context.lose(
            "missing_ranks",
            len(missing),
            severity=Severity.ERROR,
            advice=f"no file of {_list_ranks(missing)} of {worlds[-1]}: who was late is only known among the others",
        )


def refuse_several_jobs(context: ImportContext, paths: Sequence[str], spans_ns: Mapping[int, tuple[int, int]]) -> None:
    """Raise ImporterError if files name jobs of different size, or if two of them hold the same rank.

    A table of two jobs would describe neither. Claims of different formats are taken to be of one job.
    """
    if jobs := _by_name(context.jobs):
        folder = (
            paths[0] if len(paths) == 1 else os.path.commonpath([os.path.dirname(j.path) or "." for j in context.jobs])
        )
        raise _several_jobs(folder, jobs, _APART)
    for importer in dict.fromkeys(claim.importer for claim in context.claims):
        chosen = [claim for claim in context.claims if claim.importer == importer]
        by_size = _by_size(chosen)
        jobs = by_size or _by_rank(chosen, spans_ns)
        if not jobs:
            continue
        folder = paths[0] if len(paths) == 1 else os.path.commonpath([os.path.dirname(c.path) or "." for c in chosen])
        hint = _APART
        if not by_size and any(claim.rank_from == "assumed" for claim in chosen):
            hint = f"if they are ranks of one job, call the files rank0, rank1, ...; else {hint}"
        raise _several_jobs(folder, jobs, hint)


def _several_jobs(folder: str, jobs: Sequence[tuple[str, list[str]]], hint: str) -> ImporterError:
    listed = "; ".join(f"{_files_text(files, folder)} ({why})" for why, files in jobs[:_JOBS_AT_MOST])
    listed += f"; and {len(jobs) - _JOBS_AT_MOST} more" if len(jobs) > _JOBS_AT_MOST else ""
    return ImporterError(f"{folder} holds files of {len(jobs)} jobs: {listed}", hint=hint)


def _by_name(named_jobs: Sequence[NamedJob]) -> list[tuple[str, list[str]]]:
    """Return (name, files) of each job that the files name if these are several, or of each run within one job."""
    for keys in ([file.job for file in named_jobs], [file.run for file in named_jobs]):
        jobs: dict[str, list[str]] = {}
        for key, file in zip(keys, named_jobs, strict=True):
            if key:
                jobs.setdefault(key, []).append(file.path)
        if len(jobs) > 1:
            return list(jobs.items())
    return []


def _by_size(claims: Sequence[Claim]) -> list[tuple[str, list[str]]]:
    """Return (size as text, files) of each job if the files name different sizes; else an empty list."""
    sizes: dict[int, list[str]] = {}
    for claim in claims:
        if claim.world_size > 0:
            sizes.setdefault(claim.world_size, []).append(claim.path)
    if len(sizes) < 2:
        return []
    return [(f"{size} rank{'s' * (size > 1)}", list(dict.fromkeys(files))) for size, files in sorted(sizes.items())]


def _by_rank(claims: Sequence[Claim], spans_ns: Mapping[int, tuple[int, int]]) -> list[tuple[str, list[str]]]:
    """Return (ranks as text, files) of each job if two processes hold one rank; jobs by folder, else time or file."""
    holders: dict[int, set[int]] = {}
    for claim in claims:
        holders.setdefault(claim.rank, set()).add(claim.process_id)
    twice = [rank for rank in sorted(holders) if len(holders[rank]) > 1]
    if not twice:
        return []
    moments = _moments([claim.process_id for claim in claims], spans_ns)
    keys = ([os.path.dirname(c.path) for c in claims], [str(moments.get(c.process_id, -1)) for c in claims])
    for key in keys:
        jobs: dict[str, dict[int, set[int]]] = {}
        for claim, value in zip(claims, key, strict=True):
            jobs.setdefault(value, {}).setdefault(claim.rank, set()).add(claim.process_id)
        if len(jobs) > 1 and all(len(p) == 1 for ranks in jobs.values() for p in ranks.values()):
            return [
                (
                    _list_ranks(sorted(jobs[value])),
                    list(dict.fromkeys(c.path for c, at in zip(claims, key, strict=True) if at == value)),
                )
                for value in jobs
            ]
    chosen = [claim for claim in claims if claim.rank == twice[0]]
    assumed = ", assumed" if chosen[0].rank_from == "assumed" else ""
    by_process: dict[int, list[str]] = {}
    for claim in chosen:
        by_process.setdefault(claim.process_id, []).append(claim.path)
    return [(f"rank {twice[0]}{assumed}", list(dict.fromkeys(files))) for files in by_process.values()]


def _moments(processes: Sequence[int], spans_ns: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    """Number the periods separated by time without any recording, and return the period of each process."""
    numbers: dict[int, int] = {}
    number, latest = -1, 0
    for process in sorted({p for p in processes if p in spans_ns}, key=lambda p: spans_ns[p]):
        begin, end = spans_ns[process]
        number += number < 0 or begin > latest
        latest = max(latest, end) if number >= 0 else end
        numbers[process] = number
    return numbers


def _files_text(files: Sequence[str], folder: str) -> str:
    """Return the first few files relative to their folder, and how many more there are."""
    shown = [os.path.relpath(f, folder) if os.path.isdir(folder) else os.path.basename(f) for f in files]
    more = f" and {len(shown) - _FILES_AT_MOST} more" if len(shown) > _FILES_AT_MOST else ""
    return ", ".join(shown[:_FILES_AT_MOST]) + more


def part_by_time(context: ImportContext, parts: Sequence[EventTables], spans_ns: Mapping[int, tuple[int, int]]) -> None:
    """Give collectives recorded at different times different groups: their ranks did not wait for each other."""
    clusters = _clusters(context.processes, spans_ns)
    if len(clusters) < 2:
        return
    context.begin("importers", "")
    for place, members in enumerate(clusters[1:], 1):
        ranks = sorted(context.processes[p].rank for p in members)
        context.lose(
            "ranks_of_another_time",
            len(ranks),
            severity=Severity.ERROR,
            advice=f"{_named(ranks)} recorded over a minute apart from the others: matched with nobody"
            f" (in {_few(sorted({context.processes[p].source for p in members}))})",
        )
        for part in parts:
            for name in ("collectives", "groups"):
                table = part.table(name)
                chosen = np.isin(table["process_id"], members)
                if chosen.any():
                    other = table["group_hash"] ^ np.uint64(place)
                    part.put(table.replace(group_hash=np.where(chosen, other, table["group_hash"])))


def note_steps_twice(context: ImportContext, parts: Sequence[EventTables], names: Sequence[str], owner: Array) -> None:
    """Add a doubt for steps that two files of one process hold: two jobs with equal process ids, or two profilers.

    ``names``: file of each part. ``owner``: process of each track.
    """
    holder: dict[tuple[int, int], str] = {}
    for part, name in zip(parts, names, strict=True):
        marks = part.spans.take(part.spans["kind_code"] == SpanKind.STEP)
        steps = set(zip(owner[marks["track_id"]].tolist(), marks["value"].tolist(), strict=True))
        twice = sorted(key for key in steps if holder.get(key, name) != name)
        for process, number in twice[:1]:
            context.doubt(
                "steps_seen_twice",
                f"rank {context.processes[process].rank} recorded step {number} in {holder[process, number]}"
                f" and again in {name}: if these are two jobs, analyse them apart",
                process,
            )
        holder.update((key, name) for key in steps if key not in holder)


def note_steps(context: ImportContext, parts: Sequence[EventTables], owner: Array) -> None:
    """Add a loss for ranks that recorded none of the steps that the other ranks recorded.

    ``owner``: process of each track.
    """
    numbers: dict[int, set[int]] = {}
    for part in parts:
        marks = part.spans.take(part.spans["kind_code"] == SpanKind.STEP)
        for process, number in zip(owner[marks["track_id"]].tolist(), marks["value"].tolist(), strict=True):
            numbers.setdefault(context.processes[process].rank, set()).add(number)
    numbers.pop(-1, None)
    counts = Counter(number for of_rank in numbers.values() for number in of_rank)
    if not counts:
        return
    usual = min(counts, key=lambda number: (-counts[number], number))
    shared = set[int]().union(*(of_rank for of_rank in numbers.values() if usual in of_rank))
    ranks = {p.rank for p in context.processes if p.rank >= 0 and p.role == ProcessRole.RANK}
    apart = sorted(rank for rank in ranks if not numbers.get(rank, set()) & shared)
    if not apart:
        return
    context.begin("importers", "")
    first, theirs = sorted(numbers.get(apart[0], ())), sorted(shared)
    context.lose(
        "steps_of_their_own",
        len(apart),
        severity=Severity.ERROR,
        advice=f"{_list_ranks(apart)} recorded none of the steps of the others"
        f" (rank {apart[0]}: {_steps_text(first)}, others: {_steps_text(theirs)}): matched with nobody by step",
    )


def _steps_text(numbers: Sequence[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}" if numbers else "none marked"


def _named(ranks: Sequence[int]) -> str:
    return f"{_list_ranks(sorted(set(ranks)))} {'were' if len(ranks) > 1 else 'was'}"


def _sources(context: ImportContext, rank: int) -> str:
    """Return the names of the files that hold a rank."""
    return _few(list(dict.fromkeys(p.source for p in context.processes if p.rank == rank and p.source)))


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:_FILES_AT_MOST]) + ", ..." * (len(names) > _FILES_AT_MOST)


def _list_ranks(ranks: list[int]) -> str:
    """Return the ranks as text; only their count and the first one if the list is long."""
    shown = ranks_named(ranks)
    return shown if len(shown) <= _SHOWN_WIDTH else f"{len(ranks)} ranks, {ranks[0]} the first,"


def _clusters(processes: Sequence[ImportedProcess], spans_ns: Mapping[int, tuple[int, int]]) -> list[list[int]]:
    """Return the processes of ranks, clustered by the time of their recording; the largest cluster comes first."""
    of_ranks = [p for p in spans_ns if processes[p].rank >= 0 and processes[p].role == ProcessRole.RANK]
    clusters: list[list[int]] = []
    latest = 0
    for process in sorted(of_ranks, key=lambda p: spans_ns[p]):
        begin, end = spans_ns[process]
        if not clusters or begin > latest + _APART_NS:
            clusters.append([])
            latest = end
        clusters[-1].append(process)
        latest = max(latest, end)
    return sorted(clusters, key=len, reverse=True)
