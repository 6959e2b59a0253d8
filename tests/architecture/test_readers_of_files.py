"""Files that others may have put there are opened in one place: no other reader waits for a pipe or reads a device."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ast
from collections.abc import Iterator

from source_tree import short, source_files

#: Who else opens a file to read it, and why that is no file of somebody else.
OWN_READS = {
    "stashtrace/files/whole_files.py": "it is the place",
    "stashtrace/analysis/io/cache.py": "a file that the command line names: it may be a pipe",
    "stashtrace/callbacks.py": "in the job, from its own run directory",
    "stashtrace/cli/__init__.py": "the null device",
    "stashtrace/cli/print_results.py": "the null device",
    "stashtrace/cli/commands/export.py": "what it has just written",
    "stashtrace/cli/commands/layers.py": "a file that the command line names: it may be a pipe",
    "stashtrace/cli/commands/metrics.py": "what belongs to the package",
    "stashtrace/format/compact.py": "rewrites in place: opens without following links, and looks whose it is",
    "stashtrace/format/growing.py": "writes into its own file, and follows no link",
    "stashtrace/format/liveness.py": "/proc",
    "stashtrace/importers/darshan/child.py": "a pipe to its parent",
    "stashtrace/importers/nsys/database.py": "SQLite, of a path that the source has opened",
    "stashtrace/lab/calibrate/calibrate_worker.py": "a task that its parent wrote into a new folder",
    "stashtrace/lab/calibrate/engines.py": "/proc",
    "stashtrace/lab/calibrate/measure.py": "answers in a new folder of its own",
    "stashtrace/lab/characterize/run_on_hosts.py": "logs in a new folder of its own",
    "stashtrace/lab/characterize/network.py": "/etc/netns, where root alone may write",
    "stashtrace/lab/history/rows_of_run.py": "/proc and /sys",
    "stashtrace/lab/machine.py": "/proc and /sys",
    "stashtrace/lab/page_cache.py": "files that it has been asked to read or to drop from the page cache",
    "stashtrace/lab/processes.py": "logs of its own processes",
    "stashtrace/record/host.py": "/proc and /sys",
    "stashtrace/lab/recommend/instance_catalog.py": "what belongs to the package",
    "stashtrace/lab/stage_files.py": "data files that it has been asked to copy",
    "stashtrace/lab/sweep/study_worker.py": "a task that its parent wrote into a new folder",
    "stashtrace/live/table.py": "appends to a file of its own, follows no link, and waits for no reader",
    "stashtrace/loading/foreign_files.py": "/proc and /sys",
    "stashtrace/record/doctor.py": "/proc, and programs that the command line names",
    "stashtrace/record/doctor_gpu.py": "/proc, and what belongs to a package",
    "stashtrace/record/environment.py": "what belongs to the package",
    "stashtrace/record/follower.py": "its own control file",
    "stashtrace/record/gpu/inventory.py": "the output of its own process",
    "stashtrace/record/group_witness.py": "/proc",
    "stashtrace/record/directory.py": "/proc",
    "stashtrace/record/launchers.py": "/proc; the repository of the working directory, some bytes of each file",
    "stashtrace/record/peek/proc.py": "/proc",
    "stashtrace/record/peek/stack_samples.py": "what its own process wrote into a new folder",
    "stashtrace/record/run.py": "/proc",
    "stashtrace/registry.py": "what belongs to a package",
    "stashtrace/replay/ssgd/workload.py": "a file that the command line names: it may be a pipe",
    "stashtrace/report/page/html.py": "what belongs to the package",
    "stashtrace/timeline/serve.py": "files of the viewer, and a timeline that it has written",
    "stashtrace/trackers/writers.py": "the page that it has just written",
}
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
        if lines and name not in OWN_READS and not name.startswith(GUEST) and name.endswith(".py")
    }
    assert left == {}, "read it with stashtrace.files.whole_files, or say in OWN_READS why not"
    assert [name for name in OWN_READS if not found.get(name)] == [], "they open nothing any more"
