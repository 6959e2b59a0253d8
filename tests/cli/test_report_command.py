"""``stashtrace report``: where it writes, what it refuses, and how large the page of a large run is."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from stashtrace.cli import find_runs, main
from stashtrace.lab.synth import SyntheticJob, write
from stashtrace.text.units import bytes_of

#: A page for 1,024 ranks stays below this.
MOST_BYTES = 1_000_000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    write(folder, SyntheticJob(ranks=3, steps=12, calls_per_batch=60, late_rank=1, late_ns=40_000_000))
    return folder


def test_the_page_is_written_here_and_named(run: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(run)]) == 0
    said = capsys.readouterr()
    size = re.fullmatch(r"wrote report.html \((.*)\)\n", said.err)
    assert size, said.err
    assert said.out == ""
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "ranks 0,2 wait 40.0 ms" in text
    assert bytes_of(size[1].replace(" ", ""), "size") == pytest.approx(len(text.encode()), rel=0.01)


def test_an_older_page_is_replaced_whole(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "p.html"
    page.write_text("old" * 1_000_000)
    assert main(["report", str(run), "-o", str(page)]) == 0
    assert page.read_text(encoding="utf-8").endswith("</html>\n")
    assert os.listdir(tmp_path) == ["p.html"]


def test_markdown_goes_to_stdout_or_to_a_file(run: Path, tmp_path: Path, capsys) -> None:
    assert main(["report", str(run), "--format", "markdown"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"## Where the time of run `{run}` went\n")
    assert said.err == ""
    assert main(["report", str(run), "--format", "markdown", "-o", str(tmp_path / "r.md")]) == 0
    assert (tmp_path / "r.md").read_text(encoding="utf-8") == said.out


@pytest.mark.parametrize("format_name", ["html", "markdown"])
def test_a_folder_is_refused_before_anything_is_read(tmp_path: Path, capsys, format_name: str) -> None:
    (tmp_path / "run").mkdir()  # which would be refused as well
    assert main(["report", str(tmp_path / "run"), "-o", str(tmp_path), "--format", format_name]) == 3
    name = "report.html" if format_name == "html" else "report.md"
    error = f"error: cannot write {tmp_path}: it is a folder\n\nhint: name a file in it: -o {tmp_path / name}\n"
    assert capsys.readouterr().err == error


def test_a_file_that_cannot_be_written_is_one_line(run: Path, tmp_path: Path, capsys) -> None:
    assert main(["report", str(run), "-o", str(tmp_path / "none" / "p.html")]) == 3
    error = capsys.readouterr().err
    assert error.startswith(f"error: cannot write {tmp_path / 'none' / 'p.html'}: no such folder\n")
    assert "hint: choose another file with -o" in error
    assert main(["report", str(run), "-o", "/dev/null"]) == 3
    assert "it is a device or a pipe" in capsys.readouterr().err


def test_a_calibration_that_is_none_is_refused_first(run: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    def nothing_is_read(*_: object, **__: object) -> None:
        raise AssertionError("the run was read")

    monkeypatch.setattr(find_runs, "read_runs", nothing_is_read)
    for name, words in (("none.toml", None), ("bad.toml", "x = [")):
        path = tmp_path / name
        if words:
            path.write_text(words)
        assert main(["report", str(run), "--calibration", str(path), "-o", str(tmp_path / "p.html")]) == 4
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert name in error
        assert "stashtrace calibrate" in error


def test_a_run_that_is_not_there_is_one_line(tmp_path: Path, capsys) -> None:
    assert main(["report", str(tmp_path / "nothing"), "-o", str(tmp_path / "p.html")]) == 4
    assert "does not exist" in capsys.readouterr().err
    assert not (tmp_path / "p.html").exists()


def test_a_run_without_steps_has_a_page_that_says_why(tmp_path: Path, capsys) -> None:
    path = tmp_path / "trace.json"
    event = {"ph": "X", "name": "gemm", "cat": "kernel", "ts": 10, "dur": 5, "pid": 0, "tid": 7, "args": {"device": 0}}
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    assert main(["report", str(path), "-o", str(tmp_path / "p.html")]) == 0
    said = capsys.readouterr().err
    page = (tmp_path / "p.html").read_text(encoding="utf-8")
    if "no budget" in said:
        assert "no rank has a step, so there is no budget to show: " in said
        assert "so there is no budget to show" in page
    else:  # the importer makes one step of a recording without marks, and says so
        assert "no step is marked" in page


@pytest.mark.parametrize(("ranks", "late"), [(80, 70), pytest.param(1024, 700, marks=pytest.mark.thorough)])
def test_a_page_of_many_ranks_is_small(tmp_path: Path, ranks: int, late: int) -> None:
    job = SyntheticJob(ranks=ranks, workers=0, steps=4, calls_per_batch=0, late_rank=late, late_ns=30_000_000)
    write(tmp_path / "run", job)
    assert main(["report", str(tmp_path / "run"), "-o", str(tmp_path / "p.html")]) == 0
    page = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert len(page.encode()) < MOST_BYTES
    assert f"rank {late} was late: it computed 30.0 ms longer than the median of the others in backward" in page
    facts = json.loads(page.partition('id="facts">')[2].partition("</script>")[0])
    assert len(facts["budget"]["by_rank"]["rank"]) == ranks
    assert facts["heat"]["ranks"][0] == str(late)
    assert {(g["ranks_count"], g["mixed"]) for g in facts["budget"]["groups"]} == {(ranks - 1, False), (1, False)}
