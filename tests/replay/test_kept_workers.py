"""persistent_workers=1: predicted from a job whose workers start again, against the same job that keeps them."""

from __future__ import annotations

from typing import Any

import pytest
from builders import MS
from replay.epoch_jobs import EpochJob

from stashtrace.analysis.graph import build
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.replay import Answer, Change, what_if
from stashtrace.replay.causes import causes

KEEP = "persistent_workers=1"
JOBS: tuple[dict[str, Any], ...] = (
    {},
    {"workers": 2},
    {"workers": 3, "batches": 5},
    {"boot_ns": 0, "end_ns": 0},
    {"workers": 2, "first_ns": 60 * MS},
    {"workers": 2, "batch_ns": lambda worker, batch: 35 * MS},
    {"samples_ns": 30 * MS},
    {"workers": 4, "batch_ns": lambda worker, batch: 12 * MS, "prefetch": 1},
)


def predicted(job: EpochJob, *changes: str) -> Answer:
    return what_if(build(job.trace()), map(Change.parse, changes))


@pytest.mark.parametrize("options", JOBS)
def test_the_step_is_that_of_the_job_that_keeps_its_workers(options: dict[str, Any]) -> None:
    restarted, kept = EpochJob(**options).run(), EpochJob(**options, kept=True).run()
    answer = predicted(restarted, KEEP)
    assert answer.error_ratio == pytest.approx(0, abs=0.001)
    assert answer.low_ns * 0.99 <= kept.step_mean_ns <= answer.high_ns * 1.01
    answered_ns, first_ns = MS / options.get("batches", 8), options.get("first_ns", 0) / 8
    assert answer.high_ns - answer.low_ns <= answered_ns + first_ns + 0.01 * kept.step_mean_ns


def test_the_wait_for_the_first_batch_stays() -> None:
    """None is made before the loop comes to the pass: of each wait of 85 ms the 20 of the batch remain."""
    options: dict[str, Any] = {"batch_ns": lambda worker, batch: 20 * MS}
    answer = predicted(EpochJob(**options, step_ns=30 * MS).run(), KEEP)
    assert answer.replayed_ns - answer.middle_ns == pytest.approx((10 + 40 + 15) * MS * 7 / 59, rel=0.03)


def test_a_first_batch_that_takes_longer_may_go_on_to_do_so() -> None:
    """The first one takes 100 ms, the others 1: because its worker is new, or because of what it reads."""
    new = EpochJob(batch_ns=lambda worker, batch: MS, first_ns=99 * MS).run()
    large: dict[str, Any] = {"batch_ns": lambda worker, batch: 100 * MS if batch == 0 else MS}
    assert new.fetches == EpochJob(**large).run().fetches
    answer = predicted(new, KEEP)
    truths = [EpochJob(kept=True, **options).run().step_mean_ns for options in ({"batch_ns": lambda *_: MS}, large)]
    assert (answer.low_ns, answer.high_ns) == pytest.approx(truths, rel=0.02)


def test_workers_of_a_pass_that_was_left_early_finish_what_they_were_asked_for() -> None:
    options: dict[str, Any] = {"batch_ns": lambda worker, batch: 30 * MS, "taken": 4, "workers": 2}
    restarted, kept = EpochJob(**options).run(), EpochJob(**options, kept=True).run()
    answer = predicted(restarted, KEEP)
    assert answer.low_ns * 0.99 <= kept.step_mean_ns <= answer.high_ns * 1.01


@pytest.mark.parametrize("wanted", [1, 2, 4])
@pytest.mark.parametrize("changes", [(KEEP, "workers={}"), ("workers={}", KEEP)])
def test_another_number_of_kept_workers(changes: tuple[str, str], wanted: int) -> None:
    options: dict[str, Any] = {"batch_ns": lambda worker, batch: 25 * MS}
    truth = EpochJob(**options, workers=wanted, kept=True).run().step_mean_ns
    answer = predicted(EpochJob(**options, workers=2).run(), *(change.format(wanted) for change in changes))
    assert answer.low_ns * 0.98 <= truth <= answer.high_ns * 1.02


@pytest.mark.parametrize("wanted", [1, 4, 8])
def test_more_workers_take_longer_to_start(wanted: int) -> None:
    """10 ms for each, one after the other; ended they are side by side here, at worst one after the other."""
    options: dict[str, Any] = {"batch_ns": lambda worker, batch: 25 * MS}
    truth = EpochJob(**options, workers=wanted).run().step_mean_ns
    answer = predicted(EpochJob(**options, workers=2).run(), f"workers={wanted}")
    assert answer.low_ns * 0.98 <= truth <= answer.high_ns * 1.02
    assert answer.low_ns == pytest.approx(truth, rel=0.02) if wanted > 2 else True


def test_it_is_what_to_do_first() -> None:
    (row, *_) = causes(EpochJob().run().trace()).rows()
    assert (row["change"], row["sure"]) == (KEEP, "sure")
    saved = EpochJob().run().step_mean_ns - EpochJob(kept=True).run().step_mean_ns
    assert row["saved_low_ns"] <= saved <= row["saved_high_ns"]


def test_all_ranks_keep_theirs() -> None:
    answer = what_if(build(EpochJob().run().trace(ranks=2)), [Change.parse(KEEP)])
    assert answer.middle_ns == pytest.approx(EpochJob(kept=True).run().step_mean_ns, rel=0.01)


def test_quicker_batches_do_not_start_workers_sooner() -> None:
    """Workers that start and end take 25 ms of a pass; half of each batch saves 1.5 ms of it."""
    answer = predicted(EpochJob().run(), "prep=x0.5")
    assert answer.replayed_ns - answer.middle_ns == pytest.approx(1.5 * MS * 7 / 59, rel=0.1)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_buffer_that_is_filled_as_a_pass_begins_is_part_of_its_first_batch(workers: int) -> None:
    """A kept worker takes 600 ms for its first batch of each pass, and was asked for the next ones before."""

    def took(worker: int, batch: int) -> int:
        return 600 * MS if batch < workers else 2 * MS

    job: dict[str, Any] = {"workers": workers, "kept": True, "epochs": 6, "batches": 15, "read_ns": MS // 10}
    made = EpochJob(**job, batch_ns=took).run()
    truth = EpochJob(**job, batch_ns=lambda worker, batch: 0).run()
    answer = what_if(build(made.trace()), [Change.parse("prep=0")])
    assert answer.middle_ns == pytest.approx(truth.step_mean_ns, rel=0.03)
    assert answer.middle_ns < 0.35 * answer.replayed_ns


@pytest.mark.parametrize("job", [EpochJob(kept=True), EpochJob(epochs=1, batches=40)])
def test_workers_that_start_once_are_kept_already(job: EpochJob) -> None:
    with pytest.raises(MissingDataError, match="no loader of this run starts its workers a second time"):
        predicted(job.run(), KEEP)


def test_they_can_be_kept_not_dismissed() -> None:
    with pytest.raises(UsageError, match="persistent_workers cannot be 0"):
        Change.parse("persistent_workers=0")
