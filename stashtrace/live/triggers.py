"""What is worth a line and a window while a job runs: slow steps, a job that stands still, growing stalls, lost ranks.

A job stands still if a rank has not entered what others wait in, and its processes get on in nothing: no records, no
I/O, no CPU, no other work (``record.peek.model``). One of the two alone is no alarm: long checkpoints, evaluations
and compilations are neither. Nor is a wait for ranks of which nothing is seen here: it is reported as such a wait.

A kind of stall grows if its level changes over many steps, where a slow step is a single one:

    mean of a rank in blocks of 20 steps:   . . : . : . . : . .          : : :
                                            '- what is usual -'          '- 3 newest: all above all that was usual,
                                                                         by more than these vary and 5 % of a step

A block is a mean, so that sequences of varying length, which make single steps long, weigh little; three in a row above
every earlier one are no chance. What is usual is what the first 30 blocks had: slow growth is seen too. After an alarm
the new level is the usual one.

A rank is lost if its process has died, or records nothing more, while other ranks of the run go on. One that ends in
order near the others' end is not: the others have to make some steps without it.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.findings.claim_rows import Claim, tables_of
from stashtrace.analysis.findings.ending.hang_table import ranks_to_look_at, threads_to_look_at
from stashtrace.analysis.findings.ending.last_activity import long_ns
from stashtrace.analysis.findings.rules.ending.hangs import ending_claims, stuck_at_end
from stashtrace.analysis.findings.rules.steps.slow import claim_of_step
from stashtrace.analysis.findings.spikes.slow_steps import KIND_COLUMNS, SlowStep, SlowSteps
from stashtrace.analysis.findings.spikes.spikes import described, samples_of
from stashtrace.analysis.stalls.hidden import hidden
from stashtrace.analysis.steps.steps import WARMUP_STEPS, steps
from stashtrace.analysis.steps.training_loop import QUIET_KINDS
from stashtrace.errors import StashtraceError
from stashtrace.format.growing import GrowingFile
from stashtrace.format.liveness import LiveRings
from stashtrace.live import times
from stashtrace.loading.peeks import facts_of_peeks, peek_at
from stashtrace.record.peek.model import RUNS
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import ProcessRole, StallKind
from stashtrace.schema.stall_kinds import STALL_KINDS, words_of
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.summary.words import claim_text, evidence_texts, findings_of
from stashtrace.text.prose import count_noun
from stashtrace.text.units import duration_text, operation, percent_text, ranks_in, ranks_named

#: A wait for the rank that made a step slow is reported if it is this part of what the step took longer.
_WORTH_WAIT = 0.25


@dataclass(frozen=True, slots=True)
class SlowStepSeen:
    """A slow step: its number, rank and cost, what a step like it usually takes, and the sentence about it."""

    step: int
    rank: int
    cost_ns: int
    usual_ns: int
    text: str


@dataclass(slots=True)
class SlowStepTrigger:
    """Finds slow steps among those that close; each is judged by earlier ones alone."""

    _search: SlowSteps = field(default_factory=SlowSteps)

    def round(self, closed: Table, window: Trace, *, in_part: bool = False) -> list[SlowStepSeen]:
        """Take in the steps that closed in a round, and return those that are slow."""
        closed = closed.take(closed["step"] >= WARMUP_STEPS)
        if not len(closed):
            return []
        table = steps(window)
        row = GroupBy(table["rank"], table["step"]).row_of(closed["rank"], closed["step"])
        closed, row = closed.take(row >= 0), row[row >= 0]
        samples = samples_of(window, table)[row]
        return [_seen(step, closed, table, window, in_part) for step in self._search.add(closed, samples)]


def _seen(step: SlowStep, closed: Table, table: Table, window: Trace, in_part: bool) -> SlowStepSeen:
    longer = round(step.length_ns - step.usual_ns)
    rows = described(window, table, hidden(window), [step])
    loading = np.unique(window.batches["rank"]).tolist()
    waited = (closed["step"] == step.step) & (closed["cause_rank"] == step.rank) & (closed["rank"] != step.rank)
    waited &= closed["straggler_ns"] >= _WORTH_WAIT * longer
    waited_ns = dict(zip(closed["rank"][waited].tolist(), closed["straggler_ns"][waited].tolist(), strict=True))
    is_elsewhere = step.rank not in window.ranks
    claim = claim_of_step(rows, loading, waited_ns, is_elsewhere=is_elsewhere, in_part=in_part)
    text = "; ".join(_sentences([claim]))
    return SlowStepSeen(step.step, step.rank, longer, round(step.usual_ns), text)


@dataclass(slots=True)
class StuckTrigger:
    """Finds whether a job stands still, and which ranks it waits for."""

    directory: str
    #: The sentences about it, empty while the job moves; and the ranks that it waits for.
    sentences: list[str] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    #: What was seen of the processes, as a run keeps it (``run_facts.PEEKS``): they may be gone when somebody asks.
    peeks: list[dict[str, Any]] = field(default_factory=list)
    #: The sentence about ranks that wait long for others of which nothing is seen from here, or which use a CPU and
    #: record nothing; empty if none do.
    waits: str = ""
    #: The sentences about ranks that others wait for and that get on in something; no alarm, and said to who asks.
    awaited: list[str] = field(default_factory=list)
    _looked_ns: int = -times.PEEKS_APART_NS

    def round(
        self,
        window: Trace,
        at_ns: int,
        last_end_ns: int,
        elsewhere: Collection[int] = (),
        known: Collection[int] = (),
        *,
        in_part: bool = False,
    ) -> bool:
        """Look at a job again; return whether it has come to a standstill, or moves again, since the last call.

        ``last_end_ns``: when the last step ended that has closed, on that clock. ``elsewhere``: ranks that their hosts
        examine: a job that waits for these alone is stuck if they say so. ``known``: ranks that other hosts have
        reported at any time.
        """
        if at_ns - last_end_ns < times.QUIET_NS:
            self.waits, self.awaited = "", []
            return self._become([], [])
        if at_ns - self._looked_ns < times.PEEKS_APART_NS:
            return False
        self._looked_ns = at_ns
        with contextlib.suppress(StashtraceError):  # a run that has no rank yet, or whose files go away
            sentences, ranks = self._stands_still(window, elsewhere, known, in_part)
            # Only a step that ends shows that the job moves again: its processes may end instead.
            return self._become(sentences, ranks) if sentences else False
        return False

    def _stands_still(
        self, window: Trace, elsewhere: Collection[int], known: Collection[int], in_part: bool
    ) -> tuple[list[str], list[int]]:
        ranks, self.waits, self.awaited = ranks_to_look_at(window), "", []
        if set(ranks) <= set(elsewhere):
            return [], []
        if ranks and not set(ranks) & {*window.ranks.tolist(), *known, *elsewhere}:
            self.waits = _wait_for_unseen(window)
            return [], []
        wanted = {process: tid for rank in ranks for process, tid in threads_to_look_at(window, rank)}
        seen = peek_at(window, self.directory, wanted)
        self.peeks = facts_of_peeks(seen)
        endings = ending_claims(seen, lives=True, in_part=in_part)
        claims = [claim for claim in endings if claim.kind in ("hung", "mismatch")]
        if not claims:
            self.awaited = _sentences([claim for claim in endings if claim.kind == "awaited"])
            self.waits = "; ".join(_sentences([claim for claim in endings if _waits_for_loop(claim, window)]))
        found = sorted({rank for claim in claims for rank in ranks_in(claim.ranks)})
        if any(claim.name == "unseen" for claim in claims):
            return [*_sentences(claims), f"nothing is known of {ranks_named(ranks)} any more"], ranks
        return ([], []) if found and set(found) <= set(elsewhere) else (_sentences(claims), found)

    def _become(self, sentences: list[str], ranks: list[int]) -> bool:
        changed = bool(sentences) != bool(self.sentences)
        self.sentences, self.ranks = sentences, ranks
        return changed


def _wait_for_unseen(window: Trace) -> str:
    """Say that ranks wait for others of which nothing is seen here; empty where they do not wait for long."""
    found = stuck_at_end(window, times.LONG_WAIT_NS)
    if found is None or not found.roots:
        return ""
    waited = found.roots[0]
    who = f"{ranks_named(sorted(waited.waiting))} wait{'' if len(waited.waiting) > 1 else 's'}"
    number = f" {waited.operation.sequence}" if waited.operation.sequence >= 0 else ""
    group = waited.operation.group or "a group without a name"
    return (
        f"{who} in {operation(waited.operation.operation)}{number} of {group} for {duration_text(found.since_ns)}; "
        "no rank that is seen from here is missing from it; the ranks of other hosts are not visible from here"
    )


def _waits_for_loop(claim: Claim, window: Trace) -> bool:
    """Whether ranks have waited for longer than any step takes for ranks that use a CPU and record nothing.

    It may be a loop without an end or a long computation: it cannot be seen from outside.
    """
    ways = [row["kind"] for row in claim.evidence if row.code == "still_works"]
    return claim.kind == "awaited" and set(ways) == {RUNS} and claim.stall_ns > max(times.LONG_WAIT_NS, long_ns(window))


def _sentences(claims: Sequence[Claim]) -> list[str]:
    """Return each claim in words, followed by its evidence."""
    lines = []
    for found in findings_of(*tables_of(list(claims))):
        lines += [claim_text(found), *evidence_texts(found)]
    return lines


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
        """Learn again what is usual; the newest blocks may lie before and behind the change."""
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
        before = float(np.mean([block[at] for one in them for block in one.usual]))
        # The oldest of the three blocks may lie before the change in part.
        now = float(np.mean([np.median([block[at] for block in one.newest]) for one in them]))
        usual_step = float(np.mean([block[-1] for one in them for block in one.usual]))
        cause = _cause(them) if _KINDS[at] == _STRAGGLER else -1
        since = min(one.first_steps[0] for one in them)
        for one in self._ranks.values():
            one.start_again()
        return Growth(_KINDS[at], since, step, chosen, before, now, usual_step, cause)


def _cause(ranks: list[_Rank]) -> int:
    """Return the rank that most of the newest steps waited for, -1 if none is it in half of them."""
    causes = sum((one for rank in ranks for one in rank.causes), Counter[int]())
    [(rank, count)] = causes.most_common(1)
    return rank if 2 * count >= causes.total() else -1


#: Steps that others make without a rank that has ended in order, before it counts as lost.
_MORE_STEPS = 10


@dataclass(frozen=True, slots=True)
class LostRank:
    """A rank that is lost, its last step, -1 if it has none, and the sentence about it."""

    rank: int
    last_step: int
    text: str


@dataclass(slots=True)
class LostRankTrigger:
    """Reports each lost rank once; one that records again, as after a restart, may be lost again."""

    lost: set[int] = field(default_factory=set)
    #: Rank -> when its process was first found ended.
    _ended_ns: dict[int, int] = field(default_factory=dict)

    def round(
        self,
        window: Trace,
        files: Collection[GrowingFile],
        at_ns: int,
        last_steps: Mapping[int, int],
        awaited: Collection[int] = (),
    ) -> list[LostRank]:
        """Look at the processes of the ranks of this host.

        ``at_ns``: CLOCK_MONOTONIC now. ``last_steps``: rank -> its last closed step. ``awaited``: ranks of which it is
        said already that the job is stuck for them.
        """
        file_of = _files_of_ranks(window, files)
        going = {rank for rank, file in file_of.items() if file.is_open and at_ns - file.newest_ns < times.RECENT_NS}
        self.lost -= going
        for rank in going:
            self._ended_ns.pop(rank, None)
        found = []
        for rank, file in sorted(file_of.items()):
            others = going - {rank}
            if rank in going or rank in self.lost or rank in awaited or not others:
                continue
            how = self._how(rank, file, at_ns, last_steps, others)
            if how:
                self.lost.add(rank)
                last = last_steps.get(rank, -1)
                after = f" after step {last:,}" if last >= 0 else ""
                go = f"{ranks_named(sorted(others))} go{'' if len(others) > 1 else 'es'} on"
                found.append(LostRank(rank, last, f"rank {rank} is lost{after}: {how}; {go}"))
        return found

    def _how(
        self, rank: int, file: GrowingFile, at_ns: int, last_steps: Mapping[int, int], others: Collection[int]
    ) -> str:
        """Return what happened to a rank; empty if it may still come back or be about to end with the others."""
        pid = file.metadata.get("pid")
        if not file.is_open:
            begun_ns = self._ended_ns.setdefault(rank, at_ns)
            ahead = min(last_steps.get(other, -1) for other in others) - last_steps.get(rank, -1)
            if ahead < _MORE_STEPS or at_ns - begun_ns < times.ENDED_EARLY_NS:
                return ""
            return f"its process {pid} has ended, and the others have made {ahead} steps without it"
        silent_ns = at_ns - file.newest_ns
        if not LiveRings.now().holds(file):
            return f"its process {pid} has died without ending its recording" if silent_ns >= times.RECENT_NS else ""
        if silent_ns < times.STOPPED_NS:
            return ""
        return f"its process {pid} runs but has recorded nothing for {duration_text(silent_ns)}"


def _files_of_ranks(window: Trace, files: Collection[GrowingFile]) -> dict[int, GrowingFile]:
    """Return the file of each rank's newest process; workers and other processes are left out."""
    by_process = {(str(file.metadata.get("host", "")), file.metadata.get("pid")): file for file in files}
    found: dict[int, GrowingFile] = {}
    for row in window.processes.rows():
        if row["role_code"] == ProcessRole.RANK and row["rank"] >= 0:
            file = by_process.get((window.text(row["host_code"]), row["pid"]))
            known = found.get(row["rank"])
            if file is not None and (known is None or file.newest_ns >= known.newest_ns):
                found[row["rank"]] = file
    return found
