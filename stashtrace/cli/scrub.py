"""``stashtrace scrub RUN -o NEW``: a run without its secrets, to be given to somebody else."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stashtrace.cli.parsing import Parser, existing_run
from stashtrace.cli.screen import Screen, end_on_terminate
from stashtrace.errors import FormatError, UsageError

_NAMED = 5


def parser() -> Parser:
    """Options of ``stashtrace scrub``."""
    parser = Parser(
        "scrub",
        "Take out of a run what tells more than times: values of secret arguments,\n"
        "variables that stashtrace does not store, users and queries of URLs. Made for\n"
        "runs that an older version recorded; `docs/concepts/what-is-stored.md` has the\n"
        "rules. With --paths and --hosts names become pseudonyms, each the same one\n"
        "everywhere.\n"
        "Summary and time line are made anew; every analysis gives the same numbers.",
        "example: stashtrace scrub ./stash-0412-093000 -o ./to-share --all",
    )
    parser.add_argument("path", metavar="RUN", help="run directory, .stash file, or store of Parquet files")
    parser.add_out("NEW", "where the new one goes to; RUN stays as it is")
    parser.add_argument(
        "--in-place", action="store_true", help="replace the files of RUN itself; what is taken out is gone for good"
    )
    parser.add_argument("--paths", action="store_true", help="pseudonyms for files and folders; endings of names stay")
    parser.add_argument("--hosts", action="store_true", help="pseudonyms for hosts and their addresses")
    parser.add_argument("--all", action="store_true", help="both")
    return parser


def main(argv: Sequence[str]) -> int:
    """Scrub; say on stderr what was written and what was left."""
    arguments = parser().read(argv)
    end_on_terminate()
    if (arguments.out is None) != arguments.in_place:
        raise UsageError(
            "give either -o NEW or --in-place",
            hint=f"`stashtrace scrub {arguments.path} -o NEW` leaves {arguments.path} as it is",
        )
    source = existing_run(arguments.path)

    from stashtrace.cli.scrubbing_run import scrub_in_place, scrub_to

    screen = Screen()
    paths, hosts = arguments.paths or arguments.all, arguments.hosts or arguments.all
    with screen.progress("scrubbing") as bar:
        if arguments.in_place:
            report = scrub_in_place(source, paths=paths, hosts=hosts, progress=bar.step)
        else:
            report = scrub_to(source, Path(arguments.out), paths=paths, hosts=hosts, progress=bar.step)
    screen.say(f"wrote {report.written} files to {arguments.out or source}")
    if report.left:
        listed = ", ".join(report.left[:_NAMED]) + (
            f" and {len(report.left) - _NAMED} more" if report.left[_NAMED:] else ""
        )
        fate = "were left as they are" if arguments.in_place else "were not copied"
        screen.say(f"not of the run, {fate}: {listed}")
    for problem in report.problems[:_NAMED]:
        screen.say(f"warning: {problem}")
    if report.problems and arguments.in_place:
        raise FormatError(
            f"{len(report.problems)} files of {source} could not be scrubbed", hint="look at them before you share it"
        )
    return 0
