"""Claims about shifts, drifts and periods, and what the headline says of the step beside its mean."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from stashtrace.analysis.findings.claim_rows import Claim, Evidence
from stashtrace.analysis.findings.over_time.attribute_change import ON_FILE
from stashtrace.schema.table import Table

#: Changes that are said; the table has all.
_AT_MOST = 3
_TABLE = "over_time"


def change_claims(changes: Table, loading: Collection[int]) -> list[Claim]:
    """Return a claim for each change, the one that costs most first; ``loading`` are the ranks with a loader."""
    claims = []
    stairs = _stairs(list(changes.rows()))
    if stairs is not None:
        claims.append(stairs)
    told = [(number, row) for number, row in enumerate(changes.rows()) if stairs is None or row["kind"] != "shift"]
    for number, row in told[:_AT_MOST]:
        rows = [
            Evidence(
                "changed_steps",
                _TABLE,
                number,
                items_count=row["first_step_index"],
                of_count=row["last_step_index"],
                amount_ns=row["usual_ns"],
                part_ratio=row["step_delta_ns"] / 1e6,
                kind=row["place"],
                name=how_changed(row),
            )
        ]
        if len(changes) > 1:
            rows.append(Evidence("beside_changes", _TABLE, items_count=len(changes) - 1))
        if row["rank"] >= 0:
            rows.append(
                Evidence(
                    "changed_time",
                    _TABLE,
                    number,
                    rank=row["rank"],
                    amount_ns=abs(row["rank_delta_ns"]),
                    # Without a loader there are no batches to wait for.
                    kind="reads" if row["stall_kind"] == "fetch" and row["rank"] not in loading else row["stall_kind"],
                    name=row["ranks"],
                )
            )
        if row["stall_kind"] == ON_FILE:
            rows.append(
                Evidence("changed_file", _TABLE, number, row["rank"], kind=row["cause_kind"], name=row["cause_name"])
            )
        elif row["cause_kind"]:
            worker = int(row["cause_name"]) if row["cause_kind"] == "worker" else -1
            rows.append(
                Evidence(
                    "behind_it",
                    _TABLE,
                    number,
                    rank=row["rank"],
                    worker_id=worker,
                    amount_ns=row["cause_ns"],
                    kind=row["cause_kind"],
                    name=row["cause_name"],
                )
            )
        change = row["kind"]
        claims.append(
            Claim(
                "time",
                change,
                ranks=row["ranks"],
                rank=row["rank"],
                items_count=row["every_count"] if change == "period" else row["changed_count"],
                share_ratio=row["delta_ns"] / max(row["usual_ns"], 1),
                stall_ns=row["changed_ns"],
                cause_kind=row["stall_kind"],
                cause_rank=row["rank"],
                file=row["cause_name"] if row["cause_kind"] == "file" or row["stall_kind"] == ON_FILE else "",
                call=row["cause_name"] if row["cause_kind"] in ("annotation", "phase") else "",
                evidence=tuple(rows),
            )
        )
    return claims


def _stairs(rows: Sequence[dict[str, Any]]) -> Claim | None:
    """Return the claim that steps get longer, or shorter, in several levels; None if their shifts are no stairs.

    Noise may hide a level between two others, so that there are at least as many as were found.
    """
    shifts = sorted((row for row in rows if row["kind"] == "shift"), key=lambda row: int(row["first_step_index"]))
    if len(shifts) < 2:
        return None
    levels: list[tuple[int, int, dict[str, Any] | None]] = [
        (row["first_step_index"], row["changed_ns"], row) for row in shifts
    ]
    gaps = [
        at for at in range(1, len(shifts)) if shifts[at]["first_step_index"] > shifts[at - 1]["last_step_index"] + 1
    ]
    before, behind = shifts[0]["place"] != "begin", shifts[-1]["place"] != "end"
    if len(gaps) + before + behind != 1:
        return None  # the usual steps are several stretches
    at = 0 if before else gaps[0] if gaps else len(shifts)
    begin = -1 if before else shifts[at - 1]["last_step_index"] + 1
    levels.insert(at, (begin, shifts[0]["usual_ns"], None))
    lengths = [length for _, length, _ in levels]
    grow = lengths[-1] > lengths[0]
    if sorted(lengths, reverse=not grow) != lengths:
        return None
    first, last = levels[0][2], levels[-1][2]
    known = [row for row in (first, last) if row is not None]
    evidence = [Evidence("changed_steps", _TABLE, items_count=len(levels), kind="levels")]
    evidence += [Evidence("level", _TABLE, items_count=begin, amount_ns=length) for begin, length, _ in levels]
    whose = {(row["rank"], row["ranks"], row["stall_kind"]) for row in known}
    rank, ranks, kind = next(iter(whose)) if len(whose) == 1 else (-1, "", "")
    if rank >= 0 and kind != ON_FILE:
        delta_ns = sum(row["rank_delta_ns"] * (1 if row is last else -1) for row in known)
        evidence.append(Evidence("changed_time", _TABLE, rank=rank, amount_ns=abs(delta_ns), kind=kind, name=ranks))
    return Claim(
        "time",
        "shift",
        ranks=ranks,
        rank=rank,
        items_count=sum(row["changed_count"] for row in shifts),
        share_ratio=(lengths[-1] - lengths[0]) / max(lengths[0], 1),
        stall_ns=lengths[-1],
        cause_kind=kind,
        cause_rank=rank,
        evidence=tuple(evidence),
    )


def how_changed(row: dict[str, Any]) -> str:
    """Return how many steps in a row a period has, and how a shift begins; empty for one step, and at once."""
    if row["kind"] == "shift":
        return "" if row["onset"] == "sudden" else str(row["onset"])
    return str(row["together_count"]) if row["together_count"] > 1 else ""


def steps_evidence(changes: Table) -> Sequence[Evidence]:
    """Return what is said of the length of the step beside its mean: by the change that costs most."""
    if not len(changes):
        return ()
    row = next(changes.rows())
    beside = (Evidence("beside_changes", _TABLE, items_count=len(changes) - 1),) if len(changes) > 1 else ()
    return (_of_steps(row), *beside)


def _of_steps(row: dict[str, Any]) -> Evidence:
    if row["kind"] == "period" and 2 * row["together_count"] == row["every_count"]:
        return Evidence(
            "steps_alternate",
            _TABLE,
            0,
            low_ns=row["usual_ns"],
            amount_ns=row["changed_ns"],
            items_count=row["together_count"],
            of_count=row["every_count"],
        )
    if row["kind"] == "period":
        others = row["every_count"] - 1
        return Evidence("usual_steps", _TABLE, 0, amount_ns=row["usual_ns"], items_count=others, of_count=others + 1)
    if row["kind"] == "drift":
        return Evidence("steps_grow", _TABLE, 0, low_ns=row["usual_ns"], amount_ns=row["changed_ns"])
    return Evidence(
        "steps_change",
        _TABLE,
        0,
        low_ns=row["usual_ns"],
        amount_ns=row["changed_ns"],
        items_count=row["first_step_index"],
        of_count=row["last_step_index"],
        kind=row["place"],
        name=how_changed(row),
    )
