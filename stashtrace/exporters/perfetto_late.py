"""What kept the late rank, as an argument of the waits for it: of the costliest operations, as `late` names them."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from typing import Any

import numpy as np

from stashtrace.analysis.collectives import communicator_names
from stashtrace.analysis.registry import analyze
from stashtrace.exporters.perfetto_tracks import Ints, Texts
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace
from stashtrace.units import duration_text, shortened

_NAME_WIDTH = 60


def reasons(trace: Trace, table: Table) -> tuple[Ints, Texts]:
    """For each row of some collectives of the trace the code of what kept its late rank, -1 if nothing is known."""
    texts: list[str] = []
    codes: dict[tuple[str, int], int] = {}
    for row in analyze(trace, "late").rows():
        if row["cause_kind"] != "unknown":
            codes[row["communicator"], row["sequence"]] = len(texts)
            texts.append(reason(row))
    hashes, inverse = np.unique(table["group_hash"], return_inverse=True)
    names = communicator_names(trace, hashes)
    out = np.full(len(table), -1, dtype=np.int64)
    for (name, sequence), code in codes.items():
        if np.count_nonzero(names == name) == 1:  # of groups that share a name nobody knows which is meant
            out[(names[inverse] == name) & (table["sequence"] == sequence)] = code
    return out, Texts(texts or [""])


def reason(row: dict[str, Any]) -> str:
    """Cause, worker, name and time.

    Examples
    --------
    >>> reason({"cause_kind": "fetch", "cause_ns": 38_000_000, "cause_worker_id": 5, "cause_name": "/data/shard-0117"})
    'fetch 38.0 ms longer, worker 5, shard-0117'
    """
    parts = [f"{row['cause_kind']} {duration_text(row['cause_ns'])} longer"]
    parts += [f"worker {row['cause_worker_id']}"] if row["cause_worker_id"] >= 0 else []
    name = row["cause_name"]
    parts += [os.path.basename(name) if name.startswith("/") else shortened(name, _NAME_WIDTH)] if name else []
    return ", ".join(parts)
