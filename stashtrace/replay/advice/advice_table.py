"""overlap_advice: where communication could be overlapped, fused or split, and what that would save."""

from __future__ import annotations

import os

import numpy as np

from stashtrace.analysis.collectives.collective_waits import communicator_names
from stashtrace.calibration.file import Calibration, calibration_of
from stashtrace.replay.advice.counted_collectives import POSITIONS, scene
from stashtrace.replay.advice.patterns import Patterns, Row
from stashtrace.schema import columns as col
from stashtrace.schema.columns import schema
from stashtrace.schema.kinds import CollectiveOp
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

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
    col.nbytes("message_bytes", "payload of one rank's input, -1 if the trace does not tell", missing=-1),
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
    and their codes are in ``docs/guides/overlap.md``.

    Parameters
    ----------
    trace : Trace
        Needs collectives and steps with phases; kernels, where ranks compute on devices.
    calibration : Calibration or path, optional
        By default ``calibration.toml`` in the run directory. With it the two halves of an all-reduce take the
        calibrated times; without it, together as long as the all-reduce.

    Columns
    -------
    transformation, communicator, op, position, message_bytes, saving_low_ns, saving_high_ns, share_ratio, validity,
    limits, switch, elements_count, ranks_count, calls_count, work, work_ns, gap_ns, transfer_ns, exposed_ns,
    chunks_count, contention_ratio

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
    own = {
        "communicator": communicator,
        "op": CollectiveOp(kind.op).name.lower(),
        "position": POSITIONS[kind.position],
        "message_bytes": size if size > 0 else -1,
        "share_ratio": row.saving_high_ns / step_ns if step_ns > 0 else 0.0,
        "limits": ",".join(row.limits),
        "elements_count": kind.elements_count if size > 0 else -1,
        "ranks_count": row.group_size,
    }
    others = {name: getattr(row, name) for name in OVERLAP_ADVICE.names if name not in own}
    own |= {name: round(value) if name.endswith("_ns") else value for name, value in others.items()}
    return tuple(own[name] for name in OVERLAP_ADVICE.names)
