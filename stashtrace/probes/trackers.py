"""Experiment trackers: note which run of which tracker a process writes to, so that the launcher can add to it.

Installed by ``bootstrap`` when the tracker's module has been imported. ``stashtrace/trackers`` reads the facts. Nothing
is sent from here, and no tracker is imported.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stashtrace.probes import patching, recorder
from stashtrace.probes.recorder import failed

COLLECTOR = "core"
#: Begin of the key of the fact, before the tracker's name; the same in ``trackers/answers.py``.
FACT = "tracker "
#: A process that begins a run for each trial of a search would fill its string table.
_MOST_RUNS = 64
_noted: dict[str, set[str]] = {}


def install_wandb(wandb: ModuleType) -> None:
    """Note what ``wandb.init`` returns."""
    _note_result(wandb, "init", "wandb", _wandb_run)


def install_mlflow(fluent: ModuleType) -> None:
    """Note what ``mlflow.start_run`` returns, called by the script or by mlflow itself."""
    _note_result(fluent, "start_run", "mlflow", _mlflow_run)


def install_mlflow_client(client: ModuleType) -> None:
    """Note the runs of loggers that use mlflow's client alone."""
    _note_result(client.MlflowClient, "create_run", "mlflow", _mlflow_run)


def install_trackio(trackio: ModuleType) -> None:
    """Note what ``trackio.init`` returns."""
    _note_result(trackio, "init", "trackio", _trackio_run)


def install_tensorboard(writer: ModuleType) -> None:
    """Note the folder of each SummaryWriter, torch's and tensorboardX's."""

    def make(original: Any) -> Any:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            _note("tensorboard", lambda: {"log_dir": os.path.abspath(str(self.log_dir or self.logdir))})

        return __init__

    patching.replace(COLLECTOR, writer.SummaryWriter, "__init__", make)


def _note_result(owner: Any, name: str, tracker: str, facts_of: Callable[[Any], dict[str, str]]) -> None:
    def make(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            run = original(*args, **kwargs)
            _note(tracker, lambda: facts_of(run))
            return run

        return call

    patching.replace(COLLECTOR, owner, name, make)


def _note(tracker: str, facts: Callable[[], dict[str, str]]) -> None:
    try:
        text = json.dumps(facts())
        noted = _noted.setdefault(tracker, set())
        if text not in noted and len(noted) < _MOST_RUNS:
            noted.add(text)
            recorder.record_fact(FACT + tracker, text)
    except Exception as error:
        failed(COLLECTOR, f"note_{tracker}", error)


def _wandb_run(run: Any) -> dict[str, str]:
    settings = run.settings
    return {
        "id": str(run.id),
        "project": str(run.project or ""),
        "entity": str(run.entity or ""),
        "mode": str(getattr(settings, "mode", "") or ""),
        "dir": str(getattr(settings, "root_dir", "") or ""),
        "base_url": str(getattr(settings, "base_url", "") or ""),
    }


def _mlflow_run(run: Any) -> dict[str, str]:
    import mlflow  # it has been imported: this is its run

    # A relative folder is one of the job's working directory.
    uri = str(mlflow.get_tracking_uri())
    return {"id": str(run.info.run_id), "tracking_uri": uri if ":" in uri else os.path.abspath(uri)}


def _trackio_run(run: Any) -> dict[str, str]:
    space = getattr(run, "_space_id", None)
    return {"project": str(run.project), "name": str(run.name), "space_id": str(space or "")}
