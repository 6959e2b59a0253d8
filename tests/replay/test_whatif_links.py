"""Transfers of several groups over one link: jobs whose lengths follow from who moves when, and a plain simulation."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from builders import MS, US, WORLD, TraceBuilder

from stashtrace._native import graph as native
from stashtrace.analysis.graph import Graph, build
from stashtrace.replay import Answer, Change, what_if
from stashtrace.replay.scenario import Links, Unknowns
from stashtrace.replay.sharing import Verdict, measured_alone, shared_kinds, verdict
from stashtrace.schema.kinds import CollectiveOp, StallKind

MB = 1_000_000
STEPS = 16
INSIDE = frozenset({StallKind.INTERCONNECT})
OTHER = WORLD + 1
#: Milliseconds between two launches, in turn: transfers of 20 ms meet in every other step.
MIXED = (0.0, 30.0)


def moved(first_ms: float, second_ms: float, apart_ms: float, *, shared: bool) -> tuple[float, float]:
    """When two transfers end that take so long alone and begin so far apart; each has half of a link that is shared."""
    left = first_ms - apart_ms
    if not shared or left <= 0:
        return first_ms, apart_ms + second_ms
    if left <= second_ms:
        return apart_ms + 2 * left, first_ms + second_ms
    return first_ms + second_ms, apart_ms + 2 * second_ms


def step_ms(apart_ms: float, *, alone_ms: float = 20.0, shared: bool = True, rest_ms: float = 3.0) -> float:
    """A step of ``job`` in which so much is computed between the launches."""
    return rest_ms + max(apart_ms, *moved(alone_ms, alone_ms, apart_ms, shared=shared))


def job(
    apart_ms: tuple[float, ...],
    *,
    shared: bool,
    groups: tuple[int, int] = (WORLD, OTHER),
    alone_ms: tuple[float, float] = (20.0, 20.0),
    scatter: tuple[float, ...] = (0.0,),
    message: bool = False,
) -> Graph:
    """Two ranks compute 2 ms, launch a message, compute ``apart_ms``, launch another, wait for both, update in 1 ms.

    Steps take the times apart in turn, and what scatters the time that transfers take alone, too. A barrier of 10 us
    says that little of it is latency. With ``message``, the second one is a send of rank 0 to rank 1.
    """
    build_ = TraceBuilder()
    for group in dict.fromkeys(groups):
        build_.group(range(2), group=group, name=f"group {group}")
    build_.collective(dict.fromkeys(range(2), (0, 10 * US)), op=CollectiveOp.BARRIER, message_bytes=0)
    now = MS
    for step in range(STEPS):
        apart, more = apart_ms[step % len(apart_ms)], 1 + scatter[step % len(scatter)]
        ends = moved(alone_ms[0] * more, alone_ms[1] * more, apart, shared=shared)
        called = now + 2 * MS, now + round((2 + apart) * MS)
        done = tuple(called[0] + round(end * MS) for end in ends)
        for rank in range(2):
            build_.rank(rank).phase("forward", now, called[0])
            if apart:
                build_.rank(rank).phase("backward", called[0], called[1])
        for number, group in enumerate(groups):
            times = dict.fromkeys(range(2), (called[number], done[number]))
            if message and number:
                keys = {}
                for rank, op in enumerate((CollectiveOp.SEND, CollectiveOp.RECEIVE)):
                    own = {rank: times[rank]}
                    keys |= build_.collective(own, op=op, group=group, sequence=step, peer_rank=1 - rank)
            else:
                keys = build_.collective(times, group=group, message_bytes=20 * MB)
            for rank in range(2):
                if done[number] > called[1]:
                    build_.rank(rank).collective_wait(keys[rank], called[1], done[number])
        now = max(*done, called[1]) + MS
        for rank in range(2):
            build_.rank(rank).phase("optimizer", now - MS, now)
    return build(build_.trace())


def asked(graph: Graph, *changes: str) -> Answer:
    return what_if(graph, map(Change.parse, changes))


def interval_ms(answer: Answer) -> tuple[float, float]:
    return answer.low_ns / MS, answer.high_ns / MS


def held_ms(graph: Graph, apart_ms: tuple[float, ...], **options: float) -> tuple[float, float]:
    """A step that shares its link, and further 15 % of what company costs more or less than in a run of ``MIXED``."""
    step = counted_ms(graph, apart_ms, **options)
    costs = step - counted_ms(graph, apart_ms, shared=False, **options)
    cost = counted_ms(graph, MIXED) - counted_ms(graph, MIXED, shared=False)
    return step - 0.15 * abs(costs - cost), step + 0.15 * abs(costs - cost)


def counted_ms(graph: Graph, apart_ms: tuple[float, ...], **options: float) -> float:
    """Mean over the steps that count in an answer."""
    chosen = graph.ends_counted & (graph.measured_step_ns >= 0) & (graph.ends_rank == 0)
    return float(np.mean([step_ms(apart_ms[step % len(apart_ms)], **options) for step in np.flatnonzero(chosen)]))


@pytest.mark.parametrize("scatter", [(0.0,), (-0.03, 0.02, 0.05)])
def test_a_run_with_and_without_company_shows_whether_links_are_shared(scatter: tuple[float, ...]) -> None:
    assert verdict(job(MIXED, shared=True, scatter=scatter), StallKind.INTERCONNECT) is Verdict.SHARED
    assert verdict(job(MIXED, shared=False, scatter=scatter), StallKind.INTERCONNECT) is Verdict.APART


def test_a_message_shares_ports_with_collectives() -> None:
    graph = job(MIXED, shared=True, message=True)
    assert verdict(graph, StallKind.INTERCONNECT) is Verdict.SHARED
    assert asked(graph, "compute=x0.1").middle_ns / MS == pytest.approx(
        counted_ms(graph, (0.0, 3.0), rest_ms=0.3), abs=0.15
    )


@pytest.mark.parametrize(("apart_ms", "shared"), [((0.0,), True), ((0.0,), False), ((30.0,), True)])
def test_who_is_always_or_never_in_company_shows_nothing(apart_ms: tuple[float, ...], shared: bool) -> None:
    graph = job(apart_ms, shared=shared)
    assert verdict(graph, StallKind.INTERCONNECT) is Verdict.UNKNOWN
    assert shared_kinds(graph) == (frozenset(), INSIDE)


def test_transfers_that_are_long_by_themselves_are_not_taken_to_suffer_from_company() -> None:
    """Nothing is shared; a transfer that takes twice as long still moves when the next one begins, 30 ms later."""
    graph = job((30.0,), shared=False, scatter=(0.0, 1.2, 0.0, 0.1, 0.9))
    assert verdict(graph, StallKind.INTERCONNECT) is not Verdict.SHARED


def test_lengths_alone_are_those_that_the_run_was_made_of() -> None:
    graph = job((0.0, 30.0, 12.0), shared=True, alone_ms=(20.0, 14.0))
    links = Links.of(graph, INSIDE)
    assert len(np.unique(links.ids)) == 1  # both ports serve the same transfers
    alone = links.alone_ns(graph.begin_ns, graph.end_ns)[graph.moved_bytes == 20 * MB] / MS
    assert sorted(set(alone.round(3))) == [14.0, 20.0]


@pytest.mark.parametrize(
    ("change", "apart_ms", "options"),
    [
        ("interconnect.bandwidth=x2", MIXED, {"alone_ms": 10.0}),
        ("interconnect.bandwidth=x0.5", MIXED, {"alone_ms": 40.0}),  # 30 ms apart they meet now
        ("compute=x0.5", (0.0, 15.0), {"rest_ms": 1.5}),  # and here, too
        ("compute=x0.1", (0.0, 3.0), {"rest_ms": 0.3}),
        ("compute=x2", (0.0, 60.0), {"rest_ms": 6.0}),
    ],
)
def test_a_change_that_brings_transfers_together_makes_them_longer(
    change: str, apart_ms: tuple[float, ...], options: dict[str, float]
) -> None:
    graph = job(MIXED, shared=True)
    answer = asked(graph, change)
    assert answer.middle_ns / MS == pytest.approx(counted_ms(graph, apart_ms, **options), abs=0.15)
    assert interval_ms(answer) == pytest.approx(held_ms(graph, apart_ms, **options), abs=0.2)


@pytest.mark.parametrize("apart", [8.0, 20.0, 40.0])
def test_a_change_that_separates_them_makes_them_shorter(apart: float) -> None:
    """Steps of 4 ms and of 30 ms in between; more compute takes the first ones apart."""
    graph = job((4.0, 40.0), shared=True)
    factor = apart / 4
    expected = counted_ms(graph, (apart, 10 * apart), rest_ms=3 * factor)
    assert asked(graph, f"compute=x{factor:g}").middle_ns / MS == pytest.approx(expected, abs=0.15)


def test_the_replay_of_shared_links_is_the_run_as_it_was() -> None:
    graph = job((0.0, 30.0, 7.0), shared=True)
    answer = asked(graph)
    assert interval_ms(answer) == pytest.approx((answer.measured_ns / MS,) * 2, rel=1e-6)


def test_who_got_more_of_a_link_is_not_taken_for_a_faster_transfer() -> None:
    """The first of two gets two thirds of the link while both move, as queues of switches do it; each takes 20 alone.

    A link of twice the bandwidth makes both of them half as long.
    """
    build_ = TraceBuilder()
    for group in (WORLD, OTHER):
        build_.group(range(2), group=group)
    build_.collective(dict.fromkeys(range(2), (0, 10 * US)), op=CollectiveOp.BARRIER, message_bytes=0)
    now = MS
    for _ in range(STEPS):
        for rank in range(2):
            build_.rank(rank).phase("forward", now, now + 2 * MS)
        for group, end in ((WORLD, 30), (OTHER, 40)):
            build_.meet(dict.fromkeys(range(2), now + 2 * MS), now + (2 + end) * MS, group=group, message_bytes=20 * MB)
        now += 43 * MS
        for rank in range(2):
            build_.rank(rank).phase("optimizer", now - MS, now)
    graph = build(build_.trace())
    links = Links.of(graph, INSIDE)
    large = graph.moved_bytes == 20 * MB
    assert sorted(set((links.alone_ns(graph.begin_ns, graph.end_ns)[large] / MS).round(1))) == [15.0, 25.0]
    assert measured_alone(graph, links, Unknowns()).work_ns[large] / MS == pytest.approx(20, abs=0.1)
    low, high = interval_ms(asked(graph, "interconnect.bandwidth=x2"))
    assert low == pytest.approx(23 - 0.15 * 10, abs=0.1)  # half of the 20 ms that company costs goes
    assert high > 23  # if they share nothing, the longer one may be long for another reason
    assert interval_ms(asked(graph)) == pytest.approx((43, 43))


def test_links_that_were_not_shared_are_not_shared() -> None:
    graph = job(MIXED, shared=False)
    assert interval_ms(asked(graph, "compute=x0.1")) == pytest.approx(
        (counted_ms(graph, (0.0, 3.0), shared=False, rest_ms=0.3),) * 2, abs=0.05
    )


def test_where_the_run_does_not_say_the_answer_is_both() -> None:
    """Over half of the link transfers 30 ms apart meet for the first time."""
    graph = job((30.0,), shared=True)
    low, high = interval_ms(asked(graph, "interconnect.bandwidth=x0.5"))
    assert low == pytest.approx(step_ms(30, alone_ms=40, shared=False), abs=0.15)
    company = 0.15 * (step_ms(30, alone_ms=40) - step_ms(30, alone_ms=40, shared=False))
    assert high == pytest.approx(step_ms(30, alone_ms=40) + company, abs=0.2)
    both = interval_ms(asked(graph, "interconnect.bandwidth=x2"))  # they do not meet, shared or not
    assert both == pytest.approx((step_ms(30, alone_ms=10),) * 2, abs=0.15)


def test_who_is_always_together_stays_so_over_a_faster_link() -> None:
    graph = job((0.0,), shared=True)
    low, high = interval_ms(asked(graph, "interconnect.bandwidth=x2"))
    assert low <= 23 <= high
    assert high - low <= 2 * 0.15 * 10 + 0.2  # of the 20 ms that company costs, half goes


def test_transfers_of_one_group_are_a_queue_as_before() -> None:
    graph = job(MIXED, shared=True, groups=(WORLD, WORLD))
    assert shared_kinds(graph) == (frozenset(),)
    plain = graph.step_ns(graph.replay())
    answer = asked(graph)
    assert answer.middle_ns == plain[(plain >= 0) & graph.ends_counted].mean()


def test_groups_without_a_common_member_have_no_link_in_common() -> None:
    build_ = TraceBuilder()
    now = 0
    for group, members in ((1, (0, 1)), (2, (2, 3)), (3, (3, 4))):
        build_.group(members, group=group, name=f"group {group}")
    for _ in range(4):
        for group, members in ((1, (0, 1)), (2, (2, 3)), (3, (3, 4))):
            build_.collective(dict.fromkeys(members, (now + 2 * MS, now + 6 * MS)), group=group)
        for rank in range(5):
            build_.rank(rank).phase("forward", now, now + 6 * MS).phase("optimizer", now + 6 * MS, now + 7 * MS)
        now += 7 * MS
    graph = build(build_.trace())
    links = Links.of(graph, INSIDE)
    users = np.flatnonzero(links.users)
    assert np.unique(graph.facts.queue[users]).tolist() == [1, 2]  # of the groups 2 and 3, by their common member
    assert len(links.ids) == len(users)


def fluid(
    work: list[float], before: list[list[int]], release: list[float], links: list[set[int]]
) -> tuple[list[float], list[float]]:
    """Begin and end of each piece of work by small steps from one event to the next, no cleverness in it."""
    count, now = len(work), 0.0
    left, begin, end = list(work), [-1.0] * count, [-1.0] * count
    while min(end) < 0:
        for one in range(count):
            if begin[one] < 0 and release[one] <= now and all(end[b] >= 0 for b in before[one]):
                begin[one] = now
        active = [one for one in range(count) if begin[one] >= 0 and end[one] < 0]
        users = {link: sum(link in links[one] for one in active) for own in links for link in own}
        rate = {one: min((1 / users[link] for link in links[one]), default=1.0) for one in active}
        ends = [now + left[one] / rate[one] for one in active]
        begins = [release[one] for one in range(count) if begin[one] < 0 and release[one] > now]
        until = min(ends + begins)
        for one in active:
            left[one] -= (until - now) * rate[one]
            if left[one] < 1e-6:
                end[one] = until
        now = until
    return begin, end


@pytest.mark.parametrize("seed", range(25))
def test_native_replay_is_that_of_a_plain_simulation(seed: int) -> None:
    """Random work over three links, after random other work; and from the measured times each length alone again."""
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 25))
    work = random.integers(1, 1000, count)
    release = random.integers(0, 2000, count)
    links = [set(random.choice(3, int(random.integers(0, 4)), replace=False).tolist()) for _ in range(count)]
    before = [random.choice(n, min(n, int(random.integers(0, 3))), replace=False).tolist() for n in range(count)]
    begin, end = fluid(work.tolist(), before, release.tolist(), links)

    edges = [(one, n) for n in range(count) for one in before[n]]
    source, target = (np.array([edge[i] for edge in edges], dtype=np.int32) for i in (0, 1))
    plan = native.Plan(source, target, release.astype(np.int64), np.zeros(len(edges), dtype=np.int8))
    first = np.concatenate([[0], np.cumsum([len(own) for own in links])]).astype(np.int32)
    ids = np.array([link for own in links for link in sorted(own)], dtype=np.int32)
    long = work.astype(np.int64)
    found = plan.replay_shared(
        release.astype(np.int64),
        long,
        np.zeros(len(edges), dtype=np.int64),
        long,
        np.full(count, -1, dtype=np.int32),
        np.empty(0),
        first,
        ids,
    )
    assert np.abs(found[0] - begin).max() <= 1
    assert np.abs(found[1] - end).max() <= 1
    alone = native.alone(found[0], found[1], first, ids)
    assert np.abs(alone - long).max() <= 2 + count // 8  # times are rounded to whole numbers


def test_links_share_next_to_hosts_that_share_cpus() -> None:
    """Two transfers of 10 over one link and two threads of 10 on one CPU: each takes 20, neither disturbs the other."""
    plan = native.Plan(*(np.empty(0, dtype=np.int32),) * 2, np.zeros(4, dtype=np.int64), np.empty(0, dtype=np.int8))
    ten, none = np.full(4, 10, dtype=np.int64), np.empty(0, dtype=np.int64)
    host, first = np.array([-1, -1, 0, 0], dtype=np.int32), np.array([0, 1, 2, 2, 2], dtype=np.int32)
    links = np.zeros(2, dtype=np.int32)
    _, end, _ = plan.replay_shared(np.zeros(4, dtype=np.int64), ten, none, ten, host, np.ones(1), first, links)
    assert end.tolist() == [20, 20, 20, 20]


@pytest.mark.parametrize(
    ("first", "ids"),
    [([0, 1], [0, 0]), ([0, 2, 2], [0, 0]), ([0, 1, 2], [0, -1]), ([1, 1, 2], [0, 0]), ([0, 2, 1], [0])],
)
def test_links_that_no_node_can_have_are_refused(first: list[int], ids: list[int]) -> None:
    times = np.zeros(2, dtype=np.int64), np.ones(2, dtype=np.int64)
    with pytest.raises(ValueError, match=r"link|length"):
        native.alone(*times, np.array(first, dtype=np.int32), np.array(ids, dtype=np.int32))


def test_the_formula_of_this_file_is_that_of_the_simulation() -> None:
    for apart in (0.0, 5.0, 19.0, 25.0):
        _, end = fluid([20.0, 14.0], [[], []], [0.0, apart], [{0}, {0}])
        assert end == pytest.approx(moved(20, 14, apart, shared=True))
    assert [b - a for a, b in pairwise([0, *sorted(moved(20, 14, 5, shared=True))])] == [33, 1]
