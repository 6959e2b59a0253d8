"""Look at the living processes of a run, and hold what was seen as facts of these processes in its trace.

Followers keep peeks among the facts of their hosts (``run_facts.PEEKS``), so that they outlive the processes.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stashtrace.format.liveness import LiveRings
from stashtrace.format.reader import open_run
from stashtrace.format.stash_file import StashFile
from stashtrace.record.peek.model import ELSEWHERE, PEEK_FACT, Peek, ThreadPeek
from stashtrace.record.peek.proc import STACK_NOT_READ, WINDOW_S, Wanted, take_peeks
from stashtrace.schema.events import TABLES
from stashtrace.schema.kinds import StackFlag
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Reading the stacks of a process takes some 50 ms; later ones are looked at without.
_STACKS_AT_MOST = 32
#: A thread keeps the GIL that has it in all samples of this time, and in this number of them.
_HOLDS_GIL_NS, _HOLDS_GIL_COUNT = 500_000_000, 5
#: Of a stack that was recorded, from the innermost one on.
_MOST_FRAMES = 64


def peek_at(
    trace: Trace, path: str, wanted: Mapping[int, int], *, run_id: str | None = None, window_s: float = WINDOW_S
) -> Trace:
    """Look at processes of a live run; return its trace with what was seen.

    ``wanted``: process_id -> thread, as the process itself numbers it. A process that has ended, or runs on another
    host, gets a peek that says so.
    """
    live = LiveRings.now()
    files = _files_by_process(trace, open_run(path, run_id=run_id).processes)
    now, texts = time.monotonic_ns(), {}
    living: dict[int, Wanted] = {}
    for process, tid in wanted.items():
        file = files.get(process)
        if file is None:
            continue
        pid = live.pid_of(file)
        if pid >= 0:
            living[process] = Wanted(pid, tid, stacks=len(living) < _STACKS_AT_MOST)
        elif live.is_of_host(file):
            texts[process] = Peek(_pid(file), now, 0, "").to_text()
        else:
            host = str(file.metadata.get("host", "")) or "another host"
            why = f"it runs on {host}, and this was asked on {socket.gethostname()}"
            texts[process] = Peek(_pid(file), now, 0, ELSEWHERE, unseen=(why,)).to_text()
    for process, peek in take_peeks(living, window_s).items():
        texts[process] = with_own_stack(trace, process, peek).to_text()
    return with_peeks(trace, texts)


def with_own_stack(trace: Trace, process: int, peek: Peek) -> Peek:
    """Return a peek with the recorded stacks of its thread and of the one that holds the GIL.

    Nothing is changed where another program read the stacks.
    """
    if peek.thread is None or peek.thread.frames:
        return peek
    frames = newest_stack(trace, process, peek.thread.tid)
    if not frames:
        unseen = tuple(f"{why}; none was recorded" if why.startswith(STACK_NOT_READ) else why for why in peek.unseen)
        return replace(peek, unseen=unseen)
    unseen = tuple(why for why in peek.unseen if not why.startswith(STACK_NOT_READ))
    holder = peek.holder or _holder(trace, process, peek.thread.tid)
    return replace(peek, thread=replace(peek.thread, frames=frames), holder=holder, unseen=unseen)


def _holder(trace: Trace, process: int, tid: int) -> ThreadPeek | None:
    """Return the thread that kept the GIL from thread ``tid`` in all of the newest samples; None if there is none."""
    samples, tracks = trace.stack_samples, trace.tracks
    rows = np.flatnonzero(samples["process_id"] == process)
    rows = rows[samples["ts_ns"][rows] > samples["ts_ns"][rows].max(initial=0) - _HOLDS_GIL_NS]
    held = rows[(samples["sample_flags"][rows] & int(StackFlag.HOLDS_GIL)) != 0]
    part = tracks.take((tracks["process_id"] == process) & np.isin(tracks["track_id"], samples["track_id"][held]))
    if len(held) < _HOLDS_GIL_COUNT or len(part) != 1 or int(part["native_id"][0]) == tid:
        return None
    other = int(part["native_id"][0])
    return ThreadPeek(other, trace.text(int(part["name_code"][0])), frames=newest_stack(trace, process, other))


def newest_stack(trace: Trace, process: int, tid: int, since_ns: int = -1) -> tuple[str, ...]:
    """Return the frames of a thread as ``function at file:line``, the innermost first.

    ``tid``: as the process itself numbers it. ``since_ns``: an older sample says nothing. Empty if there is none.
    """
    samples, tracks = trace.stack_samples, trace.tracks
    chosen = tracks["track_id"][(tracks["process_id"] == process) & (tracks["native_id"] == tid)]
    rows = np.flatnonzero(np.isin(samples["track_id"], chosen) & (samples["frame_key"] > 0))
    if not len(rows):
        return ()
    row = rows[samples["ts_ns"][rows].argmax()]
    if samples["ts_ns"][row] < since_ns:
        return ()
    return frames_of(trace, process, int(samples["frame_key"][row]))


def frames_of(trace: Trace, process: int, frame_key: int) -> tuple[str, ...]:
    """Return a frame and its callers, the innermost first, as ``function at file:line``."""
    table = trace.frames
    rows = np.flatnonzero(table["process_id"] == process)
    row_of = dict(zip(table["frame_key"][rows].tolist(), rows.tolist(), strict=True))
    frames: list[str] = []
    while frame_key in row_of and len(frames) < _MOST_FRAMES:
        row = row_of[frame_key]
        name, path = (trace.text(int(table[column][row])) for column in ("name_code", "path_code"))
        frames.append(f"{name} at {path}:{table['line'][row]}")
        frame_key = int(table["caller_key"][row])
    return tuple(frames)


def with_peeks(trace: Trace, texts: Mapping[int, str]) -> Trace:
    """Return a trace with peeks, by process_id, among the facts of its processes."""
    schema = TABLES["metadata"]
    rows = [(process, trace.strings.code(PEEK_FACT), trace.strings.code(text)) for process, text in texts.items()]
    return trace.replace(metadata=Table.concat(schema, [trace.metadata, Table.from_rows(schema, rows)]))


def facts_of_peeks(trace: Trace) -> list[dict[str, Any]]:
    """Return the peeks of a trace as a follower keeps them among the facts of its host (``run_facts.PEEKS``)."""
    places = {
        int(row["process_id"]): {"host": trace.text(row["host_code"]), "pid": int(row["pid"])}
        for row in trace.processes.rows()
    }
    key = trace.strings.find(PEEK_FACT)
    return [
        {**places[int(row["process_id"])], "look": trace.text(row["value_code"])}
        for row in trace.metadata.rows()
        if row["key_code"] == key and int(row["process_id"]) in places
    ]


def _files_by_process(trace: Trace, files: Sequence[StashFile]) -> dict[int, StashFile]:
    """Return the file of each process; of images of one process, the last one."""
    by_name: dict[tuple[str, str, int], StashFile] = {}
    for file in files:
        known = file.metadata
        by_name[str(known.get("host", "")), str(known.get("boot_id", "")), _pid(file)] = file
    found = {}
    for row in trace.processes.rows():
        file_of = by_name.get((trace.text(row["host_code"]), trace.text(row["boot_code"]), row["pid"]))
        if file_of is not None:
            found[int(row["process_id"])] = file_of
    return found


def _pid(file: StashFile) -> int:
    known: Any = file.metadata.get("pid", 0)
    return int(known)
