"""Tables and analyses as CSV, Parquet and Arrow, read back."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from builders import trace_from_text

from stashtrace.analysis.registry import analyze
from stashtrace.errors import StashtraceError, UsageError
from stashtrace.exporters.registry import export

TRACE = """
    rank 0 phase : FFBBOFFBBO
    rank 0 worker 0 io: bb.cc.....
"""


def test_csv_of_an_analysis(tmp_path: Path) -> None:
    trace = trace_from_text(TRACE)
    result = export(trace, "csv", tmp_path / "t.csv", table="stalls")
    expected = analyze(trace, "stalls")
    with result.path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [list(r.values()) for r in rows] == [[str(v) for v in r.values()] for r in expected.rows()]
    assert result.rows_count == len(expected)
    assert result.file_bytes == result.path.stat().st_size


@pytest.mark.parametrize("name", ["parquet", "arrow"])
def test_arrow_formats_keep_types(tmp_path: Path, name: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    trace = trace_from_text(TRACE)
    path = export(trace, name, tmp_path / "t", table="io").path
    if name == "parquet":
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(path)
    else:
        import pyarrow.feather

        table = pyarrow.feather.read_table(path)
    assert table.column_names == list(trace.io.columns)
    assert table.to_pydict() == {n: trace.io[n].tolist() for n in trace.io.columns}
    assert str(table.schema.field("begin_ns").type) == "int64"


def test_options_go_to_the_analysis(tmp_path: Path) -> None:
    trace = trace_from_text(TRACE)
    by_rank = export(trace, "csv", tmp_path / "t.csv", table="stalls", by="rank", warmup=True)
    assert by_rank.rows_count == len(analyze(trace, "stalls", by="rank", warmup=True))
    for table, wrong in (("io", {"by": "rank"}), ("stalls", {"window_ns": (0, 1)})):
        with pytest.raises(UsageError, match=f"no option '{next(iter(wrong))}'"):
            export(trace, "csv", tmp_path / "t.csv", table=table, **wrong)
    with pytest.raises(UsageError, match="no option 'colour'"):
        export(trace, "perfetto", tmp_path / "t.pftrace", colour="red")


def test_cut_by_rank_and_step(tmp_path: Path) -> None:
    trace = trace_from_text(TRACE.replace("rank 0 worker", "rank 1 phase : FFBBOFFBBO\n    rank 0 worker"))
    path = export(trace, "csv", tmp_path / "t.csv", ranks=[1], steps=(1, 2)).path
    with path.open(newline="") as file:
        assert {(r["rank"], r["step"]) for r in csv.DictReader(file)} == {("1", "1")}
    with pytest.raises(UsageError, match="no column rank"):
        export(trace, "csv", tmp_path / "t.csv", table="io", ranks=[1])
    with pytest.raises(StashtraceError, match="cannot write"):
        export(trace, "csv", tmp_path / "no" / "t.csv")
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]


def test_unknown_table_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        export(trace_from_text(TRACE), "csv", tmp_path / "t.csv", table="gpu")
    assert "io" in str(caught.value.hint)
    assert "stalls" in str(caught.value.hint)
