"""``stashtrace diff A B``: compare two runs, by stalls or by kernels, and say which is faster."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from collections.abc import Sequence

from stashtrace.cli.answers import print_lines
from stashtrace.cli.parsing import RUN_OR_FILES, TABLE_FORMATS, Parser, existing_run
from stashtrace.cli.rows import column_names, named_rows, screen_width, write_rows

OF = ("stalls", "kernels")
#: Kernels that the table shows; JSON and CSV have all of them.
_SHOWN_ROWS = 20


def parser() -> Parser:
    """Return the parser of ``stashtrace diff``."""
    parser = Parser("diff", "Compare two runs, by stalls or by kernels: what became faster or slower.")
    parser.add_argument("before", metavar="A", help=f"before the change: {RUN_OR_FILES}")
    parser.add_argument("after", metavar="B", help="after the change")
    parser.add_argument(
        "--of", choices=OF, help="compare kinds of stalls (default), or GPU kernels (default where there are no steps)"
    )
    parser.add_format(TABLE_FORMATS)
    parser.add_wide()
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the verdict and the rows behind it."""
    arguments = parser().read(argv)
    before, after = (str(existing_run(p)) for p in (arguments.before, arguments.after))

    from stashtrace.analysis.devices.kernels import kernel_diff
    from stashtrace.analysis.stalls.diff import diff
    from stashtrace.cli.loading import load_watched
    from stashtrace.errors import MissingDataError
    from stashtrace.summary.compare import kernel_verdict, names_apart, verdict

    old, new = load_watched(before), load_watched(after)
    of = arguments.of or "stalls"
    try:
        table = diff(old, new) if of == "stalls" else kernel_diff(old, new)
    except MissingDataError:
        if arguments.of or not len(old.kernels) or not len(new.kernels):
            raise
        of, table = "kernels", kernel_diff(old, new)
    if arguments.format == "table":
        words = verdict if of == "stalls" else kernel_verdict
        print_lines([*words(table, *names_apart([before, after])), ""])
        table = table.take(slice(0, _SHOWN_ROWS)) if of == "kernels" else table
    rows = list(named_rows(table, new.strings))
    write_rows(
        rows, column_names(table), arguments.format, sys.stdout, width=None if arguments.wide else screen_width()
    )
    return 0
