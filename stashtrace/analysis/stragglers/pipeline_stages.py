"""Stages of a pipeline: which ranks hold which, how many micro-batches go through them, and what each works in a step.

stage 0  [F0][F1][F2]....[B0][B1][B2]       with equal stages and m micro-batches each of s stages is idle for the
stage 1      [F0][F1][F2][B0][B1][B2]       work of s - 1 micro-batches: (s - 1) / m of its work in the step

Interleaved schedules give each of r ranks v smaller stages: rank 0 the stages 0, r, 2 r, ... It is idle for the work of
r - 1 micro-batches in one of them, (r - 1) / (v m) of its work. The places of ranks follow from who sends to whom:

chain   0 <-> 1 <-> 2 <-> 3            a stage a rank: m messages each way between neighbours, of m micro-batches
ring    0 <-> 1 <-> 2 <-> 3            v stages a rank: v m each way between neighbours, and from the last rank to
        ^-----------------^            the first, which goes on with the next stage, (v - 1) m

With two ranks the ring is a pair with (2 v - 1) m messages each way.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np

from stashtrace.analysis.collectives.matching import group_table, peers_of, process_values
from stashtrace.analysis.intervals import Bools, Int64, int64
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import step_at
from stashtrace.analysis.stragglers.policy import POLICY
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import CollectiveOp, Phase
from stashtrace.schema.table import Table
from stashtrace.schema.trace import PIPELINE_STAGE, Trace, facts_named

#: Messages in a step, by sender and receiver.
Messages = Mapping[tuple[int, int], float]


@dataclass(frozen=True, slots=True)
class Line:
    """The ranks of one pipeline in the order of its stages."""

    ranks: tuple[int, ...]
    #: Messages in a step between two neighbours, in each direction.
    each_way: float
    #: Messages in a step from the last rank to the first; 0 in a chain, and unknown (0) with two ranks.
    back: float = 0.0


def lines_of(often: Messages, begins: Mapping[int, bool]) -> list[Line]:
    """Return the pipelines that messages make, from the rank that sends first; none if they make no equal ones.

    Forward messages must have their backward ones: a rank that only hands data on is no stage that is trained.

    ``often``: messages in a step by sender and receiver. ``begins``: whether a rank begins its steps by sending.
    """
    near: dict[int, set[int]] = {}
    for (a, b), count in often.items():
        back = often.get((b, a), 0.0)
        if min(count, back) <= 0 or max(count, back) > POLICY.unequal_times * min(count, back):
            return []
        near.setdefault(a, set()).add(b)
        near.setdefault(b, set()).add(a)
    if any(len(others) > 2 for others in near.values()):
        return []
    lines: list[Line] = []
    left = set(near)
    while left:
        end = min(left, key=lambda rank: (len(near[rank]), rank))
        walked = _walk(end, near)
        left -= set(walked)
        line = _chain(walked, often, begins) if len(near[end]) == 1 else _ring(walked, often, begins)
        if line is None:
            return []
        lines.append(line)
    return lines if len({(len(line.ranks), line.back > 0) for line in lines}) == 1 else []


def _walk(begin: int, near: Mapping[int, set[int]]) -> list[int]:
    """Return the ranks that can be reached, each next to its neighbour."""
    walked = [begin]
    while further := sorted(near[walked[-1]] - set(walked)):
        walked.append(further[0])
    return walked


def _chain(ranks: list[int], often: Messages, begins: Mapping[int, bool]) -> Line | None:
    if begins.get(ranks[0]) == begins.get(ranks[-1]):
        return None  # neither end begins, or both do: data do not flow from one to the other
    ordered = ranks if _begins(ranks[0], ranks[-1], begins) else ranks[::-1]
    return Line(tuple(ordered), _each_way(ordered, often))


def _ring(ranks: list[int], often: Messages, begins: Mapping[int, bool]) -> Line | None:
    """Return the line of a ring that is closed by fewer messages than its other neighbours exchange."""
    count = len(ranks)
    between = [
        max(often[ranks[n], ranks[(n + 1) % count]], often[ranks[(n + 1) % count], ranks[n]]) for n in range(count)
    ]
    closing = between.index(min(between))
    first, last = ranks[(closing + 1) % count], ranks[closing]
    if begins.get(first) == begins.get(last):
        return None
    turned = [ranks[(closing + 1 + n) % count] for n in range(count)]
    ordered = turned if _begins(first, last, begins) else turned[::-1]
    each_way, back = _each_way(ordered, often), between[closing]
    others = [messages for n, messages in enumerate(between) if n != closing]
    # In a ring that is no pipeline, as of an exchange with both neighbours, all send as often.
    is_line = (
        max(others) <= (1 + POLICY.same_messages_ratio) * min(others)
        and back < (1 - POLICY.same_messages_ratio) * each_way
    )
    return (
        Line(tuple(ordered), each_way, back)
        if is_line and 2 * back >= (1 - POLICY.same_messages_ratio) * each_way
        else None
    )


def _begins(one: int, other: int, begins: Mapping[int, bool]) -> bool:
    """Return whether the first of two ranks begins; one of them may have left no record."""
    return begins.get(one, not begins.get(other, False))


def _each_way(ordered: list[int], often: Messages) -> float:
    """Return how many messages go from a rank to the next in a step."""
    return median(often[pair] for pair in itertools.pairwise(ordered))


def stages_of_messages(line: Line, computed: float, fills_once: bool) -> tuple[int, int] | None:
    """Return micro-batches in a step and stages of each rank; both are 0 if there are several, nobody knows how many.

    ``computed``: backward computations of a rank in a step, one for each micro-batch and stage; 0 if unknown.
    ``fills_once``: of two ranks, the first takes in all micro-batches before any comes back, or the usual two. Where it
    holds several stages, it takes in more when the first ones have gone through its first stage. Two micro-batches that
    go through several stages of two ranks look as more that go through one of each. None if the messages are no whole
    numbers of micro-batches.
    """
    if line.back > 0:
        part = _whole_ratio(line.each_way, computed)
        return _whole(part * (line.each_way - line.back), part * line.each_way)
    if len(line.ranks) > 2:
        return _plain(line, computed)
    found = _whole(2 * computed - line.each_way, computed) if computed else None
    if found is not None:
        return found
    return _plain(line, computed) if fills_once else (0, 0)


def _plain(line: Line, computed: float) -> tuple[int, int] | None:
    """One stage a rank; a micro-batch may go on in several messages."""
    found = round(line.each_way * _whole_ratio(line.each_way, computed))
    return (found, 1) if found >= 1 else None


def _whole_ratio(messages: float, computed: float) -> float:
    """Return micro-batches by messages: 1, or less where each computation has several messages."""
    several = messages / computed if computed else 1.0
    return (
        1 / round(several)
        if several > 1 and abs(several - round(several)) <= POLICY.same_messages_ratio * several
        else 1.0
    )


def _whole(microbatches: float, passes: float) -> tuple[int, int] | None:
    """Return micro-batches and stages of a rank, if this many passes are whole numbers of them."""
    if microbatches < 1 - POLICY.same_messages_ratio:
        return None
    stages = passes / microbatches
    if round(stages) < 1 or abs(stages - round(stages)) > POLICY.same_messages_ratio * stages:
        return None
    return round(microbatches), round(stages)


@dataclass(frozen=True, slots=True)
class Stages:
    """Stages of all pipelines of a job."""

    #: Place of each rank in its pipeline, from 0: the number of its stage, or of the first one if it holds several.
    of_rank: Mapping[int, int]
    #: That go through a stage in a step; 0 if unknown.
    microbatches: int
    #: Stages of each rank; 0 if there are several, nobody knows how many.
    each: int = 1
    #: At most this many times a rank computes the forward of a micro-batch in a step.
    most_passes: float = 0.0

    @property
    def count(self) -> int:
        """Number of places: of stages, if each rank holds one."""
        return max(self.of_rank.values()) + 1

    def ranks(self, place: int) -> list[int]:
        """Return the ranks of a place, ascending."""
        return sorted(rank for rank, at in self.of_rank.items() if at == place)

    def numbers(self, place: int) -> list[int]:
        """Return the stages that the ranks of a place hold; none if they hold several, nobody knows which."""
        return [place + self.count * turn for turn in range(self.each)]

    @property
    def passes(self) -> float:
        """How often a rank computes the forward of a micro-batch in a step, at most if the stages are unknown."""
        return self.microbatches * self.each or self.most_passes

    @property
    def bubble_ratio(self) -> float:
        """Idle time of a rank by its work, if stages are equal and messages take no time; at least, if unknown."""
        return (self.count - 1) / self.passes


def stages_of(trace: Trace, steps: Table) -> Stages | None:
    """Find the stages of a job: those that its ranks state, else by which ranks send to each other in both ways.

    ``trace``: needs steps. ``steps``: rows of ``steps``; messages are counted in these. None if the job has no
    pipeline, or none whose messages say how many micro-batches it has.
    """
    sent = _Sent.of(trace, steps)
    if not len(sent.rank):
        return None
    often = sent.counts()
    stated = stated_numbers(trace, PIPELINE_STAGE)
    if stated:
        forward = [count for (a, b), count in often.items() if stated.get(b, -1) == stated.get(a, -1) + 1]
        microbatches = round(float(np.median(forward))) if forward else 0
        return Stages(stated, microbatches) if microbatches >= 1 and max(stated.values()) >= 1 else None
    lines = lines_of(often, sent.begins())
    if not lines:
        return None
    backwards = _backwards(trace, steps)
    recorded = set(trace.processes["rank"].tolist())
    in_lines = [backwards.get(rank, 0.0) for line in lines for rank in line.ranks if rank in recorded]
    if max(in_lines) > POLICY.unequal_times * min(in_lines):
        return None  # a server, say, that only answers
    computed = float(np.median(in_lines))
    found = {stages_of_messages(line, computed, sent.fills_once(line.ranks[0])) for line in lines}
    whole = found.pop()
    if found or whole is None:
        return None
    of_rank = {rank: place for line in lines for place, rank in enumerate(line.ranks)}
    # Of two ranks with at least two stages each, two of three messages each way are those of one direction.
    return Stages(of_rank, *whole, most_passes=2 * lines[0].each_way / 3)


@dataclass(frozen=True, slots=True)
class _Sent:
    """Sends and receives within steps whose other side is known."""

    rank: Int64
    peer: Int64
    step: Int64
    entered: Int64
    end: Int64
    sends: Bools

    @classmethod
    def of(cls, trace: Trace, steps: Table) -> _Sent:
        index = TraceIndex(trace)
        table = index.trace.collectives
        rows = np.flatnonzero(np.isin(table["op_code"], (CollectiveOp.SEND, CollectiveOp.RECEIVE)))
        peer = peers_of(table, rows, group_table(index.trace))
        rank, entered = table["rank"][rows], index.entered_ns[rows]
        step = step_at(steps, rank, entered)
        known = (peer >= 0) & (step >= 0)
        sends = table["op_code"][rows] == CollectiveOp.SEND
        columns = (rank, peer, step, entered, table["end_ns"][rows])
        rank, peer, step, entered, end = (int64(column[known]) for column in columns)
        return cls(rank, peer, step, entered, end, sends[known])

    def counts(self) -> dict[tuple[int, int], float]:
        """Return messages by sender and receiver in the median step, as the side that recorded more of them counts."""
        often: dict[tuple[int, int], float] = {}
        for direction in (True, False):
            chosen = self.sends == direction
            each = GroupBy(self.rank[chosen], self.peer[chosen], self.step[chosen])
            pairs = GroupBy(*each.keys[:2])
            counts = pairs.median(each.sizes)
            for one, other, count in zip(*(key.tolist() for key in pairs.keys), counts.tolist(), strict=True):
                pair = (one, other) if direction else (other, one)
                often[pair] = max(often.get(pair, 0.0), float(count))
        return often

    def begins(self) -> dict[int, bool]:
        """Return for each rank whether it mostly begins a step by sending."""
        order = np.lexsort((self.entered, self.step, self.rank))
        first = GroupBy.runs(self.rank[order], self.step[order]).first
        begins = GroupBy(self.rank[order][first])
        share = begins.sum(self.sends[order][first].astype(np.int64)) / begins.sizes
        return dict(zip(begins.values.tolist(), (share > 0.5).tolist(), strict=True))

    def fills_once(self, rank: int) -> bool:
        """Return whether a rank sends as the first of two with a stage each: see ``stages_of_messages``."""
        rows = np.flatnonzero(self.rank == rank)
        moment = np.where(self.sends[rows], self.entered[rows], self.end[rows])
        order = rows[np.lexsort((moment, self.step[rows]))]
        usual = []
        for step in np.unique(self.step[order]).tolist():
            sends = self.sends[order[self.step[order] == step]]
            ahead = int(np.argmin(sends))  # sent before anything came back
            # A message that comes back while one leaves is counted before it or after it.
            more = int(np.cumsum(np.where(sends, 1, -1)).max()) - ahead
            usual.append(more <= 1 and (ahead <= POLICY.ahead_batches_count or 2 * ahead == len(sends)))
        return 2 * sum(usual) > len(usual)


def _backwards(trace: Trace, steps: Table) -> dict[int, float]:
    """Return how often each rank computes a backward in the median step in which it does; of ranks that ever do."""
    phases = trace.phases
    rows = np.flatnonzero(phases["phase_code"] == Phase.BACKWARD)
    rank = process_values(trace, phases["process_id"][rows], "rank")
    step = step_at(steps, rank, phases["begin_ns"][rows])
    each = GroupBy(rank[step >= 0], step[step >= 0])
    by_rank = GroupBy(each.keys[0])
    return dict(zip(by_rank.values.tolist(), by_rank.median(each.sizes).tolist(), strict=True))


def stated_numbers(trace: Trace, key: str) -> dict[int, int]:
    """Return a number that the metadata states for processes, by rank."""
    rank = trace.processes.lookup("process_id", "rank")
    stated = facts_named(trace, key)
    return {rank[process]: int(text) for process, text in stated if process in rank and text.isdecimal()}
