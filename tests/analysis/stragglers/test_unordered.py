"""Events on different hosts that are closer than the error of the clocks have no order, and the summary says so."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from builders import MS, US, TraceBuilder
from summary.scenes import worded

from stashtrace.analysis.collectives.collective_waits import collectives
from stashtrace.analysis.findings.rules.trust import Trust, trust_claims, unordered_claims
from stashtrace.analysis.stragglers.stragglers import stragglers
from stashtrace.schema.trace import Trace

#: By how much rank 1 calls after rank 0, one collective each.
LEADS = (20 * US, 150 * US, 3 * MS)


def job(error_ns: int, hosts: tuple[str, ...] = ("a", "b")) -> Trace:
    build = TraceBuilder(hosts)
    build.group([0, 1])
    for rank in (0, 1):
        build.rank(rank).phase("forward", 0, 5 * MS).phase("optimizer", 95 * MS, 100 * MS)
    for number, lead in enumerate(LEADS):
        begin = 10 * MS + number * 20 * MS
        build.collective({0: (begin, begin + 8 * MS), 1: (begin + lead, begin + 8 * MS)})
    for number, host in enumerate(sorted(set(hosts))):
        code = build.strings.code(f"boot-{host}")
        method = build.strings.code("collectives" if number else "same_clock")
        build.add(
            "alignment",
            boot_code=code,
            reference_code=build.strings.code("boot-a"),
            offset_ns=0,
            drift_ppb=0,
            error_ns=number * error_ns,
            method_code=method,
        )
    return build.trace()


@pytest.mark.parametrize(("error_ns", "told"), [(5 * US, 3), (50 * US, 2), (1 * MS, 1)])
def test_last_rank_is_told_only_where_the_clocks_can_tell(error_ns: int, told: int) -> None:
    trace = job(error_ns)
    waits = collectives(trace)
    of_first = waits.take(waits["rank"] == 0).sort_by("sequence")
    assert of_first["last_rank"].tolist() == [-1] * (3 - told) + [1] * told
    assert of_first["wait_ns"].tolist() == list(LEADS)
    late = stragglers(trace)
    assert late["last_count"].tolist() == [0, told]


def test_one_host_is_ordered_to_the_nanosecond() -> None:
    trace = job(1 * MS, ("a",))
    assert stragglers(trace)["last_count"].tolist() == [0, 3]
    assert unordered_claims(trace) == []


def test_summary_says_what_is_not_ordered() -> None:
    trace = job(50 * US)
    assert worded(*trust_claims(trace, Trust()))[-1] == "clocks 2 hosts, ±50.0 us by collectives"
    (told,) = worded(*unordered_claims(trace))
    assert (
        "the order of events on different hosts is unknown within 100 us: in 1 of 3 collectives no rank is called last"
        in told
    )


def test_clocks_too_far_apart_leave_it_to_durations() -> None:
    (told,) = worded(*unordered_claims(job(30 * MS)))
    assert "3 of 3 are split into waiting and transfer by durations, not by clocks" in told
