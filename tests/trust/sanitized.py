"""The package with its bindings and library built for AddressSanitizer and UBSan, next to the one that is installed.

A folder of links to the package's files, with the instrumented shared objects in the place of the shipped ones; first
on PYTHONPATH it is imported instead.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pybind11
import pytest
from native.native_build import ROOT, BuildError, runtimes, tool

#: A finding ends the process; leaks of the interpreter are none. The allocator says no rather than to end the process.
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=2048:hard_rss_limit_mb=4096",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
}


def sanitized_package(folder: Path) -> dict[str, str]:
    """Build into a folder that may be kept; return the variables under which Python imports that package.

    Tests that run side by side share the folder: one of them builds, the others wait for it.
    """
    libraries, cmake, ninja = runtimes("address"), tool("cmake"), tool("ninja")
    if libraries is None or cmake is None or ninja is None:
        pytest.skip("a compiler with libasan, cmake and ninja are needed")
    package = folder / "package/stashtrace"
    package.mkdir(parents=True, exist_ok=True)
    configure = [
        *(cmake, "-G", "Ninja", "-S", str(ROOT), "-B", str(folder / "build"), f"-DCMAKE_MAKE_PROGRAM={ninja}"),
        *("-DSTASHTRACE_SANITIZE=address", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O1 -g1"),
        *(f"-DSTASHTRACE_OUTPUT_DIR={package}", f"-DPython_EXECUTABLE={sys.executable}"),
        f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
    ]
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (configure, [cmake, "--build", str(folder / "build"), "-j", str(os.cpu_count() or 1)]):
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode != 0:
                raise BuildError(done.stdout[-4000:])
        for path in (ROOT / "stashtrace").iterdir():
            link = package / path.name
            if path.suffix != ".so" and not link.exists():
                link.symlink_to(path)
    return OPTIONS | {"LD_PRELOAD": ":".join(libraries), "PYTHONPATH": str(package.parent), "PYTHONMALLOC": "malloc"}
