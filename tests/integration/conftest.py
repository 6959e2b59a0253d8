"""Fixtures of tests that run real processes under the shipped library."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from example_job import run_example

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def record_actor(request: pytest.FixtureRequest) -> Path:
    """The program of tests/native/record_actor.cpp, built once and kept in pytest's cache."""
    beside = str(Path(sys.executable).parent)
    cmake, ninja = (shutil.which(name) or shutil.which(name, path=beside) for name in ("cmake", "ninja"))
    if cmake is None or ninja is None:
        pytest.skip("cmake and ninja are needed to build the actor")
    build = Path(request.config.cache.mkdir("native-plain"))  # type: ignore[union-attr]
    configure = [
        cmake, "-G", "Ninja", "-S", str(ROOT), "-B", str(build), f"-DCMAKE_MAKE_PROGRAM={ninja}",
        "-DSTASHTRACE_BUILD_PYTHON=OFF", "-DSTASHTRACE_BUILD_TESTS=ON", "-DSTASHTRACE_SANITIZE=",
    ]  # fmt: skip
    jobs = str(os.cpu_count() or 1)
    for command in (configure, [cmake, "--build", str(build), "--target", "record_actor", "-j", jobs]):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout[-4000:]
    return build / "bin" / "record_actor"


@pytest.fixture(scope="session")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One traced run of the example: its folder, and what the command said."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("job")
    return folder, run_example(folder)
