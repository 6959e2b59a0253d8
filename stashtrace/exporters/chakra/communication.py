"""Attributes of the parts of collectives: communicators and their numbers, payloads, ends of messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stashtrace.analysis.collectives.matching import Group, group_table
from stashtrace.analysis.intervals import Int64
from stashtrace.exporters.chakra.work import RankWork
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import CollectiveOp
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

MESSAGES = (CollectiveOp.SEND, CollectiveOp.RECEIVE)
#: Number of the communicator of all ranks; simulators need no list of its members.
ALL_RANKS = 0


@dataclass(frozen=True, slots=True)
class Communication:
    """Attributes of the parts of collectives; columns are parallel to ``collectives``."""

    #: Sorted as ``TraceIndex`` does.
    collectives: Table
    #: Communicators that are used, by their hash.
    groups: dict[int, Group]
    #: Their numbers; ``ALL_RANKS`` is that of the first one that all ranks are in.
    numbers: dict[int, int]
    #: Their names in the job.
    names: dict[int, str]
    #: Payload of each rank's input, -1 if unknown.
    size_bytes: Int64
    #: Of sends and receives: global ranks, -1 if unknown, and the number of the message between the two.
    source: Int64
    target: Int64
    tag: Int64
    #: Ranks without a file, up to the highest rank of any communicator.
    absent: list[int]
    #: Collectives in which a member has no part.
    incomplete_count: int
    #: Sends and receives whose other side is not in the files.
    unpaired_count: int


def communication(trace: Trace, collectives: Table, work: RankWork) -> Communication:
    """Return the attributes of the parts that are written."""
    part = np.flatnonzero(work.row >= 0)
    rows, transfer = work.row[part], work.transfer[part]
    hashes, op = collectives["group_hash"][rows], collectives["op_code"][rows]
    known = group_table(trace)
    order = np.argsort(work.begin_ns[part], kind="stable")
    used = list(dict.fromkeys(hashes[order].tolist()))
    groups = {value: known[value] for value in used}
    ranks = np.unique(work.rank)
    everyone = np.unique(np.concatenate([ranks, *(g.members for g in groups.values())]))
    absent = np.setdiff1d(np.arange(int(everyone.max()) + 1), ranks).tolist()

    numbers: dict[int, int] = {}
    for value in used:
        whole = np.array_equal(np.unique(groups[value].members), everyone)
        first = whole and ALL_RANKS not in numbers.values()
        numbers[value] = ALL_RANKS if first else max(numbers.values(), default=ALL_RANKS) + 1

    size = collectives["message_bytes"].copy()
    # Where all members have inputs of one size, one that knows its size tells the others'.
    is_same = np.isin(op, (CollectiveOp.ALL_REDUCE, CollectiveOp.REDUCE, CollectiveOp.BROADCAST))
    same, transfers = rows[is_same], GroupBy(transfer[is_same])
    size[same] = np.where(size[same] < 0, transfers.max(size[same])[transfers.number], size[same])

    paired = np.isin(op, MESSAGES)
    operations = GroupBy(transfer[~paired])
    members_count = [len(groups[value].members) for value in hashes[~paired][operations.first].tolist()]
    source, target, tag, unpaired = _messages(collectives, rows[paired], groups)
    names = {value: _group_name(trace, value) for value in used}
    return Communication(
        collectives,
        groups,
        numbers,
        names,
        size,
        source,
        target,
        tag,
        absent,
        int((operations.sizes < np.array(members_count, dtype=np.int64)).sum()),
        unpaired,
    )


def _group_name(trace: Trace, value: int) -> str:
    rows = np.flatnonzero(trace.groups["group_hash"] == np.uint64(value))
    return max((trace.text(code) for code in trace.groups["name_code"][rows].tolist()), key=len, default="")


def _messages(collectives: Table, rows: Int64, groups: Mapping[int, Group]) -> tuple[Int64, Int64, Int64, int]:
    """Return ends and number of each message, by row of ``collectives``; and the number of those without other side.

    The n-th send from a rank to another belongs to the n-th receive there, so both have the number n.
    """
    count = len(collectives)
    source, target, tag = (np.full(count, -1, dtype=np.int64) for _ in range(3))
    if not len(rows):
        return source, target, tag, 0
    peer = collectives["peer_rank"][rows]
    for value, group in groups.items():
        of_group = np.flatnonzero(collectives["group_hash"][rows] == np.uint64(value))
        place = peer[of_group]
        within = (place >= 0) & (place < len(group.members))
        peer[of_group] = np.where(within, group.members[np.where(within, place, 0)], -1)
    sends = collectives["op_code"][rows] == CollectiveOp.SEND
    own = collectives["rank"][rows]
    source[rows], target[rows] = np.where(sends, own, peer), np.where(sends, peer, own)
    by_call = np.argsort(collectives["call_ns"][rows], kind="stable")
    listed = rows[by_call]
    tag[listed] = GroupBy(source[listed], target[listed], sends[by_call]).position
    known = rows[(source[rows] >= 0) & (target[rows] >= 0)]
    messages = GroupBy(source[known], target[known], tag[known])
    return source, target, tag, int(np.count_nonzero(messages.sizes == 1))
