"""What late says of transfers, of clocks that cannot show an order, and of ranks without a record."""

from __future__ import annotations

import pytest
from builders import MS, US, TraceBuilder
from summary.scenes import worded

from stashtrace.analysis.collectives.collective_waits import collectives
from stashtrace.analysis.findings.rules.trust import Trust, trust_claims, unordered_claims
from stashtrace.analysis.registry import analyze
from stashtrace.analysis.stragglers.stragglers import stragglers
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
    for host, error in (("a", 0), ("b", 10 * MS)):
        build.clock(host, error, method="realtime")
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


#: By how much rank 1 calls after rank 0, one collective each.
LEADS = (20 * US, 150 * US, 3 * MS)


def led_by_rank_0(error_ns: int, hosts: tuple[str, ...] = ("a", "b")) -> Trace:
    build = TraceBuilder(hosts)
    build.group([0, 1])
    for rank in (0, 1):
        build.rank(rank).phase("forward", 0, 5 * MS).phase("optimizer", 95 * MS, 100 * MS)
    for number, lead in enumerate(LEADS):
        begin = 10 * MS + number * 20 * MS
        build.collective({0: (begin, begin + 8 * MS), 1: (begin + lead, begin + 8 * MS)})
    for number, host in enumerate(sorted(set(hosts))):
        build.clock(host, number * error_ns, method="collectives" if number else "same_clock")
    return build.trace()


@pytest.mark.parametrize(("error_ns", "reported"), [(5 * US, 3), (50 * US, 2), (1 * MS, 1)])
def test_last_rank_is_named_only_where_the_clocks_can_show_it(error_ns: int, reported: int) -> None:
    trace = led_by_rank_0(error_ns)
    waits = collectives(trace)
    of_first = waits.take(waits["rank"] == 0).sort_by("sequence")
    assert of_first["last_rank"].tolist() == [-1] * (3 - reported) + [1] * reported
    assert of_first["wait_ns"].tolist() == list(LEADS)
    late = stragglers(trace)
    assert late["last_count"].tolist() == [0, reported]


def test_one_host_is_ordered_to_the_nanosecond() -> None:
    trace = led_by_rank_0(1 * MS, ("a",))
    assert stragglers(trace)["last_count"].tolist() == [0, 3]
    assert unordered_claims(trace) == []


def test_summary_says_what_is_not_ordered() -> None:
    trace = led_by_rank_0(50 * US)
    assert worded(*trust_claims(trace, Trust()))[-1] == "clocks 2 hosts, ±50.0 us by collectives"
    (reported,) = worded(*unordered_claims(trace))
    assert (
        "the order of events on different hosts is unknown within 100 us: in 1 of 3 collectives no rank is called last"
        in reported
    )


def test_clocks_too_far_apart_leave_it_to_durations() -> None:
    (reported,) = worded(*unordered_claims(led_by_rank_0(30 * MS)))
    assert "3 of 3 are split into waiting and transfer by durations, not by clocks" in reported
