"""From drawn collectives to alpha, beta and exposed communication: late ranks, queues and waits taken out."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from builders import MS, US, TraceBuilder

from stashtrace.analysis.communication_model import CommunicationModel, communication_model
from stashtrace.analysis.gradient_messages import gradient_messages
from stashtrace.errors import MissingDataError
from stashtrace.model.kinds import CollectiveOp
from stashtrace.model.strings import StringPool
from stashtrace.model.trace import Trace
from stashtrace.models.layers import schedule
from stashtrace.report.communication import error_ratio, model_json, model_lines

KB = 1000
#: What a message takes in the made-up runs: 200 us and 2 ns a byte.
ALPHA, BETA = 200 * US, 2.0
SIZES = (50 * KB, 400 * KB, 900 * KB, 1800 * KB)
STEPS, STEP_NS = 12, 40 * MS


def cost(size: int) -> int:
    return int(ALPHA + BETA * size)


def job(
    ready: Sequence[int], *, backend: str = "gloo", late: int = 0, sizes: Sequence[int] = SIZES, blocking: bool = False
) -> TraceBuilder:
    """Two ranks; messages of a step are ready at ``ready`` after backward began; rank 1 is ``late``."""
    build = TraceBuilder()
    build.group(range(2), backend=backend)
    for step in range(STEPS):
        origin = step * STEP_NS
        begin = origin + 5 * MS
        for rank in (0, 1):
            build.rank(rank).phase("forward", origin, begin)
        free = waited = 0
        for offset, size in zip(ready, sizes, strict=True):
            call = begin + offset + waited
            enter = call + late
            end = free = max(enter, free) + cost(size)
            keys = build.collective({0: (call, end), 1: (enter, end)}, message_bytes=size)
            if blocking:
                for rank, key in keys.items():
                    build.rank(rank).collective_wait(key, call if rank == 0 else enter, end)
                waited += end - call
        done = max(free, begin + ready[-1] + waited)
        for rank in (0, 1):
            build.rank(rank).phase("backward", begin, done).phase("optimizer", done, done + MS)
    return build


def model_of(build: TraceBuilder) -> CommunicationModel:
    return communication_model(build.trace())


def one(model: CommunicationModel) -> tuple[float, float]:
    """Alpha and beta of the only operation."""
    (link,) = model.links
    assert link.fit is not None
    return link.fit.pieces[0].alpha_ns, link.fit.pieces[0].beta_ns_per_byte


APART = (1 * MS, 4 * MS, 8 * MS, 14 * MS)
TOGETHER = (1 * MS, 1 * MS + 100 * US, 1 * MS + 200 * US, 3 * MS)


@pytest.mark.parametrize("late", [0, 2 * MS])
def test_alpha_and_beta_of_messages_apart(late: int) -> None:
    """What rank 1 is late is waiting, and no part of the link."""
    model = model_of(job(APART, late=late))
    assert one(model) == pytest.approx((ALPHA, BETA), rel=1e-6)
    (link,) = model.links
    assert (link.op, link.backend, link.ranks_count, link.messages_count) == ("all_reduce", "gloo", 2, 7 * 4)
    assert link.r2_ratio == pytest.approx(1.0)
    assert model.passes.step.tolist() == list(range(5, 12))
    assert model.passes.messages_count.tolist() == [4] * 7
    # The last is alone on the link: all of it is exposed.
    assert model.passes.observed_ns == pytest.approx(cost(SIZES[-1]))
    assert model.passes.predicted_ns == pytest.approx(cost(SIZES[-1]), rel=1e-6)


def test_waiting_for_the_message_in_front_is_no_part_of_the_link() -> None:
    """NCCL has one stream: ends are one after the other, and the recurrence finds the same exposed time."""
    model = model_of(job(TOGETHER, backend="nccl"))
    assert one(model) == pytest.approx((ALPHA, BETA), rel=1e-6)
    by_hand = schedule(TOGETHER, [cost(s) for s in SIZES]).exposed_ns
    assert by_hand == TOGETHER[0] + sum(map(cost, SIZES)) - TOGETHER[-1]
    for column in (model.passes.observed_ns, model.passes.replayed_ns, model.passes.predicted_ns):
        assert column == pytest.approx(by_hand, rel=1e-6)
    assert error_ratio(model) == pytest.approx(0.0, abs=1e-6)


def test_two_threads_of_gloo_share_the_link() -> None:
    """Times of single messages are shared out, their sum and the exposed time are as they were."""
    messages = gradient_messages(job(TOGETHER).trace())
    own = messages.step == 6
    assert messages.link_ns[own].sum() == pytest.approx(sum(map(cost, SIZES)))
    model = model_of(job(TOGETHER))
    assert model.passes.replayed_ns == pytest.approx(model.passes.observed_ns)


def test_callers_that_wait_expose_everything() -> None:
    """All-reduces one by one after backward, each waited for: the sum of all."""
    model = model_of(job((10 * MS,) * 4, blocking=True))
    whole = sum(map(cost, SIZES))
    assert model.passes.observed_ns == pytest.approx(whole)
    assert model.passes.predicted_ns == pytest.approx(whole, rel=1e-6)
    assert model.buckets == ()


def test_buckets_are_forecast_from_the_ready_times() -> None:
    model = model_of(job(TOGETHER, backend="nccl"))
    found = {bucket.bucket_mib: bucket for bucket in model.buckets}
    assert found[0.0].exposed_ns == pytest.approx(schedule(TOGETHER, [cost(s) for s in SIZES]).exposed_ns, rel=1e-6)
    assert found[-1.0].exposed_ns == pytest.approx(cost(sum(SIZES)), rel=1e-6)
    assert found[-1.0].messages_count == 1
    assert found[-2.0].exposed_ns <= min(b.exposed_ns for b in model.buckets if not b.split) + 1e-6
    # 1 MiB is less than the largest message.
    assert found[1.0].split


def test_bytes_that_seem_free_forecast_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of any size take as long: one of everything would take no longer, which nobody believes."""
    times = dict(zip(SIZES, (4600 * US, 4100 * US, 4500 * US, 4200 * US), strict=True))
    monkeypatch.setitem(globals(), "cost", times.__getitem__)
    model = model_of(job(APART))
    assert model.links[0].fit is not None
    assert model.buckets == ()
    assert any("what a byte costs cannot be told" in note for note in model.notes)
    assert not any("forecasts below" in line for line in model_lines(model))


def test_ready_times_by_sizes_alone() -> None:
    """Gradients taken to come at an even rate of bytes, over the time until the last was ready."""
    model = model_of(job(TOGETHER, backend="nccl"))
    even = np.cumsum(SIZES) / sum(SIZES) * TOGETHER[-1]
    assert model.passes.by_sizes_ns == pytest.approx(schedule(even, [cost(s) for s in SIZES]).exposed_ns, rel=1e-6)
    assert np.isnan(model_of(job((10 * MS,) * 4, blocking=True)).passes.by_sizes_ns).all()


def test_what_is_sent_outside_of_backward_is_fitted_and_not_exposed_there() -> None:
    build = job(APART)
    for step in range(STEPS):
        at = step * STEP_NS + MS
        build.collective({0: (at, at + cost(8)), 1: (at, at + cost(8))}, message_bytes=8)
    model = model_of(build)
    assert model.links[0].points.sizes_bytes[0] == 8
    assert model.passes.messages_count.tolist() == [4] * 7


def test_operations_are_kept_apart_and_one_of_few_sizes_is_told() -> None:
    build = job(APART)
    for step in range(STEPS):
        at = step * STEP_NS + MS
        build.collective(dict.fromkeys((0, 1), (at, at + 300 * US)), message_bytes=64, op=CollectiveOp.ALL_GATHER)
        build.collective(dict.fromkeys((0, 1), (at, at + 300 * US)), message_bytes=0, op=CollectiveOp.BARRIER)
    model = model_of(build)
    assert [link.op for link in model.links] == ["all_reduce", "all_gather"]
    assert model.links[1].fit is None
    assert any("all_gather of default_pg: 1 of 3 sizes" in note for note in model.notes)


def test_micro_batches_are_passes_of_their_own() -> None:
    build = TraceBuilder()
    build.group(range(2))
    for step in range(STEPS):
        for half in (0, 1):
            at = step * STEP_NS + half * 18 * MS
            last = at + 2 * MS
            for number, size in enumerate(SIZES):
                call = at + (4 + 3 * number) * MS
                last = call + cost(size)
                build.collective({0: (call, last), 1: (call, last)}, message_bytes=size)
            for rank in (0, 1):
                build.rank(rank).phase("forward", at, at + 2 * MS).phase("backward", at + 2 * MS, last)
        for rank in (0, 1):
            build.rank(rank).phase("optimizer", step * STEP_NS + 36 * MS, step * STEP_NS + 37 * MS)
    passes = model_of(build).passes
    assert len(passes) == 14
    assert passes.messages_count.tolist() == [4] * 14


def test_collectives_without_a_loop_are_fitted_all_the_same() -> None:
    build = TraceBuilder()
    build.group(range(2))
    for number in range(9):
        size, at = SIZES[number % 3], number * 10 * MS
        build.collective({0: (at, at + cost(size)), 1: (at, at + cost(size))}, message_bytes=size)
    model = model_of(build)
    assert one(model) == pytest.approx((ALPHA, BETA), rel=1e-6)
    assert len(model.passes) == 0
    assert np.isnan(model.step_ns)
    assert model.notes == ("exposed communication: not known, since the run has no steps",)
    assert "exposed communication: not known" in model_lines(model)


def test_too_few_sizes_cannot_be_fitted() -> None:
    trace = job(APART[:2], sizes=SIZES[:2]).trace()
    with pytest.raises(MissingDataError, match="2 message sizes of all_reduce cannot carry a fit") as caught:
        communication_model(trace)
    assert "bucket_cap_mb" in str(caught.value.hint)
    model = communication_model(trace, needs_fit=False)
    assert model.passes.observed_ns == pytest.approx(cost(SIZES[1]))
    assert np.isnan(model.passes.predicted_ns).all()


def test_nothing_was_sent() -> None:
    with pytest.raises(MissingDataError, match="no collective was recorded"):
        communication_model(Trace(StringPool(), {}))
    build = TraceBuilder()
    build.group(range(2))
    build.collective({0: (0, MS), 1: (0, MS)}, message_bytes=0, op=CollectiveOp.BARRIER)
    with pytest.raises(MissingDataError, match="moved bytes"):
        communication_model(build.trace())


def test_an_operation_that_hangs_is_left_out() -> None:
    build = job(APART)
    at = STEPS * STEP_NS
    build.collective({0: (at, -1)}, message_bytes=7)
    assert 7 not in model_of(build).links[0].points.sizes_bytes


def test_words_and_json() -> None:
    model = model_of(job(TOGETHER, backend="nccl", late=MS))
    text = "\n".join(model_lines(model))
    for part in ("200 us ±", "500 MB/s ±", "all_reduce of default_pg, by size:", "recurrence, times of the fit",
                 "as recorded", "best merge", "by the attribution a step"):  # fmt: skip
        assert part in text
    assert max(len(line) for line in text.splitlines()) < 125
    whole = model_json(model)
    (fit,) = whole["fits"]
    assert fit["alpha_ns"] == pytest.approx(ALPHA, rel=1e-6)
    assert fit["beta_ns_per_byte"] == pytest.approx(BETA, rel=1e-6)
    assert [row["message_bytes"] for row in fit["sizes"]] == list(SIZES)
    assert whole["exposed"]["error_ratio"] == pytest.approx(0.0, abs=1e-6)
    assert whole["exposed"]["messages_count"] == 4
