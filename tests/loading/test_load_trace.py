"""Files of a two-rank job with workers, launcher and a second host -> one Trace."""

from __future__ import annotations

import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest
from stash_files import BOOT_ID, REALTIME_OFFSET_NS, START_NS, StashWriter, ms, write_run_json

import stashtrace
from stashtrace.errors import DataLossWarning, FormatError, UsageError
from stashtrace.format.compact import compact_run
from stashtrace.format.liveness import LiveRings
from stashtrace.format.reader import open_run
from stashtrace.loading.decode import decode_processes
from stashtrace.loading.load import load_trace, open_processes
from stashtrace.schema.kinds import ProcessRole, SpanKind, ThreadRole
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace


def io(stash: StashWriter, at_ms: float, *, tid: int | None = None, path: str = "/data/a", count: int = 1) -> None:
    stash.add(
        "io_op",
        [
            stash.row(
                "io_op",
                begin_ticks=ms(at_ms + i),
                duration_ticks=500_000,
                result_bytes=10 + i,
                path_id=stash.intern(path),
                op_code=1,
            )
            for i in range(count)
        ],
        tid=tid,
    )


def write_job(directory: Path) -> None:
    """torchrun 10 -> ranks 20, 21 -> worker 30 of rank 0."""
    directory.mkdir(exist_ok=True)
    write_run_json(directory)
    launcher = StashWriter(directory, pid=10, metadata={"argv": ["python", "/bin/torchrun", "train.py"]})
    launcher.sync(0, 1000)
    io(launcher, 1)
    launcher.save()
    for rank in (0, 1):
        stash = StashWriter(
            directory, pid=20 + rank, ppid=10, env={"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
        )
        stash.sync(5, 1005)
        name = stash.intern("epoch")
        stash.add("span", [stash.row("span", begin_ticks=ms(20), end_ticks=ms(90), name_id=name, value=rank)])
        stash.add("instant", [stash.row("instant", ticks=ms(50 - rank), name_id=name, kind_code=SpanKind.STEP_MARK)])
        stash.add(
            "counter",
            [stash.row("counter", ticks=ms(9 + i), value=i / 2, name_id=stash.intern("loss_ratio")) for i in (2, 0, 1)],
        )
        stash.add(
            "thread_info",
            [
                stash.row(
                    "thread_info",
                    ticks=ms(1),
                    tid=stash.pid,
                    role_code=ThreadRole.STEP,
                    name_id=stash.intern("MainThread"),
                )
            ],
        )
        stash.add(
            "metadata",
            [stash.row("metadata", ticks=ms(1), key_id=stash.intern("torch"), value_id=stash.intern("2.13.0"))],
        )
        stash.add(
            "loss",
            [
                stash.row(
                    "loss",
                    lost_count=n,
                    reason_id=stash.intern("ring_full"),
                    collector_code=2,
                    severity_code=0,
                    detail_id=stash.intern("why"),
                )
                for n in (3, 4)
            ],
        )
        io(stash, 30, count=3)
        io(stash, 10, tid=stash.pid + 500, path="/data/b")
        stash.save()
    worker = StashWriter(directory, pid=30, ppid=20, env={"RANK": "0", "WORLD_SIZE": "2"})
    worker.add(
        "metadata",
        [
            worker.row("metadata", key_id=worker.intern(k), value_id=worker.intern(v))
            for k, v in (("role", "worker"), ("worker_id", "1"))
        ],
    )
    io(worker, 200)
    worker.save()


@pytest.fixture
def job(tmp_path: Path) -> Path:
    write_job(tmp_path / "run")
    return tmp_path / "run"


def texts(trace: Trace, table: str, column: str) -> list[str]:
    return trace.strings.texts(trace.table(table)[column]).tolist()


def test_processes(job: Path) -> None:
    trace = load_trace(job)
    p = trace.processes
    assert p["process_id"].tolist() == [0, 1, 2, 3]
    assert p["pid"].tolist() == [20, 30, 21, 10]
    assert p["rank"].tolist() == [0, 0, 1, -1]
    assert [ProcessRole(r).name for r in p["role_code"]] == ["RANK", "WORKER", "RANK", "LAUNCHER"]
    assert p["parent_process_id"].tolist() == [3, 0, 3, -1]
    assert p["worker_id"].tolist() == [-1, 1, -1, -1]
    assert texts(trace, "processes", "name_code") == ["train.py", "worker 1", "train.py", "torchrun"]
    assert trace.ranks.tolist() == [0, 1]
    assert p["begin_ns"].tolist() == [0, 0, 0, 0]
    assert p["end_ns"].tolist()[:2] == [1_005_000_000, 200_500_000]


def test_worker_number_from_its_batches(job: Path) -> None:
    worker = StashWriter(job, pid=31, ppid=20, env={"RANK": "0"})
    worker.add("thread_info", [worker.row("thread_info", tid=31, role_code=ThreadRole.WORKER)])
    worker.add(
        "batch", [worker.row("batch", begin_ticks=ms(5), end_ticks=ms(6), worker_id=3, phase_code=p) for p in (5, 2)]
    )
    worker.save()
    p = load_trace(job).processes
    at = p["pid"].tolist().index(31)
    assert (p["worker_id"][at], p["rank"][at], p["role_code"][at]) == (3, 0, ProcessRole.WORKER)


def test_rows_on_the_common_clock(job: Path) -> None:
    trace = load_trace(job)
    assert trace.spans["begin_ns"].tolist() == [20_000_000, 20_000_000, 49_000_000, 50_000_000]
    assert trace.spans["span_id"].tolist() == [0, 1, 2, 3]
    assert trace.spans["kind_code"].tolist() == [0, 0, 1, 1]
    assert trace.io["begin_ns"].tolist() == [i * 1_000_000 for i in (30, 31, 32, 10, 200, 30, 31, 32, 10, 1)]
    assert (trace.io["end_ns"] - trace.io["begin_ns"] == 500_000).all()
    assert (np.diff(trace.io["track_id"]) >= 0).all()
    assert trace.counters["value"].tolist() == [0.0, 0.5, 1.0] * 2
    names = texts(trace, "tracks", "name_code")
    assert names.count("loss_ratio") == 2
    first = trace.tracks.take(trace.tracks["native_id"] == 20)
    assert trace.text(first["name_code"][0]) == "MainThread"
    assert first["role_code"].tolist() == [ThreadRole.STEP]
    facts = dict(zip(texts(trace, "metadata", "key_code"), texts(trace, "metadata", "value_code"), strict=True))
    assert facts["origin_monotonic_ns"] == str(START_NS)
    assert facts["origin_realtime_ns"] == str(START_NS + REALTIME_OFFSET_NS)
    assert facts["torch"] == "2.13.0"
    assert facts["command"] == "python train.py"


def test_losses_of_one_reason_are_one_row(job: Path) -> None:
    trace = load_trace(job)
    assert texts(trace, "losses", "name_code") == ["ring_full", "ring_full"]
    assert texts(trace, "losses", "collector_code") == ["posix_io"] * 2
    assert trace.losses["lost_count"].tolist() == [7, 7]


def test_merged_and_raw_directories_give_the_same_trace(job: Path) -> None:
    raw = load_trace(job)
    assert len(compact_run(open_run(job), live=LiveRings(BOOT_ID, {})).merged) == 4
    merged = load_trace(job)
    for name in ("processes", "tracks", "spans", "io", "counters", "losses", "metadata", "alignment"):
        assert list(merged.table(name).rows()) == list(raw.table(name).rows()), name
    assert list(merged.strings) == list(raw.strings)


def test_chosen_tables_and_ranks(job: Path) -> None:
    whole = load_trace(job)
    some = load_trace(job, tables=["spans"], ranks=[1])
    assert len(some.io) == 0
    assert some.spans["value"].tolist() == [1, 0]
    assert some.processes["pid"].tolist() == [21, 10]
    assert some.processes["parent_process_id"].tolist() == [1, -1]
    without_io = load_trace(job, tables=["spans", "counters"])
    assert list(without_io.tracks.rows()) == list(whole.tracks.rows())
    with pytest.raises(UsageError, match="no such table: nonsense"):
        load_trace(job, tables=["nonsense"])
    with pytest.raises(UsageError, match="no rank 7"):
        load_trace(job, ranks=[7])


def io_pieces(path: Path) -> list[Table]:
    """The I/O calls of a run as each process gives them."""
    run = open_processes(path)
    decoded = decode_processes(run.processes, run.tracks, frozenset({"io"}))
    return [piece for one in decoded for piece in one.io.pieces()]


def test_pieces_of_all_processes_are_the_io_table(job: Path) -> None:
    whole = load_trace(job)
    parts = io_pieces(job)
    assert len(parts) == 4
    assert np.concatenate([t["begin_ns"] for t in parts]).tolist() == whole.io["begin_ns"].tolist()
    assert np.concatenate([t["track_id"] for t in parts]).tolist() == whole.io["track_id"].tolist()
    alone = load_trace(job, tables=["io"])
    assert texts(alone, "io", "path_code") == texts(whole, "io", "path_code")
    assert len(load_trace(job, tables=["spans"]).io) == 0


def test_second_host_is_mapped_by_the_wall_clock_and_says_how_well(job: Path) -> None:
    other = StashWriter(
        job,
        pid=40,
        host="node02",
        boot_id="b0070000-2",
        env={"RANK": "2", "WORLD_SIZE": "3"},
        metadata={
            "start_monotonic_ns": START_NS - 10**9 * 500,
            "start_realtime_ns": START_NS + REALTIME_OFFSET_NS,
            "start_ticks": START_NS,
        },
    )
    other.sync(0, 1000, offset_ns=-500 * 10**9, realtime_offset_ns=REALTIME_OFFSET_NS + 500 * 10**9)
    io(other, 70)
    other.save()
    trace = load_trace(job)
    alignment = {trace.text(r["boot_code"]): r for r in trace.alignment.rows()}
    assert trace.text(alignment["b0070000-2"]["method_code"]) == "realtime"
    assert alignment["b0070000-2"]["error_ns"] >= 1_000_000
    assert alignment["b0070000-2"]["offset_ns"] == 500 * 10**9
    assert alignment[BOOT_ID]["error_ns"] < 1_000
    assert trace.text(alignment[BOOT_ID]["method_code"]) == "same_clock"
    track = trace.tracks["track_id"][trace.tracks["native_id"] == 40][0]
    assert trace.io["begin_ns"][trace.io["track_id"] == track].tolist() == [70_000_000]


def test_hosts_in_two_directories(tmp_path: Path) -> None:
    for rank, name in enumerate(("a", "b")):
        stash = StashWriter(
            tmp_path / name, pid=20, host=name, boot_id=name, run_id=name, env={"RANK": str(rank), "WORLD_SIZE": "2"}
        )
        stash.sync(0)
        io(stash, 10 + rank)
        stash.save()
    trace = load_trace([tmp_path / "a", tmp_path / "b"])
    assert trace.ranks.tolist() == [0, 1]
    assert trace.io["begin_ns"].tolist() == [10_000_000, 11_000_000]


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        stash = StashWriter(tmp_path, pid=20 + rank, env={"RANK": str(rank), "WORLD_SIZE": "4"})
        stash.sync(0)
        stash.save()
    with pytest.warns(DataLossWarning, match="ranks_missing"):
        trace = load_trace(tmp_path)
    assert "rank 2 of 4: no file" in " ".join(texts(trace, "losses", "advice_code"))
    assert load_trace(tmp_path, ranks=[0, 1]).ranks.tolist() == [0, 1]


def test_damage_warns_and_strict_raises(job: Path) -> None:
    path = job / "node01.21.0.stash"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.warns(DataLossWarning, match="damaged_bytes"):
        trace = load_trace(job)
    assert trace.ranks.tolist() == [0, 1]
    with pytest.raises(FormatError):
        load_trace(job, strict=True)


def test_damaged_io_rows_are_found_while_they_are_streamed(job: Path) -> None:
    path = job / "node01.30.0.stash"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))
    with pytest.warns(DataLossWarning, match="damaged_rows"):
        trace = load_trace(job)
    assert len(trace.io) == 9


def test_unknown_collector_is_a_loss(job: Path) -> None:
    stash = StashWriter(job, pid=77)
    for record in stash.schema_records:
        record["collector"] = "quantum" if record["name"] == "io_op" else record["collector"]
    io(stash, 1)
    stash.save()
    trace = load_trace(job)
    assert "records of quantum cannot be read by this stashtrace" in texts(trace, "losses", "advice_code")


def test_header_without_times_is_refused(tmp_path: Path) -> None:
    StashWriter(tmp_path, metadata={"start_ticks": "soon", "start_monotonic_ns": None}).save()
    with pytest.raises(FormatError, match="no clock reading"):
        load_trace(tmp_path)


def test_public_name(job: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(stashtrace.load(job).processes) == 4


def test_large_threads_are_cut_where_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces, long calls in a separate ring, a signal handler's call inside another: the table stays sorted."""
    rng = np.random.default_rng(5)
    for pid in (20, 21):
        stash = StashWriter(tmp_path, pid=pid)
        for tid in (pid, pid + 100, pid + 200):
            rows = [
                stash.row("io_op", begin_ticks=ms(i), duration_ticks=400_000, op_code=1)
                for i in range(int(rng.integers(1, 60)))
            ]
            if tid == 20:
                rows = [stash.row("io_op", begin_ticks=ms(i), duration_ticks=400_000, op_code=1) for i in range(300)]
                rows[150], rows[151] = rows[151], rows[150]
            for at in range(0, len(rows), 7):
                stash.add("io_op", rows[at : at + 7], tid=tid)
            stash.add(
                "io_op_long",
                [
                    stash.row("io_op_long", begin_ticks=ms(i + 0.5), end_ticks=ms(i + 0.9))
                    for i in range(0, len(rows), 9)
                ],
                tid=tid,
            )
        stash.save()
    whole = load_trace(tmp_path)
    monkeypatch.setattr("stashtrace.format.stash_file.pieces.__defaults__", (20,))
    cut = load_trace(tmp_path)
    assert list(cut.io.rows()) == list(whole.io.rows())
    assert len(cut.io) == sum(
        p.row_counts()["io_op"] + p.row_counts()["io_op_long"] for p in open_run(tmp_path).processes
    )
    same_track = cut.io["track_id"][1:] == cut.io["track_id"][:-1]
    assert (np.diff(cut.io["begin_ns"])[same_track] >= 0).all()
    assert len(io_pieces(tmp_path)) > 20


def test_io_is_not_held_twice(tmp_path: Path) -> None:
    """Peak of loading N rows stays below 1.3 x the table and one piece."""
    rows = 60_000
    for pid in range(8):
        stash = StashWriter(tmp_path, pid=20 + pid)
        array = np.zeros(rows, dtype=stash.rows("io_op", []).dtype)
        array["begin_ticks"] = START_NS + np.arange(rows) * 1000
        array["duration_ticks"] = 500
        stash.add("io_op", array)
        stash.save()
    load_trace(tmp_path, tables=["spans"])  # imports and caches
    tracemalloc.start()
    trace = load_trace(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    table = sum(trace.io[n].nbytes for n in trace.io.columns)
    assert len(trace.io) == 8 * rows
    assert peak < 1.3 * table + 4 * rows * 32
