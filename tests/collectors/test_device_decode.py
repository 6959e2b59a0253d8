"""Files of ranks with devices -> tables: mapped times, joined collectives, the same communicators on every rank."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from device_files import COMM, RankFile
from stash_files import ms

from stashtrace.collectors.nccl import union_lengths
from stashtrace.errors import DataLossWarning
from stashtrace.loading.load import load_trace
from stashtrace.schema.kinds import (
    Bracket,
    BracketFlag,
    CollectiveFlag,
    CollectiveOp,
    CollectiveSource,
    DeviceCall,
    DeviceClock,
    DeviceWork,
    NcclFlag,
    TrackKind,
)
from stashtrace.schema.trace import Trace

TORCH = 0x70C4
#: Half-width of the written readings, steps of the event clock, and rounding.
ERROR_NS = 1000 + 500 + 500


def load(directory: Path, **options) -> Trace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        return load_trace(directory, **options)


def at(trace: Trace, milliseconds: float) -> int:
    """A moment on the common clock."""
    facts = {trace.text(r["key_code"]): trace.text(r["value_code"]) for r in trace.metadata.rows()}
    return ms(milliseconds) - int(facts["origin_monotonic_ns"])


def near(trace: Trace, value: int, milliseconds: float) -> bool:
    return abs(int(value) - at(trace, milliseconds)) <= ERROR_NS


def losses(trace: Trace) -> dict[str, int]:
    return {trace.text(r["name_code"]): r["lost_count"] for r in trace.losses.rows()}


def rows(trace: Trace, rank: int = 0) -> list[dict]:
    return [r for r in trace.collectives.rows() if r["rank"] == rank]


@pytest.fixture
def one(tmp_path: Path) -> RankFile:
    file = RankFile(tmp_path, 0, 1)
    file.stream(1, flags=4 | 8)
    file.stream(2, priority=-5)
    return file


def test_brackets_devices_streams_and_calls(one: RankFile, tmp_path: Path) -> None:
    awaited = one.bracket(Bracket.COPY, 10, 12, stream=2, host=(9, 9.5), copy_code=1, size_bytes=4096, bracket_flags=4)
    one.bracket(
        Bracket.STREAM_WAIT,
        10.5,
        12,
        stream=1,
        host=(9.6, 9.7),
        awaited=12,
        awaited_code=1,
        correlation=awaited,
        tid=4321,
    )
    one.bracket(Bracket.COPY, -1, -1, stream=2, bracket_flags=int(BracketFlag.UNTIMED))
    one.add(
        "device_call",
        begin_ticks=ms(20),
        end_ticks=ms(25),
        stream_key=1,
        device_index=0,
        call_code=int(DeviceCall.STREAM_SYNCHRONIZE),
    )
    one.save()
    trace = load(tmp_path)
    copy, wait = (r for r in trace.device_brackets.rows() if r["begin_ns"] >= 0)
    assert near(trace, copy["begin_ns"], 10)
    assert near(trace, copy["end_ns"], 12)
    assert near(trace, wait["awaited_ns"], 12)
    assert wait["correlation_id"] == awaited
    assert copy["call_ns"] == at(trace, 9)
    assert copy["return_ns"] == at(trace, 9.5)
    assert (copy["size_bytes"], copy["copy_code"], copy["awaited_ns"]) == (4096, 1, -1)
    tracks = {r["track_id"]: r for r in trace.tracks.rows()}
    assert tracks[wait["thread_track_id"]]["native_id"] == 4321
    assert trace.text(tracks[wait["track_id"]]["name_code"]) == "compute · stream 1"
    assert trace.text(tracks[copy["track_id"]]["name_code"]) == "stream 2 · high priority"
    assert [r["kind_code"] for r in tracks.values()].count(TrackKind.STREAM) == 2
    untimed = next(r for r in trace.device_brackets.rows() if r["begin_ns"] < 0)
    assert (untimed["end_ns"], untimed["bracket_flags"]) == (-1, BracketFlag.UNTIMED)
    call = next(trace.device_calls.rows())
    assert (call["begin_ns"], call["end_ns"]) == (at(trace, 20), at(trace, 25))
    assert call["stream_track_id"] == wait["track_id"]
    device = next(trace.devices.rows())
    assert (trace.text(device["uuid_code"]), device["multiprocessors_count"]) == ("GPU-0", 132)
    assert tracks[device["track_id"]]["kind_code"] == TrackKind.DEVICE
    clocks = {r["clock_code"]: r for r in trace.device_clocks.rows()}
    assert set(clocks) == set(DeviceClock)
    assert clocks[DeviceClock.EVENT]["anchors_count"] == 10
    assert 1000 <= clocks[DeviceClock.EVENT]["error_ns"] <= ERROR_NS
    assert abs(clocks[DeviceClock.EVENT]["drift_ppb"] + 30_000) < 10
    assert "device_clock_missing" not in losses(trace)


def test_a_device_without_readings_has_no_times_and_says_so(tmp_path: Path) -> None:
    file = RankFile(tmp_path, 0, 1, clocks=False)
    file.stream(1)
    file.bracket(Bracket.COPY, 10, 12)
    file.save()
    trace = load(tmp_path)
    assert trace.device_brackets["begin_ns"].tolist() == [-1]
    assert losses(trace)["device_clock_missing"] >= 1
    assert len(trace.device_clocks) == 0


def test_ranks_that_share_a_device_share_its_globaltimer(tmp_path: Path) -> None:
    for rank in range(2):
        file = RankFile(tmp_path, rank, 2, uuid="GPU-shared")
        file.save()
    trace = load(tmp_path)
    of_timer = [r for r in trace.device_clocks.rows() if r["clock_code"] == DeviceClock.GLOBALTIMER]
    assert [r["process_id"] for r in of_timer] == [0, 1]
    assert len({(r["anchors_count"], r["error_ns"]) for r in of_timer}) == 1


def test_events_time_a_call_from_the_return_of_the_launch(one: RankFile, tmp_path: Path) -> None:
    one.comm()
    one.bracket(Bracket.COLLECTIVE, 12, 30, stream=2, host=(10, 11), correlation=one.call(10, 11))
    one.bracket(Bracket.COLLECTIVE, 41, 60, stream=2, host=(40, 45), correlation=one.call(40, 45))
    one.call(70, 71)
    one.save()
    trace = load(tmp_path)
    first, second, untimed = rows(trace)
    assert near(trace, first["device_begin_ns"], 12)
    assert near(trace, first["device_end_ns"], 30)
    assert near(trace, second["device_begin_ns"], 45), "the launch returned after the first event: a lower bound"
    assert (first["begin_ns"], first["end_ns"]) == (first["device_begin_ns"], first["device_end_ns"])
    assert (first["source_code"], first["status_code"]) == (CollectiveSource.EVENTS, 0)
    assert (untimed["device_begin_ns"], untimed["device_end_ns"], untimed["status_code"]) == (-1, -1, 3)
    assert losses(trace)["collectives_untimed"] == 1
    assert [r["sequence"] for r in rows(trace)] == [0, 1, 2]
    assert trace.text(first["name_code"]) == "ncclAllReduce"
    group = next(trace.groups.rows())
    assert (trace.text(group["members_code"]), trace.text(group["backend_code"])) == ("0", "nccl")


def test_a_group_shares_the_bracket_of_its_stream(one: RankFile, tmp_path: Path) -> None:
    one.stream(3)
    one.comm()
    calls = [one.call(10 + i / 10, 12, batch=5, stream=2 + (i == 2), flags=1) for i in range(3)]
    one.bracket(Bracket.COLLECTIVE, 13, 20, stream=2, correlation=calls[1], bracket_flags=32)
    one.bracket(Bracket.COLLECTIVE, 13, 21, stream=3, correlation=calls[2], bracket_flags=32)
    lone = one.call(30, 31, batch=6, flags=1, stream=3)
    other = one.call(30.1, 31, batch=6, flags=1, stream=2)
    one.bracket(Bracket.COLLECTIVE, 32, 40, stream=2, correlation=other, bracket_flags=32)
    one.save()
    trace = load(tmp_path)
    assert lone
    ends = [20, 20, 21, 40, 40]
    assert all(near(trace, r["device_end_ns"], end) for r, end in zip(rows(trace), ends, strict=True))
    assert trace.collective_details["batch_key"].tolist() == [5, 5, 5, 6, 6]


def test_the_plugin_wins_and_its_stray_stamps_do_not(one: RankFile, tmp_path: Path) -> None:
    one.comm(nodes=2, size=2)
    call = one.call(10, 11)
    one.bracket(Bracket.COLLECTIVE, 12, 30, stream=2, correlation=call)
    task = one.task(call, 14, 29)
    one.proxy(task, 15, 20, wire=2)
    one.channel(task, 0, 14, 29)
    one.channel(task, 1, 15, 27)
    one.channel(task, 2, 13, -1)
    one.proxy(task, 18, 24, send=0)
    one.proxy(task, 26, 27)
    one.proxy(999, 26, 27)
    stray = one.call(40, 41)
    one.bracket(Bracket.COLLECTIVE, 42, 50, stream=2, correlation=stray)
    one.task(stray, 4000, 4010)
    one.save()
    trace = load(tmp_path)
    first, second = rows(trace)
    assert near(trace, first["device_begin_ns"], 14)
    assert near(trace, first["device_end_ns"], 29)
    assert first["source_code"] == CollectiveSource.PLUGIN
    assert near(trace, second["device_begin_ns"], 42)
    assert second["source_code"] == CollectiveSource.EVENTS
    detail = next(trace.collective_details.rows())
    assert detail["network_ns"] == 10_000_000, "two that overlap and one apart, united"
    assert (detail["wire_wait_ns"], detail["transfer_bytes"]) == (2_000_000, 3000)
    assert (trace.text(detail["algorithm_code"]), detail["channels_count"], detail["timed_count"]) == ("RING", 2, 2)
    apart = {"channel_skew_ns": 1_000_000, "channel_spread_ns": 2_000_000}
    assert {name: detail[name] for name in apart} == pytest.approx(apart, rel=1e-4), "of channels with both stamps"
    alone = list(trace.collective_details.rows())[1]
    assert (alone["channel_skew_ns"], alone["channel_spread_ns"]) == (-1, -1)
    found = losses(trace)
    assert (found["device_stamps_contradict"], found["proxies_of_others"]) == (1, 1)
    facts = {trace.text(r["key_code"]): trace.text(r["value_code"]) for r in trace.metadata.rows()}
    assert facts["nccl.events_beside_plugin"].startswith("1 operations: the first event")
    group = next(trace.groups.rows())
    assert (group["crosses_hosts"], trace.text(group["locality_code"])) == (1, "NCCL counts 2 hosts")


def test_tasks_without_calls_and_replays_have_separate_rows(one: RankFile, tmp_path: Path) -> None:
    one.comm()
    captured = one.call(5, 5.1, flags=int(NcclFlag.CAPTURED))
    one.call(6, 6.1)
    for i in range(2):
        one.task(captured, 20 + 10 * i, 25 + 10 * i, enqueued=19 + 10 * i, flags=int(NcclFlag.REPLAYED))
    one.task(0, 50, 55, enqueued=49)
    one.comm(0xBEEF)
    one.task(0, 60, 65, enqueued=59, value=0xBEEF)
    one.task(0, 70, 75, enqueued=69, value=0xBEEF)
    one.save()
    trace = load(tmp_path)
    by_group: dict[int, list[int]] = {}
    for row in rows(trace):
        by_group.setdefault(row["group_hash"], []).append(row["sequence"])
    assert by_group.pop(COMM) == [0, 1]
    assert by_group.pop(0xBEEF) == [0, 1], "a plugin that reports no calls: tasks are numbered as they come"
    assert sorted(by_group.values()) == [[0], [0, 1]]
    names = {trace.text(r["name_code"]) for r in trace.groups.rows()}
    assert any("graph replays" in name for name in names)
    found = losses(trace)
    assert (found["collectives_captured"], found["collectives_untimed"]) == (1, 1)


def two_ranks(directory: Path) -> list[RankFile]:
    files = []
    for rank in range(2):
        file = RankFile(directory, rank, 2)
        file.stream(1, flags=12)
        file.stream(2)
        file.comm()
        file.group(TORCH)
        files.append(file)
    return files


def test_torch_and_nccl_give_one_row(tmp_path: Path) -> None:
    for file in two_ranks(tmp_path):
        work = file.torch_call(10, 12, group=TORCH, sequence=0, end=12, status=0)
        file.bracket(Bracket.COLLECTIVE, 13, 20, stream=2, correlation=file.call(10.5, 11.5))
        file.waited(work, 15, 15.1)
        file.torch_call(30, 31, group=TORCH, sequence=1, op=CollectiveOp.BARRIER, name="c10d::barrier", flags=0)
        file.bracket(Bracket.COLLECTIVE, 32, 40, stream=2, correlation=file.call(30.5, 30.9))
        unseen = file.torch_call(50, 51, group=TORCH, sequence=2, end=51, status=0)
        file.waited(unseen, 52, 53)
        file.save()
    trace = load(tmp_path)
    reduce, barrier, untimed = rows(trace, 1)
    assert trace.text(reduce["name_code"]) == "c10d::allreduce_"
    assert (reduce["group_hash"], reduce["sequence"], reduce["collective_flags"]) == (COMM, 0, CollectiveFlag.ASYNC_OP)
    assert reduce["call_ns"] == at(trace, 10)
    assert reduce["return_ns"] == at(trace, 11.5)
    assert near(trace, reduce["end_ns"], 20)
    assert reduce["message_bytes"] == 1 << 20
    assert (barrier["op_code"], trace.text(barrier["name_code"])) == (CollectiveOp.BARRIER, "c10d::barrier")
    # Torch alone saw the third: its future completed when the work was enqueued.
    assert (untimed["end_ns"], untimed["status_code"], untimed["device_end_ns"]) == (-1, 3, -1)
    assert (untimed["group_hash"], untimed["source_code"]) == (TORCH, CollectiveSource.HOST)
    assert losses(trace)["collectives_untimed"] == 1
    waits = [(r["process_id"], r["collective_key"]) for r in trace.collective_waits.rows()]
    keys = {(r["process_id"], r["group_hash"], r["sequence"]): r["collective_key"] for r in trace.collectives.rows()}
    assert set(waits) == {(p, keys[p, COMM, 0]) for p in (0, 1)} | {(p, keys[p, TORCH, 2]) for p in (0, 1)}
    details = trace.collective_details
    assert len(details) == 4
    owners = trace.collectives["process_id"][details["collective_key"]]
    assert (owners == details["process_id"]).all()
    assert (trace.collectives["source_code"][details["collective_key"]] == CollectiveSource.EVENTS).all()


def test_a_communicator_takes_name_and_members_from_the_group_it_served(tmp_path: Path) -> None:
    for file in two_ranks(tmp_path):
        file.torch_call(10, 12, group=TORCH, sequence=0)
        file.call(10.5, 11.5)
        file.comm(0xBEEF)  # a second one of the same group, as torch makes for messages
        file.call(20, 21, value=0xBEEF, op=CollectiveOp.ALL_GATHER)
        file.save()
    trace = load(tmp_path)
    of_comm = {r["group_hash"]: r for r in trace.groups.rows() if r["rank"] == 1}
    names = {value: trace.text(row["name_code"]) for value, row in of_comm.items()}
    assert names[COMM] == names[TORCH] == "default_pg"
    assert names[0xBEEF] == "default_pg · communicator 2"
    assert {trace.text(row["members_code"]) for row in of_comm.values()} == {"0,1"}
    tracks = {r["track_id"]: trace.text(r["name_code"]) for r in trace.tracks.rows()}
    assert {tracks[r["communicator_track_id"]] for r in rows(trace)} == {"default_pg", "default_pg · communicator 2"}


def test_members_without_torch_come_from_all_ranks(tmp_path: Path) -> None:
    for rank in range(2):
        file = RankFile(tmp_path, rank, 2)
        file.comm(rank=1 - rank)
        file.call(10, 11)
        file.save()
    trace = load(tmp_path)
    assert {trace.text(c) for c in trace.groups["members_code"]} == {"1,0"}
    assert load(tmp_path, ranks=[0]).groups["members_code"].tolist() == [0], "one rank alone does not know"


def test_messages_are_numbered_by_pair(tmp_path: Path) -> None:
    """Rank 2 takes no part in what 0 sends 1, so numbers of the communicator differ between ranks."""
    for rank in range(3):
        file = RankFile(tmp_path, rank, 3)
        file.comm()
        file.call(10, 11)
        if rank < 2:
            op = CollectiveOp.RECEIVE if rank else CollectiveOp.SEND
            for i in range(2):
                file.call(20 + i, 20.5 + i, op=op, peer=1 - rank)
        file.call(30, 31, op=CollectiveOp.ALL_GATHER)
        file.save()
    trace = load(tmp_path)
    table = trace.collectives
    gather = table.take(table["op_code"] == CollectiveOp.ALL_GATHER)
    assert set(gather["sequence"].tolist()) == {1}
    assert set(gather["group_hash"].tolist()) == {COMM}
    messages = table.take(np.isin(table["op_code"], (CollectiveOp.SEND, CollectiveOp.RECEIVE)))
    subgroup = set(messages["group_hash"].tolist())
    assert len(subgroup) == 1
    assert COMM not in subgroup
    assert sorted(
        zip(messages["rank"].tolist(), messages["sequence"].tolist(), messages["peer_rank"].tolist(), strict=True)
    ) == [(0, 0, 1), (0, 1, 1), (1, 0, 0), (1, 1, 0)]
    described = [r for r in trace.groups.rows() if r["group_hash"] in subgroup]
    assert [(r["rank"], r["group_rank"], trace.text(r["members_code"])) for r in described] == [
        (0, 0, "0,1"),
        (1, 1, "0,1"),
    ]


def test_one_sided_operations_do_not_count_among_the_others(tmp_path: Path) -> None:
    for rank in range(2):
        file = RankFile(tmp_path, rank, 2)
        file.comm()
        for _ in range(1 + rank):
            file.call(5, 6, op=CollectiveOp.OTHER, peer=1 - rank)
        file.call(10, 11, source=2)
        file.save()
    table = load(tmp_path).collectives
    reduce = table.take(table["op_code"] == CollectiveOp.ALL_REDUCE)
    assert reduce["sequence"].tolist() == [0, 0]
    assert reduce["source_code"].tolist() == [CollectiveSource.PLUGIN] * 2, "untimed: who saw it"


def test_an_all_to_all_of_messages_is_one_row(tmp_path: Path) -> None:
    for file in two_ranks(tmp_path):
        file.torch_call(10, 14, group=TORCH, sequence=0, op=CollectiveOp.ALL_TO_ALL, name="c10d::alltoall_base_")
        calls = [
            file.call(11 + i / 10, 13, op=op, peer=peer, batch=3, flags=1, size=100)
            for i, (op, peer) in enumerate(
                (op, peer) for peer in (0, 1) for op in (CollectiveOp.SEND, CollectiveOp.RECEIVE)
            )
        ]
        file.bracket(Bracket.COLLECTIVE, 15, 25, stream=2, correlation=calls[0], bracket_flags=32)
        file.torch_call(30, 31, group=TORCH, sequence=1)
        file.call(30.2, 30.8)
        file.save()
    trace = load(tmp_path)
    exchange, reduce = rows(trace, 1)
    assert (exchange["op_code"], exchange["group_hash"], exchange["sequence"]) == (CollectiveOp.ALL_TO_ALL, TORCH, 0)
    assert near(trace, exchange["device_begin_ns"], 15)
    assert near(trace, exchange["device_end_ns"], 25)
    assert (exchange["source_code"], exchange["status_code"]) == (CollectiveSource.EVENTS, 0)
    assert exchange["message_bytes"] == 4096
    assert exchange["stream_track_id"] >= 0
    assert (reduce["group_hash"], reduce["sequence"]) == (COMM, 0)
    assert len(trace.collective_details) == 4


def test_gloo_rows_are_left_alone(tmp_path: Path) -> None:
    for rank in range(2):
        file = RankFile(tmp_path, rank, 2)
        file.group(TORCH, backend="gloo")
        file.torch_call(10, 11, group=TORCH, sequence=0, end=20, status=0)
        file.save()
    trace = load(tmp_path)
    assert trace.collectives["end_ns"].tolist() == [at(trace, 20)] * 2
    assert "collectives_untimed" not in losses(trace)


def test_failed_calls_say_so(one: RankFile, tmp_path: Path) -> None:
    one.comm()
    one.call(10, 11, status=5)
    one.bracket(Bracket.COLLECTIVE, 22, 30, correlation=one.call(20, 21, status=7))
    one.save()
    assert [r["status_code"] for r in rows(load(tmp_path))] == [1, 0], "in progress is not a failure"


def test_kernels_find_their_stream_by_the_launching_call(one: RankFile, tmp_path: Path) -> None:
    one.comm()
    one.bracket(Bracket.COLLECTIVE, 12, 30, stream=2, host=(10, 11), correlation=one.call(10, 11))
    one.kernel(14, 29, stream=20, launch=(10.2, 10.4), name="ncclDevKernel", work=4)
    one.kernel(3, 6, stream=7, launch=(2, 2.1))
    one.kernel(6, 9, stream=7, launch=(2.2, 2.3))
    one.kernel(9, 10, stream=33, name="side")
    one.save()
    trace = load(tmp_path)
    names = {r["track_id"]: trace.text(r["name_code"]) for r in trace.tracks.rows()}
    found = [(trace.text(r["name_code"]), names[r["track_id"]]) for r in trace.kernels.rows()]
    assert found == [
        ("gemm", "compute · stream 1"),
        ("gemm", "compute · stream 1"),
        ("side", "stream 33 of CUPTI · GPU 0"),
        ("ncclDevKernel", "stream 2 · high priority"),
    ]
    first, *_, last = trace.kernels.rows()
    assert near(trace, first["begin_ns"], 3)
    assert first["launch_ns"] == at(trace, 2)
    assert last["launch_ns"] == at(trace, 10.2)
    assert [r["launch_ns"] for r in trace.kernels.rows()][2] == -1


def test_kernels_that_communicate_are_known_by_name(one: RankFile, tmp_path: Path) -> None:
    one.kernel(1, 2, name="_ZN4vllm26cross_device_reduce_1stageI13__nv_bfloat16Li8EEEvPNS_8RankDataE")
    one.kernel(3, 4, name="_ZN12_GLOBAL__N_126multimem_all_reduce_kernelIN3c108BFloat16ELi16EEEvPT_mPPjmm")
    one.kernel(5, 6, name="_ZN2at6native13reduce_kernelILi512EEEvi")
    one.kernel(7, 8, name="ncclDevKernel_AllReduce_Sum_f32", work=4)
    one.save()
    work = [r["work_code"] for r in load(tmp_path).kernels.rows()]
    assert work == [DeviceWork.COMMUNICATION, DeviceWork.COMMUNICATION, DeviceWork.KERNEL, DeviceWork.COMMUNICATION]


def test_wanted_tables_alone(tmp_path: Path) -> None:
    for file in two_ranks(tmp_path):
        file.torch_call(10, 12, group=TORCH, sequence=0, end=12, status=0)
        file.bracket(Bracket.COLLECTIVE, 13, 20, stream=2, correlation=file.call(10.5, 11.5))
        file.save()
    trace = load(tmp_path, tables=["collectives"])
    assert len(trace.collectives) == 2
    assert len(trace.device_brackets) == 0
    assert near(trace, trace.collectives["end_ns"][0], 20)
    assert len(load(tmp_path, tables=["device_brackets"]).device_brackets) == 2


def test_union_of_intervals() -> None:
    key = np.array([3, 1, 3, 1, 3])
    begin, end = np.array([0, 100, 5, 100, 50]), np.array([10, 110, 12, 104, 60])
    assert union_lengths(key, begin, end).tolist() == [10, 22]
