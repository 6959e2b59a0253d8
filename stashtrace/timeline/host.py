"""What the threads of one rank did, as slices: phases, DataLoader, waits, annotations, gc, checkpoints.

Each layer is a function (RankRows, TrackTree, root track) -> slices; ``timeline`` calls them. Adding a layer is a
function here or in a file of its own, a line in `LAYERS`, and a place in `Order`.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import enum

import numpy as np

from stashtrace import _native
from stashtrace.schema.kinds import BatchPhase, CollectiveOp, Phase, PhaseFlag, SpanKind, WaitOp
from stashtrace.schema.table import Table
from stashtrace.timeline.rows import RankRows
from stashtrace.timeline.tracks import Line, Piece, Texts, TrackTree, coded, numbered

Slices = _native.perfetto.Slices
NO_VALUE: int = _native.perfetto.NO_VALUE


class Order(enum.IntEnum):
    """Place of a layer below the step track of its rank; lines of a layer count on from it."""

    PHASES = 1000
    DEVICE_CALLS = 1500
    DEVICES = 1800
    COMMUNICATORS = 2000
    LOADER = 3000
    FILES = 4000
    WAITS = 5000
    ANNOTATIONS = 6000
    GC = 7000
    CHECKPOINT = 8000
    TRACER = 9000
    COUNTERS = 10000


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
    """All layers of this file, in one list for the encoder."""
    batches = rows.table("batches")
    found = _step_thread_and_loader(rows, tree, root, batches)
    for layer in (_waits, _annotations, _collections, _tracer):
        found.extend(layer(rows, tree, root))
    return found


def _step_thread_and_loader(rows: RankRows, tree: TrackTree, root: int, batches: Table) -> list[Slices]:
    """Phases of the main process and the loader's workers, with an arrow from each batch to the wait that took it."""
    phases = rows.table("phases")
    checkpoint = np.isin(phases["phase_code"], (Phase.CHECKPOINT, Phase.CHECKPOINT_LOAD))
    background = checkpoint & ((phases["phase_flags"] & PhaseFlag.BACKGROUND) != 0)
    in_worker = np.isin(
        batches["track_id"], [t.track_id for t in rows.threads.values() if t.in_worker or t.label == "pin memory"]
    )

    phase_piece = _phase_piece(rows, phases.take(~background))
    main = batches.take(~in_worker & (batches["phase_code"] != BatchPhase.INDEX_WAIT))
    main_piece = _batch_piece(main)
    made = batches.take(in_worker & (batches["phase_code"] != BatchPhase.INDEX_WAIT))
    made_piece = _batch_piece(made)
    _join_batches(tree, made, made_piece, main, main_piece, phase_piece)

    lines = {
        t.track_id: Line(
            f"phases · {t.label}" if not t.is_step else _of_rank("phases", rows), Order.PHASES + t.order, t.description
        )
        for t in rows.threads.values()
    }
    slices = tree.add(root, lines, [phase_piece, main_piece, _blocked_piece(rows)])
    spans = rows.table("spans")
    lives = spans.take(spans["kind_code"] == SpanKind.LOADER)
    iterators = Piece(
        lives["track_id"], lives["begin_ns"], lives["end_ns"], np.zeros_like(lives["value"]), Texts(["iterator"])
    )
    iterators.ints["batches_count"] = lives["value"]
    if len(made_piece) or len(iterators):
        about = "What the loader's workers did. Arrows lead from a batch to the wait that took it."
        group = tree.group(root, Line("data loader", Order.LOADER, about))
        slices += tree.add(group, _thread_lines(rows), [made_piece])
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
    piece = Piece(phases["track_id"], phases["begin_ns"], phases["end_ns"], codes, names)
    piece.texts["of"] = (np.where(phases["name_code"] > 0, phases["name_code"], -1), rows.texts)
    for name in ("cpu", "runqueue"):
        begin, end = phases[f"begin_{name}_ns"], phases[f"end_{name}_ns"]
        piece.ints[f"{name}_ns"] = np.where((begin >= 0) & (end >= begin), end - begin, NO_VALUE)
    return piece


def _batch_piece(batches: Table) -> Piece:
    kinds = batches["phase_code"]
    codes, names = numbered(
        [*_BATCH_PHASES.values(), "loader"],
        coded(kinds, list(_BATCH_PHASES)),
        np.where(kinds == BatchPhase.COLLATE, -1, batches["batch_index"]),
    )
    piece = Piece(batches["track_id"], batches["begin_ns"], batches["end_ns"], codes, names)
    worker = batches["worker_id"]
    piece.ints["worker"] = np.where((worker >= 0) & (kinds == BatchPhase.WAIT), worker, NO_VALUE)
    for argument, column, floor in (
        ("cpu_ns", "cpu_ns", 0),
        ("runqueue_ns", "runqueue_ns", 0),
        ("major_faults", "major_faults_count", 1),
        ("block_inputs", "block_inputs_count", 1),
    ):
        piece.ints[argument] = np.where(batches[column] >= floor, batches[column], NO_VALUE)
    return piece


def _join_batches(
    tree: TrackTree, made: Table, made_piece: Piece, main: Table, main_piece: Piece, phases: Piece
) -> None:
    """Arrow from the making of each batch to the wait that took it, or to what follows a wait that began earlier.

    An arrow points forward in time, so when the main process already waits as the worker begins, it leads to the first
    phase after the wait: what the batch was waited for.
    """
    sources = np.flatnonzero(made["phase_code"] == BatchPhase.FETCH)
    waits = np.flatnonzero(main["phase_code"] == BatchPhase.WAIT)
    if not len(sources) or not len(waits):
        return
    _, loader = np.unique(np.concatenate([made["loader_id"][sources], main["loader_id"][waits]]), return_inverse=True)
    index = np.concatenate([made["batch_index"][sources], main["batch_index"][waits]])
    key = loader.astype(np.int64) * (int(index.max()) + 2) + index + 1
    source_key, wait_key = key[: len(sources)], key[len(sources) :]
    order = np.argsort(source_key, kind="stable")
    at = np.minimum(np.searchsorted(source_key[order], wait_key), len(order) - 1)
    known = (source_key[order][at] == wait_key) & (index[len(sources) :] >= 0)
    source, wait = sources[order[at[known]]], waits[known]

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
    """Work.wait of collectives, on the thread that waited."""
    waits, collectives = rows.table("collective_waits"), rows.trace.collectives
    key = waits["collective_key"]
    known = (key >= 0) & (key < len(collectives))
    op = np.full(len(key), len(OPS), dtype=np.int64)
    sequence = np.full(len(key), -1, dtype=np.int64)
    op[known] = coded(collectives["op_code"][key[known]], list(CollectiveOp))
    sequence[known] = collectives["sequence"][key[known]]
    codes, names = numbered([*(f"wait {o}" for o in OPS), "wait collective"], op, sequence)
    return Piece(waits["track_id"], waits["begin_ns"], waits["end_ns"], codes, names)


def _waits(rows: RankRows, tree: TrackTree, root: int) -> list[Slices]:
    waits = rows.table("waits")
    if not len(waits):
        return []
    piece = Piece(
        waits["track_id"],
        waits["begin_ns"],
        waits["end_ns"],
        coded(waits["wait_code"], list(WaitOp)),
        Texts([*(w.name.lower() for w in WaitOp), "wait"]),
    )
    lines = {
        t.track_id: Line(
            f"blocked · {t.label}", Order.WAITS + t.order, f"Blocking calls of {t.description}, short ones left out"
        )
        for t in rows.threads.values()
    }
    return tree.add(root, lines, [piece])


def _annotations(rows: RankRows, tree: TrackTree, root: int) -> list[Slices]:
    spans = rows.table("spans")
    spans = spans.take(np.isin(spans["kind_code"], (SpanKind.USER, SpanKind.STEP_MARK)))
    lines = {
        t.track_id: Line(
            "annotations" if t.is_step else f"annotations · {t.label}", Order.ANNOTATIONS + t.order, t.description
        )
        for t in rows.threads.values()
    }
    return tree.add(root, lines, [_span_piece(rows, spans)])


def _collections(rows: RankRows, tree: TrackTree, root: int) -> list[Slices]:
    spans = rows.table("spans")
    spans = spans.take(spans["kind_code"] == SpanKind.GC)
    names, texts = numbered(["gc generation"], np.zeros(len(spans)), spans["value"])
    piece = Piece(spans["track_id"], spans["begin_ns"], spans["end_ns"], names, texts)
    lines = {
        t.track_id: Line(
            "gc" if t.is_step else f"gc · {t.label}", Order.GC + t.order, "Pauses of Python's garbage collector"
        )
        for t in rows.threads.values()
    }
    return tree.add(root, lines, [piece])


def _tracer(rows: RankRows, tree: TrackTree, root: int) -> list[Slices]:
    spans = rows.table("spans")
    spans = spans.take(spans["kind_code"] == SpanKind.PROBE)
    lines = {
        t.track_id: Line(f"stashtrace's own cost · {t.label}", Order.TRACER + t.order) for t in rows.threads.values()
    }
    return tree.add(root, lines, [_span_piece(rows, spans)])


def _span_piece(rows: RankRows, spans: Table) -> Piece:
    piece = Piece(spans["track_id"], spans["begin_ns"], spans["end_ns"], spans["name_code"], rows.texts)
    piece.ints["value"] = np.where(spans["value"] != 0, spans["value"], NO_VALUE)
    return piece


def _thread_lines(rows: RankRows) -> dict[int, Line]:
    return {t.track_id: Line(t.label, t.order, t.description) for t in rows.threads.values()}


def _of_rank(name: str, rows: RankRows) -> str:
    """Name that still says where it belongs when the track is pinned away from its rank."""
    return f"{name} · rank {rows.rank:03d}" if rows.rank >= 0 else name
