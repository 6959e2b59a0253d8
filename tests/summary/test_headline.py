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


@pytest.mark.parametrize(("part", "said"), [(0.6, "wait 60 % of a step partly for it"), (0.99, "step for it")])
def test_a_wait_that_has_several_causes_is_not_all_for_one(part: float, said: str) -> None:
    work = Evidence("late_surplus", rank=7, of_count=-1, amount_ns=30 * MS, kind="sleep")
    links = [Evidence("late_link", rank=7, items_count=1, name=name, kind="all_reduce") for name in ("0,2,5", "11")]
    total = Evidence("late_sum", amount_ns=100 * MS, low_ns=100 * MS, high_ns=100 * MS)
    whole = Evidence("late_part", rank=0, part_ratio=part)
    claim = finding("late", "sleep", Evidence("late_root", rank=7), work, *links, total, whole)
    assert headline_text([Finding({**claim.row, "ranks": "0-5", "least_ratio": 0.6}, claim.evidence)]).endswith(said)


def test_one_rank_that_waits_for_two_says_which_part_is_for_one() -> None:
    work = Evidence("late_surplus", rank=7, of_count=-1, amount_ns=30 * MS, kind="sleep")
    link = Evidence("late_link", rank=7, items_count=1, name="0", kind="all_reduce")
    for part, said in ((0.64, "a step (60 %), 64 % of which is for it"), (0.99, "a step (60 %) for it")):
        whole = Evidence("late_part", rank=0, part_ratio=part)
        claim = finding("late", "sleep", Evidence("late_root", rank=7), work, link, whole)
        row = {**claim.row, "ranks": "0", "items_count": 1}
        assert claim_text(Finding(row, claim.evidence)).endswith(f"; rank 0 waits 60.0 ms {said}")


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


def test_several_ranks_with_more_work_are_all_named_with_their_amounts() -> None:
    rows = [Evidence("unlike_rank", rank=rank, amount_ns=ms * MS, kind="compute") for rank, ms in ((8, 60), (9, 40))]
    one = finding("late", "compute", *rows)
    one.row["cause_rank"] = 8
    said = "ranks 8,9 have 40.0 ms to 60.0 ms a step more work than the others and come last by turns"
    assert claim_text(one).startswith(f"{said}; ranks {RANKS} wait ")
    assert headline_text([one]) == said


def test_the_mean_of_growing_steps_need_not_lie_between_the_usual_ones() -> None:
    row = Claim("headline", "steps", "training", items_count=60, stall_ns=188 * MS)
    grows = Evidence("steps_grow", low_ns=177 * MS, amount_ns=187 * MS)
    (made,) = findings_of(*tables_of([replace(row, evidence=(grows,))]))
    assert steps_text(made, alone=True) == "60 steps, mean 188 ms: the usual step grows from 177 ms to 187 ms"
