"""The GPU half of the timeline, loaded into the real trace processor."""

from __future__ import annotations

from pathlib import Path

import pytest
import trace_processor
from builders import MS, US, TraceBuilder
from trace_processor import TraceProcessor

from stashtrace.schema.kinds import (
    Awaited,
    Bracket,
    BracketFlag,
    CollectiveOp,
    CollectiveSource,
    CopyDirection,
    DeviceCall,
    DeviceWork,
)

pytestmark = pytest.mark.skipif(bool(trace_processor.missing()), reason=trace_processor.missing() or "-")

STEPS, STEP = 3, 100 * MS


def two_gpus(*, deep: bool = False) -> TraceBuilder:
    """Two ranks, three steps: a late batch on rank 0, a copy, a reduction that rank 1 waits for, an optimizer."""
    build = TraceBuilder()
    streams = {}
    for r in range(2):
        rank = build.rank(r)
        gpu = rank.gpu(0, error_ns=1800, drift_ppb=-4200)
        compute = gpu.stream("compute · stream 1", compute=True)
        side = streams[r] = gpu.stream("stream 2 · high priority", priority=-5)
        compute.step(0, 0, host_ns=0)
        for i in range(STEPS):
            t = i * STEP
            late = 20 * MS if r == 0 else 2 * MS
            rank.batch_wait(i, t, t + late)
            rank.phase("forward", t + late, t + late + 5 * MS).phase("backward", t + late + 5 * MS, t + late + 9 * MS)
            rank.phase("optimizer", t + late + 9 * MS, t + late + 10 * MS)
            compute.batch_wait(t + MS, t + late + 100 * US, batch=i, host=(t, t + late))
            copied = side.bracket(
                Bracket.COPY,
                t + late + 200 * US,
                t + late + 4 * MS,
                copy=1,
                size_bytes=64 << 20,
                host=(t + late + 50 * US, t + late + 90 * US),
                flags=int(BracketFlag.PINNED),
            )
            compute.wait(
                t + late + 300 * US,
                t + late + 4 * MS,
                awaited=Awaited.COPY,
                awaited_ns=t + late + 4 * MS,
                awaited_id=copied,
                host=(t + late + 95 * US, t + late + 97 * US),
            )
            gpu.call(DeviceCall.STREAM_SYNCHRONIZE, t + 60 * MS, t + 95 * MS, stream=compute)
            compute.step(t + STEP, i + 1, host_ns=t + 59 * MS)
            compute.mark(t + 50 * MS, host_ns=t + 30 * MS)
            if deep:
                for k in range(8):
                    begin = t + late + 4 * MS + k * 5 * MS
                    compute.kernel(
                        begin,
                        begin + 4_900 * US,
                        ("gemm", "softmax")[k % 2],
                        launch=(t + late + (100 + 20 * k) * US, t + late + (110 + 20 * k) * US),
                    )
                side.kernel(t + late + 210 * US, t + late + 3_990 * US, "memcpy", work=DeviceWork.COPY, copy=1)
    for i in range(STEPS):
        t = i * STEP
        times = {
            r: (
                t + (21 if r == 0 else 3) * MS,
                t + (22 if r == 0 else 4) * MS,
                t + (60 if r == 0 else 42) * MS,
                t + 80 * MS,
            )
            for r in range(2)
        }
        build.device_collective(times, streams=streams, bracket=True, group=0xC0, source=CollectiveSource.EVENTS)
    build.group([0, 1], group=0xC0, name="default_pg", backend="nccl")
    return build


@pytest.fixture
def exported(tmp_path: Path):
    return lambda trace, **options: trace_processor.exported(trace, tmp_path / "t.pftrace", **options)


def below(processor: TraceProcessor, parent: str) -> list[tuple]:
    """(track, slices, summed duration) of the tracks directly below those of a name."""
    return processor.rows(
        "select t.name, count(slice.id), ifnull(sum(slice.dur), 0) from track t join track p on t.parent_id = p.id "
        f"left join slice on slice.track_id = t.id and slice.depth = 0 where p.name = '{parent}' group by t.name "
        "order by t.name"
    )


def slices(processor: TraceProcessor, track: str, parent: str = "GPU 0 · rank 000") -> list[tuple]:
    return processor.rows(
        "select slice.name, ts, dur from slice join track t on track_id = t.id join track p on t.parent_id = p.id "
        f"where t.name = '{track}' and p.name = '{parent}' order by ts, depth"
    )


def arrows(processor: TraceProcessor) -> set[tuple]:
    return set(
        processor.rows(
            "select a.name, ta.name, b.name, tb.name from flow join slice a on slice_out = a.id "
            "join slice b on slice_in = b.id join track ta on a.track_id = ta.id join track tb on b.track_id = tb.id"
        )
    )


def test_a_gpu_has_its_streams_steps_waits_and_communicators(exported) -> None:
    processor = exported(two_gpus().trace())
    found = {name: (count, duration) for name, count, duration in below(processor, "GPU 0 · rank 000")}
    assert found["GPU steps"] == (3, 300 * MS)
    assert found["compute · stream 1"][0] == 6
    assert found["stream 2 · high priority"] == (6, 3 * (3_800 * US + 20 * MS))
    assert found["default_pg · rank 000"] == (3, 60 * MS)
    assert found["compute waits · rank 000"] == (6, 3 * (19 * MS + 3_700 * US))
    assert [name for name, _, _ in slices(processor, "compute waits · rank 000")][:2] == ["batch 0", "copy"]
    assert [n for n, _, _ in slices(processor, "GPU steps")] == ["step 0", "step 1", "step 2"]
    names = [n for n, _, _ in slices(processor, "stream 2 · high priority")]
    assert names[:2] == ["copy host to device", "all_reduce 0"]
    about = processor.one(
        "select extract_arg(source_arg_set_id, 'description') from track where name = 'GPU 0 · rank 000'"
    )
    assert "event clock is known to +-1.80 us (4 readings, drift -4.2 ppm)" in about


def test_launches_that_wait_and_bytes_under_way_are_counters(exported) -> None:
    build = TraceBuilder()
    stream = build.rank(0).gpu(0).stream("compute", compute=True)
    stream.kernel(2 * US, 9 * US, "a", launch=(0, US)).kernel(9 * US, 12 * US, "b", launch=(US, 2 * US))
    build.device_collective({0: (3 * US, 4 * US, 5 * US, 20 * US)}, streams={0: stream}, message_bytes=1000)
    build.device_collective({0: (6 * US, 7 * US, 8 * US, 30 * US)}, streams={0: stream}, message_bytes=500)
    processor = exported(build.trace())

    def counted(name: str) -> list[tuple]:
        return processor.rows(
            f"select ts, value from counter join track on track_id = track.id where track.name = '{name}' order by ts"
        )

    assert counted("launches waiting") == [(0, 1), (1 * US, 2), (2 * US, 1), (9 * US, 0)]
    under_way = [(3 * US, 1000), (6 * US, 1500), (20 * US, 500), (30 * US, 0)]
    assert counted("bytes under way") == under_way


def test_collectives_run_from_where_the_device_entered_them(exported) -> None:
    processor = exported(two_gpus().trace())
    first, inner, *_ = slices(processor, "default_pg · rank 001", "GPU 0 · rank 001")
    assert first == ("all_reduce 0", 42 * MS, 38 * MS)
    assert inner == ("wait for rank 0", 42 * MS, 18 * MS)
    ((timed_by, waited),) = processor.rows(
        "select extract_arg(arg_set_id, 'debug.timed_by'), extract_arg(arg_set_id, 'debug.wait_ns') from slice "
        f"where name = 'all_reduce 0' and ts = {42 * MS} and dur = {38 * MS} "
        "and extract_arg(arg_set_id, 'debug.timed_by') is not null"
    )
    assert (timed_by, waited) == ("events", 18 * MS)


def test_arrows_lead_from_the_host_to_the_device_and_between_ranks(exported) -> None:
    found = arrows(exported(two_gpus().trace()))
    calls = "device calls · step thread"
    assert ("copy host to device", calls, "copy host to device", "stream 2 · high priority") in found
    assert ("all_reduce 1", calls, "all_reduce 1", "default_pg · rank 000") in found
    assert ("copy host to device", "stream 2 · high priority", "wait for copy", "compute · stream 1") in found
    assert ("all_reduce 2", "default_pg · rank 000", "transfer", "default_pg · rank 001") in found


def test_deep_mode_puts_kernels_on_their_streams_and_brackets_next_to_them(exported) -> None:
    processor = exported(two_gpus(deep=True).trace())
    found = {name: count for name, count, _ in below(processor, "GPU 0 · rank 001")}
    assert found["compute · stream 1"] == 24
    assert found["compute · stream 1 · brackets"] == 6
    assert [n for n, _, _ in slices(processor, "compute · stream 1")][:2] == ["gemm", "softmax"]
    assert ("launch", "device calls · step thread", "gemm", "compute · stream 1") in arrows(processor)


def test_counters_stand_below_their_device(exported) -> None:
    build = two_gpus()
    uuid = build.strings.text(build.rows["devices"][0]["uuid_code"])
    build.counter(0, f"gpu_power_watts.{uuid}", {10 * MS: 300.0, 20 * MS: 350.0}, "watts")
    build.counter(0, f"gpu_nvlink_transmit_bytes_total.{uuid}:3", {10 * MS: 0.0, 20 * MS: 1e6}, "bytes")
    build.counter(0, f"gpu_busy_ratio.{uuid}", {10 * MS: 0.9}, "ratio")
    build.counter(0, f"gpu_energy_joules_total.{uuid}", {10 * MS: 0.0, 20 * MS: 3.0}, "joules")
    build.counter(0, "gpu_power_watts.GPU-elsewhere", {10 * MS: 100.0}, "watts")
    processor = exported(build.trace())
    found = {name for name, _, _ in below(processor, "GPU 0 · rank 000")}
    assert {"host lead", "power watts", "nvlink transmit bytes · link 3"} <= found
    lead = processor.rows(
        "select value from counter join track on track_id = track.id where track.name = 'host lead' order by ts limit 3"
    )
    assert [value for (value,) in lead] == [0.0, 0.0, 20.0]
    rate = processor.one(
        "select value from counter join track on track_id = track.id where track.name glob 'nvlink*' limit 1"
    )
    assert rate == pytest.approx(1e8)
    shown = processor.rows(
        "select name, unit, value from counter join counter_track on track_id = counter_track.id "
        "where name in ('busy ratio', 'energy joules', 'power watts') order by ts, name"
    )
    assert shown[:3] == [("busy ratio", "%", 90.0), ("energy joules", "W", 300.0), ("power watts", "W", 300.0)]
    assert {name for name, _, _ in below(processor, "counters")} == {"power watts · GPU-elsewhere"}


def test_untimed_collectives_show_their_call_and_wait_for_nobody(exported) -> None:
    build = TraceBuilder()
    streams = {r: build.rank(r).gpu(0).stream("nccl") for r in range(2)}
    build.device_collective(
        {r: (10 * MS * (r + 1), 10 * MS * (r + 1) + MS, -1, -1) for r in range(2)},
        streams=streams,
        op=CollectiveOp.ALL_GATHER,
    )
    streams[0].bracket(Bracket.COPY, -1, -1, copy=CopyDirection.PEER)
    build.group([0, 1], group=0x70C4, name="torch alone", backend="nccl")
    keys = build.collective(dict.fromkeys(range(2), (50 * MS, 51 * MS, -1)), group=0x70C4)
    for r in range(2):
        build.rank(r).collective_wait(keys[r], 60 * MS, 61 * MS)
    processor = exported(build.trace())
    assert slices(processor, "default_pg · rank 000") == [("all_gather 0", 10 * MS, MS)]
    assert slices(processor, "torch alone · rank 000") == [("all_reduce 0", 50 * MS, MS)], "a wait shows no end"
    assert processor.one("select count() from flow") == 0
    about = processor.one(
        "select extract_arg(source_arg_set_id, 'description') from track where name = 'GPU 0 · rank 000'"
    )
    assert "1 brackets have no times" in about


def test_work_beyond_the_budget_is_summed_and_says_so(exported) -> None:
    build = two_gpus()
    stream = build.rank(0).gpu(0).stream("busy")
    for i in range(3000):
        stream.copy(i * 90 * US, i * 90 * US + 40 * US, host=(i * 90 * US, i * 90 * US + US))
    processor = exported(build.trace(), budget_slices=2500)
    assert processor.result.rows_count <= 2500
    ((count, busy, track),) = processor.rows(
        "select sum(extract_arg(arg_set_id, 'debug.count')), sum(extract_arg(arg_set_id, 'debug.busy_ns')), t.name "
        "from slice join track t on track_id = t.id where t.name glob 'busy*'"
    )
    assert (count, busy, track) == (3000, 3000 * 40 * US, "busy (summed)")
    assert "work on devices is summed" in processor.result.notes[0]


def test_ranks_without_devices_have_no_such_tracks(exported) -> None:
    build = TraceBuilder()
    build.rank(0).phase("forward", 0, MS)
    processor = exported(build.trace())
    assert processor.one("select count() from track where name glob 'GPU*' or name glob 'device calls*'") == 0


def test_a_function_on_the_host_stands_on_its_stream(exported) -> None:
    build = two_gpus()
    compute = build.rank(0).gpu(0).stream("compute · stream 1", compute=True)
    side = build.rank(0).gpu(0).stream("stream 2 · high priority")
    compute.bracket(Bracket.HOST_FUNCTION, 70 * MS, 72 * MS, host=(68 * MS, 69 * MS))
    held = side.bracket(Bracket.HOST_FUNCTION, 72 * MS, 75 * MS, host=(69 * MS, 70 * MS))
    compute.wait(73 * MS, 75 * MS, awaited=Awaited.HOST_FUNCTION, awaited_ns=75 * MS, awaited_id=held)
    processor = exported(build.trace())
    drawn = [row for row in slices(processor, "compute · stream 1") if "function" in row[0]]
    assert drawn == [("function on the host", 70 * MS, 2 * MS), ("wait for function on the host", 73 * MS, 2 * MS)]
    waits = [row for row in slices(processor, "compute waits · rank 000") if "function" in row[0]]
    assert waits == [("function on the host", 70 * MS, 2 * MS), ("function on the host", 73 * MS, 2 * MS)]
    called = (
        "enqueue a function on the host",
        "device calls · step thread",
        "function on the host",
        "compute · stream 1",
    )
    assert called in arrows(processor)
