"""The wait-free recurrence by hand, what the link worked, and buckets: whole, divided, best."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stashtrace.errors import UsageError
from stashtrace.lab.sweep.shapes import gradient_shapes, network
from stashtrace.replay.communication.overlap import (
    best_merge,
    bucket_starts,
    link_times,
    merged,
    ready_by_sizes,
    rebucketed,
    schedule,
)

#: All-reduce of 8 workers over 10 Gbit/s Ethernet: constants of HKBU-HPML/MG-WFBP, ns and ns a byte.
ALPHA_10G, BETA_10G = 523_000.0, 0.857


#: Messages that are ready and take so long, and options; then when they start, and what of them is exposed.
CASES: dict[str, tuple[list[float], list[float], dict[str, Any], list[float], float]] = {
    # Backward of layers 4 to 1 takes 5, 5, 10 and 10. Sent 5-17, 17-19 (was ready at 10), 20-23, 30-36.
    "four layers": ([5, 10, 20, 30], [12, 2, 3, 6], {}, [5, 17, 20, 30], 6),
    "no message": ([], [], {}, [], 0),
    "what follows hides a part of the last": ([10, 20], [5, 8], {"backward_end_ns": 25}, [10, 20], 3),
    "what follows hides the last": ([10, 20], [5, 8], {"backward_end_ns": 100}, [10, 20], 0),
    # The first is waited for, 10-18. The second is ready 5 of compute later, 23-27, the third 7 after that, 30-39.
    "callers that wait stop their clock": (
        [10, 15, 22],
        [8, 4, 9],
        {"blocking": [True, False, False]},
        [10, 23, 30],
        8 + 9,
    ),
    "waiting after backward hides nothing": ([30] * 3, [8, 12, 5], {"blocking": [True] * 3}, [30, 38, 50], 25),
    # 10-18 and 20-24 on one link, 12-42 on the other; one link alone would end at 52.
    "links do not wait for each other": ([10, 12, 20], [8, 30, 4], {"lane": [0, 1, 0]}, [10, 12, 20], 22),
    "one link for all of them": ([10, 12, 20], [8, 30, 4], {}, [10, 18, 48], 32),
    # The first is waited for, 10-18; what would have been ready at 12 is so at 20, and has its link at once.
    "a wait for one link stops the caller for all": (
        [10, 12, 20],
        [8, 30, 4],
        {"blocking": [True, False, False], "lane": [0, 1, 0]},
        [10, 20, 28],
        8 + (50 - 28),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_messages_by_hand(name: str) -> None:
    ready, took, options, starts, exposed = CASES[name]
    found = schedule(ready, took, **options)
    assert found.start_ns.tolist() == starts
    assert found.end_ns.tolist() == [start + ns for start, ns in zip(starts, took, strict=True)]
    assert found.exposed_ns == exposed


def test_a_link_slower_than_backward_is_exposed_but_for_the_first_layers() -> None:
    """L layers of b each and messages of c > b: the link is busy from the first layer on, so b + L c - L b is left."""
    layers, b, c = 7, 10.0, 13.0
    assert schedule(b * np.arange(1, layers + 1), [c] * layers).exposed_ns == b + layers * c - layers * b
    assert schedule(b * np.arange(1, layers + 1), [b / 2] * layers).exposed_ns == b / 2


@pytest.mark.parametrize(("ready", "transfer"), [([1, 2], [1]), ([1, np.nan], [1, 1]), ([1], [-1])])
def test_nonsense_is_refused(ready: list[float], transfer: list[float]) -> None:
    with pytest.raises(UsageError):
        schedule(ready, transfer)


def test_messages_of_resnet50_over_10g() -> None:
    """Per tensor 161 alphas, in one message one: 84.2 + 87.6 ms against 88.1 ms, all of it exposed after backward."""
    paper = network("resnet", 50, width=64, image_pixels=224, classes_count=1000)
    sizes = [4 * int(np.prod(shape)) for shape in gradient_shapes(paper)]
    times = ALPHA_10G + BETA_10G * np.array(sizes)
    assert times.sum() / 1e6 == pytest.approx(84.2 + 87.6, abs=0.1)
    one = merged(np.zeros(161), sizes, np.array([0]))[1]
    assert schedule([0.0], ALPHA_10G + BETA_10G * one).exposed_ns / 1e6 == pytest.approx(88.1, abs=0.1)


def test_the_link_works_for_one_after_the_other() -> None:
    """The second waited for the first; the third found the link free."""
    assert link_times([0, 2, 20], [10, 14, 23]).tolist() == [10, 4, 3]


def test_two_threads_share_the_link() -> None:
    """0-6 alone for the first, 6-10 shared, then 10-12 for the second; the third waits for a thread until 10."""
    found = link_times([0, 6, 7], [10, 12, 20], parallel=2)
    assert found.tolist() == [6 + 2, 2 + 1, 1 + 8]


def test_a_small_message_that_overtakes_is_not_free() -> None:
    assert link_times([0, 2], [20, 6], parallel=2).tolist() == [2 + 2 + 14, 2]
    assert link_times([0, 2], [20, 6]).tolist() == [20, 0]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 300)), min_size=1, max_size=30), st.integers(1, 4))
def test_the_recurrence_with_link_times_ends_as_it_was(rows: list[tuple[int, int]], parallel: int) -> None:
    ready = np.cumsum([float(gap) for gap, _ in rows])
    end = ready + [float(length) for _, length in rows]
    worked = link_times(ready, end, parallel=parallel)
    assert (worked >= 0).all()
    assert schedule(ready, worked).end_ns[-1] == pytest.approx(end.max())


def test_buckets_as_torch_fills_them() -> None:
    """A bucket is closed by the tensor that fills it, however large that is."""
    assert bucket_starts([4, 4, 4, 20, 1], 8).tolist() == [0, 2, 4]
    assert bucket_starts([10, 10], 1).tolist() == [0, 1]
    assert bucket_starts([10, 10], 1e9).tolist() == [0]
    ready, sizes = merged([1, 2, 3, 4, 5], [4, 4, 4, 20, 1], np.array([0, 2, 4]))
    assert ready.tolist() == [2, 4, 5]
    assert sizes.tolist() == [8, 24, 1]


def test_smaller_buckets_come_at_an_even_rate() -> None:
    ready, sizes, anywhere = rebucketed([10, 40], [100, 300], 200)
    assert anywhere
    assert ready.tolist() == [20, 40]
    assert sizes.tolist() == [200, 200]
    ready, sizes, _ = rebucketed([10, 20], [100, 100], 150)
    assert ready.tolist() == [20]
    assert sizes.tolist() == [200]
    with pytest.raises(UsageError):
        rebucketed([1], [1], 0)


def test_what_one_tensor_filled_is_not_divided() -> None:
    """A message per tensor, as recorded with the smallest buckets: torch sends the large one as it is."""
    ready, sizes, anywhere = rebucketed([10, 20, 30, 40, 50], [4, 3, 5, 100, 4], 10)
    assert not anywhere
    assert ready.tolist() == [30, 40, 50]
    assert sizes.tolist() == [12, 100, 4]


def test_ready_times_from_sizes() -> None:
    assert ready_by_sizes([10, 30, 60], 200.0).tolist() == [20, 80, 200]
    assert ready_by_sizes([0, 0], 5.0).tolist() == [5, 5]


def end_of(starts: np.ndarray, ready: list[float], sizes: list[float], alpha: float, beta: float) -> float:
    at, length = merged(ready, sizes, starts)
    return float(schedule(at, alpha + beta * length).end_ns[-1])


def greedy(ready: list[float], sizes: list[float], alpha: float, beta: float) -> np.ndarray:
    """MG-WFBP's rule: merge into the next if that is ready before this one is through, and waiting for it costs less
    than a start-up.
    """
    starts, size, free = [0], sizes[0], 0.0
    for number in range(len(ready) - 1):
        begin = max(ready[number], free)
        following = ready[number + 1]
        if following < begin + alpha + beta * size and (begin > following or following - begin < alpha):
            size += sizes[number + 1]
            continue
        free = begin + alpha + beta * size
        starts.append(number + 1)
        size = sizes[number + 1]
    return np.array(starts)


messages = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 50)), min_size=1, max_size=9)


@given(messages, st.integers(0, 30))
def test_the_best_merge_is_the_best_of_all(rows: list[tuple[int, int]], alpha: int) -> None:
    ready = np.cumsum([float(gap) for gap, _ in rows]).tolist()
    sizes = [float(size) for _, size in rows]
    merge = best_merge(ready, sizes, alpha, 1.0)
    best = end_of(merge, ready, sizes, alpha, 1.0)
    ways = itertools.chain.from_iterable(itertools.combinations(range(1, len(rows)), k) for k in range(len(rows)))
    ends = {way: end_of(np.array([0, *way]), ready, sizes, alpha, 1.0) for way in ways}
    assert best == min(ends.values())
    assert len(merge) == 1 + min(len(way) for way, end in ends.items() if end == best), (
        "the fewest messages of the best"
    )
    assert best <= end_of(greedy(ready, sizes, alpha, 1.0), ready, sizes, alpha, 1.0)


def test_a_dear_start_up_merges_everything_and_a_free_one_what_waits_anyway() -> None:
    assert best_merge([1, 2, 3], [1, 1, 1], 100.0, 1.0).tolist() == [0]
    assert best_merge([20, 21, 22], [5, 5, 5], 0.0, 1.0).tolist() == [0, 1], "the second waits for nothing any more"
    assert best_merge([20, 26, 32], [5, 6, 1], 0.0, 1.0).tolist() == [0, 1, 2]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 300), st.integers(0, 2)), min_size=1, max_size=30))
def test_links_one_by_one_are_links_together(rows: list[tuple[int, int, int]]) -> None:
    ready = np.cumsum([float(gap) for gap, _, _ in rows])
    took, lane = np.array([float(t) for _, t, _ in rows]), np.array([one for *_, one in rows])
    found = schedule(ready, took, lane=lane)
    for one in np.unique(lane):
        own = lane == one
        assert found.end_ns[own] == pytest.approx(schedule(ready[own], took[own]).end_ns)
    waits = np.zeros(len(rows), dtype=bool)
    waits[-1] = True  # nothing follows, so this changes the way of computing and no moment
    assert schedule(ready, took, blocking=waits, lane=lane).end_ns == pytest.approx(found.end_ns)
