"""The graph of S-SGD: its replay is the closed form where all workers are equal, and a timeline by hand where not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay.ssgd.closed_form import iteration_ns
from replay.ssgd.mg_wfbp_logs import COSTS, googlenet

from stashtrace.errors import UsageError
from stashtrace.replay.ssgd import PRESETS, VARIANTS, Ring, Variant, Workload, replay, speedups
from stashtrace.replay.ssgd.iteration_study import best, layer_by_layer
from stashtrace.replay.ssgd.tasks import NAIVE, PREFETCH, WAIT_FREE

#: Layers, totals in ns and bytes of workloads that were published per layer: forward, backward, gradients.
TOTALS = {
    "alexnet": (8, 18.4e6, 42.3e6, 244.4e6),
    "resnet18": (21, 31.5e6, 115.8e6, 46.7e6),
    "resnet50": (54, 79.3e6, 268.9e6, 102.0e6),
    "vgg11": (11, 77.6e6, 170.1e6, 531.4e6),
}
SMALL = Workload(
    ("a", "b", "c"),
    np.array([10, 20, 30]),
    np.array([15, 25, 35]),
    np.full(3, np.nan),
    np.array([100, 0, 300]),
    40,
    5,
    7,
)


PRESET = {variant.name: variant for variant in PRESETS}


def spread(name: str) -> Workload:
    """A network of these totals: the time of layers falls with depth, their gradients grow, as in nets of images."""
    layers, forward, backward, gradients = TOTALS[name]
    early, late = np.arange(layers, 0, -1), np.arange(1, layers + 1) ** 2
    names = tuple(f"{number}x{number}.layer" for number in range(layers))
    share = early / early.sum()
    return Workload(
        names, forward * share, backward * share, np.full(layers, np.nan), np.rint(gradients * late / late.sum())
    )


def closed(net: Workload, variant: Variant, workers: int, cost: tuple[float, float]) -> float:
    if workers == 1:
        return iteration_ns(net, variant)
    messages = layer_by_layer(net, *cost)
    return iteration_ns(net, variant, messages.ready_ns, np.rint(messages.time_ns))


def replayed(net: Workload, variant: Variant, workers: int, cost: tuple[float, float]) -> int:
    if workers == 1:
        return replay(net, variant, workers=1).iteration_ns
    messages = layer_by_layer(net, *cost)
    return replay(
        net, variant, workers=workers, last_layers=messages.last_layers, message_ns=messages.time_ns
    ).iteration_ns


times = st.integers(0, 1000)


@settings(deadline=None)
@given(
    st.lists(st.tuples(times, times, st.integers(0, 500)), min_size=1, max_size=8),
    st.tuples(times, times, times),
    st.integers(1, 4),
    st.integers(0, 200),
)
def test_the_replay_is_the_closed_form(
    layers: list[tuple[int, int, int]], whole: tuple[int, int, int], workers: int, alpha: int
) -> None:
    """To the nanosecond: each variant and preset, one worker and several, any layers, whatever is the longest part."""
    forward, backward, sizes = (np.array(column, dtype=float) for column in zip(*layers, strict=True))
    names = tuple(map(str, range(len(layers))))
    net = Workload(names, forward, backward, np.full(len(layers), np.nan), sizes, *map(float, whole))
    if not len(net.sends):
        workers = 1
    for variant in (*VARIANTS, *PRESETS):
        assert replayed(net, variant, workers, (alpha, 1.0)) == closed(net, variant, workers, (alpha, 1.0))


def test_the_formulas_of_one_device_and_of_three_variants_by_hand() -> None:
    """Forward 60, backward 75, update 7, reading 40, copying 5; messages of 2 a byte: 600 for c, 200 for a."""
    assert closed(SMALL, NAIVE, 1, (0, 0)) == 40 + 5 + 60 + 75 + 7
    assert closed(SMALL, NAIVE, 2, (0, 2)) == 40 + 5 + 60 + 75 + 800 + 7
    assert closed(SMALL, PREFETCH, 2, (0, 2)) == 60 + 75 + 800 + 7
    # c is ready at 35 and arrives at 635; a is ready at 75 and has to wait: 635-835, 760 after backward.
    assert closed(SMALL, WAIT_FREE, 2, (0, 2)) == 60 + 75 + 760 + 7
    # CNTK, as its preset has it: the copy of a batch lies between two iterations.
    assert closed(SMALL, PRESET["cntk"], 2, (0, 2)) == 5 + 60 + 75 + 800 + 7


def test_every_task_where_it_belongs() -> None:
    """Two workers, of which the second computes half as fast, one message per layer."""
    messages = layer_by_layer(SMALL, 0, 1)
    found = replay(
        SMALL,
        WAIT_FREE,
        workers=2,
        last_layers=messages.last_layers,
        message_ns=messages.time_ns,
        iterations=2,
        slowness=[1, 2],
    )
    assert found.reads_ns[0].tolist() == [[0, 40]] * 2
    assert found.copies_ns[0].tolist() == [[40, 45]] * 2
    assert found.forward_ns[0, 0].tolist() == [[45, 55], [55, 75], [75, 105]]
    assert found.forward_ns[0, 1].tolist() == [[45, 65], [65, 105], [105, 165]]
    assert found.backward_ns[0, 0].tolist() == [[165, 180], [140, 165], [105, 140]]
    assert found.backward_ns[0, 1].tolist() == [[285, 315], [235, 285], [165, 235]]
    # c needs both workers: 235. a is ready at 315, when c is still on its way.
    assert found.messages_ns[0].tolist() == [[235, 535], [535, 635]]
    assert found.updates_ns[0].tolist() == [[635, 642], [635, 649]]
    assert found.reads_ns[1].tolist() == [[45, 85]] * 2  # one ahead
    assert found.forward_ns[1, 0, 0].tolist() == [642, 652]

    assert found.ends_ns[0] == 649


@pytest.mark.parametrize("name", TOTALS)
def test_speed_ups_of_published_totals(name: str) -> None:
    """Over 10 Gbit/s and 45 us a hop. Communication of N workers in closed form, of no overlap and of full overlap."""
    net, ring = spread(name), Ring(45_000.0, 0.8)
    layers, forward, backward, gradients = TOTALS[name]
    alone = forward + backward
    counts = [1, 2, 4, 8, 16, 32]
    naive = speedups(net, NAIVE, ring, counts)
    wait_free, merged = (speedups(net, WAIT_FREE, ring, counts, merging=merging) for merging in (False, True))
    assert naive[0].speedup == 1
    for n, plain, hidden, together in zip(counts, naive, wait_free, merged, strict=True):
        sent = 2 * (n - 1) * 45_000.0 * layers + 2 * (n - 1) / n * gradients * 0.8
        assert plain.iteration_ns == pytest.approx(alone + sent, rel=1e-4)
        assert plain.speedup == pytest.approx(n * alone / (alone + sent), rel=1e-4)
        # Backward cannot hide more than itself, and nothing before the first gradients are made.
        first = net.backward_ns[-1]
        low = max(alone, forward + first + 2 * (n - 1) / n * gradients * 0.8)
        assert low * (1 - 1e-6) <= together.iteration_ns <= hidden.iteration_ns <= plain.iteration_ns
        assert plain.efficiency_ratio == plain.speedup / n


def test_merging_is_worth_most_where_messages_are_small_and_many() -> None:
    """GoogLeNet on 8 nodes: exposed communication falls from 28.4 ms to 0.9 ms, with the fitted cost of a message."""
    net, cost = googlenet("8"), COSTS["8"]
    ring = Ring.of_messages(*cost, workers=8)
    assert ring.message_line(8) == pytest.approx(cost)
    plain, merged = (speedups(net, WAIT_FREE, ring, [8], merging=merging)[0] for merging in (False, True))
    alone = 1.5 * net.backward_ns.sum()
    assert (plain.iteration_ns - alone) / 1e6 == pytest.approx(233.7 - 205.3, abs=0.1)
    assert (merged.iteration_ns - alone) / 1e6 == pytest.approx(206.2 - 205.3, abs=0.1)
    messages = best(net, *cost)
    assert (plain.messages_count, merged.messages_count) == (64, len(messages))
    assert merged.iteration_ns == pytest.approx(
        iteration_ns(net, WAIT_FREE, messages.ready_ns, messages.time_ns), abs=64
    )


def test_presets_differ_in_what_they_overlap() -> None:
    assert [(preset.name, preset.overlaps) for preset in PRESETS] == [
        ("caffe-mpi", "reading, copies, communication"),
        ("cntk", "reading"),
        ("mxnet", "reading, communication"),
        ("tensorflow", "reading, communication"),
    ]
    assert NAIVE.overlaps == "nothing"


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"workers": 0}, "cannot replay"),
        ({"iterations": 0}, "cannot replay"),
        ({"message_ns": [1.0]}, "differ in number"),
        ({"slowness": [1.0]}, "differ in number"),
        ({"last_layers": [3], "message_ns": [1.0]}, "outside of the 3"),
    ],
)
def test_requests_that_fit_to_no_graph(changed: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        replay(SMALL, NAIVE, **({"workers": 2} | changed))  # type: ignore[arg-type]


def test_times_that_nobody_can_count_are_refused() -> None:
    ages, nothing = (np.full(2, value) for value in (1e18, 0.0))
    with pytest.raises(UsageError, match="too long to replay"):
        replay(Workload(("a", "b"), ages, ages, nothing, nothing), NAIVE, workers=1)
    with pytest.raises(UsageError, match="too long to replay"):
        speedups(SMALL, NAIVE, Ring(1e200, 1), [1_000])
    with pytest.raises(UsageError, match="takes no time"):
        speedups(Workload(("a", "b"), nothing, nothing, nothing, nothing + 8), NAIVE, Ring(1, 1), [2])


def test_a_million_workers_cost_what_two_do() -> None:
    ring = Ring(0.001, 1.0)
    (found,) = speedups(SMALL, NAIVE, ring, [1_000_000])
    alpha, beta = ring.message_line(1_000_000)
    assert found.iteration_ns == 40 + 5 + 60 + 75 + 7 + round(alpha + 300 * beta) + round(alpha + 100 * beta)


def test_what_is_no_workload_is_refused() -> None:
    with pytest.raises(UsageError, match="without layers"):
        Workload((), *[np.zeros(0)] * 4)
    with pytest.raises(UsageError, match="2 layers, but backward_ns has 1"):
        Workload(("a", "b"), np.zeros(2), np.zeros(1), np.zeros(2), np.zeros(2))
    with pytest.raises(UsageError, match="gradient_bytes"):
        Workload(("a",), np.zeros(1), np.zeros(1), np.zeros(1), -np.ones(1))
    with pytest.raises(UsageError, match="cannot be copied ahead"):
        Variant("odd", prefetches=False, copies_ahead=True, layer_wise=False)

    with pytest.raises(UsageError, match="sends no messages"):
        Ring.of_messages(1, 1, workers=1)
    with pytest.raises(UsageError, match="cannot train"):
        speedups(SMALL, NAIVE, Ring(1, 1), [0])
