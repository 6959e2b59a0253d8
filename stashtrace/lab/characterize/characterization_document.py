"""The answer of ``stashtrace characterize`` to show: five configurations, four stalls, the bottleneck and its cost."""

from __future__ import annotations

import shlex
from typing import Any

from stashtrace.lab.characterize.answer import MEASURED, Characterization
from stashtrace.lab.characterize.run_figures import CONFIGURATIONS, SIDES, Stall
from stashtrace.lab.number_intervals import Estimate, Interval
from stashtrace.report.blocks import Bar, Bars, Block, Command, Listing, Paragraph, Part, Picture, Table, page_of
from stashtrace.report.page.html import budget_bar, paragraph, tag, titled
from stashtrace.report.page.svg_pictures import picture_file
from stashtrace.text.prose import count_noun
from stashtrace.text.units import duration_text, percent_text

#: Height of a bar in pixels, as in the report.
_BAR_HEIGHT = 22
#: Data, cache, devices.
CONFIGURATION_WORDS = {
    1: ("synthetic", "-", "1"),
    2: ("synthetic", "-", "all"),
    3: ("real", "cold", "all"),
    4: ("real", "warm", "all"),
    5: ("synthetic", "-", "all, network"),
}
#: What a stall is between, for the sentence of the bottleneck.
CURES = {
    "interconnect": "if ranks did not hold each other up on one host",
    "network": "if the network were as fast as the inside of a host",
    "prep": "with batches ready in time",
    "fetch": "with the data set in memory",
}


def title(answer: Characterization) -> str:
    """Title of text and page."""
    kind = "GPU" if answer.facts.get("device") == "gpu" else "CPU rank"
    return f"five configurations of a job on {count_noun(answer.facts['devices_count'], kind)}"


def characterization_blocks(answer: Characterization, *, published: bool = False) -> list[Block | None]:
    """Return the answer to show: the bottleneck, what to know, the steps, the stalls.

    ``published``: whether stalls as Stash's code computes them are shown next to ours.
    """
    quick = "quick: fewer and shorter runs" if answer.facts.get("quick") else ""
    steps = [*_steps(answer), Listing(state_texts(answer), style="soft"), Bars(stacks(answer))]
    return [
        Paragraph(bottleneck_text(answer), "claim"),
        Listing([text for text in (quick, emulation_text(answer)) if text], style="warn"),
        Part("steps", "Steps", steps),
        Part("stalls", "Stalls", [*_stalls(answer, published), _drawn_shares(answer)]),
        Part("doubts", "To know", [Listing([*answer.disagreements(), *answer.notes], style="warn")]),
    ]


def characterization_page(answer: Characterization) -> str:
    """Return the answer as one HTML file."""
    heading = title(answer)[0].upper() + title(answer)[1:]
    command = Command(shlex.join(answer.facts.get("command", ())))
    machine = answer.facts.get("machine") or {}
    devices = ", ".join(dict.fromkeys(machine.get("devices") or ())) or "no GPU"
    words = [f"{machine.get('cores_count', '?')} cores", str(machine.get("cpu", "")), devices]
    words += [answer.facts.get("created", ""), f"stashtrace {answer.facts.get('stashtrace_version', '')}"]
    made = Paragraph(" · ".join(filter(None, words)))
    return page_of(heading, [command, *characterization_blocks(answer, published=True)], made)


def characterization_picture(answer: Characterization) -> str:
    """Return the bars of the page as an SVG file."""
    rows = [(bar.title, budget_bar(bar.parts, bar.title), ", ".join(bar.words)) for bar in stacks(answer)]
    return picture_file([*rows, *shares(answer)], _BAR_HEIGHT)


def _steps(answer: Characterization) -> list[Block | None]:
    times, devices = answer.step_times(), str(answer.facts["devices_count"])
    rows, missing = [], []
    for configuration in CONFIGURATIONS:
        data, cache, where = CONFIGURATION_WORDS[configuration]
        if configuration == 5 and (answer.facts.get("network") or {}).get("emulated"):
            where = where.replace("network", "emulated network")
        status, why = answer.status(configuration)
        said = time_text(times[configuration]) if configuration in times else status
        rows.append((str(configuration), data, cache, where.replace("all", devices), said))
        missing += [f"configuration {configuration} is {status}: {why}"] if configuration not in times else []
    head = ("step", "data", "cache", "devices", "step time")
    return [Table("Mean step of each configuration", head, rows, wraps=True), Listing(missing, style="soft")]


def _stalls(answer: Characterization, published: bool) -> list[Block | None]:
    stalls, rows = answer.stalls(), []
    for name in CURES:
        if name not in stalls:
            rows.append((name, "not measured", *[""] * (2 + published)))
            continue
        stall, attributed = stalls[name], answer.attributed_difference_ns(name)
        of_stash = (published_text(stall),) * published
        says = duration_text(attributed.value) if attributed else "-"
        rows.append((name, share_text(stall.clean), *of_stash, duration_text(stall.lost_ns.value), says))
    head = ("stall", "share of the step", *("as published by Stash",) * published, "costs", "the attribution says")
    slower = f"{stalls['network'].slowdown.value:.2f} times as long" if "network" in stalls else ""
    return [
        Table("What the configurations differ by", head, rows, wraps=True),
        Paragraph(f"over the network a step takes {slower}", "soft") if slower else None,
    ]


def stacks(answer: Characterization) -> list[Bar]:
    """Return the parts of a step of the job alone, on all devices, with its data, over a network, on one scale."""
    times, stalls = answer.step_times(), answer.stalls()
    base = times[1].value if 1 in times else times[2].value if 2 in times else None
    if base is None:
        return []
    parts: list[tuple[str, float]] = [("compute", base)]
    columns = [("one device", list(parts))] if 1 in times else []
    if "interconnect" in stalls:
        parts = [*parts, ("interconnect", stalls["interconnect"].lost_ns.value)]
    if 2 in times:
        columns.append(("all devices", list(parts)))
    data = list(parts)
    for name, label in (("prep", "with data, warm"), ("fetch", "with data, cold")):
        if name in stalls:
            data = [*data, (name, stalls[name].lost_ns.value)]
            columns.append((label, data))
    if "network" in stalls:
        columns.append(("over a network", [*parts, ("network", stalls["network"].lost_ns.value)]))
    longest = max(sum(max(ns, 0.0) for _, ns in parts) for _, parts in columns)
    return [
        Bar(
            f"{label}: {duration_text(sum(ns for _, ns in parts))}",
            [(name, max(ns, 0.0) / longest, _part_text(ns)) for name, ns in parts],
        )
        for label, parts in columns
    ]


def _part_text(ns: float) -> str:
    """Return a part of a bar in words; one below zero has no width."""
    return duration_text(ns) + (", below zero: not drawn" if ns < 0 else "")


def _drawn_shares(answer: Characterization) -> Picture | None:
    bars = shares(answer)
    if not bars:
        return None
    zero = "the upright line is nothing, the right end" if _scale(answer)[0] < 0 else "a full bar"
    said = paragraph(f"The thin line in each bar is the interval; {zero} is the whole step.", "soft")
    return Picture(titled([(name, svg + paragraph(words, "soft")) for name, svg, words in bars]) + said)


def _scale(answer: Characterization) -> tuple[float, float]:
    """Return the ends of the scale of shares: nothing and the whole step, or as far as their intervals reach."""
    clean = [stall.clean for stall in answer.stalls().values()]
    ends = [end for one in clean for end in ((one.value, one.low, one.high) if one.known else (one.value,))]
    return max(min([0.0, *ends]), -1.0), min(max([1.0, *ends]), max([1.0, *(one.value for one in clean)]))


def shares(answer: Characterization) -> list[tuple[str, str, str]]:
    """Return name, picture and words of the share of each stall; where one reaches below zero, the scale does."""
    low, high = _scale(answer)

    def percent(value: float) -> float:
        return 100 * (min(max(value, low), high) - low) / (high - low)

    def rectangle(class_: str, begin: float, end: float) -> str:
        x, width = f"{percent(begin):.2f}%", f"{percent(end) - percent(begin):.2f}%"
        return tag("rect", "", class_=class_, x=x, width=width, height=str(_BAR_HEIGHT))

    def line(class_: str, begin: float, end: float, top: int, bottom: int) -> str:
        x1, x2 = f"{percent(begin):.2f}%", f"{percent(end):.2f}%"
        return tag("line", "", class_=class_, x1=x1, x2=x2, y1=str(top), y2=str(bottom))

    bars = []
    for name, share in ((name, stall.clean) for name, stall in answer.stalls().items()):
        drawn = rectangle("ground", low, high)
        drawn += rectangle(f"k-{name}", min(share.value, 0.0), max(share.value, 0.0))
        if share.known:
            drawn += line("interval", share.low, share.high, _BAR_HEIGHT // 2, _BAR_HEIGHT // 2)
        if low < 0:
            drawn += line("zero", 0.0, 0.0, 0, _BAR_HEIGHT)
        label, size = f"{name}: {share_text(share)}", str(_BAR_HEIGHT)
        svg = tag("svg", drawn, class_="share", width="100%", height=size, role="img", aria_label=label)
        bars.append((name, svg, share_text(share) + _below_zero(share)))
    return bars


def _below_zero(share: Interval) -> str:
    """Say what it means that a share or its interval reaches below zero."""
    if share.value < 0 and (not share.known or share.high < 0):
        return ": below zero, the steps without it were no shorter"
    return ": the interval holds zero, so it may be nothing" if share.known and share.low < 0 else ""


def emulation_text(answer: Characterization) -> str:
    """Warning that the network was emulated; empty if it was not."""
    network = answer.facts.get("network")
    if not network or not network.get("emulated") or answer.status(5)[0] != MEASURED:
        return ""
    rate = network["rate_bits_per_s"]
    speed = f"a link of {rate / 1e9:g} Gbit/s" if rate else "a link without a limit"
    return (
        f"configuration 5 is emulated: two network namespaces on this host, joined by {speed};"
        " both share its processors"
    )


def state_texts(answer: Characterization) -> list[str]:
    """Sentences about the page cache in each configuration, and the samples of a step and an epoch."""
    texts = [answer.cache(configuration) for configuration in CONFIGURATIONS]
    batch, epoch = (int(answer.facts.get(name) or 0) for name in ("batch_samples", "epoch_samples"))
    if batch:
        texts.append(f"samples: {batch:,} a rank and step" + (f", {epoch:,} an epoch of all ranks" if epoch else ""))
    return [text for text in texts if text]


def time_text(time: Estimate) -> str:
    """Step time, its interval and how many runs say so."""
    runs, value = count_noun(time.runs_count, "run"), duration_text(round(time.value))
    if not time.known:
        return f"{value} ({runs}: no interval)"
    low, high = duration_text(round(max(time.low, 0))), duration_text(round(time.high))
    if low.split()[1:] == high.split()[1:]:
        low = low.split()[0]  # the unit once
    return f"{value} ({low} to {high}, {runs})"


def published_text(stall: Stall) -> str:
    """Share as Stash's code computes it, for which the fetch stall needs configuration 2 as well."""
    return "needs configuration 2" if stall.as_published is None else share_text(stall.as_published)


def share_text(share: Interval) -> str:
    """Share and its interval."""
    value = _percent(share.value)
    return f"{value} ({_percent(share.low)} to {_percent(share.high)})" if share.known else value


def _percent(ratio: float) -> str:
    return f"-{percent_text(-ratio)}" if ratio < 0 else percent_text(ratio)


def bottleneck(answer: Characterization) -> tuple[str, Stall] | None:
    """The most expensive stall whose interval excludes zero; None if there is none."""
    sure = {name: stall for name, stall in answer.stalls().items() if stall.lost_ns.low > 0 < stall.clean.low}
    return max(sure.items(), key=lambda item: item[1].lost_ns.value, default=None)


def bottleneck_text(answer: Characterization) -> str:
    """Sentence about the bottleneck, and what a step would take without it."""
    most = bottleneck(answer)
    if most is None:
        known = answer.stalls()
        if not known:
            return "no stall could be measured: it takes two configurations for one"
        if not any(stall.lost_ns.known for stall in known.values()):
            return "no stall is certain: one run of a configuration gives no interval, see --repeat"
        return "no stall is certain: every interval holds zero"
    name, stall = most
    whole = answer.step_times()[SIDES[name][1]].value
    rest = whole - stall.lost_ns.value
    return (
        f"the bottleneck is {name}: {CURES[name]} a step would take {duration_text(round(rest))} in place of"
        f" {duration_text(round(whole))}, {whole / rest:.2f} times as fast"
    )


def characterized_text(run: str, stall: Estimate | None) -> str:
    """Return a sentence about the run that is modelled, and its interconnect stall."""
    known = "its interconnect stall was not measured"
    if stall is not None:
        interval = f" ({duration_text(stall.low)} to {duration_text(stall.high)})" if stall.known else ""
        known = f"the steps of configurations 1 and 2 differ by {duration_text(stall.value)}{interval}"
    return f"run {run} of the characterization, all ranks on synthetic data; {known}"


def characterized_json(run: str, stall: Estimate | None) -> dict[str, Any]:
    """The same as content for JSON."""
    difference = None
    if stall is not None:
        difference = {"value_ns": stall.value, "low_ns": stall.low, "high_ns": stall.high}
    return {"run": run, "interconnect_lost": difference}
