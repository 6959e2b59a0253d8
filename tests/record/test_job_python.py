"""What `doctor` learns of the Python that a command starts."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import textwrap
from pathlib import Path

import pytest
from other_pythons import interpreter

from stashtrace.record import doctor
from stashtrace.record.doctor import Check, checks, python_of
from stashtrace.record.environment import LIBRARY_PATH
from stashtrace.record.program import JobPython, ask_python, is_python

NAMES = ("Python", "DataLoader", "collectives")


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what doctor measures of the machine, which takes six processes."""
    monkeypatch.setattr(doctor, "record_cost_ns", lambda: 1.0)
    monkeypatch.setattr(doctor, "gpu_checks", list)


def program(path: Path, text: str) -> str:
    path.write_text(textwrap.dedent(text))
    path.chmod(0o755)
    return str(path)


def played(folder: Path, answer: str) -> str:
    """A Python that gives ``answer`` to whatever it is asked."""
    return program(folder / "python3", f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")


def answers(*command: str) -> list[Check]:
    found = {check.name: check for check in checks(command)}
    return [found[name] for name in NAMES]


def test_what_this_python_says() -> None:
    reported = ask_python(sys.executable)
    assert reported is not None
    assert (reported.implementation, reported.version) == ("CPython", sys.version_info[:3])
    assert (reported.has_ctypes, reported.without_gil, reported.obstacle()) == (True, False, None)
    try:
        assert reported.torch == importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        assert reported.torch is None


def test_nothing_is_imported_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json", "platform", "ctypes", "stashtrace", "importlib"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a shadow')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    reported = ask_python(sys.executable)
    assert reported is not None
    assert reported.stashtrace is None or tmp_path not in Path(reported.stashtrace).parents


@pytest.mark.parametrize("text", ["exit 1", "echo no json", "echo '[1, 2]'", "true"])
def test_a_python_that_does_not_answer(tmp_path: Path, text: str) -> None:
    name = program(tmp_path / "python3", f"#!/bin/sh\n{text}\n")
    assert ask_python(name) is None
    python, loader, _ = answers(name, "train.py")
    assert (python.state, loader.state) == ("partly", "invisible")
    assert "does not answer" in python.detail


@pytest.mark.parametrize(
    ("name", "expected"),
    [("python", True), ("python3", True), ("python3.13t", True), ("/a/python3.9", True), ("pythonw-config", False)],
)
def test_names_of_pythons(name: str, expected: bool) -> None:
    assert is_python(name) is expected


def test_the_python_behind_a_command(tmp_path: Path) -> None:
    own = program(tmp_path / "python3", "#!/bin/sh\n")
    script = program(tmp_path / "torchrun", f"#!{own}\nprint()\n")
    shell = program(tmp_path / "train.sh", "#!/bin/sh\n")
    assert python_of([own, "-u", "train.py"]) == own
    assert python_of([script, "--nproc-per-node", "2"]) == own
    assert python_of(["env", "A=1", "nice", "-n", "5", script]) == own
    for command in ([shell], ["sh", "train.sh"], ["no-such-program"], [str(tmp_path)]):
        assert python_of(command) is None


@pytest.mark.parametrize(
    ("answer", "states", "words"),
    [
        ('["CPython", [3, 12, 1], "2.5.1", true, null, true, null]', ["ok", "measured", "measured"], "CPython 3.12.1,"),
        ('["CPython", [3, 14, 0], "2.13.0", true, null, false, null]', ["ok", "measured", "measured"], "without a GIL"),
        (
            '["CPython", [3, 8, 18], "2.4.1", true, null, null, null]',
            ["partly", "invisible", "invisible"],
            "Python 3.10",
        ),
        (
            '["PyPy", [3, 11, 1], null, true, null, null, null]',
            ["partly", "invisible", "invisible"],
            "the probes need CPython",
        ),
        ('["CPython", [3, 11, 7], null, false, null, null, null]', ["partly", "invisible", "invisible"], "lacks"),
        ('["CPython", [3, 11, 7], null, true, null, null, null]', ["ok", "invisible", "invisible"], "CPython 3.11.7,"),
        (
            '["CPython", [3, 11, 7], "2.9", true, "/other/stashtrace/__init__.py", null, null]',
            ["ok", "measured", "measured"],
            "another stashtrace in /other/stashtrace",
        ),
    ],
)
def test_what_doctor_says_of_the_jobs_python(tmp_path: Path, answer: str, states: list[str], words: str) -> None:
    found = answers(played(tmp_path, answer), "train.py")
    assert [check.state for check in found] == states
    assert words in found[0].detail
    assert ("recorded; steps, batches and collectives are not" in found[0].meaning) == (states[0] == "partly")


def test_the_package_of_this_tracer_is_no_other(tmp_path: Path) -> None:
    answer = f'["CPython", [3, 11, 7], null, true, "{LIBRARY_PATH.with_name("__init__.py")}", null, null]'
    assert "of its own" not in answers(played(tmp_path, answer))[0].detail


def test_of_an_unknown_command_nothing_is_claimed() -> None:
    assert [check.state for check in answers("sh", "train.sh")] == ["inferred"] * 3
    assert [check.name for check in checks() if check.state == "inferred" and check.name in NAMES] == []


def test_the_version_of_this_python_in_words() -> None:
    found = next(check for check in checks() if check.name == "Python")
    assert (found.state, platform.python_version() in found.detail) == ("ok", True)


def test_an_obstacle_is_one_sentence() -> None:
    fine = JobPython("CPython", (3, 10, 0), None, True, None, False)
    assert fine.obstacle() is None


@pytest.mark.parametrize(
    ("said", "rate", "expected"),
    [
        ("", "50", ("measured", "stacks of calls that take 1 ms or more, and 50 samples a second")),
        ("", "0", ("partly", "stacks of calls that take 1 ms or more (STASHTRACE_STACK_HZ=0)")),
        (
            "no symbols of CPython in the process",
            "50",
            ("invisible", "Python functions: no symbols of CPython in the process"),
        ),
    ],
)
def test_whether_functions_of_the_jobs_python_can_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, rate: str, expected: tuple[str, str]
) -> None:
    monkeypatch.setenv("STASHTRACE_STACK_HZ", rate)
    python = played(tmp_path, f'["CPython", [3, 11, 7], "2.9", true, null, null, "{said}"]')
    found = next(check for check in checks([str(python), "train.py"]) if check.name == "Python stacks")
    assert (found.state, found.detail) == expected


@pytest.mark.parametrize("minor", range(10, 14))
def test_each_python_is_asked_for_its_frames(minor: int) -> None:
    asked = ask_python(interpreter(minor))
    assert asked is not None
    assert asked.no_stacks == ""
