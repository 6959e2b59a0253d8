"""overlap_advice: where communication could be overlapped, fused or split, and what that would save.

``named_advice`` chooses the rows that are worth a sentence: the largest three remedies, limited by a replay, since
shortening what nothing waits for saves nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stashtrace.analysis.collectives.collective_waits import communicator_names
from stashtrace.analysis.graph import Graph, Resource
from stashtrace.analysis.intervals import Bools, Floats, Int64
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.training_loop import update_times
from stashtrace.calibration.file import Calibration, calibration_of
from stashtrace.replay.advice.counted_collectives import POSITIONS, scene
from stashtrace.replay.advice.patterns import Patterns, Row
from stashtrace.replay.advice.policy import POLICY
from stashtrace.schema import columns as col
from stashtrace.schema.columns import schema
from stashtrace.schema.kinds import CollectiveOp, Phase
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Remedies that no software offers today stand only in the table.
_NO_SWITCH = ("fused_collective",)


@dataclass(frozen=True, slots=True)
class Advice:
    """One remedy for the collectives of one communicator."""

    transformation: str
    switch: str
    communicator: str
    op: str
    work: str
    ranks_count: int
    #: Sizes of the messages.
    message_bytes: tuple[int, ...]
    #: Sums per step over the kinds that it is for; ``gap_ns`` is -1 where gaps were not recorded.
    moved_bytes: float
    work_ns: float
    gap_ns: float
    transfer_ns: float
    exposed_ns: float
    saving_low_ns: float
    saving_high_ns: float
    #: Largest saving, relative to the step.
    share_ratio: float
    #: Overlap: most chunks of any of the kinds.
    chunks_count: int
    #: Any smaller saving is possible too.
    is_bound: bool
    #: Codes of all of the kinds.
    limits: tuple[str, ...]


def named_advice(table: Table, limited: Callable[[Advice], Advice] | None = None) -> list[Advice]:
    """Return the remedies that may save 2 % of the step and cost nothing at worst: at most three, the largest first.

    Communicators of one job do the same at the same time, so of several with one remedy only the largest is named.

    Parameters
    ----------
    table : Table
        From ``overlap_advice``.
    limited : callable, optional
        Maps advice to advice that saves no more than is possible: ``ReplayedAdvice.limited``.
    """
    together: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
    for row in table.rows():
        if row["validity"] != "none" and row["switch"] not in _NO_SWITCH:
            key = (str(row["transformation"]), str(row["switch"]), str(row["op"]), str(row["communicator"]))
            together.setdefault(key, []).append(row)
    best: dict[tuple[str, str, str], Advice] = {}
    for key, rows in together.items():
        advice = _join(rows)
        known = best.get(key[:3])
        if known is None or advice.saving_high_ns > known.saving_high_ns:
            best[key[:3]] = advice
    worth = [a for a in best.values() if _is_worth(a)]
    if limited is not None:
        worth = [a for a in map(limited, worth) if _is_worth(a)]
    return sorted(worth, key=lambda a: -a.saving_high_ns)[: POLICY.most_named_count]


def _is_worth(advice: Advice) -> bool:
    return advice.share_ratio >= POLICY.worth_naming_ratio and advice.saving_low_ns >= 0


def _join(rows: list[dict[str, Any]]) -> Advice:
    summed = ("work_ns", "transfer_ns", "exposed_ns", "saving_low_ns", "saving_high_ns", "share_ratio")
    same = ("transformation", "switch", "communicator", "op", "work", "ranks_count")
    columns: dict[str, Any] = {name: rows[0][name] for name in same}
    columns |= {name: float(sum(row[name] for row in rows)) for name in summed}
    return Advice(
        **columns,
        message_bytes=tuple(sorted({row["message_bytes"] for row in rows})),
        moved_bytes=float(sum(row["message_bytes"] * row["calls_count"] for row in rows)),
        gap_ns=float(sum(row["gap_ns"] for row in rows)) if all(row["gap_ns"] >= 0 for row in rows) else -1.0,
        chunks_count=max(row["chunks_count"] for row in rows),
        is_bound=any(row["validity"] == "bound" for row in rows),
        limits=tuple(dict.fromkeys(code for row in rows for code in row["limits"].split(",") if code)),
    )


_THREADS = (Resource.STEP_THREAD, Resource.HOST)


class ReplayedAdvice:
    """A graph, and the nodes that a remedy could make shorter.

    Parameters
    ----------
    graph : Graph
        Of this trace.
    trace : Trace
    """

    def __init__(self, graph: Graph, trace: Trace) -> None:
        self._graph = graph
        # In the order by which rows of transfers are numbered.
        self._collectives = TraceIndex(trace).trace.collectives
        self._in_update = _in_update(graph, trace)
        measured = graph.measured_step_ns
        counted = (measured >= 0) & graph.ends_counted
        self._counted = counted if counted.any() else measured >= 0
        self._step_ns = self._mean_step(None)

    def limited(self, advice: Advice) -> Advice:
        """Return advice that saves no more than the replay does with the best possible effect of the remedy.

        Then overlapped messages take no time, a sharded update takes one N-th, on the host as well, and a fused update
        takes none. Where that saves much less, ``limits`` has ``pace``.
        """
        work = self._graph.work_ns
        if advice.transformation == "overlap":
            goes = np.where(self._transfers(advice), work, 0.0)
        else:
            stays = 1 / advice.ranks_count if advice.transformation == "split_reorder" else 0.0
            goes = (1 - stays) * self._in_update * work
        shorter = np.rint(work - goes).astype(np.int64)
        most = max(self._step_ns - self._mean_step(shorter), 0.0)
        if most >= advice.saving_high_ns:
            return advice
        return replace(
            advice,
            saving_high_ns=most,
            saving_low_ns=min(advice.saving_low_ns, most),
            share_ratio=advice.share_ratio * most / advice.saving_high_ns,
            limits=(*advice.limits, "pace") if most < POLICY.much_less_ratio * advice.saving_high_ns else advice.limits,
        )

    def _transfers(self, advice: Advice) -> Bools:
        """Return the transfers of the advice's operation and sizes, of all communicators: they act at the same time."""
        table = self._collectives
        rows = np.isin(table["message_bytes"], advice.message_bytes)
        rows &= table["op_code"] == CollectiveOp[advice.op.upper()]
        chosen = np.zeros(len(self._graph), dtype=bool)
        moves = np.flatnonzero((self._graph.resource == Resource.TRANSFER) & (self._graph.row >= 0))
        chosen[moves] = rows[self._graph.row[moves]]
        return chosen

    def _mean_step(self, work_ns: Int64 | None) -> float:
        graph = self._graph
        if not self._counted.any():
            return 0.0
        return float(graph.step_ns(graph.replay(work_ns=work_ns))[self._counted].mean())


def _in_update(graph: Graph, trace: Trace) -> Floats:
    """Return the part of each node that is an update: time of threads, and work on devices that was launched there."""
    inside = np.zeros(len(graph))
    phases, kernels = trace.phases, trace.kernels
    ran = (graph.resource == Resource.STREAM) & (graph.row >= 0)
    for process in np.unique(phases["process_id"][phases["phase_code"] == Phase.OPTIMIZER]).tolist():
        time = update_times(trace, process)
        mine = graph.process_id == process
        threads = np.flatnonzero(mine & np.isin(graph.resource, _THREADS))
        begin, end = graph.begin_ns[threads], graph.end_ns[threads]
        inside[threads] = time.within(begin, end) / np.maximum(end - begin, 1)
        device = np.flatnonzero(mine & ran)
        launch = kernels["launch_ns"][graph.row[device]]
        inside[device] = (launch >= 0) & (time.within(launch, launch + 1) > 0)
    return inside


OVERLAP_ADVICE = schema(
    "overlap_advice",
    "What splitting, fusing or overlapping would save: one row per kind of collective and transformation",
    col.word("transformation", "split_reorder, fuse or overlap"),
    col.word("communicator", "name of the group", detail=2),
    col.word("op", "CollectiveOp in lower case"),
    col.word(
        "position",
        "where in the step it is called: forward, backward, after_backward, update, after_update or elsewhere",
    ),
    col.nbytes("message_bytes", "payload of one rank's input, -1 if unknown", missing=-1),
    col.ns("saving_low_ns", "saved a step at least, under what limits says; below zero: it may become longer"),
    col.ns("saving_high_ns", "at most; 0 without a figure"),
    col.real("share_ratio", "saving_high_ns of the step"),
    col.word("validity", "estimate, bound (nothing less than saving_high_ns is excluded) or none (no advice)"),
    col.word("limits", "why not more can be said: codes, comma separated"),
    col.word("switch", "what does it in today's stack", width=24),
    col.number(
        "elements_count",
        "elements of the type that its kernel names, else of 4 bytes; -1 if unknown",
        missing=-1,
        detail=1,
    ),
    col.number("ranks_count", "ranks of the group"),
    col.real("calls_count", "a step"),
    col.word("work", "computation next to it: update, backward or gemm"),
    col.ns("work_ns", "that a step; of an update, the part for these bytes"),
    col.ns(
        "gap_ns", "time between the kernels of that part of the update in which nothing ran, -1 if unseen", missing=-1
    ),
    col.ns("transfer_ns", "these collectives a step, from the last rank's entry to the end"),
    col.ns("exposed_ns", "of it, while the rank did not compute, -1 if unknown", missing=-1),
    col.number("chunks_count", "overlap: chunks that the figures are for, else 0"),
    col.real(
        "contention_ratio",
        "overlap: how much longer kernels took during collectives, -1 if unseen",
        missing=-1,
        detail=1,
    ),
)


def overlap_advice(trace: Trace, *, calibration: Calibration | str | os.PathLike[str] | None = None) -> Table:
    """Look for three of CoCoNeT's transformations: split + reorder, fuse, overlap.

    Each row is one kind of collective (operation, size, communicator, position in the step) and a transformation that
    fits it. Times are sums per step: medians over the counted steps, and over ranks; ``saving_low_ns`` is the least of
    any rank and ``saving_high_ns`` the most. Savings do not add up where rows save the same time: split + reorder and
    fuse both shorten the update. A row whose validity is ``none`` has a reason in ``limits`` and no figure. The rules
    and their codes are in ``docs/guides/overlap.md``. Columns: table ``overlap_advice`` of
    ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs collectives and steps with phases; kernels, where ranks compute on devices.
    calibration : Calibration or path, optional
        By default ``calibration.toml`` in the run directory. With it the two halves of an all-reduce take the
        calibrated times; without it, together as long as the all-reduce.

    Raises
    ------
    MissingDataError
        If no collective was recorded, or no rank has a step.
    FormatError
        If the calibration is damaged.

    Warns
    -----
    ForeignCalibrationWarning
        If it was measured on another machine.
    """
    calls = scene(trace)
    rows = Patterns.of(calls, calibration_of(trace, calibration)).rows()
    if not rows:
        return Table.empty(OVERLAP_ADVICE)
    names = communicator_names(trace, np.array([row.kind.group_hash for row in rows], dtype=np.uint64)).tolist()
    return Table.from_rows(
        OVERLAP_ADVICE, [_cells(row, name, calls.step_ns) for row, name in zip(rows, names, strict=True)]
    )


def _cells(row: Row, communicator: str, step_ns: float) -> tuple[object, ...]:
    kind, size = row.kind, row.kind.message_bytes
    columns = {
        "communicator": communicator,
        "op": CollectiveOp(kind.op).name.lower(),
        "position": POSITIONS[kind.position],
        "message_bytes": size if size > 0 else -1,
        "share_ratio": row.saving_high_ns / step_ns if step_ns > 0 else 0.0,
        "limits": ",".join(row.limits),
        "elements_count": kind.elements_count if size > 0 else -1,
        "ranks_count": row.group_size,
    }
    others = {name: getattr(row, name) for name in OVERLAP_ADVICE.names if name not in columns}
    columns |= {name: round(value) if name.endswith("_ns") else value for name, value in others.items()}
    return tuple(columns[name] for name in OVERLAP_ADVICE.names)
