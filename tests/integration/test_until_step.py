"""`stashtrace run --until-step`: the job is ended there, whatever started it, and what it recorded is whole."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from example_job import ROOT, command_of_ranks, stashtrace

pytestmark = pytest.mark.torch
SCRIPT = ROOT / "tests" / "ground_truth" / "small_ddp.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.parametrize("shell", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_job_of_two_ranks_ends_there(tmp_path: Path, shell: bool) -> None:
    pytest.importorskip("torch")
    command = [*TORCHRUN, str(SCRIPT), "100000"]
    if shell:  # passes no signal on
        command = ["sh", "-c", shlex.join(command_of_ranks(2, str(SCRIPT), "100000")) + "; exit 3"]
    done = stashtrace("run", "--out", "run", "--until-step", "30", "--no-merge", "--", *command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ended the command at step 30, as asked" in done.stderr
    facts = json.loads(stashtrace("info", "run", "--format", "json", cwd=tmp_path).stdout)
    assert facts["ranks"] == [0, 1]
    assert 29 <= facts["steps"] <= 130, "20 ms or more each, of 100,000, until the signal has come through"
    assert not list((tmp_path / "run").glob("*.reached"))
    assert json.loads((tmp_path / "run/run.json").read_text())["until_step"] == 30


@pytest.mark.thorough
def test_a_job_that_ends_before(tmp_path: Path) -> None:
    """It ends as it would, and nothing says that the step was reached."""
    pytest.importorskip("torch")
    command = [sys.executable, "-c", "import torch, sys; sys.exit(7)"]
    done = stashtrace("run", "--out", "run", "--until-step", "30", "--no-merge", "--", *command, cwd=tmp_path)
    assert done.returncode == 7
    assert "as asked" not in done.stderr
    assert "until_step" not in json.loads((tmp_path / "run/run.json").read_text())


def test_no_step_at_all_is_refused(tmp_path: Path) -> None:
    done = stashtrace("run", "--until-step", "0", "--", "true", cwd=tmp_path)
    assert done.returncode == 2
    assert "--until-step 0 is out of range" in done.stderr
