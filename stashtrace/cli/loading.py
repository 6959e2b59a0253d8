"""Load a trace for a command, with progress on stderr if it takes long."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from stashtrace.cli.screen import Screen
from stashtrace.units import bytes_text
from stashtrace.visible import visible_line

if TYPE_CHECKING:
    from stashtrace.schema.trace import Trace

#: Where stderr is not a terminal: nothing for so long, then a line at most so often.
_QUIET_NS, _BETWEEN_NS = 2_000_000_000, 10_000_000_000


class Watch:
    """Tells how far a load is: a bar on a terminal, else a line now and then once two seconds have passed.

    Parameters
    ----------
    screen : Screen
        Where to write.
    clock : callable
        Gives ns; tests bring their own.
    """

    def __init__(self, screen: Screen, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._screen, self._clock = screen, clock
        self._bar = screen.progress("reading")
        self._next_ns = clock() + _QUIET_NS

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__(None, None, None)

    def step(self, done_bytes: int, all_bytes: int, what: str) -> None:
        """Note that so many bytes were read; ``all_bytes`` is 0 while files are only counted."""
        if self._screen.interactive:
            self._bar.step(done_bytes / all_bytes if all_bytes else 0.0, what)
            return
        now = self._clock()
        if now < self._next_ns:
            return
        self._next_ns = now + _BETWEEN_NS
        amount = f"{bytes_text(done_bytes)} of {bytes_text(all_bytes)}, " if all_bytes else ""
        self._screen.say(f"reading: {amount}{visible_line(what)}")


def load_watched(path: str | list[str], *, run_id: str | None = None) -> Trace:
    """``load_trace`` with a :class:`Watch` on stderr; its errors are those of ``load_trace``."""
    from stashtrace.loading.load import load_trace

    with Watch(Screen()) as watch:
        return load_trace(path, run_id=run_id, progress=watch.step)
