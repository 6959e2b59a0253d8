"""What is said of a run of a characterisation that failed."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from stashtrace.experiments.step_runs import last_words

LAUNCHER = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
  exitcode  : 2 (pid: 28846)
============================================================
stashtrace: the command ended with exit code 1
"""


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("python: can't open file 'no.py': [Errno 2]\n" + LAUNCHER, "python: can't open file 'no.py': [Errno 2]"),
        ("  File 'a.py', line 1\nValueError: odd\n" + LAUNCHER, "ValueError: odd"),
        ("it went wrong\n====\n\nstashtrace: not merged\n", "it went wrong"),
        ("", ""),
    ],
)
def test_the_line_that_tells_most(tmp_path: Path, log: str, expected: str) -> None:
    path = tmp_path / "step1-0.log"
    path.write_text(log)
    assert last_words(path) == expected


def test_without_a_log(tmp_path: Path) -> None:
    assert last_words(tmp_path / "none.log") == ""
