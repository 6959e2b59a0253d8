"""Do the files of one load belong together? Ranks that are missing or doubled, of other jobs, of another time.

Used by ``imported``. What does not fit stays in the trace; it is only matched with nobody, and a loss row says so.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from stashtrace.importers.context import ImportContext, ImportedProcess
from stashtrace.model.kinds import ProcessRole, Severity, SpanKind
from stashtrace.model.table import Array
from stashtrace.model.trace import EventTables
from stashtrace.units import ranks_text

#: Recordings further apart than this are not of the same moment, however their clocks differ.
_APART_NS = 60_000_000_000
_SHOWN_WIDTH = 60


def note_ranks(context: ImportContext) -> None:
    """Ranks that are missing, those that two processes claim, and sizes of the job that differ."""
    ranks = Counter(p.rank for p in context.processes if p.rank >= 0 and p.role == ProcessRole.RANK)
    twice = sorted(rank for rank, count in ranks.items() if count > 1)
    if twice:
        context.lose(
            "rank_seen_twice",
            len(twice),
            advice=f"two processes say that they are rank {twice[0]}: files of different runs lie here together",
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
            advice=f"{_named(ranks)} recorded over a minute apart from the others: matched with nobody",
        )
        for part in parts:
            for name in ("collectives", "groups"):
                table = part.table(name)
                chosen = np.isin(table["process_id"], members)
                if chosen.any():
                    other = table["group_hash"] ^ np.uint64(place)
                    part._tables[name] = table.replace(group_hash=np.where(chosen, other, table["group_hash"]))


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
