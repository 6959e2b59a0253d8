"""Commands on the pages for users are typed as they stand there; what the pages show is what comes out."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import ROOT, Answer, environment
from corpus import corpus

Run = Callable[..., Answer]
#: Begin of a command that makes up a run.
MAKES = "$ python -m stashtrace.cli.synth "


def shown(page: str) -> list[tuple[str, list[str]]]:
    """(words, lines shown below it) of each command of ours in the blocks of a page."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            if line.startswith(("$ stashtrace ", MAKES)):
                found.append((line.removeprefix("$ stashtrace ").partition("   #")[0], []))
            elif found and block.startswith("$ "):
                found[-1][1].append(line.rstrip())
    return found


def settled(line: str) -> str:
    """A line without what differs between versions of pyarrow: how small a store is."""
    return re.sub(r"^(wrote .* )\([\d.]+ [KMG]?B\)$", r"\1(SIZE)", line.rstrip())


def made(words: str, cwd: Path) -> Answer:
    """Make up a run as a page says."""
    command = [sys.executable, "-m", "stashtrace.cli.synth", *shlex.split(words)]
    done = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True)
    return Answer(done.returncode, done.stdout, done.stderr)


def check(run: Run, page: str, cwd: Path) -> None:
    """Every line shown comes out, in this order; ``...`` and the end of a page's block may leave some out."""
    commands = shown(page)
    assert commands
    # What is made further down a page is used further up.
    for command, lines in sorted(commands, key=lambda reported: not reported[0].startswith(MAKES)):
        if command.startswith(MAKES):
            answer = made(command.removeprefix(MAKES), cwd)
        else:
            answer = run(*shlex.split(command), cwd=cwd)
        assert answer.code == 0, (command, answer.err)
        out = iter([settled(line) for line in (answer.out + answer.err).splitlines()])
        for line in lines:
            assert line in ("...", "") or settled(line) in out, f"{page}: `{command}` prints no (further) line {line!r}"


def test_guide_on_imports(run: Run, tmp_path: Path) -> None:
    (tmp_path / "dlrm").mkdir()
    for path in corpus("kineto/dlrm8_v100").glob("rank*"):
        os.symlink(path, tmp_path / "dlrm" / path.name)
    check(run, "guides/import.md", tmp_path)


@pytest.mark.thorough
def test_guide_on_many_ranks(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="stores are Parquet files")
    pytest.importorskip("dask", reason="ranks are shared out by Dask")
    check(run, "guides/many-ranks.md", tmp_path)


def test_guide_on_simulators(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf", reason="traces of Chakra are messages of protobuf")
    check(run, "guides/chakra.md", tmp_path)


def test_guide_on_overlap(run: Run, tmp_path: Path) -> None:
    check(run, "guides/overlap.md", tmp_path)
