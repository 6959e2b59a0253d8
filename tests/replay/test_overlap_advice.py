"""overlap_advice on jobs whose times are chosen: which pattern is found, what it saves, and what is refused."""

from __future__ import annotations

import pytest
from advice_jobs import MEDIUM_BYTES, STEP_NS, STEPS, gpu_job, host_job, in_ms, row, rows
from builders import MS, US, TraceBuilder, trace_from_text
from corpus import corpus

import stashtrace
from stashtrace.analysis.graph import build
from stashtrace.calibration.file import Calibration, Link, Points
from stashtrace.calibration.fit_link import Fit, Piece
from stashtrace.errors import MissingDataError
from stashtrace.replay.advice import Advice, ReplayedAdvice, named_advice, overlap_advice
from stashtrace.schema.kinds import CollectiveOp, DeviceWork
from stashtrace.schema.trace import Trace

# Hosts --------------------------------------------------------------------------------------------


def test_an_update_of_a_host_behind_an_all_reduce() -> None:
    trace = host_job()
    split = row(trace, "split_reorder")
    assert (split["op"], split["position"], split["message_bytes"], split["elements_count"]) == (
        "all_reduce",
        "after_backward",
        MEDIUM_BYTES,
        MEDIUM_BYTES // 4,
    )
    assert (split["ranks_count"], split["calls_count"], split["work"]) == (2, 1.0, "update")
    assert in_ms(split, "work", "transfer", "exposed") == (6, 4, 4)
    assert in_ms(split, "saving_low", "saving_high") == (3, 3)
    assert split["share_ratio"] == pytest.approx(3 / 20)
    assert (split["validity"], split["switch"]) == ("estimate", "sharded_optimizer")
    assert split["limits"] == "halves_unmeasured"
    fuse = row(trace, "fuse")
    assert in_ms(fuse, "saving_low", "saving_high") == (0, 6)
    assert (fuse["validity"], fuse["limits"], fuse["gap_ns"]) == ("bound", "not_a_gpu", -1)


def test_of_more_ranks_each_does_less() -> None:
    assert in_ms(row(host_job(ranks=4), "split_reorder"), "saving_low", "saving_high") == (4.5, 4.5)


def test_a_small_message_shows_what_one_more_costs() -> None:
    trace = host_job(small_bytes=4096)
    split = row(trace, "split_reorder", message_bytes=MEDIUM_BYTES)
    # The small message waits 0.5 ms inside the update.
    assert in_ms(split, "work") == (5.5,)
    assert in_ms(split, "saving_low", "saving_high") == (2.25, 2.75)


def test_backward_could_run_during_the_all_reduce_behind_it() -> None:
    overlap = row(host_job(), "overlap")
    assert (overlap["work"], overlap["chunks_count"], overlap["switch"]) == ("backward", 8, "ddp_overlap")
    assert in_ms(overlap, "work", "transfer", "exposed") == (6, 4, 4)
    # 6 + 4 ms become 6 + 4 / 8.
    assert in_ms(overlap, "saving_low", "saving_high") == (0, 3.5)
    assert overlap["validity"] == "bound"
    assert set(overlap["limits"].split(",")) == {"latency_unknown", "contention_unknown"}


def test_several_all_reduces_behind_backward_share_it_and_the_update() -> None:
    build = TraceBuilder()
    for step in range(STEPS):
        at = step * STEP_NS
        for rank in range(2):
            build.rank(rank).phase("forward", at, at + 2 * MS).phase("backward", at + 2 * MS, at + 10 * MS)
            build.rank(rank).phase("optimizer", at + 14 * MS, at + 18 * MS)
        for begin, end, size in ((10, 13, 3 * MEDIUM_BYTES), (13, 14, MEDIUM_BYTES)):
            build.meet(dict.fromkeys(range(2), at + begin * MS), at + end * MS, message_bytes=size)
    trace = build.trace()
    shares = {r["message_bytes"]: in_ms(r, "work", "saving_high") for r in rows(trace, transformation="split_reorder")}
    assert shares == {3 * MEDIUM_BYTES: (3, 1.5), MEDIUM_BYTES: (1, 0.5)}
    overlap = {r["message_bytes"]: in_ms(r, "work", "saving_high") for r in rows(trace, transformation="overlap")}
    # (6 + 3) - (6 + 3 / 8), and (2 + 1) - (2 + 1 / 8).
    assert overlap == {3 * MEDIUM_BYTES: (6, 2.625), MEDIUM_BYTES: (2, 0.875)}


# Devices ------------------------------------------------------------------------------------------


def test_an_update_of_a_device_behind_an_all_reduce() -> None:
    trace = gpu_job().trace()
    split, fuse = row(trace, "split_reorder"), row(trace, "fuse")
    assert in_ms(split, "work", "gap", "transfer", "exposed") == (4, 0.75, 4, 4)
    assert in_ms(split, "saving_low", "saving_high") == (2, 2)
    assert split["position"] == "backward"
    assert in_ms(fuse, "saving_low", "saving_high") == (0, 4.75)
    assert (fuse["validity"], fuse["limits"], fuse["switch"]) == ("bound", "size_between", "fused_optimizer")


def test_a_large_fused_update_is_an_estimate() -> None:
    fuse = row(gpu_job(message_bytes=1 << 28).trace(), "fuse")
    # Of 4 ms of all-reduce and 4.75 ms of update, 5 % may be missed.
    assert in_ms(fuse, "saving_low", "saving_high") == (4.75 - 0.05 * 8.75, 4.75)
    assert (fuse["validity"], fuse["limits"]) == ("estimate", "")


def test_an_update_without_gaps_has_no_switch_today() -> None:
    trace = gpu_job(update_us=1250).trace()
    assert row(trace, "fuse")["switch"] == "fused_collective"
    assert "fuse" not in {advice.transformation for advice in named_advice(overlap_advice(trace))}


def test_behind_a_hidden_all_reduce_the_gather_may_show() -> None:
    split = row(gpu_job(hidden=True).trace(), "split_reorder")
    assert in_ms(split, "exposed", "saving_low", "saving_high") == (0, 0, 2)
    assert "gather_exposed" in split["limits"]
    assert rows(gpu_job(hidden=True).trace(), transformation="overlap") == []


def test_short_kernels_may_not_become_shorter() -> None:
    split = row(gpu_job(update_us=9).trace(), "split_reorder")
    assert split["saving_high_ns"] == 18 * US
    assert (split["saving_low_ns"], split["validity"]) == (0, "bound")
    assert "short_kernels" in split["limits"]


def test_backward_of_a_device_before_the_all_reduce() -> None:
    overlap = row(gpu_job().trace(), "overlap")
    assert in_ms(overlap, "work", "transfer", "exposed", "saving_high") == (6, 4, 4, 3.5)
    assert overlap["switch"] == "smaller_buckets"
    assert (overlap["validity"], overlap["contention_ratio"]) == ("bound", -1.0)


def contended(ratio: float) -> Trace:
    """Twelve kernels of 0.1 ms at the end of a step's backward: in every second step during a message, slower."""
    build = gpu_job()
    for step in range(STEPS):
        at = step * STEP_NS
        shared = step % 2
        times = {}
        for rank in range(2):
            process = build.rank(rank)
            compute, side = process.gpu().stream("compute"), process.gpu().stream("nccl")
            for number in range(12):
                length = round(100 * US * (ratio if shared else 1.0))
                launch = at + 300 * US
                start = at + 500 * US + number * 200 * US
                compute.kernel(start, start + length, f"small {number}", launch=(launch, launch + US))
            when = at + 400 * US if shared else at + 19 * MS + 200 * US
            times[rank] = (at + 200 * US, at + 210 * US, when, when + (2900 * US if shared else 500 * US))
            side.kernel(
                *times[rank][2:],
                "ncclDevKernel_Broadcast",
                work=DeviceWork.COMMUNICATION,
                launch=(at + 202 * US, at + 205 * US),
            )
        build.device_collective(
            times, streams={r: build.rank(r).gpu().stream("nccl") for r in times}, op=CollectiveOp.BROADCAST
        )
    return build.trace()


@pytest.mark.parametrize("ratio", [1.0, 1.5])
def test_contention_is_that_of_the_same_kernel_in_other_steps(ratio: float) -> None:
    overlap = row(contended(ratio), "overlap")
    assert overlap["contention_ratio"] == pytest.approx(ratio, rel=0.01)
    assert overlap["saving_low_ns"] < overlap["saving_high_ns"] or ratio == 1.0
    assert (overlap["validity"], overlap["limits"]) == ("estimate", "latency_unknown")
    if ratio == 1.5:
        # 6 + 4 ms against 1.5 * 6 + 4 / 8.
        assert in_ms(overlap, "saving_low", "saving_high") == (0.5, 3.5)


def test_without_all_ranks_a_transfer_may_be_a_wait() -> None:
    trace = gpu_job(recorded=1).trace()
    overlap = row(trace, "overlap")
    assert (overlap["ranks_count"], overlap["saving_low_ns"], overlap["validity"]) == (2, 0, "bound")
    assert "peers_unseen" in overlap["limits"].split(",")


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "reason"), [(0, "no_payload"), (1 << 19, "too_small"), ((1 << 20) - 4, "too_small")])
def test_sizes_that_nothing_is_said_of(size: int, reason: str) -> None:
    for trace in (host_job(message_bytes=size), gpu_job(message_bytes=size).trace()):
        found = rows(trace)
        assert {r["transformation"] for r in found} == {"split_reorder", "fuse", "overlap"}
        for refused in found:
            assert (refused["validity"], refused["limits"]) == ("none", reason)
            assert (refused["saving_low_ns"], refused["saving_high_ns"]) == (0, 0)
        assert named_advice(overlap_advice(trace)) == []


@pytest.mark.parametrize(
    ("element", "count"), [("f32", 1 << 17), ("bf16", 1 << 18), ("f16", 1 << 18), ("u8", 1 << 19), ("f64", 1 << 16)]
)
def test_a_kernel_shows_how_many_elements_there_are(element: str, count: int) -> None:
    split = row(gpu_job(message_bytes=1 << 19, element=element).trace(), "split_reorder")
    assert split["elements_count"] == count
    assert (split["validity"] == "none") == (count < 1 << 18)


def test_the_smallest_size_is_advised_on_but_not_cut_in_chunks() -> None:
    trace = host_job(message_bytes=1 << 20)
    assert row(trace, "split_reorder")["validity"] == "estimate"
    assert (row(trace, "overlap")["validity"], row(trace, "overlap")["limits"]) == ("none", "too_small")


@pytest.mark.parametrize("op", [CollectiveOp.ALL_GATHER, CollectiveOp.BROADCAST])
@pytest.mark.parametrize("called_us", [2500, 3500])  # inside the optimizer's step, and behind it
def test_an_optimizer_that_gathers_is_sharded_already(op: CollectiveOp, called_us: int) -> None:
    build = gpu_job()
    for step in range(STEPS):
        at = step * STEP_NS
        times = dict.fromkeys(range(2), (at + called_us * US, at + called_us * US + 10, at + 19 * MS, at + 20 * MS))
        build.device_collective(times, op=op, message_bytes=MEDIUM_BYTES // 2)
    for name in ("split_reorder", "fuse"):
        found = row(build.trace(), name)
        assert (found["validity"], found["limits"], found["saving_high_ns"]) == ("none", "sharded", 0)


def test_scattered_gradients_are_updated_in_slices_already() -> None:
    trace = gpu_job(op=CollectiveOp.REDUCE_SCATTER).trace()
    assert rows(trace, transformation="split_reorder") == []
    assert row(trace, "overlap")["switch"] == "fsdp_smaller_units"


def test_scattered_activations_are_no_sharded_optimizer() -> None:
    """Sequence parallel layers scatter the same amount in forward and in backward."""
    build = gpu_job()
    for step in range(STEPS):
        at = step * STEP_NS
        for called in (200, 1200):
            times = dict.fromkeys(range(2), (at + called * US, at + called * US + 10, at + 300 * US, at + 400 * US))
            build.device_collective(times, op=CollectiveOp.REDUCE_SCATTER, message_bytes=2 * MEDIUM_BYTES)
    assert in_ms(row(build.trace(), "split_reorder"), "saving_low", "saving_high") == (2, 2)


def test_parameters_that_are_exchanged_are_not_all_reduced() -> None:
    build = gpu_job()
    for step in range(STEPS):
        at = step * STEP_NS
        times = dict.fromkeys(range(2), (at + 200 * US, at + 210 * US, at + 300 * US, at + 400 * US))
        build.device_collective(times, op=CollectiveOp.ALL_TO_ALL)
    split = row(build.trace(), "split_reorder")
    assert "other_parameters" in split["limits"].split(",")
    assert in_ms(split, "saving_low", "saving_high") == (0, 2)
    assert split["validity"] == "bound"


def test_a_device_whose_kernels_were_not_recorded() -> None:
    trace = gpu_job(kernels=False).trace()
    for name in ("split_reorder", "fuse"):
        assert (row(trace, name)["validity"], row(trace, name)["limits"]) == ("none", "no_kernels")
    assert rows(trace, transformation="overlap") == []  # whether it was exposed is not known


def test_one_rank_alone() -> None:
    assert rows(gpu_job(ranks=1).trace()) == []


def test_activations_are_no_gradients() -> None:
    """Messages of one size in forward and backward: the all-reduces of tensor parallel layers."""
    build = gpu_job()
    for step in range(STEPS):
        at = step * STEP_NS
        times = dict.fromkeys(range(2), (at + 200 * US, at + 210 * US, at + 300 * US, at + 400 * US))
        build.device_collective(times, message_bytes=MEDIUM_BYTES)
    assert rows(build.trace(), transformation="split_reorder") == []


def test_traces_without_what_it_needs() -> None:
    with pytest.raises(MissingDataError, match="no collective"):
        overlap_advice(trace_from_text("rank 0 phase : FBO"))
    build = TraceBuilder()
    build.collective({0: (0, MS), 1: (0, MS)})
    with pytest.raises(MissingDataError) as error:
        overlap_advice(build.trace())
    assert error.value.hint


# Tensor and pipeline parallel ---------------------------------------------------------------------


def tensor_parallel(*, producer: str = "ampere_fp16_s16816gemm_128x128", idle_us: int = 0) -> Trace:
    """In forward a product of 2 ms, then an all-reduce of 1 ms in which nothing else runs.

    The all-reduce has 2^22 elements over two ranks: 16 MiB on the busiest link in 1 ms.
    """
    build = TraceBuilder()
    build.group(range(4), name="world", backend="nccl")
    for group, members in ((1, (0, 1)), (2, (2, 3))):
        build.group(members, group=group, name=f"tp {group}", backend="nccl")
    for group, members in ((3, (0, 2)), (4, (1, 3))):
        build.group(members, group=group, name=f"pp {group}", backend="nccl")
    for step in range(STEPS):
        at = step * STEP_NS
        for rank in range(4):
            process = build.rank(rank)
            process.phase("forward", at, at + MS).phase("backward", at + MS, at + 2 * MS)
            process.phase("optimizer", at + 2 * MS, at + 3 * MS)
            compute = process.gpu().stream("compute", compute=True)
            launch = (at + 100 * US, at + 110 * US)
            compute.kernel(at + 3 * MS, at + 5 * MS - idle_us * US, producer, launch=launch)
            compute.kernel(at + 6 * MS, at + 7 * MS, "relu", launch=launch)
            compute.kernel(at + 14 * MS, at + 16 * MS, "backward", launch=(at + 1100 * US, at + 1110 * US))
        for group, members in ((1, (0, 1)), (2, (2, 3))):
            times = dict.fromkeys(members, (at + 200 * US, at + 210 * US, at + 5 * MS, at + 6 * MS))
            build.device_collective(times, group=group, message_bytes=1 << 24)
    return build.trace()


def test_a_matrix_product_right_before_an_all_reduce_of_activations() -> None:
    trace = tensor_parallel()
    found = rows(trace, transformation="overlap")
    assert {r["communicator"] for r in found} == {"tp 1", "tp 2"}
    for one in found:
        assert (one["work"], one["position"], one["switch"]) == ("gemm", "forward", "async_tensor_parallel")
        # 2 + 1 ms become 2 + 1 / 8.
        assert in_ms(one, "work", "transfer", "exposed", "saving_high") == (2, 1, 1, 0.875)
    (advice,) = named_advice(overlap_advice(trace))
    assert advice.saving_high_ns == 0.875 * MS  # the groups do it at the same time


def test_pointwise_work_or_a_pause_before_an_all_reduce_is_no_producer() -> None:
    assert rows(tensor_parallel(producer="gelu"), transformation="overlap") == []
    assert rows(tensor_parallel(idle_us=60), transformation="overlap") == []


# By the replay --------------------------------------------------------------------------------------


def limited(trace: Trace) -> dict[str, Advice]:
    found = named_advice(overlap_advice(trace), ReplayedAdvice(build(trace), trace).limited)
    return {advice.transformation: advice for advice in found}


def test_where_nothing_else_sets_the_pace_advice_stays_as_it_is() -> None:
    trace = host_job()
    assert limited(trace) == {advice.transformation: advice for advice in named_advice(overlap_advice(trace))}
    assert {name: advice.saving_high_ns / MS for name, advice in limited(trace).items()} == {
        "fuse": 6,
        "overlap": 3.5,
        "split_reorder": 3,
    }


def test_a_loader_that_is_just_fast_enough_leaves_little_to_save() -> None:
    """A worker takes 18 ms for each batch, and a step of 20 ms has 2 ms more than that."""
    build_ = TraceBuilder()
    for step in range(STEPS):
        at = step * STEP_NS
        for rank in range(2):
            process = build_.rank(rank)
            process.batch_wait(step, at, at + 10 * US, worker=0)
            process.worker(0).fetch(step, at - 20 * MS, at - 2 * MS)
            process.phase("forward", at + 10 * US, at + 4 * MS).phase("backward", at + 4 * MS, at + 10 * MS)
            process.phase("optimizer", at + 14 * MS, at + 20 * MS)
        build_.meet(dict.fromkeys(range(2), at + 10 * MS), at + 14 * MS, message_bytes=MEDIUM_BYTES)
    found = limited(build_.trace())
    for advice in found.values():
        assert advice.saving_high_ns == pytest.approx(2 * MS, rel=1e-3)
        assert advice.saving_low_ns <= advice.saving_high_ns
        assert advice.limits[-1] == "pace"
    assert set(found) == {"fuse", "overlap", "split_reorder"}


# Calibration --------------------------------------------------------------------------------------


def calibration(**at_medium_ms: float) -> Calibration:
    """Operations whose time is a flat line, so that a message of any size takes this."""
    links = []
    for op, ms in at_medium_ms.items():
        piece = Piece(1 << 10, 1 << 26, ms * MS, 0.0, 0.0, 0.0, 0.0, 0.0, 8, 0)
        points = Points((1 << 10, 1 << 26), (ms * MS,) * 2, (ms * MS,) * 2, (ms * MS,) * 2, (9, 9))
        links.append(Link("collective", "gloo", op, 2, Fit((piece,)), points))
    return Calibration("2026-01-01T00:00:00+00:00", "", {}, {}, tuple(links))


def test_a_calibration_shows_what_the_halves_take() -> None:
    halves = calibration(all_reduce=4.0, reduce_scatter=3.0, all_gather=2.0)
    (split,) = (
        r for r in overlap_advice(host_job(), calibration=halves).rows() if r["transformation"] == "split_reorder"
    )
    # The halves take 5 / 4 of the 4 ms: of 3 ms that slices save, 1 is lost.
    assert in_ms(split, "saving_low", "saving_high") == pytest.approx((2, 2))
    assert split["limits"] == ""
    slow = calibration(all_reduce=1.0, reduce_scatter=2.0, all_gather=2.0)
    (split,) = (
        r for r in overlap_advice(host_job(), calibration=slow).rows() if r["transformation"] == "split_reorder"
    )
    assert in_ms(split, "saving_low", "saving_high") == pytest.approx((-9, -9))


def test_half_a_calibration_is_none() -> None:
    (split,) = (
        r
        for r in overlap_advice(host_job(), calibration=calibration(all_reduce=4.0)).rows()
        if r["transformation"] == "split_reorder"
    )
    assert split["limits"] == "halves_unmeasured"


# Real traces --------------------------------------------------------------------------------------


def test_resnet_under_ddp_of_which_one_rank_was_recorded() -> None:
    """Five buckets of 102 MB together; SGD's few kernels with a host that is slow to launch them."""
    trace = stashtrace.load(corpus("kineto/one_rank_of_many/nccl_meta_rank0_of_2.json.gz"))
    buckets = {8_196_000, 31_502_336, 26_255_360, 26_550_272, 9_724_160}
    for name in ("split_reorder", "fuse", "overlap"):
        found = rows(trace, transformation=name)
        assert {r["message_bytes"] for r in found} == buckets
        assert {(r["calls_count"], r["ranks_count"], r["position"]) for r in found} == {(1.0, 2, "backward")}
    assert all(
        r["validity"] == "bound" and "peers_unseen" in r["limits"] for r in rows(trace, transformation="overlap")
    )
    fuse, overlap = named_advice(overlap_advice(trace))
    assert (fuse.switch, overlap.switch) == ("fused_optimizer", "smaller_buckets")
    assert fuse.moved_bytes == overlap.moved_bytes == sum(buckets)
    assert fuse.gap_ns > 10 * fuse.work_ns
    # The all-reduces were exposed but for some of it, and no more than that can be saved.
    assert overlap.saving_high_ns < overlap.exposed_ns <= overlap.transfer_ns
    # The host is late with its launches all along: messages that took no time would not make it faster.
    assert set(limited(trace)) == {"fuse"}


def test_messages_of_unknown_size() -> None:
    trace = stashtrace.load(corpus("kineto/one_rank_of_many/df_index_rank1_of_2.json.gz"))
    found = rows(trace)
    assert [r["calls_count"] for r in found] == [404.0] * 3
    assert {(r["validity"], r["limits"], r["message_bytes"]) for r in found} == {("none", "no_payload", -1)}


def test_an_optimizer_that_gathers_what_it_computed() -> None:
    """Distributed Shampoo: all-gathers of 16.8 MB in each step's update."""
    trace = stashtrace.load(corpus("kineto/sampled_128"))
    for name in ("split_reorder", "fuse"):
        assert {(r["validity"], r["limits"]) for r in rows(trace, transformation=name)} == {("none", "sharded")}


def test_a_recommender_whose_tables_are_not_all_reduced() -> None:
    found = rows(stashtrace.load(corpus("kineto/dlrm8_v100")), validity="bound")
    assert {r["message_bytes"] for r in found} == {1_576_964}  # those of 448 and 907,840 bytes are too small
    assert all("other_parameters" in r["limits"].split(",") for r in found)


def test_traces_without_collectives_are_refused() -> None:
    for name in ("nsys/h100_2gpu_1s.sqlite", "kineto/one_gpu/tb_r50_nw4.pt.trace.json.gz"):
        with pytest.raises(MissingDataError, match="no collective"):
            overlap_advice(stashtrace.load(corpus(name)))
