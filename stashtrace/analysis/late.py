"""late, late_ranks: who kept the others waiting in collectives, and what kept it.

    own enter |-- wait --|-- launch skew --|-- expected --|-- excess --| end
                         ^ arrival         ^ last enter

The files behind it: ``late_instances`` (who, when), ``late_causes`` (what it did longer), ``late_names`` (the worker,
file, kernel or phase), ``late_expected`` (the transfer).
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os

import numpy as np

from stashtrace.analysis.collectives import communicator_names
from stashtrace.analysis.group_kinds import group_kinds, link_names
from stashtrace.analysis.late_budgets import CAUSES
from stashtrace.analysis.late_causes import Causes, causes
from stashtrace.analysis.late_expected import SOURCES, transfers
from stashtrace.analysis.late_instances import CLOCK, DURATION, METHODS, UNORDERED, Instances, instances, launch_skews
from stashtrace.analysis.late_names import Named, Namer, Window
from stashtrace.analysis.link_efficiency import calibration_of
from stashtrace.analysis.matching import group_table
from stashtrace.analysis.recurrence import chance
from stashtrace.analysis.steps import step_at
from stashtrace.analysis.timeset import NEVER, Int64, RowsBy, TimeSet, int64
from stashtrace.analysis.trace_index import TraceIndex
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.model.kinds import CollectiveOp
from stashtrace.model.schemas import LATE, LATE_RANKS
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace
from stashtrace.models.calibration import Calibration
from stashtrace.units import ranks_text

UNKNOWN = "unknown"
#: Below these, one rank is not late again and again: odds of it by chance, and least share of the steps.
_BY_CHANCE, _MOST_STEPS = 0.001, 0.5
#: A step counts if it cost the group at least this part of the mean one.
_MATTERS_DIVISOR = 10


def late(trace: Trace, *, top: int = 100, calibration: Calibration | str | os.PathLike[str] | None = None) -> Table:
    """Name the rank that was late in the collectives that cost most, and what kept it.

    Only operations in which nobody can end before everybody has entered, and in which somebody waited. The cause is
    what the late rank did longer than the median of the others (of at most 15 of them) since all of them had entered
    an earlier operation of the group, so that nobody was ahead; before the first one, since the step began.
    ``cause_ns`` is that surplus. A cause that explains less than a quarter of the lateness is ``unknown``, as is that
    of a rank whose steps were not recorded. Of operations on a device all times are the device's. Waits
    include what was hidden behind compute.

    Parameters
    ----------
    trace : Trace
        Needs collectives; steps, I/O, kernels and batches for the causes.
    top : int
        How many rows: what hangs, then what cost most, then what cost most outside of the steps.
    calibration : Calibration or path, optional
        By default ``calibration.toml`` in the run directory; without one the best tenth of the run's own transfers of
        the group, operation and size is what the link is capable of.

    Columns
    -------
    step, communicator, group_kind, sequence, op, bytes, begin_ns, late_rank, waiting_ranks, wait_ns, total_wait_ns,
    launch_skew_ns, expected_ns, excess_ns, expected_by, link, cause_kind, cause_ns, late_by_ns, cause_process_id,
    cause_worker_id, cause_name, named_ns, method

    Raises
    ------
    MissingDataError
        If no collective was recorded.
    """
    if top < 1:
        raise UsageError(f"late rows: {top} is too few", hint="give --top 1 or more")
    index, found = _found(trace)
    if found is None:
        return Table.empty(LATE)
    waited = np.flatnonzero((found.total_wait_ns > 0) | (found.method == METHODS.index("hung")))
    # What hangs comes first, whatever it cost until the recording ended.
    hung = found.method[waited] == METHODS.index("hung")
    step = _steps(index, found)
    # Starting up is not training: what lies outside the steps comes last.
    outside = (step[waited] < 0) & (step[waited] != step.max(initial=-1))
    rows = waited[np.lexsort((waited, -found.total_wait_ns[waited], outside, ~hung))[:top]]
    why = causes(index, found, rows)
    named = _names(index, why)
    transfer, expected, source = (x[rows] for x in transfers(index, found, calibration_of(trace, calibration)))
    skew = launch_skews(index, found)[rows]
    first = found.row[found.starts[rows]]
    table = index.trace.collectives
    hashes = found.group_hash[rows]
    kinds, links = group_kinds(trace), link_names(trace)
    enter = np.minimum.reduceat(found.enter_ns, found.starts)[rows]
    op = np.clip(table["op_code"][first], 0, max(CollectiveOp))
    return Table(
        LATE,
        {
            "step": step[rows],
            "communicator": communicator_names(trace, hashes),
            "group_kind": _texts([kinds[h] for h in hashes.tolist()]),
            "sequence": table["sequence"][first],
            "op": np.array([o.name.lower() for o in CollectiveOp])[op],
            "bytes": table["message_bytes"][first],
            "begin_ns": enter,
            "late_rank": found.late_rank[rows],
            "waiting_ranks": _texts(_waiting(found, rows)),
            "wait_ns": found.longest_wait_ns[rows] - np.maximum(skew, 0),
            "total_wait_ns": found.total_wait_ns[rows],
            "launch_skew_ns": skew,
            "expected_ns": expected,
            "excess_ns": np.where((expected >= 0) & (transfer >= 0), np.maximum(transfer - expected, 0), -1),
            "expected_by": np.array(SOURCES)[source],
            "link": _texts([links[h] for h in hashes.tolist()]),
            "cause_kind": np.array([*CAUSES, UNKNOWN])[why.cause],
            "cause_ns": why.cause_ns,
            "late_by_ns": why.late_by_ns,
            "cause_process_id": int64([n.process for n in named]),
            "cause_worker_id": int64([n.worker for n in named]),
            "cause_name": _texts([n.name for n in named]),
            "named_ns": int64([n.name_ns for n in named]),
            "method": np.array(METHODS)[found.method[rows]],
        },
    )


def late_ranks(trace: Trace) -> Table:
    """Count per rank and process group who is late again and again.

    A step belongs to the rank that cost the others of the group most in it, and counts if that is at least a tenth of
    what the mean one cost. ``chance_ratio`` is the binomial probability that a rank gets so many steps if all are late
    alike, times the number of ranks that it could have been.
    ``verdict`` is ``always`` where that is below 0.001 and the rank has more than half of the steps, ``often`` where it
    has not. Else it is ``once`` where one step counts, ``few`` where so few count that it could not be below 0.001 if
    the rank had all of them, and ``alternates`` otherwise. Operations whose last rank the clocks cannot tell are left
    out.

    ``behind_second_ns`` is the time in which the rank alone was missing: from the entry of the second latest rank to
    its own, of operations inside steps (where there are any) that all members entered, a moment once however many
    operations wait in it. It is the most that the group gains if this rank alone is never late again.

    Parameters
    ----------
    trace : Trace
        Needs collectives; steps for counts by step and causes.

    Columns
    -------
    communicator, group_kind, rank, last_count, collectives_count, steps_last_count, steps_count, share_ratio,
    total_wait_ns, behind_second_ns, cause_kind, cause_share_ratio, first_step_index, last_step_index, chance_ratio,
    verdict

    Raises
    ------
    MissingDataError
        If no collective was recorded.
    """
    index, found = _found(trace)
    if found is None:
        return Table.empty(LATE_RANKS)
    rows = np.flatnonzero((found.total_wait_ns > 0) & (found.late_rank >= 0) & (found.method != UNORDERED))
    every_step = _steps(index, found)
    why, step = causes(index, found, rows), every_step[rows]
    gap = _behind_second(trace, found)
    gap[(every_step < 0) & (every_step.max(initial=-1) >= 0)] = 0
    alone_end, alone = found.last_enter_ns[rows], gap[rows]
    groups, kinds = group_table(trace), group_kinds(trace)
    out: list[tuple[object, ...]] = []
    by_group = RowsBy(found.group_hash[rows])
    for value in by_group.values.tolist():
        own = by_group.rows(value)
        late_rank, cost = found.late_rank[rows[own]], found.total_wait_ns[rows[own]]
        guilty = _guilty(step[own], late_rank, cost)
        name = str(communicator_names(trace, np.array([value], dtype=np.uint64))[0])
        per_rank = RowsBy(late_rank)
        for rank in per_rank.values.tolist():
            mine = per_rank.rows(rank)
            times = int((guilty == rank).sum())
            share = times / max(len(guilty), 1)
            members = len(groups[value].members)
            odds = min(1.0, members * chance(times, len(guilty), members))
            total = int(cost[mine].sum())
            cause, part = _main(why.cause[own[mine]], cost[mine])
            alike = "few" if members * chance(len(guilty), len(guilty), members) >= _BY_CHANCE else "alternates"
            alike = "once" if len(guilty) == 1 else alike
            verdict = alike if odds >= _BY_CHANCE else "always" if share > _MOST_STEPS else "often"
            until = alone_end[own[mine]]
            missing = TimeSet.of(until - alone[own[mine]], until).total_ns
            numbers = (len(mine), len(own), times, len(guilty), share, total, missing)
            span = (int(step[own[mine]].min()), int(step[own[mine]].max()))
            out.append((name, kinds[value], rank, *numbers, cause, part, *span, odds, verdict))
    return Table.from_rows(LATE_RANKS, sorted(out, key=lambda row: -int(str(row[8]))))


def _found(trace: Trace) -> tuple[TraceIndex, Instances | None]:
    if len(trace.collectives) == 0:
        raise MissingDataError(
            "no collective was recorded", hint="run more than one rank with the collector torch_distributed on"
        )
    index = TraceIndex(trace)
    return index, instances(index)


def _texts(values: list[str]) -> np.ndarray:
    return np.array(values, dtype=np.str_)


def _names(index: TraceIndex, why: Causes) -> list[Named]:
    namer, found = Namer(index), []
    columns = (why.cause, why.begin_ns, why.end_ns, why.late_rank, why.other, why.other_begin_ns, why.other_end_ns)
    for cause, begin, end, rank, other, other_begin, other_end in zip(*(c.tolist() for c in columns), strict=True):
        if cause < 0:
            found.append(Named())
            continue
        beside = Window(why.times[other], other_begin, other_end) if other >= 0 else None
        found.append(namer.name(cause, Window(why.times[rank], begin, end), beside))
    return found


def _waiting(found: Instances, rows: Int64) -> list[str]:
    bounds = np.append(found.starts, len(found.of))
    texts = []
    for begin, end, late_rank in zip(
        bounds[rows].tolist(), bounds[rows + 1].tolist(), found.late_rank[rows].tolist(), strict=True
    ):
        waits = (found.wait_ns[begin:end] > 0) | ((late_rank >= 0) & (found.rank[begin:end] != late_rank))
        texts.append(ranks_text(sorted(set(found.rank[begin:end][waits].tolist()))))
    return texts


def _steps(index: TraceIndex, found: Instances) -> Int64:
    """Step of each instance: the one in which its late rank entered, else the first rank of it; -1 outside."""
    row = np.where(found.late_row >= 0, found.late_row, found.starts)
    rank, at = found.rank[row], found.enter_ns[row]
    try:
        return step_at(index.steps, rank, at)
    except MissingDataError:
        return np.full(len(row), -1, dtype=np.int64)  # collectives without a training loop


def _behind_second(trace: Trace, found: Instances) -> Int64:
    """How long the late rank of each instance alone was missing; 0 where a member's wait is not known."""
    sizes = {value: len(group.members) for value, group in group_table(trace).items()}
    size = int64([sizes[value] for value in found.group_hash.tolist()])
    of_late = found.rank == found.late_rank[found.of]
    waits = (found.wait_ns > 0) & ~of_late
    everybody = np.add.reduceat(waits.astype(np.int64), found.starts) == size - 1
    gap = np.minimum.reduceat(np.where(of_late, NEVER, found.wait_ns), found.starts)
    known = everybody & (found.late_row >= 0) & np.isin(found.method, (CLOCK, DURATION))
    return int64(np.where(known, gap, 0))


def _guilty(step: Int64, rank: Int64, cost: Int64) -> Int64:
    """Rank that cost most in each step that cost something, of equals the lowest; without steps, in each operation."""
    inside = step >= 0
    if inside.any():
        trial, rank, cost = np.unique(step[inside], return_inverse=True)[1], rank[inside], cost[inside]
    else:
        trial = np.arange(len(step))
    width = int(rank.max(initial=0)) + 1
    key, inverse = np.unique(trial * width + rank, return_inverse=True)
    total, per_trial = np.zeros(len(key), dtype=np.int64), np.zeros(int(trial.max(initial=-1)) + 1, dtype=np.int64)
    np.add.at(total, inverse, cost)
    np.add.at(per_trial, trial, cost)
    out = np.full(len(per_trial), -1, dtype=np.int64)
    order = np.lexsort((-key, total))  # the costliest comes last
    out[key[order] // width] = key[order] % width
    # Somebody is always last by a few microseconds; that says nothing.
    return int64(out[per_trial * _MATTERS_DIVISOR * len(per_trial) >= per_trial.sum()])


def _main(cause: Int64, cost: Int64) -> tuple[str, float]:
    """Cause behind most of the cost, and its share."""
    total = np.zeros(len(CAUSES) + 1, dtype=np.int64)
    np.add.at(total, cause, cost)  # -1, unknown, is the last
    most = int(total.argmax())
    return [*CAUSES, UNKNOWN][most], float(total[most]) / max(int(total.sum()), 1)
