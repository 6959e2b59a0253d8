"""Everything that only a machine with a GPU can answer, in one command: build, contract, tests, benchmarks.

    python benchmarks/gpu/collect.py --out results [--limit-s 570] [--parts build contract gpu calls training]

Each part runs in a process of its own, whatever became of the part before; one that outlasts its share of the limit is
ended and reported so. ``--out`` (else ``$OUT``) gets few small files, written anew after each part:

    result.json     machine, versions, command, date; per part: status, seconds, counts, reasons for what was skipped
    contract.xml, gpu.xml    the tests, one by one (JUnit)
    benchmarks.json          what the benchmarks measured, with their commands
    log.txt                  the last of what each part printed

On a machine without a GPU the benchmarks are skipped with the reason and the tests skip themselves: the result says so.
``--wheels FOLDER`` installs packages from files into a folder of the run, where no index can be reached; ``--venv
FOLDER`` makes an environment and installs what the tests need. Standard library only. The exit code is 0 when no part
failed, 1 else.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import ast
import ctypes
import datetime
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import harness  # noqa: E402

#: Part -> the most of the whole limit that it may take.
PARTS = {"build": 0.5, "contract": 0.4, "gpu": 0.6, "calls": 0.5, "training": 1.0}
#: Kept of what a part printed.
TAIL_BYTES = 100_000
NEEDED = ("numpy", "pytest", "pybind11")
TOLD = (*NEEDED, "torch", "cupy", "triton", "jax")


@dataclass
class Run:
    """What this run was asked for, and what it has found so far."""

    out: Path
    work: Path
    python: str
    deadline_s: float
    environment: dict[str, str]
    report: dict[str, Any] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    benchmarks: list[Any] = field(default_factory=list)

    def left_s(self) -> float:
        return self.deadline_s - time.monotonic()

    def write(self) -> None:
        """The files as of now; paths of the machine are cut out."""
        places = {self.python: "python", str(ROOT): ".", str(self.work): "TMP", sys.prefix: "PREFIX"}

        def clean(text: str) -> str:
            for path, name in places.items():
                text = text.replace(path, name)
            return re.sub(r' hostname="[^"]*"', "", text)

        texts = {
            "result.json": json.dumps(self.report, indent=2) + "\n",
            "benchmarks.json": json.dumps(self.benchmarks, indent=2) + "\n",
            "log.txt": "\n".join(self.log),
        }
        for name, text in texts.items():
            (self.out / name).write_text(clean(text), encoding="utf-8")
        for path in self.work.glob("*.xml"):
            (self.out / path.name).write_text(clean(path.read_text(encoding="utf-8")), encoding="utf-8")

    def call(self, command: Sequence[str], limit_s: float) -> tuple[int | None, str]:
        """Exit code (None: it took too long) and the end of the output; the whole process group is ended."""
        text = self.work / "output"
        with text.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env=self.environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                code: int | None = process.wait(timeout=limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end_group(process)
        printed = text.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
        self.log.append(f"$ {shlex.join(command)}\n{printed}")
        return code, printed


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Whatever a part left running holds the device, and would be measured with the next."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()


def why_no_device() -> str:
    """Empty where a device can be used, else the reason."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no driver: libcuda.so.1 cannot be loaded"
    program = "import ctypes, sys; d = ctypes.CDLL('libcuda.so.1'); n = ctypes.c_int(); " \
              "sys.exit(d.cuInit(0) or d.cuDeviceGetCount(ctypes.byref(n)) or (n.value == 0 and 100))"  # fmt: skip
    del driver
    code = subprocess.run([sys.executable, "-c", program], capture_output=True).returncode
    return "" if code == 0 else f"the driver sees no device (CUresult {code})"


def devices() -> list[dict[str, str]]:
    """Name, driver and memory of each device, as nvidia-smi tells them."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    names = ("name", "driver_version", "memory.total", "pstate", "clocks.max.sm")
    done = subprocess.run([tool, f"--query-gpu={','.join(names)}", "--format=csv,noheader"], capture_output=True,
                          text=True, timeout=60)  # fmt: skip
    return [dict(zip(names, map(str.strip, line.split(",")), strict=False)) for line in done.stdout.splitlines()]


def module_versions(python: str) -> dict[str, str]:
    """Versions of what figures and tests depend on, by their metadata: nothing is imported."""
    program = f"""
import importlib.metadata, json
owners, found = importlib.metadata.packages_distributions(), {{}}
for name in {TOLD!r}:
    for owner in owners.get(name, [])[:1]:
        found[name] = importlib.metadata.version(owner)
for owner in sorted({{o for n, os in owners.items() if n == "nvidia" for o in os if "nccl" in o or "runtime" in o}}):
    found[owner] = importlib.metadata.version(owner)
print(json.dumps(found))
"""
    done = subprocess.run([python, "-c", program], capture_output=True, text=True)
    found: dict[str, str] = json.loads(done.stdout) if done.returncode == 0 else {}
    return found


def counts(path: Path) -> dict[str, Any]:
    """Numbers of a JUnit file, why tests were skipped, and which failed."""
    if not path.is_file():
        return {}
    numbers: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    failed = []
    for case in ElementTree.parse(path).iter("testcase"):
        kinds = {child.tag: child for child in case}
        name = f"{case.get('classname')}.{case.get('name')}"
        if "failure" in kinds or "error" in kinds:
            numbers["failed"] += 1
            failed.append(name)
        elif "skipped" in kinds:
            numbers["skipped"] += 1
            reason = kinds["skipped"].get("message") or "no reason"
            if reason == "collection skipped":  # of a whole file: a tuple of place, line and reason, as text
                reason = ast.literal_eval(kinds["skipped"].text or "('', 0, '')")[2].removeprefix("Skipped: ")
            skipped[reason] += 1
        else:
            numbers["passed"] += 1
    return {**{k: numbers[k] for k in ("passed", "failed", "skipped")}, "skipped_because": dict(skipped),
            "failed_tests": failed}  # fmt: skip


def build(run: Run, limit_s: float) -> dict[str, Any]:
    """Both shared objects, in place."""
    code, printed = run.call([run.python, "setup.py", "build_ext", "--inplace"], limit_s)
    return _told(code, printed)


def _told(code: int | None, printed: str) -> dict[str, Any]:
    status = "timed out" if code is None else "passed" if code == 0 else "failed"
    return {"status": status} if status == "passed" else {"status": status, "output_end": printed[-3000:]}


def _tests(folder: str) -> Callable[[Run, float], dict[str, Any]]:
    def part(run: Run, limit_s: float) -> dict[str, Any]:
        report = run.work / f"{folder}.xml"
        command = [run.python, "-m", "pytest", f"tests/{folder}", f"--junitxml={report}", "-o", "junit_logging=no"]
        code, printed = run.call(command, limit_s)
        found = counts(report)
        if code == 0 and not found.get("passed"):
            return {"status": "skipped", **found}
        return {**_told(code, printed), **found}

    return part


def _benchmark(script: str, *options: str) -> Callable[[Run, float], dict[str, Any]]:
    def part(run: Run, limit_s: float) -> dict[str, Any]:
        reason = run.report["no_device_because"]
        if reason:
            return {"status": "skipped", "skipped_because": {reason: 1}}
        results = ROOT / "benchmarks/gpu/results"
        before = {path: path.stat().st_mtime_ns for path in results.glob("*.json")}
        code, printed = run.call([run.python, f"benchmarks/gpu/{script}", *options], limit_s)
        for path in sorted(results.glob("*.json")):
            if before.get(path) != path.stat().st_mtime_ns:
                run.benchmarks.append(json.loads(path.read_text(encoding="utf-8")))
        return _told(code, printed)

    return part


STEPS: dict[str, Callable[[Run, float], dict[str, Any]]] = {
    "build": build,
    "contract": _tests("contract"),
    "gpu": _tests("gpu"),
    "calls": _benchmark("bench_calls.py", "--rounds", "3"),
    "training": _benchmark("bench_training.py", "--rounds", "3"),
}


def prepare(options: argparse.Namespace, run: Run) -> str:
    """Make the environment that was asked for; why that failed, empty if it did not."""
    install = [run.python, "-m", "pip", "install", "-q", "--no-input"]
    if options.wheels:
        site = run.work / "site"
        command = [*install, "--no-index", "--no-deps", "--target", str(site), *map(str, options.wheels.glob("*.whl"))]
        run.environment["PYTHONPATH"] = os.pathsep.join([str(site), run.environment["PYTHONPATH"]])
    elif options.venv:
        code, printed = run.call([sys.executable, "-m", "venv", "--system-site-packages", str(options.venv)], 300)
        if code != 0:
            return printed[-1000:]
        run.python = str(options.venv.absolute() / "bin/python")
        needed = ("pybind11>=2.13", "cmake>=3.24", "ninja", "setuptools>=77", "pytest>=8", "numpy")
        command = [run.python, *install[1:], *needed]
    else:
        missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
        return f"not installed: {', '.join(missing)}; hint: --venv FOLDER or --wheels FOLDER" if missing else ""
    code, printed = run.call(command, run.left_s())
    return "" if code == 0 else printed[-1000:]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=os.environ.get("OUT"), help="folder of the result; else $OUT")
    parser.add_argument("--limit-s", type=float, default=570, help="seconds for all of it (570)")
    parser.add_argument("--parts", nargs="+", choices=STEPS, default=list(STEPS))
    environment = parser.add_mutually_exclusive_group()
    environment.add_argument("--wheels", type=Path, help="folder of *.whl files to install beside this interpreter")
    environment.add_argument("--venv", type=Path, help="environment to make, with what the tests need")
    options = parser.parse_args(arguments)
    if not options.out:
        parser.error("name a folder: --out FOLDER, or $OUT")
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stashtrace-collect-") as work:
        python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        variables = {**os.environ, "PYTHONPATH": python_path, "PYTHONUNBUFFERED": "1", "TMPDIR": work}
        run = Run(out, Path(work), sys.executable, begin + options.limit_s, variables)
        run.report = {
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "command": shlex.join(["python", "benchmarks/gpu/collect.py", *(arguments or sys.argv[1:])]),
            "machine": harness.machine(),
            "devices": devices(),
            "no_device_because": why_no_device(),
            "versions": harness.versions(),
            "parts": {name: {"status": "not reached"} for name in options.parts},
        }
        run.write()
        problem = prepare(options, run)
        run.report["versions"] |= module_versions(run.python)
        if problem:
            run.report["environment_problem"] = problem
        for name in options.parts:
            limit_s = min(PARTS[name] * options.limit_s, run.left_s())
            if limit_s < 1:
                run.report["parts"][name] = {"status": "not reached", "reason": "the time limit was used up"}
                continue
            run.report["parts"][name] = {"status": "running"}
            run.write()
            started = time.monotonic()
            try:
                found = STEPS[name](run, limit_s)
            except Exception as error:  # one part must not cost the others
                found = {"status": "failed", "output_end": repr(error)}
            run.report["parts"][name] = {**found, "seconds": round(time.monotonic() - started, 1)}
            print(f"{name:10} {found['status']}", file=sys.stderr, flush=True)
        run.report["seconds"] = round(time.monotonic() - begin, 1)
        run.write()
    bad = [n for n, part in run.report["parts"].items() if part["status"] not in ("passed", "skipped")]
    return 1 if bad or problem else 0


if __name__ == "__main__":
    sys.exit(main())
