"""The interpreter's path is one word of a shell script: an environment may lie in a folder with a space in its name."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from source_tree import short, source_files

FILES = [
    path
    for path in source_files("tests", "benchmarks", "scripts")
    if path.suffix == ".py"
    and path.name != "provide_torch.py"  # names the interpreter in messages alone
    and "sys.executable" in path.read_text(encoding="utf-8")
]


def is_executable(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable"


def unquoted(tree: ast.AST) -> Iterator[int]:
    """Lines that put the path before other words as it is, in an f-string or by `.format`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            for part, after in itertools.pairwise(node.values):
                bare = isinstance(part, ast.FormattedValue) and part.conversion == -1 and is_executable(part.value)
                if bare and isinstance(after, ast.Constant) and after.value[:1].isspace():
                    yield node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".format"):
            given = [*node.args, *(word.value for word in node.keywords)]
            yield from (node.lineno for _ in filter(is_executable, given))


def test_the_interpreter_is_quoted() -> None:
    found = {short(path): list(unquoted(ast.parse(path.read_text(encoding="utf-8")))) for path in FILES}
    assert len(found) > 50
    assert {name: lines for name, lines in found.items() if lines} == {}, (
        "shlex.quote(sys.executable), or a list of words"
    )


def test_each_way_is_seen() -> None:
    program = (
        "a = f'{sys.executable} job.py &'\n"
        "b = '{python} job.py'.format(python=sys.executable)\n"
        "c = f'{shlex.quote(sys.executable)} job.py'\n"
        "d = f'run({sys.executable!r})'\n"
        "e = f'\"{sys.executable}\" job.py'\n"
    )
    assert list(unquoted(ast.parse(program))) == [1, 2]
