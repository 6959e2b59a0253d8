"""Write the part of docs/reference/findings.md about rules: what each says of itself, its sentences, their symptoms.

python scripts/docs/generate_findings.py          # write
python scripts/docs/generate_findings.py --check  # exit 1 if the page is stale
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterator
from itertools import product
from pathlib import Path

from generated_files import write_or_compare

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/findings.md"
SYMPTOMS = ROOT / "docs/symptoms.md"
RULES = ROOT / "stashtrace/analysis/findings/rules"
_BEGIN, _END = "<!-- rules: begin -->\n", "<!-- rules: end -->\n"
#: What makes a sentence -> the places of its kind or code, and of its template, among the arguments.
_MAKERS = {"claim": (1, 2), "fact": (0, 1), "verdict": (0, 1)}


def page() -> str:
    """Return the text of the page with the part that is derived."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    symptoms = codes_of_symptoms()
    claims = {code: path for path in rule_files() for code in said_by(path, ("claim", "verdict"))}
    rules = "".join(_section(path, symptoms, claims) for path in rule_files())
    return head + _BEGIN + rules + "\n" + _END + rest.partition(_END)[2]


def codes_of_symptoms() -> dict[str, list[str]]:
    """Return the codes of findings that each section of the page of symptoms names."""
    text = SYMPTOMS.read_text(encoding="utf-8")
    sections = re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", text, re.DOTALL | re.MULTILINE)
    return {title: re.findall(r"`(\w+)`", part.partition("- **Findings:** ")[2]) for title, part in sections}


def rule_files() -> list[Path]:
    """Return the files of rules, by their names."""
    return [path for path in sorted(RULES.rglob("*.py")) if path.stem not in ("__init__", "policy")]


def said_by(path: Path, makers: Collection[str] = tuple(_MAKERS)) -> dict[str, list[str]]:
    """Return the sentences of each kind and code in a file, with the names of their facts in braces."""
    said: dict[str, list[str]] = {}
    for function in ast.parse(path.read_text(encoding="utf-8")).body:
        calls = [one for one in ast.walk(function) if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)]
        for call in sorted(calls, key=lambda call: call.lineno):
            maker, *given = [call.func, *call.args]
            if isinstance(maker, ast.Name) and maker.id == "partial" and given:
                maker, *given = given
            if isinstance(maker, ast.Name) and maker.id in makers:
                kind, template = (given[at] for at in _MAKERS[maker.id])
                for name in _constants(kind):
                    said.setdefault(name, []).extend(filter(None, _templates(template, call.lineno, function)))
    return said


def _section(path: Path, symptoms: dict[str, list[str]], claims: dict[str, Path]) -> str:
    about = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").replace("``", "`")
    said = said_by(path)
    rows = [f"- `{name}`: {text}\n" for name, texts in said.items() for text in dict.fromkeys(texts)]
    figures = ", ".join(f"`{name}`" for name, texts in said.items() if not texts)
    rows += [f"- figures of these: {figures}\n"] if figures else []
    # A fact may have the name of another rule's claim.
    named = [code for code in said if claims.get(code, path) == path]
    return f"\n### Rule `{path.stem}`\n\n{about}\n\n{''.join(rows)}{_seen_as(named, symptoms)}"


def _seen_as(said: Collection[str], symptoms: dict[str, list[str]]) -> str:
    """Return the symptoms of the codes of a rule, each with these where the rule has several symptoms."""
    seen = {title: [code for code in said if code in codes] for title, codes in symptoms.items()}
    seen = {title: codes for title, codes in seen.items() if codes}
    if not seen:
        return ""
    links = []
    for title, codes in seen.items():
        anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        named = "" if len(seen) == 1 else f" ({', '.join(f'`{code}`' for code in codes)})"
        links.append(f"[{title}](../symptoms.md#{anchor}){named}")
    return f"\nSeen as: {'; '.join(links)}.\n"


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
        return ["".join(_piece(part, line, function) for part in node.values)]
    if isinstance(node, ast.BinOp):
        parts = [_templates(one, line, function) or ["…"] for one in (node.left, node.right)]
        return ["".join(both) for both in product(*parts)]
    if isinstance(node, ast.Name):
        given = [one for one in _given(function) if one[0] == node.id and one[1].lineno < line]
        last = max((value for _, value in given), key=lambda value: value.lineno, default=None)
        return _templates(last, last.lineno, function) if last is not None else []
    return []


def _piece(part: ast.expr, line: int, function: ast.stmt) -> str:
    """Return a part of a template that is made of others: a text that is known, or ``…``."""
    if isinstance(part, ast.Constant):
        return str(part.value)
    named = part.value if isinstance(part, ast.FormattedValue) else part
    if not isinstance(named, ast.Name):
        return "…"
    known = _templates(named, line, function)
    stores = [one for one in ast.walk(function) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)]
    return known[0] if len(known) == 1 and sum(one.id == named.id for one in stores) == 1 else "…"


def _given(function: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Yield each name that is assigned in a function, and what to."""
    for one in ast.walk(function):
        if isinstance(one, ast.Assign):
            target, value = one.targets[0], one.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(target.elts, value.elts, strict=True))
            yield from ((name.id, to) for name, to in pairs if isinstance(name, ast.Name))


if __name__ == "__main__":
    sys.exit(write_or_compare({PAGE: page}, sys.argv[1:]))
