"""Write the part of docs/reference/findings.md about rules: what each says of itself, and its sentences.

python scripts/docs/generate_findings.py          # write
python scripts/docs/generate_findings.py --check  # exit 1 if the page is stale
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from generated_files import write_or_compare

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/findings.md"
RULES = ROOT / "stashtrace/analysis/findings/rules"
_BEGIN, _END = "<!-- rules: begin -->\n", "<!-- rules: end -->\n"
#: What makes a sentence -> the places of its kind or code, and of its template, among the arguments.
_MAKERS = {"claim": (1, 2), "fact": (0, 1)}


def page() -> str:
    """Return the text of the page with the part that is derived."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    return head + _BEGIN + "".join(map(_section, rule_files())) + "\n" + _END + rest.partition(_END)[2]


def rule_files() -> list[Path]:
    """Return the files of rules, by their names."""
    return [path for path in sorted(RULES.rglob("*.py")) if path.stem not in ("__init__", "policy")]


def said_by(path: Path) -> dict[str, list[str]]:
    """Return the sentences of each kind and code in a file, with the names of their facts in braces."""
    said: dict[str, list[str]] = {}
    for function in ast.parse(path.read_text(encoding="utf-8")).body:
        calls = [one for one in ast.walk(function) if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)]
        for call in sorted(calls, key=lambda call: call.lineno):
            if call.func.id in _MAKERS:  # type: ignore[attr-defined]
                kind, template = (call.args[at] for at in _MAKERS[call.func.id])  # type: ignore[attr-defined]
                for name in _constants(kind):
                    said.setdefault(name, []).extend(filter(None, _templates(template, call.lineno, function)))
    return said


def _section(path: Path) -> str:
    about = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").replace("``", "`")
    said = said_by(path)
    rows = [f"- `{name}`: {text}\n" for name, texts in said.items() for text in dict.fromkeys(texts)]
    figures = ", ".join(f"`{name}`" for name, texts in said.items() if not texts)
    rows += [f"- figures of these: {figures}\n"] if figures else []
    return f"\n### Rule `{path.stem}`\n\n{about}\n\n{''.join(rows)}"


def _constants(node: ast.expr) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.strip():
            yield part.value


def _templates(node: ast.expr, line: int, function: ast.stmt) -> list[str]:
    """Return the texts that a template may be, as far as a line; ``…`` stands for what is chosen elsewhere."""
    if isinstance(node, ast.IfExp):
        return _templates(node.body, line, function) + _templates(node.orelse, line, function)
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)]
    if isinstance(node, ast.Name):
        given = [one for one in ast.walk(function) if isinstance(one, ast.Assign) and one.lineno < line]
        given = [one for one in given if isinstance(one.targets[0], ast.Name) and one.targets[0].id == node.id]
        last = max(given, key=lambda one: one.lineno, default=None)
        return _templates(last.value, last.lineno, function) if last is not None else []
    return []


if __name__ == "__main__":
    sys.exit(write_or_compare({PAGE: page}, sys.argv[1:]))
