"""What mkdocs does to the pages of this repository to make a site of them (`hooks` in mkdocs.yml).

The pages are written for a reader of the repository: links are relative to the file, and lead to results, examples and
tests as well as to other pages. Nothing in them is for the site alone.

- README.md is the front page.
- A file outside docs/ that a page links to becomes a page of the site, below `repository/`: Markdown as it is, other
  text as a listing, a folder as the listings of its files. So no link leaves the site, and none needs its address.
- A folder in `nav` stands for its pages that are named nowhere else, so that a new page needs no line there.
- Below each name in reference/api.md stands what its docstring says, by mkdocstrings.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]

#: Blocks and pieces of code, in which brackets are not links.
_CODE = re.compile(r"(^ *```.*?^ *```|`[^`\n]*`)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?!\w+:)([^)\s#]+)(#[^)\s]+)?\)")
#: Languages of the listings, by the ending of the file.
_LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yaml": "yaml", ".yml": "yaml", ".sh": "bash"}
#: Listings are not searched: results in JSON would hide the pages.
_UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"

#: Pages of files outside docs/: where on the site -> the file or folder.
_outside: dict[str, Path] = {}


def site_page(path: Path) -> str:
    """Return where on the site a file of the repository stands, as the source of a page."""
    inside = path.relative_to(ROOT).as_posix()
    if inside == "README.md":
        return "index.md"
    if inside.startswith("docs/"):
        return inside.removeprefix("docs/")
    return f"repository/{inside}" if path.suffix == ".md" else f"repository/{inside}.md"


def source_of(page: str) -> Path:
    """Return the file of the repository that a page of the site was made of."""
    return _outside[page] if page in _outside else ROOT / "docs" / page


def with_links(markdown: str, change: Callable[[str, str], str]) -> str:
    """Replace each relative link: ``change`` is given its path and its anchor."""
    parts = _CODE.split(markdown)
    parts[::2] = [_LINK.sub(lambda found: f"]({change(found[1], found[2] or '')})", part) for part in parts[::2]]
    return "".join(parts)


def links_of(path: Path, markdown: str) -> Iterator[Path]:
    """Yield the files of the repository that a page links to."""
    targets: list[Path] = []

    def note(target: str, anchor: str) -> str:
        targets.append((path.parent / target).resolve())
        return target + anchor

    with_links(markdown, note)
    yield from (target for target in targets if target.exists() and target.is_relative_to(ROOT))


def listing(path: Path) -> str:
    """Return a text file, or the files of a folder, as a page."""
    files = [path]
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    parts = [f"{_UNSEARCHED}# {path.relative_to(ROOT).as_posix()}\n"]
    for file in files:
        title = f"\n## {file.relative_to(path).as_posix()}\n" if path.is_dir() else ""
        text = file.read_text(encoding="utf-8").rstrip("\n")
        parts.append(f"{title}\n````{_LANGUAGES.get(file.suffix, 'text')}\n{text}\n````\n")
    return "".join(parts)


def page_text(path: Path) -> str:
    """Return a file outside docs/ as a page."""
    return path.read_text(encoding="utf-8") if path.suffix == ".md" else listing(path)


def outside_pages(inside: list[str]) -> dict[str, Path]:
    """Find all files outside docs/ that the front page and the pages link to, also by one another."""
    found = {"index.md": ROOT / "README.md"}
    todo = [ROOT / "README.md", *(ROOT / "docs" / page for page in inside)]
    while todo:
        path = todo.pop()
        for target in links_of(path, path.read_text(encoding="utf-8")):
            page = site_page(target)
            if not target.is_relative_to(ROOT / "docs") and page not in found:
                found[page] = target
                todo += [target] if target.suffix == ".md" else []
    return found


def whole_nav(nav: Any, pages: list[str]) -> Any:
    """Put in place of each folder (``guides/``) the pages of it that ``nav`` does not name, in order of their names."""
    named: set[str] = set()

    def note(part: Any) -> None:
        for item in part if isinstance(part, list) else part.values() if isinstance(part, dict) else ():
            note(item)
        if isinstance(part, str):
            named.add(part)

    def rest(folder: str) -> list[str]:
        inner = tuple(other for other in named if other.startswith(folder) and _is_folder(other) and other != folder)
        return sorted(p for p in pages if p.startswith(folder) and p not in named and not p.startswith(inner))

    def filled(part: Any) -> Any:
        if isinstance(part, list):
            return [page for item in part for page in (rest(item) if _is_folder(item) else [filled(item)])]
        if isinstance(part, dict):
            return {title: filled(item) for title, item in part.items()}
        return rest(part) if _is_folder(part) else part

    note(nav)
    return filled(nav)


def _is_folder(item: object) -> bool:
    return isinstance(item, str) and item.endswith("/")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Complete ``nav``."""
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    config.nav = whole_nav(config.nav, pages)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the front page and the pages of files outside docs/."""
    from mkdocs.structure.files import File

    _outside.clear()
    _outside.update(outside_pages([file.src_uri for file in files.documentation_pages()]))
    for page, path in sorted(_outside.items()):
        files.append(File.generated(config, page, content=page_text(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links of the repository into links of the site, and fill reference/api.md."""
    here = page.file.src_uri
    path = source_of(here)
    if path.suffix != ".md":
        return markdown  # a listing

    def change(target: str, anchor: str) -> str:
        found = (path.parent / target).resolve()
        if not found.exists() or not found.is_relative_to(ROOT):
            return target + anchor  # mkdocs reports it
        place = site_page(found) if _is_page(found) else _asset(found)
        return posixpath.relpath(place, posixpath.dirname(here)) + anchor

    text = with_links(markdown, change)
    return with_docstrings(text) if here == "reference/api.md" else text


def _is_page(path: Path) -> bool:
    return path.suffix == ".md" or not path.is_relative_to(ROOT / "docs")


def _asset(path: Path) -> str:
    """Return where on the site a picture of docs/ stands."""
    return path.relative_to(ROOT / "docs").as_posix()


def with_docstrings(markdown: str) -> str:
    """Put the directive of mkdocstrings at the end of the section of each public name, behind what stands there."""

    def add(found: re.Match[str]) -> str:
        return f"{found[0]}\n\n::: stashtrace.{found[1]}"

    return re.sub(r"^### `([a-z]\w*)`\n.*?(?=\n+#|\Z)", add, markdown, flags=re.DOTALL | re.MULTILINE | re.IGNORECASE)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leave the roles of docstrings out: ``:class:`Trace``` is shown as the name alone."""
    return re.sub(r":(?:class|func|data|mod|meth|attr|exc):(?=<code>)", "", html)
