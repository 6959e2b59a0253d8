"""``stashtrace summary [RUN]``: say in words what slows a run down; ``stashtrace analyze summary RUN`` is the same."""

from __future__ import annotations

import ctypes
import gc
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from stashtrace.cli.find_runs import read_runs
from stashtrace.cli.parsing import Parser, runs_or_newest
from stashtrace.cli.screen import Screen

if TYPE_CHECKING:
    from stashtrace.schema.trace import Trace

#: Python seeks garbage after this number of new objects, by default 700: at 1,024 ranks that is a tenth of the time.
_NEW_OBJECTS = 100_000
#: Parameters of ``malloc.h``: the largest array that gets no mapping, what is kept, and by how much the heap
#: grows. Else the kernel clears each page of the arrays of all ranks again and again: half of the time it takes here.
_MALLOC = {-3: 32 << 20, -1: 256 << 20, -2: 16 << 20}


def parser() -> Parser:
    """Return the parser of ``stashtrace summary``."""
    parser = Parser("summary", "Say what slows a run down, in words.")
    parser.add_runs()
    parser.add_format(tuple(FORMATS))
    parser.add_run()
    parser.add_argument("--all", action="store_true", help="all findings, not only the causes")
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the summary."""
    arguments = parser().read(argv)
    paths = runs_or_newest(arguments.paths)
    return print_summary(paths, arguments.run, arguments.format, everything=arguments.all)


def print_summary(
    paths: Sequence[str], run_id: str | None = None, format_name: str = "text", *, everything: bool = False
) -> int:
    """Print the summary of one run, or of the parts of one job, in one of :data:`FORMATS`; return the exit code.

    ``everything``: as text, all findings, not only the causes; the other formats are the same.
    """
    _keep_freed_memory()
    with _few_collections():
        trace = read_runs(paths, run_id=run_id, quiet=True)  # the summary says what is missing
        write = partial(_on_screen, everything=True) if everything and format_name == "text" else FORMATS[format_name]
        sys.stdout.write(write(trace, shlex.join(paths)))
    return 0


def _keep_freed_memory() -> None:
    """Let glibc keep what is freed for the next array; another C library does as it does."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for parameter, size in _MALLOC.items():
            library.mallopt(parameter, size)


@contextmanager
def _few_collections() -> Iterator[None]:
    """Let Python seek garbage more seldom: of the objects of a thousand ranks nearly all live until the answer."""
    usual = gc.get_threshold()
    gc.set_threshold(_NEW_OBJECTS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _on_screen(trace: Trace, shown: str, *, everything: bool = False) -> str:
    from stashtrace.replay.causes import what_to_do_first
    from stashtrace.summary.style import Style
    from stashtrace.summary.summary_text import summary

    screen = Screen()
    style = Style(screen.width, screen.utf8, screen.colour and sys.stdout.isatty())
    return summary(trace, style=style, shown=shown, first=what_to_do_first(trace), everything=everything)


def _json(trace: Trace, shown: str) -> str:
    """Return the rows of the summary's tables as JSON, each claim with its evidence and its sentence."""
    import json

    from stashtrace.analysis.findings import summarize
    from stashtrace.replay.causes import what_to_do_first
    from stashtrace.summary.summary_document import document

    return json.dumps(document(summarize(trace), what_to_do_first(trace), shown), ensure_ascii=False, indent=1) + "\n"


def _line(trace: Trace, shown: str) -> str:
    """Return the headline, for places that hold one line of a run."""
    from stashtrace.analysis.findings import summarize
    from stashtrace.replay.causes import what_to_do_first
    from stashtrace.summary.summary_document import document

    return " ".join(document(summarize(trace), what_to_do_first(trace), shown)["headline"].split()) + "\n"


#: Name of a format -> function of the trace and of its path as typed, which returns the text for stdout.
FORMATS: dict[str, Callable[[Trace, str], str]] = {"text": _on_screen, "line": _line, "json": _json}
