"""straggler_roots: the rank at which a chain of waits ends, and what it did longer there. See ``follow_waits``.

    rank 3   [ waits for 2 ....................... ]        rank 2 works as long as rank 3 does, so what made it late is
    rank 2   [ waits for 1 .... ][ works  ]                 that it waited itself: both waits end at rank 1
    rank 1   [ works longer     ]

Each wait is divided among the roots of its chain, so those of a rank and step sum to its straggler time.
"""

from __future__ import annotations

import numpy as np

from stashtrace.analysis.intervals import Int64, int64
from stashtrace.analysis.steps.steps import counted_steps, in_steps, steps
from stashtrace.analysis.stragglers.causes import CAUSES, Floats
from stashtrace.analysis.stragglers.follow_waits import UNKNOWN, roots_of
from stashtrace.schema import columns as col
from stashtrace.schema.columns import schema
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

STRAGGLER_ROOTS = schema(
    "straggler_roots",
    "Straggler time by the rank at which the chain of waits ends; those of a rank and step sum to its straggler time",
    col.rank("rank", "global rank that waited"),
    col.number("step", "ordinal, -1 outside the steps", missing=-1),
    col.rank("root_rank", "rank whose work made the wait, -1 if unknown", missing=-1),
    col.ns("stall_ns", "straggler time whose chain ends at root_rank"),
    col.ns("direct_ns", "straggler time that root_rank was waited for directly"),
    col.word("cause_kind", "what root_rank did longer in most of it, as in late; unknown if nothing was longer"),
)


def straggler_roots(trace: Trace, *, warmup: bool = False) -> Table:
    """Follow each wait to the rank whose work made it, by rank and step.

    A rank that is late in an operation may have waited for another rank before: ``cause_rank`` of ``stalls`` names the
    first, ``root_rank`` the last of such a chain. A wait is as long as what the late rank did longer than the waiting
    one since both were level: since the last operation that both had entered, or since one of them had waited for the
    other. What it waited longer is followed to its waits, the rest ends at it; so equal work in between is no cause.
    The rows of a rank and step sum to its ``straggler`` time.

    Parameters
    ----------
    trace : Trace
        Needs steps and collectives.
    warmup : bool
        Whether all that was recorded has rows, not only the counted steps: the warm-up too, and step -1, the time
        outside of steps.

    Columns
    -------
    rank, step, root_rank, stall_ns, direct_ns, cause_kind

    Raises
    ------
    MissingDataError
        If no rank has steps.
    """
    found = roots_of(trace)
    waits = found.waits
    if not len(waits):
        return Table.empty(STRAGGLER_ROOTS)
    source = found.source
    count = len(source)
    each = GroupBy(
        np.concatenate([waits.rank[source], waits.rank]),
        np.concatenate([waits.step[source], waits.step]),
        np.concatenate([found.root_rank, waits.late]),
    )
    followed = GroupBy.numbered(each.number[:count], len(each))
    spent = np.asarray(followed.sum(found.part_ns), dtype=np.float64)
    kinds = found.kinds_ns()
    by_kind = np.stack([followed.sum(kinds[:, kind]) for kind in range(kinds.shape[1])], axis=1)
    whole = GroupBy(*each.keys[:2])
    table = Table(
        STRAGGLER_ROOTS,
        {
            **dict(zip(("rank", "step", "root_rank"), each.keys, strict=True)),
            "stall_ns": _whole_ns(spent, whole),
            "direct_ns": GroupBy.numbered(each.number[count:], len(each)).sum(waits.length),
            "cause_kind": np.array([*CAUSES, "unknown"])[np.where(spent > 0, by_kind.argmax(axis=1), UNKNOWN)],
        },
    )
    return table if warmup else table.take(in_steps(table, counted_steps(steps(trace))))


def _whole_ns(spent: Floats, of: GroupBy) -> Int64:
    """Round times so that those of each group sum to their own rounded sum: the largest takes the difference."""
    rounded = int64(np.rint(spent))
    largest = of.argmax(spent)
    rounded[largest] += int64(np.rint(of.sum(spent))) - int64(of.sum(rounded))
    return rounded
