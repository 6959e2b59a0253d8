"""Text of ``stashtrace recommend``: the table, the choices with a reason each, the doubts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stashtrace.errors import UsageError
from stashtrace.lab.number_intervals import Interval, finite_or_none, numbers_of
from stashtrace.lab.plot_helpers import Name, check_plot_file, place_names, save_figure
from stashtrace.lab.recommend.elasticity import Scaling, scaling_row
from stashtrace.lab.recommend.recommend import UNKNOWN, Budget, Candidate, Recommendation, cheaper, faster, same_price
from stashtrace.lab.recommend.scaling import ASSUMPTIONS
from stashtrace.report.blocks import Block, Listing, Paragraph, Table
from stashtrace.schema.stall_kinds import KIND_COLOURS
from stashtrace.summary.picture_style import FAINT, new_figure, plain_axes
from stashtrace.text.prose import list_some
from stashtrace.text.units import duration_text, percent_text

_STALL_WORDS = {
    "interconnect": "the links between its devices",
    "network": "the network",
    "prep": "preparing batches",
    "fetch": "reading from storage",
}
#: Differences below this are not worth a sentence.
_SMALL = 0.02


def recommendation_blocks(answer: Recommendation, work: str) -> list[Block | None]:
    """Return a recommendation to show. ``work``: what is to be done, in words."""
    is_predicted = any(not one.measured for one in answer.candidates)
    unknown = grouped(answer.not_measured.items())
    return [
        Paragraph(f"work: {work}"),
        _table(answer.candidates),
        Listing([(sentence, reasons) for sentence, *reasons in choices(answer)], style="claim"),
        Listing(ASSUMPTIONS if is_predicted else (), "predicted rows assume"),
        Listing(
            [f"{_list_text(names)}: {why}" for why, names in unknown.items()], "not measured, so nothing is said of"
        ),
        Listing([*answer.notes, *_price_notes(answer.candidates), *_own_notes(answer.candidates)], "to know"),
    ]


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
        return [f"no candidate finishes {limit}: {_missed_text(nearest, budget)}"]
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
    return [
        f"no candidate keeps both budgets: the nearest is {candidate.name}, {_missed_text(candidate, answer.budget)}"
    ]


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
        out.append(f"{cost_text(cost, unit)} is {cost_text(over, unit)}{part} too expensive")
    what = "" if budget.hours is not None and budget.cost is not None else f"{candidate.name} comes nearest, "
    return what + " and ".join(out)


def _facts(candidate: Candidate) -> str:
    cost = cost_text(candidate.cost.value, candidate.currency) if candidate.priced else "price unknown"
    how = "measured" if candidate.measured else "predicted"
    out = f"{candidate.name}, {hours_text(candidate.hours.value)}, {cost} ({how})"
    stall = candidate.worst_stall
    if not stall or candidate.share(stall) < _SMALL:
        return f"{out}; " + ("it computes all the time" if candidate.parts_known else "what it loses was not measured")
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
    equal = [candidate.name for candidate in others if candidate.cost.overlaps(best.cost)]
    same = [candidate.name for candidate in others if candidate.name in equal and candidate.hours.overlaps(best.hours)]
    if same and best.measured:
        names = _list_text(same)
        out.append(f"the intervals of {names} overlap with that: measure before renting many")
    quicker = [
        candidate
        for candidate in others
        if candidate.hours.value < best.hours.value * (1 - _SMALL) and candidate.priced
    ]
    if quicker and best.cost.value > 0:
        next_one = min(quicker, key=cheaper)
        out.append(
            f"the next faster candidate, {next_one.name}, takes {hours_text(next_one.hours.value)} and costs"
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
        return f"an hour of {done.name} costs the same as one of {slow.name} and does {_times(ratio)} the work"
    ratio = slow.step.value / done.step.value
    lost = slow.worst_stall
    word = f": {slow.name} loses {percent_text(slow.share(lost))} to {_STALL_WORDS[lost]}" if lost else ""
    return f"{done.name} costs the same as {slow.name} but its steps are {_times(ratio)} shorter{word}"


def _times(ratio: float) -> str:
    """Factor above one; a factor close to one gets more digits."""
    return f"{ratio:.2g}x" if ratio >= 1.095 else f"{ratio:.3g}x"


def _table(candidates: Sequence[Candidate]) -> Table:
    batches = len({candidate.batch_samples for candidate in candidates}) > 1
    head = ["", "instances", "devices", "step", "time", "at least", "at most", "cost", "limited by", "lost", ""]
    lines = []
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
    note = f"{what}* nothing is both faster and cheaper"
    return Table("", [*head, *["batch"] * batches], lines, {0, 1, 8, 10}, indent="", note=note)


def _price_notes(candidates: Sequence[Candidate]) -> list[str]:
    seen = dict.fromkeys((one.priced_on, one.source) for one in candidates if one.priced)
    origins = [" of ".join(filter(None, ["prices", day])) + (f": {source}" if source else "") for day, source in seen]
    return [f"{one}; check them (--price NAME=VALUE)" for one in origins]


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
        **numbers_of("hours", candidate.hours),
        **numbers_of("cost", candidate.cost),
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


_COLOURS = {**KIND_COLOURS, UNKNOWN: "#777777"}


def plot_recommendation(answer: Recommendation, path: str) -> None:
    """Draw time and cost of all candidates with a price into a file; the suffix chooses the format.

    Raises UsageError if no candidate has a price, so that there is no second axis.
    """
    check_plot_file(path)
    priced = [candidate for candidate in answer.candidates if candidate.priced]
    if not priced:
        raise UsageError("no candidate has a price, so there is nothing to plot", hint="give one: --price NAME=VALUE")
    figure = new_figure(8.0, 5.0)
    axes = figure.subplots()
    front = sorted((candidate for candidate in priced if candidate.pareto), key=faster)
    hours, costs = [candidate.hours.value for candidate in front], [candidate.cost.value for candidate in front]
    axes.plot(hours, costs, color="#999999", lw=1.2, zorder=1, label="Pareto front")
    for candidate in priced:
        _draw(axes, candidate)
    _scales(axes, priced)
    _budgets(axes, answer)
    axes.set_xlabel("time, hours")
    axes.set_ylabel(f"cost, {priced[0].currency}".rstrip(", "))
    axes.set_title("filled: measured    hollow: predicted    colour: what limits the step", fontsize=8, loc="left")
    axes.legend(handles=_legend(axes, priced), frameon=False, fontsize=8)
    plain_axes(axes)
    axes.grid(True, which="minor", color="#EEEEEE", lw=0.6)
    _names(figure, axes, answer, priced)
    save_figure(figure, path)


def _draw(axes: Any, candidate: Candidate) -> None:
    colour = _COLOURS[candidate.limited_by]
    x, y = candidate.hours.value, candidate.cost.value
    for ends in _error_lines([candidate]):
        axes.plot(*ends, color=colour, lw=1.0, alpha=0.45, solid_capstyle="butt", zorder=2)
    fill = colour if candidate.measured else "#FFFFFF"
    axes.plot(x, y, "o", ms=8 if candidate.pareto else 6, mfc=fill, mec=colour, mew=1.6, zorder=3)


def _error_lines(candidates: Sequence[Candidate]) -> list[tuple[Any, Any]]:
    """Ends of each interval. Cost is time times price: one error, drawn along the line through the origin."""
    return [
        ([candidate.hours.low, candidate.hours.high], [candidate.cost.low, candidate.cost.high])
        for candidate in candidates
        if candidate.hours.known and candidate.cost.known
    ]


def _budgets(axes: Any, answer: Recommendation) -> None:
    if answer.budget.hours is not None:
        axes.axvline(answer.budget.hours, color="#000000", lw=0.9, ls="--", label="budget")
    if answer.budget.cost is not None:
        axes.axhline(answer.budget.cost, color="#000000", lw=0.9, ls="--", label="budget")


def _scales(axes: Any, candidates: Sequence[Candidate]) -> None:
    """Make both axes logarithmic where one spans more than a factor of four: one price is then one straight line."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    every = [
        [bound for candidate in candidates for bound in _bounds(candidate.hours)],
        [bound for candidate in candidates for bound in _bounds(candidate.cost)],
    ]
    if min(min(values) for values in every) <= 0 or all(max(values) <= 4 * min(values) for values in every):
        axes.margins(0.12)
        return
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis, values in zip((axes.xaxis, axes.yaxis), every, strict=True):
        wide = max(values) > 30 * min(values)
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if wide else (1, 1.5, 2, 3, 4, 5, 6, 8)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.margins(0.12)


def _names(figure: Any, axes: Any, answer: Recommendation, candidates: Sequence[Candidate]) -> None:
    """Write the names next to the points, those of the front first."""
    front = sorted((candidate for candidate in candidates if candidate.pareto), key=faster)
    lines: list[tuple[Any, Any]] = [
        ([candidate.hours.value for candidate in front], [candidate.cost.value for candidate in front])
    ]
    lines += _error_lines(candidates)
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    if answer.budget.hours is not None:
        lines.append(([answer.budget.hours] * 2, [low, high]))
    if answer.budget.cost is not None:
        lines.append(([left, right], [answer.budget.cost] * 2))
    names = [
        Name(
            candidate.hours.value,
            candidate.cost.value,
            candidate.name,
            8 if candidate.pareto else 7,
            "#000000" if candidate.pareto else FAINT,
        )
        for candidate in sorted(candidates, key=lambda c: (not c.pareto, c.hours.value, c.cost.value))
    ]
    place_names(figure, axes, names, lines)


def _legend(axes: Any, candidates: Sequence[Candidate]) -> list[Any]:
    from matplotlib.lines import Line2D

    kinds = {candidate.limited_by for candidate in candidates}
    own = [Line2D([], [], marker="o", ls="", color=_COLOURS[kind], label=kind) for kind in _COLOURS if kind in kinds]
    lines, seen = axes.get_legend_handles_labels()
    first = {name: line for line, name in zip(lines, seen, strict=True)}
    return [*own, *first.values()]


def _bounds(span: Interval) -> tuple[float, ...]:
    """Value and ends; an end at zero has no place on a logarithmic axis."""
    return (span.value, *(end for end in (span.low, span.high) if span.known and end > 0))
