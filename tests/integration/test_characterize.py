"""`stashtrace characterize` on a real job of two ranks: all five steps, the same again, and jobs that do not fit."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from example_job import ROOT, command_of_ranks, stashtrace

pytestmark = [pytest.mark.torch, pytest.mark.slow]
SMALL = ["--repeat", "1", "--iterations", "10", "--warmup", "3"]
DDP = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

SMALL_DDP = str(ROOT / "tests" / "ground_truth" / "small_ddp.py")


@pytest.fixture(autouse=True)
def _torch() -> None:
    pytest.importorskip("torch")


def example(folder: Path) -> list[str]:
    """The example as a user would start it, with separate data."""
    script = [
        *(str(ROOT / "examples" / "train_ddp.py"), "--data", str(folder / "data"), "--images", "400"),
        *("--image-size", "64", "--batch-size", "4", "--steps", "100000", "--workers", "1"),
    ]
    return [*DDP, *script]


def small_job(*words: object) -> list[str]:
    launcher = [sys.executable, str(ROOT / "tests" / "ground_truth" / "launch_ranks.py"), "--ranks", "{ranks}"]
    return ["--ranks", "2", "--", *launcher, "--", sys.executable, SMALL_DDP, *map(str, words)]


def characterize(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return stashtrace("characterize", "--out", "answer", *SMALL, *words, cwd=folder)


def can_make_namespaces() -> bool:
    from stashtrace.errors import CaptureError
    from stashtrace.lab.characterize.network import Shape, emulated_hosts

    try:
        with emulated_hosts(Shape(10**9)):
            return True
    except CaptureError:
        return False


def on_disk() -> bool:
    """Whether a cold page cache means anything where pytest keeps its files."""
    done = subprocess.run(["stat", "-f", "-c", "%T", "/tmp"], capture_output=True, text=True, check=True)
    return done.stdout.strip() not in ("tmpfs", "ramfs")


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("characterize")
    done = characterize(
        folder,
        "--emulate-network",
        "1gbit",
        "--format",
        "json",
        "--plot",
        "answer/answer.svg",
        "--html",
        "answer/page.html",
        "--",
        *example(folder),
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    for entry in answer["steps"].values():
        if "did not stay in memory" in (entry["why"] or ""):
            pytest.skip(f"this machine drops what is in the page cache: {entry['why']}")
    return folder, answer


def test_two_configurations_are_measured_and_compared(tmp_path: Path) -> None:
    """The first two of the five: the other three and what they need are distinguished by the thorough tests below."""
    done = characterize(tmp_path, "--steps", "1,2", "--format", "json", *small_job(1000))
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    ranks = {name: [run["ranks_count"] for run in answer["steps"][name]["runs"]] for name in ("t1_ns", "t2_ns")}
    assert ranks == {"t1_ns": [1], "t2_ns": [2]}
    for number in ("1", "2"):
        entry = answer["steps"][f"t{number}_ns"]
        assert entry["status"] == "measured", entry["why"]
        assert entry["value_ns"] > 0
        assert sum(answer["attribution"][number].values()) == pytest.approx(1.0, abs=0.01)
    assert answer["steps"]["t5_ns"]["status"] == "skipped"
    assert set(answer["stalls"]) == {"interconnect"}
    found = [tmp_path / "answer", *(tmp_path / "answer").rglob("*")]
    rights = {path: oct(path.stat().st_mode & 0o777) for path in found}
    assert rights == {path: "0o700" if path.is_dir() else "0o600" for path in found}


@pytest.mark.thorough
def test_every_step_that_this_machine_can_do_is_measured(answered: tuple[Path, dict[str, Any]]) -> None:
    _, answer = answered
    steps = answer["steps"]
    can = {1, 2, 4} | ({3} if on_disk() else set()) | ({5} if can_make_namespaces() else set())
    for number in range(1, 6):
        entry = steps[f"t{number}_ns"]
        if number in can:
            assert entry["status"] == "measured", entry["why"]
            assert entry["value_ns"] > 0
            assert sum(answer["attribution"][str(number)].values()) == pytest.approx(1.0, abs=0.01)
        else:
            assert entry["status"] == "not measured"
            assert entry["why"]
    ranks = {number: steps[f"t{number}_ns"]["runs"][0]["ranks_count"] for number in can}
    assert ranks == {number: 1 if number == 1 else 2 for number in can}
    assert {"interconnect", "prep"} <= set(answer["stalls"])
    assert answer["emulated"]
    assert answer["gradients"]["messages_count"] >= 1
    assert (answer["batch_samples"], answer["epoch_samples"]) == (4, 360), "a tenth of 400 images is for validation"


@pytest.mark.thorough
def test_synthetic_steps_prepare_no_data(answered: tuple[Path, dict[str, Any]]) -> None:
    _, answer = answered
    for number in ("1", "2"):
        shares = answer["attribution"][number]
        data = {name: shares.get(name, 0) for name in ("fetch", "prep", "handoff")}
        assert data["fetch"] == data["handoff"] == 0, shares
        # On a busy machine the step may lose its processor while it takes a batch that has long been there.
        assert data["prep"] < shares["compute"] / 3, shares


@pytest.mark.thorough
def test_two_hosts_talk_over_the_network(answered: tuple[Path, dict[str, Any]]) -> None:
    _, answer = answered
    if answer["steps"]["t5_ns"]["status"] != "measured":
        pytest.skip(answer["steps"]["t5_ns"]["why"])
    assert answer["network_hosts_count"] == 2
    assert answer["attribution"]["5"].get("network", 0) > 0
    assert answer["attribution"]["2"].get("network", 0) == 0


@pytest.mark.thorough
def test_all_of_it_belongs_to_the_user_alone(answered: tuple[Path, dict[str, Any]]) -> None:
    found = [answered[0] / "answer", *(answered[0] / "answer").rglob("*")]
    assert len(found) > 20
    rights = {path: oct(path.stat().st_mode & 0o777) for path in found}
    assert rights == {path: "0o700" if path.is_dir() else "0o600" for path in found}


@pytest.mark.thorough
def test_the_same_again_repeats_no_run(answered: tuple[Path, dict[str, Any]]) -> None:
    folder, answer = answered
    before = {path: path.stat().st_mtime_ns for path in (folder / "answer/runs").glob("*/run.json")}
    assert answer["instance"] == ""
    done = characterize(folder, "--emulate-network", "1gbit", "--instance", "desk", "--", *example(folder))
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in (folder / "answer/runs").glob("*/run.json")} == before
    assert "five configurations of a job on 2 CPU ranks" in done.stdout
    assert "samples: 4 a rank and step, 360 an epoch of all ranks" in done.stdout
    again = json.loads((folder / "answer/characterization.json").read_text())
    assert again["steps"]["t2_ns"]["runs"] == answer["steps"]["t2_ns"]["runs"]
    assert (again["instance"], again["batch_samples"]) == ("desk", 4), "what is not measured may be said later"


@pytest.mark.thorough
def test_a_picture_is_drawn(answered: tuple[Path, dict[str, Any]]) -> None:
    assert "<svg" in (answered[0] / "answer/answer.svg").read_text()


@pytest.mark.thorough
def test_another_command_does_not_mix_with_it(answered: tuple[Path, dict[str, Any]]) -> None:
    done = characterize(answered[0], *small_job(50))
    assert done.returncode == 2
    assert "another characterization (command" in done.stderr


@pytest.mark.thorough
def test_a_job_that_fails_as_it_is(tmp_path: Path) -> None:
    done = characterize(tmp_path, *small_job("no number"))
    assert done.returncode != 0
    assert "the job does not run as it is" in done.stderr
    assert "ValueError" in done.stderr
    assert "look.log" in done.stderr


@pytest.mark.thorough
def test_a_job_with_too_few_steps(tmp_path: Path) -> None:
    done = characterize(tmp_path, "--steps", "1,2", *small_job(6))
    assert done.returncode != 0
    assert "only 6 training steps were seen" in done.stderr
    assert "give the job more to do" in done.stderr
    assert "look.log" in done.stderr


@pytest.mark.thorough
def test_a_command_that_starts_its_ranks_itself(tmp_path: Path) -> None:
    words = shlex.join(command_of_ranks(2, SMALL_DDP, "1000"))
    done = characterize(tmp_path, "--steps", "1,2", "--", "sh", "-c", words)
    assert done.returncode == 3
    assert "the command started 2 ranks where 1 was asked for" in done.stderr
    assert "hint: put {ranks} where the command takes their number" in done.stderr
    assert "--ranks 2 -- CMD ... {ranks} ..." in done.stderr


@pytest.mark.thorough
def test_a_command_that_does_not_follow_the_rank_count(tmp_path: Path) -> None:
    words = shlex.join(command_of_ranks(2, SMALL_DDP, "1000"))
    done = characterize(
        tmp_path, "--steps", "1,2", "--ranks", "2", "--format", "json", "--", "sh", "-c", f"{words} # {{ranks}}"
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["steps"]["t1_ns"]["status"] == "failed"
    assert "does not follow the rank count" in answer["steps"]["t1_ns"]["why"]
    assert answer["steps"]["t2_ns"]["status"] == "measured"
    assert answer["stalls"] == {}
    assert "configuration 1 failed" in done.stderr
