"""Files and folders stay small, and no drawer is called utils."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from checkout_files import project_files
from source_tree import ROOT, short, source_files, tracked_files

SOURCES = source_files("csrc", "stashtrace", "tests", "benchmarks", "examples", "scripts")
#: A file is one idea that a reader can hold: most have 100 to 500 lines. A lower ceiling cut single ideas in pieces.
CEILING = 800
#: Files of a folder, ``__init__.py`` among them.
MOST_FILES = 15
#: One file per command, of which there are many; one per collector, by the collector's name.
COMMANDS = "stashtrace/cli/commands"
BY_NAME = {COMMANDS, "stashtrace/collectors"}
#: Folder of the package -> its files.
FOLDERS: dict[Path, list[Path]] = {}
for _name in project_files():
    if _name.startswith("stashtrace/"):
        FOLDERS.setdefault((ROOT / _name).parent, []).append(ROOT / _name)
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}


def test_files_are_small() -> None:
    lines = {short(path): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert {name: count for name, count in lines.items() if count > CEILING} == {}


def test_folders_are_small() -> None:
    # py.typed is empty: a marker for type checkers.
    counts = {short(folder): sum(p.name != "py.typed" for p in files) for folder, files in FOLDERS.items()}
    found = {folder: count for folder, count in counts.items() if count > MOST_FILES}
    assert found.keys() <= {COMMANDS}, found


def test_three_of_one_prefix_are_a_folder() -> None:
    found = {}
    for folder, files in FOLDERS.items():
        prefixes = Counter(p.stem.split("_")[0] for p in files if p.suffix == ".py")
        found[short(folder)] = [prefix for prefix, count in prefixes.items() if prefix and count > 2]
    assert {folder: prefixes for folder, prefixes in found.items() if prefixes and folder not in BY_NAME} == {}


def test_no_drawer_names() -> None:
    found = [p for p in tracked_files() if p.stem in BANNED_NAMES or BANNED_NAMES & set(p.relative_to(ROOT).parts)]
    assert not found


def test_each_file_has_a_license() -> None:
    declared = (ROOT / "REUSE.toml").read_text(encoding="utf-8")
    assert 'path = "**"' in declared
    assert 'SPDX-License-Identifier = "Apache-2.0"' in declared


def test_names_of_test_files_are_unique() -> None:
    """Pytest imports a test file by its name alone, so two of one name cannot be collected together."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py") if not (path.parent / "__init__.py").exists()]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []
