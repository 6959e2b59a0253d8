"""The forecast of `whatif-cache` against a real page cache that is too small: hits as the law says, step within 10 %.

Rates and step are of one run. Forecasts for other runs need many repetitions where the rate of storage changes from run
to run: those are benchmarks/bench_whatif_cache.py's.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from installed import needs_torch
from measurements import Measurements

import stashtrace
from ground_truth import cached_share, machine
from stashtrace.lab.cache_forecast import Inputs, cache_forecast, inputs_of

needs_torch()

pytestmark = [pytest.mark.truth, pytest.mark.torch, pytest.mark.slow, pytest.mark.root]

CACHE_BYTES, EPOCHS = 400_000_000, 4
TOLERANCE_RATIO = 0.10


def test_a_page_cache_that_is_too_small(tmp_path: Path) -> None:
    data = tmp_path / "images"
    cached_share.write_images(data)
    os.sync()
    measured = Measurements(lambda folder: in_little_memory(data, folder), tmp_path, most=4)
    measured.agree(as_forecast)


def in_little_memory(data: Path, folder: Path) -> tuple[cached_share.Truth, Inputs]:
    """What the script's clock says, and what its run gives to the forecast."""
    folder.mkdir()
    try:
        truth = cached_share.in_little_memory(data, folder, CACHE_BYTES, workers=1, epochs=EPOCHS)
    except machine.Missing as missing:
        pytest.skip(str(missing))
    return truth, inputs_of(stashtrace.analyze(stashtrace.load(folder / "run"), "loader_rates"))


def as_forecast(measured: tuple[cached_share.Truth, Inputs]) -> None:
    truth, inputs = measured
    best, worst = (next(iter(cache_forecast(inputs, [truth.resident], policy).rows())) for policy in ("minio", "lru"))
    # The kernel's lists are nearly least recently used: far below the share that is held.
    assert worst["hit_ratio"] - 0.03 <= inputs.measured_hit_ratio <= 0.7 * best["hit_ratio"]
    assert best["step_ns"] * (1 - TOLERANCE_RATIO) <= truth.step_ns <= worst["step_ns"] * (1 + TOLERANCE_RATIO)
