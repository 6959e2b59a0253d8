"""The gate holds no test that measures, and the page of promises knows every file of the other tiers."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from source_tree import ROOT

TEST_FILES = sorted((ROOT / "tests").rglob("test_*.py"))
PAGE = (ROOT / "docs" / "internals" / "tests.md").read_text(encoding="utf-8")


def marks(nodes: list[ast.expr]) -> set[str]:
    """Names of the pytest marks among decorators or in a ``pytestmark``."""
    return {
        part.attr
        for node in nodes
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Attribute) and part.value.attr == "mark"
    }


def marked_tests(path: Path) -> dict[str, tuple[set[str], ast.FunctionDef]]:
    """Test function -> its marks, those of its module and class included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assigned = [n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "pytestmark"]
    classes = [(node.body, marks(node.decorator_list)) for node in tree.body if isinstance(node, ast.ClassDef)]
    return {
        node.name: (marks(assigned) | of_class | marks(node.decorator_list), node)
        for body, of_class in [(tree.body, set()), *classes]
        for node in body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def measures(path: Path, test: ast.FunctionDef) -> bool:
    """Whether the test takes measurements of which one must agree."""
    if "measurements" not in path.read_text(encoding="utf-8") and "device_truth" not in path.read_text(
        encoding="utf-8"
    ):
        return False
    called = {node.func for node in ast.walk(test) if isinstance(node, ast.Call)}
    return any(
        (isinstance(f, ast.Attribute) and f.attr == "agree") or (isinstance(f, ast.Name) and f.id == "check")
        for f in called
    )


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_measures_is_not_in_the_gate(path: Path) -> None:
    if path.name == "test_measurements.py":
        return  # tests of the measuring itself, on made-up numbers
    wrong = [
        name for name, (found, node) in marked_tests(path).items() if measures(path, node) and "truth" not in found
    ]
    assert not wrong, f"{wrong} measure again where the machine is busy: mark them truth"


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_page_names_what_the_gate_leaves_out(path: Path) -> None:
    for tier in ("truth", "trust"):
        if any(tier in found for found, _ in marked_tests(path).values()):
            name = str(path.relative_to(ROOT))
            folder = f"{path.parent.relative_to(ROOT)}/`"
            rows = [line for line in PAGE.splitlines() if f"`{name}`" in line or folder in line]
            assert rows, f"docs/internals/tests.md does not say what {name} holds"
            assert any(f"| {tier} |" in row or tier in row for row in rows), f"no row of tier {tier} names {name}"


def test_what_the_page_names_exists() -> None:
    missing = [p for p in re.findall(r"`((?:tests|benchmarks)/[\w/.]+)`", PAGE) if not (ROOT / p).exists()]
    assert not missing
