"""Bisection by cause: the right commit of 30, whatever the noise; commits that fail; what is left in the repository."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up_runs import MS, made_up_run

from stashtrace.analysis.compare.function_times import (
    ALL_RANKS,
    IN_STEP,
    FunctionGroup,
    FunctionsOfRun,
    FunctionTime,
    LineTime,
)
from stashtrace.analysis.compare.gate_verdict import Condition
from stashtrace.analysis.compare.steps_of_run import StepsOfRun
from stashtrace.errors import CaptureError, UsageError
from stashtrace.lab.bisect.commits import Commit, Repository
from stashtrace.lab.bisect.find_commit import Found, InconclusiveError, bisect_blocks, bisect_document, find_commit
from stashtrace.report.blocks import text_lines

COMMITS, PLANTED_AT = 30, 17
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


@pytest.mark.parametrize("count", [4, pytest.param(20, marks=pytest.mark.thorough)])
def test_the_right_commit_each_time(bisect: Bisect, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    runs = []
    for seed in range(count):
        planted = 1 + (7 * seed) % (COMMITS - 1)
        found = bisect(noisy(seed, planted), *(["fetch+12%"] if seed % 2 else []))
        assert found.first_bad.subject == f"change {planted}", seed
        assert [str(one.kind) for one in found.conditions] == ["fetch"]
        runs.append(found.runs_count)
    with capsys.disabled():
        print(
            f"\nruns of {count} bisections of {COMMITS} commits: {min(runs)} to {max(runs)}, mean {np.mean(runs):.0f}"
        )


def exact(planted: int, kind: str = "fetch") -> Callable[[int], StepsOfRun]:
    random = np.random.default_rng(planted)

    def run_of(number: int) -> StepsOfRun:
        return made_up_run(random, {**QUIET, kind: 60.0} if number >= planted else QUIET)

    return run_of


def test_another_kind_that_grows_is_no_reason(bisect: Bisect) -> None:
    """The step grew at change 5 by its compute, at change 20 by its loader."""
    random = np.random.default_rng(0)

    def run_of(number: int) -> StepsOfRun:
        return made_up_run(random, {"compute": 60.0 if number >= 5 else 40.0, "fetch": 22.0 if number >= 20 else 10.0})

    for condition, first in (("fetch+12%", 20), ("compute+12%", 5)):
        found = bisect(run_of, condition)
        assert found.first_bad.subject == f"change {first}"


def test_commits_that_do_not_run_are_skipped(bisect: Bisect) -> None:
    run = exact(17)

    def run_of(number: int) -> StepsOfRun:
        if number in (14, 15, 18):
            raise CaptureError(f"--build ended with exit code 2: change {number} is broken")
        return run(number)

    found = bisect(run_of, "fetch+12%")
    assert found.first_bad.subject == "change 17"
    skipped = [one for one in found.judged if one.mark == "skip"]
    assert skipped
    assert all("it does not run: --build ended with exit code 2" in one.why for one in skipped)


def test_only_skipped_commits_are_left(bisect: Bisect) -> None:
    run = exact(17)

    def run_of(number: int) -> StepsOfRun:
        if number in (15, 16, 17):
            raise CaptureError("broken")
        return run(number)

    found = bisect(run_of, "fetch+12%")
    assert found.first_bad is None
    assert {commit.subject for commit in found.left} == {f"change {number}" for number in (15, 16, 17, 18)}
    assert text_lines(bisect_blocks(found, 29))[0] == "INCONCLUSIVE: 4 commits do not clearly differ"
    assert bisect_document(found, 29)["first_bad"] is None


def test_a_commit_of_other_ranks_is_not_compared(bisect: Bisect) -> None:
    random, run = np.random.default_rng(1), exact(10)

    def run_of(number: int) -> StepsOfRun:
        return made_up_run(random, QUIET, ranks=2) if number == 14 else run(number)

    found = bisect(run_of, "fetch+12%")
    assert found.first_bad.subject == "change 10"
    assert [one.why for one in found.judged if one.mark == "skip"] == [
        "not comparable: the jobs differ in ranks (1 -> 2)"
    ]


def test_a_machine_that_is_always_disturbed_in_turns(bisect: Bisect) -> None:
    """Each second run meets another program, so that no round is undisturbed: nothing is judged by such runs."""
    random, count = np.random.default_rng(1), [0]

    def run_of(number: int) -> StepsOfRun:
        count[0] += 1
        return made_up_run(random, QUIET, others=0.9 if count[0] % 2 else 0.05)

    with pytest.raises(InconclusiveError, match="other work disturbed 12 of 24 runs") as caught:
        bisect(run_of, "step+5%")
    assert caught.value.exit_code == 5


def test_the_answer(bisect: Bisect) -> None:
    found = bisect(exact(17))
    lines = text_lines(bisect_blocks(found, 29))
    assert lines[0].startswith("FIRST BAD COMMIT: ")
    assert lines[0].endswith(" change 17")
    assert "half of its growth from the good commit to the bad one" in " ".join(line.strip() for line in lines)
    assert any(line.strip().startswith("worse beyond doubt: data: storage per step went from ") for line in lines)
    assert lines[-1] == f"{found.runs_count} runs for 29 commits"
    document = bisect_document(found, 29)
    assert document["first_bad"]["subject"] == "change 17"
    assert [one["mark"] for one in document["judged"]] == [one.mark for one in (found.ends, *found.judged)]
    assert document["runs_count"] == sum(one["runs_count"] for one in document["judged"])


def test_hand_off_that_waited_for_cpus_is_not_what_is_searched_for(bisect: Bisect) -> None:
    """The bad commit starts threads that keep the CPUs busy: ready batches wait for one, and then the step counts."""
    made_up = exact(PLANTED_AT, "handoff")

    def run_of(waits_ms: float) -> Callable[[int], StepsOfRun]:
        def of_commit(number: int) -> StepsOfRun:
            run = made_up(number)
            assert run.cpus is not None
            return replace(run, cpus=replace(run.cpus, wait_ns=(waits_ms if number >= PLANTED_AT else 1) * MS))

        return of_commit

    found = bisect(run_of(46.0))
    assert [one.kind for one in found.conditions] == ["step"]
    assert found.first_bad.subject == f"change {PLANTED_AT}"
    said = " ".join(line.strip() for line in text_lines(bisect_blocks(found, COMMITS - 1)))
    assert re.search(
        r"data: hand-off grew by [56]\d\.\d ms a step, and waits for a CPU by 45.0 ms: ready batches waited for a CPU",
        said,
    )
    found = bisect(run_of(20.0))
    assert [one.kind for one in found.conditions] == ["handoff"]
    assert "waited for a CPU" not in " ".join(text_lines(bisect_blocks(found, COMMITS - 1)))


# What git refuses --------------------------------------------------------------------------------


def test_the_function_that_the_commit_made_slower_is_named(bisect: Bisect) -> None:
    made_up = exact(PLANTED_AT)

    def run_of(number: int) -> StepsOfRun:
        run, decode_ms = made_up(number), 60.0 if number >= PLANTED_AT else 10.0
        # Each commit moves the function down a line.
        line = LineTime(10 + number, "", decode_ms * MS)
        decode = FunctionTime("decode", f"/tree/{number}/data.py", decode_ms * MS, 0.05 * MS, 50.0, (line,))
        fetch = FunctionGroup(IN_STEP, "fetch", ALL_RANKS, 0.0, 0.01 * MS, 50.0, (decode,))
        return replace(run, functions=FunctionsOfRun((fetch,), {IN_STEP: 50.0 * MS}))

    found = bisect(run_of)
    (sentence,) = (line for line in text_lines(bisect_blocks(found, COMMITS - 1)) if "decode" in line)
    assert re.fullmatch(
        rf"  data: storage \+[45]\d\.\d ms a step: decode \(data.py:{10 + PLANTED_AT}\) \+49.* to 50.* ms", sentence
    )
    evidence = bisect_document(found, COMMITS - 1)["judged"][-1]["gate"]["functions"]
    assert {row["function"] for row in evidence} <= {"decode"}


def test_a_file_that_is_the_same_for_all_commits(made: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, _ = made
    repository = Repository(folder)
    (tmp_path / "other").touch()
    repository.require_files_of_commits(["python", str(tmp_path / "other"), "number"])
    with pytest.raises(UsageError, match="is the same file for every commit"):
        repository.require_files_of_commits(["python", str(folder / "number")])
