"""lines: time of a rank and kind by line; exact where calls were recorded, by samples for the rest."""

from __future__ import annotations

import numpy as np
import pytest
from budget_identity import relaxed
from builders import MS, ProcessBuilder, TraceBuilder
from hypothesis import given
from hypothesis import strategies as st
from stack_rows import FORKED, TORCH, long_call, sample, stack_of

from stashtrace.analysis.lines.lines import costliest_lines, costliest_of_all, costliest_worker_lines, lines
from stashtrace.analysis.lines.user_frames import place_of
from stashtrace.analysis.stalls.budget import stalls
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.schema.kinds import StackCause, StackFlag, WaitOp
from stashtrace.schema.trace import Trace

MAIN = "main /jobs/late.py:23"
HOOK = ("backward /venv/lib/python3.11/site-packages/torch/_tensor.py:6", "hook /jobs/late.py:11")
PARSE = "parse /jobs/late.py:14"


def trains(build: TraceBuilder, number: int, steps: int) -> ProcessBuilder:
    """A rank whose steps of 100 ms are backward, with a sleep of 20 ms in it, 10 ms of a loop's Python, optimizer."""
    rank = build.rank(number)
    for step in range(steps):
        at = step * 100 * MS
        rank.phase("forward", at, at + 30 * MS, cpu=(at, at + 30 * MS))
        rank.phase("backward", at + 30 * MS, at + 80 * MS, cpu=(at + 30 * MS, at + 60 * MS))
        rank.wait(WaitOp.SLEEP, at + 40 * MS, at + 60 * MS)
        rank.phase("optimizer", at + 90 * MS, at + 100 * MS, cpu=(at + 70 * MS, at + 80 * MS))
    return rank


def text(trace: Trace, **options: str) -> list[str]:
    """One line for each row: rank, where, kind, place, leaf and times in ms."""
    out = []
    for row in lines(trace, **options).rows():  # type: ignore[arg-type]
        place = place_of(trace.text(row["function_code"]), trace.text(row["path_code"]), row["line"])
        leaf = trace.text(row["leaf_code"])
        times = f"{row['time_ns'] / MS:.4g} [{row['low_ns'] / MS:.3g}..{row['high_ns'] / MS:.3g}]"
        cells = (str(row["rank"]), row["where"], row["kind"], place or "-", leaf, times, f"n={row['samples_count']}")
        out.append(" ".join(filter(None, cells)))
    return out


def test_long_calls_are_exact_and_samples_share_the_rest() -> None:
    build = TraceBuilder()
    rank = trains(build, 0, 2)
    main, hook, parse = stack_of(rank, MAIN), stack_of(rank, MAIN, *HOOK), stack_of(rank, MAIN, PARSE)
    for at in (0, 100 * MS):
        long_call(rank, at + 40 * MS, at + 60 * MS, hook)
        long_call(rank, at + 30 * MS, at + 80 * MS, main, StackCause.PHASE)  # holds the sleep
        sample(rank, at, main)
        for moment in (10, 45, 70, 99):
            sample(rank, at + moment * MS, hook if moment == 45 else main)
        sample(rank, at + 85 * MS, parse)
    assert text(build.trace()) == [
        "0 step compute main (late.py:23) 70 [47.3..70] n=8",
        "0 step other hook (late.py:11) 20 [20..20] n=0",
        "0 step python parse (late.py:14) 10 [3.42..10] n=2",
    ]


def test_time_without_a_sample_and_unreadable_samples_have_no_function() -> None:
    build = TraceBuilder()
    rank = trains(build, 0, 1)
    main = stack_of(rank, MAIN)
    for moment, stack in ((0, main), (10, main), (70, 0), (99, 0)):
        sample(rank, moment * MS, stack)
    assert text(build.trace()) == [
        "0 step compute main (late.py:23) 35 [10.5..59.5] n=2",
        "0 step compute - 35 [10.5..59.5] n=2",
        "0 step other - 20 [0..20] n=0",
        "0 step python - 10 [0..10] n=0",
    ]


def test_samples_say_nothing_of_the_time_before_the_first() -> None:
    build = TraceBuilder()
    rank = trains(build, 0, 1)
    main = stack_of(rank, MAIN)
    for moment in (61, 65, 70, 75, 95, 99):
        sample(rank, moment * MS, main)
    found = text(build.trace())
    assert found[0] == "0 step compute - 40 [0..51.7] n=0"
    assert found[1] == "0 step compute main (late.py:23) 30 [18.3..70] n=6", "at most all that was not seen"


def test_the_innermost_of_nested_long_calls_has_the_time() -> None:
    build = TraceBuilder()
    rank = trains(build, 0, 1)
    long_call(rank, 0, 30 * MS, stack_of(rank, MAIN), StackCause.COLLECTIVE)
    long_call(rank, 10 * MS, 20 * MS, stack_of(rank, MAIN, PARSE), StackCause.GARBAGE)
    found = text(build.trace())
    assert "0 step compute main (late.py:23) 20 [20..60] n=0" in found
    assert "0 step compute parse (late.py:14) 10 [10..50] n=0" in found


def test_what_a_coroutine_awaits_has_the_time_in_which_its_loop_waits() -> None:
    build = TraceBuilder()
    rank = trains(build, 0, 1)
    long_call(rank, 0, 30 * MS, stack_of(rank, MAIN, PARSE), StackCause.AWAITED)
    for begin, end in ((1, 29), (50, 60)):
        long_call(rank, begin * MS, end * MS, stack_of(rank, MAIN), StackCause.IO)
    found = text(build.trace())
    assert "0 step compute parse (late.py:14) 30 [30..70] n=0" in found
    assert "0 step other main (late.py:23) 10 [10..20] n=0" in found


def test_a_wait_for_the_gil_is_spent_where_its_holder_is() -> None:
    build = TraceBuilder()
    rank = trains(build, 0, 1)
    main, parse = stack_of(rank, MAIN), stack_of(rank, MAIN, PARSE)
    rank.wait(WaitOp.GIL, 80 * MS, 90 * MS)
    long_call(rank, 80 * MS, 90 * MS, main)
    for moment in (1, 85, 99):
        sample(rank, moment * MS, main)
    known = text(build.trace())
    assert "0 step other main (late.py:23) 10 [10..30] n=0" in known, "nobody is known to hold it"
    for moment in (20, 83, 87):
        sample(rank, moment * MS, parse, track_id=77, flags=StackFlag.HOLDS_GIL)
    found = text(build.trace())
    assert [line for line in found if " other " in line and "main" in line] == []
    (held,) = [line for line in found if "parse" in line]
    assert held.startswith("0 step other parse (late.py:14)")
    assert held.endswith("n=2")


def test_leaf_is_the_call_with_most_of_the_time() -> None:
    build = TraceBuilder()
    rank = trains(build, 0, 1)
    few, most = (stack_of(rank, MAIN, f"{name} {TORCH}/nn.py:3") for name in ("relu", "conv"))
    for moment, stack in ((0, most), (5, few), (70, most), (99, most)):
        sample(rank, moment * MS, stack)
    assert text(build.trace())[0] == "0 step compute main (late.py:23) torch conv 70 [35.7..70] n=4"
    (line,) = costliest_lines(build.trace(), 0, "compute", 5)
    assert (line.place, line.leaf, line.time_ns) == ("main (late.py:23)", "torch conv", 70 * MS)
    assert (round(line.share_low, 2), line.exact) == (0.51, 0.0)


def test_a_recording_without_functions_has_no_rows() -> None:
    build = TraceBuilder()
    trains(build, 0, 2)
    assert text(build.trace()) == []
    assert costliest_lines(build.trace(), 0, "other", 3) == []


def test_a_recording_without_steps_is_an_error() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    sample(rank, 5, stack_of(rank, MAIN))
    with pytest.raises(MissingDataError, match="no rank has a step"):
        lines(build.trace())


def test_by_is_checked() -> None:
    with pytest.raises(UsageError, match="lines by 'step' is not known"):
        lines(TraceBuilder().trace(), by="step")  # type: ignore[arg-type]


def test_ranks_apart_and_together() -> None:
    build = TraceBuilder()
    for number in (0, 1):
        rank = trains(build, number, 3)
        for step in range(3):
            begin = step * 100 + 40
            long_call(rank, begin * MS, (begin + 20) * MS, stack_of(rank, MAIN, *(HOOK if number else (PARSE,))))
    trace = build.trace()
    assert [line.place for line in costliest_lines(trace, 1, "other", 3)] == ["hook (late.py:11)"]
    assert [line.place for line in costliest_lines(trace, 0, "other", 3)] == ["parse (late.py:14)"]
    assert [row for row in text(trace, by="run") if " other " in row] == [
        "-1 step other parse (late.py:14) 10 [10..10] n=0",
        "-1 step other hook (late.py:11) 10 [10..10] n=0",
    ]


def test_a_column_of_the_summary_is_the_sum_of_its_kinds() -> None:
    build = TraceBuilder()
    rank = trains(build, 0, 1)
    parse = stack_of(rank, MAIN, PARSE)
    long_call(rank, 80 * MS, 90 * MS, parse)
    (line,) = costliest_lines(build.trace(), 0, "host", 3)
    assert (line.place, line.time_ns, line.low_ns) == ("parse (late.py:14)", 10 * MS, 10 * MS)
    assert (line.share_low, line.exact) == (1.0, 1.0)
    assert costliest_lines(build.trace(), 0, "nothing", 3) == []


def test_the_costliest_line_of_all_leaves_waits_for_others_out() -> None:
    """Kinds of a line add up; means are of the steps of both ranks."""
    build = TraceBuilder()
    for number in (0, 1):
        rank = trains(build, number, 3)
        main, parse = stack_of(rank, MAIN), stack_of(rank, MAIN, PARSE)
        for step in range(3):
            at = step * 100 * MS
            long_call(rank, at + 30 * MS, at + 35 * MS, parse, StackCause.GARBAGE)
            long_call(rank, at + 40 * MS, at + 50 * MS, parse)
            long_call(rank, at + 60 * MS, at + 80 * MS, main, StackCause.COLLECTIVE)
    where, line = costliest_of_all(build.trace()) or ("", None)
    assert (where, line.place, line.kind, line.time_ns) == ("step", "main (late.py:23)", "compute", 20 * MS)
    for at in (60 * MS, 160 * MS, 260 * MS):
        build.collective(dict.fromkeys((0, 1), (at, at + 20 * MS, at + 20 * MS)))
    where, line = costliest_of_all(build.trace()) or ("", None)
    assert (where, line.place, line.kind, line.time_ns) == ("step", "parse (late.py:14)", "other", 15 * MS)


def test_the_costliest_line_of_all_may_be_of_workers() -> None:
    where, line = costliest_of_all(batches()) or ("", None)
    assert (where, line.place, line.kind) == ("worker", "decode (images.py:67)", "prep")
    build = TraceBuilder()
    trains(build, 0, 2)
    assert costliest_of_all(build.trace()) is None, "nothing is known without stacks"


def test_batches_of_workers() -> None:
    trace = batches()
    assert [row for row in text(trace) if " worker " in row] == [
        "0 worker prep decode (images.py:67) 32 [25.8..32] n=16",
        "0 worker fetch ImageSet.__getitem__ (images.py:88) 8 [8..8] n=0",
    ]
    assert [line.place for line in costliest_worker_lines(trace, 0, "data", 1)] == ["decode (images.py:67)"]


def batches() -> Trace:
    """Four steps that wait for batches of two workers."""
    build = TraceBuilder()
    rank = build.rank(0)
    item = "ImageSet.__getitem__ /jobs/images.py:88"
    for number in range(4):
        at, worker = number * 100 * MS, rank.worker(number % 2)
        rank.batch_wait(number, at, at + 40 * MS, worker=number % 2)
        rank.phase("forward", at + 40 * MS, at + 60 * MS).phase("optimizer", at + 60 * MS, at + 100 * MS)
        worker.fetch(number, at, at + 40 * MS)
        worker.io(at + 30 * MS, at + 38 * MS, blocked=True)
        long_call(worker, at + 30 * MS, at + 38 * MS, stack_of(worker, *FORKED, item), StackCause.IO)
        for moment in (0, 10, 20, 39, 60):  # the last between batches
            sample(worker, at + moment * MS, stack_of(worker, *FORKED, "decode /jobs/images.py:67"))
    return build.trace()


def test_the_start_is_apart() -> None:
    build = TraceBuilder()
    rank = trains(build, 0, 9).lives(-50 * MS, 900 * MS)
    setup = stack_of(rank, "setup /jobs/late.py:3")
    long_call(rank, -40 * MS, -10 * MS, setup)
    start = [row for row in text(build.trace()) if " start " in row]
    assert "setup (late.py:3) 30 [30.." in start[0], start


STACKS = (
    (MAIN,),
    (MAIN, *HOOK),
    (MAIN, PARSE),
    (f"probe {TORCH}/../stashtrace/probes/a.py:1",),
)
moment = st.integers(0, 330 * MS)


@given(
    st.lists(st.tuples(st.integers(0, 1), moment, st.integers(-1, 3)), max_size=30),
    st.lists(
        st.tuples(st.integers(0, 1), moment, st.integers(0, 80 * MS), st.integers(-1, 3), st.sampled_from(StackCause)),
        max_size=12,
    ),
)
@relaxed(100)
def test_times_sum_to_the_budget(
    samples: list[tuple[int, int, int]], calls: list[tuple[int, int, int, int, StackCause]]
) -> None:
    """Whatever was recorded, also of calls that overlap as calls cannot."""
    build = TraceBuilder()
    ranks = [trains(build, number, 3) for number in (0, 1)]
    build.collective({0: (65 * MS, 79 * MS), 1: (75 * MS, 79 * MS)})
    stack = [[stack_of(rank, *calls) for calls in STACKS] + [0] for rank in ranks]
    for rank, at, which in samples:
        sample(ranks[rank], at, stack[rank][which])
    for rank, at, length, which, cause in calls:
        long_call(ranks[rank], at, at + length, stack[rank][which], cause)
    trace = build.trace()
    table = lines(trace)
    table = table.take(table["where"] == "step")
    assert (table["low_ns"] <= table["time_ns"]).all()
    assert (table["time_ns"] <= table["high_ns"]).all()
    assert (table["time_ns"] >= 0).all()
    if samples or calls:
        budget = stalls(trace, by="step_kind")
        for row in budget.rows():
            mine = (table["rank"] == row["rank"]) & (table["kind"] == row["kind"])
            assert table["time_ns"][mine & (table["step_kind"] == row["step_kind"])].sum() == (
                row["stall_ns"] // row["steps_count"]
            )
        assert np.isin(table["kind"], budget["kind"]).all()
