"""Where the native half cannot be loaded (musl, an old glibc, another Python) each command says so in one line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from checkout_files import ROOT

EXTENSION = f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
LIBRARY = "libstashtrace.so"
#: os.confstr as on musl, which a program built for musl shows below.
AS_ON_MUSL = "import os\nos.confstr = lambda name: None\n"
#: An editable install of the package finds its modules wherever else the package lies.
NOT_EDITABLE = (
    "import sys\nsys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in getattr(f, '__module__', '')]\n"
)
RECORDED = str(ROOT / "tests/data/golden/v1/merged.stash")
COMMANDS = {
    "run": ["run", "--out", "run", "--", "true"],
    "summary": ["summary", RECORDED],
    "analyze": ["analyze", "steps", RECORDED],
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package without its native half."""
    copy = tmp_path / "site" / "stashtrace"
    shutil.copytree(ROOT / "stashtrace", copy, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (copy.parent / "sitecustomize.py").write_text(NOT_EDITABLE, encoding="utf-8")
    return copy


def command(package: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("STASHTRACE_") and k != "LD_PRELOAD"}
    environment |= {"PYTHONPATH": str(package.parent), "LC_ALL": "C.UTF-8"}
    line = [sys.executable, "-m", "stashtrace", *words]
    folder = package.parents[1]
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


def compiler(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip("no musl-gcc (musl-tools)" if name == "musl-gcc" else "no C compiler")
    return path


def build(name: str, source: str, output: Path, *options: str) -> Path:
    file = output.with_suffix(".c")
    file.write_text(source, encoding="utf-8")
    subprocess.run([compiler(name), str(file), "-o", str(output), *options], check=True, cwd=output.parent)
    file.unlink()
    return output


def expect(done: subprocess.CompletedProcess[str], error: str, hint: str) -> None:
    """One line and a hint, nothing else."""
    first, empty, second = done.stderr.splitlines()
    assert (done.returncode, done.stdout, empty) == (3, "", "")
    assert first.startswith("error: the recorder cannot be loaded: ")
    assert error in first
    assert second.startswith("hint: ")
    assert hint in second


def doctor(package: Path) -> dict[str, str]:
    """What `stashtrace doctor` says of the recorder and of the preload, words only."""
    done = command(package, "doctor")
    assert (done.returncode, done.stderr) == (3, "")
    said: dict[str, str] = {}
    for line in done.stdout.splitlines():
        if line[:14].strip():
            name = line[:14].strip()
        said[name] = f"{said.get(name, '')} {line[14:].strip()}".strip()
    return {name: said[name] for name in ("record path", "preload")}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_another_python(package: Path, words: list[str]) -> None:
    (package / LIBRARY).write_bytes(b"there for all Pythons")
    expect(command(package, *words), f"not built for this Python ({sys.implementation.cache_tag}", "make native")
    assert not (package.parents[1] / "run").exists()


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_musl(package: Path, words: list[str]) -> None:
    for name in (EXTENSION, LIBRARY):
        (package / name).write_bytes(b"for another C library")
    (package.parent / "sitecustomize.py").write_text(NOT_EDITABLE + AS_ON_MUSL, encoding="utf-8")
    expect(command(package, *words), "not glibc (musl, as on Alpine?)", "glibc 2.28 or newer")


def test_doctor_on_musl(package: Path) -> None:
    for name in (EXTENSION, LIBRARY):
        (package / name).write_bytes(b"for another C library")
    (package.parent / "sitecustomize.py").write_text(NOT_EDITABLE + AS_ON_MUSL, encoding="utf-8")
    said = doctor(package)
    for text in said.values():
        assert text.startswith("broken")
        assert "not glibc (musl, as on Alpine?)" in text
        assert "glibc 2.28" in text


def test_versions_and_help_need_no_native_half(package: Path) -> None:
    for words in (["--version"], ["--help"], ["summary", "--help"]):
        done = command(package, *words)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_program_for_musl_refuses_the_library(tmp_path: Path) -> None:
    """What the two tests above rest on: musl's loader gives a reason, and its confstr knows no glibc."""
    if not (ROOT / "stashtrace" / LIBRARY).exists():
        pytest.skip("no libstashtrace.so here: make native")
    source = """
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
int main(int count, char** words) {
  void* library = dlopen(words[1], RTLD_NOW);
  printf("%zu\\n%s\\n", confstr(_CS_GNU_LIBC_VERSION, 0, 0), library ? "loaded" : dlerror());
}
"""
    program = build("musl-gcc", source, tmp_path / "program")
    line = [str(program), str(ROOT / "stashtrace" / LIBRARY)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=20, check=False)
    length, reason, *_ = done.stdout.splitlines()
    assert (done.returncode, length) == (0, "0")
    assert "symbol not found" in reason


def test_an_extension_that_was_built_for_musl(package: Path) -> None:
    """A build for another system in a Python on glibc: the loader's words."""
    build("musl-gcc", "int PyInit__native(void) { return 0; }", package / EXTENSION, "-shared", "-fPIC")
    expect(command(package, "summary", RECORDED), "libc.so", "install the package again")


def test_a_glibc_that_is_too_old(package: Path, tmp_path: Path) -> None:
    """The extension asks for a version of glibc that no system has; the loader's message is real."""
    script = tmp_path / "versions.map"
    script.write_text("GLIBC_9.99 { global: from_the_future; };\n", encoding="utf-8")
    options = ["-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libc.so.6"]
    stub = "int from_the_future(void) { return 0; }"
    libc = build("gcc", stub, tmp_path / "newer_libc.so", *options, f"-Wl,--version-script={script}")
    source = "int from_the_future(void);\nint PyInit__native(void) { return from_the_future(); }"
    build("gcc", source, package / EXTENSION, "-shared", "-fPIC", "-nostdlib", str(libc))
    expect(command(package, "summary", RECORDED), "built for a newer glibc than this system's glibc", "--no-binary")
