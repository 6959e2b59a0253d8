"""``stashtrace export FORMAT PATH -o FILE``: write a run in the format of another tool."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from stashtrace.cli.parsing import (
    NEWEST,
    RUN_OR_FILES,
    STDOUT,
    Parser,
    add_value,
    configure_logging,
    existing_run,
    newest_run,
    read_cut,
)
from stashtrace.cli.screen import Screen, end_on_terminate
from stashtrace.errors import UsageError
from stashtrace.record.directory import rights_of_run
from stashtrace.text.units import bytes_text

#: Formats that are folders, and those that a terminal can show.
_FOLDERS, _TEXTS = ("store", "chakra"), ("csv",)


def parser() -> Parser:
    """Return the parser of ``stashtrace export``."""
    from stashtrace.exporters.registry import EXPORTERS

    listed = "\n".join(f"  {name:<14}{text}" for name, _, text in EXPORTERS)
    parser = Parser("export", "Write a run in the format of another tool.", f"formats:\n{listed}")
    parser.add_argument("exporter", metavar="FORMAT", help="one of the formats below")
    text = f"{RUN_OR_FILES}, or a .stash file (default: {NEWEST})"
    parser.add_argument("path", metavar="PATH", nargs="?", help=text)
    parser.add_out("FILE", "file to write, - for stdout; a folder for store and chakra (required)")
    parser.add_cut()
    table = "table of the trace, or analysis (default for csv and arrow: stalls; for parquet: all, as a store)"
    add_value(parser, "--table", "NAME", table)
    loaders = "chakra: keep waits for batches as measured (default), or write the batches as nodes"
    parser.add_argument("--loaders", choices=("waits", "nodes"), help=loaders)
    parser.add_run()
    return parser


def main(argv: Sequence[str]) -> int:
    """Write the file, and say so on stderr."""
    from stashtrace.exporters.registry import known_exporter, plugins

    reader = parser()
    if {"-h", "--help"} & set(argv):
        configure_logging(0)
        added = [f"  {name:<14}from {plugin.package}" for name, plugin in plugins().items()]
        reader.epilog = "\n".join([reader.epilog or "", *added])
    arguments = reader.read(argv, intermixed=True)
    _check_order(arguments.exporter, arguments.path)
    known_exporter(arguments.exporter)
    if arguments.out is None:
        raise UsageError("-o says where to write, and is missing", hint="as in -o run.pftrace, or -o - for stdout")
    if arguments.out in STDOUT:
        _check_stdout(arguments.exporter, arguments.table)
    end_on_terminate()
    path = str(existing_run(arguments.path or newest_run()))

    from stashtrace.cli.find_runs import read_runs
    from stashtrace.exporters.registry import export
    from stashtrace.loading.load import is_foreign
    from stashtrace.store.layout import is_store

    given = {"table": arguments.table, "loaders": arguments.loaders}
    options = read_cut(arguments) | {name: value for name, value in given.items() if value is not None}
    screen = Screen()
    name = arguments.exporter
    if name == "parquet" and arguments.table is None:
        name = "store"
    if name == "store" and not is_store(path) and not is_foreign(path):
        from stashtrace.exporters.registry import check_options
        from stashtrace.exporters.store import export_store, store_run

        check_options(name, export_store, options)
        run = Path(path) if Path(path).is_dir() else Path(path).parent
        with rights_of_run(run), screen.progress("store") as progress:
            written = store_run(
                path, Path(arguments.out), ranks=arguments.ranks, run_id=arguments.run, progress=progress.step
            )
    elif arguments.out in STDOUT:
        trace = read_runs(path, run_id=arguments.run)
        with tempfile.TemporaryDirectory(prefix="stashtrace-export-") as folder:
            written = export(trace, name, Path(folder, "stdout"), **options)
            _copy_to_stdout(written.path)
        for note in written.notes:
            screen.say(note)
        return 0
    else:
        written = export(read_runs(path, run_id=arguments.run), name, arguments.out, **options)
    screen.say(f"wrote {arguments.out} ({bytes_text(written.file_bytes)})")
    for note in written.notes:
        screen.say(note)
    return 0


def _check_order(name: str, path: str | None) -> None:
    """Raise UsageError if a run stands where the format belongs."""
    from stashtrace.exporters.registry import EXPORTERS

    if path in [known for known, _, _ in EXPORTERS] and Path(name).exists():
        hint = f"`stashtrace export {path} {shlex.quote(name)} -o FILE`"
        raise UsageError(f"{name} is a run: the format stands first", hint=hint)


def _check_stdout(name: str, table: str | None) -> None:
    """Raise UsageError for formats that cannot go to stdout as it is."""
    from stashtrace.exporters.registry import EXPORTERS

    if name in _FOLDERS or (name == "parquet" and table is None):
        hint = " or with --table NAME for one file" if name == "parquet" else ""
        raise UsageError(f"{name} writes a folder, which stdout cannot hold", hint=f"name it with -o{hint}")
    if sys.stdout.isatty() and name not in _TEXTS and name in [known for known, _, _ in EXPORTERS]:
        raise UsageError(
            f"{name} is binary, and stdout is a terminal", hint="redirect it (> FILE), or name a file with -o"
        )


def _copy_to_stdout(path: Path) -> None:
    """Write what an exporter wrote to stdout: its bytes, or on a terminal its text in visible form."""
    if path.is_dir():
        raise UsageError("the format is a folder, which stdout cannot hold", hint="name it with -o")
    if sys.stdout.isatty():
        with path.open(encoding="utf-8", errors="backslashreplace", newline="") as text:
            sys.stdout.writelines(text)
        return
    sys.stdout.flush()
    with path.open("rb") as content:
        shutil.copyfileobj(content, sys.stdout.buffer)
    sys.stdout.buffer.flush()
