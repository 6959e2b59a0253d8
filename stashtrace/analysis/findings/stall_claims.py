"""A claim about a stall of ranks: its figures, how certain they are, and the phrases that its templates use.

``{who}`` names the ranks, ``{who:waits|wait}`` is a verb that says how certain the time is, ``{lost}`` is the time per
step with its share. A recording in which no step is marked counts as one step: then nothing is said "a step".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from stashtrace.analysis.findings.claim_rows import Claim, Evidence, by_column
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.findings.summary_input import RankFacts, RunFacts
from stashtrace.schema.kinds import SpanKind
from stashtrace.schema.trace import WHOLE_RECORDING, Trace, cached_on_trace
from stashtrace.text.prose import plural
from stashtrace.text.units import duration_text, filled, named_ranks, percent_text, range_text, ranks_text


def stall_claim(hit: Sequence[RankFacts], kind: str, kinds: Sequence[str]) -> Claim:
    """Return a verdict about the time that ranks lose to some kinds, with the figures of the first, worst rank."""
    worst, least = hit[0], hit[-1]
    point, (low, high) = worst.per_step_ns(*kinds), worst.bounds_ns(*kinds)
    sure = confidence(point, low, high)
    # With steps of different lengths, the rank that loses most time need not lose the largest share.
    shares = [r.share(kind) for r in hit] if sure == "exact" else [worst.share(kind), least.share(kind)]
    return Claim(
        "verdict",
        kind,
        ranks=ranks_text(sorted(r.rank for r in hit)),
        rank=worst.rank,
        items_count=len(hit),
        share_ratio=max(shares) if sure == "exact" else shares[0],
        least_ratio=min(shares),
        stall_ns=point,
        low_ns=low,
        high_ns=high,
        least_ns=least.per_step_ns(*kinds),
        confidence=sure,
        method=worst.method,
    )


def confidence(point: float, low: float, high: float) -> str:
    """Return how certain a time with bounds is: ``exact``, ``at_least``, ``up_to`` or ``between``."""
    slack = max(point, high) * POLICY.exact_ratio
    if point - low <= slack and high - point <= slack:
        return "exact"
    if point - low <= slack:
        return "at_least"
    return "up_to" if high - point <= slack and low <= slack else "between"


def part_of(claim: Claim, part_ns: float) -> Claim:
    """Return a claim with the figures of a part of its time."""
    part = min(part_ns / max(claim.stall_ns, 1.0), 1.0)
    names = ("share_ratio", "least_ratio", "stall_ns", "low_ns", "high_ns", "least_ns")
    return replace(claim, **{name: part * getattr(claim, name) for name in names})


def verdict(
    kind: str,
    template: str,
    run: RunFacts,
    base: Claim,
    evidence: Iterable[Evidence] = (),
    *,
    short: str = "",
    phrases: Mapping[str, Any] | None = None,
    **facts: Any,
) -> Claim:
    """Return a claim about a stall whose sentence is a template filled with its fields, phrases and named facts.

    ``base``: its figures. ``short``: the template of a sentence for the first line of a summary. ``phrases``: what the
    templates name besides facts and ``phrases_of``.
    """
    columns, more = by_column(facts)
    made = replace(base, kind=kind, evidence=tuple(evidence), **columns)
    known = {**phrases_of(made, step_words(run.trace)), **(phrases or {}), **facts}
    more |= {"short": filled(short, known)} if short else {}
    return replace(made, text=filled(template, known), facts=more)


def one_recording(trace: Trace) -> bool:
    """Return True if nothing marks a step, so that the importer made one of the whole recording."""
    spans = trace.spans
    marks = np.isin(spans["kind_code"], (SpanKind.STEP, SpanKind.STEP_MARK))
    return bool(np.isin(trace.strings.find(WHOLE_RECORDING), spans["name_code"][marks]))


@cached_on_trace
def step_words(trace: Trace) -> Mapping[str, str]:
    """Return what follows a time and a count per step, and what a share is of."""
    if one_recording(trace):
        return {"a_step": "", "each_step": " in all", "of_step": "of the recording"}
    return {"a_step": " a step", "each_step": " a step", "of_step": "of a step"}


@dataclass(frozen=True, slots=True)
class Who:
    """Ranks that lose time, or their devices; ``perhaps`` if the time may be nothing."""

    name: str
    several: bool
    perhaps: bool

    def __str__(self) -> str:
        return self.name

    def verb(self, one: str, many: str) -> str:
        """Return the verb for one rank or for several; ``may`` precedes it where the time may be nothing."""
        if self.perhaps:
            return "may be" if many == "are" else f"may {many}"
        return many if self.several else one


def phrases_of(claim: Claim, steps: Mapping[str, str]) -> dict[str, Any]:
    """Return what a template may name that is no fact: the fields of a claim, and phrases made of them."""
    count = claim.items_count
    nothing = POLICY.worth_saying_ratio * claim.stall_ns
    who = Who(
        named_ranks(claim.ranks, count), count > 1, claim.stall_ns > 0 and claim.low_ns * claim.share_ratio < nothing
    )
    amount, share = _amount(claim), _share(claim)
    return {
        **{field.name: getattr(claim, field.name) for field in fields(claim)},
        **steps,
        "who": who,
        "devices": replace(who, name=f"the device{plural(count)} of {who}"),
        "amount": amount,
        "share": share,
        "lost": f"{amount}{steps['a_step']} ({share})",
    }


def _amount(claim: Claim) -> str:
    """Word the mean time per step: the figure, a bound or a range, as ``confidence`` allows.

    What is said of several ranks is true of each: the bounds are those of the rank that loses most.
    """
    point, low, high, least = map(duration_text, (claim.stall_ns, claim.low_ns, claim.high_ns, claim.least_ns))
    several = claim.items_count > 1
    if claim.confidence in ("exact", "at_least"):
        length = f"{least} to {point}" if several and least != point else point
        return length if claim.confidence == "exact" else f"at least {length}"
    return f"up to {high}" if several or claim.confidence == "up_to" else f"between {low} and {high}"


def _share(claim: Claim) -> str:
    """Word the share of the step that ``amount`` is: a range where ranks differ, a bound where ``amount`` is one."""
    if claim.confidence in ("up_to", "between") and claim.stall_ns > 0:
        scale = claim.share_ratio / claim.stall_ns
        low, high = (percent_text(bound * scale) for bound in (claim.low_ns, claim.high_ns))
        if claim.items_count > 1:
            return f"up to {high}"
        return high if claim.confidence == "up_to" else range_text(low, high)
    most, least = percent_text(claim.share_ratio), percent_text(claim.least_ratio)
    return most if claim.items_count <= 1 or claim.least_ratio < 0 else range_text(least, most)


def bounded_time(point_ns: float, low_ns: float, high_ns: float) -> str:
    """Word a time with bounds: one figure where these are near to each other, else a range."""
    if high_ns - low_ns <= POLICY.exact_ratio * high_ns:
        return duration_text(point_ns)
    return range_text(duration_text(low_ns), duration_text(high_ns))


def whose(base: Claim) -> str:
    """Say whose batches these are, where a claim is about several ranks: only those of one were looked at."""
    return f"on rank {base.rank}, " if base.items_count > 1 else ""
