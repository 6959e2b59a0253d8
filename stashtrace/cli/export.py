"""``stashtrace export FORMAT PATH -o FILE``: the time line for another tool."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stashtrace.cli.parsing import Parser, existing_run, speak_up
from stashtrace.cli.screen import Screen, end_on_terminate
from stashtrace.errors import UsageError
from stashtrace.record.directory import rights_of_run
from stashtrace.units import bytes_text


def parser() -> Parser:
    """Options of ``stashtrace export``."""
    from stashtrace.exporters.registry import EXPORTERS

    listed = "\n".join(f"  {name:<14}{text}" for name, _, text in EXPORTERS)
    parser = Parser("export", "Write the time line of a run for another tool.", f"formats:\n{listed}")
    parser.add_argument("exporter", metavar="FORMAT", help="one of the formats below")
    parser.add_argument("path", metavar="PATH", help="run directory, .stash file, or files of another tool")
    parser.add_out("FILE", "file or, of store and chakra, folder to write", required=True)
    parser.add_argument("--ranks", metavar="LIST", type=read_ranks, help="only these ranks: 0,2,8-15")
    parser.add_argument("--steps", metavar="A:B", type=read_range, help="only steps A to B-1")
    parser.add_argument("--window", metavar="A:B", type=read_window, help="only seconds A to B of the run")
    parser.add_argument(
        "--table",
        metavar="NAME",
        help="a table of the trace or an analysis (csv, arrow: stalls; parquet: all tables, into a store)",
    )
    parser.add_argument(
        "--loaders",
        choices=("waits", "nodes"),
        help="chakra: waits for batches of workers as measured (default), or the batches as nodes",
    )
    parser.add_argument("--run", metavar="ID", help="which run, if the directory holds several")
    return parser


def main(argv: Sequence[str]) -> int:
    """Write the file; say so on stderr."""
    from stashtrace.exporters.registry import known_exporter, plugins

    reader = parser()
    if {"-h", "--help"} & set(argv):
        speak_up(0)
        added = [f"  {name:<14}from {plugin.package}" for name, plugin in plugins().items()]
        reader.epilog = "\n".join([reader.epilog or "", *added])
    arguments = reader.read(argv)
    known_exporter(arguments.exporter)
    end_on_terminate()
    path = str(existing_run(arguments.path))

    from stashtrace.cli.loading import load_watched
    from stashtrace.exporters.registry import export
    from stashtrace.loading.load import is_foreign
    from stashtrace.store.layout import is_store

    given = {
        "ranks": arguments.ranks,
        "steps": arguments.steps,
        "window_ns": arguments.window,
        "table": arguments.table,
        "loaders": arguments.loaders,
    }
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
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
    else:
        written = export(load_watched(path, run_id=arguments.run), name, arguments.out, **options)
    screen.say(f"wrote {arguments.out} ({bytes_text(written.file_bytes)})")
    for note in written.notes:
        screen.say(note)
    return 0


def read_ranks(text: str) -> list[int]:
    """``0,2,8-15`` as a list."""
    ranks: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            ranks += range(int(first), int(last if dash else first) + 1)
    except ValueError as error:
        raise UsageError(f"{text!r} is not a list of ranks", hint="for example --ranks 0,2,8-15") from error
    return ranks


def read_range(text: str) -> tuple[int, int]:
    """``A:B`` as two whole numbers; an end that is left out is open."""
    first, colon, last = text.partition(":")
    try:
        found = int(first or 0), int(last or 2**31)
    except ValueError:
        colon = ""
    if not colon or found[0] >= found[1]:
        raise UsageError(f"{text!r} is not a range A:B with A < B", hint="for example --steps 10:20")
    return found


def read_window(text: str) -> tuple[int, int]:
    """``A:B`` in seconds as nanoseconds from the begin of the run."""
    first, colon, last = text.partition(":")
    try:
        found = round(float(first or 0) * 1e9), round(float(last or 1e9) * 1e9)
    except ValueError:
        colon = ""
    if not colon or found[0] >= found[1]:
        raise UsageError(f"{text!r} is not a range A:B with A < B", hint="for example --window 1.5:4")
    return found
