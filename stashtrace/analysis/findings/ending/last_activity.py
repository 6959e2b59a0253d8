"""What ranks did last when their records end, and since: whether one still works, or none does.

A call is recorded when it returns, so one that never did is not in the records. What is known then: what ended before,
what came next after that in the steps before, and whether the thread has run on a CPU since. A rank that others wait
for may still work: then the job does not hang, it waits. Or no rank gets on though none waits for another: it is idle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stashtrace.analysis.findings.ending.looked import WORK, has_ended, peek_at_rank, was_seen
from stashtrace.analysis.findings.ending.policy import POLICY
from stashtrace.analysis.stalls.sampled_cpus import timed_samples
from stashtrace.analysis.steps.steps import steps_if_any
from stashtrace.analysis.steps.threads import step_threads
from stashtrace.errors import MissingDataError
from stashtrace.loading.peeks import newest_stack
from stashtrace.record.peek.model import Progress, ThreadPeek, way_of_progress
from stashtrace.schema.kinds import NOT_FILES, BatchPhase, CollectiveOp, IoOp, Phase, ProcessRole, SpanKind, WaitOp
from stashtrace.schema.trace import Trace, facts_named

#: Metadata key; the same in ``csrc/collectors/proc/proc_collector.cpp``.
_FACT = "stands_in"
_TIMED_TABLES = ("phases", "batches", "collectives", "collective_waits", "waits", "spans", "io", "counters")
_TIME_COLUMNS = ("end_ns", "ts_ns", "call_ns", "return_ns")


@dataclass(frozen=True, slots=True)
class Activity:
    """Something that a thread did."""

    begin_ns: int
    end_ns: int
    kind: str
    name: str = ""


def place_since(trace: Trace, process: int, track: int, since_ns: int) -> str:
    """Return where in the job's code a thread was seen since a moment; else nothing."""
    tid = int(trace.tracks["native_id"][np.flatnonzero(trace.tracks["track_id"] == track)[0]])
    return ThreadPeek(tid, "", frames=newest_stack(trace, process, tid, since_ns)).place


def stands_in(trace: Trace, process: int) -> str:
    """Return the system call that the main thread of a process stood in when last looked at; empty if it ran."""
    calls = [call for owner, call in facts_named(trace, _FACT) if owner == process]
    return calls[-1] if calls else ""


def is_gone(trace: Trace, rank: int) -> bool:
    """Whether a rank's process had ended, or was stopped: its samples end clearly before those of the others."""
    peek = peek_at_rank(trace, rank)
    if peek is not None and was_seen(peek):
        return has_ended(peek)
    newest, process = -1, set(trace.processes["process_id"][trace.processes["rank"] == rank].tolist())
    last = -1
    for (owner, _), at, _ in timed_samples(trace, "process_user_ns_total"):
        newest = max(newest, int(at[-1]))
        if owner in process:
            last = max(last, int(at[-1]))
    return 0 <= last < newest - POLICY.silence_ns


def step_track(trace: Trace, rank: int) -> tuple[int, int] | None:
    """Return process and track of the thread that drives a rank; else of the one that calls its collectives."""
    try:
        for thread in step_threads(trace):
            if thread.rank == rank:
                return thread.process_id, thread.track_id
    except MissingDataError:
        pass  # a job without a training loop: its collectives show it
    rows = np.flatnonzero(trace.collectives["rank"] == rank)
    if not len(rows):
        return None
    tracks, counts = np.unique(trace.collectives["track_id"][rows], return_counts=True)
    return int(trace.collectives["process_id"][rows[0]]), int(tracks[counts.argmax()])


def activities(trace: Trace, track: int) -> list[Activity]:
    """Return what a thread did, as far as it ended."""
    acts: list[Activity] = []

    def add(table: str, chosen: object, kind: object, name: object = None) -> None:
        rows = trace.table(table)
        picked = np.flatnonzero(np.asarray(rows["track_id"] == track) & np.asarray(chosen))
        ends = "return_ns" if table == "collectives" else "end_ns"
        begins = "call_ns" if table == "collectives" else "begin_ns"
        for row in picked.tolist():
            begin, end = int(rows[begins][row]), int(rows[ends][row])
            label = kind(row) if callable(kind) else str(kind)
            acts.append(Activity(begin, max(begin, end), label, name(row) if callable(name) else ""))

    phases, batches, spans = trace.phases, trace.batches, trace.spans
    add("phases", np.ones(len(phases), dtype=bool), lambda row: Phase(int(phases["phase_code"][row])).name.lower())
    add("batches", batches["phase_code"] == BatchPhase.WAIT, "batch_wait")
    calls = trace.collectives
    add("collectives", calls["return_ns"] >= 0, lambda row: CollectiveOp(int(calls["op_code"][row])).name.lower())
    user = spans["kind_code"] == SpanKind.USER
    add("spans", user, "annotation", lambda row: trace.text(int(spans["name_code"][row])))
    waits = trace.waits
    add("waits", np.ones(len(waits), dtype=bool), lambda row: WaitOp(int(waits["wait_code"][row])).name.lower())
    acts += _last_io(trace, track)
    return acts


def _last_io(trace: Trace, track: int) -> list[Activity]:
    """Return the last I/O call of a thread."""
    best: Activity | None = None
    for io in trace.io_pieces():
        rows = np.flatnonzero(io["track_id"] == track)
        if not len(rows):
            continue
        row = int(rows[io["end_ns"][rows].argmax()])
        end = int(io["end_ns"][row])
        if best is None or end > best.end_ns:
            path = trace.text(int(io["path_code"][row]))
            best = Activity(int(io["begin_ns"][row]), end, IoOp(int(io["op_code"][row])).name.lower(), path)
    return [best] if best is not None else []


def what_follows(acts: list[Activity], kind: str) -> str:
    """Return what mostly began next after a kind of activity ended, in the steps before; empty if that varies."""
    ordered = sorted(acts, key=lambda act: (act.begin_ns, -act.end_ns))
    ends = [at for at, act in enumerate(ordered) if act.kind == kind]
    next_kinds: list[str] = []
    for at in ends[:-1]:
        after = next((act for act in ordered[at + 1 :] if act.begin_ns >= ordered[at].end_ns), None)
        if after is not None:
            next_kinds.append(after.kind)
    if len(next_kinds) < POLICY.follows_count:
        return ""
    kinds, counts = np.unique(next_kinds, return_counts=True)
    return str(kinds[counts.argmax()]) if counts.max() >= POLICY.follows_ratio * len(next_kinds) else ""


def ran_since(trace: Trace, process: int, track: int, since_ns: int) -> tuple[float, int] | None:
    """Return the share of the time since a moment that a thread ran or waited for a CPU, and how long that is."""
    native = int(trace.tracks["native_id"][np.flatnonzero(trace.tracks["track_id"] == track)[0]])
    spent, window = 0.0, 0
    for name in ("thread_run_ns_total", "thread_runqueue_ns_total"):
        for key, at, values in timed_samples(trace, name):
            rows = np.flatnonzero(at >= since_ns)
            if key == (process, native) and len(rows) > 1:
                spent += float(values[rows[-1]] - values[rows[0]])
                window = max(window, int(at[rows[-1]] - at[rows[0]]))
    return (min(spent / window, 1.0), window) if window > 0 else None


def newest_ns(trace: Trace) -> int:
    """Return the time of the newest row."""
    tables = [trace.table(name) for name in _TIMED_TABLES]
    columns = (table[column] for table in tables for column in _TIME_COLUMNS if column in table)
    return max(int(column.max(initial=0)) for column in columns)


def still_works(trace: Trace, rank: int, since_ns: int) -> str:
    """Return how a rank works on at the end of the records, given how long others wait; empty if it does not.

    The answer is one of ``record.peek.model``. Of a process that was looked at, the peek counts, not its samples.
    """
    end = newest_ns(trace)
    begin = end - round(POLICY.last_part_ratio * since_ns)
    thread = step_track(trace, rank)
    rows = int(thread is not None and last_work_ns(trace, thread[1]) >= begin)
    peek = peek_at_rank(trace, rank)
    if peek is not None and was_seen(peek):
        before, after = peek.progress()
        return way_of_progress(replace(before, rows_count=0), replace(after, rows_count=rows))
    ran = ran_since(trace, *thread, begin) if thread is not None else None
    share, window = ran if ran is not None else (-1.0, end - begin)
    return way_of_progress(
        Progress(end - window, rows_count=0, moved_bytes=0, thread_run_ns=0 if ran is not None else -1),
        Progress(
            end, rows_count=rows, moved_bytes=_moved_bytes(trace, rank, begin), thread_run_ns=round(share * window)
        ),
    )


def last_work_ns(trace: Trace, track: int) -> int:
    """Return when a thread last ended something but a wait or a message; -1 if it never did."""
    last = -1
    for name in WORK:
        table = trace.table(name)
        last = max(last, int(table["end_ns"][table["track_id"] == track].max(initial=-1)))
    for io in trace.io_pieces():
        work = (io["track_id"] == track) & ((io["io_flags"] & NOT_FILES) == 0)
        last = max(last, int(io["end_ns"][work].max(initial=-1)))
    return last


def _moved_bytes(trace: Trace, rank: int, begin_ns: int) -> int:
    """Return the bytes that the process of a rank read from, or wrote to, storage since a moment; the larger ones."""
    processes = trace.processes
    of_rank = (processes["rank"] == rank) & (processes["role_code"] == ProcessRole.RANK)
    mine = set(processes["process_id"][of_rank].tolist())
    moved = 0.0
    for name in ("process_read_bytes_total", "process_write_bytes_total"):
        for (process, _), at, values in timed_samples(trace, name):
            rows = np.flatnonzero(at >= begin_ns)
            if process in mine and len(rows) > 1:
                moved = max(moved, float(values[rows[-1]] - values[rows[0]]))
    return round(moved)


@dataclass(frozen=True, slots=True)
class Idle:
    """Ranks that stand still, and for how long the one that worked last has done nothing."""

    ranks: tuple[int, ...]
    since_ns: int


def find_idle(trace: Trace) -> Idle | None:
    """Return the ranks of a job in which every rank stands still at the end of the records; None if one works."""
    ranks = trace.ranks.tolist()
    if not ranks:
        return None
    end = newest_ns(trace)
    last = max(_last_ns(trace, rank) for rank in ranks)
    since = end - last
    if last < 0 or since < long_ns(trace) or any(still_works(trace, rank, since) for rank in ranks):
        return None
    return Idle(tuple(ranks), since)


def _last_ns(trace: Trace, rank: int) -> int:
    thread = step_track(trace, rank)
    return last_work_ns(trace, thread[1]) if thread is not None else -1


def long_ns(trace: Trace) -> int:
    """Return how long nothing may end before that is more than a long step."""
    table = steps_if_any(trace)
    if table is None or not len(table):
        return POLICY.idle_without_steps_ns
    longest = int((table["end_ns"] - table["begin_ns"]).max())
    return max(POLICY.idle_ns, POLICY.idle_longest_steps_count * longest)
