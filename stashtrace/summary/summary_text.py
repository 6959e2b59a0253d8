"""The summary as text: what slows a run down, in one screen.

Numbers and claims are rows of ``budgets``, ``findings`` and ``finding_evidence``; ``words`` puts them into sentences,
and this module arranges these in lines. Nothing is printed here.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from stashtrace.analysis.findings import Summary, summarize
from stashtrace.errors import guarded
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.summary.bars import Budget, budget_lines
from stashtrace.summary.look import Look
from stashtrace.summary.words import claim_text, evidence_texts, steps_text
from stashtrace.summary.words.cause_templates import cause_texts
from stashtrace.summary.words.end_templates import ENDINGS
from stashtrace.summary.words.headline import headline_text
from stashtrace.summary.words.template_parts import Finding, findings_of
from stashtrace.visible import visible_line

#: Verdicts that are shown; the others are counted.
_VERDICTS_AT_MOST = 3
_INDENT = "  "
#: Claims of the first line that put all figures in doubt.
_WARNINGS = ("records_lost", "low_confidence", "host_timed_steps")


def summary(trace: Trace, *, look: Look | None = None, shown: str = "", first: Table | None = None) -> str:
    """Return the summary of a run as text.

    ``trace``: one run. ``look``: what the screen can show; by default 80 columns of UTF-8 without colour. ``shown``:
    the run directory as a person would type it in a command; by default the path of the trace. ``first``: what to
    change first: rows of the analysis ``causes``. Without, the summary does not say.
    """
    return render(summarize(trace), look or Look(), shown or shlex.quote(trace.path or "DIR"), first)


def render(tables: Summary, look: Look, path: str, first: Table | None = None) -> str:
    """Return the summary of these tables as text that ends with a newline; ``path`` is for the commands it names."""
    found = findings_of(tables.findings, tables.evidence)
    ranks = _budgets(tables.budgets)

    def lines_of(what: str, make: Callable[[], list[str]]) -> list[str]:
        return guarded(what, make, lambda line: look.wrap(line, f"{_INDENT}! ", _INDENT * 2))

    verdicts = _of(found, "verdict")
    # Scarce CPUs put all figures in doubt, so they are named even where larger verdicts leave no room.
    unshown = [finding for finding in verdicts[_VERDICTS_AT_MOST:] if finding.row["kind"] == "contention"]
    machine = lines_of("the machine", lambda: _plain([*unshown, *_of(found, "machine")], look))
    lines = [
        *lines_of("how the job ended", lambda: _ending(_of(found, "headline"), look)),
        *lines_of("the first lines", lambda: _top(found, look)),
        "",
        *(lines_of("the budget", lambda: _budget(found, ranks, look)) if ranks else ()),
        *lines_of("the verdicts", lambda: _verdicts(verdicts, look, path)),
        *lines_of("changes of the steps", lambda: _verdicts(_of(found, "time"), look, path)),
        *lines_of("the files", lambda: _plain(_of(found, "files"), look)),
        "",
        *([*machine, ""] if machine else ()),
        *lines_of("what is hidden", lambda: _plain(_of(found, "beside"), look)),
        *lines_of("how far to trust it", lambda: _trust(_of(found, "trust"), look)),
        *lines_of("what was lost", lambda: _losses(_of(found, "loss"), look)),
        "",
        *lines_of("what to look at next", lambda: _next(found, bool(ranks), path)),
        *(lines_of("what to do first", lambda: _do_first(first, look, path)) if first is not None and ranks else ()),
    ]
    return "\n".join(look.plain(line.rstrip()) for line in lines) + "\n"


def _of(found: Sequence[Finding], section: str) -> list[Finding]:
    return [finding for finding in found if finding.row["section"] == section]


def _budgets(table: Table) -> list[Budget]:
    ranks: dict[tuple[str, int], Budget] = {}
    for row in table.rows():
        key = (row["step_kind"], row["rank"])
        own = ranks.setdefault(key, Budget(row["rank"], row["step_kind"], row["step_ns"], {}))
        own.shares[row["column"]] = row["share_ratio"]
    return list(ranks.values())


def _budget(found: Sequence[Finding], ranks: Sequence[Budget], look: Look) -> list[str]:
    sources = {e["name"] for f in _of(found, "trust") if f.row["kind"] == "measured" for e in f.evidence}
    return [*budget_lines(ranks, look, sources), ""]


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
    line = claim_text(ranks)
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
    rows = (("measured", "inferred", "invisible"), ("own_cost", "lost_records", "clocks"))
    lines = [line for row in rows for line in _flow([by_kind[kind] for kind in row if kind in by_kind], look)]
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
    for text in cause_texts(first, path):
        head = "do first:  " if len(lines) == 1 else "then:      "
        lines += look.wrap(text, _INDENT + head, _INDENT + " " * len(head))
    return lines


def _s(count: int) -> str:
    return "" if count == 1 else "s"
