"""The inventory of GPUs: the real nvidia-ml-py on the double of NVML, and what is made of its answers."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli.command_line import environment
from collectors.nvml_doubles import doubles

from stashtrace.cli import main
from stashtrace.files.run_facts import valid_facts
from stashtrace.record import doctor_gpu
from stashtrace.record.gpu import inventory as inventories
from stashtrace.record.gpu import nvml
from stashtrace.record.gpu.inventory import InventoryReader, inventories_of, inventory_lines, read_inventory

#: Two devices with four links between them, one with fourteen to switches as well.
TWO = """
devices 2
driver 580.65.06
cuda 13000
device 0 name NVIDIA H200
device 1 name NVIDIA H100 PCIe
device 0 nvlink_to 1:4 switch:14
device 1 nvlink_to 0:4
device 1 pcie_width 8
device 1 ecc_errors 3
"""
FIRST = {
    "index": 0,
    "name": "NVIDIA H200",
    "memory_bytes": 150_000_000_000,
    "bus": "00000000:19:00.0",
    "pcie_most_generation": 5,
    "pcie_width": 16,
    "pcie_most_width": 16,
    "ecc": True,
    "ecc_uncorrected_count": 0,
    "nvlink_version": 4,
    "nvlinks_count": 18,
    "nvswitch_links_count": 14,
}


def machine(folder: Path, script: str) -> dict[str, str]:
    """Environment of a machine whose NVML plays a script."""
    pytest.importorskip("pynvml")
    (folder / "script").write_text(script, encoding="utf-8")
    return {**os.environ, "LD_LIBRARY_PATH": str(doubles()), "FAKE_SCRIPT": str(folder / "script")}


def test_what_nvml_reports_is_in_the_inventory(tmp_path: Path) -> None:
    found = read_inventory(machine(tmp_path, TWO))
    assert found is not None
    assert {key: found[key] for key in ("driver", "cuda")} == {"driver": "580.65.06", "cuda": "13.0"}
    assert found["devices"][0] == FIRST
    second = {"index": 1, "name": "NVIDIA H100 PCIe", "bus": "00000000:1a:00.0", "pcie_width": 8}
    second |= {"ecc_uncorrected_count": 3, "nvlinks_count": 4, "nvswitch_links_count": 0}
    assert found["devices"][1] == FIRST | second
    assert found["ways"] == [{"first": 0, "second": 1, "nvlinks_count": 4, "path": "one PCIe switch"}]
    assert inventory_lines(found) == [
        "driver 580.65.06 for CUDA 13.0",
        "GPU 0  NVIDIA H200, 140 GiB, 00000000:19:00.0, PCIe 5 x16, ECC on, 18 NVLinks (14 of them to switches)",
        "GPU 1  NVIDIA H100 PCIe, 140 GiB, 00000000:1a:00.0, PCIe 5 x8 (of x16), ECC on (3 uncorrected errors so far),"
        " 4 NVLinks",
        "between the two: 4 NVLinks",
    ]


def test_what_a_device_does_not_report_is_left_out(tmp_path: Path) -> None:
    found = read_inventory(machine(tmp_path, "ecc -1\npcie_generation -1\npcie_width -1\npcie_most_width -1\n"))
    assert found is not None
    (device,) = found["devices"]
    assert set(device) == {"index", "name", "memory_bytes", "bus", "nvlinks_count", "nvswitch_links_count"}
    assert inventory_lines(found)[1:] == ["GPU 0  NVIDIA Double, 140 GiB, 00000000:19:00.0, no NVLink"]


def test_ways_of_four_devices(tmp_path: Path) -> None:
    script = "devices 4\ndevice 0 nvlink_to 1:2\ndevice 1 nvlink_to 0:2\npath_2_3 30\n"
    script += "".join(f"path_{first}_{second} 50\n" for first in (0, 1) for second in (2, 3))
    found = read_inventory(machine(tmp_path, script))
    assert found is not None
    assert inventory_lines(found)[5:] == [
        "between 0-1: 2 NVLinks",
        "between 0-2 0-3 1-2 1-3: PCIe, across NUMA nodes",
        "between 2-3: PCIe, one host bridge",
    ]
    switched = read_inventory(machine(tmp_path, "devices 3\nnvlink_to switch:18\n"))
    assert switched is not None
    assert inventory_lines(switched)[4:] == ["between any two: NVLink by switches"]


def test_a_driver_that_refuses_or_hangs_or_is_not_there(tmp_path: Path) -> None:
    environment = machine(tmp_path, "fail nvmlInitWithFlags 9\n")
    assert read_inventory(environment) == {"error": "Driver Not Loaded"}
    environment = machine(tmp_path, "delay nvmlInitWithFlags 60s\n")
    assert InventoryReader(environment).result(0.5) == {"error": "NVML gave no answer within 0 s"}
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "libnvidia-ml.so.1").write_text("no library", encoding="utf-8")
    environment["LD_LIBRARY_PATH"] = str(tmp_path / "empty")
    assert read_inventory(environment) == {"error": "NVML Shared Library Not Found"}
    assert inventory_lines({"error": "Driver Not Loaded"}) == ["no inventory of GPUs: Driver Not Loaded"]


def test_a_device_that_is_lost_costs_its_facts_alone(tmp_path: Path) -> None:
    found = read_inventory(
        machine(tmp_path, "devices 2\nfail nvmlDeviceGetName 15 at 1\nfail nvmlDeviceGetEccMode 15\n")
    )
    assert found is not None
    assert [device.get("name") for device in found["devices"]].count(None) == 1
    assert all("ecc" not in device for device in found["devices"])


def test_without_the_package_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventories, "find_spec", lambda name: None)
    assert read_inventory() is None
    (line,) = inventory_lines(None)
    assert "stashtrace[gpu]" in line


def test_every_name_that_is_used_is_one_of_the_package() -> None:
    """Functions are called with as many arguments as the package's take; constants are there."""
    pynvml = pytest.importorskip("pynvml")
    tree = ast.parse(Path(nvml.__file__).read_text(encoding="utf-8"))
    constants = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.startswith("NVML")
    }
    assert {"NVML_FEATURE_ENABLED", "NVMLError"} <= constants
    assert all(hasattr(pynvml, name) for name in {*constants, *nvml._PATHS})
    asked = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ask"
    ]
    assert len(asked) > 10
    for call in asked:
        name, *arguments = call.args
        assert isinstance(name, ast.Constant)
        if not any(isinstance(argument, ast.Starred) for argument in arguments):
            inspect.signature(getattr(pynvml, str(name.value))).bind(*arguments)
    inspect.signature(pynvml.nvmlDeviceGetTotalEccErrors).bind(0, 1, 1)


def test_the_older_package_of_the_same_name_is_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder `pynvml` whose functions give bytes."""
    pynvml = pytest.importorskip("pynvml")
    folder = tmp_path / "old" / "pynvml"
    folder.mkdir(parents=True)
    (folder / "nvml.py").write_text(Path(pynvml.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "__init__.py").write_text(
        "from pynvml.nvml import *\nfrom pynvml import nvml\n"
        "def nvmlDeviceGetName(handle): return nvml.nvmlDeviceGetName(handle).encode()\n",
        encoding="utf-8",
    )
    variables = machine(tmp_path, TWO)
    spec = importlib.util.spec_from_file_location(
        "pynvml", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    monkeypatch.setattr(inventories, "find_spec", lambda name: spec)
    assert inventories.package_folder() == str(tmp_path / "old")
    found = read_inventory(variables)
    assert found is not None
    assert found["devices"][0] == FIRST


@pytest.mark.parametrize(
    "damage",
    [
        [],
        {"devices": "none"},
        {"devices": [{"index": "0"}]},
        {"devices": [{}]},
        {"devices": [], "driver": 5},
        {"devices": [FIRST | {"pcie_width": -1}]},
        {"devices": [FIRST | {"ecc": 1}]},
        {"devices": [FIRST], "ways": [{"first": 0}]},
        {"error": ["x"]},
    ],
)
def test_a_damaged_inventory_is_left_out(damage: Any) -> None:
    assert valid_facts({"gpu_inventory": damage, "host": "a"}) == {"host": "a"}
    assert "gpu_inventory" in valid_facts({"gpu_inventory": {"devices": [FIRST]}})


def test_inventories_of_a_run_by_host(tmp_path: Path) -> None:
    one = {"devices": [FIRST]}
    assert inventories_of(tmp_path, {"host": "a", "gpu_driver": "none"}) == {}
    assert inventories_of(tmp_path, {"host": "a", "gpu_driver": "present"}) == {"a": None}
    assert inventories_of(tmp_path, {"host": "a", "gpu_driver": "present", "gpu_inventory": one}) == {"a": one}
    parts = [{"host": "a", "gpu_inventory": one}, {"host": "b", "gpu_driver": "present"}, {"host": "c"}]
    assert inventories_of(tmp_path, {"parts": [*parts, {"host": "a", "gpu_driver": "present"}]}) == {
        "a": one,
        "b": None,
    }
    (tmp_path / "launch.d.1.json").write_text(json.dumps({"host": "d", "gpu_inventory": one}), encoding="utf-8")
    assert inventories_of(tmp_path, {"host": "a"}) == {"d": one}


def test_doctor_names_devices_and_a_narrow_link(tmp_path: Path) -> None:
    state, detail, meaning = doctor_gpu._inventory(machine(tmp_path, TWO))
    assert state == "partly"
    assert "driver 580.65.06; GPU 0: NVIDIA H200, " in detail
    assert detail.endswith("between the two: 4 NVLinks")
    assert "GPU 1" in meaning
    state, detail, _ = doctor_gpu._inventory(machine(tmp_path, "devices 8\nnvlink_to switch:18\n"))
    assert state == "measured"
    assert detail == (
        "driver 580.65.06; 8 x NVIDIA Double, 140 GiB, PCIe 5 x16, ECC on, 18 NVLinks to switches;"
        " between any two: NVLink by switches"
    )
    assert doctor_gpu._inventory(machine(tmp_path, "fail nvmlInitWithFlags 999\n"))[:2] == (
        "invisible",
        "Unknown Error",
    )


def test_doctor_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventories, "find_spec", lambda name: None)
    state, detail, meaning = doctor_gpu._inventory({})
    assert (state, detail) == ("invisible", "nvidia-ml-py is not installed")
    assert "stashtrace[gpu]" in meaning


RUN = """
import sys
from stashtrace.record import run
run._NVIDIA_DEVICE = "/dev/null"
from stashtrace.cli import main
sys.exit(main(["run", "--no-merge", "--out", "made", "--", sys.executable, "-c", "pass"]))
"""


def test_a_run_records_the_machine_and_info_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    variables = machine(tmp_path, TWO)
    own = {name: variables[name] for name in ("LD_LIBRARY_PATH", "FAKE_SCRIPT")}
    done = subprocess.run(
        [sys.executable, "-c", RUN], cwd=tmp_path, env=environment(**own), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "made" / "run.json").read_text(encoding="utf-8"))
    assert facts["gpu_inventory"]["devices"][0] == FIRST
    assert main(["info", str(tmp_path / "made")]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index(f"GPUs of {facts['host']}")
    assert lines[at + 1 : at + 5] == [f"  {line}" for line in inventory_lines(facts["gpu_inventory"])]
    assert main(["info", str(tmp_path / "made"), "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["gpu_inventories"] == {facts["host"]: facts["gpu_inventory"]}
