"""``stashtrace merge DIR...``: merge a run; directories of several hosts are gathered first."""

from __future__ import annotations

import contextlib
import posixpath
import tempfile
from collections.abc import Sequence
from pathlib import Path

from stashtrace.cli.merging import merge_and_report, short_path
from stashtrace.cli.parsing import Parser, existing_run
from stashtrace.cli.screen import Screen, end_on_terminate
from stashtrace.errors import OutputError, UsageError
from stashtrace.files.whole_files import written_to
from stashtrace.loading.gather import fold_launchers, gather, is_wanted, run_directories
from stashtrace.loading.temporary_archives import kind_of
from stashtrace.record.directory import bring_home, left_on_scratch, rights_of_run, trace_files
from stashtrace.record.launchers import end_turns
from stashtrace.record.remote import fetch, is_url
from stashtrace.text.prose import count_noun


def parser() -> Parser:
    """Return the parser of ``stashtrace merge``."""
    parser = Parser(
        "merge",
        "Merge the files that the processes of a run wrote, and print the summary.\n"
        "`stashtrace run` does this at its end; it is needed after an interrupt, and for\n"
        "directories of several hosts: files of the further ones are copied into the\n"
        "first, or all into --out. DIR may also be a folder of run directories, or the\n"
        "URL of either.",
        "example: stashtrace merge ./stash-node00 ./stash-node01",
    )
    parser.add_argument(
        "paths", metavar="DIR", nargs="+", help="run directory or URL; further ones are parts of the same job"
    )
    parser.add_out("DIR", "directory for the merged run (default: the first DIR)")
    parser.add_run()
    return parser


def main(argv: Sequence[str]) -> int:
    """Merge the run and print its summary."""
    arguments = parser().read(argv)
    end_on_terminate()
    screen = Screen()
    local = [existing_run(path) for path in arguments.paths if not is_url(path)]
    target = _target(arguments.paths, arguments.out)
    with contextlib.ExitStack() as until_gathered:
        for url in filter(is_url, arguments.paths):
            fetched = tempfile.TemporaryDirectory(prefix="stash-fetched-", dir=target.absolute().parent)
            local.append(Path(until_gathered.enter_context(fetched)))
            _fetch(url, local[-1], screen)
        for path in local:
            for records in left_on_scratch(path):
                screen.say(f"stashtrace: taking the records that were left in {records}")
                bring_home(records, path)
        sources = [directory for path in local for directory in run_directories(path)]
        if len(sources) > 1 or not (target.exists() and sources[0].samefile(target)):
            with rights_of_run(sources[0]), written_to(target, "choose another directory with --out"):
                gather(target, sources, screen.say)
    if any(target.glob("launch.*.json")):
        fold_launchers(target)
        end_turns(target)
    unwritten = merge_and_report(target, screen, shown=short_path(target), run_id=arguments.run)
    if unwritten:
        raise OutputError(
            f"{count_noun(len(unwritten), 'file')} of the merged run could not be written",
            hint=f"nothing recorded is lost: make room, then `stashtrace merge {short_path(target)}` writes them",
        )
    return 0


def _fetch(url: str, place: Path, screen: Screen) -> None:
    with screen.progress("fetching") as bar:
        fetch(url, place, wanted=is_wanted, progress=lambda done, total: bar.step(done / total, f"{done} of {total}"))


def _target(paths: Sequence[str], out: str | None) -> Path:
    """Return the directory for the merged run.

    Raises UsageError if a directory that a URL would be fetched into holds something else, or the first path is an
    archive.
    """
    if out is not None:
        return Path(out)
    if not is_url(paths[0]):
        first = existing_run(paths[0])
        if kind_of(Path(paths[0])) is not None:
            raise UsageError(f"{paths[0]} is an archive, which is not written to", hint="give a directory with --out")
        return first if first.is_dir() else first.parent
    name = posixpath.basename(paths[0].rstrip("/")) or "stash-fetched"
    target = Path(name)
    if target.exists() and not trace_files(target):
        raise UsageError(f"{target} exists and is not a run directory", hint="choose another with `--out DIR`")
    return target
