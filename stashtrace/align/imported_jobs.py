"""Do the files of one load belong together? Ranks that are missing or doubled, of other jobs, of another time.

Used by ``imported``. What does not fit stays in the trace; it is only matched with nobody, and a loss row says so.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from stashtrace.errors import ImporterError
from stashtrace.importers.context import Claim, ImportContext, ImportedProcess
from stashtrace.model.kinds import ProcessRole, Severity, SpanKind
from stashtrace.model.table import Array
from stashtrace.model.trace import EventTables
from stashtrace.units import ranks_text

#: Recordings further apart than this are not of the same moment, however their clocks differ.
_APART_NS = 60_000_000_000
_SHOWN_WIDTH = 60
_FILES_AT_MOST, _JOBS_AT_MOST = 3, 4


def note_ranks(context: ImportContext) -> None:
    """Ranks that are missing, those that two processes claim, and sizes of the job that differ."""
    ranks = Counter(p.rank for p in context.processes if p.rank >= 0 and p.role == ProcessRole.RANK)
    twice = sorted(rank for rank, count in ranks.items() if count > 1)
    if twice:
        context.lose(
            "rank_seen_twice",
            len(twice),
            advice=f"two processes say that they are rank {twice[0]} ({_sources(context, twice[0])}):"
            " files of different runs lie here together",
        )
    worlds = sorted({p.world_size for p in context.processes if p.world_size > 0})
    if len(worlds) > 1:
        context.lose(
            "jobs_of_different_size",
            len(worlds),
            severity=Severity.ERROR,
            advice=f"files say that their job has {' and '.join(map(str, worlds))} ranks: they are not of one job",
        )
    missing = [rank for rank in range(worlds[-1]) if rank not in ranks] if ranks and worlds else []
    if missing:
        context.lose(
            "missing_ranks",
            len(missing),
            severity=Severity.ERROR,
            advice=f"no file of {_listed(missing)} of {worlds[-1]}: who was late is only known among the others",
        )


def refuse_several_jobs(context: ImportContext, paths: Sequence[str], spans_ns: Mapping[int, tuple[int, int]]) -> None:
    """Raise ImporterError if files say that they are of jobs of different size, or two of them hold the same rank.

    One table of both would be of neither. What different formats say of a rank is of one job.
    """
    for importer in dict.fromkeys(claim.importer for claim in context.claims):
        own = [claim for claim in context.claims if claim.importer == importer]
        by_size = _by_size(own)
        jobs = by_size or _by_rank(own, spans_ns)
        if not jobs:
            continue
        folder = paths[0] if len(paths) == 1 else os.path.commonpath([os.path.dirname(c.path) or "." for c in own])
        hint = "put the files of each job into a folder of its own; `stashtrace diff A B` compares two"
        if not by_size and any(claim.rank_from == "assumed" for claim in own):
            hint = f"if they are ranks of one job, call the files rank0, rank1, ...; else {hint}"
        told = "; ".join(f"{_files_text(files, folder)} ({why})" for why, files in jobs[:_JOBS_AT_MOST])
        told += f"; and {len(jobs) - _JOBS_AT_MOST} more" if len(jobs) > _JOBS_AT_MOST else ""
        raise ImporterError(f"{folder} holds files of {len(jobs)} jobs: {told}", hint=hint)


def _by_size(claims: Sequence[Claim]) -> list[tuple[str, list[str]]]:
    """Files by the size of their job, where sizes differ."""
    sizes: dict[int, list[str]] = {}
    for claim in claims:
        if claim.world_size > 0:
            sizes.setdefault(claim.world_size, []).append(claim.path)
    if len(sizes) < 2:
        return []
    return [(f"{size} rank{'s' * (size > 1)}", list(dict.fromkeys(files))) for size, files in sorted(sizes.items())]


def _by_rank(claims: Sequence[Claim], spans_ns: Mapping[int, tuple[int, int]]) -> list[tuple[str, list[str]]]:
    """Files by their job, where two processes hold the same rank; jobs by folder, else by time, else by file."""
    holders: dict[int, set[int]] = {}
    for claim in claims:
        holders.setdefault(claim.rank, set()).add(claim.process_id)
    twice = [rank for rank in sorted(holders) if len(holders[rank]) > 1]
    if not twice:
        return []
    moments = _moments([claim.process_id for claim in claims], spans_ns)
    keys = ([os.path.dirname(c.path) for c in claims], [str(moments.get(c.process_id, -1)) for c in claims])
    for key in keys:
        jobs: dict[str, dict[int, set[int]]] = {}
        for claim, value in zip(claims, key, strict=True):
            jobs.setdefault(value, {}).setdefault(claim.rank, set()).add(claim.process_id)
        if len(jobs) > 1 and all(len(p) == 1 for ranks in jobs.values() for p in ranks.values()):
            return [
                (
                    _listed(sorted(jobs[value])),
                    list(dict.fromkeys(c.path for c, at in zip(claims, key, strict=True) if at == value)),
                )
                for value in jobs
            ]
    own = [claim for claim in claims if claim.rank == twice[0]]
    assumed = ", assumed" if own[0].rank_from == "assumed" else ""
    by_process: dict[int, list[str]] = {}
    for claim in own:
        by_process.setdefault(claim.process_id, []).append(claim.path)
    return [(f"rank {twice[0]}{assumed}", list(dict.fromkeys(files))) for files in by_process.values()]


def _moments(processes: Sequence[int], spans_ns: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    """Number of the stretch of time in which each process was recorded; between two nothing was recorded."""
    found: dict[int, int] = {}
    number, latest = -1, 0
    for process in sorted({p for p in processes if p in spans_ns}, key=lambda p: spans_ns[p]):
        begin, end = spans_ns[process]
        number += number < 0 or begin > latest
        latest = max(latest, end) if number >= 0 else end
        found[process] = number
    return found


def _files_text(files: Sequence[str], folder: str) -> str:
    """Files in few words, as they are called from their folder."""
    shown = [os.path.relpath(f, folder) if os.path.isdir(folder) else os.path.basename(f) for f in files]
    more = f" and {len(shown) - _FILES_AT_MOST} more" if len(shown) > _FILES_AT_MOST else ""
    return ", ".join(shown[:_FILES_AT_MOST]) + more


def part_by_time(context: ImportContext, parts: Sequence[EventTables], spans_ns: Mapping[int, tuple[int, int]]) -> None:
    """Keep apart what was not recorded at the same time: collectives of different days have no last rank."""
    clusters = _clusters(context.processes, spans_ns)
    if len(clusters) < 2:
        return
    context.begin("importers", "")
    for place, members in enumerate(clusters[1:], 1):
        ranks = sorted(context.processes[p].rank for p in members)
        context.lose(
            "ranks_of_another_time",
            len(ranks),
            severity=Severity.ERROR,
            advice=f"{_named(ranks)} recorded over a minute apart from the others: matched with nobody"
            f" (in {_few(sorted({context.processes[p].source for p in members}))})",
        )
        for part in parts:
            for name in ("collectives", "groups"):
                table = part.table(name)
                chosen = np.isin(table["process_id"], members)
                if chosen.any():
                    other = table["group_hash"] ^ np.uint64(place)
                    part._tables[name] = table.replace(group_hash=np.where(chosen, other, table["group_hash"]))


def note_steps_twice(context: ImportContext, parts: Sequence[EventTables], names: Sequence[str], owner: Array) -> None:
    """Tell of steps that two files of one process hold: of two jobs whose process ids agree, or of two profilers.

    Parameters
    ----------
    context : ImportContext
    parts : sequence of EventTables
    names : sequence of str
        File of each part.
    owner : array
        Process of each track.
    """
    holder: dict[tuple[int, int], str] = {}
    for part, name in zip(parts, names, strict=True):
        marks = part.spans.take(part.spans["kind_code"] == SpanKind.STEP)
        steps = set(zip(owner[marks["track_id"]].tolist(), marks["value"].tolist(), strict=True))
        twice = sorted(key for key in steps if holder.get(key, name) != name)
        for process, number in twice[:1]:
            context.doubt(
                "steps_seen_twice",
                f"rank {context.processes[process].rank} recorded step {number} in {holder[process, number]}"
                f" and again in {name}: if these are two jobs, analyse them apart",
                process,
            )
        holder.update((key, name) for key in steps if key not in holder)


def note_steps(context: ImportContext, parts: Sequence[EventTables], owner: Array) -> None:
    """Tell of ranks that recorded none of the steps that the others recorded.

    Parameters
    ----------
    context : ImportContext
    parts : sequence of EventTables
    owner : array
        Process of each track.
    """
    numbers: dict[int, set[int]] = {}
    for part in parts:
        marks = part.spans.take(part.spans["kind_code"] == SpanKind.STEP)
        for process, number in zip(owner[marks["track_id"]].tolist(), marks["value"].tolist(), strict=True):
            numbers.setdefault(context.processes[process].rank, set()).add(number)
    numbers.pop(-1, None)
    counts = Counter(number for own in numbers.values() for number in own)
    if not counts:
        return
    usual = min(counts, key=lambda number: (-counts[number], number))
    shared = set[int]().union(*(own for own in numbers.values() if usual in own))
    ranks = {p.rank for p in context.processes if p.rank >= 0 and p.role == ProcessRole.RANK}
    apart = sorted(rank for rank in ranks if not numbers.get(rank, set()) & shared)
    if not apart:
        return
    context.begin("importers", "")
    first, theirs = sorted(numbers.get(apart[0], ())), sorted(shared)
    context.lose(
        "steps_of_their_own",
        len(apart),
        severity=Severity.ERROR,
        advice=f"{_listed(apart)} recorded none of the steps of the others"
        f" (rank {apart[0]}: {_steps_text(first)}, others: {_steps_text(theirs)}): matched with nobody by step",
    )


def _steps_text(numbers: Sequence[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}" if numbers else "none marked"


def _named(ranks: Sequence[int]) -> str:
    return f"{_listed(sorted(set(ranks)))} {'were' if len(ranks) > 1 else 'was'}"


def _sources(context: ImportContext, rank: int) -> str:
    """Files that hold a rank."""
    return _few(list(dict.fromkeys(p.source for p in context.processes if p.rank == rank and p.source)))


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:_FILES_AT_MOST]) + ", ..." * (len(names) > _FILES_AT_MOST)


def _listed(ranks: list[int]) -> str:
    """Ranks in few words."""
    shown = f"rank{'s' if len(ranks) > 1 else ''} {ranks_text(ranks)}"
    return shown if len(shown) <= _SHOWN_WIDTH else f"{len(ranks)} ranks, {ranks[0]} the first,"


def _clusters(processes: Sequence[ImportedProcess], spans_ns: Mapping[int, tuple[int, int]]) -> list[list[int]]:
    """Processes of ranks by the time they were recorded at, the largest cluster first."""
    of_ranks = [p for p in spans_ns if processes[p].rank >= 0 and processes[p].role == ProcessRole.RANK]
    clusters: list[list[int]] = []
    latest = 0
    for process in sorted(of_ranks, key=lambda p: spans_ns[p]):
        begin, end = spans_ns[process]
        if not clusters or begin > latest + _APART_NS:
            clusters.append([])
            latest = end
        clusters[-1].append(process)
        latest = max(latest, end)
    return sorted(clusters, key=len, reverse=True)
