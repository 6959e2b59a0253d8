"""Throughput against batch and number of devices: what an elastic scheduler asks of a job.

    T(b, k) = b / (t_proc(b / k) + t_comm(k)),   scaling factor = T(b, k) / max over b of T(b, 1)

after Saxena et al., Effective elastic scaling of deep learning workloads, MASCOTS 2020: t_proc is the step of one
device with its part of the batch, t_comm what the others add, and their sum is the step of configuration 2 or 5 of a
characterization. A part of the batch between two that were measured is interpolated; one outside them is not given.
Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from stashtrace.lab.number_intervals import DIGITS, Interval, finite_or_none, numbers_of
from stashtrace.lab.recommend.instance_catalog import Catalog, Instance
from stashtrace.lab.recommend.profile import Profile
from stashtrace.lab.recommend.recommend import Candidate, several_text
from stashtrace.report.blocks import Block, Paragraph, Table


@dataclass(frozen=True, slots=True)
class Scaling:
    """One point of the curve."""

    instance: str
    count: int
    devices_count: int
    #: Of one device, and of all.
    batch_samples: int
    total_batch_samples: int
    #: Without loading, ns.
    step: Interval
    samples_per_s: Interval
    #: Against one device with the batch that suits it best.
    scaling_factor: float
    #: The same for each device; 1 is perfect.
    efficiency: float
    #: Neither count nor batch is predicted.
    measured: bool


def elasticity(candidates: Iterable[Candidate], profiles: Sequence[Profile], catalog: Catalog) -> list[Scaling]:
    """Throughput and efficiency of all candidates whose batch is known, and of equal batches shared out differently.

    ``profiles``: for one device alone; a device type without configuration 1 gives no rows. ``catalog``: says which
    instances have the same device.
    """
    alone = _rate_of_one_device(profiles, catalog)
    known = [
        candidate
        for candidate in candidates
        if candidate.batch_samples
        and not math.isnan(candidate.synthetic.value)
        and _device(candidate.instance, catalog) in alone
    ]
    ran = {
        (p.instance, 1, p.devices_count, p.batch_samples)
        for p in profiles
        if 2 in p.step_ns or (p.devices_count == 1 and 1 in p.step_ns)
    }
    ran |= {
        (p.network_instance, p.network_hosts_count, p.network_devices_count, p.batch_samples)
        for p in profiles
        if 5 in p.step_ns and not p.network_emulated
    }
    rows = []
    for candidate in known:
        best = alone[_device(candidate.instance, catalog)]
        place = (candidate.instance, candidate.count, candidate.devices_count)
        rows.append(
            _row(place, candidate.batch_samples, candidate.synthetic, best, (*place, candidate.batch_samples) in ran)
        )
    places: dict[tuple[str, int, int], dict[int, Interval]] = {}
    for candidate in known:
        places.setdefault((candidate.instance, candidate.count, candidate.devices_count), {})[
            candidate.batch_samples
        ] = candidate.synthetic
    totals = sorted({row.total_batch_samples for row in rows})
    for place, steps in places.items():
        for total in totals:
            own, rest = divmod(total, place[2])
            if rest or own in steps or not min(steps) < own < max(steps):
                continue
            rows.append(_row(place, own, _between(steps, own), alone[_device(place[0], catalog)], False))
    return sorted(rows, key=lambda row: (row.devices_count, row.instance, row.count, row.total_batch_samples))


def _device(instance: str, catalog: Catalog) -> str:
    return (catalog.get(instance) or Instance("")).device or instance


def _rate_of_one_device(profiles: Sequence[Profile], catalog: Catalog) -> dict[str, float]:
    """Device -> samples per second of one device with its best batch."""
    best: dict[str, float] = {}
    for profile in profiles:
        step = profile.step_ns.get(1)
        if step is not None and profile.batch_samples:
            rate = profile.batch_samples / step.value * 1e9
            for name in {profile.instance, profile.network_instance}:
                device = _device(name, catalog)
                best[device] = max(best.get(device, 0.0), rate)
    return best


def _row(place: tuple[str, int, int], batch: int, step: Interval, best: float, measured: bool) -> Scaling:
    instance, count, devices = place
    total = batch * devices
    rate = Interval(*(total / ns * 1e9 if ns else math.inf for ns in (step.value, step.high, step.low)))
    factor = rate.value / best
    return Scaling(instance, count, devices, batch, total, step, rate, factor, factor / devices, measured)


def _between(steps: dict[int, Interval], batch: int) -> Interval:
    """Interpolate the step of a batch between the two nearest known batches."""
    low, high = max(b for b in steps if b < batch), min(b for b in steps if b > batch)
    part = (batch - low) / (high - low)
    return steps[low].times(1 - part) + steps[high].times(part)


def scaling_row(row: Scaling) -> dict[str, Any]:
    """One row of the elasticity table, for JSON."""
    return {
        "instance": row.instance,
        "count": row.count,
        "devices_count": row.devices_count,
        "batch_samples": row.batch_samples,
        "total_batch_samples": row.total_batch_samples,
        "step_ns": round(row.step.value),
        **numbers_of("samples_per_s", row.samples_per_s),
        "scaling_factor": finite_or_none(row.scaling_factor, DIGITS),
        "efficiency_ratio": finite_or_none(row.efficiency, DIGITS),
        "measured": row.measured,
    }


def elasticity_block(rows: Sequence[Scaling]) -> Block:
    """Return throughput and efficiency to show."""
    if not rows:
        return Paragraph("elasticity: configuration 1 or the batch was not measured (--batch-size N gives the batch)")
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
    return Table(what, head, cells, {0, 9}, indent="")


def _rate(value: float) -> str:
    return "-" if not math.isfinite(value) else f"{value:.0f}" if value >= 100 else f"{value:.3g}"
