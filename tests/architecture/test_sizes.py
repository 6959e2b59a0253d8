"""Files and folders stay small, and no drawer is called utils."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections import Counter

import pytest
from source_tree import ROOT, source_files, tracked_files

SOURCES = source_files("csrc", "stashtrace", "tests", "benchmarks", "examples", "scripts")
#: A file is one idea that a reader can hold: most have 100 to 500 lines. A lower ceiling cut single ideas in pieces.
CEILING = 800
#: Files of a folder, ``__init__.py`` among them.
MOST_FILES = 15
#: One file per command; one per collector, by the collector's name.
BY_NAME = {"stashtrace/cli/commands", "stashtrace/collectors"}
FOLDERS = sorted({p.parent for p in tracked_files() if p.relative_to(ROOT).parts[0] == "stashtrace"})
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_file_is_small(path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= CEILING, f"{path.relative_to(ROOT)} has {lines} lines, the ceiling is {CEILING}"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: str(p.relative_to(ROOT)))
def test_folder_is_small(folder) -> None:
    files = [
        p for p in tracked_files() if p.parent == folder and p.name != "py.typed"
    ]  # empty: a marker for type checkers
    assert len(files) <= MOST_FILES or str(folder.relative_to(ROOT)) == "stashtrace/cli/commands"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: str(p.relative_to(ROOT)))
def test_three_of_one_prefix_are_a_folder(folder) -> None:
    if str(folder.relative_to(ROOT)) in BY_NAME:
        return
    prefixes = Counter(p.stem.split("_")[0] for p in tracked_files() if p.parent == folder and p.suffix == ".py")
    assert [prefix for prefix, count in prefixes.items() if prefix and count > 2] == []


def test_no_drawer_names() -> None:
    found = [p for p in tracked_files() if p.stem in BANNED_NAMES or BANNED_NAMES & set(p.relative_to(ROOT).parts)]
    assert not found


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_license_line(path) -> None:
    text = path.read_text(encoding="utf-8")
    # Behind the docstring and before any code, which begins with this import in Python.
    head = text.partition("\nfrom __future__")[0] if "\nfrom __future__" in text else text[:1500]
    assert not head.strip() or "SPDX-License-Identifier: Apache-2.0" in head, (
        f"{path.relative_to(ROOT)} has no SPDX line"
    )


def test_names_of_test_files_are_their_own() -> None:
    """Pytest imports a test file by its name alone, so two of one name cannot be collected together."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py") if not (path.parent / "__init__.py").exists()]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []
