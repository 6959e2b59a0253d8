"""Queries of traces by DuckDB: what is computed, what they may do, and what the answer to a wrong one is."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import stashtrace
from stashtrace.analysis.registry import ANALYSES
from stashtrace.analysis.registry import analyze as real_analyze
from stashtrace.cli.synth import main as write_synthetic
from stashtrace.errors import MissingDataError, StashtraceError, UsageError
from stashtrace.schema.events import TABLES
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.sql import query, query_names
from stashtrace.sql.query import StoreRun, run_labels

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks."""
    folder = tmp_path_factory.mktemp("made") / "run"
    assert write_synthetic([str(folder), "--ranks", "2", "--steps", "6"]) == 0
    return folder


@pytest.fixture(scope="module")
def trace(folder: Path) -> Trace:
    return stashtrace.load(str(folder))


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the analyses that queries compute, in their order."""
    names: list[str] = []

    def noted(trace: Trace, name: str) -> Table:
        names.append(name)
        return real_analyze(trace, name)

    monkeypatch.setattr(query_names, "analyze", noted)
    return names


def test_sums_are_those_of_numpy(trace: Trace) -> None:
    stalls = real_analyze(trace, "stalls")
    rows = trace.sql("select rank, sum(stall_ns) from stalls where kind = 'fetch' group by rank order by rank")
    expected = [
        (rank, int(stalls["stall_ns"][(stalls["rank"] == rank) & (stalls["kind"] == "fetch")].sum())) for rank in (0, 1)
    ]
    assert rows.fetchall() == expected
    assert min(total for _, total in expected) > 0
    (count, paths) = trace.sql("select count(*), count(distinct path) from io where op = 'read'").fetchall()[0]
    reads = trace.io["op_code"] == 1
    assert (count, paths) == (reads.sum(), len(np.unique(trace.io["path_code"][reads])))


def test_only_what_a_query_names_is_computed_and_only_once(folder: Path, computed: list[str]) -> None:
    trace = stashtrace.load(str(folder))
    trace.sql("select 1 as steps").fetchall()
    trace.sql("with stalls as (select 1) select * from stalls").fetchall()
    assert computed == []
    for _ in range(2):
        trace.sql("select count(*) from steps join stalls using (rank, step)").fetchall()
    assert sorted(computed) == ["stalls", "steps"]
    trace.sql("summarize findings").fetchall()
    trace.sql("explain select * from (from Budgets)").fetchall()
    assert computed[2:] == ["findings", "budgets"]


def test_a_trace_that_was_asked_is_freed_and_can_be_pickled(folder: Path) -> None:
    import weakref

    trace = stashtrace.load(str(folder))
    assert trace.sql("select count(*) from steps").fetchall() == [(12,)]
    assert pickle.loads(pickle.dumps(trace)).sql("select count(*) from steps").fetchall() == [(12,)]
    gone = weakref.ref(trace)
    del trace
    assert gone() is None, "what is kept with a trace must not refer to it"


def test_each_name_can_be_used_without_quotes(trace: Trace) -> None:
    """No table or analysis has the name of a keyword; an analysis may lack data, but is found."""
    for name in query_names.catalog():
        try:
            trace.sql(f"select count(*) from {name}").fetchall()
        except MissingDataError:
            assert name not in TABLES


def test_tables_come_before_analyses_of_the_same_name(trace: Trace) -> None:
    both = set(TABLES) & {name for name, _, _ in ANALYSES}
    assert both == {"io", "kernels", "collectives", "stacks"}
    names = query_names.catalog()
    for name in both:
        assert not names[name].is_analysis
        assert names[f"{name}_analysis"].source == name
    assert trace.sql("select count(*) from io").fetchall() == [(len(trace.io),)]
    files = real_analyze(trace, "io")
    assert trace.sql("select count(*) from io_analysis").fetchall() == [(len(files),)]
    assert len(files) < len(trace.io)


def test_show_tables_lists_every_name_and_describe_its_columns(trace: Trace) -> None:
    listed = trace.sql("SHOW TABLES;").fetchall()
    assert [name for name, _, _ in listed] == [named.name for named in query_names.catalog().values()]
    assert all(meaning for _, _, meaning in listed)
    rows = {row[0]: row[1:] for row in trace.sql("describe stalls").fetchall()}
    assert rows["stall_ns"] == ("integer", "ns", "time of this kind; the kinds of a step sum to its wall time")
    assert list(rows) == list(trace.sql("from stalls").columns)


def test_several_runs_have_a_column_of_their_names(trace: Trace) -> None:
    relation = trace.sql("select run, count(*) from steps group by run order by run", trace)
    assert relation.fetchall() == [(trace.path, 12), (f"{trace.path}#2", 12)]
    assert trace.sql("describe steps", trace).fetchall()[0][0] == "run"
    with pytest.raises(MissingDataError, match=f"^{trace.path}: no kernel"):
        trace.sql("from breakdown", trace)


def test_run_labels() -> None:
    assert run_labels(["a/x", "a/y/"]) == ["x", "y"]
    assert run_labels(["a/x", "b/x", "c"]) == ["a/x", "b/x", "c"]
    assert run_labels(["a/x", "a/x"]) == ["a/x", "a/x#2"]
    assert run_labels(["", ""]) == ["run", "run#2"]
    assert run_labels(["it's"]) == ["it's"]


def test_a_run_of_any_name_can_be_asked(trace: Trace) -> None:
    named = Trace(trace.strings, {"processes": trace.processes}, path="/x/it's; drop\"")
    assert set(named.sql("select run from processes", trace).fetchall()) == {("it's; drop\"",), ("run",)}


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("select * from stpes", "no table or analysis is called 'stpes'", "'steps'"),
        ("select * from nowhere.steps", "the query is wrong", "--tables"),
        ("select rnk from steps", "no column is called 'rnk'", "'rank'"),
        ("select steps.rnk from steps", "no column is called 'rnk'", "'rank'"),
        ("select qqqqqqq from steps", "no column is called 'qqqqqqq'", "describe steps"),
        ("selec 1", "the query is wrong: syntax error", "--tables"),
        ("", "the query is empty", "select rank"),
        ("-- nothing", "the query is empty", "select rank"),
        ("select 1; select 2", "2 statements", "apart"),
        ("set enable_external_access = true", "this is SET", "select"),
        ("create table a as select 1", "this is CREATE", "select"),
        ("drop view steps", "this is DROP", "select"),
        ("copy (select 1) to 'written.csv'", "this is COPY", "select"),
        ("attach 'written.db'", "this is ATTACH", "select"),
        ("install httpfs", "this is LOAD", "select"),
        ("select * from read_csv('/etc/passwd')", "no files and no network", "--format csv"),
        ("select * from read_text('/etc/passwd')", "no files and no network", "--format csv"),
        ("select * from read_parquet('https://example.com/a.parquet')", "no files and no network", "--format csv"),
        ("select * from glob('/*')", "no files and no network", "--format csv"),
        ("select * from '/etc/passwd'", "no table or analysis is called '/etc/passwd'", "--tables"),
        ("select * from trace", "no table or analysis is called 'trace'", ""),
    ],
)
def test_a_wrong_query_gets_one_line_and_a_hint(
    trace: Trace, text: str, message: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        trace.sql(text).fetchall()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert hint in (caught.value.hint or "")
    assert list(tmp_path.iterdir()) == []


def test_the_database_itself_refuses_files_and_its_settings(trace: Trace, tmp_path: Path) -> None:
    """In addition to the check of statements: a relation can be written too."""
    import duckdb

    target = tmp_path / "a.csv"
    with pytest.raises(duckdb.PermissionException):
        trace.sql("select 1").write_csv(str(target))
    assert not target.exists()
    connection = query.Database([""])._connection
    settings = dict(connection.sql("select name, value from duckdb_settings()").fetchall())
    assert settings["enable_external_access"] == "false"
    assert settings["lock_configuration"] == "true"
    assert settings["temp_directory"] == ""
    with pytest.raises(duckdb.Error):
        connection.execute("set enable_external_access = true")


def test_without_duckdb_one_line_says_what_to_install(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "find_spec", lambda name: None)
    with pytest.raises(StashtraceError, match="SQL needs duckdb") as caught:
        query.Database([""])
    assert "stashtrace[sql]" in (caught.value.hint or "")


def test_a_plugin_that_needs_parameters_says_so(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    def needy(trace: Trace, size: int) -> Table:
        raise AssertionError(size)

    monkeypatch.setattr(query_names, "find", lambda name: needy)
    with pytest.raises(UsageError, match="needs size"):
        trace.sql("from pipeline")


def test_no_analysis_of_ours_needs_parameters() -> None:
    assert {
        name: query_names._needed_parameters(name) for name, _, _ in ANALYSES if query_names._needed_parameters(name)
    } == {}


def test_a_store_is_read_by_table(folder: Path, trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stashtrace.sql import query as query_of_runs

    store = tmp_path / "store"
    stashtrace.export(trace, "store", store)
    asked: list[object] = []
    real = query_of_runs.load_trace

    def noted(path: str, **options: object) -> Trace:
        asked.append(options.get("tables"))
        return real(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(query_of_runs, "load_trace", noted)
    database, run = query.Database([""]), StoreRun(str(store))
    text = "select path, op, count(*) from io group by all order by all"
    assert database.rows(database.relation(text, [run])) == trace.sql(text).fetchall()
    assert asked == [{"io", "tracks"}]
    text = "select rank, count(*) from collectives join collective_waits using (collective_key) group by 1 order by 1"
    assert database.rows(database.relation(text, [run])) == trace.sql(text).fetchall()
    text = "select rank, kind, sum(stall_ns) from stalls group by all order by all"
    assert database.rows(database.relation(text, [run])) == trace.sql(text).fetchall()
