"""What the parsers of all commands share: layout, common options, errors as UsageError.

argparse is imported here, and therefore only once a command has been chosen.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from stashtrace.cli.option_values import read_ranks, read_steps, read_window, refusal
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.text.prose import wrap
from stashtrace.text.visible import visible_line

#: Long names of the option that says where to write; the first is the documented one.
OUT_OPTIONS = ("--out", "--output")
#: What ``-o`` takes for stdout, where a command writes a file.
STDOUT = ("-", "/dev/stdout")
#: Formats of answers that are a table, and of those that are more than one.
TABLE_FORMATS = ("table", "json", "csv")
TEXT_FORMATS = ("table", "json")
#: Of answers that are blocks.
DOCUMENT_FORMATS = ("table", "markdown", "json")
#: Of answers that are blocks around a table.
ALL_FORMATS = (*DOCUMENT_FORMATS, "csv")
#: What is read where no run is named; see :func:`newest_run`.
NEWEST = "the newest ./stash-*"
#: What most commands read.
RUN_OR_FILES = "run directory, or files of another tool"
_FORMAT_WORDS = {
    "line": "line",
    "table": "text (default)",
    "text": "text (default)",
    "html": "HTML (default)",
    "json": "JSON",
    "csv": "CSV",
    "markdown": "Markdown",
}
_WIDTH = 79
#: A name is taken for another one, mistyped, from this likeness on.
_NEAR = 0.75


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises instead of exiting, and knows the options that several commands have."""

    def __init__(self, command: str, description: str, epilog: str = "", *, usage: str | None = None) -> None:
        super().__init__(
            prog=f"stashtrace {command}",
            usage=usage,
            description=description,
            epilog=epilog,
            formatter_class=_Formatter,
            allow_abbrev=False,
        )
        common = self.add_argument_group("common options")
        common.add_argument("-v", "--verbose", action="count", default=0, help="say more on stderr; twice for details")
        common.add_argument("--debug", action="store_true", help="show the Python traceback of an error")

    def error(self, message: str) -> NoReturn:
        """Raise what argparse found wrong as UsageError."""
        shows = "--help-all" if "--help-all" in self._option_string_actions else "--help"
        raise UsageError(f"{self.prog}: {message}", hint=f"`{self.prog} {shows}` shows the options")

    def print_help(self, file: Any = None) -> None:
        """Write the help; argparse would say nothing of a stdout that cannot be written to."""
        stream = sys.stdout if file is None else file
        stream.write(self.format_help())
        stream.flush()

    def hide_all_but(self, names: Collection[str]) -> None:
        """Leave options out of the help unless they have one of these names; ``--help-all`` shows all of them."""
        kept = {*names, "--help", "--help-all", "--verbose", "--debug"}
        hidden = [action for action in self._actions if action.option_strings and not kept & {*action.option_strings}]
        for action in hidden:
            action.help = argparse.SUPPRESS
        more = f"`{self.prog} --help-all` shows {len(hidden)} more options"
        self.epilog = f"{self.epilog}\n\n{more}" if self.epilog else more

    def add_out(self, metavar: str, text: str, *, default: str | None = None) -> None:
        """Add the option that says where to write: ``-o`` or ``--out``; ``--output`` is accepted too."""
        self.add_argument("-o", *OUT_OPTIONS, dest="out", metavar=metavar, default=default, help=text)

    def add_format(self, choices: Sequence[str]) -> None:
        """Add ``--format``; the first choice is the default."""
        words = [_FORMAT_WORDS[choice] for choice in choices]
        text = f"{', '.join(words[:-1])} or {words[-1]}"
        self.add_argument("--format", choices=choices, default=choices[0], help=text)

    def add_wide(self) -> None:
        """Add ``--wide``, for commands that fit a table to the terminal."""
        self.add_argument("--wide", action="store_true", help="show columns that do not fit the terminal too")

    def add_runs(self, more: str = "; several are parts of one job") -> None:
        """Add the paths of a run, which may be left out; ``more`` continues their help."""
        self.add_argument("paths", metavar="PATH", nargs="*", help=f"{RUN_OR_FILES} (default: {NEWEST}){more}")

    def add_cut(self) -> None:
        """Add the options that choose a part of a run; :func:`read_cut` returns their values."""
        add_value(self, "--ranks", "LIST", "only these ranks, as in 0,2,8-15", read_ranks)
        add_value(self, "--steps", "A:B", "only steps A to B-1", read_steps)
        add_value(self, "--window", "A:B", "only seconds A to B of the run", read_window)

    def add_calibration(self) -> None:
        """Add ``--calibration``, for commands that look for the file in the run directory too."""
        text = "file of `stashtrace calibrate` (default: calibration.toml in the run directory)"
        add_value(self, "--calibration", "FILE", text)

    def add_run(self) -> None:
        """Add ``--run``, which chooses among several runs of a directory."""
        self.add_argument(
            "--run", metavar="ID", help="run to read if the directory holds several; ID.N: start N of run ID"
        )

    def add_plot(self, text: str, kinds: str = ".png, .svg, .pdf") -> None:
        """Add ``--plot``; :func:`stashtrace.cli.print_results.check_plot` or ``check_picture`` checks its file."""
        self.add_argument("--plot", metavar="FILE", help=f"draw {text} ({kinds})")

    def read(self, argv: Sequence[str], *, intermixed: bool = False) -> argparse.Namespace:
        """Parse the arguments and apply the common options.

        ``intermixed`` is for commands whose paths may be left out: else none would be found behind an option.
        """
        parse = self.parse_known_intermixed_args if intermixed else self.parse_known_args
        namespace, unknown = parse(list(argv))
        if unknown:
            self._refuse(unknown[0])
        configure_logging(namespace.verbose)
        return namespace

    def _refuse(self, word: str) -> NoReturn:
        """Raise UsageError for a word that no option and no argument takes."""
        if not word.startswith("-"):
            self.error(f"'{word}' is one argument too many")
        option = word.partition("=")[0]
        near = get_close_matches(option, self._option_string_actions, 1, _NEAR)
        if not near:
            self.error(f"no option {option}")
        raise UsageError(f"{self.prog}: no option {option}", hint=f"did you mean {near[0]}?")

    def _get_value(self, action: argparse.Action, text: str) -> Any:
        if action.type in (int, float) and action.option_strings:
            try:
                return action.type(text)
            except ValueError:
                kind = "a whole number" if action.type is int else "a number"
                raise refusal(action.option_strings[-1], text, kind, str(action.default or 10)) from None
        return super()._get_value(action, text)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices or not action.option_strings:
            super()._check_value(action, value)
            return
        raise UsageError(
            f"{action.option_strings[-1]} cannot be {value!r}",
            hint=f"choose from: {', '.join(map(str, action.choices))}",
        )

    def _match_argument(self, action: argparse.Action, arg_strings_pattern: str) -> int:
        try:
            return super()._match_argument(action, arg_strings_pattern)
        except argparse.ArgumentError:
            if not action.option_strings:
                raise
        names, metavar = action.option_strings, action.metavar or "|".join(action.choices or ("VALUE",))
        hint = f"{names[0]} {metavar}" + (f": {action.help}" if action.help != argparse.SUPPRESS else "")
        raise UsageError(f"{self.prog}: {names[0]} needs a value", hint=hint)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str, **_: object) -> None:
        super().__init__(prog, max_help_position=26, width=_WIDTH)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Return ``-o, --out FILE`` on every Python (before 3.13 FILE stands twice), without second long names."""
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        names = [name for name in action.option_strings if name not in OUT_OPTIONS[1:]]
        return f"{', '.join(names)} {value}"

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Return the lines of a help text; argparse would end one within a name with a hyphen, or a command."""
        return wrap(text, "", width=width, rest=0)


def add_value(
    target: argparse._ActionsContainer,
    option: str,
    metavar: str,
    text: str,
    read: Callable[..., Any] | None = None,
    **settings: Any,
) -> None:
    """Add an option that takes a value to a parser or group.

    ``read``: a reader of :mod:`stashtrace.cli.option_values`; without one the value is text, or what ``type`` makes of
    it.
    """
    if read is not None:
        settings["type"] = partial(read, option=option)
    target.add_argument(option, metavar=metavar, help=text, **settings)


def add_repeated(target: argparse._ActionsContainer, option: str, metavar: str, text: str, **settings: Any) -> None:
    """Add an option that may be given several times; its value is a list."""
    target.add_argument(option, metavar=metavar, help=text, action="append", default=[], **settings)


def add_flag(target: argparse._ActionsContainer, option: str, text: str) -> None:
    """Add an option without a value."""
    target.add_argument(option, action="store_true", help=text)


def read_cut(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the options of :meth:`Parser.add_cut` chose, as exporters take it."""
    given = {"ranks": arguments.ranks, "steps": arguments.steps, "window_ns": arguments.window}
    return {name: value for name, value in given.items() if value is not None}


def split_at_dashes(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part the options of a command line from the job's command, which stands after ``--``."""
    words = list(argv)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def configure_logging(verbosity: int) -> None:
    """Send log lines and warnings to stderr: errors only, with 1 also information, with 2 all."""
    logger = logging.getLogger("stashtrace")
    logger.setLevel({0: logging.ERROR, 1: logging.INFO}.get(verbosity, logging.DEBUG))
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        sys.stderr.write(f"warning: {message}\n")

    warnings.showwarning = show


def existing_run(path: str) -> Path:
    """Return the path of a run or trace file; of an archive, the folder with what it holds.

    Raises MissingDataError if nothing is at the path. Raises ImporterError if it is an archive that cannot be unpacked.
    """
    run = Path(path)
    if not run.exists():
        raise MissingDataError(f"{path} does not exist", hint=_run_hint(run))
    if run.is_dir():
        return run
    from stashtrace.loading.temporary_archives import kind_of, unpacked

    if kind_of(run) is None:
        return run
    from stashtrace.cli.screen import end_on_terminate

    end_on_terminate()  # else a signal would leave behind what is unpacked
    return Path(unpacked(run))


def _run_hint(run: Path) -> str:
    """Return which run, or which command, may have been meant."""
    from stashtrace.analysis.registry import ANALYSES
    from stashtrace.record.program import near_path

    if str(run) in (name for name, _, _ in ANALYSES):
        return f"it is an analysis: `stashtrace analyze {run} RUN`"
    near = near_path(run)
    if near is not None:
        return f"did you mean {near}?"
    runs = run_directories()
    return f"the newest run here is {runs[-1]}" if runs else "`stashtrace run -- CMD` makes one"


def followed_run(path: str) -> Path:
    """Return the run directory of a run that may go on, also for the directory on scratch in which it records."""
    from stashtrace.record.directory import run_directory_of

    return run_directory_of(existing_run(path))


def run_directories() -> list[Path]:
    """Return the run directories ``./stash-*``, in the order in which their runs began.

    ``run.json`` says when that was; a directory whose ``run.json`` is lost counts as older than all others. One without
    any record is no run.
    """
    from stashtrace.record.directory import read_run_file, trace_files

    begun = []
    for path in Path().glob("stash-*"):
        with contextlib.suppress(OSError):  # closed to us: no run that we could read
            if trace_files(path):
                begun.append((read_run_file(path).get("begin_realtime_ns") or 0, str(path), path))
    return [path for _, _, path in sorted(begun)]


def newest_run() -> str:
    """Return the newest of the run directories ``./stash-*``, and say on stderr which one that is."""
    from stashtrace.cli.screen import Screen
    from stashtrace.record.directory import read_run_file

    runs = run_directories()
    if not runs:
        raise MissingDataError(
            "no run is named, and no run directory ./stash-* is here", hint="`stashtrace run -- CMD` makes one"
        )
    begin_ns = read_run_file(runs[-1]).get("begin_realtime_ns")
    begun = time.strftime(", begun %Y-%m-%d %H:%M:%S", time.localtime(begin_ns / 1e9)) if begin_ns else ""
    Screen().say(f"run: ./{visible_line(str(runs[-1]))}, the newest here{begun}")
    return str(runs[-1])


def running_or_newest() -> str:
    """Return the newest run directory here whose job still runs, whatever its name; without one the :func:`newest_run`.

    Raises MissingDataError if there is neither.
    """
    from stashtrace.cli.screen import Screen
    from stashtrace.record.directory import RUN_FILE, read_run_file
    from stashtrace.record.launchers import is_running

    begun = []
    for path in Path().glob(f"*/{RUN_FILE}"):
        facts = read_run_file(path.parent)
        if is_running(facts):
            begun.append((facts.get("begin_realtime_ns") or 0, str(path.parent)))
    if not begun:
        return newest_run()
    Screen().say(f"run: ./{visible_line(max(begun)[1])}, which runs here")
    return max(begun)[1]


def runs_or_newest(paths: Sequence[str]) -> list[str]:
    """Return the runs that were named; if none was, the :func:`newest_run`."""
    return list(paths) or [newest_run()]
