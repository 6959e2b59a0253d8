"""A skip of what must run fails the run; any other skip does not."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[1]
TESTS = """
import pytest

@pytest.mark.skipif(True, reason="no C++ compiler")
def test_by_mark(): pass

def test_by_call(): pytest.skip("no chromium is installed")

def test_other_reason(): pytest.skip("no GPU")

@pytest.mark.xfail(reason="no C++ compiler", strict=True)
def test_expected_failure(): assert False

def test_passes(): pass
"""
MODULE = "import pytest\npytest.importorskip('no_such_package', reason=\"could not import 'torch'\")\n"


def copy_conftest(folder: Path) -> None:
    for name in ("conftest.py", "measurements.py"):
        shutil.copy(HERE / name, folder / name)


def outcome(folder: Path, must_run: str) -> tuple[int, dict[str, int]]:
    """Exit code and counts of a run of these tests."""
    copy_conftest(folder)
    (folder / "test_some.py").write_text(TESTS)
    (folder / "test_module.py").write_text(MODULE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", "."],
        cwd=folder,
        env=dict(os.environ, STASHTRACE_MUST_RUN=must_run),
        capture_output=True,
        text=True,
        check=False,
    )
    counts = re.findall(r"(\d+) (passed|failed|skipped|xfailed|error)", done.stdout.splitlines()[-1])
    return done.returncode, {name: int(count) for count, name in counts}


@pytest.mark.parametrize(
    ("must_run", "code", "counts"),
    [
        ("", 0, {"passed": 1, "skipped": 4, "xfailed": 1}),
        ("chromium", 1, {"failed": 1, "passed": 1, "skipped": 3, "xfailed": 1}),
        ("chromium compiler torch", 1, {"failed": 1, "passed": 1, "skipped": 1, "xfailed": 1, "error": 2}),
    ],
)
def test_required_skips_fail(must_run: str, code: int, counts: dict[str, int], tmp_path: Path) -> None:
    assert outcome(tmp_path, must_run) == (code, counts)


def test_unknown_name_is_refused(tmp_path: Path) -> None:
    copy_conftest(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "."],
        cwd=tmp_path,
        env=dict(os.environ, STASHTRACE_MUST_RUN="torhc"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4
    assert "'torhc'" in done.stderr
