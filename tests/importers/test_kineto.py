"""Kineto's files become the tables of devices: what goes where, and what a damaged or foreign file costs."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from importers.kineto_files import PID, START_NS, device, host, launch, rank_of_two, step, us, write
from importers.read_back import advice, load, losses

import stashtrace
from stashtrace.errors import DataLossWarning, ImporterError
from stashtrace.importers import kineto
from stashtrace.schema.kinds import (
    CollectiveOp,
    CollectiveSource,
    CopyDirection,
    DeviceCall,
    DeviceWork,
    Phase,
    SpanKind,
)
from stashtrace.summary.summary_text import summary


def test_kernels_with_their_launches(tmp_path: Path) -> None:
    path = write(
        tmp_path / "rank3.json",
        [
            launch(1, 10, 4),
            launch(2, 20, 30, "cudaMemcpyAsync"),
            device("gemm", 100.001, 7.25, correlation=1),
            device("Memcpy HtoD (Pageable -> Device)", 30, 9, cat="gpu_memcpy", correlation=2, bytes=4096),
            device("Memset (Device)", 50, 1, cat="gpu_memset", correlation=99, bytes=8, stream=21),
            host("cudaStreamSynchronize", 60, 55, cat="cuda_runtime", correlation=3),
        ],
        deviceProperties=[{"id": 0, "name": "H100", "numSms": 132, "computeMajor": 9, "computeMinor": 0}],
    )
    trace = load(path)
    kernels = trace.kernels
    assert [trace.text(c) for c in kernels["name_code"]] == [
        "Memcpy HtoD (Pageable -> Device)",
        "Memset (Device)",
        "gemm",
    ]
    assert kernels["begin_ns"].tolist() == [20_000, 40_000, 90_001]  # from the first event on, to the nanosecond
    assert kernels["end_ns"].tolist() == [29_000, 41_000, 97_251]
    assert kernels["launch_ns"].tolist() == [10_000, -1, 0]
    assert kernels["return_ns"].tolist() == [40_000, -1, 4_000]
    assert kernels["work_code"].tolist() == [DeviceWork.COPY, DeviceWork.MEMSET, DeviceWork.KERNEL]
    assert kernels["copy_code"].tolist() == [CopyDirection.HOST_TO_DEVICE, 0, 0]
    assert kernels["size_bytes"].tolist() == [4096, 8, 0]
    assert trace.processes["rank"].tolist() == [3]
    assert trace.processes["pid"].tolist() == [PID]
    assert trace.device_calls["call_code"].tolist() == [DeviceCall.COPY, DeviceCall.STREAM_SYNCHRONIZE]
    assert [trace.text(c) for c in trace.devices["name_code"]] == ["H100"]
    assert losses(trace)["launches_not_in_file"] == 1


def test_two_ranks(tmp_path: Path) -> None:
    trace = load(rank_of_two(tmp_path / "a.json.gz", 0), rank_of_two(tmp_path / "b.json", 1, late_us=100))
    steps = stashtrace.analyze(trace, "steps")
    assert sorted(zip(steps["rank"].tolist(), steps["step"].tolist(), strict=True)) == [
        (0, 10),
        (0, 11),
        (1, 10),
        (1, 11),
    ]
    assert set(steps["matched_code"].tolist()) == {1}
    collectives = trace.collectives
    assert set(collectives["op_code"].tolist()) == {CollectiveOp.ALL_REDUCE}
    assert set(collectives["message_bytes"].tolist()) == {1024}
    assert set(collectives["source_code"].tolist()) == {CollectiveSource.IMPORTED}
    assert sorted(collectives["sequence"].tolist()) == [0, 0, 1, 1]
    late = stashtrace.analyze(trace, "stragglers")
    assert late["last_count"].tolist() == [0, 2]
    stalls = stashtrace.analyze(trace, "stalls")
    assert set(stalls["method"][stalls["step"] >= 0].tolist()) == {"kernels"}
    waited = (stalls["rank"] == 0) & (stalls["kind"] == "straggler")
    assert stalls["stall_ns"][waited].tolist() == [100_000, 100_000]
    assert set(stalls["cause_rank"][waited].tolist()) == {1}
    wall = dict(
        zip(
            zip(steps["rank"].tolist(), steps["step"].tolist(), strict=True),
            (steps["end_ns"] - steps["begin_ns"]).tolist(),
            strict=True,
        )
    )
    for key, length in wall.items():
        own = (stalls["rank"] == key[0]) & (stalls["step"] == key[1])
        assert int(stalls["stall_ns"][own].sum()) == length


def test_batches_that_nobody_saw_made_are_an_interval(tmp_path: Path) -> None:
    trace = load(rank_of_two(tmp_path / "a.json", 0))
    table = stashtrace.analyze(trace, "stalls")
    first = table.take(table["step"] == 10)
    rows = {r["kind"]: (r["stall_ns"], r["low_ns"], r["high_ns"]) for r in first.rows()}
    assert rows["prep"] == (50_000, 0, 50_000)
    assert rows["fetch"] == (0, 0, 50_000)
    assert rows["handoff"] == (0, 0, 50_000)
    alone = [
        step(1, 0, 100),
        host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10, 20),
        launch(1, 40),
        device("k", 50, 5, correlation=1),
    ]
    kinds = stashtrace.analyze(load(write(tmp_path / "one.json", alone)), "stalls")["kind"].tolist()
    assert "fetch" in kinds
    assert "handoff" not in kinds


def test_recordings_that_begin_at_different_steps(tmp_path: Path) -> None:
    trace = load(rank_of_two(tmp_path / "a.json", 0, first_step=10), rank_of_two(tmp_path / "b.json", 1, first_step=11))
    rows = trace.collectives
    shared = {(r, s) for r, s in zip(rows["rank"].tolist(), rows["sequence"].tolist(), strict=True)}
    assert shared == {(0, 0), (0, 1), (1, 1), (1, 2)}  # step 11 is number 1 on both


def test_metadata_of_collectives(tmp_path: Path) -> None:
    meta = {
        "Collective name": "_allgather_base",
        "In msg nelems": 10,
        "dtype": "BFloat16",
        "Group size": 2,
        "Seq": 77,
        "Process Group Name": "5",
        "Process Group Ranks": "[1, 3]",
        "Process Group Description": "mesh_tp",
    }
    events = [launch(1, 5), device("ncclDevKernel_Generic(x)", 50, 10, stream=9, correlation=1, **meta)]
    trace = load(write(tmp_path / "a.json", [step(1, 0, 90), *events], distributedInfo={"rank": 3, "world_size": 4}))
    row = next(iter(trace.collectives.rows()))
    assert (row["sequence"], row["op_code"], row["message_bytes"]) == (77, CollectiveOp.ALL_GATHER, 20)
    group = next(iter(trace.groups.rows()))
    assert (trace.text(group["members_code"]), trace.text(group["name_code"])) == ("1,3", "mesh_tp")
    assert (group["group_rank"], group["group_size"]) == (1, 2)


def test_launches_before_the_recording_count_backwards(tmp_path: Path) -> None:
    for rank, orphans in ((0, 2), (1, 1)):
        kernel = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"
        before = [device(kernel, 10 * n, 5, stream=20, correlation=0) for n in range(orphans)]
        after = [launch(5, 50), device(kernel, 60, 9, stream=20, correlation=5)]
        info = {"rank": rank, "world_size": 2}
        write(tmp_path / f"rank{rank}.json", [step(4, 40, 60), *before, *after], distributedInfo=info)
    rows = load(tmp_path).collectives
    assert sorted(zip(rows["rank"].tolist(), rows["sequence"].tolist(), strict=True)) == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 1),
        (1, 2),
    ]


def test_2021_spelling(tmp_path: Path) -> None:
    def old(event: dict[str, object], cat: str) -> dict[str, object]:
        return {**event, "cat": cat, "tid": str(event["tid"])}

    events = [
        old(step(7, 0, 100), "Operator"),
        old(launch(3, 20), "Runtime"),
        {**old(device("k", 30, 5, correlation=3), "Kernel"), "tid": "stream 7"},
        {**old(device("Memcpy DtoH (Device -> Pinned)", 50, 5, correlation=4), "Memcpy"), "tid": "stream 7"},
    ]
    trace = load(write(tmp_path / "worker2.1623143089861.pt.trace.json", events))
    assert trace.processes["rank"].tolist() == [2]
    assert trace.kernels["work_code"].tolist() == [DeviceWork.KERNEL, DeviceWork.COPY]
    assert trace.kernels["launch_ns"].tolist() == [20_000, -1]
    assert len(trace.streams) == 1
    spans = trace.spans
    assert spans["kind_code"].tolist() == [SpanKind.STEP]
    assert spans["value"].tolist() == [7]


def test_optimizer_and_autograd_become_phases(tmp_path: Path) -> None:
    grads = [host(f"autograd::engine::evaluate_function: Mm{n}", 200 + 10 * n, 8, tid=99) for n in range(3)]
    events = [host("## forward ##", 100, 90, cat="user_annotation"), *grads, host("Optimizer.step#Adam.step", 300, 20)]
    trace = load(write(tmp_path / "a.json", [*events, launch(1, 310), device("k", 320, 2, correlation=1)]))
    phases = {r["phase_code"]: (r["begin_ns"], r["end_ns"], trace.text(r["name_code"])) for r in trace.phases.rows()}
    assert phases[Phase.FORWARD][:2] == (0, 90_000)
    assert phases[Phase.BACKWARD][:2] == (100_000, 128_000)
    assert phases[Phase.OPTIMIZER] == (200_000, 220_000, "Adam")


def test_cut_files_use_what_is_there(tmp_path: Path) -> None:
    whole = rank_of_two(tmp_path / "whole.json.gz", 0)
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(whole.read_bytes()[:-60])
    text = rank_of_two(tmp_path / "text.json", 0)
    text.write_bytes(text.read_bytes()[:-300])
    everything = len(load(whole).kernels)
    for path in (cut, text):
        with pytest.warns(DataLossWarning, match="file_cut"):
            trace = stashtrace.load(path)
        assert 0 < len(trace.kernels) <= everything
        assert losses(trace)["file_cut"] == 1


def test_base_time_of_a_cut_file_comes_from_the_others(tmp_path: Path) -> None:
    base = START_NS - 5_000_000
    for rank in (0, 1):
        events = [
            {**e, "ts": float(Decimal(e["ts"]) - START_NS // 1000)}
            for e in (step(1, 9, 90), launch(1, 20), device("k", 30, 5, correlation=1))
        ]
        info = {"rank": rank, "world_size": 2}
        write(tmp_path / f"{rank}.json", events, distributedInfo=info, after={"baseTimeNanoseconds": base})
    cut = tmp_path / "1.json"
    cut.write_bytes(cut.read_bytes().replace(b', "baseTimeNanoseconds": %d}' % base, b""))
    trace = load(tmp_path)
    assert trace.kernels["begin_ns"].tolist() == [21_000, 21_000]
    assert {"file_cut", "time_base_unknown"} <= set(losses(trace))


def test_reused_correlation_ids(tmp_path: Path) -> None:
    events = [launch(1, 10), device("a", 20, 5, correlation=1), launch(1, 40), device("b", 50, 5, correlation=1)]
    kernels = load(write(tmp_path / "a.json", [step(1, 0, 90), *events])).kernels
    assert kernels["launch_ns"].tolist() == [10_000, 40_000]


def test_kernels_at_time_zero_are_lost(tmp_path: Path) -> None:
    bad = {**device("zero", 0, 5), "ts": 0}
    trace = load(write(tmp_path / "a.json", [step(1, 0, 90), bad, device("good", 20, 5)]))
    assert len(trace.kernels) == 1
    assert losses(trace)["kernels_without_times"] == 1


_LAUNCH = '{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":1700000000000000,"dur":1,'
_LAUNCH += '"args":{"correlation":8}}'
_TEXTS = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": "1700000000000000.5", "dur": "2", '
_TEXTS += '"args": {"correlation": "8", "stream": "7", "device": 0}}'
_ORDER = '{"args": {"x": NaN, "correlation": 8, "stream": 7, "device": 0}, "dur": 2, "ts": 1.7000000000000005e15, '
_ORDER += '"tid": 7, "pid": 0, "name": "k", "cat": "kernel", "ph": "X"}'


@pytest.mark.parametrize(
    "text",
    [
        f"[{_TEXTS}, {_LAUNCH}]",
        f'{{"a": NaN, "b": [-Infinity], "schemaVersion": 1, "traceEvents": [{_ORDER}, {_LAUNCH}], "c": {{}}}}',
    ],
    ids=["bare array, numbers as texts", "NaN, other order of keys"],
)
def test_odd_but_readable(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(text)
    row = next(iter(load(path).kernels.rows()))
    assert (row["begin_ns"], row["end_ns"], row["launch_ns"]) == (500, 2500, 0)


def test_sniff() -> None:
    assert kineto.sniff(b'{\n "schemaVersion": 1, "traceEvents": [', Path("a.json"))
    assert kineto.sniff(b'\xef\xbb\xbf[{"ph": "X", "cat": "cuda_runtime"}', Path("a.json"))
    assert not kineto.sniff(b'{"schema": "1.1.0-chakra", "nodes": []}', Path("a.json"))
    assert not kineto.sniff(b'[\n{"id":1,"name":"read","cat":"POSIX","ph":"X"}', Path("a.pfw"))
    assert not kineto.sniff(b"", Path("a.json"))


def test_no_event_at_all(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", [])
    with pytest.raises(ImporterError, match="holds no event") as caught:
        stashtrace.load(path)
    assert caught.value.hint


def test_every_cut_of_a_small_file(tmp_path: Path) -> None:
    whole = rank_of_two(tmp_path / "whole.json", 0).read_bytes()
    begin = whole.index(b'"traceEvents"')
    counts = []
    for at in range(begin, len(whole), 97):
        path = tmp_path / "cut.json"
        path.write_bytes(whole[:at])
        try:
            trace = load(path)
        except ImporterError:
            counts.append(0)
            continue
        counts.append(len(trace.kernels))
        assert np.all(trace.kernels["end_ns"] >= trace.kernels["begin_ns"])
    assert counts == sorted(counts)
    assert counts[-1] == len(json.loads(whole)["traceEvents"]) // 9 * 2


def test_same_recording_under_two_names(tmp_path: Path) -> None:
    rank_of_two(tmp_path / "a.json", 0)
    rank_of_two(tmp_path / "b.json.gz", 0)
    rank_of_two(tmp_path / "c.json", 1)
    with pytest.warns(DataLossWarning, match="unreadable_file"):
        trace = stashtrace.load(tmp_path)
    advice = {trace.text(r["name_code"]): trace.text(r["advice_code"]) for r in trace.losses.rows()}
    assert "holds the same time of rank 0 as a.json" in advice["unreadable_file"]
    assert np.bincount(trace.kernels["rank"]).tolist() == [4, 4]


def test_two_cycles_of_one_rank(tmp_path: Path) -> None:
    rank_of_two(tmp_path / "a.json", 0)
    later = [step(50, 5e6, 90), launch(1, 5e6 + 10), device("k", 5e6 + 20, 9, correlation=1)]
    write(tmp_path / "b.json", later, distributedInfo={"rank": 0, "world_size": 2})
    steps = stashtrace.analyze(load(tmp_path), "steps")
    assert steps["step"].tolist() == [10, 11, 50]
    assert (steps["end_ns"] - steps["begin_ns"]).max() < 2_000_000  # the time between belongs to none


def test_ranks_of_different_days_are_not_matched(tmp_path: Path) -> None:
    rank_of_two(tmp_path / "a.json", 0)
    path = rank_of_two(tmp_path / "b.json", 1)
    path.write_text(path.read_text().replace('"ts": 17', '"ts": 16'))
    trace = load(tmp_path)
    assert losses(trace)["ranks_of_another_time"] == 1
    assert "matched with nobody (in a.json)" in advice(trace, "ranks_of_another_time")[0]
    assert set(stashtrace.analyze(trace, "collectives")["last_rank"].tolist()) <= {-1, 0, 1}
    assert int(stashtrace.analyze(trace, "stragglers")["wait_ns"].sum()) == 0


def test_jobs_of_different_size(tmp_path: Path) -> None:
    rank_of_two(tmp_path / "a.json", 0)
    write(
        tmp_path / "b.json",
        [step(1, 0, 90), launch(1, 5), device("k", 9, 5)],
        distributedInfo={"rank": 1, "world_size": 4},
    )
    with pytest.raises(ImporterError, match=r"holds files of 2 jobs: a\.json \(2 ranks\); b\.json \(4 ranks\)"):
        load(tmp_path)


def test_steps_that_two_files_of_one_process_hold(tmp_path: Path) -> None:
    """Process ids agree between containers: the same rank, number and pid, an hour apart."""
    rank_of_two(tmp_path / "a.json", 0)
    later = [step(10, 3.6e9, 90), launch(1, 3.6e9 + 10), device("k", 3.6e9 + 20, 9, correlation=1)]
    write(tmp_path / "b.json", later, distributedInfo={"rank": 0, "world_size": 2})
    assert advice(load(tmp_path), "steps_seen_twice") == [
        "rank 0 recorded step 10 in a.json and again in b.json: if these are two jobs, analyse them apart"
    ]


def test_collectives_of_the_host(tmp_path: Path) -> None:
    for rank, late in ((0, 0), (1, 300)):
        work = [
            host("gloo:all_reduce", 1000 * n + 200 + late, 500 - late, cat="user_annotation", tid=88) for n in range(2)
        ]
        info = {"backend": "gloo", "rank": rank, "world_size": 2}
        write(tmp_path / f"{rank}.json", [step(3, 0, 990), step(4, 1000, 990), *work], distributedInfo=info)
    trace = load(tmp_path)
    rows = trace.collectives
    assert set(rows["source_code"].tolist()) == {CollectiveSource.HOST}
    assert sorted(zip(rows["rank"].tolist(), rows["sequence"].tolist(), strict=True)) == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    table = stashtrace.analyze(trace, "collectives")
    assert table["wait_ns"][table["rank"] == 0].tolist() == [300_000, 300_000]
    assert {trace.text(c) for c in trace.groups["backend_code"]} == {"gloo"}


def _messages(path: Path, rank: int, *, works_us: float, peers: int = 2, shapes: bool = True) -> Path:
    """Two steps: rank 0 sends at once and waits for the answer of the last rank, which works before it sends."""
    events, last = [], peers - 1
    for n in range(2):
        at = 1000.0 * n
        if rank == 0:
            calls = [("send", "gloo:send", at + 10, 20.0, last), ("recv_", "gloo:recv", at + 40, works_us + 60, last)]
        else:
            calls = [
                ("recv_", "gloo:recv", at + 5, 25.0, 0),
                ("send", "gloo:send", at + 40 + works_us, 40.0, 0),
            ]
        events.append(step(3 + n, at, 990))
        for operator, work, begin, spent, peer in calls:
            args = {"Concrete Inputs": ["", "", str(peer), "0"]} if shapes else {}
            events.append(host(f"c10d::{operator}", begin - 2, 5, **args))
            events.append(host(work, begin, spent, cat="user_annotation"))
    info = {"backend": "gloo", "rank": rank, "world_size": peers}
    return write(path, events, distributedInfo=info)


@pytest.mark.parametrize(("peers", "shapes"), [(2, True), (2, False), (3, True)])
def test_a_receive_waits_for_the_rank_that_sends(tmp_path: Path, peers: int, shapes: bool) -> None:
    """Rank 0 receives from the begin of the step; the last rank works for 600 us before it sends."""
    files = [
        _messages(tmp_path / f"{rank}.json", rank, works_us=600, peers=peers, shapes=shapes) for rank in (0, peers - 1)
    ]
    trace = load(*files)
    table = stashtrace.analyze(trace, "collectives")
    receives = table.take((table["rank"] == 0) & (table["op"] == "receive"))
    assert receives["wait_ns"].tolist() == [600_000, 600_000]
    assert (receives["transfer_ns"] < 100_000).all()
    names = {trace.text(code) for code in trace.groups["name_code"]}
    assert {name.rpartition(" to ")[2] for name in names} == {"0", str(peers - 1)}
    stalls = stashtrace.analyze(trace, "stalls", by="rank", warmup=True)
    own = stalls.take((stalls["rank"] == 0) & (stalls["kind"] == "straggler"))
    assert own["stall_ns"].sum() >= 2 * 590_000


def test_backward_passes_end_where_a_message_is_sent(tmp_path: Path) -> None:
    """Two micro-batches in each of two steps: as many backward passes, not one from the first to the last operator."""
    events = []
    for n in range(2):
        events.append(step(3 + n, 1000.0 * n, 990))
        for batch in range(2):
            at = 1000.0 * n + 400 * batch
            events.append(host("autograd::engine::evaluate_function: AddBackward0", at + 100, 200))
            events.append(host("c10d::send", at + 310, 5))
            events.append(host("gloo:send", at + 312, 20, cat="user_annotation"))
    info = {"backend": "gloo", "rank": 0, "world_size": 2}
    trace = load(write(tmp_path / "0.json", events, distributedInfo=info))
    phases = trace.phases
    assert (phases["end_ns"] - phases["begin_ns"]).tolist() == [200_000] * 4


def test_messages_between_unknown_ranks_stay_in_the_group_of_all(tmp_path: Path) -> None:
    trace = load(_messages(tmp_path / "0.json", 0, works_us=600, peers=3, shapes=False))
    assert {trace.text(code) for code in trace.groups["name_code"]} == {"all ranks"}


def test_nothing_to_use(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", [host("aten::mm", 0, 5)])
    with pytest.raises(ImporterError, match="holds no kernel, launch, step or annotation"):
        stashtrace.load(path)


def _until(offset_us: float) -> dict[str, object]:
    """The mark with which Kineto ends a recording."""
    return {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": us(offset_us)}


def test_a_step_that_the_recording_cuts_off_is_not_counted(tmp_path: Path) -> None:
    work = [
        event
        for n in range(3)
        for event in (launch(n + 1, 1000 * n + 10), device("k", 1000 * n + 20, 900, correlation=n + 1))
    ]
    steps = [step(n, 1000 * n, 990) for n in range(2)]
    # What was open when the recording ended lasts until the profiler looked at it, 13 s later.
    cut = [step(2, 2000, 13_300_000), host("validate", 2100, 13_299_000, cat="user_annotation")]
    trace = load(write(tmp_path / "rank0.json", [*steps, *cut, *work, _until(3800)]))
    assert stashtrace.analyze(trace, "steps")["step"].tolist() == [0, 1]
    assert advice(trace, "step_cut_off") == [
        "the recording of rank 0 ends 1.80 ms into step 2: that step is not counted"
    ]
    assert int(stashtrace.analyze(trace, "stalls")["stall_ns"].sum()) < 10_000_000
    assert "recording of rank 0 ends 1.80 ms into step 2" in summary(trace)


def test_steps_behind_the_end_of_the_recording_are_not_counted(tmp_path: Path) -> None:
    events = [
        step(0, 0, 990),
        step(1, 1000, 990),
        step(2, 2000, 990),
        launch(1, 10),
        device("k", 20, 900, correlation=1),
    ]
    trace = load(write(tmp_path / "rank0.json", [*events, _until(1500)]))
    assert stashtrace.analyze(trace, "steps")["step"].tolist() == [0]
    assert advice(trace, "step_cut_off") == [
        "the recording of rank 0 ends 500 us into step 1: that step and 1 behind it are not counted"
    ]


def test_of_the_only_step_what_was_recorded_counts(tmp_path: Path) -> None:
    events = [step(7, 0, 13_300_000), launch(1, 10), device("k", 20, 900, correlation=1), _until(1800)]
    trace = load(write(tmp_path / "rank0.json", events))
    table = stashtrace.analyze(trace, "steps")
    assert (table["end_ns"] - table["begin_ns"]).tolist() == [1_800_000]
    assert advice(trace, "step_cut_off") == [
        "the recording of rank 0 ends 1.80 ms into step 7, and no step is whole:"
        " what was recorded of it counts as a step"
    ]


def test_steps_before_the_end_of_the_recording_are_whole(tmp_path: Path) -> None:
    events = [step(0, 0, 990), step(1, 1000, 990), launch(1, 10), device("k", 20, 900, correlation=1)]
    for name, until in (("after", 1993.0), ("at once", 1989.9), ("of another clock", -5.0)):
        trace = load(write(tmp_path / name / "rank0.json", [*events, _until(until)]))
        assert stashtrace.analyze(trace, "steps")["step"].tolist() == [0, 1], name
        assert not advice(trace, "step_cut_off")


@pytest.mark.parametrize("how", ["events", "flag"])
def test_python_stacks_are_a_doubt(tmp_path: Path, how: str) -> None:
    events = [step(0, 0, 990), launch(1, 10), device("k", 20, 900, correlation=1)]
    if how == "events":
        events.append(host("train.py(3): loop", 1, 980, cat="python_function"))
        trace = load(write(tmp_path / "rank0.json", events))
    else:
        trace = load(write(tmp_path / "rank0.json", events, with_stack=1))
    assert len(advice(trace, "python_stacks")) == 1
    assert "recorded with Python stacks" in summary(trace)
    assert not advice(load(write(tmp_path / "plain.json", events[:3], with_stack=0)), "python_stacks")
