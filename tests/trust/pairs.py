"""Runs a program with and without the recorder, and compares what it said and did.

``compiled`` builds a program of ``programs/``; ``Pair.run`` starts the same command twice, each time in a separate
folder, and returns both outcomes. The programs know nothing of tracing: their verdict is their output and exit code.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from stashtrace.record.environment import preload_path, traced_environment

PROGRAMS = Path(__file__).resolve().parent / "programs"
#: Against hanging alone: nothing here is judged by its time.
LIMIT_S = 300


def compiled(name: str, folder: Path, *flags: str) -> Path:
    """Build ``programs/<name>.c`` into a folder; without fortification, so that each call reaches its symbol."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    program = folder / name
    command = [compiler, "-std=gnu11", "-O1", "-g1", "-w", "-U_FORTIFY_SOURCE", "-o", str(program)]
    subprocess.run([*command, str(PROGRAMS / f"{name}.c"), "-pthread", "-ldl", *flags], check=True)
    return program


def plain_environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The caller's environment without anything of a recorder, in one language."""
    own = {k: v for k, v in (base or os.environ).items() if not k.startswith("STASHTRACE_") and k != "LD_PRELOAD"}
    own.pop("PYTHONPATH", None)
    return own | {"LC_ALL": "C.UTF-8", "TZ": "UTC"}


@dataclass(frozen=True)
class Outcome:
    """What a command left: exit code (negative for a signal), streams, and the digest of each file by its name."""

    code: int
    output: str
    errors: str
    files: Mapping[str, str]


def run_group(command: Sequence[str], *, cwd: Path, env: Mapping[str, str], limit_s: float = LIMIT_S) -> Outcome:
    """Run in a separate group, which is killed whole if there is no end within the limit."""
    with subprocess.Popen(
        list(command),
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="backslashreplace",
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            try:
                output, errors = process.communicate(timeout=60)
            except subprocess.TimeoutExpired:  # a child in a separate session holds the pipes
                output = errors = "not known: a process of another session holds the output open"
            return Outcome(-signal.SIGKILL, output, errors + f"\nno end within {limit_s} s", {})
        except BaseException:  # the series is interrupted: nothing of it goes on
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return Outcome(process.returncode, output, errors, digests(cwd))


def digests(folder: Path) -> dict[str, str]:
    """Kind, mode and content of everything below a folder; names of run directories are not of the program's making."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        mode = oct(path.lstat().st_mode)
        if path.is_symlink():
            found[str(path.relative_to(folder))] = f"{mode} -> {os.readlink(path)}"
        elif path.is_file():
            found[str(path.relative_to(folder))] = f"{mode} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        else:
            found[str(path.relative_to(folder))] = mode
    return found


@dataclass
class Pair:
    """Both runs of a command, in ``folder/plain`` and ``folder/traced``; the records lie in ``folder/run``."""

    folder: Path

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    def traced_variables(self, env: Mapping[str, str] | None = None, **settings: str) -> dict[str, str]:
        """Environment of the traced run; ``settings`` are variables of the recorder without their prefix."""
        self.run_dir.mkdir(parents=True, exist_ok=True)
        variables = traced_environment(env or plain_environment(), run_dir=self.run_dir, run_id=uuid.uuid4().hex)
        # The probes are Python's alone; a program that runs Python without them still has the hooks under test.
        return variables | {f"STASHTRACE_{name}": value for name, value in settings.items()}

    def run(
        self,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        limit_s: float = LIMIT_S,
        library: Path | None = None,
        preload: str = "",
        **settings: str,
    ) -> tuple[Outcome, Outcome]:
        """(untraced, traced) outcome; both start in an empty folder of the same name length.

        Parameters
        ----------
        library : path, optional
            Another build of the recorder, with ``preload``: libraries that must stand in front of it.
        settings
            STASHTRACE_<name>=<value> of the traced run.
        """
        words = [str(word) for word in command]
        base = plain_environment() | dict(env or {})
        outcomes = []
        for name in ("plain_", "traced"):
            place = self.folder / name
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            variables = base if name == "plain_" else self.traced_variables(base, **settings)
            if name == "traced" and library is not None:
                front = f"{preload}:" if preload else ""
                variables["LD_PRELOAD"] = f"{front}{preload_path(library)}"
            outcomes.append(run_group(words, cwd=place, env=variables, limit_s=limit_s))
        return outcomes[0], outcomes[1]


def recorded_rows(run_dir: Path) -> int:
    """Rows of all processes of a run: a pair whose traced half recorded nothing compares nothing."""
    from stashtrace.format.reader import open_run

    rows = 0
    for process in open_run(run_dir).processes:
        rows += sum(len(records.rows) for records in process.load().records.values())
    return rows
