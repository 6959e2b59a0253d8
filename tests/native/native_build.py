"""Builds of the native code other than the shipped one: for its tests and actors, for sanitizers, for gcov.

Called by test_native.py, test_aarch64.py, test_collectors_sanitized.py, line_coverage.py, device.py and the fixture of
the actor. Folders are kept between runs, so that only what changed is compiled.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: What programs of tests are linked with, so that no second recorder is built for them.
SHIPPED = ROOT / "stashtrace" / "libstashtrace.so"
#: The build of the checkout. Its objects stand in for the compiler where they are of these sources.
KEPT_BUILD = ROOT / "build" / f"native-{sys.implementation.cache_tag}{sys.abiflags}"
#: Libraries that must be loaded before ours, by kind of build.
RUNTIMES = {"address": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",), "coverage": ()}
#: Findings end a process with another status. Programs of tests leave memory to the system: leaks are not findings.
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:exitcode=66",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": "exitcode=66",
}


class BuildError(AssertionError):
    """A command of the build failed."""


def tool(name: str) -> str | None:
    """A build tool on PATH, else next to the interpreter."""
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))


def build(folder: Path, target: str, kind: str = "") -> Path:
    """Configure into `folder` and build targets; kind is address, thread, coverage, aarch64 or nothing.

    Raises
    ------
    FileNotFoundError
        If cmake or ninja is missing.
    """
    cmake, ninja = tool("cmake"), tool("ninja")
    if cmake is None or ninja is None:
        raise FileNotFoundError("cmake and ninja are needed to build the native tests")
    sanitize = kind if kind in ("address", "thread") else ""
    configure = [
        cmake,
        "-G",
        "Ninja",
        "-S",
        str(ROOT),
        "-B",
        str(folder),
        f"-DCMAKE_MAKE_PROGRAM={ninja}",
        "-DSTASHTRACE_BUILD_PYTHON=OFF",
        "-DSTASHTRACE_BUILD_TESTS=ON",
        f"-DSTASHTRACE_PRECOMPILE={'OFF' if kind == 'coverage' else 'ON'}",
        f"-DSTASHTRACE_SANITIZE={sanitize}",
        f"-DSTASHTRACE_SHIPPED={SHIPPED if SHIPPED.exists() and kind != 'aarch64' else ''}",
        f"-DSTASHTRACE_OBJECTS={KEPT_BUILD if kind == '' and objects_are_of_these_sources() else ''}",
    ]
    if sanitize:  # half the time of -O2, and lines as they are written
        configure += ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O1 -g1"]
    elif kind == "":  # a fourth of the compiler's time less than -O2
        configure += ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O1"]
    elif kind == "coverage":
        flags = "-O0 -g --coverage -fprofile-update=atomic"
        configure += ["-DCMAKE_BUILD_TYPE=Debug", f"-DCMAKE_CXX_FLAGS_DEBUG={flags}", "-DCMAKE_CXX_COMPILER_LAUNCHER="]
    elif kind == "aarch64":
        configure += ["--toolchain", str(ROOT / "scripts/aarch64.cmake"), "-DSTASHTRACE_WERROR=ON"]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # tests that run side by side share a folder
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Ninja calls cmake itself where a CMakeLists.txt or a list of files has changed.
        configured = folder / "configured"
        if not configured.exists() or configured.read_text(encoding="utf-8") != "\n".join(configure):
            _call(configure)
            configured.write_text("\n".join(configure), encoding="utf-8")
        _call([cmake, "--build", str(folder), "--target", *target.split(), "-j", str(os.cpu_count() or 1)])
    return folder


def _call(command: Sequence[str]) -> None:
    # Without the first, ccache keeps nothing that needs precompiled headers. Without the second it takes headers
    # that differ in comments alone: the compiler does not recognise these, and includes them twice.
    headers = (str(path) for path in sorted((ROOT / "csrc").rglob("*.h")))
    environment = os.environ | {"CCACHE_SLOPPINESS": "pch_defines,time_macros", "CCACHE_EXTRAFILES": ":".join(headers)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise BuildError(done.stdout[-4000:])


def objects_are_of_these_sources() -> bool:
    """Return True if the checkout was built since its native sources last changed."""
    built = [path.stat().st_mtime for path in (KEPT_BUILD / "stashtrace").glob("*.so")]
    sources = [ROOT / "CMakeLists.txt", *(p for p in (ROOT / "csrc").rglob("*") if p.is_file())]
    return len(built) == 3 and max(built) > max(path.stat().st_mtime for path in sources)


def runtimes(kind: str) -> list[str] | None:
    """Paths of the libraries of RUNTIMES, None if the compiler has them not."""
    paths = []
    for name in RUNTIMES[kind]:
        command = [tool("g++") or "g++", f"-print-file-name={name}"]
        path = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
        if not path.is_absolute():
            return None
        paths.append(str(path.resolve()))
    return paths


def run_command(folder: Path, kind: str, arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Command and environment of pytest on the build in `folder`."""
    path = os.environ["PATH"]
    if kind == "thread":
        path = f"{_instrumenting_compiler(folder)}:{path}"
    environment = (
        {k: v for k, v in os.environ.items() if not k.startswith("STASHTRACE_")}
        | OPTIONS
        | {
            "PATH": path,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{ROOT / 'tests/support'}",
            "STASHTRACE_TEST_LIBRARY": str(folder / "stashtrace/libstashtrace.so"),
            "STASHTRACE_TEST_PRELOAD": ":".join(runtimes(kind) or ()),
        }
    )
    command = [sys.executable, "-m", "pytest", "-p", "native.instrumented", "-p", "no:cacheprovider", "-q", *arguments]
    return command, environment


def _instrumenting_compiler(folder: Path) -> Path:
    """A folder with a g++ for the doubles: what they synchronise by atomics must be seen too."""
    script = folder / "compiler" / "g++"
    script.parent.mkdir(exist_ok=True)
    script.write_text(f'#!/bin/sh\nexec {tool("g++")} "$@" -fsanitize=thread -g1\n', encoding="utf-8")
    script.chmod(0o755)
    return script.parent
