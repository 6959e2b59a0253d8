"""Lint, format and types: the same commands as in .pre-commit-config.yaml, so that every clone is held to them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from source_tree import ROOT, source_files

GATE = {
    "lint": ("ruff", "check", "."),
    "format": ("ruff", "format", "--check", "--quiet", "."),
    "types": ("mypy",),  # strict, by pyproject.toml
}
#: Runs mypy as `python -m mypy` does, but for its search for garbage: a fifth of its time, for 160 MB of 700.
SELDOM_COLLECTING = """
import gc
gc.set_threshold(2_000_000, 10, 10)
gc.set_threshold = lambda *_: None
from mypy.__main__ import console_entry
console_entry()
"""
CLANG_FORMAT = ("clang-format", "--dry-run", "--Werror")
#: Of csrc/ these are laid out by clang-format; tables of X-macros (.def) are laid out by hand.
NATIVE_SUFFIXES = {".h", ".cpp"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "types")) for name in GATE])
def test_gate(name: str) -> None:
    how = ["-c", SELDOM_COLLECTING] if name == "types" else ["-m", *GATE[name]]
    done = subprocess.run([sys.executable, *how], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(GATE[name])}\n{done.stdout[-4000:]}{done.stderr[-1000:]}"


def test_all_is_laid_out_by_the_formatter() -> None:
    """A line that the formatter may not touch is laid out by one person, for one person."""
    excepted = re.compile(r"# fmt: " + r"(skip|off)")
    found = [
        path
        for path in source_files("stashtrace", "tests", "benchmarks", "examples", "scripts")
        if excepted.search(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def clang_format() -> str:
    """The clang-format of the extra `test`: another version lays out otherwise."""
    tool = shutil.which("clang-format", path=str(Path(sys.executable).parent)) or shutil.which("clang-format")
    if tool is None:
        pytest.skip("clang-format is not installed: pip install -e '.[test]'")
    wanted = re.findall(r'"clang-format==([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    version = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout
    if version.split()[-1] not in wanted:
        pytest.skip(f"clang-format {wanted[0]} is not installed, only {version.strip()}")
    return tool


def test_native_format() -> None:
    files = sorted(str(p) for p in source_files("csrc") if p.suffix in NATIVE_SUFFIXES)
    assert len(files) > 100
    done = subprocess.run([clang_format(), *CLANG_FORMAT[1:], *files], cwd=ROOT, capture_output=True, text=True)
    wrong = sorted({line.partition(":")[0] for line in done.stderr.splitlines() if "error: code should be" in line})
    assert done.returncode == 0, f"clang-format -i {' '.join(wrong)}\n{done.stderr[:2000]}"


def test_hooks_call_the_same() -> None:
    yaml = pytest.importorskip("yaml")
    configuration = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = {hook["entry"]: hook for repository in configuration["repos"] for hook in repository["hooks"]}
    assert {repository["repo"] for repository in configuration["repos"]} == {"local"}  # nothing is fetched
    # A hook is given the files of a commit where the test takes all of them.
    called = [" ".join(word for word in command if word not in (".", "--quiet")) for command in GATE.values()]
    assert {*called, " ".join(CLANG_FORMAT)} <= hooks.keys()
    assert hooks["mypy"]["pass_filenames"] is False  # it has a separate list
    chosen = re.compile(hooks[" ".join(CLANG_FORMAT)]["files"])
    for path in source_files("csrc", "tests"):
        native = path.suffix in NATIVE_SUFFIXES and path.is_relative_to(ROOT / "csrc")
        assert bool(chosen.search(path.relative_to(ROOT).as_posix())) == native, path
