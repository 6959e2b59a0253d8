"""Templates of evidence: one for each code of ``finding_evidence``."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import re
from collections.abc import Callable

from stashtrace.analysis.findings.unexplained_time import CALL_OF_WAIT
from stashtrace.summary.words.change_templates import behind_it
from stashtrace.summary.words.on_file import doing, is_path
from stashtrace.summary.words.spikes import behind_slow, beside_slow, made_by_worker, waited_for_slow
from stashtrace.summary.words.template_parts import (
    Finding,
    Row,
    all_or_part,
    between_bounds,
    ranks_named,
    record_more,
)
from stashtrace.text import count_noun
from stashtrace.units import (
    bytes_text,
    duration_text,
    few_ranks,
    filled,
    is_several,
    number,
    operation,
    path_text,
    percent_text,
    shortened,
)

_NAME_WIDTH = 40
_ALL_RATIO = 0.95
#: A reason that is this part of a wait is not said to be a part of it, and in a headline no waiting is.
NEARLY_ALL_RATIO = 0.9
#: Workers differ if the mean batch of one takes this many times as long as that of another.
_UNEVEN_RATIO = 1.5
#: How a sentence about a wait in a collective begins; a list of several leaves it out (``words.wait_text``).
COSTLIEST = "the costliest wait: "
#: Kind of blocking call -> what follows "5 ms of it"; the same for parts of the time that a batch takes.
BLOCKED_WORDS = {
    "asleep": "asleep (time.sleep, usleep or the like)",
    "gil": "waiting for the GIL, which another thread holds",
    "join": "waiting for a thread or a process to end (join, waitpid)",
    "poll": "in poll, select or epoll, as for a socket or a pipe",
    "lock": "waiting for a lock, a condition or a semaphore",
    "file": "in calls on files",
    "socket": "in calls of sockets (recv, send, connect)",
    "pipe": "in calls of pipes",
    "io": "in calls of devices",
    "cpu": "waiting for a CPU",
}
#: Call that blocks -> who ends the wait; empty where nobody in particular does.
_ENDS_IT = {
    "gil": "Python code of another thread runs meanwhile; in a process of its own it would not block this one",
    "join": "",
    "poll": "",
    "lock": "another thread of its process holds it or is to signal it",
    "socket": "the process at the other end of the connection keeps it waiting",
    "pipe": "the process at the other end of the pipe keeps it waiting",
    "io": "",
    "cpu": "",
}
PART_WORDS = {
    "cpu": "on the CPU (decoding, transforming, collating)",
    "queue": "waiting for a CPU",
    "storage": "blocked in storage",
    "network": "waiting for data from a socket",
    "asleep": "asleep (time.sleep, usleep or the like)",
    "page_faults": "waiting for page faults from storage",
    "gil": "waiting for the GIL, which another thread holds",
    "blocked": "blocked (a lock, a pipe, another thread)",
    "unknown": "off the CPU for no recorded reason",
}


def _blocked_in(row: Row, f: Finding) -> str:
    """Say where the thread was blocked; where the claim says so already, only what would help."""
    kind = row["kind"]
    shown = [] if f.first("spent_in") or kind == "gil" else ["the timeline shows where"]
    if f.row["cause_kind"].removesuffix("_partly") != kind:
        most = _part(row["amount_ns"] / max(f.row["stall_ns"], 1))
        return "; ".join([f"{most} of it {BLOCKED_WORDS[kind]}", *shown])
    return "; ".join([text for text in (_ENDS_IT[kind], *shown) if text]) if kind in _ENDS_IT else ""


def _why_no_line(row: Row, f: Finding) -> str:
    """Say why no line is named of a time, and what would name it."""
    count = max(row["items_count"], 0)
    few = f"{count_noun(count, 'sample')} of its stack in this time" if count else "no sample of its stack in this time"
    why = {
        "few_samples": f"{few}, too few to name a line" if count else few,
        "spread": f"{few}, spread over many lines",
        "not_watched": "its step thread is none of those whose stacks were sampled",
        "not_read": "its stacks could not be read here",
    }
    return why.get(row["kind"]) or record_more(f, "function")


def _host_unknown(row: Row, f: Finding) -> str:
    why = f": {_why_no_line(row, f)}" if f.first("of_another_tool") is None else ""
    return f"what the host does then is not in the recording{why}"


def _unknown_block(row: Row, f: Finding) -> str:
    where = "" if f.first("spent_in") else "; the timeline shows where"
    return (
        f"no recorded blocking call covers most of it; a lock, a socket or a subprocess can still be the cause{where}"
    )


def _longer_in(row: Row, f: Finding) -> str:
    return f"it spends {between_bounds(row)} a step longer in {row['name']}"


def _python_collects(row: Row, f: Finding) -> str:
    if row["part_ratio"] >= 0.5 and not f.row["call"]:
        return ""  # the claim says it
    return f"{duration_text(row['amount_ns'])} a step of it is garbage collection"


def _epochs(row: Row, f: Finding) -> str:
    times = {1: "once", 2: "twice"}.get(row["items_count"], f"{row['items_count']} times")
    each = duration_text(row["amount_ns"]) + (" each" if row["items_count"] > 1 else "")
    workers = (f.first("epochs_workers") or {"items_count": 1})["items_count"]
    restarted = "its worker" if workers == 1 else f"its {workers} workers"
    why = (
        f"to start {restarted} again and make a first batch; persistent_workers=True keeps them"
        if row["code"] == "epochs_start_workers"
        else "for a first batch that no worker had made ahead"
    )
    steps = count_noun(row["of_count"], "step")
    return f"{_part(row['part_ratio'])} of that lies between epochs: {times} in {steps}, {each}, {why}"


def _sampler_time(row: Row, f: Finding) -> str:
    times = {1: "once", 2: "twice"}.get(row["items_count"], f"{row['items_count']} times")
    each = duration_text(row["amount_ns"]) + (" each" if row["items_count"] > 1 else "")
    return (
        f"{_part(row['part_ratio'])} of that is {row['name']}, which says which samples are next: {times} in"
        f" {count_noun(row['of_count'], 'step')}, {each}, before a batch can be made"
    )


def _dead_connection(row: Row, f: Finding) -> str:
    often = f"{count_noun(row['items_count'], 'time')} in {count_noun(row['of_count'], 'step')}"
    answer = (
        "which is refused or not answered" if row["kind"] == "refused" else "and nothing comes over these connections"
    )
    return f"rank {row['rank']} connects to {row['name']} {often}, {answer}: a retry may be what it waits in"


def _part(ratio: float) -> str:
    return "all" if ratio > 0.995 else percent_text(ratio)


def _batch_time(row: Row, f: Finding) -> str:
    several = f" (a step uses {row['part_ratio']:.3g} batches)" if row["part_ratio"] > 0 else ""
    whose = _whose(f)
    length = duration_text(row["amount_ns"])
    if row["items_count"] > 1 and row["high_ns"] > _UNEVEN_RATIO * row["low_ns"] > 0:
        low, high = duration_text(row["low_ns"]), duration_text(row["high_ns"])
        uneven = f"its {row['items_count']} workers take {low} to {high} to make a batch{several}"
        head = f"{whose}{uneven}, worker {row['worker_id']} longest; the mean batch takes {length}"
    else:
        one = f"worker {row['worker_id']}" if f.first("workers_without_data") is not None else "its worker"
        who = {0: "the step thread (num_workers=0)", 1: one}.get(
            row["items_count"], f"each of its {row['items_count']} workers"
        )
        head = f"{whose}{who} takes {length} to make a batch{several}"
    parts = f.all("batch_part")
    if not parts:
        return head
    first = "all" if parts[0]["part_ratio"] > 0.995 else duration_text(parts[0]["amount_ns"])
    spent = [f"{first} of it {PART_WORDS[parts[0]['kind']]}"]
    spent += [f"{duration_text(part['amount_ns'])} {PART_WORDS[part['kind']]}" for part in parts[1:]]
    return f"{head}: {', '.join(spent)}"


def _whose(f: Finding) -> str:
    """Say whose batches these are, where a claim is about several ranks: only those of one were looked at."""
    return f"on rank {f.row['rank']}, " if f.row.get("items_count", 1) > 1 else ""


def _of_one(words: Callable[[Row, Finding], str]) -> Callable[[Row, Finding], str]:
    return lambda row, f: _whose(f) + words(row, f)


def _file_time(row: Row, f: Finding) -> str:
    return f"{duration_text(row['amount_ns'])} a step in {row['kind']}() of {path_text(row['name'])}"


def _blocked_reads(row: Row, f: Finding) -> str:
    name = os.path.basename(row["name"]) or "a file without a name"
    where = f"mostly from {name}" if row["part_ratio"] > 0.5 else f"over {row['items_count']} files"
    typical = duration_text(row["amount_ns"])
    if row["rate_bytes_per_s"] < 0:
        return f"blocked reads, {where}, take {typical} on average"
    rate = bytes_text(row["rate_bytes_per_s"])
    return f"blocked reads moved {rate}/s, {where}; one takes {typical} on average"


def _handoff_starved(row: Row, f: Finding) -> str:
    part, whole = duration_text(row["amount_ns"]), duration_text(row["high_ns"])
    return f"the hand-off waits for a CPU, as the workers do: {part} of the {whole} that a batch takes"


def _fewer_batches(row: Row, f: Finding) -> str:
    often = f", {row['part_ratio']:.3g} times a step" if row["part_ratio"] > 1.05 else ""
    return (
        f"making a batch takes {duration_text(row['low_ns'])}, its hand-off {duration_text(row['amount_ns'])}{often}:"
        " larger batches help where they are small, and less to pickle where they hold many Python objects"
    )


def _copies(row: Row, f: Finding) -> str:
    advice = (
        ": pin_memory=True in the DataLoader or tensor.pin_memory() would pin them" if row["kind"] == "pageable" else ""
    )
    return (
        f"{row['kind']} copies: {number(row['part_ratio'])} a step, {bytes_text(row['moved_bytes'])} at"
        f" {bytes_text(row['rate_bytes_per_s'])}/s{advice}"
    )


#: What is behind a call, by the end of its name without underscores; the first that fits decides.
_BEHIND_CALLS = {
    "beforeunmapmemory": " (the wait of an allocator, as torch's expandable segments shrink)",
    "unmapmemory": " (as torch's expandable segments shrink)",
    "mapmemory": " (as torch's expandable segments grow)",
    "streamsynchronize": " (also .item() and .cpu())",
}


def _blocking_call(row: Row, f: Finding) -> str:
    where = row["name"] or "an unnamed thread"
    name = row["kind"]
    plain = re.sub("[_ ]", "", name.lower())
    item = next((words for end, words in _BEHIND_CALLS.items() if plain.endswith(end)), "")
    often, length = f"{number(row['part_ratio'])} a step", duration_text(row["amount_ns"])
    if row["code"] == "draining_call":
        return f"{name}{item} on {where}: {often}; the device runs out of work in them, for {length} a step"
    return f"{name}{item} on {where}: {often}, during {length} of that"


def _calls_of_others(row: Row, f: Finding) -> str:
    whose = f"rank {row['rank']} makes" if row["rank"] >= 0 else "the other ranks make"
    return f"{whose} {number(row['part_ratio'])} of these calls a step"


#: Kind of work, any of ``WORK_NAMES`` -> what a late rank did longer.
LATE_WORK = {
    "compute": "computed",
    "data": "waited for batches",
    "link": "was in transfers",
    "late": "waited for other ranks",
    "copy": "waited for copies between host and device",
    "save": "saved or loaded checkpoints",
    "host": "had its device idle because of its host",
    "sleep": "slept",
    "gc": "collected garbage",
    "compile": "was in torch.compile",
    "cpu_contention": "waited for a CPU",
    "other": "was blocked",
    "python": "ran code of the loop",
    "reads": "was blocked in reads of files",
    "unrecorded": "was without records",
}
#: Cause, any that ``late`` gives -> what the late rank did; ``{ns}`` is by how much longer than the others.
LATE_WORDS = {
    "prep": "{who} took {ns} longer to make its batch",
    "handoff": "its batch was handed over {ns} later",
    "fetch": "{who} was blocked in storage {ns} longer",
    "compute": "it computed {ns} longer",
    "gc": "it collected garbage {ns} longer",
    "compile": "it was in torch.compile {ns} longer",
    "sleep": "it slept {ns} longer",
    "cpu_contention": "it waited {ns} longer for a CPU",
    "checkpoint": "it was {ns} longer in checkpoints",
    "h2d": "copies between host and device took it {ns} longer",
    "sync": "its device was out of work {ns} longer after blocking calls",
    "launch": "its device waited {ns} longer for its host to launch",
    "python": "it ran code of the loop {ns} longer",
    "straggler": "it waited {ns} longer for others itself",
    "network": "its transfers between hosts took {ns} longer",
    "interconnect": "its transfers inside the host took {ns} longer",
    "before": "it began {ns} later; the cause lies before that",
    "other": "it was blocked {ns} longer with no known cause",
    "unrecorded": "nothing was recorded of it for {ns} longer",
}


def _blocked_words(name: str) -> str:
    """Say in which call a thread was blocked: ``waiting for a lock, ...`` or ``in recv()``."""
    call = CALL_OF_WAIT.get(name, "")
    return BLOCKED_WORDS[call] if call else f"in {name}()"


def _late_root(row: Row, f: Finding) -> str:
    """Say which part of the waiting ends at a rank, and what that did longer before it."""
    did = [e for e in f.all("late_work") if e["rank"] == row["rank"]]
    parts = [f"{LATE_WORK[e['kind']]} longer ({all_or_part(e['part_ratio'])} of that)" for e in did]
    why = f": it {', '.join(parts)}" if parts else ""
    return f"rank {row['rank']} makes {all_or_part(row['part_ratio'])} of the waiting{why}"


def _bubble(row: Row, f: Finding) -> str:
    stages, batches = count_noun(row["items_count"], "stage"), count_noun(row["of_count"], "micro-batch")
    of = f"a pipeline of {stages} with {batches} a step" if row["of_count"] > 0 else f"a pipeline of {stages} or more"
    return (
        f"{of} has a bubble of about {duration_text(row['amount_ns'])} a step ({percent_text(row['part_ratio'])}) on"
        " each rank even if all stages take as long; more micro-batches make it shorter"
    )


def _worst_wait(row: Row, f: Finding) -> str:
    where = f"in {operation(row['kind'])} {row['items_count']}"
    waiting = few_ranks(row["name"])
    if row["code"].startswith("hung"):
        hanging = f"{COSTLIEST}{ranks_named(waiting, ('hangs', 'hang'))} {where}"
        if row["code"] == "hung_wait":
            return f"{hanging}, which rank {row['rank']} never entered"
        return f"{hanging}; ranks that left no record here may never have entered it"
    length = f"{'up to ' if is_several(row['name']) else ''}{duration_text(row['amount_ns'])}"
    waited = f"{COSTLIEST}{ranks_named(waiting, ('waited', 'waited'))} {length} {where}"
    if row["code"] == "worst_wait_unknown":
        return f"{waited}; the clocks cannot tell for whom"
    return f"{waited}; rank {row['rank']} was late"


def _late_because(row: Row, f: Finding) -> str:
    """Say why the rank was late, with the worker and file, kernel or phase where they are known."""
    kind, worker, name = row["kind"], row["worker_id"], shortened(row["name"], _NAME_WIDTH)
    who = f"its worker {worker}" if worker >= 0 else "it"
    if kind == "fetch" and row["name"]:
        spent = f"{who} spent {duration_text(row['low_ns'])} reading {os.path.basename(row['name'])}"
        return spent + _of_wait(row["low_ns"], f)
    if kind in ("other", "python") and is_path(row["name"]):
        return f"{who} spent {duration_text(row['low_ns'])} {doing('calls', row['name'])}" + _of_wait(row["low_ns"], f)
    part = "" if kind == "before" else _of_wait(row["amount_ns"], f)  # that is no reason yet
    words = LATE_WORDS[kind]
    if kind == "other" and name:
        words = "it was blocked {ns} longer " + _blocked_words(name)
    text = words.format(ns=duration_text(row["amount_ns"]), who=who)
    if is_several((f.first("worst_wait") or {"name": ""})["name"]):
        text = re.sub(r" (longer|later)\b", r" \1 than the median of the others", text, count=1)
    if not name or kind == "other":
        return text + part
    if kind == "compute":
        place = "outside forward, backward and optimizer" if name.startswith("between") else f"in {name}"
        # Clocks of kernels and of kinds round differently.
        whole = row["low_ns"] >= _ALL_RATIO * row["amount_ns"]
        return f"{text} {place}{part}" if whole else f"{text}{part}, {duration_text(row['low_ns'])} of that {place}"
    if kind == "checkpoint":
        return f"{text}{part} ({os.path.basename(row['name'])})"
    if kind == "launch":
        return text.replace("for its host to launch", f"for its host, which was in {name}") + part
    if kind == "straggler":
        return text.replace("others itself", f"{name} in another group") + part
    return f"{text}{part} ({name})"


def _of_wait(said_ns: float, f: Finding) -> str:
    """Say which part of the wait a reason is, if it is not all of it."""
    wait = f.first("worst_wait")
    if wait is None or said_ns >= NEARLY_ALL_RATIO * wait["amount_ns"]:
        return ""
    which = "the longest of these waits" if is_several(wait["name"]) else "that wait"
    return f" ({percent_text(said_ns / wait['amount_ns'])} of {which})"


def _bus_bandwidth(row: Row, f: Finding) -> str:
    reached = bytes_text(row["rate_bytes_per_s"])
    least = "" if f.first("all_arrived") is not None else "at least "
    line = f"{operation(row['name'])} reached {least}{reached}/s of bus bandwidth over {row['items_count']} transfers"
    if row["part_ratio"] >= 0:
        line += f", {percent_text(row['part_ratio'])} of what this link can do by its calibration"
    return line


def _payload(row: Row, f: Finding) -> str:
    operations = count_noun(max(round(row["part_ratio"]), 1), "operation")
    return f"{operations} with {bytes_text(row['moved_bytes'])} of payload a step"


def _epochs_workers_end(row: Row, f: Finding) -> str:
    of = f"{duration_text(row['amount_ns'])} of {'each' if row['items_count'] > 1 else 'it'}"
    return f"{of} was spent waiting for the workers of the epoch before to end"


def _checkpoints(row: Row, f: Finding) -> str:
    count = f"{count_noun(row['items_count'], 'checkpoint')} {row['kind']}".strip()
    after = f", and {duration_text(row['low_ns'])} each in other calls on their files" if row["low_ns"] > 0 else ""
    return f"{count} in these steps, {duration_text(row['amount_ns'])} on average{after}"


#: Code of evidence that continues the sentence before it -> what joins them; all others begin a sentence.
JOINERS = {"compile_reason": ": ", "late_because": ": ", "late_why_unknown": "; ", "late_mixed": ": "}


def _filled(template: str) -> Callable[[Row, Finding], str]:
    return lambda row, f: filled(template, row)


#: Code of evidence -> its words.
EVIDENCE: dict[str, Callable[[Row, Finding], str]] = {
    "epochs_start_workers": _of_one(_epochs),
    "epochs_first_batch": _of_one(_epochs),
    "dead_connection": _dead_connection,
    "sampler_time": _of_one(_sampler_time),
    "epochs_workers_end": _epochs_workers_end,
    "makers_not_recorded": _filled(
        "who made the batches is not in the recording: reading, decoding and hand-off cannot be told apart"
    ),
    "step_thread_not_recorded": _filled(
        "the step thread makes the batches itself (num_workers=0): this recording cannot tell reading from decoding;"
        " a few workers might hide both"
    ),
    "makers_left_no_records": _filled("its workers left no records of their own"),
    "handed_over": _of_one(
        lambda row, f: (
            f"{_part(row['part_ratio'])} of that is hand-off of batches that were ready (queue, unpickling, pinning)"
        )
    ),
    "workers_without_data": _of_one(
        lambda row, f: (
            f"{row['items_count']} of its {row['of_count']} workers made no batch ({row['name']}): their part of the"
            " dataset is empty, as with fewer shards than workers"
        )
    ),
    "batch_time": _batch_time,
    "batch_spread": _of_one(
        _filled("half of the batches take {amount_ns:time} or less, the longest takes {high_ns:time}")
    ),
    "blocked_by_guess": _filled(
        "storage and memory are told apart by how long calls took, so part of one may be the other"
    ),
    "blocked_reads": _of_one(_blocked_reads),
    "page_faults": _of_one(
        _filled(
            "{part_ratio:number} page faults per batch waited for storage; reads of a memory-mapped file look like this"
        )
    ),
    "handoff_starved": _of_one(_handoff_starved),
    "transfers_share_cpus": _filled(
        "the threads that move messages wait for a CPU as the step threads do (see CPU contention): part of it is that"
    ),
    "fewer_larger_batches": _of_one(_fewer_batches),
    "copies": _copies,
    "blocking_call": _blocking_call,
    "draining_call": _blocking_call,
    "calls_of_others": _calls_of_others,
    "host_in_phase": _filled("{amount_ns:time} a step of it in the {kind}"),
    "host_unknown": _host_unknown,
    "not_explained": _filled("not explained by what was recorded: no call covers it"),
    "host_function": lambda row, f: filled(
        "functions on the host: {part_ratio:number} a step on {stream}, taking {amount_ns:time}",
        {**row, "stream": row["name"] or "an unnamed stream"},
    ),
    "host_lead": _filled(
        "the host leads its device by {amount_ns:time} in the median of {items_count} events; near 0 it starves the"
        " device"
    ),
    "late_root": _late_root,
    "late_work": lambda row, f: "",  # late_root says it
    "bubble": _bubble,
    "worst_wait": _worst_wait,
    "worst_wait_unknown": _worst_wait,
    "hung_wait": _worst_wait,
    "hung_wait_unknown": _worst_wait,
    "late_because": _late_because,
    "late_mixed": _filled("several kinds of its time differ from those of the others"),
    "late_why_unknown": _filled("the recording does not show why"),
    "payload": _payload,
    "bus_bandwidth": _bus_bandwidth,
    "checkpoints": _checkpoints,
    "blocked_in": _blocked_in,
    "nothing_recorded": _filled("nothing was recorded in that time"),
    "unknown_block": _unknown_block,
    "file_time": _file_time,
    "on_file": lambda row, f: (
        f"{'the file is' if row['items_count'] == 1 else 'most of it on'} {path_text(row['name'])}"
    ),
    "spent_in": _of_one(lambda row, f: f"{between_bounds(row)} a step in {row['name']}"),
    "longer_in": _longer_in,
    "late_made_longer": lambda row, f: (
        f"the workers of rank {row['rank']} spend {between_bounds(row)} a batch longer in {row['name']}"
    ),
    "late_made_in": lambda row, f: (
        f"the workers of rank {row['rank']} spend {between_bounds(row)} a batch in {row['name']}"
    ),
    "slow_in": lambda row, f: f"{between_bounds(row)} of that in {row['name']}",
    "made_in": _of_one(lambda row, f: f"its workers spend {between_bounds(row)} a batch in {row['name']}"),
    "python_in": _filled("{amount_ns:time} a step in {name}"),
    "python_collects": _python_collects,
    "python_unknown": lambda row, f: f"Python, or operators that no module calls: {_why_no_line(row, f)}",
    "no_operator": _filled(
        "record_function() around parts of the loop, or with_stack=True in torch.profiler, would name the function"
    ),
    "before_first": _filled(
        "{amount_ns:time} a step lie before the first work of a device in the file: what ran there before the recording"
        " began is not in it"
    ),
    "launched_before": _filled(
        "for {amount_ns:time} a step the next work had been launched and did not begin: it waited for another stream or"
        " device, or for work that is not in the recording"
    ),
    "work_not_read": _filled("the recording of rank {rank} lacks or hides work of a device: {name}"),
    "behind_it": behind_it,
    "behind_slow": behind_slow,
    "beside_slow": beside_slow,
    "made_by_worker": made_by_worker,
    "waited_for_slow": waited_for_slow,
}
