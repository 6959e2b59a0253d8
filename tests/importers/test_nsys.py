"""Exports of Nsight Systems: of the corpus against figures from SQL, and small ones made here."""

from __future__ import annotations

import gzip
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from corpus import corpus, reference
from importers.nsys_exports import EPOCH_NS, MS, Export, pid_of, tid_of
from importers.read_back import advice, load, losses, said

import stashtrace
from stashtrace.errors import ImporterError
from stashtrace.schema.kinds import (
    BatchPhase,
    CopyDirection,
    DeviceCall,
    DeviceWork,
    IoOp,
    Phase,
    PhaseFlag,
    ProcessRole,
    SpanKind,
    StreamFlag,
    WaitOp,
)
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_text import summary

_FILES = (
    ("h100_2gpu_1s", "nsys-h100_2gpu_1s"),
    ("mock", "nsys-mock"),
    ("saxpy-mpi-cuda_perlmutter0", "nsys-saxpy-mpi-cuda_nsys_perlmutter0"),
)


def _union(trace: Trace, rows: np.ndarray) -> int:
    kernels = trace.kernels.take(rows).sort_by("begin_ns")
    if not len(kernels):
        return 0
    begin, end = kernels["begin_ns"], np.maximum.accumulate(kernels["end_ns"])
    return int((end - np.maximum(begin, np.append(begin[0], end[:-1]))).clip(min=0).sum())


@pytest.mark.parametrize(("name", "figures"), _FILES)
def test_corpus_matches_what_sql_says(name: str, figures: str) -> None:
    reported = reference(f"{figures}.json")
    trace = load(corpus(f"nsys/{name}.sqlite"))
    assert not len(trace.losses)
    kernels, work = trace.kernels, trace.kernels["work_code"]
    counted = {
        "CUPTI_ACTIVITY_KIND_KERNEL": (work == DeviceWork.KERNEL) | (work == DeviceWork.COMMUNICATION),
        "CUPTI_ACTIVITY_KIND_MEMCPY": work == DeviceWork.COPY,
        "CUPTI_ACTIVITY_KIND_MEMSET": work == DeviceWork.MEMSET,
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": work == DeviceWork.SYNCHRONIZATION,
    }
    for table, rows in counted.items():
        assert int(rows.sum()) == reported["rows"].get(table, 0), table
    waits = work == DeviceWork.SYNCHRONIZATION
    assert int((kernels["end_ns"] - kernels["begin_ns"])[waits].sum()) == (reported["sync_sum_ns"] or 0)
    assert {int(d) for d in kernels["device_index"]} == {int(d) for d in reported["devices"]}
    for device, one in reported["devices"].items():
        own = kernels["device_index"] == int(device)
        moves = own & np.isin(work, (DeviceWork.COPY, DeviceWork.MEMSET))
        copies = kernels["copy_code"]
        assert _union(trace, own & (work == DeviceWork.KERNEL)) == one["comp_union_ns"]
        assert _union(trace, own & (work == DeviceWork.COMMUNICATION)) == one["comm_union_ns"]
        assert _union(trace, moves) == one["mem_union_ns"]
        assert _union(trace, own & ~waits) == one["busy_union_ns"]
        busy = own & ~waits
        window = int(kernels["end_ns"][busy].max() - kernels["begin_ns"][busy].min())
        assert window == one["window_ns"]
        assert window - _union(trace, busy) == one["idle_ns"]
        for direction, key in (
            (CopyDirection.HOST_TO_DEVICE, "h2d_bytes"),
            (CopyDirection.DEVICE_TO_HOST, "d2h_bytes"),
        ):
            assert int(kernels["size_bytes"][own & (copies == direction)].sum()) == one[key]
    assert said(trace, "nsys.schema") == [reported["export_version"]["EXPORT_SCHEMA_VERSION"]]


@pytest.mark.parametrize(("name", "figures"), _FILES)
def test_corpus_breakdown_is_what_sql_says(name: str, figures: str) -> None:
    reported = reference(f"{figures}.json")["devices"]
    rows = list(stashtrace.analyze(load(corpus(f"nsys/{name}.sqlite")), "breakdown").rows())
    assert len(rows) == len(reported)
    names = {
        "window_ns": "window_ns",
        "busy_ns": "busy_union_ns",
        "idle_ns": "idle_ns",
        "compute_ns": "comp_union_ns",
        "communication_ns": "comm_union_ns",
        "exposed_communication_ns": "exposed_comm_ns",
        "memcpy_ns": "mem_union_ns",
    }
    for row in rows:
        one = reported[str(row["device_index"])]
        assert {ours: row[ours] for ours in names} == {ours: one[theirs] for ours, theirs in names.items()}


def test_corpus_launches_devices_and_budget() -> None:
    trace = load(corpus("nsys/h100_2gpu_1s.sqlite"))
    kernels = trace.kernels
    known = kernels["launch_ns"] >= 0
    assert (
        int(known.sum()) == 1632 + 438 + 22 + 244
    )  # by a join in SQL; the others were launched before the cut-out second
    assert (kernels["begin_ns"] >= kernels["launch_ns"])[known].all()
    assert trace.processes["rank"].tolist() == [0, 1]
    assert sorted(zip(trace.devices["rank"].tolist(), trace.devices["device_index"].tolist(), strict=True)) == [
        (0, 0),
        (1, 1),
    ]
    budget = stashtrace.analyze(trace, "stalls")
    reported = reference("nsys-h100_2gpu_1s.json")["devices"]
    for rank in (0, 1):
        own = {r["kind"]: r["stall_ns"] for r in budget.rows() if r["rank"] == rank}
        assert sum(own.values()) == reported[str(rank)]["window_ns"]
        assert own["sync"] + own["launch"] + own["other"] == reported[str(rank)]["idle_ns"]
    # The same marks on both clocks: 1970 plus what the recording's start says.
    started = 1_779_630_014_975_716_426 + 155_357_525_002
    assert said(trace, "origin_realtime_ns") == [str(started)]


def test_corpus_of_an_old_version_knows_its_mpi_rank() -> None:
    trace = load(corpus("nsys/saxpy-mpi-cuda_perlmutter0.sqlite"))
    assert said(trace, "nsys.ranks") == []  # recorded, not assumed
    calls = trace.device_calls
    # Calls with a call chain are written twice.
    assert int((calls["call_code"] == DeviceCall.COPY).sum()) == 15
    assert int((calls["call_code"] == DeviceCall.LAUNCH).sum()) == 5
    assert {trace.text(c) for c in trace.devices["name_code"]} == {"NVIDIA A100-SXM4-40GB"}


def _job(path: Path, **environment: str) -> Export:
    """One process: two steps, each with a copy and a kernel."""
    export = Export(path, **environment)
    for step in range(2):
        at = 10 * MS * step
        export.range(42, f"step {12 + step}", at, at + 9 * MS)
        export.range(42, "micro step 0", at + MS, at + 2 * MS)
        export.range(42, "dataloader", at, at + MS)
        export.range(42, "forward", at + MS, at + 3 * MS)
        export.range(42, "backward", at + 3 * MS, at + 5 * MS)
        export.range(42, "Optimizer.step#Adam.step", at + 5 * MS, at + 6 * MS)
        export.call(42, "cudaLaunchKernel_v7000", at + 2 * MS, at + 2 * MS + 5000, call=10 + step)
        export.kernel(42, "void gemm<float>(int)", at + 3 * MS, at + 8 * MS, call=10 + step)
        export.call(42, "cudaStreamSynchronize_v3020", at + 6 * MS, at + 8 * MS, call=20 + step)
    return export


def test_ranges_become_steps_phases_and_waits(tmp_path: Path) -> None:
    export = _job(tmp_path / "report.sqlite", RANK="3", WORLD_SIZE="8")
    export.range(42, "aten::mul, op_id = 77", 4 * MS, 5 * MS)
    export.range(42, "checkpoint saved", 7 * MS, None, kind=34)
    export.range(42, "never left", 7 * MS, None)
    export.range(42, "MyDomain", 0, None, kind=75)
    trace = load(export.close())
    assert (trace.processes["rank"].tolist(), trace.processes["world_size"].tolist()) == ([3], [8])
    found = stashtrace.analyze(trace, "steps")
    assert found["step"].tolist() == [12, 13]
    assert trace.phases["phase_code"].tolist() == [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER] * 2
    assert not (trace.phases["phase_flags"] & PhaseFlag.NESTED).any()
    assert trace.batches["phase_code"].tolist() == [BatchPhase.WAIT] * 2
    marks = trace.spans.take(trace.spans["kind_code"] == SpanKind.STEP_MARK)
    assert marks["begin_ns"].tolist() == [0, 10 * MS, 19 * MS]
    spans = {trace.text(r["name_code"]): r for r in trace.spans.rows() if r["kind_code"] == SpanKind.USER}
    assert spans["aten::mul"]["correlation_id"] == 77
    assert spans["checkpoint saved"]["begin_ns"] == spans["checkpoint saved"]["end_ns"]
    assert "never left" not in spans
    assert losses(trace)["ranges_without_end"] == 1
    budget = {(r["step"], r["kind"]): r["stall_ns"] for r in stashtrace.analyze(trace, "stalls").rows()}
    assert budget[13, "compute"] == 5 * MS


def test_texts_by_id_and_unnumbered_steps(tmp_path: Path) -> None:
    export = Export(tmp_path / "rank5.sqlite")
    for at in (0, 10, 20):
        export.row(
            "NVTX_EVENTS",
            start=at * MS,
            end=(at + 9) * MS,
            eventType=59,
            globalTid=tid_of(42),
            text=None,
            textId=export.text("train_step"),
        )
    export.kernel(42, "k", 0, MS)
    trace = load(export.close())
    assert len(stashtrace.analyze(trace, "steps")) == 3
    assert trace.processes["rank"].tolist() == [5]
    assert said(trace, "nsys.ranks") == ["by the file's name"]


def test_nested_phases_are_marked(tmp_path: Path) -> None:
    export = Export(tmp_path / "report.sqlite")
    export.range(42, "backward", 0, 10 * MS)
    export.range(42, "forward", 2 * MS, 3 * MS)
    export.range(42, "forward", 2 * MS, 3 * MS, tid=99)
    trace = load(export.close())
    flags = {(r["phase_code"], r["track_id"]): r["phase_flags"] for r in trace.phases.rows()}
    assert sorted(flags.values()) == [0, 0, PhaseFlag.NESTED]


def test_launches_join_by_process_and_number(tmp_path: Path) -> None:
    export = Export(tmp_path / "report.sqlite", SLURM_NODEID="2")
    for pid, device in ((50, 1), (40, 0)):
        export.call(pid, "cudaLaunchKernel_v7000", pid * MS, pid * MS + 10, call=7, tid=pid + 1)
        export.kernel(pid, "k", pid * MS + 100, pid * MS + 200, call=7, device=device)
    export.kernel(40, "launched before the recording", 0, 10, call=6)
    export.row("PROCESSES", globalPid=pid_of(40), pid=40, name="/usr/bin/python3")
    export.row("ThreadNames", nameId=export.text("launcher"), priority=20, globalTid=tid_of(40, 41))
    export.row("TARGET_INFO_CUDA_STREAM", streamId=7, processId=40, contextId=1, priority=(1 << 32) - 5, flag=2)
    export.row(
        "TARGET_INFO_GPU",
        id=0,
        cuDevice=0,
        name="H100",
        uuid="GPU-1",
        busLocation="0000:01:00.0",
        totalMemory=80,
        smCount=132,
        computeMajor=9,
        computeMinor=0,
    )
    trace = load(export.close())
    rows = {(r["rank"], trace.text(r["name_code"])): r for r in trace.kernels.rows()}
    # Two processes to a node and the third node: ranks by the order of devices.
    assert rows[4, "k"]["launch_ns"] == 40 * MS
    assert rows[5, "k"]["launch_ns"] == 50 * MS
    assert rows[4, "launched before the recording"]["launch_ns"] == -1
    names = {t["track_id"]: trace.text(t["name_code"]) for t in trace.tracks.rows()}
    assert names[rows[4, "k"]["thread_track_id"]] == "launcher"
    stream = next(r for r in trace.streams.rows() if r["rank"] == 4)
    assert (stream["priority_index"], stream["stream_flags"]) == (
        -5,
        StreamFlag.NON_BLOCKING | StreamFlag.CARRIES_COMPUTE,
    )
    device = next(r for r in trace.devices.rows() if r["rank"] == 4)
    assert (trace.text(device["name_code"]), device["capability_code"], device["memory_bytes"]) == ("H100", 90, 80)


@pytest.mark.parametrize(
    ("values", "direction", "name"),
    [
        ({"copyKind": 1, "srcKind": 1, "dstKind": 2}, CopyDirection.HOST_TO_DEVICE, "Memcpy HtoD (Pinned -> Device)"),
        ({"copyKind": 8, "srcDeviceId": 0, "dstDeviceId": 1}, CopyDirection.PEER, "Memcpy DtoD"),
        ({"copyKind": 8}, CopyDirection.DEVICE_TO_DEVICE, "Memcpy DtoD"),
        ({"copyKind": 99}, CopyDirection.UNKNOWN, "Memcpy of unknown kind"),
    ],
)
def test_copies_by_kind(tmp_path: Path, values: dict[str, int], direction: CopyDirection, name: str) -> None:
    export = Export(tmp_path / "report.sqlite")
    export.row(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        start=0,
        end=MS,
        deviceId=0,
        contextId=1,
        streamId=7,
        correlationId=1,
        globalPid=pid_of(42),
        bytes=1 << 33,
        **values,
    )
    trace = load(export.close())
    assert trace.kernels["copy_code"].tolist() == [direction]
    assert trace.kernels["size_bytes"].tolist() == [1 << 33]
    assert trace.text(int(trace.kernels["name_code"][0])) == name


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("cudaMemcpyAsync_v3020", None),
        ("cudaMemcpy_v3020", DeviceCall.COPY),
        ("cuMemcpyDtoH_v2", DeviceCall.COPY),
        ("cudaMalloc_v3020", DeviceCall.ALLOCATE),
        ("cuMemAlloc_v2", DeviceCall.ALLOCATE),
        ("cudaMallocAsync_v11020", None),
        ("cuMemCreate", DeviceCall.MAP_MEMORY),
        ("cuMemMap", DeviceCall.MAP_MEMORY),
        ("cuMemMapArrayAsync", None),
        ("cuMemSetAccess", DeviceCall.MAP_MEMORY),
        ("cuMemUnmap", DeviceCall.UNMAP_MEMORY),
        ("cuMemRelease", DeviceCall.UNMAP_MEMORY),
        ("cudaHostAlloc_v3020", DeviceCall.ALLOCATE_HOST),
        ("cudaFree_v3020", DeviceCall.FREE),
        ("cudaDeviceSynchronize_v3020", DeviceCall.DEVICE_SYNCHRONIZE),
        ("cuCtxSynchronize", DeviceCall.DEVICE_SYNCHRONIZE),
        ("cudaEventSynchronize_v3020", DeviceCall.EVENT_SYNCHRONIZE),
        ("cudaStreamSynchronize_ptsz_v7000", DeviceCall.STREAM_SYNCHRONIZE),
        ("cudaGraphLaunch_v10000", DeviceCall.GRAPH_LAUNCH),
        ("cuLaunchKernelEx", DeviceCall.LAUNCH),
        ("cuModuleLoadDataEx", DeviceCall.MODULE_LOAD),
        ("cudaEventRecordWithFlags_v11010", None),
    ],
)
def test_calls_by_name(tmp_path: Path, name: str, code: DeviceCall | None) -> None:
    export = Export(tmp_path / "report.sqlite")
    export.call(42, name, 0, 10, call=1)
    export.kernel(42, "k", 0, 1)
    assert load(export.close()).device_calls["call_code"].tolist() == ([] if code is None else [code])


def test_library_calls_become_waits_and_io(tmp_path: Path) -> None:
    export = Export(tmp_path / "report.sqlite")
    for name, returned in (("pthread_cond_wait", 0), ("read", 4096), ("open64", 9), ("recvmsg", -1), ("getpid", 1)):
        export.row(
            "OSRT_API",
            start=0,
            end=MS,
            eventClass=27,
            globalTid=tid_of(42),
            nameId=export.text(name),
            returnValue=returned,
            nestingLevel=0,
            callchainId=0,
        )
    trace = load(export.close())
    assert trace.waits["wait_code"].tolist() == [WaitOp.COND_WAIT]
    assert dict(zip(trace.io["op_code"].tolist(), trace.io["result_bytes"].tolist(), strict=True)) == {
        IoOp.READ: 4096,
        IoOp.OPEN: 0,
        IoOp.RECV: -1,
    }


def test_a_bare_table_of_kernels_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, streamId INT)")
    connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (5, 25, 0, 7), (30, NULL, NULL, 7)")
    connection.commit()
    connection.close()
    trace = load(path)
    assert trace.kernels["begin_ns"].tolist() == [0, 25]
    assert trace.kernels["end_ns"].tolist() == [20, 25]
    assert said(trace, "origin_realtime_ns") == []  # since when the times count is not in the file
    assert said(trace, "nsys.schema") == ["unknown"]


def test_normalized_times_are_taken_as_they_are(tmp_path: Path) -> None:
    export = Export(tmp_path / "report.sqlite")
    export.kernel(42, "k", EPOCH_NS + 5, EPOCH_NS + 15)
    assert said(load(export.close()), "origin_realtime_ns") == [str(EPOCH_NS + 5)]


def test_processes_without_a_device_serve_no_rank(tmp_path: Path) -> None:
    export = _job(tmp_path / "report.sqlite")
    export.range(99, "in a worker", 0, MS)
    trace = load(export.close())
    by_pid = {r["pid"]: r for r in trace.processes.rows()}
    assert (by_pid[42]["rank"], by_pid[42]["role_code"]) == (0, ProcessRole.RANK)
    assert (by_pid[99]["rank"], by_pid[99]["role_code"]) == (-1, ProcessRole.OTHER)


def test_gzip_is_unpacked(tmp_path: Path) -> None:
    plain = _job(tmp_path / "report.sqlite").close()
    packed = tmp_path / "packed" / "report.sqlite.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert len(load(packed).kernels) == len(load(plain).kernels) == 2


def test_a_cut_database_gives_what_is_before_the_cut(tmp_path: Path) -> None:
    export = _job(tmp_path / "report.sqlite")
    for n in range(20_000):
        export.range(42, f"work {n}", 100 * MS + n * 10, 100 * MS + n * 10 + 5)
    path = export.close()
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    trace = load(path)
    assert losses(trace)["table_damaged"] >= 1
    assert len(trace.kernels) == 2


@pytest.mark.parametrize("size", [16, 100, 3000])
def test_a_torn_head_is_an_error_of_one_line(tmp_path: Path, size: int) -> None:
    path = _job(tmp_path / "report.sqlite").close()
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ImporterError) as found:
        load(path)
    assert "\n" not in str(found.value)
    assert found.value.hint


def test_other_databases_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE users (id INTEGER)")
    connection.commit()
    connection.close()
    with pytest.raises(ImporterError, match="no export of Nsight Systems"):
        load(path)
    with pytest.raises(ImporterError, match="no kernel, call or range"):
        load(Export(tmp_path / "empty.sqlite").close())


def test_a_newer_schema_is_reported(tmp_path: Path) -> None:
    export = _job(tmp_path / "report.sqlite")
    export.row("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="4.1.0")
    export.row("GPU_METRICS", timestamp=1, value=2)
    trace = load(export.close())
    assert losses(trace)["newer_schema"] == 1
    assert "report.sqlite has schema 4.1.0, newer than 3.25, the newest tested" in summary(trace)
    assert said(trace, "nsys.not_read") == ["GPU_METRICS"]


def test_progress_reaches_the_size_of_the_file(tmp_path: Path) -> None:
    path = _job(tmp_path / "report.sqlite").close()
    seen: list[tuple[int, int]] = []
    stashtrace.load(path, progress=lambda done, total, name: seen.append((done, total)))
    assert seen[-1] == (path.stat().st_size,) * 2


@pytest.mark.parametrize(
    ("version", "count"), [("2.9.1", 0), ("3.25.0", 0), ("3.25.7", 0), ("3.26.0", 1), ("3.99", 1), ("odd", 0)]
)
def test_which_schemas_are_newer(tmp_path: Path, version: str, count: int) -> None:
    export = _job(tmp_path / "report.sqlite")
    export.row("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value=version)
    assert losses(load(export.close())).get("newer_schema", 0) == count


@pytest.mark.parametrize("how", ["without end", "ends after the session"])
def test_a_step_that_the_recording_cuts_off_is_not_counted(tmp_path: Path, how: str) -> None:
    export = Export(tmp_path / "report.sqlite", RANK="3")
    for number in range(3):
        end = 10 * (number + 1) * MS if number < 2 else None if how == "without end" else 13_000 * MS
        export.range(7, f"step {number}", 10 * number * MS, end)
        export.call(7, "cudaLaunchKernel", 10 * number * MS, 10 * number * MS + 1000, call=number + 1)
        export.kernel(7, "gemm", 10 * number * MS + 2000, 10 * number * MS + 1_800_000, call=number + 1)
    if how != "without end":
        export.row("ANALYSIS_DETAILS", startTime=5, stopTime=5 + 21_800_000, duration=21_800_000)
    trace = load(export.close())
    assert stashtrace.analyze(trace, "steps")["step"].tolist() == [0, 1]
    reported = "the recording of rank 3 ends 1.80 ms into step 2: that step is not counted"
    assert advice(trace, "step_cut_off") == [reported]
    assert "ends 1.80 ms into step 2" in summary(trace)
