"""``stashtrace report [RUN]``: what slows a run down, as one page to share."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from stashtrace.cli.parsing import STDOUT, Parser, existing_run, runs_or_newest
from stashtrace.cli.print_results import open_output, write_output
from stashtrace.cli.screen import Screen
from stashtrace.text.units import bytes_text

#: Name of the page without -o.
REPORT_FILE = "report.html"

_EPILOG = """The page is one file without network: verdict, budget by ranks, heat maps, the
costliest waits, slow steps, links, losses, machine. It names the command, the
hosts and files of the job; `stashtrace scrub --all` gives them other names.
Markdown is for a pull request; without -o it goes to stdout."""


def parser() -> Parser:
    """Return the parser of ``stashtrace report``."""
    parser = Parser("report", "Write one page about a run, to share.", _EPILOG)
    parser.add_runs()
    parser.add_out("FILE", f"file to write (default: {REPORT_FILE} here); an older one is replaced")
    parser.add_format(("html", "markdown"))
    parser.add_calibration()
    parser.add_run()
    return parser


def main(argv: Sequence[str]) -> int:
    """Write the page, and say so on stderr; Markdown without ``-o`` goes to stdout."""
    arguments = parser().read(argv)
    paths = runs_or_newest(arguments.paths)
    for path in paths:
        existing_run(path)
    on_stdout = arguments.out in STDOUT or (arguments.out is None and arguments.format == "markdown")
    name = REPORT_FILE if arguments.format == "html" else "report.md"
    target = None if on_stdout else open_output(arguments.out or REPORT_FILE, name)

    from stashtrace.calibration.file import load_calibration
    from stashtrace.cli.find_runs import read_runs
    from stashtrace.report.document import report_facts
    from stashtrace.report.page.page import markdown, page

    if arguments.calibration:
        load_calibration(arguments.calibration)  # refused before a large run is read
    trace = read_runs(paths, run_id=arguments.run, quiet=True)  # the page says what is missing
    facts = report_facts(trace, paths, run_id=arguments.run, calibration=arguments.calibration)
    screen = Screen()
    if facts["budget"]["missing"]:
        screen.say(f"{facts['budget']['missing']}: {facts['budget']['hint']}")
    words = page(facts) if arguments.format == "html" else markdown(facts)
    if target is None:
        sys.stdout.write(words)
        return 0
    write_output(target, words)
    screen.say(f"wrote {target} ({bytes_text(len(words.encode()))})")
    return 0
