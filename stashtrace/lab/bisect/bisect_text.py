"""The answer of `stashtrace bisect` as text, and as a document for programs."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stashtrace.lab.bisect.commits import Commit
from stashtrace.lab.bisect.find_commit import Found, Judged
from stashtrace.lab.compare_by_turns import Compared
from stashtrace.schema.stall_kinds import words_of
from stashtrace.summary.between_runs_text import functions_of_gate
from stashtrace.summary.gate_text import document, sentences
from stashtrace.text import align, count_noun, wrap
from stashtrace.units import percent_text, shortened
from stashtrace.visible import visible_line

_SUBJECT_WIDTH = 40


def judged_text(one: Judged) -> str:
    """Return what is said of a commit as soon as it is judged."""
    return f"{one.commit.short} {one.mark} after {count_noun(one.runs_count, 'run')}: {one.why}"


def bisect_lines(found: Found, commits_count: int) -> list[str]:
    """Return the lines for a terminal.

    ``commits_count``: commits after the good one, up to the bad one.
    """
    lines = [_headline(found), ""]
    chosen = ", half of its growth from the good commit to the bad one" if found.chosen else ""
    lines += wrap(
        f"a commit is bad if a run has more than {', '.join(one.words for one in found.conditions)}{chosen}", ""
    )
    lines += ["", *align(_rows(found), (0, 1, 2, 5)), ""]
    if found.first_bad is None:
        lines += ["the first bad commit is one of:", *(f"  {_named(commit)}" for commit in found.left), ""]
    lines += ["evidence:"]
    for text in _sentences(found.evidence):
        lines += wrap(text)
    lost = sum(one.compared.contended_count for one in _all(found) if one.compared is not None)
    lines += ["", f"{count_noun(found.runs_count, 'run')} for {count_noun(commits_count, 'commit')}"]
    if lost:
        lines[-1] += f"; {lost} not used, since other work disturbed them"
    return lines


def bisect_document(found: Found, commits_count: int) -> dict[str, Any]:
    """Return the same for programs."""
    return {
        "good": _commit(found.good),
        "bad": _commit(found.bad),
        "commits_count": commits_count,
        "conditions": [str(condition) for condition in found.conditions],
        "conditions_chosen": found.chosen,
        "first_bad": None if found.first_bad is None else _commit(found.first_bad),
        "left": [_commit(commit) for commit in found.left],
        "runs_count": found.runs_count,
        "judged": [
            {
                **_commit(one.commit),
                "mark": one.mark,
                "why": one.why,
                "runs_count": one.runs_count,
                "contended_runs_count": one.compared.contended_count if one.compared is not None else 0,
                "gate": _gate(one),
            }
            for one in _all(found)
        ],
    }


def _headline(found: Found) -> str:
    if found.first_bad is None:
        return f"INCONCLUSIVE: {count_noun(len(found.left), 'commit')} could not be told apart"
    return f"FIRST BAD COMMIT: {_named(found.first_bad)}"


def _all(found: Found) -> Sequence[Judged]:
    return found.ends, *found.judged


def _rows(found: Found) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("commit", "subject", "verdict", "runs", "growth of step", "kinds that grew")]
    for one in _all(found):
        subject = shortened(visible_line(one.commit.subject), _SUBJECT_WIDTH)
        rows.append((one.commit.short, subject, one.mark, str(one.runs_count), *_growth(one.compared)))
    return rows


def _growth(compared: Compared | None) -> tuple[str, str]:
    """Return what the step grew by, and the kinds that grew beyond doubt."""
    if compared is None or compared.gate is None or not compared.gate.changes:
        return "-", "-"
    step, *kinds = compared.gate.changes
    grown = sorted((kind for kind in kinds if kind.low_ns > 0), key=lambda kind: -kind.change_ns)
    share = percent_text(abs(step.change_ns) / step.before_ns)
    return f"{'-' if step.change_ns < 0 else '+'}{share}", ", ".join(words_of(kind.kind) for kind in grown) or "-"


def _sentences(one: Judged) -> list[str]:
    if one.compared is None or one.compared.gate is None:
        return [one.why]
    return [*sentences(one.compared.gate), *functions_of_gate(one.compared.gate)]


def _gate(one: Judged) -> dict[str, Any] | None:
    return document(one.compared.gate) if one.compared is not None and one.compared.gate is not None else None


def _named(commit: Commit) -> str:
    return f"{commit.short} {visible_line(commit.subject)}"


def _commit(commit: Commit) -> dict[str, str]:
    return {"commit": commit.sha, "subject": commit.subject}
