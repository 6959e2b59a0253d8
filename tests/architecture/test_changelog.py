"""Each fragment in ``changes/`` has a kind that is known, and towncrier makes a point of the changelog of it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from source_tree import ROOT

import stashtrace

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CHANGES = ROOT / "changes"
FRAGMENTS = sorted(p for p in CHANGES.glob("*.md") if p.name != "README.md")
CONFIGURATION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
KINDS = [kind["directory"] for kind in CONFIGURATION["tool"]["towncrier"]["type"]]


def test_each_fragment_has_a_known_kind() -> None:
    for path in FRAGMENTS:
        assert re.fullmatch(rf"[a-z0-9-]+\.({'|'.join(KINDS)})\.md", path.name), f"{path.name}: kinds are {KINDS}"
        text = path.read_text(encoding="utf-8")
        assert text.strip(), f"{path.name} says nothing"
        in_parts = re.search(r"^(#|[-*] |\s*$)", text.rstrip("\n"), re.M)
        assert not in_parts, f"{path.name}: one paragraph, no heading or list"


def test_contributors_find_the_kinds_documented() -> None:
    for page in (CHANGES / "README.md", ROOT / "CONTRIBUTING.md"):
        listed = re.search(r"<topic>\.<([a-z|]+)>\.md", page.read_text(encoding="utf-8"))
        assert listed, page
        assert sorted(listed[1].split("|")) == sorted(KINDS)


def test_every_fragment_is_used() -> None:
    pytest.importorskip("towncrier", reason="towncrier is not installed: pip install -e '.[test]'")
    done = subprocess.run(
        [sys.executable, "-m", "towncrier", "build", "--draft", "--version", stashtrace.__version__, "--date", "DATE"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    title, _, draft = done.stdout.partition(f"## {stashtrace.__version__} (DATE)")
    assert title.strip() == ""
    points = {re.sub(r"\s+", " ", point).strip() for point in re.split(r"^(?:- |### .*$)", draft, flags=re.M)} - {""}
    said = {re.sub(r"\s+", " ", p.read_text(encoding="utf-8")).strip() for p in FRAGMENTS}
    assert points == said


def test_a_release_moves_the_fragments_into_the_changelog(tmp_path: Path) -> None:
    """What ``towncrier build`` does at a release, on a copy."""
    pytest.importorskip("towncrier", reason="towncrier is not installed: pip install -e '.[test]'")
    before = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    (tmp_path / "CHANGELOG.md").write_text(before, encoding="utf-8")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "changes").mkdir()
    shutil.copy(CHANGES / "README.md", tmp_path / "changes")
    shutil.copy(CHANGES / "template.md.jinja", tmp_path / "changes")
    for version, kind in (("7.0", "feature"), ("7.1", "fix")):
        (tmp_path / f"changes/thing.{kind}.md").write_text(f"What {version}\nbrings.\n", encoding="utf-8")
        subprocess.run(
            [sys.executable, "-m", "towncrier", "build", "--yes", "--version", version, "--date", "2030-01-02"],
            cwd=tmp_path,
            capture_output=True,
            check=True,
        )
        assert sorted(p.name for p in (tmp_path / "changes").iterdir()) == ["README.md", "template.md.jinja"]
    head, marker, earlier = before.partition(CONFIGURATION["tool"]["towncrier"]["start_string"])
    assert marker
    text = (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8")
    assert text.startswith(head + marker)
    assert text.endswith(earlier.strip("\n") + "\n")
    added = text.removeprefix(head + marker).removesuffix(earlier.lstrip("\n"))
    assert [line for line in added.splitlines() if line] == [
        "## 7.1 (2030-01-02)",
        "### Fixed",
        "- What 7.1",
        "  brings.",
        "## 7.0 (2030-01-02)",
        "### New",
        "- What 7.0",
        "  brings.",
    ]
