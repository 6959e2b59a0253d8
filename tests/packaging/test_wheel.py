"""An sdist, the wheel that is built from it, and what the wheel does where there is no compiler."""

from __future__ import annotations

import base64
import configparser
import csv
import email
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest
from checkout_files import ROOT, project_files
from wheel_build import bare_environment, make_sdist, make_wheel

LIBRARIES = {"libstashtrace.so", "libstashtrace_lookup.so"}
#: Not in the sdist: what is of a checkout alone. In it alone: what setuptools writes.
OF_CHECKOUTS, OF_SDISTS = {".gitignore"}, {"PKG-INFO", "setup.cfg"}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for module in ("scikit_build_core", "pybind11", "cmake", "ninja"):
        pytest.importorskip(module)
    return make_sdist(tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheel(sdist, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_environment(tmp_path_factory.mktemp("bare") / "environment", wheel)


def stashtrace(programs: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the installed command where PATH holds nothing else: no compiler, no cmake."""
    environment = {"PATH": str(programs), "HOME": str(cwd), "LC_ALL": "C.UTF-8"}
    command = [str(programs / "stashtrace"), *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)


def release_tool(name: str, wheel: Path) -> subprocess.CompletedProcess[str]:
    """Run a script of ``scripts/release`` on the wheel."""
    command = [sys.executable, str(ROOT / "scripts/release" / name), str(wheel)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_sdist_is_the_checkout(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        packed = {
            member.name.partition("/")[2]: archive.extractfile(member).read()  # type: ignore[union-attr]
            for member in archive.getmembers()
            if member.isfile()
        }
    made = {name for name in packed if name.startswith("stashtrace.egg-info/")} | OF_SDISTS
    assert set(packed) - made == set(project_files()) - OF_CHECKOUTS
    assert {"mkdocs.yml", "CMakeLists.txt", "scripts/provide_torch.py", "ci/action.yml", "Makefile"} <= packed.keys()
    changed = [name for name in packed.keys() - made if packed[name] != (ROOT / name).read_bytes()]
    assert changed == []


@pytest.mark.thorough
def test_the_wheel_holds_what_the_checkout_has_and_the_native_half(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    native = {name for name in names if name.endswith(".so")}
    extension = f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    assert native == {f"stashtrace/{name}" for name in LIBRARIES | {extension}}
    assert names - native == {name for name in project_files() if name.startswith("stashtrace/")}
    for name in (
        "report/page/style.css",
        "report/page/script.js",
        "lab/recommend/prices/aws.toml",
        "_native.pyi",
        "py.typed",
    ):
        assert f"stashtrace/{name}" in names


@pytest.mark.thorough
def test_metadata(wheel: Path) -> None:
    found = metadata(wheel)
    version = subprocess.run(
        [sys.executable, "-c", "import stashtrace; print(stashtrace.__version__)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert (found["Name"], found["Version"]) == ("stashtrace", version)
    assert "Apache-2.0" in (found["License-Expression"], found["License"])
    assert found["Requires-Python"] == ">=3.10"
    required = [line for line in found.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert [line.split(">")[0] for line in required] == ["numpy", "tomli"], "more is installed than a recording needs"
    cp = f"cp{sys.version_info.major}{sys.version_info.minor}"
    python, abi, platform = wheel.stem.split("-")[2:]
    assert (python, abi) == (cp, cp + sys.abiflags)
    assert platform == f"linux_{os.uname().machine}"
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        scripts = configparser.ConfigParser()
        scripts.read_string(archive.read(name).decode())
    assert dict(scripts["console_scripts"]) == {"stashtrace": "stashtrace.cli:main"}


@pytest.mark.thorough
def test_version_and_help(programs: Path, tmp_path: Path) -> None:
    done = stashtrace(programs, "--version", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("stashtrace ")
    done = stashtrace(programs, "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "stashtrace run -- torchrun" in done.stdout


@pytest.mark.thorough
def test_summary_of_a_recorded_run(programs: Path, tmp_path: Path) -> None:
    with tarfile.open(ROOT / "tests/data/recorded/0.1.0/run.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    (run,) = (path for path in tmp_path.iterdir() if path.is_dir())
    done = stashtrace(programs, "summary", run.name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 ranks" in done.stdout


@pytest.mark.thorough
def test_a_program_is_recorded(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "batch.bin").write_bytes(bytes(1000))
    (tmp_path / "job.py").write_text(
        "for step in range(20):\n    with open('batch.bin', 'rb', buffering=0) as file:\n        file.read(50)\n",
        encoding="utf-8",
    )
    done = stashtrace(programs, "run", "--out", "run", "--", "python", "job.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    table = stashtrace(programs, "analyze", "io", "run", "--format", "csv", cwd=tmp_path)
    assert table.returncode == 0, table.stderr
    (row,) = [line for line in table.stdout.splitlines() if "batch.bin" in line]
    assert "1000" in row.split(","), f"20 reads of 50 bytes: {row}"


@pytest.mark.thorough
def test_libraries_of_the_wheel(wheel: Path) -> None:
    """Nothing is grafted, nothing is shown. ``old_glibc_wheel.py`` builds for the oldest glibc, by another compiler."""
    pytest.importorskip("elftools")
    done = release_tool("check_libraries.py", wheel)
    assert [line for line in done.stdout.splitlines() if not re.search(r": needs (GLIBC|GLIBCXX|CXXABI)_", line)] == []


@pytest.mark.thorough
def test_list_of_parts(wheel: Path, tmp_path: Path) -> None:
    for module in ("cyclonedx", "elftools"):
        pytest.importorskip(module)
    listed = Path(shutil.copy(wheel, tmp_path))
    done = release_tool("sbom.py", listed)
    assert (done.returncode, done.stderr) == (0, "")
    with zipfile.ZipFile(wheel) as before, zipfile.ZipFile(listed) as after:
        (added,) = set(after.namelist()) - set(before.namelist())
        assert added.endswith(".dist-info/sboms/stashtrace.cdx.json")
        bom = json.loads(after.read(added))
        (record,) = (name for name in after.namelist() if name.endswith("/RECORD"))
        rows = {row[0]: row[1:] for row in csv.reader(after.read(record).decode().splitlines())}
        assert set(rows) == set(after.namelist())
        for name, (digest, size) in rows.items():
            content = after.read(name)
            hashed = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert name == record or (digest, int(size)) == (f"sha256={hashed}", len(content)), name
        libraries = {Path(n).name: hashlib.sha256(after.read(n)).hexdigest() for n in rows if n.endswith(".so")}
    parts = {part["name"]: part for part in bom["components"]}
    assert {n: p["hashes"][0]["content"] for n, p in parts.items() if p["type"] == "file"} == libraries
    import pybind11

    assert parts["pybind11"]["version"] == pybind11.__version__
    assert {"libstdc++", "libgcc"} <= parts.keys()
    assert set(parts) == {*libraries, "pybind11", "libstdc++", "libgcc"}
    content = listed.read_bytes()
    assert release_tool("sbom.py", listed).returncode == 0
    assert listed.read_bytes() == content, "what is listed already is left alone"
