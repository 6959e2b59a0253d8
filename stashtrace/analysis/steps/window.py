"""Where the steps of a recording begin that has only a part of its job (``loading.run_tables``)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stashtrace.analysis.intervals import Bools
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.loading.run_tables import WINDOW_FACT, Window, without_torn_collectives
from stashtrace.schema.events import TABLES
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace, facts_named

#: Later clock readings may have moved the begin of the step by less than this; the part of the loop before it began
#: earlier.
_SLACK_NS = 1_000
#: Zero of the trace's clock on the monotonic clock; traces of other tools have none.
ORIGIN_FACT = "origin_monotonic_ns"


def fact_of_run(trace: Trace, key: str) -> str:
    """Return the value of a key in the metadata of the whole run; empty if it has none."""
    values = [value for process, value in facts_named(trace, key) if process == -1]
    return values[-1] if values else ""


def window_of(trace: Trace) -> Window | None:
    """Return where a recording begins; None if it is one from the start, or the fact makes no sense."""
    return Window.read(fact_of_run(trace, WINDOW_FACT), fact_of_run(trace, ORIGIN_FACT))


def with_window(trace: Trace, window: Window, origin_ns: int) -> Trace:
    """Return the trace as one that begins there. ``origin_ns``: zero of its clock on the monotonic clock."""
    facts = {WINDOW_FACT: window.fact(origin_ns)}
    if not fact_of_run(trace, ORIGIN_FACT):
        facts[ORIGIN_FACT] = str(origin_ns)
    row = {
        "process_id": np.full(len(facts), -1),
        "key_code": np.array([trace.strings.code(key) for key in facts]),
        "value_code": np.array([trace.strings.code(value) for value in facts.values()]),
    }
    schema = TABLES["metadata"]
    cut = without_torn_collectives(trace, window)
    return cut.replace(metadata=Table.concat(schema, [trace.metadata, Table(schema, row)]))


def begun_before(table: Table, threads: Iterable[StepThread], window: Window | None) -> Bools:
    """Return a mask of the rows of training loops that began before the first step of a window.

    ``table``: has ``track_id`` and ``begin_ns``.
    """
    before = np.zeros(len(table), dtype=bool)
    for thread in threads if window is not None else ():
        if window is not None and thread.rank in window.begins_ns:
            limit = window.begins_ns[thread.rank] - _SLACK_NS
            before |= (table["track_id"] == thread.track_id) & (table["begin_ns"] < limit)
    return before
