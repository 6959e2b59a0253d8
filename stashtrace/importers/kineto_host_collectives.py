"""Collectives that the host carries out (gloo, MPI, UCC), in a Kineto file. Used by ``kineto``.

Torch records one event for each, on the backend's thread, from the begin of the work to its end; who called it, and in
which group, is not said. All are taken as of one group: the only one of ``pg_config``, else that of all ranks.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from stashtrace.importers.kineto_collectives import PER_STEP, Group, add_groups, op_of
from stashtrace.importers.kineto_host import Steps
from stashtrace.importers.kineto_reading import ABSENT, Int64, is_rank
from stashtrace.importers.kineto_rows import FileRows
from stashtrace.model.kinds import OPERATORS, CollectiveSource, SpanKind

#: Operators less than this apart belong to one stretch of work.
_SAME_STRETCH_NS = 50_000
_ON_HOST = re.compile(r"^(gloo|mpi|ucc):")


def add_host_collectives(rows: FileRows, steps: Steps) -> bool:
    """Fill ``collectives`` and ``groups`` with what ran on the host; whether there was any."""
    work = rows.file.rows["comms"]
    work = work.take((work.begin_ns != ABSENT) & rows.file.matching(work.name, _ON_HOST))
    if not len(work):
        return False
    work = work.take(np.argsort(work.begin_ns, kind="stable"))
    backend = rows.file.text(int(work.name[0])).partition(":")[0]
    group = _group(rows)
    place = steps.at(work.begin_ns)
    first = int(steps.number[0]) if len(steps.number) else 0
    number = np.where(place >= 0, np.append(steps.number, first)[place], first - 1)
    nth = np.arange(len(work)) - np.searchsorted(place, place)
    rows.context.add(
        "collectives",
        process_id=np.full(len(work), rows.process_id),
        track_id=rows.threads(work.tid),
        communicator_track_id=rows.context.tracks.communicator(rows.process_id, group.hash, group.name),
        group_hash=np.full(len(work), group.hash, dtype=np.uint64),
        sequence=(number + 1) * PER_STEP + nth,
        op_code=rows.coded(work.name, op_of),
        name_code=rows.codes(work.name, lambda name: name.partition(":")[2]),
        call_ns=work.begin_ns,
        begin_ns=work.begin_ns,
        end_ns=work.end_ns,
        source_code=int(CollectiveSource.HOST),
    )
    rows.context.number_anew(group.hash)
    add_groups(rows, [group], backend)
    return True


def add_operators(rows: FileRows, operators: Mapping[int, tuple[Int64, Int64]], steps: Steps) -> None:
    """Annotations where threads ran operators: beside them, a thread with a collective in flight may wait for it.

    Operators with little between them are one stretch; it is cut where steps begin and end, so that each lies in one.
    """
    edges = np.union1d(steps.begin_ns, steps.end_ns)
    borders = np.append(edges, np.iinfo(np.int64).max)
    for number, (begin, end) in sorted(operators.items()):
        order = np.argsort(begin, kind="stable")
        begin, reach = begin[order], np.maximum.accumulate(end[order])
        first = np.flatnonzero(np.append(True, begin[1:] - reach[:-1] > _SAME_STRETCH_NS))
        last = np.append(first[1:], len(begin)) - 1
        begin, end = begin[first], reach[last]
        after, until = np.searchsorted(edges, begin, "right"), np.searchsorted(edges, end, "left")
        parts = until - after + 1
        row = np.repeat(np.arange(len(begin)), parts)
        nth = np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)
        rows.context.add(
            "spans",
            begin_ns=np.where(nth == 0, begin[row], borders[after[row] + nth - 1]),
            end_ns=np.where(nth == parts[row] - 1, end[row], borders[np.minimum(after[row] + nth, len(borders) - 1)]),
            track_id=np.full(len(row), rows.context.tracks.thread(rows.process_id, number)),
            kind_code=int(SpanKind.USER),
            name_code=rows.context.code(OPERATORS),
        )


def _group(rows: FileRows) -> Group:
    listed = (rows.file.top.get("distributedInfo") or {}).get("pg_config")
    only = listed[0] if isinstance(listed, list) and len(listed) == 1 and isinstance(listed[0], dict) else {}
    world = rows.context.processes[rows.process_id].world_size
    ranks = only.get("ranks")
    known = ranks if isinstance(ranks, list) and all(map(is_rank, ranks)) else []
    members = tuple(known or range(max(world, 0)))
    name = str(only.get("pg_desc") or "all ranks")
    return Group(name, members, len(members) or -1, f"host {name} of {world}")
