"""One node for each collective: all members wait for it, and it waits for the last of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stashtrace.analysis.collectives.matching import group_table, peers_of
from stashtrace.analysis.graph.graph_parts import Parts
from stashtrace.analysis.graph.policy import POLICY
from stashtrace.analysis.graph.work_graph import EdgeKind, Resource
from stashtrace.analysis.intervals import NEVER, Bools, Int64, value_at
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.kinds import CollectiveOp, StallKind
from stashtrace.schema.table import Table


@dataclass(frozen=True, slots=True)
class Transfers:
    """Transfers by row of ``index.trace.collectives``."""

    #: Node of each row's transfer, -1 if there is none.
    node: Int64
    #: When the node ends: with the first member that was done, a message with its receive; and the row's member.
    end_ns: Int64
    own_end_ns: Int64

    def node_of(self, rows: Int64) -> Int64:
        """Return the node of each row's transfer, -1 where there is neither."""
        return value_at(self.node, rows, -1)


def transfers(index: TraceIndex, parts: Parts) -> Transfers:
    """Add a node for each collective that ended, from its last member's entry to its first member's end.

    A message ends with its receive.
    """
    table, matched = index.trace.collectives, index.in_flight
    count = len(table)
    ended = (matched.end_ns < NEVER) & (matched.last_enter_ns < NEVER) & (matched.last_enter_ns > -NEVER)
    queue, number = _numbers(index)
    rows = np.flatnonzero(ended & _complete_pairs(table, queue, number))
    node, end_of = np.full(count, -1, dtype=np.int64), np.full(count, NEVER, dtype=np.int64)
    if not len(rows):
        return Transfers(node, end_of, end_of)
    # A group whose hash two communicators share is one queue.
    operations = GroupBy(queue[rows], number[rows])
    group, first = operations.keys[0], rows[operations.first]
    enter = operations.max(np.maximum(matched.last_enter_ns, index.entered_ns)[rows])
    late = _is_asked_late(index)
    # A sender is done when its message has left it, so the receiver's end counts where that was not seen too late.
    arrived = (table["op_code"][rows] == CollectiveOp.RECEIVE) & ~late[rows]
    first_done = rows[operations.argmax(np.where(arrived, NEVER, -matched.end_ns[rows]))]
    done = _times_without_late_looks(enter, matched.end_ns[first_done], table["message_bytes"][first], late[first_done])
    # Where a backend runs operations at the same time, one may end before another that was called first.
    alone = np.append(True, (group[1:] != group[:-1]) | (done[1:] < done[:-1]))
    # When each transfer had the queue of its group for itself: entered by all, the one before it done
    before = np.concatenate([[-NEVER], done[:-1]])
    begin = np.where(alone, enter, np.minimum(np.maximum(enter, before), np.maximum(done, enter)))
    done = np.maximum(done, begin)
    nodes = parts.add(
        len(operations),
        resource=Resource.TRANSFER,
        kind=np.where(matched.link[first] == 0, StallKind.INTERCONNECT, StallKind.NETWORK),
        begin_ns=begin,
        end_ns=done,
        moved_bytes=operations.max(table["message_bytes"][rows]),
        row=first,
        doubtful=operations.any(matched.partial[rows]),
    )
    parts.edge(np.where(alone[1:], -1, nodes[:-1]), nodes[1:], EdgeKind.QUEUE)
    node[rows], end_of[rows] = nodes[operations.number], done[operations.number]
    return Transfers(node, end_of, matched.end_ns)


def _is_asked_late(index: TraceIndex) -> Bools:
    """Return True for rows of ``collectives`` whose end was seen when a thread asked for it, which it did too late.

    Of a send or a receive a backend may note the end only then: the message had arrived before.
    """
    table, waits = index.trace.collectives, index.trace.collective_waits
    row = GroupBy(table["collective_key"]).row_of(waits["collective_key"])
    asked = np.flatnonzero((row >= 0) & (waits["end_ns"] - waits["begin_ns"] < POLICY.instant_ns))
    row = row[asked]
    seen = index.in_flight.end_ns[row] >= waits["begin_ns"][asked]
    to_one_rank = np.isin(table["op_code"][row], (CollectiveOp.SEND, CollectiveOp.RECEIVE))
    late = np.zeros(len(table), dtype=bool)
    late[row[seen & to_one_rank]] = True
    return late


def _times_without_late_looks(enter: Int64, done: Int64, moved_bytes: Int64, is_late: Bools) -> Int64:
    """Return when messages were done; where that was seen too late, after what others of their size took at most."""
    known = np.flatnonzero(~is_late)
    if not len(known) or not is_late.any():
        return done
    sizes = GroupBy(moved_bytes[known])
    at = sizes.find(moved_bytes)
    took = np.append(sizes.median((done - enter)[known]), 0)[at]
    return np.where(is_late & (at >= 0), np.minimum(done, enter + took), done)


def _numbers(index: TraceIndex) -> tuple[Int64, Int64]:
    """Return the queue of each row of ``collectives``, and its number there: rows of one operation share both.

    That is the group and its number, but where two ranks of a group send in both directions each direction is a queue
    of its own: NCCL numbers all sends and receives of a rank in their order, which the other side need not share.
    """
    table = index.trace.collectives
    groups = GroupBy(table["group_hash"])
    queue, number = groups.number.copy(), table["sequence"].copy()
    rows = np.flatnonzero(
        np.isin(table["op_code"], (CollectiveOp.SEND, CollectiveOp.RECEIVE)) & (table["peer_rank"] >= 0)
    )
    if not len(rows):
        return queue, number
    peer = peers_of(table, rows, group_table(index.trace))
    sends, rank = table["op_code"][rows] == CollectiveOp.SEND, table["rank"][rows]
    source, target = np.where(sends, rank, peer), np.where(sends, peer, rank)
    directions = GroupBy(queue[rows], source, target)
    both = (directions.find(queue[rows], target, source) >= 0) & (peer >= 0)
    order = order_by(directions.number, sends, table["sequence"][rows], table["call_ns"][rows])
    nth = np.empty(len(rows), dtype=np.int64)
    nth[order] = GroupBy.runs(directions.number[order], sends[order]).position
    queue[rows[both]] = len(groups) + directions.number[both]
    number[rows[both]] = nth[both]
    return queue, number


def _complete_pairs(table: Table, queue: Int64, number: Int64) -> Bools:
    """Return False for sends and receives whose queue and number do not name one message between two ranks."""
    paired = np.isin(table["op_code"], (CollectiveOp.SEND, CollectiveOp.RECEIVE))
    complete = ~paired
    rows = np.flatnonzero(paired)
    if not len(rows):
        return complete
    messages = GroupBy(queue[rows], number[rows])
    sends = messages.count(where=table["op_code"][rows] == CollectiveOp.SEND)
    complete[rows] = ((messages.sizes == 2) & (sends == 1))[messages.number]
    return complete
