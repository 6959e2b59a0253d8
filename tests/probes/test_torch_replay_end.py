"""How workers of a replayed loader are ended, by loaders that are none."""

from __future__ import annotations

import queue
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from stashtrace.probes.torch import replay as torch_replay


class Notes:
    """In place of the loss rows."""

    def __init__(self) -> None:
        self.reported: list[tuple[str, str]] = []

    def inform(self, what: str, why: str) -> None:
        self.reported.append((what, why))


class Iterator:
    """What torch's iterator is to the one that retires it."""

    def __init__(self, complaint: str = "") -> None:
        self.complaint = complaint
        self.shutdowns = 0
        self._num_workers = 2
        self._workers: list[Any] = []
        self._task_info = {3: (0,), 4: (1, "a batch")}
        self._data_queue: queue.Queue[str] = queue.Queue()
        self._data_queue.put("pinned")

    def _shutdown_workers(self) -> None:
        self.shutdowns += 1
        if self.complaint:
            raise RuntimeError(self.complaint)


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    monkeypatch.setattr(torch_replay, "failed", lambda collector, where, error: seen.append(f"{where}: {error}"))
    return seen


def retired(iterator: Iterator) -> list[tuple[str, str]]:
    replay: Any = SimpleNamespace(notes=Notes())
    torch_replay._retire(iterator, replay)
    torch_replay._retire(iterator, replay)
    assert iterator.shutdowns == 1
    reported: list[tuple[str, str]] = replay.notes.reported
    return reported


def test_workers_end_and_what_they_owe_stays_in_number(failures: list[str]) -> None:
    iterator = Iterator()
    assert retired(iterator) == []
    assert iterator._task_info == {3: (-1,), 4: (-1,)}
    assert (iterator._num_workers, iterator._data_queue.qsize()) == (0, 0)
    assert failures == []


def test_a_worker_that_dies_when_asked_to_end_is_reported_and_the_rest_is_done(failures: list[str]) -> None:
    why = "DataLoader worker (pid 7) is killed by signal: Aborted."
    iterator = Iterator(why)
    assert retired(iterator) == [("worker_ended_by_signal", why)]
    assert (iterator._num_workers, iterator._data_queue.qsize()) == (0, 0)
    assert failures == []


def test_a_worker_whose_status_was_lost_with_the_error_is_not_alive_for_ever(failures: list[str]) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as living:
        iterator = Iterator("DataLoader worker (pid 7) is killed by signal: Aborted.")
        processes = [
            SimpleNamespace(pid=pid, returncode=None, method=method)
            for pid, method in ((gone.pid, "fork"), (living.pid, "spawn"), (gone.pid, "forkserver"))
        ]
        iterator._workers = [SimpleNamespace(_popen=process) for process in [*processes, None]]
        retired(iterator)
        assert [process.returncode for process in processes] == [255, None, None]
    assert failures == []


def test_another_failure_is_one(failures: list[str]) -> None:
    iterator = Iterator("cannot join a process")
    assert retired(iterator) == []
    assert failures == ["end_of_workers: cannot join a process"]
