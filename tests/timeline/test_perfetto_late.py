"""Waits for a late rank carry what kept it, read back by the real trace processor."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
import trace_processor
from builders import MS, TraceBuilder
from trace_processor import TraceProcessor

from stashtrace.exporters.registry import export

pytestmark = pytest.mark.skipif(bool(trace_processor.missing()), reason=trace_processor.missing() or "-")


def test_a_wait_says_what_kept_the_late_rank(tmp_path: Path) -> None:
    build = TraceBuilder()
    for rank in range(2):
        slow = 40 * MS * rank
        build.rank(rank).worker(3).fetch(0, 0, 4 * MS + slow).io(
            MS, 3 * MS + slow, path="/data/shard-0117", blocked=True
        )
        build.rank(rank).batch_wait(0, 0, 5 * MS + slow, worker=3)
        build.rank(rank).phase("forward", 5 * MS + slow, 9 * MS + slow).phase("optimizer", 60 * MS, 61 * MS)
    build.collective({0: (9 * MS, 55 * MS), 1: (49 * MS, 55 * MS)})
    result = export(build.trace(), "perfetto", tmp_path / "t.pftrace")
    processor = TraceProcessor.of(result.path)
    assert processor.rows(
        "select slice.name, display_value from args join slice using (arg_set_id) where key = 'debug.late_because'"
    ) == [("wait for rank 1", "data: storage 40.0 ms longer, worker 3, shard-0117")]
