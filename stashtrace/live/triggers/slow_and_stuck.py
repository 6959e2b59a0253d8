"""What is worth a line while a job runs: a slow step with its cause, and a job that stands still.

A job stands still if a rank has not entered what others wait in, and its processes get on in nothing: no records, no
I/O, no CPU, no other work (``record.look.model``). One of the two alone is no alarm: long checkpoints, evaluations
and compilations are neither. Nor is a wait for ranks of which nothing is seen here, as neither is known of them: it is
told for what it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stashtrace.analysis.findings.claim_rows import Claim, tables_of
from stashtrace.analysis.findings.ending.hang_table import ranks_to_look_at, threads_to_look_at
from stashtrace.analysis.findings.ending.last_activity import long_ns
from stashtrace.analysis.findings.rules.ending.hangs import ending_claims, stuck_at_end
from stashtrace.analysis.findings.rules.steps.slow import claim_of_step
from stashtrace.analysis.findings.spikes.slow_steps import SlowStep, SlowSteps
from stashtrace.analysis.findings.spikes.spikes import described, samples_of
from stashtrace.analysis.stalls.hidden import hidden
from stashtrace.analysis.steps.steps import WARMUP_STEPS, steps
from stashtrace.errors import StashtraceError
from stashtrace.live import times
from stashtrace.loading.looks import facts_of_looks, look_at
from stashtrace.record.look.model import RUNS
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.summary.words import claim_text, evidence_texts, findings_of
from stashtrace.units import duration_text, operation, ranks_in, ranks_named

#: A wait for the rank that made a step slow is told if it is this part of what the step took longer.
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
        """Take in the steps that closed in a round, and return those that are slow.

        ``in_part``: the job has ranks that are not seen from here.
        """
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
    """Tells whether a job stands still, and which ranks it waits for."""

    directory: str
    #: The sentences about it, empty while the job moves; and the ranks that it waits for.
    sentences: list[str] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    #: What was seen of the processes, as a run keeps it (``run_facts.LOOKS``): they may be gone when somebody asks.
    looks: list[dict[str, Any]] = field(default_factory=list)
    #: The sentence about ranks that wait long for others of which nothing is seen from here, or which use a CPU and
    #: record nothing; empty if none do.
    waits: str = ""
    #: The sentences about ranks that others wait for and that get on in something; no alarm, and said to who asks.
    awaited: list[str] = field(default_factory=list)
    _looked_ns: int = -times.LOOKS_APART_NS

    def round(
        self,
        window: Trace,
        at_ns: int,
        last_end_ns: int,
        elsewhere: Collection[int] = (),
        told: Collection[int] = (),
        *,
        in_part: bool = False,
    ) -> bool:
        """Look at a job again; return whether it has come to a standstill, or moves again, since the last call.

        ``at_ns``: CLOCK_MONOTONIC now. ``last_end_ns``: when the last step ended that has closed, on that clock.
        ``elsewhere``: ranks that their own hosts look at: a job that waits for these alone is stuck if they say so.
        ``told``: ranks of which other hosts have told at any time. ``in_part``: the job has ranks that are not seen
        from here.
        """
        if at_ns - last_end_ns < times.QUIET_NS:
            self.waits, self.awaited = "", []
            return self._become([], [])
        if at_ns - self._looked_ns < times.LOOKS_APART_NS:
            return False
        self._looked_ns = at_ns
        with contextlib.suppress(StashtraceError):  # a run that has no rank yet, or whose files go away
            sentences, ranks = self._stands_still(window, elsewhere, told, in_part)
            # Only a step that ends shows that the job moves again: its processes may end instead.
            return self._become(sentences, ranks) if sentences else False
        return False

    def _stands_still(
        self, window: Trace, elsewhere: Collection[int], told: Collection[int], in_part: bool
    ) -> tuple[list[str], list[int]]:
        ranks, self.waits, self.awaited = ranks_to_look_at(window), "", []
        if set(ranks) <= set(elsewhere):
            return [], []
        if ranks and not set(ranks) & {*window.ranks.tolist(), *told, *elsewhere}:
            self.waits = _wait_for_unseen(window)
            return [], []
        wanted = {process: tid for rank in ranks for process, tid in threads_to_look_at(window, rank)}
        seen = look_at(window, self.directory, wanted)
        self.looks = facts_of_looks(seen)
        endings = ending_claims(seen, lives=True, in_part=in_part)
        claims = [claim for claim in endings if claim.kind in ("hung", "mismatch")]
        if not claims:
            self.awaited = _sentences([claim for claim in endings if claim.kind == "awaited"])
            self.waits = "; ".join(_sentences([claim for claim in endings if _waits_for_loop(claim, window)]))
        found = sorted({rank for claim in claims for rank in ranks_in(claim.ranks)})
        if any(claim.name == "unseen" for claim in claims):
            return [*_sentences(claims), f"of {ranks_named(ranks)} nothing is told any more"], ranks
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

    It may be a loop without an end or a long computation: nobody can tell from outside.
    """
    ways = [row["kind"] for row in claim.evidence if row.code == "still_works"]
    return claim.kind == "awaited" and set(ways) == {RUNS} and claim.stall_ns > max(times.LONG_WAIT_NS, long_ns(window))


def _sentences(claims: Sequence[Claim]) -> list[str]:
    """Return each claim in words, followed by its evidence."""
    lines = []
    for found in findings_of(*tables_of(list(claims))):
        lines += [claim_text(found), *evidence_texts(found)]
    return lines
