"""Decodes collectives, waits for them, and process groups.

A collective without a ``collective_done`` row was still running when recording stopped: its end is -1, so a hang is
visible. On an NCCL group the host never sees an end, since a future of the device completes at the enqueue.
``collective_key`` counts from 0 within the process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.collectors.decode_context import DecodeContext, columns_of, for_each
from stashtrace.schema.groupby import GroupBy, Int64
from stashtrace.schema.kinds import FAILED_STATUS, UNSEEN_STATUS, CollectiveSource
from stashtrace.schema.trace import EventTables, RawProcess, RawRecords

RECORDS = ("collective_call", "collective_done", "collective_wait", "group", "group_count", "group_peer")
TABLES = ("collectives", "collective_waits", "groups", "tracks")

#: Of the flags of a call: from this bit on they are an ElementType.
_ELEMENT_BIT = 8
_LOOPBACK = ("127.", "::1")


def decode(raw: RawProcess, context: DecodeContext) -> EventTables:
    """Fill ``collectives``, ``collective_waits`` and ``groups``; make a track per communicator."""
    tables: dict[str, dict[str, Any]] = {}
    groups = _groups(raw, context)
    if groups:
        tables["groups"] = _group_columns(groups, context)
    calls = raw.rows("collective_call")
    ids: npt.NDArray[np.uint32] = np.empty(0, dtype=np.uint32)
    if calls is not None:
        order = np.argsort(calls["call_ticks"], kind="stable")
        ids = calls["collective_id"][order]
        done = raw.rows("collective_done")
        tables["collectives"] = _collectives(raw.records["collective_call"], order, done, groups, context)
    if raw.rows("collective_wait") is not None:
        tables["collective_waits"] = _waits(raw.records["collective_wait"], ids, context)
    return context.tables(**tables)


def _collectives(
    calls: RawRecords,
    order: Int64,
    done: npt.NDArray[np.void] | None,
    groups: dict[int, _Group],
    context: DecodeContext,
) -> dict[str, Any]:
    rows = calls.rows[order]
    count = len(rows)
    unseen = np.full(count, -1, dtype=np.int64)
    columns: dict[str, Any] = {"return_ns": unseen, "begin_ns": unseen, "end_ns": unseen}
    status = np.full(count, UNSEEN_STATUS, dtype=np.int64)
    if done is not None:
        at = GroupBy(done["collective_id"]).row_of(rows["collective_id"])
        seen = at >= 0
        ends = done[at[seen]]
        for column, field in (("return_ns", "return_ticks"), ("begin_ns", "begin_ticks"), ("end_ns", "end_ticks")):
            values = unseen.copy()
            values[seen] = context.to_ns_or_unseen(ends[field])
            columns[column] = values
        status[seen] = ends["status_code"]
    hashes = rows["group_hash"]
    context.nccl_groups = {h for h, group in groups.items() if group.backend == "nccl"}
    on_device = np.isin(hashes, np.array(sorted(context.nccl_groups), dtype=np.uint64))
    for column in ("begin_ns", "end_ns"):
        columns[column] = np.where(on_device, -1, columns[column])
    status = np.where(on_device & (status != FAILED_STATUS), UNSEEN_STATUS, status)

    def communicator(group_hash: int) -> int:
        name = groups[group_hash].name if group_hash in groups else f"group {group_hash:x}"
        return context.communicator_track(group_hash, name)

    fields = ("group_hash", "sequence", "op_code", "message_bytes", "peer_rank")
    flags = rows["collective_flags"].astype(np.int64)
    return {
        **columns_of(rows, *fields),
        "collective_flags": flags & ((1 << _ELEMENT_BIT) - 1),
        "element_code": flags >> _ELEMENT_BIT,
        "collective_key": np.arange(count, dtype=np.int64),
        "process_id": context.process_id,
        "rank": context.rank,
        "track_id": context.tracks(calls.tid)[order],
        "communicator_track_id": for_each(hashes, communicator),
        "name_code": context.codes(rows["name_id"]),
        "call_ns": context.to_ns(rows["call_ticks"]),
        "status_code": status,
        "source_code": int(CollectiveSource.HOST),
        "device_begin_ns": -1,
        "device_end_ns": -1,
        "stream_track_id": -1,
        **columns,
    }


def _waits(waits: RawRecords, ids: npt.NDArray[np.uint32], context: DecodeContext) -> dict[str, Any]:
    begin = context.to_ns(waits.rows["begin_ticks"])
    order = np.argsort(begin, kind="stable")
    return {
        "begin_ns": begin[order],
        "end_ns": context.to_ns(waits.rows["end_ticks"])[order],
        "track_id": context.tracks(waits.tid)[order],
        "process_id": context.process_id,
        "collective_key": GroupBy(ids).row_of(waits.rows["collective_id"])[order],
    }


# Groups -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Group:
    """A process group as this rank knows it; ``crosses_hosts`` is -1 as long as no evidence says."""

    name: str
    backend: str
    members: str
    rank: int
    size: int
    observed_count: int = -1
    backend_count: int = -1
    crosses_hosts: int = -1
    evidence: str = "no connection seen"


def _groups(raw: RawProcess, context: DecodeContext) -> dict[int, _Group]:
    rows = raw.rows("group")
    groups: dict[int, _Group] = {}
    for row in [] if rows is None else rows:
        name, backend, members = (context.text(row[field]) for field in ("name_id", "backend_id", "members_id"))
        rank, size = int(row["group_rank"]), int(row["group_size"])
        groups[int(row["group_hash"])] = _Group(name, backend, members, rank, size)
    counts = raw.rows("group_count")
    for row in [] if counts is None else np.sort(counts, order="ticks"):
        group = groups.get(int(row["group_hash"]))
        if group is not None:
            group.observed_count, group.backend_count = int(row["observed_count"]), int(row["backend_count"])
    _locate(groups, raw.rows("group_peer"), context)
    return groups


def _locate(groups: dict[int, _Group], peers: npt.NDArray[np.void] | None, context: DecodeContext) -> None:
    """Find out for each group whether its connections leave the host, and note the evidence."""
    for group in groups.values():
        if group.size == 1:
            group.crosses_hosts, group.evidence = 0, "one member"
    for row in [] if peers is None else peers:
        linked = groups.get(int(row["group_hash"]))
        if linked is None or linked.crosses_hosts == 1:
            continue
        own, peer = _host(context.text(row["local_id"])), _host(context.text(row["peer_id"]))
        inside = own == peer or (own.startswith(_LOOPBACK) and peer.startswith(_LOOPBACK))
        linked.crosses_hosts, linked.evidence = int(not inside), f"connected to {peer} from {own}"
    known = [(group, set(group.members.split(","))) for group in groups.values() if group.crosses_hosts >= 0]
    for group in groups.values():
        if group.crosses_hosts >= 0 or not known:
            continue
        members = set(group.members.split(","))
        for other, others in known:
            if members == others or (other.crosses_hosts == 0 and members < others):
                group.crosses_hosts, group.evidence = other.crosses_hosts, f"like {other.name}: {other.evidence}"
                break


def _host(address: str) -> str:
    return address.rpartition(":")[0] or address


def _group_columns(groups: dict[int, _Group], context: DecodeContext) -> dict[str, Any]:
    listed, codes = list(groups.values()), context.strings.codes
    return {
        "process_id": context.process_id,
        "rank": context.rank,
        "group_hash": np.array(list(groups), dtype=np.uint64),
        "name_code": codes(group.name for group in listed),
        "backend_code": codes(group.backend for group in listed),
        "members_code": codes(group.members for group in listed),
        "group_rank": [group.rank for group in listed],
        "group_size": [group.size for group in listed],
        "observed_count": [group.observed_count for group in listed],
        "backend_count": [group.backend_count for group in listed],
        "crosses_hosts": [group.crosses_hosts for group in listed],
        "locality_code": codes(group.evidence for group in listed),
    }
