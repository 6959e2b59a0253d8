"""``stashtrace live RUN``: a screen that follows a job while it runs; ``--once`` prints it and ends."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stashtrace.cli.parsing import NEWEST, Parser, add_flag, add_value, followed_run, running_or_newest
from stashtrace.cli.print_results import print_json, print_lines
from stashtrace.cli.screen import Screen, end_on_terminate
from stashtrace.errors import UsageError

if TYPE_CHECKING:
    from stashtrace.live.view.watched import LiveView, Watched
    from stashtrace.summary.look import Look

#: Ctrl-C.
_INTERRUPTED = 130
#: The lines are made for no less.
_LEAST_WIDTH = 40
#: What the foot of the screen says of keys.
KEYS = "q quits"


def parser() -> Parser:
    """Return the parser of ``stashtrace live``."""
    parser = Parser(
        "live",
        "Follow a job on the screen: how fast its steps are, where their time goes now,\n"
        "who is waited for and why, what happened, whether it hangs. --once prints it\n"
        "and ends. Best for a job of `stashtrace run --live`.",
    )
    parser.add_argument(
        "path", metavar="DIR", nargs="?", help=f"run directory (default: that of a job that runs here, else {NEWEST})"
    )
    add_flag(parser, "--once", "print what is known now, and end; in a pipe always")
    parser.add_format(("text", "json"))
    interval = "time between two readings of the run (default: 1)"
    add_value(parser, "--interval", "SECONDS", interval, _read_interval, default=1.0)
    parser.add_run()
    return parser


def _read_interval(text: str, option: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600.0:
        raise UsageError(f"{option} {text!r} is not understood", hint="seconds from 0.1 to 3600, as in 2")
    return seconds


def main(argv: Sequence[str]) -> int:
    """Follow the run until it ends, or until q or Ctrl-C; or print it once."""
    arguments = parser().read(argv)
    end_on_terminate()  # else a signal would leave the terminal as it is
    path = arguments.path or running_or_newest()

    from stashtrace.live.view.watched import Watched
    from stashtrace.summary.look import Look

    watched = Watched(followed_run(path), arguments.run)
    view = watched.peek()
    if arguments.format == "json":
        print_json(view.document())
        return 0
    screen = Screen(sys.stdout)
    if screen.interactive and not arguments.once and view.condition != "ended":
        try:
            view = _follow(watched, view, screen, arguments.interval)
        except KeyboardInterrupt:
            return _INTERRUPTED
        if view.condition != "ended":
            return 0
    width = max(shutil.get_terminal_size().columns, _LEAST_WIDTH)
    _print(view, Look(width, screen.utf8, screen.colour))
    return 0


def _follow(watched: Watched, view: LiveView, screen: Screen, interval_s: float) -> LiveView:
    """Show a run until somebody quits or it has ended; return what was shown last."""
    from stashtrace.cli.full_screen import open_full_screen
    from stashtrace.live.view.text import live_lines
    from stashtrace.summary.look import Look

    with open_full_screen(screen) as full:
        while view.condition != "ended":
            width, height = full.size
            look = Look(max(width, _LEAST_WIDTH), screen.utf8, screen.colour)
            full.draw(live_lines(view, look, height=height, keys=KEYS))
            why = full.wait(interval_s)
            if why == "quit":
                break
            view = watched.peek() if why == "time" else view
    return view


def _print(view: LiveView, look: Look) -> None:
    from stashtrace.live.view.text import live_lines

    print_lines(live_lines(view, look))
