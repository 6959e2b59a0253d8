"""``stashtrace diff A B``: two runs, stall by stall, with a verdict."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from collections.abc import Sequence

from stashtrace.cli.parsing import Parser, existing_run
from stashtrace.cli.rows import FORMATS, column_names, named_rows, write_rows


def parser() -> Parser:
    """Options of ``stashtrace diff``."""
    parser = Parser("diff", "Compare two runs, stall by stall: what became faster or slower from A to B.")
    parser.add_argument("before", metavar="A", help="run directory before the change")
    parser.add_argument("after", metavar="B", help="run directory after the change")
    parser.add_argument("--format", choices=FORMATS, default="table", help="aligned text (default), JSON rows or CSV")
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the verdict and the rows behind it."""
    arguments = parser().read(argv)
    before, after = (str(existing_run(p)) for p in (arguments.before, arguments.after))

    from stashtrace.align.align import load_trace
    from stashtrace.analysis.diff import diff
    from stashtrace.report.compare import names_apart, verdict

    old, new = load_trace(before), load_trace(after)
    table = diff(old, new)
    rows = list(named_rows(table, new.strings))
    if arguments.format == "table":
        sys.stdout.write("\n".join(verdict(table, *names_apart([before, after]))) + "\n\n")
    write_rows(rows, column_names(table), arguments.format, sys.stdout)
    return 0
