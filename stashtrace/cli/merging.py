"""What ``run`` and ``merge`` do with the records of a run: compact, load, export the time line, sum up.

Each stage leaves a directory that the next call of ``stashtrace merge`` can start from, so an interrupt at
any moment loses nothing.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stashtrace.cli.screen import Progress, Screen

if TYPE_CHECKING:
    from stashtrace.model.trace import Trace

TIMELINE_FILE = "timeline.pftrace.gz"
SUMMARY_FILE = "summary.txt"


def merge_and_report(directory: Path, screen: Screen, *, shown: str) -> None:
    """Merge a run directory and say on ``screen`` what came out of it.

    Parameters
    ----------
    directory : Path
        The run.
    screen : Screen
        For the progress bar and the summary.
    shown : str
        The directory as the user would type it.
    """
    with screen.progress("merging") as progress:
        trace = _merge(directory, progress, screen)
        progress.stage(0.95, 1.0)
        progress.step(0.0, "summary")
        from stashtrace.report.facts import gather
        from stashtrace.report.findings import choose
        from stashtrace.report.look import Look
        from stashtrace.report.text import render

        facts = gather(trace)
        findings = choose(facts)
    (directory / SUMMARY_FILE).write_text(render(facts, findings, Look(), shown), encoding="utf-8")
    screen.say("\n" + render(facts, findings, Look(screen.width, screen.utf8, screen.colour), shown))


def _merge(directory: Path, progress: Progress, screen: Screen) -> Trace:
    from stashtrace.align.align import load_trace
    from stashtrace.exporters.registry import export
    from stashtrace.format.compact import compact_run
    from stashtrace.format.reader import open_run

    progress.stage(0.0, 0.4)
    raw = open_run(directory)
    report = compact_run(raw, progress=lambda done, total: progress.step(done / max(total, 1), "packing"))
    for name, reason in report.problems:
        screen.say(f"warning: {name}: {reason}")
    progress.stage(0.4, 0.95)
    progress.step(0.0, "aligning")
    trace = load_trace(str(directory))
    progress.step(0.5, "timeline")
    export(trace, "perfetto", str(directory / TIMELINE_FILE))
    return trace


def gather_directories(first: Path, others: Sequence[Path]) -> None:
    """Copy the files of the other directories of a job into the first."""


def short_path(directory: Path) -> str:
    """Path as a person would type it: from the working directory if it is below."""
    relative = os.path.relpath(directory)
    if relative.startswith("..") or relative == ".":
        return str(directory) if relative != "." else "."
    return f"./{relative}"
