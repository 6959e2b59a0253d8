"""A run that lost rows still loads, merges, is analysed and exported: what is left is shown, what is lost counted."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import trace_processor
from everything import fault_of, faults_of_everything
from lost_rows import rows_of, stores_without, write_without
from trace_processor import TraceProcessor

from stashtrace.analysis.steps.steps import host_steps
from stashtrace.cli import main
from stashtrace.errors import DataLossWarning
from stashtrace.exporters.registry import export
from stashtrace.loading.load import load_trace
from stashtrace.schema.trace import Trace

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden" / "v1_devices" / "merged.stash"


def losses(trace: Trace) -> dict[str, int]:
    """Reason -> rows lost."""
    table = trace.losses
    found: dict[str, int] = {}
    for code, count in zip(table["name_code"].tolist(), table["lost_count"].tolist(), strict=True):
        found[trace.text(code)] = found.get(trace.text(code), 0) + count
    return found


def load(path: Path) -> Trace:
    """Load without the warning that something is missing, which is the point here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        return load_trace(path)


def faults(path: Path, folder: Path) -> list[str]:
    """What went wrong with everything that can be done with this run."""
    traces: list[Trace] = []
    fault = fault_of(lambda: traces.append(load(path)))
    return [f"load: {fault}"] if fault else [f for trace in traces for f in faults_of_everything(trace, folder)]


def test_the_golden_file_has_a_time_line(tmp_path: Path) -> None:
    trace = load(GOLDEN)
    unknown = np.flatnonzero(trace.tracks["name_code"] == trace.strings.find("unknown stream"))
    assert len(unknown) == 1
    assert (trace.kernels["track_id"] >= 0).all()
    assert (trace.device_brackets["track_id"] >= 0).all()
    placed = sum(int((trace.table(name)["track_id"] == unknown[0]).sum()) for name in ("kernels", "device_brackets"))
    thread = np.flatnonzero(trace.tracks["name_code"] == trace.strings.find("unknown thread"))
    placed += int((trace.collectives["track_id"] == thread[0]).sum())
    assert losses(trace)["track_unknown"] == placed == 2
    assert faults(GOLDEN, tmp_path) == []


@pytest.mark.skipif(bool(trace_processor.missing()), reason=trace_processor.missing() or "-")
def test_what_ran_on_an_unknown_stream_is_shown_under_its_process(tmp_path: Path) -> None:
    export(load(GOLDEN), "perfetto", tmp_path / "t.pftrace")
    tp = TraceProcessor.of(tmp_path / "t.pftrace")
    assert tp.errors() == []
    shown = tp.rows(
        "select distinct p.name from slice s join track t on s.track_id = t.id"
        " join process_track k on k.id = t.id join process p using (upid) where t.name = 'unknown stream'"
    )
    assert [name for (name,) in shown] == ["rank 000 · node01"]


def test_merge_writes_the_time_line_of_the_golden_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(GOLDEN, tmp_path / "node01.1.0.stash")
    assert main(["merge", str(tmp_path)]) == 0
    assert "bug in stashtrace" not in capsys.readouterr().err
    assert (tmp_path / "timeline.pftrace.gz").stat().st_size > 0


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(record, marks=[pytest.mark.thorough] * (number % 3 > 0))
        for number, record in enumerate(sorted(rows_of(GOLDEN)))
    ],
)
def test_a_file_without_a_record(record: str, tmp_path: Path) -> None:
    file = tmp_path / "node01.1.0.stash"
    write_without(GOLDEN, file, record, None)
    assert faults(file, tmp_path) == []


@pytest.mark.parametrize("record", ["string_part", "thread_info", "stream_info", "device_info"])
def test_a_file_without_a_row_that_others_refer_to(record: str, tmp_path: Path) -> None:
    file = tmp_path / "node01.1.0.stash"
    write_without(GOLDEN, file, record, 0)
    assert faults(file, tmp_path) == []


@pytest.mark.trust
@pytest.mark.parametrize("name", ["v1", "v1_devices"])
def test_a_file_without_any_single_row(name: str, tmp_path: Path) -> None:
    golden, file = GOLDEN.parents[1] / name / "merged.stash", tmp_path / "node01.1.0.stash"
    for record, count in rows_of(golden).items():
        for row in range(count):
            write_without(golden, file, record, row)
            assert faults(file, tmp_path) == [], f"{record} row {row}"


def test_a_store_that_lost_tracks_or_processes(tmp_path: Path) -> None:
    whole = load(GOLDEN)
    export(whole, "store", tmp_path / "store")
    _, of_each_kind = np.unique(whole.tracks["kind_code"], return_index=True)
    for table, rows in (("tracks", of_each_kind.tolist()), ("processes", [0])):
        for what, copy in stores_without(tmp_path / "store", tmp_path, {table: rows}):
            trace = load(copy)
            assert faults_of_everything(trace, tmp_path) == [], what
            for name in ("kernels", "device_brackets", "io", "phases", "spans"):
                assert len(trace.table(name)) == len(whole.table(name)), (what, name)
                assert trace.table(name)["track_id"].min() >= 0, (what, name)
            if table == "processes":
                assert losses(trace)["processes_lost"] == 1, what
                assert trace.ranks.tolist() == [0], what


def test_each_track_of_a_store_that_is_missed_is_counted(tmp_path: Path) -> None:
    whole = load(GOLDEN)
    export(whole, "store", tmp_path / "store")
    kept = {name: len(np.unique(whole.table(name)["track_id"])) for name in ("spans", "kernels")}
    shutil.rmtree(tmp_path / "store" / "tracks")
    trace = load(tmp_path / "store")
    assert {name: len(np.unique(trace.table(name)["track_id"])) for name in kept} == kept
    assert losses(trace)["tracks_lost"] == len(trace.tracks) > 0


@pytest.mark.trust
def test_a_store_without_any_single_row_or_file(tmp_path: Path) -> None:
    export(load(GOLDEN), "store", tmp_path / "store")
    for what, copy in stores_without(tmp_path / "store", tmp_path):
        assert faults(copy, tmp_path) == [], what


def test_a_store_that_lost_the_marks_of_a_rank_keeps_its_steps_on_the_hosts_clock(tmp_path: Path) -> None:
    whole = load(GOLDEN)
    export(whole, "store", tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "spans" / "rank=0")
    lost = host_steps(load(tmp_path / "store"))
    assert len(lost) == len(host_steps(whole)) > 0
    assert (lost["end_ns"] > lost["begin_ns"]).all()


def test_a_store_without_a_file_says_what_it_lacks(tmp_path: Path) -> None:
    whole = load(GOLDEN)
    export(whole, "store", tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "waits")
    assert losses(load(tmp_path / "store"))["rows_lost"] == len(whole.waits) > 0
