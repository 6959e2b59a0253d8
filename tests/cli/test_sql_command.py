"""``stashtrace sql``: words on the command line, formats, and errors."""

from __future__ import annotations

import csv
import io
import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import ROOT, environment, started
from command_line import stashtrace as answer_of

import stashtrace
from stashtrace.cli import main
from stashtrace.cli.commands.sql import _distinct
from stashtrace.cli.synth import main as write_synthetic
from stashtrace.sql import query
from stashtrace.text.units import duration_text

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two runs: of two ranks, and of one."""
    folder = tmp_path_factory.mktemp("made")
    for name, ranks in (("two", 2), ("one", 1)):
        assert write_synthetic([str(folder / name), "--ranks", str(ranks), "--steps", "4"]) == 0
    return str(folder / "two"), str(folder / "one")


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["sql", *words]) == 0
    return capsys.readouterr().out


def complaint(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> str:
    capsys.readouterr()
    assert main(["sql", *words]) == code
    answer = capsys.readouterr()
    assert answer.out == ""
    return answer.err


def test_formats(runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    text = "select rank, kind, sum(stall_ns) as sum_ns, avg(stall_ns) as mean_ns, null as none from stalls group by all"
    text += " order by rank, sum_ns desc limit 2"
    rows = json.loads(ask(capsys, runs[0], text, "--format", "json"))
    stalls = stashtrace.analyze(stashtrace.load(runs[0]), "stalls")
    first = rows[0]
    own = stalls["stall_ns"][(stalls["rank"] == 0) & (stalls["kind"] == first["kind"])]
    assert first == {
        "rank": 0,
        "kind": "compute",
        "sum_ns": int(own.sum()),
        "mean_ns": float(own.mean()),
        "none": None,
    }
    listed = list(csv.reader(io.StringIO(ask(capsys, runs[0], text, "--format", "csv"))))
    assert listed[0] == ["rank", "kind", "sum_ns", "mean_ns", "none"]
    assert listed[1] == ["0", "compute", str(first["sum_ns"]), str(first["mean_ns"]), ""]
    lines = ask(capsys, runs[0], text).splitlines()
    assert lines[0].split() == ["rank", "kind", "sum", "mean", "none"]
    times = [duration_text(first["sum_ns"]), duration_text(round(first["mean_ns"]))]
    assert " ".join(lines[1].split()) == f"0 compute {times[0]} {times[1]} NULL"


def test_columns_that_were_asked_for_stay(runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    out = ask(capsys, runs[0], "select -1 as rank, rank as rank, 'nan'::double as x from steps limit 1")
    assert out.splitlines() == ["rank  rank_1  x", "   -       0  -"]
    assert _distinct(["a", "a", "a_1", "b"]) == ["a", "a_1", "a_1_1", "b"]


def test_types_beyond_numbers_and_texts(runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    text = "select [1, 2] as l, {'a': 1.5} as s, date '2026-01-02' as d, 'inf'::double as i, true as t, 1.0 as n"
    (row,) = json.loads(ask(capsys, runs[0], text, "--format", "json"))
    assert row == {"l": [1, 2], "s": {"a": 1.5}, "d": "2026-01-02", "i": None, "t": True, "n": 1}


def test_several_runs(runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    text = "select run, count(distinct rank) as ranks from steps group by run order by run"
    rows = json.loads(ask(capsys, *runs, text, "--format", "json"))
    assert rows == [{"run": "one", "ranks": 1}, {"run": "two", "ranks": 2}]


def test_tables_needs_no_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [line.split()[0] for line in ask(capsys, "--tables").splitlines()]
    assert {"io", "io_analysis", "stalls", "steps"} <= set(names)


def test_a_wrong_query_is_found_before_a_run_is_loaded(
    runs: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr("stashtrace.cli.find_runs.read_runs", never)
    assert "syntax error" in complaint(capsys, 2, runs[0], "selec 1")
    assert "did you mean 'steps'" in complaint(capsys, 2, runs[0], "select * from stepz")


def test_words_that_make_no_query(
    runs: tuple[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "there is no query" in complaint(capsys, 2)
    assert "no query stands after it" in complaint(capsys, 2, *runs)
    assert "nowhere does not exist" in complaint(capsys, 4, "nowhere", "select 1")


def test_names_of_strangers_are_shown_in_visible_form(
    runs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(capsys, runs[0], "select chr(27) || '[2J' as \"a\nb\"").splitlines() == ["a\\u000ab", "\\u001b[2J"]
    assert ask(capsys, runs[0], "select '=1+1' as x", "--format", "csv").splitlines() == ["x", "'=1+1"]


def test_without_duckdb(
    runs: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "find_spec", lambda name: None)
    lines = complaint(capsys, 4, runs[0], "select 1").splitlines()
    assert lines == ["error: SQL needs duckdb, which is not installed", "", "hint: `pip install 'stashtrace[sql]'`"]


def test_a_store(runs: tuple[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    assert main(["export", "store", runs[0], "-o", store]) == 0
    text = "select op, path, count(*) as n from io group by all order by all"
    assert ask(capsys, store, text) == ask(capsys, runs[0], text)


def test_ctrl_c_ends_a_long_query(runs: tuple[str, str], tmp_path: Path) -> None:
    text = "select count(*) from range(1000000) a, range(1000000) b, steps where a.range < b.range + rank"
    running = started("sql", runs[0], text)
    watch = time.monotonic() + 60
    try:
        maps = Path(f"/proc/{running.pid}/maps")
        while "_duckdb" not in maps.read_text(encoding="utf-8") and time.monotonic() < watch:
            time.sleep(0.05)
        time.sleep(1.5)  # until the query runs; on a busy machine the run may be loading still: the answer is the same
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    finally:
        running.kill()
    assert (running.returncode, out) == (130, ""), err
    assert "interrupted" in err
    assert "bug" not in err


def test_ctrl_c_inside_native_code_has_the_exit_code_of_others(tmp_path: Path) -> None:
    """Python would end by the signal, since text that native code ran had not handled it."""
    code = (
        "import stashtrace.cli\n"
        "def program(words):\n"
        "    try:\n        exec('raise KeyboardInterrupt')\n"
        "    except KeyboardInterrupt as error:\n        raise KeyboardInterrupt from error\n"
        "raise SystemExit(stashtrace.cli.main([], program))\n"
    )
    (tmp_path / "asked.py").write_text(code)
    command = [sys.executable, "-m", "asked"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


def test_ctrl_c_while_a_module_is_loaded_is_no_broken_installation(tmp_path: Path) -> None:
    """A native module that is interrupted at its start raises ImportError, or goes on as if nothing had come."""
    content = (
        "import os, signal\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "except BaseException as error:\n    raise ImportError('init') from error\n"
    )
    (tmp_path / "duckdb.py").write_text(content)
    (tmp_path / "pyarrow.py").write_text("Table = None\n")
    answer = answer_of("sql", "--tables", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert answer.code == 130
    assert "cannot be loaded" not in answer.err


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        (
            "duckdb",
            "raise ImportError('libduckdb.so: wrong ELF class\\nsecond line')",
            "ImportError: libduckdb.so: wrong ELF class",
        ),
        ("duckdb", "", "AttributeError: module 'duckdb' has no attribute 'connect'"),
        ("pyarrow", "import no_such_half", "ModuleNotFoundError: No module named 'no_such_half'"),
    ],
)
def test_a_broken_installation_is_no_bug_of_ours(name: str, content: str, why: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text(content + "\n")
    for other in {"duckdb", "pyarrow"} - {name}:
        (tmp_path / f"{other}.py").write_text("connect = Table = None\n")
    answer = answer_of("sql", "--tables", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert answer.code == 4
    first, _, hint = answer.err.splitlines()
    assert first == f"error: SQL needs {name}, which is installed and cannot be loaded: {why}"
    assert hint == f"hint: `{shlex.quote(sys.executable)} -m pip install --force-reinstall {name}`"
