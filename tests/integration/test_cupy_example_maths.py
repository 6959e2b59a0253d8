"""The CuPy example's arithmetic, with NumPy in CuPy's place: what needs a device is in tests/gpu."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_cupy.py"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    distributed = ModuleType("cupyx.distributed")
    distributed.init_process_group = None  # type: ignore[attr-defined]
    for name, module in (("cupy", np), ("cupyx", ModuleType("cupyx")), ("cupyx.distributed", distributed)):
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("train_cupy", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_gradients_are_those_of_the_loss(example: Any) -> None:
    random = np.random.default_rng(0)
    weights = [random.normal(size=(6, 5)), random.normal(size=(5, 3))]
    images, labels = random.normal(size=(4, 6)), np.array([0, 2, 1, 2])
    slopes, _ = example.gradients(weights, images, labels)
    for weight, slope in zip(weights, slopes, strict=True):
        for at in np.ndindex(weight.shape):
            kept, losses = weight[at], []
            for change in (1e-6, -1e-6):
                weight[at] = kept + change
                losses.append(example.gradients(weights, images, labels)[1])
            weight[at] = kept
            assert slope[at] == pytest.approx((losses[0] - losses[1]) / 2e-6, abs=1e-5)


def test_it_learns(example: Any) -> None:
    (images, labels), *_ = example.batches(1, 64, seed=1)
    random = np.random.default_rng(2)
    weights = [random.normal(size=(example.FEATURES, 32)) / 32, random.normal(size=(32, example.CLASSES)) / 6]
    losses = []
    for _ in range(15):
        slopes, loss = example.gradients(weights, images, labels)
        losses.append(float(loss))
        for weight, slope in zip(weights, slopes, strict=True):
            weight -= 0.05 * slope
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 0, 1)),
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}, (3, 1, 4)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 1, 2)),
        ({"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8"}, (5, 1, 8)),
    ],
)
def test_ranks_of_launchers(
    example: Any, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: tuple[int, int, int]
) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert example.rank_of_environment() == expected
