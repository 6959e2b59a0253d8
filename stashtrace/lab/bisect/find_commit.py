"""Find the first commit that is worse than a good one, by the statistics of `check` on runs that alternate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stashtrace.analysis.compare.gate_verdict import DEFAULT_CONDITION, Condition, Gate
from stashtrace.analysis.compare.steps_of_run import STEP, StepsOfRun
from stashtrace.errors import CaptureError, MissingDataError, StashtraceError
from stashtrace.lab.alternating import NOTHING_COMPARED, Compared, compare_alternately, few_rounds_paragraph, stages
from stashtrace.lab.bisect.commits import Commit, Repository
from stashtrace.report.blocks import Block, Listing, Paragraph, Table
from stashtrace.schema.stall_kinds import words_of
from stashtrace.summary.between_runs_text import functions_of_gate
from stashtrace.summary.gate_text import sentences
from stashtrace.text.prose import count_noun
from stashtrace.text.units import percent_text, shortened
from stashtrace.text.visible import visible_line

#: Judged after the rounds asked for, twice and three times as many.
_STAGES = 3
#: Where nothing is asked for, this part of what a kind grew by is too much.
_HALF = 0.5
Mark = Literal["good", "bad", "skip"]
_MARK_OF: dict[str, Mark] = {"not worse": "good", "worse": "bad"}


@dataclass(frozen=True, slots=True)
class Judged:
    """A commit and what its runs say."""

    commit: Commit
    #: As `git bisect` takes it.
    mark: Mark
    #: Why, in one sentence.
    why: str
    compared: Compared | None
    runs_count: int


@dataclass(frozen=True, slots=True)
class Found:
    """The answer."""

    good: Commit
    bad: Commit
    conditions: tuple[Condition, ...]
    #: Whether they follow from what grew between the two commits.
    chosen: bool
    #: The last commit, compared with the good one.
    ends: Judged
    #: In the order in which they were judged.
    judged: tuple[Judged, ...]
    #: None if too many commits could not be judged.
    first_bad: Commit | None
    #: Then the commits of which one is the first bad one.
    left: tuple[Commit, ...] = ()

    @property
    def runs_count(self) -> int:
        """Runs of all commits, those of the good one and those that failed included."""
        return sum(one.runs_count for one in (self.ends, *self.judged))

    @property
    def evidence(self) -> Judged:
        """The judgement of the first bad commit, or of the last one."""
        return next((one for one in self.judged if one.commit == self.first_bad), self.ends)


class InconclusiveError(StashtraceError):
    """The runs do not show whether the last commit is worse."""

    exit_code = 5


def find_commit(
    repository: Repository,
    record: Callable[[Commit, Path], StepsOfRun],
    good: tuple[Commit, Path],
    bad: tuple[Commit, Path],
    conditions: Sequence[Condition] = (),
    *,
    rounds: int = 3,
    allowed: Sequence[str] = (),
    on_judged: Callable[[Judged], None] = lambda one: None,
) -> Found:
    """Bisect the commits after a good one up to a bad one.

    ``record``: builds a commit in a folder where that is needed, and makes one run. ``good``, ``bad``: each with the
    working tree that holds it; other commits are checked out in that of the bad one. ``conditions``: what makes a
    commit bad; without any, half of the growth of the kind that grew most. Raises CaptureError if the good commit or
    the bad one does not run. Raises MissingDataError if the bad one is not worse, or the two are not comparable.
    Raises InconclusiveError if the runs do not decide.
    """

    def judge(commit: Commit, asked: Sequence[Condition]) -> Judged:
        counted = [0]

        def run(which: tuple[Commit, Path]) -> StepsOfRun:
            counted[0] += 1
            try:
                return record(*which)
            except (CaptureError, MissingDataError) as error:
                raise _FailedError(which[0], error) from error

        try:
            compared = compare_alternately(
                lambda: run(good),
                lambda: run((commit, bad[1])),
                asked,
                rounds=stages(rounds, _STAGES),
                names=(good[0].short, commit.short),
                allowed=allowed,
            )
        except _FailedError as failed:
            if failed.commit == good[0]:
                raise CaptureError(f"the good commit {good[0].short}: {failed.why}", hint=failed.why.hint) from failed
            return Judged(commit, "skip", f"it does not run: {failed.why}", None, counted[0])
        return Judged(commit, _MARK_OF.get(compared.verdict, "skip"), _why(compared), compared, counted[0])

    chosen = not conditions
    ends = judge(bad[0], conditions or [Condition.of(DEFAULT_CONDITION)])
    if chosen:
        conditions = [_condition_of(ends.compared.gate)] if ends.mark == "bad" and ends.compared is not None else []
    _require_worse(ends, good[0])
    on_judged(ends)
    judged: list[Judged] = []
    following = repository.begin(bad[1], good[0], bad[0])
    while following.commit is not None:
        one = judge(following.commit, conditions)
        judged.append(one)
        on_judged(one)
        following = repository.judge(bad[1], one.mark)
    found = following.first_bad, following.left
    return Found(good[0], bad[0], tuple(conditions), chosen, ends, tuple(judged), *found)


class _FailedError(Exception):
    """A commit does not build or run."""

    def __init__(self, commit: Commit, why: StashtraceError) -> None:
        super().__init__(commit.sha)
        self.commit, self.why = commit, why


def _condition_of(gate: Gate | None) -> Condition:
    """Return half of the growth of the kind that grew most beyond doubt, or of the step if none did.

    Hand-off of batches that waited for CPUs says nothing of what holds these: the step does.
    """
    assert gate is not None
    step = next(change for change in gate.changes if change.kind == STEP)
    kinds = [change for change in gate.changes if change.kind != STEP]
    most = max(kinds, key=lambda change: change.low_ns, default=step)
    queued = most.kind == "handoff" and gate.queued_handoff_ns > 0
    grown = most if most.low_ns > 0 and not queued else step
    return Condition(grown.kind, round(_HALF * 100 * grown.change_ns / step.before_ns, 1))


def _require_worse(ends: Judged, good: Commit) -> None:
    if ends.mark == "bad":
        return
    both = f"{ends.commit.short} compared with {good.short}"
    if ends.compared is None:
        raise CaptureError(f"the bad commit {ends.commit.short}: {ends.why}", hint="--bad has to be one that runs")
    if ends.compared.verdict == "not worse":
        raise MissingDataError(
            f"nothing to find, {both} is {ends.why}", hint="choose other commits, or another kind with --fail-if"
        )
    if ends.compared.verdict == "not comparable":
        raise MissingDataError(f"{both}: {ends.why}", hint="--allow compares them all the same")
    raise InconclusiveError(f"{both}: {ends.why}", hint="longer runs, more --rounds, or a machine with less other work")


def _why(compared: Compared) -> str:
    if compared.gate is None:
        lost = f"{compared.contended_count} of {count_noun(compared.runs_count, 'run')}"
        return f"inconclusive: other work disturbed {lost}"
    return sentences(compared.gate)[0]


# The answer as text, and as a document for programs.

_SUBJECT_WIDTH = 40


def judged_text(one: Judged) -> str:
    """Return what is said of a commit as soon as it is judged."""
    return f"{one.commit.short} {one.mark} after {count_noun(one.runs_count, 'run')}: {one.why}"


def bisect_blocks(found: Found, commits_count: int) -> list[Block | None]:
    """Return the answer to show. ``commits_count``: commits after the good one, up to the bad one."""
    chosen = ", half of its growth from the good commit to the bad one" if found.chosen else ""
    lost = sum(one.compared.contended_count for one in _all(found) if one.compared is not None)
    more = f"; {lost} not used, since other work disturbed them" if lost else ""
    head = ("commit", "subject", "verdict", "runs", "growth of step", "kinds that grew")
    return [
        Paragraph(_headline(found)),
        Paragraph(f"a commit is bad if a run has more than {', '.join(one.words for one in found.conditions)}{chosen}"),
        Table("", head, [_row(one) for one in _all(found)], (0, 1, 2, 5)),
        Listing([] if found.first_bad else list(map(_named, found.left)), "the first bad commit is one of"),
        Listing(_sentences(found.evidence), "evidence"),
        few_rounds_paragraph(one.compared for one in _all(found)),
        Paragraph(f"{count_noun(found.runs_count, 'run')} for {count_noun(commits_count, 'commit')}{more}"),
    ]


def bisect_document(found: Found, commits_count: int) -> dict[str, Any]:
    """Return the same for programs."""
    return {
        "good": _commit(found.good),
        "bad": _commit(found.bad),
        "commits_count": commits_count,
        "conditions": [str(condition) for condition in found.conditions],
        "conditions_chosen": found.chosen,
        "first_bad": None if found.first_bad is None else _commit(found.first_bad),
        "left": [_commit(commit) for commit in found.left],
        "runs_count": found.runs_count,
        "judged": [
            {
                **_commit(one.commit),
                "mark": one.mark,
                "why": one.why,
                "runs_count": one.runs_count,
                **(one.compared.document() if one.compared is not None else NOTHING_COMPARED),
            }
            for one in _all(found)
        ],
    }


def _headline(found: Found) -> str:
    if found.first_bad is None:
        return f"INCONCLUSIVE: {count_noun(len(found.left), 'commit')} do not clearly differ"
    return f"FIRST BAD COMMIT: {_named(found.first_bad)}"


def _all(found: Found) -> Sequence[Judged]:
    return found.ends, *found.judged


def _row(one: Judged) -> tuple[str, ...]:
    subject = shortened(visible_line(one.commit.subject), _SUBJECT_WIDTH)
    return one.commit.short, subject, one.mark, str(one.runs_count), *_growth(one.compared)


def _growth(compared: Compared | None) -> tuple[str, str]:
    """Return what the step grew by, and the kinds that grew beyond doubt."""
    if compared is None or compared.gate is None or not compared.gate.changes:
        return "-", "-"
    step, *kinds = compared.gate.changes
    grown = sorted((kind for kind in kinds if kind.low_ns > 0), key=lambda kind: -kind.change_ns)
    share = percent_text(abs(step.change_ns) / step.before_ns)
    return f"{'-' if step.change_ns < 0 else '+'}{share}", ", ".join(words_of(kind.kind) for kind in grown) or "-"


def _sentences(one: Judged) -> list[str]:
    if one.compared is None or one.compared.gate is None:
        return [one.why]
    return [*sentences(one.compared.gate), *functions_of_gate(one.compared.gate)]


def _named(commit: Commit) -> str:
    return f"{commit.short} {visible_line(commit.subject)}"


def _commit(commit: Commit) -> dict[str, str]:
    return {"commit": commit.sha, "subject": commit.subject}
