"""A kind of stall that grows, and stays: a change of level over many steps, where a slow step is one alone.

    mean of a rank in blocks of 20 steps:   . . : . : . . : . .          : : :
                                            '- what is usual -'          '- 3 newest: all above all that was usual,
                                                                         by more than these vary and 5 % of a step

A block is a mean, so that sequences of varying length, which make single steps long, weigh little; three in a row above
every earlier one are no chance. What is usual is what the first 30 blocks had: slow growth is seen too. After an alarm
the new level is the usual one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.findings.spikes.step_times import KIND_COLUMNS
from stashtrace.analysis.steps.steps import WARMUP_STEPS
from stashtrace.analysis.steps.training_loop import QUIET_KINDS
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.stall_kinds import STALL_KINDS, words_of
from stashtrace.schema.table import Table
from stashtrace.text import count_noun
from stashtrace.units import duration_text, percent_text, ranks_named

Floats = npt.NDArray[np.float64]

#: Steps of a block; the newest blocks that have to lie above; those that say what is usual, at least and at most.
BLOCK_STEPS, NEWEST_BLOCKS, LEAST_BLOCKS, MOST_BLOCKS = 20, 3, 10, 30
#: The lowest of the newest blocks is worth a line from this part of a usual step above the usual mean on, and beyond so
#: many times the spread of usual blocks.
WORTH_RATIO, SPREADS = 0.05, 4.0
#: Computing is no stall.
_KINDS = tuple(kind.name for kind in STALL_KINDS if kind.code != StallKind.COMPUTE)
_STRAGGLER = StallKind.STRAGGLER.name.lower()
_COLUMNS = [KIND_COLUMNS[kind] for kind in _KINDS]


@dataclass(frozen=True, slots=True)
class Growth:
    """A kind of stall that has grown: since which step, on which ranks, and its mean time of a step before and now."""

    kind: str
    since_step: int
    step: int
    ranks: tuple[int, ...]
    before_ns: float
    now_ns: float
    usual_step_ns: float
    #: Who was waited for most, -1 if nobody or not one alone.
    cause_rank: int

    @property
    def text(self) -> str:
        """A sentence."""
        part = percent_text((self.now_ns - self.before_ns) / self.usual_step_ns)
        cause = f", waiting for rank {self.cause_rank}" if self.cause_rank >= 0 else ""
        return (
            f"{words_of(self.kind)} grew on {ranks_named(self.ranks)} since step {self.since_step:,}{cause}: "
            f"{duration_text(self.before_ns)} -> {duration_text(self.now_ns)} a step, {part} of a usual step more, "
            f"over {count_noun(NEWEST_BLOCKS * BLOCK_STEPS, 'step')}"
        )


@dataclass(slots=True)
class _Rank:
    """The blocks of one rank: a row a block, a column a kind, and the mean length of a step as the last column."""

    usual: list[Floats] = field(default_factory=list)
    newest: list[Floats] = field(default_factory=list)
    #: First step of each of the newest blocks, and whom its steps waited for.
    first_steps: list[int] = field(default_factory=list)
    causes: list[Counter[int]] = field(default_factory=list)
    #: Rows of the block that is not full yet.
    rows: list[Floats] = field(default_factory=list)
    row_steps: list[int] = field(default_factory=list)
    row_causes: list[int] = field(default_factory=list)

    def add(self, step: int, row: Floats, cause: int) -> bool:
        """Take in a step; return whether a block is full."""
        self.rows.append(row)
        self.row_steps.append(step)
        self.row_causes.append(cause)
        if len(self.rows) < BLOCK_STEPS:
            return False
        self.newest.append(np.mean(self.rows, axis=0))
        self.first_steps.append(self.row_steps[0])
        self.causes.append(Counter(self.row_causes))
        self.rows, self.row_steps, self.row_causes = [], [], []
        if len(self.newest) > NEWEST_BLOCKS:
            oldest = self.newest.pop(0)
            del self.first_steps[0], self.causes[0]
            if len(self.usual) < MOST_BLOCKS:
                self.usual.append(oldest)
        return True

    def growth(self) -> Floats:
        """Return by how much each kind grew at least; 0 where it did not, or by no more than it varies."""
        nothing = np.zeros(len(_KINDS))
        if len(self.usual) < LEAST_BLOCKS:
            return nothing
        usual, least = np.array(self.usual), np.min(self.newest, axis=0)
        grown = least - usual.mean(axis=0)
        above = (least > usual.max(axis=0)) & (grown > SPREADS * usual.std(axis=0, ddof=1))
        worth = grown > WORTH_RATIO * usual[:, -1].mean()
        return np.where(above & worth, grown, 0.0)[: len(_KINDS)]

    def has_risen(self, at: int) -> bool:
        """Whether the newest blocks of a kind lie half as far above the usual ones as is worth a line."""
        usual = np.mean(self.usual, axis=0)
        least = min(block[at] for block in self.newest)
        return bool(least - usual[at] > 0.5 * WORTH_RATIO * usual[-1])

    def start_again(self) -> None:
        """Learn anew what is usual; the newest blocks may lie before and behind the change."""
        self.usual, self.newest = [], []
        self.first_steps, self.causes = [], []


@dataclass(slots=True)
class GrowthTrigger:
    """Finds kinds of stall that grew among the steps that close."""

    _ranks: dict[int, _Rank] = field(default_factory=dict)

    def round(self, closed: Table) -> list[Growth]:
        """Take in the steps that closed in a round (rows of ``live_steps``), and return what has grown."""
        closed = closed.take((closed["step"] >= WARMUP_STEPS) & ~np.isin(closed["step_kind"], QUIET_KINDS))
        times = np.column_stack([*(closed[name] for name in _COLUMNS), closed["end_ns"] - closed["begin_ns"]])
        times = times.astype(np.float64)
        found = []
        for step, rows in GroupBy(closed["step"]).items():
            full = False
            for row in rows.tolist():
                rank = self._ranks.setdefault(int(closed["rank"][row]), _Rank())
                full |= rank.add(step, times[row], int(closed["cause_rank"][row]))
            if full and (one := self._grown(step)) is not None:
                found.append(one)
        return found

    def _grown(self, step: int) -> Growth | None:
        """Return what grew most; waits for late ranks only where nothing else grew, which makes others late."""
        ranks = sorted(self._ranks)
        grown = np.array([self._ranks[rank].growth() for rank in ranks])
        if not grown.any():
            return None
        total = grown.sum(axis=0)
        waits = _KINDS.index(_STRAGGLER)
        if np.delete(total, waits).any():
            total[waits] = 0.0
        at = int(total.argmax())
        chosen = tuple(rank for rank in ranks if self._ranks[rank].usual and self._ranks[rank].has_risen(at))
        them = [self._ranks[rank] for rank in chosen]
        before = float(np.mean([block[at] for own in them for block in own.usual]))
        # The oldest of the three blocks may lie before the change in part.
        now = float(np.mean([np.median([block[at] for block in own.newest]) for own in them]))
        usual_step = float(np.mean([block[-1] for own in them for block in own.usual]))
        cause = _cause(them) if _KINDS[at] == _STRAGGLER else -1
        since = min(own.first_steps[0] for own in them)
        for own in self._ranks.values():
            own.start_again()
        return Growth(_KINDS[at], since, step, chosen, before, now, usual_step, cause)


def _cause(ranks: list[_Rank]) -> int:
    """Return the rank that most of the newest steps waited for, -1 if none is it in half of them."""
    causes = sum((one for own in ranks for one in own.causes), Counter[int]())
    [(rank, count)] = causes.most_common(1)
    return rank if 2 * count >= causes.total() else -1
