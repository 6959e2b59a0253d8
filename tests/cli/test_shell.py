"""The shell of the CLI: help, version, errors; what it costs to ask."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import ROOT, Answer, environment

import stashtrace
from stashtrace.cli import COMMANDS, GROUPS, OTHER_NAMES, command_module, help_text

Run = Callable[..., Answer]


def test_help_names_every_command_once() -> None:
    lines = help_text().splitlines()
    for name, text in COMMANDS:
        assert sum(line.split()[:1] == [name] and line.endswith(text) for line in lines) == 1
    assert all(len(line) <= 79 for line in lines)


def test_help_has_a_group_for_each_kind_of_question() -> None:
    blocks = {block.splitlines()[0]: block for block in help_text().split("\n\n")}
    for title, commands in GROUPS:
        assert [line.split()[0] for line in blocks[title].splitlines()[1:]] == [name for name, _ in commands]


def test_the_name_of_a_command_may_stand_behind_help(run: Run) -> None:
    assert run("--help", "run") == run("help", "run") == run("run", "--help")
    assert run("-h", "doctor").out.startswith("usage: stashtrace doctor")
    assert run("--help", "rum").err == "error: no command named 'rum'\n\nhint: did you mean `stashtrace run`?\n"


def test_other_names_work_and_are_in_no_list(run: Run) -> None:
    assert not {name for name, _ in COMMANDS} & {*OTHER_NAMES}
    assert run("status", "--help").out.startswith("usage: stashtrace live")
    assert run("status", "nothing").err == run("live", "nothing", "--once").err


def test_run_shows_the_ten_options_that_most_people_need(run: Run) -> None:
    shown, every = run("run", "--help").out, run("run", "--help-all").out
    own = {"--help", "--help-all", "--verbose", "--debug"}
    short, full = ({*re.findall(r"^  (?:-\w, )?(--[a-z-]+)", text, re.M)} - own for text in (shown, every))
    assert short == {
        *("--out", "--overwrite", "--live", "--steps", "--until-step", "--kernels"),
        *("--keep-last", "--run-id", "--log", "--history"),
    }
    assert short < full
    assert f"`stashtrace run --help-all` shows {len(full - short)} more options" in shown
    assert "more options" not in every


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"]])
def test_help_is_data(run: Run, words: list[str]) -> None:
    assert run(*words) == Answer(0, help_text(), "")


def test_no_words_is_a_usage_error(run: Run) -> None:
    assert run() == Answer(2, "", help_text())


def test_version(run: Run) -> None:
    assert run("--version") == Answer(0, f"stashtrace {stashtrace.__version__}\n", "")


def test_help_loads_nothing_heavy() -> None:
    """The goal of 50 ms over a bare interpreter is kept by what is not imported."""
    code = (
        "import sys\nfrom stashtrace.cli import main\nmain(['--help'])\n"
        "heavy = {'numpy', 'argparse', 'ctypes', 'subprocess', 'json', 'torch'}\n"
        "ours = {'stashtrace', 'stashtrace.cli', 'stashtrace.errors'}\n"
        "print(sorted(heavy & set(sys.modules)),"
        "[m for m in sys.modules if m.startswith('stashtrace') and m not in ours],"
        "file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.stderr == "[] []\n"


@pytest.mark.parametrize("name", [name for name, _ in COMMANDS])
def test_each_command_has_help_in_80_columns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        command_module(name).main(["--help"])
    text = capsys.readouterr().out
    assert stop.value.code == 0
    assert text.startswith(f"usage: stashtrace {name}")
    assert all(len(line) <= 79 for line in text.splitlines())


def test_help_of_analyze_keeps_names_and_texts_apart(capsys: pytest.CaptureFixture[str]) -> None:
    from stashtrace.analysis.registry import ANALYSES

    with pytest.raises(SystemExit):
        command_module("analyze").main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert {name for name, _, _ in ANALYSES} <= {line.split(maxsplit=1)[0] for line in lines if line.strip()}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["rum"], "error: no command named 'rum'\n\nhint: did you mean `stashtrace run`?\n"),
        (
            ["lines"],
            "error: no command named 'lines'\n\nhint: it is an analysis: `stashtrace analyze lines RUN`\n",
        ),
        (["qqq"], "error: no command named 'qqq'\n\nhint: `stashtrace --help` lists the commands\n"),
        (
            ["--frobnicate"],
            "error: no option named '--frobnicate'\n\n"
            "hint: options of a command stand after its name; see `stashtrace --help`\n",
        ),
        (["run"], "error: no command to run\n\nhint: put it after two dashes: `-- python train.py`\n"),
        (
            ["run", "--sideways", "--", "true"],
            "error: stashtrace run: no option --sideways\n\nhint: `stashtrace run --help-all` shows the options\n",
        ),
        (
            ["diff", "one"],
            "error: stashtrace diff: the following arguments are required: B\n\n"
            "hint: `stashtrace diff --help` shows the options\n",
        ),
    ],
)
def test_usage_errors(run: Run, words: list[str], error: str) -> None:
    assert run(*words) == Answer(2, "", error)


def test_debug_shows_the_traceback(run: Run) -> None:
    answer = run("run", "--debug")
    assert "Traceback" in answer.err
    assert answer.code == 1
    assert "Traceback" not in run("run").err


def test_a_current_folder_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    words = [sys.executable, "-c", "import os, sys; os.rmdir(os.getcwd()); os.execv(sys.argv[1], sys.argv[1:])"]
    done = subprocess.run(
        [*words, sys.executable, "-m", "stashtrace", "--version"],
        cwd=gone,
        env=environment() | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_leaves_is_no_error() -> None:
    done = subprocess.run(
        f"{shlex.quote(sys.executable)} -m stashtrace doctor | head -c 1",
        shell=True,
        env=environment(),
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.stderr == ""
