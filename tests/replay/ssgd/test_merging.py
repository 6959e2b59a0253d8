"""Merging gradients: the measured GoogLeNet with its known ends, the rule of the paper, and cases by hand."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay.ssgd.mg_wfbp_logs import COSTS, column, googlenet

from stashtrace.replay.communication.overlap import best_merge, schedule
from stashtrace.replay.ssgd import Workload
from stashtrace.replay.ssgd.iteration_study import Merge, best, best_cap, layer_by_layer, merge_of

MS = 1e6
MIB = 2**20
#: Milliseconds since the begin of backward, of the independent evaluation that these logs are published with here:
#: sum of backward, end with measured messages, with fitted ones, all in one, best merge, messages of one such merge.
ENDS_MS = {
    "2": (200.3, 200.7, 200.5, 289.3, 200.5, 47),
    "4": (206.8, 262.0, 207.1, 317.5, 207.1, 37),
    "8": (205.3, 311.2, 233.7, 393.8, 206.2, 8),
    "8o": (202.3, 319.9, 233.7, 390.7, 203.1, 8),
}


def network(backward: list[float], sizes: list[float]) -> Workload:
    count = len(backward)
    names = tuple(f"layer {number}" for number in range(count))
    return Workload(names, np.zeros(count), np.array(backward[::-1]), np.full(count, np.nan), np.array(sizes[::-1]))


def by_rule(workload: Workload, alpha_ns: float, beta_ns_per_byte: float) -> Merge:
    """Merge by the paper's greedy rule, to hold the best merge against.

    A message waits for the next layer's gradients if they are ready before it would have arrived, and if it waits for
    less than a start-up costs.
    """
    ready, sizes = workload.ready_ns.tolist(), workload.sizes_bytes.tolist()
    starts, size, free = [0], sizes[0], 0.0
    for number, following in enumerate(ready[1:]):
        begin = max(ready[number], free)
        end = begin + alpha_ns + beta_ns_per_byte * size
        if following < end and following - begin < alpha_ns:
            size += sizes[number + 1]
            continue
        free = end
        starts.append(number + 1)
        size = sizes[number + 1]
    return merge_of(workload, starts, alpha_ns, beta_ns_per_byte)


def test_the_logs_are_whole() -> None:
    """Sums of the logs, taken before they were written down here."""
    assert column("parameters").sum() == 13_379_136
    sums = {"2": (200.3, 154.0), "4": (206.8, 261.5), "8": (205.3, 310.7), "8o": (202.3, 319.4)}
    for log, expected in sums.items():
        assert [column(f"{name}_{log}_us").sum() / 1e3 for name in ("backward", "comm")] == pytest.approx(
            expected, abs=0.05
        )
    assert [column(f"merged_{log}_us").sum() / 1e3 for log in ("8", "8o")] == pytest.approx((297.6, 277.2), abs=0.05)


@pytest.mark.parametrize("log", ENDS_MS)
def test_googlenet_ends_where_it_is_known_to(log: str) -> None:
    net, cost = googlenet(log), COSTS[log]
    assert net.measured_ns is not None
    backward, measured, fitted, single, merged, count = ENDS_MS[log]
    assert net.ready_ns[-1] / MS == pytest.approx(backward, abs=0.05)
    assert schedule(net.ready_ns, net.measured_ns).end_ns[-1] / MS == pytest.approx(measured, abs=0.051)
    assert layer_by_layer(net, *cost).end_ns / MS == pytest.approx(fitted, abs=0.051)
    assert merge_of(net, [0], *cost).end_ns / MS == pytest.approx(single, abs=0.051)
    found = best(net, *cost)
    assert found.end_ns / MS == pytest.approx(merged, abs=0.051)
    assert len(found) <= count, "another merge with that end has no fewer messages"


@pytest.mark.parametrize(("log", "end_ms"), [("8", 298.1), ("8o", 277.6)])
def test_merged_messages_as_measured_end_where_they_are_known_to(log: str, end_ms: float) -> None:
    net = googlenet(log, communication="merged")
    assert net.measured_ns is not None
    assert schedule(net.ready_ns, net.measured_ns).end_ns[-1] / MS == pytest.approx(end_ms, abs=0.051)


@pytest.mark.parametrize("log", COSTS)
def test_the_rule_of_the_paper_is_as_good_as_trying_everything(log: str) -> None:
    """To a tenth of a millisecond, on layers in the order in which they are made."""
    net, cost = googlenet(log), COSTS[log]
    assert by_rule(net, *cost).end_ns / MS == pytest.approx(best(net, *cost).end_ns / MS, abs=0.1)
    assert by_rule(net, *cost).end_ns >= best(net, *cost).end_ns


def test_one_cap_for_all_buckets_is_between_the_best_merge_and_none() -> None:
    for log, cost in COSTS.items():
        net = googlenet(log)
        cap, buckets = best_cap(net, *cost)
        assert best(net, *cost).end_ns <= buckets.end_ns <= layer_by_layer(net, *cost).end_ns
        sizes = buckets.sizes_bytes
        assert (sizes[:-1] >= cap * MIB).all()


def test_three_layers_by_hand() -> None:
    """A start-up is 4, a byte 1. Layers ready at 10, 12 and 30, of 5 bytes each.

    Alone: 10-19, 19-28, 30-39. The first two together: 12-26, the third 30-39. All: 30-49.
    """
    net = network([10, 2, 18], [5, 5, 5])
    assert layer_by_layer(net, 4, 1).end_ns == 39
    assert merge_of(net, [0], 4, 1).end_ns == 49
    assert by_rule(net, 4, 1).starts.tolist() == [0, 2]
    assert by_rule(net, 4, 1).time_ns.tolist() == [14, 9]
    assert by_rule(net, 4, 1).last_layers.tolist() == [1, 0]
    assert best(net, 4, 1).end_ns == by_rule(net, 4, 1).end_ns == 39


def test_a_busy_link_makes_merging_free() -> None:
    """The first message is in the way until 54: what is ready meanwhile goes as one, 54-68 in place of 54-76."""
    net = network([10, 2, 2, 2], [40, 5, 1, 4])
    assert layer_by_layer(net, 4, 1).end_ns == 54 + 9 + 5 + 8
    assert best(net, 4, 1).starts.tolist() == [0, 1]
    assert best(net, 4, 1).end_ns == 54 + 4 + 10


realistic = st.lists(st.tuples(st.floats(0.1, 20), st.floats(0.01, 9)), min_size=1, max_size=40)


def test_of_merges_that_end_together_the_fewest_buckets_are_taken_whatever_the_rounding() -> None:
    """The last layer decides the end: 1,000 to 1,009. Any merge of the others that is sent before is as good."""
    net = network([1, 1, 1, 997], [1 / 3, 1 / 7, 1 / 11, 5])
    for _ in range(50):
        beta = 1.0
        assert best(net, 4, beta).starts.tolist() == [0, 3]
        beta = np.nextafter(beta, 2)  # another machine adds in another order
    cap, buckets = best_cap(net, 4, 1.0)
    assert buckets.starts.tolist() == [0, 3]
    assert cap * MIB <= 1 / 3 + 1 / 7 + 1 / 11


@given(realistic, st.floats(0, 5), st.floats(0.01, 3), st.integers(0, 2**31))
def test_rounding_does_not_choose_the_merge(
    rows: list[tuple[float, float]], alpha: float, beta: float, seed: int
) -> None:
    """Ready times that differ by their last bits, as another machine's sums do, give the same buckets."""
    ready = np.cumsum([gap for gap, _ in rows])
    sizes = np.array([size for _, size in rows])
    noise = np.random.default_rng(seed).uniform(-1e-14, 1e-14, len(ready))
    assert (best_merge(ready, sizes, alpha, beta) == best_merge(ready * (1 + noise), sizes, alpha, beta)).all()


def test_the_rule_of_the_paper_can_wait_too_often() -> None:
    """The same layers: each is worth 2 of waiting, which is less than a start-up of 4; three of them are not."""
    net = network([10, 2, 2, 2], [40, 5, 1, 4])
    assert by_rule(net, 4, 1).starts.tolist() == [0]
    assert by_rule(net, 4, 1).end_ns == 16 + 4 + 50


def test_layers_without_parameters_send_nothing() -> None:
    net = network([10, 7, 5], [5, 0, 3])
    assert net.sends.tolist() == [2, 0]
    assert net.ready_ns.tolist() == [10, 22]
    assert layer_by_layer(net, 1, 1).end_ns == 26


def test_the_best_merge_of_many_messages_takes_no_memory_for_all_pairs() -> None:
    ready = np.cumsum(np.random.default_rng(3).uniform(1, 1e5, 1500))
    tracemalloc.start()
    assert len(best_merge(ready, np.full(1500, 1e5), 4.5e4, 0.09)) < 100
    most_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most_bytes < 2 << 20


@given(realistic, st.floats(0, 5), st.floats(0.01, 3))
def test_the_best_merge_is_never_later_than_the_rule(
    rows: list[tuple[float, float]], alpha: float, beta: float
) -> None:
    net = network([gap for gap, _ in rows], [size for _, size in rows])
    exact, rule = best(net, alpha, beta), by_rule(net, alpha, beta)
    assert exact.end_ns <= rule.end_ns * (1 + 1e-12)
    assert exact.end_ns >= net.ready_ns[-1] + alpha
    assert exact.end_ns <= layer_by_layer(net, alpha, beta).end_ns * (1 + 1e-12)
    for merge in (exact, rule):
        assert merge.sizes_bytes.sum() == pytest.approx(sum(size for _, size in rows))
