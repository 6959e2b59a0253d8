"""torch and a GPU for tests that need them: looked for while tests are collected, torch imported when it is used.

Each worker collects all tests, and the import takes two seconds of a processor. Most tests only start jobs that use it.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from typing import Any

import pytest


class _Late:
    """A module that is imported when something of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest")):  # pytest looks at what a module holds while it collects
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


def needs_torch() -> Any:
    """Skip the module that calls this where there is no torch; return torch, not yet imported."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed", allow_module_level=True)
    return _Late("torch")


def needs_gpu() -> list[pytest.MarkDecorator]:
    """Return the marks of a module whose tests need a GPU that torch finds; without a driver, torch is not asked."""
    why = _why_no_gpu()
    return [pytest.mark.gpu, pytest.mark.skipif(bool(why), reason=why or "there is a GPU")]


def _why_no_gpu() -> str:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no driver: libcuda.so.1 cannot be loaded"
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    return "" if importlib.import_module("torch").cuda.is_available() else "torch finds no GPU here"
