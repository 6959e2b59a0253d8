"""The command that is likely to decide an inconclusive comparison, for a shell."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from stashtrace.scrubbing import SCRUBBED
from stashtrace.summary.gate_text import Command
from stashtrace.visible import visible_line

if TYPE_CHECKING:
    import argparse

    from stashtrace.analysis.compare.change import Side
    from stashtrace.analysis.compare.gate_verdict import Gate

#: Where the version before belongs if both were recorded in one folder.
_BESIDE = "../before"


def command_that_decides(gate: Gate, given: argparse.Namespace) -> Command | None:
    """Return a command that records both jobs by turns so often that they are likely to be told apart.

    None if nothing is to be decided, no reasonable number of runs would do, or the recordings do not tell commands that
    can be run again here.

    ``given``: options of ``stashtrace check``.
    """
    rounds = max((one.needs.runs_count for one in gate.judged if one.verdict == "inconclusive"), default=0)
    before, after = _job_of(gate.before), _job_of(gate.after)
    if gate.verdict != "inconclusive" or not rounds or before is None or after is None:
        return None
    (old, old_directory), (command, directory) = before, after
    if old == command and any(word.startswith("/") and word.endswith(".py") for word in command):
        return None  # it would start this very script for both versions
    words, folder = ["stashtrace", "check", "--rerun", str(rounds)], ""
    if old != command:
        words += ["--before", shlex.join(old)]
    if old_directory != directory:
        words += ["--before-dir", old_directory]
    elif old == command:
        folder = _BESIDE
        words += ["--before-dir", folder]
    for one in gate.judged:
        words += ["--fail-if", str(one.condition)]
    for field in given.allow:
        words += ["--allow", field]
    if given.allowance is not None:
        words += ["--allowance", f"{given.allowance:g}"]
    text = shlex.join([*words, "--", *command])
    if Path(directory) != Path.cwd():
        text = f"cd {shlex.quote(directory)} && {text}"
    # What a terminal would obey, or not show, cannot be copied from it.
    return Command(text, folder) if visible_line(text) == text else None


def _job_of(side: Side) -> tuple[tuple[str, ...], str] | None:
    """Return the command of all runs of a side and its folder; None if they differ, or cannot be run again here."""
    jobs = {(run.launch, run.directory) for run in side.runs}
    launch, directory = next(iter(jobs))
    if len(jobs) > 1 or not launch or not Path(directory).is_dir():
        return None
    return None if any(SCRUBBED in word for word in launch) else (launch, directory)
