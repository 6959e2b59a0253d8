"""What a new user types first and wrongly is answered by the command that was meant."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from stashtrace.cli import main
from stashtrace.cli.parsing import running_or_newest
from stashtrace.cli.synth import main as write_synthetic
from stashtrace.record.launchers import own_place


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with one run."""
    monkeypatch.chdir(tmp_path)
    assert write_synthetic(["stash-made", "--ranks", "2", "--steps", "6", "--calls-per-batch", "6"]) == 0
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Stderr of a command that refuses."""
    capsys.readouterr()
    assert main(list(words)) == 2
    answer = capsys.readouterr()
    assert answer.out == ""
    return answer.err


def test_a_run_where_the_name_of_an_analysis_belongs(capsys: pytest.CaptureFixture[str]) -> None:
    alone = said(capsys, "analyze", "stash-made")
    assert alone.startswith("error: stash-made is a run: the name of an analysis stands first\n")
    assert "`stashtrace analyze --help` lists the names" in alone
    assert "hint: `stashtrace analyze late stash-made`\n" in said(capsys, "analyze", "stash-made", "late")


@pytest.mark.parametrize(
    ("word", "example"),
    [
        *(("workers", "workers=8"), ("data", "data=x0.5"), ("straggler", "straggler=0"), ("bucket_mb", "bucket_mb=50")),
        *(("in_order", "in_order=false"), ("network.bandwidth", "network.bandwidth=x2")),
    ],
)
def test_a_quantity_without_a_value(capsys: pytest.CaptureFixture[str], word: str, example: str) -> None:
    answer = said(capsys, "whatif", "stash-made", word)
    assert answer == f"error: {word} needs a value\n\nhint: as in `stashtrace whatif RUN {example}`\n"


def test_a_file_that_is_named_as_a_quantity_is_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    Path("workers").mkdir()
    assert main(["whatif", "workers"]) == 4
    assert "needs a value" not in capsys.readouterr().err


def test_a_format_that_does_not_exist_is_said_before_the_file_that_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "no exporter named 'nosuch'" in said(capsys, "export", "nosuch", "stash-made")
    assert "hint: as in -o run.pftrace" in said(capsys, "export", "perfetto", "stash-made")
    swapped = said(capsys, "export", "stash-made", "perfetto", "-o", "x")
    assert "`stashtrace export perfetto stash-made -o FILE`" in swapped
    assert main(["export", "perfetto", "-o", "x.pftrace"]) == 0, "of the newest run"
    assert Path("x.pftrace").stat().st_size > 0


def test_layers_takes_the_newest_run(capsys: pytest.CaptureFixture[str]) -> None:
    main(["layers"])
    assert capsys.readouterr().err.startswith("run: ./stash-made, the newest here")


@pytest.mark.parametrize(
    ("words", "script", "near"),
    [
        ((sys.executable, "trian.py"), "trian.py", "train.py"),
        ((sys.executable, "-u", "-W", "ignore", "sub/nosuch.py", "train.py"), "sub/nosuch.py", ""),
        ((sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "nope.py"), "nope.py", ""),
    ],
)
def test_a_script_that_does_not_exist_leaves_no_run(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], script: str, near: str
) -> None:
    Path("train.py").write_text("")
    hint = f"did you mean `{near}`?" if near else f"it is looked for in {Path(script).absolute().parent}"
    assert said(capsys, "run", "--", *words) == f"error: script not found: {script}\n\nhint: {hint}\n"
    assert sorted(os.listdir()) == ["stash-made", "train.py"]


@pytest.mark.parametrize(
    ("program", "hint"),
    [
        ("trian.py", "did you mean `python train.py`?"),
        ("nosuch", "no folder of PATH has it; a program elsewhere is named with its path"),
    ],
)
def test_a_program_that_does_not_exist(capsys: pytest.CaptureFixture[str], program: str, hint: str) -> None:
    Path("train.py").write_text("")
    assert said(capsys, "run", "--", program) == f"error: command not found: {program}\n\nhint: {hint}\n"


def test_a_run_whose_name_is_mistyped(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "stash-maed"]) == 4
    assert capsys.readouterr().err == "error: stash-maed does not exist\n\nhint: did you mean stash-made?\n"


@pytest.mark.parametrize("was_there", [False, True])
def test_what_cannot_be_started_leaves_no_run_where_it_was_to_be(
    capsys: pytest.CaptureFixture[str], was_there: bool
) -> None:
    """So the next attempt, which names the same directory, is not refused."""
    Path("broken").write_text("\x7fELF")
    os.chmod("broken", 0o755)
    if was_there:
        Path("out").mkdir()
    for _ in range(2):
        assert main(["run", "--out", "out", "--", "./broken"]) == 3
        assert "cannot start ./broken" in capsys.readouterr().err
    assert (os.listdir("out") if was_there else Path("out").exists()) == ([] if was_there else False)


def test_live_takes_the_run_that_goes_on_whatever_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert running_or_newest() == "stash-made"
    now = time.time_ns()
    for name, pid in (("demo", os.getpid()), ("gone", 2**22 + 1)):
        Path(name).mkdir()
        facts = {"format": 1, "run_id": name, "launcher_pid": pid, "place": own_place(), "begin_realtime_ns": now}
        (Path(name) / "run.json").write_text(json.dumps(facts))
    capsys.readouterr()
    assert running_or_newest() == "demo"
    assert capsys.readouterr().err == "run: ./demo, which runs here\n"
