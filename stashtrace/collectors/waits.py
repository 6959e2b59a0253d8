"""Decodes blocking waits of watched threads into the ``waits`` table."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from stashtrace.collectors.decode_context import DecodeContext, columns_of
from stashtrace.schema.trace import EventTables, RawProcess

RECORDS = ("thread_wait",)
TABLES = ("waits",)


def decode(raw: RawProcess, context: DecodeContext) -> EventTables:
    """Fill ``waits``, sorted by track, then begin."""
    found = context.intervals(raw, "thread_wait")
    if found is None:
        return context.tables()
    rows, columns = found
    columns |= columns_of(rows, "wait_code")
    return context.tables(waits=columns)
