"""Text of ``stashtrace recommend``: the table, the choices with a reason each, the doubts."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stashtrace.lab.number_intervals import Interval, finite_or_none
from stashtrace.lab.recommend.candidates import Budget, Candidate, cheaper, faster, same_price, several_text
from stashtrace.lab.recommend.elasticity import Scaling
from stashtrace.lab.recommend.instance_catalog import Catalog, Instance
from stashtrace.lab.recommend.recommend import Recommendation
from stashtrace.lab.recommend.scaling import ASSUMPTIONS
from stashtrace.text import align, list_some, wrap
from stashtrace.units import duration_text, percent_text

#: Of numbers in JSON and CSV.
_DIGITS = 7
_STALL_WORDS = {
    "interconnect": "the links between its devices",
    "network": "the network",
    "prep": "preparing batches",
    "fetch": "reading from storage",
}
#: Differences below this are not worth a sentence.
_SMALL = 0.02


def recommendation_lines(answer: Recommendation, work: str) -> list[str]:
    """Lines of text about a recommendation.

    ``work``: what is to be done, in words.
    """
    lines = [f"work: {work}", "", *_table(answer.candidates), ""]
    for sentence, *reasons in choices(answer):
        lines += wrap(sentence, "  ▶ ")
        lines += [line for reason in reasons for line in wrap(reason, "      ")]
    if any(not one.measured for one in answer.candidates):
        lines += ["", "predicted rows assume:"]
        lines += [line for one in ASSUMPTIONS for line in wrap(one)]
    if answer.not_measured:
        lines += ["", "not measured, so nothing is said of:"]
        lines += [
            line
            for why, names in grouped(answer.not_measured.items()).items()
            for line in wrap(f"{_list_text(names)}: {why}")
        ]
    doubts = [*answer.notes, *_price_notes(answer.candidates), *_own_notes(answer.candidates)]
    if doubts:
        lines += ["", "to know:"]
        lines += [line for one in doubts for line in wrap(one)]
    return lines


def choices(answer: Recommendation) -> list[list[str]]:
    """Sentences for each question that was asked: the answer, then its reasons."""
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
    """Content of a recommendation for JSON; unknown numbers are null."""
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


def grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Names by what is said of them, from pairs of a name and a sentence."""
    by_sentence: dict[str, list[str]] = {}
    for name, sentence in pairs:
        by_sentence.setdefault(sentence, []).append(name)
    return by_sentence


def _chosen(answer: Recommendation, candidate: Candidate | None, what: str, limit: str, budget: Budget) -> list[str]:
    if candidate is None:
        key = faster if budget.hours is not None else cheaper
        nearest = min(answer.candidates, key=key)
        return [f"nothing is done {limit}: {_missed_text(nearest, budget)}"]
    what = what if candidate.priced else "fastest, of those without a price,"
    out = [f"{what} {limit}: {_facts(candidate)}"]
    if budget.hours is not None and candidate.hours.high > budget.hours:
        out.append(f"its interval reaches to {hours_text(candidate.hours.high)}, beyond the budget")
    if budget.cost is not None and candidate.cost.high > budget.cost:
        out.append(f"its interval reaches to {cost_text(candidate.cost.high, candidate.currency)}, beyond the budget")
    return [*out, *_reasons(answer, candidate)]


def _both_missed(answer: Recommendation) -> list[str]:
    candidate = answer.nearest
    if candidate is None or (answer.cheapest_within_time is None and answer.fastest_within_cost is None):
        return []
    return [f"nothing keeps both budgets: nearest is {candidate.name}, {_missed_text(candidate, answer.budget)}"]


def _missed_text(candidate: Candidate, budget: Budget) -> str:
    hours, cost, out = candidate.hours.value, candidate.cost.value, []
    if budget.hours is not None and hours > budget.hours:
        over = hours - budget.hours
        out.append(f"{hours_text(hours)} is {hours_text(over)} ({percent_text(over / budget.hours)}) too long")
    if budget.cost is not None and not candidate.priced:
        out.append("its price is not known")
    elif budget.cost is not None and cost > budget.cost:
        over, unit = cost - budget.cost, candidate.currency
        part = f" ({percent_text(over / budget.cost)})" if budget.cost else ""
        out.append(f"{cost_text(cost, unit)} is {cost_text(over, unit)}{part} too dear")
    what = "" if budget.hours is not None and budget.cost is not None else f"{candidate.name} comes nearest, "
    return what + " and ".join(out)


def _facts(candidate: Candidate) -> str:
    cost = cost_text(candidate.cost.value, candidate.currency) if candidate.priced else "price unknown"
    how = "measured" if candidate.measured else "predicted"
    out = f"{candidate.name}, {hours_text(candidate.hours.value)}, {cost} ({how})"
    stall = candidate.worst_stall
    if not stall or candidate.share(stall) < _SMALL:
        return f"{out}; " + ("it computes all the time" if candidate.told_apart else "what it loses was not measured")
    return f"{out}; it loses {percent_text(candidate.share(stall))} of its step to {_STALL_WORDS[stall]}"


def _reasons(answer: Recommendation, best: Candidate) -> list[str]:
    """Why this one: others of the same price, what more money buys, which intervals overlap."""
    out: list[str] = []
    others = [candidate for candidate in answer.candidates if candidate is not best]
    # The same instances with another batch are no other thing to rent.
    unlike = [
        candidate
        for candidate in others
        if candidate.name != best.name and abs(candidate.step.value / best.step.value - 1) > _SMALL
    ]
    out += [_pair(best, candidate) for candidate in unlike if same_price(candidate, best)]
    alike = [candidate.name for candidate in others if candidate.cost.overlaps(best.cost)]
    same = [candidate.name for candidate in others if candidate.name in alike and candidate.hours.overlaps(best.hours)]
    if same and best.measured:
        names = _list_text(same)
        out.append(f"the intervals of {names} overlap with its own: measure before renting many")
    quicker = [
        candidate
        for candidate in others
        if candidate.hours.value < best.hours.value * (1 - _SMALL) and candidate.priced
    ]
    if quicker and best.cost.value > 0:
        next_one = min(quicker, key=cheaper)
        out.append(
            f"the next faster way, {next_one.name}, takes {hours_text(next_one.hours.value)} and costs"
            f" {_more(next_one.cost.value / best.cost.value - 1)}"
        )
    if not best.measured:
        measured = [
            candidate for candidate in answer.candidates if candidate.measured and answer.budget.met_by(candidate)
        ]
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
    """Compare sets of as many devices at the same price, one of which was run: what the network costs."""
    return [
        _pair(first, other)
        for at, first in enumerate(candidates)
        for other in candidates[at + 1 :]
        if first.devices_count == other.devices_count > 1
        and first.batch_samples == other.batch_samples
        and (first.measured or other.measured)
        and same_price(first, other)
        and abs(first.step.value / other.step.value - 1) > _SMALL
    ]


def _pair(best: Candidate, other: Candidate) -> str:
    """Compare what an hour of two candidates of one price buys."""
    same_steps = best.devices_count == other.devices_count and best.batch_samples == other.batch_samples
    done, slow = (best, other) if best.hours.value <= other.hours.value else (other, best)
    if not same_steps:
        ratio = slow.hours.value / done.hours.value
        return f"an hour of {done.name} costs the same as one of {slow.name} and does {_times(ratio)} as much"
    ratio = slow.step.value / done.step.value
    lost = slow.worst_stall
    word = f": {slow.name} loses {percent_text(slow.share(lost))} to {_STALL_WORDS[lost]}" if lost else ""
    return f"{done.name} costs the same as {slow.name} but its steps are {_times(ratio)} shorter{word}"


def _times(ratio: float) -> str:
    """Factor above one; a factor close to one gets more digits."""
    return f"{ratio:.2g}x" if ratio >= 1.095 else f"{ratio:.3g}x"


def _table(candidates: Sequence[Candidate]) -> list[str]:
    batches = len({candidate.batch_samples for candidate in candidates}) > 1
    head = ["", "instances", "devices", "step", "time", "at least", "at most", "cost", "limited by", "lost", ""]
    lines = [head + (["batch"] if batches else [])]
    for candidate in candidates:
        lost = candidate.worst_stall
        lines.append(
            [
                "*" if candidate.pareto else "",
                candidate.name,
                str(candidate.devices_count),
                duration_text(candidate.step.value),
                *(
                    _known_text(bound, lambda hours: hours_text(hours, padded=True))
                    for bound in (candidate.hours.value, candidate.hours.low, candidate.hours.high)
                ),
                _known_text(candidate.cost.value, lambda x: cost_text(x, "")),
                candidate.limited_by,
                f"{percent_text(candidate.share(lost))} {lost}" if lost else "-",
                "measured" if candidate.measured else "emulated" if candidate.emulated else "predicted",
                *([str(candidate.batch_samples)] if batches else []),
            ]
        )
    unit = _currency(candidates)
    what = f"cost in {unit}; " if unit else ""
    return [*align(lines, {0, 1, 8, 10}, indent="", drop_silent=True), f"{what}* nothing is both faster and cheaper"]


def _price_notes(candidates: Sequence[Candidate]) -> list[str]:
    seen = dict.fromkeys((one.priced_on, one.source) for one in candidates if one.priced)
    told = [" of ".join(filter(None, ["prices", day])) + (f": {source}" if source else "") for day, source in seen]
    return [f"{one}; check them (--price NAME=VALUE)" for one in told]


def _own_notes(candidates: Sequence[Candidate]) -> list[str]:
    by_note = grouped((candidate.name, note) for candidate in candidates for note in candidate.notes)
    every = len(candidates)
    return [note if len(names) == every else f"{_list_text(names)}: {note}" for note, names in by_note.items()]


def _list_text(names: Sequence[str]) -> str:
    return list_some(list(dict.fromkeys(names)), 3)


def _currency(candidates: Sequence[Candidate]) -> str:
    return next((candidate.currency for candidate in candidates if candidate.priced), "")


def _row_or_none(candidate: Candidate | None) -> dict[str, Any] | None:
    return None if candidate is None else candidate_row(candidate)


def _known_text(value: float, text: Any) -> str:
    return "-" if math.isnan(value) else str(text(value))


# What ``stashtrace recommend`` says in rows: candidates for scripts, elasticity, the catalog.


def candidate_row(candidate: Candidate) -> dict[str, Any]:
    """One candidate, for JSON and CSV."""
    low, high = (finite_or_none(bound) for bound in (candidate.step.low, candidate.step.high))
    return {
        "instance": candidate.instance,
        "count": candidate.count,
        "devices_count": candidate.devices_count,
        "batch_samples": candidate.batch_samples or None,
        "step_ns": round(candidate.step.value),
        "step_low_ns": None if low is None else round(low),
        "step_high_ns": None if high is None else round(high),
        **_numbers("hours", candidate.hours),
        **_numbers("cost", candidate.cost),
        "currency": candidate.currency,
        "price_per_hour": candidate.price_per_hour,
        "priced_on": candidate.priced_on,
        "price_source": candidate.source,
        "limited_by": candidate.limited_by,
        **{f"{kind}_ns": round(time) for kind, time in candidate.parts_ns.items()},
        "measured": candidate.measured,
        "emulated": candidate.emulated,
        "pareto": candidate.pareto,
        "basis": candidate.basis,
    }


def scaling_row(row: Scaling) -> dict[str, Any]:
    """One row of the elasticity table, for JSON."""
    return {
        "instance": row.instance,
        "count": row.count,
        "devices_count": row.devices_count,
        "batch_samples": row.batch_samples,
        "total_batch_samples": row.total_batch_samples,
        "step_ns": round(row.step.value),
        **_numbers("samples_per_s", row.samples_per_s),
        "scaling_factor": finite_or_none(row.scaling_factor, _DIGITS),
        "efficiency_ratio": finite_or_none(row.efficiency, _DIGITS),
        "measured": row.measured,
    }


def _numbers(name: str, interval: Interval) -> dict[str, float | None]:
    """Value and bounds by their names in JSON and CSV."""
    bounds = {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    return {key: finite_or_none(number, _DIGITS) for key, number in bounds.items()}


def elasticity_lines(rows: Sequence[Scaling]) -> list[str]:
    """Table of throughput and efficiency."""
    if not rows:
        return ["elasticity: configuration 1 or the batch was not measured (--batch-size N gives the batch)"]
    head = ("instances", "devices", "batch each", "batch", "samples/s", "at least", "at most", "scaling", "each", "")
    cells = [
        (
            several_text(row.instance, row.count),
            str(row.devices_count),
            str(row.batch_samples),
            str(row.total_batch_samples),
            _rate(row.samples_per_s.value),
            _rate(row.samples_per_s.low),
            _rate(row.samples_per_s.high),
            f"{row.scaling_factor:.2f}",
            f"{row.efficiency:.3f}",
            "measured" if row.measured else "predicted",
        )
        for row in rows
    ]
    what = "elasticity, without loading (scaling: against one device with its best batch; each: the same by device):"
    return [what, *align([head, *cells], {0, 9}, indent="", drop_silent=True)]


def catalog_lines(catalog: Catalog) -> list[str]:
    """Table of the catalog, with day and source of each price."""
    if not catalog.instances:
        return ["the catalog is empty"]
    head = ("instance", "device", "devices", "joined by", "network", "vCPUs", "price/h", "", "of", "region")
    sources = list(dict.fromkeys(instance.source for instance in catalog.instances.values() if instance.source))
    cells = [
        (
            instance.name,
            instance.device or "-",
            str(instance.devices_count or "-"),
            instance.interconnect or "-",
            _network(instance),
            str(instance.vcpus_count or "-"),
            "-" if instance.price_per_hour is None else f"{instance.price_per_hour:.5g}",
            "" if instance.price_per_hour is None else instance.currency,
            instance.priced_on or "-",
            f"{instance.region or '-'}" + (f" [{sources.index(instance.source) + 1}]" if instance.source else ""),
        )
        for instance in catalog.instances.values()
    ]
    notes = [f"[{number}] {source}" for number, source in enumerate(sources, 1)]
    if any(instance.network_burst for instance in catalog.instances.values()):
        notes.append("* for short times")
    return [*align([head, *cells], {0, 1, 3, 7, 8, 9}, indent="", drop_silent=True), "", *notes]


def hours_text(hours: float, *, padded: bool = False) -> str:
    """Hours in a suitable unit; ``padded``: always three digits, as in a column.

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
    """Cost with as many digits as matter.

    Examples
    --------
    >>> cost_text(50, "USD"), cost_text(1234.56, "USD"), cost_text(0.034, "EUR")
    ('50.00 USD', '1235 USD', '0.034 EUR')
    """
    digits = f"{cost:.0f}" if cost >= 1000 else f"{cost:.2f}" if cost >= 1 or cost == 0 else f"{cost:.2g}"
    return f"{digits} {currency}".rstrip()


def _network(instance: Instance) -> str:
    if not instance.network_bits_per_s:
        return "-"
    return f"{instance.network_bits_per_s / 1e9:g} Gb/s{'*' if instance.network_burst else ''}"


def _rate(value: float) -> str:
    return "-" if not math.isfinite(value) else f"{value:.0f}" if value >= 100 else f"{value:.3g}"
