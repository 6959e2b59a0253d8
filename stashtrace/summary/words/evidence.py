"""Templates of evidence: one for each code of ``finding_evidence``."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import re
from collections.abc import Callable

from stashtrace.summary.words.parts import (
    Finding,
    Row,
    counted,
    few_ranks,
    filled,
    last_called,
    number,
    operation,
    ranks_named,
    waiting_inside,
)
from stashtrace.units import bytes_text, duration_text, percent_text, shortened

_NAME_WIDTH = 40
#: Paths are cut in their middle to fit into a line of the summary with what is said of them.
_PATH_WIDTH = 48
_ALL_RATIO = 0.95
#: Workers differ if the mean batch of one takes this many times as long as that of another.
_UNEVEN_RATIO = 1.5
#: Other programs are named from this part of the CPUs on.
_OTHERS_TOLD = 0.05
#: How a sentence about a wait in a collective begins; a list of several leaves it out (``words.wait_text``).
COSTLIEST = "the costliest wait: "
#: Kind of blocking call -> what follows "5 ms of it"; the same for parts of the time that a batch takes.
BLOCKED_WORDS = {
    "asleep": "asleep (time.sleep, usleep or the like)",
    "gil": "waiting for the GIL",
    "join": "waiting for a thread or a process to end (join, waitpid)",
    "poll": "in poll, select or epoll, as for a socket or a pipe",
    "lock": "waiting for a lock, a condition or a semaphore",
    "io": "in calls of pipes, sockets or devices",
}
_PART_WORDS = {
    "cpu": "on the CPU (decoding, transforming, collating)",
    "queue": "waiting for a CPU",
    "storage": "blocked in storage",
    "network": "waiting for the network",
    "asleep": "asleep (time.sleep, usleep or the like)",
    "page_faults": "waiting for page faults from storage",
    "gil": "waiting for the GIL, which another thread holds",
    "blocked": "blocked (a lock, a pipe, another thread)",
    "unknown": "off the CPU for no recorded reason",
}


def _blocked_in(row: Row, f: Finding) -> str:
    """Say where the thread was blocked; where the claim says so already, only what would help."""
    if f.row["cause_kind"].startswith("asleep"):
        return ""
    if f.row["cause_kind"].startswith("gil"):
        return "Python code of another thread runs meanwhile; in a process of its own it would not block this one"
    most = _part(row["amount_ns"] / max(f.row["stall_ns"], 1))
    return f"{most} of it {BLOCKED_WORDS[row['kind']]}; the timeline shows where"


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
    steps = counted(row["of_count"], "step")
    return f"{_part(row['part_ratio'])} of that lies between epochs: {times} in {steps}, {each}, {why}"


def _part(ratio: float) -> str:
    return "all" if ratio > 0.995 else percent_text(ratio)


def _batch_time(row: Row, f: Finding) -> str:
    several = f" (a step uses {row['part_ratio']:.3g} batches)" if row["part_ratio"] > 0 else ""
    whose = f"on rank {f.row['rank']}, " if f.row.get("items_count", 1) > 1 else ""
    length = duration_text(row["amount_ns"])
    if row["items_count"] > 1 and row["high_ns"] > _UNEVEN_RATIO * row["low_ns"] > 0:
        low, high = duration_text(row["low_ns"]), duration_text(row["high_ns"])
        uneven = f"its {row['items_count']} workers take {low} to {high} to make a batch{several}"
        head = f"{whose}{uneven}, worker {row['worker_id']} longest; the mean batch takes {length}"
    else:
        who = {0: "the step thread (num_workers=0)", 1: "its worker"}.get(
            row["items_count"], f"each of its {row['items_count']} workers"
        )
        head = f"{whose}{who} takes {length} to make a batch{several}"
    parts = f.all("batch_part")
    if not parts:
        return head
    first = "all" if parts[0]["part_ratio"] > 0.995 else duration_text(parts[0]["amount_ns"])
    spent = [f"{first} of it {_PART_WORDS[parts[0]['kind']]}"]
    spent += [f"{duration_text(part['amount_ns'])} {_PART_WORDS[part['kind']]}" for part in parts[1:]]
    return f"{head}: {', '.join(spent)}"


def _blocked_reads(row: Row, f: Finding) -> str:
    name = os.path.basename(row["name"]) or "a file without a name"
    where = f"mostly from {name}" if row["part_ratio"] > 0.5 else f"over {row['items_count']} files"
    typical = duration_text(row["amount_ns"])
    if row["rate_bytes_per_s"] < 0:
        return f"the median blocked read took {typical}, {where}"
    rate = bytes_text(row["rate_bytes_per_s"])
    return f"blocked reads moved {rate}/s, {where}; the median one took {typical}"


def _handoff_starved(row: Row, f: Finding) -> str:
    part, whole = duration_text(row["amount_ns"]), duration_text(row["high_ns"])
    return f"the hand-off waits for a CPU, as the workers do: {part} of the {whole} that a batch takes"


def _cpu_demand(row: Row, f: Finding) -> str:
    of_host = max(row["items_count"], row["of_count"])
    others = row["low_ns"] / 1e9
    used = ""
    if others >= _OTHERS_TOLD * of_host:  # they are not bound to the CPUs that the job may use
        is_whole = of_host == row["of_count"]
        used = f"other programs used {number(others)}"
        used = f", of which {used}" if is_whole else f"; {used} of the host's {of_host}"
    cpus = counted(row["of_count"], "CPU")
    return f"on average {number(row['part_ratio'])} threads of the job could run at a time, on {cpus}{used}"


def _fewer_threads(row: Row, f: Finding) -> str:
    ranks, threads = row["of_count"], row["items_count"]
    given = f"OMP_NUM_THREADS={row['name']}" if row["name"] else "OMP_NUM_THREADS is not set"
    began = f"{counted(ranks, 'rank')} began with {threads} torch threads{' each' if ranks > 1 else ''} ({given})"
    cpus = counted((f.first("cpu_demand") or row)["of_count"], "CPU")
    return f"{began}, {ranks * threads} for {cpus}: try OMP_NUM_THREADS={number(row['part_ratio'])}"


def _workers_hold_cpus(row: Row, f: Finding) -> str:
    cpus = counted((f.first("cpu_demand") or row)["of_count"], "CPU")
    return (
        f"{counted(row['of_count'], 'rank')} and {counted(row['items_count'], 'loader worker')} share {cpus}:"
        f" {number(row['part_ratio'])} of these threads are the workers'; cheaper decoding or more CPUs would help"
    )


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


def _blocking_call(row: Row, f: Finding) -> str:
    where = row["name"] or "an unnamed thread"
    name = row["kind"]
    item = " (also .item() and .cpu())" if name.lower().replace("_", "").endswith("streamsynchronize") else ""
    often, length = f"{number(row['part_ratio'])} a step", duration_text(row["amount_ns"])
    if row["code"] == "draining_call":
        return f"{name}{item} on {where}: {often}; the device runs out of work in them, for {length} a step"
    return f"{name}{item} on {where}: {often}, during {length} of that"


#: Kind of time -> what a late rank does longer than the rank that waits for it.
_SURPLUS_WORDS = {
    "compute": "computes {more} longer",
    "data": "waits {more} longer for batches",
    "link": "spends {more} more in transfers",
    "copy": "waits {more} longer for copies between host and device",
    "save": "saves checkpoints {more} longer",
    "host": "has its device idle {more} longer because of its host",
    "sleep": "sleeps {more} longer",
    "gc": "collects garbage {more} longer",
    "cpu_contention": "waits {more} longer for a CPU",
    "other": "is blocked {more} longer",
    "unrecorded": "has {more} more in which nothing was recorded",
}
#: Cause -> what the late rank did; ``{ns}`` is by how much longer than the others.
_LATE_WORDS = {
    "prep": "{who} took {ns} longer to make its batch",
    "handoff": "its batch was handed over {ns} later",
    "fetch": "{who} was blocked in storage {ns} longer",
    "compute": "it computed {ns} longer",
    "gc": "it collected garbage {ns} longer",
    "sleep": "it slept {ns} longer",
    "cpu_contention": "it waited {ns} longer for a CPU",
    "checkpoint": "it saved a checkpoint {ns} longer",
    "h2d": "copies between host and device took it {ns} longer",
    "sync": "its device was out of work {ns} longer after blocking calls",
    "launch": "its device waited {ns} longer for its host to launch",
    "straggler": "it waited {ns} longer for others itself",
    "network": "its transfers between hosts took {ns} longer",
    "interconnect": "its transfers inside the host took {ns} longer",
    "before": "it began {ns} later; the cause lies before that",
    "other": "it was blocked {ns} longer with no known cause",
}


def _late_surplus(row: Row, f: Finding) -> str:
    words = _SURPLUS_WORDS[row["kind"]].format(more=f"{duration_text(row['amount_ns'])} a step")
    return f"why: on average rank {row['rank']} {words} than rank {row['of_count']}"


def _is_several(ranks: str) -> bool:
    return "," in ranks or "-" in ranks


def _worst_wait(row: Row, f: Finding) -> str:
    where = f"in {operation(row['kind'])} {row['items_count']}"
    waiting = few_ranks(row["name"])
    if row["code"].startswith("hung"):
        hanging = f"{COSTLIEST}{ranks_named(waiting, ('hangs', 'hang'))} {where}"
        if row["code"] == "hung_wait":
            return f"{hanging}, which rank {row['rank']} never entered"
        return f"{hanging}; ranks that left no record here may never have entered it"
    length = f"{'up to ' if _is_several(row['name']) else ''}{duration_text(row['amount_ns'])}"
    waited = f"{COSTLIEST}{ranks_named(waiting, ('waited', 'waited'))} {length} {where}"
    if row["code"] == "worst_wait_unknown":
        return f"{waited}; the clocks cannot tell for whom"
    return f"{waited}; rank {row['rank']} was late"


def _late_because(row: Row, f: Finding) -> str:
    """Say why the rank was late, with the worker and file, kernel or phase where they are known."""
    kind, worker, name = row["kind"], row["worker_id"], shortened(row["name"], _NAME_WIDTH)
    who = f"its worker {worker}" if worker >= 0 else "it"
    if kind == "fetch" and row["name"]:
        return f"{who} spent {duration_text(row['low_ns'])} reading {os.path.basename(row['name'])}"
    words = (
        "it waited {ns} longer for the GIL, which another thread held"
        if (kind, name) == ("other", "gil")
        else _LATE_WORDS[kind]
    )
    text = words.format(ns=duration_text(row["amount_ns"]), who=who)
    if _is_several((f.first("worst_wait") or {"name": ""})["name"]):
        text = re.sub(r" (longer|later)\b", r" \1 than the median of the others", text, count=1)
    if not name or (kind, name) == ("other", "gil"):
        return text
    if kind == "compute":
        place = "outside forward, backward and optimizer" if name.startswith("between") else f"in {name}"
        # Clocks of kernels and of kinds round differently.
        whole = row["low_ns"] >= _ALL_RATIO * row["amount_ns"]
        return f"{text} {place}" if whole else f"{text}, {duration_text(row['low_ns'])} of that {place}"
    if kind == "checkpoint":
        return f"{text}, writing {os.path.basename(row['name'])}"
    if kind == "straggler":
        return text.replace("others itself", f"{name} in another group")
    return f"{text} ({name})"


def _bus_bandwidth(row: Row, f: Finding) -> str:
    reached = bytes_text(row["rate_bytes_per_s"])
    least = "" if f.first("all_arrived") is not None else "at least "
    line = f"{operation(row['name'])} reached {least}{reached}/s of bus bandwidth over {row['items_count']} transfers"
    if row["part_ratio"] >= 0:
        line += f", {percent_text(row['part_ratio'])} of what this link can do by its calibration"
    return line


def _payload(row: Row, f: Finding) -> str:
    operations = counted(max(round(row["part_ratio"]), 1), "operation")
    return f"{operations} with {bytes_text(row['moved_bytes'])} of payload a step"


def _path(path: str) -> str:
    """Shorten a path to a line: folders are cut before the name of the file. Some tools give a number instead."""
    if not path:
        return "(path not known)"
    if path.isdecimal():
        return f"file number {path} (its path is not in the recording)"
    folder, _, base = path.rpartition("/")
    if len(path) <= _PATH_WIDTH or len(base) > _PATH_WIDTH - 8:
        return shortened(path, _PATH_WIDTH)
    return f"{folder[: _PATH_WIDTH - len(base) - 2]}…/{base}"


def _killed(row: Row, f: Finding) -> str:
    who = f"rank {row['rank']}" if row["rank"] >= 0 else "a process without a rank"
    if row["worker_id"] >= 0:
        who = f"worker {row['worker_id']} of {who}"
    memory = "; the kernel ended a process for want of memory meanwhile" if row["kind"] == "kernel" else ""
    return f"{who} (pid {row['of_count']}) was killed by {row['name']}{memory}"


def _epochs_workers_end(row: Row, f: Finding) -> str:
    of = f"{duration_text(row['amount_ns'])} of {'each' if row['items_count'] > 1 else 'it'}"
    return f"{of} was spent waiting for the workers of the epoch before to end"


def _late_often_of_worst(row: Row, f: Finding) -> str:
    every = row["items_count"] == row["of_count"] > 1
    times = f"{'each' if every else row['items_count']} of the {row['of_count']} steps"
    return f"rank {row['rank']} is the one waited for in {times} with most of this waiting"


def _checkpoints(row: Row, f: Finding) -> str:
    count = counted(row["items_count"], "checkpoint")
    after = f", and {duration_text(row['low_ns'])} each in later calls on their files" if row["low_ns"] > 0 else ""
    return f"{count} in these steps, {duration_text(row['amount_ns'])} on average{after}"


def _transfers(row: Row, f: Finding) -> str:
    point, low, high = (duration_text(row[name]) for name in ("amount_ns", "low_ns", "high_ns"))
    if row["low_ns"] >= _ALL_RATIO * row["amount_ns"] and row["high_ns"] * _ALL_RATIO <= row["amount_ns"]:
        return f"the transfers themselves take {point} a step"
    return f"the transfers themselves take {f'{low} to' if row['low_ns'] > 0 else 'up to'} {high} a step"


#: Code of evidence that continues the sentence before it -> what joins them; all others begin a sentence.
JOINERS = {"late_because": ": ", "late_why_unknown": "; ", "late_mixed": ": "}


def _filled(template: str) -> Callable[[Row, Finding], str]:
    return lambda row, f: filled(template, row)


#: Code of evidence -> its words.
EVIDENCE: dict[str, Callable[[Row, Finding], str]] = {
    "epochs_start_workers": _epochs,
    "epochs_first_batch": _epochs,
    "epochs_workers_end": _epochs_workers_end,
    "makers_not_recorded": _filled(
        "who made the batches is not in the recording: reading, decoding and hand-off cannot be told apart"
    ),
    "step_thread_not_recorded": _filled(
        "the step thread makes the batches itself (num_workers=0): this recording cannot tell reading from decoding;"
        " a few workers might hide both"
    ),
    "makers_left_no_records": _filled("its workers left no records of their own"),
    "handed_over": lambda row, f: (
        f"{_part(row['part_ratio'])} of that is hand-off of batches that were ready (queue, unpickling, pinning)"
    ),
    "batch_time": _batch_time,
    "batch_spread": _filled("half of the batches take {amount_ns:time} or less, the longest takes {high_ns:time}"),
    "blocked_by_guess": _filled(
        "storage and memory are told apart by how long calls took, so part of one may be the other"
    ),
    "blocked_reads": _blocked_reads,
    "page_faults": _filled(
        "{part_ratio:number} page faults per batch waited for storage; reads of a memory-mapped file look like this"
    ),
    "handoff_starved": _handoff_starved,
    "cpu_demand": _cpu_demand,
    "others_hold_cpus": _filled("stop other programs on this machine, or record while they are idle"),
    "fewer_threads": _fewer_threads,
    "workers_hold_cpus": _workers_hold_cpus,
    "idle_cpus": _filled(
        "meanwhile {part_ratio:percent} of the CPU time of the host was idle: look for a limit on the job's CPUs"
        " (quota of a container, pinned threads)"
    ),
    "fewer_larger_batches": _fewer_batches,
    "copies": _copies,
    "blocking_call": _blocking_call,
    "draining_call": _blocking_call,
    "not_explained": _filled("not explained by what was recorded: no call covers it"),
    "host_function": lambda row, f: filled(
        "functions on the host: {part_ratio:number} a step on {stream}, taking {amount_ns:time}",
        row,
        stream=row["name"] or "an unnamed stream",
    ),
    "host_lead": _filled(
        "the host leads its device by {amount_ns:time} in the median of {items_count} events; near 0 it starves the"
        " device"
    ),
    "late_surplus": _late_surplus,
    "late_alone": _filled("summed over the run, rank {rank} came {amount_ns:time} later than the second latest rank"),
    "late_begins_later": _filled("why: rank {rank} begins the step {amount_ns:time} after rank {of_count}"),
    "late_begins_later_once": _filled(
        "why: rank {rank} begins the step {amount_ns:time} after rank {of_count}; the cause lies before the recording"
    ),
    "late_varies": _filled("no kind of time is much longer on rank {rank}: it is late in some steps, early in others"),
    "late_not_explained": _filled("no kind of time is much longer on rank {rank} in this step"),
    "late_often": _filled("rank {rank} is the one waited for in {items_count} of {of_count} steps"),
    "late_often_of_worst": _late_often_of_worst,
    "worst_wait": _worst_wait,
    "worst_wait_unknown": _worst_wait,
    "hung_wait": _worst_wait,
    "hung_wait_unknown": _worst_wait,
    "late_because": _late_because,
    "late_mixed": _filled("several kinds of its time differ from those of the others"),
    "late_why_unknown": _filled("the recording does not show why"),
    "transfers": _transfers,
    "payload": _payload,
    "bus_bandwidth": _bus_bandwidth,
    "checkpoints": _checkpoints,
    "blocked_in": _blocked_in,
    "nothing_recorded": _filled("nothing was recorded in that time"),
    "unknown_block": _filled(
        "no recorded blocking call covers most of it; a lock, a socket or a subprocess can still be the cause; the"
        " timeline shows where"
    ),
    "io_calls": _filled(
        "{items_count:I/O call} of {of_count:process} moved {moved_bytes:bytes} and took {amount_ns:time} in total"
    ),
    "file_calls": lambda row, f: filled(
        "{items_count:call}, {amount_ns:time}, on {path}", row, path=_path(row["name"])
    ),
    "killed": _killed,
    "hung_inside": lambda row, f: waiting_inside(row["name"], row["amount_ns"]),
    "hung_last": lambda row, f: last_called(row["rank"], row["items_count"]),
}
