"""Jobs that stand still in a collective, for the tests of what is said of them."""

from __future__ import annotations

from builders import MS, S, TraceBuilder

from stashtrace.schema.trace import Trace


def started(ranks: int = 4) -> TraceBuilder:
    """Three all-reduces of all ranks, one every 10 ms."""
    build = TraceBuilder()
    build.group(range(ranks))
    for step in range(3):
        build.collective(dict.fromkeys(range(ranks), (step * 10 * MS, step * 10 * MS + MS)))
    return build


def pending(*ranks: int, at: int = 40 * MS) -> dict[int, tuple[int, ...]]:
    """Times of a collective that these ranks call and never leave."""
    return dict.fromkeys(ranks, (at, -1, -1))


def ended(build: TraceBuilder, at: int = 40 * S) -> Trace:
    """The trace, whose last record is a sample of rank 0."""
    return build.counter(0, "process_user_ns_total", {at: 1.0}).trace()
