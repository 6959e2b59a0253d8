"""``stashtrace capture RUN``: seal a window of a run that is followed, the newest steps and some that come."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from stashtrace.cli.parsing import Parser, existing_run
from stashtrace.cli.print_results import print_lines
from stashtrace.errors import CaptureError, OutputError, UsageError

_POLL_S = 0.2


def parser() -> Parser:
    """Return the parser of ``stashtrace capture``."""
    parser = Parser(
        "capture",
        "Keep the newest steps of a run that is followed (`stashtrace run --live`), and\n"
        "some that come, in a folder of their own: analyze, view, report and export read\n"
        "it as a run.",
        "example: stashtrace capture ./first --steps 20",
    )
    parser.add_argument("path", metavar="RUN", help="directory of a run that is followed")
    parser.add_argument(
        "--steps", metavar="N", type=int, default=5, help="steps that come, after those in memory (default: 5)"
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, default=120.0, help="give up after so long (default: 120)"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Ask for a window, wait until it is sealed and print its folder."""
    arguments = parser().read(argv)
    if arguments.steps < 0 or arguments.timeout <= 0:
        raise UsageError("--steps and --timeout cannot be negative", hint="for example --steps 20 --timeout 300")
    directory = Path(existing_run(arguments.path))

    from stashtrace.live.capture import Request, put_request
    from stashtrace.live.events import read_events
    from stashtrace.live.state import read_states

    states = read_states(directory)
    if not states or all(state.ended for state in states):
        why = "has ended" if states else "is not followed"
        raise UsageError(f"the run in {directory} {why}", hint="begin it with `stashtrace run --live`")
    known = len(read_events(directory))
    try:
        request = put_request(directory, Request(arguments.steps))
    except OSError as error:
        raise OutputError(f"cannot write to {directory}: {error.strerror}") from error
    deadline = time.monotonic() + arguments.timeout
    while time.monotonic() < deadline:
        for event in read_events(directory)[known:]:
            if request.name in event.request.split():
                if not event.window:
                    raise CaptureError(event.text)
                print_lines([event.window])
                return 0
        time.sleep(_POLL_S)
    request.unlink(missing_ok=True)
    raise CaptureError(
        f"no window was sealed within {arguments.timeout:g} s",
        hint="its last steps have not closed; `stashtrace status`",
    )
