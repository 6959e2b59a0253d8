"""Advice on how to record more: options and functions of ours are advised for recordings of ours alone."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from importers.kineto_files import device, host, launch, step, write
from scenes import verdicts

import stashtrace
from stashtrace.analysis.findings.claim_rows import FINDING_EVIDENCE, FINDINGS
from stashtrace.summary.words import claim_text
from stashtrace.summary.words.evidence_templates import EVIDENCE
from stashtrace.summary.words.template_parts import Finding

PACKAGE = Path(stashtrace.__file__).parent
OURS = re.compile(r"stashtrace run|stashtrace\.annotate|--kernels|--stacks")


def _finding(imported: bool, **fields: Any) -> Finding:
    row = {**dict.fromkeys(FINDINGS.names, 0), "ranks": "0", "items_count": 1, "call": "", "name": "", **fields}
    codes = ["of_another_tool"] * imported
    evidence = [{**dict.fromkeys(FINDING_EVIDENCE.names, 0), "code": code, "kind": "", "name": ""} for code in codes]
    return Finding(row, tuple(evidence))


@pytest.mark.parametrize("imported", [False, True])
def test_ours_are_advised_for_recordings_of_ours(imported: bool) -> None:
    perhaps = _finding(imported, kind="host", cause_kind="perhaps", confidence="up_to", high_ns=10**6)
    for text in (claim_text(perhaps), EVIDENCE["python_unknown"]({"kind": "", "items_count": -1}, perhaps)):
        assert bool(OURS.search(text)) is not imported
        assert "recording" in text or not imported


def test_what_another_tool_recorded_says_so(tmp_path: Path) -> None:
    events = []
    for at in range(0, 5000, 1000):
        events += [step(at // 1000, at, 1000), launch(at + 1, at + 5), device("gemm", at + 10, 100, correlation=at + 1)]
        events += [host("aten::mm", at + 1, 20)]
    trace = stashtrace.load(write(tmp_path / "rank0.json", events))
    assert verdicts(trace)
    rows = stashtrace.analyze(trace, "finding_evidence")
    assert "of_another_tool" in rows["code"].tolist()


def test_words_of_ours_stand_where_recordings_are_told_apart() -> None:
    """Whatever template comes next: an option of ours in its words would be advised for every recording."""
    found = []
    for path in sorted((PACKAGE / "summary" / "words").glob("*.py")):
        texts = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
        if path.name != "template_parts.py":
            found += [f"{path.name}: {text}" for text in texts if isinstance(text, str) and OURS.search(text)]
    assert found == []
