"""The second look at what a busy machine may have spoilt: taken when needed, shared, and told when it did not help."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from measurements import Measurements


def of(*values: int) -> tuple[Measurements[int], list[Path]]:
    """Measurements with these results, and the folders that were asked for."""
    folders: list[Path] = []
    left = iter(values)

    def measure(folder: Path) -> int:
        folders.append(folder)
        return next(left)

    return Measurements(measure, Path("here"), most=3), folders


def small(value: int) -> None:
    assert value < 10


def small_in_the_middle(values: Sequence[int]) -> None:
    assert sorted(values)[len(values) // 2] < 10


def test_one_that_agrees_is_enough_and_the_only_one() -> None:
    runs, folders = of(3)
    assert runs.agree(small) == runs.agree(small) == runs.first == 3
    assert folders == [Path("here/measured-0")]


def test_the_next_one_may_agree() -> None:
    runs, folders = of(30, 20, 1)
    assert runs.agree(small) == 1
    assert (runs.first, len(folders), len(set(folders))) == (30, 3, 3)


def test_a_failure_shows_all() -> None:
    runs, _ = of(30, 20, 10)
    with pytest.raises(AssertionError) as caught:
        runs.agree(small, together=small_in_the_middle)
    for words in ("1 of 3: assert 30 < 10", "2 of 3: assert 20 < 10", "3 of 3: assert 10 < 10", "all together: "):
        assert words in str(caught.value)


def test_a_claim_about_medians_may_hold_of_all_together() -> None:
    runs, _ = of(30, 20, 10)
    with pytest.raises(AssertionError):
        runs.agree(small)
    runs.agree(small, together=lambda values: None)


def test_other_errors_are_not_tried_again() -> None:
    def broken(value: int) -> None:
        raise ValueError(value)

    runs, folders = of(1, 2)
    with pytest.raises(ValueError, match="1"):
        runs.agree(broken)
    assert len(folders) == 1
