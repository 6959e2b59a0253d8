"""The words of ``stashtrace recommend``: the table, the choices with a reason each, the doubts."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from stashtrace.lab.intervals import Interval, finite_or_none
from stashtrace.lab.recommend.candidates import Budget, Candidate, cheaper, faster, same_price, several_text
from stashtrace.lab.recommend.catalog import Catalog, Instance
from stashtrace.lab.recommend.elasticity import Scaling
from stashtrace.lab.recommend.recommend import Recommendation
from stashtrace.lab.recommend.scaling import ASSUMPTIONS
from stashtrace.lab.wording import aligned, and_more, wrapped
from stashtrace.units import duration_text, percent_text

#: Of numbers in JSON and CSV.
_DIGITS = 7
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
        lines += wrapped(sentence, "  ▶ ")
        lines += [line for reason in reasons for line in wrapped(reason, "      ")]
    if any(not one.measured for one in answer.candidates):
        lines += ["", "predicted rows assume:"]
        lines += [line for one in ASSUMPTIONS for line in wrapped(one)]
    if answer.not_measured:
        lines += ["", "not measured, so nothing is said of:"]
        lines += [line for one in grouped(answer.not_measured) for line in wrapped(one)]
    doubts = [*answer.notes, *_price_notes(answer.candidates), *_own_notes(answer.candidates)]
    if doubts:
        lines += ["", "to know:"]
        lines += [line for one in doubts for line in wrapped(one)]
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
        if best.priced:
            out.append([f"cheapest: {_facts(best)}", *_reasons(answer, best)])
        if not best.priced or quick is not best:
            out.append([f"fastest: {_facts(quick)}", *_reasons(answer, quick)])
    said = {sentence for one in out for sentence in one}
    out += [[sentence] for sentence in _pairs(answer.candidates) if sentence not in said]
    return [one for one in out if one]


def answer_object(answer: Recommendation, work: Mapping[str, Any], elastic: Sequence[Scaling] | None) -> dict[str, Any]:
    """The answer for scripts; numbers that nobody knows are null."""
    whole: dict[str, Any] = {
        "format": 1,
        "work": dict(work),
        "budget": {"hours": answer.budget.hours, "cost": answer.budget.cost, "met": answer.met},
        "cheapest_within_time": _row_or_none(answer.cheapest_within_time),
        "fastest_within_cost": _row_or_none(answer.fastest_within_cost),
        "nearest": _row_or_none(answer.nearest),
        "candidates": [candidate_row(one) for one in answer.candidates],
        "reasons": [sentence for one in choices(answer) for sentence in one],
        "not_measured": dict(answer.not_measured),
        "assumptions": list(ASSUMPTIONS) if any(not one.measured for one in answer.candidates) else [],
        "notes": [*answer.notes, *_own_notes(answer.candidates)],
    }
    if elastic is not None:
        whole["elasticity"] = [scaling_row(one) for one in elastic]
    return whole


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
    what = what if one.priced else "fastest, of those without a price,"
    out = [f"{what} {limit}: {_facts(one)}"]
    if budget.hours is not None and one.hours.high > budget.hours:
        out.append(f"its interval reaches to {hours_text(one.hours.high)}, beyond the budget")
    if budget.cost is not None and one.cost.high > budget.cost:
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
    if budget.cost is not None and not one.priced:
        out.append("its price is not known")
    elif budget.cost is not None and one.cost.value > budget.cost:
        over = one.cost.value - budget.cost
        part = f" ({percent_text(over / budget.cost)})" if budget.cost else ""
        out.append(f"{cost_text(one.cost.value, one.currency)} is {cost_text(over, one.currency)}{part} too dear")
    what = "" if budget.hours is not None and budget.cost is not None else f"{one.name} comes nearest, "
    return what + " and ".join(out)


def _facts(one: Candidate) -> str:
    cost = cost_text(one.cost.value, one.currency) if one.priced else "price unknown"
    out = f"{one.name}, {hours_text(one.hours.value)}, {cost} ({'measured' if one.measured else 'predicted'})"
    stall = one.worst_stall
    if not stall or one.share(stall) < _SMALL:
        return f"{out}; " + ("it computes all the time" if one.told_apart else "what it loses was not measured")
    return f"{out}; it loses {percent_text(one.share(stall))} of its step to {_stall_words(stall)}"


def _stall_words(kind: str) -> str:
    return {
        "interconnect": "the links between its devices",
        "network": "the network",
        "prep": "preparing batches",
        "fetch": "reading from storage",
    }[kind]


def _reasons(answer: Recommendation, best: Candidate) -> list[str]:
    """Why this one: those of the same price, what more money buys, what it cannot be told from."""
    out: list[str] = []
    others = [one for one in answer.candidates if one is not best]
    # The same instances with another batch are no other thing to rent.
    unlike = [one for one in others if one.name != best.name and abs(one.step.value / best.step.value - 1) > _SMALL]
    out += [_pair(best, one) for one in unlike if same_price(one, best)]
    alike = [one.name for one in others if one.cost.overlaps(best.cost)]
    same = [one.name for one in others if one.name in alike and one.hours.overlaps(best.hours)]
    if same and best.measured:
        names = _listed(same)
        out.append(f"the intervals of {names} overlap with its own: measure before renting many")
    quicker = [one for one in others if one.hours.value < best.hours.value * (1 - _SMALL) and one.priced]
    if quicker and best.cost.value > 0:
        next_one = min(quicker, key=cheaper)
        out.append(
            f"the next faster way, {next_one.name}, takes {hours_text(next_one.hours.value)} and costs"
            f" {_more(next_one.cost.value / best.cost.value - 1)}"
        )
    if not best.measured:
        measured = [one for one in answer.candidates if one.measured and answer.budget.met_by(one)]
        what = "cheapest" if best.priced else "fastest"
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
        lost = one.worst_stall
        lines.append(
            [
                "*" if one.pareto else "",
                one.name,
                str(one.devices_count),
                duration_text(one.step.value),
                *(_known(bound, _padded) for bound in (one.hours.value, one.hours.low, one.hours.high)),
                _known(one.cost.value, lambda x: cost_text(x, "")),
                one.limited_by,
                f"{percent_text(one.share(lost))} {lost}" if lost else "-",
                "measured" if one.measured else "emulated" if one.emulated else "predicted",
                *([str(one.batch_samples)] if batches else []),
            ]
        )
    unit = _currency(candidates)
    what = f"cost in {unit}; " if unit else ""
    return [*aligned(lines, {0, 1, 8, 10}, drop_silent=True), f"{what}* nothing is both faster and cheaper"]


def _price_notes(candidates: Sequence[Candidate]) -> list[str]:
    seen = dict.fromkeys((one.priced_on, one.source) for one in candidates if one.priced)
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
    return and_more(list(dict.fromkeys(names)), 3)


def _currency(candidates: Sequence[Candidate]) -> str:
    return next((one.currency for one in candidates if one.priced), "")


def _row_or_none(one: Candidate | None) -> dict[str, Any] | None:
    return None if one is None else candidate_row(one)


def _padded(hours: float) -> str:
    return hours_text(hours, padded=True)


def _known(value: float, text: Any) -> str:
    return "-" if math.isnan(value) else str(text(value))


# What ``stashtrace recommend`` says in rows: candidates for scripts, elasticity, the catalog.


def candidate_row(one: Candidate) -> dict[str, Any]:
    """One candidate, for JSON and CSV."""
    low, high = (finite_or_none(bound) for bound in (one.step.low, one.step.high))
    return {
        "instance": one.instance,
        "count": one.count,
        "devices_count": one.devices_count,
        "batch_samples": one.batch_samples or None,
        "step_ns": round(one.step.value),
        "step_low_ns": None if low is None else round(low),
        "step_high_ns": None if high is None else round(high),
        **_numbers("hours", one.hours),
        **_numbers("cost", one.cost),
        "currency": one.currency,
        "price_per_hour": one.price_per_hour,
        "priced_on": one.priced_on,
        "price_source": one.source,
        "limited_by": one.limited_by,
        **{f"{kind}_ns": round(time) for kind, time in one.parts_ns.items()},
        "measured": one.measured,
        "emulated": one.emulated,
        "pareto": one.pareto,
        "basis": one.basis,
    }


def scaling_row(one: Scaling) -> dict[str, Any]:
    """One row of the elasticity table, for JSON."""
    return {
        "instance": one.instance,
        "count": one.count,
        "devices_count": one.devices_count,
        "batch_samples": one.batch_samples,
        "total_batch_samples": one.total_batch_samples,
        "step_ns": round(one.step.value),
        **_numbers("samples_per_s", one.samples_per_s),
        "scaling_factor": finite_or_none(one.scaling_factor, _DIGITS),
        "efficiency_ratio": finite_or_none(one.efficiency, _DIGITS),
        "measured": one.measured,
    }


def _numbers(name: str, one: Interval) -> dict[str, float | None]:
    """Value and bounds under the names that they have in JSON and CSV."""
    bounds = {name: one.value, f"{name}_low": one.low, f"{name}_high": one.high}
    return {key: finite_or_none(number, _DIGITS) for key, number in bounds.items()}


def elasticity_lines(rows: Sequence[Scaling]) -> list[str]:
    """Throughput and efficiency, as a table."""
    if not rows:
        return ["elasticity: configuration 1 or the batch was not measured (--batch-size N gives the batch)"]
    head = ("instances", "devices", "batch each", "batch", "samples/s", "at least", "at most", "scaling", "each", "")
    cells = [
        (
            several_text(one.instance, one.count),
            str(one.devices_count),
            str(one.batch_samples),
            str(one.total_batch_samples),
            _rate(one.samples_per_s.value),
            _rate(one.samples_per_s.low),
            _rate(one.samples_per_s.high),
            f"{one.scaling_factor:.2f}",
            f"{one.efficiency:.3f}",
            "measured" if one.measured else "predicted",
        )
        for one in rows
    ]
    what = "elasticity, without loading (scaling: against one device with its best batch; each: the same by device):"
    return [what, *aligned([head, *cells], {0, 9}, drop_silent=True)]


def catalog_lines(catalog: Catalog) -> list[str]:
    """The catalog, with day and source of each price."""
    if not catalog.instances:
        return ["the catalog is empty"]
    head = ("instance", "device", "devices", "joined by", "network", "vCPUs", "price/h", "", "of", "region")
    sources = list(dict.fromkeys(one.source for one in catalog.instances.values() if one.source))
    cells = [
        (
            one.name,
            one.device or "-",
            str(one.devices_count or "-"),
            one.interconnect or "-",
            _network(one),
            str(one.vcpus_count or "-"),
            "-" if one.price_per_hour is None else f"{one.price_per_hour:.5g}",
            "" if one.price_per_hour is None else one.currency,
            one.priced_on or "-",
            f"{one.region or '-'}" + (f" [{sources.index(one.source) + 1}]" if one.source else ""),
        )
        for one in catalog.instances.values()
    ]
    notes = [f"[{number}] {source}" for number, source in enumerate(sources, 1)]
    if any(one.network_burst for one in catalog.instances.values()):
        notes.append("* for short times")
    return [*aligned([head, *cells], {0, 1, 3, 7, 8, 9}, drop_silent=True), "", *notes]


def hours_text(hours: float, *, padded: bool = False) -> str:
    """Time that a job takes, as a person says it; ``padded``: always three digits, as in a column.

    Examples
    --------
    >>> hours_text(0.5), hours_text(6.25), hours_text(130), hours_text(0.5, padded=True)
    ('30 min', '6.25 h', '5.42 days', '30.0 min')
    """
    if hours * 60 < 1:
        return duration_text(hours * 3600e9)
    value, unit = (hours * 60, "min") if hours < 1 else (hours, "h") if hours < 72 else (hours / 24, "days")
    if value >= 1000:
        return f"{value:.0f} {unit}"
    digits = f"{value:#.3g}".removesuffix(".") if padded else f"{value:.3g}"
    return f"{digits} {unit}"


def cost_text(cost: float, currency: str) -> str:
    """Money with the digits that matter.

    Examples
    --------
    >>> cost_text(50, "USD"), cost_text(1234.56, "USD"), cost_text(0.034, "EUR")
    ('50.00 USD', '1235 USD', '0.034 EUR')
    """
    digits = f"{cost:.0f}" if cost >= 1000 else f"{cost:.2f}" if cost >= 1 or cost == 0 else f"{cost:.2g}"
    return f"{digits} {currency}".rstrip()


def _network(one: Instance) -> str:
    if not one.network_bits_per_s:
        return "-"
    return f"{one.network_bits_per_s / 1e9:g} Gb/s{'*' if one.network_burst else ''}"


def _rate(value: float) -> str:
    return "-" if not math.isfinite(value) else f"{value:.0f}" if value >= 100 else f"{value:.3g}"
