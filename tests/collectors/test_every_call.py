"""Every hook of the collectors of devices where its library is not: the caller hears so, and nothing else happens."""

from __future__ import annotations

from pathlib import Path

import pytest
from collectors.recorded import NATIVE, compiled, record
from collectors.test_look_ups import forms

SOURCE = NATIVE.parents[2] / "csrc"


def listed(path: str, macro: str) -> int:
    """How many lines of a table are of this macro."""
    lines = (SOURCE / path).read_text(encoding="utf-8").splitlines()
    return sum(line.strip().startswith(macro + "(") for line in lines)


@pytest.mark.parametrize(
    ("what", "least"),
    [
        ("runtime", listed("collectors/cuda/runtime_calls.def", "CUDART")),
        ("driver", sum(1 + (form.per_thread_since != 0) for form in forms())),  # as it is, and for per-thread streams
        ("nccl", 15),  # those of the oldest NCCL; later ones are hooked by import tables alone
    ],
)
def test_hooks_answer_where_nothing_stands_behind_them(tmp_path: Path, what: str, least: int) -> None:
    command = [compiled("every_call.cpp"), what]
    run = record(command, tmp_path / "run", collectors=("cuda", "nccl"), lookup_hook=what == "driver")
    count, others = (int(word) for word in run.stdout.splitlines()[-1].split() if word.isdecimal())
    assert others == 0, run.stdout
    assert count >= least
    assert run.stderr == ""
