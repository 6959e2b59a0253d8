"""Decodes collectives, the waits for them, and the process groups they belong to.

Called through the registry by ``loading.load``. A collective without a ``collective_done`` row was still
running when recording stopped: its end is -1, which is how a hang shows. On an NCCL group the host never sees an end:
a future of the device completes at the enqueue. ``collective_key`` counts from 0 within the process.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.collectors.context import DecodeContext
from stashtrace.schema.kinds import CollectiveSource
from stashtrace.schema.trace import EventTables, RawProcess, RawRecords

RECORDS = ("collective_call", "collective_done", "collective_wait", "group", "group_count", "group_peer")
TABLES = ("collectives", "collective_waits", "groups", "tracks")

FAILED_STATUS, UNSEEN_STATUS = 1, 3
_LOOPBACK = ("127.", "::1")


def decode(raw: RawProcess, context: DecodeContext) -> EventTables:
    """Fill ``collectives``, ``collective_waits`` and ``groups``; make a track per communicator."""
    tables: dict[str, dict[str, Any]] = {}
    groups = _groups(raw, context)
    if groups:
        tables["groups"] = _group_columns(groups, context)
    calls = raw.records.get("collective_call")
    ids: npt.NDArray[np.uint32] = np.empty(0, dtype=np.uint32)
    if calls is not None and len(calls.rows):
        order = np.argsort(calls.rows["call_ticks"], kind="stable")
        ids = calls.rows["collective_id"][order]
        tables["collectives"] = _collectives(calls, order, raw.records.get("collective_done"), groups, context)
    waits = raw.records.get("collective_wait")
    if waits is not None and len(waits.rows):
        tables["collective_waits"] = _waits(waits, ids, context)
    return context.tables(**tables)


def _positions(ids: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Index in ``ids`` of each wanted value, -1 where there is none."""
    if len(ids) == 0:
        return np.full(len(wanted), -1, dtype=np.int64)
    order = np.argsort(ids, kind="stable")
    at = order[np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)]
    return np.where(ids[at] == wanted, at, -1).astype(np.int64)


def _collectives(
    calls: RawRecords,
    order: npt.NDArray[np.int64],
    done: RawRecords | None,
    groups: dict[int, dict[str, Any]],
    context: DecodeContext,
) -> dict[str, Any]:
    rows = calls.rows[order]
    count = len(rows)
    unseen = np.full(count, -1, dtype=np.int64)
    columns: dict[str, Any] = {"return_ns": unseen, "begin_ns": unseen, "end_ns": unseen}
    status = np.full(count, UNSEEN_STATUS, dtype=np.int64)
    if done is not None and len(done.rows):
        at = _positions(done.rows["collective_id"], rows["collective_id"])
        seen = at >= 0
        ends = done.rows[at[seen]]
        for column, field in (("return_ns", "return_ticks"), ("begin_ns", "begin_ticks"), ("end_ns", "end_ticks")):
            values = unseen.copy()
            values[seen] = context.to_ns_or_unseen(ends[field])
            columns[column] = values
        status[seen] = ends["status_code"]
    hashes = rows["group_hash"]
    context.nccl_groups = {h for h, group in groups.items() if group["backend"] == "nccl"}
    on_device = np.isin(hashes, np.array(sorted(context.nccl_groups), dtype=np.uint64))
    for column in ("begin_ns", "end_ns"):
        columns[column] = np.where(on_device, -1, columns[column])
    status = np.where(on_device & (status != FAILED_STATUS), UNSEEN_STATUS, status)
    communicators = {
        int(h): context.communicator_track(int(h), groups[int(h)]["name"] if int(h) in groups else f"group {int(h):x}")
        for h in np.unique(hashes)
    }
    return {
        "collective_key": np.arange(count, dtype=np.int64),
        "process_id": context.process_id,
        "rank": context.rank,
        "track_id": context.tracks(calls.tid)[order],
        "communicator_track_id": np.array([communicators[int(h)] for h in hashes], dtype=np.int64),
        "group_hash": hashes,
        "sequence": rows["sequence"].astype(np.int64),
        "op_code": rows["op_code"].astype(np.int64),
        "name_code": context.codes(rows["name_id"]),
        "message_bytes": rows["message_bytes"],
        "peer_rank": rows["peer_rank"].astype(np.int64),
        "collective_flags": rows["collective_flags"].astype(np.int64),
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
        "collective_key": _positions(ids, waits.rows["collective_id"])[order],
    }


# Groups -----------------------------------------------------------------------------------------


def _groups(raw: RawProcess, context: DecodeContext) -> dict[int, dict[str, Any]]:
    """Group hash -> what is known about it."""
    records = raw.records.get("group")
    found: dict[int, dict[str, Any]] = {}
    for row in [] if records is None else records.rows:
        found[int(row["group_hash"])] = {
            "name": context.text(row["name_id"]),
            "backend": context.text(row["backend_id"]),
            "members": context.text(row["members_id"]),
            "rank": int(row["group_rank"]),
            "size": int(row["group_size"]),
            "observed": -1,
            "counted": -1,
        }
    counts = raw.records.get("group_count")
    for row in [] if counts is None else np.sort(counts.rows, order="ticks"):
        counted = found.get(int(row["group_hash"]))
        if counted is not None:
            counted["observed"], counted["counted"] = int(row["observed_count"]), int(row["backend_count"])
    _locate(found, raw.records.get("group_peer"), context)
    return found


def _locate(groups: dict[int, dict[str, Any]], peers: RawRecords | None, context: DecodeContext) -> None:
    """Say for each group whether its connections leave the host, and how that is known."""
    for group in groups.values():
        group["crosses"], group["evidence"] = (0, "one member") if group["size"] == 1 else (-1, "no connection seen")
    for row in [] if peers is None else peers.rows:
        linked = groups.get(int(row["group_hash"]))
        if linked is None or linked["crosses"] == 1:
            continue
        own, peer = _host(context.text(row["local_id"])), _host(context.text(row["peer_id"]))
        inside = own == peer or (own.startswith(_LOOPBACK) and peer.startswith(_LOOPBACK))
        linked["crosses"], linked["evidence"] = int(not inside), f"connected to {peer} from {own}"
    known = [g for g in groups.values() if g["crosses"] >= 0]
    for group in groups.values():
        if group["crosses"] >= 0:
            continue
        members = set(group["members"].split(","))
        for other in known:
            others = set(other["members"].split(","))
            if members == others or (other["crosses"] == 0 and members < others):
                group["crosses"], group["evidence"] = other["crosses"], f"like {other['name']}: {other['evidence']}"
                break


def _host(address: str) -> str:
    return address.rpartition(":")[0] or address


def _group_columns(groups: dict[int, dict[str, Any]], context: DecodeContext) -> dict[str, Any]:
    code = context.strings.code
    listed = list(groups.values())

    def numbers(key: str) -> npt.NDArray[np.int64]:
        return np.array([g[key] for g in listed], dtype=np.int64)

    def texts(key: str) -> npt.NDArray[np.int64]:
        return np.array([code(g[key]) for g in listed], dtype=np.int64)

    return {
        "process_id": context.process_id,
        "rank": context.rank,
        "group_hash": np.array(list(groups), dtype=np.uint64),
        "name_code": texts("name"),
        "backend_code": texts("backend"),
        "members_code": texts("members"),
        "group_rank": numbers("rank"),
        "group_size": numbers("size"),
        "observed_count": numbers("observed"),
        "backend_count": numbers("counted"),
        "crosses_hosts": numbers("crosses"),
        "locality_code": texts("evidence"),
    }
