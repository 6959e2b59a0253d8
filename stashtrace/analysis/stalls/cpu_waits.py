"""Where a step thread waited for a CPU: the run-queue time that the kernel counted, by column of the budget.

Batches that are ready wait for a CPU as well, where the threads that hand them over do.

The kernel's counter is read where phases begin and end. Between two readings the wait lies first in time in which the
thread could run; a thread that sleeps waits for a CPU once it is woken, so what is left lies in its waits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stashtrace.analysis.intervals import Floats, Int64, int64, window_around
from stashtrace.analysis.stalls.batch_waits import batch_waits
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.on_host import outer_phase_rows
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex, kept_per_thread
from stashtrace.analysis.stalls.sampled_cpus import growth_between, runqueue_of_threads
from stashtrace.analysis.steps.steps import counted_steps
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.kinds import BatchPhase, StallKind, ThreadRole, TrackKind
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.schema.table import Table

#: Columns in which a thread sleeps until others have done something.
_ASLEEP = ("late", "link", "other")


def queue_readings(index: TraceIndex, thread: StepThread) -> tuple[Int64, Int64]:
    """Return when the run-queue time of a step thread was read, and what it had reached, in ns."""
    phases, rows = index.trace.phases, outer_phase_rows(index, thread)
    at = np.stack([phases["begin_ns"][rows], phases["end_ns"][rows]], axis=1).ravel()
    queue = np.stack([phases["begin_runqueue_ns"][rows], phases["end_runqueue_ns"][rows]], axis=1).ravel()
    known = queue >= 0
    return at[known], queue[known]


def queued_in(index: TraceIndex, thread: StepThread, begin: Int64, end: Int64) -> Int64:
    """Return the run-queue time in ns of each window, linear between two readings; -1 if unknown."""
    at, queue = queue_readings(index, thread)
    return growth_in(at, queue, begin, end) if len(at) > 1 else np.full(len(begin), -1, dtype=np.int64)


def growth_in(at: Int64, value: Int64, begin: Int64, end: Int64) -> Int64:
    """Return what ``growth_between`` does, in whole ns and never less than 0."""
    return int64(np.maximum(np.rint(growth_between(at, value, begin, end)), 0))


def cpu_waits(index: TraceIndex, thread: StepThread, steps: Table) -> dict[str, int]:
    """Return the ns that a step thread waited for a CPU in some steps, by column of the budget.

    ``steps``: rows of ``steps`` of that rank. No column has more than its time. Empty where no reading is known.
    """
    return {column: round(float(spent.sum())) for column, spent in cpu_waits_by_step(index, thread, steps).items()}


def cpu_waits_by_step(index: TraceIndex, thread: StepThread, steps: Table) -> dict[str, Floats]:
    """Return what :func:`cpu_waits` does, of each step."""
    at, _ = queue_readings(index, thread)
    if len(at) < 2 or not len(steps):
        return {}
    edges = np.unique(np.concatenate([at, steps["begin_ns"], steps["end_ns"]]))
    begin, end = edges[:-1], edges[1:]
    step = window_around(begin, end, steps["begin_ns"], steps["end_ns"])
    begin, end, step = begin[step >= 0], end[step >= 0], step[step >= 0]
    kinds = rank_layers(index, thread).painted_kinds()
    spent = {
        column: kinds.time_of(*(StallKind[kind.upper()] for kind in names)).within(begin, end)
        for column, names in COLUMNS.items()
    }
    # What no kind covers is ``other``.
    spent["other"] = spent["other"] + np.maximum(end - begin - sum(spent.values()), 0)
    left = queued_in(index, thread, begin, end).astype(float)
    found: dict[str, Floats] = {}
    for columns in ([name for name in COLUMNS if name not in _ASLEEP], list(_ASLEEP)):
        whole = np.sum([spent[name] for name in columns], axis=0)
        part = np.minimum(left / np.maximum(whole, 1), 1.0)
        found |= {name: np.bincount(step, spent[name] * part, len(steps)).astype(np.float64) for name in columns}
        left = left - whole * part
    return found


@dataclass(frozen=True, slots=True)
class Handoffs:
    """Waits of a step thread for batches that workers had made, in the order of time, ns."""

    begin: Int64
    end: Int64
    #: How much of each was a wait for a CPU: of the step thread, or of threads of the worker that send the batch.
    queued: Int64
    #: The part of the step thread.
    own: Int64


@kept_per_thread
def handoffs(index: TraceIndex, thread: StepThread) -> Handoffs:
    """Return the hand-offs of batches to a step thread, and how long each waited for a CPU.

    The step thread sleeps until a batch arrives, so its wait for a CPU lies in the hand-off. The threads of workers are
    sampled: each batch has their mean.
    """
    waits = batch_waits(index, thread)
    handed = np.flatnonzero((waits.made_by >= 0) & (waits.made_by != thread.process_id) & (waits.made_ns < waits.end))
    begin, end = np.maximum(waits.made_ns, waits.begin)[handed], waits.end[handed]
    sending_ns = _queued_senders_ns(index, thread, begin)
    queued_ns = np.minimum(waits.queued_ns[handed], end - begin)
    return Handoffs(begin, end, np.minimum(queued_ns + round(sending_ns), end - begin), queued_ns)


def _queued_senders_ns(index: TraceIndex, thread: StepThread, taken_ns: Int64) -> float:
    """Return how long threads of a rank's workers waited for a CPU per batch, without those that make the batches.

    ``taken_ns``: when the step thread took each batch.
    """
    steps, tracks = counted_steps(index.steps_of(thread.rank)), index.trace.tracks
    window = (int(steps["begin_ns"].min()), int(steps["end_ns"].max())) if len(steps) else (0, 0)
    count = int(((taken_ns >= window[0]) & (taken_ns < window[1])).sum())
    if not count:
        return 0.0
    fetches, rows = index.batches_of_phase(BatchPhase.FETCH), index.fetches.rows(thread.rank)
    rows = rows[fetches["process_id"][rows] != thread.process_id]
    workers = set(fetches["process_id"][rows].tolist())
    apart = np.isin(tracks["track_id"], fetches["track_id"][rows]) | (tracks["role_code"] == ThreadRole.TRACER)
    apart &= tracks["kind_code"] == TrackKind.THREAD
    others = set(zip(tracks["process_id"][apart].tolist(), tracks["native_id"][apart].tolist(), strict=True))
    waited = (ns for key, ns in runqueue_of_threads(index.trace, window) if key[0] in workers and key not in others)
    return sum(waited) / count
