"""Templates of claims: one for each kind of ``findings``."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import Callable

from stashtrace.summary.words.change_templates import CHANGES, mean_alone, steps_of_time
from stashtrace.summary.words.end_templates import ENDINGS
from stashtrace.summary.words.evidence_templates import BLOCKED_WORDS
from stashtrace.summary.words.on_file import file_claim
from stashtrace.summary.words.spikes import slow_steps
from stashtrace.summary.words.template_parts import (
    Finding,
    Row,
    all_or_part,
    amount,
    between_bounds,
    few_ranks,
    filled,
    lost,
    number,
    of_recording,
    operation,
    ranks,
    ranks_named,
    record_more,
    share,
    verb,
)
from stashtrace.text import count_noun, plural
from stashtrace.units import duration_text, percent_text, shortened

_ALL_RATIO = 0.95
_NAME_WIDTH = 40
#: From this share of the step on, waiting for batches is what bounds a rank.
_BOUND_RATIO = 0.25
#: More blocking calls a step than this are counted.
_SEVERAL_CALLS = 1.5
#: A longer list of missing ranks is replaced by their number.
_RANKS_WIDTH = 20


def _data(f: Finding) -> str:
    row = f.row
    if row["cause_kind"] == "reads":
        return f"{ranks(row)} {verb(row, 'is', 'are')} blocked {lost(row)} in reads of files{_mostly(f)}"
    certain = row["low_ns"] * row["share_ratio"] >= _BOUND_RATIO * row["stall_ns"]
    if certain:
        return f"{ranks(row)} {verb(row, 'is', 'are')} input bound: {lost(row)} waiting for batches"
    return f"{ranks(row)} {verb(row, 'waits', 'wait')} {lost(row)} for batches"


def _mostly(f: Finding) -> str:
    """Name the file that most of a time went into: ``, mostly in read() of train.bin``; empty if none is known."""
    file = f.first("file_time")
    if file is None or file["part_ratio"] < 0.5:
        return ""
    most = "" if file["part_ratio"] >= _ALL_RATIO else "mostly "
    return f", {most}in {file['kind']}() of {os.path.basename(file['name'])}"


def _late(f: Finding) -> str:
    row, root = f.row, f.first("late_root")
    where = f" in {operation(row['call'])}" if row["call"] else ""
    whom = (
        f", {all_or_part(root['part_ratio'])} of it for rank {root['rank']}" if root and row["cause_rank"] >= 0 else ""
    )
    return f"{ranks(row)} {verb(row, 'waits', 'wait')} {lost(row)} for other ranks{where}{whom}"


_DOUBT_WORDS = {
    "operation_unknown": "part of it may be waiting: what the operations wait for is not in the recording",
    "members_unknown": "part of it may be waiting: which ranks take part is not in the recording",
    "ranks_missing": "part of it may be waiting: some members left no record of these operations",
    "untimed": "part of it may be waiting: some ranks have no device times of these operations",
    "matched_by_order": "part of it may be waiting: the operations of the ranks were matched by order alone",
}


def _link(f: Finding) -> str:
    row = f.row
    places = {"network": "over the network", "interconnect": "between ranks of one host"}
    place = places.get(row["cause_kind"], "between ranks")
    head = f"{ranks(row)} {verb(row, 'spends', 'spend')} {lost(row)} in transfers {place}"
    doubt = may_be_waiting(f)
    return f"{head}; {doubt}" if doubt else f"{head}, after every rank had arrived"


def may_be_waiting(f: Finding) -> str:
    """Say why a part of the transfers of a finding may be waits for late ranks; empty if none is."""
    missing = f.first("ranks_missing")
    if missing is not None:
        whom = f"rank{plural(missing['items_count'])} {missing['name']}" if len(missing["name"]) < 20 else "most ranks"
        return f"part of it may be waiting: {whom} left no record here"
    doubt = f.first("may_be_waiting")
    return "" if doubt is None else _DOUBT_WORDS.get(doubt["kind"], "part of it may be waiting for other ranks")


def _devices(row: Row) -> str:
    return f"the device{plural(row['items_count'])} of {ranks(row)}"


def _save(f: Finding) -> str:
    stop = verb(f.row, "stop", "stop")
    return f"checkpoints {stop} {ranks(f.row)} for {amount(f.row)} a step on average ({share(f.row)})"


def _host(f: Finding) -> str:
    row = f.row
    if row["cause_kind"] == "perhaps":
        return (
            f"{_devices(row)} may stand idle for up to {duration_text(row['high_ns'])} a step"
            f" ({percent_text(row['least_ratio'])})"
            f" because of the host: {record_more(f, 'kernels')}"
        )
    if row["cause_kind"] == "python":
        return _python(f)
    if row["cause_kind"] == "pauses":
        return (
            f"{_devices(row)} {verb(row, 'pauses', 'pause')} for {lost(row)} between works that were launched already:"
            " short kernels, not a late host"
        )
    if row["cause_kind"] != "sync":
        hosts = "its host" if row["items_count"] == 1 else "their hosts"
        return f"{_devices(row)} {verb(row, 'waits', 'wait')} {lost(row)} for {hosts}{_elsewhere(f)}"
    inside = f.first("blocking_call")
    why = " after the host has waited for it"
    if inside is not None:
        most = "" if inside["amount_ns"] >= _ALL_RATIO * row["stall_ns"] else ", mostly"
        why = f"{most} while the host is inside {inside['kind']}"
    elif f.first("draining_call") is not None:
        why = " after blocking calls that drained it"
    return f"{_devices(row)} {verb(row, 'stands', 'stand')} idle for {lost(row)}{why}"


def _elsewhere(f: Finding) -> str:
    """Say what a host does instead of launching work, or only that it does not launch."""
    after, several = f.first("host_after_calls"), f.row["items_count"] > 1
    free = after or f.first("host_before_launch")
    if free is None or not (after or f.row["call"]):
        return " to launch work"
    until = "before the next launch"
    if after is not None:
        call = f.first("draining_call") or f.first("blocking_call")
        until = "between a blocking call and the next launch"
        if call is not None and call["part_ratio"] > _SEVERAL_CALLS:
            until = f"between blocking calls ({number(call['part_ratio'])} a step) and the next launches"
    if f.row["call"]:
        most = (
            ""
            if (f.first("python_in") or f.first("compiles") or free)["part_ratio"] * free["part_ratio"] >= _ALL_RATIO
            else "mostly "
        )
        doing = f"{'are' if several else 'is'} {most}in {shortened(f.row['call'], _NAME_WIDTH)}"
    else:
        most = "" if free["part_ratio"] >= _ALL_RATIO else "mostly "
        doing = f"{most}{'do' if several else 'does'} something else"
    return f", which {doing} {until}"


def _python(f: Finding) -> str:
    """Word time outside the phases: that it lies there is certain, that it is Python and no operator is not."""
    row = f.row
    point, share = duration_text(row["stall_ns"]), percent_text(row["share_ratio"])
    if row["items_count"] > 1 and row["least_ns"] < row["stall_ns"]:
        point, share = f"{duration_text(row['least_ns'])} to {point}", f"{share} on rank {row['rank']}"
    verb_text = "spends" if row["items_count"] == 1 else "spend"
    compiled = f.all("compiles")
    if compiled and sum(e["part_ratio"] for e in compiled) >= 0.5:
        return f"{ranks(row)} {verb_text} {point} a step ({share}) {_in_compilations(compiled)}"
    where = f", mostly in {shortened(row['call'], _NAME_WIDTH)}" if row["call"] else _mostly(f)
    outside = "in code of the loop outside forward, backward and optimizer"
    collects = f.first("python_collects")
    if collects is not None and collects["part_ratio"] >= 0.5 and not row["call"]:
        where = f", {duration_text(collects['amount_ns'])} of it in garbage collection"
    if f.first("python_or_blocked") is not None:
        outside = "outside forward, backward and optimizer, in code of the loop or blocked"
    return f"{ranks(row)} {verb_text} {point} a step ({share}) {outside}{where}"


def _in_compilations(compiled: list[Row]) -> str:
    """Say that a time goes to torch.compile, and in how many steps: ``in torch.compile, in 12 of 45 steps``."""
    first = compiled[0]
    mostly = "" if sum(e["part_ratio"] for e in compiled) >= _ALL_RATIO else "mostly "
    again = " again" if first["kind"] == "again" else ""
    often = f"in {first['items_count']} of {count_noun(first['of_count'], 'step')}"
    return f"{mostly}in {shortened(first['name'], _NAME_WIDTH)}, which compiles{again} {often}"


def _other(f: Finding) -> str:
    row = f.row
    if row["cause_kind"] == "file":
        return f"{ranks(row)} {verb(row, 'is', 'are')} blocked {lost(row)} in calls on files{_mostly(f)}"
    if row["cause_kind"] == "no_operator":
        what = "it waits, or runs Python" if row["items_count"] == 1 else "they wait, or run Python"
        run = "runs" if row["items_count"] == 1 else "run"
        where = f", mostly in {shortened(row['call'], _NAME_WIDTH)}" if row["call"] else ""
        return f"{ranks(row)} {run} no operator for {_whole(f)}{where}: {what}; this recording does not say which"
    if row["cause_kind"] == "before_first":
        has = "has" if row["items_count"] == 1 else "have"
        return f"{_devices(row)} {has} no work in the recording for {_whole(f)} at its begin"
    if row["cause_kind"] == "launched_before":
        stand = verb(row, "stands", "stand")
        return f"{_devices(row)} {stand} idle for {lost(row)} although the next work had been launched"
    if row["cause_kind"] == "asleep":
        return f"{ranks(row)} {verb(row, 'spends', 'spend')} {lost(row)} {BLOCKED_WORDS['asleep']}"
    if row["cause_kind"] == "gil":
        return f"{ranks(row)} {verb(row, 'waits', 'wait')} {lost(row)} for the GIL, which another thread holds"
    if row["cause_kind"] == "host_functions":
        stand = verb(row, "stand", "stand")
        return f"the streams of {ranks(row)} {stand} still for {lost(row)} while the host runs functions of the job"
    blocked = f"{ranks(row)} {verb(row, 'is', 'are')} blocked {lost(row)}"
    held, part = f.first("held"), f.first("blocked_in")
    if part is not None and row["cause_kind"] == part["kind"]:
        return f"{blocked} {BLOCKED_WORDS[part['kind']]}"
    if part is not None and row["cause_kind"] == f"{part['kind']}_partly":
        return f"{blocked}, {duration_text(part['amount_ns'])} of it {BLOCKED_WORDS[part['kind']]}"
    if row["cause_kind"] == "host_functions_partly" and held is not None:
        return f"{blocked}, up to {duration_text(held['amount_ns'])} of it while the host runs functions of the job"
    return f"{blocked} with no known cause"


def _whole(f: Finding) -> str:
    """Word all of a time of which only the cause is in doubt: ``80.0 ms a step (80 %)``."""
    return f"{duration_text(f.row['stall_ns'])} a step ({percent_text(f.row['share_ratio'])})"


def _compute_bound(f: Finding) -> str:
    bound = "" if f.row["confidence"] == "exact" else f" (at least {int(100 * f.row['least_ratio'])} % of every step)"
    waits = f.first("waits_for_cpu")
    but = f" except waiting for a CPU (up to {percent_text(waits['part_ratio'])})" if waits is not None else ""
    return f"no stall above 3 %{but}: compute bound{bound}"


def _not_told(f: Finding) -> str:
    low, high = (
        percent_text(f.row[n] / max(f.row["stall_ns"], 1) * f.row["share_ratio"]) for n in ("low_ns", "high_ns")
    )
    if f.row["cause_kind"] == "python":
        return (
            f"no stall above 3 % was seen: the thread of rank {f.row['rank']} ran all the step; no phase is recorded,"
            " so whether it ran operators or other Python is not known"
        )
    return (
        f"no stall above 3 % was seen, but there may be some: between {low} and {high} of the step of rank"
        f" {f.row['rank']} is compute, and this recording cannot tell the rest from it"
    )


def verdict_text(f: Finding, *, steps: bool = True) -> str:
    """Word a verdict; it begins with the kind of steps it is about unless these are training steps.

    Without ``steps`` it does not say in which steps its time lies.
    """
    words = file_claim if f.first("on_file") is not None else CLAIMS[f.row["kind"]]
    text = of_recording(f, words(f)) + (steps_of_time(f) if steps else "")
    return f"in {f.row['name']} steps, {text}" if f.row["name"] else text


#: Kind of step -> its name in the headline.
_STEP_WORDS = {
    "train": "training",
    "training": "training",
    "validation": "validation",
    "inference": "inference",
    "rollout": "rollout",
    "skipped_update": "skipped (by the scaler)",
}
#: A median further than this from the mean says that a few steps are much longer or shorter than the others.
_SKEWED_RATIO = 0.1


def steps_text(f: Finding, *, alone: bool) -> str:
    """Word count and length of steps: ``40 validation steps of 59.0 ms``; the only kind goes without its name."""
    mean, middle = f.row["stall_ns"], (f.first("median_step") or {"amount_ns": f.row["stall_ns"]})["amount_ns"]
    name, count = f.row["name"], f.row["items_count"]
    if name == "recording":
        return f"no step is marked; the whole recording of {duration_text(mean)} counts as one"
    word = "" if alone and name in ("train", "training") else f"{_STEP_WORDS.get(name, name.replace('_', ' '))} "
    fewest = f.first("fewest_steps")
    number = f"{fewest['items_count']} to {count}" if fewest is not None else str(count)
    many = f"{number} {'iteration' if name == 'iteration' else f'{word}step'}{plural(count)}"
    beside = mean_alone(f, mean)
    if beside:
        return f"{many}{beside}{_rollout(f)}"
    if abs(middle - mean) > _SKEWED_RATIO * mean:
        return f"{many}, mean {duration_text(mean)}, median {duration_text(middle)}{_rollout(f)}"
    return f"{many} of {duration_text(mean)}{_rollout(f)}"


def _ranks_of_job(f: Finding) -> str:
    """Count the ranks; where other tools recorded fewer than the processes that the job had, count these."""
    processes = f.first("job_processes")
    return count_noun(f.row["items_count"], "rank") if processes is None else filled("{items_count:process}", processes)


def _warmup(f: Finding) -> str:
    """Say which steps at the edges of the recording are left out."""
    first, cut = f.row["items_count"], f.row["name"] == "cut"
    if not first:
        return "the last left out"
    head = f"first {first}" if first > 1 else "the first"
    return f"{head} and the last left out" if cut else f"{head} left out"


def _uneven_steps(f: Finding) -> str:
    at_most = 4
    parts = [f"{ranks_named(e['name'], ('made', 'made'))} {count_noun(e['items_count'], 'step')}" for e in f.evidence]
    more = f" and {len(parts) - at_most} other numbers" if len(parts) > at_most else ""
    return f"the ranks did not make the same number of steps: {', '.join(parts[:at_most])}{more}"


#: Part of a start -> its words; a call or a compilation has its own.
_START_WORDS = {
    "waits": "waiting for other ranks",
    "batches": "waiting for the first batches",
    "checkpoint": "in checkpoints",
    "steps": "in the steps that are left out",
}


def _start(f: Finding) -> str:
    """Say how long a job took to its first counted step, and in what."""
    parts = [
        f"{duration_text(e['amount_ns'])} {_START_WORDS.get(e['kind']) or 'in ' + shortened(e['name'], _NAME_WIDTH)}"
        for e in f.all("start_part")
    ]
    before = f.first("start_before") or {}
    whose = f" of rank {f.row['rank']}" if f.row["rank"] >= 0 else ""
    count = before["items_count"]
    steps = "that step" if count == 1 else f"all {count_noun(count, 'counted step')}"
    head = (
        f"the start{whose} took {duration_text(f.row['stall_ns'])} up to the first counted step, and"
        f" {steps} {duration_text(before['amount_ns'])}"
    )
    return f"{head}: {', '.join(parts)}" if parts else head


def _rollout(f: Finding) -> str:
    rollout = f.first("rollout")
    return f" ({percent_text(rollout['part_ratio'])} of it rollout)" if rollout is not None else ""


def _low_confidence(f: Finding) -> str:
    doubts = (f"{percent_text(e['part_ratio'])} {e['name']}" for e in f.all("doubt"))
    # Of several ranks the share is their mean: one of them may have much more, and another one none.
    mean = f.first("doubt_most")
    where = f", the mean of all ranks ({percent_text(mean['part_ratio'])} on rank {mean['rank']})" if mean else ""
    more = "; it may be more, since CPUs were scarce" if f.row["confidence"] == "at_least" else ""
    return f"LOW CONFIDENCE: {', '.join(doubts)}{where}{more}"


def _records_lost(f: Finding) -> str:
    whole = f.evidence[0]["items_count"]
    share = percent_text(f.row["share_ratio"])
    why = f", most of them because of {_reason(f.row['name'])}" if f.row["name"] else ""
    return f"RECORDS LOST: {f.row['items_count']:,} of {whole:,} ({share}){why}; the figures below leave them out"


def _machine_contention(f: Finding) -> str:
    row = f.row
    one = row["items_count"] == 1
    which = f"rank {row['rank']}'s step thread" if one else f"the step threads of ranks {row['ranks']}"
    upto = "" if one else "up to "
    inside = f.first("counted_as") or row
    return (
        f"CPU contention: {which} waited for a CPU for {upto}{percent_text(row['share_ratio'])} of the step"
        f" (counted as {inside['name']})"
    )


def _other_trainers(f: Finding) -> str:
    at_most = 3
    named = [f"{e['name']} (pid {e['of_count']}, {count_noun(e['items_count'], 'update')})" for e in f.evidence]
    more = f" and {len(named) - at_most} more" if len(named) > at_most else ""
    return f"these numbers leave out other training: {', '.join(named[:at_most])}{more}; record each job by itself"


def _gpu_of_another_job(f: Finding) -> str:
    first, count = f.evidence[0], f.row["items_count"]
    ranks = f"rank{'' if f.row['ranks'].isdecimal() else 's'} {few_ranks(f.row['ranks'])}"
    gpus = f"the GPU {first['name']}" if count == 1 else f"{count} GPUs, {first['name']} among them,"
    return (
        f"the site says that {gpus} of {ranks} {'belongs' if count == 1 else 'belong'} to job {f.row['name']}, and"
        f" this is job {first['kind']}: if both run, each slows the other"
    )


def _unordered(f: Finding) -> str:
    nobody, durations = f.first("nobody_last"), f.first("by_durations")
    text = f"the order of events on different hosts is unknown within {duration_text(f.row['stall_ns'])}"
    if nobody is not None:
        text += f": in {nobody['items_count']} of {nobody['of_count']} collectives no rank is called last"
    if durations is not None:
        joiner = ";" if nobody is not None else ":"
        split = f"{durations['items_count']} of {durations['of_count']}"
        text += f"{joiner} {split} are split into waiting and transfer by durations, not by clocks"
    return text


def _hosts(f: Finding) -> str:
    at_most, width = 8, 40
    named = []
    for e in f.evidence:
        listed = count_noun(e["items_count"], "rank")
        if len(e["kind"]) <= width:
            listed = f"rank{plural(e['items_count'])} {e['kind']}"
        known = e["items_count"] > 0
        others = count_noun(e["of_count"], "other process" if known else "process")
        parts = [listed] * known + [others if known else f"{others} without a rank"] * (e["of_count"] > 0)
        named.append(f"{e['name'] or '(not named)'} {' and '.join(parts)}")
    more = f" and {len(named) - at_most} more" if len(named) > at_most else ""
    return f"hosts: {', '.join(named[:at_most])}{more}"


def _own_cost(f: Finding) -> str:
    least, most = f.row["least_ratio"], f.row["share_ratio"]
    return f"own cost {percent_text(least)} to {percent_text(most)} CPU" if least >= 0 else "own cost not measured"


def _clocks(f: Finding) -> str:
    methods = {e["name"] for e in f.all("clock_method")}
    text = "not aligned"
    if f.row["items_count"] > 0:
        if methods == {"assumed"}:
            return "clocks assumed to agree"
        named = sorted(methods - {"same_clock", "assumed"})
        by = f" by {', '.join(named)}" if named else ""
        if "assumed" in methods:
            by += "; assumed to agree between files that name no host"
        hosts = "one host" if f.row["items_count"] == 1 else f"{f.row['items_count']} hosts"
        # One clock stamped everything that a file of one host holds: there is nothing to be wrong about.
        error = f", ±{duration_text(f.row['stall_ns'])}" if f.row["stall_ns"] > 0 or f.row["items_count"] > 1 else ""
        text = f"{hosts}{error}{by}"
    device = f.first("device_clocks")
    return f"clocks {text}" + (f"; devices ±{duration_text(device['amount_ns'])}" if device is not None else "")


def _sources(label: str) -> Callable[[Finding], str]:
    return lambda f: f"{label}: {', '.join(e['name'] for e in f.evidence) or '-'}"


#: Reason of a loss -> why records were lost.
_REASONS = {
    "no_lane": "too many threads at once",
    "lost_lane_rows": "too many threads at once",
    "no_space": "no space left in the run directory",
    "no_space_rows": "no space left in the run directory",
    "not_written": "errors while writing to the run directory",
    "not_written_rows": "errors while writing to the run directory",
    "lane_full": "records that came faster than they could be written",
    "lane_full_rows": "records that came faster than they could be written",
}


def _reason(name: str) -> str:
    return _REASONS.get(name, name.replace("_", " "))


def loss(f: Finding) -> str:
    """Word one kind of loss; the first of many files stands for all. Some losses have no number of records."""
    row = f.row
    if row["kind"] == "more":
        return f"{row['items_count']} more kind{plural(row['items_count'])} of loss; see `stashtrace info`"
    advice = f.first("loss_advice")
    alike = f" (and {advice['items_count']:,} more like it)" if advice is not None and advice["items_count"] > 0 else ""
    if row["kind"] == "importers" and advice is not None:
        return f"{advice['name']}{alike}"
    if row["name"] in _REASONS:
        return f"{row['items_count']:,} records lost ({row['kind']}): {_REASONS[row['name']]}{alike}"
    many = f"{row['items_count']:,} " if row["items_count"] > 0 else ""
    what = row["name"].replace("_", " ")
    what = what.removesuffix("s") if row["items_count"] == 1 else what
    return f"{many}{what} ({row['kind']})" + (f": {advice['name']}" if advice else "") + alike


def _outlived(f: Finding) -> str:
    who, it = ("a process", "it") if f.row["items_count"] == 1 else (f"{f.row['items_count']} processes", "they")
    return f"{who} still ran when the recording was closed (pid {f.row['name']}): what {it} did later is not in it"


def _hidden(f: Finding) -> str:
    parts = [f"{e['kind']} {duration_text(e['amount_ns'])}" for e in f.all("hidden")]
    return f"hidden behind the step: {', '.join(parts)} a step" if parts else ""


def _computes_in(f: Finding) -> str:
    row = f.evidence[0]
    return f"of its computing, rank {row['rank']} spends {between_bounds(row)} a step in {row['name']}"


def _staged(f: Finding) -> str:
    if f.row["items_count"] > 0:
        return f"staged: {f.row['items_count']:,} open{plural(f.row['items_count'])} served by copies"
    return "no open was served by a copy: the job opens the files under names that are not in the list, or not at all"


def _ranks_missing(f: Finding) -> str:
    count = f.row["items_count"]
    if len(f.row["ranks"]) < _RANKS_WIDTH:
        return f"rank{plural(count)} {f.row['ranks']} of the job left no record here ({count} missing)"
    return f"{count} ranks of the job left no record here"


def _filled(template: str) -> Callable[[Finding], str]:
    return lambda f: filled(template, f.row)


#: Kind of claim -> its words.
CLAIMS: dict[str, Callable[[Finding], str]] = {
    # headline; ``ending`` words how the job ended, ``steps_text`` the steps
    **ENDINGS,
    "steps": lambda f: steps_text(f, alone=False),
    "ranks": _ranks_of_job,
    "warmup": _warmup,
    "records_lost": _records_lost,
    "low_confidence": _low_confidence,
    "host_timed_steps": _filled("LOW CONFIDENCE: no timed step marks on the device, steps are the host's"),
    "ranks_missing": _ranks_missing,
    "no_steps": lambda f: (
        "no training steps among the records that are left" if f.row["name"] == "lost" else "no training steps seen"
    ),
    # verdicts
    "data": _data,
    "late": _late,
    "link": _link,
    "copy": lambda f: f"{ranks(f.row)} {verb(f.row, 'waits', 'wait')} {lost(f.row)} for copies between host and device",
    "save": _save,
    "host": _host,
    "other": _other,
    "compute_bound": _compute_bound,
    "not_told": _not_told,
    # time
    **CHANGES,
    "slow_steps": slow_steps,
    # files
    "files": _filled(""),
    "no_files": _filled("no file was read or written by the recorded processes"),
    "steps_unknown": _filled("{name}"),
    "no_step_collectors": _filled("no step can be seen: --collectors left out torch_step and annotations"),
    "isolated_python": _filled("`python {name}` ignores PYTHONPATH, so its steps cannot be seen"),
    "no_updates": _filled(
        "steps are seen where a torch optimizer or stashtrace.step() is called; see `stashtrace doctor`"
    ),
    # machine
    "contention": _machine_contention,
    "start": _start,
    "uneven_steps": _uneven_steps,
    "steal": _filled("host steal: the hypervisor took {share_ratio:percent} of the CPU time of {name}"),
    "thinned": lambda f: (
        f"only {f.row['items_count']} of {f.evidence[0]['items_count']} steps have timing events (--event-budget);"
        " the shares are of these"
    ),
    "still_recording": _filled("the run goes on: {items_count:process} still recorded when this was made"),
    "steps_kept": _filled("steps {name} of the job: the records of earlier ones were dropped, as asked"),
    "window_steps": _filled("a window of a run: steps {name} of the job"),
    "steps_wanted": _filled("only steps {name} of the job were recorded, counted in optimizer updates"),
    "other_trainers": _other_trainers,
    "gpu_of_another_job": _gpu_of_another_job,
    "unordered": _unordered,
    "killed": _filled("{items_count:process} ended by a signal:"),
    "restarts": _filled("{name}"),
    "outlived": _outlived,
    "emulated_compute": _filled("compute is emulated: {name} sleeps for as long as a real step would compute"),
    "first_to_end": _filled("the records of rank {rank} end first, {stall_ns:time} before those of rank {cause_rank}"),
    "hosts": _hosts,
    # beside the step
    "hidden": _hidden,
    "computes_in": _computes_in,
    "staged": _staged,
    # trust
    "measured": _sources("measured"),
    "inferred": _sources("inferred"),
    "invisible": _sources("invisible here"),
    "own_cost": _own_cost,
    "lost_records": lambda f: (
        f"lost records {f.row['items_count']}" + (" and an unknown number more" if f.row["name"] == "uncounted" else "")
    ),
    "clocks": _clocks,
    "agreement": _filled(
        "brackets and kernels agree to {share_ratio:percent} of a step over {items_count:step} (largest difference:"
        " {name})"
    ),
}
