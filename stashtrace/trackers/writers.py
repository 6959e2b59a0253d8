"""Write answers into a run of W&B, MLflow, TensorBoard or trackio; the package is imported where it is written to."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from stashtrace.errors import UsageError
from stashtrace.files.whole_files import whole_file

#: Seconds that wandb waits for a server, by default 90: the end of a job is not held up for that long.
_WANDB_PATIENCE_S = 30
#: The same for MLflow, whose defaults make minutes; a caller's values count.
_MLFLOW_PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
#: A longer tag is refused (mlflow/utils/validation.py, MAX_TAG_VAL_LENGTH).
_LONGEST_MLFLOW_TAG = 5000


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of one run."""

    #: By name, as in ``answers.numbers`` and ``answers.sentences``.
    numbers: dict[str, float]
    sentences: dict[str, str]
    #: The page of ``stashtrace report``.
    report: Path
    #: Steps of a rank: the place of the answers on the axis of steps.
    steps_count: int


#: Writes answers into the run of a note (``probes/trackers.py``); returns a name for that run.
Writer = Callable[[dict[str, str], Answers], str]


def _to_wandb(note: dict[str, str], answers: Answers) -> str:
    """Resume the run; numbers and sentences are its summary, the page an artifact. Return its path."""
    import wandb

    settings = wandb.Settings(
        silent=True,
        console="off",
        init_timeout=_WANDB_PATIENCE_S,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_save_requirements=False,  # those of the job stay
        save_code=False,
        disable_git=True,
        **({"base_url": note["base_url"]} if note.get("base_url") else {}),
    )
    run = wandb.init(
        id=note["id"],
        project=note.get("project") or None,
        entity=note.get("entity") or None,
        dir=note.get("dir") or None,
        mode=note.get("mode") or None,
        resume="allow",
        settings=settings,
    )
    try:
        run.summary.update({**answers.numbers, **answers.sentences})
        artifact = wandb.Artifact(f"stashtrace-{note['id']}", type="stashtrace-report")
        artifact.add_file(str(answers.report))
        run.log_artifact(artifact)
    finally:
        run.finish()
    return "/".join(filter(None, (note.get("entity"), note.get("project"), note["id"])))


def _to_mlflow(note: dict[str, str], answers: Answers) -> str:
    """Add numbers as metrics, sentences as tags, the page as an artifact; the run keeps its status. Return its id."""
    for variable, limit in _MLFLOW_PATIENCE.items():
        os.environ.setdefault(variable, limit)
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=note.get("tracking_uri") or None)
    for name, value in answers.numbers.items():
        client.log_metric(note["id"], name, value)
    for name, text in answers.sentences.items():
        client.set_tag(note["id"], name, text[:_LONGEST_MLFLOW_TAG])
    client.log_artifact(note["id"], str(answers.report), "stashtrace")
    return note["id"]


def _to_tensorboard(note: dict[str, str], answers: Answers) -> str:
    """Write an event file, and the page, into the log folder of the job; return that folder."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb
    from tensorboard.plugins.text.summary_v2 import text_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder = Path(note["log_dir"])
    folder.mkdir(parents=True, exist_ok=True)
    writer = EventFileWriter(str(folder), filename_suffix=".stashtrace")
    parts = [scalar_pb(name, value) for name, value in answers.numbers.items()]
    parts += [text_pb(name, text) for name, text in answers.sentences.items()]
    for part in parts:
        whole = Summary.FromString(part.SerializeToString())
        writer.add_event(Event(wall_time=time.time(), step=answers.steps_count, summary=whole))
    writer.close()
    with whole_file(folder / answers.report.name) as partial:
        partial.write_bytes(answers.report.read_bytes())
    return str(folder)


def _to_trackio(note: dict[str, str], answers: Answers) -> str:
    """Resume the run and add a row with numbers and sentences, without the page. Return its project and name."""
    import trackio

    trackio.init(
        project=note["project"],
        name=note["name"],
        space_id=note.get("space_id") or None,
        resume="must",
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )
    trackio.log({**answers.numbers, **answers.sentences})
    trackio.finish()
    return f"{note['project']}/{note['name']}"


#: Name, which is that of its package -> what writes to it.
TRACKERS: dict[str, Writer] = {
    "wandb": _to_wandb,
    "mlflow": _to_mlflow,
    "tensorboard": _to_tensorboard,
    "trackio": _to_trackio,
}


def check_trackers(names: Sequence[str]) -> None:
    """Raise UsageError if there is no tracker of one of these names, or its package is not installed."""
    for name in names:
        if name not in TRACKERS:
            raise UsageError(f"no tracker named {name!r}", hint="choose from: " + ", ".join(TRACKERS))
        if find_spec(name) is None:
            raise UsageError(f"the package {name} is not installed in stashtrace's Python", hint=f"pip install {name}")
