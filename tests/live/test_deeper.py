"""Deeper steps: when they begin, what they cost, and that they end."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stashtrace.live.deeper import Budget, DeeperSteps
from stashtrace.live.table import LIVE_STEPS
from stashtrace.live.times import HOUR_NS
from stashtrace.record.follower import control_path, make_control
from stashtrace.schema.table import Table
from stashtrace.text.units import duration_text

SECOND = 10**9


class Sampler:
    """Samples nothing, and counts how often it was asked."""

    def __init__(self) -> None:
        self.started, self.unseen = 0, {1: "py-spy is not installed"}

    def start(self, processes: object) -> None:
        self.started += 1

    def finish(self) -> list[dict[str, Any]]:
        return [{"host": "here", "pid": 7, "functions": [], "rows": []}]


def deeper(folder: Path, ratio: float = 0.01) -> tuple[DeeperSteps, Sampler]:
    make_control(folder)
    sampler = Sampler()
    return DeeperSteps(folder, sampler, lambda: {0: (1, 1)}, Budget(ratio)), sampler  # type: ignore[arg-type]


def closed(first: int, *lengths_s: float, ranks: int = 2) -> Table:
    """Steps that close, one after the other from second ``first`` on, of as many ranks."""
    begins = first * SECOND + np.concatenate([[0], np.cumsum(np.array(lengths_s) * SECOND)]).astype(np.int64)
    columns = {name: np.zeros(len(lengths_s) * ranks, dtype=np.int64) for name in LIVE_STEPS.names}
    columns["step"] = np.repeat(np.arange(first, first + len(lengths_s)), ranks)
    columns["rank"] = np.tile(np.arange(ranks), len(lengths_s))
    columns["begin_ns"], columns["end_ns"] = np.repeat(begins[:-1], ranks), np.repeat(begins[1:], ranks)
    return Table(LIVE_STEPS, {name: columns[name].astype(LIVE_STEPS.dtypes[name]) for name in LIVE_STEPS.names})


def request(folder: Path) -> tuple[int, int, int, int, int]:
    """Number, first step, how many, what one usually takes and what they may take longer, as ranks read it."""
    content = control_path(folder).read_bytes()
    return content[1], *struct.unpack_from("<QQQQ", content, 8)


def test_an_hour_after_it_was_spent_a_cost_counts_no_more() -> None:
    budget = Budget(0.01)
    assert budget.left_ns(0) == 36 * SECOND
    budget.spend(30 * SECOND, SECOND)
    budget.spend(9 * SECOND, 600 * SECOND)
    assert budget.left_ns(601 * SECOND) == 0
    assert budget.left_ns(HOUR_NS + SECOND) == 27 * SECOND
    assert budget.left_ns(HOUR_NS + 600 * SECOND) == 36 * SECOND


def test_ranks_learn_which_steps_and_how_long(tmp_path: Path) -> None:
    run, sampler = deeper(tmp_path)
    run.round(closed(0, *[1.0] * 10), None, 0, 10 * SECOND, ended=False)
    last, why = run.ask(["kernels"], 9, 5, 10 * SECOND)
    number, first, count, usual_ns, budget_ns = request(tmp_path)
    assert (why, number, count, last) == ("", 1, 5, first + 4)
    assert first > 9 + 1, "no rank has begun it, as far as is known"
    assert (usual_ns, budget_ns) == (SECOND, 36 * SECOND)
    assert run.is_open
    assert sampler.started == 0


def test_what_they_take_longer_is_spent_and_said(tmp_path: Path) -> None:
    run, _ = deeper(tmp_path)
    run.round(closed(0, *[1.0] * 10), None, 0, 10 * SECOND, ended=False)
    last, _ = run.ask(["stacks"], 9, 2, 10 * SECOND)
    event = run.round(closed(10, *[3.0] * (last - 9)), None, 0, 40 * SECOND, ended=False)
    deeper_count = last - 9
    assert event.cost_ns == deeper_count * 2 * SECOND
    assert event.text == (
        f"recorded Python stacks of steps 10 to {last}: with those before, the steps took "
        f"{duration_text(event.cost_ns)} longer than usual; {duration_text(36e9 - event.cost_ns)} of the 36.0 s that "
        "this may cost in an hour are left; no Python stacks of rank 1: py-spy is not installed"
    )
    assert not run.is_open
    assert run.budget.left_ns(41 * SECOND) == (36 - 2 * deeper_count) * SECOND
    assert len(run.take_stacks()) == 1
    assert run.take_stacks() == []


def test_deeper_steps_are_no_measure_of_the_job(tmp_path: Path) -> None:
    run, _ = deeper(tmp_path)
    run.round(closed(0, *[1.0] * 10), None, 0, 10 * SECOND, ended=False)
    run.ask(["stacks"], 9, 2, 10 * SECOND)
    mixed = closed(8, *[1.0] * 4)
    assert np.unique(run.usual(mixed)["step"]).tolist() == [8]
    run.round(mixed, None, 0, 20 * SECOND, ended=True)
    assert len(run.usual(mixed)) == len(mixed)


def test_more_than_the_hour_has_left_is_refused(tmp_path: Path) -> None:
    """By what such steps cost when they were measured."""
    run, _ = deeper(tmp_path, ratio=10 * SECOND / HOUR_NS)
    run.round(closed(0, *[1.0] * 10), None, 0, 10 * SECOND, ended=False)
    last, _ = run.ask(["stacks"], 9, 1, 10 * SECOND)
    steps_count = last - 9
    event = run.round(closed(10, *[2.0] * steps_count), None, 0, 30 * SECOND, ended=False)
    assert event.cost_ns == steps_count * SECOND
    refused, why = run.ask(["stacks"], last, 7, 31 * SECOND)
    assert refused == -1
    assert why == (
        f"of the 10.0 s that they may cost in an hour {10 - steps_count:.2f} s are left, and 7 steps cost 7.00 s "
        "when they were measured last"
    )
    assert run.ask(["stacks"], last, 7, 31 * SECOND + HOUR_NS)[1] == ""


@pytest.mark.parametrize("how", ["ended", "given up", "too late"])
def test_steps_that_do_not_come_are_not_waited_for(tmp_path: Path, how: str) -> None:
    run, _ = deeper(tmp_path)
    run.round(closed(0, *[1.0] * 10), None, 0, 10 * SECOND, ended=False)
    run.ask(["kernels"], 9, 5, 10 * SECOND)
    assert run.round(closed(10), None, 0, 50 * SECOND, ended=False) is None
    if how == "given up":
        run.give_up()
    event = run.round(closed(10), None, 0, (51 if how != "too late" else 200) * SECOND, ended=how == "ended")
    assert event.text.startswith("recorded kernels of no step; 36.0 s of the 36.0 s ")
    assert not run.is_open
    number, _, count, *_ = request(tmp_path)
    assert (number, count) == ((1, 5) if how == "ended" else (2, 0)), "ranks that live are asked to end"


def test_stacks_end_when_the_budget_is_used_up(tmp_path: Path) -> None:
    run, _ = deeper(tmp_path, ratio=3 * SECOND / HOUR_NS)
    run.round(closed(0, *[1.0] * 10), None, 0, 10 * SECOND, ended=False)
    run.ask(["stacks"], 9, 50, 10 * SECOND)
    assert run.round(closed(10, 2.0), None, 0, 12 * SECOND, ended=False) is None
    event = run.round(closed(11, *[2.0] * 3), None, 0, 20 * SECOND, ended=False)
    assert event is not None
    assert run.budget.left_ns(21 * SECOND) == 0
