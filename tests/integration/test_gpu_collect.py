"""benchmarks/gpu/collect.py without a device: it goes on after failures, keeps its limit, says what was not run."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from traced import ROOT

SCRIPT = ROOT / "benchmarks/gpu/collect.py"


@pytest.fixture
def collect() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_collect", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


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
    code, result = run(collect, tmp_path, "--parts", "calls", "training")
    assert code == 0
    for part in result["parts"].values():
        assert (part["status"], part["skipped_because"]) == ("skipped", {"no driver here": 1})
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
    steps = {"build": command("import sys; print('no'); sys.exit(3)"), "contract": raises, "gpu": command(hangs),
             "calls": command("print('yes')")}  # fmt: skip
    monkeypatch.setattr(collect, "STEPS", steps)
    monkeypatch.setattr(collect, "PARTS", {"build": 1, "contract": 1, "gpu": 0.05, "calls": 1})
    begin = time.monotonic()
    code, result = run(collect, tmp_path, "--limit-s", "30")
    assert time.monotonic() - begin < 300, "nobody waited for the one that hangs"
    assert code == 1
    assert {k: v["status"] for k, v in result["parts"].items()} == {
        "build": "failed", "contract": "failed", "gpu": "timed out", "calls": "passed",
    }  # fmt: skip
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
    assert collect.counts(file) == {
        "passed": 1, "failed": 1, "skipped": 2, "skipped_because": {"no device": 1, "no torch": 1},
        "failed_tests": ["a.bad"],
    }  # fmt: skip
    assert collect.counts(tmp_path / "none.xml") == {}
