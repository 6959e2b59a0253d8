"""RawProcess, EventTables and Trace: what readers, decoders, loading and analyses pass on."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from stashtrace.schema.events import TABLES
from stashtrace.schema.groupby import Int64
from stashtrace.schema.notebook import Heading, Words, lazy_function, rows_html
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Table
from stashtrace.text.units import ranks_text
from stashtrace.text.visible import visible_line

if TYPE_CHECKING:
    import duckdb
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

Result = TypeVar("Result")

#: What is missing: (collector, reason, severity, lost_count, advice).
LossRow = tuple[str, str, int, int, str]


@dataclass(frozen=True, slots=True)
class RawRecords:
    """All rows of one record type of one process, grouped by thread in the order written."""

    #: Fields as in today's ``records.def``, projected by name from the file's field table.
    rows: npt.NDArray[np.void]
    #: Kernel thread id of each row.
    tid: npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class RawProcess:
    """One traced process image, still in its own clocks."""

    #: File name without suffix.
    name: str
    #: JSON metadata of the file header (see ``csrc/schema/container.h``).
    metadata: Mapping[str, Any]
    #: Record name -> :class:`RawRecords`; missing types are absent.
    records: Mapping[str, RawRecords]
    #: String id -> text, of this process.
    strings: Mapping[int, str]
    #: Found while reading: drops, torn tails, unknown records.
    losses: list[LossRow] = field(default_factory=list)

    def rows(self, name: str) -> npt.NDArray[np.void] | None:
        """Rows of one record type, None if there are none."""
        records = self.records.get(name)
        return None if records is None or not len(records.rows) else records.rows


class _Tables:
    """Attribute access to tables by name; absent ones are empty."""

    def __init__(self, strings: StringPool, tables: Mapping[str, Table]) -> None:
        unknown = tables.keys() - TABLES.keys()
        if unknown:
            raise ValueError(f"unknown tables {sorted(unknown)}")
        self.strings = strings
        self._tables = dict(tables)

    def table(self, name: str) -> Table:
        """Table by name, empty if nothing filled it."""
        table = self._tables.get(name)
        if table is None:
            if name not in TABLES:
                raise KeyError(_no_table(name))
            table = self._tables[name] = Table.empty(TABLES[name])
        return table

    def __getattr__(self, name: str) -> Table:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(_no_table(name))


def _table_named(name: str) -> property:
    """Return the attribute with a table: a property takes a quarter of the time of ``__getattr__``."""
    return property(lambda tables: tables.table(name), doc=TABLES[name].doc)


for _name in TABLES:
    setattr(_Tables, _name, _table_named(_name))


def _no_table(name: str) -> str:
    return (
        f"no table {name!r}: recorded are {', '.join(TABLES)}; what is computed from them comes from"
        f" stashtrace.analyze(trace, {name!r})"
    )


class EventTables(_Tables):
    """Tables of one process or file, in its own clock (``*_ns`` columns hold that clock's values)."""

    def filled(self) -> Iterator[tuple[str, Table]]:
        """Name and rows of each table that has any, in the order of ``TABLES``."""
        for name in TABLES:
            table = self._tables.get(name)
            if table is not None and len(table):
                yield name, table

    def put(self, table: Table) -> None:
        """Hold a table in place of the one of its name."""
        self._tables[table.schema.name] = table

    def pop(self, name: str) -> Table:
        """Table by name, which is empty here from now on: its memory is the caller's."""
        table = self.table(name)
        del self._tables[name]
        return table


class IoOutline(Protocol):
    """Facts about the I/O calls from their first reading, and access to the calls that stay on disk."""

    #: Calls in all.
    rows_count: int
    #: Calls of each track, by track id.
    counts: Int64
    #: Earliest begin and latest end; 0 if there is no call.
    begin_ns: int
    end_ns: int
    #: Calls that blocked, receives, and writes to named files by threads that may drive a training loop, in the order
    #: of ``io``.
    notable: Table

    def whole(self) -> Table:
        """All rows, by track, then begin; for calls left on disk, as :meth:`pieces`."""
        ...

    def pieces(self, process_ids: Collection[int] | None = None) -> Iterator[Table]:
        """The rows of these processes, all if None, in pieces of bounded size and in the order of ``io``."""
        ...


class Trace(_Tables):
    """All ranks on one timeline.

    The ``io`` table of a large run stays on disk until it is used. ``notable_io``, ``io_rows_count``, ``io_span_ns``
    and ``io_pieces`` never load it, and are enough for most purposes.

    Attributes
    ----------
    strings : StringPool
        Texts behind every ``*_code`` column that is not an enumeration.
    path : str
        Where it was loaded from.
    processes, tracks, spans, stacks, phases, batches, io, waits, frames, stack_samples, stack_spans : Table
        See ``stashtrace/schema/events.py``.
    collectives, collective_waits, groups, counters, flows, losses, alignment, metadata : Table
        See ``stashtrace/schema/events.py``.
    devices, streams, device_clocks, device_brackets, device_calls, kernels, collective_details : Table
        See ``stashtrace/schema/events.py``.
    """

    def __init__(
        self, strings: StringPool, tables: Mapping[str, Table], *, path: str = "", io_outline: IoOutline | None = None
    ) -> None:
        super().__init__(strings, tables)
        self.path = path
        self._io_outline = io_outline
        self._kept: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        """State for pickling and copying, without the kept results: these can be computed again."""
        return {**self.__dict__, "_kept": {}}

    @property
    def kept(self) -> dict[str, Any]:
        """Results that were computed from this trace, by name; see :func:`cached_on_trace`.

        A trace does not change, so they hold as long as it lives. None of them may refer to the trace, or its memory
        would not be free until the next collection of garbage.
        """
        return self._kept

    def __repr__(self) -> str:
        """Path, ranks and rows of the tables that have any; computes no analysis and leaves calls on disk there."""
        about, counts = self._outline()
        lines = [f"Trace({visible_line(self.path) or 'in memory'}: {', '.join(about)})"]
        for name, count in counts.items():
            lines.append(f"  {name:<22} {count:>13,}{'  ' * bool(self._remark(name))}{self._remark(name)}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The same as a notebook shows it, with the meaning of each table."""
        about, counts = self._outline()
        headings = [Heading("table"), Heading("rows", is_number=True), Heading("meaning")]
        rows = [
            (name, f"{count:,}", f"{TABLES[name].doc} {self._remark(name)}".rstrip()) for name, count in counts.items()
        ]
        return rows_html("Trace", f"{self.path or 'in memory'}: {', '.join(about)}", headings, rows)

    def _outline(self) -> tuple[list[str], dict[str, int]]:
        """Ranks and steps in words, and the rows of the tables that have any."""
        ranks = self.ranks.tolist()
        about = [f"{len(ranks)} rank{'s' * (len(ranks) > 1)} ({ranks_text(ranks)})" if ranks else "no ranks"]
        numbered = len(np.unique(self.numbered_steps["step"]))
        if numbered:
            about.append(f"{numbered} numbered step{'s' * (numbered > 1)}")
        counts = {name: self.io_rows_count if name == "io" else len(self.table(name)) for name in TABLES}
        counts = {name: count for name, count in counts.items() if count}
        return about if counts else [*about, "no rows"], counts

    def _remark(self, name: str) -> str:
        return "(on disk until used)" if name == "io" and self.streamed_io is not None else ""

    def table(self, name: str) -> Table:
        """Table by name, empty if nothing filled it; ``io`` of a large run is read now."""
        if name == "io" and (streamed := self.streamed_io) is not None:
            self._tables["io"] = streamed.whole()
        return super().table(name)

    @property
    def ranks(self) -> Int64:
        """Global ranks present, ascending."""
        ranks = np.unique(self.processes["rank"])
        return ranks[ranks >= 0]

    @property
    def origin_ns(self) -> int:
        """When the first process began: the moment that the seconds of ``--window`` count from; 0 without processes."""
        begins = self.processes["begin_ns"]
        return int(begins.min()) if len(begins) else 0

    @property
    def io_outline(self) -> IoOutline | None:
        """Facts about the I/O calls that are not in their table; None for a trace that was made in memory."""
        return self._io_outline

    @property
    def streamed_io(self) -> IoOutline | None:
        """Access to the I/O calls as long as they are not in memory, else None."""
        return None if "io" in self._tables else self._io_outline

    @property
    def io_rows_count(self) -> int:
        """Number of I/O calls."""
        return len(self.io) if self._io_outline is None else self._io_outline.rows_count

    @property
    def io_span_ns(self) -> tuple[int, int]:
        """Earliest begin and latest end of the I/O calls; (0, 0) if there is none."""
        if self._io_outline is not None:
            return self._io_outline.begin_ns, self._io_outline.end_ns
        return (int(self.io["begin_ns"].min()), int(self.io["end_ns"].max())) if len(self.io) else (0, 0)

    @property
    def notable_io(self) -> Table:
        """At least the calls that blocked, receives, and a loop's writes to named files, in the order of ``io``."""
        return self.io if self._io_outline is None else self._io_outline.notable

    def io_pieces(self) -> Iterator[Table]:
        """All I/O calls in the order of ``io``, in pieces of bounded size if they are not in memory."""
        streamed = self.streamed_io
        if streamed is not None:
            yield from streamed.pieces()
        elif len(self.io):
            yield self.io

    def replace(self, **tables: Table) -> Trace:
        """Same trace with some tables exchanged."""
        return Trace(
            self.strings,
            {**self._tables, **tables},
            path=self.path,
            io_outline=None if "io" in tables else self._io_outline,
        )

    def text(self, code: int) -> str:
        """Text of a ``*_code`` value."""
        return self.strings.text(int(code))

    def summary(self) -> Words:
        """Say in words what slows the run down, as at the end of ``stashtrace run``; a notebook shows the lines."""
        return Words(lazy_function("stashtrace.replay.causes:summary")(self))

    def sql(self, query: str, *others: Trace) -> duckdb.DuckDBPyRelation:
        """Answer a query in SQL about this run, or this and others.

        Parameters
        ----------
        query : str
            One statement that reads, in DuckDB's SQL. It names tables and analyses; units end the names of columns, and
            ``"describe NAME"`` explains those of a table.
        *others : Trace
            Further runs: each table then has a first column ``run``.

        Returns
        -------
        DuckDBPyRelation
            Computed when it is used: ``.df()``, ``.arrow()``, ``.fetchall()``, ``.show()``.

        Raises
        ------
        StashtraceError
            If DuckDB is not installed.
        UsageError
            If the query is wrong, or does more than read.
        MissingDataError
            If the run lacks what an analysis of the query needs.
        """
        relation: duckdb.DuckDBPyRelation = lazy_function("stashtrace.sql.query:sql")(self, query, *others)
        return relation

    def perfetto(
        self,
        *,
        bin_path: str | os.PathLike[str] | None = None,
        config: TraceProcessorConfig | None = None,
        **options: Any,
    ) -> TraceProcessor:
        """Start Perfetto's trace processor on the timeline.

        Parameters
        ----------
        bin_path : path, optional
            File of ``trace_processor_shell``; by default the one that the package ``perfetto`` downloads and keeps.
        config : TraceProcessorConfig, optional
            All settings of the processor, in place of ``bin_path``.
        **options
            Of the timeline: ``ranks``, ``steps``, ``window_ns``, ``budget_slices``.

        Returns
        -------
        TraceProcessor
            ``query("select ...")`` asks it; ``close()``, or the end of a ``with`` block, ends its program.

        Raises
        ------
        StashtraceError
            If the package ``perfetto`` cannot be used, or the program cannot be had or does not start.
        UsageError
            If ``bin_path`` is no file, is given with ``config``, or the timeline does not know an option.
        MissingDataError
            If the trace has no times.
        """
        start = lazy_function("stashtrace.timeline.timeline:trace_processor")
        processor: TraceProcessor = start(self, bin_path=bin_path, config=config, **options)
        return processor


def cached_on_trace(compute: Callable[[Trace], Result]) -> Callable[[Trace], Result]:
    """Decorate a function of a trace alone: its result is computed once for each trace and kept with it.

    The result must not refer to the trace, and callers must not change it.
    """
    name = f"{compute.__module__}.{compute.__qualname__}"

    @wraps(compute)
    def kept(trace: Trace) -> Result:
        if name not in trace.kept:
            trace.kept[name] = compute(trace)
        result: Result = trace.kept[name]
        return result

    return kept


def facts_with_key(trace: Trace, is_asked: Callable[[str], object]) -> Table:
    """Return the rows of ``metadata`` whose key is asked for; each key is read once, of however many processes."""
    keys = trace.metadata["key_code"]
    asked = [code for code in np.unique(keys).tolist() if is_asked(trace.text(code))]
    return trace.metadata.take(np.isin(keys, asked))


def facts_named(trace: Trace, key: str) -> list[tuple[int, str]]:
    """Return the process, -1 of the run, and the value of each row of ``metadata`` with a key, in their order."""
    rows = trace.metadata.take(trace.metadata["key_code"] == trace.strings.find(key))
    return list(zip(rows["process_id"].tolist(), map(trace.text, rows["value_code"].tolist()), strict=True))


def is_stated(trace: Trace, key: str) -> bool:
    """Return whether ``metadata`` has a key, of the run or of a process."""
    code = trace.strings.find(key)
    return code >= 0 and bool((trace.metadata["key_code"] == code).any())


def run_facts(trace: Trace) -> dict[str, str]:
    """Return the contents of ``run.json``."""
    part = trace.metadata.take(trace.metadata["process_id"] == -1)
    return {trace.text(row["key_code"]): trace.text(row["value_code"]) for row in part.rows()}


# Keys of ``metadata`` that importers write and analyses read.

#: Of a process: nothing of its host was recorded, so why a device idled is unknown.
HOST_NOT_RECORDED = "host_not_recorded"
#: Of a process: "first:end pieces" of the newest steps that deep mode recorded, and how often it was on.
KERNELS_WINDOW, KERNELS_WINDOWS_COUNT = "kernels_window", "kernels_windows_count"
#: Of a process: all operators of its threads were recorded, so at other times nothing computed.
OPERATORS_RECORDED = "operators_recorded"
#: Of a process: its recording holds work of a device that the importer cannot read; the value names it.
DEVICE_WORK_NOT_READ = "device_work_not_read"
#: Of a process: a benchmark sleeps where a model would compute; the value is the name of the function.
EMULATED = "emulated_compute"
#: Of a process whose calls were flagged as blocked because they took long: key and value; ``stalls`` widens its bounds.
BLOCKED_FROM = ("io_blocked_from", "duration")
#: Reporter of losses that concern whole files: missing, unreadable or of different jobs.
WHOLE_FILES = "importers"
#: Reason of a loss: the file ends early, and any part of the work behind its last event may be missing.
FILE_CUT = "file_cut"
#: Of a file: how many processes the recorded program had, also those without a record.
PROCESSES = "processes_count"
#: Of a process: its pipeline stage, and its number among those that hold the same stage.
PIPELINE_STAGE, DATA_PARALLEL_RANK = "pipeline_stage", "data_parallel_rank"
#: Name of the one step of a recording in which nothing marks a step.
WHOLE_RECORDING = "whole recording"


# Rows of the ``losses`` table, from the tuples in which readers, decoders and importers report them.

#: More rows than any run has: a larger count is damage. Sums of such counts fit the columns of later tables.
_MOST_LOST = 1 << 48


def losses_columns(process_id: int, rows: Iterable[LossRow], strings: StringPool) -> dict[str, Any]:
    """Columns of the ``losses`` table from loss tuples."""
    listed = list(rows)
    return {
        "process_id": np.full(len(listed), process_id, dtype=np.int64),
        "collector_code": strings.codes(r[0] for r in listed),
        "name_code": strings.codes(r[1] for r in listed),
        "severity_code": np.array([r[2] for r in listed], dtype=np.int64),
        "lost_count": np.array([min(r[3], _MOST_LOST) for r in listed], dtype=np.int64),
        "advice_code": strings.codes(r[4] for r in listed),
    }
