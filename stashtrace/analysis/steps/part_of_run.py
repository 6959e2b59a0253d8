"""A part of a long run: as many steps in a row as an analysis has time for, those that are most like the run."""

from __future__ import annotations

import numpy as np

from stashtrace.analysis.steps.step_time import step_time_steps
from stashtrace.analysis.steps.steps import steps as find_steps
from stashtrace.analysis.steps.window import ORIGIN_FACT, fact_of_run, with_window
from stashtrace.loading.run_tables import Window
from stashtrace.schema.events import TABLES
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.order import number_collectives
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Fewer steps say little of a run: then it is not cut.
_LEAST_STEPS = 8
#: Rows of this many steps before and behind are kept: batches that are made ahead, and what a device does later.
_MARGIN_STEPS = 4
#: Tables whose rows belong to collectives.
_OF_COLLECTIVES = ("collective_waits", "collective_details", "matched_collectives")


def part_of_run(trace: Trace, part_ratio: float) -> Trace | None:
    """Return a trace of about this part of the steps of a run, in a row, whose mean is nearest to that of the run.

    None if that would be fewer than eight steps, or the run has no steps of the kinds that count.
    """
    steps = step_time_steps(find_steps(trace))
    by_step = GroupBy(steps["step"])
    count = int(part_ratio * len(by_step.values))
    if count < _LEAST_STEPS:
        return None
    length = by_step.sum(steps["end_ns"] - steps["begin_ns"]) / by_step.sizes
    sums = np.concatenate([[0.0], np.cumsum(length)])
    means = (sums[count:] - sums[:-count]) / count
    at = int(np.abs(means - length.mean()).argmin())
    first, last = int(by_step.values[at]), int(by_step.values[at + count - 1])
    begins = steps.take(steps["step"] == first)
    wide = steps.take((steps["step"] >= first - _MARGIN_STEPS) & (steps["step"] <= last + _MARGIN_STEPS))
    begins_ns = begins.lookup("rank", "begin_ns")
    window = Window(first, begins_ns, last)
    part = with_window(_within(trace, wide), window, int(fact_of_run(trace, ORIGIN_FACT) or 0))
    numbered = part.numbered_steps  # a stored run has its steps in a table, which no window cuts
    inside = (numbered["step"] >= first) & (numbered["step"] <= last)
    return part if inside.all() else part.replace(numbered_steps=numbered.take(inside))


def _within(trace: Trace, steps: Table) -> Trace:
    """Return a trace with the rows of some steps alone; calls on files are left as they are: they may be on disk."""
    tables = {}
    begin, end = int(steps["begin_ns"].min()), int(steps["end_ns"].max())
    by_rank = GroupBy(steps["rank"])
    first, last = by_rank.min(steps["begin_ns"]), by_rank.max(steps["end_ns"])
    for name, schema in TABLES.items():
        table = trace.table(name)
        columns = {column.name for column in schema.columns}
        times = next((pair for pair in _TIMES if columns >= set(pair)), None)
        if times is None or name in ("io", "io_totals") or not len(table):
            continue
        since, until = (table[column] for column in times)
        # What has not ended goes on.
        kept = (since <= end) & ((until >= begin) | (until < since))
        if name == "collectives":  # sends and receives are matched in their order: of each rank those of the same steps
            at = by_rank.find(table["rank"])
            kept = np.where(at >= 0, (since >= first[at]) & (since < last[at]), kept)
        tables[name] = table.take(kept)
    if "collectives" not in tables:
        return trace.replace(**tables)
    others = [tables.get(name, trace.table(name)) for name in _OF_COLLECTIVES]
    tables |= number_collectives(tables["collectives"], *others)
    for name in _OF_COLLECTIVES:
        if name in tables:
            tables[name] = tables[name].take(tables[name]["collective_key"] >= 0)
    return trace.replace(**tables)


#: Columns that say when a row begins and ends, the first that a table has.
_TIMES = (("call_ns", "return_ns"), ("begin_ns", "end_ns"), ("ts_ns", "ts_ns"))
