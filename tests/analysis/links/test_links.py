"""links: counters with known shares, background traffic, late ranks, too few samples; what must not be claimed."""

from __future__ import annotations

import numpy as np
import pytest
from builders import MS, WORLD, S, TraceBuilder

from stashtrace.analysis.links.paths import links
from stashtrace.errors import MissingDataError
from stashtrace.schema.kinds import CollectiveOp
from stashtrace.schema.trace import Trace

MB = 1_000_000
TP = 0x7B


class Machine:
    """Ranks with a device each whose collectives move bytes over scripted paths, sampled every `period`."""

    def __init__(self, ranks: int, *, hosts=("node00",), period: int = 20 * MS, length: int = 4 * S) -> None:
        self.build = TraceBuilder(hosts)
        self.ranks, self.period, self.length = ranks, period, length
        self.flows: dict[tuple[int, str], list[tuple[int, int, float]]] = {}
        self.gpus = [self.build.rank(rank).gpu(0, uuid=f"GPU-{rank}") for rank in range(ranks)]

    def carry(self, rank: int, path: str, begin: int, end: int, amount: float) -> None:
        self.flows.setdefault((rank, path), []).append((begin, end, amount))

    def collectives(
        self,
        every: int,
        takes: int,
        size: int,
        *,
        op=CollectiveOp.ALL_REDUCE,
        group: int = WORLD,
        factor: float,
        shares: dict[str, float],
        members=None,
        first=10 * MS,
        jitter=0,
    ):
        """Collectives of the members, whose expected bytes go over the paths by share."""
        members = list(range(self.ranks)) if members is None else members
        random = np.random.default_rng(7)
        for at in range(first, self.length - takes - jitter - 10 * MS, every):
            begin = at + int(random.integers(0, jitter + 1))
            times = dict.fromkeys(members, (begin, begin, begin, begin + takes))
            self.build.device_collective(times, op=op, group=group, message_bytes=size)
            for rank in members:
                for path, share in shares.items():
                    self.carry(rank, path, begin, begin + takes, size * factor * share)

    def trace(self) -> Trace:
        edges = np.arange(0, self.length, self.period)
        paths = {path for _, path in self.flows}
        for rank in range(self.ranks):
            for path in sorted(p for p in paths if " " not in p or (rank, p) in self.flows):
                total = np.zeros(len(edges))
                for begin, end, amount in self.flows.get((rank, path), []):
                    total += amount * np.clip((edges - begin) / (end - begin), 0, 1)
                for way in ("transmit", "receive"):
                    kind, _, port = path.partition(" ")
                    name = f"{kind}_{way}_bytes_total.{port}" if port else f"gpu_{kind}_{way}_bytes_total.GPU-{rank}"
                    self.build.counter(
                        rank, name, dict(zip(edges.tolist(), (1e9 + total).tolist(), strict=True)), "bytes"
                    )
        return self.build.trace()


def row(trace: Trace, path: str, op: str = "all_reduce", communicator: str = "default_pg") -> dict:
    (found,) = [r for r in links(trace).rows() if (r["path"], r["op"], r["communicator"]) == (path, op, communicator)]
    return found


def test_shares_of_two_paths() -> None:
    machine = Machine(4)
    machine.collectives(170 * MS, 60 * MS, 100 * MB, factor=1.5, shares={"nvlink": 0.75, "pcie": 0.25}, jitter=60 * MS)
    trace = machine.trace()
    nvlink, pcie = row(trace, "nvlink"), row(trace, "pcie")
    assert nvlink["share_ratio"] == pytest.approx(0.75, abs=0.01)
    assert pcie["share_ratio"] == pytest.approx(0.25, abs=0.01)
    assert nvlink["confidence"] == pcie["confidence"] == "good"
    assert nvlink["places_count"] == 4
    assert nvlink["expected_bytes"] == pytest.approx(nvlink["collectives_count"] * 150 * MB, rel=1e-6)
    assert nvlink["seen_bytes"] == pytest.approx(0.75 * nvlink["expected_bytes"], rel=0.2)  # windows cut the edges


def test_other_traffic_is_not_theirs() -> None:
    machine = Machine(2)
    machine.collectives(170 * MS, 60 * MS, 100 * MB, factor=1.0, shares={"nvlink": 1.0}, jitter=60 * MS)
    for rank in range(2):
        machine.carry(rank, "pcie", 0, machine.length, 40e9)  # batches, all the time
    trace = machine.trace()
    pcie = row(trace, "pcie")
    assert abs(pcie["share_ratio"]) <= max(3 * pcie["error_ratio"], 0.01)
    assert pcie["seen_bytes"] > pcie["expected_bytes"]  # why the bytes seen alone would mislead
    assert row(trace, "nvlink")["share_ratio"] == pytest.approx(1.0, abs=0.01)


def test_two_classes_with_different_paths() -> None:
    machine = Machine(4, period=10 * MS, length=6 * S)
    machine.build.group([0, 1], group=TP, name="tp")
    machine.collectives(
        230 * MS,
        50 * MS,
        80 * MB,
        op=CollectiveOp.ALL_GATHER,
        group=TP,
        members=[0, 1],
        factor=1.0,
        shares={"nvlink": 1.0, "pcie": 0.0},
        jitter=70 * MS,
    )
    machine.collectives(310 * MS, 80 * MS, 60 * MB, factor=1.5, shares={"pcie": 1.0, "nvlink": 0.0}, jitter=90 * MS)
    trace = machine.trace()
    assert row(trace, "nvlink", "all_gather", "tp")["share_ratio"] == pytest.approx(1.0, abs=0.02)
    assert row(trace, "pcie", "all_gather", "tp")["share_ratio"] == pytest.approx(0.0, abs=0.02)
    assert row(trace, "pcie")["share_ratio"] == pytest.approx(1.0, abs=0.02)
    assert row(trace, "nvlink", "all_gather", "tp")["places_count"] == 2


def test_bytes_are_expected_from_the_entry_of_the_last_rank() -> None:
    """Rank 1 is late by 50 ms each time: nothing moves until it comes."""
    machine = Machine(2, period=10 * MS)
    random = np.random.default_rng(3)
    for at in range(10 * MS, 3_700 * MS, 200 * MS):
        begin = at + int(random.integers(0, 60 * MS))
        late = begin + 50 * MS
        end = late + 20 * MS
        machine.build.device_collective(
            {0: (begin, begin, begin, end), 1: (late, late, late, end)}, message_bytes=50 * MB
        )
        for rank in range(2):
            machine.carry(rank, "nvlink", late, late + 20 * MS, 50 * MB)
    found = row(machine.trace(), "nvlink")
    assert found["share_ratio"] == pytest.approx(1.0, abs=0.02)
    assert found["confidence"] == "good"


def test_hosts_share_a_network() -> None:
    """Two hosts of two ranks: in a ring, one of two edges of a host leaves it, so half of the bytes on average."""
    machine = Machine(4, hosts=("a", "a", "b", "b"))
    machine.collectives(170 * MS, 60 * MS, 100 * MB, factor=1.5, shares={"nvlink": 0.5}, jitter=60 * MS)
    for (rank, _), flows in list(machine.flows.items()):
        if rank % 2 == 0:
            machine.flows[rank, "rdma mlx5_0:1"] = [(b, e, 2 * amount) for b, e, amount in flows]
    found = row(machine.trace(), "rdma mlx5_0:1")
    assert found["share_ratio"] == pytest.approx(0.5, abs=0.02)
    assert found["places_count"] == 2


def test_an_idle_interface_is_not_listed() -> None:
    machine = Machine(2)
    machine.collectives(170 * MS, 60 * MS, 100 * MB, factor=1.0, shares={"nvlink": 1.0}, jitter=60 * MS)
    machine.carry(0, "net eth0", 0, machine.length, 1 * MB)
    assert {r["path"] for r in links(machine.trace()).rows()} == {"nvlink"}


def test_a_path_without_traffic_has_share_zero_though_it_is_sampled_rarely() -> None:
    machine = Machine(2)
    machine.collectives(170 * MS, 60 * MS, 100 * MB, factor=1.0, shares={"pcie": 1.0}, jitter=60 * MS)
    trace_builder = machine.build
    for rank in range(2):
        for way in ("transmit", "receive"):
            trace_builder.counter(rank, f"gpu_nvlink_{way}_bytes_total.GPU-{rank}", {0: 5.0, 2 * S: 5.0, 4 * S: 5.0})
    found = row(machine.trace(), "nvlink")
    assert (found["share_ratio"], found["confidence"], found["seen_bytes"]) == (0.0, "good", 0)


def test_links_counted_one_by_one_are_added() -> None:
    machine = Machine(2)
    machine.collectives(170 * MS, 60 * MS, 100 * MB, factor=1.0, shares={"nvlink": 0.5}, jitter=60 * MS)
    whole = machine.trace()
    for track in list(machine.build.rows["tracks"]):
        name = machine.build.strings.text(track["name_code"])
        if name.startswith("gpu_nvlink"):
            track["name_code"] = machine.build.strings.code(name + ":0")
            values = {
                r["ts_ns"]: r["value"] for r in machine.build.rows["counters"] if r["track_id"] == track["track_id"]
            }
            machine.build.counter(int(name[-1]), name + ":1", values)
    assert row(whole, "nvlink")["share_ratio"] == pytest.approx(0.5, abs=0.01)
    assert row(machine.build.trace(), "nvlink")["share_ratio"] == pytest.approx(1.0, abs=0.02)


def test_three_collectives_are_not_enough() -> None:
    machine = Machine(2, length=1 * S, period=100 * MS)
    machine.collectives(400 * MS, 20 * MS, 100 * MB, factor=1.0, shares={"nvlink": 1.0})
    found = row(machine.trace(), "nvlink")
    assert (found["share_ratio"], found["error_ratio"], found["confidence"]) == (-1.0, -1.0, "not enough samples")


def test_a_steady_load_gives_an_upper_bound() -> None:
    """Every window holds the same bytes: the background may be any part of them."""
    machine = Machine(2, period=100 * MS)
    machine.collectives(10 * MS, 4 * MS, 10 * MB, factor=1.0, shares={"nvlink": 0.9}, first=0)
    found = row(machine.trace(), "nvlink")
    assert found["confidence"] == "upper bound"
    assert found["share_ratio"] == pytest.approx(0.9, abs=0.02)


def test_classes_that_always_come_together_cannot_be_distinguished() -> None:
    machine = Machine(2, period=100 * MS)
    for op in (CollectiveOp.ALL_GATHER, CollectiveOp.REDUCE_SCATTER):
        machine.collectives(
            300 * MS,
            4 * MS,
            10 * MB,
            op=op,
            factor=1.0 if op == CollectiveOp.ALL_GATHER else 0.5,
            shares={"nvlink": 1.0},
            first=20 * MS,
        )
    for op in ("all_gather", "reduce_scatter"):
        found = row(machine.trace(), "nvlink", op)
        assert (found["share_ratio"], found["confidence"]) == (-1.0, "not separable")


def test_the_standard_error_is_what_it_says() -> None:
    """Noise on the counters: in most of the draws the true share lies within two standard errors."""
    inside = 0
    for seed in range(40):
        random = np.random.default_rng(seed)
        machine = Machine(2)
        machine.collectives(170 * MS, 60 * MS, 100 * MB, factor=1.0, shares={"nvlink": 0.6}, jitter=60 * MS)
        for rank in range(2):
            for at in range(0, machine.length - 40 * MS, 40 * MS):
                machine.carry(rank, "nvlink", at, at + 40 * MS, float(random.uniform(0, 40 * MB)))
        found = row(machine.trace(), "nvlink")
        inside += abs(found["share_ratio"] - 0.6) <= 2 * found["error_ratio"]
    assert inside >= 34


def test_without_collectives_or_counters() -> None:
    build = TraceBuilder()
    build.rank(0).phase("forward", 0, 1 * MS)
    with pytest.raises(MissingDataError, match="no collective"):
        links(build.trace())
    build.collective({0: (0, 10), 1: (0, 10)})
    with pytest.raises(MissingDataError, match="no counter"):
        links(build.trace())
