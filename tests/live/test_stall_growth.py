"""A stall that grows is one line; steps that vary with the length of their sequences are none.

The false alarms are counted on simulated jobs of eight balanced ranks, with fixed seeds: computing and part of the data
follow sequences of varying length, reads are rare and long now and then, transfers vary.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from varying_job import MS, growths, varying_job

from stashtrace.live.triggers import BLOCK_STEPS


@pytest.mark.parametrize(
    ("spread", "memory"),
    [(0.6, 0.0), *(pytest.param(*job, marks=pytest.mark.thorough) for job in ((0.3, 0.0), (1.0, 0.0), (0.6, 0.5)))],
)
def test_balanced_steps_of_varying_lengths_raise_at_most_one_alarm_in_10000(spread: float, memory: float) -> None:
    """60,000 steps each; what many more give, on other seeds, stands in the guide (`benchmarks/bench_growth.py`)."""
    seeds = range(6)
    alarms = [g for s in seeds for g in growths(varying_job(s, 10_000, spread=spread, memory=memory), 10_000)]
    assert len(alarms) <= 1, [alarm.text for alarm in alarms]


@pytest.mark.parametrize("seed", range(5))
def test_reads_that_become_slower_are_one_line(seed: int) -> None:
    """From step 900 on rank 3 reads 20 ms longer in each step; the others wait for it, which needs no line."""
    (growth,) = growths(varying_job(seed, 1600, slower_reads_ms=20.0, since=900))
    assert (growth.kind, growth.ranks) == ("fetch", (3,))
    assert abs(growth.since_step - 900) <= 2 * BLOCK_STEPS
    assert growth.step <= 900 + 4 * BLOCK_STEPS
    assert growth.now_ns - growth.before_ns == pytest.approx(20e6, rel=0.3)
    assert re.fullmatch(
        r"data: storage grew on rank 3 since step \d+: \d+ us -> \d+(\.\d)? ms a step, "
        r"\d+ % of a usual step more, over 60 steps",
        growth.text,
    )


def test_a_rank_that_computes_longer_is_named_by_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its computing is no stall; that the others wait for it is."""
    growth, *_ = growths(varying_job(1, 1600, spread=0.05, slower_compute_ms=30.0, since=900))
    assert growth.kind == "straggler"
    assert growth.ranks == (0, 1, 2, 4, 5, 6, 7)
    assert growth.cause_rank == 3
    assert "late grew on ranks 0-2,4-7" in growth.text
    assert ", waiting for rank 3: " in growth.text


def test_the_new_level_is_the_usual_one_after_an_alarm() -> None:
    """Reads that stay slow are no second line, however long the job goes on; a second step up is."""
    first = varying_job(2, 3000, slower_reads_ms=20.0, since=900)
    assert len(growths(first)) == 1
    fetch = first["fetch_ns"].copy()
    more = (first["rank"] == 3) & (first["step"] >= 2000)
    fetch[more] += int(40 * MS)
    again = growths(first.replace(fetch_ns=fetch, end_ns=first["end_ns"] + np.where(more, int(40 * MS), 0)))
    assert [growth.kind for growth in again] == ["fetch", "fetch"]
    assert again[1].step >= 2000


def test_slow_growth_is_seen() -> None:
    """A leak: 0.05 ms more in each step."""
    job = varying_job(3, 2000, spread=0.2)
    more = np.where(job["rank"] == 5, job["step"] * 50_000, 0)
    found = growths(job.replace(python_ns=job["python_ns"] + more, end_ns=job["end_ns"] + more))
    assert found
    assert all((growth.kind, growth.ranks) == ("python", (5,)) for growth in found)


def test_one_slow_step_is_no_growth() -> None:
    job = varying_job(4, 1500)
    fetch = job["fetch_ns"].copy()
    fetch[(job["step"] % 400 == 399) & (job["rank"] == 2)] += int(3000 * MS)
    assert growths(job.replace(fetch_ns=fetch)) == []
