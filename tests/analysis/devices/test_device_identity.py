"""The identity holds on ranks with devices too, whatever brackets, kernels and calls say, in whatever order."""

from __future__ import annotations

from budget_identity import budget, check_intervals, check_sums, relaxed, shuffled
from builders import TraceBuilder
from hypothesis import assume, given
from hypothesis import strategies as st

from stashtrace.analysis.stalls.hidden import hidden
from stashtrace.schema.kinds import (
    Awaited,
    Bracket,
    BracketFlag,
    CollectiveOp,
    CollectiveSource,
    DeviceCall,
    DeviceWork,
    WaitOp,
)
from stashtrace.schema.trace import Trace

LIMIT = 400_000  # ns: several times the threshold below which a lead means nothing
UNIT = 1_000
time = st.integers(0, LIMIT // UNIT).map(lambda n: n * UNIT)
interval = st.tuples(time, st.integers(0, 100).map(lambda n: n * UNIT)).map(lambda p: (p[0], p[0] + p[1]))
OPS = (CollectiveOp.ALL_REDUCE, CollectiveOp.BROADCAST, CollectiveOp.SEND, CollectiveOp.RECEIVE)
TABLES = ("device_brackets", "kernels", "device_calls", "collectives", "collective_details", "streams", "groups")
FLAGS = (0, 0, 0, BracketFlag.UNTIMED, BracketFlag.CAPTURED, BracketFlag.FAILED)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    build = TraceBuilder(hosts=draw(st.sampled_from([("a",), ("a", "b"), ("a", "a", "b")])))
    count = draw(st.integers(1, 3))
    streams = {}
    for number in range(count):
        rank = build.rank(number).lives(*sorted(draw(st.tuples(time, time))))
        gpu = rank.gpu(0, error_ns=draw(st.sampled_from([0, 500, 50_000])))
        streams[number] = [gpu.stream(name, compute=draw(st.booleans())) for name in ("a", "b", "c")]
        at, boundaries = 0, [0]
        for _ in range(draw(st.integers(0, 4))):
            length = draw(st.integers(2, 60)) * UNIT
            rank.phase("forward", at, at + length // 2)
            rank.phase("optimizer", at + length // 2, at + length)
            at += length
            boundaries.append(at)
        lead = 0
        for step, boundary in enumerate(boundaries):
            lead = max(lead + draw(st.integers(-20, 60)) * UNIT, 0)
            if draw(st.integers(0, 5)):
                streams[number][0].step(boundary + lead, step, host_ns=boundary)
    for _ in range(draw(st.integers(0, 5))):
        members = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=3, unique=True))
        times = {}
        for rank_number in members:
            (call, returned), (begin, end) = draw(interval), draw(interval)
            times[rank_number] = (call, returned, *draw(st.sampled_from([(begin, end), (begin, end), (-1, -1)])))
        build.device_collective(
            times,
            streams={r: draw(st.sampled_from(streams[r])) for r in members},
            source=draw(st.sampled_from(list(CollectiveSource))),
            bracket=draw(st.booleans()),
            network_ns=draw(st.sampled_from([-1, 0, 5_000])),
            op=draw(st.sampled_from(OPS)),
            group=draw(st.sampled_from([7, 9])),
            sequence=draw(st.integers(0, 3)),
            peer_rank=draw(st.integers(-1, 1)),
        )
    for number in range(count):
        rank = build.rank(number)
        for _ in range(draw(st.integers(0, 8))):
            begin, end = draw(st.one_of(interval, st.just((-1, -1))))
            draw(st.sampled_from(streams[number])).bracket(
                draw(st.sampled_from([k for k in Bracket if k != Bracket.STEP])),
                begin,
                end,
                host=draw(interval),
                awaited=draw(st.sampled_from(list(Awaited))),
                awaited_ns=draw(st.one_of(st.just(-1), time)),
                flags=int(draw(st.sampled_from(FLAGS))),
                copy=draw(st.integers(0, 6)),
                correlation=draw(st.integers(0, 6)),
            )
        for _ in range(draw(st.integers(0, 6))):
            draw(st.sampled_from(streams[number])).kernel(
                *draw(interval),
                work=draw(st.sampled_from(list(DeviceWork))),
                launch=draw(st.one_of(st.none(), interval)),
                copy=draw(st.integers(0, 6)),
            )
        for _ in range(draw(st.integers(0, 3))):
            stream = draw(st.sampled_from([*streams[number], None]))
            rank.gpu(0).call(draw(st.sampled_from(list(DeviceCall))), *draw(interval), stream=stream)
        for _ in range(draw(st.integers(0, 2))):
            rank.wait(draw(st.sampled_from(list(WaitOp))), *draw(interval))
            rank.batch_wait(draw(st.integers(-1, 2)), *draw(interval), worker=0)
            rank.worker(0).fetch(draw(st.integers(-1, 2)), *draw(interval))
            rank.phase("checkpoint", *draw(interval))
    return build.trace()


@given(traces(), st.integers(0, 1000))
@relaxed(150)
def test_kinds_sum_to_the_wall_time_within_their_bounds(trace: Trace, seed: int) -> None:
    rows = budget(trace)
    assert budget(shuffled(trace, TABLES, seed)) == rows, "the order of rows matters"
    assume(rows)
    check_sums(trace, rows)
    check_intervals(trace, rows)
    found = hidden(trace)
    names = ("hidden_copy", "hidden_communication", "host_paced", "graph_opaque", "queued", "estimated")
    for name in names:
        assert (found[f"{name}_ns"] >= 0).all()
        assert (found[f"{name}_ns"] <= found["wall_ns"]).all()
