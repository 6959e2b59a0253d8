"""waits: each blocking call of a watched thread above the threshold, and nothing else."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from collectors.recorded import Recording, compiled, plain_environment, record
from measurements import Measurements

from stashtrace.schema.kinds import WaitOp

#: In the order of native/wait_scenes.c.
EXPECTED = (
    [WaitOp.COND_WAIT] * 3
    + [WaitOp.MUTEX_LOCK]
    + [WaitOp.SEMAPHORE] * 3
    + [WaitOp.POLL] * 6
    + [WaitOp.SLEEP] * 3
    + [WaitOp.JOIN] * 2
    + [WaitOp.FUTEX]
)
LONG_NS = 10_000_000


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Measurements[Recording]:
    program = compiled("wait_scenes.c")
    return Measurements(lambda folder: record([program], folder, collectors=("waits",)), tmp_path_factory.mktemp("w"))


@pytest.fixture(scope="module")
def scenes(recordings: Measurements[Recording]) -> Recording:
    return recordings.first


def test_results_are_untouched(scenes: Recording) -> None:
    bare = subprocess.run(
        [compiled("wait_scenes.c")], env=plain_environment(), capture_output=True, text=True, check=True
    )
    assert scenes.stdout == bare.stdout
    assert scenes.stderr == ""


def test_waits_are_of_the_watched_thread(scenes: Recording) -> None:
    """Sleeps last as long as they say on any machine; what another thread ends may be over before it is awaited."""
    assert len({r.tid for r in scenes.waits}) == 1
    long = Counter(r.op for r in scenes.waits if r.end_ns - r.begin_ns > LONG_NS)
    assert long[WaitOp.SLEEP] == EXPECTED.count(WaitOp.SLEEP)
    assert long.keys() <= set(EXPECTED) | {WaitOp.COND_WAIT}


@pytest.mark.truth
def test_each_wait_of_the_watched_thread(recordings: Measurements[Recording]) -> None:
    def as_written(recording: Recording) -> None:
        rows = sorted(recording.waits, key=lambda r: r.begin_ns)
        # Waits for a helper thread to begin are short; each scene proper lasts 20 ms.
        assert [r.op for r in rows if r.end_ns - r.begin_ns > LONG_NS] == EXPECTED

    recordings.agree(as_written)


def test_intervals_do_not_overlap(scenes: Recording) -> None:
    rows = sorted(scenes.waits, key=lambda r: r.begin_ns)
    assert all(a.end_ns <= b.begin_ns for a, b in itertools.pairwise(rows))
    assert all(r.end_ns - r.begin_ns >= 20_000 for r in rows)


def test_threshold(tmp_path: Path) -> None:
    recording = record(
        [compiled("wait_scenes.c")], tmp_path / "run", collectors=("waits", "posix_io"), wait_threshold_ns=10**10
    )
    assert recording.waits == []


def test_nothing_when_the_collector_is_off(tmp_path: Path) -> None:
    recording = record([compiled("wait_scenes.c")], tmp_path / "run", collectors=("posix_io",))
    assert recording.waits == []


PYTHON_SCRIPT = """
import queue, threading, time
from stashtrace import _native
_native.watch_waits(True)
time.sleep(0.03)
items = queue.Queue()
threading.Timer(0.03, items.put, ["item"]).start()
items.get()
items = queue.Queue()
try:
    items.get(timeout=0.03)
except queue.Empty:
    pass
_native.watch_waits(False)
time.sleep(0.03)
"""


@pytest.mark.truth
def test_python_sleep_and_queue(tmp_path: Path) -> None:
    Measurements(
        lambda folder: record(
            [sys.executable, "-c", PYTHON_SCRIPT],
            folder,
            collectors=("waits",),
            env={"PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        ),
        tmp_path,
    ).agree(sleep_and_queue_are_there)


def sleep_and_queue_are_there(recording: Recording) -> None:
    long = [r for r in sorted(recording.waits, key=lambda r: r.begin_ns) if r.end_ns - r.begin_ns > 20_000_000]
    assert [r.op for r in long] in (
        [WaitOp.SLEEP, WaitOp.SEMAPHORE, WaitOp.SEMAPHORE],  # CPython 3.11 with sem_clockwait
        [WaitOp.SLEEP, WaitOp.COND_WAIT, WaitOp.COND_WAIT],  # built without POSIX semaphores
        [WaitOp.POLL, WaitOp.SEMAPHORE, WaitOp.SEMAPHORE],  # CPython 3.10 sleeps by select
    )


GIL_SCRIPT = """
import threading, time
from stashtrace import _native
def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
threading.Thread(target=burn, args=(60,), daemon=True).start()
_native.watch_waits(True)
burn(0.1)  # gives the GIL up again and again, and waits for it
_native.watch_waits(False)
"""


def test_waits_for_the_gil_are_none_on_a_condition_or_a_mutex(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    recording = record([sys.executable, "-c", GIL_SCRIPT], tmp_path / "run", collectors=("waits",), env=environment)
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        assert recording.waits == []
        return
    assert {r.op for r in recording.waits} == {WaitOp.GIL}
