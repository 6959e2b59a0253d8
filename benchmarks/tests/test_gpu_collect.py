"""benchmarks/gpu/collect.py without a device: it goes on after failures, keeps its limit, says what was not run."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from traced import ROOT

SCRIPT = ROOT / "benchmarks/gpu/collect.py"
WITH_DEVICE = ("probe", "ask", "job", "nccl", "calls", "training")


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"gpu_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def collect() -> ModuleType:
    return load(SCRIPT)


class Clock:
    """Time of the script, which stands still until a file is there and then is past every limit."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def monotonic(self) -> float:
        return 1e9 if self.file.exists() else 0.0


def run(collect: ModuleType, out: Path, *options: str) -> tuple[int, dict[str, Any]]:
    code = collect.main(["--out", str(out), *options])
    return code, json.loads((out / "result.json").read_text(encoding="utf-8"))


def command(*words: str) -> Callable[[Any, float], dict[str, Any]]:
    def part(run: Any, limit_s: float) -> dict[str, Any]:
        code, printed = run.call([sys.executable, "-c", *words], limit_s)
        return {"status": "timed out" if code is None else "passed" if code == 0 else "failed", "said": printed}

    return part


def test_without_a_device_benchmarks_are_skipped_with_the_reason(
    collect: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "why_no_device", lambda: "no driver here")
    code, result = run(collect, tmp_path, "--parts", *WITH_DEVICE)
    assert code == 0
    for part in result["parts"].values():
        assert (part["status"], part["skipped_because"]) == ("skipped", {"no driver here": 1})
    assert result["parts"].keys() == set(WITH_DEVICE)
    assert result["no_device_because"] == "no driver here"
    assert {"date", "command", "machine", "versions"} <= result.keys()
    assert json.loads((tmp_path / "benchmarks.json").read_text()) == []
    files = sorted(tmp_path.iterdir())
    assert len(files) <= 8
    for path in files:
        assert str(ROOT) not in path.read_text(encoding="utf-8"), path


def test_a_part_that_fails_or_hangs_costs_no_other(
    collect: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(run: Any, limit_s: float) -> dict[str, Any]:
        raise ValueError("broken")

    # The grandchild would outlive a kill of the child alone.
    hangs = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    steps = {
        "build": command("import sys; print('no'); sys.exit(3)"),
        "contract": raises,
        "gpu": command(hangs),
        "calls": command("print('yes')"),
    }
    monkeypatch.setattr(collect, "STEPS", steps)
    monkeypatch.setattr(collect, "PARTS", {"build": 1, "contract": 1, "gpu": 0.05, "calls": 1})
    begin = time.monotonic()
    code, result = run(collect, tmp_path, "--limit-s", "30")
    assert time.monotonic() - begin < 300, "nobody waited for the one that hangs"
    assert code == 1
    assert {k: v["status"] for k, v in result["parts"].items()} == {
        "build": "failed",
        "contract": "failed",
        "gpu": "timed out",
        "calls": "passed",
    }
    assert "broken" in result["parts"]["contract"]["output_end"]


def test_no_time_left_is_said(collect: ModuleType, tmp_path: Path) -> None:
    code, result = run(collect, tmp_path, "--limit-s", "0", "--parts", "build")
    assert code == 1
    assert result["parts"]["build"]["status"] == "not reached"


def test_reasons_of_a_junit_file(collect: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "x.xml"
    file.write_text(
        """<testsuites><testsuite><testcase classname="a" name="good"/>
        <testcase classname="a" name="bad"><failure message="m"/></testcase>
        <testcase classname="a" name="gone"><skipped message="no device"/></testcase>
        <testcase classname="" name="b"><skipped message="collection skipped">('b.py', 3, 'Skipped: no torch')</skipped>
        </testcase></testsuite></testsuites>""",
        encoding="utf-8",
    )
    assert collect.counts([file]) == {
        "passed": 1,
        "failed": 1,
        "skipped": 2,
        "skipped_because": {"no device": 1, "no torch": 1},
        "failed_tests": ["a.bad"],
    }
    assert collect.counts([]) == {}


WRITES = """
import pathlib, sys, time
try:
    pathlib.Path(sys.argv[1]).touch()  # the interrupt may come as soon as the file is there
    time.sleep(600)
except KeyboardInterrupt:
    print("what I have")
"""
IGNORES = """
import pathlib, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""


@pytest.mark.parametrize(("program", "said"), [(WRITES, "what I have\n"), (IGNORES, "")])
def test_at_its_limit_a_command_is_asked_before_it_is_killed(
    collect: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, said: str
) -> None:
    marker = tmp_path / "runs"
    monkeypatch.setattr(collect, "time", Clock(marker))
    monkeypatch.setattr(collect, "LOOK_S", 0.05)
    if program is IGNORES:
        monkeypatch.setattr(collect, "GRACE_S", 0.5)
    work = tmp_path / "work"
    work.mkdir()
    made = collect.Run(tmp_path, work, sys.executable, 1e6, dict(os.environ))
    code, printed = made.call([sys.executable, "-c", program, str(marker)], 1000)
    assert (code, printed) == (None, said)
    assert made.log[-1].endswith(said)


#: Files of tests: one that passes, one whose second test never ends.
QUICK = "def test_quick(): pass\n"
HANGS = """
import os, pathlib, time
def test_before(): pass
def test_hangs():
    pathlib.Path({marker!r}).touch()
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.05)
"""
DRIVER = """
import importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("gpu_collect", {script!r})
module = sys.modules["gpu_collect"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.TESTS, module.LOOK_S = pathlib.Path({tests!r}), 0.05
sys.exit(module.main(["--out", {out!r}, "--parts", "contract", "gpu"]))
"""


def own_tests(folder: Path) -> Path:
    """A folder of tests like the repository's; the file that the hanging one makes is ``runs`` next to it."""
    contract = folder / "tests/contract"
    contract.mkdir(parents=True)
    (folder / "tests/pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n", encoding="utf-8")
    (contract / "test_a.py").write_text(QUICK, encoding="utf-8")
    (contract / "test_b.py").write_text(HANGS.format(marker=str(folder / "runs")), encoding="utf-8")
    return folder / "tests"


def wait_for(file: Path, process: subprocess.Popen[bytes]) -> None:
    while not file.exists():
        assert process.poll() is None, "it ended too early"
        time.sleep(0.02)


def started(folder: Path) -> subprocess.Popen[bytes]:
    """The script in a separate process, in a test that does not end."""
    tests = own_tests(folder)
    text = DRIVER.format(script=str(SCRIPT), tests=str(tests), out=str(folder / "out"))
    process = subprocess.Popen([sys.executable, "-c", text], stderr=subprocess.DEVNULL)
    wait_for(folder / "runs", process)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_keeps_what_was_found(tmp_path: Path, number: signal.Signals) -> None:
    process = started(tmp_path)
    process.send_signal(number)
    assert process.wait(timeout=180) == 130
    result = json.loads((tmp_path / "out/result.json").read_text(encoding="utf-8"))
    part = result["parts"]["contract"]
    assert (part["status"], part["passed"], part["skipped"]) == ("interrupted", 2, 1)
    assert result["interrupted"] is True
    assert result["parts"]["gpu"]["status"] == "not reached"
    assert {"test_quick", "test_before"} <= set(
        re.findall(r'name="(\w+)"', (tmp_path / "out/contract.xml").read_text())
    )


def test_killed_it_has_written_what_was_found(tmp_path: Path) -> None:
    process = started(tmp_path)
    process.kill()
    process.wait()
    assert 'name="test_quick"' in (tmp_path / "out/contract.xml").read_text(encoding="utf-8")
    result = json.loads((tmp_path / "out/result.json").read_text(encoding="utf-8"))
    assert result["parts"]["contract"]["status"] == "running"
    assert (tmp_path / "out/log.txt").is_file()


def test_a_test_file_that_hangs_costs_no_finished_test(
    collect: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "TESTS", own_tests(tmp_path))
    monkeypatch.setattr(collect, "time", Clock(tmp_path / "runs"))
    monkeypatch.setattr(collect, "LOOK_S", 0.05)
    code, result = run(collect, tmp_path / "out", "--parts", "contract", "--limit-s", "1000")
    part = result["parts"]["contract"]
    assert code == 1
    assert (part["status"], part["passed"], part["skipped"]) == ("timed out", 2, 1), (
        "pytest says that the hanging one passed"
    )
    assert part["timed_out_files"] == ["test_b.py"]


def training_rounds(module: ModuleType, monkeypatch: pytest.MonkeyPatch, runs: int) -> None:
    """Replace the runs of a benchmark by numbers; after ``runs`` of them the user interrupts."""
    left = [runs]

    def fake_run(*arguments: Any) -> Any:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return {"loop": 1.0} if len(arguments) == 1 else 1.0

    monkeypatch.setattr(module, "run", fake_run)


@pytest.mark.parametrize(
    ("script", "options", "runs", "file"),
    [
        ("bench_training.py", ["--rounds", "3", "--models", "resnet", "--variants", "default"], 5, "training_resnet"),
        ("bench_calls.py", ["--rounds", "3"], 5, "calls"),
    ],
)
def test_an_interrupted_benchmark_keeps_its_whole_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, options: list[str], runs: int, file: str
) -> None:
    module = load(SCRIPT.with_name(script))
    training_rounds(module, monkeypatch, runs)
    monkeypatch.setattr(sys, "argv", [script, *options, "--out", str(tmp_path)])
    assert module.main() == 130
    figures = json.loads((tmp_path / f"{file}.json").read_text(encoding="utf-8"))["figures"]
    assert {value["count"] for value in figures.values() if isinstance(value, dict)} == {2}
    assert [path.stem for path in tmp_path.iterdir()] == [file]


def commands_of_a_day() -> list[list[str]]:
    """Words of each Python command in the page's section about a day with a device."""
    text = (SCRIPT.parent / "README.md").read_text(encoding="utf-8")
    block = re.search(r"## A machine for minutes.*?```\n(.*?)```", text, re.S)
    assert block is not None
    return [shlex.split(line)[1:] for line in block[1].splitlines()]


def test_the_commands_of_the_page_work_as_they_are_typed(
    collect: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = commands_of_a_day()
    assert len(commands) == 3
    reached: list[str] = []

    def part(name: str) -> Callable[[Any, float], dict[str, Any]]:
        def passes(run: Any, limit_s: float) -> dict[str, Any]:
            reached.append(name)
            if name == "training":
                options = run.benchmark_options[name]
                monkeypatch.setattr(sys, "argv", ["bench_training.py", *options, "--out", str(tmp_path)])
                assert training.main() == 0
            return {"status": "passed"}

        return passes

    training = load(SCRIPT.with_name("bench_training.py"))
    monkeypatch.setattr(training, "measure", lambda model, variants, options: reached.append(f"{model} {variants}"))
    monkeypatch.setattr(collect, "STEPS", {name: part(name) for name in collect.STEPS})
    for script, *options in commands:
        assert script == "benchmarks/gpu/collect.py"
        assert collect.main([option.replace("$OUT", str(tmp_path)) for option in options]) == 0
    assert reached == [
        *("probe", "ask", "build", "job", "contract"),
        *("build", "nccl", "gpu"),
        *("build", "calls", "training"),
        "resnet ['untraced', 'default', 'host_only', 'kernels', 'torch_profiler']",
    ]
