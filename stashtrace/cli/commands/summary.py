"""``stashtrace summary [RUN]``: say in words what slows a run down; ``stashtrace analyze summary RUN`` is the same."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from stashtrace.cli.find_runs import read_runs
from stashtrace.cli.parsing import Parser, runs_or_newest
from stashtrace.cli.screen import Screen

if TYPE_CHECKING:
    from stashtrace.schema.trace import Trace


def parser() -> Parser:
    """Return the parser of ``stashtrace summary``."""
    parser = Parser("summary", "Say what slows a run down, in words.")
    parser.add_runs()
    parser.add_format(tuple(FORMATS))
    parser.add_run()
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the summary."""
    arguments = parser().read(argv)
    return print_summary(runs_or_newest(arguments.paths), arguments.run, arguments.format)


def print_summary(paths: Sequence[str], run_id: str | None = None, format_name: str = "text") -> int:
    """Print the summary of one run, or of the parts of one job, in one of :data:`FORMATS`; return the exit code."""
    trace = read_runs(paths, run_id=run_id, quiet=True)  # the summary says what is missing
    sys.stdout.write(FORMATS[format_name](trace, shlex.join(paths)))
    return 0


def _text(trace: Trace, shown: str) -> str:
    """Return the summary in the characters and colours that the screen can show."""
    from stashtrace.replay.advice.first_changes import what_to_do_first
    from stashtrace.summary.look import Look
    from stashtrace.summary.summary_text import summary

    screen = Screen()
    look = Look(screen.width, screen.utf8, screen.colour and sys.stdout.isatty())
    return summary(trace, look=look, shown=shown, first=what_to_do_first(trace))


def _json(trace: Trace, shown: str) -> str:
    """Return the rows of the summary's tables as JSON, each claim with its evidence and its sentence."""
    import json

    from stashtrace.analysis.findings import summarize
    from stashtrace.replay.advice.first_changes import what_to_do_first
    from stashtrace.summary.summary_document import document

    return json.dumps(document(summarize(trace), what_to_do_first(trace), shown), ensure_ascii=False, indent=1) + "\n"


def _line(trace: Trace, shown: str) -> str:
    """Return the headline, for places that hold one line of a run."""
    from stashtrace.analysis.findings import summarize
    from stashtrace.summary.summary_document import document

    return " ".join(document(summarize(trace), None, shown)["headline"].split()) + "\n"


#: Name of a format -> function of the trace and of its path as typed, which returns the text for stdout.
FORMATS: dict[str, Callable[[Trace, str], str]] = {"text": _text, "line": _line, "json": _json}
