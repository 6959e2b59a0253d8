"""Collectives of two real ranks over gloo, by every route, and the job's numbers untouched by us."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from installed import needs_torch
from traced import TracedRun, run_traced

from stashtrace.schema.kinds import CollectiveFlag, CollectiveOp, ElementType, ThreadRole
from stashtrace.schema.table import Table

pytestmark = pytest.mark.torch
needs_torch()

SCRIPT = """
    import gc, json, os, time, weakref
    import torch
    import torch.distributed as dist
    import stashtrace

    rank = int(os.environ["RANK"])
    results = {}

    def part(function):
        torch.manual_seed(1)
        with stashtrace.annotate(function.__name__):
            results[function.__name__] = function()
        dist.barrier()

    dist.init_process_group("gloo")
    world = dist.group.WORLD

    @part
    def eager():
        x = torch.full((4,), rank + 1.0)
        dist.all_reduce(x)
        dist.broadcast(x, 1)
        out = [torch.empty(4) for _ in range(2)]
        dist.all_gather(out, x)
        dist.reduce(x, 0)
        dist.all_gather_into_tensor(torch.empty(8), x)
        dist.reduce_scatter_tensor(torch.empty(2), x)
        dist.all_to_all_single(torch.empty(4), x)
        dist.gather(x, out if rank == 0 else None, 0)
        dist.scatter(x, out if rank == 0 else None, 0)
        dist.barrier()
        dist.monitored_barrier()
        names = [None, None]
        dist.all_gather_object(names, {"rank": rank})
        return [x.tolist() if rank == 0 else None, names]

    @part
    def late():
        x = torch.ones(8)
        if rank == 1:
            time.sleep(0.5)
        dist.all_reduce(x)
        return x.tolist()

    @part
    def asynchronous():
        tensors = [torch.full((1 << 16,), float(i + rank)) for i in range(4)]
        works = [dist.all_reduce(t, async_op=True) for t in tensors]
        for work in works:
            work.wait()
        seen = [weakref.ref(t) for t in tensors]
        out = [t[0].item() for t in tensors]
        del tensors, works, work
        limit = time.monotonic() + 20
        while any(ref() is not None for ref in seen) and time.monotonic() < limit:
            time.sleep(0.01)
        return [out, [ref() is None for ref in seen]]

    @part
    def told_by_gloo():
        # Rank 0 waits for rank 1 in the first, which so ends in a callback of ours: its class is known from then on.
        if rank == 1:
            time.sleep(0.3)
        first = dist.all_reduce(torch.ones(8), async_op=True)
        first.get_future().then(lambda future: None).wait()
        first.wait()
        for _ in range(3):
            work = dist.all_reduce(torch.ones(8), async_op=True)
            slow = work.get_future().then(lambda future: time.sleep(0.2))
            work.wait()
            slow.wait()
        for work in [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(300)]:
            work.wait()

    @part
    def messages():
        x = torch.full((3,), float(rank))
        for tag in (0, 5):
            if rank == 0:
                dist.send(x, 1, tag=tag)
            else:
                dist.recv(x, 0, tag=tag)
        ops = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, torch.empty(3), 1 - rank)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        ref = weakref.ref(x)
        del x, ops, work
        dist.barrier()
        return [ref() is None]

    @part
    def groups():
        both, alone = dist.new_group([0, 1]), dist.new_group([0])
        x = torch.ones(2)
        dist.all_reduce(x, group=both)
        if rank == 0:
            dist.all_reduce(x, group=alone)
        dist.destroy_process_group(both)
        again = dist.new_group([0, 1])
        dist.all_reduce(x, group=again)
        return x.tolist()

    @part
    def coalesced():
        from torch.distributed.distributed_c10d import _coalescing_manager
        tensors = [torch.ones(2) * rank, torch.ones(3)]
        with _coalescing_manager():
            for t in tensors:
                dist.all_reduce(t)
        return [t.tolist() for t in tensors]

    @part
    def inference():
        with torch.inference_mode():
            x = torch.ones(2) + rank
            dist.all_reduce(x)
            out = torch.nn.Linear(2, 1)(x)
            dist.broadcast(out, 0)
        return out.item().hex()

    @part
    def functional():
        import torch.distributed._functional_collectives as funcol
        x = torch.ones(4) + rank
        y = funcol.all_reduce(x, "sum", world) + 1
        z = funcol.all_gather_tensor(y, 0, world) * 2
        w = funcol.reduce_scatter_tensor(z, "sum", 0, world) + 0
        return [y.tolist(), w.tolist()]

    @part
    def sharded_tensor():
        from torch.distributed.device_mesh import init_device_mesh
        try:
            from torch.distributed.tensor import Replicate, Shard, distribute_tensor
        except ImportError:
            from torch.distributed._tensor import Replicate, Shard, distribute_tensor
        mesh = init_device_mesh("cpu", (2,))
        a = distribute_tensor(torch.randn(8, 8), mesh, [Shard(0)])
        b = distribute_tensor(torch.randn(8, 8), mesh, [Shard(0)])
        return (a @ b).redistribute(mesh, [Replicate()]).to_local().sum().item().hex()

    def train(model, optimizer, steps=3):
        losses = []
        for step in range(steps):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 64)).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
        return losses

    def make():
        torch.manual_seed(7)
        model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
        torch.manual_seed(rank)
        return model

    @part
    def data_parallel():
        model = torch.nn.parallel.DistributedDataParallel(make(), bucket_cap_mb=0.03)
        return train(model, torch.optim.SGD(model.parameters(), lr=0.1))

    @part
    def fully_sharded():
        from torch.distributed.device_mesh import init_device_mesh
        try:
            from torch.distributed.fsdp import fully_shard
        except ImportError:
            return None  # FSDP2 on CPU came with torch 2.6
        model = make()
        mesh = init_device_mesh("cpu", (2,))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return train(model, torch.optim.SGD(model.parameters(), lr=0.1))

    @part
    def compiled():
        import torch.distributed._functional_collectives as funcol
        from torch._dynamo.utils import counters
        def step(x):
            y = funcol.all_reduce(x * 2, "sum", world) + 1
            dist.all_reduce(y)
            return y.sin()
        fast = torch.compile(step, backend="aot_eager")
        out = [fast(torch.ones(4) * i + rank).tolist() for i in range(3)]
        model = torch.nn.parallel.DistributedDataParallel(make())
        fast = torch.compile(model, backend="aot_eager")
        losses = train(fast, torch.optim.SGD(model.parameters(), lr=0.1))
        return [out, losses, dict(counters["graph_break"]), counters["stats"]["unique_graphs"]]

    @part
    def failing():
        try:
            dist.all_reduce(torch.ones(2, dtype=torch.complex64), op=dist.ReduceOp.MAX)
        except (ValueError, RuntimeError) as error:
            return type(error).__name__

    dist.destroy_process_group()
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
    dist.init_process_group("gloo")
    with stashtrace.annotate("second_life"):
        dist.all_reduce(torch.ones(1))
    last = torch.ones(1 << 20)
    dist.barrier()
    print(json.dumps(results), flush=True)
    gone = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank-0-is-gone")
    if rank == 1:
        limit = time.monotonic() + 30
        while not os.path.exists(gone) and time.monotonic() < limit:
            time.sleep(0.01)
        stashtrace.flush()
        os._exit(0)
    # Launched, and never joined by rank 1: what a hang leaves behind.
    with stashtrace.annotate("hang"):
        work = dist.all_reduce(last, async_op=True)
    stashtrace.flush()
    open(gone, "w").close()
    os._exit(0)
"""
PARTS = [
    "eager",
    "late",
    "asynchronous",
    "messages",
    "groups",
    "coalesced",
    "inference",
    "functional",
    "sharded_tensor",
    "data_parallel",
    "fully_sharded",
    "compiled",
    "failing",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    return run_traced(SCRIPT, tmp_path_factory.mktemp("collectives"), compiles=True, ranks=2)


@pytest.fixture(scope="module")
def untraced(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    return run_traced(SCRIPT, tmp_path_factory.mktemp("untraced"), compiles=True, ranks=2, traced=False)


def part(run: TracedRun, name: str, rank: int = 0) -> Table:
    """Collectives a rank called inside one part of the script, in order."""
    trace = run.trace
    process = int(trace.processes["process_id"][trace.processes["rank"] == rank][0])
    tracks = trace.tracks["track_id"][trace.tracks["process_id"] == process]
    spans = trace.spans.take(np.isin(trace.spans["track_id"], tracks))
    at = run.texts(spans, "name_code").index(name)
    table = trace.collectives
    inside = (table["call_ns"] >= spans["begin_ns"][at]) & (table["call_ns"] <= spans["end_ns"][at])
    return table.take(inside & (table["rank"] == rank)).sort_by("call_ns")


def ops(table: Table) -> list[str]:
    return [CollectiveOp(code).name.lower() for code in table["op_code"]]


def waits_for(run: TracedRun, table: Table) -> Table:
    waits = run.trace.collective_waits
    return waits.take(np.isin(waits["collective_key"], table["collective_key"]))


@pytest.mark.thorough
@pytest.mark.parametrize("name", PARTS)
def test_results_are_equal_to_the_last_bit(run: TracedRun, untraced: TracedRun, name: str) -> None:
    for with_us, without in zip(run.results(), untraced.results(), strict=True):
        assert with_us[name] == without[name]


def test_nothing_was_lost_and_nothing_said(run: TracedRun) -> None:
    """A gap between our count and the group's would be a loss row."""
    assert run.losses() == []
    assert all("stashtrace[" not in text for text in run.stderr)


def test_every_collective_has_its_match_on_the_other_rank(run: TracedRun) -> None:
    table = run.trace.collectives
    own = [table.take(table["rank"] == rank) for rank in (0, 1)]
    reported = [
        {(row["group_hash"], row["sequence"]): (row["op_code"], row["message_bytes"]) for row in table.rows()}
        for table in own
    ]
    alone = run.trace.groups.take(run.trace.groups["group_size"] == 1)["group_hash"].tolist()
    only = [key for key in set(reported[0]) ^ set(reported[1]) if key[0] not in alone]
    hang = part(run, "hang")
    assert only == [(int(hang["group_hash"][0]), int(hang["sequence"][0]))]
    pairs = {CollectiveOp.SEND: CollectiveOp.RECEIVE, CollectiveOp.RECEIVE: CollectiveOp.SEND}
    for key in set(reported[0]) & set(reported[1]):
        op, size = reported[0][key]
        assert reported[1][key][0] == pairs.get(CollectiveOp(op), op)
        if op in (CollectiveOp.ALL_REDUCE, CollectiveOp.BARRIER):
            assert reported[1][key][1] == size


def test_stamps_are_in_order_and_ends_are_seen(run: TracedRun) -> None:
    table = run.trace.collectives
    ended = table["end_ns"] >= 0
    (unended,) = np.flatnonzero(~ended)
    assert table["collective_key"][unended] == part(run, "hang")["collective_key"][0]
    table = table.take(ended)
    assert (table["call_ns"] <= table["return_ns"]).all()
    assert (table["call_ns"] <= table["end_ns"]).all()
    assert set(table["status_code"].tolist()) <= {0, 2}


def test_eager_operations(run: TracedRun) -> None:
    table = part(run, "eager")
    assert ops(table) == [
        "all_reduce",
        "broadcast",
        "all_gather",
        "reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "gather",
        "scatter",
        "barrier",
        "barrier",
        "all_gather",
        "all_gather",
    ]
    assert table["message_bytes"][:3].tolist() == [16, 16, 16]
    assert table["peer_rank"][[1, 3, 7, 8]].tolist() == [1, 0, 0, 0]
    barrier = np.array(ops(table)) == "barrier"
    assert set(table["element_code"][barrier].tolist()) == {ElementType.UNKNOWN}
    assert set(table["element_code"][~barrier][:-2].tolist()) == {ElementType.FLOAT32}
    assert table["element_code"][-2:].tolist() == [ElementType.INT64, ElementType.UINT8], "sizes and bytes of an object"
    assert run.texts(table, "name_code")[0] == "c10d::allreduce_"
    assert not (table["collective_flags"] & CollectiveFlag.FUNCTIONAL).any()


def test_the_rank_that_waits_shows_how_long_for_the_late_one(run: TracedRun) -> None:
    early, late = part(run, "late", 0), part(run, "late", 1)
    assert late["call_ns"][0] - early["call_ns"][0] > 200_000_000
    (wait,) = waits_for(run, early).rows()
    assert wait["end_ns"] - wait["begin_ns"] > 200_000_000
    assert 0 <= wait["end_ns"] - early["end_ns"][0] < 10_000_000_000, "the end of the wait is the end, or later"
    assert late["call_ns"][0] <= early["end_ns"][0], "it has not ended before the other had come"


def test_gloo_itself_reports_begin_and_end_of_asynchronous_work(run: TracedRun) -> None:
    table = part(run, "told_by_gloo")
    assert ops(table) == ["all_reduce"] * 304
    assert (table["end_ns"] >= np.maximum(table["begin_ns"], table["return_ns"])).all()
    assert (table["status_code"] == 0).all()
    reported = table.take(np.arange(1, 304))
    assert (reported["begin_ns"] >= reported["call_ns"]).all(), "a callback sees no begin"
    waits = waits_for(run, reported).sort_by("begin_ns")
    assert waits["collective_key"].tolist() == reported["collective_key"].tolist()
    assert (reported["end_ns"] <= waits["end_ns"]).all(), "a callback of the user is no part of the collective"


def test_asynchronous_work_has_an_end_and_keeps_no_tensor(run: TracedRun) -> None:
    table = part(run, "asynchronous")
    assert ops(table) == ["all_reduce"] * 4
    assert (table["collective_flags"] & CollectiveFlag.ASYNC_OP).all()
    assert (table["return_ns"] <= table["end_ns"]).all()
    for with_us in run.results():
        assert with_us["asynchronous"][1] == [True] * 4, "we keep no tensor"
        assert with_us["messages"] == [True]


def test_messages_are_numbered_by_pair_and_direction(run: TracedRun) -> None:
    sends, receives = part(run, "messages", 0), part(run, "messages", 1)
    assert sorted(ops(sends)) == ["receive", "send", "send", "send"] or "barrier" in ops(sends)
    first = sends.take(np.array(ops(sends)) == "send")
    second = receives.take(np.array(ops(receives)) == "receive")
    assert list(zip(first["group_hash"], first["sequence"], strict=True)) == list(
        zip(second["group_hash"], second["sequence"], strict=True)
    )
    assert len(set(first["group_hash"].tolist())) == 2, "tags 0 and 5 may overtake each other"


def test_groups(run: TracedRun) -> None:
    trace = run.trace
    groups = trace.groups.take(trace.groups["rank"] == 0)
    table = part(run, "groups")
    of_call = [np.flatnonzero(groups["group_hash"] == h)[0] for h in table["group_hash"]]
    members = [run.texts(groups, "members_code")[i] for i in of_call]
    assert members == ["0,1", "0", "0,1"]
    assert len(set(table["group_hash"].tolist())) == 3
    assert run.texts(groups, "backend_code") == ["gloo"] * len(groups)
    assert (groups["crosses_hosts"] == 0).all()
    worlds = groups.take((groups["observed_count"] >= 0) & (groups["backend_count"] >= 0))
    assert len(worlds) >= 3
    tracks = dict(zip(trace.tracks["track_id"].tolist(), run.texts(trace.tracks, "name_code"), strict=True))
    assert tracks[int(table["communicator_track_id"][0])].startswith("group ")


def test_a_group_made_again_is_another_group(run: TracedRun) -> None:
    assert part(run, "second_life")["group_hash"][0] != part(run, "eager")["group_hash"][0]


@pytest.mark.parametrize(
    ("name", "expected", "flag"),
    [
        ("coalesced", ["all_reduce"], CollectiveFlag.COALESCED),
        ("inference", ["all_reduce", "broadcast"], CollectiveFlag.INFERENCE),
        ("functional", ["all_reduce", "all_gather", "reduce_scatter"], CollectiveFlag.FUNCTIONAL),
    ],
)
def test_routes_that_autograd_does_not_see(
    run: TracedRun, name: str, expected: list[str], flag: CollectiveFlag
) -> None:
    table = part(run, name)
    assert ops(table) == expected
    assert (table["collective_flags"] & flag).all()


def test_functional_waits_are_found(run: TracedRun) -> None:
    table = part(run, "functional")
    assert set(waits_for(run, table)["collective_key"].tolist()) == set(table["collective_key"].tolist())


def test_dtensor(run: TracedRun) -> None:
    table = part(run, "sharded_tensor")
    functional = table.take((table["collective_flags"] & CollectiveFlag.FUNCTIONAL) > 0)
    assert len(functional) >= 2


def test_buckets_of_the_reducer(run: TracedRun) -> None:
    """Four layers of 16.6 kB in buckets of 30 kB: several all-reduces a step, issued from C++ in backward."""
    table = part(run, "data_parallel")
    buckets = table.take((table["collective_flags"] & CollectiveFlag.IN_BACKWARD) > 0)
    assert set(ops(buckets)) == {"all_reduce"}
    gradients = 4 * 4 * (64 * 64 + 64)
    assert int(buckets["message_bytes"].sum()) == 3 * gradients
    assert len(buckets) >= 1 + 2 * 2, "buckets are rebuilt to their size after the first step"
    assert "broadcast" in ops(table), "and the parameters are sent once in the beginning"


def test_fully_sharded(run: TracedRun) -> None:
    if run.results()[0]["fully_sharded"] is None:
        pytest.skip("this torch has no FSDP2 on CPU")
    table = part(run, "fully_sharded")
    assert set(ops(table)) >= {"all_gather", "reduce_scatter"}
    assert ops(table).count("reduce_scatter") == 3 * 4
    assert len(waits_for(run, table)) > 0


def test_compiled_collectives(run: TracedRun) -> None:
    table = part(run, "compiled")
    functional = table.take((table["collective_flags"] & CollectiveFlag.FUNCTIONAL) > 0)
    assert ops(functional).count("all_reduce") == 6, "three calls of two; tracing them was not one"
    assert ((table["collective_flags"] & CollectiveFlag.IN_BACKWARD) > 0).sum() >= 3


def test_threads_of_the_backend_have_their_role(run: TracedRun) -> None:
    assert (run.trace.tracks["role_code"] == ThreadRole.BACKEND).sum() >= 2


def test_facts_about_the_job(run: TracedRun) -> None:
    for rank in (0, 1):
        facts = run.facts(rank)
        assert facts["rank"] == str(rank)
        assert facts["world_size"] == "2"
        assert facts["backend"] == "gloo"


def test_ranks_forked_by_one_parent_that_end_with_work_in_flight(tmp_path: Path) -> None:
    """No sitecustomize runs in them, and no atexit; one leaves before its last operation has ended."""
    run = run_traced(
        """
        import os, time
        import torch
        import torch.distributed as dist
        import torch.multiprocessing as mp

        def main(rank):
            dist.init_process_group("gloo", rank=rank, world_size=2)
            x = torch.ones(4)
            dist.all_reduce(x)
            assert x.tolist() == [2.0] * 4
            if rank == 1:
                time.sleep(0.2)
            work = dist.all_reduce(x, async_op=True)
            if rank == 1:
                work.wait()

        if __name__ == "__main__":
            children = [mp.get_context("fork").Process(target=main, args=(rank,)) for rank in range(2)]
            for child in children:
                child.start()
            for child in children:
                child.join()
            assert [child.exitcode for child in children] == [0, 0]
        """,
        tmp_path,
    )
    table = run.trace.collectives
    ids = sorted(set(table["process_id"].tolist()))
    assert len(ids) == 2
    for process in ids:
        own = table.take(table["process_id"] == process).sort_by("sequence")
        assert ops(own) == ["all_reduce", "all_reduce"]
        assert (own["end_ns"] > 0).all(), "the process waited for the callback"
    assert sorted(set(table["rank"].tolist())) == [0, 1]
    counted = run.trace.groups.take(run.trace.groups["backend_count"] >= 0)
    assert counted["observed_count"].tolist() == counted["backend_count"].tolist() == [2, 2]
    assert run.losses() == []
