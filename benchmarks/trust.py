"""The long form of the trust tier: attacks, fuzzing, and comparisons with and without the recorder.

    python benchmarks/trust.py [--parts scenes,kill] [--again] [--out FOLDER]

Each part is one call of pytest, and writes its own result under build/trust as it ends. Called again it runs only what
has no result of this commit yet, so that an interrupted series goes on where it stopped; --again runs the chosen parts
anew. trust.json and trust.md are put together after each part: what ran, how much, what was found, what was skipped and
why. Failures are written down and are the exit code.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import Any

import harness

PARTS = {
    "conformance": "every hook with and without the preload: value, errno, effects",
    "scenes": "programs that are hard on a recorder, by their own verdict",
    "kill": "killed at random moments, every call read, counted as lost, or in flight",
    "fuzz": "damaged files of every format; shipped build, then ASan and UBSan",
    "programs": "real programs by output, exit code and files",
    "suites": "test suites of CPython, numpy and pyarrow by their outcomes",
}
KEPT = harness.ROOT / "build/trust"
PROGRAMS = {
    "git": ["--version"], "node": ["--version"], "java": ["-version"], "rustc": ["--version"], "go": ["version"],
    "gcc": ["-dumpfullversion"], "sqlite3": ["--version"], "rsync": ["--version"], "fio": ["--version"],
    "strace": ["--version"], "perl": ["-e", "print $^V"],
}  # fmt: skip


def run_part(name: str, commit: str) -> dict[str, Any]:
    """Run one part and keep its result."""
    report = KEPT / f"{name}.xml"
    begin, load = time.monotonic(), list(os.getloadavg())
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider" if name != "fuzz" else "cacheprovider",
        "-m", "trust", f"--junitxml={report}", f"tests/trust/test_trust_{name}.py",
    ]  # fmt: skip
    code = subprocess.run(command, cwd=harness.ROOT, check=False).returncode
    result = {
        "commit": commit,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "command": " ".join(["python", *command[1:]]).replace(str(harness.ROOT) + "/", ""),
        "exit_code": code,
        "wall_s": time.monotonic() - begin,
        "load_average": {"begin": load, "end": list(os.getloadavg())},
        "tests": read_report(report) if report.is_file() else [],
    }
    (KEPT / f"{name}.json").write_text(json.dumps(harness.rounded(result), indent=1) + "\n", encoding="utf-8")
    return result


def read_report(path: Path) -> list[dict[str, Any]]:
    """Outcome, reason, duration and figures of each test of a JUnit report."""
    tests = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        outcome, reason = "passed", ""
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                known = child.get("type") == "pytest.xfail"
                outcome = "fails as known" if known else {"skipped": "skipped"}.get(child.tag, "failed")
                reason = (child.get("message") or "").splitlines()[0][:300] if child.get("message") else ""
        figures = {entry.get("name", ""): _number(entry.get("value", "")) for entry in case.iter("property")}
        tests.append(
            {"name": case.get("name"), "outcome": outcome, "reason": reason, "wall_s": float(case.get("time", 0)),
             "figures": figures}
        )  # fmt: skip
    return tests


def _number(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


def program_versions() -> dict[str, str]:
    """First line of each program's own account; absent ones say so."""
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
        "# What the trust tier found", "",
        "`make trust` runs these parts; each one is described at the top of `tests/trust/test_trust_<part>.py`. A test",
        "that fails as known is a strict xfail: its reason stands below, and it fails the run once it passes.", "",
        "| part | what | passed | fails as known | failed | skipped | wall (s) | load before, after | commit |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, what in PARTS.items():
        part = parts.get(name)
        if part is None:
            lines.append(f"| {name} | {what} | not run | | | | | | |")
            continue
        count = Counter(test["outcome"] for test in part["tests"])
        loads = f"{part['load_average']['begin'][0]:.1f}, {part['load_average']['end'][0]:.1f}"
        lines.append(
            f"| {name} | {what} | {count['passed']} | {count['fails as known']} | {count['failed']} |"
            f" {count['skipped']} | {part['wall_s']:.0f} | {loads} | {part['commit']} |"
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
        rows = [(n, t) for n, part in parts.items() for t in part["tests"] if t["outcome"] == outcome]
        lines += [f"- {name}: `{test['name']}`: {test['reason']}" for name, test in rows] or ["Nothing."]
    lines += ["", "## Versions", "", ", ".join(f"{name} {text}" for name, text in versions.items()), ""]
    return "\n".join(lines)


def main() -> int:
    """Run what is missing, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--again", action="store_true", help="run the parts that have a result of this commit, too")
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
        if not options.again and kept.is_file() and json.loads(kept.read_text())["commit"] == commit:
            print(f"{name}: has a result of {commit} (--again runs it anew)")
        else:
            run_part(name, commit)
        write_results(options.out)
    parts = results()
    return int(
        any(test["outcome"] == "failed" for name in chosen for test in parts[name]["tests"])
        or any(parts[name]["exit_code"] not in (0, 1) for name in chosen)
    )


def results() -> dict[str, dict[str, Any]]:
    """Kept results of all parts, in their order."""
    paths = {name: KEPT / f"{name}.json" for name in PARTS}
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if path.is_file()}


def write_results(folder: Path) -> None:
    """trust.json and trust.md, of all parts that have a result."""
    versions = program_versions()
    figures = {"parts": results(), "not_run": [name for name in PARTS if name not in results()], "programs": versions}
    modules = ("numpy", "pyarrow", "pytest")
    harness.write_result("trust", figures, command="make trust", modules=modules, folder=folder)
    (folder / "trust.md").write_text(page(results(), versions), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
