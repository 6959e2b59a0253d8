"""How often copies were opened in the place of files: what `stashtrace run --staged` came to."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.analysis.io_calls import OPENS
from stashtrace.model.kinds import IoFlag
from stashtrace.model.trace import Trace


def staged_opens(trace: Trace) -> int:
    """Opens of a run that were served by a copy."""
    return sum(
        int((np.isin(piece["op_code"], OPENS) & ((piece["io_flags"] & IoFlag.STAGED) != 0)).sum())
        for piece in trace.io_pieces()
    )


def used_copies(trace: Trace) -> bool:
    """Whether a run was given a list of copies."""
    key = trace.strings.find("staged")
    return key >= 0 and bool(((trace.metadata["key_code"] == key) & (trace.metadata["process_id"] == -1)).any())
