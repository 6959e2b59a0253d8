"""python_stacks: what the other threads of a process run while a watched one waits, and who ends its wait."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from other_pythons import RECORDS, VERSIONS, interpreter, run_script
from read_stacks import BEGIN, Sample, Stacks

from stashtrace.schema.kinds import StackFlag, WaitOp

#: Pythons that are left to `make thorough`: each shares the frames of the one before or the GIL of the one after.
SELDOM = {11, 12}
PYTHONS = pytest.mark.parametrize(
    "minor",
    [
        pytest.param(minor, marks=pytest.mark.thorough if minor in SELDOM else ())
        for minor in VERSIONS
        if minor >= RECORDS
    ],
)
FAST = {"STASHTRACE_STACK_HZ": "500"}

POOL = (
    BEGIN
    + """
    import bz2
    from concurrent.futures import ThreadPoolExecutor
    blob, never = os.urandom(300_000), threading.Event()

    def packs():
        bz2.compress(blob)
    def naps():
        time.sleep(0.05)
    def spins():
        for _ in until(0.05):
            sum(range(1000))
    def idles():
        never.wait()
    def begin(function, count=1):
        for _ in range(count):
            threading.Thread(target=function, daemon=True).start()

    pool = ThreadPoolExecutor(1)
    pool.submit(naps).result()
    begin(idles, 3)
    native.watch_waits(True)
    stacks.watch()
"""
)
#: Each way to wait for another thread; the function that it waits for is named in the call.
WAITS = """
    import queue
    given, taken = queue.Queue(), queue.Queue()
    def serves():
        while True:
            given.get()()
            taken.put(None)
    def by_future(function):
        pool.submit(function).result()
    def by_queue(function):
        given.put(function)
        taken.get()
    def by_event(function):
        done = threading.Event()
        begin(lambda: (function(), done.set()))
        while not done.wait(0.01):
            pass
    def by_end(function):
        thread = threading.Thread(target=function)
        thread.start()
        thread.join()
    begin(serves)
    for way in (by_future, by_queue, by_event, by_end):
        for function in (packs, naps, spins):
            for _ in range(4):
                way(function)
    native.watch_waits(False)
"""


def by_tid(found: Stacks, name: str) -> set[int]:
    return {sample.tid for sample in found.samples if name in sample.names}


@PYTHONS
def test_who_runs_while_a_thread_waits(tmp_path: Path, minor: int) -> None:
    _, stderr = run_script(interpreter(minor), POOL + WAITS, tmp_path / "run", **FAST)
    assert stderr == ""
    found = Stacks(tmp_path / "run")
    (main,) = by_tid(found, "by_future")
    others = [sample for sample in found.samples if sample.tid != main and StackFlag.AROUND in sample.flags]
    seen = Counter(name for sample in others for name in sample.names)
    assert all(seen[name] > 10 for name in ("packs", "naps", "spins"))
    # A thread that waits for a lock is left out; one may be seen on its way there.
    assert seen["idles"] < len(others) / 20
    waiting = [sample for sample in found.samples if sample.tid == main and StackFlag.BLOCKED in sample.flags]
    assert len(waiting) > 100
    ways = ("by_future", "by_queue", "by_event", "by_end")
    assert all(any(way in sample.names for sample in waiting) for way in ways)
    assert found.losses == []


@PYTHONS
def test_who_ended_a_wait(tmp_path: Path, minor: int) -> None:
    """With 3.10 a thread that has ended meanwhile is not known."""
    run_script(interpreter(minor), POOL + WAITS, tmp_path / "run", **FAST)
    found = Stacks(tmp_path / "run")
    ran = by_tid(found, "packs") | by_tid(found, "naps") | by_tid(found, "spins")
    native_id = dict(
        zip(found.trace.tracks["track_id"].tolist(), found.trace.tracks["native_id"].tolist(), strict=True)
    )
    ended: dict[str, list[int]] = {
        way: [] for way in ("by_future", "by_queue", "by_end") if way != "by_end" or minor > RECORDS
    }
    for wait in found.trace.waits.rows():
        if wait["wait_code"] != WaitOp.SEMAPHORE or wait["end_ns"] - wait["begin_ns"] < 5_000_000:
            continue
        names = {n for span in found.spans if span.begin_ns == wait["begin_ns"] for n in span.names} & ended.keys()
        for name in names:
            ended[name].append(native_id.get(wait["gil_track_id"], 0))
    assert {way for way, tids in ended.items() if len(tids) < 8} == set()
    assert {way for way, tids in ended.items() if sum(tid in ran for tid in tids) < 0.8 * len(tids)} == set()


NOTHING_WAITS = """
    native.watch_waits(False)  # a thread that starts another one waits for it
    begin(spins, 2)
    native.watch_waits(True)
    for _ in until(0.5):
        time.sleep(0.001)
    def waits_shortly():
        pool.submit(naps)
    waits_shortly()
    native.watch_waits(False)
"""


def test_nobody_is_looked_at_while_nothing_waits(tmp_path: Path) -> None:
    run_script(sys.executable, POOL + NOTHING_WAITS, tmp_path / "run", **FAST)
    found = Stacks(tmp_path / "run")
    assert len(found.samples) > 50
    (main,) = by_tid(found, "<module>")
    elsewhere = [sample for sample in found.samples if sample.tid != main]
    assert [sample for sample in elsewhere if StackFlag.HOLDS_GIL not in sample.flags] == []
    of_main = [sample for sample in found.samples if sample.tid == main]
    assert sum(StackFlag.AROUND in sample.flags for sample in of_main) <= len(of_main) / 20  # it may wait to start one


COMPARED = """
    begin(lambda: time.sleep(60))
    def computes():
        for _ in until(0.02):
            pass
    for _ in range(12):
        pool.submit(naps).result()
        computes()
    native.watch_waits(False)
"""


def test_others_are_compared_while_nothing_waits(tmp_path: Path) -> None:
    """Once for each time that they were looked at during a wait: between two comparisons there is such a look."""
    run_script(sys.executable, POOL + COMPARED, tmp_path / "run", STASHTRACE_STACK_HZ="100")
    found = Stacks(tmp_path / "run")
    main = next(sample.tid for sample in found.samples if "computes" in sample.names)
    looks = [sample for sample in found.samples if sample.tid == main and StackFlag.AROUND in sample.flags]
    looks.sort(key=lambda sample: sample.ts_ns)
    waited = [StackFlag.BLOCKED in sample.flags for sample in looks]
    assert waited.count(False) >= 3
    assert all(one or other for one, other in pairwise(waited))
    assert by_tid(found, "<lambda>")


MANY = """
    begin(naps_long, {count})
    pool.submit(naps).result()
    pool.submit(naps).result()
    native.watch_waits(False)
"""


@pytest.mark.parametrize(
    ("function", "count", "reported"), [("naps_long", 12, True), ("idles", 40, True), ("idles", 20, False)]
)
def test_more_threads_than_are_looked_at(tmp_path: Path, function: str, count: int, reported: bool) -> None:
    code = (
        POOL
        + "    def naps_long():\n        time.sleep(60)\n"
        + MANY.format(count=count).replace("naps_long", function)
    )
    run_script(sys.executable, code, tmp_path / "run", **FAST)
    found = Stacks(tmp_path / "run")
    names = {name for name, _ in found.losses}
    assert ("stacks_of_others_not_sampled" in names) is reported
    waiting = [sample for sample in found.samples if "result" in " ".join(sample.names) and is_whole(sample)]
    assert bool(waiting) is not reported
    per_thread = Counter(sample.tid for sample in found.samples if function in sample.names)
    assert len(per_thread) <= 20


def is_whole(sample: Sample) -> bool:
    return StackFlag.AROUND in sample.flags and StackFlag.BLOCKED in sample.flags
