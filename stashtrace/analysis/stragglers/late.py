"""late, late_ranks: which rank the others waited for in collectives, and why it was late.

    own enter |-- wait --|-- launch skew --|-- expected --|-- excess --| end
                         ^ arrival         ^ last enter

``instances`` finds the late rank and its time, ``causes`` what that rank did longer, ``cause_names`` the worker, file,
kernel or phase behind it. This module adds the time of the transfer.
"""

from __future__ import annotations

import math
import os
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.collectives.collective_waits import communicator_names
from stashtrace.analysis.collectives.matching import group_table, places
from stashtrace.analysis.intervals import NEVER, Int64, TimeSet, int64
from stashtrace.analysis.links.bandwidth import expected_transfers
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import step_at_any
from stashtrace.analysis.stragglers.cause_names import Named, Namer, Window
from stashtrace.analysis.stragglers.causes import CAUSES, Causes, causes
from stashtrace.analysis.stragglers.instances import (
    CLOCK,
    DURATION,
    HUNG,
    METHODS,
    UNORDERED,
    Instances,
    instances,
    launch_skews,
)
from stashtrace.analysis.stragglers.policy import POLICY
from stashtrace.calibration.file import Calibration, calibration_of
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.schema import columns as col
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.kinds import CollectiveOp
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.text.units import ranks_text

LATE = col.schema(
    "late",
    "Collectives that somebody waited in: who was late, why, and how long the transfer then took",
    col.number("step", "ordinal of the step of the late rank, -1 outside", missing=-1),
    col.word("communicator", "name of the group", detail=2),
    col.word(
        "group_kind", "dp, tp, pp, ep, cp or fsdp by its name; else all, block, stride or some by its members", detail=5
    ),
    col.number("sequence", "number within the group", detail=4),
    col.word("op", "CollectiveOp in lower case"),
    col.Column("bytes", "i8", "bytes", "payload of one rank's input"),
    col.moment("begin_ns", "the first rank entered"),
    col.rank("late_rank", "the rank that was waited for, -1 if unknown", missing=-1),
    col.word("waiting_ranks", "ranks that waited for it, runs folded", detail=1),
    col.ns("wait_ns", "longest wait for the last arrival, without launch_skew_ns"),
    col.ns("total_wait_ns", "waits of all ranks added up; where one waits in several at once, the oldest counts"),
    col.ns(
        "launch_skew_ns",
        "then: the late rank had called, its idle device had not begun; -1 if unknown",
        missing=-1,
        detail=7,
    ),
    col.ns(
        "expected_ns", "then: the transfer at the rate this link is capable of, -1 if unknown", missing=-1, detail=6
    ),
    col.ns("excess_ns", "then: the transfer beyond that, 0 if it was faster, -1 if unknown", missing=-1, detail=5),
    col.word("expected_by", "calibration, run (its best tenth of the same operation and size) or none", detail=6),
    col.word("link", "host of the group, or the hosts that it joins"),
    col.word(
        "cause_kind", "what the late rank did longer than the median of the others; before: it began later; or unknown"
    ),
    col.ns("cause_ns", "by how much longer, -1 if unknown", missing=-1),
    col.ns("late_by_ns", "entry of the late rank after the median of the others, -1 if unknown", missing=-1),
    col.refers(
        "cause_process_id", "processes.process_id", "the process that did it, -1 if unknown", missing=-1, detail=3
    ),
    col.identity("cause_worker_id", "DataLoader worker that did it, -1 if none", missing=-1, detail=2),
    col.word("cause_name", "file, kernel, phase, call or rank behind the cause; empty if unknown"),
    col.ns("named_ns", "time in that: of a kernel or phase, the surplus; -1 if unknown", missing=-1, detail=2),
    col.word(
        "method", "clock, duration (clocks too far apart), unordered, partial (a row is missing) or hung", detail=7
    ),
)
LATE_RANKS = col.schema(
    "late_ranks",
    "Ranks that are late repeatedly, per process group",
    col.word("communicator", "name of the group", detail=2),
    col.word("group_kind", "as in late", detail=5),
    col.RANK,
    col.number("last_count", "collectives of the group that it entered last"),
    col.number("collectives_count", "collectives of the group that somebody waited in and whose last rank is known"),
    col.number("steps_last_count", "steps in which it cost the others of the group most"),
    col.number("steps_count", "steps that cost at least a tenth of the mean one; without steps, collectives"),
    col.real("share_ratio", "the first by the second"),
    col.ns("total_wait_ns", "waits of the others for it, as in late"),
    col.ns("behind_second_ns", "it alone was missing: its entry after the second latest one, time counted once"),
    col.word("cause_kind", "the cause behind most of that, as in late"),
    col.real("cause_share_ratio", "its share of total_wait_ns"),
    col.number("first_step_index", "first step in which it was last, -1 outside", missing=-1),
    col.number("last_step_index", "last such step, -1 outside", missing=-1),
    col.real(
        "chance_ratio", "odds of steps_last_count or more if all ranks were late equally often, times the group's size"
    ),
    col.word(
        "verdict",
        "always: chance_ratio < 0.001, share_ratio > 0.5; often: the first alone; else once (one step counts),"
        " few (too few steps to decide) or alternates",
    ),
)

UNKNOWN = "unknown"


def late(trace: Trace, *, top: int = 100, calibration: Calibration | str | os.PathLike[str] | None = None) -> Table:
    """Name the rank that was late in the collectives that cost most, and what kept it.

    Only operations count in which no rank can end before all have entered, and in which a rank waited. The cause is
    what the late rank did longer than the median of the others (of at most 15 of them) since all of them had entered an
    earlier operation of the group, so that no rank was ahead; before the first one, since the step began. ``cause_ns``
    is that surplus. A cause that explains less than a quarter of the lateness is ``unknown``, as is the cause of a rank
    whose steps were not recorded. For operations on a device, all times are those of the device. Waits include time
    that was hidden behind compute. Columns: table ``late`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs collectives; steps, I/O, kernels and batches for the causes.
    top : int
        How many rows: what hangs, then what cost most, then what cost most outside of the steps.
    calibration : Calibration or path, optional
        By default ``calibration.toml`` in the run directory; without one the best tenth of the run's transfers of
        the group, operation and size is what the link is capable of.

    Raises
    ------
    MissingDataError
        If no collective was recorded.
    """
    if top < 1:
        raise UsageError(f"late rows: {top} is too few", hint="give --top 1 or more")
    index, operations = _found(trace)
    if operations is None:
        return Table.empty(LATE)
    waited = np.flatnonzero((operations.total_wait_ns > 0) | (operations.method == HUNG))
    # Hanging operations come first, whatever they cost until the recording ended.
    hung = operations.method[waited] == HUNG
    step = _steps(index, operations)
    # Start-up is not training: operations outside the steps come last.
    outside = (step[waited] < 0) & (step[waited] != step.max(initial=-1))
    rows = waited[order_by(~hung, outside, -operations.total_wait_ns[waited], waited)[:top]]
    why = causes(index, operations, rows)
    named = _names(index, why)
    transfer, expected, source = (x[rows] for x in transfers(index, operations, calibration_of(trace, calibration)))
    skew = launch_skews(index, operations)[rows]
    first = operations.row[operations.starts[rows]]
    table = index.trace.collectives
    hashes = operations.group_hash[rows]
    kinds, links = group_kinds(trace), link_names(trace)
    enter = operations.each.min(operations.enter_ns)[rows]
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
            "late_rank": operations.late_rank[rows],
            "waiting_ranks": _texts(_waiting(operations, rows)),
            "wait_ns": operations.longest_wait_ns[rows] - np.maximum(skew, 0),
            "total_wait_ns": operations.total_wait_ns[rows],
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
            "method": np.array(METHODS)[operations.method[rows]],
        },
    )


def late_ranks(trace: Trace) -> Table:
    """Count per rank and process group who is late again and again.

    A step belongs to the rank that cost the others of the group most in it. It counts if that is at least a tenth of
    the mean cost of a step. ``chance_ratio`` is the binomial probability that a rank gets this many steps if all ranks
    are equally likely to be late, times the number of ranks that it could have been.
    ``verdict`` is ``always`` if that is below 0.001 and the rank has more than half of the steps, ``often`` if it does
    not. Else it is ``once`` if one step counts, ``few`` if so few count that it could not be below 0.001 even if the
    rank had all of them, and ``alternates`` otherwise. Operations without a last rank within the error of the clocks
    are left out.

    ``behind_second_ns`` is the time in which only this rank was missing: from the entry of the second latest rank to
    its own, in operations inside steps (where there are any) that all members entered. A moment counts once however
    many operations wait. It is the most that the group gains if this rank alone is never late again. Columns: table
    ``late_ranks`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs collectives; steps for counts by step and causes.

    Raises
    ------
    MissingDataError
        If no collective was recorded.
    """
    index, operations = _found(trace)
    if operations is None:
        return Table.empty(LATE_RANKS)
    rows = np.flatnonzero(
        (operations.total_wait_ns > 0) & (operations.late_rank >= 0) & (operations.method != UNORDERED)
    )
    every_step = _steps(index, operations)
    why, step = causes(index, operations, rows), every_step[rows]
    gap = _behind_second(trace, operations)
    gap[(every_step < 0) & (every_step.max(initial=-1) >= 0)] = 0
    alone_end, alone = operations.last_enter_ns[rows], gap[rows]
    groups, kinds = group_table(trace), group_kinds(trace)
    out: list[tuple[object, ...]] = []
    for value, at in GroupBy(operations.group_hash[rows]).items():
        late_rank, cost = operations.late_rank[rows[at]], operations.total_wait_ns[rows[at]]
        guilty = _guilty(step[at], late_rank, cost)
        name = str(communicator_names(trace, np.array([value], dtype=np.uint64))[0])
        for rank, mine in GroupBy(late_rank).items():
            times = int((guilty == rank).sum())
            share = times / max(len(guilty), 1)
            members = len(groups[value].members)
            odds = min(1.0, members * chance(times, len(guilty), members))
            total = int(cost[mine].sum())
            cause, part = _main(why.cause[at[mine]], cost[mine])
            by_chance = (
                "few"
                if members * chance(len(guilty), len(guilty), members) >= POLICY.late_chance_ratio
                else "alternates"
            )
            by_chance = "once" if len(guilty) == 1 else by_chance
            verdict = (
                by_chance
                if odds >= POLICY.late_chance_ratio
                else "always"
                if share > POLICY.most_steps_ratio
                else "often"
            )
            until = alone_end[at[mine]]
            missing = TimeSet.of(until - alone[at[mine]], until).total_ns
            numbers = (len(mine), len(at), times, len(guilty), share, total, missing)
            span = (int(step[at[mine]].min()), int(step[at[mine]].max()))
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
    namer, operations = Namer(index), []
    columns = (why.cause, why.begin_ns, why.end_ns, why.late_rank, why.other, why.other_begin_ns, why.other_end_ns)
    for cause, begin, end, rank, other, other_begin, other_end in zip(*(c.tolist() for c in columns), strict=True):
        if cause < 0:
            operations.append(Named())
            continue
        compared = Window(why.times[other], other_begin, other_end) if other >= 0 else None
        operations.append(namer.name(cause, Window(why.times[rank], begin, end), compared))
    return operations


def _waiting(operations: Instances, rows: Int64) -> list[str]:
    """Return the ranks that waited in each of the instances as text; runs of ranks are folded."""
    late_rank = operations.late_rank[operations.each.number]
    waits = (operations.wait_ns > 0) | ((late_rank >= 0) & (operations.rank != late_rank))
    bounds = operations.each.bounds
    members = [slice(begin, end) for begin, end in zip(bounds[rows].tolist(), bounds[rows + 1].tolist(), strict=True)]
    return [ranks_text(sorted(set(operations.rank[at][waits[at]].tolist()))) for at in members]


def _steps(index: TraceIndex, operations: Instances) -> Int64:
    """Return the step of each instance, in which its late rank, else its first rank, entered; -1 outside of steps."""
    row = np.where(operations.late_row >= 0, operations.late_row, operations.starts)
    return step_at_any(index.origin, operations.rank[row], operations.enter_ns[row])


def _behind_second(trace: Trace, operations: Instances) -> Int64:
    """Return how long each instance waited for the late rank alone; 0 where the wait of a member is unknown."""
    groups = group_table(trace)
    size = GroupBy(operations.group_hash).map(lambda group: len(groups[group].members))
    of_late = operations.rank == operations.late_rank[operations.each.number]
    everybody = operations.each.count((operations.wait_ns > 0) & ~of_late) == size - 1
    gap = operations.each.min(np.where(of_late, NEVER, operations.wait_ns))
    known = everybody & (operations.late_row >= 0) & np.isin(operations.method, (CLOCK, DURATION))
    return int64(np.where(known, gap, 0))


def _guilty(step: Int64, rank: Int64, cost: Int64) -> Int64:
    """Return the rank that cost most (of equals the lowest) in each step with a cost; without steps, per operation."""
    inside = step >= 0
    if inside.any():
        step, rank, cost = step[inside], rank[inside], cost[inside]
    else:
        step = np.arange(len(step))
    pairs = GroupBy(step, rank)
    costliest = GroupBy(pairs.keys[0]).argmax(pairs.sum(cost))
    per_step = GroupBy(step).sum(cost)
    # Some rank is always last by a few microseconds; that says nothing.
    matters = per_step * POLICY.matters_divisor * len(per_step) >= per_step.sum()
    return int64(pairs.keys[1][costliest][matters])


def _main(cause: Int64, cost: Int64) -> tuple[str, float]:
    """Return the cause of most of the cost, and its share."""
    place = np.where(cause >= 0, cause, len(CAUSES))  # the last place is unknown
    total = GroupBy.numbered(place, len(CAUSES) + 1).sum(cost)
    most = int(total.argmax())
    return [*CAUSES, UNKNOWN][most], float(total[most]) / max(int(total.sum()), 1)


# Transfers of instances compared with the speed of their link: by a calibration, else by the run's best transfers.

SOURCES = ("none", "run", "calibration")


def transfers(index: TraceIndex, operations: Instances, calibration: Calibration | None) -> tuple[Int64, Int64, Int64]:
    """Return transfer (-1 if it never ended), expected transfer (-1 if unknown) and index into ``SOURCES``."""
    table = index.trace.collectives
    end = operations.each.max(operations.end_ns)
    # Entry and end of different hosts give no length of time where their clocks are too far apart.
    shortest = operations.each.min(operations.end_ns - operations.enter_ns)
    transfer = np.where(operations.by_clock, np.maximum(end - operations.last_enter_ns, 0), shortest)
    transfer = int64(np.where(operations.method == HUNG, -1, transfer))
    first = operations.row[operations.starts]
    payload = int64(np.maximum(table["message_bytes"][first], 0))
    size = np.zeros(len(first), dtype=np.int64)
    size[payload > 0] = np.floor(np.log2(payload[payload > 0])).astype(np.int64) + 1
    same, near = (_best(transfer, operations.group_hash, table["op_code"][first], kind) for kind in (payload, size))
    best = np.where(same >= 0, same, near)
    expected, source = np.full(len(first), -1, dtype=np.int64), np.zeros(len(first), dtype=np.int64)
    known = best >= 0
    # Transfers with more bytes than the best one may take longer in proportion; the link does not lose that time.
    more = np.maximum(payload / np.maximum(payload[best], 1), 1.0)
    expected[known], source[known] = np.rint(transfer[best] * more).astype(np.int64)[known], 1
    by_calibration = expected_transfers(index.trace, calibration).expected_ns[first]
    known = by_calibration > 0
    expected[known], source[known] = np.rint(by_calibration[known]).astype(np.int64), 2
    return transfer, expected, source


def _best(transfer: Int64, *keys: npt.NDArray[Any]) -> Int64:
    """Return the instance at the best tenth of all with the same keys; -1 where there are too few of them."""
    out = np.full(len(transfer), -1, dtype=np.int64)
    order = order_by(*keys, transfer)
    order = order[transfer[order] >= 0]
    similar = GroupBy.runs(*(key[order] for key in keys))
    best = np.where(
        similar.sizes >= POLICY.enough_transfers_count,
        order[similar.first + similar.sizes // POLICY.best_transfers_divisor],
        -1,
    )
    out[order] = best[similar.number]
    return out


# Whether a repeated event could be chance.


def chance(times: int, trials: int, choices: int) -> float:
    """Return the probability that one of several equal choices comes up this many times or more.

    >>> chance(1, 1, 4), chance(0, 3, 2), round(chance(5, 8, 8), 5)
    (0.25, 1.0, 0.00123)
    """
    if times <= 0 or choices <= 1:
        return 1.0
    successes = np.arange(times, trials + 1)
    ways = np.array([math.lgamma(n + 1) for n in range(trials + 1)])
    logs = ways[trials] - ways[successes] - ways[trials - successes]
    logs += successes * -math.log(choices) + (trials - successes) * math.log1p(-1 / choices)
    most = logs.max()
    return float(min(1.0, math.exp(most) * np.exp(logs - most).sum()))


#: Words of a group's name -> kind. torch names the groups of a mesh mesh_NAME; Megatron spells its groups out.
_WORDS = (
    ("fsdp", ("fsdp", "hsdp", "shard")),
    ("ep", ("ep", "expert", "experts", "moe", "etp", "edp")),
    ("tp", ("tp", "tensor", "mp", "sp", "sequence")),
    ("pp", ("pp", "pipe", "pipeline", "stage")),
    ("dp", ("dp", "data", "ddp", "replicate", "replica")),
    ("cp", ("cp", "context")),
)


def kind_by_name(name: str) -> str:
    """Kind that a group's name shows, empty if it shows none.

    >>> kind_by_name("mesh_tp"), kind_by_name("PIPELINE_MODEL_PARALLEL_GROUP"), kind_by_name("default_pg")
    ('tp', 'pp', '')
    >>> kind_by_name("DATA_PARALLEL_GROUP_WITH_CP"), kind_by_name("mesh_cp")
    ('dp', 'cp')
    """
    words = set(re.findall(r"[a-z]+", name.lower()))
    return next((kind for kind, known in _WORDS if words.intersection(known)), "")


def group_kinds(trace: Trace) -> dict[int, str]:
    """Group hash -> kind: by its name, else ``all`` ranks, a ``block``, every n-th (``stride``), ``some``."""
    names = trace.groups.lookup("group_hash", "name_code")
    world = max(int(trace.processes["world_size"].max(initial=0)), len(trace.ranks))
    return {
        value: kind_by_name(trace.text(names[value]) if value in names else "") or _shape(group.members.tolist(), world)
        for value, group in group_table(trace).items()
    }


def _shape(members: list[int], world: int) -> str:
    if len(members) >= world:
        return "all"
    apart = np.unique(np.diff(np.sort(members)))
    if len(apart) == 1:
        return "block" if apart[0] == 1 else "stride"
    return "some"


def link_names(trace: Trace) -> dict[int, str]:
    """Group hash -> the host in which it moves its bytes, or the hosts that it joins."""
    of_ranks = places(trace)
    names = {}
    for value, group in group_table(trace).items():
        hosts = sorted({trace.text(of_ranks[m][0]) for m in group.members.tolist() if m in of_ranks} - {""})
        names[value] = ", ".join(hosts) if len(hosts) < 4 else f"{len(hosts)} hosts"
    return names
