"""Evidence about late ranks: the rank that others waited for, the operation, how often, and why it was late."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from stashtrace.analysis.findings.facts import RankFacts, RunFacts
from stashtrace.analysis.findings.making import inside
from stashtrace.analysis.findings.rows import Evidence
from stashtrace.analysis.late.late import late
from stashtrace.analysis.late.stragglers import stragglers
from stashtrace.analysis.late.surplus import EXPLAINS_RATIO, late_surplus
from stashtrace.errors import MissingDataError
from stashtrace.schema.kinds import CollectiveOp
from stashtrace.schema.table import Table
from stashtrace.schema.trace import HOST_NOT_RECORDED, OPERATORS_RECORDED, Trace
from stashtrace.units import ranks_in

#: Some rank is late by microseconds in every step: waits below the mean wait divided by this do not count.
_MATTERS_DIVISOR = 10
#: Fewer steps are not counted in words.
_SEVERAL = 3
#: A cause that takes more than this many times the lateness is not the only reason.
_EXCEEDS = 2
#: Late ranks that are examined.
_CAUSES_AT_MOST = 3


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
            if shows_no_waits(trace):
                return [replace(r, kind="unrecorded", name="") if _is_blocked(r) else r for r in rows]
            return rows
    return []


def shows_no_waits(trace: Trace) -> bool:
    """Return True if time without a record need not be a wait: a host was not recorded, or only its operators were."""
    codes = [trace.strings.find(key) for key in (HOST_NOT_RECORDED, OPERATORS_RECORDED)]
    return bool(np.isin(trace.metadata["key_code"], [code for code in codes if code >= 0]).any())


def _is_blocked(row: Evidence) -> bool:
    return row.code == "late_because" and row.kind == "other"


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


def how_often(tables: Mapping[str, Table], victim: int, late_rank: int) -> list[Evidence]:
    """Return in how many of the counted steps with lost time a rank waited for this late rank most."""
    steps, stalls = tables["steps"], tables["stalls"]
    own = steps["step"][steps["rank"] == victim]
    lost = stalls.take((stalls["rank"] == victim) & (stalls["kind"] == "straggler") & np.isin(stalls["step"], own))
    lost = lost.take(lost["stall_ns"] * _MATTERS_DIVISOR * len(lost) >= lost["stall_ns"].sum())
    if len(lost) < _SEVERAL:
        return []
    times = int(np.count_nonzero(lost["cause_rank"] == late_rank))
    code = "late_often" if len(lost) == len(own) else "late_often_of_worst"
    return [Evidence(code, "stalls", rank=late_rank, items_count=times, of_count=len(lost))]


def surplus(facts: RunFacts, late_rank: RankFacts, victim: RankFacts) -> list[Evidence]:
    """Return what the late rank does longer than a rank that waits for it, by the difference of their budgets."""
    tables = facts.tables
    difference = late_surplus(facts.trace, tables["straggler_causes"], tables["steps"], victim.rank, late_rank.rank)
    if difference is None:
        return []
    own, other = late_rank.rank, victim.rank
    # Its own waits for others do not explain why it is late.
    if difference.explains and difference.explains != "late":
        longer = difference.of(difference.explains)
        silent = difference.explains == "other" and shows_no_waits(facts.trace)
        kind = "unrecorded" if silent else difference.explains
        if kind == "data" and not (facts.trace.batches["rank"] == own).any():
            kind = "reads"  # without a loader there are no batches to wait for
        row = Evidence("late_surplus", "stalls", rank=own, of_count=other, amount_ns=longer, kind=kind)
        return [replace(row, name=difference.kind)]
    if difference.begins_later_ns >= EXPLAINS_RATIO * difference.wait_ns:
        code = "late_begins_later" if difference.steps_count > 1 else "late_begins_later_once"
        return [Evidence(code, "steps", rank=own, of_count=other, amount_ns=difference.begins_later_ns)]
    return [Evidence("late_varies" if difference.steps_count > 1 else "late_not_explained", "stalls", rank=own)]


def alone(facts: RunFacts, late_rank: int) -> list[Evidence]:
    """Return how long all ranks waited only for a late rank, after the second latest had come."""
    if len(facts.ranks) < 3:
        return []
    try:
        table = stragglers(facts.trace)
    except MissingDataError:
        return []
    row = np.flatnonzero(table["rank"] == late_rank)
    if not len(row) or table["behind_second_ns"][row[0]] <= 0:
        return []
    longest = int(table["behind_second_ns"][row[0]])
    return [Evidence("late_alone", "stragglers", int(row[0]), rank=late_rank, amount_ns=longest)]


def waited_operation(trace: Trace, rank: int, steps: Table) -> str:
    """Return the name of the collective that blocked a rank longest within its counted steps, empty if unknown."""
    own = steps.take(steps["rank"] == rank).sort_by("begin_ns")
    mine = trace.collectives.take(trace.collectives["rank"] == rank)
    operation = dict(zip(mine["collective_key"].tolist(), mine["op_code"].tolist(), strict=True))
    waits = trace.collective_waits
    blocked = waits.take(np.isin(waits["collective_key"], mine["collective_key"]) & inside(waits["begin_ns"], own))
    spent: dict[int, int] = {}
    for key, length in zip(
        blocked["collective_key"].tolist(), (blocked["end_ns"] - blocked["begin_ns"]).tolist(), strict=True
    ):
        spent[operation[key]] = spent.get(operation[key], 0) + length
    if not spent:  # no wait was recorded: DDP's reducer waits inside backward
        called = mine.take((mine["end_ns"] >= 0) & inside(mine["call_ns"], own))
        for op in np.unique(called["op_code"]).tolist():
            spent[op] = int((called["end_ns"] - called["call_ns"])[called["op_code"] == op].sum())
    return CollectiveOp(max(spent, key=spent.__getitem__)).name.lower() if spent else ""


def late_evidence(facts: RunFacts, victim: RankFacts, causes: Mapping[int, float], call: str) -> list[Evidence]:
    """Return for each late rank that matters its part of the waits, the reason, how often, and the longest wait."""
    rows = [
        Evidence(
            "waited_for", "straggler_causes", rank=rank, amount_ns=ns, part_ratio=ns / max(sum(causes.values()), 1.0)
        )
        for rank, ns in causes.items()
    ]
    for rank in [r for r in causes if r >= 0][:_CAUSES_AT_MOST]:
        own = facts.rank(rank)
        why = surplus(facts, own, victim) if own is not None else []
        worst = worst_wait(facts, rank, victim.rank, call)
        known = any(row.code == "late_because" and row.kind not in ("other", "before") for row in worst)
        if known and why and why[0].code in ("late_varies", "late_not_explained"):
            why = []
        rows += [*why, *how_often(facts.tables, victim.rank, rank), *alone(facts, rank), *worst]
    return rows
