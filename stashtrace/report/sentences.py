"""The words of a summary: one template for each kind of claim and each code of evidence.

A template sees one row of ``findings`` and its rows of ``finding_evidence``, nothing else, so no sentence can say more
than a row does. How certain a verb is follows from ``confidence`` and the bounds (``amount``). ``clauses`` join the
evidence of a claim to sentences: a code whose joiner is empty begins one, another goes on.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stashtrace.model.table import Table
from stashtrace.units import bytes_text, duration_text, percent_text, shortened

Row = dict[str, Any]

_NAME_WIDTH = 40
#: Paths are cut in their middle to fit into a line of the summary with what is said of them.
_PATH_WIDTH = 48
_ALL_RATIO = 0.95
#: From this share of the step on, waiting for batches is what bounds a rank.
_BOUND_RATIO = 0.25
#: A bound below this share of the step may be nothing.
_NOTHING_RATIO = 0.03


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim with its evidence, as rows."""

    row: Row
    evidence: tuple[Row, ...]

    def first(self, code: str) -> Row | None:
        """The first evidence of a code, None if there is none."""
        return next((e for e in self.evidence if e["code"] == code), None)

    def all(self, code: str) -> list[Row]:
        """Evidence of a code."""
        return [e for e in self.evidence if e["code"] == code]


def findings_of(findings: Table, evidence: Table) -> list[Finding]:
    """Rows of both tables, joined, in reading order."""
    by_finding: dict[int, list[Row]] = {}
    for row in evidence.sort_by("finding_id", "order").rows():
        by_finding.setdefault(row["finding_id"], []).append(row)
    return [Finding(row, tuple(by_finding.get(row["finding_id"], ()))) for row in findings.sort_by("order").rows()]


def claim_text(finding: Finding) -> str:
    """The sentence of a claim, empty if its kind is drawn elsewhere."""
    return _loss(finding) if finding.row["section"] == "loss" else CLAIMS[finding.row["kind"]](finding)


def evidence_texts(finding: Finding) -> list[str]:
    """Sentences of a claim's evidence."""
    sentences: list[str] = []
    for row in finding.evidence:
        words = EVIDENCE.get(row["code"])
        if words is None:
            continue
        text, joiner = words(row, finding), JOINERS.get(row["code"], "")
        if not text:
            continue
        if joiner and sentences:
            sentences[-1] += joiner + text
        else:
            sentences.append(text)
    return sentences


def amount(row: Row) -> str:
    """A mean time per step, as certain as its bounds allow."""
    point, low, high = (duration_text(row[name]) for name in ("stall_ns", "low_ns", "high_ns"))
    if row["confidence"] == "exact":
        least = duration_text(row["least_ns"])
        return f"{least} to {point}" if row["items_count"] > 1 and least != point else point
    words = {"at_least": f"at least {point}", "up_to": f"up to {high}", "between": f"between {low} and {high}"}
    return words[str(row["confidence"])]


def _share(row: Row) -> str:
    """Share of the step that goes with ``amount``: a range where the ranks differ, else of the rank hit hardest."""
    if row["confidence"] != "exact" and row["stall_ns"] > 0:
        scale = row["share_ratio"] / row["stall_ns"]
        low, high = (percent_text(row[name] * scale) for name in ("low_ns", "high_ns"))
        point = percent_text(row["share_ratio"])
        share = {"at_least": point, "up_to": high, "between": f"{low} to {high}"}[row["confidence"]]
        return f"{share} on rank {row['rank']}" if row["items_count"] > 1 else share
    most, least = percent_text(row["share_ratio"]), percent_text(row["least_ratio"])
    return most if most == least else f"{least.removesuffix(' %')} to {most}"


def _lost(row: Row) -> str:
    return f"{amount(row)} a step ({_share(row)})"


def _ranks(row: Row) -> str:
    return f"rank{'s' if row['items_count'] > 1 else ''} {row['ranks']}"


def _verb(row: Row, one: str, many: str) -> str:
    """The verb for one rank or several; what may be nothing only ``may``."""
    if row["stall_ns"] > 0 and row["low_ns"] * row["share_ratio"] < _NOTHING_RATIO * row["stall_ns"]:
        return f"may {many}"
    return many if row["items_count"] > 1 else one


def _operation(name: str) -> str:
    return name.replace("_", "-")


def _s(count: float) -> str:
    return "" if count == 1 else "s"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _data(f: Finding) -> str:
    row = f.row
    certain = row["low_ns"] * row["share_ratio"] >= _BOUND_RATIO * row["stall_ns"]
    if certain:
        return f"{_ranks(row)} {_verb(row, 'is', 'are')} input bound: {_lost(row)} waiting for batches"
    return f"{_ranks(row)} {_verb(row, 'waits', 'wait')} {_lost(row)} for batches"


def _late(f: Finding) -> str:
    row = f.row
    where = f" in {_operation(row['call'])}" if row["call"] else ""
    pair = f.all("waits_for_other")
    if pair:
        (a, b) = pair
        return (
            f"ranks {a['rank']} and {b['rank']} alternate in being late{where}: rank {a['rank']} waits"
            f" {duration_text(a['amount_ns'])} a step for the other, rank {b['rank']} {duration_text(b['amount_ns'])}"
        )
    head = f"{_ranks(row)} {_verb(row, 'waits', 'wait')} {_lost(row)}{where}"
    causes = [e for e in f.all("waited_for") if e["rank"] >= 0]
    if not causes:
        return f"{head} for other ranks to arrive"
    if len(causes) == 1 and causes[0]["part_ratio"] >= _ALL_RATIO:
        return f"{head} for rank {causes[0]['rank']} to arrive"
    if len(causes) == 1:
        return (
            f"{head} for others to arrive, {percent_text(causes[0]['part_ratio'])} of it for rank {causes[0]['rank']}"
        )
    named = [f"rank {e['rank']} ({duration_text(e['amount_ns'])})" for e in causes]
    whose = f", on rank {row['rank']}" if row["items_count"] > 1 else ""
    return f"{head} for {', '.join(named[:-1])} and {named[-1]} to arrive{whose}"


_DOUBT_WORDS = {
    "operation_unknown": "part of it may be waiting: what the operations wait for is not in the recording",
    "members_unknown": "part of it may be waiting: who takes part is not in the recording",
    "ranks_missing": "part of it may be waiting: some members left no record of these operations",
    "untimed": "part of it may be waiting: some ranks have no device times of these operations",
    "matched_by_order": "part of it may be waiting: operations of the ranks were matched by their order alone",
}


def _link(f: Finding) -> str:
    row = f.row
    places = {"network": "between hosts", "interconnect": "between ranks of one host", "unknown": "between ranks"}
    head = f"{_ranks(row)} {_verb(row, 'spends', 'spend')} {_lost(row)} in transfers {places[row['cause_kind']]}"
    missing = f.first("ranks_missing")
    if missing is not None:
        whom = f"rank{_s(missing['items_count'])} {missing['name']}" if len(missing["name"]) < 20 else "most ranks"
        return f"{head}; part of it may be waiting: {whom} left no record here"
    doubt = f.first("may_be_waiting")
    if doubt is None:
        return f"{head}, after every rank had arrived"
    return f"{head}; {_DOUBT_WORDS.get(doubt['kind'], 'part of it may be waiting for other ranks')}"


def _devices(row: Row) -> str:
    return f"the device{_s(row['items_count'])} of {_ranks(row)}"


def _host(f: Finding) -> str:
    row = f.row
    if row["cause_kind"] == "perhaps":
        return (
            f"{_devices(row)} may stand idle for up to {duration_text(row['high_ns'])} a step"
            f" ({percent_text(row['least_ratio'])})"
            " because of the host: timing events cannot tell, `stashtrace run --kernels` can"
        )
    if row["cause_kind"] == "sync":
        why = "after blocking calls that drained it" if f.first("blocking_call") else "after the host waited for it"
    else:
        why = f"because {'its host does' if row['items_count'] == 1 else 'their hosts do'} not launch fast enough"
    return f"{_devices(row)} {_verb(row, 'stands', 'stand')} idle for {_lost(row)} {why}"


def _other(f: Finding) -> str:
    row = f.row
    if row["cause_kind"] == "asleep":
        return f"{_ranks(row)} {_verb(row, 'spends', 'spend')} {_lost(row)} asleep (time.sleep, usleep or the like)"
    if row["cause_kind"] == "host_functions":
        return f"the streams of {_ranks(row)} stand {_lost(row)} while the host runs functions of the job's"
    blocked = f"{_ranks(row)} {_verb(row, 'is', 'are')} blocked {_lost(row)}"
    held = f.first("held")
    if row["cause_kind"] == "host_functions_partly" and held is not None:
        return f"{blocked}, up to {duration_text(held['amount_ns'])} of it while the host runs functions of the job's"
    return f"{blocked} with no known cause"


def _compute_bound(f: Finding) -> str:
    bound = "" if f.row["confidence"] == "exact" else f" (at least {int(100 * f.row['least_ratio'])} % of every step)"
    return f"no stall above 3 %: compute bound{bound}"


def _not_told(f: Finding) -> str:
    low, high = (
        percent_text(f.row[n] / max(f.row["stall_ns"], 1) * f.row["share_ratio"]) for n in ("low_ns", "high_ns")
    )
    return (
        f"no stall above 3 % was seen, but that is not all: between {low} and {high} of the step of rank"
        f" {f.row['rank']} is compute, the rest cannot be told from it by this recording"
    )


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
    """Count and length of steps: ``40 validation steps of 59.0 ms``; the only kind goes without its name."""
    mean, middle = f.row["stall_ns"], (f.first("median_step") or {"amount_ns": f.row["stall_ns"]})["amount_ns"]
    name = f.row["name"]
    word = "" if alone and name in ("train", "training") else f"{_STEP_WORDS.get(name, name.replace('_', ' '))} "
    counted = f"{f.row['items_count']} {word}step{_s(f.row['items_count'])}"
    if abs(middle - mean) > _SKEWED_RATIO * mean:
        return f"{counted}, mean {duration_text(mean)}, median {duration_text(middle)}"
    return f"{counted} of {duration_text(mean)}"


def _low_confidence(f: Finding) -> str:
    doubts = (f"{percent_text(e['part_ratio'])} {e['name']}" for e in f.evidence)
    return f"LOW CONFIDENCE: {', '.join(doubts)}"


def _records_lost(f: Finding) -> str:
    whole = f.evidence[0]["items_count"]
    share = percent_text(f.row["share_ratio"])
    why = f", most of them by {_reason(f.row['name'])}" if f.row["name"] else ""
    return f"RECORDS LOST: {f.row['items_count']:,} of {whole:,} ({share}){why}; figures below are of the others"


def _machine_contention(f: Finding) -> str:
    row = f.row
    one = row["items_count"] == 1
    which = f"rank {row['rank']}'s step thread" if one else f"the step threads of ranks {row['ranks']}"
    upto = "" if one else "up to "
    return (
        f"CPU contention: {which} waited for a CPU for {upto}{percent_text(row['share_ratio'])} of the step; what"
        f" looks like {row['name']} may be other processes"
    )


def _other_trainers(f: Finding) -> str:
    at_most = 3
    named = [f"{e['name']} ({e['of_count']}, {e['items_count']} update{_s(e['items_count'])})" for e in f.evidence]
    more = f" and {len(named) - at_most} more" if len(named) > at_most else ""
    return f"not in these numbers: {', '.join(named[:at_most])}{more} trained too; run each job by itself"


def _unordered(f: Finding) -> str:
    nobody, durations = f.first("nobody_last"), f.first("by_durations")
    text = f"events that different hosts share are not ordered where closer than {duration_text(f.row['stall_ns'])}"
    if nobody is not None:
        text += f": in {nobody['items_count']} of {nobody['of_count']} collectives nobody is called last"
    if durations is not None:
        joiner = ";" if nobody is not None else ":"
        split = f"{durations['items_count']} of {durations['of_count']}"
        text += f"{joiner} {split} are split by durations instead of by clocks"
    return text


def _hosts(f: Finding) -> str:
    at_most, width = 8, 40
    named = []
    for e in f.evidence:
        listed = f"{e['items_count']} ranks" if len(e["kind"]) > width else f"rank{_s(e['items_count'])} {e['kind']}"
        known = e["items_count"] > 0
        others = f"{e['of_count']} {'other ' if known else ''}process{'' if e['of_count'] == 1 else 'es'}"
        parts = [listed] * known + [others if known else f"{others} without a rank"] * (e["of_count"] > 0)
        named.append(f"{e['name'] or '(not named)'} {' and '.join(parts)}")
    more = f" and {len(named) - at_most} more" if len(named) > at_most else ""
    return f"hosts: {', '.join(named[:at_most])}{more}"


def _own_cost(f: Finding) -> str:
    least, most = f.row["least_ratio"], f.row["share_ratio"]
    return f"own cost {percent_text(least)} to {percent_text(most)} CPU" if least >= 0 else "own cost not measured"


def _clocks(f: Finding) -> str:
    methods = {e["name"] for e in f.all("clock_method")}
    agree = "of the files taken to agree"
    text = "not aligned"
    if f.row["items_count"] > 0:
        if methods == {"assumed"}:
            return f"clocks {agree}"
        named = sorted(methods - {"same_clock", "assumed"})
        by = f" by {', '.join(named)}" if named else ""
        if "assumed" in methods:
            by += f"; those {agree} where no host is named"
        hosts = "one host" if f.row["items_count"] == 1 else f"{f.row['items_count']} hosts"
        text = f"{hosts}, ±{duration_text(f.row['stall_ns'])}{by}"
    device = f.first("device_clocks")
    return f"clocks {text}" + (f"; devices ±{duration_text(device['amount_ns'])}" if device is not None else "")


def _agreement(f: Finding) -> str:
    many = f"{f.row['items_count']} step{_s(f.row['items_count'])}"
    share = percent_text(f.row["share_ratio"])
    return f"brackets agree with the kernels of {many} to {share} of the step (worst kind: {f.row['name']})"


def _sources(label: str) -> Callable[[Finding], str]:
    return lambda f: f"{label}: {', '.join(e['name'] for e in f.evidence) or '-'}"


#: Reason of a loss -> what happened to its records.
_REASONS = {
    "no_lane": "too many threads at once",
    "lane_full": "records that came faster than they could be written",
    "lane_full_rows": "records that came faster than they could be written",
}


def _reason(name: str) -> str:
    return _REASONS.get(name, name.replace("_", " "))


def _loss(f: Finding) -> str:
    """One kind of loss; of many files the first stands for all. Some losses are no number of records."""
    row = f.row
    if row["kind"] == "more":
        return f"{row['items_count']} more kind{_s(row['items_count'])} of loss, see `stashtrace info`"
    advice = f.first("loss_advice")
    alike = f" (and {advice['items_count']:,} more like it)" if advice is not None and advice["items_count"] > 0 else ""
    if row["kind"] == "importers" and advice is not None:
        return f"{advice['name']}{alike}"
    if row["name"] in _REASONS:
        return f"{row['items_count']:,} records lost ({row['kind']}): {_REASONS[row['name']]}{alike}"
    many = f"{row['items_count']:,} " if row["items_count"] > 0 else ""
    return f"{many}{row['name'].replace('_', ' ')} ({row['kind']})" + (f": {advice['name']}" if advice else "") + alike


def _hung(f: Finding) -> str:
    row, group = f.row, f.first("hung_bytes") or {"moved_bytes": 0, "name": ""}
    have = "have" if "," in row["ranks"] or "-" in row["ranks"] else "has"
    size = f", {bytes_text(group['moved_bytes'])}" if group["moved_bytes"] > 0 else ""
    where = f"{row['call']} {row['items_count']} of {group['name'] or 'a group without a name'}{size}"
    return f"it hung: rank{'s' if have == 'have' else ''} {row['ranks']} {have} not entered {where}"


def _staged(f: Finding) -> str:
    if f.row["items_count"] > 0:
        return f"staged: {f.row['items_count']:,} open{_s(f.row['items_count'])} served by copies"
    return "no open was served by a copy: the job opens the files by other names than the list has, or not at all"


CLAIMS: dict[str, Callable[[Finding], str]] = {
    # headline; ``steps_text`` words the steps
    "steps": lambda f: steps_text(f, alone=False),
    "ranks": lambda f: f"{f.row['items_count']} rank{_s(f.row['items_count'])}",
    "warmup": lambda f: f"first {f.row['items_count']} steps left out",
    "records_lost": _records_lost,
    "low_confidence": _low_confidence,
    "host_timed_steps": lambda f: "LOW CONFIDENCE: no timed step marks on the device, steps are the host's",
    "ranks_missing": lambda f: (
        f"rank{_s(f.row['items_count'])} {f.row['ranks'] if len(f.row['ranks']) < 20 else ''} of the job"
        f" left no record here ({f.row['items_count']} missing)"
    ),
    "no_steps": lambda f: "no training steps seen",
    # verdicts
    "data": _data,
    "late": _late,
    "link": _link,
    "copy": lambda f: (
        f"{_ranks(f.row)} {_verb(f.row, 'waits', 'wait')} {_lost(f.row)} for copies between host and device"
    ),
    "save": lambda f: (
        f"checkpoints {_verb({**f.row, 'count': 2}, '', 'stop')} {_ranks(f.row)} for {amount(f.row)} a"
        f" step on average ({_share(f.row)})"
    ),
    "host": _host,
    "other": _other,
    "compute_bound": _compute_bound,
    "not_told": _not_told,
    # files
    "files": lambda f: "",
    "no_files": lambda f: "no file was read or written by the recorded processes",
    "no_step_collectors": lambda f: "no step can be seen: --collectors left out torch_step and annotations",
    "isolated_python": lambda f: f"`python {f.row['name']}` ignores PYTHONPATH, so its steps cannot be seen",
    "no_updates": lambda f: (
        "steps are seen where a torch optimizer or stashtrace.step() is called; see `stashtrace doctor`"
    ),
    # machine
    "contention": _machine_contention,
    "steal": lambda f: (
        f"host steal: the hypervisor took {percent_text(f.row['share_ratio'])} of the CPU time of {f.row['name']}"
    ),
    "thinned": lambda f: (
        f"only {f.row['items_count']} of {f.evidence[0]['items_count']} steps have timing events (--event-budget):"
        " the shares are theirs"
    ),
    "steps_wanted": lambda f: f"recorded were only steps {f.row['name']} of the job, counted in updates",
    "other_trainers": _other_trainers,
    "unordered": _unordered,
    "ended_by_signal": lambda f: (
        f"the job was ended by signal {f.row['name']}: a step that was not finished is not counted"
    ),
    "ended_with_code": lambda f: f"the job ended with exit code {f.row['name']}",
    "hung": _hung,
    "first_to_end": lambda f: (
        f"the records of rank {f.row['rank']} end first, {duration_text(f.row['stall_ns'])} before those of rank"
        f" {f.row['cause_rank']}"
    ),
    "hosts": _hosts,
    # beside the step
    "hidden": lambda f: (
        "hidden behind the step: "
        + ", ".join(f"{e['kind']} {duration_text(e['amount_ns'])}" for e in f.evidence)
        + " a step"
    ),
    "staged": _staged,
    # trust
    "measured": _sources("measured"),
    "inferred": _sources("inferred"),
    "invisible": _sources("invisible here"),
    "own_cost": _own_cost,
    "lost_records": lambda f: f"lost records {f.row['items_count']}",
    "clocks": _clocks,
    "agreement": _agreement,
}

_PART_WORDS = {
    "cpu": "on the CPU (decoding, transforming, collating)",
    "queue": "waiting for a CPU",
    "storage": "blocked in storage",
    "network": "waiting for the network",
    "asleep": "asleep (time.sleep, usleep or the like)",
    "page_faults": "off the CPU with page faults from storage",
    "blocked": "blocked (a lock, a pipe, another thread)",
    "unknown": "off the CPU for no recorded reason",
}
_CONDITION_WORDS = {
    "": "given free CPUs",
    "asleep": "since they sleep rather than compute",
    "storage": "if the storage serves them as fast",
    "page_faults": "if the storage serves them as fast",
    "network": "if the other end answers them as fast",
    "blocked": "unless they block each other",
    "unknown": "unless they wait for each other",
}


def _epochs(row: Row, f: Finding) -> str:
    times = {1: "once", 2: "twice"}.get(row["items_count"], f"{row['items_count']} times")
    each = duration_text(row["amount_ns"]) + (" each" if row["items_count"] > 1 else "")
    workers = (f.first("epochs_workers") or {"items_count": 1})["items_count"]
    what = "its worker" if workers == 1 else f"its {workers} workers"
    why = (
        f"to start {what} anew and make a first batch: persistent_workers=True keeps them"
        if row["code"] == "epochs_start_workers"
        else "for a first batch that none has made ahead"
    )
    return f"{_part(row['part_ratio'])} of that lies between epochs: {times} in {row['of_count']} steps, {each}, {why}"


def _part(ratio: float) -> str:
    return "all" if ratio > 0.995 else percent_text(ratio)


def _batch_time(row: Row, f: Finding) -> str:
    several = f" and a step takes {row['part_ratio']:.3g} of them" if row["part_ratio"] > 0 else ""
    who = {0: "the step thread (num_workers=0)", 1: "its worker"}.get(
        row["items_count"], f"each of its {row['items_count']} workers"
    )
    parts = f.all("batch_part")
    if not parts:
        return f"a batch takes {who} {duration_text(row['amount_ns'])} to make{several}"
    spent = [f"{duration_text(p['amount_ns'])} {_PART_WORDS[p['kind']]}" for p in parts]
    if parts[0]["part_ratio"] > 0.995:
        spent[0] = f"all of it {_PART_WORDS[parts[0]['kind']]}"
    else:
        spent[0] = f"{duration_text(parts[0]['amount_ns'])} of it {_PART_WORDS[parts[0]['kind']]}"
    return f"a batch takes {who} {duration_text(row['amount_ns'])} to make{several}: {', '.join(spent)}"


def _blocked_reads(row: Row, f: Finding) -> str:
    name = os.path.basename(row["name"]) or "a file without a name"
    where = f"mostly in {name}" if row["part_ratio"] > 0.5 else f"over {row['items_count']} files"
    rate, typical = bytes_text(row["rate_bytes_per_s"]), duration_text(row["amount_ns"])
    return f"blocked reads moved {rate}/s, {where}; the median one took {typical}"


def _more_workers(row: Row, f: Finding) -> str:
    rest = duration_text(row["amount_ns"])
    if row["of_count"] > 0 and row["items_count"] > 4 * row["of_count"]:
        head = f"more workers would shorten the waits in proportion; {row['items_count']} would hide them"
    else:
        many = f"{row['items_count']} worker{_s(row['items_count'])}"
        head = f"{many} would keep up with the rest of a step ({rest})"
    text = f"{head}, {_CONDITION_WORDS[row['kind']]}"
    cpus = f.first("cpus")
    if cpus is not None and cpus["amount_ns"] > row["amount_ns"] and row["kind"] != "":
        text += f"; below {duration_text(cpus['amount_ns'])} a step the CPUs are the limit"
    return text


def _cpus_are_full(row: Row, f: Finding) -> str:
    cpus = f.first("cpus")
    if cpus is None or cpus["amount_ns"] < 0:
        return "more workers would not help: the CPUs are full"
    count = _number(cpus["part_ratio"])
    if row["code"] == "others_use_cpus":
        return (
            f"more workers would not help while other processes use {_number(cpus['low_ns'] / 1e9)} of the {count} CPUs"
        )
    return (
        f"more workers would not help: {count} CPUs need {duration_text(cpus['amount_ns'])} for the work of a step;"
        " cheaper decoding or more CPUs would"
    )


def _fewer_batches(row: Row, f: Finding) -> str:
    often = f", {row['part_ratio']:.3g} times a step" if row["part_ratio"] > 1.05 else ""
    return (
        f"a batch takes {duration_text(row['low_ns'])} to make, then waits {duration_text(row['amount_ns'])} for its"
        f" hand-over{often}: more workers would not help; fewer, larger batches might"
    )


def _copies(row: Row, f: Finding) -> str:
    advice = (
        ": pin_memory=True in the DataLoader or tensor.pin_memory() would pin them" if row["kind"] == "pageable" else ""
    )
    return (
        f"{row['kind']} copies: {_number(row['part_ratio'])} a step, {bytes_text(row['moved_bytes'])} at"
        f" {bytes_text(row['rate_bytes_per_s'])}/s{advice}"
    )


_CALL_WORDS = {
    "stream_synchronize": "cudaStreamSynchronize (also .item() and .cpu())",
    "device_synchronize": "cudaDeviceSynchronize",
    "event_synchronize": "cudaEventSynchronize",
    "copy": "blocking copies",
    "allocate": "cudaMalloc",
    "free": "cudaFree",
    "allocate_host": "cudaMallocHost",
    "module_load": "loading of a module",
    "allocate_retry": "retries of the allocator",
}


def _blocking_call(row: Row, f: Finding) -> str:
    where = row["name"] or "an unnamed thread"
    called = _CALL_WORDS.get(row["kind"], row["kind"])
    return f"{called} on {where}: {_number(row['part_ratio'])} a step, {duration_text(row['amount_ns'])} inside"


#: What a late rank has more of than the rank that waits for it, by column of the summary.
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
    "straggler": "waits {more} longer for others itself",
    "other": "is blocked {more} longer with no known cause",
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
    "sync": "its device ran dry {ns} longer after blocking calls",
    "launch": "its device waited {ns} longer for its host to launch",
    "straggler": "it waited {ns} longer for others itself",
    "network": "its transfers between hosts took {ns} longer",
    "interconnect": "its transfers inside the host took {ns} longer",
    "before": "it began {ns} later, what kept it lies before",
    "other": "it was blocked {ns} longer with no known cause",
}


def _late_surplus(row: Row, f: Finding) -> str:
    words = _SURPLUS_WORDS[row["kind"]].format(more=duration_text(row["amount_ns"]))
    return f"why: each step rank {row['rank']} {words} than rank {row['of_count']}"


def _late_alone(row: Row, f: Finding) -> str:
    return f"rank {row['rank']} came {duration_text(row['amount_ns'])} later than the second latest rank, summed up"


def _waiting_ranks(row: Row) -> tuple[str, bool]:
    several = "," in row["name"] or "-" in row["name"]
    return f"rank{'s' if several else ''} {row['name']}", several


def _worst_wait(row: Row, f: Finding) -> str:
    whom, several = _waiting_ranks(row)
    where = f"{_operation(row['kind'])} {row['items_count']}"
    if row["code"] == "hung_wait":
        return f"the worst: {whom} {'hang' if several else 'hangs'} in {where}, which rank {row['rank']} never entered"
    if row["code"] == "hung_wait_unknown":
        verb = "hang" if several else "hangs"
        return f"the worst: {whom} {verb} in {where}; ranks that left no record here may never have entered it"
    waited = f"the worst: {whom} waited {duration_text(row['amount_ns'])} in {where}"
    if row["code"] == "worst_wait_unknown":
        return f"{waited}; the clocks cannot tell for whom"
    return f"{waited}; rank {row['rank']} was late"


def _late_because(row: Row, f: Finding) -> str:
    """What kept the late rank, with worker and file, kernel or phase where they are known."""
    kind, worker, name = row["kind"], row["worker_id"], shortened(row["name"], _NAME_WIDTH)
    who = f"its worker {worker}" if worker >= 0 else "it"
    if kind == "fetch" and row["name"]:
        return f"{who} spent {duration_text(row['low_ns'])} reading {os.path.basename(row['name'])}"
    text = _LATE_WORDS[kind].format(ns=duration_text(row["amount_ns"]), who=who)
    if not name:
        return text
    if kind == "compute":
        place = name if name.startswith("between") else f"in {name}"
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
    line = f"{_operation(row['name'])} reached {reached}/s of bus bandwidth over {row['items_count']} transfers"
    if row["part_ratio"] >= 0:
        line += f", {percent_text(row['part_ratio'])} of what calibration found this link to do"
    return line


def _payload(row: Row, f: Finding) -> str:
    calls = max(round(row["part_ratio"]), 1)
    return f"{calls} operation{_s(calls)} with {bytes_text(row['moved_bytes'])} of payload a step"


def _io_calls(row: Row, f: Finding) -> str:
    processes = f"{row['of_count']} process{'' if row['of_count'] == 1 else 'es'}"
    moved, spent = bytes_text(row["moved_bytes"]), duration_text(row["amount_ns"])
    return f"{row['items_count']:,} I/O calls of {processes} moved {moved} in {spent} of calls"


def _file_calls(row: Row, f: Finding) -> str:
    name = shortened(row["name"] or "(path not known)", _PATH_WIDTH)
    return f"{row['items_count']:,} call{_s(row['items_count'])}, {duration_text(row['amount_ns'])}, on {name}"


def _hung_inside(row: Row, f: Finding) -> str:
    one = row["items_count"] == 1
    since = duration_text(row["amount_ns"])
    return f"rank{'' if one else 's'} {row['name']} {'waits' if one else 'wait'} in it for {since}"


def _hung_last(row: Row, f: Finding) -> str:
    if row["items_count"] >= 0:
        return f"rank {row['rank']} last called number {row['items_count']}"
    return f"rank {row['rank']} has called nothing in it"


def _transfers(row: Row, f: Finding) -> str:
    if row["low_ns"] < _ALL_RATIO * row["amount_ns"]:
        return f"the transfers themselves take {duration_text(row['low_ns'])} to {duration_text(row['high_ns'])} a step"
    return f"the transfers themselves take {duration_text(row['amount_ns'])} a step"


#: Evidence that goes on with the sentence before it, and how; all other codes begin a sentence.
JOINERS = {"late_because": ": ", "late_why_unknown": ", "}
#: Code of evidence -> its words.
EVIDENCE: dict[str, Callable[[Row, Finding], str]] = {
    "epochs_start_workers": _epochs,
    "epochs_first_batch": _epochs,
    "makers_not_recorded": (
        lambda r, f: "who made them is not in the recording: reading, decoding and hand-over cannot be told apart"
    ),
    "step_thread_not_recorded": (
        lambda r, f: (
            "the step thread made them itself (num_workers=0): reading and decoding cannot be told apart in"
            " this recording; a few workers would hide both"
        )
    ),
    "makers_left_no_records": (lambda r, f: "its workers left no records of their own"),
    "handed_over": (
        lambda r, f: (
            f"{_part(r['part_ratio'])} of that is hand-over of batches that were ready (queue, unpickling, pinning)"
        )
    ),
    "batch_time": _batch_time,
    "blocked_by_guess": (lambda r, f: "storage or memory: told by how long calls took, so part of it may be the other"),
    "blocked_reads": _blocked_reads,
    "page_faults": (
        lambda r, f: (
            f"{_number(r['part_ratio'])} page faults per batch waited for storage; reads of a memory-mapped file"
            " look like this"
        )
    ),
    "more_workers": _more_workers,
    "use_workers": _more_workers,
    "workers_keep_up": (
        lambda r, f: (
            f"on average {'its worker keeps' if r['of_count'] == 1 else 'its workers keep'} up with the"
            f" {duration_text(r['amount_ns'])} that the rest of a step takes: the waits come from uneven batches"
        )
    ),
    "cpus_are_full": _cpus_are_full,
    "others_use_cpus": _cpus_are_full,
    "fewer_larger_batches": _fewer_batches,
    "copies": _copies,
    "blocking_call": _blocking_call,
    "not_explained": (lambda r, f: "not explained by what was recorded: no call covers it"),
    "host_function": (
        lambda r, f: (
            f"functions on the host: {_number(r['part_ratio'])} a step on {r['name'] or 'an unnamed stream'},"
            f" {duration_text(r['amount_ns'])} inside"
        )
    ),
    "host_lead": (
        lambda r, f: (
            f"the host leads its device by {duration_text(r['amount_ns'])} in the median of {r['items_count']} events;"
            " near 0 it starves the device"
        )
    ),
    "late_surplus": _late_surplus,
    "late_alone": _late_alone,
    "late_begins_later": (
        lambda r, f: f"why: rank {r['rank']} begins the step {duration_text(r['amount_ns'])} after rank {r['of_count']}"
    ),
    "late_begins_later_once": (
        lambda r, f: (
            f"why: rank {r['rank']} begins the step {duration_text(r['amount_ns'])} after rank {r['of_count']}; what"
            " kept it lies before the recording"
        )
    ),
    "late_varies": (
        lambda r, f: f"no kind of time is much longer on rank {r['rank']}: it is late in some steps, early in others"
    ),
    "late_not_explained": (lambda r, f: f"no kind of time is much longer on rank {r['rank']} in this step"),
    "late_often": (lambda r, f: f"rank {r['rank']} is the late one in {r['items_count']} of {r['of_count']} steps"),
    "late_often_of_worst": (
        lambda r, f: (
            f"rank {r['rank']} is the late one in {r['items_count']} of the {r['of_count']} steps that lose most by it"
        )
    ),
    "worst_wait": _worst_wait,
    "worst_wait_unknown": _worst_wait,
    "hung_wait": _worst_wait,
    "hung_wait_unknown": _worst_wait,
    "late_because": _late_because,
    "late_why_unknown": (lambda r, f: "why is not in the recording"),
    "transfers": _transfers,
    "payload": _payload,
    "bus_bandwidth": _bus_bandwidth,
    "checkpoints": (
        lambda r, f: f"{r['items_count']} checkpoint{_s(r['items_count'])} of {duration_text(r['amount_ns'])}"
    ),
    "unknown_block": (
        lambda r, f: "a foreign lock, a socket or a subprocess would look like this; the time line shows where"
    ),
    "io_calls": _io_calls,
    "file_calls": _file_calls,
    "hung_inside": _hung_inside,
    "hung_last": _hung_last,
}
