"""stacks: self and whole time of Python functions, by thread."""

from __future__ import annotations

import numpy as np
import pytest
from builders import MS, TraceBuilder

from stashtrace.analysis.steps.python_functions import stacks
from stashtrace.errors import MissingDataError
from stashtrace.schema.events import TABLES
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace


def sampled(*functions: tuple[str, float, float, int, int]) -> Trace:
    """A rank that trains for 100 ms, with functions: name, begin and end in ms, depth, line; on its step thread."""
    build = TraceBuilder()
    rank = build.rank(0)
    rank.phase("forward", 0, 90 * MS).phase("optimizer", 90 * MS, 100 * MS)
    trace = build.trace()
    track = int(trace.phases["track_id"][0])
    rows = [
        (int(begin * MS), int(end * MS), track, depth, line, trace.strings.code(name))
        for name, begin, end, depth, line in functions
    ]
    return trace.replace(stacks=Table.from_rows(TABLES["stacks"], rows))


def found(trace: Trace) -> dict[str, tuple[float, float, int]]:
    table = stacks(trace)
    assert len(table) == len(np.unique(table["name_code"]))
    return {
        trace.text(row["name_code"]): (row["self_ns"] / MS, row["total_ns"] / MS, row["line"]) for row in table.rows()
    }


def test_self_and_whole_times_add_up() -> None:
    trace = sampled(
        ("main", 0, 100, 0, 1),
        ("fetch", 0, 60, 1, 41),
        ("read", 10, 50, 2, 7),
        ("step", 60, 90, 1, 50),
        ("read", 70, 80, 2, 9),
    )
    assert found(trace) == {
        "read": (50.0, 50.0, 7),
        "fetch": (20.0, 60.0, 41),
        "step": (20.0, 30.0, 50),
        "main": (10.0, 100.0, 1),
    }
    table = stacks(trace)
    assert table["self_ratio"].sum() == pytest.approx(1.0)
    assert [trace.text(code) for code in table["name_code"][:1]] == ["read"], "the most costly first"


def test_a_function_that_calls_itself_counts_once() -> None:
    trace = sampled(("walk", 0, 100, 0, 1), ("walk", 20, 90, 1, 2), ("walk", 30, 40, 2, 2))
    assert found(trace) == {"walk": (100.0, 100.0, 1)}


def test_other_threads_are_left_out_unless_asked_for() -> None:
    trace = sampled(("main", 0, 100, 0, 1))
    other = trace.stacks.replace(track_id=trace.stacks["track_id"] + 1)
    tracks = trace.tracks
    extra = tracks.take([0]).replace(track_id=other["track_id"])
    both = trace.replace(
        stacks=Table.concat(TABLES["stacks"], [trace.stacks, other]),
        tracks=Table.concat(TABLES["tracks"], [tracks.take(tracks["track_id"] != int(other["track_id"][0])), extra]),
    )
    assert len(stacks(both)) == 1
    assert len(stacks(both, threads="all")) == 2


def test_a_run_without_stacks_is_said() -> None:
    with pytest.raises(MissingDataError, match="py-spy sampled no Python stack"):
        stacks(sampled())
