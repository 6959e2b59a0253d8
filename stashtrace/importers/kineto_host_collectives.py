"""Collectives that the host carries out (gloo, MPI, UCC), in a Kineto file. Used by ``kineto``.

Torch records one event for each, on the backend's thread, from the begin of the work to its end; who called it, and in
which group, is not said. All are taken as of one group: the only one of ``pg_config``, else that of all ranks.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re

import numpy as np

from stashtrace.importers.kineto_collectives import PER_STEP, Group, add_groups, op_of
from stashtrace.importers.kineto_host import Steps
from stashtrace.importers.kineto_reading import ABSENT, is_rank
from stashtrace.importers.kineto_rows import FileRows
from stashtrace.model.kinds import CollectiveSource

_ON_HOST = re.compile(r"^(gloo|mpi|ucc):")


def add_host_collectives(rows: FileRows, steps: Steps) -> None:
    """Fill ``collectives`` and ``groups`` with what ran on the host."""
    work = rows.file.rows["comms"]
    work = work.take((work.begin_ns != ABSENT) & rows.file.matching(work.name, _ON_HOST))
    if not len(work):
        return
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


def _group(rows: FileRows) -> Group:
    listed = (rows.file.top.get("distributedInfo") or {}).get("pg_config")
    only = listed[0] if isinstance(listed, list) and len(listed) == 1 and isinstance(listed[0], dict) else {}
    world = rows.context.processes[rows.process_id].world_size
    ranks = only.get("ranks")
    known = ranks if isinstance(ranks, list) and all(map(is_rank, ranks)) else []
    members = tuple(known or range(max(world, 0)))
    name = str(only.get("pg_desc") or "all ranks")
    return Group(name, members, len(members) or -1, f"host {name} of {world}")
