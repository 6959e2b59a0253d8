"""How many records were lost, as far as that is known, and of which ranks the end."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.stalls.rows_by_thread import cut_processes
from stashtrace.schema.kinds import Severity
from stashtrace.schema.trace import Trace

#: Losses of a value: the record is kept.
VALUES_LOST = ("negative_times", "impossible_numbers", "hashes_ambiguous")
#: Losses of an unknown number of records; their counts are of files or of parts of them.
UNCOUNTED = (
    "damaged_lanes",
    "damaged_ring_header",
    "ring_without_file",
    "unreadable_file",
    "unreadable_ring",
)


def lost_count(trace: Trace) -> int:
    """Return the number of lost records as far as it is known; records that lost only a value are not counted."""
    losses = trace.losses
    lost = (losses["severity_code"] == Severity.DATA_LOSS) & ~_rows_with_reasons(trace, (*VALUES_LOST, *UNCOUNTED))
    return int(losses["lost_count"][lost].sum())


def loses_uncounted(trace: Trace) -> bool:
    """Return True if records were lost whose number is unknown."""
    return bool(_rows_with_reasons(trace, UNCOUNTED).any())


def cut_ranks(trace: Trace) -> frozenset[int]:
    """Return the ranks whose file ends early: where they show no work, the cut may have taken it."""
    processes = trace.processes
    return frozenset(processes["rank"][np.isin(processes["process_id"], list(cut_processes(trace)))].tolist())


def _rows_with_reasons(trace: Trace, names: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return the rows of the losses table with one of these reasons."""
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
