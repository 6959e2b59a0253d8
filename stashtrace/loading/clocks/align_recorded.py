"""Align the clocks of several hosts by their common operations, in native runs and in imported files.

For runs of more than one boot, after the wall clocks have given a first guess. ``align_run`` takes the collectives and
pings of all processes on that guess, fits the offsets, and corrects the clocks. ``align_tables`` does so with the
tables of imported files, before times are counted from the first one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stashtrace.collectors.decode_context import Int64
from stashtrace.loading.clocks.fit_host_pair import STRAIGHT, Bend
from stashtrace.loading.clocks.host_clock import REALTIME_ERROR_NS, RunClocks
from stashtrace.loading.clocks.host_tree import Alignment, HostOffset, align_hosts
from stashtrace.loading.clocks.meetings import Meetings, meetings_of, pings_of
from stashtrace.loading.process_identity import Process
from stashtrace.schema.events import TABLES
from stashtrace.schema.kinds import CollectiveSource, DeviceClock, Severity
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Array, Table
from stashtrace.schema.trace import EventTables, LossRow

#: Tables with the operations that hosts have in common.
MEETING_TABLES = frozenset({"collectives", "groups"})
_DEVICE_CLOCK = {CollectiveSource.EVENTS: DeviceClock.EVENT, CollectiveSource.PLUGIN: DeviceClock.GLOBALTIMER}


def align_run(
    clocks: RunClocks, processes: Sequence[Process], parts: Sequence[EventTables], ends_ns: Sequence[int]
) -> list[LossRow]:
    """Correct the clocks of a run of several hosts; return contradictions as rows of ``losses``.

    ``clocks``: on a first guess; corrected in place. ``processes``: all processes of the run, numbered. ``parts``:
    :data:`MEETING_TABLES` of each process, on the first guess. ``ends_ns``: last recorded moment of each process, on
    the first guess.
    """
    boots = [clocks.reference, *sorted(clocks.of_boots().keys() - {clocks.reference})]
    number = {boot: i for i, boot in enumerate(boots)}
    host_of = np.array([number[p.clock.boot_id] for p in processes], dtype=np.int64)
    own_error = np.zeros(len(boots), dtype=np.int64)
    bends = [STRAIGHT] * len(boots)
    for clock in clocks:
        host = number[clock.boot_id]
        own_error[host] = max(own_error[host], clock.map.error_ns)
        bends[host] = max(bends[host], clock.bend(), key=lambda bend: bend.bow_ns)
    collectives, groups = (
        Table.concat(TABLES[name], [part.table(name) for part in parts]) for name in ("collectives", "groups")
    )
    error_of = {
        (p.number, int(source)): max((t.error_ns for (_, c), t in p.device_times.items() if c == clock), default=0)
        for p in processes
        for source, clock in _DEVICE_CLOCK.items()
    }
    pings = pings_of([p.core for p in processes], [p.clock for p in processes], host_of, own_error)
    lifes = lifes_of(host_of, [p.begin_ns for p in processes], ends_ns)
    fit = align_tables(collectives, groups, host_of, own_error, lifes, error_of, pings, bends)
    for clock in clocks:
        offset = fit.offsets.get(number[clock.boot_id])
        if offset is not None:
            at = offset.at_ns + clocks.origin_monotonic_ns
            error = int(offset.error_ns.max())
            clock.correct(at, offset.offset_ns, error, offset.touch_error_ns, offset.method)
    names = {p.clock.boot_id: str(p.core.metadata.get("host", "")) for p in processes}
    return alignment_losses(fit, [names.get(boot, boot) for boot in boots])


def align_tables(
    collectives: Table,
    groups: Table,
    host_of: Int64,
    own_error_ns: Int64,
    lifes_ns: Int64,
    error_of: Mapping[tuple[int, int], int] | None = None,
    pings: Meetings | None = None,
    bends: Sequence[Bend] = (),
) -> Alignment:
    """Align hosts by tables that hold each process's times on its host's clock; host 0 is the reference.

    ``host_of``: process_id -> host. ``own_error_ns``: error between moments of the same host's clock. ``lifes_ns``:
    begin and end of each host on its clock. ``error_of``: (process_id, source_code) -> error of the device clock behind
    its times. ``bends``: how straight each host's clock was; by default, all are straight.
    """
    meetings = meetings_of(collectives, groups, host_of, own_error_ns, error_of or {})
    return align_hosts(meetings if pings is None else Meetings.concat([meetings, pings]), lifes_ns, 0, bends)


def lifes_of(host_of: Int64, begins: Sequence[int], ends: Sequence[int]) -> Int64:
    """Return begin and end of each host as a (hosts, 2) array, from the begins and ends of its processes."""
    lifes = np.tile(np.array([np.iinfo(np.int64).max, 0]), (int(host_of.max()) + 1, 1))
    for host, begin, end in zip(host_of.tolist(), begins, ends, strict=True):
        lifes[host] = min(lifes[host, 0], begin), max(lifes[host, 1], end, begin + 1)
    return lifes


def alignment_losses(alignment: Alignment, names: Sequence[str]) -> list[LossRow]:
    """Return rejected limits and clocks that were set during the run as rows of ``losses``."""
    rows: list[LossRow] = []
    if alignment.rejected_count:
        text = "times of operations that two hosts shared contradict the others; they were left out of the clocks"
        rows.append(("core", "clock_limits_rejected", int(Severity.INFO), alignment.rejected_count, text))
    for host in alignment.stepped:
        text = f"the clock of {names[host]} seems to have been set during the run; the error of alignment covers it"
        rows.append(("core", "clock_stepped", int(Severity.ERROR), 1, text))
    return rows


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
