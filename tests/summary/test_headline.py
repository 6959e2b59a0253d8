"""The headline: one sentence of at most 100 characters that says no more than the claim that it stands for."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import pytest
from builders import MS

from stashtrace.analysis.findings.claim_rows import Claim, Evidence, tables_of
from stashtrace.summary.words import claim_text
from stashtrace.summary.words.claim_templates import steps_text
from stashtrace.summary.words.headline import MOST_CHARACTERS, _beginning, headline_text
from stashtrace.summary.words.template_parts import Finding, findings_of

RANKS = "0,2,5,7,11"


def finding(kind: str, cause: str, *evidence: Evidence, low_ms: int = 40, confidence: str = "exact") -> Finding:
    """Return a verdict about five ranks that lose 40 to 60 of 100 ms; its sentence is too long for a headline."""
    row = Claim(
        "verdict",
        kind,
        ranks=RANKS,
        rank=0,
        items_count=5,
        share_ratio=0.6,
        least_ratio=0.4,
        stall_ns=60 * MS,
        low_ns=low_ms * MS,
        high_ns=60 * MS,
        least_ns=40 * MS,
        confidence=confidence,
        cause_kind=cause,
        evidence=evidence,
    )
    (made,) = findings_of(*tables_of([row]))
    return made


@pytest.mark.parametrize(
    ("kind", "cause", "said", "never"),
    [
        ("data", "worker", "for batches", "read"),
        ("data", "reads", "in reads of files", "batches"),
        ("host", "launch", "because of the host", "wait "),
        ("host", "python", "up to 60 % of a step outside forward, backward", "wait"),
        ("host", "pauses", "pause for", "host"),
        ("other", "unknown", "no known cause", "wait"),
        ("other", "gil", "for the GIL", "blocked"),
        ("other", "no_operator", "no operator", "blocked"),
    ],
)
def test_a_short_form_says_what_the_claim_says(kind: str, cause: str, said: str, never: str) -> None:
    one = finding(kind, cause)
    headline = headline_text([one])
    assert len(headline) <= MOST_CHARACTERS
    assert said in headline, (headline, claim_text(one))
    assert never not in headline, headline


def test_bounds_of_one_rank_are_an_upper_one_of_several() -> None:
    claim = finding("data", "worker", low_ms=30, confidence="between")
    assert headline_text([claim]).startswith("ranks 0,2,5,7,11 are input bound: up to 60.0 ms a step (up to 60 %)")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "stage 1 (ranks 64, 66, 68 … 126) computes 6.01 s a step, the other 3.99 s: an even split would save 17 %",
            "stage 1 (ranks 64, 66, 68 … 126) computes 6.01 s a step, the other 3.99 s",
        ),
        ("late: " + "word " * 30, "late: " + " ".join(["word"] * 18) + " …"),
    ],
)
def test_a_sentence_that_is_too_long_ends_with_a_clause(text: str, said: str) -> None:
    """A short first one says too little: then the text is cut, and marked."""
    assert _beginning(text) == said


def test_the_mean_of_growing_steps_need_not_lie_between_the_usual_ones() -> None:
    row = Claim("headline", "steps", "training", items_count=60, stall_ns=188 * MS)
    grows = Evidence("steps_grow", low_ns=177 * MS, amount_ns=187 * MS)
    (made,) = findings_of(*tables_of([replace(row, evidence=(grows,))]))
    assert steps_text(made, alone=True) == "60 steps, mean 188 ms: the usual step grows from 177 ms to 187 ms"
