"""``stashtrace scrub RUN -o NEW``: take the secrets out of a run, so that it can be given to somebody else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stashtrace.cli.parsing import Parser, add_flag, existing_run
from stashtrace.cli.screen import Screen, end_on_terminate
from stashtrace.errors import FormatError, UsageError
from stashtrace.loading.temporary_archives import kind_of

_NAMED = 5


def parser() -> Parser:
    """Return the parser of ``stashtrace scrub``."""
    parser = Parser(
        "scrub",
        "Take secrets out of a run: values of secret arguments, variables that\n"
        "stashtrace does not store, users and queries of URLs, by the rules of\n"
        "docs/concepts/what-is-stored.md.\n"
        "With --paths and --hosts names become pseudonyms, each the same one\n"
        "everywhere. Summary and timeline are written again; every analysis gives the\n"
        "same numbers.",
        "example: stashtrace scrub ./stash-0412-093000 -o ./to-share --all",
    )
    parser.add_argument("path", metavar="RUN", help="run directory, .stash file, or store of Parquet files")
    parser.add_out("NEW", "where to write the scrubbed run; RUN stays as it is")
    add_flag(parser, "--in-place", "replace the files of RUN; what is taken out cannot be restored")
    add_flag(parser, "--paths", "pseudonyms for files and folders; suffixes stay")
    add_flag(parser, "--hosts", "pseudonyms for hosts and their addresses")
    add_flag(parser, "--all", "--paths and --hosts")
    return parser


def main(argv: Sequence[str]) -> int:
    """Scrub the run, and say on stderr what was written and what was left."""
    arguments = parser().read(argv)
    end_on_terminate()
    if (arguments.out is None) != arguments.in_place:
        raise UsageError(
            "give either -o NEW or --in-place",
            hint=f"`stashtrace scrub {arguments.path} -o NEW` leaves {arguments.path} as it is",
        )
    source = existing_run(arguments.path)
    if arguments.in_place and kind_of(Path(arguments.path)) is not None:
        raise UsageError(
            f"{arguments.path} is an archive, which is not written to",
            hint=f"`stashtrace scrub {arguments.path} -o NEW` makes a run directory",
        )

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
        screen.say(f"files that are not part of the run {fate}: {listed}")
    for problem in report.problems[:_NAMED]:
        screen.say(f"warning: {problem}")
    if report.problems and arguments.in_place:
        raise FormatError(
            f"{len(report.problems)} files of {source} could not be scrubbed",
            hint="read these files before you share the run",
        )
    return 0
