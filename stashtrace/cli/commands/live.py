"""``stashtrace live RUN``: a screen that follows a job while it runs; ``--once`` prints it and ends."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stashtrace.cli.parsing import NEWEST, Parser, add_flag, add_value, followed_run, running_or_newest
from stashtrace.cli.print_results import print_json, print_lines
from stashtrace.cli.screen import Screen, end_on_terminate
from stashtrace.errors import StashtraceError, UsageError

if TYPE_CHECKING:
    from stashtrace.live.view.watched import LiveView, Watched
    from stashtrace.summary.style import Style

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
    from stashtrace.summary.style import Style

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
    _print(view, Style(width, screen.utf8, screen.colour))
    return 0


def _follow(watched: Watched, view: LiveView, screen: Screen, interval_s: float) -> LiveView:
    """Show a run until somebody quits or it has ended; return what was shown last."""
    from stashtrace.live.view.text import live_lines
    from stashtrace.summary.style import Style

    with open_full_screen(screen) as full:
        while view.condition != "ended":
            width, height = full.size
            style = Style(max(width, _LEAST_WIDTH), screen.utf8, screen.colour)
            full.draw(live_lines(view, style, height=height, keys=KEYS))
            why = full.wait(interval_s)
            if why == "quit":
                break
            view = watched.peek() if why == "time" else view
    return view


def _print(view: LiveView, style: Style) -> None:
    from stashtrace.live.view.text import live_lines

    print_lines(live_lines(view, style))


#: Keys that end the command.
_QUIT_KEYS = b"qQ"


class FullScreen:
    """The alternate screen of a terminal; made by :func:`open_full_screen`."""

    def __init__(self, live: Any, from_ansi: Callable[[str], Any]) -> None:
        self._live, self._from_ansi = live, from_ansi
        #: The number of each signal comes out. The interpreter writes it as the signal comes: a handler in Python would
        #: run after a wait that has just begun.
        self._signals, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._modes: list[Any] | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines now."""
        size = self._live.console.size
        return size.width, size.height

    def draw(self, lines: Sequence[str]) -> None:
        """Replace what is on the screen; names in the lines are visible, commands for the terminal are colours."""
        self._live.update(self._from_ansi("\n".join(lines)), refresh=True)

    def wait(self, timeout_s: float) -> str:
        """Wait, and return why it ended: ``quit``, ``resized`` (or back from being stopped), or ``time``."""
        stdin = [sys.stdin.fileno()] if self._modes is not None else []
        readable, _, _ = select.select([self._signals, *stdin], [], [], timeout_s)
        if self._signals in readable:
            if signal.SIGTSTP in os.read(self._signals, 4096):
                self._stop()
            return "resized"
        if not readable:
            return "time"
        typed = os.read(stdin[0], 64)
        return "quit" if not typed or any(key in _QUIT_KEYS for key in typed) else "time"

    def enter(self) -> None:
        """Take the terminal."""
        if sys.stdin.isatty():
            self._modes = termios.tcgetattr(sys.stdin.fileno())
            tty.setcbreak(sys.stdin.fileno())
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)  # many signals at once are one
        for number in (signal.SIGWINCH, signal.SIGTSTP):
            signal.signal(number, lambda *_: None)
        self._live.start()

    def leave(self) -> None:
        """Give the terminal back as it was."""
        self._live.stop()
        for number in (signal.SIGWINCH, signal.SIGTSTP):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        if self._modes is not None:
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._modes)
            self._modes = None

    def close(self) -> None:
        """Give back what is no terminal."""
        os.close(self._signals)
        os.close(self._wake)

    def _stop(self) -> None:
        """Do what Ctrl-Z asks for: the shell has its terminal until it lets us go on."""
        self.leave()
        os.kill(os.getpid(), signal.SIGTSTP)
        self.enter()


@contextlib.contextmanager
def open_full_screen(screen: Screen) -> Iterator[FullScreen]:
    """Take the terminal of a screen, and give it back at the end, also after an error or Ctrl-C.

    Raises StashtraceError if rich is not installed.
    """
    try:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text
    except ImportError as error:
        raise StashtraceError(
            "a screen that follows the job needs the package rich, which is not installed",
            hint="`pip install 'stashtrace[live]'`; `--once` needs none",
        ) from error

    stream: Any = _AsIs(screen.stream)
    console = Console(
        file=stream,
        force_terminal=True,
        color_system="standard" if screen.colour else None,
        highlight=False,
        legacy_windows=False,
    )
    live = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    full = FullScreen(live, lambda text: Text.from_ansi(text, no_wrap=True, overflow="crop"))
    try:
        full.enter()
        yield full
    finally:
        full.leave()
        full.close()


class _AsIs:
    """A stream for one that makes control characters visible: those of the screen itself have to pass."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.write = getattr(stream, "write_as_is", stream.write)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
