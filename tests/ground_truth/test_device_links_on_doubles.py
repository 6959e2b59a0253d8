"""Links on played devices: groups over hosts and inside them, hosts known by nothing but the ranks' names, queues."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from traced import TracedRun

from ground_truth import device_scenarios
from ground_truth.device_scenarios import Scenario
from ground_truth.device_truth import TOLERANCE, check
from stashtrace.analysis.stalls.hidden import hidden
from stashtrace.summary.summary_text import summary

pytestmark = pytest.mark.truth

HOSTS = ("node01", "node01", "node02", "node02")
_TRAIN = "forward {{ {} kernel 10ms }} backward {{ repeat 20 {{ kernel 500us }} }} optimizer {{ {} kernel 2ms }}"
_ALL_REDUCE = "wait stream=2 for=0; allreduce {} stream=2; wait stream=0 for=2;"


def everywhere(ranks: int, **kinds: float) -> dict[int, dict[str, float]]:
    return dict.fromkeys(range(ranks), kinds)


#: 250 MB at 10 GB/s.
BY_NAMES = Scenario(
    "network_by_names",
    _TRAIN.format("", _ALL_REDUCE.format("250MB")),
    everywhere(2, compute=22, network=25),
    25,
    hosts=("node01", "node02"),
)
#: The proxies have bytes in flight from begin to end.
PROXIES = Scenario(
    "mixed_by_proxies",
    _TRAIN.format("", _ALL_REDUCE.format("250MB")),
    everywhere(4, compute=22, network=25),
    25,
    hosts=HOSTS,
    script="nccl.node.ranks 2",
)
#: 250 MB take 50 ms over the network; between the two ranks of a host they would take 25. The run's traffic inside
#: the hosts, hidden behind compute, shows that by three other sizes.
ESTIMATED = Scenario(
    "mixed_estimated",
    _TRAIN.format(
        "allreduce 20MB stream=3 comm=1; allreduce 60MB stream=3 comm=1; allreduce 130MB stream=3 comm=1;",
        _ALL_REDUCE.format("250MB"),
    ),
    everywhere(4, compute=22, network=25, interconnect=25),
    25,
    hosts=HOSTS,
    prelude="allreduce 4KB stream=2; "
    + " ".join(f"rank {rank} comm split new=1 color={rank // 2};" for rank in range(4)),
    script="nccl.node.ranks 2\nnccl.network.bandwidth 5GB",
)
UNKNOWN = Scenario(
    "mixed_unknown",
    _TRAIN.format("", _ALL_REDUCE.format("250MB")),
    everywhere(4, compute=22, network=25),
    25,
    hosts=HOSTS,
    bounds=everywhere(4, interconnect=25),
)
QUEUED = Scenario(
    "queued",
    _TRAIN.format("", "wait stream=2 for=0; allreduce 250MB stream=2; allreduce 50MB stream=2; wait stream=0 for=2;"),
    everywhere(2, compute=22, interconnect=30),
    25,
)


def is_median(column: str, milliseconds: float, run: TracedRun) -> None:
    """Of the steps in the middle of the run, in the table of what is hidden."""
    table = hidden(run.trace)
    middle = table.take((table["step"] >= device_scenarios.LEFT_OUT) & (table["step"] < device_scenarios.STEPS - 2))
    assert np.median(middle[column]) / 1e6 == pytest.approx(milliseconds, rel=TOLERANCE)


def test_network_by_the_names_of_hosts_alone(tmp_path: Path) -> None:
    check(BY_NAMES, "events", tmp_path)


@pytest.mark.parametrize("mode", ["brackets", "kernels"])
def test_proxies_of_a_group_over_hosts_and_inside_them(mode: str, tmp_path: Path) -> None:
    check(PROXIES, mode, tmp_path)


def test_without_proxies_the_part_inside_hosts_is_estimated(tmp_path: Path) -> None:
    run = check(ESTIMATED, "events", tmp_path, also=partial(is_median, "estimated_ns", 50))
    assert "network by what transfers inside a host take" in " ".join(summary(run.trace).split())


def test_without_proxies_and_an_estimate_it_is_bounds(tmp_path: Path) -> None:
    check(UNKNOWN, "events", tmp_path)


@pytest.mark.parametrize("mode", ["brackets", "events"], ids=["plugin", "events"])
def test_queued_behind_an_earlier_collective(mode: str, tmp_path: Path) -> None:
    check(QUEUED, mode, tmp_path, also=partial(is_median, "queued_ns", 25))
