"""Aligned tables: names above columns are distinguished, and a terminal gets as many columns as fit into it."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from command_line import environment

from stashtrace.analysis.io.io_tables import IO_PATTERNS, IO_TIMES
from stashtrace.analysis.stalls.budget import STALLS
from stashtrace.cli import main
from stashtrace.cli.print_tables import align_rows, column_details, column_names, named_rows, write_rows
from stashtrace.cli.synth import main as write_synthetic
from stashtrace.schema.events import TABLES
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Table

Rows = tuple[list[dict[str, object]], list[str]]


def rows_of(table: Table) -> Rows:
    return list(named_rows(table, StringPool())), column_names(table)


def patterns(count: int = 3) -> Rows:
    """One row per file with another number in each cell."""
    numbers = {
        c.name: [f"/data/a/long/folder/of/files/{row}.jpg" if c.name == "path" else 11 + row for row in range(count)]
        for c in IO_PATTERNS.columns
    }
    return rows_of(Table(IO_PATTERNS, numbers))


def titles(text: str) -> list[str]:
    return text.splitlines()[0].split()


def test_no_two_columns_have_one_name() -> None:
    rows, columns = rows_of(Table(IO_TIMES, {c.name: ["/d"] if c.name == "path" else [7] for c in IO_TIMES.columns}))
    names = titles(align_rows(rows, columns)[0])
    assert len(names) == len(set(names)) == len(columns)
    assert {"read_bytes", "read_bytes_per_s", "write"} <= set(names)
    for schema in TABLES.values():
        rows, columns = rows_of(Table(schema, {c.name: [0] for c in schema.columns}))
        names = titles(align_rows(rows, columns)[0])
        assert len(names) == len(set(names)), schema.name


@pytest.mark.parametrize("width", [40, 80, 100, 132, 200])
def test_lines_are_no_wider_than_the_screen(width: int) -> None:
    rows, columns = patterns()
    text, left_out = align_rows(rows, columns, width)
    assert max(map(len, text.splitlines())) <= width
    assert titles(text)[0] == "path"
    assert len(titles(text)) + len(left_out) == len(columns)
    assert len({line.split()[0] for line in text.splitlines()}) == 4  # a shortened path is still that of one file


def test_a_wider_screen_shows_more() -> None:
    rows, columns = patterns()
    left = [len(align_rows(rows, columns, width)[1]) for width in (60, 100, 150, 200)]
    assert left[0] > left[1] > left[2] > left[3]
    assert align_rows(rows, columns, 1000) == align_rows(rows, columns)
    assert align_rows(rows, columns)[1] == ()


def test_details_go_before_the_rest() -> None:
    rows, columns = patterns()
    details = column_details(IO_PATTERNS)
    narrow = len(align_rows(rows, columns)[0].splitlines()[0]) - 20
    assert align_rows(rows, columns, narrow)[1] == tuple(columns[-3:])
    assert align_rows(rows, columns, narrow, details=details)[1] == ("access4_bytes", "access4_count")
    assert details["access4_bytes"] > details["access4_count"] > details["access1_count"]


def test_columns_of_zeros_and_of_one_value_go_first() -> None:
    made = [(rank, step, "fetch", 0, "host", 0, 9 + rank, -1, -1.0) for rank in range(2) for step in range(3)]
    rows, columns = rows_of(Table.from_rows(STALLS, made))
    text, left_out = align_rows(rows, columns, 39, details=column_details(STALLS))
    assert left_out[:2] == ("kind", "stall_ns")
    notes = io.StringIO()
    write_rows(rows, columns, "table", io.StringIO(), width=39, notes=notes, details=column_details(STALLS))
    assert "kind (fetch in every row)" in notes.getvalue()
    assert "high" in titles(text)


def test_a_sentence_is_wrapped_within_its_column() -> None:
    rows = [{"path": "/d", "advice": "word " * 20, "rank": 3}, {"path": "/e", "advice": "none", "rank": 4}]
    text, left_out = align_rows(rows, ["path", "advice", "rank"], 60)
    assert left_out == ()
    lines = text.splitlines()
    assert lines == [
        f"path  {'advice':<44}  rank",
        f"/d    {'word ' * 8}word     3",
        f"      {'word ' * 8}word",
        "      word word",
        f"/e    {'none':<44}     4",
    ]
    assert align_rows(rows, ["path", "advice"])[0].count("word") == 20
    assert len(align_rows(rows, ["path", "advice"])[0].splitlines()) == 3


def test_one_line_says_what_was_left_out() -> None:
    rows, columns = patterns()
    out, notes = io.StringIO(), io.StringIO()
    write_rows(rows, columns, "table", out, width=80, notes=notes)
    left_out = align_rows(rows, columns, 80)[1]
    assert notes.getvalue() == (
        f"{len(left_out)} columns do not fit into 80 characters: {', '.join(left_out)} (--wide shows all)\n"
    )
    for format_name in ("json", "csv"):
        out = io.StringIO()
        write_rows(rows, columns, format_name, out, width=80)
        assert all(name in out.getvalue() for name in columns)


def on_a_terminal(columns: int, *words: str) -> list[str]:
    """What a command writes on a terminal so wide."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    plain = {name: value for name, value in environment().items() if name not in ("COLUMNS", "LINES")}
    with subprocess.Popen(
        [sys.executable, "-m", "stashtrace", *words], stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env=plain
    ) as job:
        os.close(theirs)
        parts = []
        try:
            while part := os.read(ours, 1 << 16):
                parts.append(part)
        except OSError:  # the other side was closed
            pass
        finally:
            os.close(ours)
        assert job.wait() == 0
    return b"".join(parts).decode().replace("\r\n", "\n").splitlines()


def test_a_terminal_gets_what_fits_and_a_pipe_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    assert write_synthetic([run, "--ranks", "1", "--steps", "3"]) == 0
    capsys.readouterr()
    assert main(["analyze", "io_patterns", run]) == 0
    piped = capsys.readouterr()
    assert len(titles(piped.out)) > 15
    assert piped.err == ""
    narrow = on_a_terminal(80, "analyze", "io_patterns", run)
    table = [line for line in narrow if "reading " not in line][2:-1]
    assert max(map(len, table)) <= 80
    assert narrow[-1].endswith("(--wide shows all)")
    wide = on_a_terminal(80, "analyze", "io_patterns", run, "--wide")
    assert titles(piped.out) in [line.split() for line in wide]


def test_the_columns_that_were_asked_for_and_no_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe got every column, and nothing but a separate script could leave some out."""
    run = str(tmp_path / "run")
    assert write_synthetic([run, "--ranks", "1", "--steps", "3", "--calls-per-batch", "6"]) == 0

    def printed(*options: str) -> list[str]:
        capsys.readouterr()
        assert main(["analyze", "stalls", run, "--columns", "cause_rank,kind,stall_ns", *options]) == 0
        return capsys.readouterr().out.splitlines()

    assert printed()[0].split() == ["cause_rank", "kind", "stall"], "in that order, also one that says nothing"
    assert printed("--format", "csv")[0] == "cause_rank,kind,stall_ns"
    assert [*json.loads("\n".join(printed("--format", "json")))[0]] == ["cause_rank", "kind", "stall_ns"]
    assert main(["analyze", "stalls", run, "--columns", "kind,colour"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: stalls has no column 'colour'\n\nhint: it has rank, step, kind, stall_ns, ")
    assert main(["analyze", "stalls", run, "--columns", "kind,,"]) == 2


def test_a_wait_that_a_rank_caused_is_not_called_a_caused_wait() -> None:
    stream = io.StringIO()
    write_rows([{"rank": 1, "caused_wait_ns": 5}], ["rank", "caused_wait_ns"], "table", stream)
    assert stream.getvalue().splitlines()[0] == "rank  wait caused"
    stream = io.StringIO()
    write_rows([{"rank": 1, "caused_wait_ns": 5}], ["rank", "caused_wait_ns"], "csv", stream)
    assert stream.getvalue().splitlines()[0] == "rank,caused_wait_ns"
