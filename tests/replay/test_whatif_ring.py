"""Ranks in a ring: each sends to the next while it receives from the one before, and asks for its send last.

The end of a send over gloo is seen when the thread asks for it. A rank that received late asks late, though its message
had arrived long before.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from builders import MS, US, TraceBuilder
from wait_chains import PAIR
from wait_chains import Job as Chain

from stashtrace.analysis.findings import summarize
from stashtrace.analysis.graph import build
from stashtrace.replay import Change, what_if
from stashtrace.replay.causes import causes
from stashtrace.schema.kinds import CollectiveOp
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_document import document

RANKS, STEPS, LATE = 4, 20, 2
#: Work of each rank, a message, the update, and how much longer the late rank works.
WORK, MESSAGE, UPDATE, LONGER = 5 * MS, MS // 2, MS // 2, 40 * MS


def ring(longer_ns: int = LONGER, noise_ns: int = 0) -> Trace:
    """Rank 2 computes so much longer than the 5 ms of the others: ranks 1 and 3 wait for it, and rank 0 for rank 3.

    What every rank computes varies from step to step by up to ``noise_ns``.
    """
    made, rows = TraceBuilder(), random.Random(3)
    groups = {rank: made.group(sorted([rank, (rank + 1) % RANKS]), group=0xA0 + rank) for rank in range(RANKS)}
    begin = [0] * RANKS
    for step in range(STEPS):
        works = [WORK + rows.randint(0, noise_ns) + (longer_ns if rank == LATE else 0) for rank in range(RANKS)]
        posted = [began + work for began, work in zip(begin, works, strict=True)]
        # Of rank, from the one before: both have posted.
        received = [max(posted[rank], posted[rank - 1]) + MESSAGE for rank in range(RANKS)]
        for rank in range(RANKS):
            process, target = made.rank(rank), (rank + 1) % RANKS
            process.phase("forward", begin[rank], posted[rank])
            # The send is done with its receive; its thread asks for it when it has received itself.
            asked = received[rank] + 20 * US
            sent = max(asked, received[target]) + 20 * US
            of_pair = {"group": groups[rank], "sequence": step, "message_bytes": 1 << 19}
            keys = made.collective(
                {rank: (posted[rank], sent)}, op=CollectiveOp.SEND, peer_rank=_place(rank, target), **of_pair
            )
            taken = made.collective(
                {target: (posted[target], received[target])},
                op=CollectiveOp.RECEIVE,
                peer_rank=_place(target, rank),
                **of_pair,
            )
            made.rank(target).collective_wait(taken[target], posted[target], received[target])
            process.collective_wait(keys[rank], asked, sent)
            process.phase("optimizer", sent, sent + UPDATE)
            begin[rank] = sent + UPDATE
    return made.trace()


def _place(rank: int, other: int) -> int:
    return 1 if other > rank else 0


def test_what_a_ring_saves_without_its_late_rank() -> None:
    run = build(ring())
    answer = what_if(run, [Change.parse("straggler=0")])
    step = answer.measured_ns
    assert step == pytest.approx(WORK + LONGER + MESSAGE + UPDATE, rel=0.02)
    assert answer.low_ns == pytest.approx(step - LONGER, rel=0.05)
    assert answer.high_ns == pytest.approx(step - LONGER, rel=0.05)


def test_of_ranks_that_differ_by_chance_nothing_need_be_saved() -> None:
    """The most that may go is what single steps hold longer, the least what a rank does longer in general: nothing."""
    answer = what_if(build(ring(0, 4 * MS)), [Change.parse("straggler=0")])
    assert answer.high_ns > 0.93 * answer.measured_ns
    assert answer.low_ns < 0.9 * answer.measured_ns


def test_the_work_of_the_late_rank_alone_is_taken_away() -> None:
    run = build(ring())
    quicker = what_if(run, [Change.parse("straggler=0"), Change.parse("compute=x0.5")])
    assert quicker.middle_ns == pytest.approx(WORK / 2 + MESSAGE + UPDATE, rel=0.15)


def test_all_of_a_ring_wait_for_the_rank_that_computes_longer() -> None:
    (verdict,) = [row for row in document(summarize(ring()))["findings"] if row["kind"] == "late"]
    assert "all of it for rank 2" in verdict["text"]
    first = next(iter(causes(ring()).rows()))
    assert (first["ranks"], first["kind"], first["waiting_ranks"]) == ("2", "compute", "0,1,3")


def asked_late(steps: int = 24) -> Trace:
    """Rank 0 sends two messages a step. Rank 1 waits a millisecond for one; for the other it asks after it has slept.

    Rank 0 asks for the ends of both at the end of its step, when they have long been delivered.
    """
    job = Chain(2)
    job.build.group([0, 1], group=PAIR, name="pair")
    for step in range(steps):
        begin = max(job.now.values())
        job.now = dict.fromkeys(job.now, begin)
        for rank in (0, 1):
            job.compute(rank, 2)
        sent = job.now[0]
        asked = {0: sent + 26 * MS, 1: sent + 21 * MS}
        # The second message is called when the first one has been delivered.
        for place, (called, since, end) in enumerate(
            ((sent, sent, sent + MS), (sent + MS, asked[1], asked[1] + 10_000)), start=2 * step
        ):
            ends = {0: asked[0] + 10_000, 1: end}
            keys = {}
            for rank, op in ((0, CollectiveOp.SEND), (1, CollectiveOp.RECEIVE)):
                times = {rank: (called, ends[rank])}
                keys |= job.build.collective(times, group=PAIR, sequence=place, op=op, peer_rank=1 - rank)
            job.build.rank(1).collective_wait(keys[1], since, end)
            job.build.rank(0).collective_wait(keys[0], asked[0], ends[0])
        job.now[1] = sent + MS
        job.sleep(1, 20)
        job.now[1] = asked[1] + 10_000
        job.compute(1, 5, "backward")
        job.compute(0, 26, "backward")
        job.now[0] = asked[0] + 10_000
        for rank in (0, 1):
            job.update(rank)
    return job.trace()


def test_a_message_takes_no_longer_because_it_is_asked_for_late() -> None:
    """Both messages take a millisecond, as the one does that is waited for."""
    graph = build(asked_late())
    sizes = graph.work_ns[graph.is_transfer]
    assert np.median(sizes) == pytest.approx(MS, abs=0.05 * MS)
    assert sizes.max() < 1.1 * MS
    assert graph.step_ns(graph.replay()).tolist() == graph.measured_step_ns.tolist()
