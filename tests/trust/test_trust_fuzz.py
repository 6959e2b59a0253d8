"""Damaged files of every format are read or refused with one clear error: no other exception, no crash, no hang.

Each input is described, summed up and exported, in a separate process with a limit of CPU time and of memory. The
undamaged files must all be read, or nothing was tried. The same inputs come every time; TRUST_FUZZ_SEED chooses others.
A few inputs come first; the long form runs more, and more again with the library and the bindings built for
AddressSanitizer and UBSan. Findings stay in the folder that the failure names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from corpus import corpus

from trust.pairs import plain_environment
from trust.sanitized import sanitized_package

ROOT = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("fuzz_worker.py")
SEED = int(os.environ.get("TRUST_FUZZ_SEED", "14"))
FORMATS = ("stash", "store", "kineto", "nsys", "dftracer", "flight_recorder", "chakra", "nccl_inspector", "darshan")
MEMORY_BYTES = 3 << 30
QUICK_INPUTS, LONG_INPUTS, SANITIZED_INPUTS = 8, 400, 300


def fuzz(kinds: str, count: int, folder: Path, variables: dict[str, str], memory_bytes: int) -> list[dict[str, Any]]:
    """Run the worker and return its result of each format."""
    environment = plain_environment() | {"PYTHONPATH": str(ROOT)} | variables
    command = [sys.executable, str(WORKER), kinds, str(SEED), str(count), str(folder), "--bytes", str(memory_bytes)]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=7200)
    assert done.returncode == 0, done.stderr[-4000:]
    print(done.stdout)
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(count: int, result: dict[str, Any], folder: Path) -> None:
    assert result["inputs"] == count
    assert result["seeds_read"] == result["seeds"] > 0, "the undamaged seeds cannot be read"
    assert result["read"] + result["refused"] > 0
    assert result["findings"] == {}, f"inputs and what was said: {folder / result['format'] / 'found'}"


def require_backend(kind: str) -> None:
    """Skip what is refused unread where the package that reads it is missing."""
    if kind == "store":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed, so stores are not read")
    if kind == "darshan":
        pytest.importorskip("darshan", reason="PyDarshan is not installed, so its logs are not read")
        corpus("darshan")


def test_a_few_damaged_files(tmp_path: Path) -> None:
    """In the gate, in one process: of each format that is read without a package of others."""
    kinds = [kind for kind in FORMATS if kind not in ("darshan", "store")]
    results = fuzz(",".join(kinds), QUICK_INPUTS, tmp_path, {}, MEMORY_BYTES)
    assert [result["format"] for result in results] == kinds
    for result in results:
        check(QUICK_INPUTS, result, tmp_path)


def record(result: dict[str, Any], record_property: Callable[[str, object], None]) -> None:
    record_property("seed", result["seed"])
    for name in ("seeds", "seeds_read", "inputs", "read", "refused"):
        record_property(f"{name}_count", result[name])
    record_property("findings_count", len(result["findings"]))
    record_property("findings", json.dumps(result["findings"]))


@pytest.mark.trust
@pytest.mark.parametrize("kind", FORMATS)
def test_many_damaged_files(tmp_path: Path, kind: str, record_property: Callable[[str, object], None]) -> None:
    require_backend(kind)
    (result,) = fuzz(kind, LONG_INPUTS, tmp_path, {}, MEMORY_BYTES)
    record(result, record_property)
    check(LONG_INPUTS, result, tmp_path)


@pytest.fixture(scope="session")
def sanitized(request: pytest.FixtureRequest) -> dict[str, str]:
    return sanitized_package(Path(request.config.cache.mkdir("trust-address")))  # type: ignore[union-attr]


@pytest.mark.trust
@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_files_under_sanitizers(
    tmp_path: Path, sanitized: dict[str, str], kind: str, record_property: Callable[[str, object], None]
) -> None:
    require_backend(kind)
    (result,) = fuzz(kind, SANITIZED_INPUTS, tmp_path, sanitized, 0)
    assert Path(result["bindings"]).is_relative_to(sanitized["PYTHONPATH"]), "the shipped bindings were loaded"
    record(result, record_property)
    check(SANITIZED_INPUTS, result, tmp_path)
