"""Calls during which a device stood idle: what really covers the stall, by overlap and not by kind of call."""

from __future__ import annotations

import gzip
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from builders import MS, TraceBuilder
from corpus import corpus
from importers.kineto_files import PID, device, host, launch, step, write
from importers.nsys_exports import Export
from importers.read_back import load as load_export

import stashtrace
from stashtrace.analysis.stalls.idle_calls import idle_calls
from stashtrace.errors import DataLossWarning
from stashtrace.schema.kinds import DeviceCall
from stashtrace.schema.trace import Trace


def _load(path: Path) -> Trace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        return stashtrace.load(path)


def _rows(trace: Trace) -> list[tuple[str, int, int, int]]:
    """(call, count, inside, idle) in microseconds, longest first."""
    return [
        (str(r["call"]), r["calls_count"], r["inside_ns"] // 1000, r["idle_ns"] // 1000)
        for r in idle_calls(trace, warmup=True).rows()
    ]


def _job(path: Path) -> Trace:
    """Four steps of 10 ms: a kernel of 2 ms with a copy of 25 us next to it, 7 ms in hipFree with nothing to run."""
    events = []
    for n in range(4):
        at, key = 10_000.0 * n, 10 * n
        events += [
            step(n, at, 10_000),
            launch(key + 1, at, 10, "hipLaunchKernel"),
            device("gemm", at + 10, 2_000, correlation=key + 1),
            host("hipMemcpyWithStream", at + 1_000, 25, cat="cuda_runtime", correlation=key + 3),
            host("hipFree", at + 2_005, 7_000, cat="cuda_runtime", correlation=key + 4),
            host("hipHostFree", at + 500, 100, cat="cuda_runtime", correlation=key + 5),
            # A thread of the loader allocates at the same time.
            host("hipHostMalloc", at + 3_000, 1_000, cat="cuda_runtime", tid=PID + 1, correlation=key + 6),
        ]
    return _load(write(path, events, distributedInfo={"backend": "nccl", "rank": 0, "world_size": 1}))


def test_the_call_that_covers_the_stall_comes_first(tmp_path: Path) -> None:
    trace = _job(tmp_path / "rank0.json")
    totals = stashtrace.analyze(trace, "stalls", by="rank", warmup=True)
    host_ns = int(totals["stall_ns"][np.isin(totals["kind"], ("sync", "launch"))].sum())
    assert host_ns == 4 * 8_000_000 - 10_000, "10 ms without the kernel's 2; the first 10 us of all are before any work"
    assert _rows(trace) == [
        ("hipFree", 4, 28_000, 4 * 6_995),  # its first 5 us lie under the kernel
        ("hipHostMalloc", 4, 4_000, 4_000),
        ("launch", 4, 40, 30),
        ("hipHostFree", 4, 400, 0),
        ("hipMemcpyWithStream", 4, 100, 0),
    ]
    table = idle_calls(trace, warmup=True)
    assert table["share_ratio"][0] == pytest.approx(4 * 6_995 / 31_990)
    assert table["call_code"].tolist()[:2] == [DeviceCall.FREE, DeviceCall.ALLOCATE_HOST]
    assert len(set(table["track_id"].tolist())) == 2


def test_counted_steps_alone(tmp_path: Path) -> None:
    trace = _job(tmp_path / "rank0.json")
    counted = int((stashtrace.analyze(trace, "steps")["warmup"] == 0).sum())
    assert idle_calls(trace)["calls_count"][0] == counted


def test_module_loads_and_launches_of_an_export(tmp_path: Path) -> None:
    """Nsight names functions with their version; the first launch of a kernel may load its code."""
    export = Export(tmp_path / "report.sqlite")
    export.call(40, "cudaLaunchKernel_v7000", 0, 1 * MS, call=1)
    export.kernel(40, "gemm", 1 * MS, 2 * MS, call=1, device=0, stream=7)
    export.call(40, "cuModuleLoadData_v2_ptsz", 2 * MS, 8 * MS, call=2)
    export.call(40, "cudaLaunchKernel_v7000", 8 * MS, 10 * MS, call=3)
    export.kernel(40, "gelu", 10 * MS, 12 * MS, call=3, device=0, stream=7)
    found = {r["call"]: r["idle_ns"] for r in idle_calls(load_export(export.close()), warmup=True).rows()}
    assert found["cuModuleLoadData"] == 6 * MS
    assert found["cudaLaunchKernel"] == 2 * MS, "before the first work nothing is known of the device"
    assert "launch" not in found, "that launch is in the export"


def test_brackets_leave_it_possible() -> None:
    """Timing events cannot distinguish a device that computes from one that waits for its host."""
    build = TraceBuilder()
    rank = build.rank(0).lives(0, 210 * MS)
    compute = rank.gpu(0).stream("compute", compute=True)
    for at in range(2):
        rank.phase("forward", (100 * at + 1) * MS, (100 * at + 2) * MS)
        rank.phase("optimizer", (100 * at + 98) * MS, (100 * at + 100) * MS)
        compute.step(100 * at * MS, at)
    compute.step(200 * MS, 2)
    compute.gpu.call(DeviceCall.FREE, 20 * MS, 60 * MS)
    rows = list(idle_calls(build.trace(), warmup=True).rows())
    assert [(r["call"], r["inside_ns"], r["idle_ns"]) for r in rows] == [("free", 40 * MS, 0)]
    assert 0 <= rows[0]["possible_ns"] <= 40 * MS


@pytest.mark.parametrize("name", ["param_resnet", "simple_add"])
def test_real_traces_by_plain_arithmetic(name: str) -> None:
    """The microseconds that cudaFree has in common with no work on the device, event by event."""
    path = corpus(f"kineto/one_gpu/{name}.json.gz")
    events = [e for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if e.get("ph") == "X"]
    busy = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")]
    frees = [e for e in events if e["name"] == "cudaFree"]
    last = max(int(e["ts"]) + int(e["dur"]) for e in events)
    idle = np.ones(last - min(int(e["ts"]) for e in events) + 1, dtype=bool)
    base = last + 1 - len(idle)
    for e in busy:
        idle[int(e["ts"]) - base : int(e["ts"]) + int(e["dur"]) - base] = False
    free = np.zeros(len(idle), dtype=bool)
    for e in frees:
        free[int(e["ts"]) - base : int(e["ts"]) + int(e["dur"]) - base] = True
    trace = _load(path)
    steps = stashtrace.analyze(trace, "steps")
    counted = np.zeros(len(idle), dtype=bool)
    origin = _origin_us(trace)
    for begin, end in zip(steps["begin_ns"].tolist(), steps["end_ns"].tolist(), strict=True):
        counted[max(begin // 1000 + origin - base, 0) : end // 1000 + origin - base] = True
    found = sum(row[3] for row in _rows(trace) if row[0] == "cudaFree")
    assert found == pytest.approx(int((idle & free & counted).sum()), rel=0.001)
    assert _rows(trace)[0][0] == "cudaFree"


def _origin_us(trace: Trace) -> int:
    key = trace.strings.find("origin_realtime_ns")
    values = trace.metadata["value_code"][trace.metadata["key_code"] == key]
    return int(trace.text(int(values[0]))) // 1000
