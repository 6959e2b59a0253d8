"""``stashtrace status DIR``: show how far a run is that is still going, or hangs. Reads live files only.

Of a run that is followed it shows what its followers know, and reads no records unless they see no step ending.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stashtrace.cli.look_if_stuck import NOBODY_WAITS, look_if_stuck
from stashtrace.cli.parsing import Parser, followed_run
from stashtrace.cli.print_results import print_lines
from stashtrace.record.directory import RUN_FILE, read_run_file, scratch_of
from stashtrace.record.launchers import own_place
from stashtrace.units import duration_text

if TYPE_CHECKING:
    from stashtrace.schema.trace import Trace


def parser() -> Parser:
    """Return the parser of ``stashtrace status``."""
    parser = Parser(
        "status",
        "Show where a run is that is still going, or hanging: steps so far, the budget\n"
        "of the newest steps, and which rank has not entered which collective.",
    )
    parser.add_argument("path", metavar="DIR", help="run directory")
    parser.add_run()
    return parser


def main(argv: Sequence[str]) -> int:
    """Print where the run is."""
    arguments = parser().read(argv)
    path = str(followed_run(arguments.path))

    from stashtrace.analysis.findings.ending.newest_row import SUSPICIOUS_NS, newest_ns
    from stashtrace.analysis.steps.step_time import step_time_of
    from stashtrace.format.liveness import LiveRings
    from stashtrace.format.reader import open_run
    from stashtrace.live.view.status import followed_status
    from stashtrace.loading.load import load_trace
    from stashtrace.summary.status_text import describe_stuck, newest_steps, newest_text, step_time_text

    if lines := followed_status(Path(path), arguments.run):
        print_lines(lines)
        return 0
    path = str(scratch_of(Path(path)) or path)
    if (Path(path) / RUN_FILE).exists() and not any(Path(path).glob("*.stash")):
        print_lines([_headline(read_run_file(Path(path)), 0, 0), "nothing was recorded yet"])
        return 0
    raw = open_run(path, run_id=arguments.run)
    live = LiveRings.look()
    alive = [p for p in raw.processes if live.holds(p)]
    trace = load_trace(path, run_id=arguments.run)
    newest = newest_ns(trace)
    lines = [_headline(raw.run, len(alive), len(raw.processes)), ""]
    step = step_time_of(trace)
    if step is not None:
        lines += [step_time_text(step), ""]
    newest_of = newest_steps(trace)
    for rank in trace.ranks.tolist():
        idle = newest - newest_ns(trace, activity=True, rank=rank)
        lines.append(f"rank {rank}: {newest_text(newest_of[rank]) if rank in newest_of else '0 steps'}")
        if idle > SUSPICIOUS_NS:
            lines.append(f"  no activity for {duration_text(idle)}")
    lines.append("")
    lines += describe_stuck(look_if_stuck(trace, [path], arguments.run), lives=bool(alive)) or [NOBODY_WAITS]
    age = _age_ns(trace, newest)
    if age is not None:
        lines.append(f"newest record {duration_text(age)} ago")
    print_lines(lines)
    return 0


def _headline(run: dict[str, Any], alive: int, total: int) -> str:
    begin = run.get("begin_realtime_ns")
    ago = f" {duration_text(time.time_ns() - begin)} ago" if begin else ""
    since = f", begun{ago}" if begin else ""
    if "end_realtime_ns" in run:
        return f"ended with exit code {run.get('exit_code')}{since}; {alive} of {total} processes still record"
    launcher = run.get("launcher_pid")
    if run.get("place", own_place()) != own_place():  # process ids of another host or container mean nothing here
        heard = "its files were written just now" if alive else "its files have not been written for half a minute"
        return f"begun on {run.get('host')}{ago}, no end recorded; {heard}"
    gone = "" if launcher is None or os.path.exists(f"/proc/{launcher}") else "; its launcher is gone"
    state = "running" if alive or (launcher is not None and not gone) else "not running"
    return f"{state}{since}: {alive} of {total} recorded processes live{gone}"


def _age_ns(trace: Trace, newest: int) -> int | None:
    """Return the age of the newest record; None if the run has another clock than this host."""
    for row in trace.metadata.rows():
        if trace.text(row["key_code"]) == "origin_monotonic_ns":
            origin = trace.text(row["value_code"])
            age = time.monotonic_ns() - int(origin) - newest if origin.isdecimal() and len(origin) < 20 else -1
            return age if age >= 0 else None
    return None
