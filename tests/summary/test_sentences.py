"""Templates say no more than their row: verbs by the bounds, every kind and code worded and documented."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest
from builders import MS, TraceBuilder
from scenes import job

from stashtrace.analysis.findings.claim_rows import SECTIONS, Claim, tables_of
from stashtrace.analysis.findings.rules.stalls.batches import is_input_bound
from stashtrace.analysis.findings.rules.stalls.verdicts import _RULES, no_stall
from stashtrace.analysis.findings.stall_claims import confidence, phrases_of, step_words
from stashtrace.analysis.findings.summary_input import gather
from stashtrace.analysis.registry import analyze
from stashtrace.summary.words import findings_of
from stashtrace.summary.words.headline import _beginning, headline_text
from stashtrace.summary.words.policy import POLICY
from stashtrace.text.units import filled

ROOT = Path(__file__).resolve().parents[2]
FINDINGS = ROOT / "stashtrace" / "analysis" / "findings"
PAGE = (ROOT / "docs" / "reference" / "findings.md").read_text(encoding="utf-8")
STEP = 100 * MS


def texts_given_to(name: str, argument: int) -> set[str]:
    """Constant texts that the analysis gives to a class as its n-th argument."""
    found = set()
    for path in FINDINGS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
                for part in ast.walk(node.args[argument]):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value:
                        found.add(part.value)
    return found


def test_every_kind_and_code_is_documented() -> None:
    named = set(re.findall(r"`([a-z_]+)`", PAGE))
    assert texts_given_to("verdict", 0) | texts_given_to("claim", 1) <= named
    assert texts_given_to("fact", 0) <= named


def test_every_claim_has_a_section() -> None:
    assert texts_given_to("Claim", 0) | texts_given_to("claim", 0) <= set(SECTIONS)


def claim(kind: str, point: int, low: int, high: int, **more: object) -> Claim:
    """A verdict about one rank whose step takes 100 ms; times in ms."""
    return Claim(
        "verdict",
        kind,
        ranks="0",
        rank=0,
        items_count=1,
        share_ratio=point / 100,
        least_ratio=point / 100,
        stall_ns=point * MS,
        low_ns=low * MS,
        high_ns=high * MS,
        least_ns=point * MS,
        confidence=confidence(point, low, high),
        **more,  # type: ignore[arg-type]
    )


def said(kind: str, of: Claim) -> str:
    """The sentence of a stall, without what is behind it."""
    return filled(_RULES[kind][1], phrases_of(of, step_words(TraceBuilder().trace())))


@pytest.mark.parametrize("kind", _RULES)
def test_what_may_be_nothing_only_may_be(kind: str) -> None:
    perhaps = said(kind, claim(kind, 40, 0, 40))
    assert " may " in perhaps
    assert "up to 40.0 ms" in perhaps
    certain = said(kind, claim(kind, 40, 40, 40))
    assert " may be" not in certain
    assert "up to" not in certain
    assert "40.0 ms" in certain
    assert "at least 40.0 ms" in said(kind, claim(kind, 40, 40, 80))


def test_input_bound_needs_a_lower_bound() -> None:
    assert is_input_bound(claim("data", 40, 30, 60))
    assert not is_input_bound(claim("data", 40, 20, 60))
    assert not is_input_bound(claim("data", 5, 5, 5))


def test_compute_bound_needs_a_lower_bound() -> None:
    """Host compute of which nothing is certain is not a verdict about the job."""
    trace = job(transfer=0)[1]
    (quiet,) = [r for r in analyze(trace, "findings").rows() if r["section"] == "verdict"]
    assert quiet["kind"] == "compute_bound"
    assert quiet["low_ns"] > 0.9 * quiet["stall_ns"]
    facts = gather(trace)
    vague = [
        replace(r, exact={}, low={k: v // 10 for k, v in r.low.items()}, high=dict.fromkeys(r.high, r.wall_ns))
        for r in facts.ranks
    ]
    untold = no_stall(replace(facts, ranks=tuple(vague)))
    assert untold.kind == "not_told"
    assert "compute bound" not in untold.text
    assert "there may be some: between " in untold.text


def test_a_large_loss_is_the_first_thing_said() -> None:
    build, _ = job()
    build.loss("no_lane", 199_840, collector="core", advice="rows of threads that found no room in the ring file")
    rows = list(analyze(build.trace(), "findings").rows())
    assert (rows[0]["section"], rows[0]["kind"], rows[0]["items_count"]) == ("headline", "records_lost", 199_840)
    assert rows[0]["share_ratio"] > 0.9
    small, _ = job()
    small.loss("no_lane", 1, collector="core", advice="")
    assert "records_lost" not in analyze(small.trace(), "findings")["kind"].tolist()


def test_rows_join_their_evidence() -> None:
    build = TraceBuilder()
    build.rank(0).io(0, MS)
    for trace in (job(prep={0: 44})[1], build.trace()):
        findings, evidence = analyze(trace, "findings"), analyze(trace, "finding_evidence")
        assert findings["finding_id"].tolist() == findings["order"].tolist() == list(range(len(findings)))
        assert set(evidence["finding_id"].tolist()) <= set(findings["finding_id"].tolist())
        assert set(findings["section"].tolist()) <= set(SECTIONS)


SHORT = "ranks 0-4 wait 40 to 60 % of a step for other ranks"
LONG = f"{SHORT} in all-reduce, " + "and so on " * 10


def headline(text: str, **facts: str) -> str:
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
