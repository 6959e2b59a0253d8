"""Generated pages are fresh, and the published names are the documented ones."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from pathlib import Path

import pytest
from source_tree import ROOT, docs_script, tracked_files

import stashtrace


@pytest.mark.parametrize("file", docs_script("generate_format").FILES, ids=lambda file: file.name)
def test_what_the_schema_says_is_fresh(file: Path) -> None:
    text = docs_script("generate_format").FILES[file]()
    assert file.read_text(encoding="utf-8") == text, "run python scripts/docs/generate_format.py"


@pytest.mark.parametrize("file", docs_script("generate_guest_words").FILES, ids=lambda file: file.name)
def test_words_of_the_recorder_are_those_of_python(file: Path) -> None:
    text = docs_script("generate_guest_words").FILES[file]()
    assert file.read_text(encoding="utf-8") == text, "run python scripts/docs/generate_guest_words.py, then build"


def test_api_page_names_the_public_surface() -> None:
    page = (ROOT / "docs/reference/api.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^### `([\w.]+)", page, re.M))
    assert documented == set(stashtrace.__all__)


def test_environment_page_names_every_variable() -> None:
    page = (ROOT / "docs/reference/environment.md").read_text(encoding="utf-8")
    used = set()
    for path in tracked_files():
        parts = path.relative_to(ROOT).parts
        if parts[0] in ("csrc", "stashtrace") and path.suffix in (".h", ".cpp", ".py"):
            used.update(re.findall(r'"(STASHTRACE_[A-Z_]+)"', path.read_text(encoding="utf-8")))
    missing = {name for name in used if f"`{name}`" not in page}
    assert missing == set()
