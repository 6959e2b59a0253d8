"""Sentences about late ranks: what they claim is in the row."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
from builders import MS, TraceBuilder

from stashtrace.analysis.registry import analyze
from stashtrace.analysis.stragglers.causes import CAUSES
from stashtrace.analysis.stragglers.late import LATE
from stashtrace.report.wait_text import wait_text

ROW: dict[str, Any] = {
    "waiting_ranks": "0-2,4-7",
    "op": "all_reduce",
    "sequence": 4182,
    "late_rank": 3,
    "wait_ns": 38 * MS,
    "method": "clock",
    "cause_kind": "fetch",
    "cause_ns": 38 * MS,
    "cause_worker_id": 5,
    "cause_name": "/data/shard-0117",
    "named_ns": 41 * MS,
}


def sentence(row: dict[str, Any]) -> str:
    """A row of ``late`` in words."""
    return wait_text({c.name: "" if c.dtype.startswith("U") else -1 for c in LATE.columns} | row)


def test_the_worker_and_the_file() -> None:
    assert sentence(ROW) == (
        "ranks 0-2,4-7 waited up to 38.0 ms in all-reduce 4182; rank 3 was late:"
        " its worker 5 spent 41.0 ms reading shard-0117"
    )


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"named_ns": 19 * MS}, "its worker 5 spent 19.0 ms reading shard-0117 (50 % of the longest of these waits)"),
        ({"named_ns": 37 * MS}, "its worker 5 spent 37.0 ms reading shard-0117"),
        (
            {"waiting_ranks": "2", "cause_kind": "sleep", "cause_ns": 29 * MS, "cause_name": ""},
            "it slept 29.0 ms longer (76 % of that wait)",
        ),
        (
            {
                "waiting_ranks": "2",
                "cause_kind": "compute",
                "cause_ns": 29 * MS,
                "cause_name": "k",
                "named_ns": 20 * MS,
            },
            "it computed 29.0 ms longer (76 % of that wait), 20.0 ms of that in k",
        ),
    ],
)
def test_a_reason_that_is_shorter_than_the_wait_is_said_to_be_a_part_of_it(row: dict[str, Any], said: str) -> None:
    assert sentence(ROW | row).endswith(f"rank 3 was late: {said}")


def test_a_list_of_ranks_too_long_to_read_is_cut() -> None:
    every_other = ",".join(map(str, range(0, 1024, 2)))
    assert "ranks 0, 2, 4 … 1022 waited up to" in sentence(ROW | {"waiting_ranks": every_other})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"cause_kind": "unknown"}, "rank 3 was late; the recording does not show why"),
        ({"late_by_ns": 2 * MS}, "rank 3 was late: several kinds of its time differ from those of the others"),
        (
            {"cause_kind": "compute", "cause_name": "gemm", "named_ns": 38 * MS},
            "rank 3 was late: it computed 38.0 ms longer than the median of the others in gemm",
        ),
        (
            {"cause_kind": "compute", "cause_name": "between phases", "named_ns": 20 * MS},
            "it computed 38.0 ms longer than the median of the others, 20.0 ms of that outside forward, backward and",
        ),
        (
            {"cause_kind": "checkpoint", "cause_name": "/out/model.pt", "cause_worker_id": -1},
            "it was 38.0 ms longer than the median of the others in checkpoints (model.pt)",
        ),
        (
            {"cause_kind": "straggler", "cause_name": "rank 9", "cause_worker_id": -1},
            "it waited 38.0 ms longer than the median of the others for rank 9 in another group",
        ),
        (
            {"cause_kind": "other", "cause_name": ""},
            "it was blocked 38.0 ms longer than the median of the others with no known cause",
        ),
        (
            {"cause_kind": "other", "cause_name": "gil"},
            "it was blocked 38.0 ms longer than the median of the others waiting for the GIL, which another thread"
            " holds",
        ),
        ({"late_rank": -1, "cause_kind": "unknown"}, "the clocks do not show for whom"),
        (
            {"method": "hung", "waiting_ranks": "2", "cause_kind": "unknown"},
            "rank 2 hangs in all-reduce 4182, which rank 3 never entered",
        ),
    ],
)
def test_other_causes(change: dict[str, Any], expected: str) -> None:
    assert expected in sentence(ROW | change)


@pytest.mark.parametrize("kind", CAUSES)
def test_every_cause_has_words(kind: str) -> None:
    told = sentence(ROW | {"cause_kind": kind, "cause_name": ""})
    assert "38.0 ms" in told.partition("late: ")[2]


def test_rows_of_the_analysis_fit() -> None:
    build = TraceBuilder()
    build.collective({0: (0, 10 * MS), 1: (9 * MS, 10 * MS)})
    (row,) = analyze(build.trace(), "late").rows()
    assert wait_text(row) == "rank 0 waited 9.00 ms in all-reduce 0; rank 1 was late; the recording does not show why"
