"""``stashtrace analyze NAME PATH...``: one analysis of one or several runs, on stdout."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from textwrap import shorten
from typing import Any

from stashtrace.cli.parsing import Parser, existing_run, speak_up
from stashtrace.cli.rows import FORMATS, column_names, named_rows, screen_width, write_rows
from stashtrace.cli.screen import Screen
from stashtrace.entry_points import warn
from stashtrace.errors import PluginError, UsageError
from stashtrace.loading.gather import is_one_job
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Table

BY = ("step", "rank", "step_kind", "run")
KEEP = ("keep", "drop")
PER = ("file", "directory", "run")
CENTERS = ("mean", "median")
_HELP_WIDTH = 80


def parser() -> Parser:
    """Options of ``stashtrace analyze``, for the analyses of stashtrace itself."""
    parser = _common("Print one analysis of a run.", analyses_text())
    parser.add_argument(
        "--by", choices=BY, help="rows per step and rank, per rank, per rank and kind of step, or per run"
    )
    _add_table_options(parser)
    parser.add_argument(
        "--calibration", metavar="FILE", help="of `stashtrace calibrate`; default calibration.toml in the run directory"
    )
    parser.add_argument(
        "--orphans", choices=KEEP, help="GPU work launched before the recording: counts (default), or is left out"
    )
    parser.add_argument("--last-step", choices=KEEP, help="GPU work of the last step: counts (default), or is left out")
    parser.add_argument("--top", metavar="N", type=int, help="rows of late, the costliest first (default 100)")
    parser.add_argument(
        "--center", choices=CENTERS, help="slowdown: work shared evenly (mean, the default), or slow ranks left out"
    )
    parser.add_argument("--workers", metavar="N", type=int, help="threads or processes for the ranks of a store")
    parser.add_argument("--cluster", metavar="ADDRESS", help="Dask scheduler that shares them, as tcp://host:8786")
    _add_file_options(parser)
    _add_run_option(parser)
    return parser


def plugin_parser(name: str) -> tuple[Parser, dict[str, str]]:
    """Options of ``stashtrace analyze`` for an analysis of another package, and where the values of its own ones are.

    Raises
    ------
    PluginError
        If the analysis cannot be loaded, or no options can be made of its signature.
    """
    from stashtrace.analysis.registry import find, plugins
    from stashtrace.cli.derived_options import add_options, first_sentence

    function = find(name)
    plugin = plugins()[name]
    parser = _common(f"{name}: {first_sentence(function) or 'an analysis'}. From {plugin.package}.", "")
    _add_table_options(parser)
    _add_run_option(parser)
    return parser, add_options(parser, plugin, function)


def _common(description: str, epilog: str) -> Parser:
    parser = Parser("analyze", description, epilog)
    parser.add_argument("name", metavar="NAME", help="which analysis")
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="run directory, or files of another tool; parts of one job are joined, several runs told by path",
    )
    return parser


def _add_table_options(parser: Parser) -> None:
    parser.add_argument("--format", choices=FORMATS, default="table", help="aligned text (default), JSON rows or CSV")
    parser.add_argument("--wide", action="store_true", help="all columns, also those that the terminal has no room for")


def _add_run_option(parser: Parser) -> None:
    parser.add_argument("--run", metavar="ID", help="which run, if the directory holds several")


def analyses_text() -> str:
    """All analyses, below the questions that they answer."""
    from stashtrace.analysis.registry import ANALYSES, NEEDS_GPU, QUESTIONS, SUMMARY

    texts = {name: f"{text} (GPU)" if name in NEEDS_GPU else text for name, _, text in ANALYSES}
    width = max(map(len, texts)) + 2
    lines = ["analyses, by the question they answer; (GPU): needs recorded GPU work", ""]
    for question, names in QUESTIONS:
        lines.append(question)
        if "findings" in names:
            lines.append(f"  {SUMMARY:<{width}}in words, as at the end of a run")
        lines += [f"  {name:<{width}}{texts[name]}" for name in names]
    placed = {name for _, names in QUESTIONS for name in names}
    rest = [f"  {name:<{width}}{text}" for name, text in texts.items() if name not in placed]
    return "\n".join([*lines, *(["Others:"] if rest else []), *rest])


def added_text() -> str:
    """The analyses of other packages, by package; one that cannot be loaded is a warning. Imports all of them."""
    from stashtrace.analysis.registry import find, plugins
    from stashtrace.cli.derived_options import first_sentence

    texts: dict[str, dict[str, str]] = {}
    for name, plugin in plugins().items():
        try:
            texts.setdefault(plugin.package, {})[name] = first_sentence(find(name))
        except PluginError as error:
            warn(f"{error}; it is left out")
    width = max((len(name) for package in texts.values() for name in package), default=0) + 2
    lines = []
    for package, named in texts.items():
        lines += ["", f"From {package}"]
        lines += [
            f"  {name:<{width}}{shorten(text, _HELP_WIDTH - 2 - width, placeholder=' ...')}".rstrip()
            for name, text in named.items()
        ]
    return "\n".join(lines)


#: Options of the analyses of files.
FILE_OPTIONS = (
    "per",
    "under",
    "files",
    "tier_size",
    "tier_latency",
    "tier_bandwidth",
    "source_latency",
    "source_bandwidth",
    "cache_size",
    "block",
    "importance",
)


def _add_file_options(parser: Parser) -> None:
    from stashtrace.analysis.io.data_files import FILES

    files = parser.add_argument_group("analyses of files")
    files.add_argument("--per", choices=PER, help="io_patterns, io_sizes: rows per file (default), directory or run")
    files.add_argument("--under", metavar="DIR", help="only files below DIR")
    files.add_argument(
        "--files",
        choices=FILES,
        help="io_staging, io_cache, io_reuse: data (default) leaves out those of Python, its packages and the system",
    )
    files.add_argument("--tier-size", metavar="SIZE", help="io_staging: room on the fast tier, as 100G")
    for which, text in (("tier", "the fast tier"), ("source", "where the files are now (default: as measured)")):
        files.add_argument(f"--{which}-latency", metavar="TIME", help=f"an empty read of {text}, as 80us")
        files.add_argument(f"--{which}-bandwidth", metavar="RATE", help="its bandwidth, as 2GB/s")
    files.add_argument("--cache-size", metavar="SIZE", help="io_cache: one size instead of a curve")
    files.add_argument("--block", metavar="SIZE", help="io_cache, io_reuse: unit of the cache, or 'file' (1MiB)")
    files.add_argument("--importance", metavar="FILE", help="io_cache: a line `path,weight` for each sample")


def main(argv: Sequence[str]) -> int:
    """Print the table of one analysis."""
    from stashtrace.analysis.registry import SUMMARY, find, unknown_options

    arguments, own = _read(argv)
    if arguments.name == SUMMARY:
        from stashtrace.cli.summary import print_summary

        if arguments.format == "csv":
            raise UsageError(
                "a summary is several tables, CSV is one", hint="use --format json, or `stashtrace analyze findings`"
            )
        return print_summary(arguments.paths, arguments.run, "json" if arguments.format == "json" else "text")
    name = known_analysis(arguments.name)
    paths = [str(existing_run(p)) for p in arguments.paths]

    chosen = {option: getattr(arguments, place) for option, place in own.items()}
    options: dict[str, Any] = {option: value for option, value in chosen.items() if value is not None}
    for option in unknown_options(find(name), options):
        raise UsageError(f"analysis {name!r} knows no --{option.replace('_', '-')}", hint="leave it out")
    sources: list[str | list[str]] = list(paths)
    if len(paths) > 1 and is_one_job([Path(p) for p in paths]):
        sources = [paths]
    rows: list[dict[str, Any]] = []
    columns: list[str] = []
    about = ""
    for source in sources:
        table, strings = _analyzed(source, name, options, arguments)
        extra = {"path": source} if len(sources) > 1 else {}
        about = table.schema.doc
        rows += named_rows(table, strings, extra)
        columns = column_names(table, tuple(extra))
    screen = Screen()
    if arguments.format == "table" and screen.interactive:
        screen.say(f"{name}: {about}\n")
    write_rows(rows, columns, arguments.format, sys.stdout, width=None if arguments.wide else screen_width())
    return 0


def _read(argv: Sequence[str]) -> tuple[Namespace, dict[str, str]]:
    """The command line, read with the options of the analysis that it names, and where it has the values of these."""
    speak_up(0)  # to find an analysis may warn of others, before anything is parsed
    name = _named_plugin(argv)
    if name is not None:
        reader, own = plugin_parser(name)
        return reader.read(argv), own
    reader = parser()
    if {"-h", "--help"} & set(argv):
        reader.epilog = f"{reader.epilog}\n{added_text()}".rstrip()
    known = ("by", "orphans", "last_step", "calibration", "top", "center", *FILE_OPTIONS)
    return reader.read(argv), dict(zip(known, known, strict=True))


def _named_plugin(argv: Sequence[str]) -> str | None:
    """The analysis of another package that a command line names; None if it names one of ours, or none at all.

    Options of an analysis are known only once it is, so the first word that is the name of any analysis counts.
    """
    from stashtrace.analysis.registry import ANALYSES, SUMMARY, plugins

    ours = {SUMMARY, *(name for name, _, _ in ANALYSES)}
    for word in argv:
        if word in ours:
            return None
        if not word.startswith("-") and word in plugins():
            return word
    return None


def _analyzed(
    source: str | list[str], name: str, options: dict[str, Any], arguments: Namespace
) -> tuple[Table, StringPool]:
    """The table: of a store rank by rank where the analysis can be divided, else of everything in memory."""
    from stashtrace.store.layout import is_store

    if isinstance(source, str) and is_store(source):
        from stashtrace.fleet import analyze as fleet
        from stashtrace.fleet.plans import PLANS

        if getattr(arguments, "cluster", None) or (name in PLANS and find_spec("dask") is not None):
            with Screen().progress(name) as progress:
                return fleet.analyze(
                    source,
                    name,
                    cluster=arguments.cluster,
                    workers=arguments.workers,
                    processes=True,
                    progress=lambda done, ranks: progress.step(done / max(ranks, 1), f"{done} of {ranks} ranks"),
                    **options,
                )
    elif getattr(arguments, "cluster", None):
        raise UsageError("--cluster works on a store", hint=f"make one: stashtrace export parquet {source} -o STORE")
    from stashtrace.analysis.registry import analyze
    from stashtrace.cli.loading import load_watched

    trace = load_watched(source, run_id=arguments.run)
    return analyze(trace, name, **options), trace.strings


def known_analysis(name: str) -> str:
    """Return the name if there is such an analysis.

    Raises
    ------
    UsageError
        If not; the hint names the nearest.
    """
    from difflib import get_close_matches

    from stashtrace.analysis.registry import ANALYSES, plugins

    names = [known for known, _, _ in ANALYSES]
    if name in names or name in plugins():
        return name
    names += plugins()
    near = get_close_matches(name, names, n=1)
    hint = f"did you mean `stashtrace analyze {near[0]}`?" if near else "choose from: " + ", ".join(names)
    raise UsageError(f"no analysis named {name!r}", hint=hint)
