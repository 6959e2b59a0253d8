"""diff: a typical step of two jobs, its verdicts, the bounds of a change and the smallest that could have been seen."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from builders import MS, TraceBuilder

from stashtrace.analysis.compare.change import Side
from stashtrace.analysis.compare.diff import diff, diff_of_sides
from stashtrace.analysis.compare.steps_of_run import StepsOfRun
from stashtrace.schema.trace import Trace
from stashtrace.summary.diff_text import verdict


def steady(forward_ms: float, save_every: int = 0, jitter: float = 0.02, count: int = 60) -> Trace:
    random = np.random.default_rng(7)
    build, at = TraceBuilder(), 0
    for number in range(count):
        middle = at + int(forward_ms * MS * (1 + jitter * random.standard_normal()))
        build.rank(0).phase("forward", at, middle).phase("optimizer", middle, middle + MS)
        at = middle + MS
        if save_every and number % save_every == 0:
            build.rank(0).phase("checkpoint", at, at + 40 * MS)
            at += 40 * MS
    return build.trace()


def verdicts(before: Trace, after: Trace) -> dict[str, str]:
    table = diff(before, after)
    return dict(zip(table["kind"].tolist(), table["verdict"].tolist(), strict=True))


def test_two_runs_compared() -> None:
    assert verdicts(steady(20), steady(20))["step"] == "no difference"
    assert verdicts(steady(20), steady(20.1))["step"] == "no difference"
    assert verdicts(steady(20), steady(24))["compute"] == "slower"
    assert verdicts(steady(20), steady(16))["step"] == "faster"


def test_rare_kinds_are_compared_by_their_mean() -> None:
    table = diff(steady(20, save_every=5), steady(20))
    row = next(r for r in table.rows() if r["kind"] == "checkpoint")
    assert (row["statistic"], row["verdict"]) == ("mean", "faster")
    assert row["before_ns"] == pytest.approx(8 * MS, rel=0.1)


def test_steps_without_a_length_are_compared() -> None:
    """Steps of a foreign file may begin and end at one moment."""
    table = diff(steady(20), steady(30))
    table = table.replace(before_ns=np.zeros(len(table), dtype=np.int64))
    first, *_ = verdict(table, "before", "after")
    assert re.fullmatch(r"after is slower: the median step takes [\d.]+ ms, [\d.]+ ms more than 0 ns in before", first)


def side(*runs: Any) -> Side:
    return Side(
        "side", tuple(StepsOfRun("run", {"step": np.asarray(np.rint(run), dtype=np.int64)}, len(run)) for run in runs)
    )


def step_row(before: Side, after: Side) -> dict[str, Any]:
    return next(iter(diff_of_sides(before, after).rows()))


def drifting(seed: int, mean_ms: float = 40.0) -> Any:
    """200 steps, each much like the one before."""
    random = np.random.default_rng(seed)
    level, values = 0.0, []
    for shock in random.standard_normal(200):
        level = 0.8 * level + 0.6 * shock
        values.append((mean_ms + level) * MS)
    return np.array(values)


def test_similar_steps_are_not_independent_witnesses() -> None:
    """Equal jobs; as independent steps, many of them would be different."""
    rows = [step_row(side(drifting(seed)), side(drifting(seed + 100))) for seed in range(40)]
    assert sum(row["verdict"] != "no difference" for row in rows) <= 4
    # Three standard errors of two medians, if the steps were independent.
    singly = [abs(row["change_ns"]) > 3 * 1.2533 * np.sqrt(2) * MS / np.sqrt(200) for row in rows]
    assert sum(singly) >= 6


def test_bounds_hold_the_change() -> None:
    row = step_row(side(drifting(1)), side(drifting(2, 60)))
    assert row["verdict"] == "slower"
    assert row["low_ns"] < row["change_ns"] < row["high_ns"]
    assert 0 < row["noise_ns"] < row["detectable_ns"] < row["change_ns"]


def test_what_could_have_been_seen_gets_a_verdict_in_four_of_five() -> None:
    random = np.random.default_rng(8)
    seen = []
    for _ in range(120):
        before, after = (40 * MS + 2 * MS * random.standard_normal(60) for _ in range(2))
        shift = step_row(side(before), side(after))["detectable_ns"]
        seen.append(step_row(side(before), side(after + shift))["verdict"] == "slower")
    assert 0.7 <= np.mean(seen) <= 0.92


def test_several_runs_show_how_runs_differ() -> None:
    random = np.random.default_rng(3)
    runs = [(40 + shift) * MS + 0.05 * MS * random.standard_normal(60) for shift in (-3, 0, 3)]
    one = step_row(side(runs[0]), side(runs[2]))
    assert (one["verdict"], one["before_runs_count"]) == ("slower", 1)
    several = step_row(side(*runs), side(*[run + MS for run in runs]))
    assert (several["verdict"], several["before_runs_count"], several["before_steps_count"]) == (
        "no difference",
        3,
        180,
    )
    assert several["low_ns"] < 0 < several["high_ns"]


def test_a_single_step_shows_no_spread() -> None:
    row = step_row(side([40 * MS]), side([60 * MS]))
    assert (row["low_ns"], row["high_ns"], row["detectable_ns"]) == (0, 0, -1)
    assert row["verdict"] == "slower"
