"""The costliest wait for a late rank, as evidence: the operation, who waited in it, and why the rank was late."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import numpy as np

from stashtrace.analysis.findings.claim_rows import Evidence
from stashtrace.analysis.findings.rules.losses import cut_ranks
from stashtrace.analysis.findings.summary_input import RunFacts
from stashtrace.analysis.stragglers.late import late
from stashtrace.analysis.stragglers.surplus import GROUPS
from stashtrace.errors import MissingDataError
from stashtrace.schema.table import Table
from stashtrace.schema.trace import HOST_NOT_RECORDED, OPERATORS_RECORDED, Trace
from stashtrace.units import ranks_in

#: A cause that takes more than this many times the lateness is not the only reason.
_EXCEEDS = 2
#: Causes of ``late`` that say no more than that the rank was late: it waited itself, or its transfer ended later.
_CIRCULAR = ("straggler", "network", "interconnect")
#: Causes in which nothing is seen to run: in a recording that was cut, the cut may have taken what did.
_IDLE_KINDS = (*GROUPS["host"], *GROUPS["other"])

#: All names that what a late rank does longer can have.
WORK_NAMES = (*GROUPS, "reads", "unrecorded")


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


def worst_wait(facts: RunFacts, late_rank: int, victim: int, call: str) -> list[Evidence]:
    """Return a rank's longest wait for another in one kind of operation, and its reason, by the rows of ``late``."""
    trace, steps = facts.trace, facts.tables["steps"]
    try:
        table = late(trace)
    except MissingDataError:
        return []
    chosen = (table["late_rank"] == late_rank) & np.isin(table["step"], steps["step"])
    if call:
        chosen &= table["op"] == call
    for row in np.flatnonzero(chosen).tolist():
        if victim in ranks_in(str(table["waiting_ranks"][row])):
            rows = wait_evidence(table, row)
            rows[1:] = [replace(why, kind=kind_in_words(facts, late_rank, why.kind)) for why in rows[1:]]
            kind = str(table["cause_kind"][row])
            untold = kind in _CIRCULAR or (kind in _IDLE_KINDS and late_rank in cut_ranks(trace))
            return rows[:1] if untold else rows
    return []


def wait_evidence(table: Table, row: int) -> list[Evidence]:
    """Return a row of ``late`` as evidence: the wait, its operation and its reason."""
    at = {name: table[name][row].item() for name in table.columns}
    codes = ("hung_wait", "hung_wait_unknown") if at["method"] == "hung" else ("worst_wait", "worst_wait_unknown")
    code = codes[1] if at["late_rank"] < 0 else codes[0]
    waited, waiting = at["wait_ns"], at["waiting_ranks"]
    number, op = at["sequence"], at["op"]
    rows = [
        Evidence(code, "late", row, rank=at["late_rank"], amount_ns=waited, items_count=number, kind=op, name=waiting)
    ]
    if at["late_rank"] < 0:
        return rows
    if at["cause_kind"] == "unknown":
        return rows if at["method"] == "hung" else [*rows, Evidence("late_why_unknown", "late", row)]
    # A surplus far longer than the lateness was partly made up for by less of something else: it is not a reason alone.
    if 0 <= at["late_by_ns"] * _EXCEEDS < at["cause_ns"]:
        return [*rows, Evidence("late_mixed", "late", row, amount_ns=at["cause_ns"], high_ns=at["late_by_ns"])]
    return [
        *rows,
        Evidence(
            "late_because",
            "late",
            row,
            rank=at["late_rank"],
            worker_id=at["cause_worker_id"],
            amount_ns=at["cause_ns"],
            low_ns=at["named_ns"],
            kind=at["cause_kind"],
            name=at["cause_name"],
        ),
    ]
