"""Lost records: their share of all records where it matters, then one claim for each kind of loss.

``records_lost`` comes first of all: ``name`` is the reason that lost most, ``share_ratio`` is of all records
(``all_count``). In the section ``loss`` the kind is the collector, ``name`` the reason, ``items_count`` lost records;
``more`` counts the kinds of loss that are not listed. ``advice`` is what would have helped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stashtrace.analysis.findings.claim_rows import Claim, Facts, claim
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.intervals import Bools
from stashtrace.analysis.stalls.rows_by_thread import cut_processes
from stashtrace.schema.kinds import Severity
from stashtrace.schema.trace import WHOLE_FILES, Trace

#: Losses of a value: the record is kept.
_KEPT = ("negative_times", "impossible_numbers", "hashes_ambiguous")
#: Losses of an unknown number of records; their counts are of files or of parts of them.
_UNCOUNTED = ("damaged_lanes", "damaged_ring_header", "ring_without_file", "unreadable_file", "unreadable_ring")
#: Tables whose rows are records of the job.
_RECORDED = (
    "spans",
    "phases",
    "batches",
    "waits",
    "collectives",
    "collective_waits",
    "counters",
    "device_brackets",
    "device_calls",
    "kernels",
)
#: Why records were lost -> reasons of losses.
_CAUSES = {
    "too many threads at once": ("no_lane", "lost_lane_rows"),
    "no space left in the run directory": ("no_space", "no_space_rows"),
    "errors while writing to the run directory": ("not_written", "not_written_rows"),
    "records that came faster than they could be written": ("lane_full", "lane_full_rows"),
}
_REASONS = {reason: cause for cause, reasons in _CAUSES.items() for reason in reasons}
#: Reasons that are reported as one.
_FIRST_REASON = {reason: reasons[0] for reasons in _CAUSES.values() for reason in reasons}


def loss_claims(trace: Trace) -> list[Claim]:
    """Return claims about the share of lost records if it matters, and about the worst kinds of loss."""
    losses = trace.losses
    totals: dict[tuple[str, str], int] = {}
    advices: dict[tuple[str, str], dict[str, None]] = {}
    severity: dict[tuple[str, str], int] = {}
    for row in losses.take(losses["severity_code"] >= Severity.ERROR).rows():
        reason = trace.text(row["name_code"])
        key = (trace.text(row["collector_code"]), _FIRST_REASON.get(reason, reason))
        totals[key] = totals.get(key, 0) + row["lost_count"]
        severity[key] = max(severity.get(key, 0), row["severity_code"])
        advices.setdefault(key, {})[trace.text(row["advice_code"])] = None
    # Problems of whole files come before losses of single rows.
    order = sorted(totals, key=lambda key: (key[0] != WHOLE_FILES, -totals[key]))
    gone = (k for k in order if severity[k] == Severity.DATA_LOSS and k[1] not in (*_KEPT, *_UNCOUNTED))
    worst = max(gone, key=totals.__getitem__, default=None)
    claims = [] if worst is None else _much(trace, worst[1])
    claims += [_kind(*key, totals[key], list(advices[key])) for key in order[: POLICY.named_count]]
    more = len(order) - POLICY.named_count
    if more > 0:
        said = "{items_count:more kind} of loss; see `stashtrace info`"
        claims.append(claim("loss", "more", said, items_count=more))
    return claims


def _much(trace: Trace, reason: str) -> list[Claim]:
    """Return a claim about all lost records, if they are many; ``reason`` is that of most of them."""
    lost = lost_count(trace)
    whole = lost + trace.io_rows_count + sum(len(trace.table(name)) for name in _RECORDED)
    if lost <= POLICY.records_lost_ratio * whole:
        return []
    said = (
        f"RECORDS LOST: {{items_count:count}} of {{all_count:count}} ({{share_ratio:percent}})"
        f"{', most of them because of {why}' if reason else ''}; the figures below leave them out"
    )
    facts = Facts(name=reason, items_count=lost, share_ratio=lost / whole, all_count=whole)
    why = _REASONS.get(reason, reason.replace("_", " "))
    return [claim("headline", "records_lost", said, **facts, why=why)]


def _kind(collector: str, reason: str, count: int, advices: list[str]) -> Claim:
    """Return the claim about one kind of loss; the first of many files stands for all."""
    advice, more = advices[0], len(advices) - 1
    and_more = " (and {more_count:count} more like it)" if advice and more else ""
    if collector == WHOLE_FILES and advice:
        said = f"{{advice}}{and_more}"
    elif reason in _REASONS:
        said = f"{{items_count:count}} records lost ({{kind}}): {_REASONS[reason]}"
    else:
        many, why = "{items_count:count} " if count > 0 else "", ": {advice}" if advice else ""
        said = f"{many}{{what}} ({{kind}}){why}{and_more}"
    what = reason.replace("_", " ")
    what = what.removesuffix("s") if count == 1 else what
    facts = Facts(advice=advice, more_count=more) if advice else Facts()
    return claim("loss", collector, said, name=reason, items_count=count, what=what, **facts)


def lost_claim(trace: Trace) -> Claim:
    """Return the claim about the number of lost records, also where it is nothing."""
    uncounted = loses_uncounted(trace)
    said = f"lost records {{items_count}}{' and an unknown number more' if uncounted else ''}"
    name = "uncounted" if uncounted else ""
    return claim("trust", "lost_records", said, name=name, items_count=lost_count(trace))


def lost_count(trace: Trace) -> int:
    """Return the number of lost records as far as it is known; records that lost only a value are not counted."""
    losses = trace.losses
    lost = (losses["severity_code"] == Severity.DATA_LOSS) & ~_rows_with_reasons(trace, (*_KEPT, *_UNCOUNTED))
    return int(losses["lost_count"][lost].sum())


def loses_uncounted(trace: Trace) -> bool:
    """Return True if records were lost whose number is unknown."""
    return bool(_rows_with_reasons(trace, _UNCOUNTED).any())


def cut_ranks(trace: Trace) -> frozenset[int]:
    """Return the ranks whose file ends early: where they show no work, the cut may have taken it."""
    processes = trace.processes
    return frozenset(processes["rank"][np.isin(processes["process_id"], list(cut_processes(trace)))].tolist())


def _rows_with_reasons(trace: Trace, names: Sequence[str]) -> Bools:
    codes = [code for code in map(trace.strings.find, names) if code >= 0]
    return np.isin(trace.losses["name_code"], codes)


def losses_of(trace: Trace) -> list[dict[str, Any]]:
    """Return the rows of the losses table with their texts, for JSON."""
    return [
        {
            "collector": trace.text(row["collector_code"]),
            "reason": trace.text(row["name_code"]),
            "severity": Severity(row["severity_code"]).name.lower(),
            "lost_count": row["lost_count"],
            "advice": trace.text(row["advice_code"]),
        }
        for row in trace.losses.rows()
    ]
