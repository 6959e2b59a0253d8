"""Generated pages are fresh, and the published names are the documented ones."""

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


@pytest.mark.parametrize("file", docs_script("generate_modules").FILES, ids=lambda file: file.name)
def test_lists_of_files_are_fresh(file: Path) -> None:
    text = docs_script("generate_modules").FILES[file]()
    assert file.read_text(encoding="utf-8") == text, "run python scripts/docs/generate_modules.py"


def test_each_benchmark_is_named_with_its_question() -> None:
    page = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(bench_\w+\.py)` \| (.+?) \|", page, re.M))
    assert rows.keys() == {path.name for path in (ROOT / "benchmarks").glob("bench_*.py")}
    assert all(rows.values())


def test_recipes_show_the_code_as_it_is() -> None:
    page = (ROOT / "docs/internals/recipes.md").read_text(encoding="utf-8")
    shown = re.findall(r"^From `([^`]+)`[^`]*(?:`[^`]+`[^`]*)?:\n\n```\w+\n(.*?)^```", page, re.M | re.S)
    assert len(shown) == len(re.findall(r"^```(?:python|cpp)$", page, re.M)) == 4
    for name, code in shown:
        assert code in (ROOT / name).read_text(encoding="utf-8"), name
        assert code.count("\n") < 30, name
    named = {path.rstrip("/") for path in re.findall(r"`((?:stashtrace|tests|csrc|docs)/[\w./]+)`", page)}
    assert [path for path in named if "/F" not in path and not (ROOT / path).exists()] == []


def test_first_tasks_name_files_that_there_are() -> None:
    page = (ROOT / "docs/internals/first-tasks.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:stashtrace|tests|benchmarks|docs)/[\w./]+)`", page))
    assert len(named) > 10
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_the_table_of_places_names_files_that_there_are() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n## I want to change\n")[2]
    rows = re.findall(r"^\|[^|]+\| (.+) \|$", page, re.M)
    lost, folder = [], ROOT
    for name in re.findall(r"`([\w/]+(?:\.\w+|/))`", "\n".join(rows)):
        if re.search(r"_v?N\.", name):
            continue
        found = [path for path in (ROOT / name, ROOT / "stashtrace" / name, folder / name) if path.exists()]
        lost += [] if found else [name]
        folder = found[0].parent if found else folder
    assert len(rows) > 30
    assert lost == []


def test_what_rules_say_is_fresh() -> None:
    rules = docs_script("generate_findings")
    assert rules.PAGE.read_text(encoding="utf-8") == rules.page(), "run python scripts/docs/generate_findings.py"


def test_each_file_says_what_it_is_for() -> None:
    modules = docs_script("generate_modules")
    files = [*modules.python_files(), *modules.native_files()]
    assert len(files) > 500
    silent = [path.relative_to(ROOT) for path in files if not modules.first_sentence(path)]
    assert silent == [], (
        "the first sentence of the docstring, or of the comment at the top, is shown in the list of modules"
    )


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.py", '"""Read ``a`` of\n:class:`Trace`. More.\n\nElse."""\n', "Read `a` of `Trace`"),
        ("b.py", "import sys\n", ""),
        ("c.h", "// Version 2.27 of\n// this. SPDX-License-Identifier: X\n//\n// Else.\n", "Version 2.27 of this"),
        ("d.cpp", "#include <cstdio>\n// Not at the top.\n", ""),
    ],
)
def test_first_sentence(name: str, text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert docs_script("generated_files").first_sentence(tmp_path / name) == sentence


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
