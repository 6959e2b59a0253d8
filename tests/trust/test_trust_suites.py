"""Other projects' tests come out the same with the recorder as without: CPython, numpy, pyarrow.

Compared are the outcomes by name. A test that fails untraced, too, or fails when it is repeated untraced, does not
count; one that fails traced alone is repeated once, traced, before it is believed.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from trust.pairs import Pair, plain_environment, run_group

CPYTHON = [
    "test_os",
    "test_posix",
    "test_io",
    "test_fileio",
    "test_bufio",
    "test_file",
    "test_tempfile",
    "test_shutil",
    "test_pathlib",
    "test_glob",
    "test_mmap",
    "test_select",
    "test_selectors",
    "test_poll",
    "test_epoll",
    "test_socket",
    "test_socketserver",
    "test_asyncore",
    "test_signal",
    "test_threadsignals",
    "test_threading",
    "test_thread",
    "test_queue",
    "test_subprocess",
    "test_popen",
    "test_wait3",
    "test_wait4",
    "test_fork1",
    "test_eintr",
    "test_fcntl",
    "test_pty",
    "test_openpty",
    "test_resource",
    "test_sqlite3",
    "test_zipfile",
    "test_tarfile",
    "test_gzip",
    "test_bz2",
    "test_lzma",
    "test_dbm_dumb",
    "test_fileinput",
    "test_concurrent_futures",
    "test_multiprocessing_fork",
    "test_multiprocessing_spawn",
    "test_multiprocessing_forkserver",
    "test_asyncio",
]
#: numpy in slices, so that a series that is interrupted has some of it. Without f2py, which compiles for an hour.
PACKAGES = [
    "numpy.linalg",
    "numpy.fft",
    "numpy.polynomial",
    "numpy.lib",
    "numpy.ma",
    "numpy.random",
    "numpy.testing",
    "numpy.typing",
    "numpy._core",
    "pyarrow",
]
LIMIT_S = 1500


def traced(folder: Path) -> dict[str, str]:
    return Pair(folder).traced_variables()


def cpython_fails(name: str, folder: Path, variables: Mapping[str, str]) -> bool:
    folder.mkdir(parents=True, exist_ok=True)
    # Some hypervisors connect no socket to their guest: the test would wait for its whole limit, untraced as well.
    command = [sys.executable, "-m", "test", "--timeout", "900", "-q", "-i", "*VSOCK*", name]
    return run_group(command, cwd=folder, env=variables, limit_s=LIMIT_S).code != 0


@pytest.mark.trust
@pytest.mark.slow
@pytest.mark.parametrize("name", CPYTHON)
def test_cpython(tmp_path: Path, name: str) -> None:
    if importlib.util.find_spec(f"test.{name}") is None:
        pytest.skip(f"this Python {sys.version.split()[0]} has no test.{name}")
    if not cpython_fails(name, tmp_path / "traced", traced(tmp_path / "one")):
        return
    for turn in range(2):
        if cpython_fails(name, tmp_path / f"plain{turn}", plain_environment()):
            pytest.skip("fails untraced, too")
    assert not cpython_fails(name, tmp_path / "traced again", traced(tmp_path / "two"))


def outcomes(package: str, folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Outcome by name of a package's tests, by its pytest run."""
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / "report.xml"
    options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}", "-m", "not slow"]
    command = [sys.executable, "-m", "pytest", "--pyargs", package, *options]
    subprocess.run(command, cwd=folder, env=dict(variables), stdout=subprocess.DEVNULL, timeout=LIMIT_S, check=False)
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        found[f"{case.get('classname')}::{case.get('name')}"] = min(kinds, default="passed")
    return found


@pytest.mark.trust
@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_packages(tmp_path: Path, package: str, record_property: Callable[[str, object], None]) -> None:
    pytest.importorskip(package.partition(".")[0])
    pytest.importorskip("hypothesis")
    plain = outcomes(package, tmp_path / "plain", plain_environment())
    with_us = outcomes(package, tmp_path / "traced", traced(tmp_path / "one"))
    different = {name for name in plain | with_us if plain.get(name) != with_us.get(name)}
    if different:
        again = outcomes(package, tmp_path / "plain2", plain_environment())
        different = {name for name in different if plain.get(name) == again.get(name)}
    record_property("package_tests_count", len(plain))
    record_property("different_count", len(different))
    assert {name: (plain.get(name), with_us.get(name)) for name in different} == {}
