"""What a look at the living processes of a rank saw; it is taken from outside (``loading.looks``)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stashtrace.record.look.model import ELSEWHERE, LOOK_FACT, STANDS_STILL, Look
from stashtrace.schema.kinds import ProcessRole
from stashtrace.schema.trace import Trace, cached_on_trace

#: What a thread does that stands in no system call. ``system`` is a wait in the kernel outside of calls, as for a page.
RUNS, STOPPED, ENDED, SYSTEM, UNKNOWN = "runs", "stopped", "ended", "kernel", "unknown"
#: Letters of the kernel for a process that is stopped by a signal or by a debugger.
_STOPPED = ("T", "t")
_GONE = ("", "Z", "X")
#: A worker that waits for work stands in one of these: it polls the pipe of its queue, whose lock it alone takes.
_IDLE_CALLS = ("poll", "select", "epoll")
#: Tables whose rows are made by work; a thread that polls or sleeps again and again adds rows to ``waits``.
WORK = ("phases", "batches", "spans")


@cached_on_trace
def looks(trace: Trace) -> Mapping[int, Look]:
    """Return the newest look at each process that was looked at, by process_id, if it has not gone on since."""
    facts = trace.metadata
    found: dict[int, Look] = {}
    for row in np.flatnonzero(facts["key_code"] == trace.strings.find(LOOK_FACT)).tolist():
        look = Look.from_text(trace.text(int(facts["value_code"][row])))
        process = int(facts["process_id"][row])
        if look is not None and (process not in found or look.at_ns >= found[process].at_ns):
            found[process] = look
    return {process: look for process, look in found.items() if not _went_on(trace, process, look)}


def _went_on(trace: Trace, process: int, look: Look) -> bool:
    """Whether a process has finished work since it was looked at, as far as its clock is that of the trace."""
    facts = trace.metadata
    rows = np.flatnonzero(facts["key_code"] == trace.strings.find("origin_monotonic_ns"))
    origin = trace.text(int(facts["value_code"][rows[0]])) if len(rows) else ""
    if not origin.isdecimal() or len(np.unique(trace.processes["boot_code"])) > 1:
        return False
    tracks = trace.tracks["track_id"][trace.tracks["process_id"] == process]
    since = look.at_ns - int(origin)
    work = (trace.table(name) for name in WORK)
    return any((table["end_ns"][np.isin(table["track_id"], tracks)] > since).any() for table in work)


def look_at_rank(trace: Trace, rank: int) -> Look | None:
    """Return the newest look at the process of a rank; None if nobody looked."""
    found = [looks(trace)[p] for p in _processes(trace, rank, ProcessRole.RANK) if p in looks(trace)]
    return max(found, key=lambda look: (look.state != "", look.at_ns), default=None)


def was_seen(look: Look | None) -> bool:
    """Whether a look says anything of its process."""
    return look is not None and look.state != ELSEWHERE


def has_ended(look: Look) -> bool:
    """Whether the process had ended when it was looked at."""
    return look.state in _GONE


def is_stopped(look: Look) -> bool:
    """Whether the process was stopped by a signal or by a debugger."""
    return look.state in _STOPPED


def activity_of(look: Look) -> str:
    """Return what the thread that was looked at does: a system call, or one of the words above."""
    if has_ended(look):
        return ENDED
    if is_stopped(look):
        return STOPPED
    if look.thread is None:
        return UNKNOWN
    if look.thread_ran_ns > STANDS_STILL * look.window_ns:
        return RUNS
    return look.thread.call or (SYSTEM if look.thread.state == "D" else UNKNOWN)


def busy_workers(trace: Trace, rank: int) -> list[tuple[int, Look]]:
    """Return the workers of a rank that do not simply wait for work, by their numbers."""
    numbers = dict(zip(trace.processes["process_id"].tolist(), trace.processes["worker_id"].tolist(), strict=True))
    of_workers = ((numbers[p], looks(trace).get(p)) for p in _processes(trace, rank, ProcessRole.WORKER))
    return [(n, look) for n, look in of_workers if look is not None and was_seen(look) and not _waits_for_queues(look)]


def _waits_for_queues(look: Look) -> bool:
    """Whether a worker stands where it waits for work or hands it over, as far as its stack or its call tell."""
    if look.thread is not None and look.thread.in_worker_loop:
        return not look.thread.own_place and activity_of(look) not in (RUNS, STOPPED, ENDED)
    target = look.thread.target if look.thread is not None else ""
    of_queue = activity_of(look) in ("read", "recv", "write", "send") and target.startswith(("pipe:", "socket:"))
    return of_queue or activity_of(look) in (*_IDLE_CALLS, UNKNOWN)


def _processes(trace: Trace, rank: int, role: ProcessRole) -> list[int]:
    table = trace.processes
    found: list[int] = table["process_id"][(table["rank"] == rank) & (table["role_code"] == role)].tolist()
    return found
