"""Tuning: what is kept, what is not, and why, on made-up jobs whose steps follow from their settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from made_up_runs import made_up_run

from stashtrace.errors import CaptureError, MissingDataError
from stashtrace.lab.tune.losses import Losses, compare_distributions, compare_losses
from stashtrace.lab.tune.settings import BUCKET, OMP, Candidate, Settings, environment_of, permanent_lines
from stashtrace.lab.tune.tune import Comparison, TunedRun, tune, tune_blocks
from stashtrace.report.blocks import text_lines

#: Kinds of the step, ms, by the settings of a job.
Model = Callable[[Settings], Mapping[str, float]]
CANDIDATES = (
    Candidate("num_workers", "4", "1", 30e6, 34e6),
    Candidate("persistent_workers", "1", "0", 40e6, 42e6),
    Candidate(BUCKET, "8", "25", 41e6, 43e6),
    Candidate("prefetch_factor", "4", "2"),
    Candidate(OMP, "2", "8"),
    Candidate("cpu_affinity", "0-3;4-7"),
    Candidate("TORCH_NCCL_HIGH_PRIORITY", "1"),
)


class MadeUpJob:
    """A job whose losses change with some settings; every seventh run meets another program."""

    def __init__(
        self,
        model: Model,
        seed: int = 0,
        *,
        candidates: Sequence[Candidate] = CANDIDATES,
        losses: Callable[[Settings, int], Losses] = lambda settings, number: {0: (1.0, 0.5, 0.25, 0.125)},
    ) -> None:
        self._model, self._losses, self._all = model, losses, candidates
        self._random = np.random.default_rng(seed)
        self.runs: list[Settings] = []

    def record(self, settings: Settings) -> TunedRun:
        self.runs.append(settings)
        others = 0.8 if self._random.random() < 1 / 7 else 0.05
        steps = made_up_run(self._random, self._model(settings), others=others)
        return TunedRun(steps, self._losses(settings, len(self.runs)))

    def candidates(self, settings: Settings) -> Sequence[Candidate]:
        return [one for one in self._all if settings.get(one.name) != one.value]


def balanced(settings: Settings) -> dict[str, float]:
    """No setting changes anything."""
    return {"compute": 40.0, "fetch": 2.0}


@pytest.mark.parametrize("seed", range(10))
def test_a_balanced_job_keeps_nothing(seed: int) -> None:
    job = MadeUpJob(balanced, seed)
    tuned = tune(job)
    assert tuned.settings == {}
    assert tuned.together is None
    assert [trial.candidate for trial in tuned.trials] == list(CANDIDATES)
    assert {trial.verdict for trial in tuned.trials} <= {"no better", "inconclusive"}
    assert tuned.runs_count == len(job.runs)


def few_workers(settings: Settings) -> dict[str, float]:
    return {"compute": 30.0, "fetch": 90.0 / int(settings.get("num_workers", 1))}


def small_buckets(settings: Settings) -> dict[str, float]:
    return {"compute": 30.0, "interconnect": 25.0 if BUCKET not in settings else 12.0}


def many_threads(settings: Settings) -> dict[str, float]:
    return {"compute": 60.0 if settings.get(OMP) != "2" else 35.0}


def two_faults(settings: Settings) -> dict[str, float]:
    return {**few_workers(settings), "interconnect": 20.0 if BUCKET not in settings else 5.0}


def slow_start(settings: Settings) -> dict[str, float]:
    return {"compute": 30.0, "handoff": 12.0 if "persistent_workers" not in settings else 0.5}


@pytest.mark.parametrize(
    ("model", "kept"),
    [
        (few_workers, {"num_workers"}),
        (small_buckets, {BUCKET}),
        (many_threads, {OMP}),
        (two_faults, {"num_workers", BUCKET}),
        (slow_start, {"persistent_workers"}),
    ],
)
def test_what_is_planted_is_found(model: Model, kept: set[str]) -> None:
    for seed in range(4):
        tuned = tune(MadeUpJob(model, seed))
        assert set(tuned.settings) == kept
        optimum = sum(model({c.name: c.value for c in CANDIDATES}).values())
        assert tuned.change.before_ns < 1.1 * optimum * 1e6
        assert tuned.change.low_ns > 0
        assert tuned.before_ns == pytest.approx(sum(model({}).values()) * 1e6, rel=0.9)


def test_what_changes_results_is_not_kept() -> None:
    """More workers are much faster, but the data set draws other numbers in them."""

    def losses(settings: Settings, number: int) -> Losses:
        return {0: (1.0, 0.5 if "num_workers" not in settings else 0.4)}

    tuned = tune(MadeUpJob(few_workers, losses=losses))
    trial = tuned.trials[0]
    assert (trial.verdict, trial.runs_count) == ("other results", 1)
    assert trial.why == "the loss of backward pass 2 is 0.4 instead of 0.5"
    assert tuned.settings == {}


@pytest.mark.parametrize(("exact", "kept"), [(False, {OMP: "2"}), (True, {})])
def test_rounding_is_for_those_that_do_not_promise_equal_losses(exact: bool, kept: dict[str, str]) -> None:
    def losses(settings: Settings, number: int) -> Losses:
        return {0: (1.0, 0.5 + 1e-7 * (OMP in settings) + 1e-7 * ("num_workers" in settings), 0.25)}

    tuned = tune(MadeUpJob(many_threads, losses=losses), exact=exact)
    assert tuned.settings == kept
    by_name = {trial.candidate.name: trial for trial in tuned.trials}
    assert by_name["num_workers"].verdict == "other results"
    assert by_name[OMP].likeness.verdict == "rounding"


def test_a_job_that_is_not_deterministic_is_reported_before_anything_is_tried() -> None:
    job = MadeUpJob(few_workers, losses=lambda settings, number: {0: (1.0, 0.5 + number)})
    with pytest.raises(MissingDataError, match="two equal runs do not compute the same: the loss of backward pass 2"):
        tune(job, losses="equal")
    assert job.runs == [{}, {}]


def augmented(shift_ratio: float, noise_ratio: float = 0.02) -> Callable[[Settings, int], Losses]:
    """Losses of a job that augments at random: every run has other ones; with more workers they are shifted."""

    def losses(settings: Settings, number: int) -> Losses:
        random = np.random.default_rng(number)
        level = 2.0 * np.exp(-np.arange(60) / 40) * (1 + shift_ratio * ("num_workers" in settings))
        return {rank: tuple((level * random.normal(1, noise_ratio, 60)).tolist()) for rank in (0, 1)}

    return losses


@pytest.mark.parametrize("losses", ["auto", "distribution"])
def test_a_job_with_random_augmentation_is_tuned_by_its_mean_losses(losses: Comparison) -> None:
    tuned = tune(MadeUpJob(few_workers, losses=augmented(0.0)), losses=losses)
    assert tuned.by_distribution
    assert tuned.settings == {"num_workers": "4"}
    assert tuned.trials[0].likeness.verdict == "distribution"
    assert "Equal runs of this job have other losses each" in " ".join(text_lines(tune_blocks(tuned, ["train.py"], [])))


def test_mean_losses_that_move_are_other_results() -> None:
    tuned = tune(MadeUpJob(few_workers, losses=augmented(0.2)))
    assert tuned.settings == {}
    assert tuned.trials[0].verdict == "other results"
    assert re.match(r"the losses of backward passes \d+ to \d+ are [\d.]+ on average instead of", tuned.trials[0].why)


def test_runs_that_differ_by_much_show_nothing() -> None:
    tuned = tune(MadeUpJob(few_workers, losses=augmented(0.0, noise_ratio=1.5)))
    assert tuned.trials[0].verdict == "other results"
    assert re.match(r"mean losses of [\d.]+ differ by up to [\d.]+ between equal runs", tuned.trials[0].why)


def test_equal_distributions_are_seldom_taken_for_others() -> None:
    """One in twenty is allowed; a shift of 5 % is seen in runs whose losses scatter by 2 %."""
    verdicts = {shift: [_compared(seed, shift) for seed in range(200)] for shift in (0.0, 0.05)}
    assert verdicts[0.0].count("different") <= 20
    assert verdicts[0.05].count("different") >= 190


def _compared(seed: int, shift_ratio: float) -> str:
    runs = [augmented(shift_ratio)({"num_workers": "4"} if at >= 4 else {}, 10 * seed + at) for at in range(8)]
    return compare_distributions(runs[:4], runs[4:]).verdict


def test_a_job_that_differs_later_is_reported_too() -> None:
    job = MadeUpJob(few_workers, losses=lambda settings, number: {0: (1.0, 0.5 + (number == 4 and not settings))})
    with pytest.raises(MissingDataError, match="do not compute the same"):
        tune(job)


def test_what_was_measured_before_the_job_itself_fails_is_kept() -> None:
    class Failing(MadeUpJob):
        def record(self, settings: Settings) -> TunedRun:
            if BUCKET in settings:
                raise KeyboardInterrupt
            return super().record(settings)

    tuned = tune(Failing(few_workers))
    assert isinstance(tuned.stopped, KeyboardInterrupt)
    assert tuned.settings == {"num_workers": "4"}
    assert tuned.trials[-1].verdict == "not judged"
    assert [one.name for one in tuned.untried] == [one.name for one in CANDIDATES[3:]]
    assert "best so far on a step of 1" in tune_blocks(tuned, ["train.py"], [])[0].text  # type: ignore[union-attr]


def test_a_stop_before_anything_was_compared() -> None:
    class Stopped(MadeUpJob):
        def record(self, settings: Settings) -> TunedRun:
            raise KeyboardInterrupt

    shown = text_lines(tune_blocks(tune(Stopped(balanced)), ["train.py"], []))
    assert shown[0] == "STOPPED after 1 run: the job did not run once"


@pytest.mark.parametrize("losses", [{}, {0: ()}])
def test_a_job_whose_losses_are_not_seen(losses: Losses) -> None:
    with pytest.raises(MissingDataError, match="no loss of the job was seen"):
        tune(MadeUpJob(few_workers, losses=lambda settings, number: losses))


def test_a_setting_with_which_the_job_fails_is_out() -> None:
    class Failing(MadeUpJob):
        def record(self, settings: Settings) -> TunedRun:
            if "num_workers" in settings:
                self.runs.append(settings)
                raise CaptureError("run-3 ended with exit code 1: no room in /dev/shm")
            return super().record(settings)

    tuned = tune(Failing(balanced))
    assert (tuned.trials[0].verdict, "no room" in tuned.trials[0].why) == ("failed", True)
    assert len(tuned.trials) == len(CANDIDATES)


def test_a_setting_that_the_job_does_not_take_is_out() -> None:
    class Stubborn(MadeUpJob):
        def record(self, settings: Settings) -> TunedRun:
            run = super().record(settings)
            why = {BUCKET: "the script gives bucket_cap_mb itself"} if BUCKET in settings else {}
            return TunedRun(run.steps, run.losses, why)

    tuned = tune(Stubborn(small_buckets))
    assert {trial.candidate.name: trial.verdict for trial in tuned.trials}[BUCKET] == "not applied"
    assert tuned.settings == {}


def test_the_limit_of_runs_ends_it() -> None:
    tuned = tune(MadeUpJob(few_workers), most_runs=3)
    assert (len(tuned.trials), len(tuned.untried)) == (1, len(CANDIDATES) - 1)
    assert "not tried: persistent_workers=1, " in "\n".join(text_lines(tune_blocks(tuned, ["train.py"], []), 500))


def test_losses() -> None:
    nan = float("nan")
    assert compare_losses({0: (nan, 1.0)}, {0: (nan, 1.0)}).verdict == "equal"
    assert compare_losses({0: (1.0,)}, {0: (1.0,), 1: (1.0,)}).verdict == "unseen"
    found = compare_losses({0: (1.0, 2.0), 1: (1.0, 3.0)}, {0: (1.0, 2.0), 1: (1.0, 4.0)})
    assert (found.verdict, found.differs_at, found.before, found.after) == ("different", 1, 3.0, 4.0)
    assert compare_losses({0: (1.0,)}, {0: (nan,)}).verdict == "different"


def test_variables_and_lines() -> None:
    settings = {"num_workers": "4", "pin_memory": "1", BUCKET: "8", OMP: "2", "cpu_affinity": "0-1;2,3"}
    assert environment_of(settings) == {
        "STASHTRACE_LOADER": "num_workers=4,pin_memory=1",
        "STASHTRACE_BUCKET_MB": "8",
        "OMP_NUM_THREADS": "2",
        "STASHTRACE_CPU_SHARES": "0-1;2,3",
    }
    assert permanent_lines(settings, ["torchrun", "a job.py"], [("/x/train.py", 7)]) == [
        "train.py:7:",
        "  DataLoader(..., num_workers=4, pin_memory=True)",
        "in the script:",
        "  DistributedDataParallel(..., bucket_cap_mb=8)",
        "first lines of the script:",
        "  import os",
        '  os.sched_setaffinity(0, [{0, 1}, {2, 3}][int(os.environ["LOCAL_RANK"])])',
        "command:",
        "  OMP_NUM_THREADS=2 torchrun 'a job.py'",
    ]
