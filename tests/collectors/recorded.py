"""Runs any command under the recorder and gives back what it left, as plain rows.

`from recorded import record, compiled` in the tests of the native collectors. Real programs only: C files of
``tests/collectors/native`` are compiled once per session, Python scripts are given as text.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from stashtrace.errors import DataLossWarning
from stashtrace.loading.load import load_trace
from stashtrace.record.environment import traced_environment
from stashtrace.record.options import RecordOptions
from stashtrace.schema.kinds import IoFlag, IoOp, WaitOp
from stashtrace.schema.trace import Trace

NATIVE = Path(__file__).resolve().parent / "native"
RUN_ID = "c011ec7e"


@dataclass(frozen=True)
class IoRow:
    """One row of the ``io`` table."""

    pid: int
    tid: int
    op: IoOp
    path: str
    offset: int
    result: int
    begin_ns: int
    end_ns: int
    flags: IoFlag

    def __str__(self) -> str:
        place = f"@{self.offset}" if self.offset != -1 else ""
        return f"{self.op.name.lower()}{place}={self.result}"


@dataclass(frozen=True)
class WaitRow:
    """One row of the ``waits`` table."""

    tid: int
    op: WaitOp
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class Recording:
    """A traced command that has ended."""

    directory: Path
    stdout: str
    stderr: str
    exit_code: int

    @functools.cached_property
    def trace(self) -> Trace:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataLossWarning)
            return load_trace(self.directory)

    @functools.cached_property
    def io(self) -> list[IoRow]:
        trace = self.trace
        tids, pids = self._threads()
        return [
            IoRow(
                pids[r["track_id"]],
                tids[r["track_id"]],
                IoOp(r["op_code"]),
                trace.text(r["path_code"]),
                r["offset_bytes"],
                r["result_bytes"],
                r["begin_ns"],
                r["end_ns"],
                IoFlag(r["io_flags"]),
            )
            for r in trace.io.rows()
        ]

    @functools.cached_property
    def waits(self) -> list[WaitRow]:
        tids, _ = self._threads()
        return [
            WaitRow(tids[r["track_id"]], WaitOp(r["wait_code"]), r["begin_ns"], r["end_ns"])
            for r in self.trace.waits.rows()
        ]

    def of(self, path: str | Path, *ops: IoOp) -> list[IoRow]:
        """Rows of one path, in the order of their begin."""
        found = [r for r in self.io if r.path == str(path) and (not ops or r.op in ops)]
        return sorted(found, key=lambda r: r.begin_ns)

    def lost_rows(self) -> int:
        """Rows that the recorder says it dropped."""
        trace = self.trace
        return sum(r["lost_count"] for r in trace.losses.rows() if r["severity_code"] == 2)

    def _threads(self) -> tuple[dict[int, int], dict[int, int]]:
        pid_of = {r["process_id"]: r["pid"] for r in self.trace.processes.rows()}
        tracks = list(self.trace.tracks.rows())
        return {t["track_id"]: t["native_id"] for t in tracks}, {
            t["track_id"]: pid_of.get(t["process_id"], -1) for t in tracks
        }


def plain_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without any tracer."""
    base = {k: v for k, v in os.environ.items() if not k.startswith("STASHTRACE_") and k != "LD_PRELOAD"}
    return base | {"OMP_NUM_THREADS": "1", **(extra or {})}


def record(
    command: Sequence[str | Path],
    run_dir: Path,
    *,
    collectors: Sequence[str] = ("posix_io",),
    env: Mapping[str, str] | None = None,
    sample_ms: int | None = None,
    wait_threshold_ns: int | None = None,
    exit_code: int | None = 0,
    timeout_s: float = 300,
    preload: bool = True,
    lookup_hook: bool = False,
) -> Recording:
    """Run ``command`` traced; fail unless it ends with ``exit_code`` (None: any)."""
    run_dir.mkdir(parents=True)
    environment = traced_environment(
        plain_environment(env),
        RecordOptions(
            collectors=collectors,
            sample_ms=sample_ms,
            wait_threshold_ns=wait_threshold_ns,
            lookup_hook=lookup_hook,
        ),
        run_dir=run_dir,
        run_id=RUN_ID,
    )
    if not preload:
        del environment["LD_PRELOAD"]
    done = subprocess.run(
        [str(c) for c in command], env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert exit_code is None or done.returncode == exit_code, (
        f"ended with {done.returncode}\n{done.stdout}\n{done.stderr[-4000:]}"
    )
    return Recording(run_dir, done.stdout, done.stderr, done.returncode)


@functools.cache
def compiled(name: str, made_headers: Path | None = None) -> Path:
    """Program made of ``native/<name>``, optimised as usual programs are; ``made_headers`` come from a test."""
    compiler = shutil.which("g++" if name.endswith(".cpp") else "gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    program = Path(tempfile.mkdtemp(prefix="stashtrace-test-")) / Path(name).stem
    source = Path(__file__).resolve().parents[2] / "csrc"
    standard = ["-std=c++20"] if name.endswith(".cpp") else []
    headers = ["-I", made_headers] if made_headers is not None else []
    command = [compiler, *standard, "-O1", "-w", "-I", source, *headers, "-o", program, NATIVE / name, "-pthread"]
    subprocess.run(command, check=True)
    return program
