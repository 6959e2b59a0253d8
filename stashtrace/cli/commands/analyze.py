"""``stashtrace analyze NAME PATH...``: print one analysis of one or several runs."""

from __future__ import annotations

import argparse
import collections.abc
import contextlib
import inspect
import re
import shlex
import socket
import sys
import types
import typing
from argparse import Namespace
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from stashtrace.cli.find_runs import find_jobs, read_runs
from stashtrace.cli.option_values import read_names
from stashtrace.cli.parsing import TABLE_FORMATS, Parser, add_value, configure_logging, runs_or_newest
from stashtrace.cli.print_results import print_lines
from stashtrace.cli.print_tables import column_details, column_names, named_rows, screen_width, write_rows
from stashtrace.cli.screen import Screen
from stashtrace.errors import PluginError, UsageError
from stashtrace.loading.temporary_archives import named
from stashtrace.registry import Plugin, warn
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Table

if TYPE_CHECKING:
    from stashtrace.schema.trace import Trace

KEEP = ("keep", "drop")
#: Said in sentences unless a table is asked for; of a job that lives, after a look at its processes.
HANG = "hang"
#: What is said of a job that gets on.
_NOBODY_WAITS = "no rank has waited in a collective for more than a second"
_HELP_WIDTH = 80


def parser() -> Parser:
    """Return the parser of ``stashtrace analyze`` for the analyses of stashtrace itself."""
    from stashtrace.analysis.io.data_files import FILES

    parser = _common("Print one analysis of a run.", analyses_text())
    by = "a row for each step and rank, each rank, each rank and kind of step, or the run"
    parser.add_argument("--by", choices=("step", "rank", "step_kind", "run"), help=by)
    warmup = "count the warm-up steps too; stalls by step: all steps, and step -1 for the time outside of them"
    parser.add_argument("--warmup", action="store_true", default=None, help=warmup)
    parser.add_calibration()
    orphans = "GPU work launched before the recording: keep (default) or drop"
    parser.add_argument("--orphans", choices=KEEP, help=orphans)
    parser.add_argument("--last-step", choices=KEEP, help="GPU work of the last step: keep (default) or drop")
    add_value(parser, "--top", "N", "late: number of rows, costliest first (default 100)", type=int)
    center = "slowdown: compare with ranks that share the work evenly (mean, default), or without slow ranks (median)"
    parser.add_argument("--center", choices=("mean", "median"), help=center)
    add_value(parser, "--workers", "N", "store: threads or processes that share its ranks", type=int)
    add_value(parser, "--cluster", "ADDRESS", "store: Dask scheduler, as tcp://host:8786")
    files = parser.add_argument_group("analyses of files")
    per = "io_patterns, io_sizes: a row per file (default), directory or run"
    files.add_argument("--per", choices=("file", "directory", "run"), help=per)
    add_value(files, "--under", "DIR", "only files below DIR")
    kinds = "io_staging, io_cache, io_reuse: data (default) leaves out files of Python, its packages and the system"
    files.add_argument("--files", choices=FILES, help=kinds)
    add_value(files, "--tier-size", "SIZE", "io_staging: size of the fast tier, as in 100G")
    for name, text in (("tier", "the fast tier"), ("source", "the present storage (default: as measured)")):
        add_value(files, f"--{name}-latency", "TIME", f"time of an empty read of {text}, as in 80us")
        add_value(files, f"--{name}-bandwidth", "RATE", f"bandwidth of {text}, as in 2GB/s")
    add_value(files, "--cache-size", "SIZE", "io_cache: one size instead of a curve")
    add_value(files, "--block", "SIZE", "io_cache, io_reuse: what is cached as one: a size (default 1MiB) or 'file'")
    add_value(files, "--importance", "FILE", "io_cache: file with a line `path,weight` for each sample")
    return parser


def plugin_parser(name: str) -> tuple[Parser, dict[str, str]]:
    """Return the parser for an analysis of another package, and for each of its parameters the attribute of its value.

    Raises PluginError if the analysis cannot be loaded, or no options can be made of its signature.
    """
    from stashtrace.analysis.registry import find, plugins

    function = find(name)
    plugin = plugins()[name]
    described = f"{name}: {first_sentence(function) or 'an analysis'}. From {plugin.package}."
    # A parameter of the name `columns` is an option of the analysis.
    parser = _common(described, "", columns="columns" not in inspect.signature(function).parameters)
    return parser, add_options(parser, plugin, function)


def _common(description: str, epilog: str, *, columns: bool = True) -> Parser:
    parser = Parser("analyze", description, epilog)
    parser.add_argument("name", metavar="NAME", help="name of the analysis")
    parser.add_runs("; parts of one job are joined, several runs get a column path")
    parser.add_format(TABLE_FORMATS)
    parser.add_wide()
    if columns:
        add_value(parser, "--columns", "LIST", "only these columns, in this order, as in rank,stall_ns", read_names)
    else:
        parser.set_defaults(columns=None)
    parser.add_run()
    return parser


def analyses_text() -> str:
    """Return the list of all analyses, each below the question that it answers."""
    from stashtrace.analysis.registry import ANALYSES, NEEDS_GPU, QUESTIONS, SUMMARY

    texts = {name: f"{text} (GPU)" if name in NEEDS_GPU else text for name, _, text in ANALYSES}
    width = max(map(len, texts)) + 2
    lines = ["analyses, by question; (GPU): needs recorded GPU work", ""]
    for question, names in QUESTIONS:
        lines.append(question)
        if "findings" in names:
            lines.append(f"  {SUMMARY:<{width}}in words, as at the end of a run")
        lines += [f"  {name:<{width}}{texts[name]}" for name in names]
    placed = {name for _, names in QUESTIONS for name in names}
    rest = [f"  {name:<{width}}{text}" for name, text in texts.items() if name not in placed]
    return "\n".join([*lines, *(["Others:"] if rest else []), *rest])


def added_text() -> str:
    """Return the list of the analyses of other packages. Imports them all, and warns of those that cannot be loaded."""
    from stashtrace.analysis.registry import find, plugins

    texts: dict[str, dict[str, str]] = {}
    for name, plugin in plugins().items():
        try:
            texts.setdefault(plugin.package, {})[name] = first_sentence(find(name))
        except PluginError as error:
            warn(f"{error}; it is left out")
    width = max((len(name) for package in texts.values() for name in package), default=0) + 2
    lines = []
    for package, its_texts in texts.items():
        lines += ["", f"From {package}"]
        lines += [
            f"  {name:<{width}}{shorten(text, _HELP_WIDTH - 2 - width, placeholder=' ...')}".rstrip()
            for name, text in its_texts.items()
        ]
    return "\n".join(lines)


#: Options of analyses, by the name of the parameter.
_OPTIONS = (
    *("by", "warmup", "orphans", "last_step", "calibration", "top", "center"),
    *("per", "under", "files", "tier_size", "tier_latency", "tier_bandwidth", "source_latency", "source_bandwidth"),
    *("cache_size", "block", "importance"),
)


def main(argv: Sequence[str]) -> int:
    """Print the table of an analysis."""
    from stashtrace.analysis.registry import SUMMARY, find, unknown_options

    arguments, own = _read(argv)
    if arguments.name == SUMMARY:
        from stashtrace.cli.commands.summary import print_summary

        if arguments.format == "csv":
            raise UsageError(
                "a summary has several tables, and CSV holds one",
                hint="use --format json, or `stashtrace analyze findings`",
            )
        return print_summary(
            runs_or_newest(arguments.paths), arguments.run, "json" if arguments.format == "json" else "text"
        )
    _check_order(arguments)
    name, function = arguments.name, find(arguments.name)
    jobs = find_jobs(arguments.paths)
    if name == HANG and arguments.format == "table" and arguments.columns is None and not arguments.wide:
        for parts in jobs:
            print_lines([*([f"{named(parts[0])}:"] if len(jobs) > 1 else []), *_hang_lines(parts, arguments.run)])
        return 0

    values = {option: getattr(arguments, attribute) for option, attribute in own.items()}
    options: dict[str, Any] = {option: value for option, value in values.items() if value is not None}
    for option in unknown_options(function, options):
        raise UsageError(f"analysis {name!r} has no option --{option.replace('_', '-')}", hint="leave it out")
    rows: list[dict[str, Any]] = []
    columns: list[str] = []
    for parts in jobs:
        table, strings = _analyze(parts, name, options, arguments)
        extra = {"path": named(parts[0])} if len(jobs) > 1 else {}
        rows += named_rows(table, strings, extra)
        columns = column_names(table, tuple(extra))
    if arguments.columns is not None:
        columns = _chosen(columns, arguments.columns, name)
        rows = [{column: row[column] for column in columns} for row in rows]
    screen = Screen()
    if arguments.format == "table" and screen.interactive:
        screen.say(f"{name}: {table.schema.doc}\n")
    is_whole = arguments.wide or arguments.columns is not None
    width = None if is_whole else screen_width()
    write_rows(
        rows,
        columns,
        arguments.format,
        sys.stdout,
        width=width,
        keep_all=arguments.columns is not None,
        details=column_details(table.schema),
    )
    return 0


def _check_order(arguments: Namespace) -> None:
    """Raise UsageError if a run stands where the name of the analysis belongs."""
    from stashtrace.analysis.registry import ANALYSES, plugins

    known = {name for name, _, _ in ANALYSES}
    if arguments.name in known or not Path(arguments.name).exists() or arguments.name in plugins():
        return
    run, names = shlex.quote(arguments.name), [word for word in arguments.paths if word in known]
    hint = f"`stashtrace analyze {names[0] if names else 'stalls'} {run}`"
    if not names:
        hint += "; `stashtrace analyze --help` lists the names by question, `stashtrace summary` needs none"
    raise UsageError(f"{arguments.name} is a run: the name of an analysis stands first", hint=hint)


def _chosen(columns: Sequence[str], names: Sequence[str], analysis: str) -> list[str]:
    """Return the columns that were asked for, in the order in which they were.

    Raises UsageError if the table has no such column.
    """
    unknown = [name for name in names if name not in columns]
    if unknown:
        raise UsageError(f"{analysis} has no column {unknown[0]!r}", hint=f"it has {', '.join(columns)}")
    return list(dict.fromkeys(names))


def _read(argv: Sequence[str]) -> tuple[Namespace, dict[str, str]]:
    """Parse the arguments with the options of the analysis that they name; return where the value of each option is."""
    configure_logging(0)  # looking for plugins may warn before anything is parsed
    name = _named_plugin(argv)
    if name is not None:
        reader, own = plugin_parser(name)
        return reader.read(argv, intermixed=True), own
    reader = parser()
    if {"-h", "--help"} & set(argv):
        reader.epilog = f"{reader.epilog}\n{added_text()}".rstrip()
    return reader.read(argv, intermixed=True), {option: option for option in _OPTIONS}


def _named_plugin(argv: Sequence[str]) -> str | None:
    """Return the analysis of another package that the arguments name; None if they name one of stashtrace, or none.

    The parser depends on the analysis, so this looks for the first word that is the name of one before parsing.
    """
    from stashtrace.analysis.registry import ANALYSES, SUMMARY, plugins

    ours = {SUMMARY, *(name for name, _, _ in ANALYSES)}
    for word in argv:
        if word in ours:
            return None
        if not word.startswith("-") and word in plugins():
            return word
    return None


def _analyze(paths: list[str], name: str, options: dict[str, Any], arguments: Namespace) -> tuple[Table, StringPool]:
    """Run the analysis: on a store rank by rank if it can be divided, else on the whole trace in memory."""
    from stashtrace.store.layout import is_store

    source = paths[0]
    if len(paths) == 1 and is_store(source):
        from stashtrace.fleet import analyze as fleet
        from stashtrace.fleet.analyze import PLANS

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
        raise UsageError("--cluster needs a store", hint=f"make one: stashtrace export parquet {source} -o STORE")
    from stashtrace.analysis.registry import analyze

    trace = read_runs(paths, run_id=arguments.run)
    if name == HANG:
        trace = peek_if_stuck(trace, paths, arguments.run)
    return analyze(trace, name, **options), trace.strings


def peek_if_stuck(trace: Trace, paths: Sequence[str], run_id: str | None) -> Trace:
    """Return the trace, and where its job lives and stands still, with a look at the ranks that the others wait for."""
    from stashtrace.analysis.findings.ending.hang_table import ranks_to_look_at, threads_to_look_at
    from stashtrace.loading.peeks import peek_at

    for path in paths if _lives(paths, run_id) else ():
        ranks = ranks_to_look_at(trace)
        wanted = {process: tid for rank in ranks for process, tid in threads_to_look_at(trace, rank)}
        trace = peek_at(trace, path, wanted, run_id=run_id)
        if wanted:
            _keep_peeks(trace, path)
    return trace


def _keep_peeks(trace: Trace, path: str) -> None:
    """Keep what was seen in the run, as followers do: who reads it when the processes are gone knows it, too."""
    from stashtrace.files.run_facts import PEEKS
    from stashtrace.loading.peeks import facts_of_peeks
    from stashtrace.record.directory import update_host_facts

    with contextlib.suppress(OSError):  # the run of another user, or of a file system that is full
        update_host_facts(Path(path), socket.gethostname(), {PEEKS: facts_of_peeks(trace)})


def _lives(paths: Sequence[str], run_id: str | None) -> bool:
    """Return whether a process still records into a run; False for what is no run directory of our own."""
    from stashtrace.format.liveness import LiveRings
    from stashtrace.format.reader import open_run
    from stashtrace.loading.load import is_own_run

    live = LiveRings.now()
    return any(live.holds(p) for path in paths if is_own_run(path) for p in open_run(path, run_id=run_id).processes)


def _hang_lines(paths: Sequence[str], run_id: str | None) -> list[str]:
    """Return the sentences of `analyze hang`."""
    from stashtrace.summary.summary_text import describe_stuck

    trace = peek_if_stuck(read_runs(list(paths), run_id=run_id), paths, run_id)
    return describe_stuck(trace, lives=_lives(paths, run_id)) or [_NOBODY_WAITS]


# Options of an analysis of another package, derived from the signature of its function. ``*, limit_ns: int = 0, kind:
# Literal["read", "write"] | None = None`` becomes ``--limit-ns INT`` and ``--kind {read,write}``. The help is what the
# numpydoc section ``Parameters`` says.

#: Type of a parameter -> metavar of its option.
_SCALARS: dict[object, str] = {str: "TEXT", int: "INT", float: "NUMBER", Path: "FILE"}
_SEQUENCES = (list, tuple, collections.abc.Sequence, collections.abc.Collection, collections.abc.Iterable)
#: Begins attributes of plugin options, so that a parameter may be called ``name`` or ``paths``.
_DEST = "option_of_plugin_"
_UNIONS = (typing.Union, types.UnionType)


def add_options(parser: Parser, plugin: Plugin, function: Callable[..., object]) -> dict[str, str]:
    """Add an option for each parameter of an analysis but the first, which is the trace.

    Returns parameter -> attribute of the namespace with its value, which is None if the option is not given. Raises
    PluginError if a parameter has the name of an option that every analysis has, or is required and of no type that an
    option can have.
    """
    parameters = list(inspect.signature(function).parameters.values())[1:]
    hints = _hints(function)
    texts = parameter_texts(function)
    group = parser.add_argument_group(f"options of {plugin.name}")
    attributes: dict[str, str] = {}
    for parameter in parameters:
        if parameter.kind not in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            continue
        required = parameter.default is parameter.empty
        settings = _settings(hints.get(parameter.name, type(parameter.default)))
        if settings is None:
            if required:
                raise plugin.error(f"needs {parameter.name!r}, of a type that no option can have")
            continue  # for Python callers alone
        text = texts.get(parameter.name, "")
        if not required and parameter.default is not None:
            shown = {True: "yes", False: "no"}[parameter.default] if settings.get("action") else parameter.default
            text = f"{text} (default {shown})".strip()
        try:
            group.add_argument(
                "--" + parameter.name.replace("_", "-"),
                dest=_DEST + parameter.name,
                required=required,
                help=text.replace("%", "%%"),
                **settings,
            )
        except argparse.ArgumentError as error:
            raise plugin.error(
                f"has a parameter {parameter.name!r}, and every analysis has an option of this name"
            ) from error
        attributes[parameter.name] = _DEST + parameter.name
    return attributes


def parameter_texts(function: Callable[..., object]) -> dict[str, str]:
    """Return the description of each parameter, on one line, from the section ``Parameters`` of the docstring."""
    document = inspect.getdoc(function) or ""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^[^\n]+\n-{3,}$|\Z)", document, re.M | re.S)
    texts: dict[str, str] = {}
    names: list[str] = []
    for line in section[1].splitlines() if section else []:
        if line and not line.startswith(" "):
            names = [name.strip() for name in line.partition(":")[0].split(",")]
        elif line.strip():
            texts.update({name: f"{texts.get(name, '')} {line.strip()}".strip() for name in names})
    return {name: text.rstrip(".") for name, text in texts.items()}


def first_sentence(function: Callable[..., object]) -> str:
    """Return the first line of the docstring without its full stop; empty if there is none."""
    return (inspect.getdoc(function) or "").partition("\n")[0].strip().rstrip(".")


def _hints(function: Callable[..., object]) -> dict[str, Any]:
    """Return the types of the parameters, without those that only a type checker can resolve."""
    target = inspect.unwrap(function)
    try:
        return typing.get_type_hints(target)
    except Exception:  # annotations are any expression, and may name what is imported for type checkers alone
        hints: dict[str, Any] = {}
        scope = {**vars(typing), **getattr(target, "__globals__", {})}
        for name, annotation in getattr(target, "__annotations__", {}).items():
            with contextlib.suppress(Exception):  # then the type of the default counts
                hints[name] = eval(annotation, scope) if isinstance(annotation, str) else annotation
        return {name: hint for name, hint in hints.items() if not isinstance(hint, str)}


def _settings(hint: Any) -> dict[str, Any] | None:
    """Return the arguments of ``add_argument`` for values of a type; None if no option can have it."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS:
        kinds = [kind for kind in inner if kind is not type(None)]
        # `str | Path` and the like: the first type that an option can have.
        return next((settings for kind in kinds if (settings := _settings(kind)) is not None), None)
    if origin is typing.Literal:
        kind = type(inner[0])
        same = all(type(value) is kind for value in inner)
        return {"choices": inner, "type": kind} if same and kind in (str, int) else None
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if hint in _SCALARS:
        return {"type": hint, "metavar": _SCALARS[hint]}
    if origin in _SEQUENCES and inner and inner[0] in _SCALARS:
        return {
            "type": _list_reader(inner[0], tuple if origin is tuple else list),
            "metavar": f"{_SCALARS[inner[0]]},...",
        }
    return None


def _list_reader(kind: Callable[[str], Any], container: Callable[[Any], Any]) -> Callable[[str], Any]:
    """Return a reader of values with commas between them."""

    def read(text: str) -> Any:
        try:
            return container(kind(part.strip()) for part in text.split(",") if part.strip())
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not a list with commas: {error}") from error

    return read
