"""Files that replace others are made in one place: no other code gives a half written file a name of its own."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Collection

from source_tree import ROOT, short, source_files

#: Who may, and why.
OWN_NAMES = {
    "stashtrace/files/whole_files.py": "it is the place",
    "stashtrace/format/compact.py": "the name is fixed and locked, so that two merges of one run exclude each other",
    "stashtrace/record/directory.py": "it removes what a killed merge left",
}
#: Who else makes or opens a file to be written, and why that harms nobody.
OWN_FILES = {
    "stashtrace/files/whole_files.py": "it is the place",
    "stashtrace/cli/__init__.py": "the null device",
    "stashtrace/cli/commands/check.py": "appends to the file that GitHub gives a job",
    "stashtrace/exporters/chakra/export.py": "into a new folder of folder_next_to",
    "stashtrace/exporters/tables.py": "writers that are given the path of complete_file",
    "stashtrace/format/compact.py": "opens a fixed name again, and looks whose it is",
    "stashtrace/importers/darshan/child.py": "a pipe to its parent",
    "stashtrace/importers/source.py": "a file that tempfile made",
    "stashtrace/lab/characterize/network.py": "/etc/netns, where root alone may write",
    "stashtrace/lab/page_cache.py": "a switch of the kernel",
    "stashtrace/lab/synth.py": "the path of whole_file, which a stack of contexts keeps",
    "stashtrace/live/state.py": "appends to a log of its own, and follows no link",
    "stashtrace/live/hosts/shared_ranks.py": "appends to a file that it has made, and follows no link",
    "stashtrace/live/table.py": "appends to a file that it has made, and follows no link",
    "stashtrace/probes/process.py": "probes import nothing; new, by the flags",
    "stashtrace/record/follower.py": "a byte in place: the job has the file mapped",
    "stashtrace/timeline/timeline.py": "a folder that tempfile made",
    "stashtrace/trackers/answers.py": "a folder that tempfile made",
}
#: What gives a path that is new and ours.
MAKERS = {"whole_file", "complete_file", "folder_next_to", "stack.enter_context"}
WRITERS = {"write_text", "write_bytes", "touch", "copy", "copy2", "copyfile", "copytree", "mkfifo", "memmap", "savez"}
ENDINGS = (".part", ".tmp", ".draft", ".partial")
FILES = sorted(p for p in source_files("stashtrace") if p.suffix == ".py")


@functools.cache
def nodes(text: str) -> list[ast.AST]:
    """What the source text consists of; two tests look at all files."""
    return list(ast.walk(ast.parse(text)))


def own_names(text: str) -> list[int]:
    """Lines with a text that ends like the name of a half written file; documentation does not count."""
    found = nodes(text)
    told = {id(node.value) for node in found if isinstance(node, ast.Expr)}
    return [
        node.lineno
        for node in found
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told
        if node.value.endswith(ENDINGS)
    ]


def lines_found(look: Callable[[str], list[int]], apart: Collection[str]) -> dict[str, list[int]]:
    """File -> lines that ``look`` finds in its text, where it finds any; all of ``apart`` must be files."""
    assert set(apart) <= {short(path) for path in FILES}
    found = {short(path): look(path.read_text(encoding="utf-8")) for path in FILES if short(path) not in apart}
    return {name: lines for name, lines in found.items() if lines}


def test_no_other_code_names_half_written_files() -> None:
    assert lines_found(own_names, OWN_NAMES) == {}, "write it with stashtrace.files.whole_files.whole_file"


def files_made(text: str) -> list[int]:
    """Lines that make or open a file to be written, but for those whose path ``whole_file`` and its kin have made."""
    ours = {
        name.id
        for node in nodes(text)
        if isinstance(node, ast.With)
        for item in node.items
        if isinstance(item.context_expr, ast.Call) and ast.unparse(item.context_expr.func) in MAKERS
        for name in ast.walk(item.optional_vars or ast.Pass())
        if isinstance(name, ast.Name)
    }
    found = []
    for node in nodes(text):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if name not in ("open", "fdopen") and name not in WRITERS:
            continue
        given = [ast.unparse(part) for part in (*node.args, *(k.value for k in node.keywords))]
        of = ast.unparse(called.value) if isinstance(called, ast.Attribute) else ""
        if of in ours or ours & set(given) or any(text.startswith(("new_file(", "os.open(new")) for text in given):
            continue
        modes = [
            part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)
        ]
        opens = name in ("open", "fdopen") and any(
            re.fullmatch(r"[rwxa]?[bt]?\+?[bt]?", m) and set(m) & set("wxa+") for m in modes
        )
        creates = of == "os" and name == "open" and any("O_CREAT" in text or "flags" in text for text in given)
        writes = name in WRITERS and (of not in ("np", "self", "copy", "json") and of != "")
        if opens or creates or (writes and (name not in ("copy",) or of == "shutil")):
            found.append(node.lineno)
    return found


def test_no_other_code_makes_files() -> None:
    """In a folder that others may write to, a name that can be guessed is a link of theirs."""
    found = lines_found(files_made, OWN_FILES)
    assert found == {}, "write it with stashtrace.files.whole_files, or say in OWN_FILES why not"


def test_the_recorder_makes_files_that_must_be_new() -> None:
    """Hooks pass the flags of the program on; the lock of the samplers is shared by users, as its header says."""
    for path in source_files("csrc"):
        for made in re.findall(r"raw::open\([^;]*O_CREAT[^;]*;", path.read_text(encoding="utf-8")):
            assert {"O_EXCL", "O_NOFOLLOW"} <= set(re.findall(r"O_\w+", made)) or path.name == "ownership.h", path


def test_pictures_are_saved_in_one_place() -> None:
    savers = {str(path.relative_to(ROOT)) for path in FILES if ".savefig(" in path.read_text(encoding="utf-8")}
    assert savers == {"stashtrace/lab/plot_helpers.py"}
