"""The answers of a run as a flat dict, as trackers take it."""

from __future__ import annotations

from typing import Any

import numpy as np

from stashtrace.analysis.findings import Summary
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_document import document

PREFIX = "stashtrace/"
#: What each number means; the guide's table is made of it.
NUMBERS = (
    ("step_s", "mean step over all ranks, without warm-up"),
    ("steps_count", "steps of a rank that count"),
    ("ranks_count", "ranks with steps"),
    ("KIND_ratio", "share of the step time of all ranks in each column of the summary; the columns add up to 1"),
    ("straggler_rank", "the rank that others wait for most, -1 if the summary names none"),
    ("straggler_wait_s", "how long a rank waits for it in a mean step, 0 if none is named"),
    ("own_cpu_ratio", "upper bound of the CPU time of stashtrace itself, of that of the job"),
    ("lost_records_count", "records that were lost"),
)


def prefix_of(trace: Trace) -> str:
    """Return what names begin with: of a run that holds one host of several, the host as well.

    Each host's part then has names of its own in a run of a tracker that all hosts write to.
    """
    processes = trace.processes
    ranks, hosts = processes.take(processes["rank"] >= 0), np.unique(processes["host_code"])
    is_part = len(hosts) == 1 and len(np.unique(ranks["rank"])) < int(processes["world_size"].max(initial=-1))
    return f"{PREFIX}{trace.text(int(hosts[0]))}/" if is_part else PREFIX


def numbers(tables: Summary, prefix: str = PREFIX) -> dict[str, float]:
    """Return the numbers of a run by name, as :data:`NUMBERS` lists them; without steps only those of the recording."""
    values: dict[str, float] = {}
    budgets = tables.budgets
    if len(budgets):
        # Each column has a row for each rank and kind of step, and all of these have the same columns.
        columns = list(dict.fromkeys(budgets["column"].tolist()))
        one = budgets.take(budgets["column"] == columns[0])
        whole_ns = float(budgets["stall_ns"].sum())  # exact, where the mean step is rounded to a nanosecond
        values["step_s"] = whole_ns / float(one["steps_count"].sum()) / 1e9
        values["steps_count"] = max(int(one["steps_count"][one["rank"] == rank].sum()) for rank in one["rank"])
        values["ranks_count"] = len(set(one["rank"].tolist()))
        for column in columns:
            values[f"{column}_ratio"] = float(budgets["stall_ns"][budgets["column"] == column].sum()) / whole_ns
        late = next((f for f in _findings(tables, "verdict") if f["kind"] == "late" and f["cause_rank"] >= 0), None)
        values["straggler_rank"] = late["cause_rank"] if late else -1
        values["straggler_wait_s"] = late["stall_ns"] / 1e9 if late else 0.0
    for found in _findings(tables, "trust"):
        if found["kind"] == "own_cost":
            values["own_cpu_ratio"] = found["share_ratio"]
        elif found["kind"] == "lost_records":
            values["lost_records_count"] = found["items_count"]
    return {prefix + name: value for name, value in values.items()}


def sentences(tables: Summary, first: Table | None, path: str, prefix: str = PREFIX) -> dict[str, str]:
    """Return what is to be said of a run: the headline, its verdicts a line each, and what to do first.

    ``first``: rows of ``causes``. ``path``: of the run, for the commands in the sentences.
    """
    told = document(tables, first, path)
    verdicts = [f["text"] for f in told["findings"] if f["section"] == "verdict"]
    said = {
        "headline": told["headline"],
        "verdicts": "\n".join(verdicts),
        "do_first": "\n".join(row["text"] for row in told["do_first"]),
    }
    return {prefix + name: text for name, text in said.items() if text}


def _findings(tables: Summary, section: str) -> list[dict[str, Any]]:
    return [row for row in tables.findings.rows() if row["section"] == section]
