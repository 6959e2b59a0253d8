"""Links, compression and numbers of ranks, on jobs whose transfers are ``latency + bytes / bandwidth`` by design."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from builders import MS, US, TraceBuilder

from stashtrace.analysis.graph import Graph, build
from stashtrace.errors import MissingDataError
from stashtrace.replay import Answer, Change, what_if
from stashtrace.replay.change_lengths import of_sizes
from stashtrace.schema.kinds import CollectiveOp, StallKind

MB = 1_000_000
STEPS = 12


def job(
    *,
    ranks: int = 2,
    sizes: tuple[int, ...] = (MB, 8 * MB),
    latency: int = MS,
    compute: Callable[[int, int], int] = lambda step, rank: 3,
    backend: str = "gloo",
    op: CollectiveOp = CollectiveOp.ALL_REDUCE,
    later: int = 0,
    tiny: int = 0,
    hosts: tuple[str, ...] = ("node00",),
    steps: int = STEPS,
    world: int = 0,
) -> Graph:
    """Each step computes 3 ms, reduces messages one after the other at 1 ms a MB and a latency, and updates in 1 ms.

    ``compute`` has the milliseconds by step and rank where they differ; the last rank goes on ``later`` than the first
    after each transfer; ``tiny`` is the time of a barrier before the first step, none if 0; ``world`` are the ranks of
    the job where others of it were not recorded.
    """
    build_ = TraceBuilder(hosts)
    build_.group(range(ranks), backend=backend)
    for row in build_.rows["groups"]:
        row["group_size"] = max(world, ranks)
    now = 0
    if tiny:
        build_.collective(dict.fromkeys(range(ranks), (0, tiny)), op=CollectiveOp.BARRIER, message_bytes=0)
        now = 2 * tiny
    for step in range(steps):
        free = {}
        for rank in range(ranks):
            free[rank] = now + compute(step, rank) * MS
            build_.rank(rank).phase("forward", now, free[rank])
        for size in sizes:
            end = max(free.values()) + latency + size
            times = {rank: (free[rank], end + later * (rank == ranks - 1)) for rank in range(ranks)}
            keys = build_.collective(times, message_bytes=size, op=op)
            for rank, (call, done) in times.items():
                build_.rank(rank).collective_wait(keys[rank], call, done)
                free[rank] = done
        for rank in range(ranks):
            build_.rank(rank).phase("optimizer", free[rank], free[rank] + MS)
        now = max(free.values()) + MS
    return build(build_.trace())


def asked(graph: Graph, *changes: str) -> Answer:
    return what_if(graph, map(Change.parse, changes))


def ms(answer: Answer) -> tuple[float, float]:
    return answer.low_ns / MS, answer.high_ns / MS


ONE = (8 * MB,)

#: Options of the job, a change of it, the least and the most of a step in ms, and how near that is met.
STEPS_OF_CHANGES: dict[str, tuple[dict[str, Any], str, tuple[float, float], float]] = {
    "as it was made": ({}, "", (15, 15), 0.01),
    "twice the bandwidth": ({}, "interconnect.bandwidth=x2", (10.5, 10.5), 0.02),
    "half the bandwidth": ({}, "interconnect.bandwidth=x0.5", (24, 24), 0.02),
    "three times the latency": ({}, "interconnect.latency=x3", (19, 19), 0.02),
    "a latency of each of the two hops of a ring of two": ({}, "interconnect.latency=2ms", (21, 21), 0.02),
    # It was 8 bits a ns: each rank of two sends what it reduces once.
    "a bandwidth": ({}, "interconnect.bandwidth=16gbit", (10.5, 10.5), 0.02),
    "of one size, all or nothing of it is latency": ({"sizes": ONE}, "interconnect.bandwidth=x2", (8.5, 13), 0.01),
    # The 9 ms of the message are bytes alone, or latency alone: its two hops have the new one in both cases.
    "a long latency": ({"sizes": ONE}, "interconnect.latency=10ms", (4 + 2 * 10, 4 + 2 * 10 + 9), 0.01),
    "a short latency": ({"sizes": ONE}, "interconnect.latency=50us", (4.1, 4.1 + 9), 0.01),
    # A barrier of 100 us is one hop: the two of an all-reduce take 400 us at most, if they differ by two times.
    "a tiny message bounds the latency of large ones": (
        {"sizes": ONE, "tiny": 100 * US},
        "interconnect.bandwidth=x2",
        (8.5, 8.7),
        0.01,
    ),
    # Messages before the first step go over connections that are being made.
    "what sets the job up is none of its messages": (
        {"sizes": ONE, "tiny": 20 * MS},
        "interconnect.bandwidth=x2",
        (8.5, 13),
        0.01,
    ),
    # Half of what is moved, and at most what a CPU takes for 9 MB at 1 GB/s.
    "compression": ({}, "compression=fp16", (15 - 4.5, 15 - 4.5 + 9), 0.02),
    # A ring of n: latency in proportion to n - 1, bytes to (n - 1) / n.
    "a ring of 4 for 2": ({}, "ranks=4", (4 + 2 * 3 + 9 * 1.5,) * 2, 0.03),
    "a ring of 64 for 2": ({}, "ranks=64", (4 + 2 * 63 + 9 * 2 * 63 / 64,) * 2, 0.03),
    "a ring of 2 for 4": ({"ranks": 4}, "ranks=2", (4 + 2 / 3 + 9 / 1.5,) * 2, 0.03),
    "each of n ranks gathers n - 1 parts": ({"op": CollectiveOp.ALL_GATHER}, "ranks=4", (4 + 3 * 11,) * 2, 0.03),
}


@pytest.mark.parametrize("name", STEPS_OF_CHANGES)
def test_a_step_with_a_change(name: str) -> None:
    options, change, step_ms, within = STEPS_OF_CHANGES[name]
    assert ms(asked(job(**options), *filter(None, [change]))) == pytest.approx(step_ms, abs=within)


def test_a_bandwidth_is_not_set_where_nobody_knows_what_it_was() -> None:
    with pytest.raises(MissingDataError, match="may be latency alone") as raised:
        asked(job(sizes=(8 * MB,)), "interconnect.bandwidth=16gbit")
    assert raised.value.hint == "in-host.bandwidth=x2"
    with pytest.raises(MissingDataError, match="the bytes that the steps of this run moved"):
        asked(job(sizes=(0, 0)), "interconnect.bandwidth=16gbit")


def test_members_that_go_on_later_do_so_in_proportion() -> None:
    """1 MB in 2 ms, and one rank has it 1 ms later: over half the link 3 and 1.5 ms."""
    graph = job(sizes=(MB, 8 * MB), later=MS // 2)
    assert ms(asked(graph))[1] == pytest.approx(16, abs=0.01)
    # The latency of both is 1 ms: 2 and 9 ms become 3 and 17, what is later grows with each.
    assert ms(asked(graph, "interconnect.bandwidth=x0.5"))[1] == pytest.approx(24 + 0.5 * (3 / 2 + 17 / 9), abs=0.05)


def test_compression_leaves_small_and_other_messages_alone() -> None:
    assert ms(asked(job(sizes=(512, MB)), "compression=fp16"))[0] == pytest.approx(7 - 0.5, abs=0.02)
    with pytest.raises(MissingDataError, match="nothing to compress"):
        asked(job(op=CollectiveOp.BROADCAST), "compression=fp16")


@pytest.mark.parametrize("count", [1, 65, 100_000])
def test_ranks_that_a_run_says_nothing_of(count: int) -> None:
    with pytest.raises(MissingDataError, match=f"cannot predict {count}") as raised:
        asked(job(), f"ranks={count}")
    assert raised.value.hint == "from 2 to 64 ranks can be predicted"


@pytest.mark.parametrize("world", [3, 128])
def test_some_ranks_of_a_job_do_not_show_what_others_would_cost(world: int) -> None:
    with pytest.raises(MissingDataError, match="2 ranks were recorded") as raised:
        asked(job(world=world), "ranks=x2")
    assert raised.value.hint == "give the files of all ranks"


def test_messages_that_cannot_be_matched_are_no_transfers() -> None:
    """Three sends of one number: their waits take time of the step, but no link is known to have been used."""
    build_ = TraceBuilder()
    now = 0
    for number in range(8):
        for rank in range(3):
            build_.rank(rank).phase("forward", now, now + MS).phase("optimizer", now + 5 * MS, now + 6 * MS)
        build_.meet(dict.fromkeys(range(3), now + MS), now + 5 * MS, op=CollectiveOp.SEND, sequence=number)
        now += 6 * MS
    graph = build(build_.trace())
    assert (graph.kind == StallKind.INTERCONNECT).any()
    assert not graph.is_transfer.any()
    with pytest.raises(MissingDataError, match="no transfer of this run") as raised:
        asked(graph, "interconnect.bandwidth=x2")
    assert raised.value.hint == "it has no transfers"


def test_the_quick_ones_of_each_size() -> None:
    rng = np.random.default_rng(1)
    sizes, times = rng.choice([3, 50, 700, 9000], 500), rng.uniform(1, 1e6, 500)
    for ratio in (0.1, 0.5):
        found = of_sizes(sizes, times, ratio)
        for size in np.unique(sizes).tolist():
            assert found[sizes == size] == pytest.approx(np.quantile(times[sizes == size], ratio))
    assert of_sizes(sizes[:1], times[:1], 0.1).tolist() == times[:1].tolist()


def test_a_link_that_nothing_went_over() -> None:
    with pytest.raises(MissingDataError, match="known to count as link: network") as raised:
        asked(job(), "network.bandwidth=x2")
    assert raised.value.hint == "its transfers count as link: in-host"


def test_ranks_may_be_multiplied() -> None:
    assert asked(job(), "ranks=x2").high_ns == asked(job(), "ranks=4").high_ns


def test_an_unknown_algorithm_is_a_ring_or_a_tree() -> None:
    """A tree of 16 has 4 levels where one of 2 has 1, and moves as many bytes."""
    low, high = ms(asked(job(backend="nccl"), "ranks=16"))
    assert low == pytest.approx(4 + 2 * 4 + 9, abs=0.03)
    assert high == pytest.approx(4 + 2 * 15 + 9 * 2 * 15 / 16, abs=0.05)


def test_of_a_hierarchy_only_the_ring_of_hosts_grows() -> None:
    """Two hosts of two ranks become eight: a ring of hosts has 7 hops for 1, a tree of 16 has 4 levels for 2."""
    graph = job(ranks=4, backend="nccl", hosts=("a", "a", "b", "b"))
    low, high = ms(asked(graph, "ranks=16"))
    assert low == pytest.approx(4 + 2 * 2 + 9, abs=0.03)
    assert high == pytest.approx(4 + 2 * 15 / 3 + 9 * (15 / 16) / (3 / 4), abs=9)
    assert high >= 4 + 2 * 7 + 9 * (7 / 8) / (1 / 2) - 0.1


def test_of_more_ranks_the_last_one_comes_later() -> None:
    """Ranks that take 3 or 5 ms: the last of two takes 4.5 ms in the mean, that of 32 nearly always 5."""
    graph = job(compute=lambda step, rank: 3 + 2 * (step >> rank & 1), latency=0, steps=64)
    assert asked(graph).measured_ns / MS == pytest.approx(1 + 4.5 + 9, abs=0.05)
    low, high = ms(asked(graph, "ranks=32"))
    bytes_ms = 9 * 2 * 31 / 32
    assert low == pytest.approx(1 + 4.5 + bytes_ms, abs=0.05)
    assert low + 0.4 < 1 + 5 + bytes_ms < high
    assert high - low < 1


def test_one_rank_shows_nothing_of_others() -> None:
    build_ = TraceBuilder()
    for step in range(8):
        build_.rank(0).phase("forward", 5 * step * MS, (5 * step + 3) * MS)
        build_.rank(0).phase("optimizer", (5 * step + 3) * MS, (5 * step + 5) * MS)
    for change, words in (
        ("ranks=4", "one rank"),
        ("compression=fp16", "nothing to compress"),
        ("prep=2ms", "no batch that took time"),
    ):
        with pytest.raises(MissingDataError, match=words) as error:
            asked(build(build_.trace()), change)
        assert error.value.hint


def test_what_some_transfers_take_longer_may_not_be_the_link() -> None:
    """Every other step takes 3 ms more for its message of 8 ms: a faster link halves that as well, or not."""
    build_ = TraceBuilder()
    now = 0
    for step in range(24):
        for rank in range(2):
            build_.rank(rank).phase("forward", now, now + MS)
        end = now + (9 + 3 * (step % 2)) * MS
        build_.meet(dict.fromkeys(range(2), now + MS), end, message_bytes=8 * MB)
        build_.meet(dict.fromkeys(range(2), end), end + MS // 10, message_bytes=MB // 10)
        for rank in range(2):
            build_.rank(rank).phase("optimizer", end + MS // 10, end + MS)
        now = end + MS
    low, high = ms(asked(build(build_.trace()), "interconnect.bandwidth=x2"))
    rest = 1.9 + 0.05
    assert (low, high) == pytest.approx((rest + (8 + 1.5) / 2, rest + 8 / 2 + 1.5), abs=0.15)


def test_a_transfer_that_ended_before_the_one_called_first_was_not_behind_it() -> None:
    """A backend that runs two at a time: of 8 and 2 ms, both called at once, the second one ends first."""
    build_ = TraceBuilder()
    now = 0
    for _ in range(8):
        for rank in range(2):
            build_.rank(rank).phase("forward", now, now + MS)
        long = build_.collective(dict.fromkeys(range(2), (now + MS, now + 9 * MS)), message_bytes=8 * MB)
        short = build_.collective(dict.fromkeys(range(2), (now + MS, now + 3 * MS)), message_bytes=2 * MB)
        for rank in range(2):
            build_.rank(rank).collective_wait(short[rank], now + MS, now + 3 * MS)
            build_.rank(rank).collective_wait(long[rank], now + 3 * MS, now + 9 * MS)
            build_.rank(rank).phase("optimizer", now + 9 * MS, now + 10 * MS)
        now += 10 * MS
    graph = build(build_.trace())
    assert sorted(set(graph.work_ns[graph.is_transfer].tolist())) == [2 * MS, 8 * MS]
    assert (graph.step_ns(graph.replay()) == graph.measured_step_ns).all()
    assert asked(graph, "interconnect.bandwidth=x2").low_ns / MS == pytest.approx(2 + 4, abs=0.05)
