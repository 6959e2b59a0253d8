"""The fleet in numbers: by job, host, day or outcome (fleet_view), by cause (costs), and run by run (run_list).

After Helios (Hu et al., SC 2021), which described clusters by the hours of their jobs, how these ended, and how far
machines were used; here, so is what their time went to.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from stashtrace.analysis.intervals import Int64
from stashtrace.lab.history.run_files import OUTSIDE
from stashtrace.lab.history.run_totals import CAUSES, RunTotals, typical_steps
from stashtrace.schema import columns as col
from stashtrace.schema.columns import Column, schema
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.stall_kinds import COLUMN_OF, COLUMNS
from stashtrace.schema.table import Table

_ENERGY = Column(
    "energy_kwh",
    "f8",
    "kWh",
    "of the devices in the runs that measured it; -1 if none did",
    missing=-1,
    title="energy, kWh",
)
#: What runs can be grouped by.
BY = ("job", "host", "day", "outcome")
FLEET_VIEW = schema(
    "fleet_view",
    "Runs by job, host, day or outcome, most machine hours first; days in their order",
    col.word(
        "group", "the job's command, the host, the day (UTC) on which runs began, or how they ended", role="command"
    ),
    col.number("runs_count", "runs; of a host, those it took part in"),
    col.number("failed_count", "runs whose command ended with another exit code than 0"),
    Column("machine_hours", "f8", "hours", "length of the runs times their hosts; of a host, that of the host"),
    col.ns("step_ns", "median over the runs of the mean step; 0 without steps", title="mean step"),
    col.real(
        "relative_step_ratio",
        "median over the runs of their step by the median of all runs of their job; -1 without steps",
        missing=-1,
        title="step by its job's median",
        role="factor",
    ),
    *(col.real(f"{name}_ratio", f"part of the machine hours in the column {name}", detail=2) for name in COLUMNS),
    col.real(
        "outside_ratio",
        "part of them outside of counted steps: starts, warm-up, validation, ends",
        title="outside of steps",
    ),
    Column("cost", "f8", "", "price of the hours in the runs whose price is known; -1 if none is", "cost", -1),
    _ENERGY,
)


def fleet_view(totals: RunTotals, by: str = "job") -> Table:
    """Return the fleet by one of :data:`BY`."""
    runs, names, weights = _groups(totals, by)
    shares = _columns(totals)
    typical = typical_steps(totals)
    rows = []
    for name, of_name in GroupBy(names).items():
        mine, part = runs[of_name], weights[of_name]
        hours = totals.hours[mine] * part
        whole = max(float(hours.sum()), 1e-12)
        steps = totals.step_ns[mine]
        relative = (steps / np.where(typical[mine] > 0, typical[mine], np.nan))[steps > 0]
        cost, joules = hours * totals.price[mine], np.nansum(totals.joules[mine], axis=1) * part
        measured = np.isfinite(totals.joules[mine][:, 0])
        rows.append(
            (
                str(name),
                len(mine),
                int(totals.failed[mine].sum()),
                float(hours.sum()),
                round(float(np.median(steps[steps > 0]))) if (steps > 0).any() else 0,
                float(np.median(relative)) if len(relative) else -1.0,
                *(float(hours @ shares[mine][:, at]) / whole for at in range(shares.shape[1])),
                float(np.nansum(cost)) if np.isfinite(cost).any() else -1.0,
                float(joules.sum()) / 3.6e6 if measured.any() else -1.0,
            )
        )
    rows.sort(key=(lambda row: row[0]) if by == "day" else (lambda row: (-float(row[3]), str(row[0]))))
    return Table.from_rows(FLEET_VIEW, rows)


def _groups(totals: RunTotals, by: str) -> tuple[Int64, np.ndarray, np.ndarray]:
    """Return (run, group, part of the run's machine hours) of each member of a group."""
    count = len(totals.history)
    names: Sequence[str]
    if by == "host":
        listed = [text.split(",") for text in totals.history.fact("host_names").tolist()]
        runs = np.repeat(np.arange(count), [len(hosts) for hosts in listed])
        return runs, np.array([host or "unknown" for hosts in listed for host in hosts]), 1 / totals.hosts_count[runs]
    if by == "day":
        names = [time.strftime("%Y-%m-%d", time.gmtime(ns // 10**9)) for ns in totals.history.begin_ns.tolist()]
    elif by == "outcome":
        codes = totals.history.number("exit_code", -1).astype(int).tolist()
        names = ["ended well" if code == 0 else "unknown" if code == -1 else f"exit code {code}" for code in codes]
    else:
        names = [job or "unknown" for job in totals.jobs]
    return np.arange(count), np.array(names), np.ones(count)


def _columns(totals: RunTotals) -> np.ndarray:
    """Return the part of each run's time by the columns of the summary, then that outside."""
    groups = [*COLUMNS.values(), (OUTSIDE,)]
    places = {name: at for at, name in enumerate(CAUSES)}
    return np.stack([totals.shares[:, [places[kind] for kind in kinds]].sum(axis=1) for kinds in groups], axis=1)


COSTS = schema(
    "costs",
    "What the time of all runs went to, the largest part first",
    col.word("cause", "kind of time of counted steps; outside: starts, warm-up, validation, ends", role="kind"),
    col.word("column", "column of the summary that holds it; outside"),
    col.number("runs_count", "runs that spent time in it"),
    Column("machine_hours", "f8", "hours", "length of the runs times their hosts, the part of this cause"),
    col.real("share_ratio", "of all machine hours", title="part"),
    Column("cost", "f8", "", "price of these hours in the runs whose price is known; -1 if none is", "cost", -1),
    _ENERGY,
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
        cause_hours = float(hours[:, at].sum())
        energy = float(np.nansum(joules[:, at]))
        if cause_hours <= 0 and energy <= 0:
            continue
        cost = float(np.nansum(money[:, at])) if priced else -1.0
        used = (energy / 3.6e6, energy / all_joules) if measured else (-1.0, -1.0)
        column = COLUMN_OF.get(cause, OUTSIDE)
        rows.append((cause, column, int((hours[:, at] > 0).sum()), cause_hours, cause_hours / all_hours, cost, *used))
    rows.sort(key=lambda row: -row[3])
    return Table.from_rows(COSTS, rows)


RUN_LIST = schema(
    "run_list",
    "The runs of a history, the earliest first",
    col.word("begun", "when, UTC"),
    col.word("job", "command, without values that differ from run to run", role="command"),
    col.word("commit", "empty if it is not known", role="commit"),
    col.number("hosts_count", "hosts"),
    col.number("ranks_count", "ranks"),
    col.number("steps_count", "counted steps"),
    col.ns("step_ns", "mean step; 0 without steps", title="mean step"),
    Column("machine_hours", "f8", "hours", "its length times its hosts"),
    col.word(
        "largest",
        "kind of time but compute that took most of its steps; empty if none did",
        title="largest stall",
        role="kind",
    ),
    col.real("largest_ratio", "its part of the time of the steps", title="its part"),
    col.number("losses_count", "records that were lost", detail=1, title="lost records"),
    Column("exit_code", "i8", "", "of the command; -1 if unknown", role="code", missing=-1, detail=1),
    col.word("file", "in the history", detail=2),
)


def run_list(totals: RunTotals) -> Table:
    """Return the runs of a history."""
    history = totals.history
    lost = np.zeros(len(history), dtype=np.int64)
    losses = history.section("loss")
    np.add.at(lost, losses["run"], np.maximum(losses["lost_count"], 0))
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
