"""Tables are not written to, not even while a trace is made: changes are new tables."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from stashtrace.importers.import_context import ImportContext
from stashtrace.lab import synth
from stashtrace.loading.decode import decode_processes
from stashtrace.loading.load import load_trace, open_processes
from stashtrace.schema.events import TABLES
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Table
from stashtrace.schema.trace import EventTables

PACKAGE = Path(__file__).resolve().parents[2] / "stashtrace"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two ranks with a worker each."""
    synth.write(tmp_path / "run", synth.SyntheticJob(ranks=2, workers=1, steps=4, calls_per_batch=12))
    return tmp_path / "run"


def refuse_writes(tables: Iterable[Table]) -> int:
    """Try to write to each column that has rows; how many there were."""
    columns = [table[name] for table in tables if len(table) for name in table.columns]
    for column in columns:
        with pytest.raises(ValueError, match="read-only"):
            column[0] = column[0]
    return len(columns)


def test_tables_of_a_trace_cannot_be_written(run: Path) -> None:
    trace = load_trace(run)
    assert refuse_writes(trace.table(name) for name in TABLES) > 50
    assert refuse_writes(trace.io_pieces()) == len(trace.io.columns)


def test_tables_of_a_process_cannot_be_written(run: Path) -> None:
    """What decoders gave, before it is joined."""
    opened = open_processes(run)
    for decoded in decode_processes(opened.processes, opened.tracks, None):
        assert refuse_writes(decoded.tables.table(name) for name in TABLES) > 10
        assert refuse_writes(decoded.io.pieces()) % len(TABLES["io"].columns) == 0


def test_tables_that_an_importer_fills_cannot_be_written() -> None:
    context = ImportContext(StringPool())
    context.begin("kineto", "a.json")
    track = context.tracks.thread(context.process(pid=1), 1)
    context.add("spans", begin_ns=[1, 2], end_ns=[3, 4], track_id=[track, track])
    assert refuse_writes([context.take().spans]) == len(TABLES["spans"].columns)


def test_a_table_leaves_with_its_rows() -> None:
    """Joining takes a table out of the tables of a process, so that its memory is free."""
    strings = StringPool()
    spans = Table.from_rows(TABLES["groups"], [(0,) * len(TABLES["groups"].columns)])
    parts = EventTables(strings, {"groups": spans})
    assert parts.pop("groups") is spans
    assert len(parts.pop("groups")) == 0
    parts.put(spans)
    assert parts.groups is spans


@pytest.mark.parametrize(
    "pattern", [r"(?<!self)\._tables\b", r"(?<!self)\._columns\b", r"writeable = True", r"setflags\(write"]
)
def test_nobody_reaches_into_tables(pattern: str) -> None:
    folders = ("loading", "importers", "store", "collectors")
    files = [path for folder in folders for path in (PACKAGE / folder).rglob("*.py")]
    assert len(files) > 40
    found = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in files
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(pattern, line)
    ]
    assert found == []
