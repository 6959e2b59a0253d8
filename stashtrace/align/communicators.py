"""Communicators of NCCL under the names and members that torch gave them, the same on every rank.

Called by ``align.join`` once all processes are decoded. NCCL knows the size of a communicator and this process's place
in it; which global ranks are its members is known from all processes together, or from torch's group that it served.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stashtrace.align.collective_merge import GroupNotes
from stashtrace.model.schemas import TABLES
from stashtrace.model.strings import ranks_of
from stashtrace.model.table import Table
from stashtrace.model.track_registry import TrackRegistry


def name_communicators(groups: Table, collectives: Table, notes: GroupNotes, tracks: TrackRegistry) -> Table:
    """The ``groups`` table with NCCL's communicators described, and with their lanes.

    Parameters
    ----------
    groups, collectives : Table
        Of all processes.
    notes : GroupNotes
        From the merge of each process.
    tracks : TrackRegistry
        Its communicator tracks get the names.
    """
    text = tracks.strings.text
    rows = list(groups.rows())
    # Thousands of rows name few sets of members.
    ranks = {code: ranks_of(text(code)) for code in {row["members_code"] for row in rows}}
    members = [ranks[row["members_code"]] for row in rows]
    torch = {row["group_hash"]: (text(row["name_code"]), m) for row, m in zip(rows, members, strict=True) if m}
    mine = [row for row, m in zip(rows, members, strict=True) if not m and text(row["backend_code"]) == "nccl"]
    if not mine:
        return groups
    known: dict[int, tuple[str, list[int]]] = {}
    served = _served(notes, torch)
    for value in dict.fromkeys(row["group_hash"] for row in mine):
        of_it = [row for row in mine if row["group_hash"] == value]
        known[value] = _described(value, of_it, served.get(value), torch, text(of_it[0]["name_code"]))
    _distinguish(known, collectives, set(served))
    lanes = _lane_rows(mine, collectives, notes, known)
    code = tracks.strings.code
    for row in mine:
        name, listed = known[row["group_hash"]]
        row["name_code"], row["members_code"] = code(name), code(",".join(map(str, listed)))
    for row, name, listed in lanes:
        row["name_code"], row["members_code"] = code(name), code(",".join(map(str, listed)))
    for row in [*mine, *(row for row, _, _ in lanes)]:
        track = tracks.communicator(row["process_id"], row["group_hash"], "")
        tracks.rename(track, text(row["name_code"]))
    everything = [*rows, *(row for row, _, _ in lanes)]
    return Table.from_rows(TABLES["groups"], [tuple(row.values()) for row in everything])


def _served(notes: GroupNotes, torch: dict[int, tuple[str, list[int]]]) -> dict[int, int]:
    """NCCL's hash -> torch's group most of whose calls it carried out."""
    best: dict[int, tuple[int, int]] = {}
    for (nccl, group), count in notes.votes.items():
        if group in torch and count > best.get(nccl, (0, 0))[0]:
            best[nccl] = (count, group)
    return {nccl: group for nccl, (_, group) in best.items()}


def _described(
    value: int, rows: Sequence[dict[str, int]], served: int | None, torch: dict[int, tuple[str, list[int]]], name: str
) -> tuple[str, list[int]]:
    """(name, global ranks in the communicator's order); no ranks if not all are known."""
    size = max(row["group_size"] for row in rows)
    places = {row["group_rank"]: row["rank"] for row in rows if row["group_rank"] >= 0 and row["rank"] >= 0}
    # A damaged file may claim billions of members: as many as ranks are known, or they are not all known.
    complete = 0 < size <= len(places) and all(i in places for i in range(size))
    members = [places[i] for i in range(size)] if complete else []
    fitting = [
        group for group, (_, listed) in torch.items()
        if len(listed) == size and all(listed[at] == rank for at, rank in places.items() if at < size)
    ]  # fmt: skip
    if served is None and len(fitting) == 1:
        served = fitting[0]
    if served is None:
        return name, members
    title, listed = torch[served]
    return title, members or (listed if served in fitting else [])


def _distinguish(known: dict[int, tuple[str, list[int]]], collectives: Table, served: set[int]) -> None:
    """Torch may run one group on several communicators: the busiest that serves its calls has the plain name."""
    hashes, counts = np.unique(collectives["group_hash"], return_counts=True)
    used = dict(zip(hashes.tolist(), counts.tolist(), strict=True))
    taken: dict[str, int] = {}
    for value in sorted(known, key=lambda v: (v not in served, -used.get(v, 0), v)):
        name, members = known[value]
        taken[name] = taken.get(name, 0) + 1
        if taken[name] > 1:
            known[value] = (f"{name} · communicator {taken[name]}", members)


def _lane_rows(
    mine: Sequence[dict[str, int]], collectives: Table, notes: GroupNotes, known: dict[int, tuple[str, list[int]]]
) -> list[tuple[dict[str, int], str, list[int]]]:
    """(row of ``groups``, name, members) of each lane in each process that used it."""
    base = {(row["process_id"], row["group_hash"]): row for row in mine}
    chosen = np.flatnonzero(np.isin(collectives["group_hash"], np.array(list(notes.lanes), dtype=np.uint64)))
    used = collectives.take(chosen)
    found = []
    for process, value in sorted(set(zip(used["process_id"].tolist(), used["group_hash"].tolist(), strict=True))):
        lane = notes.lanes[value]
        row = base.get((process, lane.group_hash))
        if row is None:
            continue
        title, members = known[lane.group_hash]
        if not lane.ends:
            found.append(({**row, "group_hash": value}, f"{title} · {lane.kind}", members))
            continue
        ends = [members[i] if i < len(members) else -1 for i in lane.ends]
        shown = ends if min(ends) >= 0 else list(lane.ends)
        place = lane.ends.index(row["group_rank"]) if row["group_rank"] in lane.ends else -1
        crosses = 0 if row["crosses_hosts"] == 0 else -1
        entry = {**row, "group_hash": value, "group_rank": place, "group_size": 2, "crosses_hosts": crosses}
        found.append((entry, f"{title} {shown[0]} to {shown[1]}", ends if min(ends) >= 0 else []))
    return found
