"""What every importer relies on: files found and recognised, tables joined, times from the first on, damage named."""

from __future__ import annotations

import gzip
import json
import warnings
from pathlib import Path

import numpy as np
import pytest

import stashtrace
from stashtrace.errors import DataLossWarning, ImporterError, UsageError
from stashtrace.importers import registry
from stashtrace.importers.import_context import ImportContext
from stashtrace.importers.source import Source
from stashtrace.loading import foreign
from stashtrace.schema.kinds import DeviceWork
from stashtrace.schema.strings import StringPool

EPOCH_NS = 1_700_000_000_000_000_000


class Lines:
    """A format of the tests: one line a kernel, ``rank begin end name``."""

    @staticmethod
    def sniff(head: bytes, path: Path) -> bool:
        return head.startswith(b"#lines")

    @staticmethod
    def load(source: Source, context: ImportContext) -> None:
        with source.open() as stream:
            for line in stream.read().decode().splitlines()[1:]:
                parts = line.split()
                if len(parts) != 4:
                    raise ImporterError(f"{source.path} has a line of {len(parts)} words")
                process = context.process(pid=10 + int(parts[0]), rank=int(parts[0]), world_size=4)
                context.add(
                    "kernels",
                    begin_ns=np.array([EPOCH_NS + int(parts[1])]),
                    end_ns=np.array([EPOCH_NS + int(parts[2])]),
                    process_id=process,
                    track_id=context.tracks.stream(process, 7, "stream 7"),
                    name_code=context.code(parts[3]),
                    work_code=int(DeviceWork.KERNEL),
                )


@pytest.fixture(autouse=True)
def lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "importers", lambda: iter([("lines", Lines)]))


def _write(path: Path, *lines: str) -> Path:
    text = "\n".join(["#lines", *lines]) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def test_folder_becomes_one_trace(tmp_path: Path) -> None:
    _write(tmp_path / "b.txt.gz", "1 200 900 late")
    _write(tmp_path / "a.txt", "0 100 300 early", "0 300 400 next")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace = stashtrace.load(tmp_path)
    kernels = trace.kernels
    assert kernels["begin_ns"].tolist() == [0, 100, 200]  # from the first on
    assert kernels["end_ns"].tolist() == [200, 800, 300]
    assert kernels["rank"].tolist() == [0, 1, 0]  # of the process
    assert kernels["launch_ns"].tolist() == [-1, -1, -1]  # nobody said it
    assert [trace.text(c) for c in kernels["name_code"]] == ["early", "late", "next"]
    assert trace.processes["rank"].tolist() == [0, 1]
    assert trace.processes["end_ns"].tolist() == [300, 800]
    said = {trace.text(r["key_code"]): trace.text(r["value_code"]) for r in trace.metadata.rows()}
    assert said["origin_realtime_ns"] == str(EPOCH_NS + 100)
    assert said["imported"] == "2 lines"


def test_missing_ranks_are_reported(tmp_path: Path) -> None:
    trace = stashtrace.load(_write(tmp_path / "a.txt", "0 1 2 k", "2 1 2 k"))
    advice = {trace.text(r["name_code"]): trace.text(r["advice_code"]) for r in trace.losses.rows()}
    assert "no file of ranks 1,3 of 4" in advice["missing_ranks"]


def test_broken_file_costs_its_rows(tmp_path: Path) -> None:
    _write(tmp_path / "good.txt", "0 1 2 k")
    _write(tmp_path / "half.txt", "1 1 2 k", "1 3")
    with pytest.warns(DataLossWarning, match="unreadable_file"):
        trace = stashtrace.load(tmp_path)
    assert trace.kernels["rank"].tolist() == [0]
    with pytest.raises(ImporterError, match="line of 2 words"):
        stashtrace.load(tmp_path, strict=True)


def test_cut_gzip_of_several(tmp_path: Path) -> None:
    _write(tmp_path / "good.txt", "0 1 2 k")
    cut = _write(tmp_path / "cut.txt.gz", *(f"1 {n} {n + 1} k{n}" for n in range(1000)))
    cut.write_bytes(cut.read_bytes()[:-400])
    with pytest.warns(DataLossWarning):
        trace = stashtrace.load(tmp_path)
    assert 0 in trace.kernels["rank"].tolist()


def test_unknown_file(tmp_path: Path) -> None:
    path = tmp_path / "holiday.json"
    path.write_text(json.dumps({"beach": True}))
    with pytest.raises(ImporterError, match=r"holiday\.json is not a trace that stashtrace knows") as caught:
        stashtrace.load(path)
    assert caught.value.hint


def test_unknown_file_next_to_known_ones_is_no_loss(tmp_path: Path) -> None:
    _write(tmp_path / "a.txt", "0 1 2 k", "1 1 2 k", "2 1 2 k", "3 1 2 k")
    (tmp_path / "holiday.json").write_text("{}")
    (tmp_path / "README.md").write_text("notes")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace = stashtrace.load(tmp_path)
    assert [trace.text(c) for c in trace.losses["name_code"]] == ["file_not_recognised"]


def test_rank_claimed_twice(tmp_path: Path) -> None:
    context = ImportContext(StringPool())
    context.begin("lines", "a")
    first = context.process(pid=1, rank=0)
    assert context.process(pid=1, rank=0) == first
    assert context.process(pid=2, rank=0) != first
    foreign.note_ranks(context)
    assert [row[1][1] for row in context.losses] == ["rank_seen_twice"]


def test_ranks_and_tables_chosen(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.txt", "0 1 2 k", "1 1 2 m")
    trace = stashtrace.load(path, ranks=[1])
    assert trace.kernels["rank"].tolist() == [1]
    assert len(stashtrace.load(path, tables=["spans"]).kernels) == 0
    with pytest.raises(UsageError, match="no such rank: 5"):
        stashtrace.load(path, ranks=[5])


def test_progress_counts_what_is_read(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.txt", "0 1 2 k")
    seen: list[tuple[int, int, str]] = []
    stashtrace.load(path, progress=lambda done, total, name: seen.append((done, total, name)))
    assert seen[-1] == (path.stat().st_size, path.stat().st_size, "a.txt")


def test_keys_of_several_adds_go_on(tmp_path: Path) -> None:
    context = ImportContext(StringPool())
    context.begin("lines", "a")
    process = context.process(pid=1, rank=0)
    for _ in range(2):
        context.add("collectives", process_id=process, call_ns=np.arange(3), end_ns=np.arange(3) + 1)
    assert context.take().collectives["collective_key"].tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(ValueError, match="no column"):
        context.add("kernels", banana=1)
