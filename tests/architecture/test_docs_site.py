"""The site is built without a warning, its links lead somewhere, needs no other host, and shows what GitHub does."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
from source_tree import ROOT, docs_script

import stashtrace

HOOKS = docs_script("site_hooks")
#: Elements that a browser loads, and the attribute that says from where.
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
#: Links of `rel` that a browser does not load.
NAMED_ONLY = {"canonical", "next", "prev", "edit"}
#: What both renderings of a page must have as often.
COUNTED = ("h1", "h2", "h3", "h4", "li", "table", "tr", "td", "th", "pre", "img", "blockquote", "em", "strong")


class Document(HTMLParser):
    """Names of anchors, links, what is loaded, and how often each element occurs inside the article."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.counts: Counter[str] = Counter()
        self._inside = "<article" not in text
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        self._inside |= tag == "article"
        self.counts[tag] += self._inside
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in LOADED and LOADED[tag] in found and not set(found.get("rel", "").split()) & NAMED_ONLY:
            self.loaded.append(found[LOADED[tag]])

    def handle_endtag(self, tag: str) -> None:
        self._inside &= tag != "article"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as CONTRIBUTING.md says, but into another folder."""
    for module in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        pytest.importorskip(module, reason="mkdocs is not installed: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.search(r"^(WARNING|ERROR)", done.stderr, re.MULTILINE), done.stderr
    return folder


@pytest.fixture(scope="module")
def documents(site: Path) -> dict[Path, Document]:
    """Every page of the site, by its file."""
    return {path: Document(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}


@pytest.mark.thorough
def test_links_and_anchors_lead_somewhere(site: Path, documents: dict[Path, Document]) -> None:
    broken = []
    for page, document in documents.items():
        if page.name == "404.html":
            continue  # its links are those of the root of a host
        for link in {*document.links, *document.loaded}:
            target, anchor = urldefrag(link)
            if urlsplit(target).scheme:
                continue
            found = (page.parent / unquote(target)).resolve() if target else page
            found = found / "index.html" if found.is_dir() else found
            anchors = documents[found].anchors if found in documents else {unquote(anchor)}
            if not found.is_file() or (anchor and unquote(anchor) not in anchors):
                broken.append(f"{page.relative_to(site)}: {link}")
    assert broken == []


@pytest.mark.thorough
def test_nothing_is_loaded_from_another_host(site: Path, documents: dict[Path, Document]) -> None:
    foreign = {source for document in documents.values() for source in document.loaded if urlsplit(source).netloc}
    assert foreign == set()
    for style in site.rglob("*.css"):
        urls = re.findall(r"""(?:url\(\s*|@import\s*)["']?((?:https?:)?//[^"')]+)""", style.read_text(encoding="utf-8"))
        assert urls == [], style.name


@pytest.mark.thorough
def test_every_page_is_there(site: Path) -> None:
    pages = [path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if not (site / page).is_file()] == []
    assert "stashtrace run -- torchrun" in (site / "index.html").read_text(encoding="utf-8")
    assert not list(site.rglob("*.py"))


@pytest.mark.thorough
def test_pages_show_what_github_shows(site: Path, documents: dict[Path, Document]) -> None:
    """Lists, tables and blocks that Python-Markdown would read otherwise than GitHub does are as many on both."""
    markdown_it = pytest.importorskip("markdown_it", reason="markdown-it-py is not installed")
    github = markdown_it.MarkdownIt("gfm-like", {"linkify": False})
    different = []
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        page = site / Path(HOOKS.site_page(path)).with_suffix(".html")
        if page.name == "api.html":
            continue  # the site has more: the docstrings
        text = path.read_text(encoding="utf-8")
        there, here = Document(github.render(text)).counts, documents[page].counts
        # A table of numbers next to the lines would come from the highlighter.
        wrong = {tag: (there[tag], here[tag]) for tag in COUNTED if there[tag] != here[tag]}
        different += [f"{path.relative_to(ROOT)}: {wrong} (GitHub, site)"] if wrong else []
    assert different == []


@pytest.mark.thorough
def test_api_page_has_signatures(site: Path) -> None:
    page = (site / "reference/api.html").read_text(encoding="utf-8")
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", page))
    for name in ("load", "analyze", "export", "annotate", "step", "flush"):
        assert re.search(rf"\b{name} ?\(", text), name
    for name in ("Table", "Trace", "StashtraceError", "MissingDataError"):
        assert name in text
    assert not re.search(r":(class|func|data|mod):", text)


# What the hooks do, without mkdocs.


def test_place_on_the_site() -> None:
    places = {
        "README.md": "index.md",
        "docs/guides/gpu.md": "guides/gpu.md",
        "CONTRIBUTING.md": "repository/CONTRIBUTING.md",
        "examples/train_cupy.py": "repository/examples/train_cupy.py.md",
        "tests/plugin_package": "repository/tests/plugin_package.md",
    }
    assert {path: HOOKS.site_page(ROOT / path) for path in places} == places


def test_folder_in_nav_stands_for_pages_that_are_not_named() -> None:
    nav = [{"Guides": ["guides/b.md", {"More": "guides/more/"}, "guides/"]}, {"Rooms": "rooms/"}]
    pages = ["guides/a.md", "guides/b.md", "guides/c.md", "guides/more/d.md", "rooms/e.md", "x.md"]
    guides = ["guides/b.md", {"More": ["guides/more/d.md"]}, "guides/a.md", "guides/c.md"]
    assert HOOKS.whole_nav(nav, pages) == [{"Guides": guides}, {"Rooms": ["rooms/e.md"]}]


def test_links_in_code_are_left_alone() -> None:
    page = "[a](x.md) `[b](y.md)` [`c`](z.md#d) ![e](f.png) [g](https://example.org)\n```\n[h](i.md)\n```\n"
    changed = HOOKS.with_links(page, lambda target, anchor: f"<{target}{anchor}>")
    expected = page
    for link in ("(x.md)", "(z.md#d)", "(f.png)"):
        expected = expected.replace(link, f"(<{link[1:-1]}>)")
    assert changed == expected


def test_linked_files_outside_become_pages() -> None:
    found = HOOKS.outside_pages(["guides/plugins.md", "internals/tests.md"])
    assert found["index.md"] == ROOT / "README.md"
    assert found["repository/tests/plugin_package.md"] == ROOT / "tests/plugin_package"
    assert found["repository/CONTRIBUTING.md"] == ROOT / "CONTRIBUTING.md"  # README.md links to it
    listing = HOOKS.page_text(ROOT / "tests/plugin_package")
    assert "## pyproject.toml\n\n````toml\n" in listing


def test_each_public_name_gets_its_docstring() -> None:
    filled = HOOKS.with_docstrings((ROOT / "docs/reference/api.md").read_text(encoding="utf-8"))
    directives = re.findall(r"^::: (\S+)$", filled, re.MULTILINE)
    assert set(directives) == {f"stashtrace.{name}" for name in stashtrace.__all__ if name != "__version__"}
