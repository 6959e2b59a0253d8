"""Weights & Biases: the run is resumed for a moment; numbers and sentences are its summary, the page an artifact."""

from __future__ import annotations

import wandb

from stashtrace.trackers.answers import Answers

#: A server that does not answer must not hold up the end of a job for the 90 s that are wandb's default.
_PATIENCE_S = 30


def write(note: dict[str, str], answers: Answers) -> str:
    """Add to the run; return its path."""
    settings = wandb.Settings(
        silent=True,
        console="off",
        init_timeout=_PATIENCE_S,
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
