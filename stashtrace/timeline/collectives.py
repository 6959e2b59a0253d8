"""Collectives of all ranks: one track per rank and communicator, wait and transfer nested, arrows from the late rank.

Called by ``timeline``, once for all ranks, because a wait is only known by looking at the others. All of it goes into
one packet sequence in which, at one instant, operations come before what is nested in them: the late rank's
operation begins at the very nanosecond at which the others' transfer begins, and the arrow must leave from it.
Operations that a device timed lie below their GPU, from when the device entered them; untimed ones show the call.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace import _native
from stashtrace.analysis.collectives.device import DeviceCollectives, on_devices
from stashtrace.analysis.collectives.waits import communicator_names
from stashtrace.analysis.intervals import NEVER
from stashtrace.analysis.registry import analyze
from stashtrace.schema.kinds import CollectiveOp
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.timeline.host import NO_VALUE, OPS, Order
from stashtrace.timeline.rows import TraceRows
from stashtrace.timeline.tracks import Ints, Line, Piece, Texts, TrackTree, coded, numbered
from stashtrace.units import duration_text, shortened

#: Words for ``status_code`` and ``source_code``; what no source timed, the kernels did.
_STATUS = ("", "failed", "end seen late", "end not seen")
_SOURCES = ("nothing", "events", "plugin", "kernels")
_KERNELS = _SOURCES.index("kernels")


@dataclass(frozen=True, slots=True)
class Places:
    """Where the operations of a rank go: below its root, or below the group of the device that ran them.

    Attributes
    ----------
    root : int
        Track of the rank.
    devices : dict
        (process_id, device_index) -> track of the group.
    """

    root: int
    devices: Mapping[tuple[int, int], int]


def collective_layer(
    rows: TraceRows, tree: TrackTree, places: Mapping[int, Places]
) -> tuple[list[_native.perfetto.Slices], Ints]:
    """Slices of the collectives of these ranks, parents before children.

    And per row of the table the number of the arrow from its call: 0 if it is not on a device or not shown, -1 if it is
    shown without an arrow.
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
    # Called, but when it ran is not known: nobody waited or moved bytes in what is drawn.
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
    operation.ints["wait_ns"] = np.where(waits, begins - call, NO_VALUE)
    operation.ints["late_rank"] = np.where(waits, late, NO_VALUE)
    operation.texts["called_as"] = (np.where(table["name_code"] > 0, table["name_code"], -1), rows.texts)
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
    why, why_texts = reasons(rows.trace, table)
    wait.texts["late_because"] = (why[waiting], why_texts)
    transfer = Piece(
        track[moving], begins[moving], end[moving], np.zeros(len(moving), dtype=np.int64), Texts(["transfer"])
    )
    _join(tree, table, late, waits, moving, operation, transfer)
    return [piece.slices(piece.key) for piece in (operation, wait, transfer) if len(piece)], launches


def _as_entered(trace: Trace, seen: DeviceCollectives) -> Trace:
    """The trace with the collectives of devices called when the device entered them: it runs behind the host."""
    table = trace.collectives
    if not seen.timed.any():
        return trace
    call = np.where(seen.timed, seen.enter_ns, table["call_ns"])
    return trace.replace(
        collectives=table.replace(call_ns=call, device_begin_ns=seen.begin_ns, device_end_ns=seen.end_ns)
    )


def _add_details(rows: TraceRows, operation: Piece, shown: Ints) -> None:
    """What the plugin tells beyond times, as arguments."""
    details, count = rows.trace.collective_details, len(rows.trace.collectives)
    details = details.take((details["collective_key"] >= 0) & (details["collective_key"] < count))
    if not len(details):
        return
    for argument, column in (("algorithm", "algorithm_code"), ("protocol", "protocol_code")):
        codes = np.zeros(count, dtype=np.int64)
        codes[details["collective_key"]] = details[column]
        operation.texts[argument] = (np.where(codes[shown] > 0, codes[shown], -1), rows.texts)
    for name in ("network_ns", "wire_wait_ns", "peer_wait_ns", "gpu_wait_ns", "channel_skew_ns", "channel_spread_ns"):
        values = np.full(count, -1, dtype=np.int64)
        values[details["collective_key"]] = details[name]
        operation.ints[name] = np.where(values[shown] >= 0, values[shown], NO_VALUE)


def _ends(trace: Trace, table: Table, resolved_ns: Ints) -> Ints:
    """End of each operation; one that never ended lasts until its process did."""
    life = np.zeros(int(trace.processes["process_id"].max()) + 1, dtype=np.int64)
    life[trace.processes["process_id"]] = trace.processes["end_ns"]
    alive = np.maximum(life[table["process_id"]], table["call_ns"])
    return np.where(resolved_ns == NEVER, alive, np.maximum(resolved_ns, table["call_ns"]))


def _place(
    trace: Trace,
    tree: TrackTree,
    places: Mapping[int, Places],
    table: Table,
    end: Ints,
    on_device: npt.NDArray[np.bool_],
) -> Ints:
    """Track of each row: below its rank or its device, one line per communicator."""
    groups = {(g["rank"], g["group_hash"]): g for g in trace.groups.rows()}
    hashes, communicator = np.unique(table["group_hash"], return_inverse=True)
    track = np.empty(len(table), dtype=np.int64)
    below = _parents(trace, places, table, on_device)
    for parent, rank in sorted(set(zip(below.tolist(), table["rank"].tolist(), strict=True))):
        mine = np.flatnonzero((below == parent) & (table["rank"] == rank))
        lines = {}
        for number in np.unique(communicator[mine]).tolist():
            group = groups.get((rank, int(hashes[number])))
            name = trace.text(group["name_code"]) if group else f"group {int(hashes[number]):x}"
            about = f"{trace.text(group['backend_code'])}, ranks {trace.text(group['members_code'])}" if group else ""
            lines[number] = Line(f"{name} · rank {rank:03d}", Order.COMMUNICATORS + number, about)
        if len(mine):
            track[mine] = tree.place(
                parent, lines, communicator[mine].astype(np.int64), table["call_ns"][mine], end[mine], nest=False
            )
    return track


def _parents(trace: Trace, places: Mapping[int, Places], table: Table, on_device: npt.NDArray[np.bool_]) -> Ints:
    """Track below which the line of each row's communicator hangs."""
    devices = dict(zip(trace.streams["track_id"].tolist(), trace.streams["device_index"].tolist(), strict=True))
    stream = np.where(on_device, table["stream_track_id"], -2)
    keys = np.stack([table["rank"], table["process_id"], stream], axis=1)
    distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
    found = []
    for rank, process, given in distinct.tolist():
        place = places[rank]
        any_device = next((track for (owner, _), track in place.devices.items() if owner == process), place.root)
        on = place.devices.get((process, devices.get(given, -1)), any_device)
        found.append(place.root if given == -2 else on)
    return np.array(found, dtype=np.int64)[inverse.reshape(-1)]


def _join(
    tree: TrackTree,
    table: Table,
    late: Ints,
    waits: npt.NDArray[np.bool_],
    moving: Ints,
    operation: Piece,
    transfer: Piece,
) -> None:
    """Arrow from the late rank's operation to the transfer of each rank that waited for it."""
    _, group = np.unique(table["group_hash"], return_inverse=True)
    ranks = int(table["rank"].max()) + 2
    numbers, sequence = np.unique(table["sequence"], return_inverse=True)
    key = (group.astype(np.int64) * len(numbers) + sequence) * ranks
    own = key + table["rank"]
    order = np.argsort(own, kind="stable")
    targets = np.flatnonzero(waits[moving])
    wanted = key[moving[targets]] + late[moving[targets]]
    at = np.minimum(np.searchsorted(own[order], wanted), len(order) - 1)
    found = own[order][at] == wanted
    ids = tree.flow_ids(int(found.sum()))
    operation.flows.append((order[at[found]], ids))
    transfer.flows.append((targets[found], ids))


# What kept the late rank, as an argument of the waits for it: of the costliest operations, as `late` names them.

_NAME_WIDTH = 60


def reasons(trace: Trace, table: Table) -> tuple[Ints, Texts]:
    """For each row of some collectives of the trace the code of what kept its late rank, -1 if nothing is known."""
    texts: list[str] = []
    codes: dict[tuple[str, int], int] = {}
    for row in analyze(trace, "late").rows():
        if row["cause_kind"] != "unknown":
            codes[row["communicator"], row["sequence"]] = len(texts)
            texts.append(reason(row))
    hashes, inverse = np.unique(table["group_hash"], return_inverse=True)
    names = communicator_names(trace, hashes)
    out = np.full(len(table), -1, dtype=np.int64)
    for (name, sequence), code in codes.items():
        if np.count_nonzero(names == name) == 1:  # of groups that share a name nobody knows which is meant
            out[(names[inverse] == name) & (table["sequence"] == sequence)] = code
    return out, Texts(texts or [""])


def reason(row: dict[str, Any]) -> str:
    """Cause, worker, name and time.

    Examples
    --------
    >>> reason({"cause_kind": "fetch", "cause_ns": 38_000_000, "cause_worker_id": 5, "cause_name": "/data/shard-0117"})
    'fetch 38.0 ms longer, worker 5, shard-0117'
    """
    parts = [f"{row['cause_kind']} {duration_text(row['cause_ns'])} longer"]
    parts += [f"worker {row['cause_worker_id']}"] if row["cause_worker_id"] >= 0 else []
    name = row["cause_name"]
    parts += [os.path.basename(name) if name.startswith("/") else shortened(name, _NAME_WIDTH)] if name else []
    return ", ".join(parts)
