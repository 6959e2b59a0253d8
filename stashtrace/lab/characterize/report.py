"""The words of ``stashtrace characterize``: five steps, four stalls, what the bottleneck is and what it would save."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import Any, Protocol

from stashtrace.lab.characterize.differential import STEPS, Estimate, Stall
from stashtrace.summary.layout import wrapped
from stashtrace.units import duration_text, percent_text

_WIDTH = 80
#: Data, cache, devices.
STEP_WORDS = {
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


class Characterized(Protocol):
    """What is shown; ``lab.characterize.answer.Characterization`` is one."""

    facts: dict[str, Any]
    notes: list[str]

    def status(self, step: int) -> tuple[str, str]: ...
    def step_times(self) -> dict[int, Estimate]: ...
    def cache(self, step: int) -> str: ...
    def stalls(self) -> dict[str, Stall]: ...
    def attributed_difference_ns(self, stall: str) -> tuple[float, float, float] | None: ...
    def disagreements(self) -> list[str]: ...


def characterization_lines(found: Characterized, *, as_published: bool = False) -> list[str]:
    """Everything, for a terminal of 80 columns."""
    facts = found.facts
    network = facts.get("network")
    devices = facts["devices_count"]
    quick = "   (quick: fewer and shorter runs)" if facts.get("quick") else ""
    what = "GPU" if facts.get("device") == "gpu" else "CPU rank"
    lines = ["", f"stashtrace  five steps of a job on {devices} {what}{'s' * (devices > 1)}{quick}", ""]
    lines += _steps(found, network)
    lines += ["", *_stalls(found, as_published), ""]
    lines += bottleneck_lines(found)
    if emulated := emulation_text(found):
        lines += ["", *_wrapped(emulated, "  ! ")]
    for text in [*found.disagreements(), *found.notes]:
        lines += _wrapped(text, "  ! ")
    return lines


def emulation_text(found: Characterized) -> str:
    """What must stand beside every figure of a network that was emulated; empty if none was."""
    network = found.facts.get("network")
    if not network or not network.get("emulated") or found.status(5)[0] != "measured":
        return ""
    rate = network["rate_bits_per_s"]
    speed = f"a link of {rate / 1e9:g} Gbit/s" if rate else "a link without a limit"
    return f"step 5 is emulated: two network namespaces on this host, joined by {speed}; both share its processors"


def _steps(found: Characterized, network: Mapping[str, Any] | None) -> list[str]:
    times = found.step_times()
    devices = found.facts["devices_count"]
    rows = ["  step  data       cache devices              step time"]
    for step in STEPS:
        data, cache, where = STEP_WORDS[step]
        where = where.replace("all", str(devices))
        if step == 5 and network and network.get("emulated"):
            where = f"{devices}, emulated network"
        status, why = found.status(step)
        head = f"  {step}     {data:<9}  {cache:<5} {where:<20} "
        if step in times:
            rows.append(head + time_text(times[step]))
        else:
            rows.append(head + status)
            rows += _wrapped(why, " " * 8)
    states = [*(said for step in STEPS if (said := found.cache(step))), *filter(None, (samples_text(found),))]
    return [*rows, "", *(line for said in states for line in _wrapped(said, "  "))] if states else rows


def samples_text(found: Characterized) -> str:
    """How much a step and an epoch train on; empty if nobody knows."""
    batch, epoch = (int(found.facts.get(name) or 0) for name in ("batch_samples", "epoch_samples"))
    if not batch:
        return ""
    return f"samples: {batch:,} a rank and step" + (f", {epoch:,} an epoch of all ranks" if epoch else "")


def time_text(time: Estimate) -> str:
    """Step time, its interval and how many runs say so."""
    runs = f"{time.runs_count} run{'s' * (time.runs_count > 1)}"
    if math.isnan(time.low):
        return f"{duration_text(round(time.value)):<9} ({runs}: no interval)"
    low, high = duration_text(round(max(time.low, 0))), duration_text(round(time.high))
    if low.split()[1:] == high.split()[1:]:
        low = low.split()[0]  # the unit once
    between = f"{low} to {high}"
    return f"{duration_text(round(time.value)):<8} ({between}, {runs})"


def _stalls(found: Characterized, as_published: bool) -> list[str]:
    rows = ["  stall         share of the step        costs       the attribution says"]
    if as_published:
        rows = ["  stall         as published by Stash    costs       the attribution says"]
    stalls = found.stalls()
    for name in CURES:
        if name not in stalls:
            rows.append(f"  {name:<13} not measured")
            continue
        stall = stalls[name]
        share = stall.as_published if as_published else stall.clean
        text = share_text(share) if share is not None else "needs step 2"
        beside = found.attributed_difference_ns(name)
        says = signed_duration(beside[0]) if beside is not None else "-"
        rows.append(f"  {name:<13} {text:<24} {signed_duration(stall.lost_ns.value):<11} {says}")
    if "network" in stalls:
        rows.append(f"{'':<16}over the network a step takes {stalls['network'].slowdown.value:.2f} times as long")
    return rows


def share_text(share: Estimate) -> str:
    """Share and interval, signs and all."""
    value = _percent(share.value)
    if math.isnan(share.low):
        return value
    return f"{value} ({_percent(share.low)} to {_percent(share.high)})"


def _percent(ratio: float) -> str:
    return f"-{percent_text(-ratio)}" if ratio < 0 else percent_text(ratio)


def signed_duration(ns: float) -> str:
    """A duration that may be negative."""
    return ("-" if ns < 0 else "") + duration_text(round(abs(ns)))


def bottleneck(found: Characterized) -> tuple[str, Stall] | None:
    """The stall that costs most and is surely there; None if none is."""
    sure = {name: stall for name, stall in found.stalls().items() if stall.lost_ns.low > 0 < stall.clean.low}
    if not sure:
        return None
    name = max(sure, key=lambda key: sure[key].lost_ns.value)
    return name, sure[name]


def bottleneck_lines(found: Characterized) -> list[str]:
    """What holds the job up most, and what a step would take without it."""
    most = bottleneck(found)
    if most is None:
        known = found.stalls()
        if not known:
            return ["  no stall could be measured: it takes two steps for one"]
        if all(math.isnan(stall.lost_ns.low) for stall in known.values()):
            return _wrapped("no stall is certain: one run of a step gives no interval, see --repeat", "  ▶ ")
        return _wrapped("no stall is certain: every interval holds zero", "  ▶ ")
    name, stall = most
    slower = {"interconnect": 2, "network": 5, "prep": 4, "fetch": 3}[name]
    whole = found.step_times()[slower].value
    rest = whole - stall.lost_ns.value
    return _wrapped(
        f"the bottleneck is {name}: {CURES[name]} a step would take {duration_text(round(rest))} in place of "
        f"{duration_text(round(whole))}, {whole / rest:.2f} times as fast",
        "  ▶ ",
    )


def _wrapped(text: str, head: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head))


def characterized_lines(run: str, stall: Estimate | None) -> list[str]:
    """Which run of a characterisation is modelled, and what its differences say."""
    known = "its interconnect stall was not measured"
    if stall is not None:
        interval = f" ({duration_text(stall.low)} to {duration_text(stall.high)})" if math.isfinite(stall.low) else ""
        known = f"steps 1 and 2 differ by {duration_text(stall.value)}{interval}"
    return [*wrapped(f"run {run} of the characterisation, all ranks on synthetic data; {known}"), ""]


def characterized_json(run: str, stall: Estimate | None) -> dict[str, Any]:
    """The same for scripts."""
    difference = None
    if stall is not None:
        difference = {"value_ns": stall.value, "low_ns": stall.low, "high_ns": stall.high}
    return {"run": run, "interconnect_lost": difference}
