"""``stashtrace diff A B``: compare two jobs, by stalls, lines or kernels, and say what differs and which is faster."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from stashtrace.cli.parsing import RUN_OR_FILES, TABLE_FORMATS, Parser, existing_run
from stashtrace.cli.print_results import print_lines
from stashtrace.cli.print_tables import column_details, column_names, named_rows, screen_width, write_rows
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.text.prose import wrap

if TYPE_CHECKING:
    from stashtrace.analysis.compare.steps_of_run import StepsOfRun
    from stashtrace.schema.table import Table
    from stashtrace.schema.trace import Trace

OF = ("stalls", "lines", "kernels")
#: Kernels that the table shows; JSON and CSV have all of them.
_SHOWN_ROWS = 20


def parser() -> Parser:
    """Return the parser of ``stashtrace diff``."""
    parser = Parser(
        "diff",
        "Compare two jobs, by stalls, lines or kernels: what differs between them, and\n"
        "what became faster or slower, in which functions.",
        "Several runs a side show how runs of one job differ; from three on, the bounds\n"
        "are those of runs instead of steps:\n"
        "  stashtrace diff --before old-0 old-1 old-2 --after new-0 new-1 new-2",
        usage="stashtrace diff [options] A B\n       stashtrace diff [options] --before A [A ...] --after B [B ...]",
    )
    parser.add_argument("runs", metavar="A B", nargs="*", help=f"before and after the change: {RUN_OR_FILES}")
    parser.add_argument("--before", metavar="A", nargs="+", default=[], help="runs before the change")
    parser.add_argument("--after", metavar="B", nargs="+", default=[], help="runs after the change")
    parser.add_argument(
        "--of",
        choices=OF,
        help="rows are kinds of stalls (default), functions of the kinds that changed, or GPU kernels (default where"
        " there are no steps)",
    )
    parser.add_format(TABLE_FORMATS)
    parser.add_wide()
    return parser


def main(argv: Sequence[str]) -> int:
    """Print what differs, the verdict, and the rows behind it."""
    arguments = parser().read(argv)
    sides = before, after = _sides(arguments.runs, arguments.before, arguments.after)
    for path in (*before, *after):
        existing_run(path)

    from stashtrace.cli.comparison_sides import name_of
    from stashtrace.summary.diff_text import names_apart

    names = names_apart([name_of(paths) for paths in sides])
    if len(before) + len(after) > 2:
        if arguments.of == "kernels":
            raise UsageError("--of kernels compares one run with one", hint="leave out the others, or --of kernels")
        table, words = _by_stalls(sides, names, arguments.of)
        _write(table, list(table.rows()), words, arguments.format, arguments.wide)
        return 0

    from stashtrace.cli.find_runs import read_runs

    old, new = read_runs(before[0]), read_runs(after[0])
    if arguments.of != "kernels":
        try:
            table, words = _by_stalls(sides, names, arguments.of, {before[0]: old, after[0]: new})
        except MissingDataError:
            if arguments.of or not len(old.kernels) or not len(new.kernels):
                raise
        else:
            _write(table, list(table.rows()), words, arguments.format, arguments.wide)
            return 0
    table, words = _by_kernels(old, new, names)
    shown = table.take(slice(0, _SHOWN_ROWS)) if arguments.format == "table" else table
    _write(table, list(named_rows(shown, new.strings)), words, arguments.format, arguments.wide)
    return 0


def _sides(runs: Sequence[str], before: Sequence[str], after: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    if before or after:
        if runs:
            raise UsageError(f"--before and --after name all runs, so {runs[0]} has no side", hint="put it after one")
        if not (before and after):
            raise UsageError(
                f"stashtrace diff: --{'after' if before else 'before'} is missing",
                hint="`stashtrace diff --help` shows the options",
            )
        return before, after
    if len(runs) < 2:
        parser().error(f"the following arguments are required: {'B' if runs else 'A, B'}")
    if len(runs) > 2:
        raise UsageError(
            f"stashtrace diff: {len(runs)} runs, but which were before?",
            hint="say it with --before A ... --after B ...",
        )
    return runs[:1], runs[1:]


def _by_stalls(
    sides: Sequence[Sequence[str]], names: Sequence[str], of: str | None, loaded: Mapping[str, Trace] | None = None
) -> tuple[Table, list[str]]:
    """Compare the kinds of time of all runs; those that are not loaded yet are loaded one after the other.

    ``of``: ``lines`` for a table of the functions in place of the kinds.
    """
    from stashtrace.analysis.compare.change import Side, same_recordings
    from stashtrace.analysis.compare.diff import diff_of_sides
    from stashtrace.analysis.compare.gate_verdict import other_work
    from stashtrace.analysis.compare.steps_of_run import STEP, steps_of_run
    from stashtrace.analysis.lines.between_runs import LINES_BETWEEN_RUNS, lines_of_diff
    from stashtrace.analysis.lines.functions_of_run import functions_of_run
    from stashtrace.cli.find_runs import read_runs
    from stashtrace.schema.table import Table
    from stashtrace.summary.between_runs_text import functions_lines
    from stashtrace.summary.diff_text import (
        SAME_RECORDING,
        jobs_lines,
        no_functions_lines,
        other_work_lines,
        step_times_line,
        verdict,
    )

    known = loaded or {}

    def run_of(path: str) -> StepsOfRun:
        trace = known[path] if path in known else read_runs(path)
        return replace(steps_of_run(trace, path), functions=functions_of_run(trace))

    old, new = (Side(name, tuple(map(run_of, paths))) for name, paths in zip(names, sides, strict=True))
    table = diff_of_sides(old, new)
    same = same_recordings(old, new)
    functions = lines_of_diff(old, new, table) if not same else Table.empty(LINES_BETWEEN_RUNS)
    rows = table
    if of == "lines":
        if functions is None:
            raise MissingDataError(
                "a recording holds no Python stacks, so its functions are not known",
                hint="`stashtrace run` records those of processes with torch, unless --collectors leaves them out",
            )
        rows = functions
    if same:
        return rows, [step_times_line(old, new), SAME_RECORDING]
    other = other_work(old, new)
    load = other_work_lines(other, old.value(STEP, "mean"))
    changes_ns = {row["kind"]: row["change_ns"] for row in table.rows()}
    places = functions_lines(functions, changes_ns, old, new, added_ns=other.added_ns) or no_functions_lines(
        functions, table
    )
    lines = [
        *jobs_lines(old.facts, new.facts),
        step_times_line(old, new),
        *verdict(table, old.name, new.name, places),
        *load,
    ]
    return rows, lines


def _by_kernels(old: Trace, new: Trace, names: Sequence[str]) -> tuple[Table, list[str]]:
    from stashtrace.analysis.compare.job_identity import job_facts
    from stashtrace.analysis.devices.kernels import kernel_diff
    from stashtrace.summary.diff_text import jobs_lines, kernel_verdict

    table = kernel_diff(old, new)
    return table, [*jobs_lines(job_facts(old), job_facts(new)), *kernel_verdict(table, *names)]


def _wrapped(text: str, width: int | None) -> list[str]:
    return [text] if width is None or len(text) <= width else wrap(text, "", width=width, rest=2)


def _write(table: Table, rows: list[dict[str, object]], words: Sequence[str], form: str, wide: bool) -> None:
    width = None if wide else screen_width()
    if form == "table":
        print_lines([line for text in words for line in _wrapped(text, width)] + [""])
    write_rows(rows, column_names(table), form, sys.stdout, width=width, details=column_details(table.schema))
