"""Everything that only a machine with a GPU can answer, in one command: questions, build, contract, tests, benchmarks.

    python benchmarks/gpu/collect.py --out results [--limit-s 570] [--rounds 3] [--models resnet gpt]
                                     [--parts probe ask build job nccl contract gpu calls training]
                                     [--variants default kernels]

Each part runs in separate processes. One that outlasts its share of the limit is interrupted (SIGINT), so that it can
write what it has, and killed if it does not end within seconds; so it is when this command is interrupted or
terminated. ``--out`` (else ``$OUT``) gets few small files, rewritten every few seconds:

    result.json     machine, versions, command, date; per part: status, seconds, counts, reasons for what was skipped
    probe.json      what driver_probe.py found out about the driver
    ask.json        what the driver answered to gpu_job.py, and which answers contradict what the recorder relies on
    jobs.json       jobs on libcuda and libnccl alone: what was recorded against what they say of themselves
    contract.xml, gpu.xml    the tests, one by one (JUnit); each test file runs by itself
    benchmarks.json          what the benchmarks measured in the rounds so far, with their commands
    log.txt                  the last of what each command printed

Without a GPU the questions, the jobs and the benchmarks are skipped and the tests skip themselves; the result says so.
``--wheels`` installs packages from files where no index can be reached, ``--venv`` makes an environment with what the
tests need. Standard library only. The exit code is 0 when no part failed, 130 when it was interrupted, 1 else.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import ast
import contextlib
import ctypes
import datetime
import functools
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
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
sys.path.insert(0, str(ROOT / "benchmarks"))

import harness  # noqa: E402

#: Part -> the most of the whole limit that it may take.
PARTS = {
    "probe": 0.1,
    "ask": 0.25,
    "build": 0.5,
    "job": 0.3,
    "nccl": 0.4,
    "contract": 0.4,
    "gpu": 0.6,
    "calls": 0.5,
    "training": 1.0,
}
GPU_JOB = "benchmarks/gpu/gpu_job.py"
#: Kept of what a command printed.
TAIL_BYTES = 100_000
#: Between SIGINT and SIGKILL, at most a quarter of what a command may take.
GRACE_S = 20.0
#: Between two looks at a command that runs; the files are written as often.
LOOK_S = 2.0
NEEDED = ("numpy", "pytest", "pybind11")
VERSIONS = (*NEEDED, "torch", "cupy", "triton", "jax")


@dataclass
class Run:
    """What this run was asked for, and what it has found so far."""

    out: Path
    work: Path
    python: str
    deadline_s: float
    environment: dict[str, str]
    benchmark_options: dict[str, list[str]] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    def left_s(self) -> float:
        return self.deadline_s - time.monotonic()

    def write(self) -> None:
        """Write the files as of now; paths of the machine are cut out."""
        places = {self.python: "python", str(ROOT): ".", str(self.work): "TMP", sys.prefix: "PREFIX"}

        def clean(text: str) -> str:
            for path, name in places.items():
                text = text.replace(path, name)
            return re.sub(r' hostname="[^"]*"', "", text)

        benchmarks = [content for path in sorted(self.work.glob("measured/*/*.json")) if (content := _json_of(path))]
        texts = {
            "result.json": json.dumps(self.report, indent=2) + "\n",
            "benchmarks.json": json.dumps(benchmarks, indent=2) + "\n",
            "log.txt": "\n".join(self.log),
        }
        for folder in self.work.glob("junit/*"):
            texts[f"{folder.name}.xml"] = joined_junit(sorted(folder.glob("*.xml")))
        for name in ("probe.json", "ask.json"):
            if (self.work / name).is_file():
                texts[name] = (self.work / name).read_text(encoding="utf-8")
        if jobs := {path.stem: _json_of(path) for path in sorted(self.work.glob("checked/*.json"))}:
            texts["jobs.json"] = json.dumps(jobs, indent=1) + "\n"
        for name, text in texts.items():
            part = self.out / f"{name}.part"  # whoever kills us in the middle leaves the file of before
            part.write_text(clean(text), encoding="utf-8")
            part.replace(self.out / name)

    def call(self, command: Sequence[str], limit_s: float) -> tuple[int | None, str]:
        """Run a command in a separate process group.

        Parameters
        ----------
        command : sequence of str
            Runs in the repository's root.
        limit_s : float
            Seconds until it has ended, the time that it needs to write its results after an interrupt included.

        Returns
        -------
        code : int or None
            Exit code; None if it took too long.
        printed : str
            The end of its output.

        Raises
        ------
        KeyboardInterrupt
            If this command was interrupted; the other one was before.
        """
        text = self.work / "output"
        title = f"$ {shlex.join(command)}\n"
        self.log.append(title)
        deadline_s = time.monotonic() + limit_s
        grace_s = min(GRACE_S, limit_s / 4)
        code: int | None = None
        with text.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                while code is None and time.monotonic() < deadline_s - grace_s:
                    try:
                        code = process.wait(timeout=min(LOOK_S, max(0.01, deadline_s - grace_s - time.monotonic())))
                    except subprocess.TimeoutExpired:
                        self.log[-1] = title + _end_of(text)
                        self.write()
            finally:
                if code is None:
                    _interrupt(process, grace_s)
                _end_group(process)
                self.log[-1] = title + _end_of(text)
        return code, _end_of(text)


def _end_of(path: Path) -> str:
    return path.read_bytes()[-TAIL_BYTES:].decode(errors="replace")


def _json_of(path: Path) -> Any:
    """Content of a file that another process may be about to write; None where it is not whole."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None


def _interrupt(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Send the whole group SIGINT, as a terminal does, and wait for its leader to write what it has."""
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=grace_s)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill whatever a command left running: it holds the device, and would be measured with the next."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()


def joined_junit(paths: Sequence[Path]) -> str:
    """One JUnit text of several; a file that is not whole is left out."""
    root = ElementTree.Element("testsuites")
    for path in paths:
        try:
            tree = ElementTree.parse(path).getroot()
        except ElementTree.ParseError:
            continue
        root.extend([tree] if tree.tag == "testsuite" else list(tree))
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def why_no_device() -> str:
    """Empty where a device can be used, else the reason."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no driver: libcuda.so.1 cannot be loaded"
    program = (
        "import ctypes, sys; d = ctypes.CDLL('libcuda.so.1'); n = ctypes.c_int(); "
        "sys.exit(d.cuInit(0) or d.cuDeviceGetCount(ctypes.byref(n)) or (n.value == 0 and 100))"
    )
    del driver
    code = subprocess.run([sys.executable, "-c", program], capture_output=True).returncode
    return "" if code == 0 else f"the driver sees no device (CUresult {code})"


def devices() -> list[dict[str, str]]:
    """Name, driver and memory of each device, as nvidia-smi reports them."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    names = ("name", "driver_version", "memory.total", "pstate", "clocks.max.sm")
    done = subprocess.run(
        [tool, f"--query-gpu={','.join(names)}", "--format=csv,noheader"], capture_output=True, text=True, timeout=60
    )
    return [dict(zip(names, map(str.strip, line.split(",")), strict=False)) for line in done.stdout.splitlines()]


def module_versions(python: str) -> dict[str, str]:
    """Versions of what figures and tests depend on, by their metadata: nothing is imported."""
    program = f"""
import importlib.metadata, json
owners, found = importlib.metadata.packages_distributions(), {{}}
for name in {VERSIONS!r}:
    for owner in owners.get(name, [])[:1]:
        found[name] = importlib.metadata.version(owner)
for owner in sorted({{o for n, os in owners.items() if n == "nvidia" for o in os if "nccl" in o or "runtime" in o}}):
    found[owner] = importlib.metadata.version(owner)
print(json.dumps(found))
"""
    done = subprocess.run([python, "-c", program], capture_output=True, text=True)
    found: dict[str, str] = json.loads(done.stdout) if done.returncode == 0 else {}
    return found


def counts(paths: Sequence[Path]) -> dict[str, Any]:
    """Numbers of JUnit files, why tests were skipped, and which failed."""
    if not paths:
        return {}
    numbers: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    failed = []
    for case in ElementTree.fromstring(joined_junit(paths)).iter("testcase"):
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
    return {
        **{k: numbers[k] for k in ("passed", "failed", "skipped")},
        "skipped_because": dict(skipped),
        "failed_tests": failed,
    }


def skipped(reason: str) -> dict[str, Any]:
    return {"status": "skipped", "skipped_because": {reason: 1}}


Part = Callable[[Run, float], dict[str, Any]]


def needs_device(part: Part) -> Part:
    """Skip a part where there is no device."""

    @functools.wraps(part)
    def runs(run: Run, limit_s: float) -> dict[str, Any]:
        reason = run.report["no_device_because"]
        return skipped(reason) if reason else part(run, limit_s)

    return runs


@needs_device
def probe(run: Run, limit_s: float) -> dict[str, Any]:
    """What the driver says."""
    limit = f"{max(1.0, limit_s * 0.7):.0f}"
    code, printed = run.call([run.python, "benchmarks/gpu/driver_probe.py", "--limit-s", limit], limit_s)
    keep_printed(printed, run.work / "probe.json")
    return _outcome(code, printed)


def keep_printed(printed: str, file: Path) -> dict[str, Any]:
    """Write the JSON object that a command printed to a file, and return it; empty if it printed none."""
    found: dict[str, Any] = {}
    with contextlib.suppress(ValueError):  # it died: the log has what it said
        found, _ = json.JSONDecoder().raw_decode(printed, max(printed.find("{"), 0))
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


@needs_device
def ask(run: Run, limit_s: float) -> dict[str, Any]:
    """What the driver answers to questions that decide how the recorder may behave."""
    limit = f"{max(1.0, limit_s * 0.7):.0f}"
    code, printed = run.call([run.python, GPU_JOB, "ask", "--limit-s", limit], limit_s)
    found = keep_printed(printed, run.work / "ask.json")
    return {**_outcome(code, "" if found else printed), "problems": found.get("problems", [])}


def record_and_check(
    run: Run, name: str, options: Sequence[str], job: Sequence[str], truth: Path, limit_s: float
) -> dict[str, Any]:
    """Trace a job of gpu_job.py, and compare what was recorded with what the job says of itself."""
    until_s = time.monotonic() + limit_s
    folder = str(run.work / f"run-{name}")
    traced = [run.python, "-m", "stashtrace", "run", "--lookup-hook", *options, "--out", folder, "--"]
    code, printed = run.call([*traced, run.python, GPU_JOB, *job], limit_s * 0.7)
    if code != 0:
        return _outcome(code, printed)
    code, printed = run.call([run.python, GPU_JOB, "check", folder, str(truth)], until_s - time.monotonic())
    found = keep_printed(printed, run.work / "checked" / f"{name}.json")
    return {**_outcome(code, "" if found else printed), "problems": found.get("problems", [])}


@needs_device
def device_job(run: Run, limit_s: float) -> dict[str, Any]:
    """A job on libcuda alone, whose kernels stamp themselves."""
    truth = run.work / "job.json"
    return record_and_check(run, "job", (), ("job", str(truth)), truth, limit_s)


@needs_device
def nccl_job(run: Run, limit_s: float) -> dict[str, Any]:
    """Two ranks on libnccl alone that share a device, timed by events and by NCCL's plugin; also not blocking."""
    reason = run.report["no_device_because"]
    if not reason:
        program = (
            "import sys; sys.path.insert(0, sys.argv[1]); import ctypes, gpu_jobs; ctypes.CDLL(gpu_jobs.nccl_path())"
        )
        code, _ = run.call([run.python, "-c", program, str(Path(GPU_JOB).parent)], limit_s / 3)
        reason = "" if code == 0 else "no libnccl.so.2: NCCL's wheel, or STASHTRACE_NCCL_LIBRARY"
    if reason:
        return {"status": "skipped", "skipped_because": {reason: 1}}
    found: dict[str, dict[str, Any]] = {}
    until_s = time.monotonic() + limit_s
    ways = {"events": (), "plugin": (), "non-blocking": ("--non-blocking",)}
    for number, (way, words) in enumerate(ways.items()):
        truth = run.work / f"ranks-{way}"
        truth.mkdir()
        job = ("ranks", "2", str(truth), *words)
        source = ("--nccl-source", "plugin" if way == "plugin" else "events")
        share_s = (until_s - time.monotonic()) / (len(ways) - number)
        found[way] = record_and_check(run, f"nccl-{way}", source, job, truth, share_s)
    bad = [one["status"] for one in found.values() if one["status"] != "passed"]
    problems = [f"{source}: {text}" for source, one in found.items() for text in one.get("problems", ())]
    ends = {source: one["output_end"] for source, one in found.items() if one.get("output_end")}
    reported = {"output_end": "\n".join(ends.values())[-3000:]} if ends else {}
    return {"status": bad[0] if bad else "passed", "problems": problems, **reported}


def mark_unfinished(report: Path) -> None:
    """Mark the last test of an interrupted pytest, which writes it as one that passed."""
    with contextlib.suppress(OSError, ElementTree.ParseError):
        tree = ElementTree.parse(report)
        cases = list(tree.iter("testcase"))
        if cases and not any(child.tag in ("failure", "error", "skipped") for child in cases[-1]):
            ElementTree.SubElement(cases[-1], "skipped", message=UNFINISHED)
            tree.write(report, encoding="unicode")


def build(run: Run, limit_s: float) -> dict[str, Any]:
    """Both shared objects, in place. By CMake itself: a machine without a network may lack what setup.py asks for."""
    until_s = time.monotonic() + limit_s
    places = os.pathsep.join([str(Path(run.python).parent), os.environ.get("PATH", os.defpath)])
    cmake, ninja = (shutil.which(name, path=places) or name for name in ("cmake", "ninja"))
    folder = "build/native-collect"
    configure = [cmake, "-G", "Ninja", "-S", ".", "-B", folder]
    configure += [f"-DCMAKE_MAKE_PROGRAM={ninja}", f"-DPython_EXECUTABLE={run.python}"]
    script = (
        "import pybind11, os, sys; os.execv(sys.argv[1], [*sys.argv[1:], f'-Dpybind11_DIR={pybind11.get_cmake_dir()}'])"
    )
    commands = [
        [run.python, "-c", script, *configure],
        [cmake, "--build", folder],
        [cmake, "--install", folder, "--prefix", "."],
    ]
    for command in commands:
        code, printed = run.call(command, until_s - time.monotonic())
        if code != 0:
            break
    return _outcome(code, printed)


def _outcome(code: int | None, printed: str) -> dict[str, Any]:
    status = "timed out" if code is None else "passed" if code == 0 else "failed"
    return {"status": status} if status == "passed" else {"status": status, "output_end": printed[-3000:]}


#: Why a test counts as skipped.
UNFINISHED = "not finished: interrupted at the time limit or by the user"
#: pytest's exit code where a file has no test that was chosen.
NO_TESTS = 5


def running_tests(folder: str, *names: str, only: str = "", name: str = "") -> Part:
    """Run files of a folder of tests (all), of each the tests that `only` chooses; `name`: the report's."""

    def part(run: Run, limit_s: float) -> dict[str, Any]:
        """One process per file: one that hangs or dies costs no other, and its finished tests are kept."""
        reports = run.work / "junit" / (name or folder)
        reports.mkdir(parents=True, exist_ok=True)
        until_s = time.monotonic() + limit_s
        files = [TESTS / folder / one for one in names] or sorted((TESTS / folder).glob("test_*.py"))
        codes: dict[str, int | None] = {}
        ends: list[str] = []
        for number, file in enumerate(files):
            left_s = until_s - time.monotonic()
            if left_s < 1:
                break
            # A file that hangs may take half of what is left, the last one all of it.
            share_s = left_s if number == len(files) - 1 else left_s / 2
            report = reports / f"{file.stem}.xml"
            place = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
            # The machine's pytest may be older than the one that a checkout asks for.
            command = [run.python, "-m", "pytest", "-o", "minversion=0", str(place), f"--junitxml={report}"]
            command += ["-o", "junit_logging=no", *(["-k", only] if only else [])]
            code: int | None = None
            try:
                code, printed = run.call(command, share_s)
            finally:
                if code is None:
                    mark_unfinished(report)
            codes[file.name] = code
            if code not in (0, NO_TESTS):
                ends.append(printed[-1500:])
            run.write()
        found = counts(sorted(reports.glob("*.xml")))
        unfinished = [name for name, code in codes.items() if code is None]
        not_reached = [file.name for file in files if file.name not in codes]
        bad = [name for name, code in codes.items() if code not in (0, NO_TESTS, None)]
        status = "failed" if bad else "timed out" if unfinished or not_reached else "passed"
        if status == "passed" and not found.get("passed"):
            status = "skipped"
        reported = {"output_end": "\n".join(ends)[-3000:]} if ends else {}
        return {"status": status, **found, "timed_out_files": unfinished, "not_reached_files": not_reached, **reported}

    return part


def running_benchmark(name: str, *words: str, folder: str = "") -> Part:
    """Run a benchmark with these words, else with those that this command was given."""

    @needs_device
    def part(run: Run, limit_s: float) -> dict[str, Any]:
        measured = run.work / "measured" / (folder or name)
        options = [*(words or run.benchmark_options.get(name, [])), "--out", str(measured)]
        return _outcome(*run.call([run.python, f"benchmarks/gpu/bench_{name}.py", *options], limit_s))

    return part


STEPS: dict[str, Part] = {
    "probe": probe,
    "ask": ask,
    "build": build,
    "job": device_job,
    "nccl": nccl_job,
    "contract": running_tests("contract"),
    "gpu": running_tests("gpu"),
    "calls": running_benchmark("calls"),
    "training": running_benchmark("training"),
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


class Planned(NamedTuple):
    """A part and how long it may take; `stop` says of what it found why the rest is worth nothing, empty if it is."""

    name: str
    limit_s: float
    part: Part
    stop: Callable[[dict[str, Any]], str] = lambda found: ""


def run_parts(run: Run, plan: Sequence[Planned]) -> bool:
    """Run the parts in turn; True if this command was interrupted, whose remaining parts are then not reached."""
    stopped = ""
    for name, limit_s, part, stop in plan:
        share_s = min(limit_s, run.left_s())
        if stopped or share_s < 1:
            run.report["parts"][name] = {"status": "not reached", "reason": stopped or "the time limit was used up"}
            continue
        run.report["parts"][name] = {"status": "running"}
        run.write()
        started = time.monotonic()
        interrupted = False
        try:
            found = part(run, share_s)
        except KeyboardInterrupt:
            found, interrupted = {"status": "interrupted"}, True
            found |= counts(sorted(run.work.glob(f"junit/{name}/*.xml")))
        except Exception as error:  # one part must not cost the others
            found = {"status": "failed", "output_end": repr(error)}
        run.report["parts"][name] = {**found, "seconds": round(time.monotonic() - started, 1)}
        print(f"{name:10} {found['status']}", file=sys.stderr, flush=True)
        run.write()
        if interrupted:
            return True
        stopped = stop(found)
    return False


def _terminated(signal_number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=os.environ.get("OUT"), help="folder of the result; else $OUT")
    parser.add_argument("--limit-s", type=float, default=570, help="seconds for all of it (570)")
    parser.add_argument("--parts", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--rounds", type=int, default=3, help="of each benchmark (3)")
    parser.add_argument("--models", nargs="+", help="of the training benchmark (all)")
    parser.add_argument("--variants", nargs="+", help="of the training benchmark (all)")
    environment = parser.add_mutually_exclusive_group()
    environment.add_argument("--wheels", type=Path, help="folder of *.whl files to install for this interpreter")
    environment.add_argument("--venv", type=Path, help="environment to make, with what the tests need")
    options = parser.parse_args(arguments)
    if not options.out:
        parser.error("name a folder: --out FOLDER, or $OUT")
    rounds = ["--rounds", str(options.rounds)]
    models = ["--models", *options.models] if options.models else []
    variants = ["--variants", *options.variants] if options.variants else []
    return collect(
        [Planned(name, PARTS[name] * options.limit_s, STEPS[name]) for name in options.parts],
        Path(options.out),
        options.limit_s,
        ["python", "benchmarks/gpu/collect.py", *(arguments or sys.argv[1:])],
        {"calls": rounds, "training": [*rounds, *models, *variants]},
        lambda run: prepare(options, run),
    )


def collect(
    plan: Sequence[Planned],
    out: Path,
    limit_s: float,
    command: Sequence[str],
    benchmark_options: dict[str, list[str]],
    prepared: Callable[[Run], str],
) -> int:
    """Run the parts of a plan and write what they found into `out` as it comes; the exit code.

    `command` is what was typed, `prepared` makes the environment and says why that failed.
    """
    out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    before = signal.signal(signal.SIGTERM, _terminated)
    with tempfile.TemporaryDirectory(prefix="stashtrace-collect-") as work:
        python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        variables = {**os.environ, "PYTHONPATH": python_path, "PYTHONUNBUFFERED": "1", "TMPDIR": work}
        run = Run(out, Path(work), sys.executable, begin + limit_s, variables, benchmark_options)
        run.report = {
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "command": shlex.join(command),
            "machine": harness.machine(),
            "devices": devices(),
            "shm_free_bytes": shutil.disk_usage("/dev/shm").free,
            "no_device_because": why_no_device(),
            "versions": harness.versions(),
            "parts": {one.name: {"status": "not reached"} for one in plan},
        }
        run.write()
        problem, interrupted = "", False
        try:
            problem = prepared(run)
            run.report["versions"] |= module_versions(run.python)
        except KeyboardInterrupt:
            interrupted = True
        if problem:
            run.report["environment_problem"] = problem
        interrupted = interrupted or run_parts(run, plan)
        signal.signal(signal.SIGTERM, before)
        run.report["interrupted"] = interrupted
        run.report["seconds"] = round(time.monotonic() - begin, 1)
        run.write()
    if interrupted:
        return 130
    bad = [n for n, part in run.report["parts"].items() if part["status"] not in ("passed", "skipped")]
    return 1 if bad or problem else 0


if __name__ == "__main__":
    sys.exit(main())
