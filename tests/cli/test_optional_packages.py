"""What `stashtrace doctor` says of packages that are not installed."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from stashtrace.cli.commands import doctor
from stashtrace.cli.commands.doctor import OPTIONAL, OptionalPackage

PROJECT = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
#: Extras that no task of a user needs.
FOR_DEVELOPERS = {"torch", "docs", "test", "thorough", "all"}


def extras() -> dict[str, str]:
    """Name of an extra of the project -> what it lists."""
    section = PROJECT.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    return dict(re.findall(r"^(\w+) = \[(.*?)\]$", section, re.M | re.S))


def test_each_extra_is_listed_and_all_brings_each() -> None:
    named = {one.extra for one in OPTIONAL}
    assert named == set(extras()) - FOR_DEVELOPERS
    (brought,) = re.findall(r"\[(.*)\]", extras()["all"])
    assert set(brought.split(",")) == named


def test_what_is_missing_has_a_line_with_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "duckdb" else find_spec(name))
    assert doctor.main([]) in (0, 3)
    shown = capsys.readouterr().out
    assert re.search(r"^  stashtrace sql +pip install 'stashtrace\[sql\]'$", shown, re.M)
    assert "(or all: pip install 'stashtrace[all]')" in shown
    assert "numpy" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    doctor.main(["--format", "json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["sql"] == {
        "name": "sql",
        "state": "not installed",
        "detail": "stashtrace sql",
        "meaning": "pip install 'stashtrace[sql]'",
    }


def test_a_module_of_a_package_that_is_missing_is_missing() -> None:
    assert not OptionalPackage("x", "nothing", ("no_such_package.part.of_it",)).is_there()
    assert OptionalPackage("x", "json", ("json", "json.decoder")).is_there()
