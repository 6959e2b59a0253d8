"""``stashtrace tune`` from the command line: a made-up job that it tunes, bad input, and a real run with settings."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stashtrace.cli import main
from stashtrace.lab.alternating import Job
from stashtrace.lab.synth import SyntheticJob, write
from stashtrace.lab.tune import run_job
from stashtrace.lab.tune.losses import Losses

Tune = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tune:
    """``tune(*words, losses=...)``, with made-up runs, whose step OMP_NUM_THREADS=1 alone makes shorter."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    count = [0]

    def record(job: Job, directory: Path) -> Path:
        count[0] += 1
        assert job.environment["STASHTRACE_LOSSES"] == "1"
        assert job.options[:2] == ("--until-step", "60")
        fast = job.environment.get("OMP_NUM_THREADS") == "1"
        spread = {"spread_ratio": 0.03, "run_spread_ratio": 0.007}
        work = {"forward_ns": 10_000_000, "backward_ns": 20_000_000} if fast else {}
        write(directory, SyntheticJob(ranks=1, workers=1, steps=60, calls_per_batch=0, seed=count[0], **spread, **work))
        return directory

    monkeypatch.setattr("stashtrace.lab.tune.run_job.record_job", record)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})

    def call(*words: object, losses: Callable[[int], Losses] = lambda number: {0: (1.0, 0.5)}) -> tuple[int, str, str]:
        monkeypatch.setattr("stashtrace.lab.tune.run_job.losses_of", lambda trace: losses(count[0]))
        code = main(["tune", *map(str, words)])
        answer = capsys.readouterr()
        return code, answer.out, answer.err

    return call


def test_what_helps_is_kept_and_made_permanent(tune: Tune) -> None:
    code, out, err = tune("--", "true", "a job")
    assert code == 0, err
    assert out.startswith("TUNED: the step went from 11")
    assert "with OMP_NUM_THREADS=1" in " ".join(out.split())
    assert "to make it permanent:\n  command:\n    OMP_NUM_THREADS=1 true 'a job'\n" in out
    assert all(len(line) <= 110 for line in out.splitlines())
    assert "OMP_NUM_THREADS=2: no better: saves" in err


def test_the_answer_for_programs(tune: Tune) -> None:
    code, out, _ = tune("--only", "OMP_NUM_THREADS", "--format", "json", "--", "true")
    document = json.loads(out)
    assert (code, document["settings"]) == (0, {"OMP_NUM_THREADS": "1"})
    assert document["together"]["saved_low_ns"] > 0
    kept = next(trial for trial in document["trials"] if trial["verdict"] == "kept")
    assert (kept["name"], kept["value"], kept["results"]) == ("OMP_NUM_THREADS", "1", "equal")
    assert document["runs_count"] >= sum(trial["runs_count"] for trial in document["trials"]) + 2


def test_nothing_is_kept(tune: Tune) -> None:
    code, out, _ = tune("--only", "cpu_affinity", "--", "true")
    assert code == 0
    assert out.startswith("NOTHING KEPT: 0 settings tried on a step of 11")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ((), 2, "no command to run"),
        (("--", "no-such-command"), 2, "command not found: no-such-command"),
        (("--only", "batch_size", "--", "true"), 2, "--only batch_size: no such setting"),
        (("--exact", "--losses", "distribution", "--", "true"), 2, "contradict each other"),
        (("--staged", "gone.list", "--", "true"), 4, "cannot read gone.list"),
        (("--only", "num_workers=many", "--", "true"), 2, "--only num_workers=many: no value of num_workers"),
        (("--only", "staged_files", "--", "true"), 2, "hint: --staged LIST names one"),
        (("--until-step", "3", "--", "true"), 2, "--until-step 3 is too few: the first 5 are warm-up"),
        (("--until-step", "many", "--", "true"), 2, "is not a whole number of at least 15"),
        (("-o", "file/x", "--", "true"), 3, "cannot make file/x: Not a directory"),
        (("-o", "in use", "--", "true"), 3, "in use exists and is not empty"),
    ],
)
def test_bad_input(tune: Tune, words: tuple[str, ...], code: int, text: str) -> None:
    Path("in use").mkdir()
    for file in (Path("file"), Path("in use/file")):
        file.write_text("mine")
    found, out, err = tune(*words)
    assert (found, out) == (code, "")
    assert text in err
    assert err.count("error: ") == 1
    assert sorted(map(str, Path().rglob("*"))) == ["file", "in use", "in use/file"]


def test_only_one_value_of_a_setting_is_tried(tune: Tune) -> None:
    code, out, _ = tune("--only", "OMP_NUM_THREADS=3", "--format", "json", "--", "true")
    assert code == 0
    assert [(trial["name"], trial["value"]) for trial in json.loads(out)["trials"]] == [("OMP_NUM_THREADS", "3")]


def test_too_few_rounds_say_what_they_cannot_decide(tune: Tune) -> None:
    _, out, _ = tune("--only", "OMP_NUM_THREADS=1", "--rounds", 1, "--", "true")
    assert "Fewer than 3 rounds do not show how much equal runs differ" in out
    _, out, _ = tune("--only", "OMP_NUM_THREADS=1", "-o", "more", "--", "true")
    assert "Fewer than" not in out


@pytest.mark.parametrize(
    ("signal", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)], ids=["Ctrl-C", "SIGTERM"]
)
def test_what_was_measured_is_shown_when_it_is_stopped(
    tune: Tune, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], signal: BaseException, code: int
) -> None:
    made, tried = run_job.record_job, []

    def record(job: Job, directory: Path) -> Path:
        tried.append(job.environment.get("OMP_NUM_THREADS"))
        if tried.count("3") == 2:
            raise signal
        return made(job, directory)

    monkeypatch.setattr(run_job, "record_job", record)
    words = "--only", "OMP_NUM_THREADS=1,OMP_NUM_THREADS=3,cpu_affinity=0;1", "--", "true"
    if code == 130:
        found, out, _ = tune(*words)
        assert found == code
    else:
        with pytest.raises(SystemExit, match=str(code)):
            tune(*words)
        out = capsys.readouterr().out
    text = " ".join(out.split())
    assert re.match(r"STOPPED after \d+ runs: best so far on a step of 11\d ms: OMP_NUM_THREADS=1 saves \d+ %", text)
    assert re.search(r"OMP_NUM_THREADS=3: stopped while it was tried; a step took [\d.]+ ms with it", text)
    assert "not judged" in text
    assert text.endswith("; not tried: cpu_affinity=0;1")


def test_a_job_that_is_not_deterministic(tune: Tune) -> None:
    code, out, err = tune("--losses", "equal", "--", "true", losses=lambda number: {0: (1.0, 0.5 + number)})
    assert (code, out) == (4, "")
    assert "error: two equal runs do not compute the same: the loss of backward pass 2 is 2.5 instead of 1.5" in err
    assert "hint: seed the job" in err


def test_a_job_without_losses(tune: Tune) -> None:
    code, _, err = tune("--", "true", losses=lambda number: {})
    assert (code, "no loss of the job was seen" in err) == (4, True)


def test_a_job_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tune", "-o", "runs", "--", sys.executable, "-c", "raise SystemExit('no data')"]) == 3
    err = capsys.readouterr().err
    assert "run-0 ended with exit code 1: " in err
    assert "runs/run-0.log" in err
