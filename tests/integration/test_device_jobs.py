"""Whole jobs on played devices under the recorder: many ranks, every NCCL, what ends badly, what has no symbols."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from device import NEEDED, run_ranks
from measurements import Measurements
from traced import TracedRun

from stashtrace.analysis.stalls.budget import stalls
from stashtrace.schema.kinds import CollectiveSource, DeviceWork
from stashtrace.schema.trace import Trace

SETTLE = "sync device; sleep 100ms"  # the harvester sees the last events


def timed(trace: Trace) -> np.ndarray:
    return (trace.collectives["device_begin_ns"] >= 0) & (trace.collectives["device_end_ns"] >= 0)


def a_thousand_collectives(source: str, folder: Path) -> TracedRun:
    program = f"repeat 500 {{ allreduce 1MB stream=2; allgather 1MB stream=3 }}\n{SETTLE}"
    return run_ranks(8, program, folder, "nccl.bandwidth 100GB", env={"STASHTRACE_NCCL_SOURCE": source})


@pytest.mark.parametrize("source", ["plugin", "events"])
def test_eight_ranks_a_thousand_collectives(source: str, tmp_path: Path) -> None:
    run = a_thousand_collectives(source, tmp_path)
    assert [result["errors"] for result in run.results()] == [{}] * 8
    rows = run.trace.collectives
    assert Counter(rows["rank"].tolist()) == dict.fromkeys(range(8), 1000)
    assert len(set(rows["group_hash"].tolist())) == 1
    # Eight ranks on two cores that others use too: a stamp may be gone before it is read. That is reported.
    assert (~timed(run.trace)).sum() == sum(count for _, _, count in run.losses())


@pytest.mark.truth
@pytest.mark.parametrize("source", ["plugin", "events"])
def test_a_thousand_collectives_are_timed_and_in_order(source: str, tmp_path: Path) -> None:
    runs = Measurements(lambda folder: a_thousand_collectives(source, folder), tmp_path)
    runs.agree(lambda run: all_are_timed_and_in_order(run, source))


def all_are_timed_and_in_order(run: TracedRun, source: str) -> None:
    assert run.losses() == []
    assert timed(run.trace).all()
    rows = run.trace.collectives
    # One collective is one number on all ranks; each rank's are one after another.
    order = np.lexsort((rows["rank"], rows["sequence"]))
    begin = rows["device_begin_ns"][order].reshape(1000, 8)
    end = rows["device_end_ns"][order].reshape(1000, 8)
    assert (begin <= end).all()
    if source == "plugin":  # by events a begin is no earlier than the return of the call, which may come late
        slack = 2 * int(run.trace.device_clocks["error_ns"].max()) + 1024  # each device has a separate clock
        assert (end.min(axis=1) + slack >= begin.max(axis=1)).all()
        assert (end[:-1] <= begin[1:] + 512).all()
        details = run.trace.collective_details
        assert (details["timed_count"] == 2).all()
        assert (details["channel_skew_ns"] >= 0).all(), "both channels have both stamps"
        assert (details["channel_spread_ns"] >= 0).all()


#: Before 2.27 there is no plugin; its stamps are not asked for where events are allowed.
RELEASES = (21805, 22304, 22707, 22809, 22907, 23102)


@pytest.mark.parametrize("nccl_version", RELEASES)
def test_every_release_gives_the_same_collectives(nccl_version: int, tmp_path: Path) -> None:
    program = f"""
        allreduce 4KB stream=2; sync device
        group {{ allreduce 1MB stream=2; allgather 1MB stream=2 }}
        rank 0 send 1MB peer=1 stream=3
        rank 1 recv 1MB peer=0 stream=3
        bcast 1MB stream=2; reduce 1MB stream=2 root=1
        {SETTLE}
        """
    run = run_ranks(2, program, tmp_path, nccl_version=nccl_version)
    assert [result["errors"] for result in run.results()] == [{}] * 2
    trace = run.trace
    names = sorted(run.texts(trace.collectives, "name_code"))
    assert len(names) == 2 * 6
    assert set(trace.collectives["source_code"].tolist()) == {CollectiveSource.EVENTS}
    assert timed(trace).all()


@pytest.mark.parametrize("setting", ["race", "lost"])
def test_stamps_that_nccl_spoils_are_counted_and_never_used(setting: str, tmp_path: Path) -> None:
    program = f"allreduce 4KB stream=2; sync device\nrepeat 29 {{ allreduce 1MB stream=2 }}\n{SETTLE}"
    script = f"nccl.channels 1\nnccl.{setting} 3"
    run = run_ranks(2, program, tmp_path, script, env={"STASHTRACE_NCCL_SOURCE": "plugin"})
    assert [result["errors"] for result in run.results()] == [{}] * 2
    rows, known = run.trace.collectives, timed(run.trace)
    assert len(rows) == 2 * 30
    # No time is invented: what has stamps is as long as it was, the rest is untimed and reported.
    spent = (rows["device_end_ns"] - rows["device_begin_ns"])[known]
    assert ((spent >= 0) & (spent < 1_000_000_000)).all()
    assert known.sum() == 2 * 20
    assert sum(count for _, reason, count in run.losses() if reason == "collectives_untimed") == 2 * 10


def test_jobs_that_end_badly_end_as_they_would_untraced(tmp_path: Path) -> None:
    first = "allreduce 4KB stream=2; sync device; "
    alone = first + "allreduce 1MB stream=2; sleep 50ms; comm abort; sync device"
    for name, program in {
        "abort": {0: alone, 1: first + "leave"},
        "destroyed_in_flight": dict.fromkeys(
            (0, 1), first + "allreduce 300MB stream=2; comm destroy comm=0; sync device"
        ),
        "left_in_flight": dict.fromkeys((0, 1), first + "allreduce 300MB stream=2; kernel 1s stream=1; leave"),
        "non_blocking": dict.fromkeys((0, 1), "comm init new=0 nonblocking; allreduce 1MB stream=2; sync device"),
    }.items():
        run = run_ranks(2, program, tmp_path / name)
        assert [result["errors"] for result in run.results()] == [{}] * 2, name
        assert Counter(run.trace.collectives["rank"].tolist()).keys() == {0, 1}, name


@pytest.mark.parametrize("nodes", [1, 2])
def test_collectives_of_a_graph_are_seen_where_nccl_reports_them(nodes: int, tmp_path: Path) -> None:
    program = f"""
        allreduce 4KB stream=1; sync device
        capture stream=1 graph=1 {{ kernel 1ms stream=1; allreduce 1MB stream=1 }}
        repeat 5 {{ launch graph=1 stream=1 }}
        {SETTLE}
        """
    run = run_ranks(2, program, tmp_path, f"nccl.nodes {nodes}")
    assert [result["errors"] for result in run.results()] == [{}] * 2
    # The eager one and the captured one; and with proxies of the network, which hear of each launch of the graph.
    replayed = 5 if nodes > 1 else 0
    rows = run.trace.collectives
    assert Counter(rows["rank"].tolist()) == {0: 2 + replayed, 1: 2 + replayed}
    assert Counter(rows["rank"][timed(run.trace)].tolist()) == {0: 1, 1: 1}, "no time is measured inside a graph"


def deep_mode(folder: Path) -> TracedRun:
    program = f"""
        allreduce 4KB stream=2; sync device; meet
        repeat 10 {{
          copy h2d 100MB pinned stream=1; wait stream=0 for=1
          forward {{ kernel 4ms }}
          backward {{
            kernel 5ms; rank 1 kernel 6ms
            wait stream=2 for=0; allreduce 50MB stream=2; wait stream=0 for=2
          }}
          optimizer {{ kernel 1ms }}
          step; sync stream=0
        }}
        {SETTLE}
        """
    options = {"libraries": (*NEEDED, "cupti"), "kernels": True, "kernels_steps": "2:9"}
    return run_ranks(2, program, folder, **options)


def test_deep_mode_has_the_kernels_of_its_window(tmp_path: Path) -> None:
    run = deep_mode(tmp_path)
    kernels = run.trace.kernels
    works = Counter(kernels["work_code"].tolist())
    assert works[int(DeviceWork.COMMUNICATION)] == 2 * 7
    assert "gemm_kernel" in run.texts(kernels, "name_code")


@pytest.mark.truth
def test_deep_mode_and_brackets_agree(tmp_path: Path) -> None:
    Measurements(deep_mode, tmp_path).agree(times_are_as_played)


def times_are_as_played(run: TracedRun) -> None:
    table = stalls(run.trace, warmup=True)
    for rank, expected in ((0, {"compute": 10, "h2d": 2, "straggler": 6, "interconnect": 5}), (1, {"compute": 16})):
        rows = table.take((table["rank"] == rank) & (table["step"] >= 4) & (table["step"] < 8))
        assert set(rows["method"].tolist()) == {"kernels"}
        for kind, ms in expected.items():
            own = rows["stall_ns"][rows["kind"] == kind]
            # A late host shows elsewhere (launch, straggler of the other rank); the median step is not late.
            assert np.median(own) / 1e6 == pytest.approx(ms, rel=0.1), (rank, kind)
