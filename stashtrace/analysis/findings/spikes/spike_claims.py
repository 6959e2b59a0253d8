"""The claim about slow steps that take enough of the run: how many, whose time grew in most, what it went to."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from stashtrace.analysis.findings.claim_rows import Claim, Evidence
from stashtrace.analysis.findings.over_time.step_changes import changed_steps
from stashtrace.analysis.steps.step_time import step_lengths
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.table import Table
from stashtrace.units import ranks_in, ranks_text

#: Slow steps are said if what they take longer is this part of all steps.
_WORTH_RATIO = 0.01
#: So many of them are named by their number.
_NAMED = 3
#: What holds for fewer than this part of them is not said of them.
_MOST_RATIO = 0.5
#: Name of the claim about one step of a job that runs.
AS_IT_RUNS = "as_it_runs"
_TABLE = "spikes"
_WAITED = StallKind.STRAGGLER.name.lower()

_Row = tuple[int, dict[str, Any]]


def spike_claims(slow: Table, changes: Table, counted: Table, loading: Collection[int]) -> list[Claim]:
    """Return a claim about the slow steps of a run, or none.

    ``slow``: rows of ``spikes``. ``changes``: rows of ``over_time``, whose shifts and periods have claims of their own.
    ``counted``: the steps that the step time is made of. ``loading``: the ranks with a loader.
    """
    numbers = np.unique(counted["step"])
    told = np.zeros(len(numbers), dtype=bool)
    for change in changes.rows():
        told |= changed_steps(change, numbers) if change["kind"] != "drift" else False
    single = numbers[~told]
    rows = [pair for pair in enumerate(slow.rows()) if not pair[1]["every_count"] and pair[1]["step"] in single]
    longer = [row["length_ns"] - row["usual_ns"] for _, row in rows]
    share = sum(longer) / max(float(step_lengths(counted).sum()), 1.0)
    if not rows or share < _WORTH_RATIO:
        return []
    return [_claim(rows, len(numbers), share, loading)]


def claim_of_step(slow: Table, loading: Collection[int], waited_ns: Mapping[int, int]) -> Claim:
    """Return the claim about one slow step of a job that runs: of which part of the run it is, nobody knows yet.

    ``slow``: one row of ``spikes``. ``waited_ns``: rank -> how long it waited for the rank of that row.
    """
    row = next(iter(slow.rows()))
    claim = _claim([(0, row)], 1, 0.0, loading)
    more = []
    if row["worker_id"] >= 0 and row["cause_kind"] != "worker":
        more.append(Evidence("made_by_worker", _TABLE, 0, row["rank"], row["worker_id"]))
    if waited_ns:
        longest_ns, waiting = max(waited_ns.values()), ranks_text(sorted(waited_ns))
        more.append(Evidence("waited_for_slow", _TABLE, 0, row["rank"], amount_ns=longest_ns, name=waiting))
    beside = [one for one in claim.evidence if one.code == "beside_slow"]
    before = [one for one in claim.evidence if one.code != "beside_slow"]
    return replace(claim, name=AS_IT_RUNS, evidence=(*before, *more, *beside))


def _claim(rows: Sequence[_Row], steps_count: int, share: float, loading: Collection[int]) -> Claim:
    longer = [row["length_ns"] - row["usual_ns"] for _, row in rows]
    alike = _most_alike(rows)
    named = ", ".join(str(row["step"]) for _, row in rows[:_NAMED])
    evidence = [
        Evidence(
            "slow_steps",
            _TABLE,
            rows[0][0],
            items_count=len(rows),
            of_count=steps_count,
            amount_ns=median(longer),
            name=named,
        ),
        *_whose(alike, len(rows), loading),
        *_beside(rows),
    ]
    first = alike[0][1] if alike else None
    cause = _cause(alike)
    return Claim(
        "time",
        "slow_steps",
        ranks=_ranks_of(alike),
        rank=first["rank"] if first else -1,
        items_count=len(rows),
        share_ratio=share,
        stall_ns=median(row["length_ns"] for _, row in rows),
        cause_kind=first["kind"] if first else "",
        cause_rank=first["rank"] if first else -1,
        worker_id=int(cause[1]) if cause[0] == "worker" else -1,
        file=cause[1] if cause[0] == "file" else "",
        call=cause[1] if cause[0] in ("annotation", "phase") else "",
        evidence=tuple(evidence),
    )


def _most_alike(rows: Sequence[_Row]) -> list[_Row]:
    """Return the rows of the rank and kind, or of the kind, that make most steps slow; none if they are all unlike."""
    for names in (("kind", "rank"), ("kind",)):
        of_like = Counter(tuple(row[name] for name in names) for _, row in rows)
        most, count = of_like.most_common(1)[0]
        if count >= _MOST_RATIO * len(rows):
            return [pair for pair in rows if tuple(pair[1][name] for name in names) == most]
    return []


def _ranks_of(alike: Sequence[_Row]) -> str:
    return ranks_text(sorted({rank for _, row in alike for rank in ranks_in(row["ranks"])}))


def _whose(alike: Sequence[_Row], count: int, loading: Collection[int]) -> list[Evidence]:
    """Return whose time grew in most slow steps, and what it went to."""
    if not alike:
        return []
    at, row = alike[0]
    ranks = _ranks_of(alike)
    if row["kind"] == _WAITED:
        return [Evidence("awaited_slowly", _TABLE, at, row["rank"], items_count=len(alike), of_count=count)]
    kind = "reads" if row["kind"] == "fetch" and row["rank"] not in loading else row["kind"]
    extra = median(row["extra_ns"] for _, row in alike)
    out = [
        Evidence("changed_time", _TABLE, at, row["rank"], amount_ns=extra, kind=kind, name=ranks),
        Evidence("grew_in", _TABLE, items_count=len(alike), of_count=count),
    ]
    cause = _cause(alike)
    if cause[0]:
        like = [one for _, one in alike if (one["cause_kind"], one["cause_name"]) == cause]
        out.append(
            Evidence(
                "behind_slow",
                _TABLE,
                at,
                row["rank"],
                int(cause[1]) if cause[0] == "worker" else -1,
                amount_ns=median(one["cause_ns"] for one in like),
                high_ns=median(one["extra_ns"] for one in like),
                items_count=len(like),
                of_count=len(alike),
                kind=cause[0],
                name=cause[1],
            )
        )
    return out


def _cause(alike: Sequence[_Row]) -> tuple[str, str]:
    """Return kind and name of what the extra time goes to in most of these steps; empty if it is nothing recorded."""
    causes = Counter((row["cause_kind"], row["cause_name"]) for _, row in alike if row["cause_kind"])
    if not causes:
        return "", ""
    cause, count = causes.most_common(1)[0]
    return cause if count >= _MOST_RATIO * len(alike) else ("", "")


def _beside(rows: Sequence[_Row]) -> list[Evidence]:
    """Return what was beside most of the slow steps."""
    names = Counter(name for _, row in rows for name in row["beside"].split(", ") if name)
    return [
        Evidence("beside_slow", _TABLE, items_count=count, of_count=len(rows), kind=name)
        for name, count in names.items()
        if count >= _MOST_RATIO * len(rows)
    ]
