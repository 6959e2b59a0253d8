"""The examples in stashtrace.text.units and stashtrace.text.prose are right."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

from stashtrace.text import prose, units


@pytest.mark.parametrize("module", [units, prose])
def test_examples(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted >= 2
    assert result.failed == 0


def test_boundaries_never_print_four_digits() -> None:
    assert [units.duration_text(n) for n in (999, 999_600, 999_499, 999_600_000)] == [
        "999 ns",
        "1.00 ms",
        "999 us",
        "1.00 s",
    ]
    assert units.bytes_text(999_600) == "1.00 MB"
