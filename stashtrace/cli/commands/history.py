"""``stashtrace history DIR [QUESTION]``: what the runs of weeks say of hosts, commits, neighbours and cost."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stashtrace.cli import print_results
from stashtrace.cli.option_values import read_hours, read_percent, read_price
from stashtrace.cli.parsing import ALL_FORMATS, Parser, add_value, existing_run
from stashtrace.cli.print_tables import column_details, column_names, screen_width, write_rows
from stashtrace.cli.screen import Screen
from stashtrace.errors import UsageError
from stashtrace.text.prose import count_noun

if TYPE_CHECKING:
    from stashtrace.lab.history.answers import Answer
    from stashtrace.lab.history.run_files import Place
    from stashtrace.lab.history.run_totals import RunTotals
    from stashtrace.schema.table import Table

QUESTIONS = ("fleet", "hosts", "commits", "interference", "costs", "runs")
BY = ("job", "host", "day", "outcome")
#: Of each question's table on a screen; JSON and CSV have all rows.
_SHOWN_ROWS = 20
_EPILOG = """`stashtrace run --history DIR -- CMD` adds a run when it ends. DIR may be a URL
that fsspec knows (s3://..., gs://...). Without QUESTION, the answers to all of
them in sentences:
  fleet         the time of all runs, by --by job, host, day or outcome
  hosts         which host is late again and again, beyond chance
  commits       which commit made a job slower, as `stashtrace check` judges
  interference  whose checkpoints slowed whose reads on one file system
  costs         what each cause takes: machine hours, money, energy
  runs          the runs, one a line

example: stashtrace history s3://team/history hosts"""


def parser() -> Parser:
    """Return the parser of ``stashtrace history``."""
    parser = Parser("history", "Ask many runs what changed over time: late hosts, slow commits, cost.", _EPILOG)
    parser.usage = "stashtrace history [options] DIR [QUESTION]"
    parser.add_argument("place", metavar="DIR", help="folder or URL that `run --history` fills")
    words = f"one table: {', '.join(QUESTIONS)} (default: all in sentences)"
    parser.add_argument("question", metavar="QUESTION", nargs="?", choices=QUESTIONS, help=words)
    add_value(parser, "--add", "RUN", "add a run, by directory or URL; may be repeated", action="append", default=[])
    add_value(parser, "--since", "TIME", "only runs that began so long ago or later, as in 30d, 12h", read_hours)
    parser.add_argument("--by", choices=BY, default=BY[0], help="what fleet groups runs by (default: job)")
    limit = "growth of the step that commits allows, in percent (default 5)"
    add_value(parser, "--limit", "PERCENT", limit, read_percent, default=5.0)
    prices = parser.add_argument_group("instances and prices")
    catalog = "TOML file that adds instances, or changes keys of known ones; may be repeated"
    add_value(prices, "--catalog", "FILE", catalog, action="append", default=[])
    price = "price of an instance for an hour; may be repeated"
    add_value(prices, "--price", "NAME=VALUE", price, read_price, action="append", default=[])
    add_value(prices, "--instance", "NAME", "instance of runs that do not say theirs", default="")
    add_value(parser, "--cluster", "ADDRESS", "read on a Dask cluster: its scheduler, as tcp://host:8786")
    parser.add_plot("the runs on an axis of dates", ".svg")
    add_value(parser, "--html", "FILE", "write the answers as a web page")
    parser.add_format(ALL_FORMATS)
    parser.add_wide()
    return parser


def main(argv: Sequence[str]) -> int:
    """Add runs if asked to, read the history, and answer."""
    arguments = parser().read(argv, intermixed=True)
    if arguments.format == "csv" and arguments.question is None:
        raise UsageError("CSV is of one table", hint=f"name a question: {', '.join(QUESTIONS)}")
    print_results.check_picture(arguments.plot)
    if arguments.html:
        print_results.open_output(arguments.html, "history.html", option="--html")

    from stashtrace.lab.history.run_files import Place

    place, screen = Place(arguments.place), Screen()
    for run in arguments.add:
        _add(place, run, screen)
    if arguments.add and arguments.question is None and not arguments.plot and not arguments.html:
        return 0
    totals = _totals(place, arguments, screen)
    for sentence in totals.history.left_out:
        screen.say(f"warning: {sentence}")

    from stashtrace.lab.history.answers import answers, history_blocks, history_page, history_picture

    names = [arguments.question] if arguments.question else [name for name in QUESTIONS if name != "runs"]
    found = answers(totals, names, by=arguments.by, limit_percent=arguments.limit)
    with print_results.ignore_broken_pipe():
        if arguments.format == "markdown":
            print_results.print_blocks("markdown", history_blocks(totals, found), None)
        else:
            _print(found, totals, arguments)
    if arguments.html:
        print_results.write_output(Path(arguments.html), history_page(totals, found), option="--html")
        screen.say(f"wrote {arguments.html}")
    print_results.write_picture(arguments.plot, history_picture, totals, found)
    return 0


def _add(place: Place, run: str, screen: Screen) -> None:
    from stashtrace.cli.find_runs import read_runs
    from stashtrace.lab.history.rows_of_run import add_run
    from stashtrace.loading.gather import is_wanted
    from stashtrace.record.remote import fetch, is_url

    with tempfile.TemporaryDirectory(prefix="stash-fetched-") as fetched:
        if is_url(run):
            fetch(run, Path(fetched), wanted=is_wanted)
        directory = Path(fetched) if is_url(run) else existing_run(run)
        place.check_writable()
        screen.say(f"{run}: {add_run(place, read_runs(str(directory), quiet=True), directory)}")


def _totals(place: Place, arguments: argparse.Namespace, screen: Screen) -> RunTotals:
    from stashtrace.lab.history.gather import read_history
    from stashtrace.lab.history.run_totals import RunTotals
    from stashtrace.lab.recommend.instance_catalog import load_catalog

    catalog = load_catalog(arguments.catalog)
    for name, price in arguments.price:
        catalog = catalog.with_price(name, price)
    with screen.progress("reading") as progress:
        history = read_history(
            place,
            since_hours=arguments.since,
            cluster=arguments.cluster,
            progress=lambda done, count: progress.step(done / count, count_noun(count, "run")),
        )
    return RunTotals(history, catalog, arguments.instance)


def _print(found: Sequence[Answer], totals: RunTotals, arguments: argparse.Namespace) -> None:
    if arguments.question is None:
        from stashtrace.lab.history.answers import overview_blocks

        print_results.print_blocks(arguments.format, overview_blocks(found), _document(found, totals))
        return
    (one,) = found
    names = column_names(one.table)
    rows = list(one.table.rows())
    if arguments.format == "table":
        print_results.print_lines([*one.sentences, *([""] if one.sentences else [])])
        rows = [_shown(row, one.table) for row in rows[:_SHOWN_ROWS]]
    width = None if arguments.wide else screen_width()
    details = column_details(one.table.schema)
    write_rows(rows, names, arguments.format, sys.stdout, width=width, details=details)
    if arguments.format == "table" and len(one.table) > len(rows):
        print_results.print_lines([f"{len(one.table) - len(rows):,} more rows: --format csv or json has all"])


def _document(found: Sequence[Answer], totals: RunTotals) -> dict[str, Any]:
    return {
        "history": totals.history.place.text,
        "runs_count": len(totals.history),
        "currency": totals.currency,
        "left_out": list(totals.history.left_out),
        **{one.name: {"sentences": one.sentences, "rows": list(one.table.rows())} for one in found},
    }


def _shown(row: dict[str, Any], table: Table) -> dict[str, Any]:
    """Return a row of an aligned table: commits, commands and kinds as people write them, ``-`` for unknown ones."""
    from stashtrace.lab.history.answers import shown_cell

    worded = ("commit", "command", "kind")
    return {
        column.name: shown_cell(column, value) if column.role in worded or value == column.missing != 0 else value
        for column, value in zip(table.schema.columns, row.values(), strict=True)
    }
