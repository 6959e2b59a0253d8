"""The terminal summary: what slows a run down, in one screen of plain words.

``summary`` is called by ``stashtrace run`` and ``merge``; it returns text and prints nothing. Numbers come
from ``facts``, the choice and wording of verdicts from ``findings``; here is only their arrangement.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stashtrace.analysis.staged_opens import staged_opens, used_copies
from stashtrace.model.trace import Trace
from stashtrace.report.device_evidence import agreement_line
from stashtrace.report.evidence import files_overview
from stashtrace.report.facts import GROUPS, RankFacts, RunFacts, gather
from stashtrace.report.findings import Finding, choose
from stashtrace.report.look import Look
from stashtrace.report.progress import SUSPICIOUS_NS, describe_waiting, newest_ns, waiting_collectives
from stashtrace.report.trust import without_steps
from stashtrace.units import duration_text, percent_text, ranks_text
from stashtrace.visible import visible_line

#: More ranks than this are folded into a middle row and the ranks that differ from it.
_ROWS_AT_MOST = 8
_OUTLIERS_AT_MOST = 6
_HOSTS_AT_MOST = 8
#: A longer list of ranks is only counted.
_RANKS_WIDTH = 40
_LOW_CONFIDENCE_RATIO = 0.05
_CONTENTION_RATIO = 0.05
_STEAL_RATIO = 0.02
_HIDDEN_RATIO = 0.01
#: Smaller shares are printed with a decimal.
_SMALL_RATIO = 0.00995
#: A median further than this from the mean says that a few steps are much longer or shorter than the others.
_SKEWED_RATIO = 0.1
_INDENT = "  "


def summary(trace: Trace, *, look: Look | None = None, shown: str = "") -> str:
    """Return the summary of a run as text.

    Parameters
    ----------
    trace : Trace
        One run.
    look : Look, optional
        What the screen can show: 80 columns of UTF-8 without colour by default.
    shown : str
        The run directory as the user would type it; the trace's own path by default.
    """
    look = look or Look()
    facts = gather(trace)
    return render(facts, choose(facts), look, shown or trace.path or "DIR")


def render(facts: RunFacts, findings: Sequence[Finding], look: Look, path: str) -> str:
    """Arrange facts and findings into lines; ends with a newline."""
    lines = [*_headline(facts, look), ""]
    if facts.ranks:
        lines += [*_table(facts, look), ""]
        for finding in findings:
            lines += _finding(finding, look)
        if not findings:
            lines.append(f"{_INDENT}no stall above 3 %: compute bound")
    else:
        for sentence in files_overview(facts.trace):
            lines += look.wrap(sentence, _INDENT, _INDENT * 2)
        lines += look.wrap(without_steps(facts.trace), _INDENT, _INDENT * 2)
    lines.append("")
    lines += [
        *_machine(facts, look),
        *_hosts(facts, look),
        *_hidden(facts, look),
        *_copies(facts, look),
        *_trust(facts, look),
        "",
        *_next(facts, path),
    ]
    return "\n".join(look.plain(line.rstrip()) for line in lines) + "\n"


def _headline(facts: RunFacts, look: Look) -> list[str]:
    parts = [f"{facts.ranks_count} rank{_s(facts.ranks_count)}"]
    if any(facts.hosts):
        parts[0] += f", {facts.hosts_count} host{_s(facts.hosts_count)}"
    if facts.ranks:
        step_ns = float(np.median([r.step_ns for r in facts.ranks]))
        middle_ns = float(np.median([r.middle_step_ns for r in facts.ranks]))
        parts[0] += f", {facts.steps_count} step{_s(facts.steps_count)} of {duration_text(step_ns)}"
        if abs(middle_ns - step_ns) > _SKEWED_RATIO * step_ns:
            parts[0] += f", half of them under {duration_text(middle_ns)}"
        if facts.warmup_count:
            parts[0] += f" (first {facts.warmup_count} left out)"
        parts += _mixture(facts)
    else:
        parts.append("no training steps seen")
    if facts.unexplained_ratio > _LOW_CONFIDENCE_RATIO:
        told = [f"{percent_text(share)} {what}" for what, share in facts.doubts.items() if share >= _SMALL_RATIO]
        parts.insert(0, f"LOW CONFIDENCE: {', '.join(told)}")
    if any(r.host_timed for r in facts.ranks):
        parts.insert(0, "LOW CONFIDENCE: no timed step marks on the device, steps are the host's")
    line = "stashtrace  " + "  ".join(parts)
    if len(line) <= look.width:
        return [line]
    return ["stashtrace  " + parts[0], *("            " + part for part in parts[1:])]


def _mixture(facts: RunFacts) -> list[str]:
    """How many of the counted steps are not what a reader takes a step for."""
    steps = facts.tables.get("steps")
    if steps is None:
        return []
    kinds = steps["kind"][steps["rank"] == facts.ranks[0].rank]
    told = (("validation", "validation"), ("skipped_update", "skipped by the scaler"))
    counts = [(int(np.count_nonzero(kinds == kind)), words) for kind, words in told]
    said = ", ".join(f"{count} {words}" for count, words in counts if count)
    return [f"of them {said}"] if said else []


def _table(facts: RunFacts, look: Look) -> list[str]:
    rows = _rows(facts)
    shares = [{g: np.median([r.share(g) for r in members]) for g in GROUPS} for _, members in rows]
    shown = [g for g in GROUPS if g in _always(facts) or any(s[g] >= 0.005 for s in shares)]
    label_width = max(4, *(len(label) for label, _ in rows)) + 2
    times = [duration_text(float(np.median([r.step_ns for r in members]))) for _, members in rows]
    time_width = max(len("step"), *(len(t) for t in times))
    cells = 20
    while cells > 4:
        widths = {g: max(len(g), 5 + max(len(look.bar(s[g], cells)) for s in shares)) + 2 for g in shown}
        if len(_INDENT) + label_width + time_width + 2 + sum(widths.values()) <= look.width:
            break
        cells -= 1
    lines = [
        (_INDENT + "rank".ljust(label_width) + "step".rjust(time_width) + "  "
         + "".join(_title(g, widths[g]) for g in shown)).rstrip()
    ]  # fmt: skip
    for (label, _), time, share in zip(rows, times, shares, strict=True):
        line = _INDENT + label.ljust(label_width) + time.rjust(time_width) + "  "
        percents = _percents([float(share[g]) for g in shown])
        for group, percent in zip(shown, percents, strict=True):
            bar = look.bar(share[group], cells)
            pad = " " * (widths[group] - 6 - len(bar))
            line += f"{percent:>5} " + look.paint(bar, group) + pad
        lines.append(line.rstrip())
    return lines


def _title(group: str, width: int) -> str:
    # The name begins where the percents begin to have digits, so short columns stay readable.
    return (" " + group).ljust(width) if width > len(group) else group.ljust(width)


def _percents(ratios: Sequence[float]) -> list[str]:
    """Whole percents that add up; under 1 % with a decimal.

    Compute, the first, takes what rounding leaves over, so that the stalls read as the findings say them.
    """
    large = [r >= _SMALL_RATIO for r in ratios]
    whole = [round(100 * r) for r in ratios]
    if large[0]:
        whole[0] = round(100 * sum(r for r, is_large in zip(ratios, large, strict=True) if is_large)) - sum(
            number for number, is_large in zip(whole[1:], large[1:], strict=True) if is_large
        )
    return [
        f"{number} %" if is_large else percent_text(ratio).replace(" %", "%" if ratio else " %")
        for ratio, number, is_large in zip(ratios, whole, large, strict=True)
    ]


def _always(facts: RunFacts) -> tuple[str, ...]:
    return ("compute", "data", "link", "late", "other") if facts.ranks_count > 1 else ("compute", "data", "other")


def _rows(facts: RunFacts) -> list[tuple[str, list[RankFacts]]]:
    """One row per rank; of many ranks the middle one, and those that differ."""
    if len(facts.ranks) <= _ROWS_AT_MOST:
        return [(str(r.rank), [r]) for r in facts.ranks]
    shares = np.array([[r.share(g) for g in GROUPS] for r in facts.ranks])
    distance = np.abs(shares - np.median(shares, axis=0)).max(axis=1)
    typical = float(np.median(distance))
    far = np.flatnonzero(distance > max(0.05, 4 * typical))
    apart = sorted(far[np.argsort(-distance[far], kind="stable")][:_OUTLIERS_AT_MOST].tolist())
    alike = [r for i, r in enumerate(facts.ranks) if i not in apart]
    label = ranks_text([r.rank for r in alike])
    if len(label) > 12:
        label = f"{len(alike)} ranks" if not apart else f"{len(alike)} others"
    return [(label, alike), *((str(facts.ranks[i].rank), [facts.ranks[i]]) for i in apart)]


def _finding(finding: Finding, look: Look) -> list[str]:
    first, *more = look.wrap(finding.verdict, f"{_INDENT}▶ ", _INDENT + "  ")
    lines = [look.paint(first, "strong"), *(look.paint(line, "strong") for line in more)]
    for sentence in finding.evidence:
        lines += look.wrap(sentence, _INDENT * 3, _INDENT * 4)
    return lines


def _machine(facts: RunFacts, look: Look) -> list[str]:
    """CPU contention and host steal, when they matter; a job that was cut off."""
    lines: list[str] = []
    crowded = {r.rank: r.contention_ratio for r in facts.ranks if r.contention_ratio > _CONTENTION_RATIO}
    if crowded:
        worst = max(crowded, key=crowded.__getitem__)
        which = (
            f"rank {worst}'s step thread"
            if len(crowded) == 1
            else f"the step threads of ranks {ranks_text(sorted(crowded))}"
        )
        upto = "" if len(crowded) == 1 else "up to "
        looks = "compute" if facts.ranks_count == 1 else "compute or link"
        lines += look.wrap(
            f"CPU contention: {which} stood in the run queue for {upto}{percent_text(crowded[worst])} of the step;"
            f" what looks like {looks} may be other processes",
            _INDENT, _INDENT * 2,
        )  # fmt: skip
    if facts.trust.steal_ratio > _STEAL_RATIO:
        taken = percent_text(facts.trust.steal_ratio)
        stolen = f"host steal: the hypervisor took {taken} of the CPU time of {facts.trust.steal_host}"
        lines += look.wrap(stolen, _INDENT, _INDENT * 2)
    if facts.thinned_count:
        every = facts.steps_count + facts.thinned_count
        told = f"only {facts.steps_count} of {every} steps have timing events (--event-budget): the shares are theirs"
        lines += look.wrap(told, _INDENT, _INDENT * 2)
    for sentence in facts.trust.scope:
        lines += look.wrap(sentence, _INDENT, _INDENT * 2)
    if facts.trust.ending:
        lines += look.wrap(facts.trust.ending, _INDENT, _INDENT * 2)
        hung = [w for w in waiting_collectives(facts.trace, newest_ns(facts.trace)) if w.since_ns > SUSPICIOUS_NS]
        for waiting in hung:
            lines += [
                _INDENT + "it hung: " + line if i == 0 else _INDENT + line
                for i, line in enumerate(describe_waiting(waiting))
            ]
        if facts.trust.first_to_end and not hung:
            lines += look.wrap(facts.trust.first_to_end, _INDENT, _INDENT * 2)
    return [*lines, ""] if lines else []


def _hosts(facts: RunFacts, look: Look) -> list[str]:
    """Which rank ran where, if there is more than one place."""
    hosts = facts.hosts
    if len(hosts) < 2:
        return []
    told = [f"{host or '(not named)'} {_on_host(ranks)}" for host, ranks in hosts.items()]
    more = f" and {len(told) - _HOSTS_AT_MOST} more" if len(told) > _HOSTS_AT_MOST else ""
    return look.wrap(f"hosts: {', '.join(told[:_HOSTS_AT_MOST])}{more}", _INDENT, _INDENT * 2)


def _on_host(ranks: Sequence[int]) -> str:
    """Who ran on a host: its ranks, and how many processes that are no rank."""
    known = sorted({r for r in ranks if r >= 0})
    others = sum(r < 0 for r in ranks)
    text = ranks_text(known)
    listed = f"{len(known)} ranks" if len(text) > _RANKS_WIDTH else f"rank{_s(len(known))} {text}"
    beside = f"{others} {'other ' if known else ''}process{'' if others == 1 else 'es'}"
    return " and ".join([listed] * bool(known) + [beside if known else f"{beside} without a rank"] * bool(others))


def _hidden(facts: RunFacts, look: Look) -> list[str]:
    """Work that overlapped with the step: no stall now, but one as soon as what hides it becomes faster."""
    if not facts.ranks:
        return []
    table = facts.tables["hidden"]
    counted = table.take(np.isin(table["step"], facts.tables["steps"]["step"]))
    parts = []
    for name in ("loading", "communication", "copy", "checkpoint"):
        ns = float(counted[f"hidden_{name}_ns"].mean()) if len(counted) else 0.0
        if ns >= _HIDDEN_RATIO * float(counted["wall_ns"].mean()):
            parts.append(f"{name} {duration_text(ns)}")
    return [f"{_INDENT}hidden behind the step: {', '.join(parts)} a step"] if parts else []


def _copies(facts: RunFacts, look: Look) -> list[str]:
    """Of a run with staged copies: whether the job opened them."""
    if not used_copies(facts.trace):
        return []
    count = staged_opens(facts.trace)
    if count:
        return [f"{_INDENT}staged: {count:,} open{_s(count)} served by copies"]
    said = "no open was served by a copy: the job opens the files by other names than the list has, or not at all"
    return look.wrap(said, _INDENT + "! ", _INDENT + "  ")


def _trust(facts: RunFacts, look: Look) -> list[str]:
    trust = facts.trust
    told = [("measured", trust.measured), ("inferred", trust.inferred), ("invisible here", trust.invisible)]
    lines = _flow([f"{name}: {', '.join(names) or '-'}" for name, names in told], look)
    known = trust.own_cost_ratio >= 0
    least, most = percent_text(trust.own_cost_ratio), percent_text(trust.own_cost_most_ratio)
    parts = [
        f"own cost {least} to {most} CPU" if known else "own cost not measured",
        f"lost records {trust.lost_records_count}",
        f"clocks {trust.clocks}",
    ]
    lines += _flow(parts, look)
    agreed = agreement_line(facts.tables["agreement"]) if "agreement" in facts.tables else ""
    lines += look.wrap(agreed, _INDENT, _INDENT * 2) if agreed else []
    for sentence in trust.losses:
        lines += look.wrap(sentence, _INDENT + "! ", _INDENT + "  ")
    return lines


def _flow(parts: Sequence[str], look: Look) -> list[str]:
    """Phrases side by side as long as they fit."""
    lines = [""]
    for part in (look.plain(visible_line(part)) for part in parts):
        longer = lines[-1] + "    " + part if lines[-1] else _INDENT + part
        if lines[-1] and len(longer) > look.width:
            lines.append(_INDENT + part)
        else:
            lines[-1] = longer
    # A phrase that is longer than a line is broken; wrapping the others would eat the gaps between them.
    long = [look.wrap(line, _INDENT, _INDENT * 2) if len(line) > look.width else [line] for line in lines]
    return [piece for pieces in long for piece in pieces]


def _next(facts: RunFacts, path: str) -> list[str]:
    lines = [f"timeline   stashtrace view {path}"]
    lines.append(
        f"details    stashtrace analyze stalls {path} --by step"
        if facts.ranks
        else f"details    stashtrace info {path}"
    )
    if facts.missing_ranks and not facts.imported:
        lines.append(
            f"the rest   stashtrace merge {path} OTHER_DIR   (of ranks {ranks_text(list(facts.missing_ranks))})"
        )
    return [_INDENT + line for line in lines]


def _s(count: int) -> str:
    return "" if count == 1 else "s"
