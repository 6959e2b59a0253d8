"""Start processes as the ranks of one job on this host, as a launcher would, and wait for them; report progress."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stashtrace.errors import CaptureError
from stashtrace.files.whole_files import new_log
from stashtrace.record.program import own_program

_POLL_S = 0.02


@contextmanager
def signals_handled(numbers: Iterable[int], handler: Any) -> Iterator[None]:
    """Handle signals in another way for a time; threads other than the main one cannot, and go on as they are."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


class RankFailedError(CaptureError):
    """A rank ended with an error. ``rank``, ``code``: which one, and its exit code; negative for a signal."""

    def __init__(self, rank: int, code: int) -> None:
        super().__init__(f"rank {rank} ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}")
        self.rank, self.code = rank, code


def rank_variables(rank: int, ranks: int) -> dict[str, str]:
    """Variables that a launcher of training jobs gives a rank."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    return {
        "PYTHONSAFEPATH": "1",  # what is in the current folder is none of its business
        **{name: str(number) for name, number in place.items()},
    }


def cores_of_ranks(cores: Sequence[int], ranks: int) -> list[list[int]]:
    """Share cores among ranks in equal, disjoint parts; no rank is pinned if there are more ranks than cores.

    Examples
    --------
    >>> cores_of_ranks([0, 1, 2, 3, 4], 2), cores_of_ranks([0, 1], 3)
    ([[0, 1], [2, 3]], [[], [], []])
    """
    each = len(cores) // ranks
    return [list(cores[rank * each : (rank + 1) * each]) for rank in range(ranks)]


@contextmanager
def rank_processes(
    module: str, tasks: Sequence[Path], logs: Sequence[Path], environment: Mapping[str, str]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start ``python -m MODULE TASK`` once per rank; those that still run at the end are killed.

    ``tasks``, ``logs``: one per rank.
    """
    started: list[subprocess.Popen[bytes]] = []
    # All ranks are on this host; gloo would otherwise ask for the address of the host's name, which not all know.
    common = {"GLOO_SOCKET_IFNAME": "lo", **environment}
    try:
        for rank, (task, log) in enumerate(zip(tasks, logs, strict=True)):
            with new_log(log) as printed:
                process = subprocess.Popen(
                    own_program(module, str(task)),
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=printed,
                    env={**common, **rank_variables(rank, len(tasks))},
                )
            started.append(process)
        yield started
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.wait()


def wait_for_ranks(
    processes: Sequence[subprocess.Popen[bytes]], *, on_wait: Callable[[Sequence[int]], None] = lambda running: None
) -> None:
    """Wait until all ranks have ended well. Raises RankFailedError as soon as one has failed."""
    while True:
        codes = [process.poll() for process in processes]
        for rank, code in enumerate(codes):
            if code:
                raise RankFailedError(rank, code)
        running = [rank for rank, code in enumerate(codes) if code is None]
        if not running:
            return
        on_wait(running)
        time.sleep(_POLL_S)


def last_line(log: Path) -> str:
    """Last line that a process printed; empty if it printed none."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
    return text.splitlines()[-1][:200] if text else ""


#: Called with the share that is done (0 to 1), and what is going on.
ProgressCallback = Callable[[float, str], None]


def no_progress(share: float, what: str) -> None:
    """Default progress callback; does nothing."""


class Progress:
    """Progress through parts of work that are done one after the other.

    ``on_progress``: called with the share that is done and a sentence, with the time left once a part is done.
    ``whole``: weight of all parts together, in any unit.
    """

    def __init__(self, on_progress: ProgressCallback, whole: float) -> None:
        self._on_progress, self._whole = on_progress, max(whole, 1e-9)
        self._done = 0.0
        self._began_s = self._last_end_s = time.monotonic()

    def report(self, what: str) -> None:
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
