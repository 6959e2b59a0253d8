"""What is said of the making of batches: how many workers at a time, how they differ, and why a hand-off takes long."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable

import pytest
from builders import MS, TraceBuilder

from stashtrace.analysis.findings import summarize
from stashtrace.analysis.findings.batch_making import PARTS, Making, is_starved
from stashtrace.analysis.steps.epochs import workers_count
from stashtrace.schema.events import BATCHES
from stashtrace.schema.kinds import ProcessRole
from stashtrace.schema.table import Table
from stashtrace.summary.words import evidence_texts, findings_of


def told(batch_ms: Callable[[int], int], *, workers: int = 1, epochs: int = 1) -> list[str]:
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
    assert told(lambda batch: 20, epochs=4)[0].startswith("its worker takes 20.0 ms to make a batch: ")
    assert told(lambda batch: 20, workers=2, epochs=3)[0].startswith("each of its 2 workers takes 20.0 ms to make")


def test_workers_that_differ_are_not_one_figure() -> None:
    """Worker 0 takes 100 ms for each of its batches, worker 1 takes 1 ms."""
    said = told(lambda batch: 1 if batch % 2 else 100, workers=2)[0]
    assert said.startswith(
        "its 2 workers take 1.00 ms to 100 ms to make a batch, worker 0 longest; the mean batch takes"
    )
    assert "each of" not in said


def test_bursts_are_told() -> None:
    """Every eighth batch takes 200 ms, the others take 5."""
    assert "half of the batches take 5.00 ms or less, the longest takes 200 ms" in told(
        lambda batch: 200 if batch % 8 == 7 else 5
    )
    assert not any("half of the batches" in said for said in told(lambda batch: 5))


def test_no_sentence_says_how_many_workers_would_help() -> None:
    """That is the answer of a replay, and of no other formula."""
    assert not any("would" in said for said in told(lambda batch: 20))


@pytest.mark.parametrize(("ids", "count"), [([], 0), ([-1, -1], 0), ([0, 0, 0], 1), ([0, 1, 0, 1], 2)])
def test_workers_are_counted_by_their_ids(ids: list[int], count: int) -> None:
    import numpy as np

    assert workers_count(np.array(ids, dtype=np.int64)) == count


@pytest.mark.parametrize(("queue", "starved"), [(2, False), (30, True)])
def test_hand_off_that_waits_for_cpus_is_no_reason_for_larger_batches(queue: int, starved: bool) -> None:
    parts = {part: float({"cpu": 8, "queue": queue}.get(part, 0) * MS) for part in PARTS}
    making = Making(Table.from_rows(BATCHES, []), 2, sum(parts.values()), parts, 0.0, 1.0)
    assert is_starved(making) is starved
