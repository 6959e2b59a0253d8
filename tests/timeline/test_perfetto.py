"""Exported traces, loaded into the real trace processor and compared with the tables they were made from."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import trace_processor
from builders import MS, US, TraceBuilder, trace_from_text
from trace_processor import TraceProcessor

from stashtrace.analysis.stalls.budget import stall_intervals
from stashtrace.analysis.steps.steps import steps
from stashtrace.errors import StashtraceError, UsageError
from stashtrace.exporters.registry import export
from stashtrace.schema.kinds import BatchPhase, CollectiveOp, IoFlag, IoOp, PhaseFlag, SpanKind, ThreadRole, WaitOp
from stashtrace.schema.trace import Trace
from stashtrace.timeline.serve import Opening, read_opening

pytestmark = pytest.mark.skipif(bool(trace_processor.missing()), reason=trace_processor.missing() or "-")

TWO_RANKS = """
    rank 0 loader : 000.......111.......
    rank 0 phase  : ...FFBBBBO...FFBBBBO
    rank 0 wait   : ......cc........cc..
    rank 0 coll   : .....000.......111..
    rank 0 block  : ......00........11..
    rank 0 worker 0: 00011111............
    rank 0 worker 0 io: bb.cc...............
    rank 0 worker 0 wait: .........cc.........
    rank 1 phase  : FFFFBBBBBO...FFBBBBO
    rank 1 coll   : ......00.......111..
    rank 1 block  : .......0........11..
    rank 1 gc     : ..g.................
    rank 1 user   : ..uuu...............
"""


@pytest.fixture
def exported(tmp_path: Path):
    return lambda trace, name="t.pftrace", **options: trace_processor.exported(trace, tmp_path / name, **options)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> TraceProcessor:
    return trace_processor.exported(trace_from_text(TWO_RANKS), tmp_path_factory.mktemp("perfetto") / "t.pftrace")


def lines(processor: TraceProcessor, track: str, depth: int | None = None) -> list[tuple]:
    """(name, begin, end) of the slices on tracks of that name."""
    where = "" if depth is None else f"and depth = {depth}"
    return processor.rows(
        "select slice.name, ts, ts + dur from slice join track on track_id = track.id "
        f"where track.name = '{track}' {where} order by ts, depth"
    )


def total(processor: TraceProcessor, glob: str) -> tuple[int, int]:
    """Number and summed duration of slices on tracks whose name matches."""
    ((count, duration),) = processor.rows(
        "select count(), ifnull(sum(dur), 0) from slice join track on track_id = track.id "
        f"where track.name glob '{glob}'"
    )
    return count, duration


def flows(processor: TraceProcessor) -> list[tuple]:
    return processor.rows(
        "select a.name, ta.name, b.name, tb.name "
        "from flow join slice a on slice_out = a.id join slice b on slice_in = b.id "
        "join track ta on a.track_id = ta.id join track tb on b.track_id = tb.id order by a.ts, b.ts"
    )


def lengths(table) -> tuple[int, int]:
    return len(table), int((table["end_ns"] - table["begin_ns"]).sum())


def test_counts_and_durations_equal_the_source(two_ranks: TraceProcessor) -> None:
    trace, processor = trace_from_text(TWO_RANKS), two_ranks
    budget = [lengths(steps(trace)), lengths(stall_intervals(trace).take(stall_intervals(trace)["step"] >= 0))]
    assert total(processor, "step *") == tuple(map(sum, zip(*budget, strict=True)))
    main = [
        lengths(trace.phases),
        lengths(trace.collective_waits),
        lengths(trace.batches.take(trace.batches["phase_code"] == BatchPhase.WAIT)),
    ]
    assert total(processor, "phases *") == tuple(map(sum, zip(*main, strict=True)))
    made = lengths(trace.batches.take(trace.batches["phase_code"] == BatchPhase.FETCH))
    assert total(processor, "worker 0") == tuple(map(sum, zip(made, lengths(trace.io), strict=True)))
    assert total(processor, "blocked *") == lengths(trace.waits)
    assert total(processor, "gc") == lengths(trace.spans.take(trace.spans["kind_code"] == SpanKind.GC))
    assert total(processor, "annotations") == lengths(trace.spans.take(trace.spans["kind_code"] == SpanKind.USER))
    calls = trace.collectives["end_ns"] - trace.collectives["call_ns"]
    assert len(lines(processor, "default_pg · rank 000", 0)) + len(lines(processor, "default_pg · rank 001", 0)) == len(
        calls
    )
    assert sum(e - b for r in "01" for _, b, e in lines(processor, f"default_pg · rank 00{r}", 0)) == calls.sum()


def test_budget_fills_each_step(two_ranks: TraceProcessor) -> None:
    trace, processor = trace_from_text(TWO_RANKS), two_ranks
    sums = processor.rows(
        "select parent.dur, sum(child.dur) from slice child join slice parent on child.parent_id = parent.id "
        "join track on child.track_id = track.id where track.name glob 'step *' group by parent.id"
    )
    assert len(sums) == len(steps(trace))
    assert all(whole == parts for whole, parts in sums)
    assert lines(processor, "step · rank 000", 1)[:2] == [
        ("data: storage", 0, 2 * MS),
        ("data: prep", 2 * MS, 3 * MS),
    ]
    args = dict(
        processor.rows(
            "select key, int_value from args join slice using (arg_set_id) "
            "where slice.name = 'step 0' and key glob '*_ns'"
        )
    )
    assert args["debug.fetch_ns"] == 2 * MS


def test_ranks_sort_by_number_and_carry_their_real_pid(exported) -> None:
    build = TraceBuilder([f"node{i:02d}" for i in range(12)])
    for rank in range(12):
        build.rank(rank).phase("forward", 0, MS)
    processor = exported(build.trace())
    names = [n for (n,) in processor.rows("select name from process where name glob 'rank*' order by name")]
    assert names == [f"rank {i:03d} · node{i:02d}" for i in range(12)]
    pids = [p for (p,) in processor.rows("select pid from process where name glob 'rank*'")]
    assert len(set(pids)) == 12
    labels = {v for (v,) in processor.rows("select display_value from args where flat_key = 'chrome.process_label'")}
    assert labels == {f"pid {pid}" for pid in build.trace().processes["pid"].tolist()}


def test_tracks_of_a_rank_are_in_reading_order(exported) -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    rank.phase("forward", 0, 2 * MS).phase("optimizer", 2 * MS, 3 * MS).wait(WaitOp.POLL, 0, MS).gc(0, US)
    rank.annotate("mine", 0, US).io(0, US).phase("checkpoint", 0, MS, flags=PhaseFlag.BACKGROUND)
    rank.worker(0).fetch(0, 0, MS)
    rank.worker(11).fetch(1, 0, MS)
    rank.worker(2).fetch(2, 0, MS)
    build.collective({0: (0, MS)})
    build.counter(0, "process_user_ns_total", {0: 0, 100 * MS: 50 * MS}, "ns")
    processor = exported(build.trace())
    shown = processor.rows(
        "include perfetto module viz.summary.track_event; "
        "select name, parent_id, order_id, track_ids from _track_event_tracks_ordered_groups"
    )
    trunk = next(t for n, p, _, t in shown if n == "step · rank 000" and p is None)
    below = [n for n, p, _, _ in sorted((r for r in shown if str(r[1]) == trunk), key=lambda r: r[2])]
    assert below == [
        "phases · rank 000",
        "default_pg · rank 000",
        "data loader",
        "files",
        "blocked · step thread",
        "annotations",
        "gc",
        "checkpoint (background)",
        "counters",
    ]
    loader = next(t for n, _, _, t in shown if n == "data loader")
    assert [n for n, p, o, _ in sorted(shown, key=lambda r: r[2]) if str(p) == loader] == [
        "worker 0",
        "worker 2",
        "worker 11",
    ]


def test_arrow_leads_from_a_batch_to_the_wait_that_took_it(two_ranks: TraceProcessor) -> None:
    found = flows(two_ranks)
    assert ("batch 1", "worker 0", "wait for batch 1", "phases · rank 000") in found
    # The main process waited before the worker began: the arrow leads to what the batch was waited for.
    assert ("batch 0", "worker 0", "forward", "phases · rank 000") in found


@pytest.mark.parametrize("late", [0, 1, 2])
def test_arrow_leads_from_the_late_rank_to_those_who_waited(exported, late: int) -> None:
    build = TraceBuilder()
    enter = {rank: (4 if rank == late else 1 + rank) * MS for rank in range(3)}
    build.collective({rank: (at, 9 * MS) for rank, at in enter.items()})
    found = flows(exported(build.trace()))
    source = ("all_reduce 0", f"default_pg · rank {late:03d}")
    assert sorted(found) == sorted((*source, "transfer", f"default_pg · rank {r:03d}") for r in range(3) if r != late)


def test_collective_shows_wait_transfer_and_rate(exported) -> None:
    build = TraceBuilder()
    build.collective({0: (1 * MS, 9 * MS), 1: (5 * MS, 9 * MS)}, message_bytes=4_000_000)
    processor = exported(build.trace())
    assert lines(processor, "default_pg · rank 000") == [
        ("all_reduce 0", 1 * MS, 9 * MS),
        ("wait for rank 1", 1 * MS, 5 * MS),
        ("transfer", 5 * MS, 9 * MS),
    ]
    args = dict(
        processor.rows(
            "select key, display_value from args join slice using (arg_set_id) "
            f"where slice.name = 'all_reduce 0' and ts = {MS}"
        )
    )
    assert args["debug.bytes"] == "4000000"
    assert args["debug.algbw_gb_per_s"] == "1.0"
    assert (args["debug.wait_ns"], args["debug.late_rank"]) == (str(4 * MS), "1")


def test_overlapping_collectives_take_lanes_of_one_track(exported) -> None:
    build = TraceBuilder()
    build.collective({0: (1 * MS, 9 * MS)})
    build.collective({0: (2 * MS, 4 * MS)}, op=CollectiveOp.ALL_GATHER)
    processor = exported(build.trace())
    assert lines(processor, "default_pg · rank 000", 0) == [
        ("all_reduce 0", 1 * MS, 9 * MS),
        ("all_gather 1", 2 * MS, 4 * MS),
    ]
    assert (
        processor.one("select count() from (select distinct parent_id, name from track where name glob 'default_pg*')")
        == 1
    )


def test_collective_that_never_ended_lasts_as_long_as_its_process(exported) -> None:
    build = TraceBuilder()
    build.rank(0).lives(0, 50 * MS)
    build.collective({0: (10 * MS, -1)})
    processor = exported(build.trace())
    assert lines(processor, "default_pg · rank 000", 0) == [("all_reduce 0", 10 * MS, 50 * MS)]
    assert processor.one("select display_value from args where key = 'debug.status'") == "end not seen"


def test_io_shows_path_bytes_offset_and_what_blocked(exported) -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    rank.io(0, 10, path="/data/ä.tar", blocked=True, result_bytes=4096, offset_bytes=2**40)
    rank.io(20, 30, op=IoOp.PREAD, path="", result_bytes=-5)
    rank.io(40, 50, op=IoOp.RECV, flags=IoFlag.SOCKET, path="")
    processor = exported(build.trace())
    rows = processor.rows(
        "select name, extract_arg(arg_set_id, 'debug.path'), extract_arg(arg_set_id, 'debug.bytes'), "
        "extract_arg(arg_set_id, 'debug.offset_bytes'), extract_arg(arg_set_id, 'debug.errno') from slice order by ts"
    )
    assert rows == [
        ("read (blocked)", "/data/ä.tar", 4096, 2**40, None),
        ("pread", None, None, None, 5),
        ("recv socket", None, 4096, None, None),
    ]


def many_calls() -> Trace:
    build = TraceBuilder()
    rank = build.rank(0).phase("forward", 0, MS).phase("optimizer", MS, 2 * MS)
    for worker in range(2):
        process = rank.worker(worker)
        for i in range(2000):
            process.io(i * US, i * US + 400 + worker, path=f"/d/{i}", result_bytes=100, blocked=i % 4 == 0)
    return build.trace()


def test_calls_beyond_the_budget_are_summed_and_the_track_says_so(exported) -> None:
    trace = many_calls()
    processor = exported(trace, budget_slices=1000)
    assert processor.result.rows_count <= 1000
    assert len(processor.result.notes) == 1
    assert "summed" in processor.result.notes[0]
    about = processor.one(
        "select extract_arg(source_arg_set_id, 'description') from track where name = 'files (summed)'"
    )
    assert about.startswith("I/O calls by thread. Sums of all calls in ")
    for worker in range(2):
        sums = processor.rows(
            "select sum(extract_arg(arg_set_id, 'debug.calls_count')), sum(extract_arg(arg_set_id, 'debug.bytes')), "
            "sum(extract_arg(arg_set_id, 'debug.busy_ns')), sum(extract_arg(arg_set_id, 'debug.blocked_count')) "
            f"from slice join track on track_id = track.id where track.name = 'worker {worker} (summed)'"
        )
        assert sums == [(2000, 200_000, 2000 * (400 + worker), 500)]
    whole = exported(trace, "whole.pftrace")
    assert total(whole, "worker *") == lengths(trace.io)
    assert whole.result.notes == ()


def test_busy_time_of_nested_calls_is_counted_once(exported) -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    for i in range(300):
        rank.io(i * 100, i * 100 + 80, op=IoOp.FREAD).io(i * 100 + 10, i * 100 + 60)
    processor = exported(build.trace(), budget_slices=200)
    assert processor.one("select sum(extract_arg(arg_set_id, 'debug.busy_ns')) from slice") == 300 * 80


def test_cut_by_rank_step_and_window(exported) -> None:
    trace = trace_from_text(TWO_RANKS)
    one = exported(trace, "one.pftrace", ranks=[1])
    assert one.rows("select name from process where name glob 'rank*'") == [("rank 001 · node00",)]
    # Who was late is known although that rank is not in the file.
    assert (
        exported(trace, "zero.pftrace", ranks=[0]).one("select count() from slice where name = 'wait for rank 1'") == 1
    )
    second = exported(trace, "second.pftrace", steps=(1, 2))
    assert {n for n, _, _ in lines(second, "step · rank 000", 0)} == {"step 1"}
    assert {n for n, _, _ in lines(second, "default_pg · rank 000", 0)} == {"all_reduce 1"}
    window = exported(trace, "window.pftrace", window_ns=(11 * MS, 12 * MS))
    assert lines(window, "phases · rank 000") == [("wait for batch 1", 10 * MS, 13 * MS)]


def test_cuts_that_leave_nothing_say_what_there_is(tmp_path: Path) -> None:
    trace = trace_from_text(TWO_RANKS)
    for options, hint in (({"ranks": [7]}, "0, 1"), ({"steps": (5, 9)}, "steps 0 to 1")):
        with pytest.raises(UsageError) as caught:
            export(trace, "perfetto", tmp_path / "t.pftrace", **options)
        assert hint in str(caught.value.hint)
    assert list(tmp_path.iterdir()) == []


def test_counters_become_rates_with_units(exported) -> None:
    build = TraceBuilder()
    build.rank(0).phase("forward", 0, MS)
    build.counter(0, "process_user_ns_total", {0: 0, 100 * MS: 50 * MS, 200 * MS: 50 * MS}, "ns")
    build.counter(0, "process_read_bytes_total", {0: 0, 100 * MS: 10_000_000}, "bytes")
    build.counter(0, "process_resident_bytes", {0: 5_000_000}, "bytes")
    build.counter(0, "host_steal_ns_total", {0: 7, 100 * MS: 7}, "ns")
    build.counter(0, "loss", {0: 2.5, 100 * MS: 1.5})
    processor = exported(build.trace())
    rows = processor.rows(
        "select name, unit, ts, value from counter join counter_track on track_id = counter_track.id "
        "order by track_id, ts"
    )
    assert rows == [
        ("CPU user", "%", 0, 50.0),
        ("CPU user", "%", 100 * MS, 0.0),
        ("disk read", "B/s", 0, 100e6),
        ("resident memory", "B", 0, 5e6),
        ("loss", None, 0, 2.5),
        ("loss", None, 100 * MS, 1.5),
    ]


def test_threads_of_a_worker_have_separate_lines(exported) -> None:
    build = TraceBuilder()
    worker = build.rank(0).worker(3).fetch(0, 0, 10)
    worker.thread("QueueFeeder").batch(BatchPhase.SERIALIZE, 0, 5, 15)
    build.rank(0).thread("pin", ThreadRole.PIN_MEMORY).batch(BatchPhase.PIN, 0, 20, 30)
    processor = exported(build.trace())
    assert lines(processor, "worker 3") == [("batch 0", 0, 10)]
    assert lines(processor, "worker 3 · queue") == [("serialize 0", 5, 15)]
    assert lines(processor, "pin memory") == [("pin 0", 20, 30)]


def test_losses_are_named_next_to_the_rank(exported) -> None:
    build = TraceBuilder()
    build.rank(0).phase("forward", 0, 10)
    build.loss("ring_full", 17, process_id=0)
    processor = exported(build.trace())
    assert ("17 records lost",) in processor.rows(
        "select display_value from args where flat_key = 'chrome.process_label'"
    )


def test_trace_without_steps_or_ranks_is_still_shown(exported) -> None:
    build = TraceBuilder()
    build.rank(-1).io(0, 10)
    assert lines(exported(build.trace()), "step thread") == [("read", 0, 10)]
    assert exported(TraceBuilder().trace(), "empty.pftrace").one("select count() from slice") == 0


def test_file_notes_the_worst_step_and_the_rank_to_look_at(tmp_path: Path) -> None:
    trace = trace_from_text(
        """
        rank 0 phase : FBOFBOFB.......OFBO
        rank 0 coll  : .0..1..2222222...3.
        rank 0 block : .0..1..2222222...3.
        rank 1 phase : FBOFBOFFFFFFFBBOFBO
        rank 1 coll  : .0..1........2...3.
        rank 1 block : .0..1........2...3.
        """
    )
    for name in ("t.pftrace", "t.pftrace.gz"):
        opening = read_opening(export(trace, "perfetto", tmp_path / name).path)
        assert opening.process_name == "rank 001 · node00"
        assert opening.begin_ns <= 6 * MS
        assert opening.end_ns >= 16 * MS
        assert opening.begin_ns > 0
    (tmp_path / "foreign").write_bytes(b"\x0a\x05abcdefghij")
    assert read_opening(tmp_path / "foreign") == Opening()


def test_gzip_holds_the_same_bytes(tmp_path: Path) -> None:
    trace = trace_from_text(TWO_RANKS)
    plain = export(trace, "perfetto", tmp_path / "t.pftrace").path.read_bytes()
    packed = export(trace, "perfetto", tmp_path / "t.pftrace.gz").path.read_bytes()
    assert gzip.decompress(packed) == plain
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.pftrace", "t.pftrace.gz"]


def test_unwritable_file_is_one_line_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(StashtraceError, match=r"cannot write .*: No such file") as caught:
        export(trace_from_text(TWO_RANKS), "perfetto", tmp_path / "no" / "t.pftrace")
    assert caught.value.hint


def test_unknown_exporter_lists_the_known() -> None:
    with pytest.raises(UsageError) as caught:
        export(TraceBuilder().trace(), "svg", "x")
    assert "perfetto" in str(caught.value.hint)


def test_random_threads_come_back(exported) -> None:
    """Calls of several threads that overlap, nest and touch at random: all of them, with their lengths."""
    random = np.random.default_rng(7)
    build = TraceBuilder()
    rank = build.rank(0)
    threads = [rank, rank.thread("other"), rank.worker(0)]
    for _ in range(500):
        begin, length = (int(x) for x in random.integers(0, 300, 2))
        threads[int(random.integers(3))].io(begin, begin + length)
    trace = build.trace()
    processor = exported(trace)
    assert total(processor, "*") == lengths(trace.io)
    expected = sorted(zip(trace.io["begin_ns"].tolist(), trace.io["end_ns"].tolist(), strict=True))
    assert sorted(processor.rows("select ts, ts + dur from slice")) == expected
