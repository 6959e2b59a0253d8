"""The list of newest releases is what pages and declarations name, and what is tested where it is said to be."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from contract.newest_wheels import ENVIRONMENTS, FRAMEWORKS, LIBRARIES, behind, newest, release
from packaging.requirements import Requirement
from traced import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Page or declaration -> what it says of how far it was compared, with the wheel whose release must stand there.
NAMED = {
    "csrc/abi/nccl_abi.h": [(r"stand in front of, 2\.18 to ([\d.]+\d)", "nvidia-nccl-cu13")],
    "docs/collectors/nccl.md": [(r"uses libnccl, 2\.18 to ([\d.]+\d)", "nvidia-nccl-cu13")],
    "docs/collectors/cuda.md": [(r"NVIDIA's headers up to ([\d.]+\d)", "nvidia-cuda-runtime")],
    "docs/collectors/cupti.md": [(r"Records of CUDA 12\.0 to ([\d.]+\d)", "nvidia-cuda-cupti")],
    "docs/collectors/torch_distributed.md": [(r"Tested with torch [\d., ]+ and ([\d.]+\d);", "torch")],
}


@pytest.mark.parametrize("page", NAMED)
def test_pages_name_the_newest(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for pattern, wheel in NAMED[page]:
        assert re.findall(pattern, text) == [release(wheel)], pattern


def test_the_gate_takes_the_newest_of_the_small_wheels() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [Requirement(text) for text in project["optional-dependencies"]["test"]]
    listed = {wheel.name for wheel in LIBRARIES}
    small = {one.name: one.specifier for one in wanted if one.name.startswith("nvidia-cuda") or "nvml" in one.name}
    assert small.keys() <= listed
    assert [name for name, range_ in small.items() if not range_.contains(newest(name))] == []


def test_a_newer_release_is_named() -> None:
    index = {wheel.name: f"{wheel.name} ({wheel.version}+cpu)\nAvailable versions: 1\n" for wheel in FRAMEWORKS}
    index |= {wheel.name: f"{wheel.name} ({wheel.version})\n" for wheel in LIBRARIES}
    assert list(behind(index.__getitem__)) == []
    index["nvidia-nccl-cu13"] = "nvidia-nccl-cu13 (2.99.1)\nAvailable versions: 2.99.1, 2.32.3\n"
    assert list(behind(index.__getitem__)) == [f"nvidia-nccl-cu13 {newest('nvidia-nccl-cu13')}: the index has 2.99.1"]


@pytest.mark.wheels
def test_what_is_tested_is_the_newest() -> None:
    named = os.environ.get("STASHTRACE_WHEELS_PYTHON")
    if not named:
        pytest.skip("STASHTRACE_WHEELS_PYTHON names no environment with the wheels")
    program = (
        "import importlib.metadata as m, json; "
        "print(json.dumps({d.name.lower().replace('_', '-'): d.version for d in m.distributions()}))"
    )
    found: dict[str, set[str]] = {}
    for python in named.split(os.pathsep):
        done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
        for name, version in json.loads(done.stdout).items():
            found.setdefault(name, set()).add(version)
    missing = {
        wheel.name: sorted(found.get(wheel.name, ()))
        for wheels in ENVIRONMENTS.values()
        for wheel in wheels
        if wheel.version not in found.get(wheel.name, ())
    }
    assert missing == {}
