"""The step time over the steps: what a cell holds, how it is drawn, and where the marks of slow steps lead."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re

import numpy as np
import pytest
from builders import MS
from test_report_heat import made_up
from test_report_slow import job, slow_of

from stashtrace.analysis.findings.spikes.spikes import SPIKES
from stashtrace.analysis.findings.summary_input import gather
from stashtrace.report.document import report_facts
from stashtrace.report.page.page import page
from stashtrace.report.page.page_words import place_of_step
from stashtrace.report.steps_over_time import CELLS, step_curve
from stashtrace.schema.table import Table


def test_a_cell_of_one_step_has_the_mean_and_the_range_of_its_ranks() -> None:
    steps = made_up({(0, 0): 0, (1, 0): 0, (0, 1): 0, (1, 1): 0})[1]
    steps = steps.replace(end_ns=steps["begin_ns"] + np.array([1000, 3000, 500, 700]))
    assert steps["step"].tolist() == [0, 0, 1, 1]
    found = step_curve(steps, Table.empty(SPIKES))
    assert (found["mean_ns"], found["low_ns"], found["high_ns"]) == ([2000, 600], [1000, 500], [3000, 700])
    assert (found["first_steps"], found["last_step"], found["ranks_count"]) == ([0, 1], 1, 2)
    assert (found["steps_per_cell"], found["whole_mean_ns"], found["slow"]) == (1, 1300, [])


def test_many_steps_share_cells_and_keep_their_extremes() -> None:
    count = 10 * CELLS + 7
    steps = made_up({(0, step): 0 for step in range(count)})[1]
    length = np.full(count, 1000)
    length[777] = 9000
    found = step_curve(steps.replace(end_ns=steps["begin_ns"] + length), Table.empty(SPIKES))
    assert len(found["mean_ns"]) == CELLS
    assert (max(found["high_ns"]), min(found["low_ns"])) == (9000, 1000)
    at = int(np.argmax(found["high_ns"]))
    assert found["first_steps"][at] <= 777 < found["first_steps"][at + 1]
    assert found["mean_ns"][at] == pytest.approx(1000 + 8000 / 10, rel=0.02)


def test_no_steps_no_curve() -> None:
    assert step_curve(made_up({(0, 0): 0})[1].take(slice(0, 0)), Table.empty(SPIKES)) is None


def test_slow_steps_are_marked_where_the_analysis_finds_them() -> None:
    trace = job({39: 60, 44: 30})
    tables = gather(trace).tables
    found = step_curve(tables["steps"], tables["spikes"])
    assert [row["step"] for row in found["slow"]] == [row["step"] for row in slow_of(trace)["listed"]] == [39, 44]
    assert [found["first_steps"][row["cell"]] for row in found["slow"]] == [39, 44]
    assert found["slow"][0]["excess_ns"] == pytest.approx(60 * MS, rel=0.02)


def test_a_mark_leads_to_what_made_its_step_slow() -> None:
    facts = report_facts(job({39: 60, 44: 30}), ["./x"])
    made = page(facts)
    marks = re.findall(r'<a class="mark" href="#([\w-]+)" title="(.*?)" style="left:([\d.]+)%;top:([\d.]+)%"', made)
    assert len(marks) == 2
    for name, said, left, top in marks:
        assert f'id="{name}"' in made
        assert 0 <= float(left) <= 100
        assert 0 <= float(top) <= 100
        assert "rank 0 is blocked or asleep" in said
    assert {name for name, *_ in marks} == {place_of_step(facts, step) for step in (39, 44)}
    assert "2 slow steps are marked; a mark leads to what made it slow." in made
    without_pictures = {**facts, "waits": None}
    assert place_of_step(without_pictures, 39) == "slow-39"
    assert place_of_step({**without_pictures, "slow": None}, 39) == ""
