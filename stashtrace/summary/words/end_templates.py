"""Templates of how a job ended: what it failed of, where it stood still, and what its ranks did last."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import signal
from collections.abc import Callable

from stashtrace.analysis.findings.ending.end_claims import FAILED_FIRST
from stashtrace.analysis.findings.ending.looked import ENDED, RUNS, STOPPED, SYSTEM, UNKNOWN, split_name
from stashtrace.record.look.progress import DEVICE_RUNS, ENTERED, OTHERS_RUN, STANDS_STILL
from stashtrace.schema.kinds import ElementType
from stashtrace.summary.words.template_parts import (
    Finding,
    Row,
    last_called,
    not_entered,
    ranks_named,
    waiting_inside,
)
from stashtrace.text import count_noun
from stashtrace.units import bytes_text, duration_text, operation, percent_text, shortened

#: From this share of the time on a thread ran all the time; up to the other it did not run.
_ALL_THE_TIME, _NEVER = 0.9, STANDS_STILL
_PATH_WIDTH = 60


def _who(row: Row) -> str:
    who = f"rank {row['rank']}" if row["rank"] >= 0 else "a process without a rank"
    return f"worker {row['worker_id']} of {who}" if row["worker_id"] >= 0 else who


def _how(code: str, name: str, exit_code: int) -> str:
    if code == "raised":
        return f"raised {name}"
    if code == "ended_by":
        return f"killed by {name}"
    return f"left with exit code {exit_code}"


def _first(f: Finding) -> str:
    """Say which rank failed first, and how; empty if that is not recorded."""
    row = next((e for e in f.evidence if e["code"] in FAILED_FIRST), None)
    if row is None:
        return ""
    if row["code"] == "gone_first":
        return _gone_first(row)
    how = _how(row["code"], row["name"], row["of_count"])
    was = "was " if row["code"] == "ended_by" else ""
    steps = f" after {count_noun(row['items_count'], 'step')}" if row["items_count"] >= 0 else ""
    memory = "; the kernel ended a process for want of memory meanwhile" if row["kind"] == "kernel" else ""
    return f"{_who(row)} {was}{how}{steps}{memory}"


def _gone_first(row: Row) -> str:
    """Say whose records end before another rank failed."""
    steps = f"after {count_noun(row['items_count'], 'step')}, " if row["items_count"] >= 0 else ""
    before = f"{steps}{duration_text(row['amount_ns'])} before another rank failed"
    return f"the records of rank {row['rank']} end first, {before}; how it ended is not in the recording"


def memory_kills_text(count: int, limit_bytes: float) -> str:
    """Say how many processes the kernel ended for want of memory, and by which limit."""
    ended = f"the kernel ended {count_noun(count, 'process')} of the job's cgroup"
    if limit_bytes > 0:
        return f"{ended}, whose memory limit of {bytes_text(limit_bytes)} was reached"
    return f"{ended} for want of memory"


def _starved(f: Finding) -> str:
    row = f.first("memory_kills")
    return f"; {memory_kills_text(row['items_count'], row['moved_bytes'])}" if row is not None else ""


def _ended(head: Callable[[str], str]) -> Callable[[Finding], str]:
    def words(f: Finding) -> str:
        first = _first(f)
        return (f"{head(f.row['name'])}: {first}" if first else head(f.row["name"])) + _starved(f)

    return words


def _with_code(f: Finding) -> str:
    """Say with which code the job ended; that of a launcher need not be that of a rank."""
    launcher, first = f.first("launched_by"), _first(f)
    who = launcher["name"] if launcher is not None else "the job"
    if launcher is not None and not first:
        return f"{who} ended with exit code {f.row['name']}; how its ranks ended is not in the recording{_starved(f)}"
    return f"{who} ended with exit code {f.row['name']}{f': {first}' if first else ''}{_starved(f)}"


def _signal(number: str) -> str:
    try:
        name = f" ({signal.Signals(int(number)).name})"
    except ValueError:
        name = ""
    return f"the job was ended by signal {number}{name}; a step that it did not finish is not counted"


def _hung(f: Finding) -> str:
    """Say where a job stood still; while it lives, only for how long nobody has gone on."""
    row = f.row
    if row["name"] == "gone":
        how = next((e for e in f.evidence if e["code"] in FAILED_FIRST), None)
        if how is not None:
            was = "was " if how["code"] == "ended_by" else ""
            return f"{_lacking(f)}: it {was}{_how(how['code'], how['name'], how['of_count'])}"
        seen = any(e["kind"] == ENDED for e in f.all("look_thread"))
        return f"{_lacking(f)}: its process {'has ended' if seen else 'ended before the others, or was stopped'}"
    lives = f.first("lives") is not None
    head = "no progress" if lives else "the job hung"
    if lives and row["stall_ns"] >= 0:
        head += f" for {duration_text(row['stall_ns'])}"
    if row["name"] == "still":
        return f"{head}: {ranks_named(row['ranks'], ('gets', 'get'))} on with nothing, and no rank waits for another"
    if row["name"] == "circle":
        return f"{head}: ranks {row['ranks']} wait for each other"
    if row["name"] == "unseen":
        who = ranks_named(row["ranks"], ("waits", "wait"))
        return f"{head}: {who} in {_operation(f)}, and no rank of which there are records is missing from it"
    if row["name"] == "inside":
        return f"{head}{':' if lives else ''} inside {_operation(f)}: its members have entered it and none has left it"
    return f"{head}: {_lacking(f)}"


def _operation(f: Finding) -> str:
    group = f.first("hung_bytes") or {"name": ""}
    return f"{operation(f.row['call'])} {f.row['items_count']} of {group['name'] or 'a group without a name'}"


def _lacking(f: Finding) -> str:
    """Say what the ranks that everybody waits for have not done."""
    row, group = f.row, f.first("hung_bytes") or {"moved_bytes": 0, "name": ""}
    if row["cause_kind"] == "not_finished" and row["name"] != "gone":
        whose = "the devices of ranks" if "," in row["ranks"] or "-" in row["ranks"] else "the device of rank"
        verb = "have" if whose.endswith("ranks") else "has"
        return f"{whose} {row['ranks']} {verb} not finished {_operation(f)}, which other members have finished"
    if row["items_count"] < 0 and row["name"] != "gone":
        inside = f.first("hung_inside")
        waiter = f"rank {inside['name']}" if inside is not None else "another rank"
        lacks = "sent what {} waits to receive" if row["call"] == "receive" else "received what {} sends"
        name = group["name"] or "a group without a name"
        return f"{ranks_named(row['ranks'], ('has', 'have'))} not {lacks.format(waiter)} ({name})"
    return not_entered(row["ranks"], row["call"], row["items_count"], group["name"], group["moved_bytes"])


#: How a rank that others wait for is still at work.
_STILL = {
    ENTERED: ("it has gone on since", "they have gone on since"),
    OTHERS_RUN: ("a child or another thread of it still runs", "children or other threads of them still run"),
    DEVICE_RUNS: ("its device still computes", "their devices still compute"),
    "records": ("its records go on", "their records go on"),
    "moves": ("it still reads or writes files", "they still read or write files"),
    "runs": ("its thread still runs", "their threads still run"),
}


def _awaited(f: Finding) -> str:
    """Say that others wait for ranks which still work: the job does not hang."""
    ways = f.all("still_works")
    alike = len({way["kind"] for way in ways}) == 1
    still = _STILL[ways[0]["kind"]][len(ways) > 1] if alike else "they still work"
    return f"{_lacking(f)}, but {still}"


def _mismatch(f: Finding) -> str:
    number = f"{f.row['items_count']} of {f.row['name'] or 'a group without a name'}"
    calls = f.all("called")
    kinds = {e["kind"] for e in calls}
    parts = []
    for e in calls:
        what = operation(e["kind"]) if len(kinds) > 1 else bytes_text(e["moved_bytes"])
        parts.append(f"{ranks_named(e['name'], ('called', 'called')) if len(kinds) > 1 else _ranks(e['name'])} {what}")
    if len(kinds) > 1:
        return f"mismatched collectives: as number {number}, {', while '.join(parts)}"
    call = operation(calls[0]["kind"])
    if any(e["of_count"] > 0 for e in calls):
        types = [f"{_ranks(e['name'])} {ElementType(e['of_count']).name.lower()}" for e in calls]
        return f"mismatched element types in {call} {number}: {', '.join(types)}"
    return f"mismatched message sizes in {call} {number}: {', '.join(parts)}"


def _ranks(text: str) -> str:
    return ranks_named(text, ("", "")).rstrip()


#: Kind of claim -> its words.
ENDINGS: dict[str, Callable[[Finding], str]] = {
    "failed": _first,
    "ended_by_signal": _ended(_signal),
    "ended_with_code": _with_code,
    "hung": _hung,
    "awaited": _awaited,
    "mismatch": _mismatch,
}


def _ended_after(row: Row, f: Finding) -> str:
    ranks, _, text = row["name"].partition(":")
    code = "raised" if text else "ended_by" if row["kind"] else "left_with"
    how = _how(code, text or row["kind"], row["of_count"])
    return f"then {ranks_named(ranks, ('was', 'were') if code == 'ended_by' else ('', '')).rstrip()} {how}"


def _waited_for_it(row: Row, f: Finding) -> str:
    ranks, _, group = row["name"].partition(":")
    number = f" {row['items_count']}" if row["items_count"] >= 0 else ""
    where = f"{operation(row['kind'])}{number} of {group or 'a group without a name'}"
    return f"{ranks_named(ranks, ('waited', 'waited'))} {duration_text(row['amount_ns'])} for it in {where}"


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
}


def _activity(kind: str, name: str = "") -> str:
    if kind == "annotation":
        return f"the annotation {name}"
    if kind in _ACTIVITIES:
        return _ACTIVITIES[kind]
    what = operation(kind)
    return f"{what} of {shortened(name, _PATH_WIDTH)}" if name else what


def _did_last(row: Row, f: Finding) -> str:
    what = _activity(row["kind"], row["name"])
    before = f", {duration_text(row['amount_ns'])} before the records end" if row["amount_ns"] > 0 else ""
    return f"the last thing that rank {row['rank']} finished is {what}{before}"


def _ran_since(row: Row, f: Finding) -> str:
    place = _at(split_name(row["name"])[1])
    if row["part_ratio"] >= _ALL_THE_TIME:
        what = "it computes, or loops" if place else "it computes, or loops, in code that is not recorded"
        return f"since then its thread has wanted a CPU all the time{place}: {what}"
    if row["part_ratio"] <= _NEVER:
        return f"since then its thread has not run{place}: it sleeps, or is inside a call that has not returned"
    share = percent_text(row["part_ratio"])
    return f"since then its thread has run, or waited for a CPU, for {share} of the time{place}"


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


def _where(call: str, target: str) -> str:
    of = "a pipe" if target.startswith("pipe:") else "a socket" if target.startswith("socket:") else ""
    of = of or (shortened(target, _PATH_WIDTH) if target else "a descriptor")
    if call == "wait" and target:
        return f"waiting for the child process {target} to end"
    return _CALLS.get(call, f"inside {call}() of {of}")


def _stands_in(row: Row, f: Finding) -> str:
    target, place = split_name(row["name"])
    return f"since then it is {_where(row['kind'], target)}{_at(place)}"


#: What a thread does that stands in no system call -> how that is said of it.
_NO_CALL = {
    ENDED: "has ended",
    STOPPED: "is stopped by a signal (SIGSTOP) or a debugger",
    SYSTEM: "waits in the kernel, and no signal wakes it",
    UNKNOWN: "does not run, and in which call it is was not seen",
}


def _state(row: Row) -> str:
    """Say what a thread was seen to do, and where in the code that is."""
    target, place = split_name(row["name"])
    if row["kind"] == RUNS:
        ran = f"{percent_text(row['part_ratio'])} of the {duration_text(row['amount_ns'])} in which it was watched"
        return f"ran for {ran}{_at(place)}: it computes, or loops"
    if row["kind"] in _NO_CALL:
        return f"{_NO_CALL[row['kind']]}{_at(place, ', last seen in' if row['kind'] == STOPPED else ', in')}"
    return f"is {_where(row['kind'], target)}{_at(place)}"


def _at(place: str, before: str = ", in") -> str:
    function, _, line = place.rpartition(" at ")
    file = shortened(line, _PATH_WIDTH)
    return f"{before} {function} ({file})" if function else f"{before} {file}" if file else ""


def _look_thread(row: Row, f: Finding) -> str:
    if row["kind"] == ENDED:
        return "" if f.row["name"] == "gone" else f"the process of rank {row['rank']} has ended"
    whose = "process" if row["kind"] == STOPPED else "step thread"
    return f"the {whose} of rank {row['rank']} {_state(row)}"


def _look_gil(row: Row, f: Finding) -> str:
    name, place = split_name(row["name"])
    call, _, target = row["kind"].partition(" ")
    does = f", which is {_where(call, target)}" if call else ""
    holder = f"thread {name}" if name else "another thread"
    return f"the GIL of rank {row['rank']} is held by {holder}{does}{_at(place)}"


def _look_worker(row: Row, f: Finding) -> str:
    return f"worker {row['worker_id']} of rank {row['rank']} {_state(row)}"


#: Code of evidence -> its words.
ENDING_EVIDENCE: dict[str, Callable[[Row, Finding], str]] = {
    "ended_after": _ended_after,
    "waited_for_it": _waited_for_it,
    "hung_inside": lambda row, f: waiting_inside(row["name"], row["amount_ns"]) if f.row["items_count"] >= 0 else "",
    "hung_through": lambda row, f: f"{ranks_named(row['name'], ('waits', 'wait'))} for ranks that wait for that",
    "hung_last": lambda row, f: last_called(row["rank"], row["items_count"]),
    "waits_in": lambda row, f: (
        f"rank {row['rank']} waits in {operation(row['kind'])} {row['items_count']} of {row['name']}"
        if row["items_count"] >= 0
        else f"rank {row['rank']} waits in a {operation(row['kind'])} of {row['name']}"
    ),
    "did_last": _did_last,
    "followed_by": lambda row, f: f"in the steps before, {_activity(row['kind'])} came next",
    "ran_since": _ran_since,
    "stands_in": _stands_in,
    "look_thread": _look_thread,
    "look_gil": _look_gil,
    "look_worker": _look_worker,
    "look_child": lambda row, f: (
        f"{'a child process' if row['items_count'] == 1 else str(row['items_count']) + ' child processes'} of rank"
        f" {row['rank']} {'has' if row['items_count'] == 1 else 'have'} ended, and nobody has waited for it"
        f" ({row['name']})"
    ),
    "look_unseen": lambda row, f: f"rank {row['rank']}: {row['name']}",
    "other_order": lambda row, f: (
        f"as number {row['items_count']} they call them the other way round: the order differs between ranks"
    ),
}
