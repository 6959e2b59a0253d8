"""The answer of `stashtrace tune` as text, and as a document for programs."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stashtrace.analysis.compare.change import Change
from stashtrace.lab.tune.settings import permanent_lines
from stashtrace.lab.tune.tune import Trial, Tuned, saved_text
from stashtrace.summary.gate_text import document
from stashtrace.text import align, count_noun, wrap
from stashtrace.units import duration_text, range_text

_WIDTH = 79
_BY_DISTRIBUTION = (
    "Equal runs of this job have other losses each, so results are compared by the mean losses of several runs: a"
    " setting that changes them by less than equal runs differ is not noticed."
)


def trial_text(trial: Trial) -> str:
    """Return what is said of a candidate as soon as it was tried."""
    return f"{trial.candidate}: {trial.verdict}: {trial.why}"


def tune_lines(tuned: Tuned, command: Sequence[str], loaders: Sequence[tuple[str, int]]) -> list[str]:
    """Return the lines for a terminal.

    ``command``: of the job. ``loaders``: file and line of each DataLoader.
    """
    lines = wrap(_headline(tuned), "", width=_WIDTH)
    if tuned.trials:
        head = ("setting", "predicted", "without", "with", "saves", "results", "verdict", "runs")
        lines += ["", *align([head, *map(_row, tuned.trials)], (0, 5, 6))]
    told = [trial for trial in tuned.trials if trial.verdict in ("other results", "not applied", "failed")]
    lines += [""] if told else []
    for trial in told:
        lines += wrap(f"{trial.candidate}: {trial.why}", width=_WIDTH)
    if tuned.settings:
        permanent = permanent_lines(tuned.settings, command, loaders)
        lines += ["", "to make it permanent:", *(f"  {line}" for line in permanent)]
    if tuned.by_distribution:
        lines += ["", *wrap(_BY_DISTRIBUTION, "", width=_WIDTH)]
    lines += ["", count_noun(tuned.runs_count, "run")]
    if tuned.was_cut:
        lines[-1] += "; further settings were not tried: --most-runs allows more"
    return lines


def tune_document(tuned: Tuned, command: Sequence[str], loaders: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """Return the same for programs."""
    return {
        "settings": tuned.settings,
        "step_before_ns": tuned.before_ns,
        "together": _change(tuned.change),
        "permanent": permanent_lines(tuned.settings, command, loaders),
        "runs_count": tuned.runs_count,
        "was_cut": tuned.was_cut,
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
                "contended_runs_count": trial.compared.contended_count if trial.compared is not None else 0,
                "gate": _gate(trial),
            }
            for trial in tuned.trials
        ],
    }


def _headline(tuned: Tuned) -> str:
    change = tuned.change
    if not tuned.settings or change is None:
        tried = count_noun(len(tuned.trials), "setting")
        return f"NOTHING KEPT: {tried} tried on a step of {duration_text(tuned.before_ns)}, none clearly better"
    least = saved_text(change.low_ns, change)
    kept = ", ".join(f"{name}={value}" for name, value in tuned.settings.items())
    times = f"{duration_text(change.after_ns)} to {duration_text(change.before_ns)}"
    saved = f"{saved_text(change.change_ns, change)}, at least {least}"
    return f"TUNED: the step went from {times}, saving {saved}, with {kept}"


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


def _gate(trial: Trial) -> dict[str, Any] | None:
    return document(trial.compared.gate) if trial.compared is not None and trial.compared.gate is not None else None
