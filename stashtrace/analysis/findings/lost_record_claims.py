"""Claims about lost records: the share of all records if it matters, then one claim per kind of loss."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.findings.claim_rows import Claim, Evidence
from stashtrace.analysis.stalls.rows_by_thread import cut_processes
from stashtrace.schema.kinds import Severity
from stashtrace.schema.trace import Trace

#: A loss above this share of all records comes first.
_MATTERS_RATIO = 0.01
_AT_MOST = 3
#: Collector of losses of whole files: missing, unreadable or of different jobs.
WHOLE_FILES = "importers"
#: Losses of a value: the record is kept.
_KEPT = ("negative_times", "impossible_numbers", "hashes_ambiguous")
#: Losses of an unknown number of records; their counts are of files or of parts of them.
_UNCOUNTED = (
    "damaged_lanes",
    "damaged_ring_header",
    "ring_without_file",
    "unreadable_file",
    "unreadable_ring",
)
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


def _rows_with_reasons(trace: Trace, names: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return the rows of the losses table with one of these reasons."""
    codes = [code for code in map(trace.strings.find, names) if code >= 0]
    return np.isin(trace.losses["name_code"], codes)


def loss_claims(trace: Trace) -> list[Claim]:
    """Return claims about the share of lost records if it is above 1 %, and about the worst kinds of loss."""
    losses = trace.losses
    serious = losses.take(losses["severity_code"] >= Severity.ERROR)
    totals: dict[tuple[str, str], int] = {}
    advices: dict[tuple[str, str], dict[str, None]] = {}
    severity: dict[tuple[str, str], int] = {}
    for row in serious.rows():
        key = (trace.text(row["collector_code"]), trace.text(row["name_code"]))
        totals[key] = totals.get(key, 0) + row["lost_count"]
        severity[key] = max(severity.get(key, 0), row["severity_code"])
        advices.setdefault(key, {})[trace.text(row["advice_code"])] = None
    # Problems of whole files come before losses of single rows.
    order = sorted(totals, key=lambda key: (key[0] != WHOLE_FILES, -totals[key]))
    claims = []
    lost = lost_count(trace)
    whole = lost + trace.io_rows_count + sum(len(trace.table(name)) for name in _RECORDED)
    gone = (key for key in order if severity[key] == Severity.DATA_LOSS and key[1] not in (*_KEPT, *_UNCOUNTED))
    worst = max(gone, key=totals.__getitem__, default=None)
    if worst is not None and lost > _MATTERS_RATIO * whole:
        claims.append(
            Claim(
                "headline",
                "records_lost",
                name=worst[1],
                items_count=lost,
                share_ratio=lost / whole,
                evidence=(Evidence("records", items_count=whole),),
            )
        )
    for key in order[:_AT_MOST]:
        known = list(advices[key])
        rows = (Evidence("loss_advice", "losses", name=known[0], items_count=len(known) - 1),) if known[0] else ()
        claims.append(Claim("loss", key[0], name=key[1], items_count=totals[key], evidence=rows))
    if len(order) > _AT_MOST:
        claims.append(Claim("loss", "more", items_count=len(order) - _AT_MOST))
    return claims


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
