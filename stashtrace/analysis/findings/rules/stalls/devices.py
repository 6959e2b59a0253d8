"""Devices that wait for copies, and what the host did while a device had no work.

``copies`` are per step, by kind of ``memory``. ``blocking_call`` is a call of the host during which the device was
idle, ``draining_call`` one after which it was; ``host_lead`` is how far ahead the host records events.
``host_function``: the host ran functions of the job on a stream. ``before_first``, ``launched_before`` and ``pauses``
are idle times of a device that its host did not cause.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from stashtrace.analysis.findings.batch_making import inside
from stashtrace.analysis.findings.claim_rows import Claim, Evidence, Facts, fact
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.findings.stall_claims import stall_claim, step_words, verdict
from stashtrace.analysis.findings.summary_input import RankFacts, RunFacts
from stashtrace.analysis.intervals import TimeSet
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.idle_calls import idle_calls
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import rank_and_steps
from stashtrace.schema.kinds import Bracket, BracketFlag, CopyDirection, StallKind
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.text.units import bytes_text

_BETWEEN = (CopyDirection.HOST_TO_DEVICE, CopyDirection.DEVICE_TO_HOST, CopyDirection.UNKNOWN)
#: What is behind a call, by the end of its name without underscores; the first that fits decides.
_BEHIND_CALLS = {
    "beforeunmapmemory": " (the wait of an allocator, as torch's expandable segments shrink)",
    "unmapmemory": " (as torch's expandable segments shrink)",
    "mapmemory": " (as torch's expandable segments grow)",
    "streamsynchronize": " (also .item() and .cpu())",
}


def copy_claims(run: RunFacts, hit: Sequence[RankFacts]) -> list[Claim]:
    """Return the claim about ranks that wait for copies between host and device."""
    rows = copies(run.trace, hit[0], run.tables["steps"])
    pageable = any(row["memory"] == "pageable" for row in rows)
    facts = Facts(cause_kind="pageable") if pageable else {}
    said = "{who} {who:waits|wait} {lost} for copies between host and device"
    short = "{who} {who:waits|wait} {share} {of_step} for copies between host and device"
    return [verdict("copy", said, run, stall_claim(hit, "copy", COLUMNS["copy"]), rows, short=short, **facts)]


def copies(trace: Trace, rank: RankFacts, steps: Table) -> list[Evidence]:
    """Return copies between host and device per step: bytes, rate, and the part from pageable memory."""
    mine = _brackets_in(trace, rank, steps, Bracket.COPY)
    mine = mine.take(np.isin(mine["copy_code"], _BETWEEN) & (mine["size_bytes"] > 0))
    pageable = (mine["bracket_flags"] & BracketFlag.PAGEABLE) != 0
    rows = []
    for memory, moved in (("pageable", mine.take(pageable)), ("pinned", mine.take(~pageable))):
        if not len(moved):
            continue
        whole = float(moved["size_bytes"].sum())
        spent = float(np.maximum(moved["end_ns"] - moved["begin_ns"], 1).sum())
        rate = whole / spent * 1e9
        known = Facts(rank=rank.rank, memory=memory, copies_count=_per_step(len(moved), rank), rate_bytes_per_s=rate)
        known |= Facts(moved_bytes=_per_step(whole, rank))
        advice = ": pin_memory=True in the DataLoader or tensor.pin_memory() would pin them"
        said = f"{{memory}} copies: {{copies_count:number}}{{each_step}}, {{moved_bytes:bytes}} at {bytes_text(rate)}/s"
        said += advice if memory == "pageable" else ""
        rows.append(fact("copies", said, "device_brackets", phrases=step_words(trace), **known))
    return rows


def blocking_calls(trace: Trace, rank: RankFacts, stall_ns: float, *, warmup: bool) -> list[Evidence]:
    """Return the calls that blocked the host while the device was idle, with their thread and time per step.

    A call that covers less than a quarter of the stall is not evidence; if none covers more, one row states that the
    stall is not explained. With ``stall_ns`` 0, no call is expected to explain it and there are no rows.
    """
    if stall_ns <= 0:
        return []
    table = idle_calls(trace, warmup=warmup)
    names = _track_names(trace)
    rows = []
    for row in np.flatnonzero(table["rank"] == rank.rank).tolist():
        during, after = max(table["idle_ns"][row], table["possible_ns"][row]), table["drained_ns"][row]
        name = str(table["call"][row])
        plain = re.sub("[_ ]", "", name.lower())
        words = {**step_words(trace), "also": next((w for end, w in _BEHIND_CALLS.items() if plain.endswith(end)), "")}
        known = Facts(rank=rank.rank, covered_ns=_per_step(float(max(during, after)), rank), call=name)
        known |= Facts(calls_count=_per_step(int(table["calls_count"][row]), rank))
        known |= Facts(thread=names.get(int(table["track_id"][row]), "") or "an unnamed thread")
        said = "{call}{also} on {thread}: {calls_count:number}{each_step}"
        if during >= POLICY.whole_ratio * after:
            said += ", during {covered_ns:time}{a_step} of that"
            rows.append(fact("blocking_call", said, "idle_calls", row, phrases=words, **known))
        else:
            said += "; the device runs out of work in them, for {covered_ns:time}{a_step}"
            rows.append(fact("draining_call", said, "idle_calls", row, phrases=words, **known))
    longest = sorted(rows, key=lambda row: -row["covered_ns"])
    worth = [row for row in longest if row["covered_ns"] >= POLICY.explains_ratio * stall_ns]
    untold = "not explained by what was recorded: no call covers it"
    return worth[: POLICY.names_count] or [fact("not_explained", untold, "idle_calls", rank=rank.rank)]


#: Idle time of a device that its host did not cause (``RankLayers.marked``) -> its sentence.
_IDLE = {
    "before_first": (
        "{idle_ns:time}{a_step} lie before the first work of a device in the file: what ran there before the recording"
        " began is not in it"
    ),
    "launched_before": (
        "for {idle_ns:time}{a_step} the next work had been launched and did not begin: it waited for another stream or"
        " device, or for work that is not in the recording"
    ),
    "pauses": "",
}


def idle_reasons(run: RunFacts, rank: RankFacts) -> list[Evidence]:
    """Return why a device was idle where its host was not the reason, longest first; nothing for other ranks."""
    index = TraceIndex(run.trace)
    known = rank_and_steps(index.origin, run.tables["steps"], rank.rank)
    if known is None:
        return []
    made = rank_layers(index, known[0])
    idle = made.time_of(StallKind.OTHER, StallKind.LAUNCH) & TimeSet.of_rows(known[1])
    spent = {name: (made.marked.get(name, TimeSet.empty()) & idle).total_ns for name in _IDLE}
    words = step_words(run.trace)
    rows = [
        fact(name, _IDLE[name], "stalls", phrases=words, rank=rank.rank, idle_ns=_per_step(ns, rank))
        for name, ns in spent.items()
        if ns
    ]
    return sorted(rows, key=lambda row: -row["idle_ns"])


def host_functions(trace: Trace, rank: RankFacts, steps: Table) -> list[Evidence]:
    """Return the streams on which the host ran functions of the job, how often and how long."""
    mine = _brackets_in(trace, rank, steps, Bracket.HOST_FUNCTION)
    names = _track_names(trace)
    rows = []
    for track in np.unique(mine["track_id"]).tolist():
        held = mine.take(mine["track_id"] == track)
        spent = _per_step(float((held["end_ns"] - held["begin_ns"]).sum()), rank)
        said = "functions on the host: {functions_count:number}{each_step} on {stream}, taking {spent_ns:time}"
        known = Facts(rank=rank.rank, spent_ns=spent, functions_count=_per_step(len(held), rank))
        known |= Facts(stream=names.get(track, "") or "an unnamed stream")
        rows.append(fact("host_function", said, "device_brackets", phrases=step_words(trace), **known))
    return sorted(rows, key=lambda row: -row["spent_ns"])[: POLICY.names_count]


def host_lead(trace: Trace, rank: RankFacts, steps: Table) -> list[Evidence]:
    """Return how far ahead of its device the host is when it records events there."""
    mine = _brackets_in(trace, rank, steps, Bracket.MARK, Bracket.STEP, Bracket.BATCH_WAIT)
    lead = mine["begin_ns"] - mine["call_ns"]
    if not len(lead):
        return []
    said = "the host leads its device by {lead_ns:time} in the median of {events_count} events; near 0 it starves the"
    known = Facts(rank=rank.rank, lead_ns=max(float(np.median(lead)), 0.0), events_count=len(lead))
    return [fact("host_lead", f"{said} device", "device_brackets", **known)]


def _brackets_in(trace: Trace, rank: RankFacts, steps: Table, *kinds: Bracket) -> Table:
    """Return the brackets of some kinds that a rank's device began in its steps."""
    brackets = trace.device_brackets
    mine = (brackets["rank"] == rank.rank) & np.isin(brackets["bracket_code"], kinds) & (brackets["begin_ns"] >= 0)
    return brackets.take(mine & inside(brackets["begin_ns"], steps, rank.rank))


def _track_names(trace: Trace) -> dict[int, str]:
    return {track: trace.text(name) for track, name in trace.tracks.lookup("track_id", "name_code").items()}


def _per_step(amount: float, rank: RankFacts) -> float:
    return amount / max(rank.steps_count, 1)
