"""What holds of every budget, whatever a trace says: for property tests of ranks with and without devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings

from examples import examples
from stashtrace.analysis.stalls.budget import stall_intervals, stalls
from stashtrace.analysis.steps.steps import steps
from stashtrace.errors import MissingDataError
from stashtrace.schema.trace import Trace

Rows = list[dict[str, Any]]


def relaxed(count: int) -> settings:
    """This number of examples, in the gate a quarter of them, however long each takes to draw."""
    return settings(
        max_examples=examples(count),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


def budget(trace: Trace) -> Rows:
    """Rows of ``stalls``, none for a trace without steps."""
    try:
        return list(stalls(trace, warmup=True).rows())
    except MissingDataError:
        return []


def check_sums(trace: Trace, rows: Rows) -> None:
    """The kinds of each step sum to its wall time, and bounds hold their points and stay within the step."""
    walls = {(r["rank"], r["step"]): r["end_ns"] - r["begin_ns"] for r in steps(trace).rows()}
    assert all(wall >= 0 for wall in walls.values())
    sums: dict[tuple[int, int], int] = {}
    for row in rows:
        assert 0 <= row["low_ns"] <= row["stall_ns"] <= row["high_ns"]
        key = row["rank"], row["step"]
        sums[key] = sums.get(key, 0) + row["stall_ns"]
        assert row["high_ns"] <= walls.get(key, row["high_ns"])
    for key, wall in walls.items():
        assert sums.get(key, 0) == wall


def check_intervals(trace: Trace, rows: Rows) -> None:
    """The intervals of the same budget tile the life of each rank and add up to its rows."""
    lengths: dict[tuple[int, int, str], int] = {}
    last: dict[int, int] = {}
    for row in stall_intervals(trace).rows():
        assert row["begin_ns"] < row["end_ns"]
        assert last.setdefault(row["rank"], row["begin_ns"]) == row["begin_ns"], "a hole or an overlap"
        last[row["rank"]] = row["end_ns"]
        key = row["rank"], row["step"], row["kind"]
        lengths[key] = lengths.get(key, 0) + row["end_ns"] - row["begin_ns"]
    assert lengths == {(r["rank"], r["step"], r["kind"]): r["stall_ns"] for r in rows if r["stall_ns"]}


def shuffled(trace: Trace, names: Iterable[str], seed: int) -> Trace:
    """The same trace with the rows of some tables in another order."""
    random = np.random.default_rng(seed)
    tables = {}
    for name in names:
        table = trace.table(name)
        tables[name] = table.take(random.permutation(len(table)))
    if "io" in tables:
        tables["io"] = tables["io"].sort_by("track_id", "begin_ns")
    return trace.replace(**tables)
