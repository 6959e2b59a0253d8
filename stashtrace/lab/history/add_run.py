"""Add a run to a history: what ``run --history`` does at its end, and ``history --add`` for runs that exist."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

from stashtrace.lab.history.place import Place
from stashtrace.lab.history.rows_of_run import launch_facts, rows_of_run
from stashtrace.schema.trace import Trace


def add_run(place: Place, trace: Trace, directory: Path) -> str:
    """Add a loaded run; return a sentence about it.

    ``directory``: of the run. Raises FormatError if the run does not say when it was. Raises OutputError if the file
    cannot be written.
    """
    name = place.add(rows_of_run(trace, launch_facts(directory)))
    if name is None:
        return f"the run is in the history {place.text} already"
    return f"added to the history {place.text}: {name}"
