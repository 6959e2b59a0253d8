"""The gate holds no test that measures, and the page of promises knows every file of the other tiers."""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
from pathlib import Path

from source_tree import ROOT, short

#: Others hold neither a mark of a tier nor what measures.
_MARKED = re.compile(r"\b(truth|trust|thorough|measurements|device_truth)\b")
TEST_FILES = [
    path for path in sorted((ROOT / "tests").rglob("test_*.py")) if _MARKED.search(path.read_text(encoding="utf-8"))
]
PAGE = (ROOT / "docs" / "internals" / "tests.md").read_text(encoding="utf-8")
ROWS = PAGE.splitlines()
#: What the gate leaves to `make thorough`, and what covers it there: one row a file.
THOROUGH = PAGE.partition("\n## What `make thorough` adds\n")[2].partition("\n## ")[0]


def marks(nodes: list[ast.expr]) -> set[str]:
    """Names of the pytest marks among decorators or in a ``pytestmark``."""
    return {
        part.attr
        for node in nodes
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Attribute) and part.value.attr == "mark"
    }


@functools.cache
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


def test_what_measures_is_not_in_the_gate() -> None:
    wrong = [
        f"{short(path)}::{name}"
        for path in TEST_FILES
        if path.name != "test_measurements.py"  # tests of the measuring itself, on made-up numbers
        for name, (found, node) in marked_tests(path).items()
        if measures(path, node) and "truth" not in found
    ]
    assert wrong == [], "they measure again where the machine is busy: mark them truth"


def test_the_page_names_what_the_gate_leaves_out() -> None:
    missing = [
        (tier, short(path))
        for path in TEST_FILES
        for tier in ("truth", "trust")
        if any(tier in found for found, _ in marked_tests(path).values())
        and not any(tier in row and (f"`{short(path)}`" in row or f"{short(path.parent)}/`" in row) for row in ROWS)
    ]
    assert missing == [], "docs/internals/tests.md has no row of this tier that names the file"


def test_the_page_says_what_covers_a_test_that_the_gate_leaves_out() -> None:
    marked = [path for path in TEST_FILES if re.search(r"\bmark\.thorough\b", path.read_text(encoding="utf-8"))]
    rows = re.findall(r"^\| `(tests/[\w/.]+)` \| .+ \| .+ \|$", THOROUGH, re.MULTILINE)
    assert rows == [short(path) for path in marked], "a row of each, in order: file, what is left out, what covers it"


def test_what_the_page_names_exists() -> None:
    missing = [p for p in re.findall(r"`((?:tests|benchmarks)/[\w/.]+)`", PAGE) if not (ROOT / p).exists()]
    assert not missing


def test_what_make_quick_names_exists() -> None:
    """Pytest refuses all where one is missing."""
    print_them = ["make", "--no-print-directory", "-f", "-", "-f", str(ROOT / "Makefile"), "show"]
    done = subprocess.run(
        print_them,
        input="show: ; @echo $(quick_tests)\n",
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
    )
    named = done.stdout.split()
    assert "tests/schema" in named
    assert [name for name in named if not (ROOT / name).exists()] == []
