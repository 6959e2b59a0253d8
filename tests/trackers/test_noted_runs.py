"""A job begins a run of a tracker: what is noted of it, and what `stashtrace log` puts into that run.

The trackers are doubles that hold what the probes read, each where the real package has it: wandb 0.31.0 Run.id,
project, entity and settings.{mode,root_dir,base_url} (sdk/wandb_run.py, sdk/wandb_settings.py); mlflow 3.17.2
ActiveRun.info.run_id (entities/run_info.py) and get_tracking_uri (tracking/_tracking_service/utils.py); torch's and
tensorboardX' SummaryWriter.log_dir (torch/utils/tensorboard/writer.py); trackio 0.43.0 Run.project, name, _space_id
(run.py).
test_real_trackers.py does the same with the packages themselves.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from traced import run_traced

from stashtrace.analysis.steps.steps import counted_steps, steps
from stashtrace.cli import main
from stashtrace.trackers.answers import noted_run

DOUBLES = {
    "wandb": """
import json, os, types
Settings = lambda **given: given
class Artifact:
    def __init__(self, name, type): self.name, self.files = name, []
    def add_file(self, path): self.files.append(open(path).read()[:15])
class Run:
    id, project, entity = "r1", "demo", None
    settings = types.SimpleNamespace(mode="offline", root_dir="/somewhere", base_url="https://api.example")
    summary = {}
    def log_artifact(self, artifact): self.artifact = artifact
    def finish(self):
        if "TRACKER_TOOK" in os.environ:
            told = {"given": self.given, "summary": self.summary, "files": self.artifact.files}
            json.dump(told, open(os.environ["TRACKER_TOOK"], "w"))
def init(**given):
    if os.environ.get("TRACKER_IS_DOWN"):
        raise ConnectionError("no answer\\nfrom the server")
    print("a greeting")
    run = Run()
    run.given = {k: v for k, v in given.items() if k != "settings"}
    return run
""",
    "mlflow/__init__.py": """
import types
from mlflow.tracking.fluent import start_run
get_tracking_uri = lambda: "relative/mlruns"
""",
    "mlflow/tracking/__init__.py": "",
    "mlflow/tracking/fluent.py": """
import types
def start_run(**given):
    return types.SimpleNamespace(info=types.SimpleNamespace(run_id="m1"))
""",
    "tensorboardX/__init__.py": "from tensorboardX.writer import SummaryWriter",
    "tensorboardX/writer.py": """
class SummaryWriter:
    def __init__(self, logdir): self.logdir = self.log_dir = logdir
""",
    "trackio": """
import types
init = lambda project, **given: types.SimpleNamespace(project=project, name="bright-sun-0", _space_id=None)
""",
}
JOB = """
    import os
    import wandb, mlflow, tensorboardX, trackio, stashtrace
    if os.environ.get("RANK") == "0":
        wandb.init(project="demo")
        mlflow.start_run()
        for folder in ("first", "second"):
            tensorboardX.SummaryWriter(folder)
        trackio.init("demo")
    else:
        wandb.Run.id = "of another rank"
        wandb.init(project="demo")
    for _ in range(30):
        sum(range(20_000))
        stashtrace.step()
"""


@pytest.fixture(scope="module")
def doubles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    for name, text in DOUBLES.items():
        path = folder / (name if name.endswith(".py") else name + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture(scope="module")
def run(doubles: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording of a job of two ranks."""
    made = run_traced(JOB, tmp_path_factory.mktemp("job") / "run", ranks=2, env={"PYTHONPATH": str(doubles)})
    assert made.exit_codes == [0, 0], made.stderr
    return made


def test_the_runs_of_rank_0_are_noted(run) -> None:
    folder = noted_run(run.trace, "tensorboard")["log_dir"]
    assert os.path.isabs(folder)
    assert folder.endswith("/second"), "the newest"
    assert noted_run(run.trace, "wandb") == {
        "id": "r1",
        "project": "demo",
        "entity": "",
        "mode": "offline",
        "dir": "/somewhere",
        "base_url": "https://api.example",
    }
    mlflow = noted_run(run.trace, "mlflow")
    assert mlflow["id"] == "m1"
    assert mlflow["tracking_uri"] == os.path.join(os.path.dirname(folder), "relative/mlruns")
    assert noted_run(run.trace, "trackio") == {"project": "demo", "name": "bright-sun-0", "space_id": ""}
    assert noted_run(run.trace, "comet") is None


def log(run, doubles: Path, *words: str, **variables: str) -> subprocess.CompletedProcess:
    code = "import sys; from stashtrace.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "log", str(run.directory), *words]
    root = str(Path(__file__).resolve().parents[2])
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join((str(doubles), root)), **variables)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_the_answers_are_logged(run, doubles: Path, tmp_path: Path) -> None:
    done = log(run, doubles, "--to", "wandb", TRACKER_TOOK=str(tmp_path / "took"))
    assert (done.returncode, done.stdout) == (0, ""), "what a tracker prints is swallowed"
    assert done.stderr == "logged to wandb run demo/r1\n"
    took = json.loads((tmp_path / "took").read_text())
    assert {k: took["given"][k] for k in ("id", "project", "mode", "resume")} == {
        "id": "r1",
        "project": "demo",
        "mode": "offline",
        "resume": "allow",
    }
    assert took["files"] == ["<!doctype html>"]
    summary = took["summary"]
    ratios = [value for name, value in summary.items() if name.endswith("_ratio") and "own_cpu" not in name]
    assert sum(ratios) == pytest.approx(1.0, rel=1e-12)
    known = counted_steps(steps(run.trace))
    step_ns = (known["end_ns"] - known["begin_ns"]).mean()
    assert summary["stashtrace/step_s"] == pytest.approx(step_ns / 1e9, rel=1e-12), "of all columns, and not rounded"
    assert summary["stashtrace/ranks_count"] == 2
    assert summary["stashtrace/steps_count"] <= 30
    assert summary["stashtrace/straggler_rank"] == -1
    assert summary["stashtrace/headline"]


def test_a_tracker_that_is_down_is_one_line(run, doubles: Path) -> None:
    done = log(run, doubles, "--to", "wandb", TRACKER_IS_DOWN="1")
    assert done.returncode == 3
    said, _, hint = done.stderr.partition("\n\nhint: ")
    assert said == "error: wandb did not take the answers: ConnectionError: no answer"
    assert hint.startswith("`stashtrace log ")


def test_a_run_without_a_tracker(tmp_path: Path, doubles: Path) -> None:
    bare = run_traced("import stashtrace\nfor _ in range(12): stashtrace.step()", tmp_path / "bare")
    done = log(bare, doubles, "--to", "wandb")
    assert done.returncode == 4
    assert done.stderr.startswith("error: the job wrote to no run of wandb\n")


def test_names_are_checked_before_the_job_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark = tmp_path / "ran"
    assert main(["run", "--out", str(tmp_path / "run"), "--log", "comet", "--", "touch", str(mark)]) == 2
    assert "no tracker named 'comet'" in capsys.readouterr().err
    assert not mark.exists()


def test_a_package_that_is_not_there(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stashtrace.trackers.writers.find_spec", lambda name: None)
    assert main(["log", "somewhere", "--to", "wandb"]) == 2
    assert "the package wandb is not installed in stashtrace's Python" in capsys.readouterr().err


@pytest.mark.parametrize(("down", "said"), [("", "logged to wandb run demo/r1"), ("1", "error: wandb did not take")])
def test_at_the_end_of_a_run(doubles: Path, tmp_path: Path, down: str, said: str) -> None:
    """The exit code is that of the job, whatever the tracker says."""
    script = "import wandb, stashtrace, sys\nwandb.init()\nfor _ in range(12): stashtrace.step()\nsys.exit(7)"
    code = "import sys; from stashtrace.cli import main; sys.exit(main(sys.argv[1:]))"
    root = str(Path(__file__).resolve().parents[2])
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join((str(doubles), root)))
    # Down is the launcher's tracker alone: the job has begun its run.
    job = ["env", "-u", "TRACKER_IS_DOWN", sys.executable, "-c", script]
    words = ["run", "--out", str(tmp_path / "run"), "--log", "wandb", "--", *job]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**environment, "TRACKER_IS_DOWN": down},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert said in done.stderr
