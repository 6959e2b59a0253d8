"""Look at the living processes of a run, and hold what was seen as facts of these processes in its trace.

Followers keep looks among the facts of their hosts (``run_facts.LOOKS``), so that they outlive the processes.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from stashtrace.format.liveness import LiveRings
from stashtrace.format.reader import open_run
from stashtrace.format.stash_file import StashFile
from stashtrace.record.look.look import WINDOW_S, Wanted, take_looks
from stashtrace.record.look.model import ELSEWHERE, LOOK_FACT, Look
from stashtrace.schema.events import TABLES
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Reading the stacks of a process takes some 50 ms; later ones are looked at without.
_STACKS_AT_MOST = 32


def look_at(
    trace: Trace,
    path: str,
    wanted: Mapping[int, int],
    *,
    run_id: str | None = None,
    window_s: float = WINDOW_S,
) -> Trace:
    """Look at processes of a live run; return its trace with what was seen.

    ``wanted``: process_id -> thread, as the process itself numbers it. A process that has ended, or runs on another
    host, gets a look that says so.
    """
    live = LiveRings.look()
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
            texts[process] = Look(_pid(file), now, 0, "").to_text()
        else:
            host = str(file.metadata.get("host", "")) or "another host"
            why = f"it runs on {host}, and this was asked on {socket.gethostname()}"
            texts[process] = Look(_pid(file), now, 0, ELSEWHERE, unseen=(why,)).to_text()
    texts |= {process: look.to_text() for process, look in take_looks(living, window_s).items()}
    return with_looks(trace, texts)


def with_looks(trace: Trace, texts: Mapping[int, str]) -> Trace:
    """Return a trace with looks, by process_id, among the facts of its processes."""
    schema = TABLES["metadata"]
    rows = [(process, trace.strings.code(LOOK_FACT), trace.strings.code(text)) for process, text in texts.items()]
    return trace.replace(metadata=Table.concat(schema, [trace.metadata, Table.from_rows(schema, rows)]))


def facts_of_looks(trace: Trace) -> list[dict[str, Any]]:
    """Return the looks of a trace as a follower keeps them among the facts of its host (``run_facts.LOOKS``)."""
    places = {
        int(row["process_id"]): {"host": trace.text(row["host_code"]), "pid": int(row["pid"])}
        for row in trace.processes.rows()
    }
    key = trace.strings.find(LOOK_FACT)
    return [
        {**places[int(row["process_id"])], "look": trace.text(row["value_code"])}
        for row in trace.metadata.rows()
        if row["key_code"] == key and int(row["process_id"]) in places
    ]


def _files_by_process(trace: Trace, files: Sequence[StashFile]) -> dict[int, StashFile]:
    """Return the file of each process; of images of one process, the last one."""
    by_name: dict[tuple[str, str, int], StashFile] = {}
    for file in files:
        told = file.metadata
        by_name[str(told.get("host", "")), str(told.get("boot_id", "")), _pid(file)] = file
    found = {}
    for row in trace.processes.rows():
        file_of = by_name.get((trace.text(row["host_code"]), trace.text(row["boot_code"]), row["pid"]))
        if file_of is not None:
            found[int(row["process_id"])] = file_of
    return found


def _pid(file: StashFile) -> int:
    told: Any = file.metadata.get("pid", 0)
    return int(told)
