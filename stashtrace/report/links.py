"""Links of a run: how fast collectives were, what the links can do, and which way the bytes went."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from stashtrace.analysis.collectives.collective_waits import collective_rows
from stashtrace.analysis.links.collective_bandwidth import bandwidth
from stashtrace.analysis.links.efficiency import link_efficiency
from stashtrace.analysis.links.paths import links
from stashtrace.errors import ForeignCalibrationWarning, MissingDataError
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Rows of each table: those whose transfers took longest together.
LISTED = 12


def link_facts(trace: Trace, calibration: str | None = None) -> dict[str, Any]:
    """Return what is known of the links of a run, compared with a calibration or with the one in the run directory.

    Returns ``transfers``: rows of ``link_efficiency`` with ``best_bus_bytes_per_s`` (of ``bandwidth``), those that took
    longest together first; ``rows_count``: how many there are; ``paths``: rows of ``links``; ``paths_missing``: why
    there are none; ``notes``: warnings about the calibration; ``begin_ns``, ``end_ns`` of the longest transfer.
    ``missing`` says why there is nothing.
    """
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ForeignCalibrationWarning)
            table = link_efficiency(trace, calibration=calibration)
        best = bandwidth(trace)
    except MissingDataError as error:
        return no_links(str(error), error.hint or "")
    order = np.argsort(-(table["calls_count"] * table["transfer_ns"]), kind="stable")
    rows = list(table.take(order[:LISTED]).rows())
    for row in rows:
        row["best_bus_bytes_per_s"] = _best(best, row)
    times = collective_rows(trace)
    longest = int(times["transfer_ns"].argmax())
    paths, why = _paths(trace)
    return {
        "missing": "" if rows else "no collective with a payload was recorded",
        "hint": "",
        "transfers": rows,
        "rows_count": len(table),
        "paths": paths,
        "paths_missing": why,
        "notes": [str(warning.message) for warning in caught],
        "begin_ns": int(times["begin_ns"][longest]),
        "end_ns": int(times["end_ns"][longest]),
    }


def no_links(why: str, hint: str = "") -> dict[str, Any]:
    """Return what stands for the links where nothing is known of them."""
    return {"missing": why, "hint": hint, "transfers": [], "paths": [], "notes": []}


def _best(table: Table, row: dict[str, Any]) -> float:
    """Return the bus bandwidth of the best call of the same group and operation, of any size; 0 if unknown."""
    same = (table["communicator"] == row["communicator"]) & (table["op"] == row["op"])
    return float(table["best_bus_bytes_per_s"][same].max(initial=0.0))


def _paths(trace: Trace) -> tuple[list[dict[str, Any]], str]:
    try:
        return list(links(trace).head(LISTED).rows()), ""
    except MissingDataError as error:
        return [], f"{error}; {error.hint}" if error.hint else str(error)
