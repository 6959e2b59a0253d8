"""Collectives that some ranks have entered and others have not, and the newest moment of a run.

The newest moment is that of the newest row of the run. Samplers add rows ten times a second while a process lives.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stashtrace.schema.kinds import SYNCHRONISING_OPS, CollectiveOp
from stashtrace.schema.strings import ranks_of
from stashtrace.schema.trace import Trace

#: A wait for a collective longer than this is worth a line.
SUSPICIOUS_NS = 1_000_000_000
_TIME_COLUMNS = ("end_ns", "ts_ns", "call_ns", "return_ns")


@dataclass(frozen=True, slots=True)
class Waiting:
    """A collective that some ranks have entered and others have not.

    Attributes
    ----------
    group : str
    operation : str
        As in ``all_reduce``.
    sequence : int
        Number within the group.
    message_bytes : int
    inside, missing : tuple of int
        Ranks.
    last : dict of int to int
        Last sequence that each missing rank called, -1 if none.
    since_ns : int
        Time since the first of the ranks inside entered.
    """

    group: str
    operation: str
    sequence: int
    message_bytes: int
    inside: tuple[int, ...]
    missing: tuple[int, ...]
    last: dict[int, int]
    since_ns: int


def newest_ns(trace: Trace, *, activity: bool = False, rank: int | None = None) -> int:
    """Return the time of the newest row; with ``activity``, counters and samples do not count."""
    newest = 0
    tables = ["phases", "batches", "collectives", "collective_waits", "waits", "spans", "io"]
    owner = dict(zip(trace.tracks["track_id"].tolist(), trace.tracks["process_id"].tolist(), strict=True))
    processes = trace.processes
    mine = set(processes["process_id"][processes["rank"] == rank].tolist()) if rank is not None else None
    for name in tables if activity else [*tables, "counters"]:
        table = trace.table(name)
        if mine is not None and len(table):
            ids = (
                table["process_id"]
                if "process_id" in table
                else np.array([owner[t] for t in table["track_id"].tolist()])
            )
            table = table.take(np.isin(ids, sorted(mine)))
        for column in _TIME_COLUMNS:
            if column in table and len(table):
                newest = max(newest, int(table[column].max()))
    return newest


def waiting_collectives(trace: Trace, now_ns: int) -> list[Waiting]:
    """Return the collectives that some members have entered and others have not, longest wait first."""
    waiting = []
    rows = trace.collectives
    for group in np.unique(trace.groups["group_hash"]):
        described = trace.groups.take(trace.groups["group_hash"] == group)
        members = ranks_of(trace.text(described["members_code"][0]))
        calls = rows.take(rows["group_hash"] == group)
        last = {r: int(calls["sequence"][calls["rank"] == r].max(initial=-1)) for r in members}
        behind = [r for r in members if last[r] < max(last.values())]
        if not behind:
            continue
        # The oldest incomplete collective counts: everything behind it waits for the same ranks.
        sequence = min(last[r] for r in behind) + 1
        entered = calls.take(calls["sequence"] == sequence)
        # If no member can be done before all have entered, an end is that of a stopped job, not of the wait.
        needs_all = np.isin(entered["op_code"], SYNCHRONISING_OPS)
        entered = entered.take(needs_all | (entered["end_ns"] < 0))
        if not len(entered):
            continue
        ended = int(entered["end_ns"].max())
        missing = [r for r in members if last[r] < sequence]
        waiting.append(
            Waiting(
                trace.text(described["name_code"][0]),
                CollectiveOp(int(entered["op_code"][0])).name.lower(),
                sequence,
                int(entered["message_bytes"].max()),
                tuple(sorted(int(r) for r in entered["rank"])),
                tuple(missing),
                {r: last[r] for r in missing},
                (ended if (entered["end_ns"] >= 0).all() else now_ns) - int(entered["call_ns"].min()),
            )
        )
    return sorted(waiting, key=lambda w: -w.since_ns)
