"""The whole terminal for a command that follows something: lines, keys, resizing, and what was there before at the end.

Needs the package rich, which is imported when a screen is opened.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stashtrace.cli.screen import Screen
from stashtrace.errors import StashtraceError

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
