"""Python functions that processes are in, sampled from outside by py-spy while some steps are recorded deeper.

    py-spy record ──► begins and ends of functions, since it started ──► on CLOCK_MONOTONIC, by kernel thread

A begin or end is known to about one sampling period, of which py-spy says no more: it starts its clock when it starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stashtrace.record.peek.proc import own_tid
from stashtrace.record.peek.stacks import PROGRAM, find_program, read_stacks, reason_of
from stashtrace.scrubbing.secrets import scrub_arguments

PERIOD_NS = 10_000_000
#: Processes that are sampled at once; the others are left out.
_MOST_PROCESSES = 16
#: It ends by itself after so long, should nobody end it; it writes its file within the second time.
_LONGEST_S, _WRITES_S = 3600, 10.0
#: Functions of one process that are kept.
_MOST_ROWS = 50_000
_MOST_DEPTH = 64
_FILE = "samples.json"


@dataclass(slots=True)
class _Sampled:
    """A process that is sampled: its rank, its number on this host and on its own, and who samples it."""

    rank: int
    pid: int
    own_pid: int
    folder: tempfile.TemporaryDirectory[str]
    sampler: subprocess.Popen[str]
    began_ns: int


class StackSampler:
    """Samples processes of this host. ``host``: its name, as the run has it."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._sampled: list[_Sampled] = []
        #: Why ranks are not sampled.
        self.unseen: dict[int, str] = {}

    def start(self, processes: Mapping[int, tuple[int, int]]) -> None:
        """Begin. ``processes``: rank -> its number on this host, and as the process itself sees it."""
        self._sampled, self.unseen = [], {}
        program = find_program()
        if program is None:
            why = f"{PROGRAM} is not installed (pip install 'stashtrace[stacks]')"
            self.unseen = dict.fromkeys(processes, why)
            return
        for rank, (pid, own_pid) in sorted(processes.items()):
            if len(self._sampled) == _MOST_PROCESSES:
                self.unseen[rank] = f"{_MOST_PROCESSES} processes of a host are sampled"
                continue
            try:
                self._sampled.append(_sample(program, rank, pid, own_pid))
            except OSError as error:
                self.unseen[rank] = f"{PROGRAM} cannot be started: {error.strerror}"

    def finish(self) -> list[dict[str, Any]]:
        """End the sampling, and return what was seen as facts (``run_facts.STACKS``)."""
        for one in self._sampled:  # all of them first: each takes a moment to write
            with contextlib.suppress(OSError):
                one.sampler.send_signal(signal.SIGINT)
        found = []
        for one in self._sampled:
            try:
                facts = self._read(one)
            except (OSError, ValueError, TypeError, KeyError):
                self.unseen[one.rank] = f"{PROGRAM} gave an answer that makes no sense"
                continue
            finally:
                one.folder.cleanup()
            if facts is not None:
                found.append(facts)
        self._sampled = []
        return found

    def _read(self, one: _Sampled) -> dict[str, Any] | None:
        threads = read_stacks(one.pid)  # the sampler numbers threads as Python does
        try:
            _, said = one.sampler.communicate(timeout=_WRITES_S)
        except subprocess.TimeoutExpired:
            one.sampler.kill()
            one.sampler.communicate()
            self.unseen[one.rank] = f"{PROGRAM} did not end"
            return None
        path = Path(one.folder.name) / _FILE
        if not path.exists():
            self.unseen[one.rank] = reason_of(said)
            return None
        tids = {stack.thread_id: own_tid(one.pid, tid) for tid, stack in threads.by_thread.items()}
        functions: dict[str, int] = {}
        rows, dropped_count = _rows(json.loads(path.read_text(encoding="utf-8")), one.began_ns, tids, functions)
        return {
            "host": self._host,
            "pid": one.own_pid,
            "period_ns": PERIOD_NS,
            "functions": list(functions),
            "rows": rows,
            "dropped_count": dropped_count,
        }


def _sample(program: str, rank: int, pid: int, own_pid: int) -> _Sampled:
    folder = tempfile.TemporaryDirectory(prefix="stashtrace-stacks-")
    path = os.path.join(folder.name, _FILE)
    words = ["record", "--pid", str(pid), "--duration", str(_LONGEST_S), "--rate", str(10**9 // PERIOD_NS)]
    words += ["--format", "chrometrace", "--output", path, "--nonblocking", "--idle"]
    began_ns = time.monotonic_ns()
    try:
        sampler = subprocess.Popen([program, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    except OSError:
        folder.cleanup()
        raise
    return _Sampled(rank, pid, own_pid, folder, sampler, began_ns)


def _rows(
    events: Any, began_ns: int, tids: Mapping[int, int], functions: dict[str, int]
) -> tuple[list[list[int]], int]:
    """Return (thread, begin, end, function, line, depth) of each function, and how many more there were.

    ``functions``: takes the texts of functions with their numbers. Threads without a number of the kernel are left out.
    """
    open_ones: dict[int, list[tuple[int, int, int]]] = {}
    rows: list[list[int]] = []
    dropped_count = 0
    for event in events:
        tid = tids.get(int(event["tid"]))
        if tid is None:
            continue
        stack = open_ones.setdefault(tid, [])
        at_ns = began_ns + round(float(event["ts"]) * 1000)
        if event["ph"] == "B":
            about = event["args"]
            text = f"{event['name']} at {scrub_arguments([str(about['filename'])])[0]}"
            stack.append((at_ns, functions.setdefault(text, len(functions)), int(about["line"])))
        elif event["ph"] == "E" and stack:
            begin_ns, function, line = stack.pop()
            if len(rows) == _MOST_ROWS or len(stack) >= _MOST_DEPTH:
                dropped_count += 1
            else:
                rows.append([tid, begin_ns, at_ns, function, line, len(stack)])
    return rows, dropped_count
