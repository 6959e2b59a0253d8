"""A sampler that shuffles a whole data set as each epoch begins: named as what the step thread waits for."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from builders import MS, TraceBuilder
from summary.scenes import verdicts

from stashtrace.schema.kinds import SpanKind

NAME = "sampler Shuffled (train.py:9)"


def test_the_sampler_is_named_not_the_making_of_batches() -> None:
    """In each twelfth step 300 ms of the wait are the sampler's, and each batch takes 1 ms to make."""
    build, at = TraceBuilder(), 0
    rank = build.rank(0)
    for step in range(60):
        shuffle = 300 * MS if step % 12 == 0 else 0
        if shuffle:
            rank.span(SpanKind.LIBRARY, at, at + shuffle, NAME)
        elif step % 12 == 5:  # the thread lost its CPU in it
            rank.span(SpanKind.LIBRARY, at, at + MS // 5, NAME)
        rank.batch_wait(step, at, at + shuffle + MS, worker=-1)
        rank.fetch(step, at + shuffle, at + shuffle + MS)
        at += shuffle + MS
        rank.phase("forward", at, at + 15 * MS).phase("optimizer", at + 15 * MS, at + 19 * MS)
        at += 20 * MS
    (said,) = [one for one in verdicts(build.trace()) if one.kind == "data"]
    (text,) = [text for text in said.evidence if NAME in text]
    assert "4 times in 55 steps, 300 ms each" in text
    assert not any("to make a batch" in text for text in said.evidence)
