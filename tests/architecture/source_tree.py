"""What the architecture tests read: the tracked source files, and the imports of a Python file."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from checkout_files import ROOT, project_files

from stashtrace.schema.columns import Schema

SOURCE_SUFFIXES = {".py", ".pyi", ".h", ".cpp", ".c", ".def"}


@functools.cache
def tracked_files() -> list[Path]:
    return [ROOT / name for name in project_files()]


def short(path: Path) -> str:
    """Return the path of a file from the top of the project, by which messages name it."""
    return str(path.relative_to(ROOT))


def source_files(*folders: str) -> list[Path]:
    """Tracked source files below the named folders of the project."""
    return [
        p
        for p in tracked_files()
        if p.suffix in SOURCE_SUFFIXES and p.relative_to(ROOT).parts[0] in folders and "data" not in p.parts
    ]


@functools.cache
def imports(path: Path) -> list[tuple[str, int, bool]]:
    """Absolute names imported by a file: (dotted name, line, only for type checkers)."""
    text = path.read_text(encoding="utf-8")
    return list(_imports(ast.parse(text), "TYPE_CHECKING" in text))


def _imports(tree: ast.Module, has_typing_only: bool) -> Iterator[tuple[str, int, bool]]:
    typing_only: set[ast.AST] = set()
    for node in ast.walk(tree) if has_typing_only else ():
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            typing_only.update(child for statement in node.body for child in ast.walk(statement))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, node in typing_only
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno, node in typing_only
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or ""), node.lineno, node in typing_only


def declared_schemas() -> list[Schema]:
    """Every table that a module of the package declares, wherever it stands."""
    found: dict[int, Schema] = {}
    for file in source_files("stashtrace"):
        if file.suffix == ".py" and re.search(r"Schema|schema\(", file.read_text(encoding="utf-8")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            module = importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
            found |= {id(value): value for value in vars(module).values() if isinstance(value, Schema)}
    return list(found.values())


@functools.cache
def docs_script(name: str) -> ModuleType:
    """Import ``scripts/docs/<name>.py``."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts/docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
