"""Advice on how to record more: options and functions of ours are advised for recordings of ours alone."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ast
import re
from pathlib import Path

from importers.kineto_files import device, host, launch, step, write
from scenes import verdicts

import stashtrace

PACKAGE = Path(stashtrace.__file__).parent
OURS = re.compile(r"stashtrace run|stashtrace\.annotate|--kernels|--stacks")


def test_what_another_tool_recorded_says_so(tmp_path: Path) -> None:
    events = []
    for at in range(0, 5000, 1000):
        events += [step(at // 1000, at, 1000), launch(at + 1, at + 5), device("gemm", at + 10, 100, correlation=at + 1)]
        events += [host("aten::mm", at + 1, 20)]
    trace = stashtrace.load(write(tmp_path / "rank0.json", events))
    said = [text for verdict in verdicts(trace) for text in (verdict.text, *verdict.evidence)]
    assert said
    assert not [text for text in said if OURS.search(text)]


def test_words_of_ours_stand_where_recordings_are_told_apart() -> None:
    """Whatever template comes next: an option of ours in its words would be advised for every recording."""
    found = []
    for path in [*(PACKAGE / "analysis/findings/rules").rglob("*.py"), *(PACKAGE / "summary/words").glob("*.py")]:
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                nodes = list(ast.walk(function))
                texts = [one.value for one in nodes if isinstance(one, ast.Constant) and isinstance(one.value, str)]
                told_apart = any(isinstance(one, ast.Attribute) and one.attr == "imported" for one in nodes)
                found += [f"{path.name}: {text}" for text in texts if OURS.search(text) and not told_apart]
    assert found == []
