"""The exception that ends a process: recorded once, without secrets, and what the job prints stays as it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from installed import needs_torch
from traced import EAGER_JOBS, PYTHON, ROOT, run_traced

import stashtrace
from stashtrace.analysis.registry import analyze
from stashtrace.probes import exceptions
from stashtrace.record.environment import copy_guest_part

pytestmark = pytest.mark.torch
needs_torch()


def caught(text: str, kind: type[Exception] = ValueError) -> Exception:
    try:
        raise kind(text)
    except kind as error:
        return error


def test_type_message_and_place() -> None:
    reported = exceptions.describe(caught("bad batch 7"))
    assert reported.startswith("ValueError: bad batch 7 (in caught, ")
    assert "test_exceptions.py:" in reported


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("first\nsecond", "ValueError: first"),
        ("", "ValueError"),
        ("======\ntrain.py FAILED\n------", "ValueError: train.py FAILED"),
        ("refused, password=hunter22", "ValueError: refused, password=<scrubbed>"),
        (
            "401; sent Authorization: Bearer X1secret and hf_X1secretX1secretabcd and Basic dTpYMXNlY3JldA==",
            "ValueError: 401; sent Authorization: <scrubbed> and <scrubbed> and Basic <scrubbed>",
        ),
        ("GET https://me:pw@host/a?sig=1", "ValueError: GET https://host/a"),
        ("[/pytorch/gloo/pair.cc:537] Read error", "ValueError: Read error"),
        (
            "Caught KeyError in DataLoader worker process 0.\nOriginal Traceback:\nKeyError: 5",
            "ValueError: Caught KeyError in DataLoader worker process 0: KeyError: 5",
        ),
    ],
)
def test_messages(text: str, reported: str) -> None:
    assert exceptions.describe(caught(text)).partition(" (in ")[0] == reported


def test_a_long_message_is_cut() -> None:
    assert len(exceptions.describe(caught("x" * 100_000))) <= 320


def test_a_message_that_cannot_be_made_is_none() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert exceptions.describe(Broken()).endswith("Broken")


RAISES = """
    import torch
    torch.nn.Linear(2, 2)(torch.ones(2, 2))
    def step():
        raise ValueError("bad batch 7, token=abcdef123")
    step()
"""
SPAWNED = """
    import torch
    import torch.multiprocessing as mp
    def rank(index):
        torch.nn.Linear(2, 2)(torch.ones(2, 2))
        if index == 1:
            raise KeyError("left")
    if __name__ == "__main__":
        try:
            mp.spawn(rank, nprocs=2)
        except mp.ProcessRaisedException:
            print("raised")
"""


def test_in_a_container_without_the_package(tmp_path: Path) -> None:
    """What ``stashtrace env --into`` copies holds the rules about secrets."""
    copy_guest_part(tmp_path)
    code = "from stashtrace.probes import exceptions; print(exceptions.describe(ValueError('password=hunter22')))"
    done = subprocess.run([PYTHON, "-c", code], cwd=tmp_path, env={}, capture_output=True, text=True, timeout=240)
    assert (done.stdout, done.stderr) == ("ValueError: password=<scrubbed>\n", "")


def test_of_a_script(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text("\n".join(line[4:] for line in RAISES.splitlines()), encoding="utf-8")
    variables = {"PYTHONPATH": f"{EAGER_JOBS}:{ROOT}", "PATH": ""}
    bare = subprocess.run([PYTHON, str(script)], capture_output=True, text=True, timeout=240, env=variables)
    command = [sys.executable, "-m", "stashtrace", "run", "--out", str(tmp_path / "run"), "--", PYTHON]
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, timeout=240, env=variables)
    assert done.returncode == bare.returncode == 1
    assert done.stdout == bare.stdout
    assert bare.stderr in done.stderr, "the traceback is printed as without the recorder, with no line of ours in it"
    (row,) = analyze(stashtrace.load(tmp_path / "run"), "endings").rows()
    assert row["exception"].startswith("ValueError: bad batch 7, token=<scrubbed> (in step, ")
    assert row["exception"].endswith("job.py:5)")


HANDLED = """
    import multiprocessing
    def works():
        pass
    context = multiprocessing.get_context("fork")
    try:
        next(iter([]))
    except StopIteration:
        child = context.Process(target=works)
        child.start()
        child.join()
        print(child.exitcode)
"""


def test_what_is_handled_when_a_child_begins_is_no_end_of_it(tmp_path: Path) -> None:
    """As a loader that forks its workers again where an epoch is over."""
    run = run_traced(HANDLED, tmp_path / "job")
    assert run.stdout == ["0\n"]
    assert [row for row in analyze(run.trace, "endings").rows() if row["exception"]] == []


@pytest.mark.thorough
def test_of_a_child_of_multiprocessing(tmp_path: Path) -> None:
    run = run_traced(SPAWNED, tmp_path / "job")
    assert run.stdout == ["raised\n"]
    rows = [row for row in analyze(run.trace, "endings").rows() if row["exception"]]
    assert [row["exception"].partition(" (in ")[0] for row in rows] == ["KeyError: 'left'"]
