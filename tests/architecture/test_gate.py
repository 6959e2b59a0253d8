"""Lint, format and types: the same commands as in .pre-commit-config.yaml, so that every clone is held to them."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys

import pytest
from source_tree import ROOT

GATE = {
    "lint": ("ruff", "check", "."),
    "format": ("ruff", "format", "--check", "--quiet", "."),
    "types": ("mypy",),  # strict, by pyproject.toml
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "types")) for name in GATE])
def test_gate(name: str) -> None:
    done = subprocess.run([sys.executable, "-m", *GATE[name]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(GATE[name])}\n{done.stdout[-4000:]}{done.stderr[-1000:]}"
