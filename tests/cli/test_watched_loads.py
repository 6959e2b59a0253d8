"""A long load says how far it is, on stderr; a folder without traces is refused before everything in it is read."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from kineto_job import write_job

from stashtrace.cli import find_runs, main
from stashtrace.cli.find_runs import Watch
from stashtrace.cli.screen import Screen
from stashtrace.errors import ImporterError
from stashtrace.loading.foreign_files import FEW_FILES, files_of, require_trace_among
from stashtrace.loading.load import load_trace


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def test_nothing_is_said_for_two_seconds_then_a_line_now_and_then() -> None:
    clock, stream = Clock(), io.StringIO()
    with Watch(Screen(stream, {}), clock) as watch:
        for tenth in range(300):
            clock.ns = tenth * 100_000_000
            watch.step(tenth * 1_000_000, 300_000_000, f"rank{tenth}.json")
    assert stream.getvalue().splitlines() == [
        "reading: 20.0 MB of 300 MB, rank20.json",
        "reading: 120 MB of 300 MB, rank120.json",
        "reading: 220 MB of 300 MB, rank220.json",
    ]


def test_counting_files_is_a_sign_of_life_too() -> None:
    clock, stream = Clock(), io.StringIO()
    with Watch(Screen(stream, {}), clock) as watch:
        clock.ns = 3_000_000_000
        watch.step(0, 0, "4,000 files found")
    assert stream.getvalue() == "reading: 4,000 files found\n"


def test_a_terminal_gets_a_bar_that_goes_away() -> None:
    stream = Terminal()
    with Watch(Screen(stream, {"TERM": "xterm"})) as watch:
        watch.step(5, 10, "a\x1b[2J.json")
    text = stream.getvalue()
    assert "reading " in text
    assert "50 %" in text
    assert "\x1b[2J" not in text
    assert text.endswith("\r\x1b[K")


@pytest.fixture
def junk(tmp_path: Path) -> Path:
    """More files than are read without a look: annotations of a data set."""
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(FEW_FILES + 500):
        (folder / f"{number:05}.json").write_text(json.dumps({"label": number}))
    return folder


def test_a_large_folder_without_traces_is_refused_early(junk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    with pytest.raises(ImporterError, match=r"holds 1,500 files; none of the 1,000 examined is a trace"):
        load_trace(str(junk), progress=lambda done, total, what: said.append(what))
    assert sum("are examined" in line for line in said) == FEW_FILES
    for command in ("info", "summary"):
        assert main([command, str(junk)]) == 4
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "hint: give the traces themselves" in captured.err


def test_pictures_count_as_no_look(tmp_path: Path) -> None:
    for number in range(FEW_FILES + 1):
        (tmp_path / f"{number}.jpg").touch()
    with pytest.raises(ImporterError, match="none of the 1 examined is a trace"):
        require_trace_among(list(files_of([str(tmp_path)])), str(tmp_path))
    write_job(tmp_path)
    require_trace_among(list(files_of([str(tmp_path)])), str(tmp_path))


def test_a_trace_among_many_is_found_and_stdout_holds_the_answer_alone(
    junk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(0, FEW_FILES + 500, 2):
        (junk / f"{at:05}.json").unlink()
    write_job(junk)
    monkeypatch.setattr(find_runs, "_QUIET_NS", -1)
    assert main(["info", str(junk), "--format", "json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["ranks"] == [0, 1]
    assert captured.err.startswith("reading: ")
