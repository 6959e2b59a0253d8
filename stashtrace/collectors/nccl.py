"""Decodes NCCL's operations: as called, as the plugin saw them, as the events around them timed them.

Called through the registry by ``align.align``. One row per call, whoever timed it: the plugin's stamps of the kernel if
it has them, else the events of the bracket whose correlation_id is the call (in a group: the bracket of its stream).
Tasks of the plugin without a call have rows of their own. ``align.collective_merge`` then joins them with torch's
calls. A row belongs to the communicator, or to a *lane* of it: messages of one pair of ranks and replays of graphs
count on their own, because other ranks do not take part in their numbering.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.collectors.context import DecodeContext, Int64, Lane
from stashtrace.collectors.nccl_times import Timed, time_rows
from stashtrace.model.kinds import CollectiveOp, CommEvent, NcclFlag
from stashtrace.model.trace import EventTables, RawProcess

RECORDS = (
    "nccl_comm", "nccl_call", "nccl_task", "nccl_channel", "nccl_proxy", "device_bracket", "stream_info",
)  # fmt: skip
TABLES = ("collectives", "collective_details", "groups", "metadata", "tracks")

UNSEEN_STATUS = 3
#: ncclInProgress: launched later by another thread, which is no failure.
_IN_PROGRESS = 7
_MESSAGES = (CollectiveOp.SEND, CollectiveOp.RECEIVE)
_NAMES = {op: "nccl" + "".join(w.capitalize() for w in op.name.split("_")) for op in CollectiveOp} | {
    CollectiveOp.ALL_TO_ALL: "ncclAlltoAll",
    CollectiveOp.RECEIVE: "ncclRecv",
}


def decode(raw: RawProcess, context: DecodeContext) -> EventTables:
    """Fill ``collectives``, ``collective_details`` and ``groups``; make a track per communicator."""
    context.name_streams(raw)
    tables: dict[str, dict[str, Any]] = {}
    groups = _groups(raw, context)
    timed = time_rows(raw, context)
    if timed is not None:
        tables["collectives"] = _collectives(timed, groups, context)
        tables["collective_details"] = _details(timed, context)
        if timed.check:
            tables["metadata"] = {
                "process_id": context.process_id,
                "key_code": np.array([context.strings.code("nccl.events_beside_plugin")]),
                "value_code": np.array([context.strings.code(timed.check)]),
            }
    if groups:
        tables["groups"] = _group_columns(groups, context)
    return context.tables(**tables)


def _groups(raw: RawProcess, context: DecodeContext) -> dict[int, dict[str, Any]]:
    """Group hash -> what is known about the communicator; operations of one never announced add it as unknown."""
    found: dict[int, dict[str, Any]] = {}
    records = raw.records.get("nccl_comm")
    for row in [] if records is None else np.sort(records.rows, order="begin_ticks"):
        if int(row["group_hash"]) == 0:
            continue
        entry = found.setdefault(int(row["group_hash"]), {"name": "", "rank": -1, "size": -1, "nodes": -1})
        if row["event_code"] in (CommEvent.FINALIZE, CommEvent.DESTROY, CommEvent.ABORT):
            continue
        entry["name"] = context.text(row["name_id"]) or entry["name"]
        for key, field in (("rank", "group_rank"), ("size", "group_size"), ("nodes", "nodes_count")):
            entry[key] = int(row[field]) if row[field] >= 0 else entry[key]
    for name in ("nccl_call", "nccl_task"):
        records = raw.records.get(name)
        for value in [] if records is None else np.unique(records.rows["group_hash"]).tolist():
            found.setdefault(value, {"name": "", "rank": -1, "size": -1, "nodes": -1})
    for value, entry in found.items():
        entry["name"] = entry["name"] or f"nccl {value:x}"
    return found


def _group_columns(groups: dict[int, dict[str, Any]], context: DecodeContext) -> dict[str, Any]:
    """Members are global ranks and need the other processes: ``align.communicators`` fills them."""
    code = context.strings.code
    listed = list(groups.values())
    count = len(listed)

    def numbers(values: list[int]) -> Int64:
        return np.array(values, dtype=np.int64)

    evidence = ["one member" if g["size"] == 1 else f"NCCL counts {g['nodes']} hosts" for g in listed]
    crosses = [0 if g["size"] == 1 or g["nodes"] == 1 else 1 if g["nodes"] > 1 else -1 for g in listed]
    return {
        "process_id": np.full(count, context.process_id),
        "rank": context.rank,
        "group_hash": np.array(list(groups), dtype=np.uint64),
        "name_code": context.strings.codes(g["name"] for g in listed),
        "backend_code": code("nccl"),
        "members_code": code(""),
        "group_rank": numbers([g["rank"] for g in listed]),
        "group_size": numbers([g["size"] for g in listed]),
        "observed_count": -1,
        "backend_count": -1,
        "crosses_hosts": numbers(crosses),
        "locality_code": context.strings.codes(
            e if c >= 0 else "host count unknown" for e, c in zip(evidence, crosses, strict=True)
        ),
    }


def _collectives(timed: Timed, groups: dict[int, dict[str, Any]], context: DecodeContext) -> dict[str, Any]:
    group, sequence, peer = _number(timed, groups, context)
    hashes, inverse = np.unique(group, return_inverse=True)
    tracks = [context.communicator_track(h, groups[h]["name"] if h in groups else f"nccl {h:x}")
              for h in hashes.tolist()]  # fmt: skip
    failed = ((timed.flags & NcclFlag.FAILED) != 0) | ~np.isin(timed.status, (0, _IN_PROGRESS))
    known = timed.device_begin_ns >= 0
    names = context.strings.codes(_NAMES[op] for op in CollectiveOp)
    return {
        "collective_key": np.arange(len(timed), dtype=np.int64),
        "process_id": context.process_id,
        "rank": context.rank,
        "track_id": timed.track_id,
        "communicator_track_id": np.array(tracks, dtype=np.int64)[inverse],
        "group_hash": group,
        "sequence": sequence,
        "op_code": timed.op,
        "name_code": names[np.where(timed.op < len(names), timed.op, 0)],
        "message_bytes": timed.message_bytes,
        "peer_rank": peer,
        "collective_flags": 0,
        "call_ns": timed.call_ns,
        "return_ns": timed.return_ns,
        "begin_ns": timed.device_begin_ns,
        "end_ns": timed.device_end_ns,
        "status_code": np.where(failed, 1, np.where(known, 0, UNSEEN_STATUS)),
        "source_code": timed.source,
        "device_begin_ns": timed.device_begin_ns,
        "device_end_ns": timed.device_end_ns,
        "stream_track_id": timed.stream_track_id,
    }


def _details(timed: Timed, context: DecodeContext) -> dict[str, Any]:
    return {
        "collective_key": np.arange(len(timed), dtype=np.int64),
        "process_id": context.process_id,
        "algorithm_code": context.codes(timed.algorithm_id),
        "protocol_code": context.codes(timed.protocol_id),
        "channels_count": timed.channels_count,
        "timed_count": timed.timed_count,
        "nccl_flags": timed.flags,
        "batch_key": timed.batch_id,
        **timed.proxies,
        **timed.channels,
    }


def lane_hash(group_hash: int, *parts: object) -> int:
    """Identity of a lane, the same on every rank."""
    text = "\0".join(map(str, (group_hash, *parts)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _number(
    timed: Timed, groups: dict[int, dict[str, Any]], context: DecodeContext
) -> tuple[npt.NDArray[np.uint64], Int64, Int64]:
    """(group or lane, number in it, peer in it) of each row, so that equal ones are one operation on every rank.

    NCCL's own numbers count messages too, which differ between ranks: they are taken out again. Numbers of collectives
    are not counted anew, so that lost rows leave a gap and shift nothing.
    """
    hashes, comm = np.unique(timed.group_hash, return_inverse=True)
    comm = comm.astype(np.int64)
    # Puts and signals (OTHER) go to one rank, too, and wake whoever waits for them.
    message = np.isin(timed.op, (*_MESSAGES, CollectiveOp.OTHER))
    order = np.lexsort((timed.call_ns, timed.sequence, comm))
    before: Int64 = np.cumsum(message[order]) - message[order]
    first = np.searchsorted(comm[order], comm[order])
    sequence = timed.sequence.copy()
    sequence[order] -= before - before[first]

    # Lanes: 0 the communicator itself, 1 replays of graphs, 2 tasks whose call was not seen beside calls that were,
    # 3 one-sided operations, from 4 on the pairs of ranks that exchange messages.
    own = np.array([groups[h]["rank"] for h in hashes.tolist()], dtype=np.int64)[comm]
    has_calls = np.zeros(len(hashes), dtype=bool)
    has_calls[comm[timed.called]] = True
    replayed = (timed.flags & NcclFlag.REPLAYED) != 0
    pair = np.isin(timed.op, _MESSAGES) & timed.called & (own >= 0) & (timed.peer >= 0)
    sends = timed.op == CollectiveOp.SEND
    source, target = np.where(sends, own, timed.peer), np.where(sends, timed.peer, own)
    lane = np.where(pair, 4 + 2 * timed.peer + sends, np.where(replayed, 1, 0))
    lane = np.where(timed.called & (timed.op == CollectiveOp.OTHER), 3, lane)
    lane = np.where(~timed.called & ~replayed & (has_calls[comm] | message), 2, lane)
    peer = np.where(pair, sends.astype(np.int64), timed.peer)

    counted = (lane > 0) | ~timed.called
    key = comm * (int(lane.max()) + 1) + lane
    chosen = np.flatnonzero(counted)
    chosen = chosen[np.lexsort((timed.sequence[chosen], timed.call_ns[chosen], key[chosen]))]
    sequence[chosen] = np.arange(len(chosen)) - np.searchsorted(key[chosen], key[chosen])

    group = hashes[comm].astype(np.uint64)
    _, example, inverse = np.unique(key, return_index=True, return_inverse=True)
    named = group[example].copy()
    for at, row in enumerate(example.tolist()):
        base, number = int(group[row]), int(lane[row])
        if number:
            ends = (int(source[row]), int(target[row])) if number > 3 else ()
            kind = ("", "graph replays", "calls unseen", "one-sided", "messages")[min(number, 4)]
            value = lane_hash(base, kind, *ends)
            context.lanes[value] = Lane(base, kind, ends)
            named[at] = value
    return named[inverse], sequence, peer
