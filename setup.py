"""Build hook: one extension, made by CMake and Ninja; everything else about the package is in pyproject.toml."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCE = Path(__file__).resolve().parent


def _tool(name: str) -> str:
    """Find a build tool on PATH, else beside the interpreter (an environment that is not activated)."""
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        raise SystemExit(f"error: {name} not found\nhint: pip install {name}")
    return found


def _forget_tools(work: Path) -> None:
    """Remove what CMake has found out before: an isolated build leaves the ninja of an environment that is gone.

    Unlike ``cmake --fresh`` this keeps the objects, so that a second build compiles nothing again.
    """
    (work / "CMakeCache.txt").unlink(missing_ok=True)
    for found in (work / "CMakeFiles").glob("[0-9]*"):  # by version of CMake: the compiler and the system
        shutil.rmtree(found)


class CMakeBuild(build_ext):  # type: ignore[misc]
    """Configure and build `_native` and the shared libraries straight into the package folder."""

    def run(self) -> None:
        try:
            import pybind11
        except ModuleNotFoundError:
            raise SystemExit("error: pybind11 not found\nhint: pip install pybind11 cmake ninja") from None

        in_source = self.inplace or getattr(self, "editable_mode", False)
        output = SOURCE / "stashtrace" if in_source else Path(self.build_lib).resolve() / "stashtrace"
        kept = SOURCE / "build" / f"native-{sys.implementation.cache_tag}"
        work = kept if in_source else Path(self.build_temp).resolve()
        work.mkdir(parents=True, exist_ok=True)
        _forget_tools(work)
        configure = [
            _tool("cmake"),
            "-G",
            "Ninja",
            "-S",
            str(SOURCE),
            "-B",
            str(work),
            f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}",
            f"-DSTASHTRACE_OUTPUT_DIR={output}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        ]
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
        subprocess.run(configure, check=True)
        subprocess.run([_tool("cmake"), "--build", str(work), "-j", jobs], check=True)

    def _built(self) -> list[Path]:
        libraries = ("libstashtrace.so", "libstashtrace_lookup.so")
        return [Path("stashtrace") / name for name in (Path(self.get_ext_filename("_native")).name, *libraries)]

    def get_outputs(self) -> list[str]:
        return [str(Path(self.build_lib) / path) for path in self._built()]

    def get_output_mapping(self) -> dict[str, str]:
        return {str(Path(self.build_lib) / path): str(path) for path in self._built()}


setup(
    license="Apache-2.0",
    ext_modules=[Extension("stashtrace._native", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
