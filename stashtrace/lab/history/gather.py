"""Read the files of a history into tables of runs, ranks, kinds of time, checkpoints and energy; series when asked for.

Files are decoded in parts, on threads of this machine or as tasks of a Dask cluster, whose workers must see the
history under the same path or URL. A part is what the files hold without their series. What cannot be read is left out
and said.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from stashtrace.analysis.intervals import Int64
from stashtrace.errors import FormatError, MissingDataError, UnsupportedVersionError
from stashtrace.fleet.tasks import on_cluster
from stashtrace.lab.history.place import Place, file_time
from stashtrace.lab.history.sections import ASKED, HISTORY, SECTIONS, VALUES, VERSION, VERSION_KEY, arrow_schema
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.possible import HIGHEST
from stashtrace.text import count_noun, list_some

if TYPE_CHECKING:
    import pyarrow

#: Files of a part, and most threads that decode parts: for longer than it reads, a thread holds the GIL.
_FILES_AT_ONCE, _THREADS = 64, 4
#: Called with (files done, files in all).
Progress = Callable[[int, int], None]
_NEWER = "newer"
#: Columns that a series needs.
_OF_SERIES = ("section", "name", "value", "begin_ns", "end_ns", VALUES)


@dataclass(frozen=True, slots=True)
class Part:
    """What the files of a part hold, without series."""

    #: Columns :data:`ASKED`, and ``file``, the number of the file in the part; by section.
    rows: dict[str, pyarrow.Table]
    #: File -> why it is left out.
    problems: dict[str, str]


class History:
    """The runs of a history, in the order in which they began, each once.

    ``place``: of the files. ``files``: name of each run's file. ``left_out``: a sentence for each reason why files are
    left out.
    """

    def __init__(self, place: Place, names: Sequence[str], rows: dict[str, pyarrow.Table], problems: dict[str, str]):
        self.place = place
        run = rows["run"]
        counts = {name: np.bincount(_numbers(table, "file"), minlength=len(names)) for name, table in rows.items()}
        chosen, copies = _each_once(run, counts["rank"], np.sum(list(counts.values()), axis=0), names)
        #: Number of each file's run, -1 if it is left out.
        numbers = np.full(len(names), -1, dtype=np.int64)
        files = _numbers(run, "file")[chosen]
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
        """Return the columns of a section as arrays, with ``run``, the number of the run, in the order of the runs."""
        if name not in self._sections:
            table = self._rows[name]
            run = self._numbers[_numbers(table, "file")]
            order = np.argsort(run, kind="stable")
            order = order[run[order] >= 0]
            columns: dict[str, Any] = {"run": run[order]}
            for column in ASKED[1:]:
                columns[column] = table[column].to_numpy()[order]
            self._sections[name] = columns
        return self._sections[name]

    def fact(self, name: str) -> np.ndarray:
        """Return a fact of each run, as text; empty where a run does not say."""
        if self._facts is None:
            self._facts = {}
            rows = self.section("fact")
            for key, own in GroupBy(rows["name"].astype(str)).items():
                values = np.full(len(self), "", dtype=object)
                values[rows["run"][own]] = rows["text"][own]
                self._facts[str(key)] = values
        if name not in self._facts:
            self._facts[name] = np.full(len(self), "", dtype=object)
        return self._facts[name]

    def number(self, name: str, missing: float = -1) -> np.ndarray:
        """Return a fact of each run as a number; ``missing`` where a run does not say, or says no number."""
        return np.array([_number(text, missing) for text in self.fact(name).tolist()])

    def series(self, runs: Sequence[int], sections: Sequence[str]) -> dict[int, list[dict[str, Any]]]:
        """Read the rows of some sections with their series, run by run: ``section``, ``name``, ..., ``values``."""
        found: dict[int, list[dict[str, Any]]] = {run: [] for run in runs}
        for begin in range(0, len(runs), _FILES_AT_ONCE):
            some = list(runs[begin : begin + _FILES_AT_ONCE])
            contents = self.place.read([self.files[run] for run in some])
            tables = []
            for run in some:
                content = contents.get(self.files[run], "it is gone")
                table = _decode(content, _OF_SERIES) if isinstance(content, bytes) else content
                if isinstance(table, str):  # it was read before, and is gone or damaged by now
                    raise FormatError(f"{self.files[run]} cannot be read again: {table}")
                tables.append(table)
            for run, row in _rows_of(tables, some, sections):
                found[run].append(row)
        return found


def _rows_of(
    tables: Sequence[pyarrow.Table], runs: Sequence[int], sections: Sequence[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the run and the columns of each row of some sections."""
    import pyarrow

    whole = pyarrow.concat_tables(tables).combine_chunks()
    wanted = np.array([list(SECTIONS).index(section) for section in sections])
    rows = np.flatnonzero(np.isin(_section_codes(whole), wanted))
    run = np.repeat(np.array(runs, dtype=np.int64), [len(table) for table in tables])[rows]
    whole = whole.take(pyarrow.array(rows))
    columns = {name: whole[name].to_pylist() for name in _OF_SERIES[:-1]}
    columns[VALUES] = _lists(whole[VALUES])
    for one, row in zip(run.tolist(), zip(*columns.values(), strict=True), strict=True):
        yield one, dict(zip(columns, row, strict=True))


def read_history(
    place: Place,
    *,
    since_hours: float | None = None,
    cluster: str | None = None,
    progress: Progress | None = None,
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
    whole = whole.append_column("file", pyarrow.array(file)).take(pyarrow.array(order))
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


def _decode(content: bytes, columns: Sequence[str] | None = None) -> pyarrow.Table | str:
    """Return the rows of a file, or why it cannot be used."""
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content), pre_buffer=False)
        own = file.schema_arrow
        told = (own.metadata or {}).get(VERSION_KEY, b"")
        if not told.isdigit() or len(told) > 6:
            return "it is no file of a history"
        if int(told) > VERSION:
            return f"{_NEWER} {int(told)}"
        if not own.equals(arrow_schema()):
            return "its columns are not those of a history"
        return file.read(columns=columns, use_threads=False)
    except (OSError, pyarrow.ArrowException) as error:
        return (str(error).strip() or type(error).__name__).splitlines()[0]


def _damaged_files(whole: pyarrow.Table, file: Int64, section: Int64, count: int) -> np.ndarray:
    """Return which files have rows that no run has: without one row of the run, or with impossible numbers."""
    wrong = np.zeros(count, dtype=bool)
    for name in whole.column_names:
        if whole[name].null_count:
            wrong[file[whole[name].is_null().to_numpy()]] = True
    for column in HISTORY.columns:
        if column.dtype == "i8" and column.name in whole.column_names:
            values = whole[column.name].fill_null(0).to_numpy()
            lowest = -1 if column.name == "rank" else -HIGHEST if column.name == "value" else 0
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
                number = compute.add(own["file"], at * _FILES_AT_ONCE)
                tables.append(own.set_column(own.column_names.index("file"), "file", number))
        joined[name] = pyarrow.concat_tables(tables).combine_chunks()
    return joined


def _each_once(run: pyarrow.Table, ranks_count: Int64, rows_count: Int64, names: Sequence[str]) -> tuple[Int64, int]:
    """Return the rows of the runs to keep, by begin, and how many copies are left out.

    Of several files of one run, that with the most ranks is kept, then that with the most rows: a run may be added
    before all of its hosts were merged, or from a host that does not know its file systems.
    """
    file = _numbers(run, "file")
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
    return FormatError(f"{place.text} holds no usable run: {name}: {why}", hint="`stashtrace history DIR --add RUN`")


def _numbers(table: pyarrow.Table, name: str) -> Int64:
    values: Int64 = table[name].to_numpy().astype(np.int64, copy=False)
    return values


def _lists(column: pyarrow.ChunkedArray) -> list[Int64]:
    """Return the lists of a column as arrays; none is an empty one."""
    lists: list[Int64] = []
    for chunk in column.chunks:
        flat = chunk.flatten().fill_null(0).to_numpy()
        ends = np.cumsum(chunk.value_lengths().fill_null(0).to_numpy()).tolist()
        lists += [flat[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
    return lists


def _number(text: str, missing: float) -> float:
    try:
        value = float(text)
    except ValueError:
        return missing
    return value if np.isfinite(value) else missing
