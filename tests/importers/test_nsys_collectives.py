"""NCCL in exports of Nsight Systems: by its ranges, and by its kernels alone."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from importers.nsys_exports import MS, Export, pid_of
from importers.read_back import load, losses

import stashtrace
from stashtrace.importers.collective_names import algorithm_and_protocol, collective_op
from stashtrace.schema.kernel_names import communicates
from stashtrace.schema.kinds import CollectiveOp, DeviceWork, NcclFlag
from stashtrace.schema.trace import Trace

COMM = 0xCAFEBABEDEADBEEF
_KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096>)"


def _payload(**fields: int) -> str:
    names = {"comm": "NCCL communicator ID", "size": "Message size [bytes]", "peer": "Peer rank", "rank": "Rank"}
    return json.dumps({names.get(k, "No. of ranks"): v for k, v in fields.items()})


def _allreduce(
    export: Export, pid: int, number: int, begin: int, end: int, *, device: int, described: bool = True
) -> None:
    """One call in a separate group, as torch makes them, and its kernel."""
    at = 10 * MS * number
    call = 100 + number
    if described:
        export.range(pid, "ncclGroupStart", at, at + 1000)
        export.range(pid, "ncclAllReduce", at + 2000, at + 5000, jsonText=_payload(comm=COMM, size=1 << 20))
        export.range(pid, "ncclGroupEnd", at + 6000, at + 20_000)
    export.call(pid, "cuLaunchKernelEx", at + 8000, at + 12_000, call=call)
    export.kernel(pid, _KERNEL, at + begin, at + end, call=call, device=device, stream=20)


def _job(path: Path, *, described: bool = True, cut: int = 0) -> Trace:
    """Two ranks, five all-reduces; rank 1 comes 2 ms later. The first ``cut`` of rank 1 are not in the recording."""
    export = Export(path)
    for rank in range(2):
        pid = 40 + rank
        if described:
            export.range(pid, "ncclCommInitRank", -MS, 0, jsonText=_payload(comm=COMM, ranks=2, rank=rank))
        for number in range(cut if rank else 0, 5):
            late = 2 * MS if rank else 0
            _allreduce(export, pid, number, MS + late, 4 * MS, device=rank, described=described)
    return load(export.close())


@pytest.mark.parametrize("described", [True, False])
@pytest.mark.parametrize("cut", [0, 1, 2])
def test_late_rank_is_found_wherever_the_recording_began(tmp_path: Path, described: bool, cut: int) -> None:
    trace = _job(tmp_path / "report.sqlite", described=described, cut=cut)
    rows = trace.collectives
    assert len(rows) == 10 - cut
    assert set(rows["op_code"].tolist()) == {CollectiveOp.ALL_REDUCE}
    found = stashtrace.analyze(trace, "collectives")
    both = [r for r in found.rows() if r["sequence"] >= cut]
    assert {(r["rank"], r["wait_ns"], r["transfer_ns"], r["last_rank"]) for r in both} == {
        (0, 2 * MS, MS, 1),
        (1, 0, MS, -1),
    }
    assert ("communicators_unknown" in losses(trace)) is not described


def test_what_nccl_says_of_a_call(tmp_path: Path) -> None:
    trace = _job(tmp_path / "report.sqlite")
    row = next(trace.collectives.rows())
    assert (row["message_bytes"], row["device_end_ns"] - row["device_begin_ns"]) == (1 << 20, 3 * MS)
    assert row["return_ns"] - row["call_ns"] == 3000
    assert {trace.text(c) for c in trace.groups["members_code"]} == {"0,1"}
    assert trace.groups["group_hash"].tolist() == [COMM, COMM]
    details = next(trace.collective_details.rows())
    assert trace.text(details["algorithm_code"]) == "RING"
    assert trace.text(details["protocol_code"]) == "LL"
    assert details["nccl_flags"] == NcclFlag.GROUPED
    assert (trace.kernels["work_code"] == DeviceWork.COMMUNICATION).all()


def test_calls_of_one_group_take_its_kernels_in_order(tmp_path: Path) -> None:
    export = Export(tmp_path / "report.sqlite")
    names = ("ncclReduceScatter", "ncclAllGather", "ncclSend")
    export.range(40, "ncclCommInitRankConfig", -10, 0, jsonText=_payload(comm=COMM, ranks=4, rank=2))
    export.range(40, "ncclGroupStart", 0, 10)
    for at, name in enumerate(names):
        more = {"peer": 3} if name == "ncclSend" else {}
        export.range(40, name, 100 * at + 20, 100 * at + 50, jsonText=_payload(comm=COMM, size=64, **more))
    export.range(40, "ncclGroupEnd", 1000, 2000)
    for at in range(3):
        export.call(40, "cuLaunchKernelEx", 1100 + 10 * at, 1105 + 10 * at, call=at + 1)
        export.kernel(40, f"ncclDevKernel_{names[at][4:]}_RING_LL()", 5000 + 100 * at, 5050 + 100 * at, call=at + 1)
    trace = load(export.close())
    rows = {trace.text(r["name_code"]): r for r in trace.collectives.rows()}
    first = rows["ncclReduceScatter"]["device_begin_ns"]
    assert [rows[n]["device_begin_ns"] - first for n in names] == [0, 100, 200]
    # This rank's input of a reduce-scatter is one block for each rank.
    assert [rows[n]["message_bytes"] for n in names] == [256, 64, 64]
    # Rank 2 is the first of the two that share its message to rank 3.
    assert rows["ncclSend"]["peer_rank"] == 1
    assert f"nccl {COMM:x} · 2 to 3" in {trace.text(code) for code in trace.groups["name_code"]}
    assert rows["ncclSend"]["group_hash"] != rows["ncclAllGather"]["group_hash"]
    assert [rows[n]["sequence"] for n in names] == [0, 1, 0]


def test_calls_outside_a_group_launch_themselves(tmp_path: Path) -> None:
    export = Export(tmp_path / "report.sqlite")
    for number in range(2):
        at = 1000 * number
        export.range(40, "ncclBroadcast", at, at + 500, jsonText=_payload(comm=COMM, size=8))
        export.call(40, "cuLaunchKernelEx", at + 100, at + 200, call=number + 1)
        export.kernel(40, "ncclDevKernel_Broadcast_RING_LL()", at + 300, at + 900, call=number + 1)
    trace = load(export.close())
    assert (trace.collectives["device_begin_ns"] - trace.collectives["call_ns"]).tolist() == [300, 300]
    assert trace.collective_details["nccl_flags"].tolist() == [0, 0]


def test_a_call_without_a_kernel_stays_untimed(tmp_path: Path) -> None:
    export = Export(tmp_path / "report.sqlite")
    export.range(40, "ncclAllReduce", 0, 500, jsonText=_payload(comm=COMM, size=8))
    export.kernel(40, "compute", 0, 10)
    row = next(load(export.close()).collectives.rows())
    assert (row["device_begin_ns"], row["end_ns"], row["status_code"]) == (-1, -1, 3)


def test_kernels_of_ranks_that_do_not_end_together_are_apart(tmp_path: Path) -> None:
    export = Export(tmp_path / "report.sqlite")
    for rank in range(4):
        for number in range(4):
            # Ranks 0 and 1 are one group, 2 and 3 another that is out of step with it.
            at = 10 * MS * number + (5 * MS if rank > 1 else 0)
            export.kernel(40 + rank, _KERNEL, at, at + MS, device=rank, stream=20)
    trace = load(export.close())
    by_group: dict[int, set[int]] = {}
    for row in trace.collectives.rows():
        by_group.setdefault(row["group_hash"], set()).add(row["rank"])
    assert sorted(map(sorted, by_group.values())) == [[0, 1], [2, 3]]


def test_payload_as_bytes(tmp_path: Path) -> None:
    export = Export(tmp_path / "report.sqlite")
    for place, (kind, name, offset) in enumerate(
        ((18, "NCCL communicator ID", None), (22, "Message size [bytes]", 8), (5, "Peer rank", 16), (99, "Later", 20))
    ):
        export.row("NVTX_PAYLOAD_SCHEMA_ENTRIES", schemaId=16777225, idx=place, type=kind, name=name, offset=offset)
    content = struct.pack("<QQi4x", COMM, 4096, 1)
    head = struct.pack("<QQQQ", 1, 16777225, len(content), 32 + len(content))
    export.range(40, "ncclRecv", 0, 100, binaryData=head + content)
    export.range(40, "ncclRecv", 200, 300, binaryData=head[:20])
    export.range(40, "ncclRecv", 400, 500, binaryData=struct.pack("<QQQQ", 1, 5, 0, 0))
    export.row("PROCESSES", globalPid=pid_of(40), pid=40, name="python")
    rows = list(load(export.close()).collectives.rows())
    assert [(r["op_code"], r["message_bytes"], r["peer_rank"]) for r in rows] == [(CollectiveOp.RECEIVE, 4096, 1)]


@pytest.mark.parametrize(
    "text",
    ['{"NCCL communicator ID": "14,627,333,968,688,430,831", "Message size [bytes]": "4,096"}', '{"cut": ', "[1]"],
)
def test_payload_as_text(tmp_path: Path, text: str) -> None:
    export = Export(tmp_path / "report.sqlite")
    export.row(
        "NVTX_EVENTS",
        start=0,
        end=10,
        eventType=59,
        globalTid=pid_of(40) | 40,
        textId=export.text("ncclAllGather"),
        jsonTextId=export.text(text),
    )
    rows = list(load(export.close()).collectives.rows())
    assert [(r["group_hash"], r["message_bytes"]) for r in rows] == ([(COMM, 4096)] if "4,096" in text else [])


@pytest.mark.parametrize(
    ("name", "op", "how"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_TREE_LL128(...)", CollectiveOp.ALL_REDUCE, ("TREE", "LL128")),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_SIMPLE", CollectiveOp.REDUCE_SCATTER, ("RING", "SIMPLE")),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*)", CollectiveOp.ALL_GATHER, ("RING", "LL")),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", CollectiveOp.OTHER, ("", "")),
        ("ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f32", CollectiveOp.ALL_REDUCE, ("", "")),
        ("ncclBroadcastRingLLKernel_copy_i8(ncclColl)", CollectiveOp.BROADCAST, ("RING", "LL")),
        ("ncclDevKernel_Generic_1", CollectiveOp.OTHER, ("", "")),
    ],
)
def test_names_of_kernels(name: str, op: CollectiveOp, how: tuple[str, str]) -> None:
    assert communicates(name)
    assert (collective_op(name), algorithm_and_protocol(name)) == (op, how)


@pytest.mark.parametrize("name", ["void gemm(ncclComm*)", "elementwise_kernel", "at::native::reduce_kernel", ""])
def test_other_kernels_do_not_communicate(name: str) -> None:
    assert not communicates(name)


_SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def _pipeline(
    export: Export, *, ranks: int = 2, steps: int = 5, cut: int = 0, init: bool = True, payload: str = "full"
) -> None:
    """In each step the first rank sends to the last one at 1 ms, which answers after 6 ms of work.

    The first ``cut`` messages of the last rank are not in the recording, nor the communicator's beginning without
    ``init``.
    """
    last = ranks - 1
    for rank in range(1, last):
        export.kernel(40 + rank, "compute", 0, 10, device=rank)
    for rank in (0, last):
        pid, call = 40 + rank, 100
        if init:
            export.range(pid, "ncclCommInitRank", -MS, 0, jsonText=_payload(comm=COMM, ranks=ranks, rank=rank))
        for step in range(steps):
            at = 20 * MS * step
            messages = (
                [("ncclSend", 1, 2), ("ncclRecv", 3, 9)] if rank == 0 else [("ncclRecv", 0, 2), ("ncclSend", 8, 9)]
            )
            for place, (name, begin, end) in enumerate(messages):
                if rank and 2 * step + place < cut:
                    continue
                said: dict[str, str] = {
                    "full": {"jsonText": _payload(comm=COMM, size=4096, peer=last - rank)},
                    "old": {"jsonText": json.dumps({"Bytes": 4096, "Peer rank": last - rank})},
                    "none": {},
                }[payload]
                moment = at + begin * MS
                export.range(pid, name, moment, moment + 9000, **said)
                export.call(pid, "cuLaunchKernelEx", moment + 1000, moment + 5000, call=call)
                export.kernel(pid, _SEND_RECV, moment + 10_000, at + end * MS, call=call, device=rank, stream=20)
                call += 1


def _receives(trace: Trace) -> list[tuple[int, int, int]]:
    found = stashtrace.analyze(trace, "collectives")
    return [
        (r["wait_ns"], r["transfer_ns"], r["last_rank"]) for r in found.rows() if r["op"] == "receive" and not r["rank"]
    ]


@pytest.mark.parametrize(("ranks", "init"), [(2, True), (2, False), (3, True), (3, False)])
@pytest.mark.parametrize("cut", [0, 1, 3])
def test_a_receive_waits_for_the_rank_that_sends(tmp_path: Path, ranks: int, init: bool, cut: int) -> None:
    """The first rank's receive stands from 3 ms on, the last rank sends at 8 ms."""
    export = Export(tmp_path / "report.sqlite")
    _pipeline(export, ranks=ranks, init=init, cut=cut)
    trace = load(export.close())
    waits = _receives(trace)
    assert len(waits) == 5
    assert waits[cut // 2 :] == [(5 * MS, MS - 10_000, ranks - 1)] * (5 - cut // 2)
    assert set(trace.collectives["message_bytes"].tolist()) == {4096}


@pytest.mark.parametrize(("payload", "size"), [("old", 4096), ("none", 0)])
@pytest.mark.parametrize("cut", [0, 3])
def test_messages_without_a_communicator_are_paired_by_their_ends(
    tmp_path: Path, payload: str, size: int, cut: int
) -> None:
    """Two processes, of which one sends whenever the other receives, and whose kernels end together."""
    export = Export(tmp_path / "report.sqlite")
    _pipeline(export, payload=payload, init=False, cut=cut)
    trace = load(export.close())
    assert _receives(trace)[cut // 2 :] == [(5 * MS, MS - 10_000, 1)] * (5 - cut // 2)
    assert set(trace.collectives["message_bytes"].tolist()) == {size}


def test_who_the_peer_is_stays_open_where_nothing_says(tmp_path: Path) -> None:
    """Of one process alone, and of sends and receives in one kernel, as an all-to-all makes them."""
    export = Export(tmp_path / "report.sqlite")
    for number in range(3):
        at = 10 * MS * number
        export.range(40, "ncclSend", at, at + 9000)
        export.call(40, "cuLaunchKernelEx", at + 1000, at + 5000, call=2 * number + 1)
        export.kernel(40, _SEND_RECV, at + 10_000, at + MS, call=2 * number + 1, stream=20)
        export.range(40, "ncclGroupStart", at + 2 * MS, at + 2 * MS + 1000)
        for place, name in enumerate(("ncclSend", "ncclRecv")):
            export.range(40, name, at + 2 * MS + 2000 * (place + 1), at + 2 * MS + 2000 * (place + 1) + 500)
        export.range(40, "ncclGroupEnd", at + 2 * MS + 8000, at + 2 * MS + 30_000)
        export.call(40, "cuLaunchKernelEx", at + 2 * MS + 9000, at + 2 * MS + 12_000, call=2 * number + 2)
        export.kernel(40, _SEND_RECV, at + 3 * MS, at + 4 * MS, call=2 * number + 2, stream=20)
    rows = list(load(export.close()).collectives.rows())
    assert [r["op_code"] for r in rows].count(CollectiveOp.SEND) == 3
    assert [r["op_code"] for r in rows].count(CollectiveOp.OTHER) == 3
    assert {r["peer_rank"] for r in rows} == {-1}
