"""The command line: one file per command, and the only place that prints.

``python -m stashtrace`` and the ``stashtrace`` script call :func:`main`. Nothing heavy is imported here, so that
``stashtrace --help`` is fast (a test looks at ``sys.modules``). Data goes to stdout, messages to stderr; each command
has a file of its name in ``commands/`` with ``parser()`` and ``main(argv)``, and here is what they share.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TextIO, cast

from stashtrace.errors import OutputError, StashtraceError, UsageError, is_native_failure, native_failure, raised

if TYPE_CHECKING:
    from types import ModuleType

#: What the commands of a group are for -> (name, one-line help) of each; in the order in which a new user needs them.
GROUPS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "record a job, and read what it says",
        (
            ("run", "Run a command and record where its step time goes"),
            ("summary", "Say what slows a run down, in words"),
            ("report", "Write one page about a run, to share"),
            ("view", "Open the timeline in the Perfetto UI"),
            ("info", "Show what a run holds: ranks, steps, devices, records"),
        ),
    ),
    (
        "while it runs",
        (
            ("live", "Follow a job: speed, budget, who is late, whether it hangs"),
            ("capture", "Keep the newest steps of a followed run in a folder"),
            ("metrics", "List what a run says to Prometheus; a dashboard for Grafana"),
        ),
    ),
    (
        "why, and what if",
        (
            ("whatif", "Predict the step time with something changed"),
            ("analyze", "Print one analysis as table, JSON or CSV"),
            ("sql", "Query the tables and analyses of runs in SQL"),
            ("diff", "Compare two runs, by stalls or by kernels"),
        ),
    ),
    (
        "experiment",
        (
            ("tune", "Try settings on a job, and keep those that make it faster"),
            ("bisect", "Find the commit that made a job slower, and why"),
            ("characterize", "Measure what devices, data and network cost a job"),
            ("recommend", "Say which instances to rent for a job, by time and by cost"),
            ("stage", "Copy files to a faster disk, and measure the gain"),
            ("whatif-cache", "Forecast the step time by the cached share of the data"),
            ("model", "Fit the cost of communication, to a run or a sweep"),
            ("layers", "Replay iterations layer by layer, for any number of ranks"),
        ),
    ),
    (
        "guard and share",
        (
            ("check", "Fail if a run is worse than a baseline: a gate for changes"),
            ("history", "Ask many runs: late hosts, slow commits, neighbours, cost"),
            ("log", "Add the answers of a run to W&B, MLflow, TensorBoard, trackio"),
            ("export", "Write a run in the format of another tool"),
            ("scrub", "Take secrets out of a run, and names of files and hosts"),
        ),
    ),
    (
        "the machine",
        (
            ("doctor", "Say what can be measured here, and what is not installed"),
            ("calibrate", "Measure what the links of this machine can do"),
            ("env", "Print the variables that make a job record itself"),
            ("merge", "Merge the files of a run, and print its summary"),
        ),
    ),
)
#: (name, one-line help) of all commands.
COMMANDS: tuple[tuple[str, str], ...] = tuple(command for _, commands in GROUPS for command in commands)
#: Names that work and are in no list -> the words that they stand for.
OTHER_NAMES: dict[str, tuple[str, ...]] = {"status": ("live", "--once")}
#: Options that every command knows; they may stand before or after its name.
GLOBAL_OPTIONS: tuple[tuple[str, str], ...] = (
    ("-h, --help", "show this help; after a command, that of the command"),
    ("-v, -vv", "say more on stderr"),
    ("--debug", "show the Python traceback of an error"),
    ("--version", "print the version"),
)
_LEADING = frozenset({"-v", "-vv", "--verbose", "--debug"})
INTERRUPTED = 130
#: Errors of a write that names no file: most often of stdout.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def help_text() -> str:
    """Return the text of ``stashtrace --help``."""
    lines = ["usage: stashtrace COMMAND [options]", "", "Where did each nanosecond of each step of each rank go?"]
    for title, commands in GROUPS:
        lines += ["", title, *(f"  {name:<14}{text}" for name, text in commands)]
    lines += ["", "options"]
    lines += [f"  {flags:<14}{text}" for flags, text in GLOBAL_OPTIONS]
    lines += ["", "first steps", "  stashtrace run -- torchrun --nproc-per-node 2 train.py", "  stashtrace doctor", ""]
    return "\n".join(lines)


def command_module(name: str) -> ModuleType:
    """Import and return the module of a command: its ``parser()`` and ``main(argv)``.

    Raises UsageError if there is no such command; the hint names the analysis of that name, or a similar command.
    """
    names = [known for known, _ in COMMANDS]
    if name in names:
        from importlib import import_module

        return import_module(f"stashtrace.cli.commands.{name.replace('-', '_')}")
    from difflib import get_close_matches

    from stashtrace.analysis.registry import ANALYSES

    if name in (known for known, _, _ in ANALYSES):
        raise UsageError(f"no command named {name!r}", hint=f"it is an analysis: `stashtrace analyze {name} RUN`")
    near = get_close_matches(name, names, n=1)
    hint = f"did you mean `stashtrace {near[0]}`?" if near else "`stashtrace --help` lists the commands"
    raise UsageError(f"no command named {name!r}", hint=hint)


def main(argv: Sequence[str] | None = None, program: Callable[[list[str]], int] | None = None) -> int:
    """Run one command line and return its exit code; the only caller of the commands.

    ``program``: what is run with the words; by default the command that the first of them names.
    """
    try:
        return _run(list(sys.argv[1:] if argv is None else argv), program or _dispatch)
    finally:
        try:
            if sys.stderr is not None:
                sys.stderr.flush()
        except OSError:  # its disk is full, or its terminal is gone: Python would try again at the end, and return 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _run(arguments: list[str], program: Callable[[list[str]], int]) -> int:
    """Run a command line whose output is made visible."""
    if arguments in (["-h"], ["--help"], ["-V"], ["--version"]):  # plain text of our own needs no VisibleStream
        return _answer(arguments, program)
    from stashtrace.text.visible import VisibleStream

    streams = sys.stdout, sys.stderr
    # A stream that was closed before the start (`>&-`) is None: nobody reads it, and the exit code still counts.
    with open(os.devnull, "w", encoding="utf-8") as nobody:
        sys.stdout, sys.stderr = (cast(TextIO, VisibleStream(stream or nobody)) for stream in streams)
        try:
            return _answer(arguments, program)
        finally:
            sys.stdout, sys.stderr = streams


def _answer(arguments: list[str], program: Callable[[list[str]], int]) -> int:
    """Run a command line, print its error if it fails, and return the exit code."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug = "--debug" in own
    try:
        with raised() if debug else contextlib.nullcontext():
            code = program(arguments)
        sys.stdout.flush()
        return code
    except StashtraceError as error:
        if debug:
            raise
        say_error(str(error), error.hint)
        return error.exit_code
    except KeyboardInterrupt:
        if debug:
            raise
        say_error("interrupted", None)
        # Where native code was running Python text, Python has noted an interrupt that nobody handled, and would end by
        # the signal; other text that runs takes that back.
        exec("")
        return INTERRUPTED
    except BrokenPipeError:
        from stashtrace.cli.print_results import discard_stdout

        discard_stdout()
        return 0
    except OSError as error:
        if debug:
            raise
        if error.filename is None and error.errno in _NO_ROOM:
            from stashtrace.cli.print_results import discard_stdout

            discard_stdout()
            say_error(
                f"cannot write the answer to stdout: {error.strerror}",
                "make room where stdout goes, or send it elsewhere",
            )
            return OutputError.exit_code
        where = f"{error.filename}: " if error.filename else ""
        hint = f"`ls -ld {error.filename}` shows who may" if isinstance(error, PermissionError) and where else None
        say_error(f"{where}{error.strerror or error}", hint or "the same command with --debug shows where")
        return StashtraceError.exit_code
    except MemoryError:
        if debug:
            raise
        say_error("there is not enough memory", "give fewer files or ranks, or use a machine with more memory")
        return StashtraceError.exit_code
    except Exception as error:
        if debug:
            raise
        if is_native_failure(error):
            failure = native_failure(error)
            say_error(str(failure), failure.hint)
            return failure.exit_code
        say_error(
            f"this is a bug in stashtrace: {type(error).__name__}: {error}",
            "the same command with --debug shows where; the recording is unchanged",
        )
        return StashtraceError.exit_code


def _dispatch(arguments: list[str]) -> int:
    leading: list[str] = []
    while arguments and arguments[0].startswith("-"):
        option = arguments.pop(0)
        if option in ("-h", "--help"):
            return _help(arguments[0] if arguments else "")
        if option in ("-V", "--version"):
            from stashtrace import __version__

            sys.stdout.write(f"stashtrace {__version__}\n")
            return 0
        if option not in _LEADING:
            raise UsageError(
                f"no option named {option!r}", hint="options of a command stand after its name; see `stashtrace --help`"
            )
        leading.append(option)
    if not arguments:
        sys.stderr.write(help_text())
        return UsageError.exit_code
    name, *rest = arguments
    if name == "help":
        return _help(rest[0] if rest else "")
    name, *words = OTHER_NAMES.get(name, (name,))
    code: int = command_module(name).main([*leading, *words, *rest])
    return code


def _help(name: str) -> int:
    if name and not name.startswith("-"):
        name, *_ = OTHER_NAMES.get(name, (name,))
        return int(command_module(name).main(["--help"]))
    sys.stdout.write(help_text())
    return 0


def say_error(message: str, hint: str | None) -> None:
    """Write ``error:`` and, after an empty line, ``hint:``; all errors of the CLI are printed here."""
    from stashtrace.text.visible import visible, visible_line

    archives = sys.modules.get("stashtrace.loading.temporary_archives")
    if archives is not None:
        message = archives.named(message)
        hint = archives.named(hint) if hint else None
    text = f"error: {visible_line(message)}\n" + (f"\nhint: {visible(hint)}\n" if hint else "")
    try:
        sys.stderr.write(text)
    except UnicodeEncodeError:
        sys.stderr.write(text.encode("ascii", "backslashreplace").decode("ascii"))
    except OSError:
        return  # stderr is full or closed, and nobody reads it; the exit code says it too
