"""What to change first: by replays, with an interval that holds the truth, and one number of workers for all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import MS, TraceBuilder
from replay.loader_jobs import Job
from wait_chains import Job as Chain
from wait_chains import data_parallel, noisy, on, through_a_server

from stashtrace.analysis.graph import build
from stashtrace.analysis.registry import analyze
from stashtrace.cli import main
from stashtrace.errors import MissingDataError
from stashtrace.exporters.registry import export
from stashtrace.replay import Change, best_workers, what_if
from stashtrace.replay.causes import causes, what_to_do_first
from stashtrace.schema.trace import Trace
from stashtrace.summary.words.cause_templates import cause_text

#: Workers of a job, and what it does: all of these wait for batches, and more workers would help.
JOBS: tuple[tuple[int, dict[str, Any]], ...] = (
    (0, {}),
    (0, {"wait_ns": 20 * MS, "batch_ns": 2 * MS}),
    (0, {"batch_ns": 60 * MS}),
    (0, {"batch_ns": 60 * MS, "cpus": 4.0}),
    (1, {}),
    (1, {"wait_ns": 20 * MS, "batch_ns": 2 * MS}),
    (1, {"batch_ns": 30 * MS, "cpus": 16.0}),
    (2, {"batch_ns": 30 * MS}),
    (1, {"batch_ns": 9 * MS, "epochs": 4, "steps": 24}),
    # A closed formula of means says that one worker keeps up with these: each eighth batch takes 60 ms.
    (1, {"batch_ns": 1 * MS, "step_ns": 9 * MS, "uneven": lambda batch: 60.0 if batch % 8 == 7 else 1.0}),
)


def job(workers: int, **options: Any) -> Job:
    return Job(workers, **{"batch_ns": 9 * MS, "step_ns": 4 * MS, "steps": 90, **options}).run()


def first(trace: Trace) -> dict[str, Any]:
    return next(causes(trace).rows())


@pytest.mark.parametrize(("workers", "options"), JOBS)
def test_the_advised_workers_save_what_is_promised(workers: int, options: dict[str, Any]) -> None:
    recorded = job(workers, **options)
    row = first(recorded.trace())
    quantity, _, value = row["change"].partition("=")
    assert quantity == "workers"
    assert row["present_count"] == workers
    saved = (recorded.step_ms() - job(int(value), **options).step_ms()) * MS
    assert row["saved_low_ns"] * 0.98 <= saved <= row["saved_high_ns"] * 1.02
    assert row["sure"] == "sure"


def test_workers_that_start_again_are_no_more_workers() -> None:
    """One worker in each of four epochs: one number in the findings, the rates and the replay."""
    trace = job(1, epochs=4, steps=24).trace()
    (batch_time,) = [row for row in analyze(trace, "finding_evidence").rows() if row["code"] == "batch_time"]
    assert json.loads(batch_time["facts"])["workers_count"] == 1
    rates = {row["quantity"]: row["mean"] for row in analyze(trace, "loader_rates").rows()}
    assert rates["workers_count"] == 1
    assert first(trace)["present_count"] == 1
    with_two = job(2, steps=24).spans[-1][1] / 24  # of an epoch, with its wait for a first batch
    assert what_if(build(trace), [Change.parse("workers=2")]).middle_ns == pytest.approx(with_two, rel=0.02)


def test_workers_of_epochs_share_no_cpus() -> None:
    """Four epochs of one worker on two CPUs, for it and the step thread: nobody waits for a CPU."""
    answer = what_if(build(job(1, epochs=4, steps=24, cpus=2.0).trace()), [Change.parse("prep=x0.5")])
    assert answer.middle_ns == pytest.approx(4.5 * MS, rel=0.04)


def test_no_more_workers_than_help() -> None:
    """Two of them keep up: 9 ms a batch, 5 ms a step."""
    answer = best_workers(build(job(1, step_ns=5 * MS).trace()))
    assert [str(change) for change in answer.changes] == ["workers=2"]


def test_more_workers_on_one_cpu_are_no_advice() -> None:
    trace = job(1, batch_ns=9 * MS, step_ns=4 * MS, cpus=1.0).trace()
    assert all(not row["change"].startswith("workers") for row in causes(trace).rows())


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("cpus", [1.0, 2.0, 64.0])
def test_batches_of_the_step_thread_move_to_workers(count: int, cpus: float) -> None:
    answer = what_if(build(job(0, cpus=cpus).trace()), [Change.parse(f"workers={count}")])
    truth = job(count, cpus=cpus).step_ms() * MS
    assert answer.low_ns * 0.98 <= truth <= answer.high_ns * 1.02


def test_other_changes_of_such_a_run_are_as_before() -> None:
    graph = build(job(0).trace())
    assert what_if(graph, []).error_ratio == pytest.approx(0, abs=0.001)
    assert what_if(graph, [Change.parse("prep=x0.5")]).middle_ns == pytest.approx((9 / 2 + 4) * MS, rel=0.01)
    both = [Change.parse("prep=x0.5"), Change.parse("workers=1")]
    assert what_if(graph, both).middle_ns == pytest.approx(4.5 * MS, rel=0.02)
    assert what_if(graph, both[::-1]).middle_ns == pytest.approx(4.5 * MS, rel=0.02)


def test_a_multiple_of_no_workers_is_none() -> None:
    with pytest.raises(MissingDataError, match=r"workers=x2: the step threads make their batches themselves") as caught:
        what_if(build(job(0).trace()), [Change.parse("workers=x2")])
    assert caught.value.hint == "give the number itself, as in workers=2"


def test_a_saving_does_not_exceed_the_work_that_it_comes_from() -> None:
    """9 ms a batch, 4 ms a step: without any wait for batches a step takes 4 ms."""
    row = first(job(1).trace())
    assert row["saved_high_ns"] <= 5.02 * MS


def late_job(
    late_ms: int, *, batch_ms: int = 0, file: str = "", transfer_ms: int = 2, recorded: int = 2, scatter_ms: int = 0
) -> Trace:
    """Two ranks; rank 1 computes so much longer in each step, and rank 0 makes a batch for so long, or reads it.

    ``recorded``: how many of them are. ``scatter_ms``: both compute longer by up to this, by chance.
    """
    build_ = TraceBuilder()
    build_.group([0, 1])
    clock, chance = 0, np.random.default_rng(7)
    for step in range(40):
        called = {}
        longer = int(chance.integers(0, scatter_ms * MS + 1))
        for rank in range(2):
            process, begin = build_.rank(rank) if rank < recorded else TraceBuilder().rank(rank), clock
            if batch_ms and not rank:
                process.batch_wait(step, begin, begin + batch_ms * MS, worker=-1, loader=1, cpu=0)
                process.fetch(step, begin, begin + batch_ms * MS, loader=1, worker=-1, cpu=0)
                if file:
                    process.io(begin, begin + batch_ms * MS, path=file, blocked=True)
                begin += batch_ms * MS
            called[rank] = begin + (5 + late_ms * rank) * MS + longer
            process.phase("forward", begin + 1000, called[rank])
        end = max(called.values()) + transfer_ms * MS
        called = {rank: at for rank, at in called.items() if rank < recorded}
        build_.meet(called, end, update_ns=MS)
        clock = end + MS
    return build_.trace()


def test_a_late_rank_is_named_with_its_work() -> None:
    row = first(late_job(8))
    assert (row["level"], row["ranks"], row["kind"]) == ("peers", "1", "compute")
    assert row["saved_low_ns"] <= 8 * MS <= row["saved_high_ns"]
    assert row["saved_ns"] == pytest.approx(8 * MS, rel=0.01)
    assert row["high_ratio"] == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(("file", "kind"), [("", "prep"), ("/data/shard.tar", "fetch")])
def test_a_late_rank_is_named_with_what_delays_its_batches(file: str, kind: str) -> None:
    row = first(late_job(0, batch_ms=9, file=file))
    assert row["kind"] == "workers" or (row["ranks"], row["kind"]) == ("0", kind)
    assert row["saved_ns"] == pytest.approx(9 * MS, rel=0.01)


def test_changes_that_shorten_one_wait_are_not_named_twice() -> None:
    """Workers, quicker batches and data in memory all take the same wait away."""
    changes = [row["change"] for row in causes(job(1).trace()).rows()]
    assert len(changes) == 1


def test_computation_is_named_where_nothing_else_helps() -> None:
    (row,) = causes(late_job(0, transfer_ms=0)).rows()
    assert (row["kind"], row["level"]) == ("compute", "half")
    assert cause_text(row, "run").startswith(
        "compute bound: up to 6.00 ms a step (100 %); no other change is sure to save 3 %; computing twice"
        " as fast: saves "
    )


def test_a_job_is_bound_by_its_computation_where_half_of_its_transfers_may_save_nothing() -> None:
    rows = list(causes(late_job(0, scatter_ms=40)).rows())
    assert [(row["kind"], row["where"], row["sure"]) for row in rows] == [
        ("compute", "step", "sure"),
        ("interconnect", "link", "perhaps"),
    ]
    assert first(late_job(0, transfer_ms=4))["where"] == "link"


def test_fewer_bytes_are_named_where_transfers_take_most_of_the_step() -> None:
    """A step of 5 ms of computation, 20 ms of transfer and an update of 1 ms."""
    (link,) = causes(late_job(0, transfer_ms=20)).rows()
    assert (link["where"], link["op"], link["level"]) == ("link", "all_reduce", "half")
    assert link["saved_ns"] == pytest.approx(10 * MS, rel=0.01)
    assert cause_text(link, "run").startswith(
        "transfers of all-reduce are in flight 20.0 ms a step (1 operation, 1.05 MB a step); half as long (fewer"
        " bytes, or fewer operations): saves "
    )


def test_ranks_that_are_late_for_other_reasons_are_named_with_them() -> None:
    """Rank 1 sleeps before one collective, rank 0 computes before the next."""
    two = Chain(2)
    for _ in range(20):
        two.sleep(1, 20)
        for rank in range(2):
            two.compute(rank, 20)
        two.meet([0, 1], group=0xCAFE)
        two.compute(0, 15)
        two.meet([0, 1], group=0xCAFE)
        for rank in range(2):
            two.update(rank)
    sleeps, computes = list(causes(two.trace()).rows())[:2]
    assert (sleeps["ranks"], sleeps["kind"], sleeps["saved_ns"]) == ("1", "other", pytest.approx(20 * MS, rel=0.01))
    assert (computes["ranks"], computes["kind"], computes["saved_ns"]) == (
        "0",
        "compute",
        pytest.approx(15 * MS, rel=0.01),
    )


def test_of_one_rank_of_two_nothing_is_predicted() -> None:
    """Rank 1 is late by 8 ms, and was not recorded: that rank 0 computes more quickly saves nothing."""
    *found, last = causes(late_job(8, recorded=1)).rows()
    assert [(row["saved_ns"], row["saved_low_ns"]) for row in found] == [(-1, 0)] * len(found)
    assert last["reason"].startswith("not predicted: 1 of 2 ranks is recorded, and what a change saves depends on the")


def test_while_a_rank_is_not_recorded_nothing_is_sure() -> None:
    """Rank 2 of three may be as late as rank 1."""
    trace = late_job(8)
    assert first(trace)["saved_low_ns"] > 0
    processes = trace.processes
    three = trace.replace(processes=processes.replace(world_size=np.full_like(processes["world_size"], 3)))
    row = first(three)
    assert (row["level"], row["saved_low_ns"], row["sure"]) == ("peers", 0, "perhaps")


def test_a_run_without_steps_says_why() -> None:
    build_ = TraceBuilder()
    build_.rank(0).io(0, MS)
    with pytest.raises(MissingDataError):
        causes(build_.trace())
    (row,) = what_to_do_first(build_.trace()).rows()
    assert (row["change"], row["saved_high_ns"], row["sure"]) == ("", -1, "")
    assert row["reason"].startswith("nothing can be predicted: ")


@pytest.fixture
def stored(tmp_path: Path) -> str:
    export(job(1).trace(), "store", str(tmp_path / "run.store"))
    return str(tmp_path / "run.store")


def test_the_summary_begins_with_it(stored: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", stored]) == 0
    words = capsys.readouterr().out
    headline = "rank 0 waits 5.00 ms a step (56 %) for batches, which 1 worker makes"
    said = " ".join(words.split())
    assert said.startswith(f"{headline}; without, a step takes 4.00 to 4.31 ms, not 9.00 ms stashtrace ")
    assert f"▶ {headline} its worker takes 9.00 ms to make a batch" in said
    assert "num_workers=3 instead of 1: saves " in said
    assert f"`stashtrace whatif {stored} workers=3`" in said
    assert len(words.splitlines()) <= 24


def test_json_has_the_headline_and_the_changes(stored: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", stored, "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["headline"].startswith("rank 0 waits 5.00 ms a step (56 %) for batches")
    (change,) = said["do_first"]
    assert change["text"].startswith(said["headline"] + "; num_workers=3 instead of 1: saves ")
    assert main(["whatif", stored, change["change"], "--format", "json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)["answers"]
    saved = answer["replayed_ns"] - answer["high_ns"], answer["replayed_ns"] - answer["low_ns"]
    assert change["saved_low_ns"] <= saved[0] <= saved[1] <= change["saved_high_ns"] * 1.001


@pytest.mark.parametrize("seed", range(2))
def test_ranks_that_are_late_by_chance_are_not_named(seed: int) -> None:
    """In 24 steps that vary by 8 ms, 3 ms more of one of three ranks are within what chance does."""
    varies = noisy(seed, 8)
    trace = data_parallel(lambda step, rank: varies(step, rank) + 3 * (rank == 1), ranks=3, steps=24)
    assert all(row["level"] not in ("peers", "usual", "gone") for row in causes(trace).rows())


def test_a_server_without_steps_is_recorded() -> None:
    """What it does is known, so the saving is sure: both trainers work for 31 ms, and rank 2 sleeps for 15."""
    rows = list(causes(through_a_server(on(2, 15))).rows())
    late = rows[0]
    assert (late["ranks"], late["kind"], late["level"], late["sure"]) == ("2", "other", "gone", "sure")
    assert late["saved_low_ns"] <= 15 * MS <= late["saved_high_ns"] * 1.01
