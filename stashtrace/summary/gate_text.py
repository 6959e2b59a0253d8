"""The verdict of a gate as sentences, a table, Markdown for a pull request, and a document for programs.

No sentence is more certain than the bounds: *worse beyond doubt* only where even the lower bound is above the limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stashtrace.analysis.compare.change import CLEARLY_MORE, LEAST_STEPS, RUN_TO_RUN_RATIO, RUNS_THAT_TELL, Change, Side
from stashtrace.analysis.compare.gate_verdict import MOST_RUNS, Gate, Judged
from stashtrace.analysis.compare.job_identity import Fact
from stashtrace.analysis.compare.steps_of_run import STEP, parts_of
from stashtrace.schema.stall_kinds import OPTION_WORDS, words_of
from stashtrace.summary.between_runs_text import functions_document, functions_of_gate
from stashtrace.summary.diff_text import SAME_RECORDING, difference_texts, jobs_lines, other_work_text
from stashtrace.text.prose import align
from stashtrace.text.units import duration_text
from stashtrace.text.visible import markdown_code, markdown_text, visible_line

#: Kinds that no condition is about are shown from this part of the step on, before, after, or in growth.
_WORTH_SHOWING = 0.005
#: The order in which verdicts are given.
_WORST_FIRST = ("worse", "inconclusive", "not worse")
_HEAD = ("", "before", "after", "growth of step", "95 % bounds", "allowed", "could see", "verdict")


@dataclass(frozen=True, slots=True)
class Command:
    """A command that records both jobs alternately, to decide an inconclusive comparison."""

    #: For a shell.
    text: str
    #: Folder that the version before has to be put into first; empty if it is in another one.
    folder: str = ""


def gate_lines(gate: Gate, command: Command | None = None) -> list[str]:
    """Return the answer for a terminal: what differs, the verdicts, the numbers behind them.

    ``command``: what would decide, where something is to be decided and it can be said.
    """
    lines = [*jobs_lines(gate.before.facts, gate.after.facts), runs_text(gate), ""]
    lines += [*sentences(gate), *functions_of_gate(gate)]
    if command is not None:
        lines += ["", f"{_to_decide(command)}:", f"  {command.text}"]
    if gate.judged:
        lines += ["", *align([_HEAD, *_rows(gate)], range(1)), "", *notes(gate)]
    return lines


def sentences(gate: Gate) -> list[str]:
    """Return one sentence for each condition, worst first; for incomparable jobs, one that says why.

    Behind them stands what growth of a kind was in truth.
    """
    if gate.refused:
        fields = ", ".join(f"{one.field.words} ({' -> '.join(difference_texts(one))})" for one in gate.refused)
        return [f"not comparable: the jobs differ in {fields}"]
    if gate.is_same:
        return [f"inconclusive: {SAME_RECORDING}"]
    ordered = sorted(gate.judged, key=lambda one: _WORST_FIRST.index(one.verdict))
    return [*(condition_sentence(gate, one) for one in ordered), *_queued_handoff(gate)]


def _queued_handoff(gate: Gate) -> list[str]:
    """Return what is said of hand-off that grew with waits for a CPU."""
    waits_ns = gate.queued_handoff_ns
    if not waits_ns:
        return []
    grew = next(one.change_ns for one in gate.changes if one.kind == "handoff")
    return [
        f"{words_of('handoff')} grew by {duration_text(grew)} a step, and waits for a CPU by {duration_text(waits_ns)}:"
        " ready batches waited for a CPU"
    ]


def condition_sentence(gate: Gate, judged: Judged) -> str:
    """Return the verdict on one condition of a gate."""
    return f"inconclusive: {SAME_RECORDING}" if gate.is_same else sentence(judged, _step_ns(gate))


def sentence(judged: Judged, step_ns: float) -> str:
    """Return the verdict on one condition. ``step_ns``: the step before, of which growth is a part."""
    change, condition = judged.change, judged.condition
    is_step = condition.kind == STEP
    allows = f"{condition.words} allows {condition.percent:g} %{'' if is_step else ' of the step'}"
    what = "the step" if is_step else f"{_name(condition.kind)} per step"
    if not change.before_ns and not change.after_ns:
        return f"{judged.verdict}: {_name(condition.kind)} took no time in either job; {allows}"
    before, after = (duration_text(ns) for ns in (change.before_ns, change.after_ns))
    share = _percent(change.change_ns, step_ns) + ("" if is_step else " of the step before")
    moved = f"{what} went from {before} to {after} on average: {share}"
    if judged.few_steps:
        has = "a single step" if judged.few_steps == 1 else f"only {judged.few_steps} steps"
        return (
            f"inconclusive: {moved}, but a run has {has}, too few to show how steps spread:"
            f" record {LEAST_STEPS} or more"
        )
    # Rounded so that nothing more is said than the bounds do.
    low, high = _percent(change.low_ns, step_ns, math.floor), _percent(change.high_ns, step_ns, math.ceil)
    if judged.verdict == "worse":
        return f"worse beyond doubt: {moved}, at least {low}; {allows}{_where(judged)}"
    if judged.verdict == "not worse":
        return f"not worse: {moved}, at most {high}; {allows}"
    if judged.other_work is not None:
        bound = f"at least {low}" if judged.other_work.added_ns > 0 else f"at most {high}"
        return f"inconclusive: {moved}, {bound}; {allows}, but {other_work_text(judged.other_work)}"
    return f"inconclusive: {moved}, between {low} and {high}; {allows}: {_decided_by(judged, step_ns)}"


def _to_decide(command: Command) -> str:
    if not command.folder:
        return "to decide it"
    return f"to decide it, with the version before in {command.folder} (git worktree add {command.folder} COMMIT)"


def _name(kind: str) -> str:
    """Name a kind in words; a column of several parts with what it sums."""
    parts = [OPTION_WORDS.get(part, part) for part in parts_of(kind)]
    return words_of(kind) if len(parts) == 1 else f"{kind} ({' + '.join(parts)})"


def _where(judged: Judged) -> str:
    """Name the rank that grew most, if it grew by clearly more than the ranks did together."""
    if judged.rank < 0 or judged.rank_growth_ns < CLEARLY_MORE * judged.change.change_ns:
        return ""
    return f"; most on rank {judged.rank}, by {duration_text(judged.rank_growth_ns)}"


def notes(gate: Gate) -> list[str]:
    """Return what the numbers rest on: the run-to-run allowance, and what could have been seen; or nothing."""
    if gate.is_same:
        return []
    step_ns, first = _step_ns(gate), gate.judged[0]
    base = f"growth, bounds and limits are parts of the step before ({duration_text(step_ns)}), those of a kind too"
    if first.change.allowance_ns:
        share = _percent(first.change.allowance_ns, step_ns).lstrip("+")
        whose = "measured on equal runs of small jobs"
        if gate.allowance_ratio != RUN_TO_RUN_RATIO:
            whose = "as given by --allowance"
        lines = [
            f"run-to-run allowance: {share} of the step before ({duration_text(first.change.allowance_ns)}) on either"
            f" side of each bound, {whose}; {RUNS_THAT_TELL} runs on a side show their spread"
        ]
    elif first.change.source == "steps":
        lines = ["run-to-run allowance: none, by --allowance; the bounds are those of the steps alone"]
    else:
        source = "differences of alternating runs" if first.change.source == "rounds" else "the means of the runs"
        lines = [f"run-to-run allowance: none needed, as the bounds are those of {source}"]
    lines.insert(0, base)
    seen = [
        f"{one.condition.words}: {_percent(one.detectable_ns, step_ns)}" for one in gate.judged if _is_known(one.change)
    ]
    if seen:
        lines.append(f"smallest growth that would be called worse in four of five such comparisons: {', '.join(seen)}")
    return lines


def runs_text(gate: Gate) -> str:
    """Return which runs are compared, and how many steps they have."""
    return f"runs: before {_side(gate.before)}, after {_side(gate.after)}"


def markdown(gate: Gate, command: Command | None = None) -> str:
    """Return the answer as Markdown, for the summary of a step or a comment on a pull request.

    ``command``: as of :func:`gate_lines`.
    """
    lines = [f"### stashtrace check: {gate.verdict}", ""]
    lines += [f"- {markdown_text(text)}" for text in (*sentences(gate), *functions_of_gate(gate))]
    if command is not None:
        lines += ["", f"{markdown_text(_to_decide(command))}: {markdown_code(command.text)}"]
    if gate.judged:
        rows = [_HEAD, *_rows(gate)]
        cells = [[markdown_text(cell) for cell in row] for row in rows]
        lines += ["", _row(cells[0]), _row(["---", *["---:"] * 6, "---"]), *map(_row, cells[1:])]
        lines += ["", *[f"{markdown_text(note)}  " for note in notes(gate)]]
    about = [*jobs_lines(gate.before.facts, gate.after.facts), runs_text(gate)]
    folded = [f"{markdown_text(text)}  " for text in about]
    lines += ["", "<details><summary>The jobs</summary>", "", *folded, "", "</details>"]
    return "\n".join(lines) + "\n"


def document(gate: Gate, command: Command | None = None) -> dict[str, Any]:
    """Return the answer for programs: verdict, conditions and kinds with their bounds in ns, facts of both jobs.

    ``command``: as of :func:`gate_lines`.
    """
    return {
        "verdict": gate.verdict,
        "exit_code": gate.exit_code,
        "sentences": sentences(gate),
        "command_that_would_decide": None if command is None else command.text,
        "before": _side_document(gate.before),
        "after": _side_document(gate.after),
        "differs": [
            {"field": one.field.name, "before": one.before, "after": one.after, "decides": one in gate.refused}
            for one in gate.differs
        ],
        "conditions": [
            {
                "condition": str(one.condition),
                "verdict": one.verdict,
                "limit_ns": one.limit_ns,
                **_change_document(one.change),
                "detectable_ns": one.detectable_ns,
                "other_work_ns": None if one.other_work is None else one.other_work.added_ns,
                "rank": one.rank,
                "rank_growth_ns": one.rank_growth_ns,
                "steps_that_would_decide": one.needs.steps_count or None,
                "runs_that_would_decide": one.needs.runs_count or None,
                "told_growth_ns": one.needs.growth_ns if one.needs.steps_count or one.needs.runs_count else None,
            }
            for one in gate.judged
        ],
        "kinds": [_change_document(change) for change in gate.changes],
        "functions": functions_document(gate),
    }


def _change_document(change: Change) -> dict[str, Any]:
    return {
        "kind": change.kind,
        "before_ns": change.before_ns,
        "after_ns": change.after_ns,
        "growth_ns": change.change_ns,
        "low_ns": change.low_ns,
        "high_ns": change.high_ns,
        "detectable_ns": change.detectable_ns,
        "allowance_ns": change.allowance_ns,
        "bounds_from": change.source,
    }


def _side_document(side: Side) -> dict[str, Any]:
    facts: dict[str, Fact] = side.facts
    return {
        "name": side.name,
        "runs": len(side.runs),
        "steps": side.steps_count,
        "cpu_wait_ns": side.cpu_wait_ns,
        "worker_wait_ns": side.worker_wait_ns,
        "other_cpus": None if side.cpus is None else side.cpus.others_count,
        "facts": facts,
    }


def _rows(gate: Gate) -> list[tuple[str, ...]]:
    """Return the conditions, then the other kinds that are worth showing."""
    step_ns = _step_ns(gate)
    rows = [
        (
            one.condition.words,
            *_cells(one.change, step_ns),
            f"{one.condition.percent:g} %",
            _percent(one.detectable_ns, step_ns) if _is_known(one.change) else "-",
            one.verdict,
        )
        for one in gate.judged
    ]
    named = {one.condition.kind for one in gate.judged}
    for change in gate.changes:
        most = max(change.before_ns, change.after_ns, abs(change.change_ns))
        if change.kind not in named and most >= _WORTH_SHOWING * step_ns:
            rows.append((words_of(change.kind), *_cells(change, step_ns), "-", "-", "-"))
    return rows


def _cells(change: Change, step_ns: float) -> tuple[str, ...]:
    bounds = "-"
    if _is_known(change):
        low, high = _percent(change.low_ns, step_ns, math.floor), _percent(change.high_ns, step_ns, math.ceil)
        bounds = f"{low} to {high}"
    before, after = (duration_text(ns) for ns in (change.before_ns, change.after_ns))
    return before, after, _percent(change.change_ns, step_ns), bounds


def _decided_by(judged: Judged, step_ns: float) -> str:
    """Say how many steps or runs would separate a growth from the limit."""
    needs = judged.needs
    if needs.hidden:
        return (
            f"it would take more than {MOST_RUNS} runs a side, as the machine's spread hides the growth:"
            " use --rerun on a quiet machine"
        )
    ways = []
    if needs.steps_count:
        ways.append(f"{needs.steps_count:,} steps a run")
    if needs.runs_count:
        ways.append(f"{needs.runs_count} alternating runs a side")
    if not ways:
        return "the growth is too near to the limit for any reasonable number of runs"
    limit, growth = (_percent(ns, step_ns) for ns in (judged.limit_ns, needs.growth_ns))
    growth = "no growth" if not needs.growth_ns else growth
    return f"about {' or '.join(ways)} would separate {growth} from {limit}"


def _side(side: Side) -> str:
    counts = {run.steps_count for run in side.runs}
    steps = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else str(counts.pop())
    steps += " step" if steps == "1" else " steps"
    of = f"{len(side.runs)} runs of {steps}" if len(side.runs) > 1 else f"1 run of {steps}"
    return f"{visible_line(side.name)} ({of})"


def _step_ns(gate: Gate) -> float:
    return gate.changes[0].before_ns


def _is_known(change: Change) -> bool:
    return math.isfinite(change.steps_ns)


def _percent(ns: float, step_ns: float, to: Callable[[float], float] = round) -> str:
    """Part of the step before with its sign, in percent with a decimal.

    ``to``: ``math.floor`` for a lower bound and ``math.ceil`` for an upper one, so that rounding claims nothing.

    >>> _percent(412, 10_000), _percent(-1478, 10_000, math.floor), _percent(0, 1), _percent(12_300, 1000)
    ('+4.1 %', '-14.8 %', '0 %', '+1,230 %')
    """
    thousandths = to(1000 * ns / step_ns)
    if abs(thousandths) >= 1000 or thousandths == 0:
        return f"{to(100 * ns / step_ns):+,} %" if thousandths else "0 %"
    return f"{thousandths / 10:+.1f} %"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
