"""overlap_advice: where communication could be overlapped, fused or split, what that saves, and how far to trust it."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os

import numpy as np

from stashtrace.analysis.collectives import communicator_names
from stashtrace.analysis.link_efficiency import calibration_of
from stashtrace.model.kinds import CollectiveOp
from stashtrace.model.schemas import OVERLAP_ADVICE
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace
from stashtrace.models.calibration import Calibration
from stashtrace.replay.advice.calls import POSITIONS, scene
from stashtrace.replay.advice.patterns import Patterns, Row


def overlap_advice(trace: Trace, *, calibration: Calibration | str | os.PathLike[str] | None = None) -> Table:
    """Look for CoCoNeT's four transformations: split + reorder, fuse, overlap, sliced sends.

    One row per kind of collective (operation, size, communicator, position in the step) and transformation that fits
    it. Times are sums a step: medians over the counted steps, and over ranks; ``saving_low_ns`` and ``saving_high_ns``
    are the least of any rank and the most of any. Savings of rows do not add up where they take the same time away:
    split + reorder and fuse both shorten the update. What is ``none`` has a reason in ``limits`` and no figure. The
    rules and their codes are in ``docs/guides/overlap.md``.

    Parameters
    ----------
    trace : Trace
        Needs collectives and steps with phases; kernels, where ranks compute on devices.
    calibration : Calibration or path, optional
        By default ``calibration.toml`` in the run directory. With it the two halves of an all-reduce take what they
        took there; without it, together what the all-reduce took.

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
    found = scene(trace)
    rows = Patterns.of(found, calibration_of(trace, calibration)).rows()
    if not rows:
        return Table.empty(OVERLAP_ADVICE)
    names = communicator_names(trace, np.array([row.kind.group_hash for row in rows], dtype=np.uint64)).tolist()
    return Table.from_rows(
        OVERLAP_ADVICE, [_cells(row, name, found.step_ns) for row, name in zip(rows, names, strict=True)]
    )


def _cells(row: Row, communicator: str, step_ns: float) -> tuple[object, ...]:
    size = row.kind.message_bytes
    return (
        row.transformation,
        communicator,
        CollectiveOp(row.kind.op).name.lower(),
        POSITIONS[row.kind.position],
        size if size > 0 else -1,
        round(row.saving_low_ns),
        round(row.saving_high_ns),
        row.saving_high_ns / step_ns if step_ns > 0 else 0.0,
        row.validity,
        ",".join(row.limits),
        row.switch,
        row.kind.elements_count if size > 0 else -1,
        row.group_size,
        row.calls_count,
        row.work,
        round(row.work_ns),
        round(row.gap_ns),
        round(row.transfer_ns),
        round(row.exposed_ns),
        row.chunks_count,
        row.contention_ratio,
    )
