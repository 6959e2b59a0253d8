"""What a peek at the living processes of a rank saw; it is taken from outside (``loading.peeks``)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stashtrace.record.peek.model import ELSEWHERE, PEEK_FACT, STANDS_STILL, Peek
from stashtrace.schema.kinds import ProcessRole
from stashtrace.schema.trace import Trace, cached_on_trace, facts_named

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
def peeks(trace: Trace) -> Mapping[int, Peek]:
    """Return the newest peek at each process that was looked at, by process_id, if it has not gone on since."""
    found: dict[int, Peek] = {}
    for process, text in facts_named(trace, PEEK_FACT):
        peek = Peek.from_text(text)
        if peek is not None and (process not in found or peek.at_ns >= found[process].at_ns):
            found[process] = peek
    return {process: peek for process, peek in found.items() if not _went_on(trace, process, peek)}


def _went_on(trace: Trace, process: int, peek: Peek) -> bool:
    """Whether a process has finished work since it was looked at, as far as its clock is that of the trace."""
    origin = next((text for _, text in facts_named(trace, "origin_monotonic_ns")), "")
    if not origin.isdecimal() or len(np.unique(trace.processes["boot_code"])) > 1:
        return False
    tracks = trace.tracks["track_id"][trace.tracks["process_id"] == process]
    since = peek.at_ns - int(origin)
    work = (trace.table(name) for name in WORK)
    return any((table["end_ns"][np.isin(table["track_id"], tracks)] > since).any() for table in work)


def peek_at_rank(trace: Trace, rank: int) -> Peek | None:
    """Return the newest look at the process of a rank; None if nobody looked."""
    found = [peeks(trace)[p] for p in _processes(trace, rank, ProcessRole.RANK) if p in peeks(trace)]
    return max(found, key=lambda peek: (peek.state != "", peek.at_ns), default=None)


def was_seen(peek: Peek | None) -> bool:
    """Whether a peek says anything of its process."""
    return peek is not None and peek.state != ELSEWHERE


def has_ended(peek: Peek) -> bool:
    """Whether the process had ended when it was looked at."""
    return peek.state in _GONE


def is_stopped(peek: Peek) -> bool:
    """Whether the process was stopped by a signal or by a debugger."""
    return peek.state in _STOPPED


def activity_of(peek: Peek) -> str:
    """Return what the thread that was looked at does: a system call, or one of the words above."""
    if has_ended(peek):
        return ENDED
    if is_stopped(peek):
        return STOPPED
    if peek.thread is None:
        return UNKNOWN
    if peek.thread_ran_ns > STANDS_STILL * peek.window_ns:
        return RUNS
    return peek.thread.call or (SYSTEM if peek.thread.state == "D" else UNKNOWN)


def busy_workers(trace: Trace, rank: int) -> list[tuple[int, Peek]]:
    """Return the workers of a rank that do not simply wait for work, by their numbers."""
    numbers = trace.processes.lookup("process_id", "worker_id")
    of_workers = ((numbers[p], peeks(trace).get(p)) for p in _processes(trace, rank, ProcessRole.WORKER))
    return [(n, peek) for n, peek in of_workers if peek is not None and was_seen(peek) and not _waits_for_queues(peek)]


def _waits_for_queues(peek: Peek) -> bool:
    """Whether a worker stands where it waits for work or hands it over, as far as its stack or its call shows."""
    if peek.thread is not None and peek.thread.in_worker_loop:
        return not peek.thread.own_place and activity_of(peek) not in (RUNS, STOPPED, ENDED)
    target = peek.thread.target if peek.thread is not None else ""
    of_queue = activity_of(peek) in ("read", "recv", "write", "send") and target.startswith(("pipe:", "socket:"))
    return of_queue or activity_of(peek) in (*_IDLE_CALLS, UNKNOWN)


def _processes(trace: Trace, rank: int, role: ProcessRole) -> list[int]:
    table = trace.processes
    found: list[int] = table["process_id"][(table["rank"] == rank) & (table["role_code"] == role)].tolist()
    return found
