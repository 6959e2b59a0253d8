"""Values that no format allows: each costs its event or fact, not the load of all files next to it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpus import corpus
from kineto_files import START_NS, device, launch, rank_of_two, step, write
from nsys_exports import Export, tid_of

import stashtrace
from stashtrace.errors import ImporterError
from stashtrace.schema.trace import Trace

pytestmark = pytest.mark.filterwarnings("ignore::stashtrace.errors.DataLossWarning")


def reasons(trace: Trace) -> list[str]:
    return [trace.text(code) for code in trace.losses["name_code"].tolist()]


WORK = [step(1, 0, 100), launch(1, 10), device("gemm", 20, 30, correlation=1)]


@pytest.mark.parametrize(
    "top",
    [
        {"distributedInfo": [1]},
        {"distributedInfo": {"rank": 1 << 70, "world_size": 1 << 70}},
        {"distributedInfo": {"rank": 0, "pg_config": [{"pg_name": "0", "ranks": [0, 1 << 64]}]}},
        {"deviceProperties": 7},
        {"deviceProperties": [{"id": [], "name": 5, "totalGlobalMem": 1 << 80}]},
        {"baseTimeNanoseconds": 1 << 70},
    ],
    ids=str,
)
def test_top_level_values_of_kineto(tmp_path: Path, top: dict[str, Any]) -> None:
    talk = device("ncclDevKernel_AllReduce_Sum_f32", 60, 20, stream=9, **{"Process Group Name": "0"})
    trace = stashtrace.load(write(tmp_path / "rank0.json", [*WORK, talk], **top))
    assert len(trace.kernels) == 2
    assert trace.ranks == [0]
    assert len(stashtrace.analyze(trace, "collectives")) == 1


def test_times_that_64_bits_do_not_hold(tmp_path: Path) -> None:
    """They neither wrap around to the time before the recording nor move the others."""
    late = {**device("late", 0, 5), "ts": "9000000000000000.0"}
    long = device("long", 60, 9.2e15)
    path = write(tmp_path / "rank0.json", [*WORK, late, long], baseTimeNanoseconds=5)
    trace = stashtrace.load(path)
    names = trace.strings.texts(trace.kernels["name_code"]).tolist()
    assert names == ["gemm", "long"]
    assert "kernels_without_times" in reasons(trace)
    assert (trace.kernels["end_ns"] >= trace.kernels["begin_ns"]).all()
    assert trace.kernels["begin_ns"].tolist() == [20_000, 60_000]


def test_members_of_a_group_are_not_counted_out_to_the_end_of_memory(tmp_path: Path) -> None:
    reported = {"Process Group Name": "0", "Group size": 1 << 40, "Global rank start": 0, "Global rank stride": 1}
    trace = stashtrace.load(
        write(tmp_path / "rank0.json", [*WORK, device("ncclDevKernel_AllReduce", 60, 20, stream=9, **reported)])
    )
    assert trace.groups["group_size"].tolist() == [-1]


def test_work_without_correlation_has_no_launch(tmp_path: Path) -> None:
    """Also where there is so much of it that looking for each launch in turn would take minutes."""
    count = 40_000
    events = [{**launch(0, n), "args": {}} for n in range(count)]
    events += [{**device("k", n + 0.5, 0.2), "args": {"device": 0, "stream": 7}} for n in range(count)]
    trace = stashtrace.load(write(tmp_path / "rank0.json", events))
    assert len(trace.kernels) == count
    assert (trace.kernels["launch_ns"] == -1).all()


def test_launch_by_a_number_used_many_times(tmp_path: Path) -> None:
    events = [launch(5, 100 * n) for n in range(9)] + [device("k", 100 * n + 50, 5, correlation=5) for n in range(9)]
    early = device("early", -20, 5, correlation=5)
    trace = stashtrace.load(write(tmp_path / "rank0.json", [*events, early]))
    apart = trace.kernels["begin_ns"] - trace.kernels["launch_ns"]
    assert apart.tolist() == [-20_000] + [50_000] * 9


def pfw(path: Path, *events: dict[str, Any]) -> Path:
    rows = [{"id": n, "pid": 7, "tid": 7, "ph": "X", "cat": "POSIX", "dur": 3, **e} for n, e in enumerate(events)]
    path.write_text("\n".join(["[", *map(json.dumps, rows)]))
    return path


def read(at_us: Any = START_NS // 1000, **more: Any) -> dict[str, Any]:
    return {"name": "read", "ts": at_us, "args": {"fname": "/a", "ret": 5, "offset": 0}, **more}


@pytest.mark.parametrize(
    "damaged",
    [
        read(args={"fname": "/a", "ret": 1 << 70}),
        read(args={"fname": "/a", "ret": 1 << 62, "size": 1 << 20}),
        read(args=["/a", 5]),
        read(at_us=1 << 62),
        read(at_us=-5),
        read(dur=1 << 61),
        read(pid=1 << 63),
        {"name": "rss", "ph": "C", "ts": 1 << 70, "args": {"value": 1}},
        {"name": "rss", "ph": "C", "ts": 5, "args": 1},
    ],
    ids=str,
)
def test_calls_of_dftracer(tmp_path: Path, damaged: dict[str, Any]) -> None:
    trace = stashtrace.load(pfw(tmp_path / "a-0-of-1.pfw", read(), damaged, read(START_NS // 1000 + 10)))
    assert trace.io["begin_ns"].tolist() == [0, 10_000]
    assert trace.io["result_bytes"].tolist() == [5, 5]
    assert len(trace.spans) == len(trace.counters) == 0
    assert "lines_unreadable" in reasons(trace)


def test_names_of_dftracer_that_are_no_texts(tmp_path: Path) -> None:
    trace = stashtrace.load(pfw(tmp_path / "a-0-of-1.pfw", read(), read(name=7, cat=None)))
    assert len(trace.io) == 1
    assert len(trace.spans) == 1


def test_minus_one_without_a_sign(tmp_path: Path) -> None:
    failed = read(START_NS // 1000 + 10, args={"fname": "/a", "ret": (1 << 64) - 1, "offset": (1 << 64) - 1})
    trace = stashtrace.load(pfw(tmp_path / "a-0-of-1.pfw", read(), failed))
    assert trace.io["result_bytes"].tolist() == [5, -1]
    assert trace.io["offset_bytes"].tolist() == [0, -1]
    assert "lines_unreadable" not in reasons(trace)


def test_counters_of_many_processes(tmp_path: Path) -> None:
    rows = [
        {"name": "mem", "ph": "C", "pid": n % 3, "ts": START_NS // 1000 + n, "args": {"rss": n, "cpu": 0.5}}
        for n in range(12)
    ]
    trace = stashtrace.load(pfw(tmp_path / "a.pfw", *rows))
    own = trace.tracks["process_id"][trace.counters["track_id"]]
    assert np.bincount(own).tolist() == [8, 8, 8]
    assert sorted(trace.counters["value"].tolist()) == sorted([*map(float, range(12)), *[0.5] * 12])


def node(**more: Any) -> dict[str, Any]:
    return {"id": 5, "name": "aten::add", "ctrl_deps": 1, "inputs": {"values": []}, "outputs": {"values": []}, **more}


def nodes(path: Path, *listed: dict[str, Any]) -> Path:
    head = {"schema": "1.1.0-chakra.0.0.4", "pid": 1}
    path.write_text(json.dumps({**head, "nodes": listed}, ensure_ascii=False), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "more",
    [
        {"id": 1 << 64},
        {"attrs": 5},
        {"attrs": [{"name": [], "value": 5}]},
        {"attrs": [{"name": "comm_bytes", "value": 1 << 70}]},
        {"inputs": {"values": [[1, 2, 3, 1 << 60, 1 << 60, "cuda"]]}},
        {"name": "record_param_comms", "inputs": {"values": [5, 1.5, 0, "allreduce"]}},
        {"name": "record_param_comms", "inputs": {"values": [5, "group", 0, "allreduce"]}},
    ],
    ids=str,
)
def test_nodes_of_execution_traces(tmp_path: Path, more: dict[str, Any]) -> None:
    trace = stashtrace.load(nodes(tmp_path / "rank0_et.json", node(), node(**more)))
    assert len(trace.execution_nodes) == 2


def test_characters_at_the_border_of_two_reads(tmp_path: Path) -> None:
    name = "中" * 300
    trace = stashtrace.load(nodes(tmp_path / "rank0_et.json", *[node(id=n, name=name) for n in range(4000)]))
    assert set(trace.strings.texts(trace.execution_nodes["name_code"]).tolist()) == {name}


def test_entries_of_the_flight_recorder(tmp_path: Path) -> None:
    entry = {
        "record_id": 0,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": 1,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": START_NS,
        "state": "completed",
        "retired": True,
        "time_discovered_started_ns": START_NS + 500,
        "time_discovered_completed_ns": START_NS + 400,
    }
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": f"[0, {1 << 64}]"}}
    path = tmp_path / "nccl_trace_rank_0.json"
    path.write_text(json.dumps({"version": "2.4", "pg_config": config, "entries": [entry]}))
    trace = stashtrace.load(path)
    assert trace.collectives["end_ns"].tolist() == trace.collectives["begin_ns"].tolist()
    assert len(stashtrace.analyze(trace, "collectives")) <= 1


@pytest.mark.parametrize("value", [b"\xff\x00", "many", 1 << 62])
def test_cells_of_an_export_of_nsys(tmp_path: Path, value: Any) -> None:
    export = Export(tmp_path / "a.sqlite")
    pid = tid_of(7) & ~0xFFFFFF
    export.row("CUPTI_ACTIVITY_KIND_KERNEL", start=5, end=9, deviceId=0, streamId=7, globalPid=pid, correlationId=1)
    export.row("TARGET_INFO_GPU", id=0, name="H100", totalMemory=value, smCount=value, computeMajor=value)
    trace = stashtrace.load(export.close())
    assert trace.devices["memory_bytes"].tolist() == [-1]


@pytest.mark.parametrize("device", [None, "x", b"\x00", 0.5])
def test_a_process_of_nsys_whose_only_device_is_no_number(tmp_path: Path, device: Any) -> None:
    export = Export(tmp_path / "rank0.sqlite")
    export.kernel(42, "gemm", 5, 9, device=device)
    assert len(stashtrace.load(export.close()).kernels) == 1


def test_half_a_surrogate_pair_reaches_no_file(tmp_path: Path) -> None:
    lone = read(args={"fname": "/data/\ud800é", "ret": 5, "offset": 0})
    trace = stashtrace.load(pfw(tmp_path / "a-0-of-1.pfw", lone))
    assert trace.text(int(trace.io["path_code"][0])) == "/data/?é"
    assert all(text.encode() is not None for text in trace.strings)


@pytest.mark.parametrize("behind", [b"garbage", b"\0\0\0", b"\0\0garbage", b"\x1f"])
def test_bytes_behind_a_compressed_file(tmp_path: Path, behind: bytes) -> None:
    whole = write(tmp_path / "rank0.json", WORK).read_bytes()
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(whole) + behind)
    trace = stashtrace.load(path)
    assert len(trace.kernels) == 1
    assert ("file_cut" in reasons(trace)) == (behind == b"\x1f")


def test_compressed_nothing_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "rank0.json.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(ImporterError, match="holds nothing, compressed"):
        stashtrace.load(tmp_path / "rank0.json.gz")


def test_many_ranks_apart_are_named_in_few_words(tmp_path: Path) -> None:
    for rank in range(0, 120, 2):
        first = 10 if rank < 50 else 100
        rank_of_two(tmp_path / f"rank{rank}.json", rank, first_step=first)
    trace = stashtrace.load(tmp_path)
    reported = [trace.text(code) for code in trace.losses["advice_code"].tolist()]
    apart = [text for text in reported if "recorded none of the steps" in text]
    assert len(apart) == 1
    assert apart[0].startswith("25 ranks, 0 the first, recorded")


def test_sums_of_all_ranks_lie_on_the_only_host() -> None:
    pytest.importorskip("darshan")
    trace = stashtrace.load(corpus("darshan/unet3d_a100.darshan"))
    assert set(trace.strings.texts(trace.processes["host_code"]).tolist()) == {"corona171"}


def test_steps_whose_numbers_fall_are_drawn(tmp_path: Path) -> None:
    path = rank_of_two(tmp_path / "rank0.json", 0)
    text = path.read_text(encoding="utf-8")
    assert text.count("ProfilerStep#10") == 1
    path.write_text(text.replace("ProfilerStep#10", "ProfilerStep#99"), encoding="utf-8")
    trace = stashtrace.load(path)
    assert stashtrace.analyze(trace, "steps")["step"].tolist() == [99, 11]
    stashtrace.export(trace, "perfetto", tmp_path / "t.pftrace")
