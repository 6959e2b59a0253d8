"""Claims about shifts, drifts and periods, and what the headline says of the step beside its mean."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from stashtrace.analysis.findings.over_time.whose import ON_FILE
from stashtrace.analysis.findings.rows import Claim, Evidence
from stashtrace.schema.table import Table

#: Changes that are said; the table has all.
_AT_MOST = 3
_TABLE = "over_time"


def change_claims(changes: Table, loading: Collection[int]) -> list[Claim]:
    """Return a claim for each change, the one that costs most first; ``loading`` are the ranks with a loader."""
    claims = []
    for number, row in enumerate(list(changes.rows())[:_AT_MOST]):
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
                name=str(row["together_count"]) if row["together_count"] > 1 else "",
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
    )
