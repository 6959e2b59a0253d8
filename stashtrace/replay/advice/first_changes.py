"""first_changes: what to change first about a job, and what that saves, by replays of the run.

The changes are those that `stashtrace whatif` ranks. Of several that shorten one wait, such as more workers and quicker
batches, one stands for all; a second change must save more together with the first than that one alone.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.collectives.matching import group_table, is_imported
from stashtrace.analysis.findings import summarize
from stashtrace.analysis.findings.ending.end_claims import ending_claims
from stashtrace.analysis.findings.lateness.late_work_names import shows_no_waits
from stashtrace.analysis.graph import Graph, build
from stashtrace.analysis.graph.transfer_nodes import IN_COLLECTIVES
from stashtrace.analysis.intervals import NEVER, Int64
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.step_time import step_time_of
from stashtrace.analysis.steps.steps import ranks_and_steps
from stashtrace.analysis.steps.steps import steps as find_steps
from stashtrace.analysis.steps.threads import threads_without_steps
from stashtrace.analysis.stragglers.file_calls import on_file
from stashtrace.errors import MissingDataError, UsageError, guarded
from stashtrace.replay.advice.change_lines import line_behind
from stashtrace.replay.change_transfers import LINKS
from stashtrace.replay.changes import BUCKET, IN_ORDER, KEPT, Change
from stashtrace.replay.communication.buckets import Buckets, buckets_if_any
from stashtrace.replay.communication.ddp import shows_ddp
from stashtrace.replay.communication.messages import gradient_messages
from stashtrace.replay.loaders.slow_worker import without_slow_workers, worker_numbers
from stashtrace.replay.remove_straggler import without_lateness
from stashtrace.replay.scenario import Floats, Scenario, Unknowns
from stashtrace.replay.whatif import Answer, ReplayedRun, known_changes
from stashtrace.replay.whatif_text import unreliable
from stashtrace.schema import columns as col
from stashtrace.schema.columns import schema
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import Phase, StallKind
from stashtrace.schema.stall_kinds import COLUMN_OF
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_text import summary as text_of

FIRST_CHANGES = schema(
    "first_changes",
    "What to change first about a job, the change that saves most first, or one row that says why none is predicted",
    col.word("change", "QUANTITY=VALUE as `stashtrace whatif` takes it; empty in a row with a reason"),
    col.ns("saved_low_ns", "a step gets shorter by at least this; 0 if it may not; -1 unknown", missing=-1),
    col.ns("saved_high_ns", "by at most this; -1 unknown", missing=-1),
    col.real("low_ratio", "saved_low_ns of the mean step of the run; -1 unknown", missing=-1),
    col.real("high_ratio", "saved_high_ns of it; -1 unknown", missing=-1),
    col.word("sure", "sure, likely, or perhaps: it may save nothing; empty in a row with a reason", width=12),
    col.number("present_count", "of a number to change, such as workers: the present one, else -1", missing=-1),
    col.rank("rank", "rank whose work the change is mostly about, -1 if several", missing=-1),
    col.word(
        "kind",
        "a StallKind, compile, or unrecorded: kind of that work; of several ranks RANK:KIND, most first; gradients"
        " where the bytes that ranks exchange are mostly these, loads where checkpoints are loaded, too; else empty",
    ),
    col.identity("worker_id", "worker whose batches the change is about, -1 if of several or none", missing=-1),
    col.word("place", "function and line that most of what it takes away is in, as far as stacks tell; else empty"),
    col.word("reason", "why no change is predicted; empty in a row with a change", width=64),
)

#: Changes that save less than this part of the step are not worth a line.
_WORTH_RATIO = 0.03
#: Lines at most.
_MOST_LINES = 3
#: More rows than this are not replayed for a summary, which would take several times as long for it.
MOST_ROWS = 400_000
#: A change of a setting goes before one of the code or the machine that saves little more: that times this part.
_NEARLY_RATIO = 0.8
_SETTINGS = ("workers", KEPT, IN_ORDER, BUCKET)
#: What one worker takes longer goes before both: more workers only hide it, and the batches still come in turn.
_CURES = ("slow_worker",)
#: Nobody changes how quickly a message gets from one rank of a host to another one; its bytes can be fewer.
_FIXED = "interconnect.latency"
#: A change of how much is moved: where transfers take more of the step than computation it is named, sure or not.
_BYTES = tuple(f"{link}.bandwidth" for link in LINKS)
#: A saving is sure if it is at least this part of what it may be at most.
_SURE_RATIO = 0.5
#: A rank, or a kind of work, is named if it is this part of what a change takes away.
_MOSTLY_RATIO = 0.6
#: So many ranks, or kinds of their work, are named together, each with at least this part of it.
_MOST_PARTS, _PART_RATIO = 3, 0.2
#: This part of the loop's own code is a good part.
_FILES_RATIO = 0.25
#: In place of a StallKind: work inside torch.compile.
_COMPILES = 0
#: A rate that makes all but the latency of a transfer vanish, and one that makes that vanish.
_ENDLESS, _NONE = 1e9, 1e-9


@dataclass(frozen=True, slots=True)
class FirstChange:
    """One change, with the bounds of what it saves of a step."""

    answer: Answer
    low_ns: float
    high_ns: float
    present_count: int = -1
    rank: int = -1
    kind: str = ""
    worker_id: int = -1
    place: str = ""

    @property
    def change(self) -> Change:
        """The change that was replayed."""
        return self.answer.changes[0]

    @property
    def sure(self) -> str:
        """How sure it is that the step gets shorter: ``sure``, ``likely`` or ``perhaps``."""
        if self.low_ns <= 0:
            return "perhaps"
        return "sure" if self.low_ns >= _SURE_RATIO * self.high_ns else "likely"


def first_changes(trace: Trace) -> Table:
    """Predict what a person should change first about a job: at most three changes, the one that saves most first.

    Savings are those of `stashtrace whatif`, with the difference of recordings, and none exceeds the work that it comes
    from. Where no change saves 3 % of a step, one row says so.

    Parameters
    ----------
    trace : Trace
        Anything that loads.

    Columns
    -------
    change, saved_low_ns, saved_high_ns, low_ratio, high_ratio, sure, present_count, rank, kind, worker_id, place,
    reason

    Raises
    ------
    MissingDataError
        If no rank has two steps, or the replay of the unchanged run is not like the run.
    """
    alone = _others_unknown(trace)
    if alone:
        return _because(alone)
    unsaid: list[str] = []
    chosen, replayed_ns = _changes_by_replay(trace, unsaid)
    if not chosen:
        return _because("no single change that can be replayed is predicted to save 3 % of a step or more", *unsaid)
    present, count = _ranks_recorded(trace)
    if present < count and len(trace.collectives):  # one of the others may be as late
        chosen = [replace(one, low_ns=0.0) for one in chosen]
    parts = _certain_parts(trace)
    chosen = [replace(one, low_ns=one.low_ns * parts.get(_column_of(one.change), 1.0)) for one in chosen]
    if shows_no_waits(trace) or (is_imported(trace) and not len(trace.waits)):
        chosen = [replace(one, kind=re.sub(r"\bother\b", "unrecorded", one.kind)) for one in chosen]
    if (trace.phases["phase_code"] == Phase.CHECKPOINT_LOAD).any():  # what waits for a load cannot go on without it
        chosen = [replace(one, kind="loads") if one.change.quantity == "checkpoint" else one for one in chosen]
    chosen = [replace(one, place=line_behind(trace, one.change.quantity, one.rank, one.kind)) for one in chosen]
    step = step_time_of(trace)  # a replay may have fewer of the steps, and a reader has only this length
    step_ns = replayed_ns if step is None else step.mean_ns
    return Table.from_rows(FIRST_CHANGES, [*(_row(one, step_ns) for one in chosen), *map(_reason, unsaid)])


def _changes_by_replay(trace: Trace, unsaid: list[str]) -> tuple[list[FirstChange], float]:
    """Return the changes that are worth a line, and the step of the replayed run.

    The graph of the run, which is large, is gone when this returns. ``unsaid``: gets a line for each prediction that
    fails by a fault of ours.

    Raises MissingDataError: see :func:`first_changes`.
    """
    # A pass over very many reads would only make answers about storage narrower.
    graph = build(trace, reads=trace.io_rows_count <= MOST_ROWS)
    replays = ReplayedRun(graph, budgets=False)
    run = replays.answer(())
    if not run.is_reliable:
        raise MissingDataError(
            unreliable(run), hint="`stashtrace whatif` shows what is known of the run's critical path all the same"
        )
    buckets = buckets_if_any(trace, graph, unsaid)
    answers = replays.single_changes(buckets, unsaid)
    # What one rank does longer than the others is asked by itself, and files are no code that could be quicker.
    if len(np.unique(graph.ends_rank)) > 1 or _is_in_files(trace, graph):
        answers = [answer for answer in answers if answer.changes[0].quantity != "python"]
    if is_imported(trace):  # whether time without a record was a wait is not known
        answers = [answer for answer in answers if answer.changes[0].quantity != "other"]
    chosen = _chosen(replays, answers, buckets)
    if any(one.change.quantity == "straggler" and one.sure != "sure" for one in chosen) and _is_by_turns(trace):
        chosen = _chosen(replays, [one for one in answers if one.changes[0].quantity != "straggler"], buckets)
    if any(one.change.quantity in _BYTES for one in chosen) and _sends_gradients(trace, graph):
        chosen = [replace(one, kind="gradients") if one.change.quantity in _BYTES else one for one in chosen]
    return chosen, run.replayed_ns


def _sends_gradients(trace: Trace, graph: Graph) -> bool:
    """Return True if most bytes of the counted steps are what DistributedDataParallel sends in backward passes."""
    if not shows_ddp(trace):
        return False
    try:
        messages = gradient_messages(trace)
    except MissingDataError:
        return False
    sent = (messages.step >= 0) & (messages.backward >= 0) & messages.within & (messages.op == "all_reduce")
    first, last = messages.ready_ns[sent].min(initial=NEVER), messages.end_ns[sent].max(initial=-NEVER)
    moved = graph.moved_bytes[graph.is_transfer & (graph.begin_ns >= first) & (graph.end_ns <= last)]
    return bool(messages.bytes[sent].sum() >= _MOSTLY_RATIO * moved.sum() > 0)


def _certain_parts(trace: Trace) -> dict[str, float]:
    """Return which part of the time in each column of the budget is certain to belong there.

    A change that takes time away is certain to save no more than there certainly is of it.
    """
    budgets = summarize(trace).budgets
    columns = GroupBy(budgets["column"])
    spent, least = columns.sum(budgets["stall_ns"]), columns.sum(budgets["low_ns"])
    parts = np.minimum(least / np.maximum(spent, 1), 1.0)
    return dict(zip(columns.values.tolist(), parts.tolist(), strict=True))


def _is_by_turns(trace: Trace) -> bool:
    """Return True if no rank stands out among the late ones: what chance does one of them need not do another time."""
    found = summarize(trace)
    late = (found.findings["section"] == "verdict") & (found.findings["kind"] == "late")
    unlike = found.evidence["finding_id"][found.evidence["code"] == "unlike_rank"]
    stands_out = (found.findings["cause_rank"] >= 0) | np.isin(found.findings["finding_id"], unlike)
    return not (late & stands_out).any()


def _ranks_recorded(trace: Trace) -> tuple[int, int]:
    """Return of how many ranks the work is recorded, and how many ranks the job has as far as is known."""
    groups = group_table(trace).values()
    members = {rank for group in groups for rank in group.members.tolist()}
    present = {*find_steps(trace)["rank"].tolist(), *(thread.rank for thread in threads_without_steps(trace))}
    return len(present), max(int(trace.processes["world_size"].max(initial=-1)), len(members))


def _others_unknown(trace: Trace) -> str:
    """Return that what most ranks of a job do is not recorded, in words; empty if it is.

    A step ends for all ranks together, so what makes one of them quicker need not make the step shorter.
    """
    present, count = _ranks_recorded(trace)
    if not len(trace.collectives) or not present or (present > 1 and 2 * present >= count):
        return ""
    if count > present:
        recorded = f"{present} of {count} ranks {'is' if present == 1 else 'are'} recorded"
    elif (trace.processes["world_size"] > 0).any():
        return ""
    else:
        recorded = "one rank is recorded"
    return f"not predicted: {recorded}, and what a change saves depends on the others"


def _is_in_files(trace: Trace, graph: Graph) -> bool:
    """Return True if a good part of the loop's own code is in calls on files, of some rank."""
    index = TraceIndex(trace)
    for thread, steps in ranks_and_steps(index.origin, index.steps):
        found = on_file(index, thread, steps)
        code = (graph.rank == thread.rank) & (graph.kind == StallKind.PYTHON)
        if found is not None and found.parts_ns.get(StallKind.PYTHON, 0) > _FILES_RATIO * graph.work_ns[code].sum():
            return True
    return False


def what_to_do_first(trace: Trace) -> Table:
    """Return ``first_changes`` for a summary: where nothing can be predicted, or not soon, a row says why."""
    return guarded("what to do first", lambda: _what_to_do_first(trace), _because)


def _what_to_do_first(trace: Trace) -> Table:
    if {claim.kind for claim in ending_claims(trace)} - {"ended_by_signal", "awaited"}:
        return _because("the job did not end well: look at that first")
    rows = _rows_count(trace)
    if rows > MOST_ROWS:
        return _because(f"not predicted here: a replay of {rows:,} records takes long; `stashtrace whatif` does it")
    try:
        return first_changes(trace)
    except MissingDataError as error:
        return _because(f"nothing can be predicted: {error}")


def summary(trace: Trace) -> str:
    """Return the summary of a run as text, with what to change first."""
    return text_of(trace, first=what_to_do_first(trace))


def _rows_count(trace: Trace) -> int:
    """Return how many rows a graph of this trace would be made of."""
    tables = (trace.kernels, trace.phases, trace.collectives, trace.batches, trace.waits, trace.device_brackets)
    return sum(map(len, tables))


def _because(*reasons: str) -> Table:
    return Table.from_rows(FIRST_CHANGES, list(map(_reason, reasons)))


def _reason(reason: str) -> tuple[object, ...]:
    """Return the row of a reason why something is not predicted."""
    return ("", -1, -1, -1.0, -1.0, "", -1, -1, "", -1, "", reason)


def _row(one: FirstChange, step_ns: float) -> tuple[object, ...]:
    low, high = (min(max(ns, 0.0), step_ns) for ns in (one.low_ns, one.high_ns))
    shares = low / max(step_ns, 1.0), high / max(step_ns, 1.0)
    of = one.present_count, one.rank, one.kind, one.worker_id, one.place
    return str(one.change), round(low), round(high), *shares, one.sure, *of, ""


def _chosen(replays: ReplayedRun, answers: Sequence[Answer], buckets: Buckets | None) -> list[FirstChange]:
    """Choose among single changes, which come with those that save most first."""
    found: dict[str, FirstChange] = {}
    for answer in answers:
        if answer.changes[0].quantity.startswith(_FIXED):
            continue
        column, one = _column_of(answer.changes[0]), FirstChange(answer, *answer.saved_ns)
        best = found.get(column)
        if best is None or (
            _preference(one.change) > _preference(best.change) and _middle(one) >= _NEARLY_RATIO * _middle(best)
        ):
            found[column] = one
    worth = [one for one in found.values() if _middle(one) >= _WORTH_RATIO * one.answer.replayed_ns]
    worth.sort(key=lambda one: -_middle(one))
    # Less computation always helps, so it is named only where nothing else does, or perhaps does but by less.
    others = [one for one in worth if one.change.quantity != "compute"]
    sound = [one for one in others if one.sure != "perhaps"]
    sure = [one for one in sound if one.low_ns >= _WORTH_RATIO * one.answer.replayed_ns]
    if not sure and all(one.change.quantity in _BYTES for one in sound):
        # Fewer bytes may save nothing, but also more than less computation does, which is sure to save something.
        compute = [one for one in worth if one.change.quantity == "compute"]
        least_ns = max((one.high_ns for one in compute), default=0.0)
        moved = sound or [one for one in others if one.change.quantity in _BYTES and one.high_ns > least_ns]
        sound = sorted([*moved[:1], *compute], key=lambda one: -one.high_ns) if moved else worth[:1]
    chosen: list[FirstChange] = []
    for one in sound:
        if len(chosen) < _MOST_LINES and (not chosen or _adds(replays, chosen[0], one, buckets)):
            bounded = _limit_saving(replays, one)
            if _middle(bounded) >= _WORTH_RATIO * one.answer.replayed_ns:
                chosen.append(_name_rank_and_kind(replays.graph, bounded))
    return chosen


def _preference(change: Change) -> int:
    """Rank changes that shorten one wait: the highest is named if it saves nearly as much as the best."""
    return 2 if change.quantity in _CURES else int(change.quantity in _SETTINGS)


def _column_of(change: Change) -> str:
    """Return the column of the summary that a change shortens; to keep workers takes away what no other change does."""
    quantity = change.quantity.partition(".")[0]
    columns = {"workers": "data", "slow_worker": "data", IN_ORDER: "data", BUCKET: "link"}
    return columns.get(quantity, COLUMN_OF.get(quantity, quantity))


def _middle(one: FirstChange) -> float:
    return (max(one.low_ns, 0.0) + one.high_ns) / 2


def _limit_saving(replays: ReplayedRun, one: FirstChange) -> FirstChange:
    """Return a change whose saving does not exceed what is saved where the work that it is about takes no time."""
    most = _most_saved_ns(replays, one.answer)
    return replace(one, low_ns=min(one.low_ns, most), high_ns=min(one.high_ns, most))


def _most_saved_ns(replays: ReplayedRun, answer: Answer) -> float:
    """Return what is saved if the work that a change is about takes no time."""
    change = answer.changes[0]
    link, _, of_link = change.quantity.partition(".")
    if change.quantity == "straggler":
        return _removed_ns(replays.graph)
    if change.quantity == KEPT:  # it takes the whole of its work away
        return answer.replayed_ns
    if of_link or change.quantity == BUCKET:
        links = (link,) if of_link else tuple(LINKS)
        gone = [c for name in links for c in (Change(f"{name}.bandwidth", _ENDLESS), Change(f"{name}.latency", _NONE))]
    elif _column_of(change) == "data":
        gone = [Change("prep", 0.0), Change("fetch", 0.0)]
    else:
        gone = [Change(change.quantity, 0.0)]
    try:
        return answer.replayed_ns - replays.what_if(known_changes(replays.graph, gone)).low_ns
    except (MissingDataError, UsageError):  # time that the replay cannot take away
        return answer.replayed_ns


def _without_lateness(graph: Graph) -> tuple[Floats, Floats]:
    """Return by how much each node is shorter where no rank is ever late, and how much of that waits for storage."""
    scenario = Scenario.of(graph, Unknowns(luck=0.0))
    without = without_lateness(scenario)
    removed = np.maximum(scenario.work - without.work, 0.0)
    of_batches = np.where(graph.is_batch, np.maximum(scenario.fetch - without.fetch, 0.0), 0.0)
    return removed, np.minimum(of_batches, removed)


def _removed_ns(graph: Graph) -> float:
    """Return the mean over the counted steps of the work of late ranks that goes."""
    counted = graph.ends_counted if graph.ends_counted.any() else np.ones(len(graph.ends), dtype=bool)
    steps = np.unique(graph.ends_step[counted])
    removed, _ = _without_lateness(graph)
    inside = np.isin(graph.step, steps) | graph.is_batch
    return float(removed[inside].sum()) / max(len(steps), 1)


def _adds(replays: ReplayedRun, first: FirstChange, other: FirstChange, buckets: Buckets | None) -> bool:
    """Return True if two changes together save clearly more than the first alone."""
    try:
        both = replays.what_if((*first.answer.changes, *other.answer.changes), buckets)
    except (MissingDataError, UsageError):
        return False
    return first.answer.middle_ns - both.middle_ns >= _WORTH_RATIO * both.replayed_ns


def _name_rank_and_kind(graph: Graph, one: FirstChange) -> FirstChange:
    """Return a change with the rank and the kind of work that it is mostly about."""
    quantity = one.change.quantity
    if quantity == "workers":
        present = max(graph.workers.get(rank, 0) for rank in np.unique(graph.ends_rank).tolist())
        return replace(one, present_count=present)
    if quantity == "slow_worker":
        return _with_worker(graph, one)
    if quantity != "straggler":
        return one
    removed, stored = _without_lateness(graph)
    nodes = np.flatnonzero(_is_work(graph, removed))
    rank = _mostly(graph.rank[nodes], removed[nodes])
    nodes = nodes[graph.rank[nodes] == rank] if rank >= 0 else nodes
    kinds = np.concatenate([_kinds_of_work(graph)[nodes], np.full(len(nodes), StallKind.FETCH)])
    kind = _mostly(kinds, np.concatenate([removed[nodes] - stored[nodes], stored[nodes]]))
    name = _kind_name(kind) if kind >= 0 else ""
    return replace(one, rank=rank, kind=(_parts(graph, removed, stored) if rank < 0 else "") or name)


def _is_work(graph: Graph, removed: Floats) -> npt.NDArray[np.bool_]:
    """Return the mask of work of ranks that goes: what waits for a late rank is not what makes it late."""
    return (removed > 0) & (graph.rank >= 0) & ~np.isin(graph.kind, IN_COLLECTIVES)


def _parts(graph: Graph, removed: Floats, stored: Floats) -> str:
    """Return the ranks and kinds of work that most of what goes is about; empty if all ranks are late alike."""
    nodes = np.flatnonzero(_is_work(graph, removed))
    ranks = np.concatenate([graph.rank[nodes], graph.rank[nodes]])
    kinds = np.concatenate([_kinds_of_work(graph)[nodes], np.full(len(nodes), StallKind.FETCH)])
    groups = GroupBy(ranks, kinds)
    sums = groups.sum(np.concatenate([removed[nodes] - stored[nodes], stored[nodes]]))
    order = np.argsort(-sums, kind="stable")[:_MOST_PARTS]
    order = order[sums[order] >= _PART_RATIO * sums.sum()]
    if not len(order) or sums[order].sum() < _MOSTLY_RATIO * sums.sum():
        return ""
    named = [(int(groups.keys[0][at]), int(groups.keys[1][at])) for at in order.tolist()]
    everybody = {rank for rank, _ in named} == set(np.unique(graph.ends_rank).tolist())
    if everybody and len({kind for _, kind in named}) == 1:
        return ""
    return ",".join(f"{rank}:{_kind_name(kind)}" for rank, kind in named)


def _kinds_of_work(graph: Graph) -> Int64:
    """Return the kind of each node, with compilations as one of their own."""
    return graph.kind if graph.facts is None else np.where(graph.facts.compiles, _COMPILES, graph.kind)


def _kind_name(kind: int) -> str:
    return "compile" if kind == _COMPILES else StallKind(kind).name.lower()


def _with_worker(graph: Graph, one: FirstChange) -> FirstChange:
    """Return a change with the rank and the worker whose batches it shortens most."""
    scenario = Scenario.of(graph, Unknowns())
    removed = scenario.work - without_slow_workers(scenario).work
    nodes = np.flatnonzero(removed > 0)
    worker = worker_numbers(graph)
    return replace(
        one, rank=_mostly(graph.rank[nodes], removed[nodes]), worker_id=_mostly(worker[nodes], removed[nodes])
    )


def _mostly(keys: Int64, amounts: Floats) -> int:
    """Return the key with most of the amounts, -1 if none has."""
    if not len(keys):
        return -1
    groups = GroupBy(keys)
    sums = groups.sum(amounts)
    largest = int(sums.argmax())
    return int(groups.values[largest]) if sums[largest] >= _MOSTLY_RATIO * sums.sum() else -1
