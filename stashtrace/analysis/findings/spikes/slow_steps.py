"""Find slow steps in one pass, as they come: longer than comparable steps, and by more than these vary.

    length of a step = the longest computing of a rank + all the rest (waits, reads, host Python, transfers, saves)
                       `--- follows the data --------'   `--- judged by its own noise --------------------------'

Data of varying length makes computing long, and makes ranks wait for the one with the longest batch. So the rest
of a step, without its longest computing, is judged by its own noise: varying batches and waits for them do not move it.
Computing itself is compared with batches of about the same size where sizes are known. Where it varies although sizes
are not known, or do not explain how long it takes, it counts as slow only far beyond anything that was seen before.

Steps are comparable if they are of one kind, all or none follow a step of this kind, and all or none save a checkpoint.
The time that made a step slow is that of the kind that grew most on one rank; a wait is followed to the rank that was
waited for, in this step or in the one before.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.findings.spikes.noise import Noise, Ring, middle
from stashtrace.analysis.findings.spikes.policy import POLICY
from stashtrace.calibration.noise import Floats
from stashtrace.schema import columns as col
from stashtrace.schema.columns import INTERVAL, RANK, schema
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.stall_kinds import COLUMN_OF, KIND_NAMES
from stashtrace.schema.table import Table

#: Kind of time -> its column.
KIND_COLUMNS = {kind: f"{kind}_ns" for kind in KIND_NAMES}
STEP_TIMES = schema(
    "step_times",
    "Time of each step of each rank by kind; the kinds of a step sum to its length",
    RANK,
    col.number("step", "ordinal"),
    col.word("step_kind", "steps.kind"),
    *INTERVAL,
    *(col.ns(name, f"time of the kind {kind}") for kind, name in KIND_COLUMNS.items()),
    col.rank("cause_rank", "rank that was waited for longest, -1 if none or unknown", missing=-1),
)
_STRAGGLER = StallKind.STRAGGLER.name.lower()


def step_times(steps: Table, stalls: Table) -> Table:
    """Return a row for each row of ``steps``; ``stalls``: rows by step of these steps, maybe among others."""
    row = GroupBy(steps["rank"], steps["step"]).row_of(stalls["rank"], stalls["step"])
    columns: dict[str, npt.NDArray[Any]] = {name: steps[name] for name in ("rank", "step", "begin_ns", "end_ns")}
    columns["step_kind"] = steps["kind"]
    columns["cause_rank"] = np.full(len(steps), -1)
    for kind, name in KIND_COLUMNS.items():
        chosen = np.flatnonzero((stalls["kind"] == kind) & (row >= 0))
        columns[name] = np.zeros(len(steps), dtype=np.int64)
        columns[name][row[chosen]] = stalls["stall_ns"][chosen]
        if kind == _STRAGGLER:
            columns["cause_rank"][row[chosen]] = stalls["cause_rank"][chosen]
    return Table(STEP_TIMES, columns)


#: Kind of step, whether it follows one of its kind, whether it saves a checkpoint.
_Key = tuple[str, bool, bool]

_KINDS = tuple(KIND_COLUMNS)
_COMPUTE, _WAITS, _SAVES = (
    _KINDS.index(kind.name.lower()) for kind in (StallKind.COMPUTE, StallKind.STRAGGLER, StallKind.CHECKPOINT)
)
#: Kinds of time in which a rank does something itself, other than computing.
_OUTSIDE = np.array([place not in (_COMPUTE, _WAITS) for place in range(len(_KINDS))])
#: All ranks have a transfer.
_SHARED = np.array([COLUMN_OF[kind] == "link" for kind in _KINDS])
#: Several kinds of time of a rank, where none of them explains the step.
TOGETHER = "together"


@dataclass(frozen=True, slots=True)
class SlowStep:
    """A step that is longer than comparable ones, and what grew in it."""

    step: int
    step_kind: str
    begin_ns: int
    end_ns: int
    #: Mean over the ranks, and what a comparable step with the same computing usually takes.
    length_ns: float
    usual_ns: float
    #: Whose time grew most, all ranks whose time grew as well, and in which step: this one or the one before.
    rank: int
    ranks: tuple[int, ...]
    grew_step_index: int
    #: Kind of time that grew, and by how much; ``together`` if it is in several kinds, ``straggler`` if nothing else
    #: grew on the rank that was waited for.
    kind: str
    extra_ns: float
    #: Steps until the same kind of time makes a step slow again, and again; 0 if it does not.
    every_count: int


@dataclass(frozen=True, slots=True)
class _Step:
    """One step: its ranks, and the time of each by kind."""

    number: int
    kind: str
    begin_ns: int
    end_ns: int
    ranks: tuple[int, ...]
    length: float
    #: By rank and kind.
    spent: Floats
    #: Of the batch of each rank, 0 if unknown.
    sizes: Floats
    #: Rank that was waited for longest in all, -1 if none.
    awaited: int
    #: The step before it is of the same kind.
    follows: bool

    @property
    def key(self) -> _Key:
        """What comparable steps have in common, apart from their ranks."""
        return self.kind, self.follows, bool(self.spent[:, _SAVES].any())

    @property
    def outside(self) -> float:
        """What the step has apart from the longest computing."""
        return self.length - float(self.spent[:, _COMPUTE].max())


class SlowSteps:
    """Search for slow steps; remembers a bounded number of steps, however many come.

    ``worth_ratio``: what is longer by less than this part of a step is not slow. ``frequent``: steps that are slow
    again and again count, too. While a job runs each would be an alarm, and no news.
    """

    def __init__(self, *, worth_ratio: float = POLICY.worth_ratio, frequent: bool = False) -> None:
        self._worth_ratio, self._frequent = worth_ratio, frequent
        self._groups: OrderedDict[_Key, _Group] = OrderedDict()
        self._before: _Step | None = None
        self._slow_steps: dict[str, deque[int]] = {}

    def add(self, rows: Table, samples: Floats | None = None) -> list[SlowStep]:
        """Take in steps and return those of them that are slow; each is judged by itself and by earlier ones alone.

        ``rows``: columns of ``step_times``, all ranks of a step in one call. ``samples``: size of the batch of each
        row, 0 if unknown: samples, tokens, or whatever computing grows with.
        """
        steps = _steps_of(rows, samples, self._before)
        judged = [self._judge(step, before) for step, before in zip(steps, [self._before, *steps], strict=False)]
        self._before = steps[-1] if steps else self._before
        return [self._with_period(slow) for _, slow in judged if slow is not None]

    def _judge(self, step: _Step, before: _Step | None) -> tuple[int, SlowStep | None]:
        """Return by how many like steps one is judged, and what is slow of it; then remember it."""
        usual = self._groups.get(before.key) if before is not None and before.ranks == step.ranks else None
        if usual is not None and usual.ranks != step.ranks:
            usual = None
        group = self._group(step.key, step.ranks)
        known_count = group.known_count
        return known_count, group.judge(step, before, usual)

    def _group(self, key: _Key, ranks: tuple[int, ...]) -> _Group:
        group = self._groups.get(key)
        if group is None or group.ranks != ranks:
            group = self._groups[key] = _Group(ranks, self._worth_ratio, frequent=self._frequent)
        self._groups.move_to_end(key)
        if len(self._groups) > POLICY.groups_count:
            self._groups.popitem(last=False)
        return group

    def _with_period(self, slow: SlowStep) -> SlowStep:
        steps = self._slow_steps.setdefault(slow.kind, deque(maxlen=POLICY.period_times_count))
        steps.append(slow.step)
        apart = np.diff(steps)
        comes_back = len(steps) == POLICY.period_times_count and apart.min() > 1 and np.ptp(apart) <= 1
        return replace(slow, every_count=round(float(apart.mean())) if comes_back else 0)


def slow_steps_of(rows: Table, samples: Floats | None = None) -> list[SlowStep]:
    """Return the slow steps of a whole run, be they few or many.

    Each is judged by the steps before it or by those behind it, whichever are more; where both are too few, by all.
    Arguments: as of ``SlowSteps.add``.
    """
    steps = _steps_of(rows, samples)
    pairs = list(zip(steps, [None, *steps], strict=False))
    sides = zip(_judged(pairs), reversed(_judged(pairs[::-1])), strict=True)
    found = [max(either, key=lambda side: side[0]) for either in sides]
    few = {step.key for step, (known_count, _) in zip(steps, found, strict=True) if known_count < POLICY.least_steps}
    places = [place for place, step in enumerate(steps) if step.key in few]
    twice = _judged([pairs[place] for place in places] * 2)[len(places) :]  # the second time, all of them are known
    for place, judged in zip(places, twice, strict=True):
        found[place] = judged if found[place][0] < POLICY.least_steps else found[place]
    periods = SlowSteps()
    return [periods._with_period(slow) for _, slow in found if slow is not None]


def _judged(pairs: Sequence[tuple[_Step, _Step | None]]) -> list[tuple[int, SlowStep | None]]:
    """Return of each step by how many like ones before it in this order it is judged, and what is slow of it."""
    search = SlowSteps(frequent=True)
    return [search._judge(*pair) for pair in pairs]


def _slow(
    step: _Step, longer: float, rank: int, ranks: tuple[int, ...], grew_in: int, kind: str, extra: float
) -> SlowStep:
    """Return a slow step before it is known whether it comes back."""
    place = (step.number, step.kind, step.begin_ns, step.end_ns)
    return SlowStep(*place, step.length, step.length - longer, rank, ranks, grew_in, kind, extra, 0)


class _Group:
    """Steps that can be compared."""

    def __init__(self, ranks: tuple[int, ...], worth_ratio: float, *, frequent: bool) -> None:
        self.ranks, self._worth_ratio = ranks, worth_ratio
        self._outside, self._computing = Noise(frequent=frequent), Noise(frequent=frequent)
        self._parts = Ring(POLICY.noise_steps, (2,))
        self._slope, self._slope_age = 0.0, 0
        self._first: list[_Step] = []
        self._lengths = Ring(POLICY.level_steps)
        self._spent = Ring(POLICY.level_steps, (len(ranks), len(_KINDS)))
        self._sizes = Ring(POLICY.noise_steps, (len(ranks), 2))

    @property
    def known_count(self) -> int:
        """The number of them that another one is compared with."""
        return len(self._outside)

    def judge(self, step: _Step, before: _Step | None, usual: _Group | None) -> SlowStep | None:
        """Return what is slow of a step, None if it is like the others; then remember it.

        ``before``, ``usual``: the step before it, and the steps that are comparable with that one; None if unknown.
        """
        if len(self._lengths) < POLICY.first_steps:
            self._first.append(step)
            self._remember(step)
            if len(self._first) == POLICY.first_steps:
                self._take_as_usual(self._first)
                self._first = []
            return None
        longer, expected = self._longer(step)
        worth = self._worth_ratio * float(middle(self._lengths.values))
        slow = None
        is_long = self._outside.is_beyond(longer[0], worth)
        computes_long = self._computing.is_beyond(longer[1], worth) and self._is_no_data(
            longer[1], expected, sized=bool(step.sizes.all())
        )
        if is_long and not (computes_long and longer[1] > longer[0]):
            slow = self._what_grew(step, before, usual, longer[0])
        elif computes_long:
            extra = np.where(np.isnan(expected), 0.0, step.spent[:, _COMPUTE] - expected)
            rank = int(extra.argmax())
            ranks = self._similar(extra, rank)
            slow = _slow(step, longer[1], step.ranks[rank], ranks, step.number, _KINDS[_COMPUTE], float(extra[rank]))
        self._outside.add(longer[0], slow=is_long)
        if math.isfinite(longer[1]):
            self._computing.add(longer[1], slow=computes_long)
        changed = self._outside.has_changed or self._computing.has_changed
        self._remember(step)
        if changed:
            for figure in (self._outside, self._computing):
                figure.start_over()
            for ring in (self._parts, self._lengths, self._spent, self._sizes):
                ring.keep_newest(POLICY.kept_steps)
            return None
        return slow

    def _remember(self, step: _Step) -> None:
        computing = step.spent[:, _COMPUTE]
        self._parts.add(np.array([step.outside, float(computing.max())]))
        self._lengths.add(step.length)
        self._spent.add(step.spent)
        self._sizes.add(np.stack([step.sizes, computing], axis=1))

    def _take_as_usual(self, steps: list[_Step]) -> None:
        """Make the first noise of steps that are remembered already."""
        for outside, computing in [self._longer(step)[0] for step in steps]:
            self._outside.add(outside, slow=False)
            if math.isfinite(computing):
                self._computing.add(computing, slow=False)

    def _longer(self, step: _Step) -> tuple[tuple[float, float], Floats]:
        """Return what a step has above the usual outside its computing, and in it; then the usual computing by rank.

        The second is minus infinity where no similar batch is known.
        """
        computing, expected = step.spent[:, _COMPUTE], self._expected(step)
        known = ~np.isnan(expected)
        longest = float(computing[known].max() - expected[known].max()) if known.any() else -math.inf
        return (self._above_level(step.outside, float(computing.max())), longest), expected

    def _above_level(self, outside: float, computing: float) -> float:
        """Return what a step has outside its computing above the level, for that amount of computing.

        Where computing varies with the data, other work may as well: batches of long samples take longer to prepare.
        """
        self._slope_age += 1
        if self._slope_age >= POLICY.slope_steps:
            self._slope_age = 0
            other, computed = self._parts.values.T
            low, high = np.quantile(computed, ((1 - POLICY.width_ratio) / 2, (1 + POLICY.width_ratio) / 2)).tolist()
            varies = len(computed) >= POLICY.level_steps and high - low >= POLICY.varies_ratio * high
            self._slope = max(_line(computed, other), 0.0) if varies else 0.0
        newest = self._parts.newest(POLICY.level_steps)
        return outside - self._slope * computing - float(middle(newest[:, 0] - self._slope * newest[:, 1]))

    def _expected(self, step: _Step) -> Floats:
        """Return how long each rank computes in like steps, on a batch of about that size where sizes are known.

        NaN where no similar batch is known.
        """
        usual = middle(self._spent.values[:, :, _COMPUTE])
        if not step.sizes.all() or not self._varies(step.sizes):
            return np.asarray(usual)
        out: Floats = usual.copy()
        for rank, size in enumerate(step.sizes.tolist()):
            sizes, spent = self._sizes.values[:, rank].T
            out[rank] = _by_size(sizes, spent, size)
        return out

    def _varies(self, sizes: Floats) -> bool:
        return bool((self._sizes.values[:, :, 0] != sizes).any())

    def _is_no_data(self, longer: float, expected: Floats, *, sized: bool) -> bool:
        """Return whether long computing is not explained by data that take long."""
        noise = self._computing
        if noise.width < POLICY.varies_ratio * float(np.nanmax(expected)):
            return sized or longer > POLICY.beyond_all_times * noise.largest_usual
        return len(noise) >= POLICY.seen_steps and longer > POLICY.beyond_all_times * noise.largest

    def extra(self, step: _Step) -> Floats:
        """Return by how much each kind of time of each rank is longer than in the remembered steps, at least one."""
        return np.asarray(step.spent - middle(self._spent.values))

    def _what_grew(self, step: _Step, before: _Step | None, usual: _Group | None, longer: float) -> SlowStep:
        """Return the time that grew most, on the rank that was waited for or else; in this step or the one before."""
        extra = self.extra(step)
        weight = np.where(np.array(step.ranks) == step.awaited, POLICY.awaited_weight, 1.0)[:, None]
        weighted = np.where(_OUTSIDE, extra * np.where(_SHARED, 1.0, weight), -np.inf)
        rank, kind = (int(at) for at in np.unravel_index(int(weighted.argmax()), weighted.shape))
        if extra[rank, kind] >= POLICY.explains_ratio * longer:
            ranks = self._similar(extra[:, kind], rank)
            return _slow(step, longer, step.ranks[rank], ranks, step.number, _KINDS[kind], float(extra[rank, kind]))
        whole = np.where(_OUTSIDE, extra, 0.0).sum(axis=1)
        worker = int((whole * weight[:, 0]).argmax())
        if whole[worker] >= POLICY.explains_ratio * longer:
            ranks = self._similar(whole, worker)
            return _slow(step, longer, step.ranks[worker], ranks, step.number, TOGETHER, float(whole[worker]))
        if before is not None and usual is not None and step.awaited in step.ranks:
            # Work behind the last meeting of a step is waited for in the next one.
            earlier = usual.extra(before)[step.ranks.index(step.awaited)]
            place = int(np.where(np.arange(len(_KINDS)) == _WAITS, -np.inf, earlier).argmax())
            if earlier[place] >= POLICY.explains_ratio * longer:
                ranks = (step.awaited,)
                return _slow(step, longer, step.awaited, ranks, before.number, _KINDS[place], float(earlier[place]))
        waits = extra[:, _WAITS]
        return _slow(
            step, longer, step.awaited, self._similar(waits, int(waits.argmax())), step.number, _KINDS[_WAITS], longer
        )

    def _similar(self, extra: Floats, most: int) -> tuple[int, ...]:
        return tuple(
            rank
            for rank, ns in zip(self.ranks, extra.tolist(), strict=True)
            if ns >= POLICY.explains_ratio * extra[most]
        )


def _by_size(sizes: Floats, spent: Floats, size: float) -> float:
    """Return the time by that of batches of about the same size, on a line through them; NaN if these are too few."""
    off = np.abs(sizes / size - 1.0)
    near = np.argsort(off, kind="stable")[: POLICY.sized_batches_count]
    near = near[off[near] <= POLICY.size_ratio]
    if len(near) < POLICY.least_steps:
        return math.nan
    return float(middle(spent[near] + _line(sizes[near], spent[near]) * (size - sizes[near])))


def _line(x: Floats, y: Floats) -> float:
    """Return the slope of the line through the medians of the smaller and of the larger third (Tukey)."""
    order = np.argsort(x, kind="stable")
    third = len(x) // 3
    (low, below), (high, above) = (
        (float(middle(x[part])), float(middle(y[part]))) for part in (order[:third], order[-third:])
    )
    return (above - below) / (high - low) if high > low else 0.0


def _steps_of(rows: Table, samples: Floats | None, before: _Step | None = None) -> list[_Step]:
    """Return the steps of some rows, in the order in which they begin; ``before``: the one before the first."""
    groups = GroupBy(rows["step"])
    spent = np.stack([rows[name] for name in KIND_COLUMNS.values()], axis=1).astype(np.float64)
    length = (rows["end_ns"] - rows["begin_ns"]).astype(np.float64)
    sizes = np.zeros(len(rows)) if samples is None else np.asarray(samples, dtype=np.float64)
    steps = []
    for number, at in groups.items():
        at = at[np.argsort(rows["rank"][at], kind="stable")]
        waits, causes = spent[at, _WAITS], rows["cause_rank"][at]
        known = causes >= 0
        awaited = int(np.bincount(causes[known], waits[known]).argmax()) if known.any() else -1
        steps.append(
            _Step(
                int(number),
                Counter(rows["step_kind"][at].tolist()).most_common(1)[0][0],
                int(rows["begin_ns"][at].min()),
                int(rows["end_ns"][at].max()),
                tuple(rows["rank"][at].tolist()),
                float(length[at].mean()),
                spent[at],
                sizes[at],
                awaited,
                follows=False,
            )
        )
    steps.sort(key=lambda step: step.begin_ns)
    kinds = ["" if before is None else before.kind, *(step.kind for step in steps)]
    return [replace(step, follows=step.kind == kind) for step, kind in zip(steps, kinds, strict=False)]
