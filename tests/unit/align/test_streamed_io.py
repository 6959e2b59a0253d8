"""Runs whose I/O calls stay on disk: nothing that is derived from them may differ, and nothing may load them."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from stash_files import START_NS, StashWriter, ms

import stashtrace
from stashtrace.analysis.findings.claims import files_claims
from stashtrace.analysis.stalls.budget import METHODS
from stashtrace.analysis.stalls.index import RankLayers, TraceIndex
from stashtrace.analysis.stalls.on_host import host_layers
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.format.codec import decode
from stashtrace.format.compact import compact_run
from stashtrace.format.reader import open_run
from stashtrace.lab import synth
from stashtrace.loading.load import load_trace
from stashtrace.schema.kinds import IoFlag, IoOp
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two ranks with two workers each, 40 steps, merged."""
    synth.write(tmp_path / "run", synth.SyntheticJob(steps=40, calls_per_batch=120, late_rank=1, late_ns=7_000_000))
    assert not compact_run(open_run(tmp_path / "run")).problems
    return tmp_path / "run"


def both(run: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Trace, Trace]:
    """The trace with its calls in memory, and with its calls on disk, read in small pieces."""
    whole = load_trace(run)
    monkeypatch.setattr("stashtrace.loading.io.KEPT_ROWS", 10)
    monkeypatch.setattr("stashtrace.format.stash_file.pieces.__defaults__", (100,))
    streamed = load_trace(run)
    assert whole.streamed_io is None
    assert streamed.streamed_io is not None
    return whole, streamed


def rows(table: Table) -> list[dict[str, object]]:
    return list(table.rows())


def digest(trace: Trace, path: Path, **options: object) -> str:
    stashtrace.export(trace, "perfetto", path, **options)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_derived_values_are_those_of_a_trace_in_memory(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, streamed = both(run, monkeypatch)
    for name in ("stalls", "hidden", "evidence"):
        assert rows(stashtrace.analyze(streamed, name)) == rows(stashtrace.analyze(whole, name)), name
    for name in ("processes", "tracks", "losses", "metadata", "phases", "batches"):
        assert rows(streamed.table(name)) == rows(whole.table(name)), name
    assert streamed.io_rows_count == whole.io_rows_count == len(whole.io) > 9000
    assert streamed.io_span_ns == (whole.io["begin_ns"].min(), whole.io["end_ns"].max())
    assert files_claims(streamed) == files_claims(whole)
    assert [r for t in streamed.io_pieces() for r in rows(t)] == rows(whole.io)
    assert streamed.streamed_io is not None, "nothing above needs the whole table"


@pytest.mark.parametrize(
    "options", [{}, {"budget_slices": 3000}, {"steps": (3, 9)}, {"ranks": [1]}, {"budget_slices": 900, "steps": (3, 9)}]
)
def test_time_line_is_that_of_a_trace_in_memory(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object]
) -> None:
    whole, streamed = both(run, monkeypatch)
    expected = digest(whole, tmp_path / "whole.pftrace", **options)
    assert digest(streamed, tmp_path / "streamed.pftrace", **options) == expected
    assert streamed.streamed_io is not None


@pytest.mark.parametrize(
    ("options", "reads"),
    [
        ({"budget_slices": 3000}, 1),
        ({"budget_slices": 3000, "ranks": [1]}, 0.5),
        ({"steps": (3, 9)}, 1),  # all calls of the run would fit
        ({"budget_slices": 900, "steps": (3, 9)}, 2),  # those of the steps have to be counted first
    ],
)
def test_no_call_is_read_more_often_than_needed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object], reads: float
) -> None:
    """What loading counted decides whether calls are summed; then each is read once."""
    _, streamed = both(run, monkeypatch)
    decoded = 0

    def counted(codec: int, payload: bytes, row_count: int, dtype: np.dtype[np.void]) -> np.ndarray:
        nonlocal decoded
        decoded += row_count if "duration_ticks" in (dtype.names or ()) else 0
        return decode(codec, payload, row_count, dtype)

    monkeypatch.setattr("stashtrace.format.stash_file.decode", counted)
    notes = stashtrace.export(streamed, "perfetto", tmp_path / "t.pftrace", **options).notes
    assert decoded == reads * streamed.io_rows_count
    assert bool(notes) == ("budget_slices" in options)


def test_the_table_is_all_there_when_asked_for(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, streamed = both(run, monkeypatch)
    derived = streamed.replace(waits=whole.waits)
    assert rows(streamed.io) == rows(whole.io)
    assert streamed.io is streamed.io, "read once"
    assert streamed.streamed_io is None
    assert rows(derived.table("io")) == rows(whole.io)
    fewer = streamed.replace(io=whole.io.take(slice(0, 7)))
    assert (len(fewer.io), fewer.io_rows_count, len(fewer.notable_io)) == (7, 7, 7)


@pytest.mark.parametrize("loops", [True, False], ids=["in a thread with phases", "in another thread"])
def test_notable_calls(tmp_path: Path, loops: bool) -> None:
    """Blocked calls, receives and connects; where a training loop may run, writes to files whose name is known."""
    stash = StashWriter(tmp_path, pid=20)
    stash.add("phase_span", [stash.row("phase_span", begin_ticks=ms(0), end_ticks=ms(9))], tid=20 if loops else 21)
    path = stash.intern("/data/a")
    calls = [
        (IoOp.READ, 0, path),
        (IoOp.READ, IoFlag.BLOCKED, path),
        (IoOp.STAT, IoFlag.BLOCK_INPUT, 0),
        (IoOp.RECV, 0, 0),
        (IoOp.CONNECT, 0, 0),
        (IoOp.WRITE, 0, path),
        (IoOp.PWRITE, 0, 0),
        (IoOp.SEND, 0, path),
        (IoOp.READ, IoFlag.SOCKET, path),
    ]
    stash.add(
        "io_op",
        [
            stash.row("io_op", begin_ticks=ms(i), duration_ticks=1000, op_code=op, io_flags=int(flags), path_id=p)
            for i, (op, flags, p) in enumerate(calls)
        ],
    )
    stash.save()
    trace = load_trace(tmp_path)
    notable = np.searchsorted(trace.io["begin_ns"], trace.notable_io["begin_ns"]).tolist()
    assert notable == ([1, 2, 3, 4, 5] if loops else [1, 2, 3, 4])
    assert trace.io_rows_count == len(calls)


def test_rows_that_are_not_in_order_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stash = StashWriter(tmp_path, pid=20)
    order = [*range(60, 120), *range(60)]
    for at in range(0, len(order), 30):
        stash.add(
            "io_op",
            [
                stash.row("io_op", begin_ticks=ms(i), duration_ticks=1000, io_flags=int(IoFlag.BLOCKED))
                for i in order[at : at + 30]
            ],
        )
    stash.save()
    compact_run(open_run(tmp_path))
    monkeypatch.setattr("stashtrace.loading.io.KEPT_ROWS", 10)
    monkeypatch.setattr("stashtrace.format.stash_file.pieces.__defaults__", (20,))
    monkeypatch.setattr("stashtrace.format.compact._SEGMENT_ROWS", 30)
    trace = load_trace(tmp_path)
    assert (np.diff(trace.io["begin_ns"]) > 0).all()
    assert (np.diff(trace.notable_io["begin_ns"]) > 0).all()
    assert len(trace.io) == len(trace.notable_io) == 120


def test_files_that_may_still_change_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synth.write(tmp_path / "run", synth.SyntheticJob(steps=10, calls_per_batch=60))
    monkeypatch.setattr("stashtrace.loading.io.KEPT_ROWS", 10)
    trace = load_trace(tmp_path / "run")
    assert trace.streamed_io is None
    assert len(trace.io) == trace.io_rows_count > 10


@pytest.mark.parametrize("op", [IoOp.READ, IoOp.WRITE], ids=["reads", "writes"])
def test_memory_does_not_grow_with_calls_that_say_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: IoOp
) -> None:
    """Load and time line of calls none of which blocked: a few pieces, not the table."""
    count = 600_000
    stash = StashWriter(tmp_path / "run", pid=20)
    array = np.zeros(count, dtype=stash.rows("io_op", []).dtype)
    array["begin_ticks"] = START_NS + np.arange(count) * 1000
    array["duration_ticks"] = 500
    array["op_code"] = int(op)
    array["path_id"] = stash.intern("/data/a")
    stash.add("io_op", array)
    stash.save()
    compact_run(open_run(tmp_path / "run"))
    monkeypatch.setattr("stashtrace.loading.io.KEPT_ROWS", 10)
    load_trace(tmp_path / "run", tables=["spans"])  # imports and caches
    tracemalloc.start()
    trace = load_trace(tmp_path / "run")
    _, loading = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    stashtrace.export(trace, "perfetto", os.fspath(tmp_path / "t.pftrace"), budget_slices=1000)
    _, exporting = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    table = count * 44
    assert trace.io_rows_count == count
    assert len(trace.notable_io) == 0
    assert loading < 0.8 * table
    assert exporting < 0.8 * table


def test_layers_are_made_once_for_totals_and_time_line(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = load_trace(run)
    made: list[int] = []

    def counted(index: TraceIndex, thread: StepThread) -> RankLayers:
        made.append(thread.rank)
        return host_layers(index, thread)

    monkeypatch.setitem(METHODS, "host", counted)
    first = rows(stashtrace.analyze(trace, "stalls"))
    digest(trace, tmp_path / "t.pftrace")
    assert rows(stashtrace.analyze(trace, "stalls")) == first
    assert made == [0, 1]
    stashtrace.analyze(trace.replace(io=trace.io.take(slice(0, 100))), "stalls")
    assert made == [0, 1, 0, 1], "another trace has layers of its own"
