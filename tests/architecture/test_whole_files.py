"""Files are made, replaced and read in one place: none is half written, no link is followed, no pipe waited for."""

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
#: Why somebody else makes or opens a file to be written, and that harms nobody -> who does.
OWN_FILES = {
    "it is the place": "files/whole_files",
    "the path of whole_file, complete_file or folder_next_to": "exporters/chakra/export exporters/tables lab/synth",
    "of its own, or new by the flags, and follows no link": "format/compact live/hosts/shared_ranks live/state"
    " live/table probes/process",
    "a file or folder that tempfile made": "importers/source timeline/timeline trackers/answers",
    "a pipe to its parent, a byte of a file that the job has mapped": "importers/darshan/child record/follower",
    "where root alone may write, a switch of the kernel, the null device": "lab/characterize/network lab/page_cache"
    " cli/__init__",
    "appends to the file that GitHub gives a job": "cli/commands/check",
}


def files_of(reasons: dict[str, str]) -> set[str]:
    return {f"stashtrace/{name}.py" for names in reasons.values() for name in names.split()}


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
    reported = {id(node.value) for node in found if isinstance(node, ast.Expr)}
    return [
        node.lineno
        for node in found
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in reported
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
    found = lines_found(files_made, files_of(OWN_FILES))
    assert found == {}, "write it with stashtrace.files.whole_files, or say in OWN_FILES why not"


def test_the_recorder_makes_files_that_must_be_new() -> None:
    """Hooks pass the flags of the program on; the lock of the samplers is shared by users, as its header says."""
    for path in source_files("csrc"):
        for made in re.findall(r"raw::open\([^;]*O_CREAT[^;]*;", path.read_text(encoding="utf-8")):
            assert {"O_EXCL", "O_NOFOLLOW"} <= set(re.findall(r"O_\w+", made)) or path.name == "ownership.h", path


def test_pictures_are_saved_in_one_place() -> None:
    savers = {str(path.relative_to(ROOT)) for path in FILES if ".savefig(" in path.read_text(encoding="utf-8")}
    assert savers == {"stashtrace/lab/plot_helpers.py"}


#: Why somebody else opens a file to read it, and that is no file of somebody else -> who does.
OWN_READS = {
    "it is the place": "files/whole_files",
    "/proc, /sys and /etc, and programs that the command line names": "format/liveness lab/calibrate/engines"
    " lab/machine lab/characterize/network lab/history/rows_of_run loading/foreign_files record/directory record/doctor"
    " record/doctor_gpu record/group_witness record/host record/launchers record/peek/proc record/run",
    "what belongs to the package, or to another": "cli/commands/metrics lab/recommend/instance_catalog registry"
    " record/environment report/page/html timeline/serve",
    "what the command line names: it may be a pipe": "analysis/io/cache cli/commands/layers replay/ssgd/workload",
    "what it has written": "cli/commands/export trackers/writers",
    "of its own process or parent, in a new folder": "importers/darshan/child lab/calibrate/calibrate_worker"
    " lab/calibrate/measure lab/characterize/run_on_hosts lab/processes lab/sweep/study_worker record/gpu/inventory"
    " record/peek/stack_samples record/follower callbacks",
    "the null device": "cli/__init__ cli/print_results",
    "a file of its own, and follows no link": "format/compact format/growing live/table",
    "data files that it has been asked to read, copy or drop": "lab/page_cache lab/stage_files",
    "SQLite, of a path that the source has opened": "importers/nsys/database",
}
#: Guest code imports nothing of ours, and reads what the recorder of its process made.
GUEST = "stashtrace/probes/"
READERS = {"read_text", "read_bytes", "fromfile", "memmap"}
WRITING = {"w", "x", "a"}


def reads(text: str) -> list[int]:
    """Lines that open or read a file by other means than ``stashtrace.files.whole_files``."""
    found = []
    for node in nodes(text):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        of = ast.unparse(called.value) if isinstance(called, ast.Attribute) else ""
        given = [*node.args, *(k.value for k in node.keywords)]
        texts = [ast.unparse(part) for part in given]
        modes = {m for part in given if isinstance(part, ast.Constant) and isinstance(m := part.value, str)}
        writes = any(set(mode) & WRITING and len(mode) <= 3 for mode in modes) or any("O_CREAT" in t for t in texts)
        ours = any(t.startswith(("open_regular(", "new_file(")) for t in texts)
        is_path = of not in ("", "self", "source", "webbrowser", "tarfile", "opened", "self.source", "io")
        if (
            (name == "open" and (not of or is_path) and not writes and not ours)
            or (name in READERS and of != "")
            or (name == "connect" and of == "sqlite3")
            or (name == "ParquetFile" and not any("BufferReader(" in t or t == "opened" for t in texts))
        ):
            found.append(node.lineno)
    return found


def test_no_other_code_opens_what_others_may_have_put_there() -> None:
    found = {name: lines for name, lines in lines_found(reads, ()).items() if not name.startswith(GUEST)}
    own = files_of(OWN_READS)
    left = {name: lines for name, lines in found.items() if name not in own}
    assert left == {}, "read it with stashtrace.files.whole_files, or say in OWN_READS why not"
    assert own <= found.keys(), "they open nothing any more"
