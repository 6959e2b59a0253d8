"""Read the files of a history into tables of runs, ranks, kinds of time, checkpoints and energy; series when asked for.

Files are decoded in parts, on threads of this machine or as tasks of a Dask cluster, whose workers must see the
history under the same path or URL. A part is what the files hold without their series. What cannot be read is left out
and said.
"""

from __future__ import annotations

import base64
import functools
import os
import shlex
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from stashtrace.analysis.intervals import Int64, ranges
from stashtrace.errors import FormatError, MissingDataError, UnsupportedVersionError
from stashtrace.files.bounded_parquet import damage_errors, read_parquet
from stashtrace.fleet.analyze import on_cluster
from stashtrace.lab.history.run_files import (
    ASKED,
    HISTORY,
    SECTIONS,
    VALUES,
    VERSION,
    VERSION_KEY,
    Place,
    arrow_schema,
    file_time,
)
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.possible import HIGHEST
from stashtrace.text.prose import count_noun, list_some

if TYPE_CHECKING:
    import pyarrow

_Missing = TypeVar("_Missing")
#: Files of a part, and most threads that decode parts: for longer than it reads, a thread holds the GIL.
_FILES_AT_ONCE, _THREADS = 64, 4
#: Called with (files done, files in all).
Progress = Callable[[int, int], None]
_NEWER, _OTHER_COLUMNS = "newer", "its columns are not those of a history"
#: Columns that files do not have: number of the file in the part, and of the row in the file.
_FILE, _AT = "file", "at"


@dataclass(frozen=True, slots=True)
class Part:
    """What the files of a part hold, without series."""

    #: Columns :data:`ASKED`, ``file`` and ``at``; by section.
    rows: dict[str, pyarrow.Table]
    #: File -> why it is left out.
    problems: dict[str, str]


@dataclass(frozen=True, slots=True)
class Series:
    """Series of some rows of a section, one after the other.

    ``rows``: of :meth:`History.section`, by run. ``bounds``: that of each row begins and ends there in ``values``.
    """

    rows: Int64
    bounds: Int64
    values: Int64

    @classmethod
    def at_places(cls, rows: Int64, lists: pyarrow.Array, places: Int64) -> Series:
        """Take the lists at some places; none is an empty one."""
        import pyarrow

        taken = lists.take(pyarrow.array(places))
        lengths = taken.value_lengths().fill_null(0).to_numpy()
        return cls(rows, np.cumsum([0, *lengths.tolist()]), taken.flatten().fill_null(0).to_numpy())

    @classmethod
    def join(cls, parts: Sequence[Series]) -> Series:
        """Put series after each other."""
        nothing = np.empty(0, dtype=np.int64)
        lengths = [np.diff(part.bounds) for part in parts]
        rows, values = ([getattr(part, name) for part in parts] for name in ("rows", "values"))
        return cls(
            np.concatenate([nothing, *rows]),
            np.cumsum(np.concatenate([nothing, [0], *lengths])),
            np.concatenate([nothing, *values]),
        )

    def __getitem__(self, at: int) -> Int64:
        """Return the series of a row, by its place in ``rows``."""
        return self.values[self.bounds[at] : self.bounds[at + 1]]


class History:
    """The runs of a history, in the order in which they began, each once.

    ``left_out``: a sentence for each reason why files are left out.
    """

    def __init__(self, place: Place, names: Sequence[str], rows: dict[str, pyarrow.Table], problems: dict[str, str]):
        self.place = place
        run = rows["run"]
        counts = {name: np.bincount(_numbers(table, _FILE), minlength=len(names)) for name, table in rows.items()}
        chosen, copies = _each_once(run, counts["rank"], np.sum(list(counts.values()), axis=0), names)
        #: Number of each file's run, -1 if it is left out.
        numbers = np.full(len(names), -1, dtype=np.int64)
        files = _numbers(run, _FILE)[chosen]
        numbers[files] = np.arange(len(chosen))
        self.files = [names[file] for file in files.tolist()]
        self.run_ids = [str(one) for one in run["name"].take(chosen).to_pylist()]
        self.begin_ns, self.end_ns = (_numbers(run, name)[chosen] for name in ("begin_ns", "end_ns"))
        self._rows = rows
        self._numbers = numbers
        self._sections: dict[str, dict[str, Any]] = {}
        self._facts: dict[str, np.ndarray] | None = None
        self.left_out = _sentences(problems, copies)

    def __len__(self) -> int:
        return len(self.files)

    def section(self, name: str) -> dict[str, Any]:
        """Return the columns of a section as arrays, with ``run``, the number of the run, in the order of the runs.

        Columns have the names that :data:`SECTIONS` gives them.
        """
        if name not in self._sections:
            table = self._rows[name]
            run = self._numbers[_numbers(table, _FILE)]
            order = np.argsort(run, kind="stable")
            order = order[run[order] >= 0]
            columns: dict[str, Any] = {"run": run[order]}
            for column in (*ASKED[1:], _AT):
                own = SECTIONS[name].columns.get(column)
                columns[own.name if own else column] = table[column].to_numpy()[order]
            self._sections[name] = columns
        return self._sections[name]

    def fact(self, name: str) -> np.ndarray:
        """Return a fact of each run, as text; empty where a run does not say."""
        if self._facts is None:
            self._facts = {}
            rows = self.section("fact")
            for key, of_key in GroupBy(rows["fact"].astype(str)).items():
                values = np.full(len(self), "", dtype=object)
                values[rows["run"][of_key]] = rows["said"][of_key]
                self._facts[str(key)] = values
        if name not in self._facts:
            self._facts[name] = np.full(len(self), "", dtype=object)
        return self._facts[name]

    def number(self, name: str, missing: float = -1) -> np.ndarray:
        """Return a fact of each run as a number; ``missing`` where a run does not say, or says no number."""
        return np.array([number_of(text, missing) for text in self.fact(name).tolist()])

    def series(self, runs: Sequence[int], sections: Sequence[str]) -> dict[str, Series]:
        """Read the series of some runs, by section; rows are in the order of the history."""
        runs = sorted(set(runs))
        parts: dict[str, list[Series]] = {name: [] for name in sections}
        for begin in range(0, len(runs), _FILES_AT_ONCE):
            some = runs[begin : begin + _FILES_AT_ONCE]
            lists, firsts = self._lists([self.files[run] for run in some])
            for name in sections:
                rows, place = self._rows_of_runs(name, some, firsts)
                parts[name].append(Series.at_places(rows, lists, place))
        return {name: Series.join(found) for name, found in parts.items()}

    def _lists(self, files: Sequence[str]) -> tuple[pyarrow.Array, Int64]:
        """Return the series of all rows of some files, and the number of each file's first row among them."""
        import pyarrow

        contents = self.place.read(files)
        columns = []
        for file in files:
            content = contents.get(file, "it is gone")
            table = _decode(content, (VALUES,)) if isinstance(content, bytes) else content
            if isinstance(table, str):  # it was read before, and is gone or damaged by now
                raise FormatError(f"{file} cannot be read again: {table}")
            columns.append(table[VALUES])
        chunks = [chunk for column in columns for chunk in column.chunks]
        lists = pyarrow.concat_arrays(chunks) if chunks else pyarrow.array([], arrow_schema().field(VALUES).type)
        return lists, np.cumsum([0, *(len(column) for column in columns)])

    def _rows_of_runs(self, section: str, runs: Sequence[int], firsts: Int64) -> tuple[Int64, Int64]:
        """Return the rows of a section that some runs have, and their places among the rows of these runs' files.

        ``firsts``: number of the first row of each file, and of all.
        """
        columns = self.section(section)
        numbers = np.array(runs, dtype=np.int64)
        bounds = np.searchsorted(columns["run"], numbers), np.searchsorted(columns["run"], numbers, side="right")
        rows = ranges(*bounds)
        at = np.repeat(np.arange(len(runs)), bounds[1] - bounds[0])
        place = firsts[at] + columns[_AT][rows]
        changed = np.flatnonzero(place >= firsts[at + 1])
        if len(changed):
            raise FormatError(f"{self.files[runs[int(at[changed[0]])]]} cannot be read again: it has other rows now")
        return rows, place


def read_history(
    place: Place, *, since_hours: float | None = None, cluster: str | None = None, progress: Progress | None = None
) -> History:
    """Read a history.

    ``since_hours``: leave out runs that began longer ago. ``cluster``: address of a Dask scheduler; threads of this
    process by default. ``progress``: called with (files done, files in all). Raises MissingDataError if there is no
    run. Raises UnsupportedVersionError if all files are of a newer version, FormatError if none can be read.
    """
    names = place.names()
    if since_hours is not None:  # names begin with the time
        first = file_time(time.time_ns() - round(since_hours * 3600e9))
        names = [name for name in names if name >= first]
        if not names:
            raise MissingDataError(f"no run of {place.text} is so new", hint="leave --since out, or give a longer time")
    chunks = [names[at : at + _FILES_AT_ONCE] for at in range(0, len(names), _FILES_AT_ONCE)]
    done = 0

    def finished(chunk: Sequence[str]) -> None:
        nonlocal done
        done += len(chunk)
        if progress is not None:
            progress(done, len(names))

    call = partial(read_part, place.text)
    parts: list[Part]
    if cluster is not None:
        parts = on_cluster(call, chunks, cluster, finished)
    else:
        parts = []
        with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
            for chunk, part in zip(chunks, pool.map(call, chunks), strict=True):
                parts.append(part)
                finished(chunk)
    problems = {name: why for part in parts for name, why in part.problems.items()}
    if len(problems) == len(names):
        raise _unusable(place, problems)
    return History(place, names, _join(parts), problems)


def read_part(place: str, names: Sequence[str]) -> Part:
    """Read some files of a history, without their series. Runs in a task."""
    import pyarrow

    tables, read, problems = [], [], {}
    contents = Place(place).read(names)
    for at, name in enumerate(names):
        content = contents.get(name, "it is gone")
        table = _decode(content, ASKED) if isinstance(content, bytes) else content
        if isinstance(table, str):
            problems[name] = table
        else:
            tables.append(table)
            read.append(at)
    if not tables:
        return Part({}, problems)
    whole = pyarrow.concat_tables(tables).combine_chunks()
    file = np.repeat(np.array(read, dtype=np.int64), [len(table) for table in tables])
    section = _section_codes(whole)
    damaged = _damaged_files(whole, file, section, len(names))
    problems |= {names[at]: "its rows are damaged" for at in np.flatnonzero(damaged).tolist()}
    order = np.argsort(section, kind="stable")
    order = order[~damaged[file[order]] & (section[order] >= 0)]
    within = ranges(np.zeros(len(tables), dtype=np.int64), np.array([len(table) for table in tables]))
    for column, numbers in ((_FILE, file), (_AT, within)):
        whole = whole.append_column(column, pyarrow.array(numbers))
    whole = whole.take(pyarrow.array(order))
    bounds = np.searchsorted(section[order], np.arange(len(SECTIONS) + 1))
    parts = zip(SECTIONS, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    return Part({name: whole.slice(begin, end - begin) for name, begin, end in parts}, problems)


def _section_codes(whole: pyarrow.Table) -> Int64:
    """Return the place of each row's section among :data:`SECTIONS`, -1 of one that is unknown."""
    encoded = whole["section"].combine_chunks().dictionary_encode()
    places = {name: at for at, name in enumerate(SECTIONS)}
    of_code = np.array([places.get(name, -1) for name in encoded.dictionary.to_pylist()] or [-1], dtype=np.int64)
    codes: Int64 = of_code[encoded.indices.fill_null(0).to_numpy()]
    return codes


def _decode(content: bytes, columns: Sequence[str]) -> pyarrow.Table | str:
    """Return some columns of a file, or why it cannot be used."""
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content), pre_buffer=False)
        metadata = file.metadata.metadata or {}
        version = metadata.get(VERSION_KEY, b"")
        if not version.isdigit() or len(version) > 6:
            return "it is no file of a history"
        if int(version) > VERSION:
            return f"{_NEWER} {int(version)}"
        if not _is_schema(metadata.get(b"ARROW:schema", b"")):
            return _OTHER_COLUMNS
        table = read_parquet(file, len(content), columns)
        # What the file says of its columns may not be what it has.
        return table if table.schema.equals(_schema_of(tuple(columns))) else _OTHER_COLUMNS
    except damage_errors() as error:
        return (str(error).strip() or type(error).__name__).splitlines()[0]


@functools.lru_cache(maxsize=64)
def _is_schema(encoded: bytes) -> bool:
    """Return whether the schema in a file's metadata is that of a history; files by one version have the same bytes."""
    import pyarrow

    try:
        stored = pyarrow.ipc.read_schema(pyarrow.BufferReader(base64.b64decode(encoded)))
    except (ValueError, OSError, pyarrow.ArrowException):
        return False
    return bool(stored.equals(arrow_schema()))


@functools.cache
def _schema_of(columns: tuple[str, ...]) -> pyarrow.Schema:
    import pyarrow

    return pyarrow.schema([arrow_schema().field(name) for name in columns])


def _damaged_files(whole: pyarrow.Table, file: Int64, section: Int64, count: int) -> np.ndarray:
    """Return which files have rows that no run has: without one row of the run, or with impossible numbers."""
    wrong = np.zeros(count, dtype=bool)
    for name in whole.column_names:
        if whole[name].null_count:
            wrong[file[whole[name].is_null().to_numpy()]] = True
    for column in HISTORY.columns:
        if column.dtype == "i8" and column.name in whole.column_names:
            values = whole[column.name].fill_null(0).to_numpy()
            lowest = -HIGHEST if column.name == "value" else column.missing
            wrong[file[(values < lowest) | (values > HIGHEST)]] = True
    wrong[file[whole["end_ns"].fill_null(0).to_numpy() < whole["begin_ns"].fill_null(0).to_numpy()]] = True
    runs = np.bincount(file[section == 0], minlength=count)
    there = np.bincount(file, minlength=count) > 0
    damaged: np.ndarray = there & (wrong | (runs != 1))
    return damaged


def _join(parts: Sequence[Part]) -> dict[str, pyarrow.Table]:
    """Return the rows of all parts by section; ``file`` numbers the files of all parts."""
    import pyarrow
    import pyarrow.compute as compute

    joined = {}
    for name in SECTIONS:
        tables = []
        for at, part in enumerate(parts):
            if part.rows:
                own = part.rows[name]
                number = compute.add(own[_FILE], at * _FILES_AT_ONCE)
                tables.append(own.set_column(own.column_names.index(_FILE), _FILE, number))
        joined[name] = pyarrow.concat_tables(tables).combine_chunks()
    return joined


def _each_once(run: pyarrow.Table, ranks_count: Int64, rows_count: Int64, names: Sequence[str]) -> tuple[Int64, int]:
    """Return the rows of the runs to keep, by begin, and how many copies are left out.

    Of several files of one run, that with the most ranks is kept, then that with the most rows: a run may be added
    before all of its hosts were merged, or from a host that does not know its file systems.
    """
    file = _numbers(run, _FILE)
    begin = _numbers(run, "begin_ns")
    keys = GroupBy(run["name"].to_numpy(zero_copy_only=False).astype(str), begin)
    order = np.lexsort((file, rows_count[file], ranks_count[file], keys.number))
    last = np.flatnonzero(np.append(np.diff(keys.number[order]) != 0, True)) if len(order) else order
    chosen = order[last]
    return chosen[np.lexsort((file[chosen], begin[chosen]))], len(file) - len(chosen)


def _sentences(problems: dict[str, str], copies: int) -> tuple[str, ...]:
    newer = [name for name, why in problems.items() if why.startswith(_NEWER)]
    damaged = [name for name, why in problems.items() if not why.startswith(_NEWER)]
    said = []
    if newer:
        said.append(f"{count_noun(len(newer), 'run')} left out, written by a newer stashtrace: {list_some(newer, 2)}")
    if damaged:
        first = problems[damaged[0]]
        said.append(f"{count_noun(len(damaged), 'file')} left out, damaged: {list_some(damaged, 2)} ({first})")
    if copies:
        said.append(f"{count_noun(copies, 'file')} left out: another file has the same run")
    return tuple(said)


def _unusable(place: Place, problems: dict[str, str]) -> FormatError:
    newer = [why for why in problems.values() if why.startswith(_NEWER)]
    if len(newer) == len(problems):
        version = newer[0].partition(" ")[2]
        return UnsupportedVersionError(
            f"{place.text} is a history of version {version}; this stashtrace reads version {VERSION}",
            hint="pip install --upgrade stashtrace",
        )
    name, why = next(iter(problems.items()))
    return FormatError(
        f"{place.text} holds no usable run: {name}: {why}",
        hint=f"`stashtrace history {shlex.quote(place.text)} --add RUN` adds a run that exists",
    )


def _numbers(table: pyarrow.Table, name: str) -> Int64:
    values: Int64 = table[name].to_numpy().astype(np.int64, copy=False)
    return values


def number_of(text: str, missing: _Missing) -> float | _Missing:
    """Return a text as a number; another value where it is none, or not finite."""
    try:
        value = float(text)
    except ValueError:
        return missing
    return value if np.isfinite(value) else missing
