"""What the summary says of waits between epochs: how often, how long, and whether workers started anew."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from scenes import job, verdicts
from trace_rows import MS, TraceBuilder

from stashtrace.schema.kinds import BatchPhase
from stashtrace.schema.trace import Trace

STEP_NS = 50 * MS


def epochs(
    *,
    steps: int,
    count: int,
    between_ns: int,
    wait_ns: int = 5 * MS,
    kept: bool = False,
    workers: int = 1,
    own: bool = False,
) -> Trace:
    """Epochs of some steps, each begun by a wait that is counted half for the iterator, half for its first batch."""
    build, now = TraceBuilder(), 0
    rank = build.rank(0)
    for epoch in range(count):
        for step in range(steps):
            waited = between_ns if step == 0 else wait_ns
            worker = -1 if own else (step % workers) + (0 if kept else workers * epoch)
            maker = rank if own else rank.worker(worker)
            begin = now + (waited // 2 if step == 0 else 0)
            if step == 0:
                rank.batch(BatchPhase.WAIT, -1, now, begin, worker=-1, loader=7 + epoch)
            maker.fetch(step, begin, now + waited, loader=7 + epoch)
            rank.batch_wait(step, begin, now + waited, worker=worker, loader=7 + epoch)
            now += waited
            rank.phase("forward", now, now + 20 * MS).phase("backward", now + 20 * MS, now + 40 * MS)
            rank.phase("optimizer", now + 40 * MS, now + STEP_NS)
            now += STEP_NS
    return build.trace()


def evidence(trace: Trace) -> tuple[str, ...]:
    (found,) = verdicts(trace)
    assert found.kind == "data"
    return found.evidence


def test_workers_that_start_anew() -> None:
    # Of 25 counted steps 23 wait 5 ms and two 905 ms; the first epoch begins within the warm-up.
    assert evidence(epochs(steps=10, count=3, between_ns=905 * MS)) == (
        "94 % of that lies between epochs: twice in 25 steps, 905 ms each, to start its worker again and make a first"
        " batch; persistent_workers=True keeps them",
    )
    (told,) = evidence(epochs(steps=10, count=2, between_ns=905 * MS, workers=2))
    assert told.startswith("93 % of that lies between epochs: once in 15 steps, 905 ms, to start its 2 workers again")


def test_workers_that_stay() -> None:
    (told,) = evidence(epochs(steps=10, count=3, between_ns=905 * MS, kept=True))
    assert told.endswith("twice in 25 steps, 905 ms each, for a first batch that no worker had made ahead")


def test_a_smaller_part_is_told_beside_the_workers() -> None:
    told = evidence(epochs(steps=10, count=3, between_ns=40 * MS, wait_ns=8 * MS))
    assert told[0].startswith("30 % of that lies between epochs: twice in 25 steps, 40.0 ms each, to start its worker")
    assert told[1] == "each of its 3 workers takes 8.96 ms to make a batch"


@pytest.mark.parametrize(
    "case",
    [
        {"between_ns": 20 * MS, "wait_ns": 20 * MS},  # every batch is waited for alike
        {"between_ns": 905 * MS, "own": True},  # nothing is made ahead without workers either way
    ],
)
def test_nothing_to_tell(case: dict[str, int]) -> None:
    assert not any("between epochs" in line for line in evidence(epochs(steps=10, count=3, **case)))


def test_what_is_known_of_the_batches_of_one_rank_is_not_said_of_two() -> None:
    for prep, told in (({0: 44, 1: 40}, "on rank 0, its worker takes"), ({0: 44}, "its worker takes")):
        data = next(found for found in verdicts(job(prep=prep)[1]) if found.kind == "data")
        assert data.evidence[0].startswith(told)
