"""Which verdicts a summary gives, in which order, and how certain their words may be.

``choose`` turns facts into at most three findings, worst first; each names rank, cause, evidence and a
number that a person can check with ``stashtrace analyze``. No sentence claims more than the bounds of its number.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stashtrace.report import device_evidence, evidence, late_evidence
from stashtrace.report.facts import GROUPS, RankFacts, RunFacts
from stashtrace.units import duration_text, percent_text, ranks_text

#: Stalls below this share of the step are not worth a sentence.
WORTH_SAYING_RATIO = 0.03
AT_MOST = 3
#: A bound on time that may be nothing is worth a sentence above this share of the step.
_WORTH_DOUBTING_RATIO = 0.2
#: A bound nearer to the point than this is the point.
_EXACT_RATIO = 0.05

#: What a late rank does more of than the rank that waits for it, by column of the summary.
_LATE_BECAUSE = {
    "compute": "computes {more} longer",
    "data": "waits {more} longer for batches",
    "save": "saves checkpoints for {more}",
    "other": "is blocked {more} longer with no known cause",
}
#: The difference of two budgets explains a wait if it is at least this share of it.
_EXPLAINS_RATIO = 0.25


@dataclass(frozen=True, slots=True)
class Finding:
    """One verdict.

    Attributes
    ----------
    group : str
        Column of the summary.
    share : float
        Of the step time of the rank that is hit hardest.
    verdict : str
        One sentence.
    evidence : tuple of str
        Sentences that carry it.
    """

    group: str
    share: float
    verdict: str
    evidence: tuple[str, ...]


def choose(facts: RunFacts) -> list[Finding]:
    """Findings worth saying, worst first, at most three."""
    found: list[Finding] = []
    for group, tell in (
        ("data", _data), ("late", _late), ("link", _link), ("copy", _copy), ("save", _save), ("host", _host),
        ("other", _other),
    ):  # fmt: skip
        hit = sorted(
            (r for r in facts.ranks if r.share(group) >= WORTH_SAYING_RATIO), key=lambda r: (-r.share(group), r.rank)
        )
        if hit:
            found.append(tell(facts, hit))
    if not any(f.group == "host" for f in found):
        found += _perhaps_host(facts)
    return sorted(found, key=lambda f: -f.share)[:AT_MOST]


def amount(rank: RankFacts, *kinds: str) -> str:
    """Mean time a step of some kinds, as certain as the bounds allow."""
    point = rank.per_step_ns(*kinds)
    low, high = rank.bounds_ns(*kinds)
    slack = max(point, high) * _EXACT_RATIO
    if point - low <= slack and high - point <= slack:
        return duration_text(point)
    if point - low <= slack:
        return f"at least {duration_text(point)}"
    if high - point <= slack and low <= slack:
        return f"up to {duration_text(point)}"
    return f"between {duration_text(low)} and {duration_text(high)}"


def _data(facts: RunFacts, hit: Sequence[RankFacts]) -> Finding:
    worst, share = hit[0], hit[0].share("data")
    lost = f"{amount(worst, *GROUPS['data'])} a step ({_share(hit, 'data')})"
    verdict = f"{_ranks(hit)} {'are' if len(hit) > 1 else 'is'} input bound: {lost} waiting for batches"
    return Finding(
        "data",
        share,
        verdict,
        tuple(evidence.loading(facts.trace, worst, facts.tables["steps"], facts.trust.cpu_busy_ratio)),
    )


def _late(facts: RunFacts, hit: Sequence[RankFacts]) -> Finding:
    worst, share = hit[0], hit[0].share("late")
    cause = _main_cause(worst)
    late = facts.rank(cause)
    # The late rank's own waits for others are another story, and a shorter one.
    alike = [r for r in hit if _main_cause(r) == cause]
    loses = f"{_ranks(alike)} {'lose' if len(alike) > 1 else 'loses'}"
    lost = f"{amount(worst, 'straggler')} a step ({_share(alike, 'late')})"
    if cause < 0:
        return Finding("late", share, f"{loses} {lost} waiting for other ranks", ())
    operation = evidence.waited_operation(facts.trace, worst.rank, facts.tables["steps"])
    where = f" in {operation}" if operation else ""
    if late is not None and late.late_ns.get(worst.rank, 0) > 0.5 * worst.late_ns[cause]:
        verdict = (
            f"ranks {worst.rank} and {cause} take turns being late{where}: waiting for the other costs rank"
            f" {worst.rank} {amount(worst, 'straggler')} a step, rank {cause} {amount(late, 'straggler')}"
        )
        return Finding("late", share, verdict, ("neither is always the slower one: their steps vary",))
    part = worst.late_ns[cause] / max(sum(worst.late_ns.values()), 1)
    whom = f"rank {cause}" if part > 0.8 else f"others, mostly rank {cause} ({percent_text(part)})"
    told = _told_of_late(facts, cause, late, worst)
    link_ns = worst.per_step_ns("network", "interconnect")
    if link_ns > 0:
        told.append(f"the transfers themselves take {duration_text(link_ns)} a step")
    return Finding("late", share, f"{loses} {lost}{where} waiting for {whom}, not for the link", tuple(told))


def _main_cause(rank: RankFacts) -> int:
    """The rank that one waited for longest, -1 if unknown."""
    return max(rank.late_ns, key=lambda r: (rank.late_ns[r], -r), default=-1)


def _told_of_late(facts: RunFacts, cause: int, late: RankFacts | None, victim: RankFacts) -> list[str]:
    """Why by the budgets of all steps, then the worst wait and its own cause, which may be all there is to say."""
    told = _why_late(facts, late, victim) if late is not None else ""
    worst, known = late_evidence.worst_wait(facts.trace, cause, facts.tables["steps"])
    if known and told == _varies(cause):
        told = ""
    often = late_evidence.how_often(facts.tables, victim.rank, cause)
    return [text for text in (told, often, f"the worst: {worst}" if worst else "") if text]


def _varies(late: int) -> str:
    return f"no kind of time is much longer on rank {late}: it is late in some steps, early in others"


def _why_late(facts: RunFacts, late: RankFacts, victim: RankFacts) -> str:
    """What the late rank did that the waiting one did not, by the difference of their budgets.

    What it did *while* the other waited would mislead: a rank that waited for its batch computes then, as all do.
    """
    more = {g: late.per_step_ns(*GROUPS[g]) - victim.per_step_ns(*GROUPS[g]) for g in _LATE_BECAUSE}
    group = max(more, key=more.__getitem__)
    if more[group] < _EXPLAINS_RATIO * victim.per_step_ns("straggler"):
        later_ns = _begins_later(facts, late.rank, victim.rank)
        if later_ns >= _EXPLAINS_RATIO * victim.per_step_ns("straggler"):
            apart = f"why: rank {late.rank} begins the step {duration_text(later_ns)} after rank {victim.rank}"
            return apart + ("; what kept it lies before the recording" if facts.steps_count == 1 else "")
        return _varies(late.rank)
    words = _LATE_BECAUSE[group]
    if group == "other" and _sleeps(late):
        words = "sleeps {more} longer"
    why = f"why: each step rank {late.rank} {words.format(more=duration_text(more[group]))} than rank {victim.rank}"
    if group == "compute" and late.contention_ratio > 2 * victim.contention_ratio + 0.02:
        why += f", and stands in the run queue for {percent_text(late.contention_ratio)} of it"
    return why


def _begins_later(facts: RunFacts, late: int, other: int) -> float:
    """How much later a rank begins its steps than another; median over the steps of both."""
    steps = facts.tables["steps"]
    begins = [dict(zip(own["step"].tolist(), own["begin_ns"].tolist(), strict=True)) for own in (
        steps.take(steps["rank"] == rank) for rank in (late, other)
    )]  # fmt: skip
    common = sorted(set(begins[0]) & set(begins[1]))
    return float(np.median([begins[0][s] - begins[1][s] for s in common])) if common else 0.0


def _sleeps(rank: RankFacts) -> bool:
    """Whether most of a rank's ``other`` are calls of sleep."""
    return rank.asleep_ns > 0.5 * rank.kinds.get("other", 0)


def _link(facts: RunFacts, hit: Sequence[RankFacts]) -> Finding:
    worst, share = hit[0], hit[0].share("link")
    between_hosts = worst.per_step_ns("network") >= worst.per_step_ns("interconnect")
    place_known = any(facts.hosts) or bool((facts.trace.groups["crosses_hosts"] == 0).any())
    place = "between hosts" if between_hosts else "between ranks of one host" if place_known else "between ranks"
    lost = f"{amount(worst, *GROUPS['link'])} a step ({_share(hit, 'link')})"
    spend = "spend" if len(hit) > 1 else "spends"
    verdict = f"{_ranks(hit)} {spend} {lost} in transfers {place}{_company(facts, worst)}"
    told = evidence.transfer(facts.trace, worst, facts.tables["steps"])
    told += device_evidence.bus_bandwidth(facts.trace, worst, facts.tables["steps"])
    return Finding("link", share, verdict, tuple(told))


def _company(facts: RunFacts, rank: RankFacts) -> str:
    """Whether the other ranks were there while a rank transferred: unknown where all of it may have been waiting."""
    if rank.bounds_ns(*GROUPS["link"])[0] > _EXACT_RATIO * rank.per_step_ns(*GROUPS["link"]):
        return ", with all ranks there"
    if not facts.missing_ranks:
        return "; part of it may be waiting for other ranks"
    missing = ranks_text(list(facts.missing_ranks))
    whom = f"rank{'s' if len(facts.missing_ranks) > 1 else ''} {missing}" if len(missing) < 20 else "most ranks"
    return f"; part of it may be waiting: {whom} left no record here"


def _copy(facts: RunFacts, hit: Sequence[RankFacts]) -> Finding:
    worst, share = hit[0], hit[0].share("copy")
    lost = f"{amount(worst, 'h2d')} a step ({_share(hit, 'copy')})"
    verdict = f"{_ranks(hit)} {'wait' if len(hit) > 1 else 'waits'} {lost} for copies between host and device"
    return Finding("copy", share, verdict, tuple(device_evidence.copies(facts.trace, worst, facts.tables["steps"])))


def _host(facts: RunFacts, hit: Sequence[RankFacts]) -> Finding:
    worst, share = hit[0], hit[0].share("host")
    lost = f"{amount(worst, *GROUPS['host'])} a step ({_share(hit, 'host')})"
    drained = worst.per_step_ns("sync") >= worst.per_step_ns("launch")
    why = "after blocking calls that drained it" if drained else "because its host does not launch fast enough"
    verdict = f"the device of {_ranks(hit)} stands idle for {lost} {why}"
    return Finding("host", share, verdict, tuple(_host_evidence(facts, worst)))


def _perhaps_host(facts: RunFacts) -> list[Finding]:
    """By brackets the host's part is a bound only; it is worth a sentence where it could be large."""
    bound = {r.rank: r.bounds_ns(*GROUPS["host"])[1] / max(r.wall_ns / max(r.steps_count, 1), 1) for r in facts.ranks}
    hit = sorted((r for r in facts.ranks if bound[r.rank] >= _WORTH_DOUBTING_RATIO), key=lambda r: -bound[r.rank])
    if not hit:
        return []
    worst = hit[0]
    upto = f"{duration_text(worst.bounds_ns(*GROUPS['host'])[1])} a step ({percent_text(bound[worst.rank])})"
    verdict = (
        f"the device of {_ranks(hit)} may stand idle for up to {upto} because of its host: timing events cannot tell,"
        " `stashtrace run --kernels` can"
    )
    # What may be nothing stands behind what is something.
    return [Finding("host", worst.share("host"), verdict, tuple(_host_evidence(facts, worst)))]


def _host_evidence(facts: RunFacts, worst: RankFacts) -> list[str]:
    steps = facts.tables["steps"]
    return device_evidence.host_lead(facts.trace, worst, steps) + device_evidence.blocking_calls(
        facts.trace, worst, steps
    )


def _save(facts: RunFacts, hit: Sequence[RankFacts]) -> Finding:
    worst, share = hit[0], hit[0].share("save")
    lost = f"{amount(worst, 'checkpoint')} a step on average ({_share(hit, 'save')})"
    return Finding(
        "save", share, f"checkpoints stop {_ranks(hit)} for {lost}", tuple(evidence.saving(facts.trace, worst))
    )


def _other(facts: RunFacts, hit: Sequence[RankFacts]) -> Finding:
    worst, share = hit[0], hit[0].share("other")
    lost = f"{amount(worst, 'other')} a step ({_share(hit, 'other')})"
    blocked = f"{_ranks(hit)} {'are' if len(hit) > 1 else 'is'} blocked {lost}"
    blocked_ns = worst.kinds.get("other", 0)
    if _sleeps(worst):
        verdict = (
            f"{_ranks(hit)} {'sleep' if len(hit) > 1 else 'sleeps'} for {lost}, by a call of the script or a library"
        )
        asleep = duration_text(worst.asleep_ns / max(worst.steps_count, 1))
        told = [f"calls of sleep and its kin: {asleep} a step"]
    elif worst.held_ns > 0.5 * blocked_ns:
        if worst.held_ns >= (1 - _EXACT_RATIO) * blocked_ns:
            verdict = f"the streams of {_ranks(hit)} stand {lost} while the host runs functions of the job's"
        else:
            held = duration_text(worst.held_ns / max(worst.steps_count, 1))
            verdict = f"{blocked}, up to {held} of it while the host runs functions of the job's"
        told = device_evidence.host_functions(facts.trace, worst, facts.tables["steps"])
    else:
        verdict = f"{blocked} with no known cause"
        told = ["a foreign lock, a socket or a subprocess would look like this; the time line shows where"]
    return Finding("other", share, verdict, tuple(told))


def _ranks(hit: Sequence[RankFacts]) -> str:
    return f"rank{'s' if len(hit) > 1 else ''} {ranks_text(sorted(r.rank for r in hit))}"


def _share(hit: Sequence[RankFacts], group: str) -> str:
    """Share of the step of the rank whose number was given, and which that is where the ranks differ."""
    share = percent_text(hit[0].share(group))
    if hit[-1].share(group) > 0.8 * hit[0].share(group):
        return share
    return f"{share} on rank {hit[0].rank}, less on {'the others' if len(hit) > 2 else f'rank {hit[1].rank}'}"
