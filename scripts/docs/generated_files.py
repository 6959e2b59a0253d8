"""Write files whose text is derived, or compare them; and read what a file says of itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


def write_or_compare(files: Mapping[Path, Callable[[], str]], arguments: Sequence[str]) -> int:
    """Write each file; with ``--check`` return 1 if one is stale, and write none."""
    stale = 0
    for path, make in files.items():
        text = make()
        if "--check" in arguments:
            stale |= not path.exists() or path.read_text(encoding="utf-8") != text
        else:
            path.write_text(text, encoding="utf-8")
    return int(stale)


def with_block(text: str, name: str, block: str) -> str:
    """Return a page with what stands between ``<!-- name`` and ``<!-- end of name -->`` replaced."""
    found = re.compile(rf"(<!-- {name}\b[^>]*-->\n).*?(?=<!-- end of {name} -->)", re.DOTALL)
    fresh, count = found.subn(lambda begin: f"{begin[1]}\n{block}\n\n", text)
    if count != 1:
        raise LookupError(f"the page has {count} blocks {name}")
    return fresh


def first_sentence(path: Path) -> str:
    """Return the first sentence that a file says of itself, in Markdown and without its full stop.

    In Python it is that of the docstring, in native code that of the comment at the top.
    """
    text = path.read_text(encoding="utf-8")
    said = (ast.get_docstring(ast.parse(text)) or "") if path.suffix == ".py" else _opening_comment(text)
    sentence = re.split(r"\.(?: |$)", " ".join(said.partition("\n\n")[0].split()), maxsplit=1)[0]
    return re.sub(r":\w+:(?=`)", "", sentence.replace("``", "`"))


def _opening_comment(text: str) -> str:
    found = re.match(r"(?://.*\n)+", text)
    lines = [line.removeprefix("//").strip() for line in found[0].splitlines()] if found else []
    return "\n".join(lines).partition("SPDX-License-Identifier")[0].strip()
