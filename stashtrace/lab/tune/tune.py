"""Choose settings for a job: kept is what makes the step shorter beyond doubt while its losses stay the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from stashtrace.analysis.compare.change import Change
from stashtrace.analysis.compare.gate_verdict import Condition
from stashtrace.analysis.compare.steps_of_run import STEP, StepsOfRun
from stashtrace.errors import CaptureError, MissingDataError, StashtraceError
from stashtrace.lab.alternating import NOTHING_COMPARED, Compared, compare_alternately, few_rounds_paragraph, stages
from stashtrace.lab.tune.losses import Likeness, Losses, compare_distributions, compare_losses
from stashtrace.lab.tune.settings import Candidate, Settings, permanent_lines
from stashtrace.report.blocks import Block, Code, Listing, Paragraph, Table
from stashtrace.text.prose import count_noun
from stashtrace.text.units import duration_text, percent_text, range_text

#: Judged after the rounds asked for, and after twice as many.
_STAGES = 2
#: How results are compared: loss by loss, by their means over several runs, or as two unchanged runs allow.
Comparison = Literal["auto", "equal", "distribution"]
Verdict = Literal["kept", "no better", "inconclusive", "other results", "not applied", "failed", "not judged"]


@dataclass(frozen=True, slots=True)
class TunedRun:
    """A run of the job with some settings."""

    steps: StepsOfRun
    losses: Losses
    #: Setting -> why the job does not have it all the same.
    not_applied: dict[str, str] = field(default_factory=dict)


class Job(Protocol):
    """The job to tune."""

    def record(self, settings: Settings) -> TunedRun:
        """Make a run with settings; raises CaptureError if it fails."""
        ...

    def candidates(self, settings: Settings) -> Sequence[Candidate]:
        """Return what to try on top of settings, by the last run with them; the most promising first."""
        ...


@dataclass(frozen=True, slots=True)
class Trial:
    """A setting that was tried."""

    candidate: Candidate
    verdict: Verdict
    #: Why, in one sentence.
    why: str
    runs_count: int
    compared: Compared | None = None
    likeness: Likeness | None = None

    @property
    def change(self) -> Change | None:
        """Growth of the step without the setting over that with it; None where that was not measured."""
        return _step_change(self.compared)


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was kept, and what that gains."""

    settings: dict[str, str]
    trials: tuple[Trial, ...]
    #: The job without settings compared with the job with all of them; None if nothing was kept, or that was not run.
    together: Compared | None
    #: Step of the job as it was; None if it did not run.
    before_ns: float | None
    runs_count: int
    #: Candidates that were left when it ended, by the limit of runs or by ``stopped``.
    untried: tuple[Candidate, ...]
    #: Whether results were compared by the means of several runs: equal runs have different losses.
    by_distribution: bool
    #: What ended it before its time: a signal, or an error of the job as it is.
    stopped: BaseException | None = None

    @property
    def change(self) -> Change | None:
        """Growth of the step without the settings over that with all of them."""
        return _step_change(self.together)

    @property
    def best(self) -> Trial | None:
        """The trial that saved most by its measured means, kept or not; None if none saved anything."""
        saving = [trial for trial in self.trials if _saved_ratio(trial) > 0]
        return max(saving, key=_saved_ratio, default=None)


def tune(
    job: Job,
    *,
    rounds: int = 3,
    least_percent: float = 3.0,
    exact: bool = False,
    losses: Comparison = "auto",
    most_runs: int = 200,
    on_trial: Callable[[Trial], None] = lambda trial: None,
) -> Tuned:
    """Try the candidates of a job, and keep what makes its step shorter by ``least_percent`` beyond doubt.

    ``rounds``: runs a side before a candidate is judged. ``exact``: keep nothing that changes the last bits of a loss.
    ``losses``: how results are compared. ``most_runs``: no candidate is begun after this number. Raises
    MissingDataError if losses were not seen, or differ between equal runs where they have to be equal. Raises
    CaptureError if the job fails as it is. A signal ends the tuning, and so does such an error once a candidate was
    tried: what was measured until then is returned with it.
    """
    tuner = _Tuner(job, rounds, Condition(STEP, least_percent), exact)
    together, stopped = None, None
    try:
        tuner.run_unchanged("equal" if exact else losses)
        tuner.try_all(most_runs, on_trial)
        kept = [trial for trial in tuner.trials if trial.verdict == "kept"]
        together = tuner.compare({}) if len(kept) > 1 else kept[0].compared if kept else None
    except (KeyboardInterrupt, SystemExit, StashtraceError) as error:
        if isinstance(error, StashtraceError) and not tuner.trials:
            raise
        stopped = error
        tuner.stop()
    return Tuned(
        dict(tuner.kept),
        tuple(tuner.trials),
        together,
        tuner.before_ns,
        tuner.runs_count,
        tuple(tuner.ahead),
        tuner.by_distribution,
        stopped,
    )


class _Tuner:
    """The settings that are kept so far, and the losses that they have."""

    def __init__(self, job: Job, rounds: int, condition: Condition, exact: bool) -> None:
        self._job, self._rounds, self._condition, self._exact = job, rounds, condition, exact
        self.kept: Settings = {}
        self.trials: list[Trial] = []
        #: Candidates that are still to be tried.
        self.ahead: list[Candidate] = []
        self.before_ns: float | None = None
        self.runs_count = 0
        #: The candidate that is being tried, when its first run began, and its runs.
        self._trying: tuple[Candidate, int, list[TunedRun]] | None = None
        self._losses: Losses = {}
        #: Whether several runs a side are compared; then the losses of all that have the results of the job.
        self.by_distribution = False
        self._equal_runs: list[Losses] = []

    def run_unchanged(self, losses: Comparison) -> None:
        """Run the job twice as it is.

        Raises MissingDataError where losses have to be equal and both runs do not have the same ones.
        """
        first = self._record({})
        self.before_ns = float(first.steps.of(STEP).mean())
        second = self._record({})
        self.before_ns = float(second.steps.of(STEP).mean())
        likeness = compare_losses(first.losses, second.losses)
        if likeness.verdict == "unseen":
            raise MissingDataError(
                "no loss of the job was seen, so nothing shows whether a setting changes its results",
                hint="losses are seen where backward() is called on them",
            )
        self.by_distribution = losses == "distribution" or (losses == "auto" and likeness.verdict != "equal")
        self._require_equal(likeness)
        self._losses = first.losses
        self._equal_runs = [first.losses, second.losses]

    def try_all(self, most_runs: int, on_trial: Callable[[Trial], None]) -> None:
        """Try one candidate after the other, until none is left or the limit of runs is reached."""
        tried: set[tuple[str, str]] = set()
        while True:
            self.ahead = [c for c in self._job.candidates(self.kept) if (c.name, c.value) not in tried]
            if not self.ahead or self.runs_count >= most_runs:
                return
            candidate = self.ahead.pop(0)
            tried |= {(candidate.name, candidate.value), (candidate.name, candidate.present)}
            self._trying = candidate, self.runs_count, []
            trial = self._attempt(*self._trying)
            self._trying = None
            self.trials.append(trial)
            on_trial(trial)

    def stop(self) -> None:
        """Note the candidate that was being tried, with what its runs say."""
        if self._trying is None:
            return
        candidate, begun, seen = self._trying
        steps_ns = sorted(float(run.steps.of(STEP).mean()) for run in seen)
        measured = "no run with it ended"
        if steps_ns:
            measured = f"a step took {range_text(duration_text(steps_ns[0]), duration_text(steps_ns[-1]))} with it"
        why = f"stopped while it was tried; {measured}"
        self.trials.append(Trial(candidate, "not judged", why, self.runs_count - begun))

    def _attempt(self, candidate: Candidate, begun: int, seen: list[TunedRun]) -> Trial:
        """Try a candidate on top of what is kept, and keep it if it is better."""
        changed = {**self.kept, candidate.name: candidate.value}
        worst = Likeness("equal")

        def with_it() -> StepsOfRun:
            nonlocal worst
            run = self._record(changed)
            seen.append(run)
            if candidate.name in run.not_applied:
                raise _RefusedError("not applied", run.not_applied[candidate.name])
            if not self.by_distribution:
                likeness = compare_losses(self._losses, run.losses)
                if likeness.verdict != "equal":
                    worst = likeness
                self._require_same_losses(candidate, likeness)
            return run.steps

        try:
            compared = compare_alternately(
                with_it,
                lambda: self._checked(self.kept),
                [self._condition],
                rounds=stages(self._rounds, _STAGES),
                names=("with it", "without it"),
            )
            if self.by_distribution:
                losses = [run.losses for run in seen]
                worst = compare_distributions(self._equal_runs, losses)
                if compared.verdict == "worse" and worst.verdict != "distribution":
                    raise _RefusedError("other results", difference_text(worst))
        except _RefusedError as refused:
            return Trial(candidate, refused.verdict, str(refused), self.runs_count - begun, None, worst)
        if compared.verdict == "worse":  # the job without the setting is worse
            self.kept = changed
            self._losses = seen[-1].losses
            self._equal_runs += [run.losses for run in seen]
        why = _why(compared, self._condition.percent)
        return Trial(candidate, _verdict(compared), why, self.runs_count - begun, compared, worst)

    def compare(self, settings: Settings) -> Compared:
        """Compare the job with everything that is kept with the job with these settings."""
        return compare_alternately(
            lambda: self._record(self.kept).steps,
            lambda: self._record(settings).steps,
            [self._condition],
            rounds=stages(self._rounds, 1),
            names=("tuned", "as it was"),
        )

    def _record(self, settings: Settings) -> TunedRun:
        self.runs_count += 1
        try:
            return self._job.record(settings)
        except CaptureError as error:
            if settings == self.kept:
                raise
            raise _RefusedError("failed", str(error)) from error

    def _checked(self, settings: Settings) -> StepsOfRun:
        """Make a run with what is kept, whose losses are known."""
        run = self._record(settings)
        self._require_equal(compare_losses(self._losses, run.losses))
        self._equal_runs.append(run.losses)
        return run.steps

    def _require_same_losses(self, candidate: Candidate, likeness: Likeness) -> None:
        """Raise _RefusedError if losses changed more than the candidate may change them."""
        may_round = not candidate.promises_equal and not self._exact
        if likeness.verdict == "equal" or (likeness.verdict == "rounding" and may_round):
            return
        if likeness.verdict == "unseen":
            raise _RefusedError("other results", "no loss was seen, so nothing shows that the results are the same")
        raise _RefusedError("other results", difference_text(likeness))

    def _require_equal(self, likeness: Likeness) -> None:
        if likeness.verdict != "equal" and not self.by_distribution:
            raise MissingDataError(
                f"two equal runs do not compute the same: {difference_text(likeness)}",
                hint="seed the job (torch.manual_seed, the generators of its data set), so that settings can be"
                " checked for what they change; or compare mean losses of several runs: --losses distribution",
            )


class _RefusedError(Exception):
    """A candidate is out, whatever it saves."""

    def __init__(self, verdict: Verdict, why: str) -> None:
        super().__init__(why)
        self.verdict = verdict


def difference_text(likeness: Likeness) -> str:
    """Say where losses begin to differ."""
    if likeness.differs_until >= 0:
        passes = f"{likeness.differs_at + 1} to {likeness.differs_until + 1}"
        means = f"{likeness.after:.4g} on average instead of {likeness.before:.4g}"
        if likeness.verdict == "unclear":
            return f"mean losses of {likeness.before:.4g} differ by up to {likeness.error:.2g} between equal runs"
        return f"the losses of backward passes {passes} are {means}; equal runs differ by {likeness.error:.2g} at most"
    if likeness.verdict == "unclear":
        return "too few runs or backward passes to compare mean losses"
    if likeness.differs_at < 0:
        return "a run has no losses"
    return (
        f"the loss of backward pass {likeness.differs_at + 1} is {likeness.after:.9g} instead of {likeness.before:.9g}"
    )


def _verdict(compared: Compared) -> Verdict:
    verdicts: dict[str, Verdict] = {"worse": "kept", "not worse": "no better"}
    return verdicts.get(compared.verdict, "inconclusive")


def _why(compared: Compared, least_percent: float) -> str:
    change = _step_change(compared)
    if change is None:
        return f"other work on the machine disturbed {compared.contended_count} of {compared.runs_count} runs"
    low, middle, high = (saved_text(ns, change) for ns in (change.low_ns, change.change_ns, change.high_ns))
    return f"saves {middle} of the step, between {low} and {high}; to be kept it has to save {least_percent:g} %"


def saved_text(saved_ns: float, change: Change) -> str:
    """Return a saving as a part of the step without the setting, which is the one after the change.

    ``change``: of the step, from the job with the setting to the job without.
    """
    return f"{'-' if saved_ns < 0 else ''}{percent_text(abs(saved_ns) / change.after_ns)}"


def _saved_ratio(trial: Trial) -> float:
    return trial.change.change_ns / trial.change.after_ns if trial.change is not None else 0.0


def _step_change(compared: Compared | None) -> Change | None:
    if compared is None or compared.gate is None:
        return None
    return next((change for change in compared.gate.changes if change.kind == STEP), None)


_BY_DISTRIBUTION = (
    "Equal runs of this job have other losses each, so results are compared by the mean losses of several runs: a"
    " setting that changes them by less than equal runs differ is not noticed."
)


def trial_text(trial: Trial) -> str:
    """Return what is said of a candidate as soon as it was tried."""
    return f"{trial.candidate}: {trial.verdict}: {trial.why}"


def tune_blocks(tuned: Tuned, command: Sequence[str], loaders: Sequence[tuple[str, int]]) -> list[Block | None]:
    """Return the answer to show. ``command``: of the job. ``loaders``: file and line of each DataLoader."""
    head = ("setting", "predicted", "without", "with", "saves", "results", "verdict", "runs")
    refused = [trial for trial in tuned.trials if trial.compared is None]
    permanent = permanent_lines(tuned.settings, command, loaders)
    return [
        Paragraph(_headline(tuned)),
        Table("", head, [_row(trial) for trial in tuned.trials], (0, 5, 6)) if tuned.trials else None,
        Listing([f"{trial.candidate}: {trial.why}" for trial in refused]),
        Code("to make it permanent", permanent) if tuned.settings else None,
        Paragraph(_BY_DISTRIBUTION) if tuned.by_distribution else None,
        few_rounds_paragraph(trial.compared for trial in tuned.trials),
        Paragraph(f"{count_noun(tuned.runs_count, 'run')}{_untried_text(tuned)}"),
    ]


def tune_document(tuned: Tuned, command: Sequence[str], loaders: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """Return the same for programs."""
    return {
        "settings": tuned.settings,
        "step_before_ns": tuned.before_ns,
        "together": _change(tuned.change),
        "permanent": permanent_lines(tuned.settings, command, loaders),
        "runs_count": tuned.runs_count,
        "not_tried": [str(candidate) for candidate in tuned.untried],
        "was_stopped": tuned.stopped is not None,
        "losses": "distribution" if tuned.by_distribution else "equal",
        "trials": [
            {
                "name": trial.candidate.name,
                "value": trial.candidate.value,
                "present": trial.candidate.present,
                "predicted_low_ns": trial.candidate.low_ns,
                "predicted_high_ns": trial.candidate.high_ns,
                "measured": _change(trial.change),
                "verdict": trial.verdict,
                "why": trial.why,
                "results": trial.likeness.verdict if trial.likeness is not None else None,
                "runs_count": trial.runs_count,
                **(trial.compared.document() if trial.compared is not None else NOTHING_COMPARED),
            }
            for trial in tuned.trials
        ],
    }


def _headline(tuned: Tuned) -> str:
    change = tuned.change
    if tuned.stopped is not None:
        return f"STOPPED after {count_noun(tuned.runs_count, 'run')}: {_so_far(tuned)}"
    if not tuned.settings:
        tried = count_noun(len(tuned.trials), "setting")
        return f"NOTHING KEPT: {tried} tried on a step of {duration_text(tuned.before_ns or 0)}, none clearly better"
    if change is None:  # other work disturbed the comparison of all of them with none
        return f"TUNED: {_kept_text(tuned)}"
    least = saved_text(change.low_ns, change)
    kept = ", ".join(f"{name}={value}" for name, value in tuned.settings.items())
    times = f"{duration_text(change.after_ns)} to {duration_text(change.before_ns)}"
    saved = f"{saved_text(change.change_ns, change)}, at least {least}"
    return f"TUNED: the step went from {times}, saving {saved}, with {kept}"


def _so_far(tuned: Tuned) -> str:
    """Say which setting is best of those that were tried before the tuning was stopped."""
    if tuned.before_ns is None:
        return "the job did not run once"
    step, best = f"a step of {duration_text(tuned.before_ns)}", tuned.best
    if tuned.settings:
        return f"best so far on {step}: {_kept_text(tuned)}"
    if best is not None and best.change is not None:
        saved = saved_text(best.change.change_ns, best.change)
        return f"nothing kept so far on {step}; {best.candidate} did best and saves {saved}, not beyond doubt"
    return f"nothing so far made {step} shorter" if tuned.trials else f"no setting was tried on {step}"


def _kept_text(tuned: Tuned) -> str:
    """Return the settings that were kept, each with what it saved beyond those before it."""
    kept = [trial for trial in tuned.trials if trial.verdict == "kept" and trial.change is not None]
    return ", ".join(
        f"{trial.candidate} saves {saved_text(trial.change.change_ns, trial.change)}{' more' if at else ''}"
        for at, trial in enumerate(kept)
        if trial.change is not None
    )


def _untried_text(tuned: Tuned) -> str:
    if not tuned.untried:
        return ""
    more = "" if tuned.stopped is not None else " (--most-runs allows more)"
    return f"; not tried: {', '.join(map(str, tuned.untried))}{more}"


def _row(trial: Trial) -> tuple[str, ...]:
    candidate, change = trial.candidate, trial.change
    predicted = "-"
    if candidate.low_ns is not None and candidate.high_ns is not None:
        predicted = range_text(duration_text(candidate.low_ns), duration_text(candidate.high_ns))
    measured = ("-", "-", "-")
    if change is not None:
        measured = (
            duration_text(change.after_ns),
            duration_text(change.before_ns),
            saved_text(change.change_ns, change),
        )
    results = trial.likeness.verdict if trial.likeness is not None else "-"
    return str(candidate), predicted, *measured, results, trial.verdict, str(trial.runs_count)


def _change(change: Change | None) -> dict[str, float] | None:
    if change is None:
        return None
    return {
        "without_ns": change.after_ns,
        "with_ns": change.before_ns,
        "saved_ns": change.change_ns,
        "saved_low_ns": change.low_ns,
        "saved_high_ns": change.high_ns,
    }
