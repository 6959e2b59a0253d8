"""Where to write is ``--out`` in every command; ``--output`` says the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from stashtrace.cli import COMMANDS, command_module, main
from stashtrace.cli.commands.run import split_command
from stashtrace.cli.parsing import Parser
from stashtrace.cli.synth import main as write_synthetic


def parsers() -> dict[str, Parser]:
    return {name: command_module(name).parser() for name, _ in COMMANDS}


def test_every_command_that_writes_has_all_spellings() -> None:
    writers = {}
    for name, parser in parsers().items():
        found = [action for action in parser._actions if {"--out", "--output"} & set(action.option_strings)]
        writers |= {name: set(found[0].option_strings)} if found else {}
    assert set(writers) >= {"run", "merge", "export", "scrub", "characterize", "calibrate", "stage", "model"}
    assert set(map(frozenset, writers.values())) == {frozenset({"-o", "--out", "--output"})}


def test_help_shows_the_documented_one_alone() -> None:
    for name, parser in parsers().items():
        assert "--output" not in parser.format_help(), name
    assert "-o, --out FILE" in parsers()["export"].format_help()


@pytest.mark.parametrize("option", ["--out", "--output", "-o"])
def test_export_writes_where_it_was_asked_to(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    assert write_synthetic([run, "--ranks", "1", "--steps", "3"]) == 0
    assert main(["export", "csv", run, option, str(tmp_path / "stalls.csv"), "--table", "stalls"]) == 0
    assert (tmp_path / "stalls.csv").read_text(encoding="utf-8").startswith("rank,step,kind")
    assert "error" not in capsys.readouterr().err


def test_the_commands_output_option_is_left_alone() -> None:
    assert split_command(["--output", "here", "python", "a.py", "--output", "b"]) == (
        ["--output", "here"],
        ["python", "a.py", "--output", "b"],
    )
