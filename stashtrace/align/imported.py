"""Files of other tools -> Trace: each by the importer that recognises it, all on one time line.

Called by ``align.load_trace`` for paths that hold no run of ours. A file that cannot be read costs its own rows only.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from stashtrace.align.collective_merge import GroupNotes
from stashtrace.align.imported_clocks import ImportedClocks, imported_clocks
from stashtrace.align.imported_files import (
    RefusedFileError,
    UnknownFileError,
    files_of,
    known,
    looks_in_vain,
    size_of,
    trouble_of,
    unrecognised,
)
from stashtrace.align.imported_jobs import note_ranks, note_steps, note_steps_twice, part_by_time, refuse_several_jobs
from stashtrace.align.imported_memory import HINT, Room
from stashtrace.align.join import join_table, join_tables
from stashtrace.errors import ImporterError, UsageError
from stashtrace.importers.context import ImportContext, ImportedProcess
from stashtrace.importers.registry import Importer, plugins, recognise
from stashtrace.importers.source import Source
from stashtrace.model.columns import STAMPS
from stashtrace.model.kinds import Severity
from stashtrace.model.schemas import TABLES
from stashtrace.model.strings import StringPool
from stashtrace.model.table import Array, Table
from stashtrace.model.trace import EventTables, Trace
from stashtrace.store.layout import STORE_FILE

#: Called with (bytes read, bytes in all, name of the file).
Progress = Callable[[int, int, str], None]

#: Files between two signs of life while a folder is listed.
_COUNTED_AT_ONCE = 1000
#: What lies in a folder beside traces and is nobody's loss.
_FOREIGN_SUFFIXES = (".md", ".txt", ".log", ".py", ".toml", ".yaml", ".csv", ".png", ".html")


class Imported:
    """Everything of one load; gives ``join_tables`` what a ``Session`` gives it."""

    def __init__(self, paths: Sequence[str], strict: bool) -> None:
        self.strings = StringPool()
        self.context = ImportContext(self.strings)
        self.tracks = self.context.tracks
        self.group_notes = GroupNotes()
        self.paths = paths
        self.strict = strict
        self.origin_ns = 0
        self.clocks = ImportedClocks([])
        self.spans_ns: dict[int, tuple[int, int]] = {}
        self.importers: Counter[str] = Counter()
        self.part_names: list[str] = []

    def read(self, progress: Progress | None) -> list[EventTables]:
        """Tables of every file that can be read.

        Raises
        ------
        ImporterError
            If no file can, or the first that cannot if ``strict``.
        """
        files = list[Path]()
        for file in files_of(self.paths):
            files.append(file)
            if progress is not None and len(files) % _COUNTED_AT_ONCE == 0:
                progress(0, 0, f"{len(files):,} files found")
        looked = looks_in_vain(files, progress)
        if looked:
            where = os.pathsep.join(self.paths)
            raise ImporterError(
                f"{where} holds {len(files):,} files; none of the {looked:,} looked at is a trace",
                hint="give the traces themselves, or the folder that holds them alone",
            )
        total = sum(map(size_of, files))
        done, parts, troubles = 0, list[EventTables](), list[ImporterError]()
        room = Room()
        for file in files:
            at = [done]

            def advance(count: int, at: list[int] = at, name: str = file.name) -> None:
                at[0] += count
                room.check(count, name)
                if progress is not None:
                    progress(at[0], total, name)

            source = Source(file, advance)
            trouble = trouble_of(file)
            found = recognise(source) if trouble is None else None
            if found is not None:
                trouble = self._read_one(source, *found)
                if trouble is not None:
                    troubles.append(trouble)
                parts.append(self.context.take())
                self.part_names.append(file.name)
            elif file.suffix not in _FOREIGN_SUFFIXES:
                self._pass_over(file, trouble or unrecognised(source), troubles)
            done += size_of(file)
            if progress is not None:
                progress(done, total, file.name)
        if not any(len(part.table(name)) for part in parts for name in TABLES):
            raise self._nothing(troubles)
        return parts

    def _pass_over(self, file: Path, trouble: ImporterError, troubles: list[ImporterError]) -> None:
        """Note a file that no importer was given."""
        if self.strict and not isinstance(trouble, UnknownFileError | RefusedFileError):
            raise trouble
        troubles.append(trouble)
        unknown = isinstance(trouble, UnknownFileError | RefusedFileError) or not (file.suffix or file.is_dir())
        if unknown:
            self._lose(file.name, "file_not_recognised", Severity.INFO, str(trouble))
        else:
            self._lose(file.name, "unreadable_file", Severity.DATA_LOSS, str(trouble))

    def _nothing(self, troubles: Sequence[ImporterError]) -> ImporterError:
        readable = [t for t in troubles if not isinstance(t, UnknownFileError)]
        if len(troubles) == 1:
            return troubles[0]
        if readable:
            more = f"; nor can {len(troubles) - 1} more file{'s' if len(troubles) > 2 else ''} beside it be used"
            return ImporterError(f"{readable[0]}{more}", hint=readable[0].hint)
        if not os.path.isdir(self.paths[0]):
            return UnknownFileError(Path(self.paths[0]))
        hint = "give the directory of `stashtrace run --out DIR -- CMD`, or files of another tool"
        return ImporterError(f"{self.paths[0]} holds no trace", hint=f"{hint} ({known()})")

    def _read_one(self, source: Source, name: str, importer: Importer) -> ImporterError | None:
        self.context.begin(name, source.path.name, str(source.path))
        try:
            importer.load(source, self.context)
        except ImporterError as error:
            trouble = error
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            trouble = ImporterError(f"{source.path} cannot be read: {error}")
        except MemoryError:
            self.context.drop()
            trouble = ImporterError(f"{source.path} does not fit into memory", hint=HINT)
        except Exception as error:
            # A format has more ways to be broken than an importer can name: the file costs itself, not the load.
            what = f"{type(error).__name__}: {error}"[:200]
            package = plugins()[name].package if name in plugins() else "stashtrace"
            trouble = ImporterError(
                f"{source.path} holds what no {name} file holds ({what})",
                hint=f"write it again with the tool it comes from, and tell the authors of {package} if that opens it",
            )
            trouble.__cause__ = error
        else:
            self.importers[name] += 1
            return None
        if self.strict:
            raise trouble
        self.context.drop()
        self._lose(source.path.name, "unreadable_file", Severity.DATA_LOSS, str(trouble))
        return trouble

    def _lose(self, file: str, reason: str, severity: Severity, advice: str) -> None:
        self.context.begin("importers", file)
        self.context.lose(reason, severity=severity, advice=advice)

    # Times ----------------------------------------------------------------------------------------

    def settle(self, parts: Sequence[EventTables]) -> None:
        """Let times count from the first one, and note when each process was seen first and last."""
        _add_bases(parts, self.context.bases_ns, np.array(self.tracks.table()["process_id"]))
        firsts, lasts = dict[int, int](), dict[int, int]()
        owner = np.array(self.tracks.table()["process_id"])
        for table, names in _stamped(parts):
            processes = _processes_of(table, owner)
            for name in names:
                stamps = table[name]
                seen = stamps >= 0
                for process_id in np.unique(processes[seen]).tolist():
                    own = stamps[seen & (processes == process_id)]
                    firsts[process_id] = min(firsts.get(process_id, int(own.min())), int(own.min()))
                    lasts[process_id] = max(lasts.get(process_id, int(own.max())), int(own.max()))
        _number_anew(parts, self.context.renumbered)
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
                    if self.clocks.offsets and any(c in STAMPS for c in table.columns):
                        table = self.clocks.moved(table, _processes_of(table, owner))
                    part._tables[name] = table.replace(**_moved(table, -self.origin_ns))
        self.spans_ns = {p: (firsts[p] - self.origin_ns, lasts[p] - self.origin_ns) for p in firsts}

    # Small tables -----------------------------------------------------------------------------------

    def process_table(self) -> Table:
        """The ``processes`` table."""
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
        """What importers missed, and what the files as a whole lack."""
        self.context.begin("importers", "")
        self.context.losses += [(-1, row) for row in self.clocks.losses]
        note_ranks(self.context)
        return Table.concat(TABLES["losses"], [self.context.loss_table(), *parts])

    def metadata_table(self, parts: Sequence[Table]) -> Table:
        """What importers said, and where it came from."""
        facts = [
            (-1, "origin_monotonic_ns", str(self.origin_ns)),
            (-1, "imported", ", ".join(f"{n} {name}" for name, n in sorted(self.importers.items()))),
        ]
        if self.context.realtime:
            facts.append((-1, "origin_realtime_ns", str(self.origin_ns)))
        rows = [(p, self.strings.code(k), self.strings.code(v)) for p, k, v in [*facts, *self.context.metadata]]
        return Table.concat(TABLES["metadata"], [Table.from_rows(TABLES["metadata"], rows), *parts])

    def alignment_table(self) -> Table:
        """One row per clock: files of one host share it, those of unknown hosts are taken to."""
        return self.clocks.table(self.strings, self.origin_ns)


def load_imported(
    paths: Sequence[str],
    *,
    tables: frozenset[str] | None = None,
    ranks: Collection[int] | None = None,
    strict: bool = False,
    progress: Progress | None = None,
) -> Trace:
    """Load files, or folders of files, that other tools wrote. See ``load_trace``.

    Raises
    ------
    ImporterError
        If nothing can be read.
        If the files are of several jobs.
    UsageError
        If a rank is not there.
    """
    imported = Imported(paths, strict)
    parts = imported.read(progress)
    if ranks is not None:
        _choose(imported.context.processes, imported.tracks.table(), parts, ranks)
    imported.settle(parts)
    joined = join_tables(imported, parts, tables)
    if tables is None or "io" in tables:
        joined["io"] = join_table("io", parts)
    return Trace(imported.strings, joined, path=os.pathsep.join(paths))


def is_foreign(path: str) -> bool:
    """Whether a path holds no run of ours, but files: somebody else's, or nothing that is known."""
    if not os.path.isdir(path):
        return os.path.exists(path) and not path.endswith((".stash", ".ring"))
    own = any(name.endswith((".stash", ".ring")) or name in ("run.json", STORE_FILE) for name in os.listdir(path))
    return not own and any(True for _ in files_of([path]))


def _stamped(parts: Sequence[EventTables]) -> Iterator[tuple[Table, list[str]]]:
    for part in parts:
        for name in TABLES:
            table = part.table(name)
            stamps = [c for c in table.columns if c in STAMPS]
            if len(table) and stamps:
                yield table, stamps


def _processes_of(table: Table, owner: Array) -> Array:
    """Process of each row, by its own column or its track's."""
    if "process_id" in table:
        return table["process_id"]
    track = "track_id" if "track_id" in table else "source_track_id"
    return np.asarray(owner[table[track]])


def _moved(table: Table, by_ns: int) -> Mapping[str, Array]:
    """Stamps of a table moved; what was not seen stays so."""
    stamps = (c for c in table.columns if c in STAMPS)
    return {name: np.where(table[name] >= 0, table[name] + by_ns, table[name]) for name in stamps}


def _add_bases(parts: Sequence[EventTables], bases_ns: Mapping[int, int | None], owner: Array) -> None:
    """Times of files that do not say from when they count: from where the others do."""
    known = Counter(base for base in bases_ns.values() if base)
    unknown = [process for process, base in bases_ns.items() if base is None]
    if not known or not unknown:
        return
    base = known.most_common(1)[0][0]
    for part in parts:
        for name in TABLES:
            table = part.table(name)
            stamps = [c for c in table.columns if c in STAMPS]
            if len(table) and stamps:
                chosen = np.isin(_processes_of(table, owner), unknown)
                moved = {c: np.where(chosen & (table[c] >= 0), table[c] + base, table[c]) for c in stamps}
                part._tables[name] = table.replace(**moved)


def _number_anew(parts: Sequence[EventTables], hashes: Collection[int]) -> None:
    """Collectives of these groups numbered from 0, in the order and across the ranks that their numbers so far give."""
    for value in hashes:
        own = [part.collectives["group_hash"] == np.uint64(value) for part in parts]
        used = [part.collectives["sequence"][rows] for part, rows in zip(parts, own, strict=True)]
        numbers = np.unique(np.concatenate(used))
        for part, rows in zip(parts, own, strict=True):
            if rows.any():
                sequence = part.collectives["sequence"].copy()
                sequence[rows] = np.searchsorted(numbers, sequence[rows])
                part._tables["collectives"] = part.collectives.replace(sequence=sequence)


def _choose(
    processes: Sequence[ImportedProcess], tracks: Table, parts: Sequence[EventTables], ranks: Collection[int]
) -> None:
    """Keep rows of these ranks, and of processes that serve none."""
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
                part._tables[name] = table.take(kept[_processes_of(table, owner)])
