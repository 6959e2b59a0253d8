"""The files of a history: where they are, and the rows of a run as sections of one flat table.

A file has few columns, so that it is read in a moment, and holds one run in one row group. ``section`` says what a row
is; the other columns are as :data:`HISTORY` and :data:`SECTIONS` explain. A reader that needs a part of it reads the
columns of that part alone: the series, in ``values``, are most of the bytes and are read for few runs. Files are
listed, read and added, never changed.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stashtrace.errors import MissingDataError, OutputError, UsageError
from stashtrace.files.whole_files import claim_file, give_mode, read_whole, written_to
from stashtrace.record.remote import claim_remote_file, is_url, list_files, local_path, read_files
from stashtrace.schema import columns as col
from stashtrace.schema.columns import RANK_OR_ALL, Column, schema

if TYPE_CHECKING:
    import pyarrow

#: Of the files; a file of a newer version is left out.
VERSION = 1
#: Key of the metadata of a file that holds its version.
VERSION_KEY = b"stashtrace_history"
SUFFIX = ".parquet"
#: Name of the time and energy outside of all steps.
OUTSIDE = "outside"

HISTORY = schema(
    "history",
    "One run in a file of a history; each section uses some of the columns, and a column `values` of lists of int64",
    col.word("section", "what the row is; see the guide"),
    col.word("name", "kind of time, fact, claim, loss or file system", width=24),
    col.word("text", "value of a fact, host, sentence, collector or mount point"),
    RANK_OR_ALL,
    Column("value", "i8", "", "steps, calls, bytes, lost records or millijoules, as the section says"),
    col.ns("begin_ns", "since 1970, by the clock of the host that the run's clock refers to"),
    col.ns("end_ns", "the same"),
    col.ns("mean_ns", "mean of a step"),
    col.ns("p10_ns", "of a step: one of ten is shorter"),
    col.ns("p50_ns", "median of a step"),
    col.ns("p90_ns", "of a step: nine of ten are shorter"),
    col.ns("p99_ns", "of a step: 99 of 100 are shorter"),
)
#: Columns that the questions need; quantiles are for other readers.
ASKED = tuple(name for name in HISTORY.names if not (name.startswith("p") and name.endswith("_ns")))
#: Column of the series, in addition to those of :data:`HISTORY`.
VALUES = "values"


@dataclass(frozen=True, slots=True)
class Section:
    """Rows of one kind: what they are, and by the shared columns of the file what these hold."""

    doc: str
    columns: dict[str, Column]


_KIND = col.word("kind", "kind of time, or `step`", role="kind")
_STEPS = col.number("steps_count", "counted steps")
_FILES = {"name": col.word("file_system", "its name"), "text": col.word("mount", "where it is mounted")}
SECTIONS = {
    "run": Section("the run, from begin to end of the whole job: one row", {"name": col.word("run_id", "its id")}),
    "fact": Section("a fact of the run", {"name": col.word("fact", "its name"), "text": col.word("said", "its value")}),
    "kind": Section("time in the counted steps of a rank: mean and quantiles", {"name": _KIND, "value": _STEPS}),
    "rank": Section(
        "a rank",
        {
            "text": col.word("host", "its host"),
            "mean_ns": col.ns("wait_ns", "what the mean other rank waited for it in a step"),
            "p50_ns": col.ns("median_wait_ns", "the same of the median step"),
            "name": col.word("longer_kind", "kind of time that it takes longer than the others", role="kind"),
            "value": col.number("last_count", "how often it was last"),
        },
    ),
    "steps": Section("series: each step, or time of a kind in it, mean over ranks", {"name": _KIND, "value": _STEPS}),
    "reads_count": Section(
        "series: reads of data files that began in each of equal parts of the time from begin to end",
        {**_FILES, "value": col.number("reads_count", "their sum")},
    ),
    "reads_ns": Section("series: time inside these reads", {**_FILES, "value": col.ns("reads_ns", "its sum")}),
    "steps_count": Section(
        "series: steps of the lowest rank that ended in the same parts", {**_FILES, "value": _STEPS}
    ),
    "checkpoint": Section(
        "a checkpoint, from begin to end",
        {**_FILES, "value": col.nbytes("written_bytes", "written to the file system")},
    ),
    "energy": Section(
        "energy of the devices of a rank",
        {"name": _KIND, "value": Column("energy_mj", "i8", "mJ", "in this kind of time")},
    ),
    "verdict": Section(
        "a claim of the summary about a rank",
        {
            "name": col.word("claim", "its kind"),
            "text": col.word("sentence", ""),
            "mean_ns": col.ns("stall_ns", "a step"),
        },
    ),
    "loss": Section(
        "what could not be recorded",
        {
            "name": col.word("loss", "its name"),
            "text": col.word("collector", "whose"),
            "value": col.number("lost_count", "how many"),
        },
    ),
}
_NUMBERS = ("value", "begin_ns", "end_ns", "mean_ns", "p10_ns", "p50_ns", "p90_ns", "p99_ns")


class Row(NamedTuple):
    """One row; fields are the columns of :data:`HISTORY`, and ``values``."""

    section: str
    name: str = ""
    text: str = ""
    rank: int = -1
    value: int = 0
    begin_ns: int = 0
    end_ns: int = 0
    mean_ns: int = 0
    p10_ns: int = 0
    p50_ns: int = 0
    p90_ns: int = 0
    p99_ns: int = 0
    values: Sequence[int] | None = None


@dataclass(slots=True)
class RunRows:
    """All rows of one run."""

    run_id: str
    begin_ns: int
    end_ns: int
    rows: list[Row] = field(default_factory=list)

    def add(self, section: str, **fields: Any) -> None:
        """Append a row; ``fields``: columns of the section, and those that it shares with others."""
        stored = {column.name: name for name, column in SECTIONS[section].columns.items()}
        self.rows.append(Row(section, **{stored.get(name, name): value for name, value in fields.items()}))

    def add_fact(self, name: str, value: object) -> None:
        """Append a fact, unless it is unknown."""
        if value is not None and value != "":
            self.add("fact", fact=name, said=str(value))

    @property
    def digest(self) -> str:
        """Eight digits that differ between two recordings; the same run written again has the same."""
        return hashlib.sha256(repr((self.run_id, self.begin_ns, self.end_ns, self.rows)).encode()).hexdigest()[:8]

    def all_rows(self) -> list[Row]:
        """Return the rows in the order of the sections, that of the run first."""
        order = {name: at for at, name in enumerate(SECTIONS)}
        first = Row("run", self.run_id, begin_ns=self.begin_ns, end_ns=self.end_ns)
        return [first, *sorted(self.rows, key=lambda row: order[row.section])]


def require_parquet(subject: str) -> None:
    """Raise UsageError, beginning with ``subject``, unless pyarrow is installed."""
    if find_spec("pyarrow") is None:
        raise UsageError(f"{subject} needs pyarrow, which is not installed", hint="pip install 'stashtrace[arrow]'")


@functools.cache
def arrow_schema() -> pyarrow.Schema:
    """Return the columns of a file."""
    import pyarrow

    fields = [
        pyarrow.field(c.name, pyarrow.string() if c.dtype[0] == "U" else pyarrow.int64()) for c in HISTORY.columns
    ]
    return pyarrow.schema([*fields, pyarrow.field(VALUES, pyarrow.list_(pyarrow.int64()))])


def parquet_bytes(run: RunRows) -> bytes:
    """Return the file of a run: one row group."""
    import pyarrow
    import pyarrow.parquet

    rows = run.all_rows()
    names = [*HISTORY.names, VALUES]
    wanted = arrow_schema()
    arrays = [pyarrow.array([getattr(row, name) for row in rows], wanted.field(name).type) for name in names]
    table = pyarrow.Table.from_arrays(arrays, schema=wanted.with_metadata({VERSION_KEY: str(VERSION).encode()}))
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(
        table,
        sink,
        row_group_size=len(rows) + 1,
        compression="snappy",  # zstd takes longer to set up for each column of a small file than all else does
        write_statistics=False,
        use_dictionary=["section", "name", "text"],
        column_encoding={
            **dict.fromkeys(_NUMBERS, "DELTA_BINARY_PACKED"),
            f"{VALUES}.list.element": "DELTA_BINARY_PACKED",
        },
    )
    return bytes(sink.getvalue())


_HINT = "choose another folder or URL with --history"
#: Digits of a run's id in the name of its file.
_ID_DIGITS = 12


class Place:
    """A folder of a history.

    ``text``: path or URL, as it was given. Raises UsageError if pyarrow, or fsspec for a URL, is not installed.
    """

    def __init__(self, text: str) -> None:
        require_parquet("a history")
        self.text = text
        #: None for a URL of another machine.
        self.folder: Path | None = local_path(text) if is_url(text) else Path(text)

    def names(self) -> list[str]:
        """Return the names of its files, the earliest run first.

        Raises MissingDataError if there is none. Raises FormatError if a URL cannot be read.
        """
        if self.folder is None:
            found = list_files(self.text, SUFFIX)
        else:
            try:
                with os.scandir(self.folder) as entries:
                    found = sorted(entry.name for entry in entries if entry.name.endswith(SUFFIX))
            except FileNotFoundError:
                raise MissingDataError(f"{self.text} does not exist", hint=_fill(self.text)) from None
            except OSError as error:
                raise MissingDataError(
                    f"{self.text} cannot be read: {error.strerror}", hint=_fill(self.text)
                ) from error
        if not found:
            raise MissingDataError(f"{self.text} holds no run of a history", hint=_fill(self.text))
        return found

    def read(self, names: Sequence[str]) -> dict[str, bytes | str]:
        """Return the content of files by name; the reason, as a text, of one that cannot be read."""
        if self.folder is None:
            return read_files(self.text, names)
        found: dict[str, bytes | str] = {}
        for name in names:
            try:
                found[name] = read_whole(self.folder / name)
            except OSError as error:
                found[name] = error.strerror or str(error)
        return found

    def check_writable(self) -> None:
        """Make the folder, and check that a file can be made in it; of a URL this is known when it is written.

        Raises OutputError if the system refuses.
        """
        if self.folder is None:
            return
        with written_to(self.folder, _HINT):
            self.folder.mkdir(parents=True, exist_ok=True)
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise OutputError(f"cannot write {self.folder}: permission denied", hint=_HINT)

    def add(self, run: RunRows) -> str | None:
        """Add the file of a run; return its name, or None if the same one is there.

        Raises OutputError if it cannot be written.
        """
        name = file_name(run)
        content = parquet_bytes(run)
        if self.folder is None:
            return name if claim_remote_file(self.text, name, content) else None
        self.check_writable()
        target = self.folder / name
        with written_to(target, _HINT):
            if not claim_file(target, content):
                return None
            # Who may read the folder may read what is in it, however private the directory of the run is.
            give_mode(target, self.folder.stat().st_mode & 0o666)
        return name


def file_name(run: RunRows) -> str:
    """Return the name of a run's file: when it began, its id, and a digest, so that nothing is ever replaced."""
    plain = "".join(c for c in os.path.basename(run.run_id) if c.isalnum())[:_ID_DIGITS] or "run"
    return f"{file_time(run.begin_ns)}-{plain}-{run.digest}{SUFFIX}"


def file_time(moment_ns: int) -> str:
    """Return what the name of a file begins with: when its run began, UTC."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(moment_ns // 1_000_000_000))


def _fill(text: str) -> str:
    text = shlex.quote(text)
    return f"`stashtrace run --history {text} -- CMD` adds a run, `stashtrace history {text} --add RUN` one that exists"
