"""Causes of runs that are too long for a replay of all their steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from builders import MS
from wait_chains import data_parallel, noisy, on, pipeline_of

from stashtrace import export, load
from stashtrace.analysis.steps.part_of_run import part_of_run
from stashtrace.analysis.steps.steps import steps
from stashtrace.replay.causes import causes, causes_table
from stashtrace.schema.trace import Trace


def sleeps_every_tenth(step: int, rank: int) -> float:
    return 100.0 if rank == 1 and step % 10 == 9 else 0.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: data_parallel(lambda step, rank: noisy(3, 0.5)(step, rank) + 12 * (rank == 1), steps=200),
        lambda: data_parallel(sleeps_every_tenth, steps=200, kind="sleep"),
        lambda: pipeline_of(3, 4, on(1, 3.0), steps=80),
    ],
)
def test_a_part_of_a_run_has_the_causes_of_the_whole(make: Callable[[], Trace]) -> None:
    trace = make()
    part = part_of_run(trace, 0.25)
    assert part is not None
    whole, of_part = (next(iter(causes(one).rows())) for one in (trace, part))
    for name in ("ranks", "kind", "level", "call", "every_count"):
        assert whole[name] == of_part[name]
    assert of_part["saved_ns"] == pytest.approx(whole["saved_ns"], rel=0.15)
    assert of_part["step_ns"] == pytest.approx(whole["step_ns"], rel=0.05)


def test_the_part_is_the_one_that_is_most_like_the_run() -> None:
    """The first 100 of 200 steps are 40 ms longer: the part lies where half of its steps are."""
    trace = data_parallel(lambda step, rank: 40.0 if step < 100 else 0.0, steps=200)
    part = part_of_run(trace, 0.2)
    numbers = np.unique(steps(part)["step"])
    assert numbers.min() < 100 < numbers.max()
    assert len(part.collectives) < 0.3 * len(trace.collectives)


def test_a_stored_run_has_a_part_of_whole_steps(tmp_path: Path) -> None:
    export(data_parallel(on(1, 12.0), steps=200), "store", str(tmp_path / "run.store"))
    part = part_of_run(load(str(tmp_path / "run.store")), 0.2)
    assert part is not None
    first = next(iter(causes(part).rows()))
    assert (first["ranks"], first["kind"], first["shape"], first["work_ns"]) == ("1", "compute", "", 12 * MS)


def test_a_run_of_few_long_steps_is_not_cut() -> None:
    assert part_of_run(data_parallel(on(1, 10.0), steps=40), 0.1) is None


def test_a_summary_says_of_which_steps_its_causes_are(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = data_parallel(on(1, 12.0), steps=200)
    monkeypatch.setattr(causes_table, "MOST_ROWS", 400)
    first, *_, last = causes_table.what_to_do_first(trace).rows()
    assert (first["ranks"], first["kind"], first["work_ns"]) == ("1", "compute", 12 * MS)
    assert last["reason"].startswith("these are the causes of steps ")
    monkeypatch.setattr(causes_table, "MOST_ROWS", 20)
    (row,) = causes_table.what_to_do_first(trace).rows()
    assert row["reason"].startswith("not predicted here: a replay of ")
