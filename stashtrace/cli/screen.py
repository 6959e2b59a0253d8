"""What stderr can show (width, colour, UTF-8), and the progress bar on it.

Commands ask a :class:`Screen` once and pass its answers to ``summary``, which never asks a terminal.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from types import FrameType, TracebackType
from typing import NoReturn, TextIO

from stashtrace.text.visible import visible, visible_line

_REDRAW_NS = 100_000_000


class Screen:
    """One text stream for words, and what it can show.

    ``stream``: stderr by default. ``environment``: read for NO_COLOR, TERM, COLUMNS and the locale.
    """

    def __init__(self, stream: TextIO | None = None, environment: Mapping[str, str] | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        environment = os.environ if environment is None else environment
        try:
            self.interactive = self.stream.isatty() and environment.get("TERM") != "dumb"
        except ValueError:  # closed
            self.interactive = False
        self.colour = self.interactive and not environment.get("NO_COLOR")
        self.utf8 = _speaks_utf8(environment) and (self.stream.encoding or "").lower().replace("-", "") == "utf8"
        self.width = 80

    def say(self, text: str) -> None:
        """Write lines of text; a stream that was closed is not an error."""
        try:
            self.stream.write(visible(text if text.endswith("\n") else text + "\n"))
            self.stream.flush()
        except (BrokenPipeError, ValueError):
            self.interactive = False
        except UnicodeEncodeError:
            self.stream.write(text.encode("ascii", "replace").decode("ascii") + "\n")
        except OSError:  # the terminal was closed while the job ran
            self.interactive = False

    def draw(self, text: str) -> None:
        """Write text with terminal commands; the caller has made the names in it visible."""
        getattr(self.stream, "write_as_is", self.stream.write)(text)
        self.stream.flush()

    def progress(self, title: str, *, lines: bool = False) -> Progress:
        """Return a bar for a task of several stages.

        If stderr is not a terminal it draws nothing, or with ``lines`` each task once, in a line.
        """
        return Progress(self, title, lines)


class Progress:
    """A bar of one line that erases itself at the end; ``step`` moves it."""

    def __init__(self, screen: Screen, title: str, lines: bool = False) -> None:
        self._screen = screen
        self._title = title
        self._lines, self._said = lines, ""
        self._drawn_ns = 0
        self._begin, self._span = 0.0, 1.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._screen.interactive and self._drawn_ns:
            self._screen.draw("\r\x1b[K")

    def stage(self, begin: float, end: float) -> None:
        """Use the part of the bar from ``begin`` to ``end`` (0 to 1) for the steps that follow."""
        self._begin, self._span = begin, end - begin

    def step(self, share: float, task: str = "") -> None:
        """Show that ``share`` of the stage (0 to 1) is done, and the present task."""
        if not self._screen.interactive:
            if self._lines and task and task != self._said:
                self._said = task
                self._screen.say(f"{self._title} {visible_line(task)}")
            return
        now = time.monotonic_ns()
        if now - self._drawn_ns < _REDRAW_NS:
            return
        self._drawn_ns = now
        done = self._begin + self._span * min(max(share, 0.0), 1.0)
        full, empty = ("█", "·") if self._screen.utf8 else ("#", ".")
        cells = round(done * 24)
        line = f"{self._title} {full * cells}{empty * (24 - cells)} {done * 100:3.0f} %  {visible_line(task)}"
        self._screen.draw("\r\x1b[K" + line[: self._screen.width - 1])


def end_on_terminate() -> None:
    """Let SIGTERM end this command like Ctrl-C does, so that incomplete files are removed."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the removal
    raise SystemExit(128 + number)


def _speaks_utf8(environment: Mapping[str, str]) -> bool:
    chosen = environment.get("LC_ALL") or environment.get("LC_CTYPE") or environment.get("LANG") or ""
    if chosen == "C.UTF-8" and not environment.get("LC_ALL") and environment.get("LANG", "") in ("", "C", "POSIX"):
        # Python sets LC_CTYPE=C.UTF-8 itself in the C locale (PEP 538), whatever the terminal is.
        return False
    return "utf" in chosen.lower()
