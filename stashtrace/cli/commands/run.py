"""``stashtrace run -- CMD``: launch, wait, merge, sum up. The job keeps its own stdin, stdout and exit code.

What is recorded, and how, is declared in ``record.options``; here is only where the run goes and how it ends.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from stashtrace.cli import say_error
from stashtrace.cli.merging import AfterMerge, conclude, processes_text, short_path, shown_directory
from stashtrace.cli.option_values import read_length, read_size, read_trackers
from stashtrace.cli.parsing import Parser, add_flag, add_value
from stashtrace.cli.screen import Screen
from stashtrace.errors import OutputError, StashtraceError, UsageError, say_why
from stashtrace.record.directory import file_rights
from stashtrace.record.host import MEMORY_KILLS, MEMORY_LIMIT
from stashtrace.record.launchers import all_ended
from stashtrace.record.options import RecordOptions
from stashtrace.record.remote import is_url
from stashtrace.record.run import Outcome, run_command

if TYPE_CHECKING:
    from stashtrace.analysis.findings import Summary
    from stashtrace.lab.history.run_files import Place
    from stashtrace.schema.table import Table
    from stashtrace.schema.trace import Trace


#: Options that ``--help`` shows: what most people need; ``--help-all`` shows the others too.
_MOST_NEEDED = (
    *("--out", "--overwrite", "--live", "--steps", "--until-step", "--kernels"),
    *("--keep-last", "--run-id", "--log", "--history"),
)


def parser() -> Parser:
    """Return the parser of ``stashtrace run``."""
    parser = Parser(
        "run",
        "Run a command (python, torchrun, mpirun, a shell script) and record where its\n"
        "step time goes. The script needs no edit; the exit code is the command's own.",
        "example: stashtrace run --out ./first -- torchrun --nproc-per-node 2 train.py",
    )
    parser.usage = "stashtrace run [options] -- COMMAND [ARGUMENT ...]"
    parser.add_argument("--help-all", action="help", help="show all options, also those that few people need")
    parser.add_out(
        "DIR",
        "run directory, or URL of one (s3://...); shared by all hosts of a job or one for each"
        " (default: ./stash-MMDD-HHMMSS, ./stash-JOB)",
    )
    add_flag(parser, "--overwrite", "replace the run that --out holds; a directory with other files is refused")
    parser.add_argument(
        "--scratch",
        metavar="DIR",
        help="record below DIR on a local disk, copy to --out when the command has ended (default: in --out, but on a"
        " disk of this host where that is on a network file system or FUSE)",
    )
    parser.add_argument(
        "--run-id",
        metavar="JOB",
        help="name of the job, the same on all hosts; SLURM, MPI and torchrun's rendezvous are known without",
    )
    RecordOptions.add_arguments(parser)
    parser.add_argument(
        "--no-merge", action="store_true", help="leave the records as they are; `stashtrace merge` does it later"
    )
    parser.add_argument(
        "--history",
        metavar="DIR",
        help="add the merged run to the history in DIR, or at a URL (s3://...); `stashtrace history DIR` reads it",
    )
    add_flag(
        parser,
        "--live",
        "say while the job runs when a step is slow or the job is stuck, and why; `stashtrace live` shows more",
    )
    parser.add_argument(
        "--on-trigger",
        metavar="CMD",
        help="call a command, without a shell, when a step is slow, the job stuck, a rank lost, a stall grown or a"
        " window sealed; it finds what happened in STASHTRACE_TRIGGER_*; turns --live on",
    )
    parser.add_argument(
        "--deeper",
        metavar="KINDS",
        help="record the steps after a trigger with kernels (of the GPU), stacks (of all Python threads, by py-spy:"
        " extra stacks) or kernels,stacks, in the window of it; turns --live on",
    )
    parser.add_argument(
        "--deeper-budget",
        metavar="PERCENT",
        type=float,
        help="part of the job's time that deeper steps may cost, of each hour (default: 1)",
    )
    add_metrics_arguments(parser)
    parser.add_argument(
        "--keep-last",
        metavar="STEPS",
        type=int,
        help="number of steps to keep at the end of the run; drop the records of earlier ones while it runs",
    )
    parser.add_argument(
        "--keep-bytes",
        metavar="SIZE",
        help="drop the records of the earliest steps while the run takes more than SIZE (2 GiB) on disk",
    )
    parser.add_argument(
        "--log",
        metavar="TRACKERS",
        help="at the end, add the answers to the run of wandb, mlflow, tensorboard or trackio that the job wrote to",
    )
    grace = "time to wait for processes that outlive the command (default: 10)"
    add_value(parser, "--grace", "SECONDS", grace, read_length, default=10.0)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run a command traced; return its exit code."""
    words, command = split_command(list(argv))
    reader = parser()
    if {"-h", "--help"} & {*words}:
        reader.hide_all_but(_MOST_NEEDED)
    arguments = reader.read(words)
    if arguments.overwrite and (arguments.out is None or is_url(arguments.out)):
        raise UsageError("--overwrite needs a directory with --out", hint="for example --out ./first --overwrite")
    if arguments.history is not None and arguments.no_merge:
        later = f"stashtrace history {shlex.quote(arguments.history)} --add RUN"
        raise UsageError(
            "--history needs the merge that --no-merge leaves out",
            hint=f"`{later}` adds the run after `stashtrace merge RUN`",
        )
    options = RecordOptions.from_arguments(arguments)
    first = int((options.steps or "").partition(":")[0] or 0)
    if options.until_step is not None and options.until_step <= first:
        raise UsageError(
            f"--until-step {options.until_step} ends the job before step {first}, the first of --steps {options.steps}",
            hint=f"--until-step {first + 1}, or more",
        )
    screen = Screen()
    trackers = read_trackers(arguments.log)
    history = _open_history(arguments.history)
    metrics = open_outlets(arguments)
    if metrics.url:
        screen.say(f"stashtrace: metrics at {metrics.url}")
    outcome = run_command(
        command,
        options,
        out=arguments.out,
        run_id=arguments.run_id,
        scratch=arguments.scratch,
        grace_s=arguments.grace,
        overwrite=arguments.overwrite,
        on_wait=lambda pids: screen.say(f"stashtrace: waiting for {processes_text(pids)} of the job that still run"),
        on_changed=lambda count, names: screen.say(_changed_text(count, names)),
        on_far=lambda directory, kind, records: screen.say(_far_text(directory, kind, records)),
        follow=_follower_words(arguments, metrics),
        follow_sockets=metrics.sockets,
    )
    _say_how_it_ended(screen, outcome)
    merge = not arguments.no_merge and outcome.interrupts_count < 2
    with file_rights(arguments.share):
        log = _log_after_merge(trackers, screen, shown_directory(outcome)) if trackers else None

        def after(trace: Trace, tables: Summary, first: Table | None) -> None:
            if history is not None:
                _add_to_history(history, trace, outcome, screen)
            if log is not None:
                log(trace, tables, first)

        conclude(outcome, screen, merge=merge, debug=arguments.debug, command=command, after=after)
    return outcome.exit_code


def _open_history(place: str | None) -> Place | None:
    """Return the history that the run is to be added to; raise before the job starts if nothing can be written there.

    What a URL refuses is known at the end only: the run is kept, and can be added later.
    """
    if place is None:
        return None
    from stashtrace.lab.history.run_files import Place

    history = Place(place)
    history.check_writable()
    return history


def _add_to_history(history: Place, trace: Trace, outcome: Outcome, screen: Screen) -> None:
    """Add a merged run to a history; what cannot be added now can be later, as the run is kept."""
    from stashtrace.lab.history.rows_of_run import add_run

    later = f"`stashtrace history {shlex.quote(history.text)} --add {shown_directory(outcome)}` adds it later"
    if outcome.launch_file is not None and not all_ended(outcome.directory, outcome.job.launchers_count):
        screen.say(f"stashtrace: a part of a job has no place in a history; {later}, when all of it is merged")
        return
    try:
        screen.say(f"stashtrace: {add_run(history, trace, outcome.directory)}")
    except StashtraceError as error:
        say_error(str(error), f"the run is kept; {later}")


def _follower_words(arguments: argparse.Namespace, metrics: MetricsOutlets) -> list[str] | None:
    """Return the arguments of the process that follows the run; None if nothing asks for it.

    Raises UsageError if an option has no possible value.
    """
    asked = arguments.on_trigger is not None or arguments.idle or arguments.deeper is not None
    lines = arguments.live or metrics.arguments or asked
    words = [*metrics.arguments] if lines else ["--quiet"]
    if arguments.on_trigger is not None:
        words += ["--on-trigger", _command_words(arguments.on_trigger)]
    if arguments.deeper is not None:
        words += ["--deeper", _deeper_kinds(arguments.deeper)]
    if arguments.deeper_budget is not None:
        words += ["--deeper-ratio", str(_deeper_ratio(arguments.deeper_budget))]
    if arguments.keep_last is not None:
        if arguments.keep_last < 1:
            raise UsageError(f"--keep-last {arguments.keep_last} keeps nothing", hint="for example --keep-last 500")
        words += ["--keep-steps", str(arguments.keep_last)]
    if arguments.keep_bytes is not None:
        words += ["--keep-bytes", str(read_size(arguments.keep_bytes, "--keep-bytes"))]
    if arguments.idle and (arguments.keep_last is not None or arguments.keep_bytes is not None):
        raise UsageError("--idle records no steps to keep the last of", hint="leave --keep-last and --keep-bytes out")
    if arguments.idle and arguments.steps is not None:
        raise UsageError("--idle and --steps both say what to record", hint="give one of them")
    return None if words == ["--quiet"] else words


def _deeper_kinds(text: str) -> str:
    """Return what is also recorded of steps after a trigger. Raises UsageError if it is none of those known."""
    kinds = list(dict.fromkeys(filter(None, text.split(","))))
    if unknown := [kind for kind in kinds if kind not in ("kernels", "stacks")] or ([] if kinds else [text]):
        raise UsageError(f"--deeper {unknown[0]!r} is not known", hint="kernels, stacks, or kernels,stacks")
    return ",".join(kinds)


def _deeper_ratio(percent: float) -> float:
    if not 0 < percent <= 100:
        raise UsageError(f"--deeper-budget {percent:g} is no part of an hour", hint="for example --deeper-budget 0.5")
    return percent / 100


def _command_words(text: str) -> str:
    """Return the words of a command as one text, quoted as a shell would.

    Raises UsageError if it cannot be split into words, or names no program.
    """
    hint = "for example --on-trigger ./notify.sh, or --on-trigger 'sh -c \"...\"' for a shell"
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--on-trigger {text!r} cannot be split into words: {error}", hint=hint) from error
    if not words or shutil.which(words[0]) is None:
        named = f"no program {words[0]!r} for --on-trigger" if words else "--on-trigger names no command"
        raise UsageError(named, hint=hint)
    return shlex.join(words)


def split_command(argv: list[str]) -> tuple[list[str], list[str]]:
    """Split the words into our options and the command: at ``--``, or at the first word that is not an option."""
    if "--" in argv:
        at = argv.index("--")
        return argv[:at], argv[at + 1 :]
    takes_value = {flag for action in parser()._actions if action.nargs != 0 for flag in action.option_strings}
    at = 0
    while at < len(argv) and argv[at].startswith("-"):
        at += 2 if argv[at] in takes_value else 1
    return argv[:at], argv[at:]


def _changed_text(count: int, names: Sequence[str]) -> str:
    """Say that staged files changed since they were copied."""
    files = f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}"
    return (
        f"stashtrace: {files} changed since the copying, or the copy is gone: read where it is; {count} copies are used"
        " (`stashtrace stage` copies again)"
    )


def _far_text(directory: Path, kind: str, records: Path | None) -> str:
    """Say where a run records whose directory is on a network file system or FUSE."""
    if records is not None:
        return f"stashtrace: {short_path(directory)} is on {kind}: recorded in {records}, copied there at the end"
    return (
        f"stashtrace: {short_path(directory)} is on {kind}, and no local disk has room: if it stands still, so does the"
        " job; `--scratch DIR` names a disk"
    )


def _say_how_it_ended(screen: Screen, outcome: Outcome) -> None:
    if outcome.goal_reached:
        screen.say(f"stashtrace: ended the command at step {outcome.facts['until_step']}, as asked")
    elif outcome.signal_number:
        try:
            name = signal.Signals(outcome.signal_number).name
        except ValueError:
            name = "a real-time signal"
        screen.say(f"stashtrace: the command was ended by {name} ({outcome.signal_number}); what it recorded is kept")
    elif outcome.exit_code:
        screen.say(f"stashtrace: the command ended with exit code {outcome.exit_code}")
    if outcome.facts.get(MEMORY_KILLS):
        from stashtrace.analysis.findings.rules.ending.failures import memory_kills_text

        kills = memory_kills_text(outcome.facts[MEMORY_KILLS], outcome.facts.get(MEMORY_LIMIT, -1))
        screen.say(f"stashtrace: {kills}")
    if outcome.survivors:
        screen.say(
            f"stashtrace: {processes_text(outcome.survivors)} of the job still run; "
            f"what they record from now on needs `stashtrace merge {shown_directory(outcome)}`"
        )
    # Where records are copied into a directory that has died, that error says so.
    if outcome.write_error is not None and (outcome.replaced or outcome.records == outcome.directory):
        screen.say(f"stashtrace: {outcome.write_error}")


def _log_after_merge(names: list[str], screen: Screen, shown: str) -> AfterMerge:
    """Return what adds the answers of a merged run to trackers; ``shown``: the run as a person would type it.

    A tracker that refuses is said: the run is recorded all the same.
    """

    def log(trace: Trace, tables: Summary, first: Table | None) -> None:
        from stashtrace.trackers.answers import log_answers

        for name in names:
            try:
                screen.say(f"stashtrace: logged to {name} run {log_answers(trace, name, shown, (tables, first))}")
            except StashtraceError as error:
                say_error(str(error), error.hint)

    return log


# The process that follows the run makes and sends metrics (``stashtrace.live.metrics``). Here its packages are looked
# for and its port is bound, so that a mistake shows before the job starts, and nobody takes the port in between.

_LOOPBACK = "127.0.0.1"
#: Connections that wait for a thread.
_BACKLOG = 8
#: Package -> the extra that brings it.
_EXTRAS = {"prometheus_client": "metrics", "opentelemetry.exporter.otlp.proto.http": "otel"}
_ADDRESS = re.compile(r"(?:(?:\[(?P<six>[^\[\]]+)\]|(?P<host>[^:\[\]]+)):)?(?P<port>\d+)")


@dataclass(slots=True)
class MetricsOutlets:
    """Where metrics go: arguments of the process that makes them, none if nowhere, and sockets that it takes over."""

    arguments: list[str] = field(default_factory=list)
    sockets: list[socket.socket] = field(default_factory=list)
    #: Where a scraper finds them; empty without a port.
    url: str = ""


def add_metrics_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``stashtrace run`` that say where metrics go."""
    parser.add_argument(
        "--metrics-file",
        metavar="DIR",
        help="--live, and write metrics into DIR for the textfile collector of Prometheus' node_exporter",
    )
    parser.add_argument(
        "--metrics-port",
        metavar="[ADDRESS:]PORT",
        help="--live, and let Prometheus fetch metrics at this port, of 127.0.0.1 unless an address is given",
    )
    parser.add_argument(
        "--otlp",
        action="store_true",
        help="--live, and push metrics to the OTLP collector that the OTEL_EXPORTER_OTLP_* variables name",
    )


def open_outlets(arguments: argparse.Namespace) -> MetricsOutlets:
    """Return where the metrics of a run go.

    Raises UsageError if a package is missing or the port makes no sense, OutputError if it cannot be bound.
    """
    port, outlets = arguments.metrics_port, MetricsOutlets()
    if arguments.metrics_file is not None:
        _require("prometheus_client", "--metrics-file")
        outlets.arguments += ["--metrics-file", os.path.abspath(arguments.metrics_file)]
    if arguments.otlp:
        _require("opentelemetry.exporter.otlp.proto.http", "--otlp")
        outlets.arguments.append("--otlp")
    if port is not None:
        _require("prometheus_client", "--metrics-port")
        listener = _listen(*_read_address(port))
        outlets.sockets.append(listener)
        outlets.arguments += ["--metrics-socket", str(listener.fileno())]
        host, number = listener.getsockname()[:2]
        outlets.url = f"http://{f'[{host}]' if ':' in host else host}:{number}/metrics"
    return outlets


def _require(package: str, option: str) -> None:
    found = None
    with contextlib.suppress(ModuleNotFoundError):  # one of the packages that it lies in is missing
        found = find_spec(package)
    if found is None:
        name = package.replace(".", "-")
        raise UsageError(
            f"{option} needs {name}, which is not installed", hint=f"`pip install 'stashtrace[{_EXTRAS[package]}]'`"
        )


def _read_address(text: str) -> tuple[str, int]:
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"]) > 65535:
        raise UsageError(
            f"--metrics-port {text!r} is no port", hint="for example --metrics-port 9477, or 0.0.0.0:9477 for all hosts"
        )
    return match["six"] or match["host"] or _LOOPBACK, int(match["port"])


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; connections wait until the process that follows the run takes them."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a run that has just ended had the port
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        reason = say_why(error)
        raise OutputError(
            f"--metrics-port cannot listen at port {port} of {host}: {reason}",
            hint="choose another port, or 0 for one that is free",
        ) from error
    return listener
