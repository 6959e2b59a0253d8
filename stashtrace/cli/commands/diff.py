"""``stashtrace diff A B``: compare two jobs, by stalls or by kernels, and say what differs and which is faster."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stashtrace.cli.parsing import RUN_OR_FILES, TABLE_FORMATS, Parser, existing_run
from stashtrace.cli.print_results import print_lines
from stashtrace.cli.print_tables import column_details, column_names, named_rows, screen_width, write_rows
from stashtrace.errors import MissingDataError, UsageError

if TYPE_CHECKING:
    from stashtrace.schema.table import Table
    from stashtrace.schema.trace import Trace

OF = ("stalls", "kernels")
#: Kernels that the table shows; JSON and CSV have all of them.
_SHOWN_ROWS = 20


def parser() -> Parser:
    """Return the parser of ``stashtrace diff``."""
    parser = Parser(
        "diff",
        "Compare two jobs, by stalls or by kernels: what differs between them, and what\nbecame faster or slower.",
        "Several runs a side tell how runs of one job differ; from three on, the bounds\n"
        "are those of runs instead of steps:\n"
        "  stashtrace diff --before old-0 old-1 old-2 --after new-0 new-1 new-2",
        usage="stashtrace diff [options] A B\n       stashtrace diff [options] --before A [A ...] --after B [B ...]",
    )
    parser.add_argument("runs", metavar="A B", nargs="*", help=f"before and after the change: {RUN_OR_FILES}")
    parser.add_argument("--before", metavar="A", nargs="+", default=[], help="runs before the change")
    parser.add_argument("--after", metavar="B", nargs="+", default=[], help="runs after the change")
    parser.add_argument(
        "--of", choices=OF, help="compare kinds of stalls (default), or GPU kernels (default where there are no steps)"
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
        table, words = _by_stalls(sides, names)
        _write(table, list(table.rows()), words, arguments.format, arguments.wide)
        return 0

    from stashtrace.cli.find_runs import read_runs

    old, new = read_runs(before[0]), read_runs(after[0])
    if arguments.of != "kernels":
        try:
            table, words = _by_stalls(sides, names, {before[0]: old, after[0]: new})
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
    """Return the runs of both sides, however they were given."""
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
    sides: Sequence[Sequence[str]], names: Sequence[str], loaded: Mapping[str, Trace] | None = None
) -> tuple[Table, list[str]]:
    """Compare the kinds of time of all runs; those that are not loaded yet are loaded one after the other."""
    from stashtrace.analysis.compare.change import Side, same_recordings
    from stashtrace.analysis.compare.diff import diff_of_sides
    from stashtrace.analysis.compare.gate_verdict import other_work
    from stashtrace.analysis.compare.steps_of_run import STEP, steps_of_run
    from stashtrace.cli.find_runs import read_runs
    from stashtrace.summary.diff_text import SAME_RECORDING, jobs_lines, other_work_lines, step_times_line, verdict

    known = loaded or {}
    old, new = (
        Side(name, tuple(steps_of_run(known[path] if path in known else read_runs(path), path) for path in paths))
        for name, paths in zip(names, sides, strict=True)
    )
    table = diff_of_sides(old, new)
    if same_recordings(old, new):
        return table, [step_times_line(old, new), SAME_RECORDING]
    load = other_work_lines(other_work(old, new), old.value(STEP, "mean"))
    lines = [*jobs_lines(old.facts, new.facts), step_times_line(old, new), *verdict(table, *names), *load]
    return table, lines


def _by_kernels(old: Trace, new: Trace, names: Sequence[str]) -> tuple[Table, list[str]]:
    """Compare the work on devices of two runs."""
    from stashtrace.analysis.compare.job_identity import job_facts
    from stashtrace.analysis.devices.kernels import kernel_diff
    from stashtrace.summary.diff_text import jobs_lines, kernel_verdict

    table = kernel_diff(old, new)
    return table, [*jobs_lines(job_facts(old), job_facts(new)), *kernel_verdict(table, *names)]


def _write(table: Table, rows: list[dict[str, object]], words: Sequence[str], form: str, wide: bool) -> None:
    if form == "table":
        print_lines([*words, ""])
    width = None if wide else screen_width()
    write_rows(rows, column_names(table), form, sys.stdout, width=width, details=column_details(table.schema))
