"""Titles of the aligned form, where the column's own name would mislead."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io

from stashtrace.cli.print_tables import write_rows


def test_a_wait_that_a_rank_caused_is_not_called_a_caused_wait() -> None:
    stream = io.StringIO()
    write_rows([{"rank": 1, "caused_wait_ns": 5}], ["rank", "caused_wait_ns"], "table", stream)
    assert stream.getvalue().splitlines()[0] == "rank  wait caused"
    stream = io.StringIO()
    write_rows([{"rank": 1, "caused_wait_ns": 5}], ["rank", "caused_wait_ns"], "csv", stream)
    assert stream.getvalue().splitlines()[0] == "rank,caused_wait_ns"
