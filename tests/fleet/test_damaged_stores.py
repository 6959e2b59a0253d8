"""Stores whose files hold something else than an export wrote: read without it, or refused with one clear line."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stashtrace.analysis.registry import analyze
from stashtrace.cli import main
from stashtrace.errors import DataLossWarning, FormatError
from stashtrace.exporters.registry import export
from stashtrace.lab import synth
from stashtrace.loading.load import load_trace
from stashtrace.schema.events import TABLES
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.store.restore_rows import Reinstated

pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")

GOLDEN = Path(__file__).resolve().parents[1] / "data/golden/v1_devices/merged.stash"
HUGE = 2**63 - 1


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks of six steps."""
    folder = tmp_path_factory.mktemp("stores")
    job = synth.SyntheticJob(ranks=2, workers=1, steps=6, calls_per_batch=12, late_rank=1, late_ns=7_000_000)
    synth.write(folder / "run", job)
    assert main(["export", "parquet", str(folder / "run"), "-o", str(folder / "store")]) == 0
    return folder / "store"


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "store"))


def change(store: Path, table: str, column: str, values: Any, rank: int = 0) -> None:
    """Put another value into the first row of a column, or what a function makes of all of them."""
    file = store / table / f"rank={rank}/part-0.parquet"
    rows = pyarrow.parquet.ParquetFile(file).read()
    at = rows.column_names.index(column)
    old = rows.column(at).to_pylist()
    kind = None if callable(values) else rows.schema.field(at).type
    array = pyarrow.array(values(old) if callable(values) else [values, *old[1:]], kind)
    pyarrow.parquet.write_table(rows.set_column(at, column, array), file)


def loaded(store: Path) -> Trace:
    """The store, loaded; it must be summed up and drawn, too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        trace = load_trace(store)
    assert main(["--debug", "analyze", "summary", str(store)]) == 0
    export(trace, "perfetto", store.parent / "t.pftrace")
    return trace


def lost(trace: Trace, reason: str) -> int:
    mine = trace.losses["name_code"] == trace.strings.find(reason)
    return int(trace.losses["lost_count"][mine].sum())


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("phases", "begin_ns", HUGE),
        ("io", "end_ns", -HUGE),
        ("io", "op_code", -5),
        ("batches", "cpu_ns", HUGE),
        ("collectives", "message_bytes", HUGE),
    ],
)
def test_a_number_that_no_run_has_costs_its_row(store: Path, table: str, column: str, value: int) -> None:
    before = len(load_trace(store).table(table))
    change(store, table, column, value)
    trace = loaded(store)
    assert lost(trace, "impossible_values") == 1
    assert lost(trace, "rows_lost") == 0
    assert len(trace.table(table)) == before - 1


def test_keys_of_two_ranks_stay_apart_when_rows_are_left_out(store: Path) -> None:
    """A key is the place among all rows of a partition, also among those that are left out."""
    change(store, "collectives", "message_bytes", HUGE)
    trace = loaded(store)
    keys = trace.collectives["collective_key"]
    assert keys.tolist() == list(range(len(keys)))
    waits = trace.collective_waits["collective_key"]
    known = waits[waits >= 0]
    assert len(known) == len(set(known.tolist())) == len(waits) - 1


@pytest.mark.parametrize("key", [-7, 10**6, HUGE])
def test_a_key_of_no_collective_refers_to_none(store: Path, key: int) -> None:
    change(store, "collective_waits", "collective_key", key)
    trace = loaded(store)
    assert (trace.collective_waits["collective_key"] == -1).sum() == 1


@pytest.mark.parametrize("column", ["step", "begin_ns"])
def test_impossible_steps_are_found_again(store: Path, column: str) -> None:
    expected = analyze(load_trace(store), "steps")["step"].tolist()
    odd = {"step": lambda old: [old[0], -3, *old[2:]], "begin_ns": lambda old: [old[-1]] * len(old)}
    change(store, "numbered_steps", column, odd[column])
    trace = loaded(store)
    assert analyze(trace, "steps")["step"].tolist() == expected
    assert lost(trace, "impossible_values") > 0


def test_a_code_of_a_later_version_is_shown(tmp_path: Path) -> None:
    assert main(["export", "parquet", str(GOLDEN), "-o", str(tmp_path / "store")]) == 0
    file = next((tmp_path / "store/device_clocks").rglob("*.parquet"))
    change(tmp_path / "store", "device_clocks", "clock_code", 99, rank=int(file.parent.name.partition("=")[2]))
    loaded(tmp_path / "store")


@pytest.mark.parametrize("text", [None, [None] * 3, ["x", None, "y"]])
def test_a_text_that_is_missing_is_empty(store: Path, text: list[str | None] | None) -> None:
    change(store, "phases", "name", lambda old: [None] * len(old) if text is None else (text * len(old))[: len(old)])
    assert len(loaded(store).phases)


def test_a_number_that_is_missing_is_unknown(store: Path) -> None:
    change(store, "phases", "begin_cpu_ns", None)
    assert loaded(store).phases["begin_cpu_ns"].min() == -1


@pytest.mark.parametrize(
    ("table", "column", "values"),
    [
        ("phases", "begin_ns", lambda old: ["x"] * len(old)),
        ("phases", "begin_ns", lambda old: [1.5] * len(old)),
        ("phases", "begin_ns", lambda old: [[1]] * len(old)),
        ("io", "op_code", lambda old: [70_000] * len(old)),
        ("phases", "name", lambda old: [b"\xff\xfe"] * len(old)),
        ("phases", "name", lambda old: [[1]] * len(old)),
        ("numbered_steps", "kind", lambda old: [[1]] * len(old)),
    ],
)
def test_a_column_of_another_type_is_refused(
    store: Path, capsys: pytest.CaptureFixture[str], table: str, column: str, values: Any
) -> None:
    change(store, table, column, values)
    with pytest.raises(FormatError, match=f"{table}/rank=0/part-0.parquet cannot be read: .+"):
        load_trace(store)
    refused(store, capsys)


def test_a_name_of_a_column_that_is_no_text_is_refused(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """pyarrow raises a UnicodeDecodeError for it, which is none of its own errors."""
    file = store / "phases/rank=0/part-0.parquet"
    file.write_bytes(file.read_bytes().replace(b"begin_ns", b"\xffegin_ns"))
    with pytest.raises(UnicodeDecodeError):
        pyarrow.parquet.ParquetFile(file)
    refused(store, capsys)
    assert main(["scrub", str(store), "-o", str(tmp_path / "scrubbed")]) == 4


def refused(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The store is refused in one line with a hint."""
    assert main(["info", str(store)]) == 4
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("error: ")
    assert said[2] == "hint: export the run again"


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000,
        '{"version": 1, "rows": {"io": 1e400}}',
        '{"version": 1, "ranks": [99999999999999999999]}',
        '{"version": 1, "rows": {"io": 99999999999999999999}}',
        "[1]",
    ],
)
def test_facts_that_no_store_has_are_refused(store: Path, content: str) -> None:
    (store / "stashtrace-store.json").write_text(content)
    with pytest.raises(FormatError, match="not a description of a store"):
        load_trace(store)


def test_a_world_that_no_job_has(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(store, "processes", "world_size", 20_000_000)
    assert main(["info", str(store), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["missing_ranks"] == []


@pytest.mark.parametrize(("column", "value"), [("kind_code", 4), ("kind_code", 99), ("process_id", 1)])
def test_a_thread_that_is_called_something_else_is_drawn(store: Path, column: str, value: int) -> None:
    change(store, "tracks", column, lambda old: [value] * len(old))
    assert len(loaded(store).phases)


@pytest.mark.parametrize("text", ["1.5", "9" * 400, "", "-1"])
def test_a_begin_that_is_no_time_is_not_known(store: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    rows = pyarrow.parquet.ParquetFile(store / "metadata/rank=-1/part-0.parquet").read()
    at = rows.column("key").to_pylist().index("origin_realtime_ns")
    change(store, "metadata", "value", lambda old: [*old[:at], text, *old[at + 1 :]], rank=-1)
    assert main(["info", str(store), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["begin_realtime_ns"] is None


def test_lost_rows_are_put_back_in_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged column may name as many processes and tracks as it has rows: 600,000 took 48 s."""
    count = 500
    schema = TABLES["phases"]
    columns = {c.name: np.zeros(count, dtype=c.dtype) for c in schema.columns}
    numbers = np.arange(count)
    part = Table(schema, {**columns, "process_id": numbers, "track_id": numbers * 2})
    looked_at: list[int] = []
    take = Table.take
    monkeypatch.setattr(Table, "take", lambda table, index: looked_at.append(len(index)) or take(table, index))
    reinstated = Reinstated(StringPool())
    reinstated.add(0, part)
    tables = {name: Table.empty(TABLES[name]) for name in ("processes", "tracks", "losses")}
    reinstated.complete(tables)
    assert sum(looked_at) == count
    assert sorted(tables["processes"]["process_id"].tolist()) == numbers.tolist()
    owners = dict(zip(tables["tracks"]["track_id"].tolist(), tables["tracks"]["process_id"].tolist(), strict=True))
    assert owners == {2 * number: number for number in range(count)}


def test_workers_of_any_number_make_batches(store: Path) -> None:
    """Numbers of workers are identities, so they may be far apart; batches are still known by their index."""
    change(store, "batches", "worker_id", lambda old: [-HUGE, HUGE, *old[2:]])
    assert len(analyze(loaded(store), "stalls"))
