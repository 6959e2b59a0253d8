"""Other buckets: predictions from one made-up run against what the same job takes with those buckets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import MS, TraceBuilder
from replay.ddp_runs import ALPHA_NS, BETA_NS, MIB, SIZES, ddp_run, step_ns

from stashtrace.analysis.graph import Graph, Resource, build
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.replay import Answer, Buckets, Change, best_buckets, gradient_buckets, single_changes, what_if
from stashtrace.replay.communication.overlap import bucket_ends
from stashtrace.schema.kinds import CollectiveOp, ElementType

CAPS = (0.25, 1, 2, 4, 8, 100)


def opened(build_: TraceBuilder) -> tuple[Graph, Buckets]:
    trace = build_.trace()
    graph = build(trace)
    return graph, gradient_buckets(trace, graph)


def asked(run: tuple[Graph, Buckets], *changes: str) -> Answer:
    return what_if(run[0], map(Change.parse, changes), buckets=run[1])


def test_the_made_up_job_takes_what_its_arithmetic_says() -> None:
    for cap in CAPS:
        assert asked(opened(ddp_run(cap * MIB))).measured_ns == step_ns(cap * MIB)


@pytest.mark.parametrize("cap", [1, 2, 4, 8, 100])
def test_messages_of_single_gradients_are_merged_as_torch_would(cap: float) -> None:
    """Nothing is left open: the messages are the gradients, and of many sizes."""
    answer = asked(opened(ddp_run(1)), f"bucket_mb={cap}")
    assert answer.low_ns == answer.high_ns == pytest.approx(step_ns(cap * MIB), rel=1e-6)


@pytest.mark.parametrize("recorded", [1, 2, 4, 100])
def test_divided_messages_make_an_interval_with_the_truth_inside(recorded: float) -> None:
    run = opened(ddp_run(recorded * MIB, facts=True))
    for cap in CAPS:
        answer = asked(run, f"bucket_mb={cap}")
        truth = step_ns(cap * MIB)
        assert answer.low_ns <= truth * (1 + 1e-6)
        assert answer.high_ns >= truth * (1 - 1e-6)
        if recorded < min(cap, 4):  # of the larger ones, messages are of too few sizes to show latency
            assert answer.high_ns <= 1.1 * answer.low_ns


def test_messages_of_one_size_leave_open_what_latency_is() -> None:
    """One message a step: of its time anything may be latency, and dividing it costs that again and again."""
    run = opened(ddp_run(100 * MIB, facts=True))
    assert run[1].cost.alpha_ns == (0.0, ALPHA_NS + BETA_NS * sum(SIZES))
    answer = asked(run, "bucket_mb=2")
    assert answer.low_ns < step_ns(2 * MIB) < answer.high_ns


def test_the_same_buckets_change_nothing() -> None:
    for facts in (False, True):
        graph, buckets = opened(ddp_run(2 * MIB, facts=facts))
        answer = what_if(graph, [Change.parse("bucket_mb=2" if facts else "bucket_mb=3.2")], buckets=buckets)
        assert (answer.high_ns == answer.replayed_ns) is facts


def test_the_budget_of_merged_messages_adds_up_and_names_the_link() -> None:
    answer = asked(opened(ddp_run(1)), "bucket_mb=100")
    assert sum(answer.after_ns.values()) == pytest.approx(answer.high_ns, rel=0.01)
    assert answer.after_ns["link"] == pytest.approx(ALPHA_NS + BETA_NS * sum(SIZES), rel=0.01)
    assert answer.after_ns["late"] == 0
    assert answer.bottleneck == "link"


def test_other_changes_hold_together_with_it() -> None:
    """Twice the bandwidth halves what a byte costs, of the merged message too; its latency stays."""
    both = asked(opened(ddp_run(1)), "bucket_mb=100", "interconnect.bandwidth=x2")
    saved = step_ns(100 * MIB) - both.high_ns
    assert saved == pytest.approx(BETA_NS * sum(SIZES) / 2, abs=ALPHA_NS)


def test_one_size_of_message_does_not_show_which_is_best() -> None:
    graph, buckets = opened(ddp_run(100 * MIB, facts=True))
    assert buckets.candidates_mib
    assert best_buckets(graph, buckets) is None
    asked_of = {str(answer.changes[0]) for answer in single_changes(graph, buckets=buckets)}
    assert asked_of
    assert not any(text.startswith("bucket_mb") for text in asked_of)


def test_the_best_cap_is_the_best_of_all_caps() -> None:
    """Every cap from 1/8 MiB to all in one, tried by the arithmetic of the job itself."""
    graph, buckets = opened(ddp_run(1))
    every = {eighths / 8: step_ns(eighths / 8 * MIB) for eighths in range(1, 80)}
    assert every[0.125] == min(every.values())
    assert best_buckets(graph, buckets) is None  # the run has the best there is: nothing to change
    slow = ddp_run(1, latency_ns=3 * MS)
    graph, buckets = opened(slow)
    every = {eighths / 8: step_ns(eighths / 8 * MIB, latency_ns=3 * MS) for eighths in range(1, 80)}
    best = best_buckets(graph, buckets)
    found = step_ns(best.changes[0].factor * MIB, latency_ns=3 * MS)
    assert found == min(every.values()) < every[0.125]
    assert best.high_ns == pytest.approx(found, rel=1e-6)
    assert single_changes(graph, buckets=buckets)[0].changes == best.changes


def test_what_cannot_be_regrouped_is_refused_with_why() -> None:
    with pytest.raises(MissingDataError, match="shows no DistributedDataParallel"):
        opened(ddp_run(MIB, wrapper="Model"))
    with pytest.raises(MissingDataError, match=r"would divide messages of up to 3\.41 MB"):
        asked(opened(ddp_run(2 * MIB)), "bucket_mb=1")
    trace = ddp_run(MIB).trace()
    graph = build(trace)
    on_device = replace(
        graph, resource=np.where(graph.resource == Resource.STEP_THREAD, Resource.STREAM, graph.resource)
    )
    with pytest.raises(MissingDataError, match="devices send the messages"):
        gradient_buckets(trace, on_device)
    with pytest.raises(MissingDataError, match="needs the buckets"):
        what_if(opened(ddp_run(MIB))[0], [Change.parse("bucket_mb=4")])
    sharded = ddp_run(MIB)
    for row in sharded.rows["collectives"]:
        row["op_code"] = int(CollectiveOp.REDUCE_SCATTER)
    with pytest.raises(MissingDataError, match="send reduce_scatter, not only all-reduced"):
        opened(sharded)


@pytest.mark.parametrize("value", ["", "x2", "0", "-1", "nan", "inf", "25M", "1e300", "1e-300", "1e7"])
def test_what_is_no_size_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="bucket_mb cannot be") as error:
        Change.parse(f"bucket_mb={value}")
    assert error.value.hint == "a size in MiB from 1e-06 to 1e+06, as in bucket_mb=100"
    assert error.value.exit_code == 2
    assert str(Change.parse("bucket_mb=2.50")) == "bucket_mb=2.5"


def test_buckets_that_would_divide_a_pass_into_millions_of_messages_are_refused() -> None:
    with pytest.raises(UsageError, match="more than 1,000,000 messages"):
        bucket_ends([100 * MIB, 100 * MIB], 1)


@pytest.mark.parametrize("facts", [True, False])
def test_the_map_of_used_parameters_is_no_gradient(facts: bool) -> None:
    """DistributedDataParallel sends it behind the last bucket: an int32 for each parameter."""
    plain, mapped = (opened(ddp_run(2 * MIB, facts=facts, used_map=kind))[1] for kind in (None, ElementType.INT32))
    assert mapped.bytes.tolist() == plain.bytes.tolist()
    assert mapped.candidates_mib == plain.candidates_mib


@pytest.mark.parametrize("facts", [True, False])
def test_a_tiny_message_among_buckets_asks_for_no_millions_of_them(facts: bool) -> None:
    """Of a recording without element types the map may be a bucket: sizes below those of the run are not tried."""
    build_ = ddp_run(25 * MIB, facts=facts, used_map=ElementType.UNKNOWN)
    for row in build_.rows["collectives"]:
        row["message_bytes"] *= 10 if row["message_bytes"] > MIB else 1
    graph, buckets = opened(build_)
    assert single_changes(graph, buckets=buckets)
    assert all(mib * MIB * 1000 > buckets.bytes.sum() / 12 for mib in buckets.candidates_mib)
    with pytest.raises(MissingDataError, match="would divide messages"):
        asked((graph, buckets), "bucket_mb=1e-06")
