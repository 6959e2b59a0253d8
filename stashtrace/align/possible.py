"""Rows whose numbers cannot be: a file that is damaged, or made to harm, under right checksums.

Called by ``align.session`` for each decoded table. What follows subtracts moments and counts with these numbers in 64
bits; from here on the difference of any two of them fits. Importers have the same bound
(``importers.bounds``).
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stashtrace.model.table import Table

#: Numbers and moments end here: 2^62 ns since 1970 is the year 2116. The difference of any two fits 64 bits.
HIGHEST = (1 << 62) - 1
_IDENTITIES = ("_id", "_key", "_hash")


def is_possible(values: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Mask of the numbers within :data:`HIGHEST`."""
    return (values >= -HIGHEST) & (values <= HIGHEST)


def without_impossible(table: Table) -> tuple[Table, int]:
    """The rows whose moments, amounts and counts are all within :data:`HIGHEST`; how many were left out.

    Nobody computes with identities, which may be hashes of 64 bits: they may have any value.
    """
    bad: npt.NDArray[np.bool_] | None = None
    for column in table.schema.columns:
        if column.dtype != "i8" or not len(table) or column.name.endswith(_IDENTITIES):
            continue
        values = table[column.name]
        # The extremes are read without a temporary array: nearly every column passes here.
        if int(values.min()) >= -HIGHEST and int(values.max()) <= HIGHEST:
            continue
        outside = ~is_possible(values)
        bad = outside if bad is None else bad | outside
    if bad is None:
        return table, 0
    return table.take(~bad), int(bad.sum())
