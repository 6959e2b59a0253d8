"""Candidates for causes: groups of work in the graph, and the level to which each is taken.

A candidate is a value of one or several columns of work: rank, kind of time, function, line, whether workers do it. Its
level is what the replay leaves of it: nothing, what its peers take, what it takes in a usual step, or half.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np

from stashtrace.analysis.graph import EdgeKind, Graph, Resource
from stashtrace.analysis.intervals import Bools, Floats, Int64, int64
from stashtrace.calibration.robust_line import student
from stashtrace.replay.causes.policy import POLICY
from stashtrace.replay.causes.work_by_line import COMPILE, OBJECTS, UNKNOWN, WorkByLine, kinds_of
from stashtrace.replay.prediction_intervals import FEW_STEPS, blocks_of, period_of
from stashtrace.replay.remove_straggler import of_others, places_in_step
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import IN_COLLECTIVES, CollectiveOp, StallKind

#: Kinds of work besides those of ``kinds_of``: the part of any work that is a wait for a CPU, and any.
QUEUED, ANY = 102, -1
#: Work that need not be done at all, or not while the step waits for it. Of all else half is taken.
_GONE = (StallKind.OTHER, StallKind.CHECKPOINT, StallKind.FETCH, COMPILE, OBJECTS)
_PART_OF: dict[Level, float] = {"gone": 1.0, "half": 0.5}
#: Work that is Python, or operators that Python calls.
_IN_CODE = (StallKind.COMPUTE, StallKind.PYTHON)
_ON_THREADS = (Resource.STEP_THREAD, Resource.HOST, Resource.STREAM, Resource.DEVICE, Resource.COMPUTE_STREAM)
#: With more cells than this of ranks, steps and places in them, whole steps are compared.
_MOST_CELLS = 4_000_000


#: In which steps it is: all or any; the last, the first, or others in a row; in each on one rank, alternately;
#: ever more or ever less.
Shape = Literal["", "from", "until", "within", "turns", "grows", "shrinks"]
#: What a replay leaves of a candidate.
Level = Literal["gone", "peers", "even", "usual", "half"]


class What(NamedTuple):
    """The columns of work that make a candidate, but for its ranks."""

    #: A ``StallKind``, COMPILE, OBJECTS, QUEUED, or ANY.
    kind: int = ANY
    by_workers: bool = False
    #: Operation of transfers; -1 for work of ranks.
    op: int = -1
    #: Codes of name and file; None: of any function.
    function: tuple[int, int] | None = None
    #: Number of the line; -1: of any.
    line: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class Candidate:
    """A group of work, and the parts of it that go."""

    level: Level
    #: Ranks whose work it is, none: of all.
    ranks: tuple[int, ...]
    #: As in ``What``.
    kind: int
    by_workers: bool
    op: int
    function: tuple[int, int] | None
    line: int
    #: Rows of ``WorkByLine``.
    pieces: Int64
    #: Number of the step of each, among the counted ones.
    step: Int64
    #: Part of each piece that goes, at least and at most.
    parts: tuple[Floats, Floats]
    #: Mean of a step: the work that goes at most, of the rank with most of it.
    most_ns: float
    #: Steps that it is in, of how many; and after how many it comes again, 0 if not regularly.
    steps_count: int
    of_steps: int
    period: int
    #: First and last of these steps, and how they lie in the run: ``Shape``.
    first_step: int
    last_step: int
    shape: Shape
    #: Mean of these steps, of the rank with most.
    event_ns: float
    #: Part of it in Python, not in operators; -1 unknown.
    python_ratio: float

    @property
    def columns(self) -> tuple[object, ...]:
        """The values that make the group, and its level."""
        return self.level, self.ranks, self.kind, self.by_workers, self.op, self.function, self.line

    @property
    def about_ratio(self) -> float:
        """The time that it is about as a multiple of what goes."""
        return 2.0 if self.level == "half" else 1.0

    @property
    def is_python(self) -> bool:
        """Whether most of it is known to be Python: code that may be written otherwise."""
        return 2 * self.python_ratio > 1

    @property
    def detail(self) -> int:
        """How much it says: a function more than a kind of time, and that more than a rank."""
        return 4 * (self.function is not None) + 2 * (self.kind != ANY) + bool(self.ranks)

    @property
    def is_guess(self) -> bool:
        """Whether nobody knows how much of it can go: half of something, or what ranks do unevenly in single steps."""
        return self.level == "half" or (self.level == "even" and not self.ranks)

    def goes_ns(self, work: WorkByLine) -> float:
        """Return the work of all its ranks that goes at most, in all steps; transfers are of no rank."""
        of_ranks = work.rank[self.pieces] >= 0
        return float((work.ns[self.pieces] * self.parts[1])[of_ranks].sum())

    def removed(self, work: WorkByLine, count: int) -> tuple[Floats, Floats]:
        """Return the work that goes by node, at least and at most."""
        node, ns = work.node[self.pieces], work.ns[self.pieces]
        low, high = self.parts
        most = np.bincount(node, weights=ns * high, minlength=count).astype(float)
        return (most if low is high else np.bincount(node, weights=ns * low, minlength=count).astype(float)), most


class Candidates:
    """Work of the counted steps, by columns, and the candidates that it holds."""

    def __init__(
        self,
        graph: Graph,
        work: WorkByLine,
        steps: Int64,
        step_ns: float,
        left_out: Sequence[int] = (),
        needless: Sequence[int] = (),
    ) -> None:
        """``steps``: the counted ones, in order. ``step_ns``: mean length. ``left_out``: kinds that are no work.

        ``needless``: operations that steps can do without.
        """
        self._needless = needless
        self._graph, self._work, self._steps, self._step_ns = graph, work, steps, step_ns
        on_thread = np.isin(graph.resource, _ON_THREADS) & (graph.rank >= 0)
        self.ranks: Int64 = np.unique(graph.rank[on_thread])
        #: One that only serves others has other work than they.
        self._has_steps = np.isin(self.ranks, graph.ends_rank)
        self._stages = _rows_of_stages(graph, self.ranks[self._has_steps], np.flatnonzero(self._has_steps))
        node = work.node
        self._resource, self._rank, self._is_batch = graph.resource[node], graph.rank[node], graph.is_batch[node]
        self._kind = kinds_of(graph)[node]
        step = _step_of_nodes(graph)[node]
        at = np.searchsorted(steps, step)
        self._step = np.minimum(at, len(steps) - 1)
        counted = np.append(steps, -1)[at] == step
        passive = (Resource.TRANSFER, Resource.MEETING, Resource.CHECKPOINT)
        self._own = counted & np.isin(self._rank, self.ranks) & ~np.isin(self._resource, passive)
        self._own &= ~np.isin(self._kind, [*IN_COLLECTIVES, *left_out])
        self._row = np.minimum(np.searchsorted(self.ranks, self._rank), len(self.ranks) - 1)
        # Nothing says that a rank without steps computes where nothing else was recorded of it.
        self._own &= self._has_steps[self._row] | (self._kind != StallKind.COMPUTE)
        self._served = counted & np.isin(self._rank, self.ranks[~self._has_steps]) & ~np.isin(self._resource, passive)
        # Waits for a CPU are the machine's: a rank with more to do queues longer, too.
        self._ran = _ran_ratio(graph)[node]
        # A rank that works longer before one collective of a step is not made up for by less work before the next one.
        nodes = np.flatnonzero(on_thread)
        place = np.zeros(len(graph), dtype=np.int64)
        place[nodes] = places_in_step(graph, nodes)
        if (place.max(initial=0) + 1) * len(self.ranks) * len(steps) > _MOST_CELLS:
            place[:] = 0
        self._place_in_step = place[node]
        moves = counted & (self._resource == Resource.TRANSFER)
        of_objects = _inside_objects(graph)[node]
        self._moves, self._moves_objects = moves & ~of_objects, np.flatnonzero(moves & of_objects)

    @cached_property
    def _comparisons(self) -> int:
        """How many groups of work are compared between ranks: kinds of time, and places in them."""
        rows = np.flatnonzero(self._own)
        of_kinds = [rows[at] for at in GroupBy(self._is_batch[rows], self._kind[rows])]
        groups = sum(self._is_worth(self._work.ns[at].sum()) + len(list(self._places(at))) for at in of_kinds)
        return max(groups, 1)

    def all(self) -> list[Candidate]:
        """Return the candidates whose removal may save a part of the step that is worth it, the largest first."""
        ways = self._of_ranks(), self._of_lines_of_any_kind(), self._of_kinds(), self._of_transfers(), self._of_queues()
        worth_ns = POLICY.worth_ratio * self._step_ns
        found = [one for candidates in ways for one in candidates if one.most_ns >= worth_ns]
        found.sort(key=lambda one: -one.most_ns)
        return found

    def _of_ranks(self) -> Iterator[Candidate]:
        """What a rank does longer than its peers, whatever it is."""
        yield from self._beyond_peers(np.flatnonzero(self._own & ~self._is_batch), What())
        for rank in self.ranks[~self._has_steps].tolist():
            served = np.flatnonzero(self._served & (self._rank == rank))
            yield self._candidate("half", (rank,), What(), served, self._spent(served))

    def _of_lines_of_any_kind(self) -> Iterator[Candidate]:
        """Functions and lines in which a rank is longer, whatever kind of time that is."""
        rows = np.flatnonzero(self._own & ~self._is_batch)
        longer = self._longer(rows)
        for function, line, at in self._places(rows):
            yield from self._beyond_peers(at, What(function=function, line=line), longer)

    def _of_kinds(self) -> Iterator[Candidate]:
        rows = np.flatnonzero(self._own)
        for by_workers, kind, of_kind in GroupBy(self._is_batch[rows], self._kind[rows]).items():
            pieces, what = rows[of_kind], What(kind, by_workers)
            yield from self._of_group(pieces, what)
            places = list(self._places(pieces))
            longer = self._longer(pieces) if places else None
            for function, line, of_place in places:
                yield from self._of_group(of_place, what._replace(function=function, line=line), longer)

    def _of_transfers(self) -> Iterator[Candidate]:
        """Transfers of one operation over one kind of link."""
        if self._graph.facts is None:
            return
        rows = np.flatnonzero(self._moves)
        for op, kind, of_op in GroupBy(self._graph.facts.op[self._work.node[rows]], self._kind[rows]).items():
            pieces = rows[of_op]
            spent = GroupBy.numbered(self._step[pieces], len(self._steps)).sum(self._work.ns[pieces])
            level: Level = "gone" if op in self._needless else "half"
            yield self._candidate(level, (), What(kind, op=op), pieces, spent[None])

    def _of_queues(self) -> Iterator[Candidate]:
        """Waits for a CPU of all step threads and workers: what free CPUs would save."""
        rows = np.flatnonzero(self._own & (self._ran < 1))
        if len(rows):
            queued = 1 - self._ran[rows]
            cells = GroupBy.cells((self._row[rows], self._step[rows]), (len(self.ranks), len(self._steps)))
            spent = np.asarray(cells.sum(self._work.ns[rows] * queued))
            yield self._candidate("gone", (), What(QUEUED), rows, spent, (queued, queued))

    def _places(self, rows: Int64) -> Iterator[tuple[tuple[int, int], int, Int64]]:
        """Yield functions of several lines, and lines, with their pieces among some: those with most of the time."""
        work = self._work
        known = rows[work.line[rows] >= 0]
        known = known[~work.is_backward[work.line[known]]]
        if not len(known):
            return
        lines = GroupBy(work.line[known])
        function = [work.function(line) for line in lines.values.tolist()]
        of_function: dict[tuple[int, int], list[int]] = {}
        for place, name in enumerate(function):
            of_function.setdefault(name, []).append(place)
        spent = lines.sum(work.ns[known])
        members = list(lines)
        for name, places in of_function.items():
            if len(places) > 1 and self._is_worth(spent[places].sum()):
                yield name, UNKNOWN, known[np.sort(np.concatenate([members[place] for place in places]))]
        for place in np.argsort(-spent, kind="stable")[: POLICY.lines_count].tolist():
            if self._is_worth(spent[place]):
                yield function[place], int(lines.values[place]), known[members[place]]

    def _is_worth(self, ns: float) -> bool:
        """Return True if this much in all counted steps may make one rank's step shorter by what is worth a word."""
        return bool(ns / len(self._steps) >= POLICY.worth_ratio * self._step_ns)

    def _of_group(self, pieces: Int64, what: What, longer: Floats | None = None) -> Iterator[Candidate]:
        """Yield the candidates that a group of work of one kind is, by level. ``longer``: as of ``_beyond_peers``."""
        # Without objects to exchange their transfers go, too.
        moves = self._moves_objects if what.kind == OBJECTS and what.function is None else self._moves_objects[:0]
        every = np.append(pieces, moves)
        if not self._is_worth(self._work.ns[every].sum()):
            return
        spent = self._spent(pieces)
        if what.kind in _GONE and not (what.by_workers and what.kind == StallKind.FETCH):
            # Each rank waits for the transfers.
            of_moves = GroupBy.numbered(self._step[moves], len(self._steps)).sum(self._work.ns[moves])
            yield self._candidate("gone", (), what, every, spent + of_moves)
            for rank, of_rank in self._single_ranks(pieces, spent):
                yield self._candidate("gone", (rank,), what, of_rank, self._spent(of_rank))
        else:
            yield self._candidate("half", (), what, pieces, spent)
            yield from self._beyond_usual(pieces, (), what, spent)
            for rank, of_rank in self._single_ranks(pieces, spent):
                yield from self._beyond_usual(of_rank, (rank,), what, self._spent(of_rank))
        yield from self._beyond_peers(pieces, what, longer)

    def _spent(self, pieces: Int64) -> Floats:
        """Return the time of pieces by rank and step."""
        cells = GroupBy.cells((self._row[pieces], self._step[pieces]), (len(self.ranks), len(self._steps)))
        return np.asarray(cells.sum(self._work.ns[pieces]))

    def _spent_in_places(self, pieces: Int64) -> Floats:
        """Return the time of pieces by rank, step and place in the step, without waits for a CPU."""
        places = int(self._place_in_step[pieces].max(initial=0)) + 1
        shape = len(self.ranks), len(self._steps), places
        cells = GroupBy.cells((self._row[pieces], self._step[pieces], self._place_in_step[pieces]), shape)
        return np.asarray(cells.sum(self._work.ns[pieces] * self._ran[pieces]))

    def _single_ranks(self, pieces: Int64, spent: Floats) -> Iterator[tuple[int, Int64]]:
        """Yield ranks with their pieces, those with most of the time, if some others have less."""
        mean = spent.mean(axis=1)
        if len(mean) < 2 or mean.min() > POLICY.nearly_ratio * mean.max():
            return
        for row in np.argsort(-mean, kind="stable")[: POLICY.lines_count].tolist():
            if mean[row] >= POLICY.worth_ratio * self._step_ns:
                yield int(self.ranks[row]), pieces[self._row[pieces] == row]

    def _beyond_usual(self, pieces: Int64, ranks: tuple[int, ...], what: What, spent: Floats) -> Iterator[Candidate]:
        """What a few steps take longer than the usual one: exactly what the recording has, in another one by chance."""
        total = spent.sum(axis=0)
        excess = np.maximum(total - np.median(total), 0.0)
        long = is_long(excess)
        count = int(long.sum())
        if not 0 < count <= POLICY.rare_ratio * len(total) or 2 * excess[long].sum() < excess.sum():
            return
        # Less than twice the usual is how steps vary, and few samples put a line into one step or into another one.
        doubt = GroupBy.numbered(self._step[pieces], len(self._steps)).sum(self._work.doubt_ns[pieces])
        sampled = _quantile(POLICY.chance_ratio / len(total)) * doubt
        if (excess[long] < np.maximum(np.median(total), sampled[long])).any():
            return
        period = period_of(excess)
        of_steps = np.where(long, excess / np.maximum(total, 1.0), 0.0)
        part = of_steps[self._step[pieces]]
        yield self._candidate("usual", ranks, what, pieces, spent * of_steps, (part, part), period=period)

    def _beyond_peers(self, pieces: Int64, what: What, longer: Floats | None = None) -> Iterator[Candidate]:
        """What a rank does longer than the median of the others, and what all those do that are longer.

        ``longer``: by how much each rank is longer in all of a kind. Of a function no more counts: what is beyond that
        is made up for in other functions, or samples have put it here.

        Stages of a pipeline do different work, which may be moved from one to another: a rank is compared with the
        others of its stage, and all of a kind of time with the mean of the stages.
        """
        if self._has_steps.sum() < 2 or not len(pieces):
            return
        spent = self._spent_in_places(pieces)
        if what.function is None and what.kind in (StallKind.COMPUTE, StallKind.PYTHON, ANY):
            yield from self._uneven_stages(pieces, spent.sum(axis=2), what)
        if what.function is None and what.kind == StallKind.COMPUTE and not self._stages:
            yield from self._uneven_steps(pieces, spent.sum(axis=2), what)
        excess_there = self._excess(spent)
        excess = excess_there.sum(axis=2)
        chance = POLICY.chance_ratio / (len(self.ranks) * self._comparisons)
        mean, error = excess.mean(axis=1), np.full(len(excess), math.inf)
        if longer is not None:
            mean = np.minimum(mean, longer)
        worth = mean >= POLICY.worth_ratio * self._step_ns / 2
        error[worth] = [error_of_mean(one, chance) for one in excess[worth]]
        if what.function is not None:  # samples divide time among lines, and leave the whole of a kind as it is
            sampled = self._sampled(pieces)
            error = np.hypot(error, np.hypot(sampled, np.median(sampled)) * _quantile(chance) / len(self._steps))
        beyond = np.flatnonzero((mean > error) & worth)
        beyond = beyond[np.argsort(-mean[beyond], kind="stable")][: POLICY.lines_count]
        for rows in [*([row] for row in beyond.tolist()), *([beyond.tolist()] if len(beyond) > 1 else [])]:
            chosen = pieces[np.isin(self._row[pieces], rows)]
            over_there = np.maximum(excess_there, 0.0)
            part = np.divide(over_there, spent, out=np.zeros_like(spent), where=spent > 0)
            over = over_there.sum(axis=2)
            # What chance adds in some steps and takes in others stays.
            least, general, most = (
                np.clip(ns / np.maximum(over.mean(axis=1), 1.0), 0.0, 1.0) for ns in (mean - error, mean, mean + error)
            )
            at = self._row[chosen], self._step[chosen], self._place_in_step[chosen]
            low, high = ((part * of[:, None, None])[at] for of in (least, most))
            ranks = tuple(sorted(self.ranks[rows].tolist()))
            yield self._candidate("peers", ranks, what, chosen, (over * general[:, None])[rows], (low, high))

    def _excess(self, spent: Floats) -> Floats:
        """Return by how much ranks are longer than their peers, by rank, step and place."""
        usual = spent.copy()  # one that is alone in its stage has no others
        for rows in self._stages or [np.flatnonzero(self._has_steps)]:
            if len(rows) > 1:
                usual[rows] = of_others(spent[rows], np.median)
        return np.where(self._has_steps[:, None, None], spent - usual, 0.0)

    def _longer(self, pieces: Int64) -> Floats:
        """Return by how much each rank is longer than its peers in the places of a step where it is, mean of a step."""
        return np.asarray(np.maximum(self._excess(self._spent_in_places(pieces)).mean(axis=1), 0.0).sum(axis=1))

    def _sampled(self, pieces: Int64) -> Floats:
        """Return the standard error that samples leave of the time of pieces, by rank: one way for each line of it."""
        of_lines = GroupBy(self._row[pieces], self._work.line[pieces])
        squares = of_lines.sum(self._work.doubt_ns[pieces]) ** 2
        return np.asarray(np.sqrt(GroupBy.numbered(of_lines.keys[0], len(self.ranks)).sum(squares)))

    def _uneven_stages(self, pieces: Int64, spent: Floats, what: What) -> Iterator[Candidate]:
        """What ranks of a stage do longer than a stage does in the mean, by rank and step: it may move to others."""
        if not self._stages:
            return
        of_stages = np.array([spent[rows].mean(axis=0) for rows in self._stages])
        if not of_stages.any(axis=1).all():  # a stage that has none of it takes none over
            return
        excess = of_stages - of_stages.mean(axis=0)
        chance = POLICY.chance_ratio / (len(self._stages) * self._comparisons)
        part = np.zeros_like(spent)
        for rows, over, whole in zip(self._stages, excess, of_stages, strict=True):
            part[rows] = over / np.maximum(whole, 1.0)
        for rows, over in zip(self._stages, excess, strict=True):
            mean, error = float(over.mean()), error_of_mean(over, chance)
            if mean <= error or mean < POLICY.worth_ratio * self._step_ns / 2:
                continue
            at = part[self._row[pieces], self._step[pieces]]
            parts = at * (1 - error / mean), at * min(1 + error / mean, 2.0)
            ranks = tuple(sorted(self.ranks[rows].tolist()))
            yield self._candidate("even", ranks, what, pieces, np.maximum(over, 0.0)[None], parts)

    def _uneven_steps(self, pieces: Int64, spent: Floats, what: What) -> Iterator[Candidate]:
        """What ranks do longer in a step than all do in the mean of that step, now one rank and now another one.

        A batch that costs more does so in all of its step, forward and backward; what chance adds to one of them says
        nothing of the other.
        """
        with_steps = np.flatnonzero(self._has_steps)
        over = spent - spent[with_steps].mean(axis=0)
        common = _common_ratio(*(half[with_steps] - half[with_steps].mean(axis=0) for half in self._halves(pieces)))
        if not common:
            return
        over *= common
        part = np.where(self._has_steps[:, None], over / np.maximum(spent, 1.0), 0.0)
        at = part[self._row[pieces], self._step[pieces]]
        yield self._candidate("even", (), what, pieces, over[with_steps].max(axis=0)[None], (at, at))

    def _halves(self, pieces: Int64) -> Iterator[Floats]:
        """Yield the time by rank and step of each second node of a step, and of those between."""
        nodes, of_piece = np.unique(self._work.node[pieces], return_inverse=True)
        shape = len(self.ranks), len(self._steps)
        cell = np.zeros(len(nodes), dtype=np.int64)
        cell[of_piece] = self._row[pieces] * shape[1] + self._step[pieces]
        order = np.lexsort((self._graph.begin_ns[nodes], cell))
        cells = GroupBy(cell[order])
        number = np.zeros(len(nodes), dtype=np.int64)
        number[order] = np.arange(len(nodes)) - cells.first[cells.number]
        for half in (0, 1):
            at = pieces[number[of_piece] % 2 == half]
            yield np.asarray(
                GroupBy.cells((self._row[at], self._step[at]), shape).sum(self._work.ns[at] * self._ran[at])
            )

    def _candidate(
        self,
        level: Level,
        ranks: tuple[int, ...],
        what: What,
        pieces: Int64,
        spent: Floats,
        parts: tuple[Floats, Floats] | None = None,
        *,
        period: int = 0,
    ) -> Candidate:
        """``spent``: the time that goes, by rank and step. ``parts``: of each piece; as its level says without."""
        if parts is None:
            parts = (np.full(len(pieces), _PART_OF[level]),) * 2
        goes = self._work.ns[pieces] * parts[1]
        total = spent.sum(axis=0)
        most = GroupBy(self._row[pieces]).sum(goes).max(initial=0.0) if what.op < 0 else goes.sum()
        if what.kind == OBJECTS:  # transfers are of no rank
            most = spent.sum(axis=1).max()
        if level == "even" and not ranks:  # what goes from one rank in one step comes in another one
            most = total.sum()
        has = is_long(total)
        period = period or period_of(total)
        if total[has].sum() < POLICY.nearly_ratio * total.sum():  # some steps have more of what all have
            has, period = total > 0, 0
        period = 0 if period == 1 else period  # steps in a row
        shape, first, last = _EACH if period else _shape(spent, has)
        if not ranks and what.kind != QUEUED and len(spent) == len(self.ranks):
            mean = spent.mean(axis=1)
            spend = mean >= POLICY.mostly_ratio * mean.max()
            # Of what some ranks do, nothing is said of the others.
            ranks = () if spend[self._has_steps].all() else tuple(sorted(self.ranks[spend].tolist()))
        return Candidate(
            level,
            ranks,
            *what,
            pieces,
            self._step[pieces],
            parts,
            float(most) / len(self._steps),
            int(has.sum()),
            len(total),
            period,
            int(self._steps[first]),
            int(self._steps[last]),
            shape,
            float(spent[:, has].mean(axis=1).max()) if has.any() else 0.0,
            self._work.python_ratio(pieces) if what.op < 0 and what.kind in _IN_CODE else -1.0,
        )


#: Nothing is said of how steps lie.
_EACH: tuple[Shape, int, int] = ("", 0, -1)


def _shape(spent: Floats, has: Bools) -> tuple[Shape, int, int]:
    """Return how the steps lie in which a time is, and the places of the first and the last one.

    ``spent``: by rank and step. ``has``: the steps.
    """
    spent = spent[spent.any(axis=1)]
    count, ranks = int(has.sum()), len(spent)
    if ranks > 1 and count >= POLICY.turns_count:
        alone = spent[:, has].max(axis=0).sum() >= POLICY.alone_ratio * spent[:, has].sum()
        times = np.bincount(spent[:, has].argmax(axis=0), minlength=ranks)
        if alone and times.min() >= POLICY.mostly_ratio * count / ranks:
            return "turns", 0, len(has) - 1
    if len(has) >= 2 * FEW_STEPS and (grows := _growth(spent.sum(axis=0))):
        return grows, 0, len(has) - 1
    first, last = _in_a_row(has)
    length = last - first + 1
    # A step or two without it at an edge of the recording are no change.
    if length < 2 or len(has) - length < min(length, FEW_STEPS):
        return "", 0, len(has) - 1
    if not has[first : last + 1].sum() > POLICY.alone_ratio * count:
        return "", 0, len(has) - 1
    return ("from" if last == len(has) - 1 else "until" if first == 0 else "within"), first, last


def _in_a_row(has: Bools) -> tuple[int, int]:
    """Return the first and the last of the longest run of steps that have something; (0, -1) if none does."""
    edges = np.diff(np.concatenate([[0], has.astype(np.int8), [0]]))
    begins, ends = np.flatnonzero(edges > 0), np.flatnonzero(edges < 0)
    if not len(begins):
        return 0, -1
    longest = int((ends - begins).argmax())
    return int(begins[longest]), int(ends[longest]) - 1


def _growth(total: Floats) -> Shape:
    """Return ``grows`` or ``shrinks`` if a line explains a time of steps better than one change of its level does.

    It must change by half of its mean over the run, and the line explain half of its variance.
    """
    at = np.arange(len(total)) - (len(total) - 1) / 2
    off = total - total.mean()
    slope = float((at * off).sum() / (at**2).sum())
    if abs(slope) * len(total) < POLICY.mostly_ratio * total.mean():
        return ""
    sums = np.cumsum(off)[:-1]
    counts = np.arange(1, len(total))
    of_levels = (sums**2 * (1 / counts + 1 / (len(total) - counts))).max()  # what two levels explain
    of_line = slope**2 * (at**2).sum()
    if of_line < max(of_levels, POLICY.mostly_ratio * (off**2).sum()):
        return ""
    return "grows" if slope > 0 else "shrinks"


def error_of_count(count: int) -> float:
    """Return which part of a count of chance events may be missing or too many in another recording, 95 %."""
    return _quantile(0.05) / math.sqrt(max(count, 1))


def is_long(ns: Floats) -> Bools:
    """Return in which steps a time is long: not much shorter than in the longest of its usual ones.

    >>> is_long(np.array([0.0, 9.0, 0.0, 10.0])).tolist(), is_long(np.array([8.0, 9.0, 10.0])).tolist()
    ([False, True, False, True], [True, True, True])
    """
    return np.asarray(ns > 0.3 * ns.max(initial=0.0))


def error_of_mean(ns: Floats, chance_ratio: float = 0.05) -> float:
    """Return by how much the mean of steps may be off, but for such a chance.

    Neighbouring steps are similar, so that blocks of them count as one. Infinite for fewer than four steps.
    """
    if len(ns) < FEW_STEPS:
        return math.inf
    means = blocks_of(ns, period_of(np.maximum(ns, 0.0)))
    return student(len(means) - 1, chance_ratio) * float(means.std(ddof=1)) / math.sqrt(len(means))


def _quantile(chance_ratio: float) -> float:
    """Return how many standard errors a mean is off with such a chance, on either side."""
    return NormalDist().inv_cdf(1 - chance_ratio / 2)


def _inside_objects(graph: Graph) -> Bools:
    """Return the mask of transfers that ranks enter from within a collective of Python objects."""
    inside = np.zeros(len(graph), dtype=bool)
    if graph.facts is not None:
        members = np.flatnonzero(graph.edge_kind == EdgeKind.MEMBER)
        np.logical_or.at(inside, graph.target[members], graph.facts.pickles[graph.source[members]])
    return inside & graph.is_transfer


def _ran_ratio(graph: Graph) -> Floats:
    """Return which part of each node was no wait for a CPU; 1 where that is not known."""
    if graph.facts is None:
        return np.ones(len(graph))
    return 1 - np.minimum(np.maximum(graph.facts.queued_ns, 0) / np.maximum(graph.work_ns, 1), 1.0)


def _step_of_nodes(graph: Graph) -> Int64:
    """Return the step of each node: of a batch the one that takes it, of a transfer the one in which it begins."""
    steps = GroupBy(graph.ends_step)
    ended = steps.max(graph.end_ns[graph.ends] + graph.ends_lag_ns)
    order = np.argsort(ended, kind="stable")
    at = np.searchsorted(ended[order], graph.begin_ns, side="right")
    step = np.where(graph.step >= 0, graph.step, np.append(steps.values[order], -1)[at])
    taken = np.flatnonzero((graph.edge_kind == EdgeKind.BATCH) & graph.is_batch[graph.source])
    step[graph.source[taken]] = graph.step[graph.target[taken]]
    return int64(step)


def _rows_of_stages(graph: Graph, ranks: Int64, rows: Int64) -> list[Int64]:
    """Return the rows of ranks by stage of their pipeline; empty if they are of one stage, or of none.

    A rank of which no stage is known is in none of them.
    """
    stage = int64([graph.stage_of.get(rank, -1) for rank in ranks.tolist()])
    known = np.flatnonzero(stage >= 0)
    stages = GroupBy(stage[known])
    return [rows[known[of_stage]] for of_stage in stages] if len(stages.values) > 1 else []


def _common_ratio(one: Floats, other: Floats) -> float:
    """Return which part of what ranks take longer in a step lies in both halves of its work, 0 if by chance.

    ``one``, ``other``: by rank and step, beyond the mean of the ranks. The part is their correlation.
    """
    ranks, steps = one.shape
    if steps < FEW_STEPS or ranks < 2:
        return 0.0
    spread = math.sqrt(float((one**2).sum() * (other**2).sum()))
    common = float((one * other).sum()) / spread if spread else 0.0
    return common if common > _quantile(POLICY.chance_ratio) / math.sqrt((ranks - 1) * (steps - 1)) else 0.0


def operation(op: int) -> str:
    """Return the word for an operation of transfers; empty for none."""
    return {int(kind): kind.name.lower() for kind in CollectiveOp}.get(op, "")


def kind_word(kind: int) -> str:
    """Return the word for a kind of work; empty for any."""
    return {ANY: "", COMPILE: "compile", OBJECTS: "objects", QUEUED: "contention"}.get(kind) or (
        StallKind(kind).name.lower() if kind >= 0 else ""
    )


def ranks_of(ranks: Sequence[int]) -> str:
    """Return ranks as ``0,2``; empty for all."""
    return ",".join(map(str, ranks))
