"""One node for each collective: all members wait for it, and it waits for the last of them."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.graph.model import EdgeKind, Resource
from stashtrace.analysis.graph.parts import Parts
from stashtrace.analysis.intervals import NEVER, Int64
from stashtrace.analysis.stalls.index import TraceIndex
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import CollectiveOp, StallKind
from stashtrace.schema.table import Table

#: Kinds of time in which a rank waits for a collective.
IN_COLLECTIVES = (StallKind.STRAGGLER, StallKind.NETWORK, StallKind.INTERCONNECT)


@dataclass(frozen=True, slots=True)
class Transfers:
    """Transfers by row of ``index.trace.collectives``.

    Attributes
    ----------
    node : int array
        Node of each row's transfer, -1 if there is none.
    end_ns, own_end_ns : int array
        When the node ends, with the first member that was done; and when the row's own member was done.
    """

    node: Int64
    end_ns: Int64
    own_end_ns: Int64


def transfers(index: TraceIndex, parts: Parts) -> Transfers:
    """Add a node for each collective that ended, from its last member's entry to its first member's end."""
    table, matched = index.trace.collectives, index.in_flight
    count = len(table)
    ended = (matched.end_ns < NEVER) & (matched.last_enter_ns < NEVER) & (matched.last_enter_ns > -NEVER)
    rows = np.flatnonzero(ended & _complete_pairs(table))
    node, end_of = np.full(count, -1, dtype=np.int64), np.full(count, NEVER, dtype=np.int64)
    if not len(rows):
        return Transfers(node, end_of, end_of)
    # Rows of one operation have one group and number; a group whose hash two communicators share is one queue.
    operations = GroupBy(table["group_hash"][rows], table["sequence"][rows])
    group, first = operations.keys[0], rows[operations.first]
    enter = operations.max(np.maximum(matched.last_enter_ns, index.entered_ns)[rows])
    done = operations.min(matched.end_ns[rows])
    # Where a backend runs operations at the same time, one may end before another that was called first.
    alone = np.append(True, (group[1:] != group[:-1]) | (done[1:] < done[:-1]))
    begin = _queued(enter, done, alone)
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


def _complete_pairs(table: Table) -> npt.NDArray[np.bool_]:
    """Return False for sends and receives whose group and number do not name one message between two ranks."""
    paired = np.isin(table["op_code"], (CollectiveOp.SEND, CollectiveOp.RECEIVE))
    complete = ~paired
    rows = np.flatnonzero(paired)
    if not len(rows):
        return complete
    messages = GroupBy(table["group_hash"][rows], table["sequence"][rows])
    sends = messages.count(where=table["op_code"][rows] == CollectiveOp.SEND)
    complete[rows] = ((messages.sizes == 2) & (sends == 1))[messages.number]
    return complete


def _queued(enter: Int64, done: Int64, alone: npt.NDArray[np.bool_]) -> Int64:
    """Return when each transfer had the queue of its group for itself: entered by all, the one before it done."""
    before = np.concatenate([[-NEVER], done[:-1]])
    return np.where(alone, enter, np.minimum(np.maximum(enter, before), np.maximum(done, enter)))
