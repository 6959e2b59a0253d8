"""Two versions of libcudart in one process: each library's calls reach the runtime that the loader bound it to."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from collectors.recorded import NATIVE, Recording, plain_environment, record
from device import build, calls, fake_environment

from stashtrace.schema.kinds import DeviceCall

#: Loads libraries in the order and scope that its arguments say and runs each; prints what each said.
RUNNER = """
import ctypes, json, sys
loaded = []
for word in sys.argv[1:]:
    path, scope = word.rsplit(":", 1)
    loaded.append((path, ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL if scope == "global" else ctypes.RTLD_LOCAL)))
print(json.dumps([library[path.rsplit("/", 1)[1][3:-3] + "_run"]() for path, library in loaded for _ in range(2)]))
"""


def user(folder: Path, name: str, major: int | None) -> Path:
    """A library bound to a runtime by version; None: to whichever comes first, as one linked against a stub is."""
    target = folder / f"lib{name}.so"
    command = ["cc", "-O2", "-shared", "-fPIC", f"-DNAME={name}", "-o", target, NATIVE / "runtime_user.c"]
    if major is not None:
        command += [build() / f"fakes/cudart/libcudart.so.{major}"]
    subprocess.run(command, check=True)
    return target


def play(folder: Path, words: Sequence[str]) -> tuple[list[int], Recording]:
    """What the libraries say untraced, and the traced run, which must say the same."""
    command = [sys.executable, "-c", RUNNER, *words]
    bare_env = fake_environment(folder / "bare")
    bare = subprocess.run(command, env=plain_environment(bare_env), capture_output=True, text=True, timeout=180)
    assert bare.returncode == 0, bare.stderr
    traced = record(command, folder / "run", collectors=["cuda"], env=fake_environment(folder / "traced"))
    assert traced.stdout == bare.stdout
    counted = {name: calls(folder / name, "cudart_12") for name in ("bare", "traced")}
    assert counted["traced"] == counted["bare"]
    found: list[int] = json.loads(bare.stdout)
    return found, traced


def launched(run: Recording) -> Counter[DeviceCall]:
    return Counter(DeviceCall(row["call_code"]) for row in run.trace.device_calls.rows())


@pytest.mark.parametrize("majors", [(12, 13), (13, 12)])
@pytest.mark.parametrize("scope", ["local", "global"])
def test_each_library_reaches_its_runtime(tmp_path: Path, majors: tuple[int, int], scope: str) -> None:
    words = [f"{user(tmp_path, f'user{major}', major)}:{scope}" for major in majors]
    found, run = play(tmp_path, words)
    assert found == [majors[0]] * 2 + [majors[1]] * 2
    seen = launched(run)
    assert (seen[DeviceCall.ALLOCATE], seen[DeviceCall.FREE], seen[DeviceCall.DEVICE_SYNCHRONIZE]) == (4, 4, 4)


@pytest.mark.parametrize("first", [12, 13])
def test_a_library_bound_to_no_version_reaches_what_it_would_untraced(tmp_path: Path, first: int) -> None:
    """Its runtime is the first in the global scope."""
    runtimes = [f"{user(tmp_path, f'user{major}', major)}:global" for major in (first, 25 - first)]
    found, run = play(tmp_path, [*runtimes, f"{user(tmp_path, 'bare', None)}:local"])
    assert found == [first] * 2 + [25 - first] * 2 + [first] * 2
    assert launched(run)[DeviceCall.ALLOCATE] == 6


def test_a_library_bound_to_no_version_finds_a_runtime_in_its_scope(tmp_path: Path) -> None:
    """The runtime comes with another library that it needs, below one that brings the other version."""
    words = [f"{user(tmp_path, 'user13', 13)}:local"]
    below = user(tmp_path, "below", 12)
    above = tmp_path / "libabove.so"
    subprocess.run(
        [
            *("cc", "-O2", "-shared", "-fPIC", "-DNAME=above", "-o", above, NATIVE / "runtime_user.c"),
            *("-Wl,--no-as-needed", below, f"-Wl,-rpath,{tmp_path}"),
        ],
        check=True,
    )
    found, run = play(tmp_path, [*words, f"{above}:local"])
    assert found == [13, 13, 12, 12]
    assert launched(run)[DeviceCall.ALLOCATE] == 4


UNKNOWN_RUNTIME = """
int cudaRuntimeGetVersion(int* version) { *version = 19000; return 0; }
int cudaMalloc(void** pointer, unsigned long bytes) { *pointer = 0; return 0; }
int cudaFree(void* pointer) { return 0; }
int cudaDeviceSynchronize(void) { return 0; }
int cudaLaunchKernel(void) { return 0; }
void __cudaRegisterFunction(void) {}
"""


def test_calls_of_a_runtime_to_come_pass_us_by(tmp_path: Path) -> None:
    """No entry of ours has its version: the loader binds its users to it, and nothing can be handed to another one."""
    (tmp_path / "runtime.c").write_text(UNKNOWN_RUNTIME, encoding="utf-8")
    (tmp_path / "map").write_text("libcudart.so.19 { global: cuda*; __cuda*; local: *; };", encoding="utf-8")
    runtime = tmp_path / "libcudart.so.19"
    subprocess.run(
        [
            *("cc", "-shared", "-fPIC", "-Wl,-soname,libcudart.so.19", f"-Wl,--version-script={tmp_path / 'map'}"),
            *("-o", runtime, tmp_path / "runtime.c"),
        ],
        check=True,
    )
    target = tmp_path / "libuser19.so"
    subprocess.run(
        [
            *("cc", "-O2", "-shared", "-fPIC", "-DNAME=user19", "-o", target, NATIVE / "runtime_user.c", runtime),
            f"-Wl,-rpath,{tmp_path}",
        ],
        check=True,
    )
    found, run = play(tmp_path, [f"{user(tmp_path, 'user13', 13)}:local", f"{target}:local"])
    assert found == [13, 13, 19, 19]
    assert launched(run)[DeviceCall.ALLOCATE] == 2
