"""The costliest wait for a late rank: the operation, who waited in it, and why the rank was late.

``worst_wait``, ``hung_wait`` and the same with ``_unknown`` are a row of the table ``late``; ``late_because`` is the
cause in it, with ``named_ns`` for what is named, ``late_mixed`` a cause that exceeds the lateness, and
``late_why_unknown`` says that the recording shows none.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np

from stashtrace.analysis.findings.blocked_calls import CALL_OF_WAIT
from stashtrace.analysis.findings.claim_rows import Evidence, Facts, fact
from stashtrace.analysis.findings.rules.losses import cut_ranks
from stashtrace.analysis.findings.rules.stalls.blocked import BLOCKED_WORDS
from stashtrace.analysis.findings.rules.stalls.on_file import doing
from stashtrace.analysis.findings.rules.stalls.policy import POLICY
from stashtrace.analysis.findings.summary_input import RunFacts
from stashtrace.analysis.stragglers.late import late
from stashtrace.analysis.stragglers.surplus import GROUPS
from stashtrace.errors import MissingDataError
from stashtrace.schema.table import Table
from stashtrace.schema.trace import HOST_NOT_RECORDED, OPERATORS_RECORDED, Trace
from stashtrace.units import duration_text, few_ranks, filled, is_several, percent_text, ranks_in, shortened

Row = dict[str, Any]

#: Causes of ``late`` that say no more than that the rank was late: it waited itself, or its transfer ended later.
_CIRCULAR = ("straggler", "network", "interconnect")
#: Causes in which nothing is seen to run: in a recording that was cut, the cut may have taken what did.
_IDLE_KINDS = (*GROUPS["host"], *GROUPS["other"])

#: All names that what a late rank does longer can have.
WORK_NAMES = (*GROUPS, "reads", "unrecorded")
#: Cause, any that ``late`` gives -> what the late rank did; ``{longer}`` is by how much, and than whom.
LATE_WORDS = {
    "prep": "{maker} took {longer} to make its batch",
    "handoff": "its batch was handed over {later}",
    "fetch": "{maker} was blocked in storage {longer}",
    "compute": "it computed {longer}",
    "gc": "it collected garbage {longer}",
    "compile": "it was in torch.compile {longer}",
    "sleep": "it slept {longer}",
    "cpu_contention": "it waited {longer} for a CPU",
    "checkpoint": "it was {longer} in checkpoints",
    "h2d": "copies between host and device took it {longer}",
    "sync": "its device was out of work {longer} after blocking calls",
    "launch": "its device waited {longer} for its host{to_launch}",
    "python": "it ran code of the loop {longer}",
    "straggler": "it waited {longer} for {whom}",
    "network": "its transfers between hosts took {longer}",
    "interconnect": "its transfers inside the host took {longer}",
    "before": "it began {later}; the cause lies before that",
    "other": "it was blocked {longer} {blocked}",
    "unrecorded": "nothing was recorded of it for {longer}",
}


def kind_in_words(facts: RunFacts, rank: int, group: str) -> str:
    """Return what a rank does longer, one of ``WORK_NAMES``, as its recording allows to say it."""
    if group == "other" and shows_no_waits(facts.trace):
        return "unrecorded"
    if group == "data" and not (facts.trace.batches["rank"] == rank).any():
        return "reads"  # without a loader there are no batches to wait for
    return group


def shows_no_waits(trace: Trace) -> bool:
    """Return True if time without a record need not be a wait: a host was not recorded, or only its operators were."""
    codes = [trace.strings.find(key) for key in (HOST_NOT_RECORDED, OPERATORS_RECORDED)]
    return bool(np.isin(trace.metadata["key_code"], [code for code in codes if code >= 0]).any())


def worst_wait(run: RunFacts, late_rank: int, victim: int, call: str) -> list[Evidence]:
    """Return a rank's longest wait for another in one kind of operation, and its reason, by the rows of ``late``."""
    trace, steps = run.trace, run.tables["steps"]
    try:
        table = late(trace)
    except MissingDataError:
        return []
    chosen = (table["late_rank"] == late_rank) & np.isin(table["step"], steps["step"])
    if call:
        chosen &= table["op"] == call
    for row in np.flatnonzero(chosen).tolist():
        if victim in ranks_in(str(table["waiting_ranks"][row])):
            kind = str(table["cause_kind"][row])
            untold = kind in _CIRCULAR or (kind in _IDLE_KINDS and late_rank in cut_ranks(trace))
            rows = wait_evidence(table, row, "" if untold else kind_in_words(run, late_rank, kind))
            return [replace(rows[0], text=f"the costliest wait: {rows[0].text}"), *rows[1:]]
    return []


def wait_evidence(table: Table, row: int, kind: str | None = None) -> list[Evidence]:
    """Return a row of ``late`` as evidence: the wait, which says all, its operation and its reason.

    ``kind``: of the reason, where it is not that of the row; empty to leave it out.
    """
    at = {name: table[name][row].item() for name in table.columns}
    at["cause_kind"] = at["cause_kind"] if kind is None else kind
    why, reasons = _reason(at, row)
    waiting = at["waiting_ranks"]
    own = Facts(rank=at["late_rank"], wait_ns=at["wait_ns"], op=at["op"], sequence=at["sequence"], waiting=waiting)
    several = is_several(waiting)
    words = {"few": few_ranks(waiting), "upto": "up to " if several else "", "why": why, "s": "s" if several else ""}
    if at["method"] == "hung":
        who = "rank{s} {few} {waiting:hangs|hang} in {op:operation} {sequence}"
        if at["late_rank"] >= 0:
            said = who + ", which rank {rank} never entered{why}"
            return [fact("hung_wait", said, "late", row, phrases=words, **own), *reasons]
        said = who + "; ranks that left no record here may never have entered it"
        return [fact("hung_wait_unknown", said, "late", row, phrases=words, **own)]
    who = "rank{s} {few} waited {upto}{wait_ns:time} in {op:operation} {sequence}"
    if at["late_rank"] >= 0:
        said = who + "; rank {rank} was late{why}"
        return [fact("worst_wait", said, "late", row, phrases=words, **own), *reasons]
    said = who + "; the clocks cannot tell for whom"
    return [fact("worst_wait_unknown", said, "late", row, phrases=words, **own)]


def _reason(at: Row, row: int) -> tuple[str, list[Evidence]]:
    """Return why the rank of a row of ``late`` was late: in words that follow the wait, and as evidence."""
    if at["cause_kind"] == "":
        return "", []
    if at["cause_kind"] == "unknown":
        unknown = fact("late_why_unknown", "", "late", row)
        return ("", []) if at["method"] == "hung" else ("; the recording does not show why", [unknown])
    own = Facts(rank=at["late_rank"], worker_id=at["cause_worker_id"], cause_ns=at["cause_ns"])
    # A surplus far longer than the lateness was partly made up for by less of something else: it is not a reason alone.
    if 0 <= at["late_by_ns"] * POLICY.exceeds_ratio < at["cause_ns"]:
        mixed = fact("late_mixed", "", "late", row, late_by_ns=at["late_by_ns"], **own)
        return ": several kinds of its time differ from those of the others", [mixed]
    own |= Facts(named_ns=at["named_ns"], kind=at["cause_kind"], name=at["cause_name"])
    return f": {late_because(at)}", [fact("late_because", "", "late", row, **own)]


def late_because(at: Row) -> str:
    """Say why the rank of a row of ``late`` was late, with the worker and file, kernel or phase if they are known."""
    kind, path = at["cause_kind"], at["cause_name"]
    maker = f"its worker {at['cause_worker_id']}" if at["cause_worker_id"] >= 0 else "it"
    spent = f"{maker} spent {duration_text(at['named_ns'])}"
    if kind == "fetch" and path:
        return f"{spent} reading {os.path.basename(path)}{_of_wait(at['named_ns'], at)}"
    if kind in ("other", "python") and is_path(path):
        return f"{spent} {doing('calls', path)}{_of_wait(at['named_ns'], at)}"
    name, length = shortened(path, POLICY.name_characters), duration_text(at["cause_ns"])
    than = " than the median of the others" if is_several(at["waiting_ranks"]) else ""
    part = "" if kind == "before" else _of_wait(at["cause_ns"], at)  # that is no reason yet
    known = {
        "maker": maker,
        "longer": f"{length} longer{than}",
        "later": f"{length} later{than}",
        "to_launch": f", which was in {name}" if name else " to launch",
        "whom": f"{name} in another group" if name else "others itself",
        "blocked": _blocked_words(name) if name else "with no known cause",
    }
    text = filled(LATE_WORDS[kind], known)
    if not name or kind in ("other", "launch", "straggler"):
        return text + part
    if kind == "compute":
        place = "outside forward, backward and optimizer" if name.startswith("between") else f"in {name}"
        # Clocks of kernels and of kinds round differently.
        whole = at["named_ns"] >= POLICY.whole_ratio * at["cause_ns"]
        return f"{text} {place}{part}" if whole else f"{text}{part}, {duration_text(at['named_ns'])} of that {place}"
    return f"{text}{part} ({os.path.basename(path) if kind == 'checkpoint' else name})"


def is_path(name: str) -> bool:
    """Return True for the path of a file; names of calls, kernels and annotations do not begin like one."""
    return name.startswith("/")


def _blocked_words(name: str) -> str:
    """Say in which call a thread was blocked: ``waiting for a lock, ...`` or ``in recv()``."""
    call = CALL_OF_WAIT.get(name, "")
    return BLOCKED_WORDS[call] if call else f"in {name}()"


def _of_wait(said_ns: float, at: Row) -> str:
    """Say which part of the wait a reason is, if it is not all of it."""
    if said_ns >= POLICY.nearly_all_ratio * at["wait_ns"]:
        return ""
    which = "the longest of these waits" if is_several(at["waiting_ranks"]) else "that wait"
    return f" ({percent_text(said_ns / at['wait_ns'])} of {which})"
