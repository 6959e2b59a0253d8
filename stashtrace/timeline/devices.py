"""Devices of one rank: a group per GPU with its streams, what they waited for, its steps, and the calls of the host.

A stream has one line with the brackets on it, or its kernels in deep mode (the brackets then stand on a line of their
own, because two clocks that differ by a microsecond would cut each other). Arrows lead from the call on the host to the
work on the device, and between a stream's wait and the work it waited for. Like I/O calls, brackets and kernels are
summed per stream and time bin where they are more than a viewer can take.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace import _native
from stashtrace.schema.kinds import (
    Awaited,
    Bracket,
    BracketFlag,
    CollectiveOp,
    CopyDirection,
    DeviceCall,
    DeviceClock,
    DeviceWork,
    StreamFlag,
)
from stashtrace.schema.table import Table
from stashtrace.timeline.files import Bins
from stashtrace.timeline.host import NO_VALUE, OPS, Order
from stashtrace.timeline.rows import RankRows
from stashtrace.timeline.tracks import Doubles, Ints, Line, Piece, Texts, TrackTree, coded, numbered
from stashtrace.units import duration_text

Slices = _native.perfetto.Slices
#: (process_id, device_index) -> track of the group.
Groups = Mapping[tuple[int, int], int]

_DIRECTIONS = ["", "host to device", "device to host", "on device", "between devices", "on host", "unknown direction"]
_AWAITED = ["event", "copy", "collective", "compute", "graph", "function on the host"]
_CALLS = [call.name.lower().replace("_", " ") for call in DeviceCall]
_WORK = [work.name.lower() for work in DeviceWork]
#: Brackets that are drawn on their stream; the others are instants.
_DRAWN = (
    Bracket.BATCH_WAIT,
    Bracket.STREAM_WAIT,
    Bracket.COLLECTIVE,
    Bracket.COPY,
    Bracket.GRAPH,
    Bracket.HOST_FUNCTION,
)
_LAUNCHES = (Bracket.COPY, Bracket.GRAPH, Bracket.HOST_FUNCTION)
_FAR = 1 << 40  # added to a track id: its second line


def device_groups(rows: RankRows, tree: TrackTree, root: int) -> dict[tuple[int, int], int]:
    """A group per device that the rank uses; its description says what its times are worth."""
    groups = {}
    devices = rows.table("devices")
    several = len(np.unique(devices["process_id"])) > 1
    for order, row in enumerate(devices.rows()):
        whose = f" · process {row['process_id']}" if several else ""
        name = f"GPU {row['device_index']} · rank {rows.rank:03d}{whose}"
        line = Line(name, Order.DEVICES + order, _about(rows, row))
        groups[row["process_id"], row["device_index"]] = tree.group(root, line)
    for order, (process, index) in enumerate(_undescribed(rows, groups), len(groups)):
        about = "What device it is was not recorded."
        groups[process, index] = tree.group(
            root, Line(f"GPU {index} · rank {rows.rank:03d}", Order.DEVICES + order, about)
        )
    return groups


def _undescribed(rows: RankRows, known: Groups) -> list[tuple[int, int]]:
    """Devices that did something in the trace but have no row of their own."""
    found: set[tuple[int, int]] = set()
    for name in ("device_brackets", "kernels"):
        table = rows.table(name)
        pairs = np.unique(np.stack([table["process_id"], table["device_index"]], axis=1), axis=0)
        found.update((int(process), int(index)) for process, index in pairs)
    return sorted(found - set(known))


def _about(rows: RankRows, device: dict[str, int]) -> str:
    text = rows.trace.text
    parts = [f"{text(device['name_code'])}, {text(device['bus_code'])}, {text(device['uuid_code'])}."]
    mine = [
        clock
        for clock in rows.table("device_clocks").rows()
        if (clock["process_id"], clock["device_index"]) == (device["process_id"], device["device_index"])
    ]
    for clock in mine:
        drift = f", drift {clock['drift_ppb'] / 1000:+.1f} ppm" if clock["anchors_count"] > 1 else ", drift unknown"
        parts.append(
            f"Its {DeviceClock(clock['clock_code']).name.lower()} clock is known to +-"
            f"{duration_text(clock['error_ns'])} ({clock['anchors_count']} readings{drift})."
        )
    if not mine:
        parts.append("None of its clocks was read, so its times are not known.")
    brackets = rows.table("device_brackets")
    here = (brackets["process_id"] == device["process_id"]) & (brackets["device_index"] == device["device_index"])
    untimed = int(np.count_nonzero(here & (brackets["begin_ns"] < 0)))
    if untimed:
        parts.append(f"{untimed} brackets have no times and are not shown.")
    return " ".join(parts)


def device_slices_count(rows: RankRows) -> int:
    """Slices that the devices of a rank take if nothing is summed, at most."""
    brackets, kernels = rows.table("device_brackets"), rows.table("kernels")
    launches = np.isin(brackets["bracket_code"], _LAUNCHES).sum() + (kernels["launch_ns"] >= 0).sum()
    return 2 * len(brackets) + len(kernels) + int(launches)


def device_layer(
    rows: RankRows, tree: TrackTree, root: int, groups: Groups, launches: Ints, bins: Bins | None
) -> list[Slices]:
    """Slices of the devices of a rank; ``launches`` are the arrows of the collectives, by row of their table."""
    brackets, kernels = rows.table("device_brackets"), rows.table("kernels")
    brackets = brackets.take((brackets["begin_ns"] >= 0) & (brackets["end_ns"] >= brackets["begin_ns"]))
    drawn = brackets.take(np.isin(brackets["bracket_code"], _DRAWN))
    on_streams, on_kernels = _bracket_piece(rows, drawn), _kernel_piece(rows, kernels)
    # A stream with kernels has its brackets on a second line.
    second = np.isin(drawn["track_id"], np.unique(kernels["track_id"]))
    on_streams.key = np.where(second, drawn["track_id"] + _FAR, drawn["track_id"])
    host = [_call_piece(rows.table("device_calls")), _collective_calls(rows, launches)]
    if bins is None:
        _join_waits(tree, drawn, on_streams)
        host += _launches(tree, drawn, on_streams, kernels, on_kernels)
    slices: list[Slices] = []
    lines = _stream_lines(rows, bins)
    for (process, device), group in groups.items():
        of_brackets = (drawn["process_id"] == process) & (drawn["device_index"] == device)
        of_kernels = (kernels["process_id"] == process) & (kernels["device_index"] == device)
        if bins is not None:
            pieces = [_sums(_part(on_streams, of_brackets), bins), _sums(_part(on_kernels, of_kernels), bins)]
        else:
            pieces = [_part(on_streams, of_brackets), _part(on_kernels, of_kernels)]
        slices += tree.add(group, lines, pieces)
        mine = brackets.take((brackets["process_id"] == process) & (brackets["device_index"] == device))
        slices += tree.add(group, _STEP_LINES, [_steps(mine)])
        if bins is None:
            waits = {0: Line(f"compute waits · rank {rows.rank:03d}", 1, _ABOUT_WAITS)}
            slices += tree.add(group, waits, [_exposed(rows, mine)])
    about = "Calls of the CUDA driver or runtime and of NCCL on {}; arrows lead to the work on the device"
    threads = {
        t.track_id: Line(f"device calls · {t.label}", Order.DEVICE_CALLS + t.order, about.format(t.description))
        for t in rows.threads.values()
    }
    # A call whose thread is not known has no line; the work on the device is shown all the same.
    return slices + tree.add(root, threads, [_part(piece, np.isin(piece.key, list(threads))) for piece in host])


def host_lead(rows: RankRows, process: int, device: int) -> tuple[Ints, Doubles]:
    """(times, by how many ns the host was ahead of the device) at each single event."""
    brackets = rows.table("device_brackets")
    single = np.isin(brackets["bracket_code"], (Bracket.STEP, Bracket.MARK)) & (brackets["begin_ns"] >= 0)
    single &= (brackets["process_id"] == process) & (brackets["device_index"] == device)
    chosen = brackets.take(single).sort_by("begin_ns")
    return chosen["begin_ns"], np.maximum(chosen["begin_ns"] - chosen["call_ns"], 0).astype(np.float64)


_STEP_LINES = {0: Line("GPU steps", 0, "From one step's event to the next, on the device")}
_ABOUT_WAITS = "What a stream with compute was seen to wait for: it had run dry while the host or another stream worked"


def _stream_lines(rows: RankRows, bins: Bins | None) -> dict[int, Line]:
    tracks = rows.table("tracks")
    names = dict(zip(tracks["track_id"].tolist(), tracks["name_code"].tolist(), strict=True))
    streams = {row["track_id"]: row for row in rows.table("streams").rows()}
    note = "" if bins is None else f" Sums of all work in {duration_text(bins.width_ns)}; cut to see each piece."
    suffix = "" if bins is None else " (summed)"
    lines = {}
    for order, track in enumerate(names):
        row = streams.get(track)
        flags = StreamFlag(row["stream_flags"] if row else 0)
        words = [flag.name.lower().replace("_", " ") for flag in StreamFlag if flag in flags and flag.name]
        about = f"{', '.join(words) or 'plain'}, priority {row['priority_index']}." if row else "It was not described."
        first = 0 if StreamFlag.CARRIES_COMPUTE in flags else 1000
        name = rows.trace.text(names[track])
        lines[track] = Line(f"{name}{suffix}", 10 + first + 2 * order, about + note)
        lines[track + _FAR] = Line(f"{name} · brackets{suffix}", 11 + first + 2 * order, about + note)
    return lines


def _bracket_piece(rows: RankRows, brackets: Table) -> Piece:
    kind, awaited, copy = brackets["bracket_code"], brackets["awaited_code"], brackets["copy_code"]
    words = [
        "wait for batch",
        *(f"wait for {w}" for w in _AWAITED),
        *(f"copy {d}".strip() for d in _DIRECTIONS),
        "graph launch",
        _AWAITED[Awaited.HOST_FUNCTION],
        "collective",
        *OPS,
    ]
    first_copy, graph = 1 + len(_AWAITED), 1 + len(_AWAITED) + len(_DIRECTIONS)
    op, sequence = _operations(rows, brackets)
    word = np.select(
        [
            kind == Bracket.BATCH_WAIT,
            kind == Bracket.STREAM_WAIT,
            kind == Bracket.COPY,
            kind == Bracket.GRAPH,
            kind == Bracket.HOST_FUNCTION,
            op >= 0,
        ],
        [
            0,
            1 + np.minimum(awaited, len(_AWAITED) - 1),
            first_copy + np.minimum(copy, len(_DIRECTIONS) - 1),
            graph,
            graph + 1,
            graph + 3 + op,
        ],
        graph + 2,
    )
    number = np.where(kind == Bracket.BATCH_WAIT, brackets["correlation_id"], np.where(op >= 0, sequence, -1))
    codes, names = numbered(words, word, number)
    piece = Piece(brackets["track_id"], brackets["begin_ns"], brackets["end_ns"], codes, names)
    size, length = brackets["size_bytes"], np.maximum(brackets["end_ns"] - brackets["begin_ns"], 1)
    copies = (kind == Bracket.COPY) & (size > 0)
    piece.ints["bytes"] = np.where(copies, size, NO_VALUE)
    piece.doubles["gb_per_s"] = np.where(copies, size / length, np.nan)
    memory = np.where(brackets["bracket_flags"] & BracketFlag.PINNED, 0, 1)
    told = (brackets["bracket_flags"] & (BracketFlag.PINNED | BracketFlag.PAGEABLE)) != 0
    piece.texts["host_memory"] = (np.where(copies & told, memory, -1), Texts(["pinned", "pageable"]))
    exposed = np.clip(brackets["awaited_ns"] - brackets["begin_ns"], 0, length)
    waited = (kind == Bracket.STREAM_WAIT) & (brackets["awaited_ns"] >= 0)
    piece.ints["exposed_ns"] = np.where(waited, exposed, NO_VALUE)
    piece.ints["host_ahead_ns"] = np.maximum(brackets["begin_ns"] - brackets["return_ns"], 0)
    return piece


def _operations(rows: RankRows, brackets: Table) -> tuple[Ints, Ints]:
    """(operation, number) of the collective that each bracket stands around; -1 if it is not told by its end."""
    table = rows.trace.collectives
    chosen = np.flatnonzero((table["rank"] == rows.rank) & (table["stream_track_id"] >= 0) & (table["end_ns"] >= 0))
    nothing = np.full(len(brackets), -1, dtype=np.int64)
    if not len(chosen) or not len(brackets):
        return nothing, nothing
    order = chosen[np.lexsort((table["end_ns"][chosen], table["stream_track_id"][chosen]))]
    streams = max(int(table["stream_track_id"].max()), int(brackets["track_id"].max())) + 1
    # Both ends come from one event, so they are equal to the nanosecond.
    _, end = np.unique(np.concatenate([table["end_ns"][order], brackets["end_ns"]]), return_inverse=True)
    key = end.astype(np.int64) * streams
    of_rows, of_brackets = key[: len(order)] + table["stream_track_id"][order], key[len(order) :] + brackets["track_id"]
    by_key = np.argsort(of_rows, kind="stable")
    at = by_key[np.minimum(np.searchsorted(of_rows[by_key], of_brackets), len(by_key) - 1)]
    found = (of_rows[at] == of_brackets) & (brackets["bracket_code"] == Bracket.COLLECTIVE)
    op = np.minimum(coded(table["op_code"][order[at]], list(CollectiveOp)), len(OPS) - 1)
    return np.where(found, op, -1), np.where(found, table["sequence"][order[at]], -1)


def _kernel_piece(rows: RankRows, kernels: Table) -> Piece:
    piece = Piece(kernels["track_id"], kernels["begin_ns"], kernels["end_ns"], kernels["name_code"], rows.texts)
    size = kernels["size_bytes"]
    piece.ints["bytes"] = np.where(size > 0, size, NO_VALUE)
    piece.texts["work"] = (coded(kernels["work_code"], list(DeviceWork)), Texts([*_WORK, "other"]))
    known = np.isin(kernels["copy_code"], list(CopyDirection))
    piece.texts["direction"] = (np.where(known, kernels["copy_code"], -1), Texts(_DIRECTIONS))
    piece.ints["graph_node"] = np.where(kernels["graph_key"] != 0, kernels["graph_key"], NO_VALUE)
    return piece


def _call_piece(calls: Table) -> Piece:
    codes = coded(calls["call_code"], list(DeviceCall))
    piece = Piece(calls["track_id"], calls["begin_ns"], calls["end_ns"], codes, Texts([*_CALLS, "device call"]))
    piece.ints["bytes"] = np.where(calls["size_bytes"] > 0, calls["size_bytes"], NO_VALUE)
    piece.ints["error"] = np.where(calls["status_code"] != 0, calls["status_code"], NO_VALUE)
    return piece


def _collective_calls(rows: RankRows, launches: Ints) -> Piece:
    """The calls of the collectives that are shown on the device, with the arrows that lead there."""
    table = rows.trace.collectives
    mine = np.flatnonzero((table["rank"] == rows.rank) & (launches != 0)) if len(launches) else launches
    chosen = table.take(mine)
    codes, names = numbered([*OPS, "collective"], coded(chosen["op_code"], list(CollectiveOp)), chosen["sequence"])
    end = np.maximum(chosen["return_ns"], chosen["call_ns"])
    piece = Piece(chosen["track_id"], chosen["call_ns"], end, codes, names)
    piece.ints["bytes"] = chosen["message_bytes"]
    joined = np.flatnonzero(launches[mine] > 0)
    piece.flows.append((joined, launches[mine][joined]))
    return piece


def _launches(tree: TrackTree, brackets: Table, on_streams: Piece, kernels: Table, on_kernels: Piece) -> list[Piece]:
    """Calls of the host that put work on a device, with arrows to it."""
    rows = np.flatnonzero(np.isin(brackets["bracket_code"], _LAUNCHES))
    ids = tree.flow_ids(len(rows))
    on_streams.flows.append((rows, ids))
    call = brackets["call_ns"][rows]
    kind = brackets["bracket_code"][rows]
    other = np.where(kind == Bracket.GRAPH, len(_DIRECTIONS), len(_DIRECTIONS) + 1)
    word = np.where(kind == Bracket.COPY, np.minimum(brackets["copy_code"][rows], len(_DIRECTIONS) - 1), other)
    names = Texts([*(f"copy {d}".strip() for d in _DIRECTIONS), "graph launch", "enqueue a function on the host"])
    plain = Piece(brackets["thread_track_id"][rows], call, np.maximum(brackets["return_ns"][rows], call), word, names)
    plain.flows.append((np.arange(len(rows)), ids))
    launched = np.flatnonzero((kernels["launch_ns"] >= 0) & (kernels["thread_track_id"] >= 0))
    ids = tree.flow_ids(len(launched))
    on_kernels.flows.append((launched, ids))
    begin = kernels["launch_ns"][launched]
    deep = Piece(
        kernels["thread_track_id"][launched],
        begin,
        np.maximum(kernels["return_ns"][launched], begin),
        np.zeros(len(launched), dtype=np.int64),
        Texts(["launch"]),
    )
    deep.flows.append((np.arange(len(launched)), ids))
    return [plain, deep]


def _join_waits(tree: TrackTree, brackets: Table, piece: Piece) -> None:
    """Arrow between a stream's wait and the work it waited for, which its correlation names."""
    waits = np.flatnonzero((brackets["bracket_code"] == Bracket.STREAM_WAIT) & (brackets["correlation_id"] > 0))
    if not len(waits):
        return
    most = int(max(brackets["bracket_id"].max(), brackets["correlation_id"][waits].max())) + 1
    own = brackets["process_id"] * most + brackets["bracket_id"]
    order = np.argsort(own, kind="stable")
    wanted = brackets["process_id"][waits] * most + brackets["correlation_id"][waits]
    at = order[np.minimum(np.searchsorted(own[order], wanted), len(order) - 1)]
    found = own[at] == wanted
    ids = tree.flow_ids(int(found.sum()))
    piece.flows.append((waits[found], ids))
    piece.flows.append((at[found], ids))


def _steps(brackets: Table) -> Piece:
    events = brackets.take(brackets["bracket_code"] == Bracket.STEP).sort_by("begin_ns")
    codes, names = numbered(["step"], np.zeros(max(len(events) - 1, 0)), events["correlation_id"][:-1])
    nowhere = np.zeros(len(codes), dtype=np.int64)
    return Piece(nowhere, events["begin_ns"][:-1], events["begin_ns"][1:], codes, names)


def _exposed(rows: RankRows, brackets: Table) -> Piece:
    """What the compute streams waited for: the parts of brackets in which they had run dry."""
    streams = rows.table("streams")
    compute = streams["track_id"][(streams["stream_flags"] & StreamFlag.CARRIES_COMPUTE) != 0]
    kind, awaited = brackets["bracket_code"], brackets["awaited_code"]
    begin, end = brackets["begin_ns"], brackets["end_ns"]
    batch, stream = kind == Bracket.BATCH_WAIT, kind == Bracket.STREAM_WAIT
    begin = np.where(batch, np.maximum(begin, brackets["call_ns"]), begin)
    end = np.where(
        batch, np.minimum(end, brackets["return_ns"]), np.where(stream, np.minimum(end, brackets["awaited_ns"]), end)
    )
    shown = np.isin(brackets["track_id"], compute) & (end > begin)
    held = (Bracket.COLLECTIVE, Bracket.COPY, Bracket.HOST_FUNCTION)
    shown &= batch | (stream & (awaited != Awaited.NOTHING)) | np.isin(kind, held)
    word = np.select(
        [batch, stream, kind == Bracket.COPY, kind == Bracket.HOST_FUNCTION],
        [0, 1 + np.minimum(awaited, len(_AWAITED) - 1), 2, 1 + int(Awaited.HOST_FUNCTION)],
        1 + int(Awaited.COLLECTIVE),
    )
    codes, names = numbered(["batch", *_AWAITED], word[shown], np.where(batch, brackets["correlation_id"], -1)[shown])
    return Piece(np.zeros(int(shown.sum()), dtype=np.int64), begin[shown], end[shown], codes, names)


def _part(piece: Piece, chosen: npt.NDArray[np.bool_]) -> Piece:
    """Some slices of a piece, with their arrows."""
    place = np.cumsum(chosen) - 1

    def cut(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values[chosen]

    return Piece(
        cut(piece.key),
        cut(piece.begin_ns),
        cut(piece.end_ns),
        cut(piece.name),
        piece.names,
        {name: cut(values) for name, values in piece.ints.items()},
        {name: cut(values) for name, values in piece.doubles.items()},
        {name: (cut(codes), texts) for name, (codes, texts) in piece.texts.items()},
        [(place[rows[chosen[rows]]], ids[chosen[rows]]) for rows, ids in piece.flows],
    )


def _sums(piece: Piece, bins: Bins) -> Piece:
    """One slice per line and time bin that holds work; it belongs to the bin in which it begins."""
    if not len(piece):
        return piece
    order = np.lexsort((piece.begin_ns, piece.key))
    key, begin, end = piece.key[order], piece.begin_ns[order], piece.end_ns[order]
    number = (begin - bins.origin_ns) // bins.width_ns
    first = np.flatnonzero((np.diff(key, prepend=key[0] - 1) != 0) | (np.diff(number, prepend=number[0] - 1) != 0))
    until = np.maximum.reduceat(end, first)
    same = key[first][1:] == key[first][:-1]
    until[:-1] = np.where(same, np.minimum(until[:-1], begin[first][1:]), until[:-1])
    until = np.maximum(until, begin[first])
    length = end - begin
    counts = np.diff(np.append(first, len(key)))
    longest = np.flatnonzero(length == np.repeat(np.maximum.reduceat(length, first), counts))
    longest = longest[np.searchsorted(longest, first)]
    summed = Piece(key[first], begin[first], until, np.zeros(len(first), dtype=np.int64), Texts(["work"]))
    summed.ints["count"] = counts
    summed.ints["busy_ns"] = np.minimum(np.add.reduceat(length, first), until - begin[first])
    summed.texts["longest"] = (piece.name[order][longest], piece.names)
    return summed
