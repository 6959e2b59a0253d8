"""A store gives back what went in, and each rank alone is attributed as within its whole run."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="stores are Parquet files")
pytest.importorskip("dask", reason="ranks are shared out by Dask")

from analysis.devices.test_device_identity import traces as device_traces
from analysis.stalls.test_stall_identity import traces as host_traces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kineto_job import write_job

import stashtrace
from examples import examples
from stashtrace.errors import FormatError, MissingDataError, StashtraceError, UnsupportedVersionError, UsageError
from stashtrace.exporters.store import export_store, store_run
from stashtrace.fleet.analyze import PLANS, analyze
from stashtrace.lab import synth
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.store.layout import STORE_FILE, partition

OPTIONS = {"stalls": ({}, {"by": "rank"}, {"by": "step_kind"}, {"by": "run"}, {"by": "run", "warmup": True})}


def texts(table: Table, strings: StringPool) -> list[str]:
    """Rows with texts in place of codes, sorted."""
    coded = {c.name for c in table.schema.columns if c.is_text}
    rows = ({n: strings.text(v) if n in coded else v for n, v in row.items()} for row in table.rows())
    return sorted(map(str, rows))


def compare(trace: Trace, store: Path) -> int:
    """Every analysis that has a plan, on the whole and rank by rank; how many had something to say."""
    answered = 0
    for name in PLANS:
        for options in OPTIONS.get(name, ({},)):
            try:
                whole = stashtrace.analyze(trace, name, **options)
            except MissingDataError:
                continue
            parts, strings = analyze(store, name, **options)
            assert texts(parts, strings) == texts(whole, trace.strings), (name, options)
            answered += 1
    return answered


def with_own_waits(trace: Trace) -> Trace:
    """Without waits for what another process called, which no process can do."""
    waits, table = trace.collective_waits, trace.collectives
    caller = dict(zip(table["collective_key"].tolist(), table["process_id"].tolist(), strict=True))
    own = [
        caller.get(key, owner) == owner
        for key, owner in zip(waits["collective_key"].tolist(), waits["process_id"].tolist(), strict=True)
    ]
    return trace.replace(collective_waits=waits.take(np.array(own, dtype=bool)))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four ranks with two workers each; rank 2 is late by 7 ms."""
    path = tmp_path_factory.mktemp("synth") / "run"
    synth.write(path, synth.SyntheticJob(ranks=4, steps=30, calls_per_batch=60, late_rank=2, late_ns=7_000_000))
    return path


@pytest.fixture(scope="module")
def store(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stores") / "run.store"
    store_run(run, path)
    return path


def test_everything_comes_back(run: Path, store: Path) -> None:
    before, after = stashtrace.load(run), stashtrace.load(store)
    for name in (
        *("processes", "tracks", "phases", "batches", "io", "collectives", "collective_waits", "groups", "losses"),
        "alignment",
    ):
        assert texts(after.table(name), after.strings) == texts(before.table(name), before.strings), name
    assert set(texts(before.metadata, before.strings)) < set(texts(after.metadata, after.strings))
    assert [len(after.table(name)) for name in ("numbered_steps", "matched_collectives")] == [120, 120]


def test_ranks_alone_are_attributed_as_within_the_run(run: Path, store: Path) -> None:
    of_kernels = {"breakdown", "idle", "launches", "copies"}  # of which a run without devices has nothing to say
    assert compare(stashtrace.load(run), store) == len(PLANS) - len(of_kernels) + 4


def test_devices_of_each_rank_are_looked_at_alone(tmp_path: Path) -> None:
    write_job(tmp_path / "job")
    whole = stashtrace.load(str(tmp_path / "job"))
    export_store(whole, tmp_path / "job.store")
    for name, options in (
        ("breakdown", {}),
        ("breakdown", {"by": "step", "last_step": "drop"}),
        ("idle", {"orphans": "drop"}),
        ("launches", {"by": "step"}),
        ("copies", {}),
    ):
        parts, strings = analyze(tmp_path / "job.store", name, **options)
        assert texts(parts, strings) == texts(stashtrace.analyze(whole, name, **options), whole.strings), name


def test_whole_store_is_attributed_as_the_run(run: Path, store: Path) -> None:
    before, after = stashtrace.load(run), stashtrace.load(store)
    for name in ("stalls", "stragglers", "hidden", "io"):
        found, wanted = (stashtrace.analyze(t, name) for t in (after, before))
        assert texts(found, after.strings) == texts(wanted, before.strings), name


def test_truth_of_the_late_rank(store: Path) -> None:
    table, _ = analyze(store, "stalls", by="rank")
    late = {(r, k): v for r, k, v in zip(table["rank"], table["kind"].tolist(), table["stall_ns"], strict=True)}
    steps = int(table["steps_count"][0])
    assert all(abs(late[rank, "straggler"] / steps - 7e6) < 2e4 for rank in (0, 1, 3))
    assert (2, "straggler") not in late
    assert set(table["cause_rank"][table["kind"] == "straggler"].tolist()) == {2}


@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.one_of(host_traces(), device_traces()))
def test_any_trace(trace: Trace) -> None:
    trace = with_own_waits(trace)
    with tempfile.TemporaryDirectory() as folder:
        export_store(trace, Path(folder) / "any.store")
        compare(trace, Path(folder) / "any.store")


def test_trace_and_run_make_the_same_store(run: Path, store: Path, tmp_path: Path) -> None:
    export_store(stashtrace.load(run), tmp_path / "again.store")
    first, second = (json.loads((path / STORE_FILE).read_text()) for path in (store, tmp_path / "again.store"))
    assert first["rows"] == second["rows"]
    assert first["ranks"] == [0, 1, 2, 3]
    compare(stashtrace.load(run), tmp_path / "again.store")


def test_other_readers_see_ranks_and_texts(store: Path) -> None:
    import pyarrow.dataset

    table = pyarrow.dataset.dataset(store / "io", partitioning="hive").to_table()
    assert sorted(set(table["rank"].to_pylist())) == [0, 1, 2, 3]
    assert all(path.startswith("/data/imagenet") for path in table["path"].to_pylist())
    assert table.schema.field("begin_ns").metadata[b"unit"] == b"ns"


def test_some_ranks(store: Path, tmp_path: Path, run: Path) -> None:
    trace = stashtrace.load(store, ranks=[1, 3])
    assert trace.ranks.tolist() == [1, 3]
    whole = stashtrace.analyze(stashtrace.load(run), "stalls")
    part = stashtrace.analyze(trace, "stalls")
    wanted = whole.take(np.isin(whole["rank"], [1, 3]))
    assert texts(part, trace.strings) == texts(wanted, trace.strings)
    with pytest.raises(UsageError, match="has no rank 9"):
        stashtrace.load(store, ranks=[9])


def test_a_cluster_gives_the_same(store: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        done: list[int] = []
        table, strings = analyze(
            store, "stalls", cluster=cluster.scheduler_address, progress=lambda n, _: done.append(n)
        )
    here, own = analyze(store, "stalls")
    assert texts(table, strings) == texts(here, own)
    assert done[-1] == 4


@pytest.mark.thorough
def test_many_ranks_on_processes(tmp_path: Path) -> None:
    job = synth.SyntheticJob(ranks=72, workers=0, steps=8, calls_per_batch=0, late_rank=70, late_ns=5_000_000)
    synth.write(tmp_path / "run", job)
    store_run(tmp_path / "run", tmp_path / "many.store")
    done: list[int] = []
    table, _ = analyze(
        tmp_path / "many.store", "stalls", by="rank", processes=True, workers=2, progress=lambda n, _: done.append(n)
    )
    here, _ = analyze(tmp_path / "many.store", "stalls", by="rank")
    assert texts(table, StringPool()) == texts(here, StringPool())
    assert done == [*range(8, 73, 8)]
    late = table.take(table["kind"] == "straggler")
    assert (len(late), set(late["cause_rank"].tolist())) == (71, {70})


def test_no_scheduler(store: Path) -> None:
    pytest.importorskip("distributed")
    with pytest.raises(StashtraceError, match="no Dask scheduler answers at nowhere"):
        analyze(store, "stalls", cluster="nowhere://1")


def test_what_a_store_refuses(store: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs all ranks at once"):
        analyze(store, "links")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("years of work")
    with pytest.raises(StashtraceError, match="holds no store"):
        export_store(stashtrace.load(store), tmp_path / "mine")
    assert (tmp_path / "mine/thesis.tex").read_text() == "years of work"


def test_damaged_stores(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.store"
    store_run(run, path, ranks=[0])
    file = partition(path, "phases", 0)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match=r"part-0\.parquet cannot be read"):
        stashtrace.load(path)
    file.write_bytes(whole)
    (path / STORE_FILE).write_text('{"version": 99, "ranks": [0]}')
    with pytest.raises(UnsupportedVersionError, match="version 99"):
        stashtrace.load(path)
    (path / STORE_FILE).write_text("{")
    with pytest.raises(FormatError, match="not a description of a store"):
        stashtrace.load(path)


def test_an_older_store_lacks_columns(run: Path, tmp_path: Path) -> None:
    import pyarrow.parquet

    path = tmp_path / "old.store"
    store_run(run, path, ranks=[0])
    file = partition(path, "collectives", 0)
    table = pyarrow.parquet.ParquetFile(file).read()
    pyarrow.parquet.write_table(table.drop_columns(["device_begin_ns", "name"]), file)
    found = stashtrace.load(path).collectives
    assert set(found["device_begin_ns"].tolist()) == {-1}
    assert set(found["name_code"].tolist()) == {0}


@pytest.mark.parametrize("packet_files", [1, 3, 64])
def test_some_ranks_of_an_older_store(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packet_files: int
) -> None:
    """Files of several ranks are read together; that one has other columns changes nothing for its neighbours."""
    import pyarrow.parquet

    monkeypatch.setattr("stashtrace.store.files._PACKET_FILES", packet_files)
    path = tmp_path / "mixed.store"
    store_run(run, path)
    whole = stashtrace.load(path)
    for column in ("device_begin_ns", "name"):
        file = partition(path, "collectives", 1)
        table = pyarrow.parquet.ParquetFile(file).read()
        pyarrow.parquet.write_table(table.drop_columns([column]), file)
    mixed = stashtrace.load(path)
    former = np.flatnonzero(whole.processes["rank"] == 1)
    of_rank = np.isin(mixed.collectives["process_id"], former)
    assert of_rank.any()
    assert set(mixed.collectives["name_code"][of_rank].tolist()) == {0}
    others = [
        texts(trace.collectives.take(~np.isin(trace.collectives["process_id"], former)), trace.strings)
        for trace in (whole, mixed)
    ]
    assert others[0]
    assert others[0] == others[1]
    for name in ("collective_waits", "phases", "batches"):
        assert texts(getattr(whole, name), whole.strings) == texts(getattr(mixed, name), mixed.strings)


def test_the_file_among_many_that_cannot_be_read_is_named(run: Path, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "bad.store"
    store_run(run, path)
    file = partition(path, "batches", 2)
    table = pyarrow.parquet.ParquetFile(file).read()
    words = pyarrow.array(["soon"] * len(table))
    pyarrow.parquet.write_table(table.set_column(table.column_names.index("begin_ns"), "begin_ns", words), file)
    with pytest.raises(FormatError, match=r"batches/rank=2/part-0\.parquet cannot be read"):
        stashtrace.load(path)
