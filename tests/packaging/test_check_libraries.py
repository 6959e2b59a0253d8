"""What ``scripts/release/check_libraries.py`` refuses, each shown on a library that has it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from checkout_files import ROOT

pytest.importorskip("elftools")
sys.path.insert(0, str(ROOT / "scripts/release"))
import check_libraries

EXTENSION = "_native.cpython-311-x86_64-linux-gnu.so"


def build(output: Path, source: str, *options: str) -> Path:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    file = output.with_suffix(".c")
    file.write_text(source, encoding="utf-8")
    command = [compiler, "-shared", "-fPIC", "-nostdlib", str(file), "-o", str(output), *options]
    subprocess.run(command, check=True)
    file.unlink()
    return output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The three libraries, with nothing wrong."""
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for name in (check_libraries.RECORDER, check_libraries.LOOKUP, EXTENSION):
        build(libraries / name, "int recorded;", "-Wl,-rpath,$ORIGIN")
    assert check_libraries.check(libraries) == []
    return libraries


def test_a_newer_glibc(folder: Path, tmp_path: Path) -> None:
    for version, wrong in (("2.28", []), ("2.29", [f"{EXTENSION}: needs GLIBC_2.29"])):
        script = tmp_path / "versions.map"
        script.write_text(f"GLIBC_{version} {{ global: function; }};\n", encoding="utf-8")
        options = ["-Wl,-soname,libc.so.6", f"-Wl,--version-script={script}"]
        libc = build(tmp_path / "libc_stub.so", "int function(void) { return 0; }", *options)
        build(folder / EXTENSION, "int function(void);\nint use(void) { return function(); }", str(libc))
        assert check_libraries.check(folder) == wrong


def test_a_library_that_systems_lack(folder: Path, tmp_path: Path) -> None:
    other = build(tmp_path / "libother.so", "int function(void) { return 0; }", "-Wl,-soname,libstdc++.so.6")
    for name, wrong in ((EXTENSION, []), (check_libraries.RECORDER, ["libstashtrace.so: needs libstdc++.so.6"])):
        build(folder / name, "int function(void);\nint use(void) { return function(); }", str(other))
        assert check_libraries.check(folder) == wrong


def test_a_grafted_and_a_missing_library(folder: Path) -> None:
    (folder / check_libraries.LOOKUP).rename(folder / "libstashtrace_lookup-1f2e3d.so")
    assert check_libraries.check(folder) == [
        "libstashtrace_lookup-1f2e3d.so: not one of ours; grafted?",
        "no libstashtrace_lookup.so",
    ]


def test_another_folder_and_symbols_of_the_runtime(folder: Path) -> None:
    source = "int _ZNSt6thread4joinEv, _ZSt4cout, __cxa_throw, _ZN10stashtrace1xE, stashtrace_flush;"
    build(folder / check_libraries.RECORDER, source, "-Wl,-rpath,/opt/lib")
    found = check_libraries.check(folder)
    assert "libstashtrace.so: looks for libraries in /opt/lib" in found
    (shown,) = [line for line in found if "shows" in line]
    assert "shows 3 symbols of the C++ runtime" in shown
