"""The trackers by name, without importing one."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from stashtrace.errors import UsageError

#: Name, which is that of its package -> module of ours that writes to it.
TRACKERS = {
    "wandb": "stashtrace.trackers.writers.wandb",
    "mlflow": "stashtrace.trackers.writers.mlflow",
    "tensorboard": "stashtrace.trackers.writers.tensorboard",
    "trackio": "stashtrace.trackers.writers.trackio",
}


def check_trackers(names: Sequence[str]) -> None:
    """Raise UsageError if there is no tracker of one of these names, or its package is not installed."""
    for name in names:
        if name not in TRACKERS:
            raise UsageError(f"no tracker named {name!r}", hint="choose from: " + ", ".join(TRACKERS))
        if find_spec(name) is None:
            raise UsageError(f"the package {name} is not installed in stashtrace's Python", hint=f"pip install {name}")
