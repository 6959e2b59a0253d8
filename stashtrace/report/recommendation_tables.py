"""What ``stashtrace recommend`` says in rows: candidates for scripts, elasticity, the catalog."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from stashtrace.models.candidates import Candidate
from stashtrace.models.catalog import Catalog, Instance
from stashtrace.models.elasticity import Scaling
from stashtrace.models.interval import Interval
from stashtrace.units import duration_text


def candidate_row(one: Candidate) -> dict[str, Any]:
    """One candidate, for JSON and CSV."""
    cost = one.cost or Interval(math.nan)
    return {
        "instance": one.instance, "count": one.count, "devices_count": one.devices_count,
        "batch_samples": one.batch_samples or None,
        "step_ns": round(one.step.value), "step_low_ns": _whole(one.step.low), "step_high_ns": _whole(one.step.high),
        "hours": _number(one.hours.value), "hours_low": _number(one.hours.low), "hours_high": _number(one.hours.high),
        "cost": _number(cost.value), "cost_low": _number(cost.low), "cost_high": _number(cost.high),
        "currency": one.currency, "price_per_hour": one.price_per_hour, "priced_on": one.priced_on,
        "price_source": one.source, "limited_by": one.limited_by,
        **{f"{kind}_ns": round(time) for kind, time in one.parts_ns.items()},
        "measured": one.measured, "emulated": one.emulated, "pareto": one.pareto, "basis": one.basis,
    }  # fmt: skip


def scaling_row(one: Scaling) -> dict[str, Any]:
    """One row of the elasticity table, for JSON."""
    return {
        "instance": one.instance, "count": one.count, "devices_count": one.devices_count,
        "batch_samples": one.batch_samples, "total_batch_samples": one.total_batch_samples,
        "step_ns": round(one.step.value), "samples_per_s": _number(one.samples_per_s.value),
        "samples_per_s_low": _number(one.samples_per_s.low), "samples_per_s_high": _number(one.samples_per_s.high),
        "scaling_factor": _number(one.scaling_factor), "efficiency_ratio": _number(one.efficiency),
        "measured": one.measured,
    }  # fmt: skip


def elasticity_lines(rows: Sequence[Scaling]) -> list[str]:
    """Throughput and efficiency, as a table."""
    if not rows:
        return ["elasticity: step 1 or the batch was not measured (--batch-size N gives the batch)"]
    head = ("instances", "devices", "batch each", "batch", "samples/s", "at least", "at most", "scaling", "each", "")
    cells = [
        (
            _name(one.instance, one.count), str(one.devices_count),
            str(one.batch_samples), str(one.total_batch_samples), _rate(one.samples_per_s.value),
            _rate(one.samples_per_s.low), _rate(one.samples_per_s.high),
            f"{one.scaling_factor:.2f}", f"{one.efficiency:.3f}", "measured" if one.measured else "predicted",
        )
        for one in rows
    ]  # fmt: skip
    what = "elasticity, without loading (scaling: against one device with its best batch; each: the same by device):"
    return [what, *aligned_columns([head, *cells], 2, left={0, 9})]


def catalog_lines(catalog: Catalog) -> list[str]:
    """The catalog, with day and source of each price."""
    if not catalog.instances:
        return ["the catalog is empty"]
    head = ("instance", "device", "devices", "joined by", "network", "vCPUs", "price/h", "", "of", "region")
    sources = list(dict.fromkeys(one.source for one in catalog.instances.values() if one.source))
    cells = [
        (
            one.name, one.device or "-", str(one.devices_count or "-"), one.interconnect or "-",
            _network(one), str(one.vcpus_count or "-"),
            "-" if one.price_per_hour is None else f"{one.price_per_hour:.5g}",
            "" if one.price_per_hour is None else one.currency, one.priced_on or "-",
            f"{one.region or '-'}" + (f" [{sources.index(one.source) + 1}]" if one.source else ""),
        )
        for one in catalog.instances.values()
    ]  # fmt: skip
    notes = [f"[{number}] {source}" for number, source in enumerate(sources, 1)]
    if any(one.network_burst for one in catalog.instances.values()):
        notes.append("* for short times")
    return [*aligned_columns([head, *cells], 2, left={0, 1, 3, 7, 8, 9}), "", *notes]


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


def aligned_columns(lines: Sequence[Sequence[str]], gap: int, left: Collection[int]) -> list[str]:
    """Columns beside each other, those of ``left`` to the left; a column in which no row says anything is left out."""
    told = [at for at in range(len(lines[0])) if any(line[at] not in ("", "-") for line in lines[1:])]
    widths = {at: max(len(line[at]) for line in lines) for at in told}
    return [
        (" " * gap)
        .join(line[at].ljust(widths[at]) if at in left else line[at].rjust(widths[at]) for at in told)
        .rstrip()
        for line in lines
    ]


def _name(instance: str, count: int) -> str:
    return instance if count == 1 else f"{count}x {instance}"


def _network(one: Instance) -> str:
    if not one.network_bits_per_s:
        return "-"
    return f"{one.network_bits_per_s / 1e9:g} Gb/s{'*' if one.network_burst else ''}"


def _rate(value: float) -> str:
    return "-" if not math.isfinite(value) else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _number(value: float) -> float | None:
    return None if not math.isfinite(value) else float(f"{value:.7g}")


def _whole(value: float) -> int | None:
    return None if not math.isfinite(value) else round(value)
