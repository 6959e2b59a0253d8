"""Heat maps: what a cell holds, how ranks and steps share cells, and which cell is the darkest."""

from __future__ import annotations

import numpy as np
import pytest
from summary.scenes import STEPS, job

from stashtrace.analysis.stalls.budget import STALLS
from stashtrace.analysis.stalls.budget import stalls as find_stalls
from stashtrace.analysis.steps.steps import steps as find_steps
from stashtrace.report.policy import POLICY
from stashtrace.report.steps_over_time import CLASSES, MISSING, class_of, heat_maps
from stashtrace.schema.events import STEPS as STEP_ROWS
from stashtrace.schema.table import Table
from stashtrace.text.units import ranks_in


def made_up(shares: dict[tuple[int, int], int]) -> tuple[Table, Table]:
    """Tables stalls and steps of (rank, step) -> permille of fetch in a step of 1,000 ns; the rest is compute."""
    rows, steps = [], []
    for (rank, step), fetch in shares.items():
        for kind, spent in (("compute", 1000 - fetch), ("fetch", fetch)):
            rows.append((rank, step, kind, spent, "host", spent, spent, -1, -1.0))
        steps.append((rank, step, step * 1000, step * 1000 + 1000, 0, 0, 0, "train", 0, 1, 0, 0))
    return Table.from_rows(STALLS, rows), Table.from_rows(STEP_ROWS, steps)


def test_each_cell_is_the_share_of_one_rank_in_one_step() -> None:
    found = heat_maps(*made_up({(0, 0): 0, (0, 1): 100, (1, 0): 250, (1, 1): 900}))
    assert (found["ranks"], found["steps"]) == (["0", "1"], ["0", "1"])
    assert (found["ranks_per_cell"], found["steps_per_cell"]) == (1, 1)
    fetch, compute = found["kinds"]
    assert (fetch["kind"], compute["kind"]) == ("fetch", "compute")
    assert fetch["permille"] == [[0, 100], [250, 900]]
    assert compute["permille"] == [[1000, 900], [750, 100]]
    assert (fetch["most_ranks"], fetch["most_steps"], fetch["most_permille"]) == ("1", "1", 900)
    assert (fetch["begin_ns"], fetch["end_ns"]) == (1000, 2000)
    assert fetch["share_ratio"] == pytest.approx(1250 / 4000)


def test_many_ranks_and_steps_share_cells_evenly_and_keep_their_sum() -> None:
    random = np.random.default_rng(3)
    shares = {(r, s): int(random.integers(0, 1000)) for r in range(100) for s in range(130)}
    found = heat_maps(*made_up(shares))
    assert (len(found["ranks"]), len(found["steps"])) == (POLICY.rank_cells_count, POLICY.step_cells_count)
    assert (found["ranks_per_cell"], found["steps_per_cell"]) == (4, 3)
    assert found["ranks"][0] == "0-3"
    assert found["ranks"][-1].endswith("99")
    assert found["steps"][-1].endswith("129")
    fetch = next(part for part in found["kinds"] if part["kind"] == "fetch")
    exact = np.array([[shares[r, s] for s in range(130)] for r in range(100)])
    rows, columns = (
        np.arange(n) * cells // n for n, cells in ((100, POLICY.rank_cells_count), (130, POLICY.step_cells_count))
    )
    expected = [
        [exact[np.ix_(rows == y, columns == x)].mean() for x in range(POLICY.step_cells_count)]
        for y in range(POLICY.rank_cells_count)
    ]
    assert np.abs(np.array(fetch["permille"]) - np.array(expected)).max() <= 0.5


def test_a_rank_that_differs_is_not_hidden_among_those_that_share_a_row() -> None:
    shares = {(rank, step): 900 if rank == 57 else 0 for rank in range(100) for step in range(4)}
    found = heat_maps(*made_up(shares), apart=[57])
    assert len(found["ranks"]) == POLICY.rank_cells_count
    assert (found["ranks"][0], found["apart_count"]) == ("57", 1)
    fetch = next(part for part in found["kinds"] if part["kind"] == "fetch")
    assert fetch["permille"][0] == [900] * 4
    assert not np.array(fetch["permille"][1:]).any()
    held = [rank for label in found["ranks"] for rank in ranks_in(label)]
    assert sorted(held) == list(range(100))


def test_few_ranks_keep_their_order() -> None:
    found = heat_maps(*made_up({(rank, 0): rank for rank in range(5)}), apart=[3])
    assert (found["ranks"], found["apart_count"]) == (["0", "1", "2", "3", "4"], 0)


def test_a_cell_without_a_step_is_not_a_cell_of_nothing() -> None:
    found = heat_maps(*made_up({(0, 0): 0, (0, 1): 500, (1, 0): 500}))
    assert found["kinds"][0]["permille"] == [[0, 500], [500, MISSING]]


def test_a_kind_below_a_percent_everywhere_is_named_without_a_map() -> None:
    found = heat_maps(*made_up({(0, 0): 9, (0, 1): 3}))
    assert [part["kind"] for part in found["kinds"]] == ["compute"]
    assert found["small"] == ["fetch"]


def test_the_maps_of_a_run_are_its_stalls() -> None:
    trace = job(prep={0: 44})[1]
    found = heat_maps(find_stalls(trace, warmup=True), find_steps(trace))
    assert found["steps_count"] == STEPS
    late = next(part for part in found["kinds"] if part["kind"] == "straggler")
    assert max(late["permille"][1]) > 500
    assert max(late["permille"][0]) == 0


def test_no_steps_no_maps() -> None:
    assert heat_maps(Table.empty(STALLS), Table.empty(STEP_ROWS)) is None


def test_classes_begin_where_they_say() -> None:
    for number, low in enumerate(CLASSES[1:], start=2):
        assert class_of(round(1000 * low)) == number
        assert class_of(round(1000 * low) - 1) == number - 1
