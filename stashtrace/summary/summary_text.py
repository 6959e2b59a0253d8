"""The summary as text: what slows a run down, in one screen.

Numbers and claims are rows of ``budgets``, ``findings`` and ``finding_evidence``; ``words`` puts them into sentences,
and this module arranges these in lines. Nothing is printed here.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from functools import partial

from stashtrace.analysis.findings import Summary, summarize
from stashtrace.analysis.findings.claim_rows import tables_of
from stashtrace.analysis.findings.rules.ending import ENDINGS
from stashtrace.analysis.findings.rules.ending.hangs import ending_claims
from stashtrace.errors import guarded
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.summary.bars import Budget, budget_lines
from stashtrace.summary.causes_block import causes_block, causes_found
from stashtrace.summary.style import Style
from stashtrace.summary.words import Finding, Row, claim_text, evidence_texts, findings_of
from stashtrace.summary.words.headline import headline_text
from stashtrace.summary.words.policy import POLICY
from stashtrace.text.visible import visible_line

#: Verdicts that are shown; the others are counted.
_VERDICTS_AT_MOST = 3
_INDENT = "  "
#: Claims about the machine that are in nearly every run, and are listed with all findings.
_IN_ALL = ("start", "hosts")
#: Claims about what was recorded that say the same of nearly every run.
_USUAL = ("measured", "clocks")
#: Causes that make the first step of an epoch long.
_BETWEEN_EPOCHS = ("persistent_workers",)
#: Claims about long steps.
_IN_FEW = ("slow_steps", "period")
#: What says more.
_NEXT = "report, summary --all"
#: Waits for other ranks that no cause explains are named from this part of a step on; less is seen in the table alone.
_WAITS_RATIO = 0.1
#: Claims of the first line that put all figures in doubt.
WARNINGS = ("records_lost", "low_confidence", "host_timed_steps")


def summary(
    trace: Trace, *, style: Style | None = None, shown: str = "", first: Table | None = None, everything: bool = False
) -> str:
    """Return the summary of a run as text.

    ``trace``: one run. ``style``: what the screen can show; by default 80 columns of UTF-8 without colour. ``shown``:
    the run directory as a person would type it in a command; by default the path of the trace. ``first``: rows of the
    analysis ``causes``. Without, or where they name no cause, or for ``everything``, all findings are listed.
    """
    return render(summarize(trace), style or Style(), shown or shlex.quote(trace.path or "DIR"), first, everything)


def render(tables: Summary, style: Style, path: str, first: Table | None = None, everything: bool = False) -> str:
    """Return the summary of these tables as text that ends with a newline; ``path`` is for the commands it names."""
    found = findings_of(tables.findings, tables.evidence)
    ranks = _budgets(tables.budgets)
    causes = causes_found(first)
    if everything or not causes or not ranks:
        most = len(found) if everything else _VERDICTS_AT_MOST
        lines = _whole_page(found, ranks, style, path, first, most)
    else:
        unsaid = [row["reason"] for row in first.rows() if row["reason"]] if first is not None else []
        lines = _page_of_causes(found, ranks, style, path, causes, unsaid)
    return "\n".join(style.plain(line.rstrip()) for line in lines) + "\n"


def _lines_of(style: Style, what: str, make: Callable[[], list[str]]) -> list[str]:
    return guarded(what, make, lambda line: style.wrap(line, f"{_INDENT}! ", _INDENT * 2))


def _page_of_causes(
    found: Sequence[Finding],
    ranks: Sequence[Budget],
    style: Style,
    path: str,
    causes: Sequence[Row],
    unsaid: Sequence[str],
) -> list[str]:
    """Return the page of a usual job: its causes, and what limits them."""
    lines_of = partial(_lines_of, style)
    headline, verdicts = _of(found, "headline"), _of(found, "verdict")
    # That time lies in few steps is said with its cause.
    few = any(
        0 < 2 * row["steps_count"] <= row["of_steps_count"] or row["every_count"] > 1 or row["kind"] in _BETWEEN_EPOCHS
        for row in causes
    )
    changes = [one for one in _of(found, "time") if one.row["kind"] not in _IN_FEW or not few]
    said = {row["kind"] for row in causes}
    crowded = [one for one in verdicts if one.row["kind"] == "contention"]
    # Steps of validation and inference are no part of the replay.
    changes += [one for one in verdicts if one.row["name"] and one not in crowded][:1]
    # Waits for other ranks that no cause explains, and what a pipeline waits for in any case.
    waits = [one for one in verdicts if one.row["kind"] == "late" and not one.row["name"]]
    waits = [one for one in waits if one.row["share_ratio"] >= _WAITS_RATIO]
    waits = [] if any(row["waiting_ranks"] for row in causes) else waits[:1]
    machine = [*crowded, *_of(found, "machine")]
    machine = [one for one in machine if one.row["kind"] not in {*_IN_ALL, *said}]
    warnings = [one for one in _of(found, "beside") if one.row["kind"] == "staged" and one.row["items_count"] == 0]
    one_host = sum(f.row["kind"] == "hosts" for f in _of(found, "machine")) == 0
    usual = _USUAL if one_host else _USUAL[:1]
    limits = [one for one in _of(found, "trust") if one.row["kind"] not in usual]
    limits = [one for one in limits if one.row["kind"] != "inferred" or one.evidence]
    return [
        *lines_of("how the job ended", lambda: _ending(headline, style)),
        *lines_of("the first lines", lambda: _top(found, style, headline_text(found, causes, _two_lines(style)))),
        "",
        *lines_of("the budget", lambda: _budget(found, ranks, style)),
        *lines_of("the causes", lambda: causes_block(causes, found, style, path)),
        *lines_of("changes of the steps", lambda: _claims(changes, style)),
        "",
        *lines_of("waits for other ranks", lambda: _claims(waits, style)),
        *lines_of("the machine", lambda: _plain([*machine, *warnings], style)),
        *lines_of("how far to trust it", lambda: _trust(limits, style)),
        *lines_of("what was lost", lambda: _losses(_of(found, "loss"), style)),
        *(line for reason in unsaid for line in style.wrap(reason, f"{_INDENT}! ", _INDENT * 2)),
        "",
        *lines_of("what to look at next", lambda: _commands(found, path)),
    ]


def _claims(found: Sequence[Finding], style: Style) -> list[str]:
    """Return claims without their evidence; of one that is its evidence, the first sentence of that."""
    texts = [claim_text(finding) or "".join(evidence_texts(finding)[:1]) for finding in found]
    return [line for text in texts if text for line in style.wrap(text, _INDENT, _INDENT * 2)]


def _commands(found: Sequence[Finding], path: str) -> list[str]:
    """Return the command that shows most, and names of those that say more."""
    rest = _the_rest(found, path)
    return [f"{_INDENT}timeline   stashtrace view {path}   (or {_NEXT})", *([_INDENT + rest] if rest else ())]


def _whole_page(
    found: Sequence[Finding], ranks: Sequence[Budget], style: Style, path: str, first: Table | None, most: int
) -> list[str]:
    """Return all findings of a run, with its causes or why none is known. ``most``: verdicts that are listed."""
    lines_of = partial(_lines_of, style)
    causes, verdicts = causes_found(first), _of(found, "verdict")
    said = headline_text(found, causes if ranks else [], _two_lines(style))
    # Scarce CPUs put all figures in doubt, so they are named even where larger verdicts leave no room.
    unshown = [finding for finding in verdicts[most:] if finding.row["kind"] == "contention"]
    machine = lines_of("the machine", lambda: _plain([*unshown, *_of(found, "machine")], style))
    return [
        *lines_of("how the job ended", lambda: _ending(_of(found, "headline"), style)),
        *lines_of("the first lines", lambda: _top(found, style, said)),
        "",
        *(lines_of("the budget", lambda: _budget(found, ranks, style)) if ranks else ()),
        *lines_of("the causes", lambda: causes_block(causes, found, style, path)),
        *(["", f"{_INDENT}all findings, by the time that they are about:"] if causes else []),
        *lines_of("the verdicts", lambda: _verdicts(verdicts, style, path, most)),
        *lines_of("changes of the steps", lambda: _verdicts(_of(found, "time"), style, path, most)),
        *lines_of("the files", lambda: _plain(_of(found, "files"), style)),
        "",
        *([*machine, ""] if machine else ()),
        *lines_of("what is hidden", lambda: _plain(_of(found, "beside"), style)),
        *lines_of("how far to trust it", lambda: _trust(_of(found, "trust"), style)),
        *lines_of("what was lost", lambda: _losses(_of(found, "loss"), style)),
        "",
        *lines_of("what to look at next", lambda: _next(found, bool(ranks), path)),
        *(lines_of("why no cause is known", lambda: _no_cause(first, style)) if first is not None and ranks else ()),
    ]


def _two_lines(style: Style) -> int:
    """Return how many characters stand in two lines, wherever the first one is broken."""
    return max(2 * style.width - POLICY.long_word_characters, POLICY.headline_characters)


def _of(found: Sequence[Finding], section: str) -> list[Finding]:
    return [finding for finding in found if finding.row["section"] == section]


def _budgets(table: Table) -> list[Budget]:
    ranks: dict[tuple[str, int], Budget] = {}
    for row in table.rows():
        key = (row["step_kind"], row["rank"])
        budget = ranks.setdefault(key, Budget(row["rank"], row["step_kind"], row["step_ns"], {}))
        budget.shares[row["column"]] = row["share_ratio"]
    return list(ranks.values())


def _budget(found: Sequence[Finding], ranks: Sequence[Budget], style: Style) -> list[str]:
    sources = {e["facts"]["name"] for f in _of(found, "trust") if f.row["kind"] == "measured" for e in f.evidence}
    return [*budget_lines(ranks, style, sources), ""]


def _ending(found: Sequence[Finding], style: Style) -> list[str]:
    """Return the lines about a job that failed or stood still, which come before all others."""
    lines: list[str] = []
    for finding in found:
        if finding.row["kind"] not in ENDINGS:
            continue
        lines += [style.paint(line, "warn") for line in style.wrap(claim_text(finding), "", _INDENT)]
        for sentence in evidence_texts(finding):
            lines += style.wrap(sentence, _INDENT, _INDENT * 2)
    return [*lines, ""] if lines else []


def _top(found: Sequence[Finding], style: Style, said: str) -> list[str]:
    """Return the headline, then the lines about the run; warnings about all figures go before it."""
    about = _headline(_of(found, "headline"), style)
    if any(f.row["kind"] in ENDINGS for f in found):
        return about  # it has been said how the job ended
    if said in " ".join(about):
        return about
    line = [style.paint(words, "strong") for words in style.wrap(said)]
    warned = any(f.row["kind"] in WARNINGS for f in found)
    return [*about, "", *line] if warned else [*line, "", *about]


def _headline(found: Sequence[Finding], style: Style) -> list[str]:
    """Return the lines of warnings, then of ranks, hosts and steps."""
    by_kind: dict[str, list[Finding]] = {}
    for finding in found:
        by_kind.setdefault(finding.row["kind"], []).append(finding)
    warnings = [claim_text(f) for f in found if f.row["kind"] in WARNINGS]
    ranks = by_kind["ranks"][0]
    line = claim_text(ranks)
    hosts = ranks.evidence[0]["facts"]["items_count"]
    if hosts > 0:
        line += f", {hosts} host{_s(hosts)}"
    steps = by_kind.get("steps", [])
    if steps:
        line += ", " + ", ".join(map(claim_text, steps))
    if "warmup" in by_kind:
        line += f" ({claim_text(by_kind['warmup'][0])})"
    parts = [*warnings, line, *(claim_text(f) for f in by_kind.get("no_steps", []))]
    whole = "stashtrace  " + "  ".join(parts)
    if len(whole) <= style.width:
        return [whole]
    indent = " " * len("stashtrace  ")
    lines: list[str] = []
    for part in parts:
        lines += style.wrap(part, indent if lines else "stashtrace  ", indent)
    return lines


def _verdicts(found: Sequence[Finding], style: Style, path: str, most: int) -> list[str]:
    lines: list[str] = []
    for finding in found[:most]:
        quiet = finding.row["kind"] in ("compute_bound", "not_told")
        first, *more = style.wrap(claim_text(finding), _INDENT if quiet else f"{_INDENT}▶ ", _INDENT + "  ")
        lines += [first] if quiet else [style.paint(first, "strong")]
        lines += more if quiet else [style.paint(line, "strong") for line in more]
        for sentence in evidence_texts(finding):
            lines += style.wrap(sentence, _INDENT * 3, _INDENT * 4)
    left = len(found) - most
    if left > 0:
        rest = f"{left} smaller finding{_s(left)}: `stashtrace summary --all {path}`"
        lines += style.wrap(rest, _INDENT, _INDENT * 2)
    return lines


def _plain(found: Sequence[Finding], style: Style) -> list[str]:
    """Return claims and their evidence as sentences, one below the other."""
    lines: list[str] = []
    for finding in found:
        text = claim_text(finding)
        warns = finding.row["kind"] == "staged" and finding.row["items_count"] == 0
        lines += style.wrap(text, _INDENT + ("! " if warns else ""), _INDENT * 2) if text else []
        for sentence in evidence_texts(finding):
            lines += style.wrap(sentence, _INDENT * (2 if text else 1), _INDENT * (3 if text else 2))
    return lines


def _trust(found: Sequence[Finding], style: Style) -> list[str]:
    by_kind = {finding.row["kind"]: claim_text(finding) for finding in found}
    rows = (("measured", "inferred", "invisible", "own_cost", "lost_records", "clocks"),)
    lines = [line for row in rows for line in _flow([by_kind[kind] for kind in row if kind in by_kind], style)]
    return lines + (style.wrap(by_kind["agreement"], _INDENT, _INDENT * 2) if "agreement" in by_kind else [])


def _losses(found: Sequence[Finding], style: Style) -> list[str]:
    return [line for f in found for line in style.wrap(claim_text(f), _INDENT + "! ", _INDENT + "  ")]


def _flow(parts: Sequence[str], style: Style) -> list[str]:
    """Return phrases side by side, as many as fit a line."""
    lines = [""]
    for part in (style.plain(visible_line(part)) for part in parts):
        longer = lines[-1] + "    " + part if lines[-1] else _INDENT + part
        if lines[-1] and len(longer) > style.width:
            lines.append(_INDENT + part)
        else:
            lines[-1] = longer
    # Only a phrase longer than a line is wrapped: wrapping removes the gaps between phrases.
    long = [style.wrap(line, _INDENT, _INDENT * 2) if len(line) > style.width else [line] for line in lines]
    return [piece for pieces in long for piece in pieces]


def _the_rest(found: Sequence[Finding], path: str) -> str:
    """Return how to read what a run directory lacks; empty if it lacks no rank."""
    missing = next((f.row for f in found if f.row["kind"] == "ranks_missing"), None)
    if missing is None or missing["name"] == "imported":
        return ""
    return f"the rest   stashtrace merge {path} OTHER_DIR   (of ranks {missing['ranks']})"


def _next(found: Sequence[Finding], steps: bool, path: str) -> list[str]:
    lines = [f"timeline   stashtrace view {path}", f"report     stashtrace report {path}"]
    lines.append(
        f"details    stashtrace analyze stalls {path} --by step" if steps else f"details    stashtrace info {path}"
    )
    if any(f.first("bubble") is not None for f in found):
        stages = [f"stashtrace analyze {table} {path}" for table in ("pipeline", "slowdown")]
        lines += [f"stages     {stages[0]}", f"           {stages[1]}"]
    rest = _the_rest(found, path)
    return [_INDENT + line for line in (*lines, *([rest] if rest else ()))]


def _no_cause(first: Table, style: Style) -> list[str]:
    """Return why no cause, or no further one, is known."""
    reasons = [row["reason"] for row in first.rows() if row["reason"]]
    return ["", *(line for reason in reasons for line in style.wrap(reason, f"{_INDENT}causes     ", " " * 13))]


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def describe_stuck(trace: Trace, *, lives: bool = False) -> list[str]:
    """Return lines about how the job failed or stands still: who is waited for, who waits, what was done last.

    Of one that still ``lives`` it is not said that it hung.
    """
    lines = []
    for finding in findings_of(*tables_of(ending_claims(trace, lives=lives))):
        lines.append(claim_text(finding))
        lines += [f"  {sentence}" for sentence in evidence_texts(finding)]
    return lines
