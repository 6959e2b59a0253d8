"""Fixtures of tests that run real processes under the shipped library."""

from __future__ import annotations

from pathlib import Path

import pytest
from native.native_build import build

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def record_actor(request: pytest.FixtureRequest) -> Path:
    """The program of tests/native/record_actor.cpp, built once and kept in pytest's cache."""
    try:
        folder = build(Path(request.config.cache.mkdir("native-plain")), "record_actor")  # type: ignore[union-attr]
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    return folder / "bin" / "record_actor"
