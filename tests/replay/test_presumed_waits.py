"""Waits for collectives that a recording does not show, in torch.profiler files of jobs on the CPU.

The budget takes the time in which only a collective ran for a wait; the replay must do so too, or a late rank that is
removed leaves the others as late as they were.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import stashtrace
from stashtrace.analysis.graph import build
from stashtrace.replay.causes import causes
from stashtrace.replay.changes import Change
from stashtrace.replay.whatif import Answer, what_if
from stashtrace.summary.words.cause_templates import cause_text

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "tests" / "data" / "kineto_gloo"
CASES = ROOT.parent / "shared" / "cases" / "traces"
needs_cases = pytest.mark.skipif(not CASES.is_dir(), reason="the folder of cases is not beside the checkout")


def _loaded(path: Path) -> stashtrace.Trace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one of the files is there twice: that is what the losses say
        return stashtrace.load(path)


def _without_late(path: Path) -> Answer:
    return what_if(build(_loaded(path)), [Change.parse("straggler=0")])


def test_a_rank_that_sleeps_30_of_41_ms_is_most_of_the_step() -> None:
    answer = _without_late(RECORDED)
    assert 1 - answer.high_ns / answer.replayed_ns > 0.6
    assert answer.after_ns["late"] < 0.1 * answer.replayed_ns


@needs_cases
def test_steps_of_one_rank_alone_do_not_count() -> None:
    """Rank 1 sleeps 20 of 27 ms; four of its steps are not recorded of rank 0."""
    answer = _without_late(CASES / "two_windows_whatif")
    assert answer.steps_count == 2
    assert 1 - answer.high_ns / answer.replayed_ns > 0.65


@needs_cases
def test_a_rank_that_waits_is_not_advised_to_be_quicker() -> None:
    rows = list(causes(_loaded(CASES / "kineto_a2a_words")).rows())
    assert all(row["ranks"] != "0" for row in rows)
    assert all("asleep" not in cause_text(row, "RUN") for row in rows)
