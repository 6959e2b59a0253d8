"""flames: the functions of the user below their callers, each with all time that is below it."""

from __future__ import annotations

from typing import Any

import pytest
from budget_identity import relaxed
from builders import MS, TraceBuilder
from hypothesis import given
from hypothesis import strategies as st
from stack_rows import FORKED, TORCH, long_call, sample, stack_of

from stashtrace.analysis.lines.flames import flames
from stashtrace.analysis.lines.lines import lines
from stashtrace.analysis.lines.user_frames import place_of
from stashtrace.errors import MissingDataError
from stashtrace.schema.kinds import WaitOp
from stashtrace.schema.trace import Trace

MODULE, MAIN = "<module> /jobs/late.py:26", "main /jobs/late.py:23"
BACKWARD = f"Tensor.backward {TORCH}/_tensor.py:6"


def trains(build: TraceBuilder, number: int, steps: int, sleep_ms: int = 20) -> None:
    """A rank whose steps of 100 ms compute, but for a sleep in their backward; ``main`` is seen every 10 ms."""
    rank = build.rank(number)
    main, hook = stack_of(rank, MODULE, MAIN), stack_of(rank, MODULE, MAIN, BACKWARD, "hook /jobs/late.py:11")
    backward = stack_of(rank, MODULE, MAIN, BACKWARD)
    for step in range(steps):
        at, woken = step * 100 * MS, (40 + sleep_ms) * MS
        rank.phase("forward", at, at + 30 * MS, cpu=(at, at + 30 * MS))
        rank.phase("backward", at + 30 * MS, at + 90 * MS, cpu=(at + 30 * MS, at + 90 * MS - sleep_ms * MS))
        rank.wait(WaitOp.SLEEP, at + 40 * MS, at + woken)
        rank.phase("optimizer", at + 90 * MS, at + 100 * MS, cpu=(at + 90 * MS, at + 100 * MS))
        long_call(rank, at + 40 * MS, at + woken, hook)
        for moment in range(0, 100, 10):
            sample(rank, at + moment * MS, backward if 30 <= moment < 90 else main)
    sample(rank, steps * 100 * MS, main)


def text(trace: Trace) -> list[str]:
    """One line for each row: rank, where, kind, and the path from it to the function, its time in ms and samples."""
    paths: dict[tuple[Any, ...], str] = {}
    for row in flames(trace).sort_by("parent_id").rows():
        place = place_of(trace.text(row["function_code"]), trace.text(row["path_code"]), row["line"])
        *key, node, parent = (row[name] for name in ("rank", "where", "kind", "node_id", "parent_id"))
        above = paths.get((*key, parent), f"{row['rank']} {row['where']} {row['kind']}")
        own = trace.text(row["leaf_code"]) or place
        paths[(*key, node)] = f"{above} > {own}" if own else above
    out = []
    for row in flames(trace).rows():
        path = paths[(row["rank"], row["where"], row["kind"], row["node_id"])]
        out.append(f"{path}: {row['time_ns'] / MS:.4g} n={row['samples_count']}")
    return out


def test_a_function_stands_below_its_callers_and_a_call_of_a_library_below_it() -> None:
    build = TraceBuilder()
    trains(build, 0, 2)
    assert text(build.trace()) == [
        "0 step compute: 80 n=16",
        "0 step compute > late.py:26: 80 n=16",
        "0 step compute > late.py:26 > main (late.py:23): 80 n=16",
        "0 step compute > late.py:26 > main (late.py:23) > torch Tensor.backward: 40 n=8",
        "0 step other: 20 n=0",
        "0 step other > late.py:26: 20 n=0",
        "0 step other > late.py:26 > main (late.py:23): 20 n=0",
        "0 step other > late.py:26 > main (late.py:23) > hook (late.py:11): 20 n=0",
    ]


def test_calls_of_one_function_from_two_lines_are_one_node_with_the_line_of_most_of_its_time() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    rank.phase("forward", 0, 100 * MS, cpu=(0, 100 * MS))
    stacks = [stack_of(rank, f"main /jobs/late.py:{line}", "parse /jobs/late.py:14") for line in (23, 24)]
    build.rows["frames"][:] = [{**row, "first_line": 7} for row in build.rows["frames"]]
    for moment, stack in enumerate((0, 1, 1, 1)):
        sample(rank, moment * 33 * MS, stacks[stack])
    assert text(build.trace()) == [
        "0 step compute: 100 n=4",
        "0 step compute > main (late.py:24): 100 n=4",
        "0 step compute > main (late.py:24) > parse (late.py:14): 100 n=4",
    ]


def test_a_function_that_calls_itself_is_below_itself() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    rank.phase("forward", 0, 100 * MS, cpu=(0, 100 * MS))
    walk = "walk /jobs/tree.py:5"
    for moment, depth in ((0, 1), (30, 3), (99, 3)):
        sample(rank, moment * MS, stack_of(rank, *[walk] * depth))
    times = [line.partition(": ")[2] for line in text(build.trace())]
    assert times == ["100 n=3", "100 n=3", "66.67 n=2", "66.67 n=2"]


def test_a_node_has_the_same_number_on_all_ranks() -> None:
    build = TraceBuilder()
    for rank in range(2):
        trains(build, rank, 2, sleep_ms=10 + 10 * rank)
    trace = build.trace()
    named: dict[str, set[int]] = {}
    for row in flames(trace).rows():
        name = f"{trace.text(row['function_code'])} {trace.text(row['leaf_code'])}"
        named.setdefault(name, set()).add(row["node_id"])
    assert all(len(numbers) == 1 for numbers in named.values())
    hook = [row["time_ns"] for row in flames(trace).rows() if trace.text(row["function_code"]) == "hook"]
    assert hook == [10 * MS, 20 * MS]


def test_workers_begin_behind_the_loop_of_torch() -> None:
    build = TraceBuilder()
    trains(build, 0, 2)
    rank = build.rank(0)
    for step in range(2):
        at, worker = step * 100 * MS, rank.worker(0)
        rank.batch_wait(step, at, at + 1 * MS, worker=0)
        worker.fetch(step, at, at + 50 * MS)
        for moment in (1, 25, 49):
            sample(worker, at + moment * MS, stack_of(worker, *FORKED, "Images.__getitem__ /jobs/data.py:7"))
    assert [line for line in text(build.trace()) if " worker " in line] == [
        "0 worker prep: 50 n=6",
        "0 worker prep > Images.__getitem__ (data.py:7): 50 n=6",
    ]


@given(st.lists(st.lists(st.sampled_from("abct"), max_size=5), min_size=1, max_size=12))
@relaxed(60)
def test_children_never_sum_to_more_than_their_caller_and_each_line_is_somewhere(stacks: list[list[str]]) -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    rank.phase("forward", 0, 120 * MS, cpu=(0, 120 * MS))
    rank.phase("optimizer", 120 * MS, 130 * MS, cpu=(120 * MS, 130 * MS))
    for at, calls in enumerate(stacks):
        files = [f"{one} {TORCH}/t.py:1" if one == "t" else f"{one} /jobs/{one}.py:{at % 2 + 1}" for one in calls]
        sample(rank, at * 10 * MS, stack_of(rank, *files) if files else 0)
    trace = build.trace()
    rows = list(flames(trace).rows())
    below: dict[tuple[str, int], int] = {}
    for row in rows:
        key = (row["kind"], row["parent_id"])
        below[key] = below.get(key, 0) + row["time_ns"]
        assert row["low_ns"] <= row["time_ns"] <= row["high_ns"]
    assert all(below.get((row["kind"], row["node_id"]), 0) <= row["time_ns"] for row in rows)
    steps = [row for row in lines(trace).rows() if row["where"] == "step"]
    assert sum(row["time_ns"] for row in rows if not row["node_id"]) == sum(row["time_ns"] for row in steps)


def test_no_stacks_no_rows() -> None:
    build = TraceBuilder()
    build.rank(0).phase("forward", 0, 100 * MS)
    assert len(flames(build.trace())) == 0


def test_stacks_without_steps_are_an_error() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    sample(rank, 0, stack_of(rank, MAIN))
    with pytest.raises(MissingDataError):
        flames(build.trace())
