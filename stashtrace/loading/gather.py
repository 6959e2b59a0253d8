"""Merge the directories of several hosts: check that they are parts of one job, and copy their files together.

Used by ``stashtrace merge``, and by ``analyze`` to distinguish several parts of one job from several jobs. Files are
copied, never moved. A part without a trace is reported and left out, because the other parts are still useful.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from stashtrace.errors import FormatError, MissingDataError
from stashtrace.files.run_facts import host_file
from stashtrace.files.whole_files import remove_left_in
from stashtrace.format.reader import RawRun, open_run
from stashtrace.format.stash_file import StashFile
from stashtrace.loading.process_identity import Place, places
from stashtrace.record.directory import (
    RUN_FILE,
    TRACE_SUFFIXES,
    copy_host_facts,
    copy_process,
    free_stem,
    read_run_file,
    trace_files,
    write_run_file,
)
from stashtrace.record.launchers import folded, launchers
from stashtrace.text.units import ranks_text

#: Parts whose recordings are further apart than this do not belong to one run, whatever their names are.
_LARGEST_GAP_HOURS = 1.5
_HOUR_NS = 3600 * 10**9
#: Allowed difference between the wall clocks of hosts; starting the next run by hand takes longer.
_WALL_CLOCK_ERROR_NS = 2 * 10**9
_RANKS_NAMED = 8
#: At most this many files of a folder are examined to find out whether another tool wrote it.
_LOOKED_AT_MOST = 20


def is_wanted(name: str) -> bool:
    """Return True for the names of files that a merge of a run directory needs."""
    is_facts = name.startswith("launch.") and name.endswith(".json")
    return name.endswith(TRACE_SUFFIXES) or name == RUN_FILE or is_facts or fnmatchcase(name, host_file("*"))


def run_directories(path: Path) -> list[Path]:
    """Return the run directories at a path: the path itself, or the directories in it, one for each host.

    Raises MissingDataError if there are none.
    """
    if not path.is_dir():
        return [path.parent]
    if trace_files(path):
        return [path]
    below = sorted(folder for folder in path.iterdir() if folder.is_dir() and trace_files(folder))
    if not below:
        if _holds_foreign(path):
            raise MissingDataError(
                f"{path} holds no .stash files to merge",
                hint="files of other tools need no merge: `stashtrace analyze summary` takes the folder of all ranks",
            )
        raise MissingDataError(
            f"{path} holds no trace", hint="give the directories of `stashtrace run --out DIR`; they hold .stash files"
        )
    return below


def _holds_foreign(path: Path) -> bool:
    """Return True if one of the first files was written by another tool."""
    from stashtrace.loading.foreign_files import files_of, is_trace

    return any(map(is_trace, itertools.islice(files_of([str(path)]), _LOOKED_AT_MOST)))


def is_one_job(paths: Sequence[Path]) -> bool:
    """Return True if directories hold parts of one job and no process twice, or if all hold files of other tools."""
    from stashtrace.loading.load import is_foreign
    from stashtrace.store.layout import is_store

    if any(is_store(path) for path in paths):
        return False
    foreign = [is_foreign(str(path)) for path in paths]
    if any(foreign):
        return all(foreign)
    runs = [open_run(path) for path in paths]
    files = [_who(file) for run in runs for file in run.processes]
    try:
        refuse_strangers(runs)
    except FormatError:
        return False
    return len(set(files)) == len(files)


def gather(target: Path, sources: Sequence[Path], say: Callable[[str], None]) -> None:
    """Copy the files of the directories of a job into ``target``, and combine the records of their launchers.

    ``target``: one of the sources, or a new directory. ``say``: called with a warning for each source that is left out.
    Raises FormatError if they are not parts of one job, or hold nothing.
    """
    opened: list[RawRun] = []
    for path in dict.fromkeys([*([target] if trace_files(target) else []), *sources]):
        try:
            opened.append(open_run(path))
        except FormatError as error:
            if len(sources) == 1:
                raise
            say(f"warning: {path} was left out: {error}")
    if not opened:
        raise FormatError(f"none of {', '.join(map(str, sources))} holds a trace")
    if len(opened) > 1:
        refuse_strangers(opened)
    target.mkdir(parents=True, exist_ok=True)
    remove_left_in(target)
    known = {_who(file): file for run in opened if _same(run.path, target) for file in run.processes}
    for run in opened:
        if _same(run.path, target):
            continue
        for file in run.processes:
            before = known.get(_who(file))
            if before is None:
                stem = free_stem(target, file.name)
            elif _rows(file) > _rows(before):  # copied again later: the process still ran at the first copy
                stem = before.name
                _drop(target / stem)
            else:
                continue
            copy_process(Path(file.path).with_suffix(""), target / stem)
            known[_who(file)] = StashFile(str(target / f"{stem}.stash"))
        copy_host_facts(Path(run.path), target)
    _fold(target, [Path(run.path) for run in opened])


def fold_launchers(directory: Path) -> None:
    """Combine the records of all launchers of the directory in ``run.json``."""
    _fold(directory, [directory])


def refuse_strangers(runs: Sequence[RawRun]) -> None:
    """Raise unless runs are parts of one job.

    Raises FormatError if their ids differ and their ranks do not fit, if a rank occurs twice, or if they are far apart
    in time.
    """
    ids = {str(f.metadata.get("run_id", "")) for run in runs for f in run.processes}
    known = _places_of(runs)
    worlds = {place.world_size for part in known for place in part if place.world_size >= 0}
    names = [str(run.path) for run in runs]
    hint = f"compare them instead: `stashtrace diff {names[0]} {names[-1]}`"
    if len(ids) > 1 and (any(all(place.rank < 0 for place in part) for part in known) or len(worlds) != 1):
        raise FormatError(f"{_list_text(names)} are not parts of one job: ranks or world sizes do not fit", hint=hint)
    if any(place.elastic for part in known for place in part):
        _refuse_successors(runs, hint)
    _refuse_twins(runs, known, len(ids) == 1, hint)
    hours = _largest_gap_ns(runs) / _HOUR_NS
    if hours > _LARGEST_GAP_HOURS:
        raise FormatError(
            f"{_list_text(names)} are not parts of one run: their recordings lie {hours:.0f} hours apart", hint=hint
        )


def _refuse_successors(runs: Sequence[RawRun], hint: str) -> None:
    """Raise if one part ended without an error before another began: the hosts of one rendezvous end together."""
    ended = [(end, run) for run in runs if (end := _ended_well_ns(run)) is not None]
    if not ended:
        return
    end, first = min(ended, key=lambda pair: pair[0])
    for run in runs:
        begin, _ = _span_ns(run)
        if begin > end + _WALL_CLOCK_ERROR_NS:
            raise FormatError(
                f"{first.path} and {run.path} are not parts of one run: {first.path} had ended when {run.path} began",
                hint=hint,
            )


def _ended_well_ns(run: RawRun) -> int | None:
    """Return the time in ns at which the last launcher of a part ended; None unless all ended without an error."""
    said = [part for part in run.run.get("parts") or [] if isinstance(part, dict)] or launchers(Path(run.path))
    ends = [part.get("end_realtime_ns") for part in said or [run.run] if part.get("exit_code") == 0]
    known = [end for end in ends if isinstance(end, int)]
    return max(known) if known and len(known) == len(said or [run.run]) else None


def _refuse_twins(runs: Sequence[RawRun], known: Sequence[Sequence[Place]], same_id: bool, hint: str) -> None:
    """Raise if two parts hold one rank, unless the file is the same or an elastic job restarted the rank elsewhere."""
    first: dict[int, tuple[RawRun, set[tuple[Any, ...]]]] = {}
    twice: dict[tuple[str, str], list[int]] = {}
    for run, part in zip(runs, known, strict=True):
        mine: dict[int, set[tuple[Any, ...]]] = {}
        for file, place in zip(run.processes, part, strict=True):
            if place.rank >= 0 and not (place.elastic and same_id):
                mine.setdefault(place.rank, set()).add(_who(file))
        for rank, files in mine.items():
            if rank in first and first[rank][0] is not run and not files & first[rank][1]:
                twice.setdefault((str(first[rank][0].path), str(run.path)), []).append(rank)
            first.setdefault(rank, (run, files))
    for (first_part, second_part), ranks in twice.items():
        listed = ranks_text(sorted(ranks)[:_RANKS_NAMED]) + (", ..." if len(ranks) > _RANKS_NAMED else "")
        raise FormatError(
            f"{first_part} and {second_part} are not parts of one job: "
            f"both hold rank{'s' if len(ranks) > 1 else ''} {listed}",
            hint=hint if not same_id else f"they have one run id; leave one of them out, or {hint}",
        )


def _places_of(runs: Sequence[RawRun]) -> list[list[Place]]:
    """Return the places of the processes of each run; one launcher decides them for all runs."""
    environments = [f.metadata.get("env") for run in runs for f in run.processes]
    flat = iter(places([e if isinstance(e, dict) else {} for e in environments]))
    return [[next(flat) for _ in run.processes] for run in runs]


def _largest_gap_ns(runs: Sequence[RawRun]) -> int:
    """Return the longest time in ns without a recording between the first and the last part, by wall clocks."""
    spans = sorted(_span_ns(run) for run in runs)
    largest, end = 0, spans[0][1]
    for begin, until in spans[1:]:
        largest, end = max(largest, begin - end), max(end, until)
    return largest


def _span_ns(run: RawRun) -> tuple[int, int]:
    begins = [b for f in run.processes if isinstance(b := f.metadata.get("start_realtime_ns"), int)]
    begin = min(begins, default=0)
    ends = [run.run.get("end_realtime_ns"), *begins]
    return begin, max((end for end in ends if isinstance(end, int)), default=begin)


def _who(file: StashFile) -> tuple[Any, ...]:
    """Return the header fields that identify a process image."""
    keys = ("run_id", "host", "boot_id", "pidns", "pid", "incarnation", "start_ticks")
    return tuple(file.metadata.get(key) for key in keys)


def _rows(file: StashFile) -> int:
    return sum(file.row_counts().values())


def _fold(target: Path, sources: Iterable[Path]) -> None:
    """Write ``run.json`` of the merged directory."""
    own: Mapping[str, Any] = read_run_file(target)
    parts: dict[tuple[Any, ...], dict[str, Any]] = {}
    for path in dict.fromkeys([target, *sources]):
        run = read_run_file(path)
        own = own or run
        for part in [
            *([run] if "launcher_pid" in run or "run_id" in run else []),
            *run.get("parts", []),
            *launchers(path),
        ]:
            key = tuple(part.get(name) for name in ("run_id", "host", "launcher_pid", "begin_realtime_ns"))
            if key not in parts or "exit_code" in part:
                parts[key] = part
    if not parts or (len(parts) == 1 and not own.get("job")):
        if own and not (target / RUN_FILE).exists():
            write_run_file(target, own)
        return
    ordered = sorted(parts.values(), key=lambda part: part.get("begin_realtime_ns") or 0)
    write_run_file(target, folded({**ordered[0], **own}, ordered))


def _drop(stem: Path) -> None:
    for suffix in TRACE_SUFFIXES:
        stem.with_name(stem.name + suffix).unlink(missing_ok=True)


def _same(one: str | os.PathLike[str], other: Path) -> bool:
    return other.exists() and os.path.samefile(one, other)


def _list_text(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}"
