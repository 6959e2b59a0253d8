"""causes: what makes steps long, each with what its removal saves; the first is what to change first."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from stashtrace.analysis.collectives.matching import is_imported
from stashtrace.analysis.findings import summarize
from stashtrace.analysis.findings.rules.ending.hangs import ending_claims
from stashtrace.analysis.graph import EdgeKind, Graph, build
from stashtrace.analysis.intervals import NEVER, Floats, Int64
from stashtrace.analysis.lines.lines import CostlyLine, costliest_lines, costliest_worker_lines
from stashtrace.analysis.lines.user_frames import place_of
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.part_of_run import part_of_run
from stashtrace.analysis.steps.step_time import step_time_of, step_time_steps
from stashtrace.analysis.steps.steps import steps as find_steps
from stashtrace.analysis.steps.window import window_of
from stashtrace.errors import MissingDataError, guarded
from stashtrace.replay.causes.candidates import QUEUED, Candidate, kind_word, operation, ranks_of
from stashtrace.replay.causes.choose_causes import Cause, causes_by_time, causes_of, waits_for, without
from stashtrace.replay.causes.policy import POLICY
from stashtrace.replay.causes.who_waits import (
    OnFile,
    Waiting,
    blocking_call,
    called_in,
    file_of,
    sends_gradients,
    waiting_place,
    who_waits,
)
from stashtrace.replay.causes.work_by_line import BACKWARD, COMPILE, OBJECTS, WorkByLine, work_by_line
from stashtrace.replay.communication.buckets import Buckets, buckets_if_any
from stashtrace.replay.communication.messages import shows_ddp
from stashtrace.replay.loaders.slow_worker import without_slow_workers, worker_numbers
from stashtrace.replay.prediction_intervals import others_unknown, ranks_recorded
from stashtrace.replay.scenario import Scenario, Unknowns
from stashtrace.replay.whatif import Answer, ReplayedRun
from stashtrace.replay.whatif_text import unreliable
from stashtrace.schema import columns as col
from stashtrace.schema.columns import schema
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import CollectiveOp, Phase, StallKind
from stashtrace.schema.stall_kinds import COLUMN_OF
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_text import summary as text_of
from stashtrace.summary.words import Row
from stashtrace.text.prose import count_noun

CAUSES = schema(
    "causes",
    "What makes steps long, by what its removal saves: the first is to be changed first, each later one with those"
    " before it taken away; or one row that says why none is known",
    col.word("ranks", "ranks whose work it is, as 0,2; empty: of all", width=24),
    col.word("where", "step, worker (making batches), link, or setting; empty in a row with a reason"),
    col.word(
        "kind",
        "a StallKind in lower case, compile, objects, gil, loads, gradients, contention, a setting's name; empty: any",
        width=24,
    ),
    col.word("op", "operation of transfers; else empty", width=16),
    col.word("place", "function and line in which it is, or a good part of it; empty if none stands out"),
    col.word("caller", "function that the loop calls and that calls this one in most of it; else empty", detail=2),
    col.real("place_ratio", "part of it that is certainly in this function; 0 without one", detail=2),
    col.word(
        "level",
        "what is left: gone (nothing), peers (as others), even (equal on all), usual (as mostly), half, or a setting",
    ),
    col.real("python_ratio", "of compute and python: part that is Python, not operators; -1 unknown", missing=-1),
    col.real("excess_ratio", "of peers and usual: part of its own time that is beyond theirs; else 0", detail=2),
    col.real("backward_ratio", "of compute: part in backward passes, place is about the rest; -1 unknown", missing=-1),
    col.word("call", "what most of it is: asleep, lock, gil, cpu, socket, file, garbage, ...; empty if nothing such"),
    col.word("file", "file whose calls are most of it, the longest if of several; else empty"),
    col.word("file_call", "the call on it that takes longest, as read; else empty", width=12),
    col.number("files_count", "files of such calls; else 0", detail=2),
    col.ns(
        "work_ns",
        "mean of a step, of the rank with most: the time that it is about, with peers and usual what is beyond theirs",
    ),
    col.word("waiter", "if its place is in another thread: where the step thread or worker waits for that; else empty"),
    col.real("operations_count", "of transfers: operations of a rank in a mean step; else 0", detail=2),
    col.nbytes("moved_bytes", "of transfers: payload of these, 0 if unknown", detail=2),
    col.word("waiting_ranks", "ranks that wait for its ranks, those that wait longest; empty: none", width=24),
    col.word("waiting_op", "operation in which they wait most; empty if unknown", width=16),
    col.word("through_ranks", "ranks between that they wait for directly; empty: for its ranks", width=24),
    col.ns("waiting_ns", "mean of a step, of the rank that waits longest: wait that goes with it"),
    col.ns("step_ns", "mean step of the run; -1 unknown", missing=-1),
    col.ns("of_step_ns", "mean of the steps that it was found in, of which work_ns is a part; -1 unknown", missing=-1),
    col.ns("saved_ns", "by this the mean step of the recording would have been shorter; -1 unknown", missing=-1),
    col.ns("saved_low_ns", "that of another recording by at least this; 0 if it may not; -1 unknown", missing=-1),
    col.ns("saved_high_ns", "by at most this; -1 unknown", missing=-1),
    col.real("low_ratio", "saved_low_ns of the mean step of the run; -1 unknown", missing=-1),
    col.real("high_ratio", "saved_high_ns of it; -1 unknown", missing=-1),
    col.word("sure", "sure, likely, or perhaps: it may save nothing; empty in a row with a reason", width=12),
    col.number("steps_count", "counted steps in which it is long", detail=2),
    col.number("of_steps_count", "counted steps", detail=2),
    col.number("every_count", "steps until it comes again; 0: in each, or not regularly", detail=2),
    col.number("first_step_index", "the first of the steps in which it is long", detail=2),
    col.number("last_step_index", "the last of them", detail=2),
    col.word(
        "shape",
        "how they lie: from (the last), until, within (in a row), turns (a rank each), grows, shrinks; else empty",
    ),
    col.ns("event_ns", "its mean in these steps, of the rank with most", detail=2),
    col.word("change", "QUANTITY=VALUE of a setting, as `stashtrace whatif` takes it; else empty", width=24),
    col.number("present_count", "of a number to change, such as workers: the present one, else -1", missing=-1),
    col.identity("worker_id", "worker whose batches it is about, -1 if of several or none", missing=-1),
    col.word("reason", "why no cause is known; empty in a row with a cause", width=64),
)
#: More rows than this are not replayed for a summary, which would take several times as long for it.
MOST_ROWS = 400_000
#: A saving is sure if it is at least this part of what it may be at most.
_SURE_RATIO = 0.5
#: A worker, or its rank, is named if it is this part of what goes.
_MOSTLY_RATIO = 0.6
#: A line is named of what is no function if at least this part is certainly in it.
_GOOD_PART = 0.3
#: The columns of a row that says nothing; -1 where nothing is known of a figure.
_NONE: Row = {column.name: "" if column.dtype.startswith("U") else column.missing for column in CAUSES.columns}
#: Of causes that are joined, these add up.
_SUMMED = ("saved_ns", "saved_low_ns", "saved_high_ns", "low_ratio", "high_ratio")
#: Levels at which what others take, or other steps, stays.
_BEYOND = ("peers", "usual")
#: Functions are compared on this number of ranks where a cause is one of several.
_RANKS_COUNT = 3
#: This number of lines of a rank and kind is looked at for what they call in a library.
_LINES_COUNT = 20


def causes(trace: Trace) -> Table:
    """List what makes the steps of a run long, at most three causes and waits for CPUs, by what removal of each saves.

    Where nothing saves 3 % of a step, one row says so. Where a replay of the unchanged run is not like the run, a row
    says so, and a cause saves at most the time that it takes (``saved_ns`` is -1). Columns: table ``causes`` of
    ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Anything that loads.

    Raises
    ------
    MissingDataError
        If no rank has two steps.
    """
    found = _found(trace)
    rows = [row for row, _ in _worded(trace, found)]
    if rows:
        return _table([*rows, *map(_reason, found.unsaid)])
    saves = "that can be replayed is predicted to save" if found.is_replayed else "takes"
    return _because(f"no single cause {saves} 3 % of a step or more", *found.unsaid)


def _worded(trace: Trace, found: _Found) -> list[tuple[Row, list[Cause]]]:
    """Return the rows of the causes that are said, each with those that it is about."""
    known = [cause for cause in found.causes if _is_known(trace, cause)]
    worded = [(cause, what) for cause in known if (what := _worded_or_unsaid(trace, cause, found))]
    measured_ns, step = found.run.measured_ns, step_time_of(trace)
    step_ns, part = measured_ns if step is None else step.mean_ns, _part_of_all(trace)
    bounded = _bounded(trace, [cause for cause, _ in worded])
    rows = [
        ({**_NONE, **what, **_saved(trace, cause, step_ns, part), "of_step_ns": round(measured_ns)}, [whole])
        for cause, (whole, what) in zip(bounded, worded, strict=True)
    ]
    rows = _of_one_file(rows)
    return rows if found.is_replayed else [({**row, "saved_ns": -1}, about) for row, about in rows]


def _exposed_ns(trace: Trace, one: Candidate) -> float:
    """Return how much time of the kind of a candidate the budget has in a mean step, of the rank with most."""
    budgets = summarize(trace).budgets
    column = "link" if one.op >= 0 else COLUMN_OF.get(kind_word(one.kind), "")
    rows = budgets.take((budgets["column"] == column) & (budgets["step_kind"] == ""))
    return float((rows["stall_ns"] / np.maximum(rows["steps_count"], 1)).max()) if len(rows) else math.inf


def _of_one_file(rows: list[tuple[Row, list[Cause]]]) -> list[tuple[Row, list[Cause]]]:
    """Return causes of which none is about a file of the same ranks as one before, which is about all calls on it.

    Where the same is left of both, that one saves what both do.
    """
    joined: list[tuple[Row, list[Cause]]] = []
    for row, about in rows:
        key = (row["file"], row["ranks"])
        same = (at for at, (one, _) in enumerate(joined) if row["file"] and key == (one["file"], one["ranks"]))
        at = next(same, -1)
        if at < 0:
            joined.append((row, about))
            continue
        before, others = joined[at]
        if before["level"] != row["level"]:
            continue
        sums = {name: before[name] + row[name] for name in _SUMMED}
        joined[at] = {**before, **sums, "sure": _certainty(sums["saved_low_ns"], sums["saved_high_ns"])}, others + about
    return joined


def _certainty(low_ns: float, high_ns: float) -> str:
    return "perhaps" if low_ns <= 0 else "sure" if low_ns >= _SURE_RATIO * high_ns else "likely"


def without_causes(trace: Trace, numbers: Collection[int]) -> Answer:
    """Predict the step without some of the causes of a run, all at once. ``numbers``: places in ``causes``, from 1.

    Of a run that is too long to be replayed for a summary they are those of the steps that the summary names.

    Raises
    ------
    MissingDataError
        As ``causes``; if there is no such cause; if several are asked of which one is a setting or waits for a CPU,
        which a replay changes alone.
    """
    rows_count = _rows_count(trace)
    if rows_count > MOST_ROWS:
        trace = part_of_run(trace, MOST_ROWS / rows_count) or trace
    found = _found(trace, budgets=True)
    if not found.is_replayed:
        raise MissingDataError(
            found.unsaid[0], hint="`stashtrace whatif` shows what is known of the run's critical path all the same"
        )
    worded = _worded(trace, found)
    wrong = [number for number in numbers if not 0 < number <= len(worded)]
    if wrong:
        known = count_noun(len(worded), "cause") if worded else "no cause"
        raise MissingDataError(f"cause={wrong[0]}: the run has {known}", hint="`stashtrace summary` names them")
    asked = [cause for number in sorted(set(numbers)) for cause in worded[number - 1][1]]
    return without(found.run, asked, found.work, found.buckets)


@dataclass(frozen=True, slots=True)
class _Found:
    """The causes of a run, and what they were found in."""

    run: ReplayedRun
    work: WorkByLine
    buckets: Buckets | None
    causes: list[Cause]
    #: Lines about what could not be predicted.
    unsaid: list[str]
    #: Whether a replay of the unchanged run is like the run.
    is_replayed: bool


def _found(trace: Trace, *, budgets: bool = False) -> _Found:
    """Find the causes. ``budgets``: answers of the run say where time goes, and how recordings differ."""
    unsaid: list[str] = []
    # A pass over very many reads would only make answers about storage narrower.
    run = ReplayedRun(build(trace, reads=trace.io_rows_count <= MOST_ROWS), budgets=budgets, noise=budgets)
    unchanged = run.answer(())
    work = work_by_line(TraceIndex(trace), run.graph)
    # In files of others, time without a record may have been work.
    left_out = (StallKind.OTHER,) if is_imported(trace) else ()
    # What DistributedDataParallel sends in each step are its buffers; others may send what the step is about.
    needless = (CollectiveOp.BARRIER, *((CollectiveOp.BROADCAST,) if shows_ddp(trace) else ()))
    why = others_unknown(trace) or ("" if unchanged.is_reliable else f"not predicted: {unreliable(unchanged)}")
    if why:
        unsaid.append(f"{why}: a cause saves at most the time that it takes")
        return _Found(
            run,
            work,
            None,
            causes_by_time(run, work, partial(_exposed_ns, trace), left_out=left_out, needless=needless),
            unsaid,
            False,
        )
    buckets = buckets_if_any(trace, run.graph, unsaid)
    found = causes_of(
        run,
        work,
        buckets=buckets,
        unsaid=unsaid,
        left_out=left_out,
        needless=needless,
        may_free_cpus=_may_free_cpus(trace),
        is_called=lambda transfers: bool(called_in(TraceIndex(trace), work, transfers)[0]),
    )
    return _Found(run, work, buckets, found, unsaid, True)


def _may_free_cpus(trace: Trace) -> bool:
    """Return True if others than the ranks and their workers hold the CPUs that step threads wait for.

    That a machine has fewer CPUs than ranks and workers is said of the machine: they are what the job is.
    """
    found = summarize(trace).findings
    waits = found.take((found["kind"] == "contention") & (found["section"] == "verdict"))
    return bool(len(waits) and not np.isin(waits["cause_kind"], ("ranks", "workers")).any())


def _is_known(trace: Trace, cause: Cause) -> bool:
    """Return False for computation of which most may be something else, as where a device was not recorded."""
    one = cause.candidate
    if one is None or one.kind != StallKind.COMPUTE or one.level != "half":
        return True
    budgets = summarize(trace).budgets
    compute = budgets.take(budgets["column"] == "compute")
    return bool(compute["low_ns"].sum() >= POLICY.mostly_ratio * compute["stall_ns"].sum())


def _bounded(trace: Trace, found: list[Cause]) -> list[Cause]:
    """Return causes that promise no more than there certainly is of the time that they are about."""
    present, count = ranks_recorded(trace)
    if present < count and len(trace.collectives):  # one of the others may be as late
        return [replace(cause, low_ns=0.0) for cause in found]
    budgets = summarize(trace).budgets
    columns = GroupBy(budgets["column"])
    spent, least = columns.sum(budgets["stall_ns"]), columns.sum(budgets["low_ns"])
    certain = dict(zip(columns.values.tolist(), np.minimum(least / np.maximum(spent, 1), 1.0).tolist(), strict=True))
    return [replace(cause, low_ns=cause.low_ns * certain.get(_column(cause), 1.0)) for cause in found]


def _column(cause: Cause) -> str:
    """Return the column of the summary that a cause is about; empty if of none."""
    if cause.candidate is not None:
        return COLUMN_OF.get(kind_word(cause.candidate.kind), "")
    return {"data": "data", "start": "data", "link": "link"}.get(waits_for(cause), "")


def _part_of_all(trace: Trace) -> float:
    """Return which part of the steps all ranks made: a replay has these alone."""
    steps = step_time_steps(find_steps(trace))
    made = GroupBy(steps["step"]).sizes
    return float((made == made.max()).mean()) if len(made) else 1.0


def _saved(trace: Trace, cause: Cause, step_ns: float, part: float) -> Row:
    """Return the columns of what a cause saves, and of a setting the wait that it is about.

    ``part``: of the counted steps, those that were replayed; in the others it saves nothing.
    """
    low, high = (part * min(max(ns, 0.0), step_ns / part) for ns in (cause.low_ns, cause.high_ns))
    columns: Row = {
        "step_ns": round(step_ns),
        "saved_ns": round(part * cause.saved_ns),
        "saved_low_ns": round(low),
        "saved_high_ns": round(high),
        "low_ratio": low / max(step_ns, 1.0),
        "high_ratio": high / max(step_ns, 1.0),
        "sure": _certainty(low, high),
    }
    return columns if cause.candidate is not None else columns | _awaited(trace, cause)


def _worded_or_unsaid(trace: Trace, cause: Cause, found: _Found) -> Row:
    """Return the columns of what a cause is; empty, and a line in ``unsaid``, where that fails."""

    def none(line: str) -> Row:
        found.unsaid.append(line)
        return {}

    return guarded("what a cause is", lambda: _columns_of(trace, cause, found), none)


def _columns_of(trace: Trace, cause: Cause, found: _Found) -> Row:
    """Return the columns of what a cause is."""
    run, work = found.run, found.work
    graph, one = run.graph, cause.candidate
    with_steps = np.unique(graph.ends_rank)
    alone = ranks_of(with_steps.tolist()) if len(with_steps) == 1 else ""
    if one is None:
        return _setting(trace, graph, cause) | ({"ranks": alone} if alone else {})
    kind = kind_word(one.kind)
    call = "" if one.by_workers or one.op >= 0 else _call(trace, graph, work, one)
    if one.kind == StallKind.HANDOFF and not call and _is_queued(graph, work, one, found.causes):
        call = "cpu"
    if kind == "other" and call == "gil":
        kind = "gil"
    if kind == "checkpoint" and _loads(trace, run):
        kind = "loads"  # what waits for a load cannot go on without it
    if one.op >= 0 and sends_gradients(trace, graph, one.op):
        kind = "gradients"
    place, place_ratio = guarded("the line behind a cause", lambda: _place(trace, cause, work), lambda line: ("", 0.0))
    stages = len(set(graph.stage_of.values()))
    # Of half of the work the words are about all of it; of what a stage does beyond the mean, about all beyond others.
    of_work = one.about_ratio
    if one.level == "even" and one.ranks:
        of_work = stages / max(stages - 1, 1)
    file = _on_file(trace, run, work, one)
    spent_ns = one.most_ns if found.is_replayed else cause.high_ns
    return {
        "ranks": ranks_of(one.ranks) or alone,
        "where": "link" if one.op >= 0 else "worker" if one.by_workers else "step",
        "kind": kind,
        "op": operation(one.op),
        "place": place,
        "place_ratio": place_ratio,
        "caller": _caller(trace, cause, work),
        "level": one.level,
        "python_ratio": one.python_ratio,
        "excess_ratio": one.goes_ns(work) / max(work.ns[one.pieces].sum(), 1.0) if one.level in _BEYOND else 0.0,
        "backward_ratio": _backward_ratio(work, one),
        "call": call,
        "file": file.name,
        "file_call": file.call,
        "files_count": file.files_count,
        "work_ns": round(file.whole_ratio * min(of_work * spent_ns, _most_ns(trace, one))),
        "waiter": _waiter(trace, run, work, cause) if call or one.by_workers else "",
        **_moved(run, one),
        **(_who_waits(run, work, one) if found.is_replayed else {}),
        "steps_count": one.steps_count,
        "of_steps_count": one.of_steps,
        "every_count": one.period,
        "first_step_index": one.first_step,
        "last_step_index": one.last_step,
        "shape": one.shape,
        "event_ns": round(file.whole_ratio * one.event_ns),
    }


def _most_ns(trace: Trace, one: Candidate) -> float:
    """Return what the budget has of the kind of a step's work; streams of a device may work at the same time."""
    return math.inf if one.by_workers or one.op >= 0 else _exposed_ns(trace, one)


def _loads(trace: Trace, run: ReplayedRun) -> bool:
    """Return whether checkpoints are loaded in the counted steps."""
    phases = trace.phases
    loads = phases.take(phases["phase_code"] == Phase.CHECKPOINT_LOAD)
    in_steps = np.isin(run.graph.step, run.steps) & run.graph.is_thread
    return bool(in_steps.any() and (loads["end_ns"] > run.graph.begin_ns[in_steps].min(initial=NEVER)).any())


def _setting(trace: Trace, graph: Graph, cause: Cause) -> Row:
    """Return the columns of what a setting is."""
    row: Row = {"where": "setting", "level": "setting", "kind": cause.setting, "change": str(cause.answer.changes[0])}
    if cause.setting == "workers":
        row["present_count"] = max(graph.workers.get(rank, 0) for rank in np.unique(graph.ends_rank).tolist())
    elif cause.setting == "slow_worker":
        rank, row["worker_id"] = _slow_worker(graph)
        row |= {"ranks": str(rank)} if rank >= 0 else {}
    if waits_for(cause) == "data":
        row |= _place_of_making(trace, graph)
    return row


def _place_of_making(trace: Trace, graph: Graph) -> Row:
    """Return the function in which workers, or the loop, make batches for a good part; empty if ranks differ."""
    makers = np.unique(graph.rank[graph.is_batch]).tolist()
    find, ranks = (costliest_worker_lines, makers) if makers else (costliest_lines, np.unique(graph.ends_rank).tolist())
    found: list[tuple[CostlyLine, float]] = []
    for rank in ranks[:_RANKS_COUNT]:
        lines = find(trace, rank, "data", _LINES_COUNT)
        shares: dict[tuple[str, str], float] = {}
        for line in lines:
            key = (line.function, line.path)
            shares[key] = shares.get(key, 0.0) + line.share_low
        best = max(shares, key=shares.__getitem__, default=None)
        found += [(line, shares[best]) for line in lines if best == (line.function, line.path)][:1]
    share = min((share for _, share in found), default=0.0)
    same = len(found) == len(ranks[:_RANKS_COUNT]) and len({(line.function, line.path) for line, _ in found}) == 1
    return {"place": found[0][0].place_and_leaf, "place_ratio": share} if same and share >= _GOOD_PART else {}


def _on_file(trace: Trace, run: ReplayedRun, work: WorkByLine, one: Candidate) -> OnFile:
    """Return which file a candidate of step threads is about."""
    if one.by_workers or one.op >= 0 or one.kind in (COMPILE, OBJECTS, QUEUED, StallKind.CHECKPOINT):
        return OnFile()
    return guarded(
        "the file of a cause",
        lambda: file_of(TraceIndex(trace), run.graph, work, one, run.steps),
        lambda line: OnFile(),
    )


def _moved(run: ReplayedRun, one: Candidate) -> Row:
    """Return which ranks transfer, their operations in a mean step, and the payload; empty for what is no transfer.

    Operations that took no time also count, since another rank was waited for meanwhile.
    """
    graph = run.graph
    if one.op < 0 or graph.facts is None:
        return {}
    entered = np.flatnonzero(graph.edge_kind == EdgeKind.MEMBER)
    source, target = graph.source[entered], graph.target[entered]
    chosen = (graph.facts.op[target] == one.op) & np.isin(graph.step[source], run.steps)
    nodes, members = np.unique(target[chosen]), np.unique(graph.rank[source[chosen]])
    # Each node is one operation of all its members.
    each = np.maximum(graph.facts.members[nodes], 1) / (max(len(members), 1) * len(run.steps))
    moved = float((np.maximum(graph.moved_bytes[nodes], 0) * each).sum())
    return {"ranks": _some(graph, members), "operations_count": float(each.sum()), "moved_bytes": round(moved)}


def _some(graph: Graph, ranks: Int64) -> str:
    """Return ranks, or nothing if all that have steps are among them."""
    return "" if np.isin(graph.ends_rank, ranks).all() else ranks_of(np.unique(ranks).tolist())


def _waiter(trace: Trace, run: ReplayedRun, work: WorkByLine, cause: Cause) -> str:
    """Return where a thread waits for the one that runs the function of a cause; empty if it does so itself."""
    one = cause.candidate
    if one is None or work.places is None:
        return ""
    function = one.function or (cause.within.function if cause.within is not None else None)
    if function is None:
        return ""
    return guarded(
        "the thread of a cause",
        lambda: waiting_place(TraceIndex(trace), run.graph, work, one, function),
        lambda line: "",
    )


def _call(trace: Trace, graph: Graph, work: WorkByLine, one: Candidate) -> str:
    """Return what blocks the work of a candidate, empty if that is not known."""
    return guarded("what blocks a cause", lambda: blocking_call(TraceIndex(trace), graph, work, one), lambda line: "")


def _is_queued(graph: Graph, work: WorkByLine, one: Candidate, causes: Sequence[Cause]) -> bool:
    """Return whether a candidate is mostly a wait for a CPU, and no cause is said of these waits."""
    if graph.facts is None or any(cause.candidate is not None and cause.candidate.kind == QUEUED for cause in causes):
        return False
    nodes = np.unique(work.node[one.pieces])
    queued_ns = np.maximum(graph.facts.queued_ns[nodes], 0).sum()
    return bool(queued_ns > POLICY.mostly_ratio * graph.work_ns[nodes].sum())


def _who_waits(run: ReplayedRun, work: WorkByLine, one: Candidate) -> Row:
    """Return the columns about the ranks that wait for a candidate."""
    low, high = one.removed(work, len(run.graph))
    waiting = guarded("who waits for a cause", lambda: who_waits(run, one, (low + high) / 2), lambda line: Waiting())
    return {
        "waiting_ranks": ranks_of(waiting.ranks),
        "waiting_op": operation(waiting.op),
        "through_ranks": ranks_of(waiting.through),
        "waiting_ns": round(waiting.ns),
    }


def _awaited(trace: Trace, cause: Cause) -> Row:
    """Return the mean wait of a step that a setting is about, of the rank that waits longest, and who else waits."""
    budgets = summarize(trace).budgets
    rows = budgets.take((budgets["column"] == _column(cause)) & (budgets["step_kind"] == ""))
    waits_ns = rows["stall_ns"] / np.maximum(rows["steps_count"], 1)
    if not len(rows):
        return {"work_ns": round(cause.saved_ns)}
    long = waits_ns >= np.minimum(POLICY.worth_ratio * rows["step_ns"], waits_ns.max())
    ranks = {} if long.all() or cause.setting == "slow_worker" else {"ranks": ranks_of(rows["rank"][long].tolist())}
    return {"work_ns": round(waits_ns.max()), **ranks}


def _slow_worker(graph: Graph) -> tuple[int, int]:
    """Return the rank and the worker whose batches are longer than those of the others; -1 if of several."""
    scenario = Scenario.of(graph, Unknowns())
    removed = scenario.work - without_slow_workers(scenario).work
    nodes = np.flatnonzero(removed > 0)
    return _mostly(graph.rank[nodes], removed[nodes]), _mostly(worker_numbers(graph)[nodes], removed[nodes])


def _mostly(keys: Int64, amounts: Floats) -> int:
    """Return the key with most of the amounts, -1 if none has."""
    if not len(keys):
        return -1
    groups = GroupBy(keys)
    sums = groups.sum(amounts)
    largest = int(sums.argmax())
    return int(groups.values[largest]) if sums[largest] >= _MOSTLY_RATIO * sums.sum() else -1


def _place(trace: Trace, cause: Cause, work: WorkByLine) -> tuple[str, float]:
    """Return the words for the function of a cause, for its line with most of the time and for what that calls.

    Of one that is no function, for the function with most of it, or the costliest line, if that is a good part. The
    second of the pair is that part.
    """
    one = cause.candidate
    if one is None or work.places is None:
        return "", 0.0
    if one.op >= 0:
        return called_in(TraceIndex(trace), work, one)
    rest_ratio = 1 - max(_backward_ratio(work, one), 0.0)
    if cause.within is not None and cause.within_ratio >= _GOOD_PART * rest_ratio:
        part = replace(cause, candidate=cause.within, within=None)
        return _place(trace, part, work)[0], min(cause.within_ratio / rest_ratio, 1.0)
    find = costliest_worker_lines if one.by_workers else costliest_lines
    kind = "python" if one.kind in (COMPILE, OBJECTS) else kind_word(one.kind)
    if one.function is None:
        return _costliest(trace, one, work, rest_ratio) if kind and rest_ratio >= _GOOD_PART else ("", 0.0)
    lines = GroupBy(work.line[one.pieces])
    row = work.row[lines.values[lines.sum(work.ns[one.pieces]).argmax()]]
    function, path = (trace.text(code) for code in one.function)
    line = int(work.places.line[row])
    rank = one.ranks[0] if one.ranks else int(work.rank_with_most(one.pieces))
    for known in find(trace, rank, kind, _LINES_COUNT) if kind else ():
        if (known.function, known.path, known.line) == (function, path, line):
            return known.place_and_leaf, 1.0
    return place_of(function, path, line), 1.0


def _backward_ratio(work: WorkByLine, one: Candidate) -> float:
    """Return which part of all computation backward passes are; -1 unknown, and of what is not all of it."""
    of_all = one.kind == StallKind.COMPUTE and one.level == "half" and one.function is None
    return work.backward_ratio(one.pieces) if of_all else -1.0


def _costliest(trace: Trace, one: Candidate, work: WorkByLine, rest_ratio: float) -> tuple[str, float]:
    """Return the function that ranks spend a good part of a candidate in, and that part; of each where these differ.

    ``rest_ratio``: part of it that is in no backward pass, of which the good part is.
    """
    find = costliest_worker_lines if one.by_workers else costliest_lines
    kind = "python" if one.kind in (COMPILE, OBJECTS) else kind_word(one.kind)
    pieces = one.pieces[work.rank[one.pieces] >= 0]  # transfers are of no rank
    ranks = GroupBy(work.rank[pieces])
    most = ranks.values[np.argsort(-ranks.sum(work.ns[pieces]), kind="stable")][:_RANKS_COUNT].tolist()
    found: dict[int, CostlyLine] = {}
    for rank in one.ranks[:_RANKS_COUNT] or most:
        # The call of a backward pass is no place of anything.
        lines = (line for line in find(trace, rank, kind, _LINES_COUNT) if not line.leaf.endswith(BACKWARD))
        line = next(lines, None)
        if line is not None and line.share_low >= _GOOD_PART * rest_ratio:
            found[rank] = line
    if not found:
        return "", 0.0
    first = next(iter(found.values()))
    is_on_each = len(found) == len(one.ranks or most)
    if is_on_each and len({(line.function, line.path) for line in found.values()}) == 1:
        return first.place_and_leaf, min(min(line.share_low for line in found.values()) / rest_ratio, 1.0)
    if not one.ranks or len(one.ranks) > _RANKS_COUNT:
        return "", 0.0
    each = ", ".join(f"{line.place} on rank {rank}" for rank, line in found.items())
    return each, min(min(line.share_low for line in found.values()) / rest_ratio, 1.0)


def _caller(trace: Trace, cause: Cause, work: WorkByLine) -> str:
    """Return the function that the training loop calls and that calls the function of a cause; empty for none."""
    one = cause.within if cause.within is not None and cause.within_ratio >= _GOOD_PART else cause.candidate
    if one is None or one.function is None or one.by_workers:
        return ""
    entry = _mostly(work.entry[one.pieces], work.ns[one.pieces] * one.parts[1])
    if entry < 0 or work.entries[entry] == one.function:
        return ""
    return trace.text(work.entries[entry][0])


def what_to_do_first(trace: Trace) -> Table:
    """Return ``causes`` for a summary: where nothing can be predicted, or not soon, a row says why."""
    return guarded("what to do first", lambda: _what_to_do_first(trace), _because)


def _what_to_do_first(trace: Trace) -> Table:
    if {claim.kind for claim in ending_claims(trace)} - {"ended_by_signal", "awaited"}:
        return _because("the job did not end well: look at that first")
    rows = _rows_count(trace)
    try:
        return causes(trace) if rows <= MOST_ROWS else _of_a_part(trace, rows)
    except MissingDataError as error:
        return _because(f"nothing can be predicted: {error}")


def _rows_count(trace: Trace) -> int:
    tables = (trace.kernels, trace.phases, trace.collectives, trace.batches, trace.waits, trace.device_brackets)
    return sum(map(len, tables))


def _of_a_part(trace: Trace, rows: int) -> Table:
    """Return the causes of some steps of a run that is too long to be replayed for a summary."""
    part = part_of_run(trace, MOST_ROWS / rows)
    if part is None:
        return _because(f"not predicted here: a replay of {rows:,} records takes long; `stashtrace whatif` does it")
    found, window = causes(part), window_of(part)
    known = [row for row in found.rows() if not row["reason"]]
    if not known or window is None:
        return found
    which = f"steps {window.first_step} to {window.last_step}, whose mean is nearest to that of all"
    reason = f"these are the causes of {which}; `stashtrace analyze causes` replays the whole run, and takes longer"
    return _table([*found.rows(), _reason(reason)])


def summary(trace: Trace) -> str:
    """Return the summary of a run as text, with what to change first."""
    return text_of(trace, first=what_to_do_first(trace))


def _because(*reasons: str) -> Table:
    return _table(list(map(_reason, reasons)))


def _reason(reason: str) -> Row:
    """Return the row of a reason why something is not predicted."""
    return {**_NONE, "reason": reason}


def _table(rows: Sequence[Row]) -> Table:
    return Table.from_rows(CAUSES, [[row[column.name] for column in CAUSES.columns] for row in rows])
