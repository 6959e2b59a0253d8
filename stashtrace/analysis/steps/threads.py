"""Which process and thread drives the training loop of each rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stashtrace.errors import MissingDataError
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import BatchPhase, Bracket, Phase, PhaseFlag, ProcessRole, SpanKind, ThreadRole
from stashtrace.schema.trace import Trace, cached_on_trace, facts_named, is_stated

#: Weights of the evidence that a thread drives the loop: one update outweighs any number of forwards.
_UPDATE, _MARK, _OTHER, _ROLE = 1 << 40, 1 << 30, 1 << 2, 1


@dataclass(frozen=True, slots=True)
class StepThread:
    """The thread of a rank whose time the budget divides."""

    rank: int
    process_id: int
    track_id: int
    begin_ns: int
    end_ns: int


@cached_on_trace
def step_threads(trace: Trace) -> tuple[StepThread, ...]:
    """One StepThread per rank, ascending.

    Of all threads of the rank's processes it is the one with the most optimizer updates; then, with the most step
    marks; then, with the most phases and batch waits; then, the one that the probes called the step thread. A
    rank that was started again has several processes: the same rule picks one.

    Raises MissingDataError if no rank has a single phase, batch wait or step mark, of host or device.
    """
    tracks, processes = trace.tracks, trace.processes
    phases, batches, spans, brackets = trace.phases, trace.batches, trace.spans, trace.device_brackets
    on_thread = (phases["phase_flags"] & PhaseFlag.BACKGROUND) == 0
    update = on_thread & np.isin(phases["phase_code"], (Phase.OPTIMIZER, Phase.UPDATE_SKIPPED))
    evidence = (
        (phases["track_id"][update], _UPDATE),
        (spans["track_id"][np.isin(spans["kind_code"], (SpanKind.STEP_MARK, SpanKind.STEP))], _MARK),
        (phases["track_id"][on_thread], _OTHER),
        (batches["track_id"][batches["phase_code"] == BatchPhase.WAIT], _OTHER),
        (brackets["thread_track_id"][brackets["bracket_code"] == Bracket.STEP], _OTHER),
        (tracks["track_id"][tracks["role_code"] == ThreadRole.STEP], _ROLE),
    )
    score = np.zeros(int(tracks["track_id"].max(initial=-1)) + 1, dtype=np.int64)
    for track, weight in evidence:
        np.add.at(score, track[(track >= 0) & (track < len(score))], weight)

    is_rank = (processes["role_code"] == ProcessRole.RANK) & (processes["rank"] >= 0)
    rank_of = dict(zip(processes["process_id"][is_rank].tolist(), processes["rank"][is_rank].tolist(), strict=True))
    best: dict[int, tuple[int, int, int]] = {}
    for track, process in zip(tracks["track_id"].tolist(), tracks["process_id"].tolist(), strict=True):
        rank = rank_of.get(process)
        if rank is None or score[track] < _OTHER:
            continue
        candidate = (int(score[track]), -track, process)
        best[rank] = max(best.get(rank, candidate), candidate)
    if not best:
        raise MissingDataError(
            "no rank has a step: no optimizer update, forward or batch wait was recorded", hint=how_to_get_steps(trace)
        )
    return _with_lives(trace, best)


@cached_on_trace
def threads_without_steps(trace: Trace) -> tuple[StepThread, ...]:
    """Return the thread with the most collectives of each rank that has none in ``step_threads``, ascending.

    Such a rank serves others, as a parameter server that relays gradients: waits for it may be passed on.
    """
    table = trace.collectives
    with_steps = {thread.rank for thread in step_threads(trace)}
    called = np.flatnonzero((table["track_id"] >= 0) & (table["rank"] >= 0))
    each = GroupBy(table["rank"][called], table["process_id"][called], table["track_id"][called])
    most: dict[int, tuple[int, int, int]] = {}
    for rank, process, track, count in zip(*(key.tolist() for key in each.keys), each.sizes.tolist(), strict=True):
        if rank not in with_steps:
            most[rank] = max(most.get(rank, (0, 0, 0)), (count, -track, process))
    return _with_lives(trace, most)


def _with_lives(trace: Trace, chosen: dict[int, tuple[int, int, int]]) -> tuple[StepThread, ...]:
    """Return the threads of {rank: (score, -track, process)} with the lives of their processes, by rank."""
    columns = (trace.processes[name].tolist() for name in ("process_id", "begin_ns", "end_ns"))
    lives = {process: (begin, end) for process, begin, end in zip(*columns, strict=True)}
    return tuple(StepThread(rank, process, -key, *lives[process]) for rank, (_, key, process) in sorted(chosen.items()))


def how_to_get_steps(trace: Trace) -> str:
    """Return a hint for a trace without steps: what to record, or that another tool's files have no times."""
    for _, reason in facts_named(trace, "no_times"):
        return reason
    if is_stated(trace, "imported"):
        return "no steps are recorded in these files; `stashtrace info` lists what is"
    return "run with the collectors torch_step and torch_dataloader on, or call stashtrace.step() in the loop"
