"""The commit that a run notes: from the files of the repository, or the variables of continuous integration."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from stashtrace.record.launchers import commit_of

HASH = "0123456789abcdef0123456789abcdef01234567"
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *words: str) -> str:
    own = ("-c", "user.email=a@b", "-c", "user.name=a", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *own, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "a repository"
    folder.mkdir()
    git(folder, "init", "-q", ".")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    return folder


@needs_git
def test_the_head_of_the_repository_around_a_folder(repository: Path) -> None:
    inside = repository / "deep/er"
    inside.mkdir(parents=True)
    assert commit_of(inside, {}) == git(repository, "rev-parse", "HEAD")
    git(repository, "pack-refs", "--all")
    assert commit_of(repository, {}) == git(repository, "rev-parse", "HEAD")
    git(repository, "checkout", "-q", "--detach")
    assert commit_of(repository, {"GITHUB_SHA": HASH}) == git(repository, "rev-parse", "HEAD")


@needs_git
@pytest.mark.parametrize("packed", [False, True])
def test_a_worktree_has_a_separate_head(repository: Path, tmp_path: Path, packed: bool) -> None:
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "other"))
    git(tmp_path / "other", "commit", "-q", "--allow-empty", "-m", "second")
    if packed:
        git(repository, "pack-refs", "--all")
    found = commit_of(tmp_path / "other", {})
    assert found == git(tmp_path / "other", "rev-parse", "HEAD") != commit_of(repository, {})


def test_without_a_repository_the_variables_are_asked(tmp_path: Path) -> None:
    assert commit_of(tmp_path, {"CI_COMMIT_SHA": HASH}) == HASH
    assert commit_of(tmp_path, {"GITHUB_SHA": "main; rm -rf /"}) == ""


@pytest.mark.parametrize("content", ["gitdir: nowhere", "secret", ""])
def test_what_is_no_repository_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / ".git").write_text(content)
    assert commit_of(tmp_path, {}) == ""


def test_a_head_that_is_no_commit_is_not_recorded(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/HEAD").write_text("ref: ../../etc/hostname\n")
    assert commit_of(tmp_path, {}) == ""
