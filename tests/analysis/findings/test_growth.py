"""Steps that grow are told from steps that get longer at once; where their lengths do not tell, neither is said."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from wait_chains import data_parallel

from stashtrace.analysis.findings import summarize
from stashtrace.analysis.findings.over_time.detect_changes import drift, onset, stretches
from stashtrace.calibration.noise import Floats
from stashtrace.schema.trace import Trace
from stashtrace.summary.words import claim_text, findings_of

SEEDS = 12


def lasting(seed: int, count: int, ms: float) -> Floats:
    """Noise of a machine, of which three fifths last to the next step."""
    noise = np.random.default_rng(seed).normal(0, ms, count)
    for at in range(1, count):
        noise[at] += 0.6 * noise[at - 1]
    return noise


def kind_of(lengths: Floats) -> str:
    found = stretches(lengths)
    return "drift" if drift(lengths, found) is not None else onset(lengths, found)[1] if len(found) > 1 else "none"


@pytest.mark.parametrize("count", [75, 150, 300])
def test_steady_growth_under_noise_that_lasts_is_no_shift(count: int) -> None:
    kinds = [kind_of(30 + np.linspace(0, 40, count) + lasting(seed, count, 6.0)) for seed in range(SEEDS)]
    assert "sudden" not in kinds
    assert kinds.count("drift") >= SEEDS - 1


@pytest.mark.parametrize("count", [75, 150, 300])
def test_a_shift_under_noise_that_lasts_does_not_grow(count: int) -> None:
    steps = np.where(np.arange(count) < count // 2, 30.0, 70.0)
    kinds = [kind_of(steps + lasting(seed, count, 5.0)) for seed in range(SEEDS)]
    assert set(kinds) <= {"sudden", "either"}
    assert kinds.count("sudden") >= SEEDS - 2


def test_growth_from_the_middle_on_is_one_change() -> None:
    for seed in range(SEEDS):
        lengths = 30 + np.maximum(np.arange(300) - 150, 0) * 0.25 + lasting(seed, 300, 1.0)
        found = stretches(lengths)
        place, how = onset(lengths, found)
        assert (drift(lengths, found), how) == (None, "gradual")
        assert place == pytest.approx(150, abs=15)


def test_where_lengths_do_not_tell_it_is_said() -> None:
    """Of 40 slow steps the first ten grow into it."""
    lengths = 30 + np.clip((np.arange(80) - 35) / 14, 0, 1) * 12
    kinds = {kind_of(lengths + lasting(seed, 80, 3.0)) for seed in range(40)}
    assert "either" in kinds


def changes(trace: Trace) -> list[str]:
    tables = summarize(trace)
    return [claim_text(f) for f in findings_of(tables.findings, tables.evidence) if f.row["section"] == "time"]


def test_growth_is_worded_as_it_is_known() -> None:
    noise = lasting(3, 200, 0.3)
    trace = data_parallel(lambda step, rank: max(step - 100, 0) * 0.3 + noise[step] + 1 if rank else 0.0, steps=200)
    (said,) = changes(trace)
    assert said.startswith("from about step ")
    assert " on, each step takes longer than the one before, in the median " in said


LEVELS = (0.0, 10.0, 20.0, 30.0, 40.0, 50.0)


def test_of_a_staircase_the_costliest_levels_are_said() -> None:
    """Five times in 240 steps rank 1 computes 10 ms longer than before."""
    noise = lasting(3, 240, 0.3)
    trace = data_parallel(lambda step, rank: LEVELS[step // 40] + noise[step] + 1 if rank else 0.0, steps=240)
    said = changes(trace)
    assert len(said) == 3
    assert all(" instead of the usual " in text for text in said)
