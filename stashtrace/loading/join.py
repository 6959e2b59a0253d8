"""Join the tables of all processes into the tables of the trace: number and sort rows, join column by column.

Joining column by column means that no table exists twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stashtrace.loading.join_collectives import GroupNotes
from stashtrace.schema.events import TABLES
from stashtrace.schema.order import SORT_KEYS, in_order_of, number_collectives, offset_keys
from stashtrace.schema.strings import ranks_of
from stashtrace.schema.table import Array, Table
from stashtrace.schema.trace import EventTables
from stashtrace.schema.tracks import TrackRegistry
from stashtrace.store.files import ALWAYS_READ


def join_tables(
    parts: Sequence[EventTables], wanted: frozenset[str] | None, notes: GroupNotes, tracks: TrackRegistry
) -> dict[str, Table]:
    """Return the wanted tables of events, without ``io``; all of them if ``wanted`` is None.

    ``parts``: one per process, in order; the joined tables are removed from them. ``notes``: of all processes.
    ``tracks``: its communicator tracks get their names.
    """
    joined = join_rows(parts, wanted)
    if "groups" in joined:
        collectives = joined.get("collectives", Table.empty(TABLES["collectives"]))
        joined["groups"] = name_communicators(joined["groups"], collectives, notes, tracks)
    return joined


def join_rows(parts: Sequence[EventTables], wanted: frozenset[str] | None = None) -> dict[str, Table]:
    """Join tables as :func:`join_tables` does, with communicators as each process knows them."""
    joined: dict[str, Table] = {}
    offset_keys(parts)
    for name in TABLES:
        if name in ALWAYS_READ or name == "io" or (wanted is not None and name not in wanted):
            continue
        joined[name] = join_table(name, parts)
    if "spans" in joined:
        joined["spans"] = joined["spans"].replace(span_id=np.arange(len(joined["spans"]), dtype=np.int64))
    if "collectives" in joined:
        joined.update(
            number_collectives(joined["collectives"], joined.get("collective_waits"), joined.get("collective_details"))
        )
    return joined


def join_table(name: str, parts: Sequence[EventTables]) -> Table:
    """Join one table of all processes and remove it from the parts; each column is freed once it is joined."""
    schema = TABLES[name]
    keys = SORT_KEYS.get(name, ())
    pieces: list[dict[str, Array]] = []
    for part in parts:
        table = part.pop(name)
        if len(table):
            # Track numbers ascend with the processes, so tables sorted by track_id are sorted piece by piece.
            table = in_order_of(table, keys) if keys[:1] == ("track_id",) else table
            pieces.append({column: table[column] for column in schema.names})
    if not pieces:
        return Table.empty(schema)
    if len(pieces) == 1:
        joined = Table(schema, pieces[0])
    else:
        joined = Table(schema, {n: np.concatenate([p.pop(n) for p in pieces]) for n in schema.names})
    return in_order_of(joined, keys)


# Communicators of NCCL under the names and members that torch gave them, the same on every rank.
#
# NCCL gives the size of a communicator and this process's place in it. The global ranks of its members follow from
# all processes together, or from the torch group that it served.


def name_communicators(groups: Table, collectives: Table, notes: GroupNotes, tracks: TrackRegistry) -> Table:
    """Return the ``groups`` table with names and members of NCCL's communicators, and with their subgroups.

    ``groups``, ``collectives``: of all processes. ``notes``: from the merge of each process. ``tracks``: its
    communicator tracks get the names.
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
    served = _torch_groups(notes, torch)
    for value in dict.fromkeys(row["group_hash"] for row in mine):
        of_it = [row for row in mine if row["group_hash"] == value]
        known[value] = _describe(value, of_it, served.get(value), torch, text(of_it[0]["name_code"]))
    _distinguish(known, collectives, set(served))
    subgroups = _subgroup_rows(mine, collectives, notes, known)
    code = tracks.strings.code
    for row in mine:
        name, listed = known[row["group_hash"]]
        row["name_code"], row["members_code"] = code(name), code(",".join(map(str, listed)))
    for row, name, listed in subgroups:
        row["name_code"], row["members_code"] = code(name), code(",".join(map(str, listed)))
    for row in [*mine, *(row for row, _, _ in subgroups)]:
        track = tracks.communicator(row["process_id"], row["group_hash"], "")
        tracks.rename(track, text(row["name_code"]))
    everything = [*rows, *(row for row, _, _ in subgroups)]
    return Table.from_rows(TABLES["groups"], [tuple(row.values()) for row in everything])


def _torch_groups(notes: GroupNotes, torch: dict[int, tuple[str, list[int]]]) -> dict[int, int]:
    """Map each NCCL hash to the torch group for which the communicator carried out most calls."""
    best: dict[int, tuple[int, int]] = {}
    for (nccl, group), count in notes.votes.items():
        if group in torch and count > best.get(nccl, (0, 0))[0]:
            best[nccl] = (count, group)
    return {nccl: group for nccl, (_, group) in best.items()}


def _describe(
    value: int, rows: Sequence[dict[str, int]], served: int | None, torch: dict[int, tuple[str, list[int]]], name: str
) -> tuple[str, list[int]]:
    """Return (name, global ranks in the communicator's order); no ranks unless all are known."""
    size = max(row["group_size"] for row in rows)
    places = {row["group_rank"]: row["rank"] for row in rows if row["group_rank"] >= 0 and row["rank"] >= 0}
    # A damaged file may claim billions of members; with more members than known ranks, not all are known.
    complete = 0 < size <= len(places) and all(i in places for i in range(size))
    members = [places[i] for i in range(size)] if complete else []
    fitting = [
        group
        for group, (_, listed) in torch.items()
        if len(listed) == size and all(listed[at] == rank for at, rank in places.items() if at < size)
    ]
    if served is None and len(fitting) == 1:
        served = fitting[0]
    if served is None:
        return name, members
    title, listed = torch[served]
    return title, members or (listed if served in fitting else [])


def _distinguish(known: dict[int, tuple[str, list[int]]], collectives: Table, served: set[int]) -> None:
    """Number communicators of one torch group; the busiest one that serves its calls keeps the plain name."""
    hashes, counts = np.unique(collectives["group_hash"], return_counts=True)
    used = dict(zip(hashes.tolist(), counts.tolist(), strict=True))
    taken: dict[str, int] = {}
    for value in sorted(known, key=lambda v: (v not in served, -used.get(v, 0), v)):
        name, members = known[value]
        taken[name] = taken.get(name, 0) + 1
        if taken[name] > 1:
            known[value] = (f"{name} · communicator {taken[name]}", members)


def _subgroup_rows(
    mine: Sequence[dict[str, int]], collectives: Table, notes: GroupNotes, known: dict[int, tuple[str, list[int]]]
) -> list[tuple[dict[str, int], str, list[int]]]:
    """Return (row of ``groups``, name, members) of each subgroup in each process that used it."""
    base = {(row["process_id"], row["group_hash"]): row for row in mine}
    chosen = np.flatnonzero(np.isin(collectives["group_hash"], np.array(list(notes.subgroups), dtype=np.uint64)))
    used = collectives.take(chosen)
    rows = []
    for process, value in sorted(set(zip(used["process_id"].tolist(), used["group_hash"].tolist(), strict=True))):
        subgroup = notes.subgroups[value]
        row = base.get((process, subgroup.group_hash))
        if row is None:
            continue
        title, members = known[subgroup.group_hash]
        if not subgroup.ends:
            rows.append(({**row, "group_hash": value}, f"{title} · {subgroup.kind}", members))
            continue
        ends = [members[i] if i < len(members) else -1 for i in subgroup.ends]
        shown = ends if min(ends) >= 0 else list(subgroup.ends)
        place = subgroup.ends.index(row["group_rank"]) if row["group_rank"] in subgroup.ends else -1
        crosses = 0 if row["crosses_hosts"] == 0 else -1
        entry = {**row, "group_hash": value, "group_rank": place, "group_size": 2, "crosses_hosts": crosses}
        rows.append((entry, f"{title} {shown[0]} to {shown[1]}", ends if min(ends) >= 0 else []))
    return rows
