"""What each cause costs over all runs, in machine hours, money and energy: costs."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.lab.history.energy import OUTSIDE
from stashtrace.lab.history.run_totals import CAUSES, RunTotals
from stashtrace.schema import columns as col
from stashtrace.schema.columns import Column, schema
from stashtrace.schema.stall_kinds import COLUMN_OF
from stashtrace.schema.table import Table

COSTS = schema(
    "costs",
    "What the time of all runs went to, the largest part first",
    col.word("cause", "kind of time of counted steps; outside: starts, warm-up, validation, ends"),
    col.word("column", "column of the summary that holds it; outside"),
    col.number("runs_count", "runs that spent time in it"),
    Column("machine_hours", "f8", "hours", "length of the runs times their hosts, the part of this cause"),
    col.real("share_ratio", "of all machine hours"),
    Column("cost", "f8", "", "price of these hours in the runs whose price is known; -1 if none is", missing=-1),
    Column("energy_kwh", "f8", "kWh", "of the devices in the runs that measured it; -1 if none did", missing=-1),
    col.real("energy_ratio", "the same as a part of all energy; -1 if none was measured", missing=-1),
)


def costs(totals: RunTotals) -> Table:
    """Return what the time of all runs went to, the largest part first; causes that took none are left out."""
    hours = totals.hours[:, None] * totals.shares
    money = hours * totals.price[:, None]
    joules = totals.joules
    priced, measured = bool(np.isfinite(totals.price).any()), bool(np.isfinite(joules).any())
    all_hours, all_joules = max(float(hours.sum()), 1e-12), max(float(np.nansum(joules)), 1e-12)
    rows = []
    for at, cause in enumerate(CAUSES):
        own = float(hours[:, at].sum())
        energy = float(np.nansum(joules[:, at]))
        if own <= 0 and energy <= 0:
            continue
        cost = float(np.nansum(money[:, at])) if priced else -1.0
        used = (energy / 3.6e6, energy / all_joules) if measured else (-1.0, -1.0)
        column = COLUMN_OF.get(cause, OUTSIDE)
        rows.append((cause, column, int((hours[:, at] > 0).sum()), own, own / all_hours, cost, *used))
    rows.sort(key=lambda row: -row[3])
    return Table.from_rows(COSTS, rows)
