"""One slow worker of several: what a recording leaves open about it, and what would cure it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from builders import MS
from replay.epoch_jobs import EpochJob

from stashtrace.analysis.graph import build
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.replay import Answer, Change, what_if
from stashtrace.replay.causes import causes
from stashtrace.replay.whatif import single_changes
from stashtrace.summary.words.cause_templates import cause_text

SLOW, QUICK = 100 * MS, 5 * MS
Batch = Callable[[int, int], int]


def by_worker(worker: int, batch: int) -> int:
    """Worker 1 is slow, whatever it makes."""
    return SLOW if worker == 1 else QUICK


def further_slow(worker: int, batch: int) -> int:
    """So are all further workers."""
    return SLOW if worker >= 1 else QUICK


def by_batch(worker: int, batch: int) -> int:
    """Odd batches are slow, whoever makes them."""
    return SLOW if batch % 2 else QUICK


def job(batch_ns: Batch, workers: int = 2, *, epochs: int = 1) -> EpochJob:
    return EpochJob(workers=workers, epochs=epochs, batches=120 // epochs, batch_ns=batch_ns).run()


def predicted(made: EpochJob, *changes: str) -> Answer:
    return what_if(build(made.trace()), map(Change.parse, changes))


def test_both_causes_look_the_same() -> None:
    assert job(by_worker).fetches == job(by_batch).fetches


@pytest.mark.parametrize("wanted", [1, 3, 4, 6])
def test_further_workers_save_what_either_cause_allows(wanted: int) -> None:
    answer = predicted(job(by_worker), f"workers={wanted}")
    truths = [job(cause, wanted).step_mean_ns for cause in (by_worker, further_slow, by_batch)]
    for truth in truths:
        assert answer.low_ns * 0.98 <= truth <= answer.high_ns * 1.02
    if wanted > 1:
        assert answer.low_ns == pytest.approx(min(truths), rel=0.03)
        assert answer.high_ns == pytest.approx(max(truths), rel=0.03)


def test_three_workers_save_a_third_where_one_is_slow() -> None:
    """A slow worker makes every third batch instead of every second: 33 ms each, where it was 50."""
    answer = predicted(job(by_worker), "workers=3")
    assert answer.high_ns / answer.replayed_ns == pytest.approx(2 / 3, rel=0.02)


def test_as_quick_as_the_others() -> None:
    answer = predicted(job(by_worker), "slow_worker=0")
    assert answer.middle_ns == pytest.approx(job(lambda worker, batch: QUICK).step_mean_ns, rel=0.02)


@pytest.mark.parametrize("epochs", [1, 6])
def test_its_work_is_what_to_do_first(epochs: int) -> None:
    (row, *_) = causes(job(by_worker, epochs=epochs).trace()).rows()
    assert (row["change"], row["ranks"], row["worker_id"], row["sure"]) == ("slow_worker=0", "0", 1, "sure")
    assert cause_text(row, "RUN").startswith(
        "worker 1 of rank 0 takes longer for its batches than the others; with its batches as fast as those of the"
        " others: saves "
    )


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("epochs", [1, 6])
def test_batches_in_any_order_save_what_either_cause_allows(workers: int, epochs: int) -> None:
    answer = predicted(job(by_worker, workers, epochs=epochs), "in_order=false")
    causes: tuple[Batch, ...] = (by_worker, lambda worker, batch: SLOW if batch % workers == 1 else QUICK)
    truths = [unordered(cause, workers, epochs=epochs).step_mean_ns for cause in causes]
    # Whether the slow worker is asked for one more batch at the end of a pass depends on microseconds.
    last_ns = SLOW * epochs / 120 * 1.2
    assert answer.low_ns == pytest.approx(min(truths), abs=last_ns)
    assert answer.high_ns == pytest.approx(max(truths), abs=last_ns)
    assert answer.high_ns < 0.75 * answer.replayed_ns


def unordered(batch_ns: Batch, workers: int, *, epochs: int = 1) -> EpochJob:
    made = EpochJob(workers=workers, epochs=epochs, batches=120 // epochs, batch_ns=batch_ns, in_order=False)
    return made.run()


@pytest.mark.parametrize("workers", [2, 3])
def test_of_an_iterable_data_set_each_worker_makes_its_part(workers: int) -> None:
    """So it is the worker that is slow, whatever batches come to it: nothing is left open."""
    endless = {"workers": workers, "epochs": 1, "batches": 140, "taken": 120, "batch_ns": by_worker}
    answer = predicted(EpochJob(**endless, parted=True).run(), "in_order=false")
    truth = EpochJob(**endless, in_order=False).run().step_mean_ns
    assert answer.low_ns == pytest.approx(truth, rel=0.02)
    assert answer.high_ns == pytest.approx(truth, rel=0.02)


def test_nobody_else_makes_the_batches_of_a_part_that_ends() -> None:
    """Worker 1 makes its 60 batches of 100 ms in any case."""
    made = EpochJob(workers=2, epochs=1, batches=120, batch_ns=by_worker, parted=True).run()
    answer = predicted(made, "in_order=false")
    assert answer.low_ns == pytest.approx(made.step_mean_ns, rel=0.05)


def test_one_heavy_batch_in_eight_holds_up_those_behind_it() -> None:
    """No worker differs from the others: the odd heavy batch is the data's, and waits for nobody in any order."""
    heavy = lambda worker, batch: 80 * MS if batch % 9 == 4 else 4 * MS  # noqa: E731
    answer = predicted(job(heavy, 4), "in_order=false")
    assert answer.middle_ns == pytest.approx(unordered(heavy, 4).step_mean_ns, rel=0.05)


def test_equal_batches_gain_nothing_by_any_order() -> None:
    made = job(lambda worker, batch: QUICK, 2)
    answer = predicted(made, "in_order=false")
    assert answer.middle_ns == pytest.approx(made.step_mean_ns, rel=0.01)


def test_the_order_of_one_worker_cannot_change() -> None:
    with pytest.raises(MissingDataError, match="one worker makes its batches in order"):
        predicted(job(by_worker, 1), "in_order=false")


def test_batches_in_any_order_already() -> None:
    with pytest.raises(MissingDataError, match="taken in any order already"):
        predicted(unordered(by_worker, 2), "in_order=false")


def test_a_setting_that_takes_batches_as_they_come_is_offered() -> None:
    answers = {row["change"]: row for row in causes(job(by_worker).trace()).rows()}
    row = answers.get("in_order=false")
    listed = {str(answer.changes[0]) for answer in single_changes(build(job(by_worker).trace()))}
    assert "in_order=false" in listed
    if row is not None:
        assert cause_text(row, "RUN").startswith("take batches as they become ready (in_order=False of DataLoader")


def test_of_several_slow_workers_none_is_named() -> None:
    made = job(lambda worker, batch: QUICK if worker % 3 == 0 else SLOW, 6)
    answers = {row["change"]: row for row in causes(made.trace()).rows()}
    assert "slow_worker=0" not in answers or answers["slow_worker=0"]["worker_id"] == -1


@pytest.mark.parametrize("epochs", [1, 6])
def test_workers_that_differ_by_chance_leave_nothing_open(epochs: int) -> None:
    took = np.random.default_rng(3).lognormal(0, 0.5, 200) * 25 * MS
    made = job(lambda worker, batch: round(took[batch]), 2, epochs=epochs)
    with pytest.raises(MissingDataError, match="no worker of this run clearly takes longer"):
        predicted(made, "slow_worker=0")
    answer = predicted(made, "workers=4")
    ends_ns = 2 * made.end_ns / 20 if epochs > 1 else 0  # of a pass: whether workers end side by side
    assert answer.high_ns - answer.low_ns <= ends_ns + 0.01 * answer.replayed_ns


def test_one_worker_is_as_quick_as_itself() -> None:
    with pytest.raises(MissingDataError, match="no worker of this run clearly takes longer"):
        predicted(job(lambda worker, batch: SLOW, 1), "slow_worker=0")


def test_slowness_can_only_be_taken_away() -> None:
    with pytest.raises(UsageError, match="what a worker takes longer than the others can only be taken away"):
        Change.parse("slow_worker=x0.5")
