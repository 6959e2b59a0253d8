"""operators: what execution traces, which have no times, say of the work of each rank."""

from __future__ import annotations

import numpy as np

from stashtrace.errors import MissingDataError
from stashtrace.schema import columns as col
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.kinds import CollectiveOp
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

OPERATORS = col.schema(
    "operators",
    "What execution traces say of each operator, and of each kind of collective of a group",
    col.rank("rank", "global rank, -1 if unknown", missing=-1),
    col.word("name", "operator; of a collective, CollectiveOp in lower case"),
    col.word("group", "process group of the collective, empty otherwise"),
    col.number("group_size", "ranks of that group, -1 if unknown", missing=-1),
    col.number("calls_count", "nodes"),
    col.nbytes("input_bytes", "tensors given, all calls added"),
    col.nbytes("output_bytes", "tensors returned, all calls added"),
    col.identity("first_node_id", "execution_nodes.node_id of the first"),
)


def operators(trace: Trace) -> Table:
    """Count the calls of each operator and add up the bytes of their tensors, most bytes first.

    A collective is one row for each operation and process group. An operator that calls others is counted as well,
    so the bytes of different rows overlap. Columns: table ``operators`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs nodes of execution traces.

    Raises
    ------
    MissingDataError
        If no execution trace was given.
    """
    nodes = trace.execution_nodes
    if not len(nodes):
        raise MissingDataError(
            "no execution trace was given",
            hint="give the JSON of torch.profiler.ExecutionTraceObserver, or a Chakra .et",
        )
    columns = ("rank", "op_code", "group_code", "group_size", "name_code")
    keys = {name: nodes[name].copy() for name in columns}
    keys["name_code"][keys["op_code"] >= 0] = 0
    each = GroupBy(*keys.values())
    rank, op_code, group_code, group_size, name_code = each.keys
    names = [
        CollectiveOp(op).name.lower() if op >= 0 else trace.text(code)
        for op, code in zip(op_code.tolist(), name_code.tolist(), strict=True)
    ]
    out = Table(
        OPERATORS,
        {
            "rank": rank,
            "name": np.array(names, dtype=str),
            "group": np.array([trace.text(code) for code in group_code.tolist()], dtype=str),
            "group_size": group_size,
            "calls_count": each.sizes,
            "input_bytes": each.sum(nodes["input_bytes"]),
            "output_bytes": each.sum(nodes["output_bytes"]),
            "first_node_id": nodes["node_id"][each.first],
        },
    )
    return out.take(order_by(out["rank"], -out["input_bytes"], -out["calls_count"], out["name"]))
