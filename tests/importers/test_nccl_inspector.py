"""Files of NCCL's Inspector, written here as its versions write them."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from importers.read_back import load, losses

import stashtrace
from stashtrace.errors import ImporterError
from stashtrace.schema.kinds import CollectiveOp
from stashtrace.schema.trace import Trace

T_US = 1_752_867_229_235_000


def _header(rank: int, comm: str = "0xe62dedaa97644a", n_ranks: int = 2, **more: Any) -> dict[str, Any]:
    return {"id": comm, "rank": rank, "n_ranks": n_ranks, "nnodes": 1, **more}


def _metadata(pid: int, version: str = "v4.0", dump_us: int = T_US + 1_000_000) -> dict[str, Any]:
    return {
        "inspector_output_format_version": version,
        "git_rev": "",
        "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": dump_us,
        "hostname": "node01",
        "pid": pid,
    }


def _operation(op: str, number: int, duration_us: int, start_us: int = 0, size: int = 1 << 20) -> dict[str, Any]:
    body: dict[str, Any] = {
        "coll": op,
        "coll_algo": "RING",
        "coll_proto": "LL128",
        "coll_sn": number,
        "coll_msg_size_bytes": size,
        "coll_exec_time_us": duration_us,
        "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": 1.0,
        "coll_busbw_gbs": 1.0,
    }
    if start_us:
        body["event_trace_ts"] = {
            "coll_start_ts": T_US + start_us - 50,
            "coll_stop_ts": T_US + start_us - 45,
            "kernel_events": [
                {
                    "channel_id": c,
                    "kernel_start_ts": T_US + start_us + c,
                    "kernel_stop_ts": T_US + start_us + duration_us,
                }
                for c in range(2)
            ],
        }
    return body


def _write(folder: Path, rank: int, *records: dict[str, Any], tail: str = "") -> Path:
    path = folder / f"node01-pid{100 + rank}.log"
    path.write_text("".join(json.dumps(r) + "\n" for r in records) + tail)
    return path


def _verbose(folder: Path) -> Trace:
    for rank in range(2):
        _write(
            folder,
            rank,
            *(
                {"header": _header(rank), "metadata": _metadata(100 + rank), "coll_perf": _operation(op, n, d, at)}
                for op, n, d, at in (
                    ("AllReduce", 7, 900 - 400 * rank, 1000 + 400 * rank),
                    ("AllReduce", 8, 100, 3000),
                    ("ReduceScatter", 7, 200, 4000),
                )
            ),
        )
    return load(folder)


def test_verbose_files_hold_times(tmp_path: Path) -> None:
    trace = _verbose(tmp_path)
    rows = trace.collectives
    assert rows["rank"].tolist() == [0, 1] * 3
    assert (rows["device_end_ns"] - rows["device_begin_ns"]).tolist() == [900_000, 500_000, 100_000, 100_000] + [
        200_000
    ] * 2
    assert (rows["device_begin_ns"] - rows["call_ns"]).tolist() == [50_000] * 6
    # NCCL counts per communicator and function: equal numbers of two functions are two operations.
    assert len(set(zip(rows["group_hash"].tolist(), rows["sequence"].tolist(), strict=True))) == 3
    # What a rank puts into a reduce-scatter is as many blocks as there are ranks.
    assert rows["message_bytes"].tolist() == [1 << 20] * 4 + [2 << 20] * 2
    details = trace.collective_details
    assert {trace.text(c) for c in details["algorithm_code"]} == {"RING"}
    assert {trace.text(c) for c in details["protocol_code"]} == {"LL128"}
    assert details["timed_count"].tolist() == [2] * 6
    assert {trace.text(c) for c in trace.groups["members_code"]} == {"0,1"}
    assert trace.processes["world_size"].tolist() == [2, 2]


def test_late_rank_is_found(tmp_path: Path) -> None:
    found = stashtrace.analyze(_verbose(tmp_path), "collectives")
    first = [r for r in found.rows() if r["op"] == "all_reduce" and r["sequence"] == 7]
    assert [(r["rank"], r["wait_ns"], r["transfer_ns"], r["last_rank"], r["method"]) for r in first] == [
        (0, 400_000, 500_000, 1, "clock"),
        (1, 0, 500_000, -1, "clock"),
    ]


def test_without_times_the_shortest_duration_is_the_transfer(tmp_path: Path) -> None:
    for rank, duration in enumerate((900, 500)):
        _write(
            tmp_path,
            rank,
            *(
                {
                    "header": _header(rank),
                    "metadata": _metadata(100 + rank),
                    "coll_perf": _operation("AllReduce", n, duration),
                }
                for n in range(3)
            ),
        )
    trace = load(tmp_path)
    assert losses(trace)["times_not_in_file"] == 6
    rows = trace.collectives
    mine = rows.take(rows["rank"] == 0)
    assert mine["device_begin_ns"].tolist() == [0, 900_000, 1_800_000]  # laid end to end
    found = stashtrace.analyze(trace, "collectives")
    assert {(r["rank"], r["wait_ns"], r["transfer_ns"], r["method"]) for r in found.rows()} == {
        (0, 400_000, 500_000, "duration"),
        (1, 0, 500_000, "duration"),
    }


def test_marker_carries_the_header_from_v43_on(tmp_path: Path) -> None:
    marker = {
        "header": _header(1, comm_name="DP Group 0"),
        "metadata": _metadata(101, "v4.3"),
        "dump_stats": {"coll_records": 2, "coll_dropped_total": 5, "p2p_records": 1, "proxy_records": 2},
    }
    message = {
        "p2p": "Send",
        "p2p_sn": 3,
        "p2p_peer": 0,
        "p2p_msg_size_bytes": 4096,
        "p2p_exec_time_us": 10.5,
    }
    step = {
        "record_type": "proxy_step",
        "parent_type": "coll",
        "parent_sn": 5,
        "event_trace_ts": {
            "send_gpu_wait_ts": 10,
            "send_peer_wait_ts": 20,
            "send_wait_ts": 23,
            "proxy_step_stop_ts": 30,
        },
    }
    whole = {
        "record_type": "proxy_op",
        "parent_type": "coll",
        "parent_sn": 5,
        "trans_size_bytes": 77,
        "event_trace_ts": {"proxy_op_start_ts": 10, "proxy_op_stop_ts": 40},
    }
    path = _write(
        tmp_path,
        1,
        {"coll_perf": _operation("AllGather", 4, 10)},  # before any marker: nobody knows whose it is
        marker,
        {"coll_perf": _operation("AllReduce", 5, 30, 2000)},
        {"p2p_perf": message},
        {"proxy_trace": step},
        {"proxy_trace": whole},
    )
    trace = load(path)
    lost = losses(trace)
    assert lost["lines_without_header"] == 1
    assert lost["announced_records_missing"] == 1
    assert lost["ring_overwritten"] == 5
    rows = trace.collectives
    assert sorted(rows["op_code"].tolist()) == [CollectiveOp.ALL_REDUCE, CollectiveOp.SEND]
    at = int(trace.collectives["op_code"].tolist().index(CollectiveOp.ALL_REDUCE))
    detail = next(r for r in trace.collective_details.rows() if r["collective_key"] == rows["collective_key"][at])
    assert (detail["gpu_wait_ns"], detail["peer_wait_ns"], detail["wire_wait_ns"]) == (10_000, 3_000, 7_000)
    assert (detail["network_ns"], detail["transfer_bytes"]) == (30_000, 77)
    names = {trace.text(c) for c in trace.groups["name_code"]}
    assert names == {"DP Group 0 · all_reduce", "DP Group 0 · messages"}
    sent = next(r for r in rows.rows() if r["op_code"] == CollectiveOp.SEND)
    assert (sent["peer_rank"], sent["message_bytes"]) == (0, 4096)


def test_cut_and_broken_lines_cost_themselves_only(tmp_path: Path) -> None:
    good = {"header": _header(0), "metadata": _metadata(100), "coll_perf": _operation("AllReduce", 1, 10, 100)}
    path = _write(tmp_path, 0, good, {"header": {"id": "0x1"}, "coll_perf": {}}, tail='[1]\n"text"\n\n{"header": {"id"')
    trace = load(path)
    assert len(trace.collectives) == 1
    assert losses(trace)["broken_lines"] == 4


def test_cut_gzip_gives_what_was_before_the_cut(tmp_path: Path) -> None:
    lines = "".join(
        json.dumps(
            {"header": _header(0), "metadata": _metadata(100), "coll_perf": _operation("AllReduce", n, 10 + n, 100 * n)}
        )
        + "\n"
        for n in range(1, 4000)
    )
    packed = gzip.compress(lines.encode())
    path = tmp_path / "node01-pid100.log.gz"
    path.write_bytes(packed[: len(packed) // 2])
    trace = load(path)
    assert 0 < len(trace.collectives) < 3999
    assert losses(trace)["file_cut"] == 1


def test_gaps_unknown_version_and_largest_communicator(tmp_path: Path) -> None:
    path = _write(
        tmp_path,
        0,
        {
            "header": _header(1, "0xa", 2),
            "metadata": _metadata(100, "v9.1"),
            "coll_perf": _operation("AllReduce", 1, 10, 10),
        },
        {
            "header": _header(5, "0xb", 8),
            "metadata": _metadata(100, "v9.1"),
            "coll_perf": _operation("AllReduce", 2, 10, 30),
        },
        {
            "header": _header(5, "0xb", 8),
            "metadata": _metadata(100, "v9.1"),
            "coll_perf": _operation("AllReduce", 9, 10, 50),
        },
    )
    trace = load(path)
    assert trace.processes["rank"].tolist() == [5]
    lost = losses(trace)
    assert lost["operations_not_in_file"] == 6
    assert lost["newer_schema"] == 1


def test_file_without_operations_is_refused(tmp_path: Path) -> None:
    path = _write(
        tmp_path, 0, {"header": _header(0), "metadata": _metadata(1, "v4.3"), "dump_stats": {"coll_records": 0}}
    )
    with pytest.raises(ImporterError, match="no operation"):
        stashtrace.load(path)


@pytest.mark.parametrize(
    "change",
    [
        '"coll_sn": 99999999999999999999',
        '"coll_sn": -5',
        '"coll_exec_time_us": 1e400',
        '"coll_exec_time_us": NaN',
        '"coll_msg_size_bytes": "x"',
        '"rank": 7',
        '"dump_timestamp_us": 99999999999999999999',
        '"event_trace_ts": 5',
        '"kernel_start_ts": []',
    ],
)
def test_numbers_that_cannot_be_are_damage(tmp_path: Path, change: str) -> None:
    good = {"header": _header(0), "metadata": _metadata(100), "coll_perf": _operation("AllReduce", 1, 10, 100)}
    name = change.partition(":")[0]
    text = re.sub(name + r": [^,\[{}]*", lambda _: change, json.dumps(good), count=1)
    if name == '"event_trace_ts"':
        text = json.dumps({**good, "coll_perf": {**good["coll_perf"], "event_trace_ts": 5}})
    path = tmp_path / "node01-pid100.log"
    path.write_text(json.dumps(good) + "\n" + text + "\n")
    trace = load(path)
    assert len(trace.collectives) == 1
    assert losses(trace)["broken_lines"] == 1
