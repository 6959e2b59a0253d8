"""How many steps of each kind count, and how long they are.

``steps``: ``stall_ns`` is their mean length, ``median_ns`` the median; ``name`` is the kind of step, or ``recording``
if nothing marks a step and the whole recording counts as one. ``passes_count`` is how many backward passes a step has,
if several. ``rollout_ratio`` is the part of an iteration that generates, ``fewest_count`` what a rank made of them, if
fewer. By the change that costs most, ``usual_ns`` and ``changed_ns`` are lengths beside the mean, from ``first_step``
to ``last_step`` if it is no period and no drift.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

from stashtrace.analysis.findings.claim_rows import Claim, Facts, claim
from stashtrace.analysis.findings.rules.ranks import warmup_claims
from stashtrace.analysis.findings.rules.steps.policy import POLICY
from stashtrace.analysis.findings.stall_claims import one_recording
from stashtrace.analysis.findings.summary_input import RunFacts
from stashtrace.analysis.steps.training_loop import QUIET_KINDS
from stashtrace.schema.kinds import Phase, PhaseFlag
from stashtrace.schema.table import Table
from stashtrace.text import plural

Row = dict[str, Any]

#: Kind of step -> its name in the headline.
_STEP_WORDS = {
    "train": "training",
    "training": "training",
    "validation": "validation",
    "inference": "inference",
    "rollout": "rollout",
    "skipped_update": "skipped (by the scaler)",
}


def steps_claims(run: RunFacts) -> list[Claim]:
    """Return one claim per kind of step: number over all ranks, and length."""
    kinds = [row for row in run.tables["step_kinds"].rows() if row["rank"] < 0]
    return [_steps(run, row, len(kinds) == 1) for row in kinds] + warmup_claims(run)


def recording_claim() -> Claim:
    """Return the claim that no step is marked."""
    return claim("headline", "steps", "no step is marked: the whole recording counts as one step", name="recording")


def _steps(run: RunFacts, row: Row, alone: bool) -> Claim:
    kind, count, mean_ns, median_ns = row["kind"], row["steps_count"], row["mean_ns"], row["median_ns"]
    own = Facts(name=kind, items_count=count, stall_ns=mean_ns, median_ns=median_ns)
    if kind == "marked" and one_recording(run.trace):
        said = "no step is marked; the whole recording of {stall_ns:time} counts as one"
        return claim("headline", "steps", said, **{**own, "name": "recording"})
    of_mean = " of {stall_ns:time}"
    if abs(median_ns - mean_ns) > POLICY.skewed_ratio * mean_ns:
        of_mean = ", mean {stall_ns:time}, median {median_ns:time}"
    changes = run.tables["over_time"]
    if len(changes) and kind in run.tables["steps"]["kind"] and kind not in QUIET_KINDS:
        of_mean, change = _beside_mean(changes)
        own |= change
    fewest, most = _steps_of_ranks(run, kind)
    named = "{items_count}"
    if most - fewest > POLICY.uneven_count:
        own |= Facts(fewest_count=fewest)
        named = "{fewest_count} to {items_count}"
    rollout = ""
    if kind == "iteration":
        own |= Facts(rollout_ns=row["rollout_ns"], rollout_ratio=row["rollout_ns"] / max(mean_ns, 1))
        rollout = " ({rollout_ratio:percent} of it rollout)"
    word = "" if alone and kind in ("train", "training") else f"{_STEP_WORDS.get(kind, kind.replace('_', ' '))} "
    noun, passes = "iteration" if kind == "iteration" else "{word}step", ""
    least_passes, most_passes = _passes_of_ranks(run, kind)
    if kind == "train" and most_passes >= POLICY.several_passes_count:  # many a log counts these
        word = "optimizer " if _has_one_update(run) else word
        if most_passes - least_passes < 1:  # stages of a pipeline may not show theirs
            own |= Facts(passes_count=most_passes)
            passes = ", {passes_count:number} backward passes each"
    said = f"{named} {noun}{plural(count)}{of_mean}{rollout}{passes}"
    return claim("headline", "steps", said, phrases={"word": word}, **own)


def _passes_of_ranks(run: RunFacts, kind: str) -> tuple[float, float]:
    """Return the smallest and the largest number of backward passes that a rank made in a mean step of a kind."""
    table = run.tables["step_kinds"]
    own = table.take((table["kind"] == kind) & (table["rank"] >= 0) & (table["steps_count"] > 0))
    each = own["sub_steps_count"] / own["steps_count"]
    return (float(each.min()), float(each.max())) if len(own) else (0.0, 0.0)


def _has_one_update(run: RunFacts) -> bool:
    """Return whether the counted steps that train have one update each, and not those of several optimizers."""
    steps, phases = run.tables["steps"], run.trace.phases
    trained = steps.take(steps["kind"] == "train")
    if not len(trained):
        return False
    updates = (phases["phase_code"] == Phase.OPTIMIZER) & ((phases["phase_flags"] & PhaseFlag.NESTED) == 0)
    inside = (phases["begin_ns"] >= trained["begin_ns"].min()) & (phases["begin_ns"] < trained["end_ns"].max())
    return int((updates & inside).sum()) < POLICY.several_passes_count * len(trained)


def _steps_of_ranks(run: RunFacts, kind: str) -> tuple[int, int]:
    """Return the smallest and the largest number of counted steps of a kind that a rank made which made any."""
    table = run.tables["step_kinds"]
    counts = table["steps_count"][(table["kind"] == kind) & (table["rank"] >= 0)]
    return (int(counts.min()), int(counts.max())) if len(counts) else (0, 0)


def _beside_mean(changes: Table) -> tuple[str, Facts]:
    """Return what is said of the length of the step beside its mean, by the costliest change, and its facts."""
    row, others = next(changes.rows()), len(changes) - 1
    own = Facts(usual_ns=row["usual_ns"], changed_ns=row["changed_ns"])
    every, together = row["every_count"], row["together_count"]
    mean = ", mean {stall_ns:time}"
    if row["kind"] == "period" and 2 * together == every:
        which = "every other step" if every == 2 else f"{together} of {every} steps"
        return f"{mean}: {{changed_ns:time}} in {which}, {{usual_ns:time}} in the others", own
    if row["kind"] == "period":
        return f"{mean}, but {{usual_ns:time}} in {every - 1} of {every} steps", own
    if row["kind"] == "drift":
        verb = "grows" if row["changed_ns"] > row["usual_ns"] else "shrinks"
        return f"{mean}: the usual step {verb} from {{usual_ns:time}} to {{changed_ns:time}}", own
    own |= Facts(first_step=row["first_step_index"], last_step=row["last_step_index"])
    about = "about " if row["onset"] != "sudden" else ""
    when = {"end": f"from {about}step {{first_step}} on", "begin": "up to step {last_step}"}.get(
        row["place"], "in steps {first_step} to {last_step}"
    )
    of = f" of {'usually ' if others else ''}{{usual_ns:time}}, but {{changed_ns:time}} {when} (mean {{stall_ns:time}})"
    return of, own
