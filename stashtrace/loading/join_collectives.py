"""One row per collective: torch's calls and NCCL's calls of one process, joined.

An NCCL call inside a torch call of the same thread is the same collective. The NCCL row stays, because it has the
stream, the device times and a number that is the same on all ranks; it takes the operator's name, the flags and the
caller from torch. A torch call that NCCL carries out by several other operations (an all-to-all of sends and receives)
stays one row, in torch's group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.collectors.decode_context import DecodeContext, Int64, Subgroup
from stashtrace.schema.events import TABLES
from stashtrace.schema.groupby import Bools
from stashtrace.schema.kinds import (
    MESSAGES,
    UNSEEN_STATUS,
    CollectiveFlag,
    CollectiveOp,
    CollectiveSource,
    NcclFlag,
    Severity,
)
from stashtrace.schema.table import Table


@dataclass(slots=True)
class GroupNotes:
    """Facts about communicators, collected from rows for ``loading.join``."""

    #: (NCCL's hash, torch's hash) -> number of operations that both recorded.
    votes: Counter[tuple[int, int]] = field(default_factory=Counter)
    #: Hash of a subgroup -> what the subgroup belongs to.
    subgroups: dict[int, Subgroup] = field(default_factory=dict)

    @classmethod
    def of_all(cls, parts: Iterable[GroupNotes]) -> GroupNotes:
        """Join the notes of several processes."""
        whole = cls()
        for part in parts:
            whole.votes.update(part.votes)
            whole.subgroups.update(part.subgroups)
        return whole


def merge_collectives(
    tables: Mapping[str, list[Table]], context: DecodeContext, notes: GroupNotes
) -> dict[str, list[Table]]:
    """Return ``collectives``, ``collective_waits`` and ``collective_details`` with one row per collective.

    ``tables``: name -> the tables that decoders of one process gave. ``context``: of the process; unknown values are
    counted there as losses. ``notes``: filled with the facts about communicators in the rows. Returns the changed ones
    of the three tables, by name.
    """
    notes.subgroups.update(context.subgroups)
    parts = tables.get("collectives", [])
    host = _only([t for t in parts if t["source_code"][0] == CollectiveSource.HOST])
    device = _only([t for t in parts if t["source_code"][0] != CollectiveSource.HOST])
    on_nccl = np.array(sorted(context.nccl_groups), dtype=np.uint64)
    if not len(device):
        if not len(host):
            return {}
        _count_untimed(host, _only([], "collective_details"), on_nccl, context)
        return {"collectives": [host]}
    inside = _nesting(host, device)
    collapsed = _parts_of_other_calls(host, device, inside)
    _vote(host, device, inside, notes)

    replaced = np.zeros(len(host), dtype=bool)
    replaced[inside[(inside >= 0) & ~collapsed]] = True
    device_rows = _add_torch_facts(host, device, inside, collapsed)
    host_rows = _add_times(host, device, inside, collapsed)
    kept_host, kept_device = np.flatnonzero(~replaced), np.flatnonzero(~collapsed)
    joined = Table.concat(TABLES["collectives"], [host_rows.take(kept_host), device_rows.take(kept_device)])
    order = np.argsort(joined["call_ns"], kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    of_host = np.full(len(host), -1, dtype=np.int64)
    of_device = np.full(len(device), -1, dtype=np.int64)
    of_host[kept_host] = place[: len(kept_host)]
    of_device[kept_device] = place[len(kept_host) :]
    of_host[inside[kept_device][inside[kept_device] >= 0]] = of_device[kept_device[inside[kept_device] >= 0]]
    of_device[collapsed] = of_host[inside[collapsed]]
    merged = joined.take(order).replace(collective_key=np.arange(len(order), dtype=np.int64))
    changed = {"collectives": [merged]}
    if "collective_waits" in tables:
        changed["collective_waits"] = [_renumber(t, of_host) for t in tables["collective_waits"]]
    details = _details(_only(tables.get("collective_details", []), "collective_details"), of_device, merged)
    if len(details):
        changed["collective_details"] = [details]
    _count_untimed(merged, details, on_nccl, context)
    return changed


def _only(parts: list[Table], name: str = "collectives") -> Table:
    return Table.concat(TABLES[name], parts) if parts else Table.empty(TABLES[name])


def _nesting(host: Table, device: Table) -> Int64:
    """Return for each row of ``device`` the row of ``host`` inside which it was called; -1 if none."""
    inside = np.full(len(device), -1, dtype=np.int64)
    if not len(host):
        return inside
    # A call whose return was not recorded lasts until the next call of its thread.
    order = np.lexsort((host["call_ns"], host["track_id"]))
    track, call = host["track_id"][order], host["call_ns"][order]
    after = np.append(np.where(track[1:] == track[:-1], call[1:], np.iinfo(np.int64).max), np.iinfo(np.int64).max)
    until = np.where(host["return_ns"][order] >= 0, host["return_ns"][order], after)
    for thread in np.unique(track).tolist():
        first, last = np.searchsorted(track, [thread, thread + 1])
        mine = np.flatnonzero(device["track_id"] == thread)
        at = first + np.searchsorted(call[first:last], device["call_ns"][mine], side="right") - 1
        fits = (at >= first) & (device["call_ns"][mine] <= until[np.maximum(at, 0)])
        inside[mine[fits]] = order[at[fits]]
    # The plugin of older libraries does not record the caller; time and operation decide instead.
    lone = np.flatnonzero((inside < 0) & (device["return_ns"] < 0))
    if len(lone):
        order = np.argsort(host["call_ns"], kind="stable")
        at = np.searchsorted(host["call_ns"][order], device["call_ns"][lone], side="right") - 1
        row = order[np.maximum(at, 0)]
        fits = (at >= 0) & (device["call_ns"][lone] <= host["return_ns"][row])
        fits &= host["op_code"][row] == device["op_code"][lone]
        inside[lone[fits]] = row[fits]
    return inside


def _parts_of_other_calls(host: Table, device: Table, inside: Int64) -> Bools:
    """Return a mask of the rows of ``device`` that are parts of a torch call of another kind."""
    known = inside >= 0
    out = np.zeros(len(device), dtype=bool)
    asked = host["op_code"][inside[known]]
    plain = np.isin(asked, (CollectiveOp.OTHER, CollectiveOp.BARRIER))
    coalesced = (host["collective_flags"][inside[known]] & CollectiveFlag.COALESCED) != 0
    out[known] = (asked != device["op_code"][known]) & ~plain & ~coalesced
    # If one part of a call is of another kind, all parts of the call count as such.
    whole = np.zeros(len(host), dtype=bool)
    whole[inside[out]] = True
    out[known] = whole[inside[known]]
    return out


def _vote(host: Table, device: Table, inside: Int64, notes: GroupNotes) -> None:
    """Count the calls of each group by the communicator that carried them out. Messages have separate groups."""
    chosen = np.flatnonzero(inside >= 0)
    chosen = chosen[~np.isin(host["op_code"][inside[chosen]], MESSAGES)]
    pairs = np.stack([device["group_hash"][chosen], host["group_hash"][inside[chosen]]], axis=1)
    distinct, counts = np.unique(pairs, axis=0, return_counts=True)
    for (nccl, torch), count in zip(distinct.tolist(), counts.tolist(), strict=True):
        subgroup = notes.subgroups.get(nccl)
        notes.votes[subgroup.group_hash if subgroup else nccl, torch] += count


def _add_torch_facts(host: Table, device: Table, inside: Int64, collapsed: Bools) -> Table:
    """Return the device's rows with the facts that torch recorded of them."""
    rows = np.flatnonzero((inside >= 0) & ~collapsed)
    if not len(rows):
        return device
    source = inside[rows]
    single = np.bincount(source, minlength=len(host))[source] == 1
    changes: dict[str, Any] = {
        name: device[name].copy()
        for name in ("name_code", "collective_flags", "element_code", "op_code", "call_ns", "track_id", "status_code")
    }
    for name in ("name_code", "collective_flags", "element_code", "track_id"):
        changes[name][rows] = host[name][source]
    barrier = host["op_code"][source] == CollectiveOp.BARRIER
    changes["op_code"][rows[barrier]] = int(CollectiveOp.BARRIER)
    changes["call_ns"][rows[single]] = host["call_ns"][source[single]]
    changes["status_code"][rows[host["status_code"][source] == 1]] = 1
    return device.replace(**changes)


def _add_times(host: Table, device: Table, inside: Int64, collapsed: Bools) -> Table:
    """Return torch's rows with the times of their parts."""
    if not collapsed.any():
        return host
    rows = np.flatnonzero(collapsed)
    rows = rows[np.argsort(inside[rows], kind="stable")]
    target, first = np.unique(inside[rows], return_index=True)
    begin, end = device["device_begin_ns"][rows], device["device_end_ns"][rows]
    earliest = np.minimum.reduceat(np.where(begin >= 0, begin, np.iinfo(np.int64).max), first)
    timed = earliest < np.iinfo(np.int64).max
    low = np.where(timed, earliest, -1)
    high = np.where(timed, np.maximum.reduceat(end, first), -1)
    failed = np.logical_or.reduceat(device["status_code"][rows] == 1, first) | (host["status_code"][target] == 1)
    values = {
        "begin_ns": low,
        "end_ns": high,
        "device_begin_ns": low,
        "device_end_ns": high,
        "source_code": np.maximum.reduceat(device["source_code"][rows], first),
        "stream_track_id": device["stream_track_id"][rows][first],
        "return_ns": np.maximum(host["return_ns"][target], np.maximum.reduceat(device["return_ns"][rows], first)),
        "status_code": np.where(failed, 1, np.where(timed, 0, UNSEEN_STATUS)),
    }
    changes = {name: host[name].copy() for name in values}
    for name, column in values.items():
        changes[name][target] = column
    return host.replace(**changes)


def _renumber(waits: Table, of_host: Int64) -> Table:
    key = waits["collective_key"]
    known = (key >= 0) & (key < len(of_host))
    return waits.replace(collective_key=np.where(known, of_host[np.where(known, key, 0)], -1) if len(of_host) else key)


def _details(details: Table, of_device: Int64, merged: Table) -> Table:
    """Return the details with the new keys; details of collapsed parts are added up."""
    if not len(details):
        return details
    details = details.replace(collective_key=of_device[details["collective_key"]]).sort_by("collective_key")
    key, first = np.unique(details["collective_key"], return_index=True)
    if len(key) == len(details):
        return details
    changes: dict[str, Any] = {name: details[name][first].copy() for name in details.columns}
    for name in (
        "channels_count",
        "timed_count",
        "transfer_bytes",
        "gpu_wait_ns",
        "peer_wait_ns",
        "wire_wait_ns",
        "network_ns",
    ):
        seen = np.maximum.reduceat(details[name], first) >= 0
        total = np.add.reduceat(np.maximum(details[name], 0), first)
        changes[name] = np.where(seen, total, -1)
    for name in ("channel_skew_ns", "channel_spread_ns"):  # each column is the largest of the parts
        changes[name] = np.maximum.reduceat(details[name], first)
    changes["nccl_flags"] = np.bitwise_or.reduceat(details["nccl_flags"], first)
    # Proxies of the parts overlap in time: the sum of their times is limited to the duration of the operation.
    span = merged["device_end_ns"][key] - merged["device_begin_ns"][key]
    timed = merged["device_begin_ns"][key] >= 0
    changes["network_ns"] = np.where(timed, np.minimum(changes["network_ns"], span), changes["network_ns"])
    return Table(TABLES["collective_details"], changes)


def _count_untimed(merged: Table, details: Table, on_nccl: npt.NDArray[np.uint64], context: DecodeContext) -> None:
    """Count the device's collectives without times as losses; times are never guessed."""
    untimed = (merged["status_code"] == UNSEEN_STATUS) & (merged["device_begin_ns"] < 0)
    host = merged["source_code"] == CollectiveSource.HOST
    if len(details):
        flags = np.zeros(len(merged), dtype=np.int64)
        flags[details["collective_key"]] = details["nccl_flags"]
        captured = untimed & ((flags & NcclFlag.CAPTURED) != 0)
        if captured.any():
            text = "called while a CUDA graph was captured: they ran when it was launched"
            context.add_loss("nccl", "collectives_captured", int(captured.sum()), text, Severity.INFO)
        untimed &= ~captured
    count = int(np.count_nonzero(untimed & ~host))
    if count:
        text = "seen, but without times of the device: they are left out of what is attributed to links"
        context.add_loss("nccl", "collectives_untimed", count, text, Severity.ERROR)
    count = int(np.count_nonzero(untimed & host & np.isin(merged["group_hash"], on_nccl)))
    if count:
        text = "on NCCL groups, where NCCL's call was not recorded: when they ran is unknown"
        context.add_loss("torch_distributed", "collectives_untimed", count, text, Severity.ERROR)
