"""Look at processes twice, a little apart: where each stands, and whether it got on in between."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from stashtrace.record.look.model import Look, ThreadLook
from stashtrace.record.look.proc import (
    Moment,
    ended_children,
    may_see_calls,
    outer_tid,
    read_moment,
    read_thread,
    receives,
    woken_count,
    writes_back,
)
from stashtrace.record.look.stacks import Stacks, read_stacks

#: Between both moments. A thread that computes, or moves bytes, shows it within this time.
WINDOW_S = 1.0
#: How it begins that a stack was not read; what follows says why.
STACK_NOT_READ = "its Python stack was not read"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A process to look at: its number on this host, and its thread as the process itself numbers it."""

    pid: int
    tid: int
    #: Whether its Python stacks are read.
    stacks: bool = True


@dataclass(frozen=True, slots=True)
class _First:
    at_ns: int
    moment: Moment | None
    thread: ThreadLook | None
    woken_count: int
    stacks: Stacks


def take_looks(wanted: Mapping[int, Wanted], window_s: float = WINDOW_S) -> dict[int, Look]:
    """Look at processes, all of them at nearly the same two moments; the keys are the caller's."""
    first = {key: _look_once(one) for key, one in wanted.items()}
    if first:
        time.sleep(window_s)
    return {key: _compare(wanted[key], before, _look_once(wanted[key])) for key, before in first.items()}


def _look_once(wanted: Wanted) -> _First:
    at_ns = time.monotonic_ns()
    moment, thread = read_moment(wanted.pid), read_thread(wanted.pid, wanted.tid)
    woken = woken_count(wanted.pid, wanted.tid)
    return _First(at_ns, moment, thread, woken, read_stacks(wanted.pid) if wanted.stacks and moment else Stacks({}))


def _compare(wanted: Wanted, before: _First, after: _First) -> Look:
    window_ns = after.at_ns - before.at_ns
    if before.moment is None or after.moment is None:
        return Look(wanted.pid, after.at_ns, window_ns, "")
    unseen = [f"{STACK_NOT_READ}: {after.stacks.unseen}"] if after.stacks.unseen else []
    if not may_see_calls(wanted.pid):
        unseen.append("its system calls are not shown to this user")
    thread = after.thread
    ran = others = -1
    if before.thread is not None and thread is not None and min(before.thread.run_ns, thread.run_ns) >= 0:
        ran = thread.run_ns - before.thread.run_ns
        others = max(after.moment.run_ns - before.moment.run_ns - ran, 0)
    if thread is not None:
        thread = _with_stack(thread, after.stacks, outer_tid(wanted.pid, wanted.tid))
    return Look(
        wanted.pid,
        after.at_ns,
        window_ns,
        after.moment.state,
        thread,
        _holder(wanted, before.stacks, after.stacks),
        ran,
        others,
        _moved(before, after),
        _woken(before, after),
        ended_children(wanted.pid),
        tuple(unseen),
    )


def _moved(before: _First, after: _First) -> int:
    """Return the bytes moved between both moments; in a wait for storage, what the host wrote back in that time."""
    first, second = before.moment, after.moment
    if first is None or second is None or min(first.moved_bytes, second.moved_bytes) < 0:
        return -1
    moved = second.moved_bytes - first.moved_bytes
    if all(once.thread is not None and writes_back(once.thread) for once in (before, after)):
        moved += max(second.written_back_bytes - first.written_back_bytes, 0)
    return moved


def _woken(before: _First, after: _First) -> int:
    """Return how often the thread was woken in between, if it received at one of both moments."""
    received = any(once.thread is not None and receives(once.thread) for once in (before, after))
    return after.woken_count - before.woken_count if received and before.woken_count >= 0 else -1


def _holder(wanted: Wanted, before: Stacks, after: Stacks) -> ThreadLook | None:
    """Return the thread that kept the GIL from the step thread at both moments."""
    first, second = before.holder(), after.holder()
    if first is None or second is None or first.tid != second.tid or second.tid == outer_tid(wanted.pid, wanted.tid):
        return None
    thread = read_thread(wanted.pid, second.tid)
    return None if thread is None else _with_stack(thread, after, second.tid)


def _with_stack(thread: ThreadLook, stacks: Stacks, tid: int) -> ThreadLook:
    stack = stacks.by_thread.get(tid)
    return thread if stack is None else replace(thread, name=stack.name or thread.name, frames=stack.frames)
