"""MLflow: numbers are metrics of the run, sentences its tags, the page an artifact. The run keeps its status."""

from __future__ import annotations

import os

from stashtrace.trackers.answers import Answers

#: A longer tag is refused (mlflow/utils/validation.py, MAX_TAG_VAL_LENGTH).
_LONGEST_TAG = 5000
#: A server that does not answer must not hold up the end of a job for minutes; a caller's own values count.
_PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}


def write(note: dict[str, str], answers: Answers) -> str:
    """Add to the run; return its id."""
    for variable, limit in _PATIENCE.items():
        os.environ.setdefault(variable, limit)
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=note.get("tracking_uri") or None)
    for name, value in answers.numbers.items():
        client.log_metric(note["id"], name, value)
    for name, text in answers.sentences.items():
        client.set_tag(note["id"], name, text[:_LONGEST_TAG])
    client.log_artifact(note["id"], str(answers.report), "stashtrace")
    return note["id"]
