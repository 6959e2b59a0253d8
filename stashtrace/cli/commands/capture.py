"""``stashtrace capture RUN``: seal a window of a run that is followed, the newest steps and some that come."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from stashtrace.cli.parsing import NEWEST, Parser, followed_run, running_or_newest
from stashtrace.cli.print_results import print_lines
from stashtrace.cli.screen import Screen
from stashtrace.errors import CaptureError, OutputError, UsageError


def parser() -> Parser:
    """Return the parser of ``stashtrace capture``."""
    parser = Parser(
        "capture",
        "Keep the newest steps of a run that is followed (`stashtrace run --live`), and\n"
        "some that come, in another folder: analyze, view, report and export read\n"
        "it as a run. In a directory that several hosts record into, it has the same\n"
        "steps of the ranks of all hosts that answer.",
        "example: stashtrace capture ./first --steps 20",
    )
    text = f"directory of a run that is followed (default: that of a job that runs here, else {NEWEST})"
    parser.add_argument("path", metavar="RUN", nargs="?", help=text)
    parser.add_argument(
        "--steps", metavar="N", type=int, default=5, help="steps that come, after those in memory (default: 5)"
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, default=120.0, help="give up after this time (default: 120)"
    )
    parser.add_argument(
        "--kernels", action="store_true", help="record every kernel and copy of the GPU in the steps that come"
    )
    parser.add_argument(
        "--stacks",
        action="store_true",
        help="sample all Python threads in the steps that come, from outside by py-spy (extra: stacks). Every recording"
        " has stacks of step threads and workers without it; it is for Pythons and threads that the recorder does not"
        " read",
    )
    parser.add_argument(
        "--no-limit", action="store_true", help="also where the run has 100 windows, or they take 2 GiB"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Ask for a window, wait until it is sealed and print its folder."""
    arguments = parser().read(argv)
    if arguments.steps < 0 or arguments.timeout <= 0:
        raise UsageError(
            "--steps cannot be negative, and --timeout must be more than 0", hint="for example --steps 20 --timeout 300"
        )
    directory = followed_run(arguments.path or running_or_newest())

    from stashtrace.live.hosts.requests import Asked, asked_hosts
    from stashtrace.live.state import read_states

    states = asked_hosts(directory)
    if not states:
        why = "has ended" if read_states(directory) else "is not followed"
        raise UsageError(f"the run in {directory} {why}", hint="begin it with `stashtrace run --live`")
    try:
        kinds = [name for name in ("kernels", "stacks") if getattr(arguments, name)]
        asked = Asked(directory, states, arguments.steps, unlimited=arguments.no_limit, kinds=kinds)
        asked.wait(arguments.timeout)
    except OSError as error:
        raise OutputError(f"cannot write to {directory}: {error.strerror}") from error
    if asked.answer is None:
        raise CaptureError(
            f"no window was sealed: {next(iter(asked.missing.values()))}",
            hint=f"`stashtrace live {shlex.quote(str(directory))}` shows whether it still makes steps",
        )
    if not asked.answer.window:
        raise CaptureError(asked.answer.text)
    said = [f"{host} has not answered: {why}" for host, why in asked.missing.items()]
    for line in [*said, asked.answer.text] if len(states) > 1 else []:
        Screen().say(f"stashtrace: {line}")
    print_lines([asked.answer.window])
    return 0
