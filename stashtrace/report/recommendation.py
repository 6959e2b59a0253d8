"""The words of ``stashtrace recommend``: the table, the choices with a reason each, the doubts."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from stashtrace.models.candidates import Budget, Candidate, cheaper, faster, same_price
from stashtrace.models.elasticity import Scaling
from stashtrace.models.interval import Interval
from stashtrace.models.recommendation import Recommendation
from stashtrace.models.scaling import ASSUMPTIONS
from stashtrace.report.recommendation_tables import (
    aligned_columns,
    candidate_row,
    cost_text,
    hours_text,
    scaling_row,
)
from stashtrace.units import duration_text, percent_text

_WIDTH = 96
#: Differences below this are not worth a sentence.
_SMALL = 0.02


def recommendation_lines(answer: Recommendation, work: str) -> list[str]:
    """Everything that the command says.

    Parameters
    ----------
    answer : Recommendation
    work : str
        What is to be done, in words.
    """
    lines = [f"work: {work}", "", *_table(answer.candidates), ""]
    for sentence, *reasons in choices(answer):
        lines += _wrapped(sentence, "  ▶ ")
        lines += [line for reason in reasons for line in _wrapped(reason, "      ")]
    if any(not one.measured for one in answer.candidates):
        lines += ["", "predicted rows assume:"]
        lines += [line for one in ASSUMPTIONS for line in _wrapped(one)]
    if answer.not_measured:
        lines += ["", "not measured, so nothing is said of:"]
        lines += [line for one in grouped(answer.not_measured) for line in _wrapped(one)]
    doubts = [*answer.notes, *_price_notes(answer.candidates), *_own_notes(answer.candidates)]
    if doubts:
        lines += ["", "to know:"]
        lines += [line for one in doubts for line in _wrapped(one)]
    return lines


def choices(answer: Recommendation) -> list[list[str]]:
    """For each question that was asked the answer, and behind it the reasons, as sentences."""
    out: list[list[str]] = []
    budget = answer.budget
    if budget.hours is not None:
        limit = f"within {hours_text(budget.hours)}"
        out.append(_chosen(answer, answer.cheapest_within_time, "cheapest", limit, Budget(hours=budget.hours)))
    if budget.cost is not None:
        limit = f"for at most {cost_text(budget.cost, _currency(answer.candidates))}"
        out.append(_chosen(answer, answer.fastest_within_cost, "fastest", limit, Budget(cost=budget.cost)))
    if not answer.met and budget.hours is not None and budget.cost is not None:
        out += [_both_missed(answer)]
    if budget.hours is None and budget.cost is None:
        best = min(answer.candidates, key=cheaper)
        quick = min(answer.candidates, key=faster)
        if best.cost is not None:
            out.append([f"cheapest: {_facts(best)}", *_reasons(answer, best)])
        if best.cost is None or quick is not best:
            out.append([f"fastest: {_facts(quick)}", *_reasons(answer, quick)])
    said = {sentence for one in out for sentence in one}
    out += [[sentence] for sentence in _pairs(answer.candidates) if sentence not in said]
    return [one for one in out if one]


def answer_object(answer: Recommendation, work: Mapping[str, Any], elastic: Sequence[Scaling] | None) -> dict[str, Any]:
    """The answer for scripts; numbers that nobody knows are null."""
    candidates = [candidate_row(one) for one in answer.candidates]
    found: dict[str, Any] = {
        "format": 1,
        "work": dict(work),
        "budget": {"hours": answer.budget.hours, "cost": answer.budget.cost, "met": answer.met},
        "cheapest_within_time": _row_or_none(answer.cheapest_within_time),
        "fastest_within_cost": _row_or_none(answer.fastest_within_cost),
        "nearest": _row_or_none(answer.nearest),
        "candidates": candidates,
        "reasons": [sentence for one in choices(answer) for sentence in one],
        "not_measured": dict(answer.not_measured),
        "assumptions": list(ASSUMPTIONS) if any(not one.measured for one in answer.candidates) else [],
        "notes": [*answer.notes, *_own_notes(answer.candidates)],
    }
    if elastic is not None:
        found["elasticity"] = [scaling_row(one) for one in elastic]
    return found


def grouped(reasons: Mapping[str, str]) -> list[str]:
    """``why: names`` for each reason, once."""
    by_reason: dict[str, list[str]] = {}
    for name, why in reasons.items():
        by_reason.setdefault(why, []).append(name)
    return [f"{_listed(names)}: {why}" for why, names in by_reason.items()]


def _chosen(answer: Recommendation, one: Candidate | None, what: str, limit: str, budget: Budget) -> list[str]:
    if one is None:
        key = faster if budget.hours is not None else cheaper
        nearest = min(answer.candidates, key=key)
        return [f"nothing is done {limit}: {_missed(nearest, budget)}"]
    what = what if one.cost is not None else "fastest, of those without a price,"
    out = [f"{what} {limit}: {_facts(one)}"]
    if budget.hours is not None and one.hours.high > budget.hours:
        out.append(f"its interval reaches to {hours_text(one.hours.high)}, beyond the budget")
    if budget.cost is not None and one.cost is not None and one.cost.high > budget.cost:
        out.append(f"its interval reaches to {cost_text(one.cost.high, one.currency)}, beyond the budget")
    return [*out, *_reasons(answer, one)]


def _both_missed(answer: Recommendation) -> list[str]:
    one = answer.nearest
    if one is None or (answer.cheapest_within_time is None and answer.fastest_within_cost is None):
        return []
    return [f"nothing keeps both budgets: nearest is {one.name}, {_missed(one, answer.budget)}"]


def _missed(one: Candidate, budget: Budget) -> str:
    out = []
    if budget.hours is not None and one.hours.value > budget.hours:
        over = one.hours.value - budget.hours
        part = percent_text(over / budget.hours)
        out.append(f"{hours_text(one.hours.value)} is {hours_text(over)} ({part}) too long")
    if budget.cost is not None and one.cost is None:
        out.append("its price is not known")
    elif budget.cost is not None and one.cost is not None and one.cost.value > budget.cost:
        over = one.cost.value - budget.cost
        part = f" ({percent_text(over / budget.cost)})" if budget.cost else ""
        out.append(f"{cost_text(one.cost.value, one.currency)} is {cost_text(over, one.currency)}{part} too dear")
    what = "" if budget.hours is not None and budget.cost is not None else f"{one.name} comes nearest, "
    return what + " and ".join(out)


def _facts(one: Candidate) -> str:
    cost = "price unknown" if one.cost is None else cost_text(one.cost.value, one.currency)
    out = f"{one.name}, {hours_text(one.hours.value)}, {cost} ({'measured' if one.measured else 'predicted'})"
    stall = one.worst_stall
    if not stall or one.share(stall) < _SMALL:
        return f"{out}; " + ("it computes all the time" if one.told_apart else "what it loses was not measured")
    return f"{out}; it loses {percent_text(one.share(stall))} of its step to {_stall_words(stall)}"


def _stall_words(kind: str) -> str:
    return {
        "interconnect": "the links between its devices", "network": "the network", "prep": "preparing batches",
        "fetch": "reading from storage",
    }[kind]  # fmt: skip


def _reasons(answer: Recommendation, best: Candidate) -> list[str]:
    """Why this one: those of the same price, what more money buys, what it cannot be told from."""
    out: list[str] = []
    others = [one for one in answer.candidates if one is not best]
    # The same instances with another batch are no other thing to rent.
    unlike = [one for one in others if one.name != best.name and abs(one.step.value / best.step.value - 1) > _SMALL]
    out += [_pair(best, one) for one in unlike if same_price(one, best)]
    alike = [one.name for one in others if one.cost is not None and best.cost and one.cost.overlaps(best.cost)]
    same = [one for one in others if one.name in alike and one.hours.overlaps(best.hours)]
    if same and best.measured:
        names = _listed([one.name for one in same])
        out.append(f"the intervals of {names} overlap with its own: measure before renting many")
    quicker = [one for one in others if one.hours.value < best.hours.value * (1 - _SMALL) and one.cost is not None]
    if quicker and best.cost is not None and best.cost.value > 0:
        next_one = min(quicker, key=cheaper)
        cost = next_one.cost or Interval(math.nan)
        out.append(
            f"the next faster way, {next_one.name}, takes {hours_text(next_one.hours.value)} and costs"
            f" {_more(cost.value / best.cost.value - 1)}"
        )
    if not best.measured:
        measured = [one for one in answer.candidates if one.measured and answer.budget.met_by(one)]
        what = "cheapest" if best.cost is not None else "fastest"
        word = f"; the {what} that was measured is {min(measured, key=cheaper).name}" if measured else ""
        span = ""
        if best.hours.known:
            low, high = hours_text(best.hours.low), hours_text(best.hours.high)
            span = f" to take {low}" + (f" to {high}" if low != high else "")
        out.append(f"{best.name} was not run so, but predicted{span}: characterize it before renting many{word}")
    return out


def _more(ratio: float) -> str:
    if abs(ratio) < 0.005:
        return "the same"
    return f"{percent_text(abs(ratio))} {'more' if ratio > 0 else 'less'}"


def _pairs(candidates: Sequence[Candidate]) -> list[str]:
    """Sets of as many devices that cost the same an hour, one of which was run: what the network makes of the money."""
    return [
        _pair(one, other)
        for at, one in enumerate(candidates)
        for other in candidates[at + 1 :]
        if one.devices_count == other.devices_count > 1
        and one.batch_samples == other.batch_samples
        and (one.measured or other.measured)
        and same_price(one, other)
        and abs(one.step.value / other.step.value - 1) > _SMALL
    ]


def _pair(best: Candidate, other: Candidate) -> str:
    """Two of one price: what an hour buys."""
    same_steps = best.devices_count == other.devices_count and best.batch_samples == other.batch_samples
    done, slow = (best, other) if best.hours.value <= other.hours.value else (other, best)
    if not same_steps:
        ratio = slow.hours.value / done.hours.value
        return f"an hour of {done.name} costs the same as one of {slow.name} and does {_times(ratio)} as much"
    ratio = slow.step.value / done.step.value
    lost = slow.worst_stall
    word = f": {slow.name} loses {percent_text(slow.share(lost))} to {_stall_words(lost)}" if lost else ""
    return f"{done.name} costs the same as {slow.name} but its steps are {_times(ratio)} shorter{word}"


def _times(ratio: float) -> str:
    """A factor above one; of a small one its digits behind the point are all that it says."""
    return f"{ratio:.2g}x" if ratio >= 1.095 else f"{ratio:.3g}x"


def _table(candidates: Sequence[Candidate]) -> list[str]:
    batches = len({one.batch_samples for one in candidates}) > 1
    head = ["", "instances", "devices", "step", "time", "at least", "at most", "cost", "limited by", "lost", ""]
    lines = [head + (["batch"] if batches else [])]
    for one in candidates:
        cost = one.cost or Interval(math.nan)
        lost = one.worst_stall
        lines.append([
            "*" if one.pareto else "", one.name, str(one.devices_count), duration_text(one.step.value),
            *(_known(bound, _padded) for bound in (one.hours.value, one.hours.low, one.hours.high)),
            _known(cost.value, lambda x: cost_text(x, "")),
            one.limited_by, f"{percent_text(one.share(lost))} {lost}" if lost else "-",
            "measured" if one.measured else "emulated" if one.emulated else "predicted",
            *([str(one.batch_samples)] if batches else []),
        ])  # fmt: skip
    unit = _currency(candidates)
    what = f"cost in {unit}; " if unit else ""
    return [*aligned_columns(lines, 2, left={0, 1, 8, 10}), f"{what}* nothing is both faster and cheaper"]


def _price_notes(candidates: Sequence[Candidate]) -> list[str]:
    seen = dict.fromkeys((one.priced_on, one.source) for one in candidates if one.cost is not None)
    told = [" of ".join(filter(None, ["prices", day])) + (f": {source}" if source else "") for day, source in seen]
    return [f"{one}; check them (--price NAME=VALUE)" for one in told]


def _own_notes(candidates: Sequence[Candidate]) -> list[str]:
    by_note: dict[str, list[str]] = {}
    for one in candidates:
        for note in one.notes:
            by_note.setdefault(note, []).append(one.name)
    every = len(candidates)
    return [note if len(names) == every else f"{_listed(names)}: {note}" for note, names in by_note.items()]


def _listed(names: Sequence[str]) -> str:
    unique = list(dict.fromkeys(names))
    return ", ".join(unique[:3]) + (f" and {len(unique) - 3} more" if len(unique) > 3 else "")


def _currency(candidates: Sequence[Candidate]) -> str:
    return next((one.currency for one in candidates if one.cost is not None), "")


def _row_or_none(one: Candidate | None) -> dict[str, Any] | None:
    return None if one is None else candidate_row(one)


def _wrapped(text: str, mark: str = "  ") -> list[str]:
    rest = " " * max(len(mark), 4)
    return textwrap.wrap(text, _WIDTH, initial_indent=mark, subsequent_indent=rest, break_on_hyphens=False)


def _padded(hours: float) -> str:
    return hours_text(hours, padded=True)


def _known(value: float, text: Any) -> str:
    return "-" if math.isnan(value) else str(text(value))
