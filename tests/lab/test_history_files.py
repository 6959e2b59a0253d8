"""Files of a history: written once and never replaced, read with what is damaged, newer or twice left out and said."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from made_up_history import Fleet, Job, runs_of, write_history
from other_users import as_another_user, let_others_in

from stashtrace.errors import FormatError, MissingDataError, OutputError, UnsupportedVersionError, UsageError
from stashtrace.lab.history import run_files
from stashtrace.lab.history.gather import read_history
from stashtrace.lab.history.run_files import Place, file_name, parquet_bytes
from stashtrace.lab.history.run_totals import RunTotals
from stashtrace.lab.recommend.instance_catalog import load_catalog

parquet = pytest.importorskip("pyarrow.parquet")
FLEET = Fleet(seed=4, runs=7, jobs=(Job(("torchrun", "train.py")),))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_history(tmp_path / "a history", FLEET)
    return tmp_path / "a history"


def test_a_run_is_one_row_group(folder: Path) -> None:
    for file in folder.iterdir():
        assert parquet.ParquetFile(file).metadata.num_row_groups == 1


def test_nothing_is_ever_replaced(tmp_path: Path) -> None:
    place, (first, *_) = Place(str(tmp_path / "h")), runs_of(FLEET)
    name = place.add(first)
    assert name == file_name(first)
    content = (tmp_path / "h" / name).read_bytes()
    assert place.add(first) is None
    assert (tmp_path / "h" / name).read_bytes() == content
    first.add_fact("torch", "2.9")
    assert place.add(first) not in (None, name)
    assert sorted(os.listdir(tmp_path / "h"))[0].startswith("2026")
    assert len(os.listdir(tmp_path / "h")) == 2


def test_who_may_read_the_folder_may_read_the_runs(tmp_path: Path) -> None:
    (tmp_path / "h").mkdir()
    (tmp_path / "h").chmod(0o750)
    old = os.umask(0o077)
    try:
        name = Place(str(tmp_path / "h")).add(runs_of(FLEET)[0])
    finally:
        os.umask(old)
    assert name is not None
    assert stat.S_IMODE((tmp_path / "h" / name).stat().st_mode) == 0o640


@pytest.mark.parametrize("url", ["memory://{name}/history", "file://{path}/history"])
def test_urls_hold_the_same(tmp_path: Path, url: str, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("fsspec")
    text = url.format(name=request.node.name.replace("[", "-").replace(":", "-"), path=tmp_path)
    place = Place(text)
    with pytest.raises(MissingDataError):
        place.names()
    for run in runs_of(FLEET):
        assert place.add(run) == file_name(run)
        assert place.add(run) is None
    history = read_history(Place(text))
    assert history.files == [file_name(run) for run in runs_of(FLEET)]
    assert len(history.series([0], ("steps",))["steps"].rows) == 5


def test_what_is_damaged_is_left_out_and_said(folder: Path) -> None:
    names = sorted(os.listdir(folder))
    (folder / names[0]).write_bytes((folder / names[0]).read_bytes()[:500])
    (folder / names[1]).write_bytes(b"")
    (folder / names[2]).write_bytes(b"PAR1" + os.urandom(200) + b"PAR1")
    (folder / names[3]).write_bytes((folder / names[3]).read_bytes().replace(b"mean_ns", b"\xffean_ns"))
    history = read_history(Place(str(folder)))
    assert history.files == names[4:]
    (said,) = history.left_out
    assert said.startswith(f"4 files left out, damaged: {names[0]}, {names[1]} and 2 more (")


def test_rows_that_no_run_has_are_damage(folder: Path) -> None:
    import pyarrow

    names = sorted(os.listdir(folder))
    for name, column, value in ((names[0], "mean_ns", -5), (names[1], "rank", None), (names[2], "section", "fact")):
        table = parquet.read_table(folder / name)
        values = table[column].to_pylist()
        values[0] = value
        at = table.column_names.index(column)
        changed = pyarrow.array(values, table.schema.field(column).type)
        parquet.write_table(table.set_column(at, table.schema.field(column), changed), folder / name)
    other = parquet.read_table(folder / names[3]).drop_columns(["p99_ns"])
    parquet.write_table(other, folder / names[3])
    history = read_history(Place(str(folder)))
    assert history.files == names[4:]
    assert history.left_out[0].startswith("4 files left out, damaged: ")


def test_runs_of_a_newer_version_are_left_out_and_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = sorted(os.listdir(folder))
    monkeypatch.setattr(run_files, "VERSION", 2)
    run = runs_of(Fleet(seed=9, runs=1))[0]
    Place(str(folder)).add(run)
    monkeypatch.undo()
    history = read_history(Place(str(folder)))
    assert history.files == names
    assert history.left_out == (f"1 run left out, written by a newer stashtrace: {file_name(run)}",)


def test_a_history_of_a_newer_version_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_files, "VERSION", 3)
    write_history(tmp_path, FLEET)
    monkeypatch.undo()
    with pytest.raises(UnsupportedVersionError, match="is a history of version 3; this stashtrace reads version 1"):
        read_history(Place(str(tmp_path)))


@pytest.mark.parametrize("there", [False, True])
def test_an_empty_one_says_how_it_is_filled(tmp_path: Path, there: bool) -> None:
    if there:
        (tmp_path / "h").mkdir()
        (tmp_path / "h/notes.txt").write_text("mine")
    with pytest.raises(MissingDataError) as refused:
        read_history(Place(str(tmp_path / "h")))
    assert "run --history" in str(refused.value.hint)


def test_one_that_holds_nothing_usable(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"no")
    with pytest.raises(FormatError, match=r"holds no usable run: a\.parquet: "):
        read_history(Place(str(tmp_path)))


def test_copies_of_a_run_count_once(folder: Path) -> None:
    names = sorted(os.listdir(folder))
    (folder / "copy.parquet").write_bytes((folder / names[2]).read_bytes())
    more = runs_of(FLEET)[0]
    more.add("rank", host="node99", rank=99)  # the same run, merged again when its last host had ended
    Place(str(folder)).add(more)
    history = read_history(Place(str(folder)))
    assert len(history) == 7
    assert file_name(more) in history.files
    assert history.left_out == ("2 files left out: another file has the same run",)


def test_a_folder_that_is_closed(tmp_path: Path) -> None:
    """Root may write anywhere, so then it is another user."""
    let_others_in(tmp_path)
    tmp_path.chmod(0o555)

    def add() -> str:
        with pytest.raises(OutputError, match="permission denied") as refused:
            Place(str(tmp_path)).add(runs_of(FLEET)[0])
        return str(refused.value.hint)

    assert (add() if os.geteuid() else as_another_user(add)) == "choose another folder or URL with --history"
    assert list(tmp_path.iterdir()) == []


def test_a_bucket_that_refuses_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = pytest.importorskip("fsspec.implementations.memory")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("AccessDenied: s3:PutObject")

    monkeypatch.setattr(memory.MemoryFileSystem, "pipe_file", refuse)
    with pytest.raises(OutputError, match="cannot write to memory://closed: AccessDenied"):
        Place("memory://closed").add(runs_of(FLEET)[0])


def test_a_url_that_nobody_knows() -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(UsageError, match="nowhere://x"):
        Place("nowhere://x")


def test_a_cluster_reads_the_same(folder: Path) -> None:
    distributed = pytest.importorskip("distributed")
    done: list[int] = []
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        far = read_history(
            Place(str(folder)), cluster=cluster.scheduler_address, progress=lambda count, _: done.append(count)
        )
    near = read_history(Place(str(folder)))
    assert (far.files, done[-1]) == (near.files, 7)
    for section in run_files.SECTIONS:
        for name, values in near.section(section).items():
            assert values.tolist() == far.section(section)[name].tolist()


def test_runs_since_some_time(folder: Path) -> None:
    with pytest.raises(MissingDataError, match="is so new"):
        read_history(Place(str(folder)), since_hours=1e-6)
    assert len(read_history(Place(str(folder)), since_hours=1e6)) == 7


def test_parts_of_many_files_are_joined(tmp_path: Path) -> None:
    write_history(tmp_path, Fleet(seed=6, runs=150))
    history = read_history(Place(str(tmp_path)))
    assert history.files == sorted(os.listdir(tmp_path))
    totals = RunTotals(history, load_catalog())
    first, *_ = runs_of(Fleet(seed=6, runs=150))
    own = [row.mean_ns for row in first.rows if row.section == "kind" and row.name == "step"]
    assert totals.step_ns[0] == sum(own) / len(own)
    assert parquet_bytes(first) == (tmp_path / file_name(first)).read_bytes()


def test_series_of_a_file_that_changed_since(folder: Path) -> None:
    history = read_history(Place(str(folder)))
    table = parquet.read_table(folder / history.files[2])
    parquet.write_table(table.slice(0, 20), folder / history.files[2])
    with pytest.raises(FormatError, match=f"{history.files[2]} cannot be read again: it has other rows now"):
        history.series([0, 2], ("steps",))
    os.remove(folder / history.files[2])
    with pytest.raises(FormatError, match=f"{history.files[2]} cannot be read again: No such file"):
        history.series([2], ("steps",))


def test_columns_that_a_file_only_says_it_has(folder: Path) -> None:
    names = sorted(os.listdir(folder))
    file = parquet.ParquetFile(folder / names[0])
    reported = {key: text.decode() for key, text in file.metadata.metadata.items()}
    fewer = file.read().drop_columns(["value"])
    with parquet.ParquetWriter(folder / names[0], fewer.schema.remove_metadata(), store_schema=False) as writer:
        writer.write_table(fewer)
        writer.add_key_value_metadata(reported)
    history = read_history(Place(str(folder)))
    assert history.files == names[1:]
    assert "columns are not those of a history" in history.left_out[0]
