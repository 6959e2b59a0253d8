"""Time in which a file is opened: of one that is written it is no wait for data."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from builders import MS, TraceBuilder

from stashtrace.analysis.registry import analyze
from stashtrace.schema.kinds import IoOp


def spent_ms(op: IoOp, *, phase: str = "") -> dict[str, float]:
    """Return the kinds of a step in which 7 ms go to opening a file and 3 ms to a call on it, in a phase or not."""
    build = TraceBuilder()
    rank = build.rank(0)
    for step in range(3):
        at, ran = step * 20 * MS, step * 10 * MS
        rank.phase("forward", at, at + 8 * MS, cpu=(ran, ran + 8 * MS), runqueue=(0, 0))
        rank.io(at + 8 * MS, at + 15 * MS, op=IoOp.OPEN, path="/file", blocked=True)
        rank.io(at + 15 * MS, at + 18 * MS, op=op, path="/file", blocked=True)
        if phase:
            rank.phase(phase, at + 15 * MS, at + 18 * MS, cpu=(ran + 8 * MS, ran + 8 * MS), runqueue=(0, 0))
        rank.phase("optimizer", at + 18 * MS, at + 20 * MS, cpu=(ran + 8 * MS, ran + 10 * MS), runqueue=(0, 0))
    table = analyze(build.trace(), "stalls")
    rows = table.take(table["step"] == 1)
    return {k: ns / MS for k, ns in zip(rows["kind"].tolist(), rows["stall_ns"].tolist(), strict=True) if ns}


@pytest.mark.parametrize(
    ("op", "phase", "expected"),
    [
        (IoOp.READ, "", {"compute": 10, "fetch": 10}),
        (IoOp.WRITE, "", {"compute": 10, "other": 10}),
        (IoOp.WRITE, "checkpoint", {"compute": 10, "checkpoint": 10}),
    ],
    ids=("read", "log", "checkpoint"),
)
def test_an_open_is_what_the_file_is_opened_for(op: IoOp, phase: str, expected: dict[str, float]) -> None:
    assert spent_ms(op, phase=phase) == expected
