"""benchmarks/gpu/driver_probe.py on the doubles: one JSON object, whatever a section meets."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from device import fake_environment
from traced import ROOT

SECTIONS = {"no_context", "ns", "globaltimer", "look_up", "nvml"}


def probe(folder: Path, script: str = "", *options: str, **how: Any) -> tuple[int, dict[str, Any]]:
    env = os.environ | fake_environment(folder, f"devices 1\n{script}", **how)
    command = [sys.executable, "-S", str(ROOT / "benchmarks/gpu/driver_probe.py"), *options]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=180)
    found: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, found


def test_every_section_is_answered(tmp_path: Path) -> None:
    code, found = probe(tmp_path)
    assert found["errors"] == {}
    assert code == 0
    assert found.keys() >= SECTIONS | {"driver", "elapsed_backwards"}
    assert found["no_context"]["current_is_null"] is True
    assert found["no_context"]["cuEventQuery"] == 0
    assert found["ns"]["cuEventRecord"] > 0
    assert found["globaltimer"]["step_ns"] % 512 == 0, "the step of the double"
    assert len(found["globaltimer"]["idle"]["timer_us"]) == 9
    assert found["look_up"]["cuNothing@13000"][0] != 0
    assert found["look_up"]["cuEventRecord@2000"][2] is True
    assert found["nvml"]["calls"]["power"]["result"] == 0


def test_a_section_that_fails_costs_no_other(tmp_path: Path) -> None:
    code, found = probe(tmp_path, "fail cuModuleLoadData 222")
    assert code == 1
    assert found["errors"] == {"globaltimer": "cuModuleLoadData(timer): 222"}
    assert found.keys() >= SECTIONS - {"globaltimer"}


def test_a_call_that_never_returns_costs_what_comes_after_it_alone(tmp_path: Path) -> None:
    code, found = probe(tmp_path, "delay cuModuleLoadData 600s", "--limit-s", "10")
    assert code == 1
    assert found["errors"] == {"globaltimer": "no answer within 10 s"}
    assert found.keys() >= {"no_context", "ns"}


@pytest.mark.parametrize(("libraries", "missing"), [((), {"driver", "nvml"}), (("cuda",), {"nvml"})])
def test_libraries_that_are_not_there_are_said(tmp_path: Path, libraries: tuple[str, ...], missing: set[str]) -> None:
    code, found = probe(tmp_path, libraries=libraries)
    assert code == 1
    assert found["errors"].keys() == missing
