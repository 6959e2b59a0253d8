"""The questions that a history answers, each with its table and a few sentences, and cells in words."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from stashtrace.lab.history.questions.fleet import BY, costs, fleet_view, run_list
from stashtrace.lab.history.questions.interference import interference
from stashtrace.lab.history.questions.late_hosts import NAMED, late_hosts
from stashtrace.lab.history.questions.slow_commits import DEFAULT_LIMIT, slow_commits
from stashtrace.lab.history.run_files import OUTSIDE
from stashtrace.lab.history.run_totals import RunTotals
from stashtrace.lab.recommend.recommendation_text import cost_text
from stashtrace.schema.columns import Column
from stashtrace.schema.stall_kinds import KIND_LABELS, words_of
from stashtrace.schema.table import Table
from stashtrace.text import count_noun
from stashtrace.units import duration_text, percent_text, shortened, span_text

#: Sentences of a question; its table has the rest.
MOST = 3
_COMMIT_DIGITS, _JOB_WIDTH = 10, 60
#: Cause of the costs -> what a person calls it.
LABELS = KIND_LABELS | {OUTSIDE: "starts, warm-up, validation, ends"}
#: Names of the extra kinds of work that a late rank may do.
_WORK = {"": "an unknown work", "gc": "garbage collection", "cpu_contention": "waits for a CPU"}


def short_commit(commit: str) -> str:
    """Return a commit as people write it."""
    return commit[:_COMMIT_DIGITS]


def hosts_sentences(table: Table, totals: RunTotals) -> list[str]:
    """Say which hosts are late again and again."""
    rows = list(table.rows())
    named = [row for row in rows if row["verdict"] in NAMED]
    said = [_late_host(row, totals) for row in named]
    said += [
        f"{row['host']} was late in {row['late_count']} of {count_noun(row['runs_count'], 'run')}, but it always held"
        " the rank that was late, and no other host ever did: the job may be the reason, not the host"
        for row in rows
        if row["verdict"] == "rank"
    ]
    if not said:
        several = int((totals.hosts_count > 1).sum())
        if not several:
            return ["no run had several hosts, so no host was waited for by another"]
        return [f"no host is late more often than chance explains, in {count_noun(several, 'run')} of several hosts"]
    return said


def _late_host(row: dict[str, Any], totals: RunTotals) -> str:
    count, late = row["cause_count"], row["late_count"]
    work = _WORK.get(row["cause"], words_of(row["cause"]))
    how = f"always by {work}" if count == late else f"mostly by {work} ({count} of {late})"
    cost = f", {cost_text(row['cost'], totals.currency)}" if row["cost"] >= 0 else ""
    return (
        f"{row['host']} late in {late} of {count_noun(row['runs_count'], 'run')}, {how}; the others wait"
        f" {duration_text(row['wait_ns'])} a step ({percent_text(row['wait_ratio'])} of it) for that,"
        f" {machine_hours_text(row['lost_hours'])}{cost} in all"
    )


def commits_sentences(table: Table, totals: RunTotals) -> list[str]:
    """Say which commits changed the step of a job."""
    said = [_commit(row) for row in table.rows() if row["verdict"] in ("slower", "faster")]
    doubts = [row for row in table.rows() if row["verdict"] in ("few", "hosts")]
    if not said and not (totals.history.fact("commit") != "").any():
        return ["no run says its commit, so no change can be blamed"]
    if not said:
        said.append("no commit made a job slower or faster beyond doubt")
    for row in doubts[:MOST]:
        why = "there are too few runs to rule out chance" if row["verdict"] == "few" else "its runs were on other hosts"
        said.append(f"{short_commit(row['commit'])} may have changed {_job(row['job'])}, but {why}")
    return said


def _commit(row: dict[str, Any]) -> str:
    kind = f", mostly in {words_of(row['kind'])}" if row["kind"] else ""
    low, high = sorted((row["low_ratio"], row["high_ratio"]))
    return (
        f"{short_commit(row['commit'])} made {_job(row['job'])} {row['verdict']}: the step went from"
        f" {duration_text(row['before_ns'])} to {duration_text(row['after_ns'])}, {_signed(row['growth_ratio'])}"
        f" ({_signed(low)} to {_signed(high)}){kind}"
    )


def interference_sentences(table: Table, totals: RunTotals) -> list[str]:
    """Say which jobs slowed which."""
    if not len(table):
        if not len(totals.history.section("checkpoint")["run"]):
            return ["no run wrote a checkpoint to a file system that is known"]
        return ["no job's reads were slower during the checkpoints of another one, beyond chance"]
    said = []
    for row in table.rows():
        lost = f", {span_text(row['lost_ns'])} lost" if row["lost_ns"] > 0 else ""
        said.append(
            f"checkpoints of {_job(row['other_job'])} made reads of {_job(row['job'])} {row['slower_ratio']:.1f} times"
            f" slower: {count_noun(row['steps_count'], 'step')} in {count_noun(row['runs_count'], 'run')}{lost},"
            f" on {row['file_system']}"
        )
    return said


def costs_sentences(table: Table, totals: RunTotals) -> list[str]:
    """Say what the largest causes but compute cost."""
    rows = [row for row in table.rows() if row["cause"] != "compute"]
    said = []
    for row in rows[:MOST]:
        cost = f", {cost_text(row['cost'], totals.currency)}" if row["cost"] >= 0 else ""
        energy = f", {energy_text(row['energy_kwh'])}" if row["energy_kwh"] > 0 else ""
        said.append(
            f"{LABELS[row['cause']]}: {machine_hours_text(row['machine_hours'])}"
            f" ({percent_text(row['share_ratio'])} of all){cost}{energy}"
        )
    unknown = int(np.isnan(totals.price).sum())
    if unknown:
        who = (
            "no run's price is"
            if unknown == len(totals.history)
            else f"the price of {count_noun(unknown, 'run')} is not"
        )
        said.append(f"{who} known: --price NAME=VALUE gives it, --instance NAME says where they ran")
    return said


def fleet_sentences(table: Table, totals: RunTotals) -> list[str]:
    """Say how large the fleet is, and how far its time was used."""
    history = totals.history
    begin, end = (
        time.strftime("%Y-%m-%d", time.gmtime(int(ns) // 10**9))
        for ns in (history.begin_ns.min(), history.begin_ns.max())
    )
    hosts = {host for text in history.fact("host_names").tolist() for host in text.split(",")}
    compute = float((totals.hours @ totals.shares)[0]) / max(float(totals.hours.sum()), 1e-12)
    failed = int(totals.failed.sum())
    days = f"on {begin}" if begin == end else f"from {begin} to {end}"
    return [
        f"{count_noun(len(history), 'run')} of {count_noun(len(set(totals.jobs)), 'job')} on"
        f" {count_noun(len(hosts), 'host')} {days}: {machine_hours_text(float(totals.hours.sum()))},"
        f" {percent_text(compute)} of it compute; {failed} failed"
    ]


def shown_cell(column: Column, value: Any, currency: str = "") -> str:
    """Return a value of a table as a person reads it; ``-`` where it is not known.

    ``currency``: of costs.
    """
    if value == "" or (column.missing and value == column.missing):
        return "-"
    if isinstance(value, str):
        said = LABELS.get(value, value) if column.role == "kind" else value
        return short_commit(said) if column.role == "commit" else shortened(said, _JOB_WIDTH)
    if column.unit == "ns":
        return duration_text(value)
    if column.role == "cost":
        return cost_text(value, currency)
    if column.role == "factor":
        return f"{value:.2f}"
    if column.name.endswith("_ratio"):
        return percent_text(value)
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def machine_hours_text(hours: float) -> str:
    """Return hours of machines, with as many digits as matter.

    Examples
    --------
    >>> machine_hours_text(0.0123), machine_hours_text(0.061), machine_hours_text(2.289), machine_hours_text(12345.6)
    ('44 machine seconds', '220 machine seconds', '2.3 machine hours', '12,346 machine hours')
    """
    if hours < 0.1:
        return f"{float(f'{hours * 3600:.2g}'):g} machine seconds"
    return f"{hours:,.{0 if hours >= 100 else 1}f} machine hours"


def energy_text(kwh: float) -> str:
    """Return an amount of energy.

    Examples
    --------
    >>> energy_text(0.0123), energy_text(12.34), energy_text(4567.0)
    ('12.3 Wh', '12.3 kWh', '4.57 MWh')
    """
    value, unit = (kwh * 1e3, "Wh") if kwh < 1 else (kwh, "kWh") if kwh < 1e3 else (kwh / 1e3, "MWh")
    return f"{value:.3g} {unit}"


def _signed(ratio: float) -> str:
    return f"{100 * ratio:+.1f} %"


def _job(name: str) -> str:
    return f"`{shortened(name, _JOB_WIDTH)}`" if name else "an unknown job"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question."""

    #: Its word on the command line, and what it asks.
    name: str
    title: str
    table: Table
    sentences: list[str]


#: Question -> its title, its table, its sentences.
_QUESTIONS: dict[str, tuple[str, Callable[[RunTotals], Table], Callable[[Table, RunTotals], list[str]]]] = {
    "fleet": ("the fleet", fleet_view, fleet_sentences),
    "hosts": ("hosts that are late again and again", late_hosts, hosts_sentences),
    "commits": ("commits that changed a job's step", slow_commits, commits_sentences),
    "interference": ("jobs that slowed each other's reads", interference, interference_sentences),
    "costs": ("what the time went to", costs, costs_sentences),
    "runs": ("the runs", run_list, lambda table, totals: []),
}


def answer(totals: RunTotals, name: str, *, by: str = BY[0], limit_percent: float = DEFAULT_LIMIT) -> Answer:
    """Answer one question.

    ``by``: what ``fleet`` groups runs by. ``limit_percent``: growth of the step that ``commits`` allows.
    """
    title, ask, say = _QUESTIONS[name]
    if name == "fleet":
        ask = partial(fleet_view, by=by)
    elif name == "commits":
        ask = partial(slow_commits, limit_percent=limit_percent)
    table = ask(totals)
    return Answer(name, title, table, say(table, totals))


def answers(totals: RunTotals, names: Sequence[str], *, by: str, limit_percent: float) -> list[Answer]:
    """Answer several questions."""
    return [answer(totals, name, by=by, limit_percent=limit_percent) for name in names]
