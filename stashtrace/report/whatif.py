"""Answers to what-if questions in words."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stashtrace.units import duration_text, percent_text

if TYPE_CHECKING:
    from stashtrace.model.table import Table
    from stashtrace.replay import Answer

#: A replay that misses by more, or explains less, says nothing about changes.
MOST_ERROR_RATIO, MOST_GAP_RATIO = 0.06, 0.05
#: A run that is slower by less has nothing to share.
WORTH_SHARING = 1.03
#: Causes that are named alone, the smallest first; they are behind so much of what is lost.
_SINGLE, _MUCH, _NEARLY = ("rank", "stage", "replica"), 0.3, 0.95
#: A saving of less is none.
_NOTHING = 0.0005
_NAMES = {
    "compute": "computes",
    "data": "waits for batches",
    "link": "waits for transfers",
    "late": "waits for late ranks",
    "copy": "waits for copies",
    "save": "writes checkpoints",
    "host": "waits for the host",
    "other": "asleep or blocked",
}


def relied_on(run: Answer) -> bool:
    """Whether the replay of the run as it was is good enough for answers."""
    return run.error_ratio <= MOST_ERROR_RATIO and run.gap_ratio <= MOST_GAP_RATIO


def whatif_lines(run: Answer, answers: Sequence[Answer], *, asked: bool) -> list[str]:
    """Lines for the terminal: what the replay is worth, then a table of changes.

    Parameters
    ----------
    run : Answer
        Without a change.
    answers : sequence of Answer
    asked : bool
        One question was asked; its budget follows.
    """
    error, gap = percent_text(run.error_ratio), percent_text(run.gap_ratio)
    lines = [
        f"a step takes {duration_text(run.measured_ns)} on average",
        f"the replay of the run as it was misses that by {error}; {gap} of it follows",
        "from no recorded cause and is kept as it was; another recording of the same job",
        f"may differ by {percent_text(run.noise_ns / max(run.measured_ns, 1.0))}, and each answer with it",
    ]
    if not relied_on(run):
        lines.append("that is too much for the answers below to be relied on")
    if not answers:
        return [*lines, "", "no single change of what is known would make it shorter"]
    head = ("change", "step", "saves", "largest stall then")
    rows = [head, *(_cells(answer) for answer in answers)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines.append("")
    for row in rows:
        cells = [row[0].ljust(widths[0]), row[1].rjust(widths[1]), row[2].rjust(widths[2]), row[3]]
        lines.append("  " + "  ".join(cells))
    return lines + (_budget(run, answers[0]) if asked else [])


def slowdown_lines(table: Table) -> list[str]:
    """What it costs that ranks are not alike, and which rank, stage or replica alone is behind it.

    Parameters
    ----------
    table : Table
        Of the ``slowdown`` analysis, with the mean as its center.
    """
    rows = list(table.rows())
    whole = next(row for row in rows if row["cause"] == "all")
    if whole["slowdown_ratio"] < WORTH_SHARING:
        return []
    now, then = (duration_text(whole[name]) for name in ("step_ns", "ideal_step_ns"))
    lines = [
        "",
        f"for all ranks together a step takes {now};",
        f"with all ranks alike, their work shared evenly, it would take {then}:",
        f"as it was, the run is {whole['slowdown_ratio']:.2f} times slower",
    ]
    single = [row for row in rows if row["cause"] in _SINGLE and row["recovered_ratio"] >= _MUCH]
    if not single:
        return [*lines, f"no rank, stage or replica alone is behind {percent_text(_MUCH)} of it or more"]
    most = max(row["recovered_ratio"] for row in single)
    # The smallest cause that is behind nearly as much as the largest one.
    cause = min(
        (row for row in single if row["recovered_ratio"] >= _NEARLY * most), key=lambda row: _SINGLE.index(row["cause"])
    )
    part = percent_text(min(cause["recovered_ratio"], 1.0))
    return [*lines, f"{cause['cause']} {cause['name']} alone is behind {part} of it"]


def _cells(answer: Answer) -> tuple[str, str, str, str]:
    saved = (_saving(1 - ns / answer.replayed_ns) for ns in (answer.high_ns, answer.low_ns))
    step = _range(duration_text(answer.low_ns), duration_text(answer.high_ns))
    return ", ".join(map(str, answer.changes)), step, _range(*saved), _NAMES[answer.bottleneck]


def _saving(ratio: float) -> str:
    """A share in words; what rounds to nothing is nothing, on either side of it."""
    return percent_text(ratio if abs(ratio) >= _NOTHING else 0.0)


def _range(low: str, high: str) -> str:
    return high if low == high else f"{low} to {high}"


def _budget(run: Answer, answer: Answer) -> list[str]:
    """Where the step went before and after, by columns of the summary."""
    lines = ["", "  mean of all ranks" + "now".rjust(12) + "then".rjust(12)]
    for name, before in run.after_ns.items():
        after = answer.after_ns[name]
        if max(before, after) >= 0.005 * run.measured_ns:
            lines.append("  " + name.ljust(17) + duration_text(before).rjust(12) + duration_text(after).rjust(12))
    return lines


def applied_lines(run: Answer, answer: Answer, measured_ns: float) -> list[str]:
    """A prediction beside the job that was run with it.

    Parameters
    ----------
    run : Answer
        Without a change.
    answer : Answer
        The prediction.
    measured_ns : float
        Mean step of the job with the change.
    """
    predicted = _range(duration_text(answer.low_ns), duration_text(answer.high_ns))
    rows = [
        ("as recorded", duration_text(run.measured_ns), ""),
        ("predicted", predicted, _range(*(_saved(run, ns) for ns in (answer.high_ns, answer.low_ns)))),
        ("measured", duration_text(measured_ns), _saved(run, measured_ns)),
    ]
    lines = ["", f"{', '.join(map(str, answer.changes))} in a second run of the job:"]
    width = max(len(row[1]) for row in rows)
    lines += [f"  {name:<13}{step:>{width}}" + (f"  saves {saved}" if saved else "") for name, step, saved in rows]
    missed = answer.missed_ratio(measured_ns)
    if missed:
        lines.append(f"  the prediction is {percent_text(abs(missed))} too {'short' if missed < 0 else 'long'}")
    return lines


def _saved(run: Answer, ns: float) -> str:
    return percent_text(1 - ns / run.measured_ns)
