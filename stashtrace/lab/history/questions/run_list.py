"""The runs of a history in the order in which they began: run_list."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time

import numpy as np

from stashtrace.lab.history.run_totals import CAUSES, RunTotals
from stashtrace.schema import columns as col
from stashtrace.schema.columns import Column, schema
from stashtrace.schema.table import Table

RUN_LIST = schema(
    "run_list",
    "The runs of a history, the earliest first",
    col.word("begun", "when, UTC"),
    col.word("job", "command, without values that differ from run to run"),
    col.word("commit", "empty if it is not known"),
    col.number("hosts_count", "hosts"),
    col.number("ranks_count", "ranks"),
    col.number("steps_count", "counted steps"),
    col.ns("step_ns", "mean step; 0 without steps"),
    Column("machine_hours", "f8", "hours", "its length times its hosts"),
    col.word("largest", "kind of time but compute that took most of its steps; empty if none did"),
    col.real("largest_ratio", "its part of the time of the steps"),
    col.number("losses_count", "records that were lost", detail=1),
    Column("exit_code", "i8", "", "of the command; -1 if unknown", role="code", missing=-1, detail=1),
    col.word("file", "in the history", detail=2),
)


def run_list(totals: RunTotals) -> Table:
    """Return the runs of a history."""
    history = totals.history
    lost = np.zeros(len(history), dtype=np.int64)
    losses = history.section("loss")
    np.add.at(lost, losses["run"], np.maximum(losses["value"], 0))
    stalls = totals.shares.copy()
    inside = np.maximum(1 - stalls[:, -1], 1e-12)
    stalls[:, [CAUSES.index("compute"), -1]] = 0.0
    most = stalls.argmax(axis=1)
    part = stalls[np.arange(len(history)), most] / inside
    commits = history.fact("commit")
    codes = history.number("exit_code")
    rows = [
        (
            time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(int(history.begin_ns[run]) // 10**9)),
            totals.jobs[run],
            str(commits[run]),
            int(totals.hosts_count[run]),
            int(totals.ranks_count[run]),
            int(totals.steps_count[run]),
            round(float(totals.step_ns[run])),
            float(totals.hours[run]),
            CAUSES[most[run]] if part[run] > 0 else "",
            float(part[run]),
            int(lost[run]),
            int(codes[run]),
            history.files[run],
        )
        for run in range(len(history))
    ]
    return Table.from_rows(RUN_LIST, rows)
