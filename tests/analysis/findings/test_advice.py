"""What is said of the making of batches: how many workers at a time, how they differ, and why a hand-off takes long."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from builders import MS, TraceBuilder

from stashtrace.analysis.findings import summarize
from stashtrace.analysis.graph import build as build_graph
from stashtrace.analysis.steps.epochs import workers_count
from stashtrace.replay.causes.causes_table import causes
from stashtrace.schema.kinds import ProcessRole, StallKind, ThreadRole, TrackKind
from stashtrace.summary.words import evidence_texts, findings_of
from stashtrace.summary.words.cause_templates import cause_text


def sentences(batch_ms: Callable[[int], int], *, workers: int = 1, epochs: int = 1) -> list[str]:
    """Sentences below the verdict about a rank that waits for each of its batches and computes for 2 ms."""
    trace, clock = TraceBuilder(), 0
    rank = trace.rank(0)
    for epoch in range(epochs):
        makers = [
            trace.process(rank=0, role=ProcessRole.WORKER, worker=w, parent=rank.process_id) for w in range(workers)
        ]
        for batch in range(24):
            worker, made = batch % workers, clock + batch_ms(batch) * MS
            makers[worker].fetch(batch, clock, made, cpu=made - clock, runqueue=0, loader=1 + epoch)
            rank.batch_wait(batch, clock, made, worker=worker, cpu=0, runqueue=0, loader=1 + epoch)
            rank.phase("forward", made + 1000, made + MS).phase("optimizer", made + MS, made + 2 * MS)
            clock = made + 2 * MS
    tables = summarize(trace.trace())
    (data,) = [f for f in findings_of(tables.findings, tables.evidence) if f.row["kind"] == "data"]
    return evidence_texts(data)


def test_workers_of_epochs_count_once() -> None:
    assert sentences(lambda batch: 20, epochs=4)[0].startswith("its worker takes 20.0 ms to make a batch: ")
    assert sentences(lambda batch: 20, workers=2, epochs=3)[0].startswith("each of its 2 workers takes 20.0 ms to make")


def test_workers_that_differ_are_not_one_figure() -> None:
    """Worker 0 takes 100 ms for each of its batches, worker 1 takes 1 ms."""
    said = sentences(lambda batch: 1 if batch % 2 else 100, workers=2)[0]
    assert said.startswith(
        "its 2 workers take 1.00 ms to 100 ms to make a batch, worker 0 longest; the mean batch takes"
    )
    assert "each of" not in said


def test_no_sentence_says_how_many_workers_would_help() -> None:
    """That is the answer of a replay, and of no other formula."""
    assert not any("would" in said for said in sentences(lambda batch: 20))


@pytest.mark.parametrize(("ids", "count"), [([], 0), ([-1, -1], 0), ([0, 0, 0], 1), ([0, 1, 0, 1], 2)])
def test_workers_are_counted_by_their_ids(ids: list[int], count: int) -> None:
    import numpy as np

    assert workers_count(np.array(ids, dtype=np.int64)) == count


def handing(*, own_ms: int, sender_ms: int) -> TraceBuilder:
    """Twelve steps of 40 ms: a batch is ready at once, and arrives after 20 ms.

    For ``own_ms`` of these the step thread waits for a CPU, for ``sender_ms`` the thread of its worker that sends it.
    """
    build = TraceBuilder()
    rank, worker = build.rank(0).lives(0, 480 * MS), build.rank(0).worker(0).lives(0, 480 * MS)
    for step in range(12):
        begin = step * 40 * MS
        worker.fetch(step, begin - 5 * MS, begin, cpu=5 * MS, runqueue=0)
        rank.batch_wait(step, begin, begin + 20 * MS, worker=0, cpu=0, runqueue=own_ms * MS)
        rank.phase("forward", begin + 20 * MS, begin + 30 * MS).phase("optimizer", begin + 30 * MS, begin + 40 * MS)
    for number, waited_ms in ((7, sender_ms), (8, 20)):
        if number == 8:  # a thread of the recorder sends no batch
            build.track(worker.process_id, number, "stashtrace proc", kind=TrackKind.THREAD, role=ThreadRole.TRACER)
        track = build.track(worker.process_id, number, "thread_runqueue_ns_total", kind=TrackKind.COUNTER, unit="ns")
        for step in range(13):
            build.add("counters", ts_ns=step * 40 * MS, track_id=track, value=step * waited_ms * MS)
    return build


@pytest.mark.parametrize(
    ("own_ms", "does"), [(18, "waits for a CPU with its batch ready"), (0, "waits for the hand-off")]
)
def test_the_cause_of_starved_hand_off_is_a_wait_for_a_cpu(own_ms: int, does: str) -> None:
    """Nothing says that others hold the CPUs, so that free ones are not promised."""
    cause = next(iter(causes(handing(own_ms=own_ms, sender_ms=0).trace()).rows()))
    assert (cause["kind"], cause["call"]) == ("handoff", "cpu" if own_ms else "")
    said = cause_text(cause, "run")
    assert said.startswith(f"rank 0 {does}")
    assert ("Python objects" in said) is not bool(own_ms)


def test_a_wait_for_a_cpu_before_a_batch_is_counted_once() -> None:
    """The thread's counter grows by 12 ms between two phases: 9 of them in the hand-off, the rest in the loop."""
    build = TraceBuilder()
    rank, waited = build.rank(0), 0
    worker = rank.worker(0)
    for step in range(12):
        begin = step * 40 * MS
        worker.fetch(step, begin - 5 * MS, begin, cpu=5 * MS, runqueue=0)
        rank.batch_wait(step, begin, begin + 15 * MS, worker=0, cpu=0, runqueue=9 * MS)
        waited += 12 * MS
        rank.phase("forward", begin + 20 * MS, begin + 30 * MS, runqueue=(waited, waited))
        rank.phase("optimizer", begin + 30 * MS, begin + 40 * MS, runqueue=(waited, waited))
    graph = build_graph(build.trace())
    known = np.maximum(graph.facts.queued_ns, 0) * (graph.step == 7)
    by_kind = {kind: int(known[graph.kind == kind].sum()) / MS for kind in (StallKind.HANDOFF, StallKind.PYTHON)}
    assert by_kind == {StallKind.HANDOFF: pytest.approx(9, abs=0.1), StallKind.PYTHON: pytest.approx(3, abs=0.1)}
