"""Whose batches they are: workers that have no data, and children that take separate batches."""

from __future__ import annotations

import pytest
from scenes import job, verdicts
from trace_rows import MS, TraceBuilder

from stashtrace.analysis.graph import build as graph_of
from stashtrace.analysis.registry import analyze
from stashtrace.errors import MissingDataError
from stashtrace.replay import Change, what_if
from stashtrace.replay.loaders.worker_count import workers_to_try
from stashtrace.schema.trace import Trace

STEPS, BATCH_NS, WORK_NS = 40, 30 * MS, 10 * MS


def one_shard(*, workers: int) -> Trace:
    """Worker 0 makes all batches; the others were asked for one each and found no data."""
    build, now = TraceBuilder(), 0
    rank = build.rank(0)
    for worker in range(1, workers):
        rank.worker(worker).fetch(worker, worker * MS, worker * MS + MS // 10)
    for number in range(STEPS):
        batch, ready = number if number == 0 else number + workers - 1, now + BATCH_NS
        rank.worker(0).fetch(batch, now, ready)
        rank.batch_wait(batch, now, ready, worker=0)
        rank.phase("forward", ready, ready + WORK_NS // 2).phase("backward", ready + WORK_NS // 2, ready + WORK_NS - MS)
        rank.phase("optimizer", ready + WORK_NS - MS, ready + WORK_NS)
        now = ready + WORK_NS
    return build.trace()


def test_workers_without_data_are_named() -> None:
    said = verdicts(one_shard(workers=4))[0].evidence
    assert said[0] == (
        "3 of its 4 workers made no batch (1-3): their part of the dataset is empty, as with fewer shards than workers"
    )
    assert said[1].startswith("worker 0 takes 30.0 ms to make a batch")
    assert verdicts(one_shard(workers=1))[0].evidence[0].startswith("its worker takes 30.0 ms to make a batch")


def test_a_worker_is_not_slower_than_those_that_make_nothing() -> None:
    graph = graph_of(one_shard(workers=4))
    with pytest.raises(MissingDataError, match="no worker of this run clearly takes longer"):
        what_if(graph, [Change.parse("slow_worker=0")])


def test_more_workers_are_not_predicted_where_they_take_no_turns() -> None:
    graph = graph_of(one_shard(workers=4))
    assert workers_to_try(graph) == []
    with pytest.raises(MissingDataError, match="one made 1 batches and another 40"):
        what_if(graph, [Change.parse("workers=8")])


def test_batches_of_a_forked_child_belong_to_it() -> None:
    """The step thread takes a batch a step; a child takes one of another loader in every second of them."""
    build, now = TraceBuilder(), 0
    rank = build.rank(0)
    child = rank.worker(-1)
    for number in range(STEPS):
        rank.fetch(number, now, now + BATCH_NS, worker=-1, loader=1)
        rank.batch_wait(number, now, now + BATCH_NS, worker=-1, loader=1)
        if number % 2:
            child.fetch(number, now + BATCH_NS, now + BATCH_NS + MS, worker=-1, loader=2)
            child.batch_wait(number, now + BATCH_NS, now + BATCH_NS + MS, worker=-1, loader=2)
        ready = now + BATCH_NS
        rank.phase("forward", ready, ready + 5 * MS).phase("optimizer", ready + 5 * MS, ready + WORK_NS)
        now = ready + WORK_NS
    trace = build.trace()
    said = verdicts(trace)[0].evidence
    assert said[0].startswith("the step thread (num_workers=0) takes 30.0 ms to make a batch")
    assert "a step uses" not in said[0]
    assert analyze(trace, "hidden")["hidden_loading_ns"].sum() == 0


def test_what_is_known_of_the_batches_of_one_rank_is_not_said_of_two() -> None:
    for prep, reported in (({0: 44, 1: 40}, "on rank 0, its worker takes"), ({0: 44}, "its worker takes")):
        data = next(found for found in verdicts(job(prep=prep)[1]) if found.kind == "data")
        assert data.evidence[0].startswith(reported)
