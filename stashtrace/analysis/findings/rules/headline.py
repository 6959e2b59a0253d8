"""What stands in the first lines: doubts of all figures, ranks and steps, which are missing, how long a step is.

``share_ratio`` of ``low_confidence`` is the unexplained part of the step time over all ranks. ``doubt`` has the part of
one kind of it, ``doubt_most`` that of the rank with most of what no call explains.

``ranks`` has the number of hosts in ``hosts``, -1 where one is not named, and in ``job_processes`` that of processes
of the job by its files, where fewer ranks have records. ``name`` of ``warmup`` is ``cut`` if the last step
is left out too, because the recording ends within it; that of ``no_steps`` is ``lost`` if steps may be among the lost
records.

``steps``: ``stall_ns`` is their mean length, ``median_ns`` the median; ``name`` is the kind of step, or ``recording``
if nothing marks a step and the whole recording counts as one. ``passes_count`` is how many backward passes a step has,
if several. ``rollout_ratio`` is the part of an iteration that generates, ``fewest_count`` what a rank made of them, if
fewer. By the change that costs most, ``usual_ns`` and ``changed_ns`` are lengths next to the mean, from ``first_step``
to ``last_step`` if it is no period and no drift.
"""

from __future__ import annotations

from typing import Any

from stashtrace.analysis.findings.claim_rows import Claim, Facts, claim, fact
from stashtrace.analysis.findings.rules.files import stated_processes
from stashtrace.analysis.findings.rules.losses import loss_claims
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.findings.stall_claims import one_recording
from stashtrace.analysis.findings.summary_input import RunFacts
from stashtrace.analysis.steps.training_loop import QUIET_KINDS
from stashtrace.schema.kinds import Phase, PhaseFlag
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.text.prose import plural
from stashtrace.text.units import ranks_named, ranks_text


def doubt_claims(facts: RunFacts) -> list[Claim]:
    """Return the warnings that precede all other figures."""
    claims = _unexplained(facts) if facts.unexplained_ratio > POLICY.unexplained_ratio else []
    timed = [r.rank for r in facts.ranks if r.host_timed]
    if timed:
        said = "LOW CONFIDENCE: no timed step marks on the device, steps are the host's"
        claims.append(claim("headline", "host_timed_steps", said, ranks=ranks_text(sorted(timed))))
    return claims


def _unexplained(facts: RunFacts) -> list[Claim]:
    small = POLICY.doubt_ratio
    doubts = {doubt: share for doubt, share in facts.doubts.items() if share >= small}
    parts = [
        fact("doubt", "{part_ratio:percent} {name}", "stalls", part_ratio=share, name=doubt)
        for doubt, share in doubts.items()
    ]
    said = "LOW CONFIDENCE: {parts}"
    rows = []
    worst = max(facts.ranks, key=lambda r: r.unexplained_ns / max(r.wall_ns, 1))
    most = worst.unexplained_ns / max(worst.wall_ns, 1)
    if "unexplained" in doubts and most - doubts["unexplained"] >= small:
        # Of several ranks the share is their mean: one of them may have much more, and another one none.
        said += ", the mean of all ranks ({most_ratio:percent} on rank {most_rank})"
        rows.append(fact("doubt_most", "", "stalls", rank=worst.rank, part_ratio=most))
    # Short waits, and waits for a CPU after them, count as compute: where CPUs are scarce more is unexplained.
    short = "unexplained" in doubts and any(r.contention_ratio > small for r in facts.ranks)
    said += "; it may be more, since CPUs were scarce" if short else ""
    sure = "at_least" if short else "exact"
    figures = Facts(share_ratio=facts.unexplained_ratio, most_ratio=most, most_rank=worst.rank)
    return [claim("headline", "low_confidence", said, rows, parts=parts, confidence=sure, **figures)]


def rank_claims(facts: RunFacts) -> list[Claim]:
    """Return a claim about how many ranks there are, and one about those that left no record."""
    # Ranks whose host is not named may be on any.
    named = facts.hosts_count > 0 and all(facts.hosts)
    rows = [fact("hosts", "", "processes", items_count=facts.hosts_count if named else -1)]
    stated = stated_processes(facts.trace)
    if stated > facts.ranks_count:
        rows.append(fact("job_processes", "", "metadata", processes_count=stated))
    said = "{processes_count:process}" if stated > facts.ranks_count else "{items_count:rank}"
    stepping = {rank.rank for part in (facts, *facts.others) for rank in part.ranks}
    idle = sorted({rank for ranks in facts.hosts.values() for rank in ranks} - stepping) if stepping else []
    if idle:
        said += f" ({ranks_named(idle)} without counted steps)"
    claims = [claim("headline", "ranks", said, rows, items_count=facts.ranks_count, ranks=ranks_text(idle))]
    if facts.missing_ranks:
        missing = ranks_text(list(facts.missing_ranks))
        said = "{items_count} ranks of the job left no record here"
        if len(missing) < POLICY.missing_ranks_characters:
            said = "rank{items_count:|s} {ranks} of the job left no record here ({items_count} missing)"
        name, count = "imported" if facts.imported else "", len(facts.missing_ranks)
        claims.append(claim("headline", "ranks_missing", said, ranks=missing, items_count=count, name=name))
    return claims


def warmup_claims(facts: RunFacts) -> list[Claim]:
    """Return a claim about steps at the edges of the recording that are left out."""
    if not facts.warmup_count:
        return []
    first = facts.warmup_count - facts.cut_count
    left = [*(["first {items_count}" if first > 1 else "the first"] if first else []), *["the last"] * facts.cut_count]
    name = "cut" if facts.cut_count else ""
    return [claim("headline", "warmup", f"{' and '.join(left)} left out", items_count=first, name=name)]


def no_steps_claim(trace: Trace) -> Claim:
    """Return the claim that there are no steps; if records were lost, steps may be among them."""
    if any(one.section == "headline" for one in loss_claims(trace)):
        said = "no training steps among the records that are left"
        return claim("headline", "no_steps", said, name="lost", items_count=0)
    return claim("headline", "no_steps", "no training steps seen", items_count=0)


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
    facts = Facts(name=kind, items_count=count, stall_ns=mean_ns, median_ns=median_ns)
    if kind == "marked" and one_recording(run.trace):
        said = "no step is marked; the whole recording of {stall_ns:time} counts as one"
        return claim("headline", "steps", said, **{**facts, "name": "recording"})
    of_mean = " of {stall_ns:time}"
    if abs(median_ns - mean_ns) > POLICY.skewed_ratio * mean_ns:
        of_mean = ", mean {stall_ns:time}, median {median_ns:time}"
    changes = run.tables["over_time"]
    if len(changes) and kind in run.tables["steps"]["kind"] and kind not in QUIET_KINDS:
        of_mean, change = _next_to_mean(changes)
        facts |= change
    fewest, most = _steps_of_ranks(run, kind)
    named = "{items_count}"
    if most - fewest > POLICY.uneven_count:
        facts |= Facts(fewest_count=fewest)
        named = "{fewest_count} to {items_count}"
    rollout = ""
    if kind == "iteration":
        facts |= Facts(rollout_ns=row["rollout_ns"], rollout_ratio=row["rollout_ns"] / max(mean_ns, 1))
        rollout = " ({rollout_ratio:percent} of it rollout)"
    word = "" if alone and kind in ("train", "training") else f"{_STEP_WORDS.get(kind, kind.replace('_', ' '))} "
    noun, passes = "iteration" if kind == "iteration" else "{word}step", ""
    least_passes, most_passes = _passes_of_ranks(run, kind)
    if kind == "train" and most_passes >= POLICY.several_passes_count:  # many a log counts these
        word = "optimizer " if _has_one_update(run) else word
        if most_passes - least_passes < 1:  # stages of a pipeline may not show theirs
            facts |= Facts(passes_count=most_passes)
            passes = ", {passes_count:number} backward passes each"
    said = f"{named} {noun}{plural(count)}{of_mean}{rollout}{passes}"
    return claim("headline", "steps", said, phrases={"word": word}, **facts)


def _passes_of_ranks(run: RunFacts, kind: str) -> tuple[float, float]:
    """Return the smallest and the largest number of backward passes that a rank made in a mean step of a kind."""
    table = run.tables["step_kinds"]
    rows = table.take((table["kind"] == kind) & (table["rank"] >= 0) & (table["steps_count"] > 0))
    each = rows["sub_steps_count"] / rows["steps_count"]
    return (float(each.min()), float(each.max())) if len(rows) else (0.0, 0.0)


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


def _next_to_mean(changes: Table) -> tuple[str, Facts]:
    """Return what is said of the length of the step next to its mean, by the costliest change, and its facts."""
    row, others = next(changes.rows()), len(changes) - 1
    facts = Facts(usual_ns=row["usual_ns"], changed_ns=row["changed_ns"])
    every, together = row["every_count"], row["together_count"]
    mean = ", mean {stall_ns:time}"
    if row["kind"] == "period" and 2 * together == every:
        which = "every other step" if every == 2 else f"{together} of {every} steps"
        return f"{mean}: {{changed_ns:time}} in {which}, {{usual_ns:time}} in the others", facts
    if row["kind"] == "period":
        return f"{mean}, but {{usual_ns:time}} in {every - 1} of {every} steps", facts
    if row["kind"] == "drift":
        verb = "grows" if row["changed_ns"] > row["usual_ns"] else "shrinks"
        return f"{mean}: the usual step {verb} from {{usual_ns:time}} to {{changed_ns:time}}", facts
    facts |= Facts(first_step=row["first_step_index"], last_step=row["last_step_index"])
    about = "about " if row["onset"] != "sudden" else ""
    when = {"end": f"from {about}step {{first_step}} on", "begin": "up to step {last_step}"}.get(
        row["place"], "in steps {first_step} to {last_step}"
    )
    of = f" of {'usually ' if others else ''}{{usual_ns:time}}, but {{changed_ns:time}} {when} (mean {{stall_ns:time}})"
    return of, facts
