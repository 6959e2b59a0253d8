"""Fits of alpha and beta: known ones are found within the stated errors, nonsense is refused in one line."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from stashtrace.calibration.fit_link import bus_bytes, fit_alpha_beta
from stashtrace.errors import MissingDataError, StashtraceError, UsageError

SIZES = np.geomspace(1024, 2**25, 16)
alphas = st.floats(1e3, 1e6)
betas = st.floats(1e-2, 1e1)


@given(alphas, betas)
@settings(max_examples=examples(40), deadline=None)
def test_a_line_without_noise_is_found_exactly(alpha: float, beta: float) -> None:
    fit = fit_alpha_beta(SIZES, alpha + beta * SIZES)
    assert len(fit.pieces) == 1
    assert fit.alpha_ns == pytest.approx(alpha, rel=1e-5)
    assert fit.bandwidth_bytes_per_s == pytest.approx(1e9 / beta, rel=1e-5)
    assert fit.residual_ratio < 1e-6


@given(alphas, betas, st.floats(0.5, 20.0), st.integers(0, 15))
@settings(max_examples=examples(40), deadline=None)
def test_one_wild_point_moves_nothing(alpha: float, beta: float, factor: float, where: int) -> None:
    times = alpha + beta * SIZES
    times[where] *= 1 + factor
    fit = fit_alpha_beta(SIZES, times)
    assert fit.alpha_ns == pytest.approx(alpha, rel=1e-3)
    assert fit.bandwidth_bytes_per_s == pytest.approx(1e9 / beta, rel=1e-3)
    assert sum(p.outliers_count for p in fit.pieces) == 1


@given(alphas, betas, st.floats(0.01, 100))
@settings(max_examples=examples(30), deadline=None)
def test_units_do_not_matter(alpha: float, beta: float, scale: float) -> None:
    """A clock that runs differently gives the same fit, differently scaled."""
    noise = np.random.default_rng(3).normal(1, 0.05, len(SIZES))
    times = (alpha + beta * SIZES) * noise
    one, other = fit_alpha_beta(SIZES, times), fit_alpha_beta(SIZES, times * scale)
    assert other.alpha_ns == pytest.approx(one.alpha_ns * scale, rel=1e-4)
    assert other.alpha_error_ns == pytest.approx(one.alpha_error_ns * scale, rel=1e-3)


@pytest.mark.parametrize(("wild_ratio", "errors_known"), [(0.0, True), (0.1, False)])
def test_stated_errors_are_true(wild_ratio: float, errors_known: bool) -> None:
    """In repeated experiments 68 % lie within one standard error and 95 % within two; nearly none beyond five."""
    random = np.random.default_rng(11)
    off = []
    for _ in range(150):
        alpha, beta = 10 ** random.uniform(3, 6), 10 ** random.uniform(-2, 1)
        times = (alpha + beta * SIZES) * random.normal(1, 0.03, len(SIZES))
        times *= np.where(random.random(len(SIZES)) < wild_ratio, random.uniform(1.5, 5, len(SIZES)), 1)
        fit = fit_alpha_beta(SIZES, times, 0.03 * times if errors_known else None)
        if len(fit.pieces) == 1:
            piece = fit.pieces[0]
            off.append((piece.alpha_ns - alpha) / piece.alpha_error_ns)
            off.append((piece.beta_ns_per_byte - beta) / piece.beta_error_ns_per_byte)
    assert len(off) > 260, "noise is not a change of protocol"
    distance = np.abs(off)
    assert 0.58 < np.mean(distance < 1) < 0.80
    assert np.mean(distance < 2) > 0.86
    assert np.mean(distance < 5) > 0.99


def test_a_change_of_protocol_makes_two_pieces() -> None:
    times = np.where(SIZES < 2e5, 2e4 + 1.0 * SIZES, 3e5 + 0.1 * SIZES)
    times *= np.random.default_rng(5).normal(1, 0.02, len(SIZES))
    fit = fit_alpha_beta(SIZES, times)
    assert len(fit.pieces) == 2
    assert fit.pieces[0].max_bytes < 2e5 < fit.pieces[1].min_bytes
    assert fit.alpha_ns == pytest.approx(2e4, abs=5 * fit.alpha_error_ns)
    assert fit.bandwidth_bytes_per_s == pytest.approx(1e10, rel=0.1)
    expected, error = fit.expected(np.array([1024.0, 2**25]))
    assert expected == pytest.approx([2e4 + 1024, 3e5 + 0.1 * 2**25], rel=0.05)
    assert (error > 0).all()
    assert np.abs(fit.residuals(SIZES, times)).max() < 0.1


def test_max_pieces_is_kept() -> None:
    times = np.where(SIZES < 2e5, 2e4 + 1.0 * SIZES, 3e5 + 0.1 * SIZES)
    assert len(fit_alpha_beta(SIZES, times, max_pieces=1).pieces) == 1


def test_time_that_does_not_grow_has_no_bandwidth() -> None:
    fit = fit_alpha_beta([1, 2, 4, 8], [1000.0, 1010.0, 990.0, 1000.0])
    assert fit.alpha_ns == pytest.approx(1000, rel=0.01)
    assert fit.bandwidth_bytes_per_s > 1e8 or math.isinf(fit.bandwidth_bytes_per_s)
    falling = fit_alpha_beta([1e3, 1e4, 1e5, 1e6], [1000.0, 990.0, 950.0, 900.0])
    assert math.isinf(falling.bandwidth_bytes_per_s)
    assert math.isinf(falling.bandwidth_error_bytes_per_s)


def test_latency_is_never_negative() -> None:
    sizes = np.geomspace(1e6, 1e9, 8)
    fit = fit_alpha_beta(sizes, np.maximum(sizes * 0.1 - 5e4, 1.0) * 1.0, max_pieces=1)
    assert fit.alpha_ns >= 0
    assert (fit.expected([1.0, 1e3])[0] >= 0).all()


@pytest.mark.parametrize(
    ("sizes", "times", "errors", "kind", "words"),
    [
        ([], [], None, MissingDataError, "0 message sizes cannot carry a fit of alpha and beta"),
        ([8], [1.0], None, MissingDataError, "1 message size cannot carry a fit of alpha and beta"),
        ([8, 8, 8, 16], [1.0] * 4, None, MissingDataError, "2 message sizes cannot"),
        ([1, 2, 3], [1.0, 2.0], None, UsageError, "different lengths"),
        ([1, 2, 3], [1.0, 0.0, 2.0], None, UsageError, "times above zero"),
        ([1, 2, 3], [1.0, math.nan, 2.0], None, UsageError, "finite"),
        ([1, -2, 3], [1.0, 1.0, 2.0], None, UsageError, "finite"),
        ([1, 2, 3], [1.0, 1.0, 2.0], [0.1, -1, 0.1], UsageError, "not negative"),
        ([1, 2, 3], [1.0, 1.0, 2.0], [0.1], UsageError, "different lengths"),
    ],
)
def test_degenerate_input_is_refused(
    sizes: list[float], times: list[float], errors: list[float] | None, kind: type[StashtraceError], words: str
) -> None:
    with pytest.raises(kind, match=words) as error:
        fit_alpha_beta(sizes, times, errors)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("op", "ranks", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 8, 1.75),
        ("all_gather", 8, 7.0),
        ("reduce_scatter", 8, 0.875),
        ("all_to_all", 4, 0.75),
        ("broadcast", 8, 1.0),
        ("reduce", 8, 1.0),
        ("all_reduce", 1, 0.0),
    ],
)
def test_bus_factors(op: str, ranks: int, factor: float) -> None:
    assert bus_bytes(op, ranks, 1000) == pytest.approx(1000 * factor)
