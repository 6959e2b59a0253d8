"""Text of ``stashtrace whatif-cache``: inputs with origin and spread, the table, the three answers, the doubts."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from typing import Any

import numpy as np

from stashtrace.lab.cache.cache_model import (
    MINIO,
    SLACK_RATIO,
    predict,
    storage_without_fetch_stall,
    workers_without_prep_stall,
)
from stashtrace.lab.cache.forecast import Inputs
from stashtrace.lab.plot_helpers import check_plot_file, save_figure
from stashtrace.schema.stall_kinds import KIND_COLOURS
from stashtrace.schema.table import Table
from stashtrace.summary.picture_style import FAINT, new_figure, plain_axes
from stashtrace.text import align, count_noun, wrap
from stashtrace.units import bytes_text, duration_text, percent_text

#: Names and order of the inputs on the page; the rest of the quantities speak through the notes.
_TITLES = {
    "step_ns": "step",
    "compute_ns": "compute of a step",
    "prep_ns": "prep of a batch, one worker",
    "batch_bytes": "bytes of a batch",
    "files_per_batch": "files of a batch",
    "ranges_per_batch": "ranges of files of a batch",
    "workers_count": "workers of a rank",
    "ranks_count": "ranks on a host",
    "cached_bytes_per_s": "page cache, one reader",
    "reader_bytes_per_s": "storage, one reader",
    "storage_bytes_per_s": "storage, all readers",
    "dataset_bytes": "data set, as far as read",
    "hit_ratio": "answered by the cache",
}
#: Quantities that are not means of samples, and what they are.
_SUMS = {
    "workers_count": "count of",
    "ranks_count": "count of",
    "storage_bytes_per_s": "all bytes by all time of",
    "dataset_bytes": "sum of",
    "hit_ratio": "share of",
}
_TABLE_HEAD = (
    *("cached", "hits", "step", "at least", "at most", "prep", "fetch", "simulated", "batches/s"),
    *("reader needs", "host needs", "limit"),
)
#: Rates and sizes below this error are said to be right.
_GOOD_RATIO = 0.1


def answers(inputs: Inputs) -> dict[str, Any]:
    """Numbers behind the sentences, for JSON."""
    job = inputs.job
    need = storage_without_fetch_stall(job, 0.0)
    return {
        "workers_without_prep_stall_count": workers_without_prep_stall(job) if job.compute_ns > 0 else None,
        "storage_without_fetch_stall_bytes_per_s": need.total_bytes_per_s,
        "replayed_step_ns": replayed_ns(inputs),
        "measured_step_ns": inputs.measured_step_ns,
        "measured_hit_ratio": inputs.measured_hit_ratio,
        "dataset_bytes": inputs.dataset_bytes,
    }


def replayed_ns(inputs: Inputs) -> float:
    """The recorded run's own step by the model, at the hit ratio that it had."""
    return float(predict(inputs.job, inputs.measured_hit_ratio).step_ns[0])


def forecast_lines(inputs: Inputs, rates: Table, table: Table, policy: str) -> list[str]:
    """Lines of text about a forecast."""
    return [
        *_input_lines(rates),
        "",
        *_table_lines(table, policy),
        "",
        *_answer_lines(inputs),
        *(["", "not measured, or doubtful:"] if inputs.notes else []),
        *(line for note in inputs.notes for line in wrap(note)),
    ]


def _input_lines(rates: Table) -> list[str]:
    order = list(_TITLES)
    rows = [row for row in rates.rows() if row["quantity"] in _TITLES]
    rows.sort(key=lambda row: (order.index(row["quantity"]), row["rank"]))
    several = len({row["rank"] for row in rows if row["rank"] >= 0}) > 1
    cells = []
    for row in rows:
        quantity = row["quantity"]
        title = _TITLES[quantity] + (f", rank {row['rank']}" if several and row["rank"] >= 0 else "")
        mean, median, low, high = (_text(quantity, row[name]) for name in ("mean", "median", "low", "high"))
        cells.append((title, mean, _statistic(row)))
        if not mean == low == high:
            cells.append(("", median, f"median, quartiles {low} and {high}"))
    head = "measured in the run (the forecast is made from means, and from rates of all bytes by all time):"
    return [head, *align(cells, left={0, 2})]


def _statistic(row: dict[str, Any]) -> str:
    """Statistic that a row holds, and its source."""
    if row["quantity"] in _SUMS:
        return f"{_SUMS[row['quantity']]} {row['origin']}"
    kind = "all bytes by all time" if row["quantity"].endswith("_bytes_per_s") else "mean"
    return f"{kind} of {row['samples_count']:,} {row['origin']}"


def _text(quantity: str, value: float) -> str:
    if quantity.endswith("_ns"):
        return duration_text(value)
    if quantity.endswith("_bytes_per_s"):
        return f"{bytes_text(value)}/s"
    if quantity.endswith("_bytes"):
        return bytes_text(value)
    if quantity.endswith("_ratio"):
        return percent_text(value)
    return f"{value:g}" if value == round(value) else f"{value:.1f}"


def _table_lines(table: Table, policy: str) -> list[str]:
    what = "never evicts (MinIO)" if policy == MINIO else "evicts the least recently used"
    return [
        f"forecast, for a cache that {what} and an order that is new in each epoch:",
        *align([_TABLE_HEAD, *(_cells(row) for row in table.rows())], indent=""),
        "needs: rate of storage for one reader, and for all of a host, that keeps fetch within"
        f" {100 * SLACK_RATIO:.0f} % of a step",
    ]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    times = ("step_ns", "low_ns", "high_ns", "prep_ns", "fetch_ns", "simulated_ns")
    return (
        *(percent_text(row[name]) for name in ("cached_ratio", "hit_ratio")),
        *(duration_text(row[name]) for name in times),
        f"{row['batches_per_s']:.1f}",
        *(_need(row[name]) for name in ("reader_bytes_per_s", "storage_bytes_per_s")),
        row["limited_by"],
    )


def _need(rate: float) -> str:
    return "-" if rate == 0 else "never" if math.isinf(rate) else f"{bytes_text(rate)}/s"


def _answer_lines(inputs: Inputs) -> list[str]:
    job = inputs.job
    warm = predict(job, 1.0)
    lines = []
    if job.compute_ns > 0:
        enough = workers_without_prep_stall(job)
        now = f"{job.workers_count} now" if job.workers_count else "the step thread loads now"
        if warm.prep_ns[0] <= SLACK_RATIO * warm.step_ns[0]:
            lines.append(
                f"prep stall: none with all data cached; {count_noun(enough, 'worker')} a rank would be enough ({now})"
            )
        else:
            lines.append(
                f"prep stall: {count_noun(enough, 'worker')} a rank remove it ({now}), given as many free CPUs"
            )
    need = storage_without_fetch_stall(job, 0.0)
    if math.isinf(need.total_bytes_per_s):
        lines.append("fetch stall: no storage removes it while nothing is cached; workers are too few")
    else:
        lines.append(
            f"fetch stall: with nothing cached, storage that gives one reader {bytes_text(need.reader_bytes_per_s)}/s"
            f" and all of a host {bytes_text(need.total_bytes_per_s)}/s removes it"
        )
    replayed, measured = replayed_ns(inputs), inputs.measured_step_ns
    error = (replayed - measured) / measured if measured else 0.0
    doubt = "" if abs(error) <= _GOOD_RATIO else ", so take the forecast with care"
    lines.append(
        f"check: the run's own step, {duration_text(measured)} with {percent_text(inputs.measured_hit_ratio)} answered"
        f" by the cache, is {duration_text(replayed)} by this model ({100 * error:+.1f} %{doubt})"
    )
    return [line for answer in lines for line in wrap(answer)]


# The picture of a forecast: a step against the cached share, as compute, prep and fetch. matplotlib is optional.

_KINDS = ("compute", "prep", "fetch")


def plot_forecast(inputs: Inputs, table: Table, policy: str, path: str) -> None:
    """Draw a forecast into a file; the suffix chooses the format."""
    check_plot_file(path)
    figure = new_figure(7.2, 4.4)
    axes = figure.subplots()
    share = 100 * table["cached_ratio"]
    parts = {name: table[f"{name}_ns"] / 1e6 for name in _KINDS}
    if len(share) > 1:
        colours = [KIND_COLOURS[name] for name in _KINDS]
        axes.stackplot(share, *parts.values(), labels=list(parts), colors=colours, alpha=0.75, lw=0)
        low, high = table["low_ns"] / 1e6, table["high_ns"] / 1e6
        axes.fill_between(share, low, high, color=FAINT, alpha=0.3, lw=0, label="at least, at most")
    else:
        below = np.zeros(len(share))
        for name, values in parts.items():
            axes.bar(share, values, bottom=below, width=4, color=KIND_COLOURS[name], label=name)
            below = below + values
    axes.plot(share, table["simulated_ns"] / 1e6, "o", ms=4, color="#000000", label="simulated")
    if len(share) > 1:  # a cache of which share would have answered as much as the run's did
        at = np.interp(inputs.measured_hit_ratio, table["hit_ratio"], share)
        step = inputs.measured_step_ns / 1e6
        axes.plot(at, step, "D", ms=6, color="#D55E00", label="the run, by its hits")
    axes.set_xlim(-2, 102)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"cached share of the data set, % ({policy})")
    axes.set_ylabel("step, ms")
    # Above the axes: the areas below the step leave no room.
    axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=6, columnspacing=1.2)
    plain_axes(axes)
    save_figure(figure, path)
