"""What a characterization makes of runs that fail, of caches that cannot be made cold, and when it is called again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stashtrace.analysis.compare.cpu_use import CpuUse
from stashtrace.analysis.steps.epochs import JobSamples
from stashtrace.cli import main
from stashtrace.errors import CaptureError, UsageError
from stashtrace.lab.characterize import five_configurations as session
from stashtrace.lab.characterize.answer import Characterization, RunInvalidError
from stashtrace.lab.characterize.five_configurations import DataStates, characterize
from stashtrace.lab.characterize.network import Shape
from stashtrace.lab.characterize.request import CharacterizationRequest
from stashtrace.lab.characterize.run_figures import Figures
from stashtrace.lab.characterize.run_on_hosts import HostTask, RunFailedError
from stashtrace.lab.job_files import file_set

COMMAND = ("torchrun", "--nproc-per-node", "2", "train.py")


class Runs:
    """In place of the runs: which were made, and what those whose names begin so say of themselves."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.tasks: dict[str, list[HostTask]] = {}
        self.failing: dict[str, str | BaseException] = {}
        #: CPUs that other programs use in runs whose names begin so: in each attempt, the last one from then on.
        self.others: dict[str, list[float]] = {}

    def run(self, tasks: Sequence[HostTask], directory: Path, *rest: Any, **more: Any) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.made.append(directory.name)
        self.tasks[directory.name] = list(tasks)
        for name, why in self.failing.items():
            if directory.name.startswith(name):
                raise why if isinstance(why, BaseException) else RunFailedError(why)

    def figures(self, directory: Path, warmup: int, iterations: int) -> Figures:
        ranks = 1 if "step1" in directory.name else 2
        attempt = self.made.count(directory.name) - 1
        used = [counts[min(attempt, len(counts) - 1)] for name, counts in self.others.items() if name in directory.name]
        others = max(used, default=0.1)
        return Figures(1e7, iterations, 0, ranks, 1, 0, cpus=CpuUse(others * 1e7, others, 0.0))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runs:
    made = Runs()
    (tmp_path / "data.bin").write_bytes(b"x" * 5000)
    files = file_set([tmp_path / "data.bin"])
    monkeypatch.setattr(session, "run_tasks", made.run)
    monkeypatch.setattr(session, "load_trace", lambda directory: directory)
    monkeypatch.setattr(session, "step_figures", made.figures)
    monkeypatch.setattr(session, "job_samples", lambda trace: JobSamples(32, 1000))
    monkeypatch.setattr(session, "synthetic_data", lambda trace: SimpleNamespace(complete=True, doubts=()))
    monkeypatch.setattr(
        DataStates, "from_trial", lambda *rest, drop_caches: DataStates(files, files, drop_caches=False)
    )
    monkeypatch.setattr(DataStates, "require_prepared_files", lambda *rest: None)
    monkeypatch.setattr(DataStates, "reread_note", lambda *rest: None)
    monkeypatch.chdir(tmp_path)
    return made


def measured(configurations: tuple[int, ...], repeats: int = 3, **more: Any) -> Characterization:
    request = CharacterizationRequest(
        COMMAND, Path("out"), configurations=configurations, repeats=repeats, iterations=20, **more
    )
    return characterize(request)


def test_a_configuration_that_failed_is_tried_again_by_the_next_call(runs: Runs) -> None:
    runs.failing = {"step2": "out of luck"}
    found = measured((1, 2))
    assert found.status(2) == ("failed", "out of luck")
    assert [name for name in runs.made if "step2" in name] == ["step2-0", "step2-1"], "two failures are enough"
    runs.failing, runs.made = {}, []
    assert measured((1, 2)).status(2) == ("measured", "")
    assert sorted(runs.made) == ["step2-0", "step2-1", "step2-2"], "and only what is missing is made"


def test_a_run_that_other_programs_disturbed_is_made_again(runs: Runs) -> None:
    runs.others = {"step2-1": [1.5, 0.12], "step1-0": [1.2, 0.9]}
    found = measured((1, 2), repeats=2)
    assert {name: runs.made.count(name) for name in runs.made} == {
        "look": 1,
        "step1-0": 2,
        "step1-1": 1,
        "step2-0": 1,
        "step2-1": 2,
    }
    said = sorted(note.partition(" of ")[0] for note in found.notes)
    assert said == [
        "configuration 1, run 1: other programs used 0.9",
        "configuration 2, run 2: made again, since other programs used 1.5",
    ]
    runs.made = []
    kept = measured((1, 2), repeats=2)
    assert runs.made == [], "what is measured stands"
    assert _others(kept) == _others(found)


def _others(found: Characterization) -> dict[str, float]:
    return {run.directory: run.figures.cpus.others_count for run in found.runs if run.figures and run.figures.cpus}


def test_samples_are_those_of_the_loaders_unless_they_are_said(runs: Runs) -> None:
    facts = measured((1, 2), repeats=1).facts
    assert (facts["batch_samples"], facts["epoch_samples"]) == (32, 1000)
    facts = measured((1, 2), repeats=1, batch_samples=8).facts
    assert (facts["batch_samples"], facts["epoch_samples"]) == (8, 1000)
    assert len(runs.made) == 3, "the runs are the same: a look and two steps"
    assert measured((1, 2), repeats=1).facts["batch_samples"] == 8


def test_synthetic_streams_end(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a job that validates before it trains, on a stream of unknown length, never trains."""
    measured((2, 4), repeats=1)
    (synthetic,), (real,) = runs.tasks["step2-0"], runs.tasks["step4-0"]
    assert synthetic.options.to_arguments() == ["--synthetic"]
    assert synthetic.environment["STASHTRACE_SYNTHETIC_EPOCH"] == "300"
    assert "STASHTRACE_SYNTHETIC_EPOCH" not in real.environment
    monkeypatch.setenv("STASHTRACE_SYNTHETIC_EPOCH", "7")
    measured((2,), repeats=2)
    assert runs.tasks["step2-1"][0].environment["STASHTRACE_SYNTHETIC_EPOCH"] == "7"


def test_after_a_job_that_did_not_run_the_same_directory_serves(runs: Runs) -> None:
    runs.failing = {"look": "ValueError: mine"}
    with pytest.raises(CaptureError, match="the job does not run as it is: ValueError: mine"):
        measured((2,))
    with pytest.raises(CaptureError, match="the job does not run as it is"):
        measured((2,))
    runs.failing = {}
    assert measured((2,), warmup=7).plan["warmup"] == 7, "nothing was measured of another plan"
    with pytest.raises(UsageError, match="another characterization"):
        measured((2,), warmup=8)


def test_a_host_that_cannot_be_used_leaves_the_other_configurations(runs: Runs) -> None:
    runs.failing = {"step5": CaptureError("cannot start ssh: No such file or directory")}
    found = measured((2, 5), hosts=("localhost", "b"))
    assert found.status(5) == ("failed", "cannot start ssh: No such file or directory")
    assert len(found.times_ns()[2]) == 3


def test_namespaces_that_fail_once_leave_the_other_configurations(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.Characterizer, "skip_unmeasurable", lambda self: None)

    def refused(shape: Shape) -> None:
        raise CaptureError("cannot make network namespaces: busy")

    monkeypatch.setattr(session, "emulated_hosts", refused)
    found = measured((2, 5), emulated=Shape(10**9))
    assert found.status(5)[0] == "failed"
    assert found.status(2)[0] == "measured"


def test_a_cache_that_cannot_be_made_cold_any_more(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured before stands, with fewer runs, and the reason is stated."""
    real = DataStates.prepare
    calls: list[str] = []

    def prepare(self: DataStates, state: str) -> Any:
        calls.append(state)
        found = real(self, "warm")
        verified = len(calls) == 1
        return SimpleNamespace(verified=verified, sentence="not verified as cold: x", state="warm", files=found.files)

    monkeypatch.setattr(DataStates, "prepare", prepare)
    monkeypatch.setattr(DataStates, "require_still_warm", lambda *rest: None)
    found = measured((3,))
    assert found.status(3) == ("measured", "")
    assert found.step_times()[3].runs_count == 1
    assert found.notes == ["configuration 3: run 2 and those after it were not made: not verified as cold: x"]


def test_a_run_that_read_other_files_has_failed(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [RunInvalidError("20 % of what the run read is in files that had not been made warm: /data/b")]

    def require_prepared_files(*rest: Any) -> None:
        if refusals:
            raise refusals.pop()

    monkeypatch.setattr(DataStates, "require_prepared_files", require_prepared_files)
    monkeypatch.setattr(DataStates, "reread_note", lambda *rest: "half of it was read again")
    found = measured((4,))
    assert [run.status for run in found.runs_of(4)] == ["failed", "measured", "measured"]
    assert found.notes == ["configuration 4: half of it was read again"]


@pytest.mark.parametrize(
    "words", [("--repeat", "0"), ("--iterations", "0"), ("--warmup", "-1"), ("--timeout", "0"), ("--timeout", "nan")]
)
def test_nothing_to_measure(runs: Runs, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["characterize", *words, "--", *COMMAND]) == 2
    assert "nothing would be measured" in capsys.readouterr().err
    assert runs.made == []


@pytest.mark.parametrize(("option", "file"), [("--plot", "nowhere/a.svg"), ("--html", "nowhere/a.html")])
def test_a_picture_that_has_no_place(runs: Runs, option: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["characterize", option, file, "--", *COMMAND]) == 3
    assert (
        f"cannot write {file}: no such folder\n\nhint: choose another file with {option}\n" in capsys.readouterr().err
    )
    assert runs.made == []


def test_a_file_in_place_of_the_folder(runs: Runs) -> None:
    Path("out").touch()
    with pytest.raises(UsageError, match="out is not a folder"):
        measured((2,))


def test_an_interruption_is_said_once(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    runs.failing = {"step2": KeyboardInterrupt()}
    assert main(["characterize", "--out", "out", "--steps", "1,2", "--", *COMMAND]) == 130
    said = capsys.readouterr().err
    assert said.count("interrupted") == 1
    assert "the same command goes on where this stopped" in said
