"""What a pull request meets: the workflow that tests it, with pinned actions and least rights; the dev container."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from checkout_files import ROOT

yaml = pytest.importorskip("yaml")
WORKFLOWS = ROOT / ".github/workflows"
TEXT = (WORKFLOWS / "tests.yml").read_text(encoding="utf-8")
WORKFLOW = yaml.safe_load(TEXT)
(JOB,) = WORKFLOW["jobs"].values()
CONTAINER = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))


def used_actions(text: str) -> set[str]:
    return set(re.findall(r"uses: (\S+ # v\d+\.\d+\.\d+)$", text, re.M))


def test_each_pull_request_is_tested_as_everywhere() -> None:
    events = WORKFLOW[True]  # YAML reads the key "on" as a truth value
    assert "pull_request" in events
    assert events["push"] == {"branches": ["main"]}
    assert [step["run"] for step in JOB["steps"] if "run" in step] == ["bash .ci/run"]
    assert 'make "${1:-test}"' in (ROOT / ".ci/run").read_text(encoding="utf-8")


def test_what_the_gate_leaves_out_is_tested_each_week_in_the_same_way() -> None:
    weekly = yaml.safe_load((WORKFLOWS / "thorough.yml").read_text(encoding="utf-8"))
    assert set(weekly[True]) == {"schedule", "workflow_dispatch"}
    assert (weekly["permissions"], weekly["env"]) == ({}, WORKFLOW["env"])
    (job,) = weekly["jobs"].values()
    assert job["permissions"] == JOB["permissions"]
    *steps, last = job["steps"]
    assert steps == JOB["steps"][:-1]
    assert last["run"] == "bash .ci/run thorough"


def test_code_of_a_pull_request_can_write_nothing() -> None:
    assert "pull_request_target" not in TEXT
    assert "secrets" not in TEXT
    assert WORKFLOW["permissions"] == {}
    assert JOB["permissions"] == {"contents": "read"}
    (checkout,) = [step for step in JOB["steps"] if "actions/checkout" in step.get("uses", "")]
    assert checkout["with"]["persist-credentials"] is False


def test_actions_are_those_of_releases() -> None:
    """One commit of each action for all workflows, so that one review covers them."""
    used = used_actions(TEXT)
    assert len(used) == TEXT.count("uses: ") > 0
    assert used <= used_actions((WORKFLOWS / "wheels.yml").read_text(encoding="utf-8"))


def test_the_container_is_made_as_continuous_integration_is() -> None:
    steps = CONTAINER["onCreateCommand"].split(" && ")
    run = (ROOT / ".ci/run").read_text(encoding="utf-8")
    for step in steps[:2]:  # the container's also has a debugger
        assert re.search(rf"^{re.escape(step.removesuffix(' gdb'))}$", run, re.M), step
    assert steps[2:] == ["make .venv/.test-tools"]
    planned = subprocess.run(["make", "-n", ".venv/.test-tools"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert planned.returncode == 0, planned.stderr
    assert CONTAINER["containerEnv"]["TORCH_INDEX"] == WORKFLOW["env"]["TORCH_INDEX"]
    (version,) = [step["with"]["python-version"] for step in JOB["steps"] if "python-version" in step.get("with", {})]
    assert CONTAINER["image"].startswith(f"python:{version}-")


@pytest.mark.parametrize(("user", "installs"), [(0, True), (1000, False)])
def test_system_packages_are_asked_for_by_root_alone(user: int, installs: bool, tmp_path: Path) -> None:
    programs = {"id": f"echo {user}", "apt-get": f'echo "$*" >> {tmp_path}/asked', "timeout": 'shift; "$@"'}
    for name, line in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    script = ROOT / "scripts/system_packages.sh"
    done = subprocess.run(["/bin/bash", script, "gdb"], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    asked = (tmp_path / "asked").read_text(encoding="utf-8") if installs else ""
    assert (asked == "") is not installs
    if installs:
        assert asked.splitlines() == ["update -qq", "install -y -qq --no-install-recommends gdb chromium iproute2"]
