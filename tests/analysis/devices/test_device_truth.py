"""What a fault costs is what the attribution gives to its kind: wall time with it minus wall time without.

On virtual devices (device_simulation.py); tests/ground_truth has the same faults through the real recorder.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from analysis.devices.device_simulation import Job

from stashtrace.analysis.registry import analyze
from stashtrace.analysis.stalls.budget import stalls
from stashtrace.schema.kinds import CollectiveSource
from stashtrace.schema.trace import Trace

PLAIN = Job()
#: Fault, kind, rank that shows it.
FAULTS = {
    "loader": (replace(PLAIN, batch_ms=60), "prep", 0),
    "copy": (replace(PLAIN, copy_ms=45), "h2d", 0),  # slower than the step that would hide it
    "link": (replace(PLAIN, transfer_ms=25), "interconnect", 1),
    "link_on_compute": (replace(PLAIN, transfer_ms=25, on_compute_stream=True), "interconnect", 1),
    "link_by_plugin": (replace(PLAIN, transfer_ms=25, source=CollectiveSource.PLUGIN), "interconnect", 0),
    "network": (replace(PLAIN, transfer_ms=25, hosts=("a", "b")), "network", 0),
    "straggler": (replace(PLAIN, late_ms=20), "straggler", 0),
    "straggler_by_plugin": (replace(PLAIN, late_ms=20, source=CollectiveSource.PLUGIN), "straggler", 0),
    "launch": (replace(PLAIN, idle_us=3000), "launch", 0),
    "sync": (replace(PLAIN, sync_every=2, after_sync_ms=4), "sync", 0),
}
#: Faults of which timing events give bounds alone.
BOUNDED = ("launch", "sync")
ENOUGH = 0.9
TOO_MUCH = 1.1


def sums(trace: Trace, rank: int) -> tuple[int, dict[str, tuple[int, int, int]]]:
    """Wall time and (point, low, high) of each kind over all steps but the first."""
    table = stalls(trace)
    rows = table.take((table["rank"] == rank) & (table["step"] > 0))
    kinds = {
        kind: tuple(int(rows[c][rows["kind"] == kind].sum()) for c in ("stall_ns", "low_ns", "high_ns"))
        for kind in set(rows["kind"].tolist())
    }
    return int(rows["stall_ns"].sum()), kinds


@pytest.mark.parametrize("kernels", [False, True], ids=["brackets", "kernels"])
@pytest.mark.parametrize("fault", FAULTS)
def test_the_right_kind_gets_what_the_fault_cost(fault: str, kernels: bool) -> None:
    job, kind, rank = FAULTS[fault]
    plain = replace(PLAIN, hosts=job.hosts, on_compute_stream=job.on_compute_stream, source=job.source)
    trace = job.trace(kernels=kernels)
    wall, found = sums(trace, rank)
    wall_before, before = sums(plain.trace(kernels=kernels), rank)
    cost = wall - wall_before
    assert cost > 0.3 * wall_before, "the fault is small"
    table = stalls(trace)
    assert set(table["method"][table["step"] >= 0]) == {"kernels" if kernels else "brackets"}
    point, low, high = found[kind]
    if fault in BOUNDED and not kernels:
        assert low == 0
        # Where a blocking call drained the device and the host then launches slowly, both kinds bound the time.
        assert high >= ENOUGH * cost
        assert found["compute"][1] <= found["compute"][0] - ENOUGH * cost
        return
    gained = point - before.get(kind, (0, 0, 0))[0]
    assert ENOUGH * cost <= gained <= TOO_MUCH * cost, f"cost {cost / 1e6} ms, {found}"
    assert low <= point <= high


@pytest.mark.parametrize("fault", [f for f in FAULTS if f not in BOUNDED])
def test_brackets_agree_with_kernels(fault: str) -> None:
    trace = FAULTS[fault][0].trace(kernels=True)
    table = analyze(trace, "agreement")
    inner = table.take(table["step"] > 0)
    assert len(inner)
    for row in inner.rows():
        assert abs(row["difference_ratio"]) < 0.03, row


@pytest.mark.parametrize("fault", FAULTS)
def test_kernels_lie_within_the_bounds_of_brackets(fault: str) -> None:
    table = analyze(FAULTS[fault][0].trace(kernels=True), "agreement")
    for row in table.take(table["step"] > 0).rows():
        slack = 300_000  # launches of some microseconds each, which events lump with what they stand around
        assert row["low_ns"] - slack <= row["kernels_ns"] <= row["high_ns"] + slack, row


def test_blame_goes_to_the_late_rank() -> None:
    table = stalls(FAULTS["straggler"][0].trace())
    late = table.take((table["kind"] == "straggler") & (table["rank"] == 0) & (table["step"] > 0))
    assert set(late["cause_rank"].tolist()) == {1}
