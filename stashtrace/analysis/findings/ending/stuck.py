"""stuck: where a job stood still when its records end, which ranks everybody waited for, and what these did last.

    ranks 0-7 --wait in all-reduce 14146--> ranks 8-15 --wait in all-to-all 45265--> ranks 9, 14     nothing begun

Waits are passed on, so each is followed along what the rank waits in to the ranks at which it ends: those that have
begun nothing, and those whose devices did not finish what other members did. Only these are named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stashtrace.analysis.collectives.matching import group_table
from stashtrace.analysis.findings.ending.policy import POLICY
from stashtrace.analysis.intervals import Bools, Int64
from stashtrace.schema.groupby import GroupBy, RowsBy, order_by
from stashtrace.schema.kinds import MESSAGES, SYNCHRONISING_OPS, CollectiveOp
from stashtrace.schema.trace import Trace

#: Operations in which every member gives a message of one size.
_ONE_SIZE = (CollectiveOp.ALL_REDUCE, CollectiveOp.BROADCAST, CollectiveOp.REDUCE)
#: Not called, as far as the records say; or called, and not finished on a device where other members finished it.
NOT_ENTERED, NOT_FINISHED = "not_entered", "not_finished"


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that somebody waits in."""

    group: str
    #: As in ``all_reduce``.
    operation: str
    #: Number within the group; of messages -1, since each rank counts its own.
    sequence: int
    message_bytes: int
    #: When the first rank called it.
    call_ns: int


@dataclass(frozen=True, slots=True)
class Root:
    """A rank at which waits end."""

    rank: int
    #: ``NOT_ENTERED`` or ``NOT_FINISHED``.
    lack: str
    #: The oldest one that others wait in and this rank lacks.
    operation: Operation
    #: Ranks that wait in it.
    waiting: tuple[int, ...]
    #: The last number of that group that this rank called, -1 if none is recorded.
    last: int


@dataclass(frozen=True, slots=True)
class Mismatch:
    """An operation of a group that its members called differently."""

    group: str
    sequence: int
    #: The ranks of each way: operation, bytes or -1, ElementType or 0, ranks.
    calls: tuple[tuple[str, int, int, tuple[int, ...]], ...]
    #: Number of the next operation if it is called the other way round, so that only the order differs; else -1.
    swapped_with: int = -1


@dataclass(frozen=True, slots=True)
class Stuck:
    """How a job stood still."""

    #: Empty if the waits lead to no rank alone.
    roots: tuple[Root, ...]
    #: Ranks that wait, directly or through others.
    waiting: tuple[int, ...]
    #: Time from the first of their calls to the end of the records.
    since_ns: int
    #: Without roots: the oldest operation that all members have entered and none has finished.
    inside: Operation | None = None
    #: Without roots: ranks that wait for each other, and each one's operation.
    circle: tuple[tuple[int, Operation], ...] = ()
    #: Members that called one operation differently.
    mismatch: Mismatch | None = None


@dataclass(slots=True)
class _GroupCalls:
    """What each member of a group has called of it: rows in order of their number."""

    name: str
    members: tuple[int, ...]
    rows: dict[int, Int64] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)


def find_stuck(trace: Trace, now_ns: int) -> Stuck | None:
    """Return how the job stood still at the end of its records; None if nobody waited for anybody.

    ``trace``: needs collectives. ``now_ns``: the end of the records.
    """
    if not len(trace.collectives):
        return None
    return _Waits(trace).stuck(now_ns)


class _Waits:
    """Who waits for whom."""

    def __init__(self, trace: Trace) -> None:
        self.table = trace.collectives
        self.groups = _group_calls(trace)
        #: Ranks of which there are records: of others nobody knows what they have called.
        self.seen = frozenset(trace.ranks.tolist()) | frozenset(self.table["rank"].tolist())
        self.messages = np.isin(self.table["op_code"], MESSAGES)
        self.pending = self._pending()
        self._is_open = set(self.pending.tolist())
        #: Of each rank its pending rows in the order of their calls.
        self.open: dict[int, list[int]] = {}
        for rank, of_rank in GroupBy(self.table["rank"][self.pending]).items():
            rows = self.pending[of_rank]
            order = order_by(self.table["call_ns"][rows], self.table["collective_key"][rows])
            self.open[rank] = rows[order].tolist()
        self.between = self._messages_between()

    def _pending(self) -> Int64:
        """Return the rows without an end, and those whose operation not all members have entered."""
        table = self.table
        unseen = (table["end_ns"] < 0) & (table["device_end_ns"] < 0) & (table["return_ns"] < 0)
        lacks = np.zeros(len(table), dtype=bool)
        waits = np.isin(table["op_code"], SYNCHRONISING_OPS)
        for group in self.groups.values():
            everybody = min((group.last.get(m, -1) for m in group.members if m in self.seen), default=-1)
            for rows in group.rows.values():
                lacks[rows] = table["sequence"][rows] > everybody
        return np.flatnonzero(unseen | (lacks & waits & ~self.messages))

    def _messages_between(self) -> dict[tuple[int, int, int, bool], int]:
        """Count the pending messages of each group, sender and receiver, as the sender or the receiver has called."""
        counts: dict[tuple[int, int, int, bool], int] = {}
        for row in self.pending[self.messages[self.pending]].tolist():
            key = self._message(row)
            if key is not None:
                counts[key] = counts.get(key, 0) + 1
        return counts

    def _message(self, row: int) -> tuple[int, int, int, bool] | None:
        table = self.table
        group, rank, peer = int(table["group_hash"][row]), int(table["rank"][row]), int(table["peer_rank"][row])
        members = self.groups[group].members
        if not 0 <= peer < len(members):
            return None
        sends = bool(table["op_code"][row] == CollectiveOp.SEND)
        other = members[peer]
        return (group, rank, other, True) if sends else (group, other, rank, False)

    def operation(self, row: int) -> Operation:
        """Describe the operation of a row."""
        table = self.table
        group = self.groups[int(table["group_hash"][row])]
        sequence = int(table["sequence"][row])
        rows = [of_rank[table["sequence"][of_rank] == sequence] for of_rank in group.rows.values()]
        same = np.concatenate(rows) if not self.messages[row] else np.array([row])
        return Operation(
            group.name,
            CollectiveOp(int(table["op_code"][row])).name.lower(),
            -1 if self.messages[row] else sequence,
            int(table["message_bytes"][same].max()),
            int(table["call_ns"][same].min()),
        )

    def finished_elsewhere(self, row: int) -> bool:
        """Whether another member has finished the operation of a row, so that nobody keeps this rank from it."""
        table = self.table
        if self.messages[row]:
            return False
        group, sequence = self.groups[int(table["group_hash"][row])], int(table["sequence"][row])
        for member, rows in group.rows.items():
            if member == int(table["rank"][row]):
                continue
            at = rows[table["sequence"][rows] == sequence]
            if len(at):
                if int(at[0]) not in self._is_open:
                    return True
            elif group.last[member] > sequence and group.first[member] > sequence:
                return True  # it is past it, and its record of it has been dropped as finished
        return False

    def ahead(self, rank: int) -> tuple[int, list[int]]:
        """Return the first operation of a rank that it waits for others in, and for whom; -1 if there is none."""
        for row in self.open.get(rank, ()):
            others = self._awaited(row)
            if others:
                return row, others
        return -1, []

    def _awaited(self, row: int) -> list[int]:
        table = self.table
        rank = int(table["rank"][row])
        if self.messages[row]:
            key = self._message(row)
            if key is None:
                return []
            group, source, target, sends = key
            other = target if sends else source
            if self.between[key] > self.between.get((group, source, target, not sends), 0):
                return [other]
            return [other] if self._is_behind(other, row) else []
        called, sequence = self.groups[int(table["group_hash"][row])], int(table["sequence"][row])
        missing = [m for m in called.members if m != rank and called.last.get(m, -1) < sequence]
        if missing:
            return [m for m in missing if m in self.seen] or missing
        return [m for m in called.rows if m != rank and self._is_behind(m, row)]

    def _is_behind(self, rank: int, row: int) -> bool:
        """Whether a rank's oldest pending operation is another one than that of a row."""
        table, first = self.table, self.open.get(rank, [-1])[0]
        if first < 0:
            return False
        if self.messages[row]:
            mine, theirs = self._message(row), self._message(first) if self.messages[first] else None
            return theirs is None or mine is None or theirs[:3] != mine[:3]
        same = table["group_hash"][first] == table["group_hash"][row]
        return not (same and table["sequence"][first] == table["sequence"][row])

    def lack(self, rank: int) -> str:
        """Return why waits end at a rank; empty if it waits itself."""
        if not self.open.get(rank):
            return NOT_ENTERED
        return NOT_FINISHED if self.finished_elsewhere(self.open[rank][0]) else ""

    def stuck(self, now_ns: int) -> Stuck | None:
        """Follow the waits of all ranks to their ends."""
        heads = {rank: self.ahead(rank) for rank in sorted(self.open)}
        lacks = {rank: self.lack(rank) for rank in {*heads, *(m for _, others in heads.values() for m in others)}}
        reached: dict[int, set[int]] = {rank: set() for rank in heads}
        for rank in heads:
            if not lacks[rank]:
                reached[rank] = _ends(rank, heads, lacks)
        ends: set[int] = set().union(*reached.values())
        roots = sorted((ends & self.seen) or ends)
        begins = [int(self.table["call_ns"][heads[r][0] if heads[r][0] >= 0 else self.open[r][0]]) for r in heads]
        waiting = tuple(rank for rank in heads if reached[rank] & set(roots))
        if roots:
            since = min(int(self.table["call_ns"][heads[r][0]]) for r in waiting)
            found = tuple(self._root(rank, lacks[rank], waiting, heads) for rank in roots)
            return Stuck(found, waiting, now_ns - since, mismatch=self.mismatch())
        if not heads:
            return None
        mismatch, circle = self.mismatch(), _circle(heads)
        if mismatch is not None or circle:
            named = tuple((rank, self.operation(heads[rank][0])) for rank in circle)
            return Stuck((), tuple(heads), now_ns - min(begins), circle=named, mismatch=mismatch)
        inside = min((self.open[rank][0] for rank in heads), key=lambda row: int(self.table["call_ns"][row]))
        if self.messages[inside]:
            return None
        return Stuck((), tuple(heads), now_ns - min(begins), inside=self.operation(inside))

    def _root(self, rank: int, lack: str, waiting: Sequence[int], heads: dict[int, tuple[int, list[int]]]) -> Root:
        if lack == NOT_FINISHED:
            row = self.open[rank][0]
            group = self.groups[int(self.table["group_hash"][row])]
            mine = self.operation(row)
            return Root(rank, lack, mine, tuple(r for r in waiting if r in group.members), group.last.get(rank, -1))
        rows = {r: heads[r][0] for r in waiting if rank in heads[r][1]}
        # What most of them wait in says most; a message has one receiver.
        row = min(rows.values(), key=lambda at: (-len(self._inside(at, rows)), int(self.table["call_ns"][at])))
        group = self.groups[int(self.table["group_hash"][row])]
        return Root(rank, lack, self.operation(row), self._inside(row, rows), group.last.get(rank, -1))

    def _inside(self, row: int, rows: dict[int, int]) -> tuple[int, ...]:
        """Return the ranks whose rows are of the same operation."""
        table = self.table
        if self.messages[row]:
            return (int(table["rank"][row]),)
        key = [(int(table["group_hash"][at]), int(table["sequence"][at])) for at in (row, *rows.values())]
        return tuple(rank for rank, operation in zip(rows, key[1:], strict=True) if operation == key[0])

    def mismatch(self) -> Mismatch | None:
        """Return the earliest operation of a stuck group that its members called differently."""
        table = self.table
        for value in np.unique(table["group_hash"][self.pending]).tolist():
            group = self.groups[value]
            rows = np.concatenate(list(group.rows.values()))
            stuck = int(table["sequence"][self.pending[table["group_hash"][self.pending] == value]].min())
            near = table["sequence"][rows] > stuck - POLICY.near_operations_count
            rows = rows[near & ~self.messages[rows] & (table["op_code"][rows] != CollectiveOp.OTHER)]
            typed = rows[(table["element_code"][rows] > 0) & self._undone(rows)]
            one_size = rows[np.isin(table["op_code"][rows], _ONE_SIZE) & (table["message_bytes"][rows] > 0)]
            one_size = one_size[self._undone(one_size)]
            for column, among in (("op_code", rows), ("element_code", typed), ("message_bytes", one_size)):
                each, value = GroupBy(table["sequence"][among]), table[column][among]
                for sequence in each.values[each.min(value) < each.max(value)].tolist():
                    return self._told_apart(group, among[table["sequence"][among] == sequence], column)
        return None

    def _undone(self, rows: Int64) -> Bools:
        """Return which rows are of an operation of their group that has not ended, or failed, on one of these ranks.

        A member that a backend ended at once leaves the others with an end of theirs.
        """
        undone = np.isin(rows, self.pending) | (self.table["status_code"][rows] == 1)
        sequence = self.table["sequence"][rows]
        return np.isin(sequence, sequence[undone])

    def _told_apart(self, group: _GroupCalls, rows: Int64, column: str) -> Mismatch:
        """Describe the ways in which members called an operation, apart by its name and the column that differs."""
        table = self.table
        ways: dict[tuple[str, int, int], list[int]] = {}
        for row in rows.tolist():
            name = CollectiveOp(int(table["op_code"][row])).name.lower()
            size = int(table["message_bytes"][row]) if column == "message_bytes" else -1
            element = int(table["element_code"][row]) if column == "element_code" else 0
            ways.setdefault((name, size, element), []).append(int(table["rank"][row]))
        listed = sorted(ways.items(), key=lambda way: (-len(way[1]), way[1]))
        calls = tuple((*way, tuple(sorted(ranks))) for way, ranks in listed)
        sequence = int(table["sequence"][rows[0]])
        return Mismatch(group.name, sequence, calls, sequence + 1 if self._is_swapped(group, sequence) else -1)

    def _is_swapped(self, group: _GroupCalls, sequence: int) -> bool:
        """Return whether two ways of calling an operation and the next one differ in nothing but the order of both."""
        ways: set[tuple[tuple[int, int], ...]] = set()
        table = self.table
        for rows in group.rows.values():
            both = [rows[table["sequence"][rows] == number] for number in (sequence, sequence + 1)]
            if not all(len(found) == 1 for found in both):
                continue  # this member has not called the next one
            ways.add(tuple((int(table["op_code"][at[0]]), int(table["message_bytes"][at[0]])) for at in both))
        return len(ways) == 2 and tuple(reversed(min(ways))) == max(ways)


def _group_calls(trace: Trace) -> dict[int, _GroupCalls]:
    table, groups = trace.collectives, {}
    described = RowsBy(trace.groups["group_hash"])
    for value, group in group_table(trace).items():
        rows = described.rows(value)
        name = trace.text(int(trace.groups["name_code"][rows[0]])) if len(rows) else ""
        groups[value] = _GroupCalls(name, tuple(group.members.tolist()))
    for rows in GroupBy(table["group_hash"], table["rank"]):
        in_order = rows[np.argsort(table["sequence"][rows], kind="stable")]
        called, rank = groups[int(table["group_hash"][in_order[0]])], int(table["rank"][in_order[0]])
        called.rows[rank] = in_order
        called.first[rank], called.last[rank] = (int(table["sequence"][in_order[at]]) for at in (0, -1))
    return groups


def _ends(rank: int, heads: dict[int, tuple[int, list[int]]], lacks: dict[int, str]) -> set[int]:
    """Return the ranks at which the waits of a rank end."""
    seen, left, ends = {rank}, [rank], set()
    while left:
        for other in heads.get(left.pop(), (-1, []))[1]:
            if other in seen:
                continue
            seen.add(other)
            if lacks.get(other):
                ends.add(other)
            else:
                left.append(other)
    return ends


def _circle(heads: dict[int, tuple[int, list[int]]]) -> tuple[int, ...]:
    """Return ranks of which each waits for the next one, and the last for the first; empty if there are none."""
    for start in heads:
        path: list[int] = []
        rank = start
        while rank in heads and heads[rank][1] and rank not in path:
            path.append(rank)
            rank = heads[rank][1][0]
        if rank in path:
            return tuple(path[path.index(rank) :])
    return ()
