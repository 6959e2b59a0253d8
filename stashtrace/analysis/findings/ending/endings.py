"""endings, killed: how processes of a job ended that a signal killed or whose exit code is not 0.

An exception is in the records of the process that raised it, an exit code or a signal in those of its parent: only that
learns of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stashtrace.analysis.findings.ending.policy import POLICY
from stashtrace.analysis.steps.steps import steps_if_any
from stashtrace.errors import MissingDataError
from stashtrace.schema import columns as col
from stashtrace.schema.columns import Column, schema
from stashtrace.schema.groupby import RowsBy
from stashtrace.schema.kinds import ProcessRole, SpanKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace, facts_with_key

#: Columns that identify a process.
_WHO = (
    col.rank("rank", "global rank; of a worker, the rank it served; -1 if unknown", missing=-1),
    col.identity("worker_id", "DataLoader worker number, -1 if it is none", missing=-1),
    col.number("pid", "process id on its host"),
    col.refers("process_id", "processes.process_id", "-1 if it recorded nothing", missing=-1, detail=6),
)
KILLED = schema(
    "killed",
    "Ranks and workers that a signal ended, as the process that started them learnt it",
    *_WHO,
    col.word("signal", "name of the signal"),
    col.word(
        "sender",
        "loader (the worker was late to end), launcher (SIGTERM, as for the rest when a rank failed), kernel (SIGKILL"
        " while it ended processes for want of memory) or unknown",
    ),
    col.moment("end_ns", "its last record; it ended then or later, -1 if unknown", missing=-1),
)
ENDINGS = schema(
    "endings",
    "Processes that ended by an exception that nothing caught, with an exit code other than 0, or by a signal",
    *_WHO,
    col.word("exception", "type and message, with the place that raised it; empty if none was recorded"),
    Column("exit_code", "i8", "", "as its parent learnt it, -1 if unknown", role="code", missing=-1),
    col.word("signal", "name of the signal; empty if none ended it, as far as its parent recorded it"),
    col.word("sender", "of the signal, as in killed"),
    col.moment("at_ns", "when nothing had caught the exception; else its last record, -1 if there is none", missing=-1),
    col.number("steps_count", "steps that the rank had finished by then, -1 if it has none", missing=-1),
)
#: Metadata keys: these and the pid; the same in ``probes/child_ends.py``.
KILLED_FACT, EXITED = "killed ", "exited "
#: How a process ended of which nobody reported it.
_UNKNOWN: dict[str, Any] = {"exception": "", "exit_code": -1, "signal": "", "sender": ""}


def endings(trace: Trace) -> Table:
    """List the processes that ended badly, in the order in which they did.

    Exit codes and signals are those that ``torchrun``, ``torch.multiprocessing.spawn`` and the DataLoader learnt of
    their children; of processes with other parents (a shell, ``srun``, ``mpirun``) the exception alone is known.
    Columns: table ``endings`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace

    Raises
    ------
    MissingDataError
        If no process was recorded.
    """
    processes = trace.processes
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for row in killed(trace).rows():
        found[row["process_id"], row["pid"]] = {**_UNKNOWN, **row, "at_ns": row["end_ns"]}
    for parent, pid, value in facts_of_children(trace, EXITED):
        code, _, name = value.partition(" ")
        at, rank, worker = child(trace, parent, pid, name)
        process, end = (int(processes[c][at]) if at >= 0 else -1 for c in ("process_id", "end_ns"))
        who = {"rank": rank, "worker_id": worker, "pid": pid, "process_id": process, "at_ns": end}
        ending = found.setdefault((process, pid), {**_UNKNOWN, **who})
        ending["exit_code"] = int(code) if code.isdecimal() and len(code) < 4 else -1
    for process, at_ns, text in _exceptions(trace):
        place = int(np.flatnonzero(processes["process_id"] == process)[0])
        who = {name: int(processes[name][place]) for name in ("rank", "worker_id", "pid", "process_id")}
        found.setdefault((process, who["pid"]), {**_UNKNOWN, **who}).update(exception=text, at_ns=at_ns)
    made = _steps_before(trace, list(found.values()))
    rows = [
        tuple({**ending, "steps_count": count}[name] for name in ENDINGS.names)
        for ending, count in zip(found.values(), made, strict=True)
    ]
    return Table.from_rows(ENDINGS, rows).sort_by("at_ns", "rank", "worker_id", "pid")


def _exceptions(trace: Trace) -> list[tuple[int, int, str]]:
    """Return process, moment and words of each exception that nothing caught."""
    rows = np.flatnonzero(trace.spans["kind_code"] == SpanKind.EXCEPTION)
    if not len(rows):
        return []
    owner = trace.tracks.lookup("track_id", "process_id")
    columns = (trace.spans[name][rows].tolist() for name in ("track_id", "begin_ns", "name_code"))
    return [(owner[track], at_ns, trace.text(name)) for track, at_ns, name in zip(*columns, strict=True)]


def _steps_before(trace: Trace, found: list[dict[str, Any]]) -> list[int]:
    """Return how many steps the rank of each ending had finished; -1 for workers and where none are known."""
    table = steps_if_any(trace)
    if table is None:
        return [-1] * len(found)
    by_rank, role = RowsBy(table["rank"]), trace.processes.lookup("process_id", "role_code")
    counts = []
    for ending in found:
        is_rank = role.get(ending["process_id"]) == ProcessRole.RANK
        rows = by_rank.rows(ending["rank"]) if is_rank else np.empty(0, dtype=int)
        counts.append(int(np.count_nonzero(table["end_ns"][rows] <= ending["at_ns"])) if len(rows) else -1)
    return counts


def killed(trace: Trace) -> Table:
    """List the processes that a signal ended, by the end of their records.

    They are workers of torch's DataLoader, and ranks that ``torchrun`` or ``torch.multiprocessing.spawn`` started.
    Processes of other parents (a shell, ``srun``) are not found. Columns: table ``killed`` of
    ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace

    Raises
    ------
    MissingDataError
        If no process was recorded.
    """
    processes = trace.processes
    if not len(processes):
        raise MissingDataError("no process was recorded", hint="record a job with `stashtrace run -- COMMAND`")
    rows = []
    for parent, pid, value in facts_of_children(trace, KILLED_FACT):
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
        if number == text or not number.isdecimal() or len(number) > POLICY.most_digits_count or owner not in row_of:
            continue
        yield row_of[owner], int(number), trace.text(value)


def child(trace: Trace, parent: int, pid: int, name: str) -> tuple[int, int, int]:
    """Return row, rank and worker number of a child of a process, each -1 if unknown; ``name`` as its parent said."""
    processes = trace.processes
    of_pid = (processes["pid"] == pid) & (processes["host_code"] == processes["host_code"][parent])
    row = int(np.flatnonzero(of_pid)[-1]) if of_pid.any() else -1
    of_worker = name.rpartition(" ")[2] if name.startswith("worker ") else ""
    worker = int(of_worker) if of_worker.isdecimal() and len(of_worker) <= POLICY.most_digits_count else -1
    rank = int(processes["rank"][parent]) if worker >= 0 else -1
    if row >= 0:
        rank = int(processes["rank"][row])
        if processes["role_code"][row] == ProcessRole.WORKER:
            worker = int(processes["worker_id"][row])
    return row, rank, worker
