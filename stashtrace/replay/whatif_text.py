"""The text of ``stashtrace whatif``: answers, limits of the recording, slow-downs, the critical path in a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.findings.all_claims import limit_claims
from stashtrace.analysis.findings.claim_rows import tables_of
from stashtrace.analysis.graph import PipelineGraph
from stashtrace.analysis.graph.node_names import LATER
from stashtrace.analysis.steps.steps import steps
from stashtrace.replay.policy import POLICY
from stashtrace.schema.stall_kinds import COLUMN_OF, words_of
from stashtrace.summary.words import claim_text, evidence_texts, findings_of
from stashtrace.text.prose import wrap
from stashtrace.text.units import duration_text, percent_text, range_text

if TYPE_CHECKING:
    from stashtrace.analysis.graph import Graph
    from stashtrace.analysis.graph.critical_path_tables import CriticalPath
    from stashtrace.analysis.steps.step_time import StepTime
    from stashtrace.replay import Answer
    from stashtrace.schema.table import Table
    from stashtrace.schema.trace import Trace


#: Slow-downs below this are not reported.
WORTH_SHARING = 1.03
#: Causes that may be named, the smallest first.
_SINGLE = ("rank", "stage", "replica")
_WIDTH = 79


def limit_lines(trace: Trace, graph: Graph) -> list[str]:
    """Warn of what the recording lacks, in the words of the summary: lost records, missing ranks, a job that was ended.

    The last line counts the edges of the graph that contradict each other.
    """
    lines: list[str] = []
    for finding in findings_of(*tables_of(limit_claims(trace))):
        lines += _wrap(f"! {claim_text(finding)}")
        for text in evidence_texts(finding):
            lines += _wrap(f"  {text}")
    lines += _steps_left_out(trace, graph)
    cut = len(graph.plan.cut())
    if cut:
        lines += _wrap(
            f"! {cut:,} of {len(graph.source):,} edges form cycles, which clock errors cause, and are left out"
        )
    return lines


def _steps_left_out(trace: Trace, graph: Graph) -> list[str]:
    """Warn of steps that are not in the graph, and of steps of several kinds in one mean."""
    if isinstance(graph, PipelineGraph):
        return []
    table, lines = steps(trace), []
    missing, ranks = len(table) - len(graph.ends), np.unique(table["rank"])
    if missing > 0:
        of_ranks = f" of {len(ranks)} ranks" if len(ranks) > 1 else ""
        lines += _wrap(f"! {missing} of {len(table)} steps{of_ranks} are left out: not all of their work was recorded")
    counted = np.isin(table["step"], graph.ends_step[graph.ends_counted]) & (table["rank"] == ranks[0])
    kinds, counts = np.unique(table["kind"][counted], return_counts=True)
    if len(kinds) > 1:
        parts = [f"{count} {kind}" for kind, count in zip(kinds.tolist(), counts.tolist(), strict=True)]
        lines += _wrap(f"! the mean is over steps of several kinds: {', '.join(parts)}")
    return lines


def whatif_lines(
    run: Answer, answers: Sequence[Answer], step: StepTime | None = None, *, asked: bool, limits: Sequence[str] = ()
) -> list[str]:
    """Return the lines for the terminal: the accuracy of the replay, then a table of changes.

    ``run``: without a change. ``step``: step time of the run; where it is not known, that of the steps that were
    replayed. ``asked``: one question was asked, so its budget follows. ``limits``: ``limit_lines`` of the run.
    """
    error, gap = percent_text(run.error_ratio), percent_text(run.gap_ratio)
    noise = percent_text(run.noise_ns / max(run.measured_ns, 1.0))
    lines = [
        *_step_time(run, step),
        *_wrap(
            f"a replay of the unchanged run is off by {error}; {gap} of a step has no known cause and stays as it was;"
            f" other recordings may differ by {noise}, with a change by +/-"
        ),
        *limits,
    ]
    if not run.is_reliable:
        return [*lines, *_wrap(f"no change is predicted: {unreliable(run)}")]
    if not answers:
        return [*lines, "", "no single change would make a step shorter by 0.5 % or more"]
    head = ("change", "step", "+/-", "saves of step", "largest part then")
    rows = [head, *(_cells(answer) for answer in answers)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head) - 1)]
    lines.append("")
    for row in rows:
        figures = [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:], strict=True)]
        lines.append("  " + "  ".join([row[0].ljust(widths[0]), *figures, row[-1]]))
    return lines + ([*_budget(answers[0]), *_remarks(answers[0])] if asked else _name_sleeping_time(run, answers))


def _step_time(run: Answer, step: StepTime | None) -> list[str]:
    """Say how long a step takes, and which of the steps were replayed if they are not all."""
    mean_ns, count = (run.measured_ns, run.steps_count) if step is None else (step.mean_ns, step.steps_count)
    takes, replayed = duration_text(mean_ns), duration_text(run.measured_ns)
    lines = [f"a step takes {takes} on average over {count} steps" if count > 1 else f"the only step takes {takes}"]
    if run.steps_count != count or replayed != takes:
        steps = f"{run.steps_count} steps" if run.steps_count > 1 else "1 step"
        lines += _wrap(
            f"the replay is of {steps} of {replayed} on average, each from the end of the one before; the changes below"
            " are changes of that"
        )
    return lines


def unreliable(run: Answer) -> str:
    """Return why nothing is predicted from a run that is not reliable."""
    if run.error_ratio > POLICY.most_error_ratio:
        return (
            f"its replay is off by {percent_text(run.error_ratio)}, more than {percent_text(POLICY.most_error_ratio)}"
        )
    return (
        f"{percent_text(run.gap_ratio)} of a step has no known cause, more than {percent_text(POLICY.most_gap_ratio)}"
    )


def _name_sleeping_time(run: Answer, answers: Sequence[Answer]) -> list[str]:
    """Name time asleep or blocked, and the change that removes most of it."""
    idle = run.before_ns["other"]
    if idle < POLICY.sentence_ratio * run.measured_ns:
        return []
    gone = max((idle - answer.after_ns["other"] for answer in answers), default=0.0)
    remedy = "no change above makes that shorter"
    if gone >= POLICY.sentence_ratio * idle:
        best = max(answers, key=lambda answer: idle - answer.after_ns["other"])
        remedy = f"{best.changes[0]} removes {duration_text(gone)} of that, the most of any change"
    text = f"on average a rank is asleep or blocked for {duration_text(idle)} of a step: {remedy}"
    return ["", *_wrap(text)]


def _wrap(text: str) -> list[str]:
    """Wrap for the terminal; further lines of a warning are indented."""
    return wrap(text, "", width=_WIDTH, rest=2 if text[:1] in "! " else 0)


def slowdown_lines(table: Table, run: Answer) -> list[str]:
    """Report what it costs that ranks differ, and which rank, stage or replica alone causes it.

    ``table``: of the ``slowdown`` analysis, with the mean as its center. ``run``: without a change: a loss within the
    difference of recordings is none.
    """
    rows = list(table.rows())
    whole = next(row for row in rows if row["cause"] == "all")
    if whole["slowdown_ratio"] < max(WORTH_SHARING, 1 + run.noise_ns / max(run.measured_ns, 1.0)):
        return []
    now, then = (duration_text(whole[name]) for name in ("step_ns", "ideal_step_ns"))
    text = (
        f"with the work shared evenly among all ranks, a step (from the first rank's begin to the last one's end) would"
        f" take {then} instead of {now}: the job is {whole['slowdown_ratio']:.2f} times slower than that"
    )
    single = [row for row in rows if row["cause"] in _SINGLE and row["recovered_ratio"] >= POLICY.cause_alone_ratio]
    if not single:
        who = f"no rank, stage or replica alone causes {percent_text(POLICY.cause_alone_ratio)} of the loss or more"
        return ["", *_wrap(f"{text}; {who}")]
    most = max(row["recovered_ratio"] for row in single)
    nearly = (row for row in single if row["recovered_ratio"] >= POLICY.cause_nearly_ratio * most)
    cause = min(nearly, key=lambda row: _SINGLE.index(row["cause"]))
    part = percent_text(min(cause["recovered_ratio"], 1.0))
    return ["", *_wrap(f"{text}; {cause['cause']} {cause['name']} alone causes {part} of the loss")]


def _cells(answer: Answer) -> tuple[str, ...]:
    saved = (_saving(1 - ns / max(answer.replayed_ns, 1.0)) for ns in (answer.high_ns, answer.low_ns))
    step = range_text(duration_text(answer.low_ns), duration_text(answer.high_ns))
    change = ", ".join(map(str, answer.changes))
    noise = percent_text(answer.noise_ns / max(answer.middle_ns, 1.0))
    return change, step, noise, range_text(*saved), answer.bottleneck


def _saving(ratio: float) -> str:
    """Write a share; one that rounds to 0 has no sign."""
    return percent_text(ratio if abs(ratio) >= POLICY.no_saving_ratio else 0.0)


def _budget(answer: Answer) -> list[str]:
    """Return the budget of the step before and after, by columns of the summary; for an interval, of its upper end."""
    then = "then" if answer.low_ns == answer.high_ns else "then, at most"
    rows = [
        (name, before, answer.after_ns[name])
        for name, before in answer.before_ns.items()
        if max(before, answer.after_ns[name]) >= POLICY.row_ratio * answer.measured_ns
    ]
    rows.append(("step", answer.replayed_ns, answer.high_ns))
    lines = ["", "  mean of all ranks" + "now".rjust(12) + then.rjust(16)]
    for name, before, after in rows:
        lines.append("  " + name.ljust(17) + duration_text(before).rjust(12) + duration_text(after).rjust(16))
    return lines


def _remarks(answer: Answer) -> list[str]:
    """Explain an answer that saves nothing, or more than the time that it takes away."""
    if all(change.factor == 1 for change in answer.changes):
        return []
    now, low, high = (duration_text(ns) for ns in (answer.replayed_ns, answer.low_ns, answer.high_ns))
    lines = []
    if high == now == low:
        lines.append("no step gets shorter: other work, or a wait, takes as long meanwhile")
    elif high == now:
        lines.append(f"at worst nothing is saved, at best a step takes {low}: the recording leaves open which")
    columns = {COLUMN_OF.get(change.quantity, "") for change in answer.changes}
    own_ns = sum(answer.before_ns.get(column, 0.0) for column in columns)
    saved_ns = answer.replayed_ns - answer.low_ns
    if "" not in columns and saved_ns > (1 + POLICY.sentence_ratio) * own_ns:
        names, saved = " and ".join(sorted(columns)), duration_text(saved_ns)
        lines.append(
            f"up to {saved} of a step are saved, more than {names} takes on average over the ranks: waits for it get"
            " shorter too"
        )
    return [line for text in lines for line in ("", *_wrap(text))]


#: A space at which no line ends.
_KEPT = "\u00a0"
#: Groups that are not a kind of stall.
_UNEXPLAINED, _LATER = "unexplained", "began later than the first rank"


@dataclass(frozen=True, slots=True)
class Group:
    """A part of the path that the sentence names as one."""

    #: Of the time of the critical path in the counted steps. Long steps weigh more, as they do in what a change saves;
    #: ``critical_share`` counts each step equally.
    share_ratio: float
    #: StallKind in lower case; or ``unexplained``: gaps, and delays of no known kind; or that the rank began later.
    kind: str
    is_transfer: bool
    #: -1 for transfers, and for several ranks.
    rank: int = -1
    #: How many ranks have some of it; 0 for transfers.
    ranks_count: int = 0
    #: The operation, if it stands for the transfers of its kind.
    name: str = ""

    def __str__(self) -> str:
        if self.is_transfer:
            return self.name.replace("_", "-") or words_of(self.kind)
        word = words_of(self.kind)
        return f"rank {self.rank} {word}" if self.rank >= 0 else f"{word} of {self.ranks_count} ranks in turn"

    def rows(self, table: Table) -> npt.NDArray[np.bool_]:
        """Return a mask of its rows in a table with rank, kind and name."""
        chosen: npt.NDArray[np.bool_] = (_kinds(table) == self.kind) & ((table["rank"] < 0) == self.is_transfer)
        if self.rank >= 0:
            chosen &= table["rank"] == self.rank
        return chosen & (table["name"] == self.name) if self.name else chosen


def critical_lines(path: CriticalPath) -> list[str]:
    """Return the sentence in lines for the terminal; empty if no step of the run counts."""
    lines = wrap(_sentence(path, kept=_KEPT), "", width=_WIDTH, rest=2)
    return [line.replace(_KEPT, " ") for line in lines]


def critical_sentence(path: CriticalPath) -> str:
    """Return a sentence with the at most three largest parts of the critical path; empty if no step counts.

    They are in their usual order if most steps have one. Percents are of the time of the path in the counted steps:
    ``critical path: 41 % rank 3 data: prep -> 22 % all-reduce 0 -> 12 % rank 3 compute``
    """
    return _sentence(path)


def _sentence(path: CriticalPath, kept: str = " ") -> str:
    """Return the sentence; ``kept`` is the space between words that stay on one line."""
    shares = path.shares
    found = groups(shares)[: POLICY.named_groups_count]
    if not found:
        return ""
    order = usual_order(path, found)
    named = found if order is None else [found[at] for at in order]
    joint = ", " if order is None else " -> "
    parts = [f"{percent_text(each.share_ratio)} {each}".replace(" ", kept) for each in named]
    text = f"critical path: {joint.join(parts)}"
    counted = path.stretches.take(np.isin(path.stretches["step"], path.counted_steps))
    doubt = float((counted["held_ns"] * counted["ambiguous"]).sum()) / max(float(counted["held_ns"].sum()), 1.0)
    if doubt < POLICY.named_group_ratio:
        return text
    rival = _rival(path).replace(" ", kept)
    share = percent_text(doubt).replace(" ", kept)
    return f"{text}; for {share} of it another path is as long within the clocks' error: {rival}"


def groups(shares: Table) -> list[Group]:
    """Group the rows of ``critical_share``, the largest group first.

    Each rank and kind is a group, and so is each operation. A kind of which no rank has half is one group of all ranks
    instead, and transfers of which no operation has half are one group of all transfers of that kind.
    """
    found, total_ns = [], max(float(shares["held_ns"].sum()), 1.0)
    for kind in np.unique(_kinds(shares)).tolist():
        for is_transfer in (False, True):
            mine = shares.take(Group(0.0, kind, is_transfer).rows(shares))
            if not len(mine):
                continue
            values, at = np.unique(mine["name" if is_transfer else "rank"], return_inverse=True)
            parts = np.bincount(at, mine["held_ns"] / total_ns)
            whole = float(parts.sum())
            if parts.max() < POLICY.majority_ratio * whole:
                found.append(Group(whole, kind, is_transfer, ranks_count=0 if is_transfer else len(values)))
                continue
            for who, part in zip(values.tolist(), parts.tolist(), strict=True):
                found.append(Group(part, kind, True, name=who) if is_transfer else Group(part, kind, False, rank=who))
    found = [each for each in found if each.share_ratio >= POLICY.named_group_ratio]
    return sorted(found, key=lambda each: (-each.share_ratio, str(each)))


def usual_order(path: CriticalPath, found: list[Group]) -> list[int] | None:
    """Return the order in which most counted steps pass these groups, by the longest stretch of each, or None."""
    table = path.divided.take(np.isin(path.divided["step"], path.counted_steps))
    begins: list[dict[int, tuple[int, bool]]] = []
    for each in found:
        rows = table.take(each.rows(table))
        longest = np.lexsort((rows["held_ns"], rows["step"]))  # of a step the last one
        # The reads of a batch come before its preparation.
        moments = [(int(rows["begin_ns"][at]), each.kind != "fetch") for at in longest.tolist()]
        begins.append(dict(zip(rows["step"][longest].tolist(), moments, strict=True)))
    seen: Counter[tuple[int, ...]] = Counter()
    for step in path.counted_steps.tolist():
        present = [at for at in range(len(found)) if step in begins[at]]
        if len(present) == len(found):
            seen[tuple(sorted(present, key=lambda at: begins[at][step]))] += 1
    order, count = max(seen.items(), key=lambda item: item[1], default=((), 0))
    return list(order) if count > POLICY.majority_ratio * len(path.counted_steps) else None


def _kinds(table: Table) -> npt.NDArray[np.str_]:
    unexplained = np.where(table["name"] == LATER, _LATER, _UNEXPLAINED)
    return np.where((table["resource"] == "") & (table["kind"] == "other"), unexplained, table["kind"])


def _rival(path: CriticalPath) -> str:
    """Return what most of the ambiguous time may be instead."""
    table = path.stretches
    doubtful = table.take(np.isin(table["step"], path.counted_steps) & (table["ambiguous"] == 1))
    held: Counter[tuple[int, str]] = Counter()
    for row in doubtful.rows():
        held[row["rival_rank"], row["rival_kind"]] += row["held_ns"]
    rank, kind = max(held, key=lambda key: (held[key], -key[0], key[1]))
    text = str(Group(0.0, kind, rank < 0, rank=rank))
    return text if len(held) == 1 else f"mostly {text}"
