"""Find the runs that a command names, and load them, with progress on stderr if it takes long."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from stashtrace.cli.parsing import existing_run, runs_or_newest
from stashtrace.cli.screen import Screen
from stashtrace.errors import DataLossWarning
from stashtrace.text.units import bytes_text
from stashtrace.text.visible import visible_line

if TYPE_CHECKING:
    from stashtrace.schema.trace import Trace

#: Where stderr is not a terminal: nothing for so long, then a line at most so often.
_QUIET_NS, _BETWEEN_NS = 2_000_000_000, 10_000_000_000


class Watch:
    """Shows how far a load is: a bar on a terminal, else a line now and then once two seconds have passed."""

    def __init__(self, screen: Screen, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._screen, self._clock = screen, clock
        self._bar = screen.progress("reading")
        self._next_ns = clock() + _QUIET_NS

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__(None, None, None)

    def step(self, done_bytes: int, all_bytes: int, what: str) -> None:
        """Note the number of bytes that were read; ``all_bytes`` is 0 while files are only counted."""
        if self._screen.interactive:
            self._bar.step(done_bytes / all_bytes if all_bytes else 0.0, what)
            return
        now = self._clock()
        if now < self._next_ns:
            return
        self._next_ns = now + _BETWEEN_NS
        amount = f"{bytes_text(done_bytes)} of {bytes_text(all_bytes)}, " if all_bytes else ""
        self._screen.say(f"reading: {amount}{visible_line(what)}")


def find_jobs(paths: Sequence[str]) -> list[list[str]]:
    """Return the jobs that were named, or the newest, each as the paths of its parts; several paths may be one job."""
    from stashtrace.loading.gather import is_one_job

    found = [str(existing_run(path)) for path in runs_or_newest(paths)]
    whole = len(found) > 1 and is_one_job([Path(path) for path in found])
    return [found] if whole else [[path] for path in found]


def read_runs(paths: str | Sequence[str], *, run_id: str | None = None, quiet: bool = False) -> Trace:
    """Load a run, or the parts of one job; ``quiet`` is for an answer that says itself what is missing."""
    from stashtrace.loading.load import load_trace

    sources = [str(existing_run(path)) for path in ([paths] if isinstance(paths, str) else paths)]
    with Watch(Screen()) as watch, ignore_losses() if quiet else nullcontext():
        return load_trace(sources, run_id=run_id, progress=watch.step)


@contextmanager
def ignore_losses() -> Iterator[None]:
    """Show no DataLossWarning of what is loaded inside."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        yield
