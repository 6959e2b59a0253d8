"""Templates say no more than their row: verbs by the bounds, every kind and code worded and documented."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from builders import MS, TraceBuilder
from scenes import job, worded

from stashtrace.analysis.findings.claim_rows import SECTIONS, Claim, Evidence
from stashtrace.analysis.findings.verdicts import confidence
from stashtrace.analysis.registry import analyze
from stashtrace.summary.words.claim_templates import CLAIMS
from stashtrace.summary.words.evidence_templates import EVIDENCE

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
    assert texts_given_to("Claim", 1) | texts_given_to("claim", 1) | set(CLAIMS) <= named
    assert texts_given_to("Evidence", 0) | texts_given_to("fact", 0) | set(EVIDENCE) <= named


def test_every_claim_has_words() -> None:
    missing = texts_given_to("Claim", 1) - set(CLAIMS)
    assert not missing
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


@pytest.mark.parametrize("kind", ["data", "late", "link", "copy", "save", "host", "other"])
def test_what_may_be_nothing_only_may_be(kind: str) -> None:
    cause = {"cause_kind": "unknown" if kind in ("other", "link") else "sync"}
    (perhaps,) = worded(claim(kind, 40, 0, 40, **cause))
    assert " may " in perhaps
    assert "up to 40.0 ms" in perhaps
    (certain,) = worded(claim(kind, 40, 40, 40, **cause))
    assert " may be" not in certain.partition(";")[0]
    assert "up to" not in certain
    assert "40.0 ms" in certain
    (least,) = worded(claim(kind, 40, 40, 80, **cause))
    assert "at least 40.0 ms" in least


def test_input_bound_needs_a_lower_bound() -> None:
    assert "input bound" in worded(claim("data", 40, 30, 60))[0]
    assert "input bound" not in worded(claim("data", 40, 20, 60))[0]
    assert "input bound" not in worded(claim("data", 5, 5, 5))[0]


def test_compute_bound_needs_a_lower_bound() -> None:
    """Host compute of which nothing is certain is not a verdict about the job."""
    (quiet,) = [r for r in analyze(job(transfer=0)[1], "findings").rows() if r["section"] == "verdict"]
    assert quiet["kind"] == "compute_bound"
    assert quiet["low_ns"] > 0.9 * quiet["stall_ns"]
    (untold,) = worded(claim("not_told", 100, 10, 100))
    assert "compute bound" not in untold
    assert "between 10 % and 100 %" in untold


def test_ranks_that_are_missing_may_have_been_waited_for() -> None:
    told = worded(claim("link", 40, 40, 40, cause_kind="network", evidence=(Evidence("all_arrived"),)))
    assert told[0].startswith("rank 0 spends 40.0 ms a step (40 %) in transfers over the network, after every rank had")
    missing = Evidence("ranks_missing", items_count=15, name="1-15")
    (told,) = worded(claim("link", 40, 40, 40, cause_kind="network", evidence=(missing,)))
    assert "every rank" not in told
    assert "ranks 1-15 left no record here" in told


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
