"""Without a run, a command takes the newest run directory here, by what the runs recorded."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from stashtrace.cli import main
from stashtrace.cli.parsing import existing_run, newest_run, run_directories, runs_or_newest
from stashtrace.cli.synth import main as write_synthetic
from stashtrace.errors import MissingDataError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def begun(name: str, begin_ns: object) -> Path:
    """A run directory with a record, that says when its run began."""
    folder = Path(name)
    folder.mkdir()
    facts = {"format": 1, "run_id": "a"} | ({} if begin_ns is None else {"begin_realtime_ns": begin_ns})
    (folder / "run.json").write_text(json.dumps(facts), encoding="utf-8")
    (folder / "host.1.0.stash").write_bytes(b"")
    return folder


def without_records(name: str, begin_ns: object) -> Path:
    """What a run leaves that recorded nothing, or was killed before."""
    folder = begun(name, begin_ns)
    (folder / "host.1.0.stash").unlink()
    return folder


def test_the_recorded_begin_decides_and_not_the_name_nor_the_age_of_files() -> None:
    newest = begun("stash-0101-000000", 3_000_000_000)
    begun("stash-9999", 2_000_000_000)
    for seconds, path in enumerate([newest, Path("stash-9999")]):
        os.utime(path, (time.time() + seconds, time.time() + seconds))
    assert [str(path) for path in run_directories()] == ["stash-9999", "stash-0101-000000"]
    assert newest_run() == "stash-0101-000000"


def test_what_is_no_run_directory_does_not_count() -> None:
    Path("stash-file").write_text("x", encoding="utf-8")
    Path("stash-empty").mkdir()
    Path("stash-other").mkdir()
    Path("stash-other/notes.txt").write_text("x", encoding="utf-8")
    begun("elsewhere", 5)
    assert run_directories() == []


def test_a_directory_that_is_closed_to_us_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    begun("stash-open", 1)
    closed = Path("stash-closed")
    closed.mkdir()
    real = Path.iterdir

    def iterdir(path: Path) -> object:  # root may enter any directory
        if path == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert run_directories() == [Path("stash-open")]


def test_a_run_without_its_begin_is_older_than_all_others() -> None:
    lost, damaged, fine = Path("stash-lost"), without_records("stash-zz", "yesterday"), begun("stash-fine", 7)
    lost.mkdir()
    (lost / "host.1.0.stash").write_bytes(b"")
    assert run_directories() == [lost, fine], "run.json alone, damaged, is no recording"
    (damaged / "host.1.0.stash").write_bytes(b"")
    assert run_directories() == [lost, damaged, fine]


def test_which_one_is_said_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    begun("stash-a\x1b[2J", 1_700_000_000_000_000_000)
    newest_run()
    answer = capsys.readouterr()
    assert answer.out == ""
    local = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1_700_000_000))
    assert answer.err == f"run: ./stash-a\\u001b[2J, the newest here, begun {local}\n"


def test_a_directory_without_a_record_is_never_the_newest(capsys: pytest.CaptureFixture[str]) -> None:
    begun("stash-1", 1)
    without_records("stash-2", 2)
    assert newest_run() == "stash-1"
    assert capsys.readouterr().err.startswith("run: ./stash-1, ")
    with pytest.raises(MissingDataError) as caught:
        existing_run("stash-3")
    assert caught.value.hint == "the newest run here is stash-1"


def test_runs_that_are_named_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    begun("stash-1", 1)
    assert runs_or_newest(["a", "b"]) == ["a", "b"]
    assert capsys.readouterr().err == ""
    assert runs_or_newest([]) == ["stash-1"]


@pytest.mark.parametrize(
    "words",
    [
        ["summary"],
        ["view", "--no-browser"],
        ["sql", "select 1"],
        ["info"],
        ["whatif"],
        ["whatif", "workers=4"],
        ["analyze", "stalls"],
        ["analyze", "summary"],
    ],
)
def test_where_none_is_one_line_says_how_to_make_one(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    if words[0] == "sql":
        pytest.importorskip("duckdb")
    assert main(words) == MissingDataError.exit_code
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "error: no run is named, and no run directory ./stash-* is here",
        "",
        "hint: `stashtrace run -- CMD` makes one",
    ]


def test_the_hint_of_a_path_that_is_not_there_names_the_newest() -> None:
    begun("stash-9", 1)
    begun("stash-1", 2)
    with pytest.raises(MissingDataError) as caught:
        existing_run("stash-2")
    assert caught.value.hint == "the newest run here is stash-1"


def test_summary_and_sql_of_the_newest_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert write_synthetic(["stash-made", "--ranks", "2", "--steps", "3"]) == 0
    capsys.readouterr()
    assert main(["summary", "stash-made"]) == 0
    named = capsys.readouterr().out
    assert main(["summary"]) == 0
    answer = capsys.readouterr()
    assert answer.out == named
    assert answer.err.startswith("run: ./stash-made, the newest here, begun ")
    pytest.importorskip("duckdb")
    assert main(["sql", "select count(*) as n from steps", "--format", "csv"]) == 0
    assert capsys.readouterr().out == "n\n6\n"


@pytest.mark.parametrize("words", [["info"], ["whatif"], ["analyze", "stalls", "--by", "run"], ["analyze", "summary"]])
def test_other_commands_take_the_newest_run_too(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert write_synthetic(["stash-made", "--ranks", "2", "--steps", "8"]) == 0
    without_records("stash-other", 10**19)
    capsys.readouterr()
    at = 2 if words[0] == "analyze" else 1
    assert main([*words[:at], "stash-made", *words[at:]]) == 0
    named = capsys.readouterr()
    assert main(words) == 0
    answer = capsys.readouterr()
    assert answer.out == named.out
    assert answer.err.startswith("run: ./stash-made, the newest here, begun ")
    assert named.err == ""


def test_paths_and_options_stand_in_any_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert write_synthetic(["made", "--ranks", "1", "--steps", "8"]) == 0
    answers = []
    for words in (
        ["analyze", "stalls", "made", "--by", "run"],
        ["analyze", "stalls", "--by", "run", "made"],
        ["analyze", "--by", "run", "stalls", "made"],
    ):
        capsys.readouterr()
        assert main(words) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] == answers[2]
    assert main(["whatif", "made", "--format", "json", "workers=4"]) == 0
    assert main(["whatif", "--set", "workers=4", "made"]) == 0
    assert main(["analyze"]) == 2
    assert "the following arguments are required: NAME" in capsys.readouterr().err
