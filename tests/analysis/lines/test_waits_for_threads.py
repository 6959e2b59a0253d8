"""A wait for a lock is spent where the thread that ends it was, if its samples say that."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from builders import MS, TraceBuilder
from stack_rows import long_call, sample, stack_of

from stashtrace.analysis.lines.lines import costliest_lines, lines
from stashtrace.replay.causes import causes
from stashtrace.schema.kinds import StackFlag, WaitOp
from stashtrace.schema.trace import Trace
from stashtrace.summary.words.cause_templates import cause_lines

MAIN = "main /jobs/train.py:40"
RESULT = (MAIN, "Condition.wait /usr/lib/python3.11/threading.py:320")
PACK = ("Thread._bootstrap /usr/lib/python3.11/threading.py:995", "pack /jobs/train.py:22")
SPIN = "spin /jobs/train.py:70"
IDLE = "_worker /usr/lib/python3.11/concurrent/futures/thread.py:81"
#: Numbers of other threads.
POOL, OTHER = 77, 78
AROUND, WAITING = StackFlag.AROUND, StackFlag.AROUND | StackFlag.BLOCKED
WAIT_MS = 50
#: A step is 30 ms of computing, and a wait.
STEP_MS = 100


class Job:
    """Steps of which each waits for 50 ms, and samples: of each wait five, of the rest of each step one."""

    def __init__(
        self, *, op: WaitOp = WaitOp.SEMAPHORE, ended_by: int | Sequence[int] = POOL, steps: int = 10, pieces: int = 1
    ) -> None:
        self.build = TraceBuilder()
        self.rank = self.build.rank(0)
        self.main, self.wait = stack_of(self.rank, MAIN), stack_of(self.rank, *RESULT)
        self.steps, self.pieces = steps, pieces
        for step in range(steps):
            at = step * STEP_MS * MS
            self.rank.phase("forward", at, at + 30 * MS, cpu=(at, at + 30 * MS))
            self.rank.phase("optimizer", at + 90 * MS, at + 100 * MS, cpu=(at + 90 * MS, at + 100 * MS))
            of_step = ended_by if isinstance(ended_by, int) else ended_by[step]
            self._waits(op, at + 30 * MS, of_step)

    def _waits(self, op: WaitOp, begin: int, ended_by: int) -> None:
        length = WAIT_MS * MS // self.pieces
        for piece in range(self.pieces):
            at = begin + piece * length
            self.rank.wait(op, at, at + length, ended_by=ended_by if piece == self.pieces - 1 else -1)
            long_call(self.rank, at, at + length, self.wait)

    def sampled(
        self,
        waiting: dict[int, tuple[str, ...]],
        computing: dict[int, tuple[str, ...]] | None = None,
        *,
        of: range | None = None,
    ) -> Trace:
        """Return the trace. ``waiting``, ``computing``: what other threads run then, in the steps ``of``."""
        for step in range(self.steps):
            running = waiting if of is None or step in of else {}
            at = step * STEP_MS * MS
            self._look(at + 10 * MS, self.main, computing or {}, AROUND)
            for n in range(5):
                self._look(at + (35 + 10 * n) * MS, self.wait, running, WAITING)
            self._look(at + 95 * MS, self.main, computing or {}, AROUND)
        return self.build.trace()

    def _look(self, ts_ns: int, own: int, others: dict[int, tuple[str, ...]], flags: StackFlag) -> None:
        for n, (track, calls) in enumerate(others.items()):
            sample(self.rank, ts_ns - 10 + n, stack_of(self.rank, *calls), track_id=track, flags=AROUND)
        sample(self.rank, ts_ns, own, flags=flags)


def spent(trace: Trace) -> dict[str, float]:
    """Ms a step by line, of the time in which the step computes nothing."""
    return {line.place: round(line.time_ns / MS, 1) for line in costliest_lines(trace, 0, "other", 9)}


ALL_OF_IT = {"pack (train.py:22)": 50.0}
THE_WAIT = {"main (train.py:40)": 50.0}


def test_a_wait_for_a_lock_is_spent_in_the_thread_that_ends_it() -> None:
    found = costliest_lines(Job().sampled({POOL: PACK}), 0, "other", 9)
    assert [(line.place, line.time_ns / MS) for line in found] == [("pack (train.py:22)", 50)]
    assert found[0].low_ns < found[0].time_ns, "as samples say"
    assert spent(Job().sampled({POOL: PACK}, {POOL: PACK})) == ALL_OF_IT, "a thread that prefetches is never idle"


def test_a_cause_in_another_thread_says_where_the_step_waits_for_it() -> None:
    found = next(iter(causes(Job().sampled({POOL: PACK})).rows()))
    assert (found["place"], found["waiter"]) == ("pack (train.py:22)", "main (train.py:40)")
    said = cause_lines(found, "RUN")[0]
    assert said.endswith(" in main (train.py:40), for another thread in pack (train.py:22)")
    alone = next(iter(causes(Job().sampled({})).rows()))
    assert (alone["place"], alone["waiter"]) == ("main (train.py:40, in threading Condition.wait)", "")


def test_a_row_of_another_thread_has_the_line_that_waits_for_it() -> None:
    half = Job().sampled({POOL: PACK}, of=range(5))
    rows = [row for row in lines(half).rows() if row["where"] == "step" and row["kind"] == "other"]
    assert {
        (half.text(row["function_code"]), half.text(row["waiting_function_code"]), row["waiting_line"])
        for row in rows
        if row["function_code"]
    } == {("pack", "main", 40), ("main", "", -1)}, "where nobody is known, the line waits for nobody"
    assert sum(row["time_ns"] for row in rows) == 50 * MS


def test_no_other_thread_that_runs_is_charged() -> None:
    both = {POOL: PACK, OTHER: (SPIN,)}
    assert spent(Job().sampled(both)) == ALL_OF_IT
    assert spent(Job().sampled(both, {OTHER: (SPIN,)})) == ALL_OF_IT
    assert spent(Job(ended_by=-1).sampled(both)) == THE_WAIT, "nobody knows which of them"
    assert spent(Job(ended_by=OTHER + 1).sampled(both)) == THE_WAIT, "neither of them"


def test_a_thread_in_no_code_of_the_user_is_not_charged() -> None:
    assert spent(Job().sampled({POOL: (IDLE,)})) == THE_WAIT
    assert spent(Job().sampled({})) == THE_WAIT


def test_part_of_the_waits_is_spent_elsewhere() -> None:
    assert spent(Job().sampled({POOL: PACK}, of=range(5))) == {
        "pack (train.py:22)": 25.0,
        "main (train.py:40)": 25.0,
    }
    assert spent(Job(steps=20).sampled({POOL: PACK}, of=range(1))) == THE_WAIT, "too little of it"


def test_a_thread_that_happened_to_hold_the_gil_is_not_charged() -> None:
    """A heartbeat that woke between the release and the end of the wait."""
    by = [POOL] * 9 + [OTHER]
    both = {POOL: PACK, OTHER: (SPIN,)}
    assert spent(Job(ended_by=by).sampled(both, {OTHER: (SPIN,)})) == {
        "pack (train.py:22)": 45.0,
        "main (train.py:40)": 5.0,
    }


def test_each_step_has_a_separate_thread() -> None:
    by = list(range(100, 110))
    job = Job(ended_by=by)
    for step in range(10):
        at = step * STEP_MS * MS
        for n in range(5):
            ts_ns = at + (35 + 10 * n) * MS - 10
            sample(job.rank, ts_ns, stack_of(job.rank, *PACK), track_id=by[step], flags=AROUND)
    assert spent(job.sampled({})) == ALL_OF_IT


def test_a_wait_with_a_time_limit_goes_on() -> None:
    """``while not event.wait(0.01)``: of the last one alone it is known who ended it."""
    assert spent(Job(pieces=5).sampled({POOL: PACK})) == ALL_OF_IT
    assert spent(Job(pieces=5).sampled({POOL: PACK, OTHER: (SPIN,)})) == ALL_OF_IT
    assert spent(Job(pieces=5, ended_by=-1).sampled({POOL: PACK})) == THE_WAIT


@pytest.mark.parametrize("op", [WaitOp.POLL, WaitOp.COND_WAIT, WaitOp.FUTEX, WaitOp.JOIN])
def test_other_waits_are_of_a_thread_that_runs_meanwhile_alone(op: WaitOp) -> None:
    """An event loop, C++: what held the GIL last need not have ended them."""
    assert spent(Job(op=op).sampled({POOL: PACK})) == ALL_OF_IT
    assert spent(Job(op=op).sampled({POOL: PACK}, {POOL: PACK})) == THE_WAIT, "it runs all the time"
    assert spent(Job(op=op, ended_by=-1).sampled({POOL: PACK})) == THE_WAIT
    assert spent(Job(op=op, ended_by=OTHER).sampled({POOL: PACK, OTHER: (SPIN,)}, {OTHER: (SPIN,)})) == THE_WAIT


@pytest.mark.parametrize("op", [WaitOp.SLEEP, WaitOp.GIL])
def test_waits_that_no_lock_ends_stay(op: WaitOp) -> None:
    assert spent(Job(op=op).sampled({POOL: PACK})) == THE_WAIT


def test_samples_that_say_nothing_of_others_charge_nobody() -> None:
    """As where more threads ran than are looked at."""
    job = Job()
    for step in range(10):
        for n in range(5):
            ts_ns = (step * STEP_MS + 35 + 10 * n) * MS
            sample(job.rank, ts_ns - 10, stack_of(job.rank, *PACK), track_id=POOL, flags=AROUND)
            sample(job.rank, ts_ns, job.wait)
    assert spent(job.build.trace()) == THE_WAIT
