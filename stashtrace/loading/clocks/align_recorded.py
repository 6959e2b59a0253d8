"""Align the clocks of several hosts by their common operations, in native runs and in imported files.

For runs of more than one boot, after the wall clocks have given a first guess. ``align_run`` takes the collectives and
pings of all processes on that guess, fits the offsets, and corrects the clocks. ``align_tables`` does so with the
tables of imported files, before times are counted from the first one.

In a group of hosts, every host is compared with one of them, the hub, so a thousand hosts need a thousand fits. A tree
of the fits has the least error from the reference, and errors add up along it. A host without a connection to the
reference keeps its first guess.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stashtrace.loading.clocks import fit_host_pair
from stashtrace.loading.clocks.fit_host_pair import STRAIGHT, Bend
from stashtrace.loading.clocks.host_clock import RunClocks
from stashtrace.loading.clocks.meetings import NONE, Meetings, meetings_of, pings_of
from stashtrace.loading.clocks.policy import POLICY
from stashtrace.loading.process_identity import Process
from stashtrace.schema.events import TABLES
from stashtrace.schema.groupby import Floats, Int64
from stashtrace.schema.kinds import CollectiveSource, DeviceClock, Severity
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Array, Table
from stashtrace.schema.trace import EventTables, LossRow

_NAMES = {fit_host_pair.COLLECTIVES: "collectives", fit_host_pair.PING: "ping"}


@dataclass(frozen=True, slots=True)
class HostOffset:
    """Offset from a host's clock to that of the reference, at knots; linear between them."""

    #: Ascending moments of the host's clock, offset to add, half-width of its error.
    at_ns: Int64
    offset_ns: Int64
    error_ns: Int64
    #: ``collectives``, ``ping`` or both joined by ``+``.
    method: str
    #: (int, int); First and last knot of the time with common operations.
    touch: tuple[int, int]

    @property
    def touch_error_ns(self) -> int:
        """Largest error in the time with common operations."""
        return int(self.error_ns[self.touch[0] : self.touch[1] + 1].max())

    def moved(self, times_ns: Int64) -> Int64:
        """Return times of the host's clock, in ns on the clock of the reference."""
        base, first = int(self.at_ns[0]), int(self.offset_ns[0])
        knots = (self.at_ns - base).astype(np.float64)
        # Floats hold distances only, so that a time stamp never loses digits.
        change = _interpolate((times_ns - base).astype(np.float64), knots, (self.offset_ns - first).astype(np.float64))
        return times_ns + first + np.rint(change).astype(np.int64)

    @property
    def drift_ppb(self) -> int:
        """Mean difference of the rates in ppb."""
        span = int(self.at_ns[-1] - self.at_ns[0])
        return round(int(self.offset_ns[-1] - self.offset_ns[0]) * 10**9 / span) if span else 0


@dataclass(frozen=True, slots=True)
class Alignment:
    """Offsets by host, and contradictions."""

    #: Host -> its offset to the reference; without the reference itself and hosts that have no offset.
    offsets: dict[int, HostOffset]
    #: Number of limits that others contradict, and of operations that are not valid.
    rejected_count: int = 0
    #: Hosts whose clock seems to have been set during the run.
    stepped: tuple[int, ...] = ()


def align_hosts(
    meetings: Meetings, lifes_ns: Int64, reference: int, bends: Sequence[fit_host_pair.Bend] = ()
) -> Alignment:
    """Align all hosts to one.

    ``lifes_ns``: first and last known moment of each host, on its clock. ``reference``: host to align to. ``bends``: of
    each host's clock; by default, all are straight.
    """
    edges: dict[tuple[int, int], fit_host_pair.OffsetFit] = {}
    rejected = meetings.dropped_count
    for (leader, follower), rows in _pairs(meetings, len(lifes_ns), reference).items():
        limits, ends = rows
        bend = bends[leader] + bends[follower] if bends else fit_host_pair.STRAIGHT
        begin, end = lifes_ns[follower].tolist()
        fit = fit_host_pair.fit_offset(limits, ends, begin, end, bend)
        if fit is not None:
            edges[leader, follower] = fit
            rejected += fit.rejected_count
    offsets, used = _tree(edges, lifes_ns, reference)
    stepped = {b if a == reference else a if b == reference else b for a, b in used if edges[a, b].stepped}
    return Alignment(offsets, rejected, tuple(sorted(stepped)))


# Pairs ------------------------------------------------------------------------------------------


def _pairs(
    meetings: Meetings, hosts: int, reference: int
) -> dict[tuple[int, int], tuple[fit_host_pair.Limits, fit_host_pair.CommonEnds]]:
    """Map (leader, follower) to limits and common ends; an operation compares its hub with each of its other hosts."""
    if not len(meetings.operation):
        return {}
    starts = np.flatnonzero(np.diff(meetings.operation, prepend=-1))
    block = np.cumsum(np.diff(meetings.operation, prepend=-1) != 0) - 1
    hub = _hubs(meetings, starts, hosts, reference)
    hub_row = np.full(len(starts), -1, dtype=np.int64)
    at_hub = meetings.host == hub[block]
    hub_row[block[at_hub]] = np.flatnonzero(at_hub)
    rows = np.flatnonzero(~at_hub & (hub_row[block] >= 0))
    other = hub_row[block[rows]]
    # The leader of a pair is the host with the lower number, whichever of the two is the hub.
    swap = meetings.host[rows] < meetings.host[other]
    lead, follow = np.where(swap, rows, other), np.where(swap, other, rows)
    key = meetings.host[lead] * hosts + meetings.host[follow]
    order = np.argsort(key, kind="stable")
    lead, follow, key = lead[order], follow[order], key[order]
    bounds = np.append(np.flatnonzero(np.diff(key, prepend=-1)), len(key))
    limits = {}
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        pair = divmod(int(key[first]), hosts)
        limits[pair] = _limits(meetings, lead[first:last], follow[first:last])
    return limits


def _limits(meetings: Meetings, lead: Int64, follow: Int64) -> tuple[fit_host_pair.Limits, fit_host_pair.CommonEnds]:
    enter, end = meetings.enter_ns, meetings.end_ns
    above = (end[lead] != NONE) & (enter[follow] != NONE)
    below = (enter[lead] != NONE) & (end[follow] != NONE)
    up_at, down_at = enter[follow][above], end[follow][below]
    limits = fit_host_pair.Limits(
        np.concatenate([up_at, down_at]),
        np.concatenate([end[lead][above] - up_at, enter[lead][below] - down_at]),
        np.concatenate([np.ones(len(up_at), dtype=bool), np.zeros(len(down_at), dtype=bool)]),
        np.concatenate([meetings.source[lead][above], meetings.source[lead][below]]),
    )
    both = above & below & meetings.together[lead]
    a, b = lead[both], follow[both]
    error = meetings.error_ns[a] + meetings.error_ns[b]
    ends = fit_host_pair.CommonEnds(
        end[b] - meetings.error_ns[b],
        (end[a] - meetings.error_ns[a]) - (end[b] - meetings.error_ns[b]),
        enter[a] - enter[b],
        np.minimum(end[a] - enter[a] - 2 * meetings.error_ns[a], end[b] - enter[b] - 2 * meetings.error_ns[b]),
        error,
        meetings.on_device[a] & meetings.on_device[b],
    )
    return limits, ends


def _hubs(meetings: Meetings, starts: Int64, hosts: int, reference: int) -> Int64:
    """Return the hub of each operation: the host that its other hosts are compared with.

    If the operation has a root or a sender, the hub is its host, because only its times limit those of the others. Else
    all operations of a group have one hub: the reference, or a host that another group connects to it.
    """
    enters, ends = meetings.enter_ns != NONE, meetings.end_ns != NONE
    count = np.diff(np.append(starts, len(enters)))
    sources, sinks = np.add.reduceat(enters, starts), np.add.reduceat(ends, starts)
    rows = np.arange(len(enters))
    first_source = np.minimum.reduceat(np.where(enters, rows, len(rows)), starts)
    first_sink = np.minimum.reduceat(np.where(ends, rows, len(rows)), starts)
    special = np.where(sources < np.maximum(sinks, 2), first_source, first_sink)
    special = np.where(special < len(rows), special, starts)
    plain = meetings.together[starts] & (count > 1)
    circle_hub = _circle_hubs(meetings, hosts, reference)
    return np.asarray(np.where(plain, circle_hub[meetings.circle[starts]], meetings.host[special]), dtype=np.int64)


def _circle_hubs(meetings: Meetings, hosts: int, reference: int) -> Int64:
    """Return the hub of each group: the member that a walk from the reference reaches first."""
    member = np.unique(meetings.circle * hosts + meetings.host)
    circle, host = member // hosts, member % hosts
    circles = int(meetings.circle.max()) + 1
    of_circle = np.split(host, np.flatnonzero(np.diff(circle)) + 1)
    members = dict(zip(np.unique(circle).tolist(), of_circle, strict=True))
    of_host: dict[int, list[int]] = {}
    for c, h in zip(circle.tolist(), host.tolist(), strict=True):
        of_host.setdefault(h, []).append(c)
    hub = np.full(circles, -1, dtype=np.int64)
    waiting, seen = [reference], {reference}
    while waiting:
        next_hosts: list[int] = []
        for h in waiting:
            for c in of_host.get(h, ()):
                if hub[c] < 0:
                    hub[c] = h
                    fresh = [m for m in members[c].tolist() if m not in seen]
                    seen.update(fresh)
                    next_hosts += fresh
        waiting = next_hosts
    for c, listed in members.items():  # not connected to the reference by groups; perhaps by messages
        if hub[c] < 0:
            hub[c] = listed[0]
    return hub


# The tree ---------------------------------------------------------------------------------------


def _tree(
    edges: dict[tuple[int, int], fit_host_pair.OffsetFit], lifes_ns: Int64, reference: int
) -> tuple[dict[int, HostOffset], list[tuple[int, int]]]:
    """Return the offset of each host along the path of least error from the reference, and the pairs used."""
    near: dict[int, list[tuple[int, tuple[int, int]]]] = {}
    for pair in edges:
        near.setdefault(pair[0], []).append((pair[1], pair))
        near.setdefault(pair[1], []).append((pair[0], pair))
    begin, end = lifes_ns[reference].tolist()
    zero = np.zeros(2, dtype=np.int64)
    start = HostOffset(np.array([begin, max(end, begin + 1)]), zero, zero, "", (0, 1))
    offsets: dict[int, HostOffset] = {}
    used: list[tuple[int, int]] = []
    queue: list[tuple[int, int, int, tuple[int, int] | None]] = [(0, reference, -1, None)]
    while queue:
        error, host, parent, way = heapq.heappop(queue)
        if host in offsets:
            continue
        if way is None:
            offsets[host] = start
        else:
            offsets[host] = _chain(_toward(edges[way], way[1] == host), offsets[parent], edges[way])
            used.append(way)
        for other, edge in near.get(host, ()):
            if other not in offsets:
                heapq.heappush(queue, (error + int(edges[edge].error_ns.max()), other, host, edge))
    del offsets[reference]
    return offsets, used


def _toward(fit: fit_host_pair.OffsetFit, is_follower: bool) -> tuple[Int64, Int64, Int64]:
    """Return (moments, offset, error) that map one host of a pair to the other."""
    if is_follower:
        return fit.at_ns, fit.offset_ns, fit.error_ns
    return fit.at_ns + fit.offset_ns, -fit.offset_ns, fit.error_ns


def _chain(own: tuple[Int64, Int64, Int64], parent: HostOffset, fit: fit_host_pair.OffsetFit) -> HostOffset:
    """Return the offset to the reference by way of a parent; the errors are added up."""
    at, offset, error = own
    there = at + offset
    # np.interp on distances only, so that a time stamp never loses digits.
    base = int(there[0])
    knots = (parent.at_ns - base).astype(np.float64)
    moment = (there - base).astype(np.float64)
    first = int(parent.offset_ns[0])
    change = _interpolate(moment, knots, (parent.offset_ns - first).astype(np.float64))
    more = np.interp(moment, knots, parent.error_ns.astype(np.float64))
    names = {_NAMES[s] for s in fit.sources} | set(filter(None, parent.method.split("+")))
    return HostOffset(
        at,
        offset + first + np.rint(change).astype(np.int64),
        error + np.ceil(more).astype(np.int64),
        "+".join(sorted(names)),
        fit.touch,
    )


def _interpolate(moment: Floats, knots: Floats, value: Floats) -> Floats:
    """Return values at each moment: linear between knots, and at the mean rate beyond the outer ones."""
    rate = (value[-1] - value[0]) / (knots[-1] - knots[0])
    inside = np.clip(moment, knots[0], knots[-1])
    return np.asarray(np.interp(inside, knots, value) + (moment - inside) * rate)


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
                worth = (0, 0, POLICY.realtime_error_ns, POLICY.realtime_error_ns, code("realtime"))
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
    own_error = np.full(len(order), POLICY.stamp_error_ns, dtype=np.int64)
    alignment = align_tables(tables["collectives"], tables["groups"], host_of, own_error, lifes)
    clocks.offsets = {order[host]: offset for host, offset in alignment.offsets.items()}
    clocks.losses = alignment_losses(alignment, order)
    return clocks
