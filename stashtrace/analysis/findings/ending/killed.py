"""killed: ranks and workers that a signal ended.

Only the parent of a process learns this, so it is in the parent's facts.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stashtrace.errors import MissingDataError
from stashtrace.schema import columns as col
from stashtrace.schema.columns import schema
from stashtrace.schema.kinds import ProcessRole
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace, facts_with_key

KILLED = schema(
    "killed",
    "Ranks and workers that a signal ended, as the process that started them learnt it",
    col.rank("rank", "global rank; of a worker, the rank it served; -1 if unknown", missing=-1),
    col.identity("worker_id", "DataLoader worker number, -1 if it is none", missing=-1),
    col.number("pid", "process id on its host"),
    col.refers("process_id", "processes.process_id", "-1 if it recorded nothing", missing=-1, detail=6),
    col.word("signal", "name of the signal"),
    col.word(
        "sender",
        "loader (the worker was late to end), launcher (SIGTERM, as for the rest when a rank failed), kernel (SIGKILL"
        " while it ended processes for want of memory) or unknown",
    ),
    col.moment("end_ns", "its last record; it ended then or later, -1 if unknown", missing=-1),
)

#: Metadata key: this and the pid; the same in ``probes/ends/child_ends.py``.
FACT = "killed "
#: A number with more digits is damaged.
_MOST_DIGITS = 15


def killed(trace: Trace) -> Table:
    """List the processes that a signal ended, by the end of their records.

    They are workers of torch's DataLoader, and ranks that ``torchrun`` or ``torch.multiprocessing.spawn`` started.
    Processes of other parents (a shell, ``srun``) are not found.

    Parameters
    ----------
    trace : Trace

    Columns
    -------
    rank, worker_id, pid, process_id, signal, sender, end_ns

    Raises
    ------
    MissingDataError
        If no process was recorded.
    """
    processes = trace.processes
    if not len(processes):
        raise MissingDataError("no process was recorded", hint="record a job with `stashtrace run -- COMMAND`")
    rows = []
    for parent, pid, value in facts_of_children(trace, FACT):
        name, sender, process_name = [*value.split(" ", 2), "", "", ""][:3]
        row, rank, worker = child(trace, parent, pid, process_name)
        process, end = -1, -1
        if row >= 0:
            process, end = (int(processes[name][row]) for name in ("process_id", "end_ns"))
        rows.append((rank, worker, pid, process, name, sender, end))
    return Table.from_rows(KILLED, rows).sort_by("end_ns", "rank", "worker_id", "pid")


def facts_of_children(trace: Trace, prefix: str) -> Iterator[tuple[int, int, str]]:
    """Yield what parents said of their children under a key: row of the parent, pid of the child, and the value."""
    row_of = {number: row for row, number in enumerate(trace.processes["process_id"].tolist())}
    facts = facts_with_key(trace, lambda key: key.startswith(prefix))
    for owner, key, value in zip(facts["process_id"].tolist(), facts["key_code"], facts["value_code"], strict=True):
        text = trace.text(key)
        number = text.removeprefix(prefix)
        if number == text or not number.isdecimal() or len(number) > _MOST_DIGITS or owner not in row_of:
            continue
        yield row_of[owner], int(number), trace.text(value)


def child(trace: Trace, parent: int, pid: int, name: str) -> tuple[int, int, int]:
    """Return row, rank and worker number of a child of a process, each -1 if unknown; ``name`` as its parent said."""
    processes = trace.processes
    of_pid = (processes["pid"] == pid) & (processes["host_code"] == processes["host_code"][parent])
    row = int(np.flatnonzero(of_pid)[-1]) if of_pid.any() else -1
    of_worker = name.rpartition(" ")[2] if name.startswith("worker ") else ""
    worker = int(of_worker) if of_worker.isdecimal() and len(of_worker) <= _MOST_DIGITS else -1
    rank = int(processes["rank"][parent]) if worker >= 0 else -1
    if row >= 0:
        rank = int(processes["rank"][row])
        if processes["role_code"][row] == ProcessRole.WORKER:
            worker = int(processes["worker_id"][row])
    return row, rank, worker
