"""Texts behind codes, and the lists that some of them hold."""

from __future__ import annotations

import pytest

from stashtrace.schema.strings import ranks_of


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("0,1,7", [0, 1, 7]),
        ("3", [3]),
        ("", []),
        ("0,,1", []),
        ("/data/x,1", []),
        ("-1", []),
        ("²", []),
        ("0,16777216", []),
        ("0," + "9" * 5_000, []),
        ("16777215", [16777215]),
    ],
)
def test_ranks_of_a_list(text: str, ranks: list[int]) -> None:
    assert ranks_of(text) == ranks
