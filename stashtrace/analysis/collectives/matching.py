"""Collectives matched across ranks: who entered last, when each row really ended, which link its bytes took."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import NEVER, Bools, Int64, int64
from stashtrace.schema.groupby import GroupBy, RowsBy, order_by
from stashtrace.schema.kinds import FROM_ROOT, SYNCHRONISING_OPS, TO_ROOT, CollectiveOp, ProcessRole
from stashtrace.schema.strings import ranks_of
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace, is_stated

#: Link of a group: inside one host, between hosts, between hosts but some members share one.
INSIDE, ACROSS, MIXED = 0, 1, 2
#: Ends of one operation differ by less than this share of its shortest row, or by this much.
_COMMON_END_RATIO, _COMMON_END_NS = 0.5, 100_000
#: Two devices of an imported trace are taken to agree about a moment to this.
_CLOCK_SLACK_NS = 50_000


@dataclass(frozen=True, slots=True)
class Matched:
    """Columns parallel to ``trace.collectives``."""

    #: End on this rank; estimated from later ends where it was not seen, ``NEVER`` if nothing speaks for an end.
    end_ns: Int64
    #: When and who the last rank was that this row had to wait for; own call and -1 if it waits for nobody, ``NEVER``
    #: if that rank never entered.
    last_enter_ns: Int64
    last_rank: Int64
    #: True if it ended and somebody unseen, or not known to belong to it, may have entered later: a member's row is
    #: missing, how many members there are is not known, what the operation waits for is not (``OTHER``, a root or a
    #: peer that nobody names), or the rows of an imported trace that were put together do not end together.
    partial: Bools
    #: INSIDE, ACROSS or MIXED, of the row's group.
    link: Int64
    #: False if the ranks' clocks are too far apart for this operation: then ``last_enter_ns`` is the own end minus the
    #: shortest duration of all ranks, and ``last_rank`` the rank that has it.
    by_clock: Bools
    #: False if a rank with another clock entered so soon before the last one that the clocks cannot show which of them
    #: was last; true where ``by_clock`` is not, since durations decide then.
    ordered: Bools


@dataclass(frozen=True, slots=True)
class Group:
    """One process group: global ranks in group order, its link, and how many ranks it has, -1 if nobody says."""

    members: Int64
    link: int
    size: int


def group_table(trace: Trace) -> dict[int, Group]:
    """Group hash -> Group; groups that no rank described consist of the ranks seen in their collectives."""
    rows, seen = RowsBy(trace.groups["group_hash"]), RowsBy(trace.collectives["group_hash"])
    of_ranks = places(trace)
    groups: dict[int, Group] = {}
    for value in np.union1d(rows.values, seen.values).tolist():
        described = rows.rows(value)
        text = max((trace.text(c) for c in trace.groups["members_code"][described].tolist()), key=len, default="")
        members = np.array(ranks_of(text), dtype=np.int64)
        size = max(len(members), int(trace.groups["group_size"][described].max(initial=-1)))
        if not len(members):
            members = np.unique(trace.collectives["rank"][seen.rows(value)])
        if not len(described):
            size = len(members)
        link = _link(members, trace.groups["crosses_hosts"][described], of_ranks)
        groups[value] = Group(members, link, size if size > 0 else -1)
    return groups


def process_values(trace: Trace, process_id: Int64, column: str) -> Int64:
    """Value of a column of ``processes`` for each process id; all of them are in that table."""
    processes = trace.processes
    return int64(processes[column][GroupBy(processes["process_id"]).row_of(process_id)])


def is_imported(trace: Trace) -> bool:
    """Whether another tool recorded it, or a part of it."""
    return is_stated(trace, "imported")


def places(trace: Trace) -> dict[int, tuple[int, int]]:
    """Rank -> (host, network namespace) of its process."""
    table = trace.processes
    rows = np.flatnonzero((table["role_code"] == ProcessRole.RANK) & (table["rank"] >= 0))
    names = zip(table["host_code"][rows].tolist(), table["netns_code"][rows].tolist(), strict=True)
    return dict(zip(table["rank"][rows].tolist(), names, strict=True))


def _link(members: Int64, crosses: Int64, of_ranks: dict[int, tuple[int, int]]) -> int:
    known = [of_ranks[m] for m in members.tolist() if m in of_ranks]
    crossing = bool((crosses == 1).any()) if (crosses >= 0).any() else len(set(known)) > 1
    if not crossing:
        return INSIDE
    return MIXED if 1 < len(set(known)) < len(known) else ACROSS


def peers_of(table: Table, rows: Int64, groups: dict[int, Group]) -> Int64:
    """Return the rank that each of some rows of ``collectives`` names as its peer; -1 if that is none of its group."""
    peer = np.full(len(rows), -1, dtype=np.int64)
    for value, at in GroupBy(table["group_hash"][rows]).items():
        members, place = groups[value].members, table["peer_rank"][rows[at]]
        peer[at] = np.append(members, -1)[np.where((place >= 0) & (place < len(members)), place, -1)]
    return peer


def match(trace: Trace, device_error_ns: Int64 | None = None, *, by_devices: bool = False) -> Matched:
    """Match the rows of ``trace.collectives`` across ranks.

    ``device_error_ns`` is what the clock behind each row's times adds to the error of its host's clock. A trace that
    holds some ranks of a store brings along what was matched among all of them; ``by_devices`` shows which half.
    """
    table = trace.collectives
    if len(trace.matched_collectives):
        return known_matches(trace.matched_collectives, table, by_devices)
    count = len(table)
    groups, recorded = group_table(trace), int64(sorted(places(trace)))
    end = _resolved_ends(trace)
    last_enter = table["call_ns"].copy()
    last_rank = np.full(count, -1, dtype=np.int64)
    partial = np.zeros(count, dtype=bool)
    link = np.zeros(count, dtype=np.int64)
    for value, rows in GroupBy(table["group_hash"]).items():
        link[rows] = groups[value].link
        op = table["op_code"][rows]
        pairs = np.isin(op, (CollectiveOp.SEND, CollectiveOp.RECEIVE))
        _match_pairs(table, rows[pairs], groups[value].members, last_enter, last_rank, partial)
        _match_blocks(table, rows[~pairs], groups[value], recorded, last_enter, last_rank, partial)
    by_clock, ordered = _trusted(trace, end, device_error_ns)
    if is_imported(trace):
        _doubt_uncommon_ends(table, end, by_clock, last_enter, last_rank, partial)
    shortest, quickest = _shortest(table, end)
    doubtful = ~by_clock & (last_rank >= 0) & (last_enter < NEVER)
    last_enter[doubtful] = (end - shortest)[doubtful]
    # The rank that had the least to wait entered last; a root is a root by whatever clock.
    together = doubtful & np.isin(table["op_code"], SYNCHRONISING_OPS)
    last_rank[together] = quickest[together]
    return Matched(end, last_enter, last_rank, partial, link, by_clock, ordered | ~by_clock)


#: Columns of ``matched_collectives``, in the order of the fields of ``Matched``.
_PARTS = ("resolved_end_ns", "last_enter_ns", "last_rank", "partial", "link", "by_clock", "ordered")


def match_columns(matched: Matched, *, by_devices: bool) -> dict[str, npt.NDArray[np.generic]]:
    """Columns of ``matched_collectives`` that keep one half of a match."""
    prefix, values = "device_" if by_devices else "", (getattr(matched, field.name) for field in fields(Matched))
    return {prefix + name: value for name, value in zip(_PARTS, values, strict=True)}


def known_matches(known: Table, collectives: Table, by_devices: bool) -> Matched:
    """Return the matches kept in ``matched_collectives`` for these rows; a row without one waits for nobody."""
    none = np.zeros(len(collectives), dtype=np.int64)
    alone = (collectives["end_ns"], collectives["call_ns"], none - 1, none, none + INSIDE, none + 1, none + 1)
    prefix = "device_" if by_devices else ""
    names = {prefix + name: rest for name, rest in zip(_PARTS, alone, strict=True)}
    end, enter, rank, partial, link, by_clock, ordered = known_columns(known, collectives, names)
    return Matched(end, enter, rank, partial.astype(bool), link, by_clock.astype(bool), ordered.astype(bool))


def known_columns(known: Table, collectives: Table, names: dict[str, Int64]) -> list[Int64]:
    """Columns of ``matched_collectives`` for these rows; the given values where it does not know a row."""
    row = GroupBy(known["collective_key"]).row_of(collectives["collective_key"])
    return [int64(np.where(row >= 0, known[name][row], rest)) for name, rest in names.items()]


def operations(table: Table) -> GroupBy:
    """Rows of ``collectives`` grouped by operation: one process group and sequence number."""
    return GroupBy(table["group_hash"], table["sequence"])


def blocks(table: Table) -> tuple[Int64, Int64]:
    """Order of rows by operation, and the operation of each row in that order."""
    each = operations(table)
    return each.order, each.number[each.order]


def ranks_present(table: Table) -> Int64:
    """Number of rows that the operation of each row has."""
    each = operations(table)
    return each.sizes[each.number]


def _shortest(table: Table, end: Int64) -> tuple[Int64, Int64]:
    """Shortest duration of each row's operation on any rank, and the lowest rank that has it."""
    each, duration = operations(table), end - table["call_ns"]
    shortest = each.min(duration)[each.number]
    quickest = each.min(table["rank"], where=duration == shortest)
    return shortest, quickest[each.number]


def contact_errors(trace: Trace) -> Int64:
    """Error of each clock of ``alignment`` while the hosts were in touch, as they are in a collective."""
    touch = trace.alignment["touch_error_ns"]
    return int64(np.where(touch > 0, touch, trace.alignment["error_ns"]))


def _trusted(trace: Trace, end: Int64, device_error_ns: Int64 | None) -> tuple[Bools, Bools]:
    """Per row: whether the error of the clocks is below half of the shortest duration, and whether it leaves no doubt
    who entered last. Of one clock both are always true.
    """
    table = trace.collectives
    trusted = np.ones(len(table), dtype=bool)
    error_of = dict(zip(trace.alignment["boot_code"].tolist(), contact_errors(trace).tolist(), strict=True))
    if device_error_ns is None and not any(error_of.values()):
        return trusted, trusted
    boot = process_values(trace, table["process_id"], "boot_code")
    error = GroupBy(boot).map(lambda code: error_of.get(code, 0))
    each = operations(table)
    if device_error_ns is not None:  # a device has a separate clock, whatever the host's
        boot, error = np.where(device_error_ns > 0, -1 - int64(table["process_id"]), boot), error + device_error_ns
    one_clock, worst = each.min(boot) == each.max(boot), np.maximum(each.max(error), 0)
    trusted = one_clock[each.number] | (2 * worst[each.number] <= _shortest(table, end)[0])
    ordered = one_clock | (_lead(table["call_ns"], boot, each) > 2 * worst)
    return trusted, ordered[each.number]


def _lead(call: Int64, boot: Int64, each: GroupBy) -> Int64:
    """Return the time from the entry of the latest rank with another clock to that of the last rank, by operation."""
    last = each.max(call)
    clock = boot[each.max(np.arange(len(call)), where=call == last[each.number])]
    before = each.max(call, where=boot != clock[each.number], empty=-NEVER)
    return int64(np.where(before == -NEVER, NEVER, last - np.maximum(before, -(NEVER // 2))))


def _match_blocks(
    table: Table, rows: Int64, group: Group, recorded: Int64, last_enter: Int64, last_rank: Int64, partial: Bools
) -> None:
    """Operations of one group by sequence number."""
    if len(rows) == 0:
        return
    rank, call, members = table["rank"], table["call_ns"], group.members
    rows = rows[order_by(table["sequence"][rows], call[rows], -rank[rows])]
    each = GroupBy(table["sequence"][rows])
    block, starts, final, present = each.number, each.first, each.last, each.sizes  # the last to call stands last
    ended = each.max(table["end_ns"][rows]) >= 0
    late_ns, late_rank = call[rows[final]].copy(), rank[rows[final]].copy()
    incomplete = present < len(members)
    hanging = np.flatnonzero(incomplete & ~ended)
    for at in hanging.tolist():  # at most a few: a group hangs once
        late_ns[at] = NEVER
        missing = np.setdiff1d(members, rank[rows[starts[at] : final[at] + 1]])
        # Of a rank that left no record nobody knows whether it entered.
        late_rank[at] = np.append(missing[np.isin(missing, recorded)], -1)[0]
    short = (incomplete | (present < group.size) | (group.size < 0)) & ended
    op, root = table["op_code"][rows], table["peer_rank"][rows]
    root_global = np.where((root >= 0) & (root < len(members)), members[np.clip(root, 0, len(members) - 1)], -1)
    is_root = rank[rows] == root_global
    unnamed = op == CollectiveOp.OTHER
    if unnamed.any() and not short.any() and _end_together(table, rows[unnamed], GroupBy(block[unnamed])):
        unnamed = np.zeros(len(rows), dtype=bool)  # whatever it is called: nobody leaves before the last has come
        waits_for_all = np.isin(op, (*SYNCHRONISING_OPS, CollectiveOp.OTHER))
    else:
        waits_for_all = np.isin(op, SYNCHRONISING_OPS)
    waits_for_all |= np.isin(op, TO_ROOT) & is_root
    last_enter[rows[waits_for_all]] = late_ns[block[waits_for_all]]
    last_rank[rows[waits_for_all]] = late_rank[block[waits_for_all]]
    partial[rows[waits_for_all]] = short[block[waits_for_all]]
    unsaid = unnamed | (np.isin(op, (*FROM_ROOT, *TO_ROOT)) & (root_global < 0))
    partial[rows[unsaid]] = ended[block[unsaid]]

    root_row = np.full(len(starts), -1, dtype=np.int64)
    root_row[block[is_root]] = rows[is_root]
    receives = np.isin(op, FROM_ROOT) & ~is_root & (root_global >= 0)
    source = root_row[block[receives]]
    root_call = np.where(source >= 0, call[source], np.where(ended[block[receives]], call[rows[receives]], NEVER))
    last_enter[rows[receives]] = root_call
    last_rank[rows[receives]] = root_global[receives]
    partial[rows[receives]] = (source < 0) & ended[block[receives]]


def _extents(table: Table, end: Int64, rows: Int64, each: GroupBy) -> tuple[Int64, Int64, Int64, Int64]:
    """Return last entry, first end, last end and shortest duration of each operation; ``each`` groups the rows."""
    call, end = table["call_ns"][rows], end[rows]
    return each.max(call), each.min(end), each.max(end), each.min(end - call)


def _end_together(table: Table, rows: Int64, each: GroupBy) -> bool:
    """Whether each operation, of several ranks, ends at once everywhere and nowhere before the last had entered."""
    enter, first, last, shortest = _extents(table, table["end_ns"], rows, each)
    similar = (last - first <= np.maximum(shortest * _COMMON_END_RATIO, _COMMON_END_NS)) & (first >= enter)
    return bool((each.sizes > 1).all() and (table["end_ns"][rows] >= 0).all() and similar.all())


def _doubt_uncommon_ends(
    table: Table, end: Int64, by_clock: Bools, last_enter: Int64, last_rank: Int64, partial: Bools
) -> None:
    """Check that rows matched by their order, in another tool's trace, look like one operation of all its ranks.

    Who left before another entered took part in another operation: then it is not known whom either waited for.
    """
    rows = np.flatnonzero(np.isin(table["op_code"], SYNCHRONISING_OPS) & by_clock)
    each = operations(table.take(rows))
    enter, first, last, shortest = _extents(table, end, rows, each)
    several = (each.sizes > 1) & (last < NEVER)
    apart = several & (first + _CLOCK_SLACK_NS < enter)
    doubted = apart | (several & (last - first > np.maximum(shortest * _COMMON_END_RATIO, _COMMON_END_NS)))
    partial[rows[doubted[each.number]]] = True
    wrong = rows[apart[each.number]]
    last_enter[wrong], last_rank[wrong] = table["call_ns"][wrong], -1


def _match_pairs(
    table: Table, rows: Int64, members: Int64, last_enter: Int64, last_rank: Int64, partial: Bools
) -> None:
    """Point to point: the n-th receive of a pair of ranks belongs to its n-th send.

    A send waits for its receiver only where it ended after the receiver had entered: others leave their bytes and go.

    A pair with a separate group may number its messages the same way on both sides, also those that were not
    recorded.
    """
    partial[rows] = table["end_ns"][rows] >= 0  # until the other side of the pair is found
    rows = rows[order_by(table["sequence"][rows], table["call_ns"][rows])]
    peer = table["peer_rank"][rows]
    known = (peer >= 0) & (peer < len(members))
    rows, peer = rows[known], members[peer[known]]
    if len(rows) == 0:
        return
    rank = table["rank"][rows]
    sends = table["op_code"][rows] == CollectiveOp.SEND
    source, target = np.where(sends, rank, peer), np.where(sends, peer, rank)
    order = order_by(source, target, ~sends)
    rows, source, target, sends = rows[order], source[order], target[order], sends[order]
    pairs = GroupBy.runs(source, target)
    for begin, end in itertools.pairwise(pairs.bounds.tolist()):
        sent = rows[begin:end][sends[begin:end]]
        received = rows[begin:end][~sends[begin:end]]
        if len(sent) and len(received):
            partial[rows[begin:end]] = False
        numbered = _pairs_by_number(table["sequence"], sent, received) if len(pairs) == 1 else None
        both = min(len(sent), len(received))
        fits, awaited = numbered or (received[:both], sent[:both])
        last_enter[fits] = table["call_ns"][awaited]
        last_rank[fits] = source[begin]
        entered = table["call_ns"][fits]
        met = (table["end_ns"][awaited] > entered) & (entered > table["call_ns"][awaited])
        last_enter[awaited[met]] = entered[met]
        last_rank[awaited[met]] = target[begin]
        missing = received[~np.isin(received, fits)]
        never = missing[table["end_ns"][missing] < 0]
        last_enter[never] = NEVER
        last_rank[never] = source[begin]


def _pairs_by_number(number: Int64, sent: Int64, received: Int64) -> tuple[Int64, Int64] | None:
    """Receives and the sends that they belong to; None where the sides do not number the same way."""
    if any(len(np.unique(number[side])) < len(side) for side in (sent, received)):
        return None
    _, at_sent, at_received = np.intersect1d(number[sent], number[received], assume_unique=True, return_indices=True)
    if 2 * len(at_sent) < min(len(sent), len(received)):
        return None
    return received[at_received], sent[at_sent]


def _resolved_ends(trace: Trace) -> Int64:
    """Ends on this rank. An unseen one lies before: the end of a wait for it, and any later end of its group and rank.

    Backends finish the operations of a group in order. Without such evidence the operation never ended.
    """
    table = trace.collectives
    end: Int64 = table["end_ns"].copy()
    unseen = end < 0
    if not unseen.any():
        return end
    end[unseen] = NEVER
    waits = trace.collective_waits
    row = GroupBy(table["collective_key"]).row_of(waits["collective_key"])
    row[(waits["collective_key"] < 0) | ~np.append(unseen, False)[row]] = -1
    end = np.minimum(end, GroupBy.numbered(row, len(end)).min(waits["end_ns"], empty=np.iinfo(np.int64).max))
    # By what the rows say to the last tie, so that no result depends on the order in which they came.
    order = order_by(*(table[c] for c in ("process_id", "group_hash", "sequence", "call_ns", "end_ns", "op_code")))
    # Smallest end of the rows from here to the end of the queue: a running minimum from the back, queue by queue.
    for queue in GroupBy.runs(table["process_id"][order], table["group_hash"][order]):
        rows = order[queue]
        later = np.minimum.accumulate(end[rows][::-1])[::-1]
        end[rows] = np.where(unseen[rows], np.maximum(later, table["call_ns"][rows]), end[rows])
    return end
