"""Links between the pages lead somewhere: to a file that is tracked, and to a heading that is in it."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from source_tree import short, tracked_files

PAGES = [path for path in tracked_files() if path.suffix == ".md"]
_LINK = re.compile(r"\]\((?!\w+:)([^)\s#]*)(?:#([^)\s]+))?\)")


def text_of(page: Path) -> str:
    """A page without its blocks of code, in which brackets are not links."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", lambda found: found[0].replace("](", "] ("), text)


@functools.cache
def anchors(page: Path) -> set[str]:
    """Names of the headings as GitHub makes them."""
    titles = re.findall(r"^#+ +(.+?) *$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_there_are_pages() -> None:
    assert len(PAGES) > 20
    assert sum(len(_LINK.findall(text_of(page))) for page in PAGES) > 50


def test_links_lead_somewhere() -> None:
    lost = []
    for page in PAGES:
        for target, heading in _LINK.findall(text_of(page)):
            found = (page.parent / target).resolve() if target else page
            if not found.exists() or (heading and heading not in anchors(found)):
                lost.append(f"{short(page)} links to {target}#{heading}")
    assert lost == []
