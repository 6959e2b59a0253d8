"""What a guest in the user's process never does, and what no committed text may hold."""

from __future__ import annotations

import re

from source_tree import ROOT, short, source_files, tracked_files

GUEST_NATIVE = [
    p
    for p in source_files("csrc")
    if p.relative_to(ROOT).parts[1] in ("core", "runtime", "hooks", "python", "collectors")
]
GUEST_PYTHON = [p for p in source_files("stashtrace") if "probes" in p.relative_to(ROOT).parts]
BANNED_NATIVE = re.compile(r"\b(?:std::cout|(?<!real::)printf|puts|abort|std::terminate|std::exit|throw)\s*[(;\s\"]")
BANNED_PYTHON = re.compile(r"^\s*(?:print\(|sys\.exit\(|os\.abort\(|os\._exit\(|import numpy|from numpy)", re.M)
SWALLOWED = re.compile(r"except(?: (?:Base)?Exception)?:\s*(?:pass|\.\.\.)\s*$", re.M)
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:work|root)/\w")


def without_comments(text: str) -> str:
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


def test_native_guest_is_quiet() -> None:
    found = {}
    for path in GUEST_NATIVE:
        code = re.sub(r'"(?:\\.|[^"\\])*"', '""', without_comments(path.read_text(encoding="utf-8")))
        found[short(path)] = BANNED_NATIVE.findall(code)
    assert len(found) > 50
    assert {name: words for name, words in found.items() if words} == {}


def test_python_guest_is_quiet() -> None:
    found = {short(path): BANNED_PYTHON.findall(path.read_text(encoding="utf-8")) for path in GUEST_PYTHON}
    assert len(found) > 20
    assert {name: words for name, words in found.items() if words} == {}


def test_no_exception_is_swallowed_silently() -> None:
    found = [
        str(p.relative_to(ROOT))
        for p in source_files("stashtrace", "tests", "benchmarks", "examples")
        if SWALLOWED.search(p.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_only_the_cli_prints() -> None:
    printing = re.compile(r"^\s*print\(", re.M)
    found = [
        str(p.relative_to(ROOT))
        for p in source_files("stashtrace")
        if "cli" not in p.parts and printing.search(p.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_no_path_of_a_machine() -> None:
    texts = [
        p
        for p in tracked_files()
        if p.suffix in {".py", ".md", ".h", ".cpp", ".toml", ".txt", ".json", ".def", ".yaml", ".sh"}
        or p.name in {"Makefile", "run"}
    ]
    found = [
        str(p.relative_to(ROOT))
        for p in texts
        if p.name != "test_manners.py" and MACHINE_PATHS.search(p.read_text(encoding="utf-8", errors="replace"))
    ]
    assert found == []
