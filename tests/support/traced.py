"""Runs a real Python script under the recorder, on one or more ranks, and loads what it left.

`from traced import run_traced` in any test. The processes are started by environment alone, as
`stashtrace run` does it, but without torchrun, whose imports would cost seconds per test.
Importing torch takes long here: put many cases into one script, and share the run by a module fixture.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import uuid
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from forked_commands import EAGER_JOBS, ROOT
from ports import free_port

from stashtrace.errors import DataLossWarning
from stashtrace.record.environment import traced_environment
from stashtrace.record.options import RecordOptions, default_collectors
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Another interpreter, to run the same tests with another torch or in another version of Python.
PYTHON = os.environ.get("STASHTRACE_TEST_PYTHON", sys.executable)
_OWN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "LD_PRELOAD", "PYTHONPATH")


@dataclass
class TracedRun:
    """What a script left behind.

    Attributes
    ----------
    directory : Path
        Run directory; empty of records if the run was not traced.
    stdout, stderr : list of str
        Per rank.
    exit_codes : list of int
        Per rank; negative for a signal.
    """

    directory: Path
    stdout: list[str]
    stderr: list[str]
    exit_codes: list[int]
    _trace: Trace | None = field(default=None, repr=False)

    @property
    def trace(self) -> Trace:
        """The run, loaded once; what was lost is in its ``losses`` table."""
        if self._trace is None:
            from stashtrace.loading.load import load_trace

            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DataLossWarning)
                self._trace = load_trace(self.directory)
        return self._trace

    @trace.setter
    def trace(self, changed: Trace) -> None:
        self._trace = changed

    def results(self) -> list[Any]:
        """Last line of each rank's stdout, read as JSON."""
        return [json.loads(text.strip().splitlines()[-1]) for text in self.stdout]

    def losses(self) -> list[tuple[str, str, int]]:
        """(collector, reason, count) of every loss that is not mere information."""
        trace = self.trace
        return [
            (trace.text(row["collector_code"]), trace.text(row["name_code"]), row["lost_count"])
            for row in trace.losses.rows()
            if row["severity_code"] > 0
        ]

    def facts(self, rank: int | None = None) -> dict[str, str]:
        """Metadata of the process of a rank, or of the only process."""
        trace = self.trace
        processes = trace.processes
        wanted = np.ones(len(processes), dtype=bool) if rank is None else (processes["rank"] == rank)
        ids = processes["process_id"][wanted & (processes["worker_id"] < 0)]
        return {
            trace.text(row["key_code"]): trace.text(row["value_code"])
            for row in trace.metadata.rows()
            if row["process_id"] in ids
        }

    def texts(self, table: Table, column: str) -> list[str]:
        return [self.trace.text(code) for code in table[column]]


def run_traced(
    script: str,
    directory: Path,
    *,
    ranks: int = 1,
    args: Sequence[str] = (),
    traced: bool = True,
    collectors: Sequence[str] | None = None,
    steps: str | None = None,
    kernels_steps: str | None = None,
    synthetic_batches: int = 0,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 240,
    python: Sequence[str] = (PYTHON,),
    compiles: bool = False,
    check: bool = True,
) -> TracedRun:
    """Run ``script`` on ``ranks`` processes and wait for them.

    Parameters
    ----------
    script : str
        Source text (dedented, written to a file: spawned workers must be able to import it).
    directory : Path
        An empty folder of the test; the run directory is made inside.
    traced : bool
        False runs the same processes without the recorder, for comparisons.
    compiles : bool
        Whether the script compiles: without torch's compiler a process with an optimizer starts in half the time.
    check : bool
        Fail the test if a rank does not end with 0.
    """
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "script.py"
    file.write_text(textwrap.dedent(script), encoding="utf-8")
    run_dir = directory / "run"
    run_dir.mkdir()
    run_id = uuid.uuid4().hex
    base = {k: v for k, v in os.environ.items() if k not in _OWN_VARIABLES and not k.startswith("STASHTRACE_")}
    path = f"{EAGER_JOBS}{os.pathsep}{ROOT}"
    base |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(env or {})}
    if compiles:
        base["JOB_COMPILES"] = "1"
    if traced:
        base = traced_environment(
            base,
            RecordOptions(
                collectors=collectors,
                steps=steps,
                kernels_steps=kernels_steps,
                synthetic_batches=synthetic_batches,
            ),
            run_dir=run_dir,
            run_id=run_id,
        )
    port = free_port()
    ranks_of_job = []
    for rank in range(ranks):
        own = base | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        ranks_of_job.append(([*python, str(file), *args], own))
    facts = run_facts(run_id, ["python", "script.py"], collectors or default_collectors())
    return run_processes(ranks_of_job, directory, facts if traced else None, timeout_s=timeout_s, check=check)


def run_facts(run_id: str, command: list[str], collectors: Iterable[str]) -> dict[str, Any]:
    """What ``stashtrace run`` writes into ``run.json`` when a job begins now."""
    return {
        "format": 1,
        "run_id": run_id,
        "command": command,
        "host": socket.gethostname(),
        "begin_realtime_ns": time.time_ns(),
        "begin_monotonic_ns": time.monotonic_ns(),
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
        "exit_code": None,
        "signal": None,
        "collectors": list(collectors),
        "stashtrace_version": "test",
        "launcher_pid": os.getpid(),
    }


def run_processes(
    ranks: Iterable[tuple[list[str], Mapping[str, str]]],
    directory: Path,
    facts: Mapping[str, Any] | None,
    *,
    timeout_s: float,
    check: bool,
) -> TracedRun:
    """Run a command with an environment for each rank, and keep ``run.json`` as a launcher does if there are facts."""
    run_dir = directory / "run"
    if facts is not None:
        (run_dir / "run.json").write_text(json.dumps(facts), encoding="utf-8")
    processes = [
        subprocess.Popen(
            command,
            env=own,
            cwd=directory,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        for command, own in ranks
    ]
    stdout, stderr, codes = _collect(processes, timeout_s)
    if facts is not None:
        ended = {"end_realtime_ns": time.time_ns(), "end_monotonic_ns": time.monotonic_ns(), "exit_code": codes[0]}
        (run_dir / "run.json").write_text(json.dumps({**facts, **ended}), encoding="utf-8")
    if check:
        for rank, code in enumerate(codes):
            assert code == 0, f"rank {rank} ended with {code}\n{stdout[rank]}\n{stderr[rank][-4000:]}"
    return TracedRun(run_dir, stdout, stderr, codes)


def _collect(processes: list[subprocess.Popen[str]], timeout_s: float) -> tuple[list[str], list[str], list[int]]:
    """Wait for all ranks, each in a separate session; one that hangs ends the others, so that a test cannot hang."""
    deadline = time.monotonic() + timeout_s
    stdout, stderr, codes = [], [], []
    try:
        for process in processes:
            out, err = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
            stdout.append(out)
            stderr.append(err)
            codes.append(process.returncode)
    except subprocess.TimeoutExpired:
        for process in processes:  # with what they started: a child that hangs holds the pipes open
            with contextlib.suppress(ProcessLookupError):  # it has ended, and all that it started
                os.killpg(process.pid, signal.SIGKILL)
        reported = [_said(process) for process in processes[len(codes) :]]
        raise AssertionError(f"no end within {timeout_s} s\n{reported}") from None
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
    return stdout, stderr, codes


def _said(killed: subprocess.Popen[str]) -> tuple[str, str] | str:
    """What a killed rank had written. A child of a separate session lives on, and may hold the pipes open."""
    try:
        return killed.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        return "not known: a process of another session holds its output open"
