"""Text of ``stashtrace characterize``: five configurations, four stalls, the bottleneck and what it costs."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

from stashtrace.lab.characterize.answer import MEASURED, Characterization
from stashtrace.lab.characterize.differential import CONFIGURATIONS, SIDES, Stall
from stashtrace.lab.number_intervals import Estimate, Interval
from stashtrace.text import count_noun, wrap
from stashtrace.units import duration_text, percent_text

_WIDTH = 80
#: Data, cache, devices.
CONFIGURATION_WORDS = {
    1: ("synthetic", "-", "1"),
    2: ("synthetic", "-", "all"),
    3: ("real", "cold", "all"),
    4: ("real", "warm", "all"),
    5: ("synthetic", "-", "all, over a network"),
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


def characterization_lines(answer: Characterization, *, as_published: bool = False) -> list[str]:
    """Lines of text about a characterization, for 80 columns."""
    quick = "   (quick: fewer and shorter runs)" if answer.facts.get("quick") else ""
    lines = ["", f"stashtrace  {title(answer)}{quick}", "", *_configuration_lines(answer)]
    lines += ["", *_stall_lines(answer, as_published), "", *wrap(bottleneck_text(answer), "  ▶ ", width=_WIDTH)]
    if emulated := emulation_text(answer):
        lines += ["", *wrap(emulated, "  ! ", width=_WIDTH)]
    for text in [*answer.disagreements(), *answer.notes]:
        lines += wrap(text, "  ! ", width=_WIDTH)
    return lines


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


def _configuration_lines(answer: Characterization) -> list[str]:
    times = answer.step_times()
    devices = answer.facts["devices_count"]
    rows = ["  step  data       cache devices              step time"]
    for configuration in CONFIGURATIONS:
        data, cache, where = CONFIGURATION_WORDS[configuration]
        where = where.replace("all", str(devices))
        if configuration == 5 and (answer.facts.get("network") or {}).get("emulated"):
            where = f"{devices}, emulated network"
        status, why = answer.status(configuration)
        head = f"  {configuration}     {data:<9}  {cache:<5} {where:<20} "
        if configuration in times:
            rows.append(head + time_text(times[configuration]))
        else:
            rows += [head + status, *wrap(why, " " * 8, width=_WIDTH)]
    states = [line for text in state_texts(answer) for line in wrap(text, width=_WIDTH, rest=2)]
    return [*rows, "", *states] if states else rows


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
        return f"{value:<9} ({runs}: no interval)"
    low, high = duration_text(round(max(time.low, 0))), duration_text(round(time.high))
    if low.split()[1:] == high.split()[1:]:
        low = low.split()[0]  # the unit once
    return f"{value:<8} ({low} to {high}, {runs})"


def _stall_lines(answer: Characterization, as_published: bool) -> list[str]:
    what = "as published by Stash" if as_published else "share of the step"
    rows = [f"  stall         {what:<25}costs       the attribution says"]
    stalls = answer.stalls()
    for name in CURES:
        if name not in stalls:
            rows.append(f"  {name:<13} not measured")
            continue
        stall = stalls[name]
        text = published_text(stall) if as_published else share_text(stall.clean)
        beside = answer.attributed_difference_ns(name)
        says = duration_text(beside.value) if beside is not None else "-"
        rows.append(f"  {name:<13} {text:<24} {duration_text(stall.lost_ns.value):<11} {says}")
    if "network" in stalls:
        rows.append(f"{'':<16}over the network a step takes {stalls['network'].slowdown.value:.2f} times as long")
    return rows


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


def characterized_lines(run: str, stall: Estimate | None) -> list[str]:
    """Lines of text about the run that is modelled, and the interconnect stall beside it."""
    known = "its interconnect stall was not measured"
    if stall is not None:
        interval = f" ({duration_text(stall.low)} to {duration_text(stall.high)})" if stall.known else ""
        known = f"the steps of configurations 1 and 2 differ by {duration_text(stall.value)}{interval}"
    return [*wrap(f"run {run} of the characterization, all ranks on synthetic data; {known}"), ""]


def characterized_json(run: str, stall: Estimate | None) -> dict[str, Any]:
    """The same as content for JSON."""
    difference = None
    if stall is not None:
        difference = {"value_ns": stall.value, "low_ns": stall.low, "high_ns": stall.high}
    return {"run": run, "interconnect_lost": difference}
