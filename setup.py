"""Build hook: CMake builds the native half, through scikit-build-core; everything else is in pyproject.toml."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from pathlib import Path

from setuptools import setup

try:
    from packaging.version import Version
    from scikit_build_core.builder.builder import Builder
    from scikit_build_core.cmake import CMake, CMaker
    from scikit_build_core.settings.skbuild_read_settings import SettingsReader
    from scikit_build_core.setuptools.build_cmake import BuildCMake
except ModuleNotFoundError as missing:
    hint = 'pip install "scikit-build-core[setuptools]>=1.0" pybind11 cmake ninja'
    raise SystemExit(f"error: cannot build: {missing}\nhint: {hint}") from None

SOURCE = Path(__file__).resolve().parent


class BuildInTree(BuildCMake):
    """The plugin's command, which empties its build folder first; a build into the checkout keeps its folder here.

    `make native` and editable installs compile only what changed. Wheels are left to the plugin.
    """

    def run(self) -> None:
        build_ext = self.distribution.get_command_obj("build_ext")
        if not (self.editable_mode or build_ext.editable_mode or build_ext.inplace):
            super().run()
            return
        settings = SettingsReader.from_file(str(SOURCE / "pyproject.toml"), {}, state="editable").settings
        # CMaker forgets what it found where the environment of an earlier call is gone.
        folder = SOURCE / "build" / f"native-{sys.implementation.cache_tag}{sys.abiflags}"
        unknown = not (folder / ".skbuild-info.json").exists()  # configured by other means
        cmake = CMake.default_search()
        config = CMaker(cmake, source_dir=SOURCE, build_dir=folder, build_type="Release", fresh=unknown)
        builder = Builder(settings=settings, config=config)
        version = self.distribution.get_version()
        defines = {"CMAKE_INSTALL_PREFIX": SOURCE, "STASHTRACE_OUTPUT_DIR": folder / "stashtrace"}
        builder.configure(defines=defines, name="stashtrace", version=Version(version))
        builder.build(build_args=[])
        builder.install(install_dir=SOURCE)
        self._record_installed_files(folder, SOURCE)


setup(
    license="Apache-2.0",
    cmake_source_dir=".",
    cmdclass={"build_cmake": BuildInTree},
)
