"""The command lines of tests, which are forks, do what a command does that is started."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from forked_commands import environment, run_command

PRINT = (
    "import os; print(os.getcwd(), os.environ.get('MARK'), os.umask(0), sorted(map(int, os.listdir('/proc/self/fd'))))"
)


@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        [],
        ["summary", "nothing"],
        ["run", "--debug"],
        ["export", "csv", "nothing", "-o", "made"],
        ["run", "--no-merge", "--out", "made", "--", sys.executable, "-S", "-c", PRINT],
        [
            "run",
            "--no-merge",
            "--out",
            "made",
            "--",
            sys.executable,
            "-S",
            "-c",
            "import sys; print('x', file=sys.stderr); sys.exit(7)",
        ],
        ["run", "--no-merge", "--out", "made", "--", sys.executable, "-S", "-c", "import os; os.kill(os.getpid(), 15)"],
        ["run", "--no-merge", "--out", "made", "--", sys.executable, "-S", "-c", "import sys; print(sys.stdin.read())"],
    ],
    ids=" ".join,
)
def test_code_and_streams_are_the_same(words: list[str], tmp_path: Path) -> None:
    answers = []
    for name in ("forked", "started"):
        folder = tmp_path / name / "here"
        folder.mkdir(parents=True)
        variables = environment(MARK="set")
        if name == "forked":
            done = run_command(words, folder, variables, 60)
        else:
            command = [sys.executable, "-m", "stashtrace", *words]
            done = subprocess.run(
                command,
                cwd=folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
        last_line = done.stderr.splitlines()[-1:]  # above it a traceback has the frames of what called the command
        made = sorted(path.name for path in folder.iterdir())
        answers.append((done.returncode, done.stdout.replace(name, ""), last_line, made))
    assert answers[0] == answers[1]


def test_what_python_reads_at_its_start_starts_one(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('started')\n")
    variables = environment()
    for path, said in ((variables["PYTHONPATH"], ""), (f"{tmp_path}:{variables['PYTHONPATH']}", "started\n")):
        done = run_command(["--version"], tmp_path, variables | {"PYTHONPATH": path}, 60)
        assert done.returncode == 0
        assert done.stdout.startswith(said + "stashtrace ")


def test_one_that_hangs_is_killed_and_the_next_one_runs(tmp_path: Path) -> None:
    before = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        run_command(["run", "--no-merge", "--", "sleep", "9"], tmp_path, environment(), 1.0)
    assert time.monotonic() - before < 9
    assert run_command(["--version"], tmp_path, environment(), 60).returncode == 0
