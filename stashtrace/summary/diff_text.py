"""Text of a comparison: what differs, which is faster, and why, by the numbers of ``diff`` and ``kernel_diff``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stashtrace.analysis.compare.change import RUN_TO_RUN_RATIO, RUNS_THAT_TELL, Side
from stashtrace.analysis.compare.cpu_use import OtherWork
from stashtrace.analysis.compare.job_identity import FIELDS, Difference, Fact, changed_words, differences
from stashtrace.analysis.compare.steps_of_run import STEP
from stashtrace.schema.stall_kinds import words_of
from stashtrace.schema.table import Table
from stashtrace.summary.between_runs_text import with_sign
from stashtrace.text.prose import align, count_noun
from stashtrace.text.units import duration_text, percent_text, shortened
from stashtrace.text.visible import visible_line

#: What is said of a recording that is compared with itself, or with a copy.
SAME_RECORDING = (
    "both sides are the same recording, so nothing can have changed; record the job again and compare the two"
)
#: From this ratio on a change is no longer worded as percent.
_TIMES_RATIO = 9
#: Kinds, or kernels, that a sentence names.
_NAMED_AT_MOST = 3
#: Names of kernels are C++ with all its templates.
_NAME_WIDTH = 48
#: Waits for a CPU are named from this part of the step on.
_WORTH_NAMING = 0.02
#: Use of the CPUs by other programs is named from this difference on, in CPUs; what was stolen, from this ratio on.
_MORE_CPUS, _MORE_STOLEN = 0.05, 0.005
#: Facts that a line about equal jobs names, and how.
_SHOWN_OF_EQUAL = ("ranks", "batch", "device", "torch")
#: Widest value of a fact, and words of a command line that are shown.
_FACT_WIDTH, _WORDS_AT_MOST = 48, 4


def jobs_lines(before: Mapping[str, Fact], after: Mapping[str, Fact]) -> list[str]:
    """Say what differs between two jobs by what was recorded of them; also if nothing does.

    ``before``, ``after``: as of :func:`stashtrace.analysis.compare.job_identity.job_facts`.
    """
    found = differences(before, after)
    if not found:
        words = {field.name: field.words for field in FIELDS}
        shown = [f"{words[name]}: {_fact(after[name])}" for name in _SHOWN_OF_EQUAL if after.get(name) is not None]
        return [f"jobs: nothing that was recorded differs ({', '.join(shown) or 'little was recorded'})"]
    known = [one for one in found if one.is_known]
    lines = ["jobs: no difference is known"]
    if known:
        lines = ["jobs: 1 recorded fact differs" if len(known) == 1 else f"jobs: {len(known)} recorded facts differ"]
        lines += align([(one.field.words, " -> ".join(difference_texts(one))) for one in known], range(2))
    unknown = [one for one in found if not one.is_known]
    if unknown:
        lines.append(f"  recorded on one side alone: {', '.join(one.field.words for one in unknown)}")
    return lines


def difference_texts(difference: Difference) -> tuple[str, str]:
    """Return the two values of a field; of command lines, the words that the other one does not have."""
    if difference.field.name == "command" and difference.is_known:
        sides = changed_words(str(difference.before), str(difference.after))
        first, second = (_some(words) for words in sides)
        return (first, second) if first != second else ("the same words", "in another order")
    return _fact(difference.before), _fact(difference.after)


def _some(words: Sequence[str]) -> str:
    more = f" and {len(words) - _WORDS_AT_MOST} more" if len(words) > _WORDS_AT_MOST else ""
    return " ".join(_fact(word) for word in words[:_WORDS_AT_MOST]) + more or "nothing"


def _fact(value: Fact) -> str:
    return "not recorded" if value is None else shortened(visible_line(str(value)), _FACT_WIDTH)


def step_times_line(before: Side, after: Side) -> str:
    """Say how long a step takes in both jobs: their step times, while the rows of ``diff`` are of median steps."""
    first, second = (duration_text(side.value(STEP, "mean")) for side in (before, after))
    counts = [side.steps_count for side in (before, after)]
    over = f"{counts[0]:,}" if counts[0] == counts[1] else f"{counts[0]:,} and {counts[1]:,}"
    steps = "step" if counts == [1, 1] else "steps"
    return f"a step takes {first} in {before.name} and {second} in {after.name} on average, over {over} {steps}"


def verdict(table: Table, before: str, after: str, functions: Sequence[str] = ()) -> list[str]:
    """Say in sentences how the length of a step changed, and which kinds of time changed most, in which functions.

    ``table``: result of ``diff``. ``functions``: sentences on these.
    """
    step, *kinds = table.rows()
    kinds = [row for row in kinds if row["verdict"] != "no difference"]
    first, second, noise = (duration_text(step[n]) for n in ("before_ns", "after_ns", "noise_ns"))
    lines = []
    if step["verdict"] == "no difference":
        lines.append(
            f"no difference beyond noise of up to {noise}: the median step takes {first} in {before} and {second} in"
            f" {after}"
        )
    else:
        change = duration_text(abs(step["change_ns"]))
        if step["before_ns"]:  # marks of steps may stand at one moment
            ratio = abs(step["change_ns"]) / step["before_ns"]
            # A step of ten times the length is another job rather than a change in percent.
            times = f"{ratio + 1:,.0f} times as long: is it the same job?"
            change += f" ({percent_text(ratio) if ratio < _TIMES_RATIO else times})"
        lines.append(
            f"{after} is {step['verdict']}: the median step takes {second}, {change} {_than(step)} than {first} in"
            f" {before}"
        )
    if kinds:
        worst = sorted(kinds, key=lambda row: -abs(row["change_ns"]))[:_NAMED_AT_MOST]
        lines.append("by kind of time, " + ", ".join(_change(words_of(row["kind"]), row) for row in worst))
    lines += functions
    fewest = min(step["before_steps_count"], step["after_steps_count"])
    if fewest < 20:
        were = "step was" if fewest == 1 else "steps were"
        lines.append(f"only {fewest} {were} compared; more would separate smaller changes from noise")
    return [*lines, *_certainty(step)]


def no_functions_lines(functions: Table | None, kinds: Table) -> list[str]:
    """Say why no function is named though kinds of time changed; nothing where none did, or functions are unknown.

    ``functions``: result of ``lines_between_runs`` in which none surely changed. ``kinds``: result of ``diff``.
    """
    if functions is None or all(row["verdict"] == "no difference" for row in kinds.rows()):
        return []
    if len(functions):
        return [f"by function: none of the {count_noun(len(functions), 'function')} surely changed"]
    return ["by function: none is compared, as no function is known of what changed"]


def other_work_lines(other: OtherWork, step_ns: float) -> list[str]:
    """Say what other work on the machine can explain, if that is worth a part of the step before."""
    return [other_work_text(other)] if abs(other.added_ns) >= max(_WORTH_NAMING * step_ns, 1) else []


def other_work_text(other: OtherWork) -> str:
    """Say what other work on the machine can explain of a change."""
    amount, more = duration_text(abs(other.added_ns)), other.added_ns > 0
    advice = "record on a machine without other work, or alternately (`stashtrace check --rerun`)"
    if not other.is_known:
        return (
            f"ranks or their workers waited for a CPU for {amount} {'more' if more else 'less'} of a step:"
            f" such waits come from other work too, so {advice}"
        )
    first = "the machine was busier" if more else "the machine was less busy"
    return f"{first}: {_use(other)}; that can explain up to {amount} of a step, so {advice}"


def _use(other: OtherWork) -> str:
    """Say how the use of the CPUs by others differed between the two jobs; at least by what differed more."""
    used, stolen = other.after_count - other.before_count, other.after_stolen - other.before_stolen
    parts = []
    if abs(used) >= _MORE_CPUS or abs(used) >= abs(stolen):
        after, before = (f"{count:.{_digits(used)}f}" for count in (other.after_count, other.before_count))
        parts.append(f"programs outside the job used {before} CPUs before and {after} after")
    if abs(stolen) >= _MORE_STOLEN or not parts:
        after, before = (
            f"{100 * ratio:.{_digits(100 * stolen)}f} %" for ratio in (other.after_stolen, other.before_stolen)
        )
        parts.append(f"its hypervisor took {before} of the CPU time before and {after} after")
    return ", and ".join(parts)


def _digits(difference: float) -> int:
    """Return the decimals that show a difference of two numbers.

    >>> _digits(30.0), _digits(0.5), _digits(0.04)
    (0, 1, 2)
    """
    return next((digits for digits in (0, 1, 2) if abs(difference) >= 2 * 10**-digits), 3)


def _certainty(step: Mapping[str, Any]) -> list[str]:
    """Say between which bounds the change of the step lies, and which change could have been seen."""
    if step["detectable_ns"] < 0:
        return ["a run has a single step, so nothing is known of the spread of steps"]
    runs = step["before_runs_count"], step["after_runs_count"]
    by_runs = max(runs) >= RUNS_THAT_TELL
    low, high = (with_sign(step[name]) for name in ("low_ns", "high_ns"))
    seen = duration_text(step["detectable_ns"])
    share = percent_text(step["detectable_ns"] / step["before_ns"]) if step["before_ns"] else "-"
    lines = [
        f"by the spread of {'runs' if by_runs else 'steps'} the step changed by {low} to {high} (95 %);"
        f" in four of five such comparisons a change of {seen} ({share}) would have been seen"
    ]
    if not by_runs:
        each = "one run" if max(runs) == 1 else "fewer than three runs"
        usual = percent_text(RUN_TO_RUN_RATIO)
        lines.append(f"{each} a side: equal runs may differ by {usual} of the step more than their steps show")
    return lines


def _than(step: dict[str, Any]) -> str:
    return "less" if step["verdict"] == "faster" else "more"


def _change(name: str, row: dict[str, Any]) -> str:
    change = row["change_ns"]
    return f"{name} {'+' if change > 0 else '-'}{duration_text(abs(change))}"


def names_apart(paths: Sequence[str]) -> list[str]:
    """Return the paths as names of the runs, or A and B if they are equal or too long for a sentence."""
    return list(paths) if all(len(p) <= 24 for p in paths) and len(set(paths)) == len(paths) else ["A", "B"]


def kernel_verdict(table: Table, before: str, after: str) -> list[str]:
    """Say in sentences how the work on devices changed, and which kernels changed most.

    ``table``: result of ``kernel_diff``.
    """
    whole, *kernels = table.rows()
    kernels = [row for row in kernels if row["name"] != whole["name"]]
    first, second, noise = (duration_text(whole[n]) for n in ("before_ns", "after_ns", "noise_ns"))
    if whole["verdict"] == "no difference":
        lines = [f"no difference: GPU work takes {first} in {before} and {second} in {after} (noise up to {noise})"]
    else:
        change = duration_text(abs(whole["change_ns"]))
        words = f"{after} is {whole['verdict']}: GPU work takes {second} a step and rank"
        lines = [f"{words}, {change} {_than(whole)} than {first} in {before}"]
    for word in ("slower", "faster", "appeared", "vanished"):
        chosen = [row for row in kernels if row["verdict"] == word]
        if chosen:
            named = ", ".join(_change(shortened(row["name"], _NAME_WIDTH), row) for row in chosen[:_NAMED_AT_MOST])
            more = f", {len(chosen) - _NAMED_AT_MOST} more" if len(chosen) > _NAMED_AT_MOST else ""
            lines.append(f"{word}: {named}{more}")
    return lines
