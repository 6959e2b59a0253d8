"""The inventory that nvidia-ml-py gives of the double of NVML and of the real library has one form."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from collectors.nvml_doubles import doubles
from contract.real_interfaces import need_device

from stashtrace.record.gpu.inventory import inventory_lines, read_inventory


def check(environment: Mapping[str, str]) -> None:
    """Hold what any device of the last ten years answers; what only some do may be missing."""
    found = read_inventory(environment)
    assert found is not None
    assert "error" not in found
    assert re.fullmatch(r"[\d.]+", found["driver"])
    assert re.fullmatch(r"\d+\.\d", found["cuda"])
    count = len(found["devices"])
    assert count > 0
    for index, device in enumerate(found["devices"]):
        assert device["index"] == index
        assert device["name"]
        assert device["memory_bytes"] > 1 << 30
        assert re.fullmatch(r"[0-9a-f]{8}:[0-9a-f]{2}:[0-9a-f]{2}\.0", device["bus"])
        assert 1 <= device.get("pcie_width", 1) <= device.get("pcie_most_width", 32) <= 32
        assert 0 <= device["nvswitch_links_count"] <= device["nvlinks_count"] <= 36
    assert len(found["ways"]) == count * (count - 1) // 2
    lines = inventory_lines(found)
    assert lines[0].startswith("driver ")
    assert len(lines) >= 1 + count


def test_the_double(tmp_path: Path) -> None:
    pytest.importorskip("pynvml")
    (tmp_path / "script").write_text("devices 2\ndevice 0 nvlink_to 1:4 switch:2\n", encoding="utf-8")
    check({**os.environ, "LD_LIBRARY_PATH": str(doubles()), "FAKE_SCRIPT": str(tmp_path / "script")})


@pytest.mark.gpu
def test_the_real_library() -> None:
    pytest.importorskip("pynvml")
    need_device()
    check(os.environ)
