"""Files that replace others are made in one place: no other code gives a half written file a name of its own."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ast
from pathlib import Path

import pytest
from source_tree import ROOT, source_files

#: Who may, and why.
OWN_NAMES = {
    "stashtrace/whole_files.py": "it is the place",
    "stashtrace/format/compact.py": "the name is fixed and locked, so that two merges of one run exclude each other",
    "stashtrace/lab/stage/stage.py": "copies of many gigabytes, found again and removed by their tier's own rules",
}
ENDINGS = (".part", ".tmp", ".draft", ".partial")
FILES = sorted(p for p in source_files("stashtrace") if p.suffix == ".py")


def own_names(text: str) -> list[int]:
    """Lines with a text that ends like the name of a half written file; documentation does not count."""
    tree = ast.parse(text)
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told
        if node.value.endswith(ENDINGS)
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_other_code_names_half_written_files(path: Path) -> None:
    if str(path.relative_to(ROOT)) in OWN_NAMES:
        return
    lines = own_names(path.read_text(encoding="utf-8"))
    assert not lines, f"lines {lines}: write it with stashtrace.whole_files.whole_file"


def test_pictures_are_saved_in_one_place() -> None:
    savers = {str(path.relative_to(ROOT)) for path in FILES if ".savefig(" in path.read_text(encoding="utf-8")}
    assert savers == {"stashtrace/lab/plot.py"}


def test_what_is_looked_for_is_found() -> None:
    for name in OWN_NAMES:
        assert (ROOT / name).is_file()
    assert own_names('"""Of .tmp"""\na = path + ".tmp"\nb = path.with_name(f"{path.name}.{pid}.part")\n') == [2, 3]
    assert own_names((ROOT / "stashtrace/format/compact.py").read_text(encoding="utf-8"))
