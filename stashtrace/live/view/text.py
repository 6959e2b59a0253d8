"""The view of a run as lines: what the screen of ``stashtrace live`` shows, cut to its height, and ``--once`` prints.

what the job does, how fast, since when           always there
that it is stuck, what is old or missing          always there
the budget of each rank as bars, who is late      always there
the line that costs most, that of a late rank     always there
the verdicts about the newest steps               as many as fit
what happened: slow steps and other events        as many as fit, the newest
lost records, own cost                            always there
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence

from stashtrace.analysis.findings.stall_claims import bounded_time
from stashtrace.analysis.lines.place_times import STEP
from stashtrace.errors import guarded
from stashtrace.live import times
from stashtrace.live.state import LATE, MOST, Event, LineNow
from stashtrace.live.view.watched import HostView, LiveView, RankView
from stashtrace.schema.stall_kinds import words_of
from stashtrace.summary.bars import Budget, budget_lines
from stashtrace.summary.style import Style
from stashtrace.text.prose import count_noun
from stashtrace.text.units import duration_text, percent_text, ranks_named, shortened, span_text
from stashtrace.text.visible import visible_line

_INDENT = "  "
#: Events that are shown at most, and lines where the height does not matter.
_EVENTS_AT_MOST = 10
_ANY = 1 << 30
#: Ranks that are named as those that others waited for.
_CAUSES_AT_MOST = 3
#: Late ranks whose line is shown.
_LATE_AT_MOST = 2
_CONDITION_WORDS = {
    "begins": "running, no step has ended yet",
    "moves": "running",
    "stuck": "STUCK",
    "unknown": "unknown: no host has written its state",
}


def live_lines(view: LiveView, style: Style, *, height: int = 0, keys: str = "") -> list[str]:
    """Return the lines of a view.

    ``height``: lines that there is room for; 0 for any number. ``keys``: what the keys of the screen do.
    """

    def lines_of(what: str, make: Callable[[LiveView, Style], list[str]]) -> list[str]:
        return guarded(what, lambda: make(view, style), lambda line: style.wrap(line, f"{_INDENT}! ", _INDENT * 2))

    def items_of(what: str, make: Callable[[LiveView, Style], Sequence[list[str]]]) -> Sequence[list[str]]:
        return guarded(what, lambda: make(view, style), lambda line: [style.wrap(line, f"{_INDENT}! ", _INDENT * 2)])

    parts = (("the title", _title), ("the condition", _condition), ("warnings", _warnings))
    top = [line for what, make in parts for line in lines_of(what, make)]
    bars = [*lines_of("the budget", _bars), *lines_of("the costliest lines", _costliest)]
    verdicts = items_of("the verdicts", _verdict_items)
    events = items_of("the events", _event_items)
    foot = ["", *lines_of("the last lines", lambda view, style: _foot(view, style, keys))]
    room = height - len(top) - len(foot) if height > 0 else _ANY
    bars = bars[: max(room, 0)]
    room -= len(bars)
    lines = [*top, *bars, *_middle(view, style, verdicts, events, room), *foot]
    return [style.plain(line.rstrip()) for line in lines]


def _middle(
    view: LiveView, style: Style, verdicts: Sequence[list[str]], events: Sequence[list[str]], room: int
) -> list[str]:
    """Return the verdicts and the newest events that fit into this number of lines, those that are lost least first.

    In turn: all verdicts with as many events as possible, at least one; then fewer verdicts; in the end the verdicts
    alone, and nothing.
    """
    about = "about the run, its first steps left out" if view.origin == "recording" else "about the newest steps"
    most = min(len(events), _EVENTS_AT_MOST)
    choices = [(said, shown) for said in range(len(verdicts), -1, -1) for shown in range(most, 0, -1)]
    choices += [(said, 0) for said in range(len(verdicts), 0, -1)]
    for said, shown in choices:
        lines = [
            *_block(about, "", verdicts[:said], len(verdicts), style),
            *_block("what happened", ", newest last", events[len(events) - shown :], len(events), style),
        ]
        if len(lines) <= room:
            return lines
    return []


def _block(title: str, which: str, items: Sequence[list[str]], known: int, style: Style) -> list[str]:
    """Return the lines of items below each other, after an empty one and a title; ``known``: items that there are."""
    if not items:
        return []
    which = f"{which}, {len(items)} of {known}" if len(items) < known else ""
    return ["", style.paint(f"{_INDENT}{title}{which}:", "faint"), *(line for item in items for line in item)]


def _title(view: LiveView, style: Style) -> list[str]:
    line = f"stashtrace live  {view.path}  {shlex.join(view.command)}".rstrip()
    return [style.paint(shortened(visible_line(line), style.width), "strong")]


def _condition(view: LiveView, style: Style) -> list[str]:
    """Return what the job does, how fast its steps are, and since when it runs."""
    role = "warn" if view.condition in ("stuck", "unknown", "quiet") else "strong"
    lines = [style.paint(line, role) for line in style.wrap(f"{_condition_text(view)}: {_size_text(view)}")]
    rate = _rate_text(view)
    times = [rate] if rate else []
    since = _clock(view.begin_realtime_ns, view.now_realtime_ns) if view.begin_realtime_ns else ""
    if since and view.condition != "ended":
        times.append(f"begun {since}, {span_text(view.now_realtime_ns - view.begin_realtime_ns)} ago")
    last = max((rank.last_end_realtime_ns for rank in view.ranks), default=0)
    if last and view.condition != "ended":
        times.append(f"last step ended {_clock(last, view.now_realtime_ns)}")
    if view.condition != "ended":
        times.append(f"seen {span_text(min(host.age_s for host in view.hosts) * 1e9)} ago")
    return [*lines, *_flow(times, style, "")]


def _condition_text(view: LiveView) -> str:
    if view.condition == "quiet":
        return f"running, but no step has ended for {span_text(view.quiet_ns)}"
    if view.condition == "stuck" and view.quiet_ns >= 0:
        return f"STUCK, no step has ended for {span_text(view.quiet_ns)}"
    if view.condition != "ended":
        return _CONDITION_WORDS[view.condition]
    if not view.end_realtime_ns:
        return "ended, no end is recorded"
    lasted = span_text(view.end_realtime_ns - view.begin_realtime_ns)
    code = f" with exit code {view.exit_code}" if view.exit_code >= 0 else ""
    return f"ended {_clock(view.end_realtime_ns, view.now_realtime_ns)}{code} after {lasted}"


def _size_text(view: LiveView) -> str:
    steps = count_noun(view.steps_count, "step")
    if view.least_steps_count != view.steps_count:
        steps = f"{view.least_steps_count:,} to {steps}"
    ranks = f"{count_noun(len(view.ranks), 'rank')} on " if view.ranks else ""
    return f"{ranks}{count_noun(len(view.hosts), 'host')}" + (f", {steps}" if view.ranks else "")


def _rate_text(view: LiveView) -> str:
    """Return how fast the newest steps are, and those before them."""
    counts = [rank.newest.steps_count for rank in view.ranks]
    if not counts or not view.steps_per_s:
        return ""
    newest = f"the newest {max(counts)} steps" if max(counts) > 1 else "the newest step"
    text = f"{_number(view.steps_per_s)} steps/s ({duration_text(view.step_ns)} each) in {newest}"
    if view.earlier_steps_per_s:
        before = max(rank.earlier_count for rank in view.ranks)
        text += f", {_number(view.earlier_steps_per_s)} in the {before} before"
    return text


def _warnings(view: LiveView, style: Style) -> list[str]:
    """Return that the job is stuck, and what is old or missing."""
    lines = []
    if view.stuck and (view.condition != "ended" or view.origin == "recording"):
        said, *more = view.stuck.split("; ")
        lines += [style.paint(line, "warn") for line in style.wrap(said, f"{_INDENT}▶ ", _INDENT * 2)]
        lines += [line for part in more for line in style.wrap(part, _INDENT * 2, _INDENT * 3)]
    if view.condition != "ended":
        for host in view.hosts:
            lines += style.wrap(_old_text(host), f"{_INDENT}! ", _INDENT * 2) if host.is_old else []
    for host in view.hosts:
        for note in host.notes:
            text = f"{host.host}: {note}" if len(view.hosts) > 1 else note
            lines += style.wrap(text, f"{_INDENT}! ", _INDENT * 2)
    return lines


def _old_text(host: HostView) -> str:
    ranks = f"the figures of {ranks_named(host.ranks)} are as old; "
    why = {
        True: "the process that follows the run there goes on, and gets no CPU or waits for the file system",
        False: "the process that follows the run there is gone; the job is recorded all the same",
        None: "the host or the process that follows the run there may be gone",
    }
    return (
        f"old: {host.host} was last seen {span_text(host.age_s * 1e9)} ago, more than {times.SILENT_ROUNDS} rounds; "
        f"{ranks if host.ranks else ''}{why[host.follower_lives]}"
    )


def _bars(view: LiveView, style: Style) -> list[str]:
    """Return the budget of each rank: of its newest steps, or of all once the job has ended."""
    if not view.ranks:
        return []
    ended = view.condition == "ended"
    parts = [(one.rank, one.whole if ended else one.newest) for one in view.ranks]
    budgets = [
        Budget(rank, "", spent.wall_ns / spent.steps_count, spent.share_ratio)
        for rank, spent in parts
        if spent.steps_count
    ]
    count = max(spent.steps_count for _, spent in parts)
    which = f"all {count:,} steps, the first ones too" if ended else f"newest {count} steps"
    table = budget_lines(budgets, style, ("data", "link"))
    if len(table) - 1 < len(budgets):
        which += f"; {len(budgets)} ranks, similar ranks as their median in one row"
    lines = ["", *(style.paint(line, "faint") for line in style.wrap(f"{which}:", _INDENT, _INDENT)), *table]
    return lines + style.wrap(_causes_text(view.ranks), _INDENT, _INDENT * 2)


def _causes_text(ranks: Sequence[RankView]) -> str:
    """Return who was waited for since the begin, most first; empty if nobody was."""
    causes = sorted((one for one in ranks if one.caused_wait_ns > 0), key=lambda one: -one.caused_wait_ns)
    if not causes:
        return ""
    named = [f"{duration_text(one.caused_wait_ns)} for rank {one.rank}" for one in causes[:_CAUSES_AT_MOST]]
    more = len(causes) - len(named)
    named += [f"less for {count_noun(more, 'other rank')}"] if more else []
    return f"waits since the start, summed over the ranks that waited: {', '.join(named)}"


def _costliest(view: LiveView, style: Style) -> list[str]:
    """Return the line of the user's code in which a step spends most, and that of each rank that is late.

    Of several hosts the one where it is longest; a host whose state is old says nothing about now.
    """
    known = [(host.host, line) for host in view.hosts if not host.is_old for line in host.lines]
    most = sorted((one for one in known if one[1].why == MOST), key=lambda one: -one[1].time_ns)[:1]
    late = {line.rank: (host, line) for host, line in known if line.why == LATE}
    shown = [*most, *(one for _, one in sorted(late.items())[:_LATE_AT_MOST])]
    many = len(view.hosts) > 1
    return [
        text
        for host, line in shown
        for text in style.wrap(_line_text(line, host if many and line.rank < 0 else ""), _INDENT, _INDENT * 2)
    ]


def _line_text(line: LineNow, host: str) -> str:
    """Word a line; ``host``: which it is about, empty where that needs no word."""
    whose = f" on {host}" if host else ""
    time = bounded_time(line.time_ns, line.low_ns, line.high_ns)
    kind = words_of(line.kind)
    if line.why == MOST:
        of = "a step" if line.where == STEP else "a batch of the workers"
        return f"costliest line{whose}: {line.place}, {time} {of} ({kind})"
    longer = f"{time} a step longer in" if line.where == STEP else f"its workers spend {time} a batch longer in"
    return f"rank {line.rank} is late: {longer} {line.place} ({kind})"


def _verdict_items(view: LiveView, style: Style) -> list[list[str]]:
    items = []
    for host in view.hosts:
        for text in host.verdicts:
            said = f"{host.host}: {text}" if len(view.hosts) > 1 else text
            lines = style.wrap(said, f"{_INDENT}▶ ", _INDENT * 2)
            items.append([style.paint(line, "strong") for line in lines])
    return items


def _event_items(view: LiveView, style: Style) -> list[list[str]]:
    return [_event_lines(event, view, style) for event in view.events]


def _event_lines(event: Event, view: LiveView, style: Style) -> list[str]:
    first = f"{_INDENT}{_clock(event.realtime_ns, view.now_realtime_ns)}  "
    rest = " " * len(first)
    is_above = event.text == view.stuck and view.condition == "stuck"
    lines = style.wrap("stuck, as above" if is_above else event.text, first, rest)
    named = not event.window or event.window in event.text
    return lines if named else lines + style.wrap(f"window {event.window}", rest, rest + _INDENT)


def _foot(view: LiveView, style: Style, keys: str) -> list[str]:
    parts = [f"lost records {view.lost_records_count:,}"]
    ratios = [host.own_cpu_ratio for host in view.hosts if host.own_cpu_ratio >= 0]
    if view.origin == "follower" and ratios:
        where = " on each host at most" if len(view.hosts) > 1 else ""
        parts.append(f"following the run takes {percent_text(max(ratios))} of one core{where}")
    elif view.origin == "viewer":
        parts.append(f"this command has taken {duration_text(view.hosts[0].own_cpu_ns)} of CPU time")
    if view.condition == "ended":
        parts.append(f"more: `stashtrace summary {shlex.quote(view.path)}`")
    return _flow([*parts, *([keys] if keys else [])], style, _INDENT)


def _flow(parts: Sequence[str], style: Style, indent: str) -> list[str]:
    """Return phrases side by side, as many as fit a line; one that is longer than a line is wrapped."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 4 + len(part) <= style.width:
            lines[-1] += "    " + part
        else:
            lines += style.wrap(part, indent, indent + _INDENT)
    return lines


def _clock(realtime_ns: int, now_ns: int) -> str:
    """Return the local time of an event, with its date unless it was within a day."""
    form = "%H:%M:%S" if abs(now_ns - realtime_ns) < times.DAY_NS else "%Y-%m-%d %H:%M:%S"
    return time.strftime(form, time.localtime(realtime_ns / 1e9))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"
