"""Choose the name of what a rank does longer, as far as its recording shows it."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.analysis.findings.summary_input import RunFacts
from stashtrace.analysis.stragglers.surplus import GROUPS
from stashtrace.schema.trace import HOST_NOT_RECORDED, OPERATORS_RECORDED, Trace

#: Forwards without gradients, whatever kinds of time they are.
QUIET = "quiet"
#: All names that what a late rank does longer can have: those of ``kind_in_words``, and ``QUIET``.
WORK_NAMES = (*GROUPS, "reads", "unrecorded", QUIET)


def kind_in_words(facts: RunFacts, rank: int, group: str) -> str:
    """Return what a rank does longer, as the recording allows to say it; rank -1 is any."""
    if group == "other" and shows_no_waits(facts.trace):
        return "unrecorded"
    loading = facts.trace.batches["rank"] == rank if rank >= 0 else facts.trace.batches["rank"] >= 0
    if group == "data" and not loading.any():
        return "reads"  # without a loader there are no batches to wait for
    return group


def shows_no_waits(trace: Trace) -> bool:
    """Return True if time without a record need not be a wait: a host was not recorded, or only its operators were."""
    codes = [trace.strings.find(key) for key in (HOST_NOT_RECORDED, OPERATORS_RECORDED)]
    return bool(np.isin(trace.metadata["key_code"], [code for code in codes if code >= 0]).any())
