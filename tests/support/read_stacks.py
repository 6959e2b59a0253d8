"""What a run says of Python stacks, as plain rows."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from stashtrace.errors import DataLossWarning
from stashtrace.loading.load import load_trace
from stashtrace.schema.kinds import StackCause, StackFlag
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Name, file and line, the innermost frame first.
Stack = list[tuple[str, str, int]]

#: What every script begins with: the probes as in a process that imports torch. ``until`` counts seconds of CPU, of
#: the process and its children: a busy machine gives less of it in the same time.
BEGIN = """
    import os, sys, threading, time
    from stashtrace.probes import native, process, recorder, stacks
    process.begin()
    stacks.begin()

    def until(seconds):
        limit, latest = sum(os.times()[:4]) + seconds, time.monotonic() + 8 * seconds
        while sum(os.times()[:4]) < limit and time.monotonic() < latest:
            yield
"""


#: What the interpreter calls when the module is over: a sample may come then, too.
AT_THE_END = ("_shutdown", "_exit_function", "_run_finalizers")


@dataclass(frozen=True)
class Sample:
    """One row of ``stack_samples``."""

    pid: int
    tid: int
    ts_ns: int
    flags: StackFlag
    stack: Stack  # empty: it could not be read

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.stack]


@dataclass(frozen=True)
class Span:
    """One row of ``stack_spans``."""

    pid: int
    tid: int
    begin_ns: int
    end_ns: int
    cause: StackCause
    stack: Stack

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.stack]


class Stacks:
    """Samples, spans and losses of a run."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataLossWarning)
            self.trace: Trace = load_trace(folder)
        trace = self.trace
        self._frames = {(r["process_id"], r["frame_key"]): r for r in trace.frames.rows()}
        pids = {r["process_id"]: r["pid"] for r in trace.processes.rows()}
        tids = {r["track_id"]: r["native_id"] for r in trace.tracks.rows()}

        def stack(row: dict[str, int]) -> Stack:
            return self._stack(row["process_id"], row["frame_key"])

        found = (
            Sample(pids[r["process_id"]], tids[r["track_id"]], r["ts_ns"], StackFlag(r["sample_flags"]), stack(r))
            for r in trace.stack_samples.rows()
        )
        self.samples = [one for one in found if not one.stack or one.stack[-1][0] not in AT_THE_END]
        self.spans = [
            Span(
                pids[r["process_id"]],
                tids[r["track_id"]],
                r["begin_ns"],
                r["end_ns"],
                StackCause(r["cause_code"]),
                stack(r),
            )
            for r in trace.stack_spans.rows()
        ]
        losses = [(trace.text(r["name_code"]), r["lost_count"]) for r in trace.losses.rows()]
        self.losses = [loss for loss in losses if loss[0] != "no_run_json"]

    @property
    def tables(self) -> list[Table]:
        return [self.trace.frames, self.trace.stack_samples, self.trace.stack_spans]

    def _stack(self, process_id: int, key: int) -> Stack:
        found = []
        while key:
            row = self._frames[process_id, key]
            found.append((self.trace.text(row["name_code"]), self.trace.text(row["path_code"]), row["line"]))
            key = row["caller_key"]
        return found
