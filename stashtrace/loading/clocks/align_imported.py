"""Put imported files of several hosts on one clock, by the same constraints as native runs, applied to the tables.

Used before times are counted from the first one. Until then, each file has the clock of its host. Common operations
of the hosts give the offset between their clocks; without them, the wall clock is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stashtrace.loading.clocks.align_recorded import align_tables, alignment_losses, lifes_of
from stashtrace.loading.clocks.host_clock import REALTIME_ERROR_NS
from stashtrace.loading.clocks.host_tree import HostOffset
from stashtrace.schema.events import TABLES
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Array, Table
from stashtrace.schema.trace import EventTables, LossRow

#: Largest rounding step of the time stamps in a file: many formats hold microseconds.
_STAMP_ERROR_NS = 1_000


@dataclass(slots=True)
class ImportedClocks:
    """Clocks of one load."""

    #: Clock of each process; empty where the host is unknown.
    clock_of: list[str]
    reference: str = ""
    #: Clock -> its offset to the reference, where one was found.
    offsets: dict[str, HostOffset] = field(default_factory=dict)
    losses: list[LossRow] = field(default_factory=list)

    def moved(self, table: Table, processes: Array) -> Table:
        """Return a table with its moments on the reference's clock; ``processes`` has the process of each row."""
        columns = {name: table[name] for name in table.schema.moments}
        own: dict[str, list[int]] = {}
        for process in np.unique(processes[processes >= 0]).tolist():  # mostly those of one file
            own.setdefault(self.clock_of[process], []).append(process)
        for clock, listed in own.items():
            offset = self.offsets.get(clock)
            if offset is not None:
                chosen = np.isin(processes, listed)
                columns = {
                    name: np.where(chosen & (values >= 0), offset.moved(values), values)
                    for name, values in columns.items()
                }
        return table.replace(**columns) if self.offsets else table

    def seen(self, times_ns: Mapping[int, int]) -> dict[int, int]:
        """Return the moments by process, on the reference's clock."""
        out = dict(times_ns)
        for process, moment in times_ns.items():
            offset = self.offsets.get(self.clock_of[process])
            if offset is not None:
                out[process] = int(offset.moved(np.array([moment]))[0])
        return out

    def table(self, strings: StringPool, origin_ns: int) -> Table:
        """Return the ``alignment`` table."""
        code = strings.code
        rows = []
        for clock in sorted(set(self.clock_of)):
            offset = self.offsets.get(clock)
            if offset is not None:
                at = origin_ns - int(offset.offset_ns[0])
                shift = int(offset.moved(np.array([at]))[0]) - at
                error = int(offset.error_ns.max())
                worth = (shift, offset.drift_ppb, error, offset.touch_error_ns, code(offset.method))
            elif clock and clock != self.reference:
                worth = (0, 0, REALTIME_ERROR_NS, REALTIME_ERROR_NS, code("realtime"))
            else:
                worth = (0, 0, 0, 0, code("same_clock" if clock else "assumed"))
            rows.append((code(clock), code(self.reference), *worth))
        return Table.from_rows(TABLES["alignment"], rows)


def imported_clocks(
    parts: Sequence[EventTables],
    clock_of: Sequence[str],
    ranks: Sequence[int],
    firsts_ns: Mapping[int, int],
    lasts_ns: Mapping[int, int],
) -> ImportedClocks:
    """Find the reference clock of a load and the offsets of the other clocks to it.

    ``parts``: each process on its own clock. ``clock_of``, ``ranks``: of each process. ``firsts_ns``, ``lasts_ns``:
    when each process was seen first and last.
    """
    clocks = ImportedClocks(list(clock_of))
    named = sorted({clock_of[p] for p in firsts_ns})
    if not named:
        return clocks
    clocks.reference = clock_of[min(firsts_ns, key=lambda p: (ranks[p] < 0, ranks[p], p))]
    if len(named) < 2:
        return clocks
    order = [clocks.reference, *(name for name in named if name != clocks.reference)]
    number = {name: i for i, name in enumerate(order)}
    host_of = np.array([number.get(name, 0) for name in clock_of], dtype=np.int64)
    tables = {name: Table.concat(TABLES[name], [p.table(name) for p in parts]) for name in ("collectives", "groups")}
    seen = sorted(firsts_ns)
    lifes = lifes_of(host_of[seen], [firsts_ns[p] for p in seen], [lasts_ns[p] for p in seen])
    own_error = np.full(len(order), _STAMP_ERROR_NS, dtype=np.int64)
    alignment = align_tables(tables["collectives"], tables["groups"], host_of, own_error, lifes)
    clocks.offsets = {order[host]: offset for host, offset in alignment.offsets.items()}
    clocks.losses = alignment_losses(alignment, order)
    return clocks
