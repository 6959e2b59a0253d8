"""How the makers of batches spent their time. What would help is predicted by ``replay``, which keeps their order.

    a batch made by one worker   [== on the CPU ==][ in the run queue ][ storage ][ network ][ asleep ][ blocked ]
                                  cpu_ns            runqueue_ns         I/O rows              waits     the rest

CPU and run-queue time come from the thread's own clocks, the other parts from rows of I/O and waits of the thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.intervals import Bools, Int64, TimeSet, window_at
from stashtrace.analysis.steps.epochs import waits_of_steps, workers_count
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import NOT_FILES, BatchPhase, IoFlag, IoOp, WaitOp
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Parts of the making of a batch; time that several could have goes to the first.
PARTS = ("cpu", "queue", "storage", "network", "asleep", "gil", "page_faults", "blocked", "unknown")
DATA_KINDS = COLUMNS["data"]


@dataclass(frozen=True, slots=True)
class Making:
    """How a rank's batches were made during its counted steps; times are means per batch."""

    #: Rows of ``batches``, phase FETCH.
    batches: Table
    #: Workers at a time; 0 where the step thread makes its own batches.
    workers: int
    batch_ns: float
    #: By ``PARTS``; they sum to ``batch_ns``. Empty where the thread's clocks are unknown.
    parts_ns: dict[str, float]
    #: Batches that a step consumes: several with gradient accumulation.
    needs: float
    #: The same mean for the batches of each worker.
    by_worker_ns: dict[int, float] = field(default_factory=dict)
    #: Workers of these loaders that were asked for batches and made none.
    idle_workers: tuple[int, ...] = ()


def making_of(trace: Trace, rank: int, steps: Table) -> Making | None:
    """Measure how a rank's batches were made; None if that was not recorded.

    Batches of loaders for which the counted steps do not wait, such as validation, are left out. So are batches made
    before the counted steps, when a cache was cold or workers had just begun.
    """
    of_rank = steps.take(steps["rank"] == rank).sort_by("begin_ns")
    batches = trace.batches.take(trace.batches["rank"] == rank)
    made = batches.take(batches["phase_code"] == BatchPhase.FETCH)
    if not len(made) or not len(of_rank):
        return None
    waits = waits_of_steps(batches, of_rank)
    waits = waits.take(inside(waits["begin_ns"], steps, rank))
    served = made.take(np.isin(made["loader_id"], waits["loader_id"]))
    made = served if len(served) else made
    during = made.take((made["end_ns"] > of_rank["begin_ns"].min()) & (made["begin_ns"] < of_rank["end_ns"].max()))
    made = during if len(during) else made
    wall = made["end_ns"] - made["begin_ns"]
    makers = GroupBy(made["worker_id"])
    mean_ns = makers.sum(wall) / makers.sizes
    return Making(
        made,
        workers_count(made["worker_id"]),
        float(wall.mean()),
        _parts(trace, made),
        max(len(waits) / max(len(of_rank), 1), 1.0),
        {worker: ns for worker, ns in zip(makers.values.tolist(), mean_ns.tolist(), strict=True) if worker >= 0},
        _idle_workers(served, waits_of_steps(batches, of_rank)),
    )


def _idle_workers(served: Table, taken: Table) -> tuple[int, ...]:
    """Return the workers of which no batch was taken though later ones of their loaders were: they have no data."""
    last = GroupBy(taken["loader_id"]).max(taken["batch_index"])
    loader = GroupBy(taken["loader_id"]).find(served["loader_id"])
    passed = served["worker_id"][(loader >= 0) & (served["batch_index"] < np.append(last, -1)[loader])]
    return tuple(np.setdiff1d(passed[passed >= 0], taken["worker_id"]).tolist())


def inside(moments: Int64, steps: Table, rank: int) -> Bools:
    """Return which moments lie in the steps of a rank."""
    of_rank = steps.take(steps["rank"] == rank).sort_by("begin_ns")
    return np.asarray(window_at(moments, of_rank["begin_ns"], of_rank["end_ns"]) >= 0)


def _parts(trace: Trace, made: Table) -> dict[str, float]:
    """Return the mean time per batch by part; empty if the CPU time of a batch is unknown."""
    if (made["cpu_ns"] < 0).any():
        return {}
    wall = made["end_ns"] - made["begin_ns"]
    left = wall.astype(np.int64)
    sums = dict.fromkeys(PARTS, 0.0)
    # Clocks of threads are read a moment apart from the stamps of the batch, so a part is limited to the rest.
    taken = {"cpu": made["cpu_ns"], "queue": np.maximum(made["runqueue_ns"], 0), **_times_by_rows(trace, made)}
    for part, amount in taken.items():
        of_batch = np.minimum(amount, left)
        left = left - of_batch
        sums[part] = float(of_batch.sum())
    faulty = (made["major_faults_count"] > 0) | (made["block_inputs_count"] > 0)
    by_faults = left[faulty].sum() if faulty.any() and left[faulty].sum() > POLICY.mostly_ratio * left.sum() else 0
    sums["page_faults"] = float(by_faults)
    sums["unknown"] = float(left.sum() - by_faults)
    return {part: ns / len(made) for part, ns in sums.items()}


def _times_by_rows(trace: Trace, made: Table) -> dict[str, Int64]:
    """Return the time of each batch by rows of I/O and waits of its thread: storage, network, asleep, blocked."""
    io, waits = trace.notable_io, trace.waits
    flags, op = io["io_flags"], io["op_code"]
    piped = (flags & NOT_FILES) != 0
    socket = ((flags & IoFlag.SOCKET) != 0) & (op == IoOp.RECV)
    stored = ((flags & (IoFlag.BLOCKED | IoFlag.BLOCK_INPUT)) != 0) & ~piped
    pipe = piped & ~socket & ((flags & IoFlag.BLOCKED) != 0)
    polls = waits["wait_code"] == WaitOp.POLL
    sources = (
        ("storage", io, stored),
        ("network", io, socket),
        ("network", waits, polls),
        ("asleep", waits, waits["wait_code"] == WaitOp.SLEEP),
        ("gil", waits, waits["wait_code"] == WaitOp.GIL),
        ("blocked", waits, ~polls & ~np.isin(waits["wait_code"], (WaitOp.SLEEP, WaitOp.GIL))),
        ("blocked", io, pipe),
    )
    spent = {name: np.zeros(len(made), dtype=np.int64) for name in ("storage", "network", "asleep", "gil", "blocked")}
    for track, rows in GroupBy(made["track_id"]).items():
        for name, table, chosen in sources:
            mine = chosen & (table["track_id"] == track)
            if mine.any():
                spent[name][rows] += TimeSet.of_rows(table, mine).within(made["begin_ns"][rows], made["end_ns"][rows])
    return spent
