"""Whether the bytes that ranks exchange are mostly gradients, which may have fewer bits."""

from __future__ import annotations

from stashtrace.analysis.graph import Graph
from stashtrace.analysis.intervals import NEVER
from stashtrace.errors import MissingDataError
from stashtrace.replay.communication.messages import gradient_messages, shows_ddp
from stashtrace.schema.kinds import CollectiveOp
from stashtrace.schema.trace import Trace

#: Most of the bytes.
_MOSTLY_RATIO = 0.6


def sends_gradients(trace: Trace, graph: Graph, op: int) -> bool:
    """Return True if most bytes of an operation are what DistributedDataParallel sends in backward passes."""
    if graph.facts is None or op != CollectiveOp.ALL_REDUCE or not shows_ddp(trace):
        return False
    try:
        messages = gradient_messages(trace)
    except MissingDataError:
        return False
    sent = (messages.step >= 0) & (messages.backward >= 0) & messages.within & (messages.op == "all_reduce")
    first, last = messages.ready_ns[sent].min(initial=NEVER), messages.end_ns[sent].max(initial=-NEVER)
    of_op = graph.is_transfer & (graph.facts.op == op)
    moved = graph.moved_bytes[of_op & (graph.begin_ns >= first) & (graph.end_ns <= last)]
    return bool(messages.bytes[sent].sum() >= _MOSTLY_RATIO * moved.sum() > 0)
