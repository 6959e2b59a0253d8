"""Merging: what ``run`` and ``merge`` do with the records of a run: pack, load, write timeline and summary.

Each stage leaves a directory that the next call of ``stashtrace merge`` can start from, so an interrupt at
any moment loses nothing.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stashtrace.cli import say_error
from stashtrace.cli.find_runs import ignore_losses
from stashtrace.cli.screen import Progress, Screen
from stashtrace.errors import StashtraceError, guarded
from stashtrace.files.whole_files import write_whole
from stashtrace.record import launchers
from stashtrace.record.directory import (
    SUMMARY_FILE,
    TIMELINE_FILE,
    bring_home,
    discard_run_without_records,
    remove_reported,
    trace_files,
)
from stashtrace.record.remote import deliver
from stashtrace.record.run import Outcome
from stashtrace.text.prose import count_noun, list_some
from stashtrace.text.visible import visible

if TYPE_CHECKING:
    from stashtrace.analysis.findings import Summary
    from stashtrace.schema.table import Table
    from stashtrace.schema.trace import Trace


#: Files of processes that one warning names.
_FILES_NAMED = 3
#: Called with a merged run, its summary and ``causes``.
AfterMerge = Callable[["Trace", "Summary", "Table | None"], None]


def merge_and_report(
    directory: Path,
    screen: Screen,
    *,
    shown: str,
    run_id: str | None = None,
    own_host_only: bool = False,
    after: AfterMerge | None = None,
) -> list[str]:
    """Merge a run directory and show its summary, then call ``after``; return a sentence for each file not written.

    ``shown``: the directory as a person would type it. ``run_id``: which run, if the directory holds several.
    ``own_host_only``: pack no files of other hosts: their processes may still write.
    """
    from stashtrace.analysis.findings import summarize
    from stashtrace.loading.load import load_trace
    from stashtrace.replay.causes import what_to_do_first
    from stashtrace.summary.style import Style
    from stashtrace.summary.summary_text import render

    with screen.progress("merging") as progress, ignore_losses():  # the summary says what is missing
        progress.stage(0.0, 0.4)
        troubles = pack(directory, progress, run_id=run_id, own_host_only=own_host_only)
        progress.stage(0.4, 0.95)
        progress.step(0.0, "aligning")
        trace = load_trace(str(directory), run_id=run_id)
        progress.step(0.5, "timeline")
        no_timeline = _write_timeline(trace, directory / TIMELINE_FILE)
        progress.stage(0.95, 1.0)
        progress.step(0.0, "summary")
        tables = summarize(trace)
        progress.step(0.5, "what to do first")
        first = what_to_do_first(trace)
    unwritten = [f"the timeline was not written: {error}" for error in no_timeline]
    try:
        _write_words(directory / SUMMARY_FILE, render(tables, Style(), shown, first))
    except OSError as error:
        unwritten.append(f"the summary was not written: cannot write {directory / SUMMARY_FILE}: {error.strerror}")
    screen.say("\n" + render(tables, Style(screen.width, screen.utf8, screen.colour), shown, first))
    for trouble in [*troubles, *unwritten]:
        screen.say(f"warning: {trouble}")
    if no_timeline:
        screen.say(f"\nhint: `stashtrace export perfetto {shown} -o FILE` writes it elsewhere")
    if after is not None:
        after(trace, tables, first)
    return unwritten


def write_summary(trace: Trace, path: Path, shown: str) -> None:
    """Write the summary of a run into a file; ``shown``: its directory as a person would type it."""
    from stashtrace.replay.causes import what_to_do_first
    from stashtrace.summary.summary_text import summary

    _write_words(path, summary(trace, shown=shown, first=what_to_do_first(trace)))


def _write_words(path: Path, text: str) -> None:
    write_whole(path, visible(text))


def pack(directory: Path, progress: Progress, *, run_id: str | None = None, own_host_only: bool = False) -> list[str]:
    """Rewrite the raw files of processes that have ended; return a sentence for each reason why some could not be."""
    from stashtrace.format.compact import compact_run
    from stashtrace.format.liveness import own_boot_id
    from stashtrace.format.reader import open_run

    raw = open_run(directory, run_id=run_id)
    if own_host_only:
        boot = own_boot_id()
        raw = dataclasses.replace(raw, processes=[p for p in raw.processes if p.metadata.get("boot_id") == boot])
    report = compact_run(raw, progress=lambda done, total: progress.step(done / max(total, 1), "packing"))
    names: dict[str, list[str]] = {}
    for name, reason in report.problems:
        names.setdefault(reason, []).append(name)
    return [f"{list_some(named, _FILES_NAMED)}: {reason}" for reason, named in names.items()]


def _write_timeline(trace: Trace, path: Path) -> list[str]:
    """Write the timeline; return the error, if there is one: the merge goes on without, e.g. on a full disk."""
    from stashtrace.exporters.registry import export

    def written() -> list[str]:
        try:
            export(trace, "perfetto", str(path))
        except (StashtraceError, OSError) as error:
            return [str(error)]
        return []

    return guarded("the timeline", written, lambda _: ["a fault of stashtrace; --debug shows the trace"])


def short_path(directory: Path) -> str:
    """Return the path as a person would type it in a shell: relative if it is below the working directory."""
    relative = os.path.relpath(directory)
    if relative == ".":
        return "."
    return shlex.quote(str(directory) if relative.startswith("..") else f"./{relative}")


# What ``stashtrace run`` does when the command has ended: it copies the records to the run directory, and merges them
# if it is its turn. Nothing here changes the exit code, which is that of the job.

_HOSTS_NAMED = 4


def conclude(
    outcome: Outcome,
    screen: Screen,
    *,
    merge: bool,
    debug: bool,
    command: Sequence[str],
    after: AfterMerge | None = None,
) -> None:
    """Merge a run, or leave that to the launcher of its job that ends last.

    ``merge``: false for ``--no-merge``. ``debug``: raise errors instead of printing them. ``command``: the job's
    command, for a hint. ``after``: called where this launcher has merged the run.
    """
    on_scratch = outcome.records != outcome.directory
    if outcome.write_error is not None and not on_scratch and not _is_readable(outcome.directory):
        return  # its file system has died, which has been said
    if outcome.replaced:  # the folder that has its name now is somebody else's
        if on_scratch:
            screen.say(
                f"stashtrace: the records are in {outcome.records}; "
                f"`stashtrace merge {shlex.quote(str(outcome.records))}` merges them"
            )
        return
    later = f"`stashtrace merge {shown_directory(outcome)}`"
    try:
        is_here = _bring_home(outcome, screen, merge=merge)
        if outcome.write_error is not None and on_scratch:
            screen.say(f"stashtrace: {outcome.write_error}")
        _say_ended(outcome)
        is_empty = is_here and not outcome.survivors and not trace_files(outcome.directory)
        if is_empty and (merge or outcome.is_new):
            say_error("nothing was recorded", f"`stashtrace doctor -- {command[0]}` says whether it can be traced")
            if outcome.launch_file is None:  # else other launchers of the job may record into it
                discard_run_without_records(outcome.directory, keep_folder=not outcome.is_made)
        elif not is_here or not merge:
            if not merge:
                screen.say(f"stashtrace: the run is not merged; {later} merges it")
        elif outcome.launch_file is None:
            merge_and_report(outcome.directory, screen, shown=shown_directory(outcome), after=after)
            _upload_whole(outcome, screen)
        else:
            _merge_in_company(outcome, screen, after)
    except KeyboardInterrupt:
        screen.say(f"\nstashtrace: merge interrupted, nothing is lost; {later} starts it again")
    except StashtraceError as error:
        if debug:
            raise
        say_error(str(error), error.hint or f"what was recorded is in {shown_directory(outcome)}")
    except Exception as error:
        if debug:
            raise
        say_error(
            f"the merge failed: {type(error).__name__}: {error}",
            f"the records are untouched; {later} --debug shows where",
        )


def shown_directory(outcome: Outcome) -> str:
    """Return the run directory as a person would type it in a shell."""
    return shlex.quote(outcome.url) if outcome.url else short_path(outcome.directory)


def processes_text(pids: Sequence[int]) -> str:
    """Return the number of processes and their first ids."""
    listed = ", ".join(map(str, pids[:4])) + (", ..." if len(pids) > 4 else "")
    return f"{count_noun(len(pids), 'process')} ({listed})"


def _bring_home(outcome: Outcome, screen: Screen, *, merge: bool) -> bool:
    """Copy records from scratch to the run directory or its URL, packed; return whether they can be merged here."""
    if outcome.records == outcome.directory and not outcome.url:
        return True
    if trace_files(outcome.records) and not outcome.survivors:
        with screen.progress("packing") as progress:
            pack(outcome.records, progress)
    if not outcome.url:
        bring_home(outcome.records, outcome.directory)
        return True
    if outcome.launch_file is None and merge:
        return True  # the only launcher: it merges on scratch and delivers the merged run
    _say_ended(outcome)
    (outcome.records / "run.json").unlink(missing_ok=True)  # one name for all hosts; the launcher's file says the same
    count = deliver(outcome.records, outcome.url)
    shutil.rmtree(outcome.records, ignore_errors=True)
    screen.say(
        f"stashtrace: {count} files delivered to {outcome.url}; run `stashtrace merge {shown_directory(outcome)}` when"
        " all hosts have ended"
    )
    return False


def _upload_whole(outcome: Outcome, screen: Screen) -> None:
    if outcome.url:
        deliver(outcome.records, outcome.url)
        shutil.rmtree(outcome.records, ignore_errors=True)
        screen.say(f"stashtrace: delivered to {outcome.url}")


def _say_ended(outcome: Outcome) -> None:
    if outcome.launch_file is not None and outcome.launch_file.parent.exists():
        launchers.say(outcome.launch_file, outcome.facts)


def _is_readable(directory: Path) -> bool:
    try:
        os.listdir(directory)
    except OSError:
        return False
    return True


def _merge_in_company(outcome: Outcome, screen: Screen, after: AfterMerge | None) -> None:
    """Merge if all launchers of the job have ended, or if ours ended badly: the others may then never end."""
    from stashtrace.loading.gather import fold_launchers

    directory, shown = outcome.directory, shown_directory(outcome)
    while True:  # files are rewritten by the launcher whose turn it is, and read by it alone
        seen = _count_ended_launchers(directory)
        complete = launchers.all_ended(directory, outcome.job.launchers_count)
        # Where nobody else has begun, the directory is most likely this host's own, and its part is merged at once.
        in_company = len(launchers.launchers(directory)) > 1
        if not complete and in_company and not outcome.exit_code:
            screen.say(f"stashtrace: {_who_is_left(outcome)}; the last one merges, or `stashtrace merge {shown}` does")
            return
        with launchers.merging_turn(directory) as ours:
            if not ours:
                screen.say(f"stashtrace: another launcher of the job merges; `stashtrace merge {shown}` merges again")
                return
            if not complete and in_company:
                screen.say(f"stashtrace: {_who_is_left(outcome)}; merging what is there")
            elif not complete:
                screen.say(
                    f"stashtrace: {shown} holds 1 of {outcome.job.launchers_count} parts of {outcome.job.name}; "
                    f"`stashtrace merge {shown} OTHER...` brings them together"
                )
            fold_launchers(directory)
            if complete:
                remove_reported(directory)
            merge_and_report(directory, screen, shown=shown, own_host_only=not complete, after=after)
        if _count_ended_launchers(directory) == seen:  # else a launcher ended meanwhile and left the merge to this one
            return


def _count_ended_launchers(directory: Path) -> int:
    return sum("exit_code" in facts for facts in launchers.launchers(directory))


def _who_is_left(outcome: Outcome) -> str:
    running: list[dict[str, Any]] = launchers.still_running(outcome.directory)
    known = len(launchers.launchers(outcome.directory))
    count = max(outcome.job.launchers_count, known)
    hosts = list(dict.fromkeys(str(facts.get("host", "")) for facts in running))
    more = ", ..." if len(hosts) > _HOSTS_NAMED else ""
    on = f" on {', '.join(hosts[:_HOSTS_NAMED])}{more}" if hosts else ""
    late = f", {count - known} not begun" if count > known else ""
    return f"{len(running)} of {count} launchers of {outcome.job.name} still running{on}{late}"
