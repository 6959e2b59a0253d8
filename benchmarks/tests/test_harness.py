"""Results name the commit that they are of, and whether its files were changed."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib
import subprocess
from pathlib import Path

import pytest


def test_a_result_that_was_written_before_is_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1]))
    harness = importlib.import_module("harness")

    def git(*words: str) -> None:
        settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(tmp_path), *settings, *words], check=True, capture_output=True)

    result, source = tmp_path / "benchmarks/results/one.json", tmp_path / "csrc/one.cpp"
    for file in (result, source):
        file.parent.mkdir(parents=True)
        file.write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    commit = harness.commit_of(tmp_path)
    result.write_text("2")
    (tmp_path / "notes.txt").write_text("of nobody's business")
    assert harness.commit_of(tmp_path) == commit
    source.write_text("2")
    assert harness.commit_of(tmp_path) == f"{commit}-dirty"
