"""Collectives of all ranks: one track per rank and communicator, wait and transfer nested, arrows from the late rank.

Called by perfetto.py, once for all ranks, because a wait is only known by looking at the others. All of it goes into
one packet sequence in which, at one instant, operations come before what is nested in them: the late rank's
operation begins at the very nanosecond at which the others' transfer begins, and the arrow must leave from it.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from stashtrace import _native
from stashtrace.analysis.matching import match
from stashtrace.analysis.timeset import NEVER
from stashtrace.exporters.perfetto_layers import NO_VALUE, OPS, Order
from stashtrace.exporters.perfetto_rows import TraceRows
from stashtrace.exporters.perfetto_tracks import Ints, Line, Piece, Texts, TrackTree, coded, numbered
from stashtrace.model.kinds import CollectiveOp
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace


def collective_layer(rows: TraceRows, tree: TrackTree, roots: Mapping[int, int]) -> list[_native.perfetto.Slices]:
    """Slices of the collectives of these ranks (rank -> its root track), parents before children."""
    trace = rows.trace
    whole = trace.collectives
    if not len(whole):
        return []
    matched = match(trace)  # over all ranks, also those that are not written
    end = _ends(trace, whole, matched.end_ns)
    last, late = matched.last_enter_ns, matched.last_rank
    keep = np.isin(whole["rank"], list(roots))
    if rows.window is not None:
        keep &= rows.window.touches(whole["call_ns"], end)
    table, end, last, late = whole.take(keep), end[keep], last[keep], late[keep]
    if not len(table):
        return []
    track = _place(trace, tree, roots, table, end)

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
        np.where(table["status_code"] > 0, table["status_code"], -1),
        Texts(["", "failed", "end seen late", "end not seen"]),
    )

    waiting = np.flatnonzero(waits)
    moving = np.flatnonzero(end > begins)
    late_codes, late_names = numbered(["wait for rank"], np.zeros(len(waiting)), late[waiting])
    wait = Piece(track[waiting], call[waiting], begins[waiting], late_codes, late_names)
    transfer = Piece(
        track[moving], begins[moving], end[moving], np.zeros(len(moving), dtype=np.int64), Texts(["transfer"])
    )
    _join(tree, table, late, waits, moving, operation, transfer)
    return [piece.slices(piece.key) for piece in (operation, wait, transfer) if len(piece)]


def _ends(trace: Trace, table: Table, resolved_ns: Ints) -> Ints:
    """End of each operation; one that never ended lasts until its process did."""
    life = np.zeros(int(trace.processes["process_id"].max()) + 1, dtype=np.int64)
    life[trace.processes["process_id"]] = trace.processes["end_ns"]
    alive = np.maximum(life[table["process_id"]], table["call_ns"])
    return np.where(resolved_ns == NEVER, alive, np.maximum(resolved_ns, table["call_ns"]))


def _place(trace: Trace, tree: TrackTree, roots: Mapping[int, int], table: Table, end: Ints) -> Ints:
    """Track of each row: below its rank, one line per communicator."""
    groups = {(g["rank"], g["group_hash"]): g for g in trace.groups.rows()}
    hashes, communicator = np.unique(table["group_hash"], return_inverse=True)
    track = np.empty(len(table), dtype=np.int64)
    for rank, root in roots.items():
        mine = np.flatnonzero(table["rank"] == rank)
        lines = {}
        for number in np.unique(communicator[mine]).tolist():
            group = groups.get((rank, int(hashes[number])))
            name = trace.text(group["name_code"]) if group else f"group {int(hashes[number]):x}"
            about = f"{trace.text(group['backend_code'])}, ranks {trace.text(group['members_code'])}" if group else ""
            lines[number] = Line(f"{name} · rank {rank:03d}", Order.COMMUNICATORS + number, about)
        if len(mine):
            track[mine] = tree.place(
                root, lines, communicator[mine].astype(np.int64), table["call_ns"][mine], end[mine], nest=False
            )
    return track


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
    sequences = int(table["sequence"].max()) + 2
    key = (group.astype(np.int64) * sequences + table["sequence"]) * ranks
    own = key + table["rank"]
    order = np.argsort(own, kind="stable")
    targets = np.flatnonzero(waits[moving])
    wanted = key[moving[targets]] + late[moving[targets]]
    at = np.minimum(np.searchsorted(own[order], wanted), len(order) - 1)
    found = own[order][at] == wanted
    ids = tree.flow_ids(int(found.sum()))
    operation.flows.append((order[at[found]], ids))
    transfer.flows.append((targets[found], ids))
