"""``stashtrace merge DIR...``: merge one run, or bring the directories of several hosts together first."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stashtrace.cli.merging import gather_directories, merge_and_report, short_path
from stashtrace.cli.parsing import Parser, existing_run
from stashtrace.cli.screen import Screen


def parser() -> Parser:
    """Options of ``stashtrace merge``."""
    parser = Parser(
        "merge",
        "Merge what the processes of a run left, and sum it up. `stashtrace run` does\n"
        "this at its end; do it by hand after an interrupt, or for the directories of\n"
        "several hosts: the files of the others are copied into the first.",
        "example: stashtrace merge ./stash-node00 ./stash-node01",
    )
    parser.add_argument("paths", metavar="DIR", nargs="+", help="run directory; further ones are parts of the same job")
    parser.add_argument("--run", metavar="ID", help="which run, if the directory holds several")
    return parser


def main(argv: Sequence[str]) -> int:
    """Merge and sum up."""
    arguments = parser().read(argv)
    paths = [existing_run(p) for p in arguments.paths]
    first = paths[0] if paths[0].is_dir() else paths[0].parent
    gather_directories(first, paths[1:])
    merge_and_report(Path(first), Screen(), shown=short_path(first), run_id=arguments.run)
    return 0
