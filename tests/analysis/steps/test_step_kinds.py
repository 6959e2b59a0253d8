"""What kind each step is: the steps that are counted are those that the job's own log counts."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from builders import MS, TraceBuilder

from stashtrace.analysis.registry import analyze
from stashtrace.schema.kinds import PhaseFlag
from stashtrace.schema.trace import Trace

_EVAL, _GRADIENTS_OFF = PhaseFlag(0), PhaseFlag.NO_GRAD


class Loop:
    """A loop of one rank as its tokens: each takes a millisecond, and one more lies behind it."""

    def __init__(self, build: TraceBuilder | None = None, rank: int = 0) -> None:
        self.build, self.rank = build or TraceBuilder(), rank
        self.at = 0
        self.batches: Counter[int] = Counter()

    def _next(self) -> tuple[int, int]:
        begin, self.at = self.at, self.at + 2 * MS
        return begin, begin + MS

    def wait(self, loader: int = 1, *, first: bool = False) -> Loop:
        if first:
            self.batches[loader] = 0
        self.build.rank(self.rank).batch_wait(self.batches[loader], *self._next(), loader=loader)
        self.batches[loader] += 1
        return self

    def phase(self, kind: str, flags: PhaseFlag = PhaseFlag.TRAINING, name: str = "Net") -> Loop:
        self.build.rank(self.rank).phase(kind, *self._next(), flags=flags, name=name)
        return self

    def update(self, optimizer: str = "Adam") -> Loop:
        return self.phase("forward").phase("backward").phase("optimizer", name=optimizer)

    def quiet(self, count: int, mode: PhaseFlag = _EVAL) -> Loop:
        for _ in range(count):
            self.phase("forward", _GRADIENTS_OFF | mode)
        return self

    def trace(self) -> Trace:
        return self.build.trace()

    def kinds(self) -> list[tuple[str, int]]:
        """Kinds of the steps in order, equal ones in a row as one with their count."""
        found: list[tuple[str, int]] = []
        for kind in analyze(self.trace(), "steps")["kind"].tolist():
            if found and found[-1][0] == kind:
                found[-1] = (kind, found[-1][1] + 1)
            else:
                found.append((kind, 1))
        return found


@pytest.mark.parametrize("mode", [PhaseFlag.TRAINING, _EVAL], ids=["never eval()", "eval() for the rollout"])
def test_a_rollout_and_its_updates_are_one_iteration(mode: PhaseFlag) -> None:
    loop = Loop()
    for _ in range(40):
        loop.quiet(100, mode)
        for _ in range(4):
            loop.update()
    assert loop.kinds() == [("iteration", 40)]
    steps = analyze(loop.trace(), "steps")
    assert steps["sub_steps_count"].tolist() == [4] * 40
    assert set((steps["end_ns"] - steps["begin_ns"])[1:].tolist()) == {(100 + 3 * 4) * 2 * MS}
    assert all(end == begin for (_, end), (begin, _) in pairwise(zip(steps["begin_ns"], steps["end_ns"], strict=True)))


def test_what_one_rank_generates_is_no_rollout_of_the_job() -> None:
    """Rank 0 generates samples before every fourth update, rank 1 does not: both make the same training steps."""
    build = TraceBuilder()
    for rank in range(2):
        loop = Loop(build, rank)
        for _ in range(10):
            if rank == 0:
                loop.quiet(100)
            for _ in range(4):
                loop.update()
    steps = analyze(build.trace(), "steps")
    assert "iteration" not in steps["kind"]
    trains = steps.take(steps["kind"] == "train")
    assert [int((trains["rank"] == rank).sum()) for rank in range(2)] == [40, 40]


def test_a_rollout_that_a_killed_job_did_not_finish_is_outside() -> None:
    loop = Loop()
    for _ in range(6):
        loop.quiet(50)
        for _ in range(8):
            loop.update()
    assert loop.quiet(20).kinds() == [("iteration", 6)]


def test_rollouts_seen_from_the_middle_of_a_run() -> None:
    loop = Loop().update()
    for _ in range(6):
        loop.quiet(30, PhaseFlag.TRAINING)
        for _ in range(4):
            loop.update()
    assert loop.kinds() == [("iteration", 7)]


def test_generated_answers_of_a_batch_of_prompts_and_updates_on_them() -> None:
    loop = Loop()
    for _ in range(5):
        loop.wait().quiet(60)
        for _ in range(4):
            loop.update()
    assert loop.kinds() == [("iteration", 5)]


def test_answers_to_one_update_are_part_of_its_step() -> None:
    loop = Loop()
    for _ in range(8):
        loop.wait().quiet(60).update()
    assert loop.kinds() == [("train", 8)]


def test_a_teacher_and_validation() -> None:
    loop = Loop()
    for _ in range(3):
        for at in range(6):
            loop.wait(first=at == 0).quiet(1).update()
        for at in range(9):
            loop.wait(2, first=at == 0).quiet(1)
    assert loop.kinds() == [("train", 6), ("validation", 9)] * 3


def test_updates_whose_number_varies() -> None:
    loop = Loop()
    for count in (4, 1, 3, 1, 2, 1, 1, 2):
        loop.quiet(64, PhaseFlag.TRAINING)
        for _ in range(count):
            loop.update()
    sizes = analyze(loop.trace(), "steps")["sub_steps_count"].tolist()
    assert loop.kinds() == [("iteration", 8)]
    assert sizes == [4, 1, 3, 1, 2, 1, 1, 2]


@pytest.mark.parametrize("mode", [PhaseFlag.TRAINING, _EVAL], ids=["without eval()", "eval()"])
@pytest.mark.parametrize("sanity", [0, 2])
def test_validation_over_a_loader_after_each_epoch(mode: PhaseFlag, sanity: int) -> None:
    loop = Loop()
    for at in range(sanity):
        loop.wait(2, first=at == 0).quiet(1, mode)
    for _ in range(4):
        for at in range(4):
            loop.wait(first=at == 0).update()
        for at in range(100):
            loop.wait(2, first=at == 0).quiet(1, mode)
    head = [("validation", sanity)] if sanity else []
    assert loop.kinds() == head + [("train", 4), ("validation", 100)] * 4


def test_validation_of_a_model_and_its_losses() -> None:
    loop = Loop()
    for _ in range(3):
        for at in range(6):
            loop.wait(first=at == 0).update()
        for at in range(9):
            loop.wait(2, first=at == 0).phase("forward", _GRADIENTS_OFF).phase("forward", _GRADIENTS_OFF, "Loss")
    assert loop.kinds() == [("train", 6), ("validation", 9)] * 3


def test_validation_after_every_single_update() -> None:
    loop = Loop()
    for _ in range(8):
        loop.wait(first=True).update()
        for at in range(5):
            loop.wait(2, first=at == 0).quiet(1)
    assert loop.kinds() == [("train", 1), ("validation", 5)] * 8


def test_validation_without_a_loader() -> None:
    loop = Loop()
    for _ in range(5):
        for _ in range(20):
            loop.update()
        loop.quiet(30)
    assert loop.kinds() == [("train", 20), ("validation", 30)] * 5


def test_validation_before_each_epoch_and_short_beside_it() -> None:
    loop = Loop()
    for _ in range(5):
        loop.quiet(2)
        for _ in range(20):
            loop.wait().update()
    assert loop.kinds() == [("validation", 2), ("train", 20)] * 5


def test_inference_is_inference() -> None:
    loop = Loop()
    for _ in range(30):
        loop.wait().quiet(1)
    assert loop.kinds() == [("inference", 30)]
    assert Loop().quiet(7).kinds() == [("inference", 7)]


def test_generating_for_each_batch_is_a_step_per_batch() -> None:
    loop = Loop()
    for _ in range(6):
        loop.wait().quiet(40)
    assert loop.kinds() == [("inference", 6)]


def test_validation_of_a_model_that_something_unseen_updates() -> None:
    loop = Loop()
    for _ in range(3):
        loop.wait().phase("forward").phase("backward")
    assert loop.wait(2).quiet(1).kinds() == [("train", 3), ("validation", 1)]


@pytest.mark.parametrize("waits", [True, False])
def test_two_optimizers_that_take_turns_on_one_batch(waits: bool) -> None:
    loop = Loop()
    for _ in range(10):
        if waits:
            loop.wait()
        loop.update("Adam").update("Adam 2")
    assert loop.kinds() == [("train", 10)]


def test_a_critic_with_more_batches_than_its_generator() -> None:
    loop = Loop()
    for _ in range(4):
        for _ in range(5):
            loop.wait().update("RMSprop")
        loop.update("RMSprop 2")
    assert loop.kinds() == [("train", 20)]


def test_one_optimizer_after_the_other_in_two_parts_of_a_run() -> None:
    loop = Loop()
    for name in ("Adam", "SGD"):
        for _ in range(6):
            loop.update(name)
    assert loop.kinds() == [("train", 12)]


def test_accumulated_gradients() -> None:
    loop = Loop()
    for _ in range(6):
        for _ in range(3):
            loop.wait().phase("forward").phase("backward")
        loop.wait().update()
    assert loop.kinds() == [("train", 6)]


def test_on_a_device_an_iteration_lies_between_the_marks_of_its_ends() -> None:
    """Each update leaves a mark: those inside an iteration, and behind a short rollout, are none of its ends."""
    loop = Loop()
    stream = loop.build.rank(0).gpu(0).stream("compute", compute=True)
    late = 3 * MS  # the device is behind the host by as much
    stream.step(late, host_ns=0)
    ends = []
    for _ in range(6):
        loop.quiet(2, PhaseFlag.TRAINING)
        for _ in range(4):
            loop.update()
            stream.step(loop.at - MS + late, host_ns=loop.at - MS)
        ends.append(loop.at - MS + late)
    steps = analyze(loop.trace(), "steps")
    assert steps["kind"].tolist() == ["iteration"] * 6
    assert steps["end_ns"].tolist() == ends
    assert steps["begin_ns"].tolist() == [late, *ends[:-1]]
    assert (steps["clock_code"] > 0).all()
