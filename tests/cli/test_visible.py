"""What somebody put into a name never reaches the terminal as a command, nor a spreadsheet as a formula."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
import trace_processor
from stash_files import StashWriter, ms, write_run_json
from trace_processor import TraceProcessor

from stashtrace.cli import main
from stashtrace.cli.print_tables import align_rows, write_rows
from stashtrace.cli.screen import Screen
from stashtrace.text.visible import VisibleStream, spreadsheet_cell, visible, visible_line

#: Clears the screen, sets the title, turns letters around, hides some, breaks the line, is half a character.
EVIL = "/data/\U000e0041\x1b[2J\x1b]0;owned\x07\x9b31m\u202egpj.exe\u200b\x7f\r.bin"
BAD = [
    *map(chr, [*range(9), *range(11, 32), *range(127, 160)]),
    *"\u200b\u200e\u202a\u202e\u2066\u2069\u2028\ufeff",
    "\udc80",
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that read a file with such a name, on such a host, with such arguments."""
    folder = tmp_path / "run"
    stash = StashWriter(folder, env={"RANK": "0", "WORLD_SIZE": "1"}, metadata={"argv": ["python", EVIL], "host": EVIL})
    stash.sync(0, 1000, 2000)
    path = stash.intern(EVIL)
    same = {"duration_ticks": int(5e6), "result_bytes": 4096, "path_id": path, "op_code": 1, "io_flags": 1}
    stash.add("io_op", [stash.row("io_op", begin_ticks=ms(10 * i), **same) for i in range(20)])
    for i in range(4):
        for code in (1, 2, 3):
            begin = 100 * i + 20 * code
            span = {"begin_ticks": ms(begin), "end_ticks": ms(begin + 19), "phase_code": code, "name_id": path}
            stash.add("phase_span", [stash.row("phase_span", **span)])
    stash.save()
    write_run_json(folder, command=["python", EVIL], host=EVIL)
    return folder


def unseen(text: str) -> list[str]:
    """Characters of a text that a terminal would act on."""
    return [repr(c) for c in text if c in BAD]


@pytest.mark.parametrize(
    "words",
    [
        ["info"],
        ["analyze", "summary"],
        ["analyze", "io"],
        ["analyze", "io", "--format", "csv"],
        ["analyze", "steps"],
        ["merge"],
        ["analyze", "io", "--format", "json"],
        ["status"],
        ["info", "--json"],
    ],
    ids=" ".join,
)
def test_no_command_lets_it_through(words: list[str], run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([*words, str(run)])
    said = capsys.readouterr()
    assert "bug in stashtrace" not in said.err
    assert unseen(said.out) == []
    assert unseen(said.err) == []
    if words == ["merge"]:
        assert unseen((run / "summary.txt").read_text()) == []


def test_the_name_is_shown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["analyze", "io", str(run), "--format", "json"])
    out = capsys.readouterr().out
    assert EVIL in [row["path"] for row in json.loads(out)]
    main(["analyze", "io", str(run), "--format", "csv"])
    assert "\\u202egpj" in capsys.readouterr().out


def test_a_name_neither_paints_nor_breaks_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "/data/a\x1b[1;31m\n  > rank 0 is fine\x1b[31m"
    folder = tmp_path / "painted"
    stash = StashWriter(folder, env={"RANK": "0", "WORLD_SIZE": "1"}, metadata={"argv": ["python"], "host": name})
    stash.sync(0, 1000, 2000)
    same = {"duration_ticks": int(5e6), "result_bytes": 4096, "path_id": stash.intern(name), "op_code": 1}
    stash.add("io_op", [stash.row("io_op", begin_ticks=ms(10 * i), **same) for i in range(20)])
    stash.save()
    write_run_json(folder, command=["python"], host=name)
    for words in (["info"], ["merge"]):
        main([*words, str(folder)])
        said = capsys.readouterr()
        text = said.out + said.err
        assert "\\u001b[31m" in text, text
        assert "\x1b" not in text
        assert not any(line.lstrip().startswith("> rank 0") for line in text.splitlines())


def test_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "no\x1b[2J\nsuch\u202e"]) in (2, 4)
    err = capsys.readouterr().err
    assert unseen(err) == []
    assert err.splitlines()[0].startswith("error: ")
    assert "\\u001b[2J\\u000asuch" in err.splitlines()[0]


def test_every_character(capsys: pytest.CaptureFixture[str]) -> None:
    for character in BAD:
        assert unseen(visible(f"a{character}b")) == []
        assert visible(f"a{character}b") == f"a\\u{ord(character):04x}b"
    assert visible("é ▶ 日本\tx\n\x1b[1;33mwarn\x1b[0m") == "é ▶ 日本\tx\n\x1b[1;33mwarn\x1b[0m"
    assert visible("\x1b[8mhidden") == "\\u001b[8mhidden"
    assert visible_line("a\nb\t\x1b[31m") == "a\\u000ab\\u0009\\u001b[31m"


def test_progress_and_words() -> None:
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    screen = Screen(VisibleStream(terminal), {"LANG": "C.UTF-8"})  # type: ignore[arg-type]
    with screen.progress("reading") as bar:
        bar.step(0.5, "evil\x1b[2J\r\n")
    screen.say("evil\x1b[2J")
    drawn = terminal.getvalue()
    assert drawn.count("\x1b[K") == 2
    assert "\x1b[2J" not in drawn
    assert drawn.count("evil\\u001b[2J") == 2


def test_a_cell_does_not_break_its_row() -> None:
    assert len(align_rows([{"name": "a\nb", "count": 1}], ["name", "count"])[0].splitlines()) == 2


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\tx"])
def test_formula_cells(text: str) -> None:
    out = io.StringIO()
    write_rows([{"name": text, "count": -5, "ratio": -0.5}], ["name", "count", "ratio"], "csv", out)
    out.seek(0)
    (row,) = csv.DictReader(out)
    assert row["name"].startswith("'")
    assert (row["count"], row["ratio"]) == ("-5", "-0.5")
    assert spreadsheet_cell("a=b") == "a=b"
    assert spreadsheet_cell("\rx") == "'\rx"


@pytest.mark.skipif(bool(trace_processor.missing()), reason=trace_processor.missing() or "-")
def test_the_time_line_keeps_names_as_they_are(run: Path, tmp_path: Path) -> None:
    """They are data there, and the viewer shows them as text."""
    assert main(["export", "perfetto", str(run), "-o", str(tmp_path / "t.pftrace")]) == 0
    tp = TraceProcessor.of(tmp_path / "t.pftrace")
    assert tp.errors() == []
    assert tp.rows("select count(*) from slice")[0][0] > 0
