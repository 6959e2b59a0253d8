"""Builds the native tests and runs each as one test; a sanitizer build runs the same ones.

``STASHTRACE_SANITIZE=address`` or ``thread`` in the environment chooses the build.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SANITIZE = os.environ.get("STASHTRACE_SANITIZE", "")
PROGRAMS = sorted(path.stem for path in Path(__file__).parent.glob("test_*.cpp"))


def _tool(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))


@pytest.fixture(scope="session")
def programs(request: pytest.FixtureRequest) -> Path:
    """Folder of the built programs; kept between runs, so only what changed is compiled."""
    cmake, ninja = _tool("cmake"), _tool("ninja")
    if cmake is None or ninja is None:
        pytest.skip("cmake and ninja are needed to build the native tests")
    build = Path(request.config.cache.mkdir("native-" + (SANITIZE or "plain")))  # type: ignore[union-attr]
    configure = [
        cmake, "-G", "Ninja", "-S", str(ROOT), "-B", str(build), f"-DCMAKE_MAKE_PROGRAM={ninja}",
        "-DSTASHTRACE_BUILD_PYTHON=OFF", "-DSTASHTRACE_BUILD_TESTS=ON", f"-DSTASHTRACE_SANITIZE={SANITIZE}",
    ]  # fmt: skip
    jobs = str(os.cpu_count() or 1)
    for command in (configure, [cmake, "--build", str(build), "--target", "native_programs", "-j", jobs]):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout[-4000:]
    return build / "bin"


@pytest.mark.parametrize("name", PROGRAMS)
def test_native(programs: Path, name: str) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("STASHTRACE_")}
    environment["ASAN_OPTIONS"] = "detect_leaks=0"
    done = subprocess.run([str(programs / name)], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
