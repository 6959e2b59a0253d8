"""Where steps begin and end. One character is one millisecond; `|` cuts a run without taking time."""

from __future__ import annotations

import numpy as np
import pytest
from analysis.table_text import expected, step_text
from budget_identity import budget, check_intervals, check_sums
from builders import MS, US, TraceBuilder, trace_from_text

from stashtrace.analysis.registry import analyze
from stashtrace.errors import MissingDataError
from stashtrace.schema.events import METADATA
from stashtrace.schema.kinds import PhaseFlag, SpanKind
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_text import summary

CASES = {
    "a step ends with its update and begins where the last one ended": (
        """
        rank 0 loader : .00.....11
        rank 0 phase  : ...FBO....FBO..
        """,
        """
        0 0: 1-6 train
        0 1: 6-13 train
        """,
    ),
    "micro-batches are sub-steps": (
        """
        rank 0 loader : 0..1..2...3..
        rank 0 phase  : .FB.FB.FBO.FBO
        """,
        """
        0 0: 0-10 train x3
        0 1: 10-14 train
        """,
    ),
    "micro-batches cut from one batch": (
        """
        rank 0 loader : 0......1
        rank 0 phase  : .FBFBO..FBFBO
        """,
        """
        0 0: 0-6 train x2
        0 1: 6-13 train x2
        """,
    ),
    "micro-batches without a loader": (
        """
        rank 0 phase  : FBFBO.FBFBO
        """,
        """
        0 0: 0-5 train x2
        0 1: 5-11 train x2
        """,
    ),
    "an update that the GradScaler skipped ends a step": (
        """
        rank 0 phase  : FBOFBSFBO
        """,
        """
        0 0: 0-3 train
        0 1: 3-6 skipped_update
        0 2: 6-9 train
        """,
    ),
    "several optimizers in a row are one update": (
        """
        rank 0 phase  : FBO|O.FBO|S
        """,
        """
        0 0: 0-4 train
        0 1: 4-9 train
        """,
    ),
    "two forward modules (model, loss) before a backward are one sub-step": (
        """
        rank 0 loader : 0.....1
        rank 0 phase  : .FF|FBO.FF|FBO
        """,
        """
        0 0: 0-6 train
        0 1: 6-12 train
        """,
    ),
    "validation between updates: forward to forward": (
        """
        rank 0 loader : 0...0..1..2...1
        rank 0 phase  : .FBO.VV.VV.VV..FBO
        """,
        """
        0 0: 0-4 train
        0 1: 4-7 validation
        0 2: 7-10 validation
        0 3: 10-14 validation
        0 4: 14-18 train
        """,
    ),
    "inference, and its end": (
        """
        rank 0 loader : 0..1..2
        rank 0 phase  : .VV.VV.VV..
        """,
        """
        0 0: 0-3 inference
        0 1: 3-6 inference
        0 2: 6-9 inference
        """,
    ),
    "a forward under no_grad before most updates belongs to the step": (
        """
        rank 0 phase  : V.FBOV.FBOV.FBOV.FBOV.FBO
        """,
        """
        0 0: 0-5 train
        0 1: 5-10 train
        0 2: 10-15 train
        0 3: 15-20 train
        0 4: 20-25 train
        """,
    ),
    "no optimizer seen: forward to forward, what has a backward is training": (
        """
        rank 0 phase  : FBFB.FB
        """,
        """
        0 0: 0-2 train
        0 1: 2-5 train
        0 2: 5-7 train
        """,
    ),
    "marks win over everything": (
        """
        rank 0 loader : 0......1.....
        rank 0 phase  : .FBO....FBO....FBO
        rank 0 mark   : .....x......x...
        """,
        """
        0 0: 0-5 marked
        0 1: 5-12 marked
        """,
    ),
    "marks at the begin of each iteration": (
        """
        rank 0 phase  : .FBO.FBO.
        rank 0 mark   : x...x...x
        """,
        """
        0 0: 0-4 marked
        0 1: 4-8 marked
        """,
    ),
    "forward and backward in the optimizer's closure, and validation after some of the updates": (
        """
        rank 0 loader : 0.......1........2.3.4........
        rank 0 phase  : .OOOOOO..OOOOO.........OOOOOO.
        rank 0 phase  : ..FFBB....FBB.....V.V...FFBB..
        """,
        """
        0 0: 0-7 train
        0 1: 7-14 train
        0 2: 14-19 validation
        0 3: 19-21 validation
        0 4: 21-29 train
        """,
    ),
    "micro-batches of which the last is in the optimizer's closure": (
        """
        rank 0 loader : 0....1......2....3......
        rank 0 phase  : .FBB.OOOOOO..FBB.OOOOOO.
        rank 0 phase  : ......FFBB........FFBB..
        """,
        """
        0 0: 0-11 train x2
        0 1: 11-23 train x2
        """,
    ),
    "a closure that is called several times is one forward and backward": (
        """
        rank 0 phase  : .OOOOOOOO.OOOOOOOO
        rank 0 phase  : .FBFBFBF..FBFBFBB.
        """,
        """
        0 0: 1-9 train
        0 1: 9-18 train
        """,
    ),
    "a closure without a backward (a gradient-free search)": (
        """
        rank 0 loader : 0.....1.....
        rank 0 phase  : .OOOO..OOOO.
        rank 0 phase  : .V|V|V..V|V|V.
        """,
        """
        0 0: 0-5 train
        0 1: 5-11 train
        """,
    ),
    "a forward long before the loop and a step that was never finished are outside": (
        """
        rank 0 phase  : F.......FBO.FB
        """,
        "0 0: 8-11 train",
    ),
    "rank 0 validates alone: that is part of the step in which the others wait for it": (
        """
        rank 0 phase  : FBO.VV|VFBO
        rank 1 phase  : FBO.....FBO
        """,
        """
        0 0: 0-3 train
        0 1: 3-10 train
        1 0: 0-3 train
        1 1: 3-11 train
        """,
    ),
    "a rank that was recorded from its second step on is shifted by its collectives": (
        """
        rank 0 phase  : FBOFBOFBO
        rank 0 coll   : .0..1..2.
        rank 1 phase  : ...FBOFBO
        rank 1 coll   : ....1..2.
        """,
        """
        0 0: 0-3 train
        0 1: 3-6 train
        0 2: 6-9 train
        1 1: 3-6 train
        1 2: 6-9 train
        """,
    ),
    "a rank that was recorded earlier than rank 0": (
        """
        rank 0 phase  : ...FBOFBO
        rank 0 coll   : ....1..2.
        rank 1 phase  : FBOFBOFBO
        rank 1 coll   : .0..1..2.
        """,
        """
        0 1: 3-6 train
        0 2: 6-9 train
        1 0: 0-3 train
        1 1: 3-6 train
        1 2: 6-9 train
        """,
    ),
    "collectives that contradict the ordinals are reported": (
        """
        rank 0 phase  : FBOFBOFBO
        rank 0 coll   : .0..1..2.
        rank 1 phase  : FBOFBOFBO
        rank 1 coll   : .0.....12
        """,
        """
        0 0: 0-3 train
        0 1: 3-6 train
        0 2: 6-9 train ?
        1 0: 0-3 train
        1 1: 3-6 train
        1 2: 6-9 train ?
        """,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_drawn(name: str) -> None:
    drawing, steps = CASES[name]
    assert step_text(trace_from_text(drawing)) == expected(steps)


def loop(lengths: list[int]) -> Trace:
    build, at = TraceBuilder(), 0
    for length in lengths:
        build.rank(0).phase("forward", at, at + length - 1).phase("optimizer", at + length - 1, at + length)
        at += length
    return build.trace()


def test_warm_up_is_the_first_five_and_what_is_far_too_long() -> None:
    marks = analyze(loop([90, 10, 10, 10, 10, 31, 10, 10, 10, 10, 10, 40, 10]), "steps")["warmup"].tolist()
    assert marks == [1] * 6 + [0] * 7


def test_short_runs_lose_only_slow_first_steps() -> None:
    assert analyze(loop([90, 10, 10, 10]), "steps")["warmup"].tolist() == [1, 0, 0, 0]
    assert analyze(loop([12, 10]), "steps")["warmup"].tolist() == [0, 0]


def test_updates_inside_backward_end_with_it() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    for at in (0, 10):
        rank.phase("forward", at, at + 3).phase("backward", at + 3, at + 10)
        rank.phase("optimizer", at + 4, at + 5, flags=PhaseFlag.NESTED)
        rank.phase("optimizer", at + 7, at + 8, flags=PhaseFlag.NESTED)
    assert step_text(build.trace(), unit_ns=1) == "0 0: 0-10 train\n0 1: 10-20 train"


def test_recomputation_and_closures_are_not_forwards() -> None:
    build = TraceBuilder()
    rank = build.rank(0).phase("forward", 0, 2).phase("backward", 2, 6).phase("optimizer", 6, 12)
    rank.phase("forward", 3, 4, flags=PhaseFlag.NESTED).phase("forward", 7, 8, flags=PhaseFlag.NESTED)
    assert step_text(build.trace(), unit_ns=1) == "0 0: 0-12 train"


@pytest.mark.parametrize("rollout", [0, 4])
def test_a_checkpointed_forward_is_one_of_training(rollout: int) -> None:
    """The model runs without gradients in every second step, and again inside backward; its rollouts stay rollouts."""
    build, now = TraceBuilder(), 0
    rank = build.rank(0)
    for number in range(24):
        quiet = [PhaseFlag.NO_GRAD] * (rollout if number % 4 == 0 else 0)
        for flag in (*quiet, PhaseFlag.NO_GRAD if number % 2 == 0 else 0):
            rank.phase("forward", now, now + MS, flags=int(flag | PhaseFlag.TRAINING), name="Net")
            now += MS
        rank.phase("backward", now, now + 3 * MS)
        if number % 2 == 0:
            rank.phase("forward", now + MS, now + 2 * MS, flags=int(PhaseFlag.NESTED | PhaseFlag.TRAINING), name="Net")
        rank.phase("optimizer", now + 3 * MS, now + 4 * MS)
        now += 4 * MS
    found = analyze(build.trace(), "steps")
    assert len(found) == (6 if rollout else 24)
    assert set(found["kind"].tolist()) == {"iteration" if rollout else "train"}


def test_the_thread_with_the_updates_drives_the_loop() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    for at in range(0, 50, 10):
        rank.phase("forward", at, at + 2)
    trainer = rank.thread("trainer").phase("forward", 0, 5).phase("optimizer", 5, 9)
    table = analyze(build.trace(), "steps")
    assert table["track_id"].tolist() == [trainer.track_id]


def test_nothing_recorded() -> None:
    with pytest.raises(MissingDataError, match="no rank has a step"):
        analyze(Trace(StringPool(), {}), "steps")
    with pytest.raises(MissingDataError, match="finished a step"):
        analyze(trace_from_text("rank 0 loader : 000"), "steps")


def test_model_and_loss_before_a_backward_are_one_sub_step() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    for at in (0, 10):
        rank.phase("forward", at, at + 2, name="Net").phase("forward", at + 2, at + 3, name="Loss")
        rank.phase("backward", at + 3, at + 6).phase("optimizer", at + 6, at + 9)
    assert step_text(build.trace(), unit_ns=1) == "0 0: 0-9 train\n0 1: 9-19 train"


def only_steps(window: str, lengths: list[int]) -> Trace:
    """A run with ``--steps``: what it holds, and what run.json says."""
    trace = loop(lengths)
    code = trace.strings.code
    row = {"process_id": [-1], "key_code": [code("steps")], "value_code": [code(window)]}
    return trace.replace(metadata=Table(METADATA, {name: np.array(values) for name, values in row.items()}))


@pytest.mark.parametrize(
    ("window", "numbers", "left_out"),
    [("20:32", range(20, 32), 0), ("3:15", range(3, 15), 2), (":12", range(12), 5)],
)
def test_a_window_of_steps_keeps_its_numbers(window: str, numbers: range, left_out: int) -> None:
    found = analyze(only_steps(window, [10] * 12), "steps")
    assert found["step"].tolist() == list(numbers)
    assert found["warmup"].tolist() == [1] * left_out + [0] * (12 - left_out)


def test_whole_steps_that_overlap_by_rounding_are_cut_where_the_next_begins() -> None:
    build = TraceBuilder()
    rank = build.rank(0).phase("forward", 10 * MS, 50 * MS)
    for number, (begin, end) in enumerate([(0, 100 * MS + US), (100 * MS, 200 * MS), (190 * MS, 300 * MS)]):
        build.add(
            "spans",
            begin_ns=begin,
            end_ns=end,
            track_id=rank.track_id,
            kind_code=int(SpanKind.STEP),
            value=number,
            parent_id=-1,
        )
    trace = build.trace()
    assert analyze(trace, "steps")["end_ns"].tolist() == [100 * MS, 190 * MS, 300 * MS]
    rows = budget(trace)
    check_sums(trace, rows)
    check_intervals(trace, rows)


def ranks_of(*lengths: list[int]) -> Trace:
    """Make a trace of one rank for each list of step lengths in ms."""
    build = TraceBuilder()
    for rank, own in enumerate(lengths):
        at = 0
        for length in (one * MS for one in own):
            build.rank(rank).phase("forward", at, at + length // 2).phase("backward", at + length // 2, at + length - 1)
            build.rank(rank).phase("optimizer", at + length - 1, at + length)
            at += length
    return build.trace()


@pytest.mark.parametrize(
    ("lengths", "left_out"),
    [
        ([49, 19, 19, 18], [1, 0, 0, 0]),
        ([22, 19, 19, 18], [0, 0, 0, 0]),
        ([20, 19, 19, 1], [0, 0, 0, 1]),
        ([20, 19, 19, 9], [0, 0, 0, 0]),
        ([49, 19, 19, 18, 1], [1, 0, 0, 0, 1]),
        ([49, 19], [0, 0]),
        ([10] * 20 + [1], [1] * 5 + [0] * 15 + [1]),
        ([10] * 20 + [40], [1] * 5 + [0] * 15 + [1]),  # what comes once, at the end
        ([10] * 20 + [25], [1] * 5 + [0] * 16),
        ([150, 12] * 10, [1] * 5 + [0] * 15),  # the last is like every other one
    ],
)
def test_edges_that_are_not_like_the_others_are_left_out(lengths: list[int], left_out: list[int]) -> None:
    assert analyze(ranks_of(lengths), "steps")["warmup"].tolist() == left_out


def test_the_summary_says_which_were_left_out() -> None:
    assert "3 steps of 18.7 ms (the first left out)" in summary(ranks_of([49, 19, 19, 18]))
    assert "3 steps of 19.3 ms (the last left out)" in summary(ranks_of([20, 19, 19, 1]))
    assert "15 steps of 10.0 ms (first 5 and the last left out)" in summary(ranks_of([10] * 20 + [1]))


def test_ranks_with_different_numbers_of_steps_are_reported() -> None:
    shown = " ".join(summary(ranks_of([10] * 160, [10] * 120, [10] * 160)).split())
    assert "115 to 155 steps of 10.0 ms (first 5 left out)" in shown
    assert "the ranks did not make the same number of steps: ranks 0,2 made 160 steps, rank 1 made 120 steps" in shown


def test_a_step_more_or_less_is_where_the_job_was_stopped() -> None:
    shown = summary(ranks_of([10] * 60, [10] * 59))
    assert "55 steps of 10.0 ms" in shown
    assert "the same number" not in shown
