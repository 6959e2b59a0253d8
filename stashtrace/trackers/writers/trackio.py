"""trackio: the run is resumed, and gets one more row with the numbers and sentences. It keeps no pages."""

from __future__ import annotations

import trackio

from stashtrace.trackers.answers import Answers


def write(note: dict[str, str], answers: Answers) -> str:
    """Add to the run; return its project and name."""
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
