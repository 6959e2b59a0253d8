"""The order of rows in each table of a trace, and the numbers that follow from it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stashtrace.schema.table import Array, Table
from stashtrace.schema.trace import EventTables

#: Columns by which a table is sorted; the others keep the order of processes.
SORT_KEYS = {
    "spans": ("begin_ns",),
    "stacks": ("begin_ns", "depth"),
    "phases": ("begin_ns",),
    "batches": ("begin_ns",),
    "io": ("track_id", "begin_ns"),
    "waits": ("begin_ns",),
    "frames": ("process_id", "frame_key"),
    "stack_samples": ("ts_ns",),
    "stack_spans": ("begin_ns",),
    "collectives": ("call_ns",),
    "collective_waits": ("begin_ns",),
    "counters": ("track_id", "ts_ns"),
    "flows": ("source_ns",),
    "device_brackets": ("call_ns",),
    "device_calls": ("begin_ns",),
    "kernels": ("begin_ns",),
}
#: Rows that are checked at a time for being sorted.
_CHECK_ROWS = 1 << 20


def in_order_of(table: Table, keys: Sequence[str]) -> Table:
    """The table sorted by the keys; the same table if it is sorted already."""
    if not keys or len(table) < 2:
        return table
    in_order = all(
        _in_order([table[name][at : at + _CHECK_ROWS + 1] for name in keys])
        for at in range(0, len(table) - 1, _CHECK_ROWS)
    )
    return table if in_order else table.sort_by(*keys)


def _in_order(columns: Sequence[Array]) -> bool:
    in_order = np.ones(max(len(columns[0]) - 1, 0), dtype=bool)
    for column in reversed(columns):
        in_order &= column[1:] == column[:-1]
        in_order |= column[1:] > column[:-1]
    return bool(in_order.all())


def number_collectives(collectives: Table, *others: Table | None) -> dict[str, Table]:
    """Make ``collective_key`` the row number, in ``collectives`` and in the tables that refer to it."""
    old = collectives["collective_key"]
    rows = np.arange(len(old), dtype=np.int64)
    tables = {"collectives": collectives.replace(collective_key=rows)}
    for other in others:
        if other is not None and len(other) and len(old):
            order = np.argsort(old, kind="stable")
            at = np.clip(np.searchsorted(old[order], other["collective_key"]), 0, len(old) - 1)
            is_known = old[order][at] == other["collective_key"]
            tables[other.schema.name] = other.replace(collective_key=np.where(is_known, order[at], -1))
    return tables


def offset_keys(parts: Sequence[EventTables]) -> None:
    """Make keys unique in the trace; decoders count them from 0 within each process."""
    first = 0
    for part in parts:
        # Rows may have been left out since they were numbered.
        count = int(part.collectives["collective_key"].max(initial=-1)) + 1
        for name in ("collectives", "collective_details", "collective_waits") if first else ():
            table, keys = part.table(name), part.table(name)["collective_key"]
            if len(table):
                part.put(table.replace(collective_key=np.where(keys >= 0, keys + first, keys)))
        first += count
