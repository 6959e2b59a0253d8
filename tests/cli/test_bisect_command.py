"""``stashtrace bisect`` from the command line: its answer, bad input, and what an interrupt leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import environment

from stashtrace.cli import main
from stashtrace.errors import CaptureError
from stashtrace.lab.alternating import Job
from stashtrace.lab.synth import SyntheticJob, write

IDENTITY = {f"GIT_{role}_{what}": "a@b.c" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
COMMITS, PLANTED, BROKEN = 8, 5, 3


def git(folder: Path, *words: str) -> str:
    settings = {**os.environ, **IDENTITY, "GIT_CONFIG_GLOBAL": os.devnull}
    return subprocess.run(
        ["git", "-C", str(folder), *words], env=settings, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commits ``v0`` to ``v7`` of a job in the folder ``train``, in which the test stands."""
    folder = tmp_path / "a repository"
    (folder / "train").mkdir(parents=True)
    git(folder, "init", "--quiet")
    for number in range(COMMITS):
        (folder / "train/number").write_text(str(number))
        git(folder, "add", "train")
        git(folder, "commit", "--quiet", "-m", f"change {number}")
        git(folder, "tag", f"v{number}")
    monkeypatch.chdir(folder / "train")
    return folder


@pytest.fixture
def bisect(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """``bisect(*words)``, with made-up runs of the commits in place of real ones: exit code, stdout, stderr."""
    count = [0]

    def record(job: Job, directory: Path) -> Path:
        count[0] += 1
        number = int((job.folder / "number").read_text())
        if number == BROKEN:
            raise CaptureError(f"{directory.name} ended with exit code 1: change {number} is broken")
        assert job.options == ("--until-step", "70")
        assert (job.folder / "data").resolve() == repository / "train/data"
        assert (job.folder / "built").exists()
        slow = {"transfer_ns": 40_000_000} if number >= PLANTED else {}
        spread = {"spread_ratio": 0.03, "run_spread_ratio": 0.007}
        write(directory, SyntheticJob(ranks=2, workers=1, steps=70, calls_per_batch=0, seed=count[0], **spread, **slow))
        return directory

    monkeypatch.setattr("stashtrace.lab.bisect.commits.record_job", record)
    (repository / "train/data").mkdir()

    def call(*words: object) -> tuple[int, str, str]:
        code = main(["bisect", *map(str, words)])
        answer = capsys.readouterr()
        return code, answer.out, answer.err

    return call


RANGE = ("--good", "v0", "--bad", "v7", "--until-step", 70, "--link", "data", "--build", "touch built")


def test_the_commit_is_named_with_its_evidence(bisect: Callable[..., tuple[int, str, str]], repository: Path) -> None:
    code, out, err = bisect(*RANGE, "-o", "runs", "--", "true")
    assert code == 0, err
    sha = git(repository, "rev-parse", f"v{PLANTED}").strip()
    lines = out.splitlines()
    assert lines[0] == f"FIRST BAD COMMIT: {sha[:10]} change {PLANTED}"
    assert "link: in-host per step went from 9." in out
    assert f"change {BROKEN} is broken" in err
    assert all(len(line) <= 120 for line in lines)
    assert sorted(path.name for path in Path("runs").iterdir() if path.is_dir())[0].endswith("-0")
    assert not Path("runs/worktrees").exists()
    assert git(repository, "worktree", "list").count("\n") == 1
    assert git(repository, "for-each-ref", "refs/bisect") == ""


def test_the_answer_for_programs(bisect: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = bisect(*RANGE, "--fail-if", "interconnect+10%", "--format", "json", "--", "true")
    document = json.loads(out)
    assert (code, document["first_bad"]["subject"]) == (0, f"change {PLANTED}")
    assert (document["conditions"], document["conditions_chosen"]) == (["interconnect+10%"], False)
    assert {one["mark"] for one in document["judged"]} == {"good", "bad", "skip"}
    assert document["runs_count"] == sum(one["runs_count"] for one in document["judged"])


def require_nothing_left(repository: Path) -> None:
    assert git(repository, "worktree", "list").count("\n") == 1
    assert git(repository, "for-each-ref", "refs/bisect") == ""
    assert git(repository, "status", "--porcelain", "--untracked-files=no") == ""


def test_commits_that_do_not_build(bisect: Callable[..., tuple[int, str, str]], repository: Path) -> None:
    """Between the good commit and the bad one none builds, so it may be any of them."""
    builds = ["grep -qx '[07]' number && touch built" if word == "touch built" else word for word in RANGE]
    code, out, err = bisect(*builds, "--", "true")
    assert code == 5, err
    assert out.startswith("INCONCLUSIVE")
    assert out.count("--build ended with exit code 1: it printed nothing") == 6 or err.count("--build ended") == 6
    require_nothing_left(repository)


def test_a_build_that_fails(bisect: Callable[..., tuple[int, str, str]], repository: Path) -> None:
    words = [word if word != "touch built" else "echo no compiler; exit 2" for word in RANGE]
    code, _, err = bisect(*words, "--", "true")
    assert code == 3
    assert "error: the good commit" in err
    assert "--build ended with exit code 2: no compiler" in err
    require_nothing_left(repository)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--good", "v7", "--bad", "v0", "--", "true"), 2, "does not follow"),
        (("--good", "v7", "--bad", "v7", "--", "true"), 2, "--good and --bad are one commit"),
        (("--good", "gone", "--bad", "v7", "--", "true"), 2, "--good gone: no such commit"),
        (("--good", "v0", "--bad=--all", "--", "true"), 2, "--bad --all: no such commit"),
        (("--good", "v0", "--bad", "v7", "-o", "number/x", "--", "true"), 3, "cannot make number/x: Not a directory"),
        (("--good", "v0", "--bad", "v7"), 2, "no command to run"),
        (("--good", "v0", "--bad", "v7", "--", "no-such-command"), 2, "command not found: no-such-command"),
        (("--good", "v0", "--bad", "v7", "--link", "../x", "--", "true"), 2, "--link ../x: no such path below"),
        (("--good", "v0", "--bad", "v7", "--fail-if", "loader+5%", "--", "true"), 2, "unknown kind 'loader'"),
        (("--good", "v0", "--bad", "v7", "--link", "gone", "--", "true"), 2, "--link gone: no such path below"),
        (("--good", "v0", "--bad", "v2", *RANGE[4:], "--", "true"), 4, "not worse"),
        (("--good", "v0", "--bad", f"v{BROKEN}", *RANGE[4:], "--", "true"), 3, "error: the bad commit "),
    ],
)
def test_bad_input(
    bisect: Callable[..., tuple[int, str, str]],
    repository: Path,
    words: tuple[object, ...],
    code: int,
    text: str,
) -> None:
    found, out, err = bisect(*words)
    assert (found, out) == (code, "")
    assert text in err
    assert err.count("error: ") == 1
    assert "hint: " in err
    require_nothing_left(repository)


def test_a_folder_without_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bisect", "--good", "a", "--bad", "b", "--", "true"]) == 2
    assert "is not in a git repository" in capsys.readouterr().err


def test_changes_that_are_not_committed(bisect: Callable[..., tuple[int, str, str]], repository: Path) -> None:
    (repository / "train/number").write_text("changed")
    (repository / "train/untracked").touch()
    code, _, err = bisect(*RANGE, "--", "true")
    assert code == 2
    assert "1 file changed since the last commit: train/number" in err
    assert bisect(*RANGE, "--ignore-changes", "--fail-if", "interconnect+10%", "--", "true")[0] == 0
    assert (repository / "train/number").read_text() == "changed"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupt_leaves_nothing(repository: Path, number: signal.Signals) -> None:
    """SIGTERM goes to the command alone; SIGINT to its group, as a terminal sends it."""
    job = "import os, time; open('../../../pid', 'w').write(str(os.getpid())); time.sleep(60)"
    words = ["bisect", "--good", "v0", "--bad", "v7", "-o", "runs", "--", sys.executable, "-c", job]
    process = subprocess.Popen(
        [sys.executable, "-m", "stashtrace", *words],
        env=environment(),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    file = Path("runs/pid")
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    pid = int(file.read_text())
    assert git(repository, "worktree", "list").count("\n") == 3
    if number == signal.SIGTERM:
        process.terminate()
    else:
        os.killpg(process.pid, number)
    assert process.wait(60) in (130, 143)
    assert not Path(f"/proc/{pid}").exists()
    assert not Path("runs/worktrees").exists()
    assert git(repository, "worktree", "list").count("\n") == 1
    assert git(repository, "status", "--porcelain", "--untracked-files=no") == ""
