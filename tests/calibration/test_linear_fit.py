"""Least squares through the origin: against numpy, against leaving each point out by hand, and its refusals."""

from __future__ import annotations

import numpy as np
import pytest

from stashtrace.calibration.robust_line import fit_linear, likeness, r_squared
from stashtrace.errors import MissingDataError, UsageError

MESSAGES = np.array([38.0, 44, 56, 62, 110, 161])
BYTES = np.array([1.28e6, 1.30e6, 1.67e6, 2.85e6, 5.38e6, 6.12e6])
NOISE = np.array([0.4, -0.9, 0.2, 1.1, -0.6, 0.3]) * 1e6


def test_a_law_without_noise_is_found() -> None:
    fit = fit_linear({"messages": MESSAGES, "bytes": BYTES}, 3e5 * MESSAGES + 2 * BYTES)
    assert fit.coefficients == pytest.approx([3e5, 2.0])
    assert fit.r2_ratio == pytest.approx(1.0)
    assert fit.left_out == pytest.approx(fit.target)
    assert fit.predict(messages=100, bytes=1e6)[0] == pytest.approx(3.2e7)


def test_errors_and_left_out_points_are_those_of_the_books() -> None:
    table = np.stack((MESSAGES, BYTES), axis=1)
    target = 3e5 * MESSAGES + 2 * BYTES + NOISE
    fit = fit_linear({"messages": MESSAGES, "bytes": BYTES}, target)
    known, squares, _, _ = np.linalg.lstsq(table, target, rcond=None)
    variance = squares[0] / 4
    covariance = variance * np.linalg.inv(table.T @ table)
    assert fit.coefficients == pytest.approx(known)
    assert fit.errors == pytest.approx(np.sqrt(np.diag(covariance)))
    assert fit.residual == pytest.approx(np.sqrt(variance))
    for at in range(6):
        others = np.arange(6) != at
        without = np.linalg.lstsq(table[others], target[others], rcond=None)[0]
        assert fit.left_out[at] == pytest.approx(table[at] @ without)
        assert fit.left_out_errors[at] == pytest.approx(table[at] @ without / target[at] - 1)


def test_the_truth_lies_within_two_errors_as_often_as_it_should() -> None:
    random = np.random.default_rng(1)
    hits = 0
    for _ in range(400):
        target = 3e5 * MESSAGES + 2 * BYTES + random.normal(0, 1e6, 6)
        fit = fit_linear({"messages": MESSAGES, "bytes": BYTES}, target)
        hits += abs(fit.coefficients[0] - 3e5) < 2.776 * fit.errors[0]  # 97.5 % point of Student's t, 4 degrees
    assert 365 <= hits <= 395


def test_one_column_is_a_slope() -> None:
    fit = fit_linear({"bytes": [1, 2, 3]}, [2, 4, 7])
    assert fit.coefficients[0] == pytest.approx(31 / 14)
    assert fit.names == ("bytes",)


@pytest.mark.parametrize(
    ("columns", "target", "said"),
    [
        ({"a": [1, 2], "b": [2, 1]}, [1, 2], "2 points cannot carry"),
        ({"a": [1, 2, 3], "b": [2, 4, 6]}, [1, 2, 3], "grow in proportion"),
        ({"a": [1, 2, 3], "b": [0, 0, 0]}, [1, 2, 3], "grow in proportion"),
    ],
)
def test_points_that_cannot_carry_a_fit(columns: dict[str, list[float]], target: list[float], said: str) -> None:
    with pytest.raises(MissingDataError, match=said) as caught:
        fit_linear(columns, target)
    assert caught.value.hint


def test_columns_of_other_lengths_are_refused() -> None:
    with pytest.raises(UsageError):
        fit_linear({"a": [1, 2, 3]}, [1, 2])
    with pytest.raises(UsageError):
        fit_linear({"a": [1, 2, np.inf]}, [1, 2, 3])


def test_a_point_that_carries_a_column_alone_cannot_be_left_out() -> None:
    fit = fit_linear({"a": [1, 2, 3, 0], "b": [0, 0, 0, 5]}, [1, 2, 3.5, 5])
    assert np.isnan(fit.left_out[3])
    assert np.isfinite(fit.left_out[:3]).all()


def test_small_figures() -> None:
    assert r_squared([1, 2, 3], [3, 2, 1]) == -3.0
    assert likeness([0, 0], [1, 2]) == 1.0
