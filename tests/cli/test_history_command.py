"""``stashtrace history`` and ``run --history``: answers in each format, and one clear line where there is none."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from pathlib import Path

import pytest
from command_line import stashtrace
from made_up_history import Fleet, Job, fleet_with_three_plants, write_history

from stashtrace.cli import main
from stashtrace.cli.commands.history import BY, QUESTIONS, parser
from stashtrace.cli.synth import main as write_synthetic
from stashtrace.errors import MissingDataError, OutputError, UsageError
from stashtrace.lab.history import answers
from stashtrace.lab.history.questions.fleet import BY as BY_OF_FLEET

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("some runs") / "history"
    fleet = fleet_with_three_plants(1)
    write_history(folder, fleet)
    return folder


def said(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[str, str]:
    capsys.readouterr()
    assert main([*map(str, words)]) == 0
    out, err = capsys.readouterr()
    return out, err


def test_all_questions_in_sentences(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = said(capsys, "history", history)
    assert err == ""
    assert "60 runs of 2 jobs on 12 hosts" in out
    assert "node07 late in " in out
    assert "always by data: storage; the others wait" in out
    assert "0303030303 made `torchrun train.py` slower: the step went from " in out
    assert "checkpoints of `torchrun writer.py` made reads of `torchrun train.py` " in out
    assert "data: storage (batches wait for reads): " in out
    assert "USD" in out
    content = json.loads(said(capsys, "history", history, "--format", "json")[0])
    assert set(QUESTIONS) - {"runs"} < set(content)
    assert content["runs_count"] == 60
    assert content["hosts"]["rows"][0]["host"] == "node07"


@pytest.mark.parametrize("question", QUESTIONS)
def test_each_question_in_each_format(history: Path, question: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "history", history, question)[0]
    rows = json.loads(said(capsys, "history", history, question, "--format", "json")[0])
    table = list(csv.DictReader(io.StringIO(said(capsys, "history", history, question, "--format", "csv")[0])))
    assert len(rows) == len(table) > 0
    assert list(rows[0]) == list(table[0])
    assert "no rows" not in text


def test_the_fleet_by_each_group_and_with_given_prices(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs = {}
    for price in ("10", "20"):
        words = ("history", history, "fleet", "--by", "host", "--price", f"p4d.24xlarge={price}", "--format", "json")
        rows = json.loads(said(capsys, *words)[0])
        assert {row["group"] for row in rows} == {f"node{at:02d}" for at in range(12)}
        costs[price] = sum(row["cost"] for row in rows)
    assert costs["20"] == pytest.approx(2 * costs["10"])


def test_the_words_of_the_command_are_those_of_the_questions() -> None:
    """The command knows them before anything heavy is imported."""
    assert tuple(answers._QUESTIONS) == QUESTIONS
    assert BY_OF_FLEET == BY
    assert parser().parse_args(["x"]).limit == answers.DEFAULT_LIMIT


def test_page_and_picture(history: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, plot = tmp_path / "a page.html", tmp_path / "a plot.svg"
    said(capsys, "history", history, "--html", page, "--plot", plot)
    text = page.read_text()
    assert "node07 late in" in text
    assert "<script" not in text
    assert "http" not in text.split("<body>")[1]
    assert plot.read_text().lstrip().startswith("<svg")


def test_markdown_says_what_the_page_says(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, "history", history, "--format", "markdown")
    assert out.startswith("**node07 late in")
    assert "### Hosts that are late again and again\n\n" in out
    assert "| host | late in runs | runs | part |" in out


def test_names_from_outside_are_text_on_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_history(tmp_path / "h", Fleet(seed=1, runs=3, jobs=(Job(("<script>alert(1)</script>",)),)))
    said(capsys, "history", tmp_path / "h", "--html", tmp_path / "p.html")
    assert "<script" not in (tmp_path / "p.html").read_text()


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (("nowhere",), MissingDataError.exit_code, "error: nowhere does not exist"),
        (("HISTORY", "--format", "csv"), UsageError.exit_code, "error: CSV is of one table"),
        (("HISTORY", "weather"), UsageError.exit_code, "error: stashtrace history: argument QUESTION"),
        (("HISTORY", "--plot", "x.doc"), UsageError.exit_code, "error: x.doc: this plot ends in .svg"),
        (
            ("HISTORY", "--html", "no/such/folder.html"),
            OutputError.exit_code,
            "error: cannot write no/such/folder.html",
        ),
        (("HISTORY", "--add", "nowhere"), MissingDataError.exit_code, "error: nowhere does not exist"),
        (("HISTORY", "--since", "soon"), UsageError.exit_code, "error: --since soon"),
    ],
)
def test_one_line_where_there_is_no_answer(
    history: Path, words: tuple[str, ...], code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["history", *(word.replace("HISTORY", str(history)) for word in words)]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0].startswith(line)
    assert len([one for one in err.splitlines() if one]) == 2  # the error and its hint


def test_a_damaged_file_is_one_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_history(tmp_path, Fleet(seed=1, runs=3))
    name = min(os.listdir(tmp_path))
    (tmp_path / name).write_bytes(b"cut")
    out, err = said(capsys, "history", tmp_path, "runs")
    assert len(err.splitlines()) == 1
    assert err.startswith(f"warning: 1 file left out, damaged: {name} (")
    assert len(out.splitlines()) == 4


def test_a_run_is_added_at_its_end(tmp_path: Path) -> None:
    words = (
        "run",
        "--history",
        tmp_path / "h",
        "-o",
        tmp_path / "run",
        "--",
        sys.executable,
        "-c",
        "raise SystemExit(3)",
    )
    done = stashtrace(*words, cwd=tmp_path)
    assert (done.code, "Traceback" in done.err) == (3, False)
    (name,) = os.listdir(tmp_path / "h")
    assert f"added to the history {tmp_path / 'h'}: {name}" in done.err
    again = stashtrace("history", tmp_path / "h", "--add", tmp_path / "run")
    assert (again.code, again.out) == (0, "")
    assert "is in the history" in again.err
    rows = json.loads(stashtrace("history", tmp_path / "h", "runs", "--format", "json").out)
    assert [(row["exit_code"], row["steps_count"], row["hosts_count"]) for row in rows] == [(3, 0, 1)]


def test_a_run_behind_a_url_is_added(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    assert write_synthetic([str(tmp_path / "run"), "--ranks", "1", "--steps", "8", "--calls-per-batch", "6"]) == 0
    assert main(["history", str(tmp_path / "h"), "--add", f"file://{tmp_path / 'run'}"]) == 0
    assert len(os.listdir(tmp_path / "h")) == 1


def test_what_cannot_be_added_at_the_end_can_be_later(tmp_path: Path) -> None:
    """The folder is taken away while the job runs."""
    program = f"import shutil; shutil.rmtree({str(tmp_path / 'h')!r}); open({str(tmp_path / 'h')!r}, 'w').close()"
    words = ("run", "--history", tmp_path / "h", "-o", tmp_path / "run", "--", sys.executable, "-c", program)
    done = stashtrace(*words, cwd=tmp_path)
    assert done.code == 0
    assert f"error: cannot write {tmp_path / 'h'}" in done.err
    assert f"hint: the run is kept; `stashtrace history {tmp_path / 'h'} --add " in done.err
    (tmp_path / "h").unlink()
    assert stashtrace("history", tmp_path / "h", "--add", tmp_path / "run").code == 0
    assert len(os.listdir(tmp_path / "h")) == 1


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (("--history", "FILE/h"), OutputError.exit_code, "error: cannot write "),
        (("--history", "nowhere://x"), UsageError.exit_code, "error: nowhere://x "),
        (("--history", "h", "--no-merge"), UsageError.exit_code, "error: --history needs the merge"),
    ],
)
def test_the_job_is_not_started_for_nothing(tmp_path: Path, words: tuple[str, ...], code: int, line: str) -> None:
    (tmp_path / "file").write_text("mine")
    given = [word.replace("FILE", str(tmp_path / "file")) for word in words]
    done = stashtrace("run", *given, "--", "touch", tmp_path / "started", cwd=tmp_path)
    assert (done.code, done.err.startswith(line)) == (code, True)
    assert sorted(os.listdir(tmp_path)) == ["file"]
