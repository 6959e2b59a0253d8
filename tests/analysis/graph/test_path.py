"""critical_path, critical_share and slack of traces whose path is known."""

from __future__ import annotations

import json
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from analysis.graph.test_device_graph import job as device_job
from analysis.graph.test_device_graph import step_events
from analysis.graph.test_graph import LATE, LOADED
from builders import MS, US, TraceBuilder, trace_from_text
from importers.kineto_files import host as on_host
from importers.kineto_files import write
from summary import scenes

import stashtrace
from stashtrace.analysis.graph import Resource
from stashtrace.analysis.graph.critical_path_tables import words
from stashtrace.analysis.registry import analyze
from stashtrace.cli.synth import main as write_synthetic
from stashtrace.errors import MissingDataError
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

STEPS = 12


def late_text() -> Trace:
    return trace_from_text(LATE.replace("|", ""))


def job(late_ns: int = 0, *, hosts: tuple[str, ...] = ("a", "b"), error_ns: int = 0, ranks: int = 2) -> Trace:
    """Steps of 10 ms: 4 ms forward, of rank 1 longer; a transfer up to 8 ms; the optimizer."""
    build = TraceBuilder(hosts)
    for host in sorted(set(hosts)):
        own = error_ns if host != "a" else 20
        build.clock(host, own, touch_ns=own)
    for step in range(STEPS):
        now = step * 10 * MS
        enter = {rank: now + 4 * MS + (late_ns if rank == 1 else -rank * MS // 2) for rank in range(ranks)}
        build.meet(enter, now + 8 * MS)
        for rank, at in enter.items():
            build.rank(rank).phase("forward", now, at).phase("optimizer", now + 8 * MS, now + 10 * MS)
    return build.trace()


def held_ms(table: Table, *keys: str) -> dict[tuple[object, ...], float]:
    found: dict[tuple[object, ...], float] = {}
    for row in table.rows():
        key = tuple(row[name] for name in keys)
        found[key] = found.get(key, 0.0) + row["held_ns"] / MS
    return found


def test_the_stretches_of_a_job_with_a_late_rank() -> None:
    table = analyze(late_text(), "critical_path")
    rows = [(r["step"], r["rank"], r["kind"], r["name"], r["held_ns"] // MS) for r in table.rows()]
    one = [("forward", 1), ("backward", 4)]
    expected: list[tuple[object, ...]] = []
    for step in range(3):
        expected += [(step, 1, "compute", name, length) for name, length in one]
        expected += [(step, -1, "interconnect", "all_reduce 0", 2), (step, 1, "compute", "optimizer", 1)]
    # Both ranks are done at one moment: which of the last two optimizers the run waited for is unknown.
    expected[-1] = (2, int(table["rank"][-1]), "compute", "optimizer", 1)
    assert rows == expected
    assert table["ambiguous"].tolist() == [0] * (len(rows) - 1) + [1]
    last = next(iter(table.take(np.array([len(table) - 1])).rows()))
    assert (last["rival_rank"], last["rival_kind"], last["rival_slack_ns"]) == (1 - last["rank"], "compute", 0)
    assert set(table["rival_rank"][:-1].tolist()) == {-1}


@pytest.mark.parametrize("trace", [late_text(), trace_from_text(LOADED), job(1 * MS)], ids=["late", "loaded", "hosts"])
def test_the_stretches_of_a_step_add_up_to_the_step(trace: Trace) -> None:
    table, steps = analyze(trace, "critical_path"), analyze(trace, "steps")
    ends = [int(steps["end_ns"][steps["step"] == step].max()) for step in np.unique(steps["step"]).tolist()]
    lengths = [held * MS for held in held_ms(table, "step").values()]
    assert lengths[1:] == np.diff(ends).tolist()
    assert table["end_ns"][-1] == ends[-1]
    assert (table["begin_ns"][1:] == table["end_ns"][:-1]).all()
    assert (table["end_ns"] - table["begin_ns"] == table["held_ns"]).all()


def test_shares_are_of_steps_and_sum_to_one() -> None:
    table = analyze(job(1 * MS, error_ns=10 * US), "critical_share")
    found = {(r["rank"], r["kind"], r["name"]): r for r in table.rows()}
    assert found[1, "compute", "forward"]["share_ratio"] == pytest.approx(0.5)
    assert found[-1, "network", "all_reduce 0"]["share_ratio"] == pytest.approx(0.3)
    assert table["share_ratio"].sum() == pytest.approx(1)
    assert (table["share_ratio"][:-1] >= table["share_ratio"][1:]).all()
    forward = found[1, "compute", "forward"]
    assert forward["spread_ratio"] == pytest.approx(0, abs=1e-9)
    assert forward["path_steps_count"] == forward["steps_count"] == STEPS - 5  # without the warm-up
    assert forward["held_ns"] == (STEPS - 5) * 5 * MS


def test_the_spread_is_that_of_the_steps() -> None:
    """Rank 0 is late in every other step, by the same amount as rank 1 in the others."""
    build = TraceBuilder()
    for step in range(STEPS):
        now = step * 10 * MS
        enter = {rank: now + (5 if (step + rank) % 2 else 3) * MS for rank in range(2)}
        build.meet(enter, now + 8 * MS)
        for rank, at in enter.items():
            build.rank(rank).phase("forward", now, at).phase("optimizer", now + 8 * MS, now + 10 * MS)
    table = analyze(build.trace(), "critical_share")
    rows = {r["rank"]: r for r in table.rows() if r["name"] == "forward"}
    counted = np.arange(5, STEPS)
    for rank, row in rows.items():
        part = np.where((counted + rank) % 2, 0.5, 0.0)
        assert (row["share_ratio"], row["spread_ratio"]) == (pytest.approx(part.mean()), pytest.approx(part.std()))
        assert row["path_steps_count"] == np.count_nonzero(part)


@pytest.mark.parametrize(
    ("late_us", "hosts", "error_us", "ambiguous"),
    [
        (100, ("a", "b"), 200, True),  # rank 1 came later by less than the clocks show
        (100, ("a", "b"), 50, False),
        (-100, ("a", "b"), 200, True),  # then rank 0 is on the path, and rank 1 the rival
        (100, ("a", "a"), 200, False),  # one clock
        (100, ("b", "b"), 200, False),  # one clock whose offset to the others is not known better
    ],
)
def test_a_tie_within_the_error_of_two_clocks_is_ambiguous(
    late_us: int, hosts: tuple[str, ...], error_us: int, ambiguous: bool
) -> None:
    table = analyze(job(late_us * US, hosts=hosts, error_ns=error_us * US), "critical_path")
    forward = table.take((table["name"] == "forward") & (table["step"] < STEPS - 1))
    late, early = (1, 0) if late_us > 0 else (0, 1)
    assert len(forward)
    assert set(forward["rank"].tolist()) == {late}
    assert set(forward["ambiguous"].tolist()) == {int(ambiguous)}
    rivals = {(r["rival_rank"], r["rival_kind"], r["rival_slack_ns"]) for r in forward.rows()}
    assert rivals == {(early, "compute", abs(late_us) * US) if ambiguous else (-1, "", -1)}
    transfers = table.take(table["rank"] < 0)
    assert not transfers["ambiguous"].any()  # nothing else ran then
    share = analyze(job(late_us * US, hosts=hosts, error_ns=error_us * US), "critical_share")
    doubt = {r["rank"]: r["ambiguous_ratio"] for r in share.rows() if r["name"] == "forward"}
    assert (doubt[late] == pytest.approx(0.4, abs=0.02)) if ambiguous else (doubt[late] == 0)


def test_of_several_rivals_the_one_parallel_to_it_for_longest_is_named() -> None:
    """Rank 2 entered half a millisecond before rank 0 would have: within the error too, but for less of the time."""
    table = analyze(job(100 * US, hosts=("a", "b", "c"), error_ns=2 * MS, ranks=3), "critical_path")
    forward = table.take((table["name"] == "forward") & (table["step"] < STEPS - 1))
    assert set(forward["rival_rank"].tolist()) == {0}


def test_functions_phases_and_operations_are_named() -> None:
    build = TraceBuilder()
    build.group([0, 1], name="data")
    build.group([0, 1], group=7, name="tensor")
    for step in range(3):
        now = step * 20 * MS
        for rank in range(2):
            build.rank(rank).phase("forward", now, now + 4 * MS).phase("optimizer", now + 12 * MS, now + 20 * MS)
        build.rank(1).annotate("outer", now + 1 * MS, now + 3 * MS).annotate("inner", now + 2 * MS, now + 3 * MS)
        for nth, group in enumerate((7, 7, None)):
            at = now + (4 + 2 * nth) * MS
            call = {0: (at - MS // 2, at + 2 * MS), 1: (at, at + 2 * MS)}
            keys = build.collective(call, **({"group": group} if group else {}))
            for rank in range(2):
                build.rank(rank).collective_wait(keys[rank], at, at + 2 * MS)
    table = analyze(build.trace(), "critical_path")
    inside = table.take(table["step"] == 1)
    names = [(r["rank"], r["name"], r["held_ns"] // MS) for r in inside.rows()]
    assert names[:7] == [
        (1, "forward", 1),
        (1, "outer", 1),
        (1, "inner", 1),
        (1, "forward", 1),
        (-1, "all_reduce 0 tensor", 2),
        (-1, "all_reduce 1 tensor", 2),
        (-1, "all_reduce 0 data", 2),
    ]


def test_a_blocking_call_is_named() -> None:
    """Rank 1 sleeps 3 ms of its backward, in steps of 8 ms."""
    text = """
    rank 0 phase : FBBBBBBO|FBBBBBBO|FBBBBBBO
    rank 0 cpu   : xxx....x|xxx....x|xxx....x
    rank 0 coll  : ...0000....1111....2222
    rank 0 block : ...0000....1111....2222
    rank 1 phase : FBBBBBBO|FBBBBBBO|FBBBBBBO
    rank 1 cpu   : xx...x.x|xx...x.x|xx...x.x
    rank 1 wait  : ..sss.....sss.....sss
    rank 1 coll  : ......0.......1.......2
    rank 1 block : ......0.......1.......2
    """
    shares = analyze(trace_from_text(text.replace("|", "")), "critical_share")
    slept = shares.take((shares["rank"] == 1) & (shares["kind"] == "other"))
    assert [(r["resource"], r["name"]) for r in slept.rows()] == [("step_thread", "sleep")]
    assert slept["share_ratio"].tolist() == [pytest.approx(3 / 8)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # A step: 0.1 ms to take the batch, forward 10, backward 20, all-reduce 2, optimizer 1 ms; and what was added.
        (
            {"sleep": {1: 20}},
            {(1, "between phases"): 20, (1, "backward"): 20, (1, "forward"): 10, (-1, "all_reduce 0"): 2},
        ),
        ({"fetch": {2: 30}, "ranks": 4}, {(2, "worker 0"): 30, (2, "backward"): 20, (-1, "all_reduce 0"): 2}),
        ({"prep": {0: 40}, "workers": 1}, {(0, "worker 0"): 40, (0, "backward"): 20, (-1, "all_reduce 0"): 2}),
    ],
    ids=["sleep", "fetch", "prep"],
)
def test_what_was_made_slow_has_its_share(options: dict[str, Any], expected: dict[tuple[int, str], float]) -> None:
    step_ms = 33.1 + sum(sum(more.values()) for name, more in options.items() if name in ("sleep", "fetch", "prep"))
    shares = analyze(scenes.job(**options)[1], "critical_share")
    found: dict[tuple[int, str], float] = {}
    for row in shares.rows():
        found[row["rank"], row["name"]] = found.get((row["rank"], row["name"]), 0.0) + row["share_ratio"]
    for key, held in expected.items():
        assert found[key] == pytest.approx(held / step_ms, abs=0.004), key
    assert sum(found.values()) == pytest.approx(1)
    kind = next(iter(options))
    if kind != "sleep":
        own = shares.take(shares["resource"] == "worker")
        assert own["kind"].tolist() == [kind]


def test_storage_and_making_of_a_batch_are_distinguished() -> None:
    """A worker reads for 3 of the 4 ms that it makes a batch, each 2 ms step waits for one."""
    text = LOADED + "rank 0 worker 0 io: bbb.bbb.bbb.bbb.bbb.bbb.\n"
    trace = trace_from_text(text)
    path = analyze(trace, "critical_path")
    batches = path.take(path["resource"] == "worker")
    assert set(batches["name"].tolist()) == {"worker 0"}
    # Steps end at 6, 10, 14 and 18 ms, batches at 4, 8, 12 and 16: a step has halves of two.
    assert (batches["held_ns"] // MS).tolist() == [6, 4, 4, 2]
    assert (batches["fetch_ns"] // MS).tolist() == [5, 3, 3, 1]
    assert batches["kind"].tolist() == ["fetch", "fetch", "fetch", "prep"]
    share: dict[tuple[str, str], float] = {}
    for row in analyze(trace, "critical_share").rows():
        key = row["resource"], row["kind"]
        share[key] = share.get(key, 0.0) + row["share_ratio"]
    assert share == {
        ("worker", "fetch"): pytest.approx((3 + 3 + 1) / 12),
        ("worker", "prep"): pytest.approx((1 + 1 + 1) / 12),
        ("step_thread", "compute"): pytest.approx(2 / 12),
    }


def test_kernels_are_named_and_what_lies_between_host_and_device_is_a_delay(tmp_path: Path) -> None:
    """Steps of 1 ms: of rank 1 a kernel of 600 us, of rank 0 one of 300; all-reduce 180 us, update 96 us."""
    device_job(tmp_path, (300, 600))
    shares = analyze(stashtrace.load(tmp_path), "critical_share")
    found = {(r["rank"], r["resource"], r["kind"], r["name"]): r["share_ratio"] for r in shares.rows()}
    assert found[1, "stream", "compute", "gemm<float>"] == pytest.approx(0.6)
    assert found[-1, "transfer", "interconnect", "all_reduce 0"] == pytest.approx(0.18)
    updates = [share for (_, _, _, name), share in found.items() if name == "sgd"]
    assert sum(updates) == pytest.approx(0.096)
    assert sum(found.values()) == pytest.approx(1)
    delays = {(kind, name) for _, resource, kind, name in found if not resource}
    assert ("launch", "launch") in delays
    assert not any(name.startswith("gemm") for rank, _, _, name in found if rank == 0)


def test_functions_of_a_host_that_launches_are_named(tmp_path: Path) -> None:
    """Behind the last wait of a step of 1 ms the host is in ``prepare`` for 60 us, while its device is idle."""
    events: list[Any] = []
    for number in range(3):
        inside = on_host("prepare", 1000 * number + 920, 60, cat="user_annotation")
        events += [*step_events(number, 600.0, world=1), inside]
    info = {"backend": "nccl", "rank": 0, "world_size": 1}
    write(tmp_path / "rank0.json", events, distributedInfo=info, deviceProperties=[{"id": 0, "name": "H100"}])
    shares = analyze(stashtrace.load(tmp_path), "critical_share")
    launching = {r["name"]: r["share_ratio"] for r in shares.rows() if r["resource"] == "host"}
    assert launching["prepare"] == pytest.approx(0.06)
    assert sum(launching.values()) == pytest.approx(0.095 + 0.01, abs=0.001)  # of Python, and to the first launch


def test_a_rank_that_begins_later_is_no_work(tmp_path: Path) -> None:
    for rank, begin in enumerate((0.0, 90.0)):
        info = {"backend": "nccl", "rank": rank, "world_size": 2}
        events = step_events(0, 300.0, begin=begin)
        write(tmp_path / f"rank{rank}.json", events, distributedInfo=info, deviceProperties=[{"id": 0, "name": "H100"}])
    path = analyze(stashtrace.load(tmp_path), "critical_path")
    first = next(iter(path.rows()))
    assert (first["rank"], first["resource"], first["kind"], first["name"]) == (1, "", "other", "begins later")
    assert first["held_ns"] == 90 * US


def test_slack_of_each_piece_of_work() -> None:
    trace = late_text()
    table = analyze(trace, "slack")
    before_call = (table["rank"] == 0) & (table["begin_ns"] % (8 * MS) < 7 * MS)
    work = table.take(before_call & (table["end_ns"] > table["begin_ns"]))
    assert set(work["slack_ns"].tolist()) == {3 * MS}
    path = analyze(trace, "critical_path")
    critical = table.take(table["critical"] == 1)
    assert set(critical["slack_ns"].tolist()) == {0}
    assert (critical["end_ns"] - critical["begin_ns"]).sum() == path["held_ns"].sum()
    transfers = table.take(table["resource"] == "transfer")
    assert transfers["step"].tolist() == [0, 1, 2]
    assert set(transfers["process_id"].tolist()) == {-1}


@pytest.mark.parametrize("kinds", [Resource, StallKind])
def test_names_of_resources_and_kinds_are_whole(kinds: type[IntEnum]) -> None:
    values = np.array([*kinds, -1, max(kinds) + 1], dtype=np.int64)
    assert words(kinds, values).tolist() == [*(kind.name.lower() for kind in kinds), "", ""]


def test_a_rank_made_slow_by_its_worker_is_the_path(tmp_path: Path) -> None:
    """Rank 2 is 8 ms late because its batches come late: a step of the made-up job is one batch by two workers."""
    out = tmp_path / "made"
    assert write_synthetic([str(out), "--ranks", "4", "--steps", "40", "--late-rank", "2", "--late", "8"]) == 0
    truth = json.loads((out / "truth.json").read_text(encoding="utf-8"))
    trace = stashtrace.load(out)
    path, share = analyze(trace, "critical_path"), analyze(trace, "critical_share")
    steps = held_ms(path, "step")
    assert all(held == pytest.approx(truth["step_ns"] / MS) for held in list(steps.values())[1:])
    inside = share.take((share["rank"] == 2) & (share["resource"] == "worker"))
    assert inside["share_ratio"].sum() > 0.8
    assert share["share_ratio"].sum() == pytest.approx(1)


def test_a_rank_slowed_on_its_step_thread_is_the_path_with_its_share(tmp_path: Path) -> None:
    """Without workers that hold it up: the late rank's step, but for the transfer, is all of the path."""
    out = tmp_path / "made"
    times = ["--wait", "0", "--forward", "20", "--backward", "40", "--transfer", "15", "--optimizer", "5"]
    assert write_synthetic([str(out), "--ranks", "3", "--steps", "40", "--late-rank", "1", "--late", "20", *times]) == 0
    truth = json.loads((out / "truth.json").read_text(encoding="utf-8"))
    shares = analyze(stashtrace.load(out), "critical_share")
    transfer = shares.take(shares["resource"] == "transfer")["share_ratio"].sum()
    mine = shares.take(shares["rank"] == 1)["share_ratio"].sum()
    assert (truth["step_ns"], transfer) == (100 * MS, pytest.approx(0.15, abs=0.01))
    assert mine == pytest.approx(0.85, abs=0.01)


@pytest.mark.parametrize("name", ["critical_path", "critical_share", "slack"])
def test_a_run_of_which_no_graph_can_be_built_says_why(name: str) -> None:
    with pytest.raises(MissingDataError):
        analyze(trace_from_text("rank 0 io : bb"), name)
