"""The tests hold in a clone of any name, in a path with spaces, and next to what the README's examples leave there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from checkout_files import ROOT, project_files

#: What `make demo` and the README's examples leave at the top of a checkout.
LEFT = (
    *("before/run.json", "after/run.json", "demo-run/run.json", "stash-20260101-120000/run.json"),
    *(".stashtrace/baselines/main.json", "report.html", "report.md", "timeline.pftrace.gz", "examples/data/set.txt"),
    "build/site/index.html",
)
#: Tests that read the tree, or the names of its files, and take no time.
SENSITIVE = (
    "tests/architecture/test_docs_links.py",
    "tests/architecture/test_manners.py",
    "tests/architecture/test_sizes.py",
    "tests/packaging/test_wheel.py::test_the_sdist_is_the_checkout",
    "tests/probes/test_bootstrap.py::test_no_extension_is_loaded",
)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone called as `git clone` calls it, with the built libraries of this one and what a user left."""
    folder = tmp_path_factory.mktemp("a path") / "of others" / "stashtrace"
    for name in project_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    for built in (ROOT / "stashtrace").glob("*.so"):
        (folder / "stashtrace" / built.name).symlink_to(built)
    for name in LEFT:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("left by [a link](nowhere.md)\n", encoding="utf-8")
    return folder


@pytest.mark.thorough
def test_tests_pass_in_a_clone_of_another_name_that_was_used(clone: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(clone), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("STASHTRACE_MUST_RUN", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SENSITIVE]
    done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


def test_the_makefile_names_no_absolute_path(clone: Path) -> None:
    """A path that make puts together from the folder of the checkout breaks at its first space."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    for target in ("demo", "test", "native", "docs"):
        command = ["make", "-n", "--no-print-directory", target, "PYTHON=python3"]
        planned = subprocess.run(command, cwd=clone, env=plain, capture_output=True, text=True, timeout=60, check=True)
        assert str(clone) not in planned.stdout + planned.stderr, target
        assert "setup.py" in planned.stdout, "the recipe is shown"


def test_the_python_to_build_with_may_lie_in_a_folder_with_a_space(tmp_path: Path) -> None:
    python = tmp_path / "a b" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "$0 $1" >&2\nexit 7\n', encoding="utf-8")
    python.chmod(0o755)
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    for target in ("native", ".venv/.made"):
        command = ["make", "-f", str(ROOT / "Makefile"), f"PYTHON={python}", target]
        done = subprocess.run(command, cwd=tmp_path, env=plain, capture_output=True, text=True, timeout=60, check=False)
        assert f"{python} " in done.stderr, done.stderr
    planned = subprocess.run(
        ["make", "-n", "-B", f"PYTHON={python}", "torch"], cwd=ROOT, env=plain, capture_output=True, text=True
    )
    assert f'"{python}" scripts/provide_torch.py' in planned.stdout
