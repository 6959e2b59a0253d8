"""Generated pages are fresh, and the published names are the documented ones."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re

import pytest
from source_tree import ROOT, docs_script, tracked_files

import stashtrace


@pytest.mark.parametrize("page", ["format.md", "tables.md"])
def test_format_pages_are_fresh(page: str) -> None:
    text = docs_script("generate_format").PAGES[page]()
    assert (ROOT / "docs/reference" / page).read_text(encoding="utf-8") == text, "run python docs/generate_format.py"


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
