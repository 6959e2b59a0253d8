"""Collectives matched across ranks: who entered last, when each row really ended, which link its bytes took.

Used by the attribution (``collective_layers``) and by the analyses ``collectives`` and ``stragglers``.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import NEVER, Int64, RowsBy, int64
from stashtrace.schema.kinds import SYNCHRONISING_OPS, CollectiveOp, ProcessRole
from stashtrace.schema.strings import ranks_of
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Operations in which the root feeds the others, and those in which it waits for them.
_FROM_ROOT = (CollectiveOp.BROADCAST, CollectiveOp.SCATTER)
_TO_ROOT = (CollectiveOp.REDUCE, CollectiveOp.GATHER)
#: Link of a group: inside one host, between hosts, between hosts but some members share one.
INSIDE, ACROSS, MIXED = 0, 1, 2
#: Ends of one operation differ by less than this share of its shortest row, or by this much.
_COMMON_END_RATIO, _COMMON_END_NS = 0.5, 100_000
#: Two devices of an imported trace are taken to agree about a moment to this.
_CLOCK_SLACK_NS = 50_000


@dataclass(frozen=True, slots=True)
class Matched:
    """Columns beside ``trace.collectives``, row by row.

    Attributes
    ----------
    end_ns
        End on this rank; estimated from later ends where it was not seen, ``NEVER`` if nothing speaks for an end.
    last_enter_ns, last_rank
        When and who the last rank was that this row had to wait for; own call and -1 if it waits for nobody,
        ``NEVER`` if that rank never entered.
    partial
        True if it ended and somebody unseen, or not known to belong to it, may have entered later: a member's row is
        missing, how many members there are is not known, what the operation waits for is not (``OTHER``, a root or
        a peer that nobody names), or the rows of an imported trace that were put together do not end together.
    link
        INSIDE, ACROSS or MIXED, of the row's group.
    by_clock
        False if the ranks' clocks are too far apart for this operation: then ``last_enter_ns`` is the own end minus the
        shortest duration of all ranks, and ``last_rank`` the rank that has it.
    ordered
        False if a rank with another clock entered so soon before the last one that the clocks cannot tell which of
        them was last; true where ``by_clock`` is not, since durations tell then.
    """

    end_ns: Int64
    last_enter_ns: Int64
    last_rank: Int64
    partial: npt.NDArray[np.bool_]
    link: Int64
    by_clock: npt.NDArray[np.bool_]
    ordered: npt.NDArray[np.bool_]


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
    found: dict[int, Group] = {}
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
        found[value] = Group(members, link, size if size > 0 else -1)
    return found


def is_imported(trace: Trace) -> bool:
    """Whether another tool recorded it, or a part of it."""
    code = trace.strings.find("imported")
    return code >= 0 and bool((trace.metadata["key_code"] == code).any())


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


def match(trace: Trace, device_error_ns: Int64 | None = None, *, by_devices: bool = False) -> Matched:
    """Match the rows of ``trace.collectives`` across ranks.

    ``device_error_ns`` is what the clock behind each row's times adds to the error of its host's clock. A trace that
    holds some ranks of a store brings along what was matched among all of them; ``by_devices`` tells which half.
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
    by_group = RowsBy(table["group_hash"])
    for value in by_group.values.tolist():
        rows = by_group.rows(value)
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


_PARTS = ("resolved_end_ns", "last_enter_ns", "last_rank", "partial", "link", "by_clock", "ordered")


def match_columns(matched: Matched, *, by_devices: bool) -> dict[str, npt.NDArray[np.generic]]:
    """Columns of ``matched_collectives`` that keep one half of a match."""
    values = (
        matched.end_ns,
        matched.last_enter_ns,
        matched.last_rank,
        matched.partial,
        matched.link,
        matched.by_clock,
        matched.ordered,
    )
    return {("device_" if by_devices else "") + name: value for name, value in zip(_PARTS, values, strict=True)}


def known_matches(known: Table, collectives: Table, by_devices: bool) -> Matched:
    """What ``matched_collectives`` says of these rows; a row that it does not know waits for nobody."""
    none = np.zeros(len(collectives), dtype=np.int64)
    alone = (collectives["end_ns"], collectives["call_ns"], none - 1, none, none + INSIDE, none + 1, none + 1)
    prefix = "device_" if by_devices else ""
    names = {prefix + name: rest for name, rest in zip(_PARTS, alone, strict=True)}
    end, enter, rank, partial, link, by_clock, ordered = known_columns(known, collectives, names)
    return Matched(end, enter, rank, partial.astype(bool), link, by_clock.astype(bool), ordered.astype(bool))


def known_columns(known: Table, collectives: Table, names: dict[str, Int64]) -> list[Int64]:
    """Columns of ``matched_collectives`` beside these rows; the given values where it does not know a row."""
    order = np.argsort(known["collective_key"], kind="stable")
    keys = known["collective_key"][order]
    at = np.minimum(np.searchsorted(keys, collectives["collective_key"]), len(keys) - 1)
    hit = keys[at] == collectives["collective_key"]
    return [int64(np.where(hit, known[name][order[at]], rest)) for name, rest in names.items()]


def blocks(table: Table) -> tuple[Int64, Int64]:
    """Order of rows by group and sequence, and the block number of each row in that order."""
    order = np.lexsort((table["sequence"], table["group_hash"]))
    group, sequence = table["group_hash"][order], table["sequence"][order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (group[1:] != group[:-1]) | (sequence[1:] != sequence[:-1])
    return order, np.cumsum(new) - 1


def ranks_present(table: Table) -> Int64:
    """How many rows the operation of each row has."""
    order, block = blocks(table)
    many = np.empty(len(order), dtype=np.int64)
    many[order] = np.bincount(block)[block] if len(order) else 0
    return many


def _shortest(table: Table, end: Int64) -> tuple[Int64, Int64]:
    """Shortest duration of each row's operation on any rank, and the lowest rank that has it."""
    if len(table) == 0:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    order, block = blocks(table)
    duration, rank = (end - table["call_ns"])[order], table["rank"][order]
    shortest = np.full(int(block[-1]) + 1, NEVER)
    np.minimum.at(shortest, block, duration)
    holds = duration == shortest[block]
    holder = np.full(len(shortest), NEVER)
    np.minimum.at(holder, block[holds], rank[holds])
    out, who = np.empty(len(order), dtype=np.int64), np.empty(len(order), dtype=np.int64)
    out[order], who[order] = shortest[block], holder[block]
    return out, who


def contact_errors(trace: Trace) -> Int64:
    """Error of each clock of ``alignment`` while the hosts were in touch, as they are in a collective."""
    touch = trace.alignment["touch_error_ns"]
    return int64(np.where(touch > 0, touch, trace.alignment["error_ns"]))


def _trusted(
    trace: Trace, end: Int64, device_error_ns: Int64 | None
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Per row: whether the error of the clocks is below half of the shortest duration, and whether it leaves no doubt
    who entered last. Of one clock both are always true."""
    table, processes = trace.collectives, trace.processes
    trusted = np.ones(len(table), dtype=bool)
    error_of = dict(zip(trace.alignment["boot_code"].tolist(), contact_errors(trace).tolist(), strict=True))
    if device_error_ns is None and not any(error_of.values()):
        return trusted, trusted
    boot_of = dict(zip(processes["process_id"].tolist(), processes["boot_code"].tolist(), strict=True))
    owners, inverse = np.unique(table["process_id"], return_inverse=True)
    boot = np.array([boot_of[p] for p in owners.tolist()], dtype=np.int64)[inverse]
    error = np.array([error_of.get(boot_of[p], 0) for p in owners.tolist()], dtype=np.int64)[inverse]
    order, block = blocks(table)
    count = int(block[-1]) + 1 if len(block) else 0
    if device_error_ns is not None:  # a device has a clock of its own, whatever the host's
        boot, error = np.where(device_error_ns > 0, -1 - int64(table["process_id"]), boot), error + device_error_ns
    low, high, worst = np.full(count, NEVER), np.full(count, -NEVER), np.zeros(count, dtype=np.int64)
    np.minimum.at(low, block, boot[order])
    np.maximum.at(high, block, boot[order])
    np.maximum.at(worst, block, error[order])
    trusted[order] = (low == high)[block] | (2 * worst[block] <= _shortest(table, end)[0][order])
    lead = _lead(table["call_ns"][order], boot[order], block, count)
    ordered = np.ones(len(table), dtype=bool)
    ordered[order] = ((low == high) | (lead > 2 * worst))[block]
    return trusted, ordered


def _lead(call: Int64, boot: Int64, block: Int64, count: int) -> Int64:
    """By how much the last rank of each operation entered after the latest one with another clock."""
    last = np.full(count, -NEVER)
    np.maximum.at(last, block, call)
    clock = np.full(count, -NEVER)
    is_last = call == last[block]
    clock[block[is_last]] = boot[is_last]
    other = boot != clock[block]
    before = np.full(count, -NEVER)
    np.maximum.at(before, block[other], call[other])
    return int64(np.where(before == -NEVER, NEVER, last - np.maximum(before, -(NEVER // 2))))


def _match_blocks(
    table: Table,
    rows: Int64,
    group: Group,
    recorded: Int64,
    last_enter: Int64,
    last_rank: Int64,
    partial: npt.NDArray[np.bool_],
) -> None:
    """Operations of one group by sequence number."""
    if len(rows) == 0:
        return
    rank, call, members = table["rank"], table["call_ns"], group.members
    rows = rows[np.lexsort((-rank[rows], call[rows], table["sequence"][rows]))]
    sequence = table["sequence"][rows]
    new = np.ones(len(rows), dtype=bool)
    new[1:] = sequence[1:] != sequence[:-1]
    block = np.cumsum(new) - 1
    starts = np.flatnonzero(new)
    final = np.append(starts[1:], len(rows)) - 1  # the last to call stands last
    present = np.diff(np.append(starts, len(rows)))
    ended = np.maximum.reduceat(table["end_ns"][rows], starts) >= 0
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
    if unnamed.any() and not short.any() and _end_together(table, rows[unnamed], block[unnamed]):
        unnamed = np.zeros(len(rows), dtype=bool)  # whatever it is called: nobody leaves before the last has come
        waits_for_all = np.isin(op, (*SYNCHRONISING_OPS, CollectiveOp.OTHER))
    else:
        waits_for_all = np.isin(op, SYNCHRONISING_OPS)
    waits_for_all |= np.isin(op, _TO_ROOT) & is_root
    last_enter[rows[waits_for_all]] = late_ns[block[waits_for_all]]
    last_rank[rows[waits_for_all]] = late_rank[block[waits_for_all]]
    partial[rows[waits_for_all]] = short[block[waits_for_all]]
    unsaid = unnamed | (np.isin(op, (*_FROM_ROOT, *_TO_ROOT)) & (root_global < 0))
    partial[rows[unsaid]] = ended[block[unsaid]]

    root_row = np.full(len(starts), -1, dtype=np.int64)
    root_row[block[is_root]] = rows[is_root]
    receives = np.isin(op, _FROM_ROOT) & ~is_root & (root_global >= 0)
    source = root_row[block[receives]]
    root_call = np.where(source >= 0, call[source], np.where(ended[block[receives]], call[rows[receives]], NEVER))
    last_enter[rows[receives]] = root_call
    last_rank[rows[receives]] = root_global[receives]
    partial[rows[receives]] = (source < 0) & ended[block[receives]]


def _extents(table: Table, end: Int64, rows: Int64, block: Int64) -> tuple[Int64, Int64, Int64, Int64, Int64]:
    """Of each block of rows: last entry, first end, last end, shortest duration, and how many rows it has."""
    count = int(block.max(initial=-1)) + 1
    enter, first, last = np.full(count, -NEVER), np.full(count, NEVER), np.full(count, -NEVER)
    shortest = np.full(count, NEVER)
    np.maximum.at(enter, block, table["call_ns"][rows])
    np.minimum.at(first, block, end[rows])
    np.maximum.at(last, block, end[rows])
    np.minimum.at(shortest, block, (end - table["call_ns"])[rows])
    return enter, first, last, shortest, int64(np.bincount(block, minlength=count))


def _end_together(table: Table, rows: Int64, block: Int64) -> bool:
    """Whether each operation, of several ranks, ends at once everywhere and nowhere before the last had entered."""
    enter, first, last, shortest, many = _extents(table, table["end_ns"], rows, block)
    there = many > 0
    alike = (last - first <= np.maximum(shortest * _COMMON_END_RATIO, _COMMON_END_NS)) & (first >= enter)
    return bool((many[there] > 1).all() and (table["end_ns"][rows] >= 0).all() and alike[there].all())


def _doubt_uncommon_ends(
    table: Table,
    end: Int64,
    by_clock: npt.NDArray[np.bool_],
    last_enter: Int64,
    last_rank: Int64,
    partial: npt.NDArray[np.bool_],
) -> None:
    """Rows that another tool's trace put together by their order must look like one operation of all its ranks.

    Who left before another entered took part in another operation: then it is not known whom either waited for.
    """
    order, block = blocks(table)
    compared = np.isin(table["op_code"], SYNCHRONISING_OPS) & by_clock
    rows, block = order[compared[order]], block[compared[order]]
    if not len(rows):
        return
    enter, first, last, shortest, many = _extents(table, end, rows, block)
    several = (many > 1) & (last < NEVER)
    apart = several & (first + _CLOCK_SLACK_NS < enter)
    doubted = apart | (several & (last - first > np.maximum(shortest * _COMMON_END_RATIO, _COMMON_END_NS)))
    partial[rows[doubted[block]]] = True
    wrong = rows[apart[block]]
    last_enter[wrong], last_rank[wrong] = table["call_ns"][wrong], -1


def _match_pairs(
    table: Table,
    rows: Int64,
    members: Int64,
    last_enter: Int64,
    last_rank: Int64,
    partial: npt.NDArray[np.bool_],
) -> None:
    """Point to point: the n-th receive of a pair of ranks belongs to its n-th send.

    A send waits for its receiver only where it ended after the receiver had entered: others leave their bytes and go.

    A pair with a group of its own may number its messages alike on both sides, also those that were not recorded.
    """
    partial[rows] = table["end_ns"][rows] >= 0  # until the other side of the pair is found
    rows = rows[np.lexsort((table["call_ns"][rows], table["sequence"][rows]))]
    peer = table["peer_rank"][rows]
    known = (peer >= 0) & (peer < len(members))
    rows, peer = rows[known], members[peer[known]]
    if len(rows) == 0:
        return
    own = table["rank"][rows]
    sends = table["op_code"][rows] == CollectiveOp.SEND
    source, target = np.where(sends, own, peer), np.where(sends, peer, own)
    order = np.lexsort((~sends, target, source))
    rows, source, target, sends = rows[order], source[order], target[order], sends[order]
    new = np.ones(len(rows), dtype=bool)
    new[1:] = (source[1:] != source[:-1]) | (target[1:] != target[:-1])
    starts = np.flatnonzero(new)
    for begin, end in zip(starts.tolist(), np.append(starts[1:], len(rows)).tolist(), strict=True):
        sent = rows[begin:end][sends[begin:end]]
        received = rows[begin:end][~sends[begin:end]]
        if len(sent) and len(received):
            partial[rows[begin:end]] = False
        fits, awaited = _pairs_by_number(table["sequence"], sent, received) if len(starts) == 1 else (None, None)
        if fits is None or awaited is None:
            both = min(len(sent), len(received))
            fits, awaited = received[:both], sent[:both]
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


def _pairs_by_number(number: Int64, sent: Int64, received: Int64) -> tuple[Int64 | None, Int64 | None]:
    """Receives and the sends that they belong to; None where the sides do not number alike."""
    if any(len(np.unique(number[side])) < len(side) for side in (sent, received)):
        return None, None
    _, at_sent, at_received = np.intersect1d(number[sent], number[received], assume_unique=True, return_indices=True)
    if 2 * len(at_sent) < min(len(sent), len(received)):
        return None, None
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
    known = np.flatnonzero(waits["collective_key"] >= 0)
    if len(known):
        keys = table["collective_key"]
        order = np.argsort(keys, kind="stable")
        at = order[np.minimum(np.searchsorted(keys[order], waits["collective_key"][known]), len(keys) - 1)]
        fits = (keys[at] == waits["collective_key"][known]) & unseen[at]
        np.minimum.at(end, at[fits], waits["end_ns"][known][fits])
    # By what the rows say to the last tie, so that no result depends on the order in which they came.
    order = np.lexsort([table[c] for c in ("op_code", "end_ns", "call_ns", "sequence", "group_hash", "process_id")])
    group, process = table["group_hash"][order], table["process_id"][order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (group[1:] != group[:-1]) | (process[1:] != process[:-1])
    # Smallest end of the rows from here to the end of the block: a running minimum from the back, block by block.
    starts = np.append(np.flatnonzero(new), len(order))
    for begin, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        block = order[begin:stop]
        later = np.minimum.accumulate(end[block][::-1])[::-1]
        end[block] = np.where(unseen[block], np.maximum(later, table["call_ns"][block]), end[block])
    return end
