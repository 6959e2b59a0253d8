"""The steps of ``ci/action.yml`` in bash, with the environment that GitHub gives them, without GitHub."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from stashtrace import __version__
from stashtrace.analysis.compare.gate_verdict import EXIT_CODES
from stashtrace.lab.synth import SyntheticJob, write

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (it comes with dask)")

ROOT = Path(__file__).resolve().parents[2]
ACTION = yaml.safe_load((ROOT / "ci/action.yml").read_text(encoding="utf-8"))
_INPUT = re.compile(r"\$\{\{ inputs\.([a-z-]+) \}\}")
#: A Python that writes down what pip is asked for, and is the real one in all else.
PYTHON = '#!/bin/bash\nif [ "$2" = pip ]; then printf "%s\\n" "$@" > "$PIP_LOG"; exit 0; fi\nexec {python} "$@"\n'


@dataclass(frozen=True)
class Answer:
    """What the steps of the action left behind."""

    code: int
    text: str
    outputs: dict[str, str]
    summary: str


Action = Callable[..., Answer]


@pytest.fixture
def action(tmp_path: Path) -> Action:
    """``action(input=value, ...)`` as a workflow calls it, with ``_`` for ``-``; stops at the first step that fails."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(PYTHON.format(python=shlex.quote(sys.executable)))
    python.chmod(0o755)

    def call(**given: str) -> Answer:
        inputs = {name: str(declared.get("default", "")) for name, declared in ACTION["inputs"].items()}
        asked = {name.replace("_", "-"): value for name, value in given.items()}
        assert asked.keys() <= inputs.keys()
        inputs |= asked
        files = {name: tmp_path / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_ENV")}
        for file in files.values():
            file.write_text("")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("STASH", "GITHUB_")) and k != "LD_PRELOAD"}
        environment = {
            **kept,
            **{name: str(file) for name, file in files.items()},
            "PATH": f"{python.parent}:{os.environ['PATH']}",
            "PYTHONPATH": ":".join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PIP_LOG": str(tmp_path / "pip.log"),
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_WORKSPACE": str(tmp_path),
            "LC_ALL": "C.UTF-8",
        }
        code, text = 0, ""
        for number, step in enumerate(ACTION["runs"]["steps"]):
            if not condition(step, inputs):
                continue
            own = {name: filled(value, inputs) for name, value in step.get("env", {}).items()}
            script = tmp_path / f"step-{number}.sh"
            script.write_text(step["run"])
            assert step["shell"] == "bash"
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", str(script)],
                cwd=tmp_path,
                env={**environment, **own},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            code, text = done.returncode, text + done.stdout
            if code:
                break
        outputs = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines())
        return Answer(code, text, outputs, files["GITHUB_STEP_SUMMARY"].read_text())

    return call


def condition(step: dict[str, Any], inputs: dict[str, str]) -> bool:
    """Whether a step runs; its condition is that an input is not empty."""
    if "if" not in step:
        return True
    match = re.fullmatch(r"inputs\.([a-z-]+) != ''", step["if"])
    assert match, step["if"]
    return inputs[match[1]] != ""


def filled(value: str, inputs: dict[str, str]) -> str:
    return _INPUT.sub(lambda match: inputs[match[1]], value)


def record(folder: Path, seed: int, **changes: Any) -> str:
    settings = {"ranks": 2, "workers": 1, "steps": 60, "calls_per_batch": 0, "spread_ratio": 0.01, "seed": seed}
    write(folder, SyntheticJob(**{**settings, **changes}))
    return folder.name


def test_what_github_asks_of_the_file() -> None:
    assert ACTION["runs"]["using"] == "composite"
    assert all(declared["description"] for declared in (*ACTION["inputs"].values(), *ACTION["outputs"].values()))
    steps = ACTION["runs"]["steps"]
    for step in steps:
        assert {"name", "shell", "run"} <= step.keys()
        assert "${{" not in step["run"], "an input inside the script would be run"
    used = {name for step in steps for value in step.get("env", {}).values() for name in _INPUT.findall(value)}
    assert used == ACTION["inputs"].keys()
    reported = {output["value"] for output in ACTION["outputs"].values()}
    assert reported == {f"${{{{ steps.check.outputs.{name} }}}}" for name in ACTION["outputs"]}


def test_verdicts_are_those_of_the_exit_codes() -> None:
    script = ACTION["runs"]["steps"][1]["run"]
    named = {**EXIT_CODES, "no comparison": EXIT_CODES["not comparable"]}
    del named["not comparable"]  # a baseline that is missing has the same code
    for verdict, code in named.items():
        assert re.search(rf'^\s*{code}\) verdict="?{verdict}"?;? ', script, re.M)


def test_a_worse_run_fails_the_job(action: Action, tmp_path: Path) -> None:
    old, new = record(tmp_path / "old", 1), record(tmp_path / "new", 2, backward_ns=70_000_000)
    answer = action(run=new, against=old, fail_if="step+5%\n  interconnect+10%  \n", junit="tests.xml", install="")
    assert answer.code == 1
    assert answer.outputs == {"verdict": "worse", "exit-code": "1"}
    assert "::error title=stashtrace check%3A step+5%25 worse::worse beyond doubt" in answer.text
    assert "| link: in-host+10% |" in answer.summary
    assert ElementTree.parse(tmp_path / "tests.xml").getroot().get("failures") == "1"


def test_an_equal_run_passes_against_a_saved_baseline(action: Action, tmp_path: Path) -> None:
    record(tmp_path / "stash-1", 1)
    saved = action(save_baseline="main", install="")
    assert (saved.code, saved.outputs["verdict"]) == (0, "saved")
    assert (tmp_path / ".stashtrace/baselines/main.json").exists()
    answer = action(run=record(tmp_path / "new", 2), against="main", install="")
    assert (answer.code, answer.outputs["verdict"]) == (0, "not worse")
    assert "::" not in answer.text


@pytest.mark.parametrize(("choice", "code"), [("pass", 0), ("fail", 5)])
def test_inconclusive_is_the_users_choice(action: Action, tmp_path: Path, choice: str, code: int) -> None:
    old = record(tmp_path / "old", 1, steps=12, spread_ratio=0.1)
    new = record(tmp_path / "new", 1, steps=12, spread_ratio=0.12)
    answer = action(run=new, against=old, inconclusive=choice, install="")
    assert (answer.code, answer.outputs) == (code, {"verdict": "inconclusive", "exit-code": "5"})
    assert "::warning title=" in answer.text


def test_jobs_that_do_not_compare(action: Action, tmp_path: Path) -> None:
    old, new = record(tmp_path / "old", 1), record(tmp_path / "new", 2, ranks=3)
    answer = action(run=new, against=old, install="")
    assert (answer.code, answer.outputs["verdict"]) == (4, "no comparison")
    assert action(run=new, against=old, allow="ranks", install="").code in (0, 5)


def test_several_runs(action: Action, tmp_path: Path) -> None:
    old = [record(tmp_path / f"old-{n}", n) for n in range(3)]
    new = [record(tmp_path / f"new-{n}", 10 + n) for n in range(3)]
    answer = action(run="\n".join(new), against="\n".join(old), install="")
    assert answer.code in (0, 5)
    assert "new-0 and 2 more (3 runs of " in answer.text


def test_inputs_are_values_and_not_commands(action: Action, tmp_path: Path) -> None:
    for text in ('"; touch hacked; "', "$(touch hacked)", "`touch hacked`", "--debug", "-v"):
        answer = action(run=text, against=text, fail_if=text, install="")
        assert answer.code in (2, 4)
        assert answer.outputs["verdict"] in ("error", "no comparison")
    assert not (tmp_path / "hacked").exists()


def test_nonsense_about_inconclusive(action: Action) -> None:
    answer = action(inconclusive="perhaps", install="")
    assert (answer.code, answer.outputs) == (2, {})
    assert answer.text.startswith("::error ")


def test_installs_what_is_asked_for(action: Action, tmp_path: Path) -> None:
    for given, packages in (
        ({}, [f"stashtrace=={__version__}"]),
        ({"install": "stashtrace[remote] fsspec"}, [f"stashtrace[remote]=={__version__}", "fsspec"]),
        ({"version": "1.2.3rc1"}, ["stashtrace==1.2.3rc1"]),
        ({"version": "", "install": "stashtrace[remote]"}, ["stashtrace[remote]"]),
        ({"install": "./dist/stashtrace-9.whl stashtrace>=2 stashtrace-extra"}, None),
    ):
        action(run="gone", against="gone", **given)
        words = (tmp_path / "pip.log").read_text().split()
        assert words == ["-m", "pip", "install", "--quiet", *(packages or given["install"].split())]


@pytest.mark.parametrize("version", ["--index-url=https://evil", "1.0 evil", "$(touch hacked)", "==1"])
def test_a_version_is_a_version(action: Action, tmp_path: Path, version: str) -> None:
    answer = action(version=version)
    assert (answer.code, answer.text) == (2, "::error title=stashtrace check::version is a number such as 0.1.0\n")
    assert not (tmp_path / "pip.log").exists()
    assert not (tmp_path / "hacked").exists()
