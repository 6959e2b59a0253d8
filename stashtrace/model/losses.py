"""Rows of the ``losses`` table, from the tuples in which readers, decoders and importers report them."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from stashtrace.model.strings import StringPool

#: (collector, reason, severity, lost_count, advice), as in RawProcess.losses.
LossRow = tuple[str, str, int, int, str]

_MOST_LOST = int(np.iinfo(np.int64).max)


def losses_columns(process_id: int, rows: Iterable[LossRow], strings: StringPool) -> dict[str, Any]:
    """Columns of the ``losses`` table from loss tuples."""
    listed = list(rows)
    return {
        "process_id": np.full(len(listed), process_id, dtype=np.int64),
        "collector_code": strings.codes(r[0] for r in listed),
        "name_code": strings.codes(r[1] for r in listed),
        "severity_code": np.array([r[2] for r in listed], dtype=np.int64),
        # A count of a damaged file may need 64 bits without a sign; the table's column ends before.
        "lost_count": np.array([min(r[3], _MOST_LOST) for r in listed], dtype=np.int64),
        "advice_code": strings.codes(r[4] for r in listed),
    }
