"""The long form of the trust tier: attacks, fuzzing, and comparisons with and without the recorder.

    python benchmarks/trust.py [--parts scenes,kill] [--again] [--limit MINUTES] [--out FOLDER]

Each part is one call of pytest, and writes its result under build/trust as it ends. Called again it runs only what
has no result of this commit yet, so that an interrupted series goes on where it stopped; --again repeats the chosen
parts. trust.json and trust.md are put together after each part: what ran, how much, what was found, what was skipped
and why. Failures are written down and are the exit code. --limit ends a part that takes longer: what it did until then
counts, what it did not come to is named as not run, and the next call runs the part again.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness


@dataclass(frozen=True)
class Part:
    """What a part holds, which tests it has, and about how long it takes on two quiet cores.

    Tests that judge outcomes alone run side by side; attacks on moments want both cores for themselves.
    """

    what: str
    minutes: int
    file: str
    chosen: str = ""
    side_by_side: bool = False


PARTS = {
    "conformance": Part("every hook with and without the preload: value, errno, effects", 2, "conformance"),
    "scenes": Part("programs that are hard on a recorder, by their verdict", 6, "scenes"),
    "kill": Part("killed at random moments, every call read, counted as lost, or in flight", 2, "kill"),
    "fuzz": Part("damaged files of every format", 15, "fuzz", "not sanitizers", side_by_side=True),
    "sanitized": Part(
        "damaged files of every format, with ASan and UBSan", 20, "fuzz", "sanitizers", side_by_side=True
    ),
    "jobs": Part("answers about jobs at random", 6, "jobs"),
    "recorded": Part("every command about real jobs and files of profilers", 40, "recorded"),
    "programs": Part("real programs by output, exit code and files", 3, "programs"),
    "cpython": Part("CPython's tests by their outcomes", 20, "suites", "cpython", side_by_side=True),
    "packages": Part("numpy's and pyarrow's tests by their outcomes", 25, "suites", "packages", side_by_side=True),
}
KEPT = harness.ROOT / "build/trust"
PROGRAMS = {
    "git": ["--version"],
    "node": ["--version"],
    "java": ["-version"],
    "rustc": ["--version"],
    "go": ["version"],
    "gcc": ["-dumpfullversion"],
    "sqlite3": ["--version"],
    "rsync": ["--version"],
    "fio": ["--version"],
    "strace": ["--version"],
    "perl": ["-e", "print $^V"],
}


def run_part(name: str, commit: str, limit_min: float | None) -> dict[str, Any]:
    """Run one part and keep its result; pytest writes what it has when it is interrupted."""
    report = KEPT / f"{name}.xml"
    report.unlink(missing_ok=True)
    part = PARTS[name]
    begin, load = time.monotonic(), list(os.getloadavg())
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-o",
        "junit_family=xunit1",
        "-m",
        "trust",
        *(["-k", part.chosen] if part.chosen else []),
        *(["-n", "auto", "--maxprocesses", "8", "--maxschedchunk", "1"] if part.side_by_side else []),
        f"tests/trust/test_trust_{part.file}.py",
    ]
    print(f"{name}: about {part.minutes} minutes on two quiet cores", flush=True)
    listed = subprocess.run([*command, "--collect-only"], cwd=harness.ROOT, capture_output=True, text=True, check=False)
    wanted = [line.split("::", 1)[1] for line in listed.stdout.splitlines() if "::" in line]
    with subprocess.Popen([*command, f"--junitxml={report}"], cwd=harness.ROOT) as process:
        try:
            code = process.wait(None if limit_min is None else 60 * limit_min)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            code = process.wait()
    tests = read_report(report) if report.is_file() else []
    result = {
        "commit": commit,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "command": shlex.join(["python", *command[1:]]),
        "exit_code": code,
        "wall_s": time.monotonic() - begin,
        "load_average": {"begin": load, "end": list(os.getloadavg())},
        "tests": tests,
        "not_run": sorted(set(wanted) - {test["name"] for test in tests}),
    }
    (KEPT / f"{name}.json").write_text(json.dumps(harness.rounded(result), indent=1) + "\n", encoding="utf-8")
    return result


def read_report(path: Path) -> list[dict[str, Any]]:
    """Outcome, reason, duration and figures of each test of a JUnit report."""
    tests = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        if case.get("name") is None:  # where the series was interrupted
            continue
        outcome, reason = "passed", ""
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                known = child.get("type") == "pytest.xfail"
                outcome = "fails as known" if known else {"skipped": "skipped"}.get(child.tag, "failed")
                reason = (child.get("message") or "").splitlines()[0][:300] if child.get("message") else ""
        figures = {entry.get("name", ""): _number(entry.get("value", "")) for entry in case.iter("property")}
        tests.append(
            {
                "name": case.get("name"),
                "outcome": outcome,
                "reason": reason,
                "wall_s": float(case.get("time", 0)),
                "figures": figures,
            }
        )
    return tests


def _number(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


def program_versions() -> dict[str, str]:
    """First line of each program's account; absent ones say so."""
    found = {}
    for name, option in PROGRAMS.items():
        if shutil.which(name) is None:
            found[name] = "not installed"
            continue
        done = subprocess.run([name, *option], capture_output=True, text=True, check=False)
        found[name] = next(iter((done.stdout or done.stderr).strip().splitlines()), "says nothing")
    return found


def page(parts: dict[str, dict[str, Any]], versions: dict[str, str]) -> str:
    """The readable form: one table of parts, then what failed and what was skipped."""
    lines = [
        "# What the trust tier found",
        "",
        "`make trust` runs these parts; each one is described at the top of `tests/trust/`. A test",
        "that fails as known is a strict xfail: its reason stands below, and it fails the run once it passes.",
        "",
        "| part | what | passed | fails as known | failed | skipped | not run | wall (s) | load, before and after"
        " | commit |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, about in PARTS.items():
        part = parts.get(name)
        if part is None:
            lines.append(f"| {name} | {about.what} | not run | | | | | | | |")
            continue
        count = Counter(test["outcome"] for test in part["tests"])
        loads = f"{part['load_average']['begin'][0]:.1f}, {part['load_average']['end'][0]:.1f}"
        lines.append(
            f"| {name} | {about.what} | {count['passed']} | {count['fails as known']} | {count['failed']} |"
            f" {count['skipped']} | {len(part.get('not_run', []))} | {part['wall_s']:.0f} | {loads} |"
            f" {part['commit']} |"
        )
    lines += ["", "## Amounts, summed over the tests of a part", ""]
    for name, part in parts.items():
        sums: Counter[str] = Counter()
        for test in part["tests"]:
            sums.update({k: v for k, v in test["figures"].items() if k.endswith("_count") and isinstance(v, int)})
        if sums:
            lines.append(f"- **{name}**: " + ", ".join(f"{k.removesuffix('_count')} {v:,}" for k, v in sums.items()))
    for title, outcome in (("Failed", "failed"), ("Fails as known", "fails as known"), ("Skipped", "skipped")):
        lines += ["", f"## {title}", ""]
        found = [(n, t) for n, part in parts.items() for t in part["tests"] if t["outcome"] == outcome]
        lines += [f"- {name}: `{test['name']}`: {test['reason']}" for name, test in found] or ["Nothing."]
    rows = [
        f"- {name}: " + ", ".join(f"`{test}`" for test in part["not_run"])
        for name, part in parts.items()
        if part.get("not_run")
    ]
    rows += [f"- {name}: nothing of it" for name in PARTS if name not in parts]
    lines += ["", "## Not run", "", *(rows or ["Nothing."])]
    lines += ["", "## Versions", "", ", ".join(f"{name} {text}" for name, text in versions.items()), ""]
    return "\n".join(lines)


def main() -> int:
    """Run what is missing, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--again", action="store_true", help="run the parts that have a result of this commit, too")
    parser.add_argument("--limit", type=float, metavar="MINUTES", help="end a part that takes longer")
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    options = parser.parse_args()
    chosen = options.parts.split(",")
    unknown = set(chosen) - set(PARTS)
    if unknown:
        parser.error(f"unknown parts {sorted(unknown)}; there are {', '.join(PARTS)}")
    KEPT.mkdir(parents=True, exist_ok=True)
    commit = harness.versions()["commit"]
    for name in chosen:
        kept = KEPT / f"{name}.json"
        if not options.again and kept.is_file() and is_whole(json.loads(kept.read_text()), commit):
            print(f"{name}: has a result of {commit} (--again repeats it)")
        else:
            run_part(name, commit, options.limit)
        write_results(options.out)
    parts = results(options.out)
    return int(
        any(test["outcome"] == "failed" for name in chosen for test in parts[name]["tests"])
        or any(parts[name]["exit_code"] not in (0, 1) for name in chosen)
    )


def is_whole(result: dict[str, Any], commit: str) -> bool:
    """Whether a part came to its end, at this commit."""
    return bool(result["commit"] == commit and not result.get("not_run"))


def results(folder: Path) -> dict[str, dict[str, Any]]:
    """Results of all parts, in their order: those kept here, else those that were written into the folder before."""
    before = folder / "trust.json"
    written = json.loads(before.read_text(encoding="utf-8"))["figures"]["parts"] if before.is_file() else {}
    paths = {name: KEPT / f"{name}.json" for name in PARTS}
    kept = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if path.is_file()}
    return {name: (written | kept)[name] for name in PARTS if name in written | kept}


def write_results(folder: Path) -> None:
    """trust.json and trust.md, of all parts that have a result."""
    versions, parts = program_versions(), results(folder)
    figures = {"parts": parts, "not_run": [name for name in PARTS if name not in parts], "programs": versions}
    modules = ("numpy", "pyarrow", "pytest")
    harness.write_result("trust", figures, command="make trust", modules=modules, folder=folder)
    (folder / "trust.md").write_text(page(parts, versions), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
