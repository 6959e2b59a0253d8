"""behind_second_ns: how long a rank alone was missing, by plain arithmetic; and the verdicts of late_ranks."""

from __future__ import annotations

import pytest
from builders import MS, TraceBuilder

from stashtrace.analysis.registry import analyze
from stashtrace.schema.trace import Trace


def job(steps: list[list[dict[int, int]]], *, ranks: int = 4, members: int | None = None) -> Trace:
    """Steps of 100 ms; of each the operations, as entry (ms into the step) by rank, in flight until 50 ms."""
    build = TraceBuilder()
    build.group(range(members or ranks))
    # Starting up: rank 1 comes 300 ms late, before any step.
    build.collective({rank: (300 * MS if rank == 1 else 0, 310 * MS) for rank in range(ranks)})
    for number, operations in enumerate(steps):
        start = 400 * MS + number * 100 * MS
        for rank in range(ranks):
            build.rank(rank).phase("forward", start, start + 5 * MS)
            build.rank(rank).phase("optimizer", start + 60 * MS, start + 100 * MS)
        for entries in operations:
            calls = {rank: start + at * MS for rank, at in entries.items()}
            build.meet(calls, start + 50 * MS)
    return build.trace()


def behind(trace: Trace) -> tuple[dict[int, int], dict[int, int]]:
    """behind_second_ns by rank, of ``late_ranks`` (ranks never late left out) and of ``stragglers``."""
    return tuple(  # type: ignore[return-value]
        dict(zip(found["rank"].tolist(), found["behind_second_ns"].tolist(), strict=True))
        for found in (analyze(trace, "late_ranks"), analyze(trace, "stragglers"))
    )


def test_the_time_after_the_second_latest_is_summed_over_the_steps() -> None:
    trace = job([[{0: 10, 1: 10, 2: 18, 3: 30}], [{0: 12, 1: 10, 2: 25, 3: 20}], [{0: 10, 1: 11, 2: 12, 3: 40}]])
    late, all_ranks = behind(trace)
    assert late == {3: (12 + 28) * MS, 2: 5 * MS, 1: 0}
    assert all_ranks == {0: 0, **late}
    # Not what the others waited for it: 20 + 20 + 12 and 30 + 29 + 28.
    row = next(r for r in analyze(trace, "late_ranks").rows() if r["rank"] == 3)
    assert row["total_wait_ns"] == (52 + 87) * MS


def test_operations_in_flight_together_count_a_moment_once() -> None:
    late, all_ranks = behind(job([[{0: 10, 1: 10, 2: 18, 3: 30}, {0: 11, 1: 11, 2: 19, 3: 31}]]))
    assert late[3] == all_ranks[3] == 13 * MS  # from 18 to 31


def test_who_comes_together_with_another_was_not_missing_alone() -> None:
    late, all_ranks = behind(job([[{0: 10, 1: 10, 2: 30, 3: 30}]]))
    assert all(value == 0 for value in (*late.values(), *all_ranks.values()))


def test_a_member_without_a_record_may_have_been_as_late() -> None:
    late, all_ranks = behind(job([[{0: 10, 1: 10, 2: 18, 3: 30}]], members=5))
    assert late[3] == all_ranks[3] == 0


def test_an_operation_that_somebody_never_entered_is_no_time_to_gain() -> None:
    build = TraceBuilder()
    build.group(range(3))
    for rank in range(3):
        build.rank(rank).phase("forward", 0, 5 * MS).phase("optimizer", 60 * MS, 100 * MS)
    build.collective({0: (10 * MS, 40 * MS), 1: (11 * MS, 40 * MS), 2: (31 * MS, 40 * MS)})
    build.collective({0: (70 * MS, -1), 1: (71 * MS, -1)})
    hung = build.trace()
    assert behind(hung)[0][2] == behind(hung)[1][2] == 20 * MS


def verdicts(late: list[int], ranks: int = 4) -> dict[int, str]:
    """Verdict of each late rank where in each step another one comes 20 ms later."""
    trace = job([[{r: 30 if r == rank else 10 for r in range(ranks)}] for rank in late], ranks=ranks)
    found = analyze(trace, "late_ranks")
    return dict(zip(found["rank"].tolist(), found["verdict"].tolist(), strict=True))


@pytest.mark.parametrize(
    ("late", "verdict"),
    [
        ([2], "once"),  # one step says nothing of others
        ([2, 2, 2], "few"),  # 4 x (1/4)^3 is 6 %
        ([2, 3, 2, 3, 0], "few"),  # five of five would be 0.39 %
        ([2, 3, 2, 3, 0, 2], "alternates"),  # six of six would be 0.098 %
        ([2] * 7, "always"),
        ([0, 1, 2, 3] * 4, "alternates"),
    ],
)
def test_no_rank_alternates_in_one_step_or_few(late: list[int], verdict: str) -> None:
    assert verdicts(late)[2] == verdict
