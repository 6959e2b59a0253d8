"""Device times do not depend on which of the driver's calls need a current context: cuda.h leaves some open.

The double reads each call in both ways (tests/fakes/cuda_objects.h). The harvester has no context of its own, and a
thread of the job has none before the runtime's first call on it returns.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from device import calls, run_ranks
from traced import TracedRun

READINGS = list(itertools.product(["needed", "free"], repeat=3))
PROGRAM = """
copy h2d 1MB stream=1; kernel 1ms stream=1; wait stream=0 for=1; sync stream=1; step
copy d2h 1MB stream=2 pinned; sync device; step
"""
#: Each thread's first call of CUDA is one with brackets of ours; a stream that the job made is used.
FIRST_CALLS = "copy h2d 1KB stream=1; sync stream=1; repeat 60 { thread { copy h2d 64KB stream=1 } }; sync stream=1"


def script(elapsed: str, record: str, query: str) -> str:
    return f"""
context.cuEventElapsedTime {elapsed}
context.cuEventRecord {record}
context.cuEventQuery {query}
"""


def brackets(run: TracedRun) -> list[dict[str, Any]]:
    return list(run.trace.device_brackets.rows())


def reasons(run: TracedRun) -> set[str]:
    trace = run.trace
    return {trace.text(row["name_code"]) for row in trace.losses.rows()}


@pytest.mark.parametrize(("elapsed", "record", "query"), READINGS)
def test_every_bracket_is_timed(tmp_path: Path, elapsed: str, record: str, query: str) -> None:
    run = run_ranks(1, PROGRAM, tmp_path, script(elapsed, record, query), collectors=("cuda",))
    assert run.results()[0]["errors"] == {}
    rows = brackets(run)
    assert len(rows) >= 4
    assert [row for row in rows if row["end_ns"] < row["begin_ns"] or row["begin_ns"] <= 0] == []
    assert "events_failed" not in reasons(run)


@pytest.mark.parametrize("reading", ["needed", "free"])
@pytest.mark.parametrize("capturing", ["needed", "free"])
def test_first_calls_of_threads_are_timed_and_lose_no_events(tmp_path: Path, reading: str, capturing: str) -> None:
    text = script(reading, reading, reading) + f"context.cuStreamIsCapturing {capturing}\n"
    text += f"context.cuStreamGetId {capturing}\n"
    run = run_ranks(1, FIRST_CALLS, tmp_path, text, collectors=("cuda",))
    assert run.results()[0]["errors"] == {}
    rows = brackets(run)
    assert len(rows) == 61
    assert [row["bracket_flags"] for row in rows if row["end_ns"] < row["begin_ns"] or row["begin_ns"] <= 0] == []
    assert reasons(run) & {"events_failed", "driver_errors"} == set()
    assert calls(tmp_path, "cuda")["cuEventRecord"] >= 2 * len(rows)
