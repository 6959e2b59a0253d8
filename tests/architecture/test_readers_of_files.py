"""Files that others may have put there are opened in one place: no other reader waits for a pipe or reads a device."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ast
from collections.abc import Iterator

from source_tree import short, source_files

#: Why somebody else opens a file to read it, and that is no file of somebody else -> who does.
OWN_READS = {
    "it is the place": "files/whole_files",
    "/proc, /sys and /etc, and programs that the command line names": "format/liveness lab/calibrate/engines"
    " lab/machine lab/characterize/network lab/history/rows_of_run loading/foreign_files record/directory record/doctor"
    " record/doctor_gpu record/group_witness record/host record/launchers record/look/proc record/run",
    "what belongs to the package, or to another": "cli/commands/metrics lab/recommend/instance_catalog registry"
    " record/environment report/page/html timeline/serve",
    "what the command line names: it may be a pipe": "analysis/io/cache cli/commands/layers replay/ssgd/workload",
    "what it has written": "cli/commands/export trackers/writers",
    "of its own process or parent, in a new folder": "importers/darshan/child lab/calibrate/calibrate_worker"
    " lab/calibrate/measure lab/characterize/run_on_hosts lab/processes lab/sweep/study_worker record/gpu/inventory"
    " record/look/stack_samples record/follower callbacks",
    "the null device": "cli/__init__ cli/print_results",
    "a file of its own, and follows no link": "format/compact format/growing live/table",
    "data files that it has been asked to read, copy or drop": "lab/page_cache lab/stage_files",
    "SQLite, of a path that the source has opened": "importers/nsys/database",
}
OWN_READERS = {f"stashtrace/{name}.py" for names in OWN_READS.values() for name in names.split()}
#: Guest code imports nothing of ours, and reads what the recorder of its own process made.
GUEST = "stashtrace/probes/"
READERS = {"read_text", "read_bytes", "fromfile", "memmap"}
WRITING = {"w", "x", "a"}


def reads(text: str) -> Iterator[int]:
    """Lines that open or read a file by other means than ``stashtrace.files.whole_files``."""
    for node in ast.walk(ast.parse(text)):
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
            yield node.lineno


def test_no_other_code_opens_what_others_may_have_put_there() -> None:
    found = {short(path): list(reads(path.read_text(encoding="utf-8"))) for path in source_files("stashtrace")}
    left = {
        name: lines
        for name, lines in found.items()
        if lines and name not in OWN_READERS and not name.startswith(GUEST) and name.endswith(".py")
    }
    assert left == {}, "read it with stashtrace.files.whole_files, or say in OWN_READS why not"
    assert [name for name in OWN_READERS if not found.get(name)] == [], "they open nothing any more"
