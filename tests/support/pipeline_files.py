"""Pipelines of operations by hand, as StragglerAnalysis files; and the arithmetic of the smallest one."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import stashtrace
from stashtrace.errors import DataLossWarning
from stashtrace.schema.trace import Trace

#: (step, data-parallel number, stage, operation, begin, end, number of its kind); times in seconds.
Row = tuple[int, int, int, str, float, float, int]
#: Seconds of the smallest pipeline: forward and backward of a stage, a message, a reduction, the optimizer.
FORWARD, BACKWARD, MESSAGE, REDUCE, UPDATE = 1.0, 2.0, 0.125, 0.5, 0.25


def rank_of(replica: int, stage: int, replicas: int) -> int:
    return stage * replicas + replica


def write(path: Path, rows: list[Row]) -> Path:
    replicas = max(row[1] for row in rows) + 1
    columns: dict[str, Any] = {
        "dp_rank": pa.array([r[1] for r in rows], pa.int8()),
        "stage": pa.array([r[2] for r in rows], pa.int8()),
        "rank": pa.array([rank_of(r[1], r[2], replicas) for r in rows], pa.int16()),
        "step": pa.array([r[0] for r in rows], pa.int64()),
        "optype": pa.array([r[3] for r in rows]).dictionary_encode(),
        "start_ts": pa.array([r[4] for r in rows], pa.float32()),
        "duration": pa.array([r[5] - r[4] for r in rows], pa.float32()),
        "seq_id": pa.array([r[6] for r in rows], pa.int32()),
    }
    pq.write_table(pa.table(columns), path)
    return path


def load(path: Path) -> Trace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        return stashtrace.load([path])


def two_stages(slow: dict[tuple[int, int], float], replicas: int = 4, steps: int = 3) -> list[Row]:
    """One micro-batch through two stages of each replica, then a reduction of each stage and the optimizer.

    ``slow`` has the factor by which a (replica, stage) computes longer. A rank receives from its first moment on.
    """
    rows: list[Row] = []
    for step in range(steps):
        ends: dict[tuple[int, int], float] = {}
        for replica in range(replicas):
            first, second = slow.get((replica, 0), 1.0), slow.get((replica, 1), 1.0)
            sent = FORWARD * first
            there = sent + MESSAGE
            forward = there + FORWARD * second
            backward = forward + BACKWARD * second
            back = backward + MESSAGE
            ends[replica, 0], ends[replica, 1] = back + BACKWARD * first, backward
            rows += [
                (step, replica, 0, "forward-compute", 0.0, sent, 0),
                (step, replica, 0, "forward-send", sent, there, 0),
                (step, replica, 1, "forward-recv", 0.0, there, 0),
                (step, replica, 1, "forward-compute", there, forward, 0),
                (step, replica, 1, "backward-compute", forward, backward, 0),
                (step, replica, 1, "backward-send", backward, back, 0),
                (step, replica, 0, "backward-recv", sent, back, 0),
                (step, replica, 0, "backward-compute", back, ends[replica, 0], 0),
            ]
        for stage in (0, 1):
            entered = max(end for (_, own), end in ends.items() if own == stage)
            for replica in range(replicas):
                done = entered + REDUCE
                rows += [
                    (step, replica, stage, "grads-reduce-scatter", ends[replica, stage], done, 0),
                    (step, replica, stage, "optimizer", done, done + UPDATE, 0),
                ]
    return rows


def step_s(forward: dict[tuple[int, int], float], backward: dict[tuple[int, int], float]) -> float:
    """Step of such a pipeline by its longest path, from what each (replica, stage) takes."""
    through = [
        forward[r, 0] + MESSAGE + forward[r, 1] + backward[r, 1] + MESSAGE + backward[r, 0]
        for r in {replica for replica, _ in forward}
    ]
    return max(through) + REDUCE + UPDATE
