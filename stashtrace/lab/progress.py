"""Progress of a program of the lab: the share that is done, and the time left at the pace so far."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Told the share that is done (0 to 1), and what is going on.
ProgressCallback = Callable[[float, str], None]


def no_progress(share: float, what: str) -> None:
    """Default progress callback; does nothing."""


class Progress:
    """Progress through parts of work that are done one after the other.

    ``on_progress``: told the share that is done and a sentence, with the time that is left once a part is done.
    ``whole``: weight of all parts together, in any unit.
    """

    def __init__(self, on_progress: ProgressCallback, whole: float) -> None:
        self._on_progress, self._whole = on_progress, max(whole, 1e-9)
        self._done = 0.0
        self._began_s = self._last_end_s = time.monotonic()

    def tell(self, what: str) -> None:
        """Call the callback with the share that is done, what is going on, and the time left."""
        self._on_progress(self._done / self._whole, what + self._left())

    def finish(self, weight: float = 1.0) -> None:
        """Count a part as done."""
        self._done += weight
        self._last_end_s = time.monotonic()

    def _left(self) -> str:
        if not self._done:
            return ""
        pace = (self._last_end_s - self._began_s) / self._done
        seconds = max(pace * (self._whole - self._done) - (time.monotonic() - self._last_end_s), 1.0)
        return f", about {seconds / 60:.0f} min left" if seconds > 90 else f", about {seconds:.0f} s left"
