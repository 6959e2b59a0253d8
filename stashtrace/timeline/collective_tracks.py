"""Collectives of all ranks: one track per rank and communicator, wait and transfer nested, arrows from the late rank.

All ranks are drawn at once, because a rank's wait is only known from the others. All slices go into one packet sequence
in which, at one instant, operations come before the slices nested in them: the late rank's operation begins at the
nanosecond at which the others' transfer begins, and the arrow must leave from it. Operations timed by a device lie
below their GPU, from when the device entered them; untimed ones show the call.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stashtrace import _native
from stashtrace.analysis.collectives.collective_waits import communicator_names
from stashtrace.analysis.collectives.device_collectives import DeviceCollectives, on_devices
from stashtrace.analysis.intervals import NEVER, Bools
from stashtrace.analysis.registry import analyze
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import CollectiveOp
from stashtrace.schema.stall_kinds import words_of
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.text.units import duration_text, shortened
from stashtrace.timeline.host_tracks import OPS
from stashtrace.timeline.rows_by_rank import TraceRows
from stashtrace.timeline.tracks import (
    Ints,
    Line,
    Order,
    Piece,
    Texts,
    TrackTree,
    code_where,
    coded,
    numbered,
    value_where,
)

#: Words for ``status_code`` and ``source_code``; operations without a source are timed by their kernels.
_STATUS = ("", "failed", "end seen late", "end not seen")
_SOURCES = ("nothing", "events", "plugin", "kernels")
_KERNELS = _SOURCES.index("kernels")
#: Stands for the stream of operations that are not on a device.
_ON_HOST = -2


@dataclass(frozen=True, slots=True)
class Places:
    """Parents of the operations of a rank: its root, or the group of the device that ran them."""

    #: Track of the rank.
    root: int
    #: (process_id, device_index) -> track of the group.
    devices: Mapping[tuple[int, int], int]


def collective_layer(
    rows: TraceRows, tree: TrackTree, places: Mapping[int, Places]
) -> tuple[list[_native.perfetto.Slices], Ints]:
    """Return the slices of the collectives of these ranks, parents before children, and the arrows from their calls.

    The arrows are numbers by row of the table: 0 if the row is not on a device or not shown, -1 if it is shown without
    an arrow.
    """
    launches = np.zeros(len(rows.trace.collectives), dtype=np.int64)
    if not len(launches):
        return [], launches
    seen = on_devices(rows.trace)  # over all ranks, also those that are not written
    matched = seen.matched
    trace = _as_entered(rows.trace, seen)
    whole = trace.collectives
    end = _ends(trace, whole, matched.end_ns)
    last, late = matched.last_enter_ns, matched.last_rank
    keep = np.isin(whole["rank"], list(places))
    if rows.window is not None:
        keep &= rows.window.touches(whole["call_ns"], end)
    table, end, last, late = whole.take(keep), end[keep], last[keep], late[keep]
    if not len(table):
        return [], launches
    timed = table["device_begin_ns"] >= 0
    untimed = seen.given[keep] & ~timed
    # The call is known, but not when the operation ran: neither a wait nor a transfer is drawn.
    end = np.where(untimed, np.maximum(table["return_ns"], table["call_ns"]), end)
    last = np.where(untimed, end, last)
    late = np.where(untimed, -1, late)
    track = _place(trace, tree, places, table, end, untimed | timed)

    call = table["call_ns"]
    begins = np.clip(last, call, end)
    waits = (begins > call) & (late >= 0)
    codes, names = numbered([*OPS, "collective"], coded(table["op_code"], list(CollectiveOp)), table["sequence"])
    operation = Piece(track, call, end, codes, names)
    operation.ints["bytes"] = table["message_bytes"]
    operation.doubles["algbw_gb_per_s"] = np.where(
        table["end_ns"] > begins, table["message_bytes"] / np.maximum(end - begins, 1), np.nan
    )
    operation.ints["wait_ns"] = value_where(waits, begins - call)
    operation.ints["late_rank"] = value_where(waits, late)
    operation.texts["called_as"] = (code_where(table["name_code"] > 0, table["name_code"]), rows.texts)
    operation.texts["status"] = (
        np.where(table["status_code"] > 0, coded(table["status_code"], range(len(_STATUS))), -1),
        Texts([*_STATUS, "unknown"]),
    )
    source = np.where(table["source_code"] > 0, coded(table["source_code"], range(len(_SOURCES))), _KERNELS)
    operation.texts["timed_by"] = (np.where(timed, source, np.where(untimed, 0, -1)), Texts([*_SOURCES, "unknown"]))
    _add_details(rows, operation, np.flatnonzero(keep))
    launched = np.flatnonzero(timed & (table["return_ns"] >= 0))
    arrows = tree.flow_ids(len(launched))
    operation.flows.append((launched, arrows))
    shown = np.flatnonzero(keep)
    launches[shown[untimed | timed]] = -1
    launches[shown[launched]] = arrows

    waiting = np.flatnonzero(waits)
    moving = np.flatnonzero((end > begins) & ~untimed)
    late_codes, late_names = numbered(["wait for rank"], np.zeros(len(waiting)), late[waiting])
    wait = Piece(track[waiting], call[waiting], begins[waiting], late_codes, late_names)
    reason_codes, reason_texts = reasons(rows.trace, table)
    wait.texts["late_because"] = (reason_codes[waiting], reason_texts)
    transfer = Piece(
        track[moving], begins[moving], end[moving], np.zeros(len(moving), dtype=np.int64), Texts(["transfer"])
    )
    _join(tree, table, late, waits, moving, operation, transfer)
    return [piece.slices(piece.key) for piece in (operation, wait, transfer) if len(piece)], launches


def _as_entered(trace: Trace, seen: DeviceCollectives) -> Trace:
    """Return the trace with collectives of devices called when the device entered them: it runs behind the host."""
    table = trace.collectives
    if not seen.timed.any():
        return trace
    call = np.where(seen.timed, seen.enter_ns, table["call_ns"])
    return trace.replace(
        collectives=table.replace(call_ns=call, device_begin_ns=seen.begin_ns, device_end_ns=seen.end_ns)
    )


def _add_details(rows: TraceRows, operation: Piece, shown: Ints) -> None:
    """Add the plugin's details as arguments."""
    details, count = rows.trace.collective_details, len(rows.trace.collectives)
    details = details.take((details["collective_key"] >= 0) & (details["collective_key"] < count))
    if not len(details):
        return
    for argument, column in (("algorithm", "algorithm_code"), ("protocol", "protocol_code")):
        codes = np.zeros(count, dtype=np.int64)
        codes[details["collective_key"]] = details[column]
        operation.texts[argument] = (code_where(codes[shown] > 0, codes[shown]), rows.texts)
    for name in ("network_ns", "wire_wait_ns", "peer_wait_ns", "gpu_wait_ns", "channel_skew_ns", "channel_spread_ns"):
        values = np.full(count, -1, dtype=np.int64)
        values[details["collective_key"]] = details[name]
        operation.ints[name] = value_where(values[shown] >= 0, values[shown])


def _ends(trace: Trace, table: Table, resolved_ns: Ints) -> Ints:
    """Return the end of each operation; one that never ended lasts until its process ends."""
    end_of_process = np.zeros(int(trace.processes["process_id"].max()) + 1, dtype=np.int64)
    end_of_process[trace.processes["process_id"]] = trace.processes["end_ns"]
    end = np.where(resolved_ns == NEVER, end_of_process[table["process_id"]], resolved_ns)
    return np.maximum(end, table["call_ns"])


def _place(
    trace: Trace, tree: TrackTree, places: Mapping[int, Places], table: Table, end: Ints, on_device: Bools
) -> Ints:
    """Make the tracks of all rows: below the rank or the device, one line per communicator. Return each row's track."""
    groups = {(g["rank"], g["group_hash"]): g for g in trace.groups.rows()}
    communicators = GroupBy(table["group_hash"])
    hashes = communicators.values.tolist()
    track = np.empty(len(table), dtype=np.int64)
    parents = GroupBy(_parents(trace, places, table, on_device), table["rank"])
    for parent, rank, rows in parents.items():
        communicator = communicators.number[rows]
        lines = {}
        for number in np.unique(communicator).tolist():
            group = groups.get((rank, hashes[number]))
            name = trace.text(group["name_code"]) if group else f"group {hashes[number]:x}"
            about = f"{trace.text(group['backend_code'])}, ranks {trace.text(group['members_code'])}" if group else ""
            lines[number] = Line(f"{name} · rank {rank:03d}", Order.COMMUNICATORS + number, about)
        track[rows] = tree.place(parent, lines, communicator, table["call_ns"][rows], end[rows], nest=False)
    return track


def _parents(trace: Trace, places: Mapping[int, Places], table: Table, on_device: Bools) -> Ints:
    """Return the parent of the line of each row's communicator."""
    devices = dict(zip(trace.streams["track_id"].tolist(), trace.streams["device_index"].tolist(), strict=True))

    def parent(rank: int, process: int, stream: int) -> int:
        place = places[rank]
        if stream == _ON_HOST:
            return place.root
        any_device = next((track for (owner, _), track in place.devices.items() if owner == process), place.root)
        return place.devices.get((process, devices.get(stream, -1)), any_device)

    streams = np.where(on_device, table["stream_track_id"], _ON_HOST)
    return GroupBy(table["rank"], table["process_id"], streams).map(parent)


def _join(
    tree: TrackTree, table: Table, late: Ints, waits: Bools, moving: Ints, operation: Piece, transfer: Piece
) -> None:
    """Add an arrow from the late rank's operation to the transfer of each rank that waited for it."""
    operations = GroupBy(table["group_hash"], table["sequence"], table["rank"])
    targets = np.flatnonzero(waits[moving])
    waiting = moving[targets]
    source = operations.row_of(table["group_hash"][waiting], table["sequence"][waiting], late[waiting])
    ids = tree.flow_ids(int(np.count_nonzero(source >= 0)))
    operation.flows.append((source[source >= 0], ids))
    transfer.flows.append((targets[source >= 0], ids))


# Causes of the costliest operations, as `late` names them: an argument of the waits for the late rank.

_NAME_WIDTH = 60


def reasons(trace: Trace, table: Table) -> tuple[Ints, Texts]:
    """Return for each row of a table of collectives the code of what delayed its late rank, -1 if unknown."""
    texts: list[str] = []
    codes: dict[tuple[str, int], int] = {}
    for row in analyze(trace, "late").rows():
        if row["cause_kind"] != "unknown":
            codes[row["communicator"], row["sequence"]] = len(texts)
            texts.append(reason(row))
    groups = GroupBy(table["group_hash"])
    names = communicator_names(trace, groups.values)
    of_rows = np.full(len(table), -1, dtype=np.int64)
    for (name, sequence), code in codes.items():
        if np.count_nonzero(names == name) == 1:  # a name that groups share does not say which is meant
            of_rows[(names[groups.number] == name) & (table["sequence"] == sequence)] = code
    return of_rows, Texts(texts or [""])


def reason(row: dict[str, Any]) -> str:
    """Return cause, time, worker and name in one line.

    >>> reason({"cause_kind": "fetch", "cause_ns": 38_000_000, "cause_worker_id": 5, "cause_name": "/data/shard-0117"})
    'data: storage 38.0 ms longer, worker 5, shard-0117'
    """
    parts = [f"{words_of(row['cause_kind'])} {duration_text(row['cause_ns'])} longer"]
    parts += [f"worker {row['cause_worker_id']}"] if row["cause_worker_id"] >= 0 else []
    name = row["cause_name"]
    parts += [os.path.basename(name) if name.startswith("/") else shortened(name, _NAME_WIDTH)] if name else []
    return ", ".join(parts)
