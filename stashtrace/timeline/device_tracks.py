"""Devices of one rank: a group per GPU with its streams, their waits, its steps, and the calls of the host.

A stream has one line with its brackets, or with its kernels in deep mode (the brackets then have a separate line,
because two clocks that differ by a microsecond would cut each other). Arrows lead from the call on the host to the
work on the device, and between a stream's wait and the awaited work. Like I/O calls, brackets and kernels are summed
per stream and time bin where a viewer cannot take as many.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace import _native
from stashtrace.analysis.intervals import Bools
from stashtrace.schema import kinds
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.table import Table
from stashtrace.text.units import duration_text
from stashtrace.timeline.host_tracks import OPS, Bins
from stashtrace.timeline.rows_by_rank import RankRows
from stashtrace.timeline.tracks import (
    Doubles,
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

Slices = _native.perfetto.Slices
#: (process_id, device_index) -> track of the group.
Groups = Mapping[tuple[int, int], int]

_DIRECTIONS = ["", "host to device", "device to host", "on device", "between devices", "on host", "unknown direction"]
_AWAITED = ["event", "copy", "collective", "compute", "graph", "function on the host"]
_CALLS = [call.name.lower().replace("_", " ") for call in kinds.DeviceCall]
_WORK = [work.name.lower() for work in kinds.DeviceWork]
_LAUNCHES = (kinds.Bracket.COPY, kinds.Bracket.GRAPH, kinds.Bracket.HOST_FUNCTION)
#: Brackets that are drawn on their stream; the others are instants.
_DRAWN = (kinds.Bracket.BATCH_WAIT, kinds.Bracket.STREAM_WAIT, kinds.Bracket.COLLECTIVE, *_LAUNCHES)
#: Added to the id of a track: key of its second line.
_SECOND_LINE = 1 << 40
_COPY_WORDS = [f"copy {direction}".strip() for direction in _DIRECTIONS]


def device_groups(rows: RankRows, tree: TrackTree, root: int) -> dict[tuple[int, int], int]:
    """Add a group per device that the rank uses, described with the error of its times."""
    groups = {}
    devices = rows.table("devices")
    several = len(np.unique(devices["process_id"])) > 1
    for order, row in enumerate(devices.rows()):
        suffix = f" · process {row['process_id']}" if several else ""
        name = f"GPU {row['device_index']} · rank {rows.rank:03d}{suffix}"
        line = Line(name, Order.DEVICES + order, _about(rows, row))
        groups[row["process_id"], row["device_index"]] = tree.group(root, line)
    for order, (process, index) in enumerate(_devices_without_rows(rows, groups), len(groups)):
        about = "What device it is was not recorded."
        line = Line(f"GPU {index} · rank {rows.rank:03d}", Order.DEVICES + order, about)
        groups[process, index] = tree.group(root, line)
    return groups


def _devices_without_rows(rows: RankRows, known: Groups) -> list[tuple[int, int]]:
    """Return the devices with work in the trace but no separate row."""
    used: set[tuple[int, int]] = set()
    for name in ("device_brackets", "kernels"):
        table = rows.table(name)
        processes, devices = GroupBy(table["process_id"], table["device_index"]).keys
        used.update(zip(processes.tolist(), devices.tolist(), strict=True))
    return sorted(used - set(known))


def on_device(table: Table, process: int, device: int) -> Bools:
    """Return which rows belong to a device of a process."""
    chosen: Bools = (table["process_id"] == process) & (table["device_index"] == device)
    return chosen


def _about(rows: RankRows, device: dict[str, int]) -> str:
    text = rows.trace.text
    parts = [f"{text(device['name_code'])}, {text(device['bus_code'])}, {text(device['uuid_code'])}."]
    place = device["process_id"], device["device_index"]
    clocks, brackets = (rows.table(name) for name in ("device_clocks", "device_brackets"))
    clocks = clocks.take(on_device(clocks, *place))
    for clock in clocks.rows():
        drift = f", drift {clock['drift_ppb'] / 1000:+.1f} ppm" if clock["anchors_count"] > 1 else ", drift unknown"
        parts.append(
            f"Its {kinds.DeviceClock(clock['clock_code']).name.lower()} clock is known to +-"
            f"{duration_text(clock['error_ns'])} ({clock['anchors_count']} readings{drift})."
        )
    if not len(clocks):
        parts.append("None of its clocks was read, so its times are not known.")
    untimed = int(np.count_nonzero(on_device(brackets, *place) & (brackets["begin_ns"] < 0)))
    if untimed:
        parts.append(f"{untimed} brackets have no times and are not shown.")
    return " ".join(parts)


def device_slices_count(rows: RankRows) -> int:
    """Return an upper bound of the slices that the devices of a rank take if nothing is summed."""
    brackets, kernels = rows.table("device_brackets"), rows.table("kernels")
    launches = np.isin(brackets["bracket_code"], _LAUNCHES).sum() + (kernels["launch_ns"] >= 0).sum()
    return 2 * len(brackets) + len(kernels) + int(launches)


def device_layer(
    rows: RankRows, tree: TrackTree, root: int, groups: Groups, launches: Ints, bins: Bins | None
) -> list[Slices]:
    """Return the slices of the devices of a rank; ``launches`` are the arrows of the collectives, by row."""
    brackets, kernels = rows.table("device_brackets"), rows.table("kernels")
    brackets = brackets.take((brackets["begin_ns"] >= 0) & (brackets["end_ns"] >= brackets["begin_ns"]))
    drawn = brackets.take(np.isin(brackets["bracket_code"], _DRAWN))
    on_streams, on_kernels = _bracket_piece(rows, drawn), _kernel_piece(rows, kernels)
    # A stream with kernels has its brackets on a second line.
    second = np.isin(drawn["track_id"], np.unique(kernels["track_id"]))
    on_streams.key = drawn["track_id"] + second * _SECOND_LINE
    host = [_call_piece(rows.table("device_calls")), _collective_calls(rows, launches)]
    if bins is None:
        _join_waits(tree, drawn, on_streams)
        host += _launches(tree, drawn, on_streams, kernels, on_kernels)
    slices: list[Slices] = []
    lines = _stream_lines(rows, bins)
    for (process, device), group in groups.items():
        pieces = [
            _part(on_streams, on_device(drawn, process, device)),
            _part(on_kernels, on_device(kernels, process, device)),
        ]
        slices += tree.add(group, lines, pieces if bins is None else [_sums(piece, bins) for piece in pieces])
        of_device = brackets.take(on_device(brackets, process, device))
        slices += tree.add(group, _STEP_LINES, [_steps(of_device)])
        if bins is None:
            waits = {0: Line(f"compute waits · rank {rows.rank:03d}", 1, _ABOUT_WAITS)}
            slices += tree.add(group, waits, [_exposed_waits(rows, of_device)])
    about = "Calls of the CUDA driver or runtime and of NCCL on {}; arrows lead to the work on the device"
    threads = rows.thread_lines(Order.DEVICE_CALLS, "device calls · {}", about)
    # A call of an unknown thread has no line; the work on the device is shown all the same.
    return slices + tree.add(root, threads, [_part(piece, np.isin(piece.key, list(threads))) for piece in host])


def host_lead(rows: RankRows, process: int, device: int) -> tuple[Ints, Doubles]:
    """Return the times of single events, and the ns by which the host was ahead of the device at each."""
    brackets = rows.table("device_brackets")
    is_event = np.isin(brackets["bracket_code"], (kinds.Bracket.STEP, kinds.Bracket.MARK)) & (brackets["begin_ns"] >= 0)
    chosen = brackets.take(is_event & on_device(brackets, process, device)).sort_by("begin_ns")
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
        flags = kinds.StreamFlag(row["stream_flags"] if row else 0)
        words = [flag.name.lower().replace("_", " ") for flag in kinds.StreamFlag if flag in flags and flag.name]
        about = f"{', '.join(words) or 'plain'}, priority {row['priority_index']}." if row else "It was not described."
        first = 0 if kinds.StreamFlag.CARRIES_COMPUTE in flags else 1000
        name = rows.trace.text(names[track])
        lines[track] = Line(f"{name}{suffix}", 10 + first + 2 * order, about + note)
        lines[track + _SECOND_LINE] = Line(f"{name} · brackets{suffix}", 11 + first + 2 * order, about + note)
    return lines


def _bracket_piece(rows: RankRows, brackets: Table) -> Piece:
    kind, awaited, copy = brackets["bracket_code"], brackets["awaited_code"], brackets["copy_code"]
    words = [
        "wait for batch",
        *(f"wait for {w}" for w in _AWAITED),
        *_COPY_WORDS,
        "graph launch",
        _AWAITED[kinds.Awaited.HOST_FUNCTION],
        "collective",
        *OPS,
    ]
    first_copy, graph = 1 + len(_AWAITED), 1 + len(_AWAITED) + len(_DIRECTIONS)
    op, sequence = _operations(rows, brackets)
    word = np.select(
        [
            kind == kinds.Bracket.BATCH_WAIT,
            kind == kinds.Bracket.STREAM_WAIT,
            kind == kinds.Bracket.COPY,
            kind == kinds.Bracket.GRAPH,
            kind == kinds.Bracket.HOST_FUNCTION,
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
    number = np.where(kind == kinds.Bracket.BATCH_WAIT, brackets["correlation_id"], np.where(op >= 0, sequence, -1))
    codes, names = numbered(words, word, number)
    piece = Piece.from_rows(brackets, codes, names)
    size, length = brackets["size_bytes"], np.maximum(brackets["end_ns"] - brackets["begin_ns"], 1)
    copies = (kind == kinds.Bracket.COPY) & (size > 0)
    piece.ints["bytes"] = value_where(copies, size)
    piece.doubles["gb_per_s"] = np.where(copies, size / length, np.nan)
    memory = np.where(brackets["bracket_flags"] & kinds.BracketFlag.PINNED, 0, 1)
    known = (brackets["bracket_flags"] & (kinds.BracketFlag.PINNED | kinds.BracketFlag.PAGEABLE)) != 0
    piece.texts["host_memory"] = (code_where(copies & known, memory), Texts(["pinned", "pageable"]))
    exposed = np.clip(brackets["awaited_ns"] - brackets["begin_ns"], 0, length)
    waited = (kind == kinds.Bracket.STREAM_WAIT) & (brackets["awaited_ns"] >= 0)
    piece.ints["exposed_ns"] = value_where(waited, exposed)
    piece.ints["host_ahead_ns"] = np.maximum(brackets["begin_ns"] - brackets["return_ns"], 0)
    return piece


def _operations(rows: RankRows, brackets: Table) -> tuple[Ints, Ints]:
    """Return (operation, number) of the collective inside each bracket; -1 if its end does not say."""
    table = rows.trace.collectives
    table = table.take((table["rank"] == rows.rank) & (table["stream_track_id"] >= 0) & (table["end_ns"] >= 0))
    # Both ends come from one event, so they are equal to the nanosecond.
    row = GroupBy(table["stream_track_id"], table["end_ns"]).row_of(brackets["track_id"], brackets["end_ns"])
    row[brackets["bracket_code"] != kinds.Bracket.COLLECTIVE] = -1
    op = np.minimum(coded(table["op_code"], list(kinds.CollectiveOp)), len(OPS) - 1)
    return np.append(op, -1)[row], np.append(table["sequence"], -1)[row]


def _kernel_piece(rows: RankRows, kernels: Table) -> Piece:
    piece = Piece.from_rows(kernels, kernels["name_code"], rows.texts)
    size = kernels["size_bytes"]
    piece.ints["bytes"] = value_where(size > 0, size)
    piece.texts["work"] = (coded(kernels["work_code"], list(kinds.DeviceWork)), Texts([*_WORK, "other"]))
    known = np.isin(kernels["copy_code"], list(kinds.CopyDirection))
    piece.texts["direction"] = (code_where(known, kernels["copy_code"]), Texts(_DIRECTIONS))
    piece.ints["graph_node"] = value_where(kernels["graph_key"] != 0, kernels["graph_key"])
    return piece


def _call_piece(calls: Table) -> Piece:
    codes = coded(calls["call_code"], list(kinds.DeviceCall))
    piece = Piece.from_rows(calls, codes, Texts([*_CALLS, "device call"]))
    piece.ints["bytes"] = value_where(calls["size_bytes"] > 0, calls["size_bytes"])
    piece.ints["error"] = value_where(calls["status_code"] != 0, calls["status_code"])
    return piece


def _collective_calls(rows: RankRows, launches: Ints) -> Piece:
    """Return the calls of the collectives that are shown on the device, with the arrows that lead there."""
    table = rows.trace.collectives
    of_rank = np.flatnonzero((table["rank"] == rows.rank) & (launches != 0)) if len(launches) else launches
    chosen = table.take(of_rank)
    codes, names = numbered(
        [*OPS, "collective"], coded(chosen["op_code"], list(kinds.CollectiveOp)), chosen["sequence"]
    )
    end = np.maximum(chosen["return_ns"], chosen["call_ns"])
    piece = Piece(chosen["track_id"], chosen["call_ns"], end, codes, names)
    piece.ints["bytes"] = chosen["message_bytes"]
    joined = np.flatnonzero(launches[of_rank] > 0)
    piece.flows.append((joined, launches[of_rank][joined]))
    return piece


def _launches(tree: TrackTree, brackets: Table, on_streams: Piece, kernels: Table, on_kernels: Piece) -> list[Piece]:
    """Return the calls of the host that put work on a device, with arrows to it."""
    rows = np.flatnonzero(np.isin(brackets["bracket_code"], _LAUNCHES))
    ids = tree.flow_ids(len(rows))
    on_streams.flows.append((rows, ids))
    call = brackets["call_ns"][rows]
    kind = brackets["bracket_code"][rows]
    other = np.where(kind == kinds.Bracket.GRAPH, len(_DIRECTIONS), len(_DIRECTIONS) + 1)
    word = np.where(kind == kinds.Bracket.COPY, np.minimum(brackets["copy_code"][rows], len(_DIRECTIONS) - 1), other)
    names = Texts([*_COPY_WORDS, "graph launch", "enqueue a function on the host"])
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
    """Add arrows between a stream's waits and the awaited work, which their correlation names."""
    waits = np.flatnonzero((brackets["bracket_code"] == kinds.Bracket.STREAM_WAIT) & (brackets["correlation_id"] > 0))
    ids_of_process = GroupBy(brackets["process_id"], brackets["bracket_id"])
    awaited = ids_of_process.row_of(brackets["process_id"][waits], brackets["correlation_id"][waits])
    waits, awaited = waits[awaited >= 0], awaited[awaited >= 0]
    ids = tree.flow_ids(len(waits))
    piece.flows += [(waits, ids), (awaited, ids)]


def _steps(brackets: Table) -> Piece:
    events = brackets.take(brackets["bracket_code"] == kinds.Bracket.STEP).sort_by("begin_ns")
    codes, names = numbered(["step"], np.zeros(max(len(events) - 1, 0)), events["correlation_id"][:-1])
    nowhere = np.zeros(len(codes), dtype=np.int64)
    return Piece(nowhere, events["begin_ns"][:-1], events["begin_ns"][1:], codes, names)


def _exposed_waits(rows: RankRows, brackets: Table) -> Piece:
    """Return the waits of the compute streams: the parts of brackets in which they had run dry."""
    streams = rows.table("streams")
    compute = streams["track_id"][(streams["stream_flags"] & kinds.StreamFlag.CARRIES_COMPUTE) != 0]
    kind, awaited = brackets["bracket_code"], brackets["awaited_code"]
    begin, end = brackets["begin_ns"], brackets["end_ns"]
    batch, stream = kind == kinds.Bracket.BATCH_WAIT, kind == kinds.Bracket.STREAM_WAIT
    begin = np.where(batch, np.maximum(begin, brackets["call_ns"]), begin)
    end = np.where(
        batch, np.minimum(end, brackets["return_ns"]), np.where(stream, np.minimum(end, brackets["awaited_ns"]), end)
    )
    shown = np.isin(brackets["track_id"], compute) & (end > begin)
    held = (kinds.Bracket.COLLECTIVE, kinds.Bracket.COPY, kinds.Bracket.HOST_FUNCTION)
    shown &= batch | (stream & (awaited != kinds.Awaited.NOTHING)) | np.isin(kind, held)
    word = np.select(
        [batch, stream, kind == kinds.Bracket.COPY, kind == kinds.Bracket.HOST_FUNCTION],
        [0, 1 + np.minimum(awaited, len(_AWAITED) - 1), 2, 1 + int(kinds.Awaited.HOST_FUNCTION)],
        1 + int(kinds.Awaited.COLLECTIVE),
    )
    codes, names = numbered(["batch", *_AWAITED], word[shown], np.where(batch, brackets["correlation_id"], -1)[shown])
    return Piece(np.zeros(int(shown.sum()), dtype=np.int64), begin[shown], end[shown], codes, names)


def _part(piece: Piece, chosen: Bools) -> Piece:
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
    """Return one slice per line and time bin with work; work belongs to the bin in which it begins."""
    order = order_by(piece.key, piece.begin_ns)
    begin, length = piece.begin_ns[order], (piece.end_ns - piece.begin_ns)[order]
    groups = GroupBy.runs(piece.key[order], (begin - bins.origin_ns) // bins.width_ns)
    begins, (key, _) = begin[groups.first], groups.keys
    until = groups.max(piece.end_ns[order])
    until[:-1] = np.where(key[1:] == key[:-1], np.minimum(until[:-1], begins[1:]), until[:-1])
    until = np.maximum(until, begins)
    summed = Piece(key, begins, until, np.zeros(len(groups), dtype=np.int64), Texts(["work"]))
    summed.ints["count"] = groups.sizes
    summed.ints["busy_ns"] = np.minimum(groups.sum(length), until - begins)
    summed.texts["longest"] = (piece.name[order][groups.argmax(length)], piece.names)
    return summed
