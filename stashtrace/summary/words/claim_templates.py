"""Templates of claims: one for each kind of ``findings``."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import Callable

from stashtrace.summary.words.change_templates import CHANGES, mean_alone, steps_of_time
from stashtrace.summary.words.evidence_templates import BLOCKED_WORDS
from stashtrace.summary.words.on_file import file_claim
from stashtrace.summary.words.spikes import slow_steps
from stashtrace.summary.words.template_parts import (
    Finding,
    Row,
    all_or_part,
    amount,
    between_bounds,
    lost,
    of_recording,
    ranks,
    record_more,
    share,
    verb,
)
from stashtrace.text import count_noun, plural
from stashtrace.units import duration_text, number, operation, percent_text, shortened

_ALL_RATIO = 0.95
_NAME_WIDTH = 40
#: From this share of the step on, waiting for batches is what bounds a rank.
_BOUND_RATIO = 0.25
#: More blocking calls a step than this are counted.
_SEVERAL_CALLS = 1.5


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
    often = f"in {first['items_count']} of {count_noun(first['facts']['steps_count'], 'step')}"
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
    if f.row.get("text"):
        return str(f.row["text"])
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


def _rollout(f: Finding) -> str:
    rollout = f.first("rollout")
    return f" ({percent_text(rollout['part_ratio'])} of it rollout)" if rollout is not None else ""


def _computes_in(f: Finding) -> str:
    row = f.evidence[0]
    return f"of its computing, rank {row['rank']} spends {between_bounds(row)} a step in {row['name']}"


#: Kind of claim -> its words.
CLAIMS: dict[str, Callable[[Finding], str]] = {
    # a claim of a rule has words of its own
    "steps": lambda f: steps_text(f, alone=False),
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
    "computes_in": _computes_in,
}
