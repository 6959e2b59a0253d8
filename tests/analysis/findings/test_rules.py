"""A rule words what it finds: facts with a column stand in it, the others by their names, and no code is made twice."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "architecture"))

from source_tree import docs_script  # noqa: E402

from stashtrace.analysis.findings.claim_rows import claim, fact, tables_of  # noqa: E402
from stashtrace.summary.words import claim_text, evidence_texts, findings_of  # noqa: E402

RULES = docs_script("generate_findings")


def test_facts_of_a_claim_stand_in_their_column_or_by_their_name() -> None:
    said = "rank {rank} began with {threads_count:thread} on {cpus_count:CPU}"
    row = fact("threads", said, "counters", rank=3, threads_count=8, cpus_count=1)
    one = claim("machine", "crowded", "{items_count:rank} of {host}: {cpus_count:CPU}", [row], items_count=2, host="n0")
    (finding,), (evidence,) = (list(table.rows()) for table in tables_of([one]))
    assert (finding["text"], finding["items_count"]) == ("2 ranks of n0: 1 CPU", 2)
    assert json.loads(finding["facts"]) == {"host": "n0"}
    assert evidence["text"] == "rank 3 began with 8 threads on 1 CPU"
    assert json.loads(evidence["facts"]) == {"rank": 3, "threads_count": 8, "cpus_count": 1}


def test_facts_are_plain_numbers() -> None:
    row = fact("wait", "{wait_ns:time}", wait_ns=np.float64(1.5e6 + 0.25), calls_count=np.int64(3), part_ratio=0.25)
    assert json.loads(next(tables_of([claim("machine", "waits", "", [row])])[1].rows())["facts"]) == {
        "wait_ns": 1_500_000,
        "calls_count": 3,
        "part_ratio": 0.25,
    }


def test_parts_of_a_claim_are_said_once() -> None:
    parts = [fact("host", "{host} {ranks:ranks}", host=host, ranks=ranks) for host, ranks in (("a", "0"), ("b", "1-2"))]
    (found,) = findings_of(*tables_of([claim("machine", "hosts", "hosts: {parts}", parts=parts)]))
    assert claim_text(found) == "hosts: a rank 0, b ranks 1-2"
    assert evidence_texts(found) == []
    assert [row["facts"]["host"] for row in found.evidence] == ["a", "b"]


def test_text_of_a_recording_is_no_template() -> None:
    (found,) = findings_of(*tables_of([claim("loss", "core", "{name} is gone", name="{rank}")]))
    assert claim_text(found) == "{rank} is gone"


def test_each_code_is_made_by_one_rule() -> None:
    rules: dict[str, set[str]] = {}
    for path in RULES.rule_files():
        for code in RULES.said_by(path):
            rules.setdefault(code, set()).add(path.stem)
    assert len(rules) > 80
    # ``hosts`` is the claim about where each rank ran, and a number behind that of the ranks. ``host`` is one of them,
    # and the stall.
    assert {code for code, names in rules.items() if len(names) > 1} == {"host", "hosts"}
