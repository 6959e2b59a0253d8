"""Stages of a pipeline: which ranks hold which, how many micro-batches go through them, and what each works in a step.

stage 0  [F0][F1][F2]....[B0][B1][B2]       with equal stages and m micro-batches each of s stages is idle for the
stage 1      [F0][F1][F2][B0][B1][B2]       work of s - 1 micro-batches: (s - 1) / m of its work in the step
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stashtrace.analysis.collectives.matching import group_table
from stashtrace.analysis.intervals import Int64, int64
from stashtrace.analysis.stalls.index import TraceIndex
from stashtrace.analysis.steps.steps import step_at
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import CollectiveOp
from stashtrace.schema.table import Table
from stashtrace.schema.trace import PIPELINE_STAGE, Trace

#: One of two neighbours sends that many times more often than the other: they are no stages of one pipeline.
_UNEQUAL = 1.5


@dataclass(frozen=True, slots=True)
class Stages:
    """Stages of all pipelines of a job.

    Attributes
    ----------
    of_rank : mapping of int to int
        Stage of each rank, from 0.
    microbatches : int
        That go through a stage in a step, by the messages to the next one.
    """

    of_rank: Mapping[int, int]
    microbatches: int

    @property
    def count(self) -> int:
        """Number of stages."""
        return max(self.of_rank.values()) + 1

    def ranks(self, stage: int) -> list[int]:
        """Return the ranks that hold a stage, ascending."""
        return sorted(rank for rank, own in self.of_rank.items() if own == stage)

    @property
    def bubble_ratio(self) -> float:
        """Idle time of a rank by its work, if all stages work alike and no message takes time."""
        return (self.count - 1) / self.microbatches


def stages_of(trace: Trace, steps: Table) -> Stages | None:
    """Find the stages of a job: those that its ranks state, else chains of ranks that send to each other in both ways.

    Parameters
    ----------
    trace : Trace
        Needs steps.
    steps : Table
        Rows of ``steps``; messages are counted in these.

    Returns
    -------
    Stages or None
        None if the job has no pipeline, or none whose messages say how many micro-batches it has.
    """
    index = TraceIndex(trace)
    table, groups = index.trace.collectives, group_table(index.trace)
    rows = np.flatnonzero(np.isin(table["op_code"], (CollectiveOp.SEND, CollectiveOp.RECEIVE)))
    members = {value: group.members for value, group in groups.items()}
    peer = np.full(len(rows), -1, dtype=np.int64)
    for value, own in GroupBy(table["group_hash"][rows]).items():
        ranks, place = members[value], table["peer_rank"][rows[own]]
        peer[own] = np.where((place >= 0) & (place < len(ranks)), ranks[np.clip(place, 0, len(ranks) - 1)], -1)
    rank, entered = table["rank"][rows], index.entered_ns[rows]
    sends = table["op_code"][rows] == CollectiveOp.SEND
    step = step_at(steps, rank, entered)
    known = (peer >= 0) & (step >= 0)
    rank, peer, entered, sends, step = (column[known] for column in (rank, peer, entered, sends, step))
    if not len(rank):
        return None
    often = _messages(rank, peer, step, sends)
    of_rank = stated_numbers(trace, PIPELINE_STAGE) or _chains(
        often, _begins(int64(rank), int64(step), int64(entered), sends)
    )
    if not of_rank:
        return None
    forward = [count for (a, b), count in often.items() if of_rank.get(b, -1) == of_rank.get(a, -1) + 1]
    microbatches = round(float(np.median(forward))) if forward else 0
    if microbatches < 1 or max(of_rank.values()) < 1:
        return None
    return Stages(of_rank, microbatches)


def _messages(rank: Int64, peer: Int64, step: Int64, sends: np.ndarray) -> dict[tuple[int, int], float]:
    """Return messages by sender and receiver in the median step, as the side that recorded more of them counts."""
    often: dict[tuple[int, int], float] = {}
    for direction in (True, False):
        own = sends == direction
        each = GroupBy(rank[own], peer[own], step[own])
        pairs = GroupBy(*each.keys[:2])
        counts = pairs.median(each.sizes)
        for one, other, count in zip(*(key.tolist() for key in pairs.keys), counts.tolist(), strict=True):
            pair = (one, other) if direction else (other, one)
            often[pair] = max(often.get(pair, 0.0), float(count))
    return often


def stated_numbers(trace: Trace, key: str) -> dict[int, int]:
    """Return a number that the metadata states for processes, by rank."""
    facts, processes = trace.metadata, trace.processes
    rank = dict(zip(processes["process_id"].tolist(), processes["rank"].tolist(), strict=True))
    rows = np.flatnonzero(facts["key_code"] == trace.strings.find(key))
    numbers = {}
    for process, code in zip(facts["process_id"][rows].tolist(), facts["value_code"][rows].tolist(), strict=True):
        text = trace.text(code)
        if process in rank and text.isdecimal():
            numbers[rank[process]] = int(text)
    return numbers


def _begins(rank: Int64, step: Int64, entered: Int64, sends: np.ndarray) -> dict[int, bool]:
    """Return for each rank whether it mostly begins a step by sending."""
    order = np.lexsort((entered, step, rank))
    first = GroupBy.runs(rank[order], step[order]).first
    begins = GroupBy(rank[order][first])
    share = begins.sum(sends[order][first].astype(np.int64)) / begins.sizes
    return dict(zip(begins.values.tolist(), (share > 0.5).tolist(), strict=True))


def _chains(often: Mapping[tuple[int, int], float], begins: Mapping[int, bool]) -> dict[int, int] | None:
    """Number the ranks of each chain from the end that sends first; None if the messages make no chains of one length.

    Forward messages must have their backward ones: a rank that only hands data on is no stage that is trained.
    """
    near: dict[int, set[int]] = {}
    for (a, b), count in often.items():
        back = often.get((b, a), 0.0)
        if min(count, back) <= 0 or max(count, back) > _UNEQUAL * min(count, back):
            return None
        near.setdefault(a, set()).add(b)
        near.setdefault(b, set()).add(a)
    if any(len(others) > 2 for others in near.values()):
        return None
    chains: list[list[int]] = []
    ends = sorted(one for one, others in near.items() if len(others) == 1)
    left = set(near)
    for end in ends:
        if end not in left:
            continue
        chain = [end]
        left.discard(end)
        while further := [one for one in near[chain[-1]] if one in left]:
            chain.append(further[0])
            left.discard(further[0])
        if begins.get(chain[0]) == begins.get(chain[-1]):
            return None  # neither end begins, or both do: data do not flow from one to the other
        chains.append(chain if begins[chain[0]] else chain[::-1])
    if left or len({len(chain) for chain in chains}) != 1:
        return None
    return {one: stage for chain in chains for stage, one in enumerate(chain)}
