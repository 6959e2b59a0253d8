"""Bisection by cause: the right commit of 30, whatever the noise; commits that fail; what is left in the repository."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from made_up_runs import made_up_run

from stashtrace.analysis.compare.gate_verdict import Condition
from stashtrace.analysis.compare.steps_of_run import StepsOfRun
from stashtrace.errors import CaptureError, MissingDataError, UsageError
from stashtrace.lab.bisect.bisect_text import bisect_document, bisect_lines
from stashtrace.lab.bisect.commits import Commit, Repository
from stashtrace.lab.bisect.find_commit import Found, InconclusiveError, find_commit

COMMITS = 30
IDENTITY = {f"GIT_{role}_{what}": "a@b.c" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
#: Number of the commit -> the kinds of its step, ms. Two commits change the noise alone.
QUIET, PLANTED = {"compute": 40.0, "fetch": 10.0}, {"compute": 40.0, "fetch": 22.0}


def git(folder: Path, *words: str) -> str:
    environment = {**os.environ, **IDENTITY, "GIT_CONFIG_GLOBAL": os.devnull}
    return subprocess.run(
        ["git", "-C", str(folder), *words], env=environment, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A repository whose commits hold their number in ``number``, and their hashes."""
    folder = tmp_path_factory.mktemp("a repository")
    git(folder, "init", "--quiet")
    for number in range(COMMITS):
        (folder / "number").write_text(str(number))
        git(folder, "add", "number")
        git(folder, "commit", "--quiet", "-m", f"change {number}")
    return folder, git(folder, "rev-list", "--reverse", "HEAD").split()


Bisect = Callable[..., Found]


@pytest.fixture
def bisect(made: tuple[Path, list[str]], tmp_path: Path) -> Iterator[Bisect]:
    """``bisect(run_of, *conditions)``: from the first commit to the last; ``run_of`` makes a run of a number."""
    folder, shas = made
    repository = Repository(folder)
    before = (git(folder, "status", "--porcelain", "--branch"), git(folder, "for-each-ref"))

    def call(run_of: Callable[[int], StepsOfRun], *conditions: str, **options: int) -> Found:
        good, bad = (repository.commit(shas[at], "--good") for at in (0, -1))

        def record(commit: Commit, tree: Path) -> StepsOfRun:
            assert git(tree, "rev-parse", "HEAD").strip() == commit.sha
            return run_of(int((tree / "number").read_text()))

        with repository.worktrees(tmp_path / "trees", good, bad) as (good_tree, tested):
            asked = [Condition.of(text) for text in conditions]
            return find_commit(repository, record, (good, good_tree), (bad, tested), asked, **options)

    yield call
    assert not (tmp_path / "trees").exists()
    assert git(folder, "worktree", "list").count("\n") == 1
    assert (git(folder, "status", "--porcelain", "--branch"), git(folder, "for-each-ref")) == before


def noisy(seed: int, planted: int) -> Callable[[int], StepsOfRun]:
    """Runs of a repository in which the loader is slow from a commit on, and two changes move the step by a percent."""
    random = np.random.default_rng(seed)
    first, second = random.choice(COMMITS - 1, 2, replace=False) + 1

    def run_of(number: int) -> StepsOfRun:
        harmless = 1 + 0.01 * (int(number >= first) - int(number >= second))
        kinds = PLANTED if number >= planted else QUIET
        # Every sixth run meets another program.
        others = 0.9 if random.random() < 1 / 6 else 0.05
        return made_up_run(random, {**kinds, "compute": kinds["compute"] * harmless}, others=others)

    return run_of


def test_the_right_commit_in_20_of_20(bisect: Bisect, capsys: pytest.CaptureFixture[str]) -> None:
    runs = []
    for seed in range(20):
        planted = 1 + (7 * seed) % (COMMITS - 1)
        found = bisect(noisy(seed, planted), *(["fetch+12%"] if seed % 2 else []))
        assert found.first_bad is not None
        assert found.first_bad.subject == f"change {planted}", seed
        assert [str(one.kind) for one in found.conditions] == ["fetch"]
        runs.append(found.runs_count)
    with capsys.disabled():
        print(f"\nruns of 20 bisections of {COMMITS} commits: {min(runs)} to {max(runs)}, mean {np.mean(runs):.0f}")
