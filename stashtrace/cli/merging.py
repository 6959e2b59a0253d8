"""What ``run`` and ``merge`` do with the records of a run: compact, load, export the time line, sum up.

Each stage leaves a directory that the next call of ``stashtrace merge`` can start from, so an interrupt at
any moment loses nothing.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import filecmp
import json
import os
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stashtrace.cli.screen import Progress, Screen
from stashtrace.errors import DataLossWarning, FormatError, StashtraceError
from stashtrace.launch.directory import RUN_FILE, write_run_file

if TYPE_CHECKING:
    from stashtrace.model.trace import Trace

TIMELINE_FILE = "timeline.pftrace.gz"
SUMMARY_FILE = "summary.txt"


def merge_and_report(directory: Path, screen: Screen, *, shown: str, run_id: str | None = None) -> None:
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
    """
    troubles: list[str] = []
    with screen.progress("merging") as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)  # the summary says what is missing
        trace = _merge(directory, progress, troubles, run_id)
        progress.stage(0.95, 1.0)
        progress.step(0.0, "summary")
        from stashtrace.report.facts import gather
        from stashtrace.report.findings import choose
        from stashtrace.report.look import Look
        from stashtrace.report.text import render

        facts = gather(trace)
        findings = choose(facts)
    try:
        (directory / SUMMARY_FILE).write_text(render(facts, findings, Look(), shown), encoding="utf-8")
    except OSError as error:
        troubles.append(f"{SUMMARY_FILE} was not written: {error.strerror}")
    screen.say("\n" + render(facts, findings, Look(screen.width, screen.utf8, screen.colour), shown))
    for trouble in troubles:
        screen.say(f"warning: {trouble}")
    if any(TIMELINE_FILE in trouble for trouble in troubles):
        screen.say(f"\nhint: `stashtrace export perfetto {shown} -o FILE` writes it elsewhere")


def _merge(directory: Path, progress: Progress, troubles: list[str], run_id: str | None) -> Trace:
    """Pack the files, load them, write the time line; what can be done without goes to ``troubles``."""
    from stashtrace.align.align import load_trace
    from stashtrace.exporters.registry import export
    from stashtrace.format.compact import compact_run
    from stashtrace.format.reader import open_run

    progress.stage(0.0, 0.4)
    raw = open_run(directory, run_id=run_id)
    report = compact_run(raw, progress=lambda done, total: progress.step(done / max(total, 1), "packing"))
    troubles += [f"{name}: {reason}" for name, reason in report.problems]
    progress.stage(0.4, 0.95)
    progress.step(0.0, "aligning")
    trace = load_trace(str(directory), run_id=run_id)
    progress.step(0.5, "timeline")
    try:
        export(trace, "perfetto", str(directory / TIMELINE_FILE))
    except (StashtraceError, OSError) as error:  # a full disk takes no answer from the user that we have
        troubles.append(str(error) if TIMELINE_FILE in str(error) else f"{TIMELINE_FILE} was not written: {error}")
    return trace


def is_one_job(paths: Sequence[Path]) -> bool:
    """Whether directories hold parts of one job: ranks that do not meet, of a world they fit into."""
    from stashtrace.align.imported import is_foreign
    from stashtrace.format.reader import open_run

    foreign = [is_foreign(str(path)) for path in paths]
    if any(foreign):
        return all(foreign)
    seen: set[int] = set()
    worlds: set[int] = set()
    for path in paths:
        environments = [p.metadata.get("env") or {} for p in open_run(path).processes]
        ranks = {int(e["RANK"]) for e in environments if str(e.get("RANK", "")).isdecimal()}
        worlds |= {int(e["WORLD_SIZE"]) for e in environments if str(e.get("WORLD_SIZE", "")).isdecimal()}
        if not ranks or seen & ranks:
            return False
        seen |= ranks
    return len(worlds) == 1 and max(seen) < worlds.pop()


def gather_directories(first: Path, others: Sequence[Path]) -> None:
    """Bring the files of the other directories of a job into the first, and note in its ``run.json`` that they belong.

    Raises
    ------
    FormatError
        If they are not parts of one job.
    """
    if not others:
        return
    if not is_one_job([first, *others]):
        raise FormatError(
            f"{first} and {', '.join(map(str, others))} are not parts of one job: ranks or world sizes do not fit",
            hint=f"compare them instead: `stashtrace diff {first} {others[0]}`",
        )
    path = first / RUN_FILE
    facts = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    parts = {part["run_id"]: part for part in facts.get("parts", [])}
    for other in others:
        own = json.loads((other / RUN_FILE).read_text(encoding="utf-8")) if (other / RUN_FILE).exists() else {}
        for part in [own, *own.get("parts", [])]:
            if part.get("run_id"):
                parts[part["run_id"]] = {k: v for k, v in part.items() if k != "parts"}
        for file in sorted([*other.glob("*.stash"), *other.glob("*.ring")]):
            _bring(file, first / file.name)
    write_run_file(first, {**facts, "parts": list(parts.values())})


def _bring(source: Path, target: Path) -> None:
    """Copy a file by its name; one that is there with the same content was brought before."""
    if target.exists():
        if target.stat().st_size == source.stat().st_size and filecmp.cmp(source, target, shallow=False):
            return
        raise FormatError(f"{target} exists and differs from {source}", hint="merge into a copy of the first directory")
    temporary = target.with_suffix(target.suffix + ".tmp")
    shutil.copy2(source, temporary)
    os.replace(temporary, target)


def short_path(directory: Path) -> str:
    """Path as a person would type it: from the working directory if it is below."""
    relative = os.path.relpath(directory)
    if relative.startswith("..") or relative == ".":
        return str(directory) if relative != "." else "."
    return f"./{relative}"
