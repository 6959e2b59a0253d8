"""``stashtrace report [RUN]``: what slows a run down, as one page to share."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from stashtrace.cli.parsing import NEWEST, RUN_OR_FILES, STDOUT, Parser, add_value, existing_run, runs_or_newest
from stashtrace.cli.screen import Screen
from stashtrace.errors import DataLossWarning, OutputError
from stashtrace.units import bytes_text

#: Name of the page without -o.
REPORT_FILE = "report.html"

_EPILOG = """The page is one file without network: verdict, budget by ranks, heat maps, the
costliest waits, slow steps, links, losses, machine. It names the command, the
hosts and files of the job; `stashtrace scrub --all` gives them other names.
Markdown is for a pull request; without -o it goes to stdout."""


def parser() -> Parser:
    """Return the parser of ``stashtrace report``."""
    parser = Parser("report", "Write one page about a run, to share.", _EPILOG)
    text = f"{RUN_OR_FILES} (default: {NEWEST}); several are parts of one job"
    parser.add_argument("paths", metavar="PATH", nargs="*", help=text)
    parser.add_out("FILE", f"file to write (default: {REPORT_FILE} here); an older one is replaced")
    parser.add_format(("html", "markdown"))
    calibration = "file of `stashtrace calibrate` (default: calibration.toml in the run directory)"
    add_value(parser, "--calibration", "FILE", calibration)
    parser.add_run()
    return parser


def main(argv: Sequence[str]) -> int:
    """Write the page, and say so on stderr; Markdown without ``-o`` goes to stdout."""
    arguments = parser().read(argv)
    paths = runs_or_newest(arguments.paths)
    sources = [str(existing_run(path)) for path in paths]
    target = _target(arguments.out, arguments.format)

    from stashtrace.calibration.file import load_calibration
    from stashtrace.cli.loading import load_watched
    from stashtrace.output_files import complete_file
    from stashtrace.report.facts import report_facts
    from stashtrace.report.page import markdown, page

    if arguments.calibration:
        load_calibration(arguments.calibration)  # refused before a large run is read
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)  # the page says what is missing
        trace = load_watched(sources if len(sources) > 1 else sources[0], run_id=arguments.run)
    facts = report_facts(trace, paths, run_id=arguments.run, calibration=arguments.calibration)
    screen = Screen()
    if facts["budget"]["missing"]:
        screen.say(f"{facts['budget']['missing']}: {facts['budget']['hint']}")
    words = page(facts) if arguments.format == "html" else markdown(facts)
    if target is None:
        sys.stdout.write(words)
        return 0
    with complete_file(target) as partial:
        partial.write_text(words, encoding="utf-8")
    screen.say(f"wrote {target} ({bytes_text(len(words.encode()))})")
    return 0


def _target(out: str | None, format_name: str) -> Path | None:
    """Return the file to write, None for stdout; checked before anything is read.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    from stashtrace.output_files import require_writable

    if out in STDOUT or (out is None and format_name == "markdown"):
        return None
    target = Path(out or REPORT_FILE)
    if target.is_dir():
        name = REPORT_FILE if format_name == "html" else "report.md"
        raise OutputError(f"cannot write {target}: it is a folder", hint=f"name a file in it: -o {target / name}")
    require_writable(target, hint="choose another file with -o")
    return target
