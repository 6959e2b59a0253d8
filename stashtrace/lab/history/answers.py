"""The questions that a history answers, each with its table and a few sentences; as text, and as one HTML file.

On the page, runs are on an axis of dates.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from stashtrace.lab.history.policy import POLICY
from stashtrace.lab.history.questions.fleet import BY, costs, fleet_view, run_list
from stashtrace.lab.history.questions.interference import interference
from stashtrace.lab.history.questions.late_hosts import NAMED, late_hosts
from stashtrace.lab.history.questions.slow_commits import DEFAULT_LIMIT, slow_commits
from stashtrace.lab.history.run_files import OUTSIDE
from stashtrace.lab.history.run_totals import RunTotals, typical_steps
from stashtrace.lab.recommend.recommendation_text import cost_text
from stashtrace.report import blocks
from stashtrace.report.blocks import Bar, Bars, Block, Command, Listing, Paragraph, Part, Picture, page_of
from stashtrace.report.budget_groups import percents
from stashtrace.report.page.html import paragraph, tag, text
from stashtrace.report.page.svg_pictures import picture_file
from stashtrace.schema.columns import Column
from stashtrace.schema.stall_kinds import COLUMNS, KIND_LABELS, words_of
from stashtrace.schema.table import Table
from stashtrace.text.prose import count_noun
from stashtrace.text.units import duration_text, percent_text, shortened, span_text

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
    for row in doubts[: POLICY.sentences_count]:
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
    for row in rows[: POLICY.sentences_count]:
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
    """Return a value of a table as a person reads it; ``-`` where it is not known. ``currency``: of costs."""
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


#: Columns of this detail are in the command's output alone.
_DETAIL = 2
_PAGE_JOB_WIDTH = 70
#: Of that picture, in pixels: its height, the part for points, and how far these stay off its upper edge.
_HEIGHT, _PLOT, _MARGIN = 190, 160, 20
#: Part of its width for the scale, in percent.
_LEFT = 9
_DAY_NS = 86_400 * 10**9


def overview_blocks(answers: Sequence[Answer]) -> list[Block | None]:
    """Return the first sentences of each question."""
    return [Listing(_first(one.sentences), one.title) for one in answers]


def _first(sentences: Sequence[str]) -> list[str]:
    more = len(sentences) - POLICY.sentences_count - 1
    return [*sentences[: POLICY.sentences_count + 1], *([f"and {more} more"] if more > 0 else [])]


def history_blocks(totals: RunTotals, answers: Sequence[Answer]) -> list[Block | None]:
    """Return a history to show: what matters most, the runs, each question with its sentences and first rows."""
    said = {one.name: one for one in answers}
    about = said["fleet"].sentences[0] if "fleet" in said and said["fleet"].sentences else ""
    headline = _headline(said)
    commits = said["commits"].table if "commits" in said else None
    drawn, words = _runs_over_time(totals, commits)
    return [
        Paragraph(headline, "claim") if headline else None,
        Paragraph(about, "soft") if about else None,
        Listing(totals.history.left_out),
        Part("time", "How long their steps were", [Picture(drawn + paragraph(words, "soft"))]),
        *(_part(one, totals, {headline, about}) for one in answers),
    ]


def history_page(totals: RunTotals, answers: Sequence[Answer]) -> str:
    """Return a history as one HTML file."""
    command = Command(f"stashtrace history {shlex.quote(totals.history.place.text)}")
    return page_of("Runs over time", history_blocks(totals, answers), command)


def history_picture(totals: RunTotals, answers: Sequence[Answer]) -> str:
    """Return the runs on the axis of dates as an SVG file."""
    commits = next((one.table for one in answers if one.name == "commits"), None)
    return picture_file([("How long the steps of runs were", *_runs_over_time(totals, commits))], _HEIGHT)


def _headline(said: dict[str, Answer]) -> str:
    """Return what matters most: a host that is late, a commit that slowed a job, else what most time went to."""
    found = {
        "hosts": lambda row: row["verdict"] in NAMED,
        "commits": lambda row: row["verdict"] in ("slower", "faster"),
        "interference": lambda row: True,
        "costs": lambda row: row["cause"] != "compute",
    }
    for name, matters in found.items():
        if name in said and said[name].sentences and any(map(matters, said[name].table.rows())):
            return said[name].sentences[0]
    return ""


def _part(one: Answer, totals: RunTotals, known: set[str]) -> Part:
    place = shlex.quote(totals.history.place.text)
    rows = list(one.table.take(slice(0, POLICY.page_rows_count)).rows())
    columns = [column for column in one.table.schema.columns if column.detail < _DETAIL]
    cells = [[shown_cell(column, row[column.name], totals.currency) for column in columns] for row in rows]
    more = len(one.table) - len(rows)
    bars = _bars(rows) if one.name == "fleet" else []
    content = [
        Listing([said for said in one.sentences if said not in known]),
        Bars(bars),
        Paragraph("A bar is the time inside of counted steps; the table is about all time.", "soft") if bars else None,
        blocks.Table(one.table.schema.doc, [column.words for column in columns], cells, wraps=True),
        Paragraph(f"{more:,} more rows are in the output of the command below.", "soft") if more > 0 else None,
        Command(f"stashtrace history {place} {one.name}"),
    ]
    return Part(one.name, one.title[0].upper() + one.title[1:], content)


def _bars(rows: Sequence[dict[str, Any]]) -> list[Bar]:
    """Return a bar for each of the first groups of the fleet: parts of the time inside of counted steps."""
    bars = []
    for row in rows[: POLICY.bars_count]:
        inside = sum(row[f"{name}_ratio"] for name in COLUMNS)
        if inside > 0:
            ratios = [row[f"{name}_ratio"] / inside for name in COLUMNS]
            parts = [part for part in zip(COLUMNS, ratios, percents(ratios), strict=True) if part[1] > 0]
            size = f"{count_noun(row['runs_count'], 'run')}, {machine_hours_text(row['machine_hours'])}"
            bars.append(Bar(f"{shortened(row['group'], _PAGE_JOB_WIDTH)}: {size}", parts))
    return bars


@dataclass(frozen=True, slots=True)
class _Axes:
    """Of the picture of runs: moments from left to right, steps by the median of their job from below."""

    first_ns: int
    last_ns: int
    low_ratio: float
    top_ratio: float

    def across(self, ns: int) -> str:
        """Return the place of a moment."""
        return f"{_LEFT + (98 - _LEFT) * (ns - self.first_ns) / (self.last_ns - self.first_ns):.2f}%"

    def down(self, ratio: float) -> float:
        """Return the place of a step, in pixels."""
        part = (min(ratio, self.top_ratio) - self.low_ratio) / (self.top_ratio - self.low_ratio)
        return round(_PLOT - (_PLOT - _MARGIN) * part, 1)

    def drawn(self) -> Iterator[str]:
        """Yield the lines and numbers of the scale, and the dates."""
        for ratio in (self.low_ratio, 1.0, self.top_ratio):
            at = self.down(ratio)
            yield f'<line class="grid" x1="{_LEFT - 1}%" x2="100%" y1="{at}" y2="{at}"/>'
            yield tag("text", f"{ratio:.2f}", class_="scale", x="0", y=str(at + 4))
        long = self.last_ns - self.first_ns >= 2 * POLICY.dates_on_axis_count * _DAY_NS
        for number in range(POLICY.dates_on_axis_count):
            ns = self.first_ns + (self.last_ns - self.first_ns) * number // (POLICY.dates_on_axis_count - 1)
            anchor = "start" if number == 0 else "end" if number == POLICY.dates_on_axis_count - 1 else "middle"
            class_ = (
                "scale"
                if number in (0, POLICY.dates_on_axis_count // 2, POLICY.dates_on_axis_count - 1)
                else "scale between"
            )
            date, y = _moment(ns)[slice(10) if long else slice(5, 16)], str(_HEIGHT - 8)
            yield tag("text", date, class_=class_, x=self.across(ns), y=y, text_anchor=anchor)


def _runs_over_time(totals: RunTotals, commits: Table | None) -> tuple[str, str]:
    """Return the picture of the runs and what it shows; ``commits``: rows of ``slow_commits``, drawn as lines."""
    begin_ns, usual_ns = totals.history.begin_ns, typical_steps(totals)
    drawn = np.flatnonzero(totals.step_ns > 0)[-POLICY.runs_on_axis_count :]
    if not len(drawn):
        return "", "No run has steps."
    ratios = totals.step_ns[drawn] / usual_ns[drawn]
    first, last = int(begin_ns[drawn].min()), int(begin_ns[drawn].max())
    room_ns = 0 if last > first else _DAY_NS // 2
    low, high = float(ratios.min()), float(ratios.max())
    axes = _Axes(first - room_ns, last + room_ns, min(low, 0.9), min(max(high, 1.1), POLICY.drawn_step_times))
    parts = [*axes.drawn(), *_changes(totals, commits, axes)]
    for run, ratio in zip(drawn.tolist(), ratios.tolist(), strict=True):
        said = (
            f"{_moment(int(begin_ns[run]))}: step of {duration_text(float(totals.step_ns[run]))}, {ratio:.2f} of the"
            f" median; {shortened(totals.jobs[run], _PAGE_JOB_WIDTH)}{', failed' if totals.failed[run] else ''}"
        )
        place = f'cx="{axes.across(int(begin_ns[run]))}" cy="{axes.down(ratio)}"'
        class_ = "run failed" if totals.failed[run] else "run"
        parts.append(f'<circle class="{class_}" {place} r="4">{tag("title", text(said))}</circle>')
    label = (
        f"Step of {count_noun(len(drawn), 'run')} by the median of its job, from {_moment(first)} to {_moment(last)}:"
        f" between {low:.2f} and {high:.2f}"
    )
    size = {"width": "100%", "height": str(_HEIGHT)}
    picture = tag("svg", "".join(parts), class_="dates", **size, role="img", aria_label=label)
    words = "A point is a run: its mean step by the median of the runs of its job, at the time when it began (UTC)."
    words += " Hollow points failed." if totals.failed[drawn].any() else ""
    words += f" Points above {axes.top_ratio:g} are drawn at the upper edge." if high > axes.top_ratio else ""
    older = int((totals.step_ns > 0).sum()) - len(drawn)
    words += f" {count_noun(older, 'older run')} {'is' if older == 1 else 'are'} not drawn." if older > 0 else ""
    return picture, words


def _changes(totals: RunTotals, commits: Table | None, axes: _Axes) -> Iterator[str]:
    """Yield a line for each commit that changed the step of a job."""
    rows = commits.rows() if commits is not None else ()
    for commit in dict.fromkeys(row["commit"] for row in rows if row["verdict"] in ("slower", "faster")):
        of_commit = totals.history.begin_ns[totals.history.fact("commit") == commit]
        if len(of_commit) and axes.first_ns <= of_commit.min() <= axes.last_ns:
            at = axes.across(int(of_commit.min()))
            yield f'<line class="change" x1="{at}" x2="{at}" y1="0" y2="{_PLOT}"/>'
            yield tag("text", text(short_commit(commit)), class_="scale", x=at, y="12", dx="4")


def _moment(ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(ns // 10**9))
