"""The summary as text: what slows a run down, in one screen.

Numbers and claims are rows of ``budgets``, ``findings`` and ``finding_evidence``; ``words`` puts them into sentences,
and this module arranges these in lines. Nothing is printed here.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from stashtrace.analysis.findings import Summary, summarize
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.summary.words import claim_text, evidence_texts
from stashtrace.summary.words.claim_templates import steps_text
from stashtrace.summary.words.end_templates import ENDINGS
from stashtrace.summary.words.first_change_templates import first_texts
from stashtrace.summary.words.headline import headline_text
from stashtrace.summary.words.template_parts import Finding, findings_of
from stashtrace.units import duration_text, percent_text, ranks_text
from stashtrace.visible import visible_line

#: Verdicts that are shown; the others are counted.
_VERDICTS_AT_MOST = 3
#: More ranks than this become one row of the median and a row for each rank that differs from it.
_ROWS_AT_MOST = 8
_OUTLIERS_AT_MOST = 6
#: Smaller shares are printed with a decimal.
_SMALL_RATIO = 0.00995
_INDENT = "  "
#: Claims of the first line that put all figures in doubt.
_WARNINGS = ("records_lost", "low_confidence", "host_timed_steps")


@dataclass(frozen=True, slots=True)
class _Budget:
    """A rank's row of bars."""

    rank: int
    step_kind: str
    step_ns: float
    shares: dict[str, float]

    def share(self, column: str) -> float:
        return self.shares.get(column, 0.0)


def summary(trace: Trace, *, look: Look | None = None, shown: str = "", first: Table | None = None) -> str:
    """Return the summary of a run as text.

    ``trace``: one run. ``look``: what the screen can show; by default 80 columns of UTF-8 without colour. ``shown``:
    the run directory as a person would type it; by default the path of the trace. ``first``: what to change first: rows
    of the analysis ``first_changes``. Without, the summary does not say.
    """
    return render(summarize(trace), look or Look(), shown or trace.path or "DIR", first)


def render(tables: Summary, look: Look, path: str, first: Table | None = None) -> str:
    """Return the summary of these tables as text that ends with a newline; ``path`` is for the commands it names."""
    found = findings_of(tables.findings, tables.evidence)
    ranks = _budgets(tables.budgets)
    lines = [*_ending(_of(found, "headline"), look), *_top(found, look), ""]
    if ranks:
        sources = {e["name"] for f in _of(found, "trust") if f.row["kind"] == "measured" for e in f.evidence}
        lines += [*_table(ranks, look, sources), ""]
    verdicts = _of(found, "verdict")
    lines += _verdicts(verdicts, look, path)
    lines += [*_verdicts(_of(found, "time"), look, path), *_plain(_of(found, "files"), look)]
    lines.append("")
    # Scarce CPUs put all figures in doubt, so they are named even where larger verdicts leave no room.
    unshown = [finding for finding in verdicts[_VERDICTS_AT_MOST:] if finding.row["kind"] == "contention"]
    machine = _plain([*unshown, *_of(found, "machine")], look)
    lines += [*machine, ""] if machine else []
    lines += [
        *_plain(_of(found, "beside"), look),
        *_trust(_of(found, "trust"), look),
        *_losses(_of(found, "loss"), look),
        "",
        *_next(found, bool(ranks), path),
        *(_do_first(first, look, path) if first is not None and ranks else ()),
    ]
    return "\n".join(look.plain(line.rstrip()) for line in lines) + "\n"


def _of(found: Sequence[Finding], section: str) -> list[Finding]:
    return [finding for finding in found if finding.row["section"] == section]


def _budgets(table: Table) -> list[_Budget]:
    ranks: dict[tuple[str, int], _Budget] = {}
    for row in table.rows():
        key = (row["step_kind"], row["rank"])
        own = ranks.setdefault(key, _Budget(row["rank"], row["step_kind"], row["step_ns"], {}))
        own.shares[row["column"]] = row["share_ratio"]
    return list(ranks.values())


def _ending(found: Sequence[Finding], look: Look) -> list[str]:
    """Return the lines about a job that failed or stood still, which come before all others."""
    lines: list[str] = []
    for finding in found:
        if finding.row["kind"] not in ENDINGS:
            continue
        lines += [look.paint(line, "warn") for line in look.wrap(claim_text(finding), "", _INDENT)]
        for sentence in evidence_texts(finding):
            lines += look.wrap(sentence, _INDENT, _INDENT * 2)
    return [*lines, ""] if lines else []


def _top(found: Sequence[Finding], look: Look) -> list[str]:
    """Return the headline, then the lines about the run; warnings about all figures go before it."""
    about = _headline(_of(found, "headline"), look)
    if any(f.row["kind"] in ENDINGS for f in found):
        return about  # it has been said how the job ended
    said = headline_text(found)
    if said in " ".join(about):
        return about
    line = [look.paint(words, "strong") for words in look.wrap(said)]
    warned = any(f.row["kind"] in _WARNINGS for f in found)
    return [*about, "", *line] if warned else [*line, "", *about]


def _headline(found: Sequence[Finding], look: Look) -> list[str]:
    """Return the lines of warnings, then of ranks, hosts and steps."""
    by_kind: dict[str, list[Finding]] = {}
    for finding in found:
        by_kind.setdefault(finding.row["kind"], []).append(finding)
    warnings = [claim_text(f) for f in found if f.row["kind"] in _WARNINGS]
    ranks = by_kind["ranks"][0]
    line = f"{ranks.row['items_count']} rank{_s(ranks.row['items_count'])}"
    hosts = ranks.evidence[0]["items_count"]
    if hosts > 0:
        line += f", {hosts} host{_s(hosts)}"
    steps = by_kind.get("steps", [])
    if steps:
        line += ", " + ", ".join(steps_text(f, alone=len(steps) == 1) for f in steps)
    if "warmup" in by_kind:
        line += f" ({claim_text(by_kind['warmup'][0])})"
    parts = [*warnings, line, *(claim_text(f) for f in by_kind.get("no_steps", []))]
    whole = "stashtrace  " + "  ".join(parts)
    if len(whole) <= look.width:
        return [whole]
    indent = " " * len("stashtrace  ")
    lines: list[str] = []
    for part in parts:
        lines += look.wrap(part, indent if lines else "stashtrace  ", indent)
    return lines


def _table(ranks: Sequence[_Budget], look: Look, sources: Collection[str]) -> list[str]:
    """Return the table with a row of bars for each rank; rows of validation and inference follow those of training."""
    kinds = list(dict.fromkeys(rank.step_kind for rank in ranks))
    rows = [row for kind in kinds for row in _rows([rank for rank in ranks if rank.step_kind == kind])]
    shares = [{g: np.median([r.share(g) for r in members]) for g in COLUMNS} for _, members in rows]
    shown = [g for g in COLUMNS if g in _always(ranks, sources) or any(s[g] >= 0.005 for s in shares)]
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
        (
            _INDENT
            + "rank".ljust(label_width)
            + "step".rjust(time_width)
            + "  "
            + "".join(_title(g, widths[g]) for g in shown)
        ).rstrip()
    ]
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
    # The title begins above the digits of the percents, so that short columns are readable.
    return (" " + group).ljust(width) if width > len(group) else group.ljust(width)


def _percents(ratios: Sequence[float]) -> list[str]:
    """Return whole percents that add up to 100; below 1 % with a decimal.

    The first one (compute) takes the rest of the rounding, so that stalls have the same figures as in the findings.
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


def _always(ranks: Sequence[_Budget], sources: Collection[str]) -> list[str]:
    """Return the columns that are shown even if they are 0, because they were measured."""
    shown = ["compute", "other"] + (["data"] if "data" in sources else [])
    several = len({r.rank for r in ranks}) > 1
    return shown + (["link", "late"] if several and any(name.startswith("link") for name in sources) else [])


def _rows(ranks: Sequence[_Budget]) -> list[tuple[str, list[_Budget]]]:
    """Return label and ranks of each row: one rank, or of many the alike ones together and those that differ."""
    kind = f" {ranks[0].step_kind}" if ranks[0].step_kind else ""
    if len(ranks) <= _ROWS_AT_MOST:
        return [(f"{r.rank}{kind}", [r]) for r in ranks]
    shares = np.array([[r.share(g) for g in COLUMNS] for r in ranks])
    distance = np.abs(shares - np.median(shares, axis=0)).max(axis=1)
    typical = float(np.median(distance))
    far = np.flatnonzero(distance > max(0.05, 4 * typical))
    apart = sorted(far[np.argsort(-distance[far], kind="stable")][:_OUTLIERS_AT_MOST].tolist())
    alike = [r for i, r in enumerate(ranks) if i not in apart]
    label = ranks_text([r.rank for r in alike])
    if len(label) > 12:
        label = f"{len(alike)} ranks" if not apart else f"{len(alike)} others"
    return [(f"{label}{kind}", alike), *((f"{ranks[i].rank}{kind}", [ranks[i]]) for i in apart)]


def _verdicts(found: Sequence[Finding], look: Look, path: str) -> list[str]:
    lines: list[str] = []
    for finding in found[:_VERDICTS_AT_MOST]:
        quiet = finding.row["kind"] in ("compute_bound", "not_told")
        first, *more = look.wrap(claim_text(finding), _INDENT if quiet else f"{_INDENT}▶ ", _INDENT + "  ")
        lines += [first] if quiet else [look.paint(first, "strong")]
        lines += more if quiet else [look.paint(line, "strong") for line in more]
        for sentence in evidence_texts(finding):
            lines += look.wrap(sentence, _INDENT * 3, _INDENT * 4)
    left = len(found) - _VERDICTS_AT_MOST
    if left > 0:
        rest = f"{left} smaller finding{_s(left)}: `stashtrace analyze findings {path}`"
        lines += look.wrap(rest, _INDENT, _INDENT * 2)
    return lines


def _plain(found: Sequence[Finding], look: Look) -> list[str]:
    """Return claims and their evidence as sentences, one below the other."""
    lines: list[str] = []
    for finding in found:
        text = claim_text(finding)
        warns = finding.row["kind"] == "staged" and finding.row["items_count"] == 0
        lines += look.wrap(text, _INDENT + ("! " if warns else ""), _INDENT * 2) if text else []
        for sentence in evidence_texts(finding):
            lines += look.wrap(sentence, _INDENT * (2 if text else 1), _INDENT * (3 if text else 2))
    return lines


def _trust(found: Sequence[Finding], look: Look) -> list[str]:
    by_kind = {finding.row["kind"]: claim_text(finding) for finding in found}
    lines = _flow([by_kind[kind] for kind in ("measured", "inferred", "invisible")], look)
    lines += _flow([by_kind[kind] for kind in ("own_cost", "lost_records", "clocks")], look)
    return lines + (look.wrap(by_kind["agreement"], _INDENT, _INDENT * 2) if "agreement" in by_kind else [])


def _losses(found: Sequence[Finding], look: Look) -> list[str]:
    return [line for f in found for line in look.wrap(claim_text(f), _INDENT + "! ", _INDENT + "  ")]


def _flow(parts: Sequence[str], look: Look) -> list[str]:
    """Return phrases side by side, as many as fit a line."""
    lines = [""]
    for part in (look.plain(visible_line(part)) for part in parts):
        longer = lines[-1] + "    " + part if lines[-1] else _INDENT + part
        if lines[-1] and len(longer) > look.width:
            lines.append(_INDENT + part)
        else:
            lines[-1] = longer
    # Only a phrase longer than a line is wrapped: wrapping removes the gaps between phrases.
    long = [look.wrap(line, _INDENT, _INDENT * 2) if len(line) > look.width else [line] for line in lines]
    return [piece for pieces in long for piece in pieces]


def _next(found: Sequence[Finding], steps: bool, path: str) -> list[str]:
    lines = [f"timeline   stashtrace view {path}", f"report     stashtrace report {path}"]
    lines.append(
        f"details    stashtrace analyze stalls {path} --by step" if steps else f"details    stashtrace info {path}"
    )
    if any(f.first("bubble") is not None for f in found):
        stages = [f"stashtrace analyze {table} {path}" for table in ("pipeline", "slowdown")]
        lines += [f"stages     {stages[0]}", f"           {stages[1]}"]
    missing = next((f.row for f in found if f.row["kind"] == "ranks_missing"), None)
    if missing is not None and missing["name"] != "imported":
        lines.append(f"the rest   stashtrace merge {path} OTHER_DIR   (of ranks {missing['ranks']})")
    return [_INDENT + line for line in lines]


def _do_first(first: Table, look: Look, path: str) -> list[str]:
    """Return what to change first, or why that is not known."""
    lines = [""]
    for text in first_texts(first, path):
        head = "do first:  " if len(lines) == 1 else "then:      "
        lines += look.wrap(text, _INDENT + head, _INDENT + " " * len(head))
    return lines


def _s(count: int) -> str:
    return "" if count == 1 else "s"


# How the text may look: width, UTF-8 or ASCII, colour or none. The caller decides; no terminal is looked at.

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_ASCII = str.maketrans({"▶": ">", "→": "-", "±": "+", "µ": "u", "×": "x", "…": "."})
#: SGR codes by meaning; colour only repeats what the words say.
STYLES = {
    "compute": "32",
    "data": "33",
    "link": "36",
    "late": "35",
    "copy": "34",
    "save": "34",
    "host": "31",
    "other": "31",
    "strong": "1",
    "faint": "2",
    "warn": "1;33",
}


@dataclass(frozen=True, slots=True)
class Look:
    """What the screen can show."""

    width: int = 80
    utf8: bool = True
    colour: bool = False

    def paint(self, text: str, style: str) -> str:
        """Return ``text`` in the colour of a meaning, if colour is wanted."""
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if self.colour and text.strip() else text

    def bar(self, ratio: float, cells_of_whole: int) -> str:
        """Return a bar of ``ratio`` (at most 1) times ``cells_of_whole`` cells; from 0.5 % on it is visible."""
        ratio = min(ratio, 1.0) if ratio > 0 else 0.0
        if not self.utf8:
            return "#" * max(round(ratio * cells_of_whole), 1 if ratio >= 0.005 else 0)
        eighths = max(round(ratio * cells_of_whole * 8), 1 if ratio >= 0.005 else 0)
        return _EIGHTHS[8] * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")

    def plain(self, text: str) -> str:
        """Return the text in the characters that the screen has."""
        if self.utf8:
            return text
        return text.replace("±", "+-").translate(_ASCII).encode("ascii", "replace").decode("ascii")

    def wrap(self, text: str, first: str = "", rest: str = "") -> list[str]:
        """Break a sentence into lines of the width, with one indent for the first and one for the others.

        The text has no colour yet: control characters in it are part of a name, and are made visible.
        """
        lines: list[str] = []
        line = first
        fresh = True
        for word in map(visible_line, text.split()):
            if not fresh and len(line) + 1 + len(word) > self.width:
                lines.append(line)
                line, fresh = rest, True
            line += word if fresh else " " + word
            fresh = False
        return [*lines, line] if not fresh else lines
