"""Slices of the threads of one rank: phases, DataLoader, waits, annotations, stacks, gc, checkpoints, I/O.

Each layer is a function (RankRows, TrackTree, root track) -> slices, called by `thread_layers` or by ``timeline``, with
a place in `Order`. I/O is drawn call by call within the budget of the file, else summed per thread and time bin, as
viewers cannot take millions of calls. Tracks and slices of sums say so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from stashtrace import _native
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import (
    IO_WAITED,
    NAMED_SPANS,
    BatchPhase,
    CollectiveOp,
    IoFlag,
    IoOp,
    Phase,
    PhaseFlag,
    SpanKind,
    WaitOp,
)
from stashtrace.schema.table import Table
from stashtrace.text.units import duration_text
from stashtrace.timeline.rows_by_rank import RankRows
from stashtrace.timeline.tracks import Line, Order, Piece, Texts, TrackTree, code_where, coded, numbered, value_where

Slices = _native.perfetto.Slices


OPS = [op.name.lower() for op in CollectiveOp]
_PHASES = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.OPTIMIZER: "optimizer",
    Phase.UPDATE_SKIPPED: "update skipped",
    Phase.CHECKPOINT: "checkpoint",
    Phase.CHECKPOINT_LOAD: "load checkpoint",
}
_BATCH_PHASES = {
    BatchPhase.WAIT: "wait for batch",
    BatchPhase.FETCH: "batch",
    BatchPhase.COLLATE: "collate",
    BatchPhase.PUT: "hand off",
    BatchPhase.RECEIVE: "take batch",
    BatchPhase.PIN: "pin",
    BatchPhase.SERIALIZE: "serialize",
    BatchPhase.WORKERS_END: "wait for workers to end",
}


def thread_layers(rows: RankRows, tree: TrackTree, root: int) -> list[Slices]:
    """Return the slices of all layers of this file, in one list for the encoder."""
    slices = _step_thread_and_loader(rows, tree, root)
    for layer in (_waits, _annotations, _stacks, _collections, _tracer):
        slices.extend(layer(rows, tree, root))
    return slices


def _step_thread_and_loader(rows: RankRows, tree: TrackTree, root: int) -> list[Slices]:
    """Add phases of the main process and the loader's workers, with an arrow from each batch to the wait for it."""
    phases, batches = rows.table("phases"), rows.table("batches")
    checkpoint = np.isin(phases["phase_code"], (Phase.CHECKPOINT, Phase.CHECKPOINT_LOAD))
    background = checkpoint & ((phases["phase_flags"] & PhaseFlag.BACKGROUND) != 0)
    batches = batches.take(batches["phase_code"] != BatchPhase.INDEX_WAIT)
    in_worker = np.isin(
        batches["track_id"], [t.track_id for t in rows.threads.values() if t.in_worker or t.label == "pin memory"]
    )

    phase_piece = _phase_piece(rows, phases.take(~background))
    main, made = batches.take(~in_worker), batches.take(in_worker)
    main_piece, made_piece = _batch_piece(main), _batch_piece(made)
    _join_batches(tree, made, made_piece, main, main_piece, phase_piece)

    lines = rows.thread_lines(Order.PHASES, "phases · {}", step_title=_of_rank("phases", rows))
    imports = _span_piece(rows, SpanKind.LIBRARY)  # before the first step: a separate track would seem empty
    slices = tree.add(root, lines, [phase_piece, main_piece, _blocked_piece(rows), imports])
    lives = _spans(rows, SpanKind.LOADER)
    iterators = Piece.from_rows(lives, np.zeros_like(lives["value"]), Texts(["iterator"]))
    iterators.ints["batches_count"] = lives["value"]
    if len(made_piece) or len(iterators):
        about = "What the loader's workers did. Arrows lead from a batch to the wait that took it."
        group = tree.group(root, Line("data loader", Order.LOADER, about))
        slices += tree.add(group, rows.thread_lines(0), [made_piece])
        life = Line("iterators", 1_000_000, "From the first to the last batch of a DataLoader iterator")
        slices += tree.add(group, dict.fromkeys(np.unique(iterators.key).tolist(), life), [iterators])
    if background.any():
        behind = phases.take(background)
        slices += tree.add(
            root,
            {t: Line("checkpoint (background)", Order.CHECKPOINT) for t in np.unique(behind["track_id"]).tolist()},
            [_phase_piece(rows, behind)],
        )
    return slices


def _phase_piece(rows: RankRows, phases: Table) -> Piece:
    names = Texts([*_PHASES.values(), "phase", "forward (no grad)"])
    codes = coded(phases["phase_code"], list(_PHASES))
    codes[(phases["phase_code"] == Phase.FORWARD) & ((phases["phase_flags"] & PhaseFlag.NO_GRAD) != 0)] = (
        len(_PHASES) + 1
    )
    piece = Piece.from_rows(phases, codes, names)
    piece.texts["of"] = (code_where(phases["name_code"] > 0, phases["name_code"]), rows.texts)
    for name in ("cpu", "runqueue"):
        begin, end = phases[f"begin_{name}_ns"], phases[f"end_{name}_ns"]
        piece.ints[f"{name}_ns"] = value_where((begin >= 0) & (end >= begin), end - begin)
    return piece


def _batch_piece(batches: Table) -> Piece:
    kinds = batches["phase_code"]
    codes, names = numbered(
        [*_BATCH_PHASES.values(), "loader"],
        coded(kinds, list(_BATCH_PHASES)),
        np.where(kinds == BatchPhase.COLLATE, -1, batches["batch_index"]),
    )
    piece = Piece.from_rows(batches, codes, names)
    worker = batches["worker_id"]
    piece.ints["worker"] = value_where((worker >= 0) & (kinds == BatchPhase.WAIT), worker)
    for argument, column, least in (
        ("cpu_ns", "cpu_ns", 0),
        ("runqueue_ns", "runqueue_ns", 0),
        ("major_faults", "major_faults_count", 1),
        ("block_inputs", "block_inputs_count", 1),
    ):
        piece.ints[argument] = value_where(batches[column] >= least, batches[column])
    return piece


def _join_batches(
    tree: TrackTree, made: Table, made_piece: Piece, main: Table, main_piece: Piece, phases: Piece
) -> None:
    """Add an arrow from the making of each batch to the wait that took it, or to the phase after an earlier wait.

    Arrows point forward in time. If the main process already waits when the worker begins, the arrow leads to the first
    phase after the wait.
    """
    sources = np.flatnonzero(made["phase_code"] == BatchPhase.FETCH)
    waits = np.flatnonzero(main["phase_code"] == BatchPhase.WAIT)
    if not len(sources) or not len(waits):
        return
    index = main["batch_index"][waits]
    made_at = GroupBy(made["loader_id"][sources], made["batch_index"][sources]).row_of(main["loader_id"][waits], index)
    known = (made_at >= 0) & (index >= 0)
    source, wait = sources[made_at[known]], waits[known]

    direct = main["begin_ns"][wait] > made["begin_ns"][source]
    by_time = np.argsort(phases.begin_ns, kind="stable")
    after = np.searchsorted(phases.begin_ns[by_time], main["end_ns"][wait])
    later = ~direct & (after < len(by_time))
    ids = tree.flow_ids(len(source))
    used = direct | later
    made_piece.flows.append((source[used], ids[used]))
    main_piece.flows.append((wait[direct], ids[direct]))
    if later.any():
        phases.flows.append((by_time[after[later]], ids[later]))


def _blocked_piece(rows: RankRows) -> Piece:
    """Return the calls of Work.wait of collectives, on the thread that waited."""
    waits, collectives = rows.table("collective_waits"), rows.trace.collectives
    key = waits["collective_key"]
    known = (key >= 0) & (key < len(collectives))
    op = np.full(len(key), len(OPS), dtype=np.int64)
    sequence = np.full(len(key), -1, dtype=np.int64)
    op[known] = coded(collectives["op_code"][key[known]], list(CollectiveOp))
    sequence[known] = collectives["sequence"][key[known]]
    codes, names = numbered([*(f"wait {o}" for o in OPS), "wait collective"], op, sequence)
    return Piece.from_rows(waits, codes, names)


def _waits(rows: RankRows, tree: TrackTree, root: int) -> list[Slices]:
    waits = rows.table("waits")
    names = Texts([*(w.name.lower() for w in WaitOp), "wait"])
    piece = Piece.from_rows(waits, coded(waits["wait_code"], list(WaitOp)), names)
    lines = rows.thread_lines(Order.WAITS, "blocked · {}", "Blocking calls of {}, short ones left out")
    return tree.add(root, lines, [piece])


def _annotations(rows: RankRows, tree: TrackTree, root: int) -> list[Slices]:
    named = [kind for kind in NAMED_SPANS if kind is not SpanKind.LIBRARY]
    piece = _span_piece(rows, *named, SpanKind.COMPILE_REASON, SpanKind.STEP_MARK, SpanKind.EXCEPTION)
    return tree.add(root, rows.thread_lines(Order.ANNOTATIONS, "annotations · {}", step_title="annotations"), [piece])


def _stacks(rows: RankRows, tree: TrackTree, root: int) -> list[Slices]:
    stacks = rows.table("stacks")
    piece = Piece.from_rows(stacks, stacks["name_code"], rows.texts)
    piece.ints["line"] = stacks["line"]
    about = "Python functions by samples of {}, 10 ms apart; further where the machine is busy"
    return tree.add(root, rows.thread_lines(Order.STACKS, "Python stack · {}", about), [piece])


def _collections(rows: RankRows, tree: TrackTree, root: int) -> list[Slices]:
    spans = _spans(rows, SpanKind.GC)
    piece = Piece.from_rows(spans, *numbered(["gc generation"], np.zeros(len(spans)), spans["value"]))
    lines = rows.thread_lines(Order.GC, "gc · {}", "Pauses of Python's garbage collector", step_title="gc")
    return tree.add(root, lines, [piece])


def _tracer(rows: RankRows, tree: TrackTree, root: int) -> list[Slices]:
    lines = rows.thread_lines(Order.TRACER, "stashtrace's own cost · {}", "")
    return tree.add(root, lines, [_span_piece(rows, SpanKind.PROBE)])


def _spans(rows: RankRows, *kinds: SpanKind) -> Table:
    spans = rows.table("spans")
    return spans.take(np.isin(spans["kind_code"], kinds))


def _span_piece(rows: RankRows, *kinds: SpanKind) -> Piece:
    spans = _spans(rows, *kinds)
    piece = Piece.from_rows(spans, spans["name_code"], rows.texts)
    piece.ints["value"] = value_where(spans["value"] != 0, spans["value"])
    return piece


def _of_rank(name: str, rows: RankRows) -> str:
    """Return a name that still says the rank when the track is pinned elsewhere."""
    return f"{name} · rank {rows.rank:03d}" if rows.rank >= 0 else name


_OPS = [op.name.lower() for op in IoOp] + ["call"]
_WHERE = ("", " pipe", " socket")


@dataclass(frozen=True, slots=True)
class Bins:
    """Bins of a width, counted from an instant, into which calls are summed."""

    origin_ns: int
    width_ns: int


def file_layer(rows: RankRows, tree: TrackTree, root: int, bins: Bins | None) -> list[_native.perfetto.Slices]:
    """Return the slices of the I/O of a rank, below a separate track."""
    piece = call_piece(rows, rows.io()) if bins is None else sum_piece(rows, rows.io_parts(), bins)
    if not len(piece):
        return []
    note = (
        ""
        if bins is None
        else f" Sums of all calls in {duration_text(bins.width_ns)}: there are more than a viewer can take. "
        "Cut by steps, window or ranks to see each call."
    )
    suffix = "" if bins is None else " (summed)"
    group = tree.group(root, Line(f"files{suffix}", Order.FILES, f"I/O calls by thread.{note}"))
    return tree.add(group, rows.thread_lines(0, f"{{}}{suffix}", f"I/O of {{}}.{note}"), [piece])


def call_piece(rows: RankRows, io: Table) -> Piece:
    """Return one slice per call."""
    flags = io["io_flags"].astype(np.int64)
    blocked = (flags & IO_WAITED) != 0
    where = np.where(flags & IoFlag.SOCKET, 2, np.where(flags & IoFlag.PIPE, 1, 0))
    names = Texts([f"{op}{place}{end}" for op in _OPS for place in _WHERE for end in ("", " (blocked)")])
    code = (coded(io["op_code"].astype(np.int64), list(IoOp)) * len(_WHERE) + where) * 2 + blocked
    result, offset = io["result_bytes"], io["offset_bytes"]
    piece = Piece.from_rows(io, code, names)
    piece.texts["path"] = (code_where(io["path_code"] > 0, io["path_code"]), rows.texts)
    piece.ints["bytes"] = value_where(result >= 0, result)
    piece.ints["errno"] = value_where(result < 0, -result)
    piece.ints["offset_bytes"] = value_where(offset >= 0, offset)
    return piece


def sum_piece(rows: RankRows, parts: Iterable[Table], bins: Bins) -> Piece:
    """Return one slice per thread and bin with calls; a call belongs to the bin in which it begins.

    Each part holds calls of one thread, sorted by begin; the parts of a thread follow each other.
    """
    summing = _native.perfetto.CallSums(bins.origin_ns, bins.width_ns, IO_WAITED)
    for part in parts:
        columns = (part[name] for name in ("begin_ns", "end_ns", "result_bytes", "path_code", "io_flags"))
        summing.add(int(part["track_id"][0]), *columns)
    sums = summing.columns()
    track, begin, until = sums["track"], sums["begin_ns"], sums["end_ns"]
    same_thread = track[1:] == track[:-1]
    until[:-1] = np.where(same_thread, np.minimum(until[:-1], begin[1:]), until[:-1])
    piece = Piece(track, begin, np.maximum(until, begin), np.zeros(len(track), dtype=np.int64), Texts(["calls"]))
    for name in ("calls_count", "bytes", "busy_ns", "blocked_count"):
        piece.ints[name] = sums[name]
    path = sums["path_code"]
    piece.texts["path_of_longest"] = (code_where(path > 0, path), rows.texts)
    return piece


def bins_for(calls_count: int, threads_count: int, allowed_count: int, begin_ns: int, end_ns: int) -> Bins | None:
    """Return bins that keep the number of slices within the allowed one; None if the calls themselves fit."""
    if calls_count <= allowed_count:
        return None
    per_thread = max(allowed_count // max(threads_count, 1), 100)
    return Bins(begin_ns, max((end_ns - begin_ns) // per_thread + 1, 1))
