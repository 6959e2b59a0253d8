"""What late says of transfers and of ranks without a record: no loss that only the clocks or other sizes make up."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from builders import MS, TraceBuilder

from stashtrace.analysis.registry import analyze
from stashtrace.report.wait_text import wait_text
from stashtrace.schema.trace import Trace

STEPS, STEP = 24, 100 * MS


@pytest.mark.parametrize("recorded", [2, 3])
def test_clocks_that_are_apart_make_no_excess(recorded: int) -> None:
    """Host b is 5 ms ahead and nobody knows by how much; each transfer takes 1 ms, the ranks are late in turn."""
    build = TraceBuilder(("a", "b"))
    build.group(range(recorded))  # of three, one takes part without a row
    for step in range(STEPS):
        times = {}
        for rank in range(2):
            base = step * STEP + rank * 5 * MS
            call = base + (30 * MS if rank == step % 2 else 10 * MS)
            build.rank(rank).phase("forward", base, call).phase("optimizer", base + 60 * MS, base + 94 * MS)
            times[rank] = call, base + 31 * MS
        build.collective(times)
    code = build.strings.code
    for host, error in (("a", 0), ("b", 10 * MS)):
        build.add(
            "alignment",
            boot_code=code(f"boot-{host}"),
            reference_code=code("boot-a"),
            error_ns=error,
            method_code=code("realtime"),
        )
    found = analyze(build.trace(), "late")
    assert len(found) == STEPS
    assert set(found["method"].tolist()) == {"duration" if recorded == 2 else "partial"}
    assert set(found["expected_ns"].tolist()) == {1 * MS}
    assert set(found["excess_ns"].tolist()) == {0}
    assert set(found["late_by_ns"].tolist()) == {20 * MS}


def sized(sizes: tuple[int, ...]) -> Trace:
    """A link of 1 GB/s in messages of some sizes, one after the other."""
    build = TraceBuilder()
    for step in range(STEPS):
        base, size = step * STEP, sizes[step % len(sizes)]
        for rank in range(2):
            build.rank(rank).phase("forward", base, base + (10 + 10 * rank) * MS)
            build.rank(rank).phase("optimizer", base + 60 * MS, base + 99 * MS)
        end = base + 20 * MS + size
        build.collective({0: (base + 10 * MS, end), 1: (base + 20 * MS, end)}, message_bytes=size)
    return build.trace()


@pytest.mark.parametrize("several", [2, STEPS])
def test_a_larger_message_of_the_same_class_lost_nothing(several: int) -> None:
    found = analyze(sized(tuple(17_000_000 + 600_000 * n for n in range(several))), "late")
    assert set(found["expected_by"].tolist()) == {"run"}
    assert found["excess_ns"].tolist() == [0] * STEPS


def test_who_left_no_record_is_not_said_to_be_missing() -> None:
    build = TraceBuilder()
    build.group(range(4))
    for step in range(2):
        base = step * STEP
        build.rank(0).phase("forward", base, base + 10 * MS).phase("optimizer", base + 60 * MS, base + 99 * MS)
        build.collective({0: (base + 20 * MS, base + 30 * MS if step == 0 else -1)})
    for name in ("processes", "groups"):
        build.rows[name] = [row for row in build.rows[name] if row["rank"] == 0]
    trace = build.trace()
    table = analyze(trace, "late")
    row = next(iter(table.rows()))
    assert (row["method"], row["late_rank"], row["waiting_ranks"]) == ("hung", -1, "0")
    assert wait_text(row) == "rank 0 hangs in all-reduce 1; ranks that left no record here may never have entered it"
    assert set(analyze(trace, "collectives")["last_rank"].tolist()) == {-1}
