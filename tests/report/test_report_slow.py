"""Slow steps on the page: those of ``spikes``, with what made them longer, and the curve that marks them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from builders import MS, TraceBuilder
from test_report_heat import made_up

from stashtrace.analysis.findings.spikes.policy import POLICY as SLOW_STEPS
from stashtrace.analysis.findings.spikes.spikes import SPIKES, spikes
from stashtrace.analysis.findings.summary_input import gather
from stashtrace.report.document import report_facts
from stashtrace.report.page.page import page, slow_lead
from stashtrace.report.page.page_words import place_of_step
from stashtrace.report.policy import POLICY
from stashtrace.report.steps_over_time import slow_steps, step_curve
from stashtrace.schema.kinds import WaitOp
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace


def job(sleeps: dict[int, int], *, steps: int = 60, gc: dict[int, int] | None = None, leaves: int = 100) -> Trace:
    """Two ranks that compute for 20 ms a step; the first of a step sleeps in some, for the given ms.

    ``leaves``: step before which rank 0 leaves the job.
    """
    build, clock = TraceBuilder(), 0
    for step in range(steps):
        entered: dict[int, int] = {}
        for rank in range(0 if step < leaves else 1, 2):
            process, now = build.rank(rank), clock
            sleep = sleeps.get(step, 0) * MS if not entered else 0
            collected = (gc or {}).get(step, 0) * MS if not entered else 0
            if sleep:
                process.wait(WaitOp.SLEEP, now, now + sleep)
            if collected:
                process.gc(now + sleep, now + sleep + collected)
            now += sleep + collected
            process.phase("forward", now, now + 6 * MS).phase("backward", now + 6 * MS, now + 18 * MS)
            entered[rank] = now + 18 * MS
        end = max(entered.values()) + MS
        build.meet(entered, end, update_ns=MS, message_bytes=1000)
        clock = end + MS
    return build.trace()


def slow_of(trace: Trace) -> dict[str, Any]:
    tables = gather(trace).tables
    return slow_steps(trace, tables["steps"], tables["spikes"])


def test_steps_that_wait_for_a_rank_that_sleeps_are_slow_because_of_it() -> None:
    trace = job({39: 60, 44: 30})
    found = slow_of(trace)
    assert found["slow_count"] == 2
    assert [row["step"] for row in found["listed"]] == [39, 44], "the one that costs most first"
    first = found["listed"][0]
    assert first["excess_ns"] == first["length_ns"] - first["usual_ns"] == pytest.approx(60 * MS, rel=0.02)
    assert first["texts"][0] == "rank 0 is blocked or asleep 60.0 ms longer"
    assert found["excess_ns"] == pytest.approx(90 * MS, rel=0.02)
    assert first["end_ns"] - first["begin_ns"] >= 80 * MS
    assert slow_lead(found) == (
        "2 of 55 counted steps are slow: together they take 90.0 ms longer than comparable ones, 8 % of the time of"
        " all steps."
    )
    assert {row["step"] for row in found["listed"]} == set(spikes(trace)["step"].tolist()), "one rule for both"


def test_slow_steps_are_as_many_as_were_planted() -> None:
    """One step in five, at random moments: neither are the others called slow, nor are these taken for usual."""
    planted = {2: 30, 9: 30, 16: 30, 28: 30, 31: 30, 36: 30, 39: 30, 48: 30, 52: 30, 54: 30}
    found = slow_of(job(planted, steps=55))
    assert found["slow_count"] == len(planted) - 1, "the first is part of the warm-up"
    assert len(found["listed"]) == min(found["slow_count"], POLICY.listed_steps_count)
    assert {row["step"] for row in found["listed"]} <= set(planted)


def test_a_step_that_rank_0_did_not_make_has_the_times_of_the_others() -> None:
    (row,) = slow_of(job({54: 60}, steps=80, leaves=8))["listed"]
    assert (row["step"], row["texts"][0]) == (54, "rank 1 is blocked or asleep 60.0 ms longer")


def test_a_run_of_even_steps_has_no_slow_one() -> None:
    found = slow_of(job({}))
    assert (found["slow_count"], found["listed"], found["too_few"]) == (0, [], False)


def test_steps_that_vary_by_themselves_are_not_called_slow() -> None:
    assert slow_of(job({step: (step * 7) % 13 for step in range(60)}))["slow_count"] == 0


def test_what_goes_on_at_the_same_time_is_named_as_that() -> None:
    (row,) = slow_of(job({52: 8}, gc={52: 4}))["listed"]
    assert any("garbage" in said for said in row["texts"])


def test_too_few_steps_have_no_usual_length() -> None:
    found = slow_of(job({12: 50}, steps=SLOW_STEPS.least_steps))
    assert found["too_few"]
    assert found["listed"] == []


def test_a_cell_of_one_step_has_the_mean_and_the_range_of_its_ranks() -> None:
    steps = made_up({(0, 0): 0, (1, 0): 0, (0, 1): 0, (1, 1): 0})[1]
    steps = steps.replace(end_ns=steps["begin_ns"] + np.array([1000, 3000, 500, 700]))
    assert steps["step"].tolist() == [0, 0, 1, 1]
    found = step_curve(steps, Table.empty(SPIKES))
    assert (found["mean_ns"], found["low_ns"], found["high_ns"]) == ([2000, 600], [1000, 500], [3000, 700])
    assert (found["first_steps"], found["last_step"], found["ranks_count"]) == ([0, 1], 1, 2)
    assert (found["steps_per_cell"], found["whole_mean_ns"], found["slow"]) == (1, 1300, [])


def test_many_steps_share_cells_and_keep_their_extremes() -> None:
    count = 10 * POLICY.curve_cells_count + 7
    steps = made_up({(0, step): 0 for step in range(count)})[1]
    length = np.full(count, 1000)
    length[777] = 9000
    found = step_curve(steps.replace(end_ns=steps["begin_ns"] + length), Table.empty(SPIKES))
    assert len(found["mean_ns"]) == POLICY.curve_cells_count
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
