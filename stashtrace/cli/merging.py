"""What ``run`` and ``merge`` do with the records of a run: compact, load, export the time line, sum up.

Each stage leaves a directory that the next call of ``stashtrace merge`` can start from, so an interrupt at
any moment loses nothing.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from stashtrace.cli.screen import Progress, Screen
from stashtrace.errors import DataLossWarning, StashtraceError
from stashtrace.visible import visible
from stashtrace.whole_files import write_whole

if TYPE_CHECKING:
    from stashtrace.model.trace import Trace

TIMELINE_FILE = "timeline.pftrace.gz"
SUMMARY_FILE = "summary.txt"


def merge_and_report(
    directory: Path, screen: Screen, *, shown: str, run_id: str | None = None, own_host_only: bool = False
) -> None:
    """Merge a run directory and say on ``screen`` what came out of it.

    Parameters
    ----------
    directory : Path
        The run.
    screen : Screen
        For the progress bar and the summary.
    shown : str
        The directory as the user would type it.
    run_id : str, optional
        Which run, if the directory holds several.
    own_host_only : bool
        Pack no files of other hosts: their processes may still write.
    """
    troubles: list[str] = []
    with screen.progress("merging") as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)  # the summary says what is missing
        trace = _merge(directory, progress, troubles, run_id, own_host_only)
        progress.stage(0.95, 1.0)
        progress.step(0.0, "summary")
        from stashtrace.analysis.findings import summarize
        from stashtrace.report.look import Look
        from stashtrace.report.text import render

        tables = summarize(trace)
    try:
        _write_words(directory / SUMMARY_FILE, render(tables, Look(), shown))
    except OSError as error:
        troubles.append(f"{SUMMARY_FILE} was not written: {error.strerror}")
    screen.say("\n" + render(tables, Look(screen.width, screen.utf8, screen.colour), shown))
    for trouble in troubles:
        screen.say(f"warning: {trouble}")
    if any(TIMELINE_FILE in trouble for trouble in troubles):
        screen.say(f"\nhint: `stashtrace export perfetto {shown} -o FILE` writes it elsewhere")


def write_summary(trace: Trace, path: Path, shown: str) -> None:
    """Write the summary of a run into a file; ``shown``: its directory as the user would type it."""
    from stashtrace.report.text import summary

    _write_words(path, summary(trace, shown=shown))


def _write_words(path: Path, text: str) -> None:
    write_whole(path, visible(text))


def pack(directory: Path, progress: Progress, *, run_id: str | None = None, own_host_only: bool = False) -> list[str]:
    """Rewrite the raw files of processes that have ended; what could not be is returned as sentences."""
    from stashtrace.format.compact import compact_run
    from stashtrace.format.liveness import own_boot_id
    from stashtrace.format.reader import open_run

    raw = open_run(directory, run_id=run_id)
    if own_host_only:
        boot = own_boot_id()
        raw = dataclasses.replace(raw, processes=[p for p in raw.processes if p.metadata.get("boot_id") == boot])
    report = compact_run(raw, progress=lambda done, total: progress.step(done / max(total, 1), "packing"))
    return [f"{name}: {reason}" for name, reason in report.problems]


def _merge(directory: Path, progress: Progress, troubles: list[str], run_id: str | None, own_host_only: bool) -> Trace:
    """Pack the files, load them, write the time line; what can be done without goes to ``troubles``."""
    from stashtrace.align.align import load_trace
    from stashtrace.exporters.registry import export

    progress.stage(0.0, 0.4)
    troubles += pack(directory, progress, run_id=run_id, own_host_only=own_host_only)
    progress.stage(0.4, 0.95)
    progress.step(0.0, "aligning")
    trace = load_trace(str(directory), run_id=run_id)
    progress.step(0.5, "timeline")
    try:
        export(trace, "perfetto", str(directory / TIMELINE_FILE))
    except (StashtraceError, OSError) as error:  # a full disk takes no answer from the user that we have
        troubles.append(str(error) if TIMELINE_FILE in str(error) else f"{TIMELINE_FILE} was not written: {error}")
    return trace


def short_path(directory: Path) -> str:
    """Path as a person would type it: from the working directory if it is below."""
    relative = os.path.relpath(directory)
    if relative.startswith("..") or relative == ".":
        return str(directory) if relative != "." else "."
    return f"./{relative}"
