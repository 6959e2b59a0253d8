"""Measures which lines of the recorder the tests of its collectors reach, without a GPU.

Called by hand: ``python tests/native/line_coverage.py [--write] [collector ...]``. Builds the recorder for gcov into
build/coverage, runs the collectors' tests on it and prints a line per collector; of those that are named also the lines
that were not reached. ``--write`` keeps the figures in benchmarks/results/line_coverage.json, if all tests passed.
Counts are written when a process ends by itself: what a killed process did, or a child that left by _exit, is not seen.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import harness
from native.native_build import ROOT, build, run_command

COLLECTORS = {
    "cuda": "csrc/collectors/cuda",
    "device": "csrc/device",
    "abi": "csrc/abi",
    "nccl": "csrc/collectors/nccl",
    "nvml": "csrc/collectors/nvml",
    "cupti": "csrc/collectors/cupti",
    "lookup": "csrc/lookup",
    "hooks": "csrc/hooks",
    "posix_io": "csrc/collectors/posix_io",
    "waits": "csrc/collectors/waits",
    "proc": "csrc/collectors/proc",
}
TESTS = ("cuda", "nccl", "nccl_doubles", "device_streams", "nvml", "cupti", "every_call", "posix_io", "waits", "proc")
COMMAND = "python tests/native/line_coverage.py --write"

#: By file and line: how often it was reached, over all places that it was compiled into.
Lines = dict[str, dict[int, int]]


def read_counts(folder: Path) -> Lines:
    """What the runs left in the object folders of a build."""
    counts: Lines = defaultdict(lambda: defaultdict(int))
    notes = sorted(
        path for name in COLLECTORS.values() for path in folder.glob(f"CMakeFiles/stashtrace*.dir/{name}/*.gcno")
    )
    for note in notes:
        command = ["gcov", "--json-format", "--stdout", str(note)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
        for text in done.stdout.splitlines():
            for file in json.loads(text)["files"]:
                for line in file["lines"]:
                    counts[file["file"]][line["line_number"]] += line["count"]
    return counts


def room_of(path: str) -> str | None:
    return next((collector for collector, folder in COLLECTORS.items() if path.startswith(folder + "/")), None)


def ranges(lines: Iterable[int]) -> str:
    """3-5 8"""
    out: list[list[int]] = []
    for line in sorted(lines):
        if out and line <= out[-1][1] + 1:
            out[-1][1] = line
        else:
            out.append([line, line])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in out)


def show(counts: Lines, wanted: Iterable[str]) -> dict[str, float]:
    """Print a line per collector, and what was missed of those that are wanted; the figures."""
    figures: dict[str, float] = {}
    files: dict[str, dict[str, dict[int, int]]] = defaultdict(dict)
    for path, lines in counts.items():
        collector = room_of(path)
        if collector is not None:
            files[collector][path] = lines
    for collector in COLLECTORS:
        every = [count for lines in files[collector].values() for count in lines.values()]
        reached = sum(count > 0 for count in every)
        print(f"{collector:8} {100 * reached / max(len(every), 1):5.1f} % of {len(every)} lines")
        figures |= {f"{collector}_reached_ratio": reached / max(len(every), 1), f"{collector}_lines_count": len(every)}
        if collector not in wanted:
            continue
        for path, lines in sorted(files[collector].items()):
            missed = [line for line, count in lines.items() if count == 0]
            if missed:
                print(f"  {path}: {ranges(missed)}")
    return figures


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("collectors", nargs="*", help=" ".join(COLLECTORS))
    options = parser.parse_args(arguments)
    if unknown := set(options.collectors) - set(COLLECTORS):
        parser.error(f"no collector {', '.join(sorted(unknown))}; there are {', '.join(COLLECTORS)}")
    folder = build(ROOT / "build" / "coverage", "stashtrace_lookup", "coverage")
    for old in folder.rglob("*.gcda"):
        old.unlink()
    command, environment = run_command(
        folder, "coverage", [f"tests/collectors/test_{collector}.py" for collector in TESTS]
    )
    status = subprocess.run(command, cwd=ROOT, env=environment).returncode
    figures = show(read_counts(folder), options.collectors)
    if options.write and status == 0:
        print(f"written to {harness.write_result('line_coverage', figures, command=COMMAND).relative_to(ROOT)}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
