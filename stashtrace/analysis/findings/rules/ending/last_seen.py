"""What a rank did last when its records end, and what it was seen to do since.

A call is recorded when it returns, so one that never did is not in the records. What is known then: what ended before
(``did_last``), what came next after that in the steps before (``followed_by``), and whether the thread has run since,
or waited for a CPU (``ran_since``). ``stands_in`` is the system call (``kind``) that its main thread is in.

A look at the living processes (``stashtrace live``, ``analyze hang``) adds what the step thread was seen to do
(``look_thread``: ``kind`` is a system call, ``runs``, ``stopped``, ``ended``, ``kernel`` or ``unknown``), who holds the
GIL, what workers do that do not simply wait for work, which children have ended, and what could not be looked at.
``target`` is a file, pipe, socket or child, ``place`` the function and line of the job's code.
"""

from __future__ import annotations

from stashtrace.analysis.findings.claim_rows import Evidence, Facts, fact
from stashtrace.analysis.findings.ending import last_activity, looked
from stashtrace.analysis.findings.ending.last_activity import newest_ns
from stashtrace.analysis.findings.ending.policy import POLICY
from stashtrace.record.peek.model import STANDS_STILL, Peek, ThreadPeek
from stashtrace.schema.trace import Trace
from stashtrace.text.units import operation, shortened

#: Kind of an activity -> what it is, and that it is done.
_ACTIVITIES = {
    "batch_wait": "a wait for a batch",
    "optimizer": "an optimizer step",
    "update_skipped": "a skipped update",
    "checkpoint": "a checkpoint",
    "checkpoint_load": "loading a checkpoint",
    "forward": "a forward",
    "backward": "a backward",
    "sleep": "a sleep",
    "gil": "a wait for the GIL",
    "join": "a wait for a thread to end",
    "annotation": "the annotation {name}",
}
#: System call -> where a thread is that stands in it.
_CALLS = {
    "sleep": "asleep (time.sleep, usleep or the like)",
    "futex": "waiting for a lock, a condition or another thread",
    "poll": "in poll, as for a socket or a pipe",
    "select": "in select, as for a socket or a pipe",
    "epoll": "in epoll, as for a socket or a pipe",
    "wait": "waiting for a child process to end",
    "open": "opening a file",
    "stat": "looking a file up",
    "rename": "renaming a file",
    "unlink": "removing a file",
    "sync": "in sync, until storage has taken all that was written",
}
#: What a thread does that stands in no system call -> how that is said of it.
_NO_CALL = {
    looked.ENDED: "has ended",
    looked.STOPPED: "is stopped by a signal (SIGSTOP) or a debugger",
    looked.SYSTEM: "waits in the kernel, and no signal wakes it",
    looked.UNKNOWN: "does not run, and in which call it is was not seen",
}


def doing(trace: Trace, rank: int) -> list[Evidence]:
    """Return evidence of what a rank was doing when its records end; empty if it left none but its operations."""
    return _by_records(trace, rank) + seen(trace, rank)


def _by_records(trace: Trace, rank: int) -> list[Evidence]:
    thread = last_activity.step_track(trace, rank)
    acts = last_activity.activities(trace, thread[1]) if thread is not None else []
    if thread is None or not acts:
        return []
    last = max(acts, key=lambda act: act.end_ns)
    ago = newest_ns(trace) - last.end_ns
    before = ", {amount_ns:time} before the records end" if ago > 0 else ""
    said = f"the last thing that rank {{rank}} finished is {_activity(last.kind, last.name)}{before}"
    facts = Facts(amount_ns=ago, kind=last.kind, name=last.name, short=shortened(last.name, POLICY.path_characters))
    rows = [fact("did_last", said, "phases", rank=rank, **facts)]
    if ago < POLICY.silence_ns:
        return rows
    follows = last_activity.what_follows(acts, last.kind)
    if follows:
        said = f"in the steps before, {_activity(follows)} came next"
        rows.append(fact("followed_by", said, "phases", rank=rank, kind=follows, name=""))
    ran = last_activity.ran_since(trace, *thread, last.end_ns)
    if ran is None or looked.was_seen(looked.peek_at_rank(trace, rank)):  # who looked knows better
        return rows
    share, window_ns = ran
    place = last_activity.place_since(trace, *thread, last.end_ns)
    facts, at = Facts(rank=rank, amount_ns=window_ns), _at(place)
    call, _, target = last_activity.stands_in(trace, thread[0]).partition(" ")
    if call and share <= STANDS_STILL:
        said = f"since then it is {_where(call, target)}{at}"
        return [*rows, fact("stands_in", said, "metadata", kind=call, **_spot(place, target), **facts)]
    if share >= POLICY.ran_always_ratio:
        what = "it computes, or loops" if at else "it computes, or loops, in code that is not recorded"
        said = f"since then its thread has wanted a CPU all the time{at}: {what}"
    elif share <= STANDS_STILL:
        said = f"since then its thread has not run{at}: it sleeps, or is inside a call that has not returned"
    else:
        said = f"since then its thread has run, or waited for a CPU, for {{part_ratio:percent}} of the time{at}"
    return [*rows, fact("ran_since", said, "counters", part_ratio=share, **_spot(place), **facts)]


def _activity(kind: str, name: str = "") -> str:
    return _ACTIVITIES.get(kind, operation(kind) + (" of {short}" if name else ""))


def _spot(place: str, target: str = "") -> Facts:
    """Return what a thread is in, and where in the code, as the templates below name it."""
    of = "a pipe" if target.startswith("pipe:") else "a socket" if target.startswith("socket:") else ""
    function, _, line = place.rpartition(" at ")
    what = of or (shortened(target, POLICY.path_characters) if target else "a descriptor")
    return Facts(target=target, what=what, place=place, function=function, file=shortened(line, POLICY.path_characters))


def _where(call: str, target: str) -> str:
    """Return the template that says where a thread is that stands in a system call."""
    if call == "wait" and target:
        return "waiting for the child process {target} to end"
    return _CALLS.get(call, f"inside {call}() of {{what}}")


def _at(place: str, before: str = ", in") -> str:
    """Return the template that says where in the code a thread is; empty if that is unknown."""
    return f"{before} {{function}} ({{file}})" if " at " in place else f"{before} {{file}}" if place else ""


def seen(trace: Trace, rank: int) -> list[Evidence]:
    """Return what a look saw of a rank: its step thread, the holder of its GIL, its workers, and what was not seen."""
    peek = looked.peek_at_rank(trace, rank)
    if peek is None:
        return []
    rows = []
    if looked.was_seen(peek):
        rows.append(_thread("look_thread", rank, peek))
        if peek.holder is not None:
            rows.append(_holder(rank, peek.holder))
        workers = looked.busy_workers(trace, rank)[: POLICY.named_count]
        rows += [_thread("look_worker", rank, worker, number) for number, worker in workers]
        if peek.ended_children:
            facts = Facts(items_count=len(peek.ended_children), name=", ".join(sorted(set(peek.ended_children))))
            who = "a child process" if facts["items_count"] == 1 else "{items_count} child processes"
            said = f"{who} of rank {{rank}} {{items_count:has|have}} ended, and nobody has waited for it ({{name}})"
            rows.append(fact("look_child", said, "metadata", rank=rank, **facts))
    return rows + [fact("look_unseen", "rank {rank}: {name}", "metadata", rank=rank, name=why) for why in peek.unseen]


def _thread(code: str, rank: int, peek: Peek, worker: int = -1) -> Evidence:
    """Return evidence of what a thread was seen to do, and where in the code that is."""
    kind, thread = looked.activity_of(peek), peek.thread or ThreadPeek(0, "")
    share = peek.thread_ran_ns / peek.window_ns if peek.thread_ran_ns >= 0 and peek.window_ns > 0 else -1.0
    whose = "the process of" if kind in (looked.ENDED, looked.STOPPED) else "the step thread of"
    place = "" if kind == looked.ENDED and worker < 0 else thread.place
    if kind == looked.RUNS:
        watched = "ran for {part_ratio:percent} of the {amount_ns:time} in which it was watched"
        does = f"{watched}{_at(place)}: it computes, or loops"
    elif kind in _NO_CALL:
        does = f"{_NO_CALL[kind]}{_at(place, ', last seen in' if kind == looked.STOPPED else ', in')}"
    else:
        does = f"is {_where(kind, thread.target)}{_at(place)}"
    said = f"{'worker {worker_id} of' if worker >= 0 else whose} rank {{rank}} {does}"
    facts = Facts(amount_ns=peek.window_ns, part_ratio=min(share, 1.0), kind=kind, **_spot(place, thread.target))
    return fact(code, said, "metadata", rank=rank, worker_id=worker, **facts)


def _holder(rank: int, holder: ThreadPeek) -> Evidence:
    who = "thread {name}" if holder.name else "another thread"
    does = f", which is {_where(holder.call, holder.target)}" if holder.call else ""
    said = f"the GIL of rank {{rank}} is held by {who}{does}{_at(holder.place)}"
    facts = Facts(rank=rank, kind=holder.call, name=holder.name, **_spot(holder.place, holder.target))
    return fact("look_gil", said, "metadata", **facts)
