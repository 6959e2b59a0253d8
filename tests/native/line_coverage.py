"""Measures which lines of the native code of devices the tests of its rooms reach.

Called by hand: ``python tests/native/line_coverage.py [room ...]``. Builds the recorder for gcov into build/coverage,
runs the rooms' tests on it and prints a line per room; of rooms that are named also the lines that were not reached.
Counts are written when a process ends by itself: what a killed process did, or a child that left by _exit, is not
seen.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from native.native_build import ROOT, build, run_command

ROOMS = {
    "cuda": "csrc/collectors/cuda", "device": "csrc/device", "abi": "csrc/abi", "nccl": "csrc/collectors/nccl",
    "nvml": "csrc/collectors/nvml", "cupti": "csrc/collectors/cupti",
}  # fmt: skip
TESTS = ("cuda", "nccl", "nccl_doubles", "nvml", "cupti", "every_call")

#: By file and line: how often it was reached, over all places that it was compiled into.
Lines = dict[str, dict[int, int]]


def read_counts(folder: Path) -> Lines:
    """What the runs left in the object folders of a build."""
    counts: Lines = defaultdict(lambda: defaultdict(int))
    notes = sorted(path for name in ROOMS.values() for path in folder.glob(f"CMakeFiles/stashtrace.dir/{name}/*.gcno"))
    for note in notes:
        command = ["gcov", "--json-format", "--stdout", str(note)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
        for text in done.stdout.splitlines():
            for file in json.loads(text)["files"]:
                for line in file["lines"]:
                    counts[file["file"]][line["line_number"]] += line["count"]
    return counts


def room_of(path: str) -> str | None:
    return next((room for room, folder in ROOMS.items() if path.startswith(folder + "/")), None)


def ranges(lines: Iterable[int]) -> str:
    """3-5 8"""
    out: list[list[int]] = []
    for line in sorted(lines):
        if out and line <= out[-1][1] + 1:
            out[-1][1] = line
        else:
            out.append([line, line])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in out)


def show(counts: Lines, wanted: Iterable[str]) -> None:
    """Print a line per room, and what was missed of those that are wanted."""
    files: dict[str, dict[str, dict[int, int]]] = defaultdict(dict)
    for path, lines in counts.items():
        room = room_of(path)
        if room is not None:
            files[room][path] = lines
    for room in ROOMS:
        every = [count for lines in files[room].values() for count in lines.values()]
        reached = sum(count > 0 for count in every)
        print(f"{room:8} {100 * reached / max(len(every), 1):5.1f} % of {len(every)} lines")
        if room not in wanted:
            continue
        for path, lines in sorted(files[room].items()):
            missed = [line for line, count in lines.items() if count == 0]
            if missed:
                print(f"  {path}: {ranges(missed)}")


def main(arguments: list[str]) -> int:
    folder = build(ROOT / "build" / "coverage", "stashtrace_lookup", "coverage")
    for old in folder.rglob("*.gcda"):
        old.unlink()
    command, environment = run_command(folder, "coverage", [f"tests/collectors/test_{room}.py" for room in TESTS])
    status = subprocess.run(command, cwd=ROOT, env=environment).returncode
    show(read_counts(folder), arguments)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
