"""The headline: one sentence of at most 100 characters that says no more than the claim that it stands for."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from stashtrace.analysis.findings.claim_rows import Claim, tables_of
from stashtrace.summary.words import findings_of
from stashtrace.summary.words.headline import _beginning, headline_text
from stashtrace.summary.words.policy import POLICY

SHORT = "ranks 0-4 wait 40 to 60 % of a step for other ranks"
LONG = f"{SHORT} in all-reduce, " + "and so on " * 10


def headline(text: str, **facts: str) -> str:
    """Return the headline of a run with one verdict."""
    return headline_text(findings_of(*tables_of([Claim("verdict", "late", text=text, facts=facts)])))


def test_a_sentence_that_is_too_long_has_a_short_form() -> None:
    assert headline(SHORT, short="another") == SHORT
    assert headline(LONG, short=SHORT) == SHORT
    assert headline(f"{SHORT}; {LONG}", short=f"{SHORT}; {LONG}") == SHORT
    assert len(headline(LONG)) <= POLICY.headline_characters


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
