"""The workflow that publishes: sdist first, wheels from it, pinned actions, least rights; and what it relies on."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checkout_files import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

yaml = pytest.importorskip("yaml")
PATH = ROOT / ".github/workflows/wheels.yml"
WORKFLOW = yaml.safe_load(PATH.read_text(encoding="utf-8"))
JOBS: dict[str, dict[str, Any]] = WORKFLOW["jobs"]
LISTS = ("cibuildwheel", "sdist", "test", "wheel")
CONFIGURATION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["cibuildwheel"]


def steps(job: str) -> list[dict[str, Any]]:
    return JOBS[job]["steps"]


def test_actions_are_pinned() -> None:
    used = re.findall(r"uses: (\S+)(.*)", PATH.read_text(encoding="utf-8"))
    assert used
    for action, comment in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action), f"{action} can be changed by others"
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), f"{action}: which version is it?"


def test_what_is_installed_is_named_by_hash() -> None:
    """Nothing that has a part in what is published is chosen by the index on that day."""
    commands = [line for name in JOBS for step in steps(name) for line in step.get("run", "").splitlines()]
    others = [
        CONFIGURATION["before-build"],
        CONFIGURATION["before-test"],
        *CONFIGURATION["linux"]["repair-wheel-command"],
    ]
    installs = [command for command in (*commands, *others) if re.search(r"\b(pip|pipx|uv|conda|npm|apt\S*) ", command)]
    lists = []
    for command in installs:
        found = re.search(r"pip install --require-hashes --only-binary :all: -r (?:\{project\}/)?(\S+)$", command)
        assert found, f"{command}: by hash, and nothing that runs while it is installed"
        lists.append(found[1])
    assert sorted(lists) == sorted(f"scripts/release/requirements/{name}.txt" for name in LISTS)
    assert "test-requires" not in CONFIGURATION
    assert CONFIGURATION["build-frontend"] == {"name": "build", "args": ["--no-isolation"]}
    builds = [command for command in commands if "-m build" in command]
    assert builds
    assert all("--no-isolation" in command for command in builds), "what builds would be chosen by the index"


@pytest.mark.parametrize("name", LISTS)
def test_each_list_is_locked(name: str) -> None:
    folder = ROOT / "scripts/release/requirements"
    asked = {_plain(line) for line in (folder / f"{name}.in").read_text().splitlines() if not line.startswith("#")}
    entries = re.split(r"\n(?=\S)", (folder / f"{name}.txt").read_text().strip())
    locked = [entry for entry in entries if not entry.startswith("#")]
    for entry in locked:
        assert re.match(r"[\w.-]+==[\w.]+( ; | \\)", entry), entry.splitlines()[0]
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), entry.splitlines()[0]
    assert asked <= {_plain(entry) for entry in locked}


def test_the_lists_have_what_builds_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = {_plain(line) for line in project["build-system"]["requires"]}
    for name in ("sdist", "wheel"):
        lines = (ROOT / f"scripts/release/requirements/{name}.txt").read_text().splitlines()
        assert needed <= {_plain(line) for line in lines if not line.startswith((" ", "#"))}
    tests = {
        _plain(line)
        for line in (ROOT / "scripts/release/requirements/test.txt").read_text().splitlines()
        if line[0] != " "
    }
    assert {_plain(line) for line in project["project"]["dependencies"]} <= tests, "before the index is asked for them"


def _plain(requirement: str) -> str:
    """Name of the package that a line asks for."""
    return re.split(r"[\[<>=;! ]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def test_least_rights() -> None:
    assert WORKFLOW["permissions"] == {}
    assert {name: job["permissions"] for name, job in JOBS.items()} == {
        "sdist": {"contents": "read"},
        "wheels": {"contents": "read"},
        "publish": {"id-token": "write"},
    }
    checkouts = [step for name in JOBS for step in steps(name) if "actions/checkout" in step.get("uses", "")]
    assert [step["with"]["persist-credentials"] for step in checkouts] == [False]
    assert "secrets" not in PATH.read_text(encoding="utf-8"), "publishing needs no password"


def test_the_job_that_may_publish_runs_nothing_of_the_project() -> None:
    publish = JOBS["publish"]
    assert all("run" not in step for step in publish["steps"])
    assert publish["environment"] == "pypi"
    assert set(publish["needs"]) == {"sdist", "wheels"}
    assert publish["if"] == "github.event_name == 'push' && github.ref_type == 'tag'"


def test_names_of_a_ref_are_no_code() -> None:
    """What a person can choose, such as the name of a tag, reaches scripts as a variable."""
    for name in JOBS:
        for step in steps(name):
            assert "${{" not in step.get("run", "")


def test_wheels_come_from_the_sdist_on_both_architectures() -> None:
    assert JOBS["wheels"]["needs"] == "sdist"
    assert JOBS["wheels"]["strategy"]["matrix"]["runner"] == ["ubuntu-24.04", "ubuntu-24.04-arm"]
    assert not any("actions/checkout" in step.get("uses", "") for step in steps("wheels"))
    (build,) = [step["run"] for step in steps("wheels") if "run" in step]
    assert "sdist/stashtrace-*.tar.gz" in build


def test_what_is_built() -> None:
    builds = {name.partition("-")[0] for name in CONFIGURATION["build"]}
    assert builds == {"cp310", "cp311", "cp312", "cp313", "cp314", "cp314t"}
    linux = CONFIGURATION["linux"]
    assert {linux[f"manylinux-{machine}-image"] for machine in ("x86_64", "aarch64")} == {"manylinux_2_28"}


def test_each_wheel_is_checked_listed_and_tested_by_scripts_that_exist() -> None:
    commands = [*CONFIGURATION["linux"]["repair-wheel-command"], CONFIGURATION["test-command"]]
    scripts = [script for command in commands for script in re.findall(r"\{project\}/(\S+\.py)", command)]
    assert scripts == [
        "scripts/release/check_libraries.py",
        "scripts/release/sbom.py",
        "scripts/release/quick_tests.py",
    ]
    assert [script for script in scripts if not (ROOT / script).is_file()] == []


def test_the_quick_half_names_what_exists() -> None:
    sys.path.insert(0, str(ROOT / "scripts/release"))
    import quick_tests

    chosen = (*quick_tests.CHOSEN, *quick_tests.NEED_MORE)
    assert [name for name in chosen if not (ROOT / "tests" / name).exists()] == []


def test_a_tag_must_name_the_version_of_every_place(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "scripts/release"))
    import release_version

    for name in release_version.PLACES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    text = (tmp_path / "pyproject.toml").read_text(encoding="utf-8")
    (version,) = re.findall(release_version.PLACES["pyproject.toml"], text, re.M)
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {version} (2026-01-31)\n", encoding="utf-8")
    assert release_version.disagreements(f"v{version}", tmp_path) == []
    wrong = release_version.disagreements("v99.0.0", tmp_path)
    assert {line.partition(":")[0] for line in wrong} == set(release_version.PLACES)
    assert "not a tag" in release_version.disagreements("nightly", tmp_path)[0]


def test_no_release_without_a_version() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/release/release_version.py"), "v99.0.0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "error: pyproject.toml: " in done.stderr
