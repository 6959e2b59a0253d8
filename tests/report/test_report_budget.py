"""Ranks that spend their time the same way are one bar, and every bar adds up to its step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from summary.scenes import job

from stashtrace.analysis.findings import summarize
from stashtrace.report.budget_groups import COLUMNS, budget_groups, percents, rank_columns, ranks_apart, similar_rows
from stashtrace.report.policy import POLICY


def test_similar_ranks_are_one_group_and_the_others_stand_apart() -> None:
    groups = budget_groups(summarize(job(ranks=12, prep={3: 44}, sleep={7: 10})[1]).budgets)
    assert [group["ranks"] for group in groups] == ["0-2,4-6,8-11", "3", "7"]
    assert not any(group["mixed"] for group in groups)
    late = {c["column"]: c["share_ratio"] for c in groups[0]["columns"]}["late"]
    assert late > 0.3, "they wait for rank 3"
    assert ranks_apart(groups) == [3, 7]
    assert ranks_apart(budget_groups(summarize(job(ranks=2)[1]).budgets)) == []


def test_the_columns_of_a_group_are_the_mean_step_of_its_ranks() -> None:
    budgets = summarize(job(ranks=4, prep={3: 44})[1]).budgets
    for group in budget_groups(budgets):
        assert [c["column"] for c in group["columns"]] == list(COLUMNS)
        assert sum(c["share_ratio"] for c in group["columns"]) == pytest.approx(1)
        assert sum(c["stall_ns"] for c in group["columns"]) == pytest.approx(group["step_ns"], abs=len(COLUMNS))
        assert all(c["low_ns"] <= c["stall_ns"] <= c["high_ns"] for c in group["columns"])
    alone = next(group for group in budget_groups(budgets) if group["ranks"] == "3")
    rows = budgets.take(budgets["rank"] == 3)
    assert alone["step_ns"] == rows["step_ns"][0]
    assert [c["share_ratio"] for c in alone["columns"]] == pytest.approx(rows["share_ratio"].tolist())


def test_no_group_holds_ranks_that_differ_and_every_rank_is_in_one() -> None:
    random = np.random.default_rng(7)
    values = np.repeat(random.random((5, 8)), 40, axis=0) + random.random((200, 8)) * POLICY.similar_ranks_ratio / 2
    groups = similar_rows(values)
    assert sorted(np.concatenate([members for members, _ in groups]).tolist()) == list(range(200))
    for members, mixed in groups:
        assert not mixed
        assert np.ptp(values[members], axis=0).max() <= 2 * POLICY.similar_ranks_ratio
    assert len(groups) == 5


def test_ranks_that_are_all_different_end_in_one_group_that_says_so() -> None:
    groups = similar_rows(np.linspace(0, 1, 30)[:, None])
    assert len(groups) == POLICY.groups_count
    assert [mixed for _, mixed in groups] == [False] * (POLICY.groups_count - 1) + [True]


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=12).filter(any))
def test_percents_add_up_to_a_hundred_and_stay_near_their_share(amounts: list[int]) -> None:
    ratios = [amount / sum(amounts) for amount in amounts]
    shown = [round(10 * float(text.removesuffix(" %"))) for text in percents(ratios)]
    assert sum(shown) == 1000
    assert all(abs(s - 1000 * r) <= 1 for s, r in zip(shown, ratios, strict=True))


def test_budgets_of_single_ranks_are_columns_of_equal_length() -> None:
    budgets = summarize(job(ranks=3, prep={1: 20})[1]).budgets
    columns = rank_columns(budgets)
    assert columns["rank"] == [0, 1, 2]
    assert {len(values) for values in columns.values()} == {3}
    parts = [values for name, values in columns.items() if name.removesuffix("_ns") in COLUMNS]
    for rank in range(3):
        assert sum(values[rank] for values in parts) == pytest.approx(columns["step_ns"][rank], abs=len(COLUMNS))
    assert rank_columns(budgets.take(slice(0, 0))) is None
