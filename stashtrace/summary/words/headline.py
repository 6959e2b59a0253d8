"""The headline: what matters most about a run, in one short sentence."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from stashtrace.analysis.findings.rules.ending import ENDINGS
from stashtrace.errors import guarded
from stashtrace.summary.causes_block import steps_of
from stashtrace.summary.words import Finding, Row, claim_text
from stashtrace.summary.words.cause_templates import cause_headline
from stashtrace.summary.words.policy import POLICY

_NO_STEPS = "no_steps"


def headline_text(
    found: Sequence[Finding], causes: Sequence[Row] = (), characters: int = POLICY.headline_characters
) -> str:
    """Return what matters most about a run as one sentence; a cause has at most ``characters``.

    How a job ended goes before what slowed it down: its first cause, or, where none is known, its first claim.
    ``causes``: rows of that table without reasons.
    """
    ended = any(f.row["kind"] in ENDINGS for f in found)
    is_first = bool(causes) and not ended and not _waits_for_more(causes[0], found)
    said = cause_headline(causes[0], steps_of(causes[0], found), characters) if is_first else ""
    return said or guarded("the headline", lambda: _headline_text(found), str)


def _waits_for_more(cause: Row, found: Sequence[Finding]) -> bool:
    """Return whether ranks wait for others more than twice as long as a cause can save that no replay has followed."""
    waits = (f.row["share_ratio"] for f in found if f.row["section"] == "verdict" and f.row["kind"] == "late")
    return bool(cause["saved_ns"] < 0 and max(waits, default=0.0) > 2 * cause["high_ratio"])


def _headline_text(found: Sequence[Finding]) -> str:
    ended = [f for f in found if f.row["kind"] in ENDINGS]
    verdicts = [f for f in found if f.row["section"] == "verdict"]
    others = [f for f in found if f.row["kind"] == _NO_STEPS]
    for finding in [*ended, *verdicts, *others]:
        short = finding.row["facts"].get("short", "")
        texts = [text for text in (claim_text(finding), short, short.partition("; ")[0]) if text]
        if texts:
            fits = (text for text in texts if len(text) <= POLICY.headline_characters)
            return next(fits, _beginning(texts[-1]))
    return ""


def _beginning(text: str) -> str:
    """Return the clauses of a sentence that fit; where the first is too long, the part of it that fits, marked."""
    least, most = POLICY.clause_characters, POLICY.headline_characters
    end = max(text.rfind(mark, least, most + len(mark)) for mark in (": ", "; "))
    return text[:end] if end > 0 else textwrap.shorten(text, most, placeholder=" …")
