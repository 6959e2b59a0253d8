"""From drawn collectives to alpha, beta and exposed communication: late ranks, queues and waits taken out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from builders import MS, US, TraceBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from stashtrace.analysis.steps.steps import counted_steps, steps
from stashtrace.errors import MissingDataError
from stashtrace.replay.communication.communication_model import CommunicationModel, communication_model
from stashtrace.replay.communication.communication_text import error_ratio, model_json, model_lines
from stashtrace.replay.communication.messages import gradient_messages
from stashtrace.replay.communication.overlap import schedule
from stashtrace.schema.kinds import CollectiveOp, Phase, PhaseFlag
from stashtrace.schema.strings import StringPool
from stashtrace.schema.trace import Trace

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
    (link,) = model.links
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
    # 1 MiB is less than the largest message, which one tensor filled: the others were sent sooner.
    assert (found[1.0].split, found[1.0].messages_count) == (False, 2)


def test_large_buckets_are_divided_for_the_forecast_of_small_ones() -> None:
    """Two messages of more than 1 MiB between a first and a last one: nothing is known of their tensors."""
    sizes = (1100 * KB, 3000 * KB, 2600 * KB, 500 * KB)
    model = model_of(job(TOGETHER, backend="nccl", sizes=sizes))
    found = {bucket.bucket_mib: bucket for bucket in model.buckets}
    assert (found[1.0].split, found[1.0].messages_count) == (True, 7)
    assert not found[4.0].split


def test_bytes_that_seem_free_forecast_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of any size take as long: one of everything would take no longer, which nobody believes."""
    times = dict(zip(SIZES, (4600 * US, 4100 * US, 4500 * US, 4200 * US), strict=True))
    monkeypatch.setitem(globals(), "cost", times.__getitem__)
    model = model_of(job(APART))
    assert model.links[0].fit is not None
    assert model.buckets == ()
    assert any("the cost of a byte is lost in the scatter" in note for note in model.notes)
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


def test_operations_are_kept_apart_and_one_of_few_sizes_is_reported() -> None:
    build = job(APART)
    for step in range(STEPS):
        at = step * STEP_NS + MS
        build.collective(dict.fromkeys((0, 1), (at, at + 300 * US)), message_bytes=64, op=CollectiveOp.ALL_GATHER)
        build.collective(dict.fromkeys((0, 1), (at, at + 300 * US)), message_bytes=0, op=CollectiveOp.BARRIER)
    model = model_of(build)
    assert [link.op for link in model.links] == ["all_reduce", "all_gather"]
    assert model.links[1].fit is None
    assert any("all_gather of default_pg: 1 of 3 sizes" in note for note in model.notes)


def test_micro_batches_are_separate_passes() -> None:
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
    assert model.notes == ("exposed communication is unknown: the run has no steps",)
    assert "exposed communication: unknown" in model_lines(model)


def test_too_few_sizes_cannot_be_fitted() -> None:
    trace = job(APART[:2], sizes=SIZES[:2]).trace()
    with pytest.raises(MissingDataError, match="2 message sizes of all_reduce cannot carry a fit") as caught:
        communication_model(trace)
    assert "bucket_cap_mb=0.001" in str(caught.value.hint), "1 MB is more than all of a small network"
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
    for part in (
        "200 us ±",
        "500 MB/s ±",
        "all_reduce of default_pg, by size:",
        "recurrence, times of the fit",
        "as recorded",
        "best merge",
        "by the attribution a step",
    ):
        assert part in text
    assert max(len(line) for line in text.splitlines()) < 125
    whole = model_json(model)
    (fit,) = whole["fits"]
    assert fit["alpha_ns"] == pytest.approx(ALPHA, rel=1e-6)
    assert fit["beta_ns_per_byte"] == pytest.approx(BETA, rel=1e-6)
    assert [row["message_bytes"] for row in fit["sizes"]] == list(SIZES)
    assert whole["exposed"]["error_ratio"] == pytest.approx(0.0, abs=1e-6)
    assert whole["exposed"]["messages_count"] == 4


@pytest.mark.parametrize("engine", [False, True])
def test_forwards_repeated_inside_backward_end_no_pass(engine: bool) -> None:
    """Activation checkpointing runs forwards within backward: on the thread of the loop, or on the engine's."""
    build = job(APART)
    for rank in (0, 1):
        own = build.rank(rank)
        track = build.track(own.process_id, 77, "autograd") if engine else own.track_id
        for step in range(STEPS):
            for offset in APART:
                at = step * STEP_NS + 5 * MS + offset - 500 * US
                build.add(
                    "phases",
                    begin_ns=at,
                    end_ns=at + 100 * US,
                    track_id=track,
                    process_id=own.process_id,
                    phase_code=int(Phase.FORWARD),
                    phase_flags=0 if engine else int(PhaseFlag.NESTED),
                )
    passes = model_of(build).passes
    assert passes.messages_count.tolist() == [4] * 7
    assert passes.observed_ns == pytest.approx(cost(SIZES[-1]))


def two_groups(names: tuple[str, str], members: tuple[range, range] = (range(2), range(2))) -> TraceBuilder:
    """Each message of a backward pass goes over two communicators of NCCL at once; the second is twice as slow."""
    build = TraceBuilder()
    for number, (name, ranks) in enumerate(zip(names, members, strict=True)):
        build.group(ranks, group=100 + number, name=name, backend="nccl")
    for step in range(STEPS):
        begin = step * STEP_NS + 5 * MS
        free = [0, 0]
        for rank in members[1]:
            build.rank(rank).phase("forward", begin - 5 * MS, begin)
        for offset, size in zip(TOGETHER, SIZES, strict=True):
            for number, ranks in enumerate(members):
                free[number] = max(begin + offset, free[number]) + (1 + number) * cost(size)
                times = dict.fromkeys(ranks, (begin + offset, free[number]))
                build.collective(times, group=100 + number, message_bytes=size)
        for rank in members[1]:
            build.rank(rank).phase("backward", begin, max(free)).phase("optimizer", max(free), max(free) + MS)
    return build


def test_communicators_send_at_the_same_time() -> None:
    """The slower one is what sticks out: nothing waits for the other's messages."""
    model = model_of(two_groups(("data", "tensor")))
    assert {link.communicator: link.fit.pieces[0].alpha_ns for link in model.links if link.fit} == pytest.approx(
        {"data": ALPHA, "tensor": 2 * ALPHA}
    )
    by_hand = schedule(TOGETHER, [2 * cost(s) for s in SIZES]).exposed_ns
    for column in (model.passes.observed_ns, model.passes.replayed_ns, model.passes.predicted_ns):
        assert column == pytest.approx(by_hand, rel=1e-6)
    assert model.buckets == ()
    assert any("of several operations or communicators" in note for note in model.notes)


def test_groups_of_one_name_and_other_sizes_are_other_links() -> None:
    """Of two ranks and of four, both called the same: one line through both would be neither."""
    model = model_of(two_groups(("mesh", "mesh"), (range(2), range(4))))
    found = {link.ranks_count: link.fit.pieces[0].beta_ns_per_byte for link in model.links if link.fit is not None}
    assert found == pytest.approx({2: BETA, 4: 2 * BETA})
    assert model.passes.predicted_ns == pytest.approx(model.passes.observed_ns, rel=1e-6)


def test_a_group_of_each_stage_has_separate_passes() -> None:
    """Ranks 0 and 2 share gradients, and 1 and 3: the mesh calls both the same."""
    build = TraceBuilder()
    for stage in (0, 1):
        build.group((stage, stage + 2), group=100 + stage, name="mesh_dp", backend="nccl")
    for step in range(STEPS):
        begin = step * STEP_NS + 5 * MS
        for stage in (0, 1):
            free = 0
            for offset, size in zip(APART, SIZES, strict=True):
                free = max(begin + offset, free) + cost(size)
                build.collective(
                    dict.fromkeys((stage, stage + 2), (begin + offset, free)), group=100 + stage, message_bytes=size
                )
            for rank in (stage, stage + 2):
                own = build.rank(rank).phase("forward", begin - 5 * MS, begin)
                own.phase("backward", begin, free).phase("optimizer", free, free + MS)
    model = model_of(build)
    assert sorted(model.passes.rank.tolist()) == [0] * 7 + [1] * 7
    assert one(model) == pytest.approx((ALPHA, BETA), rel=1e-6)
    assert model.passes.predicted_ns == pytest.approx(cost(SIZES[-1]), rel=1e-6)
    assert model.buckets


@pytest.mark.parametrize(("module", "waited"), [("DistributedDataParallel", False), ("Net", False), ("Net", True)])
def test_the_callback_of_the_last_message_may_come_late(module: str, waited: bool) -> None:
    """The loop goes on with the lock in hand: 3 ms. Backward of DDP has waited for the message, so it ended by then.

    Of others nobody knows, and where the script waits after backward that end is the one.
    """
    build = TraceBuilder()
    build.group(range(2))
    for step in range(STEPS):
        begin, free = step * STEP_NS + 5 * MS, 0
        for offset, size in zip(APART, SIZES, strict=True):
            free = max(begin + offset, free) + cost(size)
            said = free + (3 * MS if offset == APART[-1] else 0)
            keys = build.collective(dict.fromkeys((0, 1), (begin + offset, said)), message_bytes=size)
        for rank in (0, 1):
            own = build.rank(rank).phase("forward", begin - 5 * MS, begin, name=module)
            own.phase("backward", begin, free).phase("optimizer", free + 3 * MS, free + 4 * MS)
            if waited:
                own.collective_wait(keys[rank], free + MS, free + 3 * MS)
    late = 0 if module == "DistributedDataParallel" else 3 * MS
    assert model_of(build).passes.observed_ns == pytest.approx(cost(SIZES[-1]) + late)


def test_callers_that_wait_learn_why_nothing_is_forecast() -> None:
    notes = model_of(job((10 * MS,) * 4, blocking=True)).notes
    assert "other buckets are not forecast: callers wait for messages before they go on" in notes


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_what_is_exposed_is_never_more_than_there_was_time(seed: int) -> None:
    """Ranks that run unevenly: single passes may outlast a rank's step, all of them never the whole run.

    A rank sends nothing of the next step before it has the last message of this one, so exposed times do not overlap.
    """
    random = np.random.default_rng(seed)
    build = TraceBuilder()
    build.group(range(2))
    at, began = [0, 0], [0, 0]
    for _ in range(STEPS):
        began = list(at)
        for rank in (0, 1):
            at[rank] += int(random.integers(1, 5 * MS))
            build.rank(rank).phase("forward", began[rank], at[rank])
        back, free = list(at), 0
        for size in SIZES:
            at = [now + int(random.integers(1, MS)) for now in at]
            free = max(*at, free) + cost(size)
            ends = [free + int(random.integers(0, 9 * MS)) for _ in at]
            build.collective({rank: (at[rank], ends[rank]) for rank in (0, 1)}, message_bytes=size)
        for rank in (0, 1):
            at[rank] = max(ends[rank], at[rank])
            build.rank(rank).phase("backward", back[rank], at[rank]).phase("optimizer", at[rank], at[rank] + US)
            at[rank] += US
    trace = build.trace()
    passes = communication_model(trace).passes
    rows = counted_steps(steps(trace))
    assert passes.observed_ns.sum() <= rows["end_ns"].max() - rows["begin_ns"].min()
