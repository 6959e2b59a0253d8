"""Runs whose I/O calls stay on disk: nothing that is derived from them may differ, and nothing may load them."""

from __future__ import annotations

import hashlib
import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from stash_files import START_NS, StashWriter, ms

import stashtrace
from stashtrace.analysis.findings.rules.files import files_claims
from stashtrace.analysis.stalls.budget import METHODS
from stashtrace.analysis.stalls.on_host import host_layers
from stashtrace.analysis.stalls.rows_by_thread import RankLayers, TraceIndex
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.errors import DataLossWarning
from stashtrace.exporters.store import store_run
from stashtrace.format.codec import decode
from stashtrace.format.compact import compact_run
from stashtrace.format.reader import open_run
from stashtrace.lab import synth
from stashtrace.loading.load import load_trace
from stashtrace.schema.kinds import IoFlag, IoOp
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks with two workers each, 40 steps, merged; no test writes into it."""
    run = tmp_path_factory.mktemp("streamed") / "run"
    synth.write(run, synth.SyntheticJob(steps=40, calls_per_batch=120, late_rank=1, late_ns=7_000_000))
    assert not compact_run(open_run(run)).problems
    return run


def both(run: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Trace, Trace]:
    """The trace with its calls in memory, and with its calls on disk, read in small pieces."""
    whole = load_trace(run)
    monkeypatch.setattr("stashtrace.loading.io_calls.KEPT_ROWS", 10)
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
    for name in ("stalls", "hidden"):
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
    monkeypatch.setattr("stashtrace.loading.io_calls.KEPT_ROWS", 10)
    monkeypatch.setattr("stashtrace.format.stash_file.pieces.__defaults__", (20,))
    monkeypatch.setattr("stashtrace.format.compact._SEGMENT_ROWS", 30)
    trace = load_trace(tmp_path)
    assert (np.diff(trace.io["begin_ns"]) > 0).all()
    assert (np.diff(trace.notable_io["begin_ns"]) > 0).all()
    assert len(trace.io) == len(trace.notable_io) == 120


def test_files_that_may_still_change_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synth.write(tmp_path / "run", synth.SyntheticJob(steps=10, calls_per_batch=60))
    monkeypatch.setattr("stashtrace.loading.io_calls.KEPT_ROWS", 10)
    trace = load_trace(tmp_path / "run")
    assert trace.streamed_io is None
    assert len(trace.io) == trace.io_rows_count > 10


@pytest.mark.parametrize("op", [IoOp.READ, IoOp.WRITE], ids=["reads", "writes"])
def test_memory_does_not_grow_with_calls_that_say_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: IoOp
) -> None:
    """Load and timeline of calls none of which blocked: a few pieces, not the table."""
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
    monkeypatch.setattr("stashtrace.loading.io_calls.KEPT_ROWS", 10)
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
    assert made == [0, 1, 0, 1], "another trace has separate layers"


@pytest.fixture(scope="module")
def store(run: Path) -> Path:
    """The run as a store; no test writes into it."""
    pytest.importorskip("pyarrow")
    store_run(run, run.with_name("store"))
    return run.with_name("store")


def in_words(table: Table, trace: Trace) -> list[dict[str, object]]:
    """Rows with the texts behind their codes, which depend on what was read before."""
    texts = {column.name for column in table.schema.columns if column.is_text}
    return [{n: trace.text(value) if n in texts else value for n, value in row.items()} for row in table.rows()]


def test_calls_of_a_store_stay_there_if_they_are_many(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load_trace(store)
    monkeypatch.setattr("stashtrace.loading.io_calls.KEPT_ROWS", 10)
    monkeypatch.setattr("stashtrace.loading.load._PIECE_ROWS", 100)
    streamed = load_trace(store)
    assert whole.streamed_io is None
    assert streamed.streamed_io is not None
    for name in ("stalls", "hidden", "late"):
        assert rows(stashtrace.analyze(streamed, name)) == rows(stashtrace.analyze(whole, name)), name
    assert (streamed.io_rows_count, streamed.io_span_ns) == (whole.io_rows_count, whole.io_span_ns)
    listed = list(streamed.io_pieces())
    assert max(map(len, listed)) <= 200
    assert [row for piece in listed for row in in_words(piece, streamed)] == in_words(whole.io, whole)
    assert in_words(streamed.losses, streamed) == in_words(whole.losses, whole)
    owner = whole.tracks["process_id"][whole.io["track_id"]]
    for process in np.unique(owner).tolist():
        own = [row for piece in streamed.io_outline.pieces([process]) for row in in_words(piece, streamed)]
        assert own == in_words(whole.io.take(owner == process), whole)
    assert streamed.streamed_io is not None, "nothing above needs the whole table"
    assert in_words(streamed.io, streamed) == in_words(whole.io, whole)


def test_outline_of_a_store_is_that_of_its_run(run: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stashtrace.loading.io_calls.KEPT_ROWS", 10)
    of_run, of_store = load_trace(run), load_trace(store)
    assert of_run.streamed_io is not None
    assert of_store.streamed_io is not None
    assert of_store.io_outline.counts[: len(of_run.io_outline.counts)].tolist() == of_run.io_outline.counts.tolist()
    assert len(of_run.notable_io) > 0
    assert in_words(of_store.notable_io, of_store) == in_words(of_run.notable_io, of_run)


def lose_tracks(store: Path) -> None:
    shutil.rmtree(store / "tracks/rank=1")


def lose_calls(store: Path) -> None:
    shutil.rmtree(store / "io/rank=1")


def name_a_track_that_nobody_has(store: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    file = store / "io/rank=1/part-0.parquet"
    table = pyarrow.parquet.ParquetFile(file).read()
    at = table.column_names.index("track_id")
    tracks = [*table.column(at).to_pylist()[:-1], 9999]
    pyarrow.parquet.write_table(table.set_column(at, "track_id", pyarrow.array(tracks, pyarrow.int32())), file)


@pytest.mark.parametrize("damage", [lose_tracks, lose_calls, name_a_track_that_nobody_has])
def test_calls_of_a_damaged_store(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None]
) -> None:
    """What is amiss with the calls themselves is mended as if they were few."""
    store = Path(shutil.copytree(store, tmp_path / "store"))
    damage(store)
    with pytest.warns(DataLossWarning):
        whole = load_trace(store)
    monkeypatch.setattr("stashtrace.loading.io_calls.KEPT_ROWS", 10)
    with pytest.warns(DataLossWarning):
        mended = load_trace(store)
    assert (mended.streamed_io is None) == (damage is not lose_tracks)
    for name in ("tracks", "losses"):
        assert in_words(mended.table(name), mended) == in_words(whole.table(name), whole), name
    assert in_words(mended.io, mended) == in_words(whole.io, whole)


def test_a_part_of_a_store_is_loaded(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stashtrace.loading.io_calls.KEPT_ROWS", 10)
    assert load_trace(store, ranks=[1]).streamed_io is None
    assert len(load_trace(store, ranks=[1]).io) > 10
    none = load_trace(store, tables=["phases"])
    assert (len(none.io), none.io_rows_count) == (0, 0)
