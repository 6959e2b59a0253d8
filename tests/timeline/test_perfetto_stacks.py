"""Python code in exported timelines: what the viewer makes flame graphs of, and the functions of the step thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trace_processor
from builders import MS, TraceBuilder
from hypothesis import given
from hypothesis import settings as with_settings
from hypothesis import strategies as st
from stack_rows import FORKED, TORCH, long_call, sample, stack_of
from trace_processor import TraceProcessor

from stashtrace._native import perfetto
from stashtrace.schema.kinds import StackCause
from stashtrace.schema.trace import Trace
from stashtrace.timeline.rows_by_rank import TraceRows
from stashtrace.timeline.sample_tracks import Functions

pytestmark = pytest.mark.skipif(bool(trace_processor.missing()), reason=trace_processor.missing() or "-")

MODULE, MAIN = "<module> /jobs/late.py:26", "main /jobs/late.py:23"
BACKWARD, HOOK = f"Tensor.backward {TORCH}/_tensor.py:6", "hook /jobs/late.py:11"
PARSE = "train.<locals>.<lambda> /jobs/late.py:14"


def job(ranks: int = 1, *, loads: bool = False) -> TraceBuilder:
    """Ranks of two steps of 100 ms that are sampled every 10 ms; backward calls a hook that sleeps from 40 to 60."""
    build = TraceBuilder()
    for number in range(ranks):
        rank = build.rank(number)
        main, backward = stack_of(rank, MODULE, MAIN), stack_of(rank, MODULE, MAIN, BACKWARD)
        hook, parse = stack_of(rank, MODULE, MAIN, BACKWARD, HOOK), stack_of(rank, MODULE, MAIN, PARSE)
        for step in range(2):
            at = step * 100 * MS
            rank.phase("forward", at, at + 30 * MS).phase("backward", at + 30 * MS, at + 80 * MS)
            rank.phase("optimizer", at + 90 * MS, at + 100 * MS)
            long_call(rank, at + 40 * MS, at + 60 * MS, hook)
            long_call(rank, at + 30 * MS, at + 80 * MS, main, StackCause.PHASE)  # holds the sleep
            stacks = [main] * 3 + [backward] + [hook] * 2 + [backward] * 2 + [parse] * 2
            for moment, stack in enumerate(stacks):
                sample(rank, at + moment * 10 * MS, stack)
            if loads:
                worker = rank.worker(0)
                worker.fetch(step, at, at + 50 * MS)
                sample(worker, at + 25 * MS, stack_of(worker, *FORKED, "Images.__getitem__ /jobs/data.py:7"))
    return build


@pytest.fixture
def exported(tmp_path: Path) -> Any:
    """Export a trace with options; its trace processor and the notes."""

    def run(trace: Trace, **options: Any) -> tuple[TraceProcessor, tuple[str, ...]]:
        processor = trace_processor.exported(trace, tmp_path / "t.pftrace", **options)
        return processor, processor.result.notes

    return run


def functions(processor: TraceProcessor) -> list[str]:
    """One line for each slice of functions: name, begin and end in ms, arguments."""
    rows = processor.rows(
        "select slice.name, ts, ts + dur, extract_arg(slice.arg_set_id, 'debug.file'), "
        "extract_arg(slice.arg_set_id, 'debug.line'), extract_arg(slice.arg_set_id, 'debug.in'), "
        "extract_arg(slice.arg_set_id, 'debug.samples') from slice join track on track_id = track.id "
        "where track.name = 'functions' order by ts"
    )
    return [
        f"{r[0]} {r[1] / MS:g}..{r[2] / MS:g} {' '.join('-' if v is None else str(v) for v in r[3:])}" for r in rows
    ]


def stacks(processor: TraceProcessor) -> list[tuple[str, str, int]]:
    """Name of the thread, its stack from outside to inside, and how many samples have it."""
    parents = dict(processor.rows("select id, parent_id from stack_profile_callsite"))
    names = dict(
        processor.rows(
            "select c.id, f.name from stack_profile_callsite c join stack_profile_frame f on f.id = c.frame_id"
        )
    )
    found = []
    for thread, leaf, count in processor.rows(
        "select t.name, callsite_id, count() from cpu_profile_stack_sample join thread t using (utid) "
        "group by utid, callsite_id order by utid, callsite_id"
    ):
        path, at = [], leaf
        while at is not None:
            path.insert(0, names[at])
            at = parents[at]
        found.append((thread, " > ".join(path), count))
    return found


def test_each_sample_has_its_stack_on_its_thread(exported: Any) -> None:
    processor, notes = exported(job(loads=True).trace())
    assert notes == ()
    assert sorted(stacks(processor)) == [
        ("step thread", "<module> > main", 6),
        ("step thread", "<module> > main > Tensor.backward", 6),
        ("step thread", "<module> > main > Tensor.backward > hook", 4),
        ("step thread", "<module> > main > train.<locals>.<lambda>", 4),
        ("worker 0", "_MapDatasetFetcher.fetch > Images.__getitem__", 2),
    ]
    moments = [ts for (ts,) in processor.rows("select ts from cpu_profile_stack_sample order by ts")]
    assert moments == sorted([*(n * 10 * MS for n in range(20)), 25 * MS, 125 * MS])
    assert processor.rows("select distinct name from stack_profile_mapping order by name")[0] == ("/jobs/data.py",)


def test_samples_are_in_the_process_of_their_rank(exported: Any) -> None:
    processor, _ = exported(job(ranks=2).trace())
    assert processor.rows(
        "select p.name, count() from cpu_profile_stack_sample join thread using (utid) join process p using (upid) "
        "group by 1 order by 1"
    ) == [("rank 000 · node00", 20), ("rank 001 · node00", 20)]
    assert processor.one("select count(distinct tid) from thread join cpu_profile_stack_sample using (utid)") == 2


def test_frames_of_this_recorder_are_left_out(exported: Any) -> None:
    build = job()
    probe = "wrapper /venv/lib/python3.11/site-packages/stashtrace/probes/torch/work.py:4"
    rank = build.rank(0)
    sample(rank, 200 * MS, stack_of(rank, MODULE, probe, "Work.wait /jobs/late.py:3", probe))
    found = [path for _, path, _ in stacks(exported(build.trace())[0])]
    assert "<module> > Work.wait" in found


def test_functions_are_exact_in_long_calls_and_as_long_as_samples_stay(exported: Any) -> None:
    found = functions(exported(job().trace())[0])
    assert found[:5] == [
        "main 0..40 /jobs/late.py 23 - 4",
        "hook 40..60 /jobs/late.py 11 - -",
        "main 60..80 /jobs/late.py 23 torch Tensor.backward 2",
        "train.<lambda> 80..100 /jobs/late.py 14 - 2",
        "main 100..140 /jobs/late.py 23 - 4",
    ]
    assert len(found) == 8


def test_nothing_is_said_of_the_time_between_samples_far_apart(exported: Any) -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    rank.phase("forward", 0, 1000 * MS)
    for moment in (0, 10, 20, 500, 510):
        sample(rank, moment * MS, stack_of(rank, MODULE))
    assert functions(exported(build.trace())[0]) == [
        "late.py 0..30 /jobs/late.py 26 - 3",
        "late.py 500..520 /jobs/late.py 26 - 2",
    ]


def test_a_window_has_its_samples_and_functions_alone(exported: Any) -> None:
    processor, _ = exported(job().trace(), window_ns=(100 * MS, 200 * MS))
    assert processor.one("select count() from cpu_profile_stack_sample") == 10
    assert processor.one("select min(ts) from cpu_profile_stack_sample") == 100 * MS
    assert functions(processor)[0].startswith("main 100..140")


def test_more_than_fits_is_left_out_and_said(exported: Any) -> None:
    processor, notes = exported(job().trace(), budget_slices=7)
    assert functions(processor) == []
    assert notes == (
        "functions are left out: more than 7 slices",
        "of 3 stack samples one is written: more than 7",
    )
    assert processor.one("select count() from cpu_profile_stack_sample") == 7


def test_a_trace_without_stacks_has_none(exported: Any) -> None:
    build = TraceBuilder()
    build.rank(0).phase("forward", 0, 100 * MS)
    processor, notes = exported(build.trace())
    assert notes == ()
    assert processor.one("select count() from cpu_profile_stack_sample") == 0
    assert processor.one("select count() from track where name = 'functions'") == 0
    assert processor.one("select count() from thread where tid > 1000000") == 0


@given(
    st.lists(st.tuples(st.integers(0, 300 * MS), st.integers(-1, 3)), max_size=20),
    st.lists(st.tuples(st.integers(0, 300 * MS), st.integers(0, 90 * MS), st.integers(-1, 3)), max_size=8),
)
@with_settings(max_examples=20, deadline=None)
def test_functions_never_overlap(samples: list[tuple[int, int]], calls: list[tuple[int, int, int]]) -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    rank.phase("forward", 0, 300 * MS)
    known = [stack_of(rank, *path) for path in ((MODULE,), (MODULE, MAIN), (MODULE, MAIN, HOOK), (BACKWARD,))] + [0]
    for moment, which in samples:
        sample(rank, moment, known[which])
    for begin, length, which in calls:
        long_call(rank, begin, begin + length, known[which])
    rows = TraceRows(build.trace(), None)
    for _, found in Functions(rows, [0], 1000).found[0]:
        assert (found.end_ns > found.begin_ns).all()
        assert (found.begin_ns[1:] >= found.end_ns[:-1]).all()
        assert (found.place >= 0).all()


def frames(caller: list[int], names: list[int]) -> perfetto.Frames:
    columns = [np.array(column, dtype=np.int64) for column in (caller, names, names, names, range(len(names)))]
    return perfetto.Frames(*columns, perfetto.TextTable([f"f{n}" for n in range(max(names) + 1)]))


def encode(ts_ns: list[int], rows: list[int], table: perfetto.Frames) -> bytes:
    parts: list[bytes] = []
    encoder = perfetto.Encoder(lambda part: parts.append(bytes(part)))
    encoder.process(1, 1, "rank 000")
    encoder.stack_samples(5, 2, 1, 1_000_002, "step thread", table, np.array(ts_ns), np.array(rows))
    encoder.flush()
    return b"".join(parts)


@given(st.lists(st.tuples(st.integers(0, 10**13), st.integers(0, 5)), min_size=1, max_size=40))
@with_settings(max_examples=25, deadline=None)
def test_whatever_is_sampled_is_read_back(samples: list[tuple[int, int]]) -> None:
    samples = sorted(samples)
    table = frames([-1, 0, 1, 0, 3, -1], [0, 1, 2, 1, 2, 0])
    processor = TraceProcessor.of(encode(*map(list, zip(*samples, strict=True)), table))
    assert processor.errors() == []
    depth = processor.rows(
        "select ts, depth from cpu_profile_stack_sample s join stack_profile_callsite c on s.callsite_id = c.id "
        "order by s.id"
    )
    assert depth == [(ts // 1000 * 1000, (0, 1, 2, 1, 2, 0)[row]) for ts, row in samples]


def test_samples_of_an_hour_take_seven_bytes_each() -> None:
    count = 180_000
    moments, rows = np.arange(count) * 20 * MS, np.arange(count) % 300
    table = frames([-1, *range(299)], list(range(300)))
    assert len(encode(moments.tolist(), rows.tolist(), table)) < 8 * count


@pytest.mark.parametrize("caller", [[0], [1, 0], [2, 0, 1], [3]])
def test_callers_that_end_nowhere_are_refused(caller: list[int]) -> None:
    with pytest.raises(ValueError, match="caller"):
        frames(caller, [0] * len(caller))


def test_a_circle_of_callers_in_a_file_is_cut(exported: Any) -> None:
    build = job()
    for row in build.rows["frames"]:
        row["caller_key"] = row["frame_key"] % len(build.rows["frames"]) + 1
    processor, _ = exported(build.trace())
    assert {path.count(" > ") for _, path, _ in stacks(processor)} == {0}
