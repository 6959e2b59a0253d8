"""The kinds of a step sum to its wall time, whatever the trace holds; the order of its rows does not matter."""

from __future__ import annotations

from budget_identity import budget, check_intervals, check_sums, relaxed, shuffled
from builders import TraceBuilder
from hypothesis import assume, given
from hypothesis import strategies as st

from stashtrace.analysis.steps.steps import steps
from stashtrace.schema.kinds import CollectiveOp, IoFlag, IoOp, PhaseFlag, WaitOp
from stashtrace.schema.trace import Trace

LIMIT = 120
PHASES = ("forward", "backward", "optimizer", "update_skipped", "checkpoint", "checkpoint_load")
FLAGS = (PhaseFlag.TRAINING, PhaseFlag.NO_GRAD, PhaseFlag.NESTED, PhaseFlag.BACKGROUND)
IO_FLAGS = (IoFlag(0), IoFlag.BLOCKED, IoFlag.BLOCK_INPUT, IoFlag.BLOCKED | IoFlag.SOCKET, IoFlag.BLOCKED | IoFlag.PIPE)
OPS = (CollectiveOp.ALL_REDUCE, CollectiveOp.BROADCAST, CollectiveOp.REDUCE, CollectiveOp.SEND, CollectiveOp.RECEIVE)
TABLES = ("tracks", "spans", "phases", "batches", "waits", "collectives", "collective_waits", "groups", "io")

time = st.integers(0, LIMIT)
interval = st.tuples(time, st.integers(0, 30)).map(lambda p: (p[0], p[0] + p[1]))
stamps = st.one_of(st.none(), st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda p: (p[0], p[0] + p[1])))


@st.composite
def tidy_phases(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """Phases one after the other, as a real loop has them."""
    rows, at = [], draw(st.integers(0, 5))
    for kind in draw(st.lists(st.sampled_from(PHASES[:4]), max_size=12)):
        length = draw(st.integers(1, 8))
        rows.append((kind, at, at + length))
        at += length + draw(st.integers(0, 4))
    return rows


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    build = TraceBuilder(hosts=draw(st.sampled_from([("a",), ("a", "b"), ("a", "a", "b")])))
    count = draw(st.integers(1, 3))
    keys: list[int] = []
    for _ in range(draw(st.integers(0, 5))):
        members = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=3, unique=True))
        times = {}
        for rank in members:
            call, end = draw(interval)
            times[rank] = (call, draw(st.sampled_from([end, end, -1])))
        made = build.collective(
            times,
            op=draw(st.sampled_from(OPS)),
            group=draw(st.sampled_from([7, 9])),
            sequence=draw(st.integers(0, 3)),
            peer_rank=draw(st.integers(-1, 1)),
        )
        keys += made.values()
    for number in range(count):
        rank = build.rank(number).lives(*sorted(draw(st.tuples(time, time))))
        for kind, begin, end in draw(tidy_phases()):
            rank.phase(
                kind, begin, end, cpu=draw(stamps), runqueue=draw(stamps), flags=draw(st.sampled_from(FLAGS[:2]))
            )
        for _ in range(draw(st.integers(0, 3))):
            rank.phase(
                draw(st.sampled_from(PHASES)), *draw(interval), cpu=draw(stamps), flags=draw(st.sampled_from(FLAGS))
            )
        for _ in range(draw(st.integers(0, 4))):
            worker = draw(st.integers(-1, 1))
            rank.batch_wait(draw(st.integers(-1, 3)), *draw(interval), worker=worker, cpu=draw(st.integers(-1, 9)))
        for _ in range(draw(st.integers(0, 5))):
            maker = rank.worker(draw(st.integers(0, 1))) if draw(st.booleans()) else rank
            maker.fetch(
                draw(st.integers(-1, 3)),
                *draw(interval),
                cpu=draw(st.integers(-1, 20)),
                runqueue=draw(st.integers(-1, 5)),
                major_faults=draw(st.integers(0, 2)),
            )
            target = maker.thread("reader") if draw(st.booleans()) else maker
            target.io(
                *draw(interval),
                op=draw(st.sampled_from([IoOp.READ, IoOp.RECV, IoOp.WRITE])),
                flags=draw(st.sampled_from(IO_FLAGS)),
            )
        for _ in range(draw(st.integers(0, 4))):
            rank.wait(draw(st.sampled_from(list(WaitOp))), *draw(interval))
        for _ in range(draw(st.integers(0, 3)) if keys else 0):
            rank.collective_wait(draw(st.sampled_from([*keys, -1])), *draw(interval))
        if draw(st.booleans()):
            rank.annotate("loss", *draw(interval))
        for mark in draw(st.one_of(st.just([]), st.lists(time, max_size=4))):
            rank.step_mark(mark)
    return build.trace()


@given(traces(), st.integers(0, 1000))
@relaxed(200)
def test_kinds_sum_to_the_wall_time_and_their_intervals_tile_it(trace: Trace, seed: int) -> None:
    rows = budget(trace)
    assert budget(shuffled(trace, TABLES, seed)) == rows, "the order of rows matters"
    assume(rows)
    check_sums(trace, rows)
    check_intervals(trace, rows)
    # So does the time outside the steps: the life of a rank, at least as long as its steps.
    lives: dict[int, tuple[int, int]] = {}
    inside: dict[int, int] = {}
    processes = {r["process_id"]: r for r in trace.processes.rows()}
    for row in steps(trace).rows():
        process = processes[row["process_id"]]
        low, high = lives.get(row["rank"], (process["begin_ns"], process["end_ns"]))
        lives[row["rank"]] = (min(low, row["begin_ns"]), max(high, row["end_ns"]))
        inside[row["rank"]] = inside.get(row["rank"], 0) + row["end_ns"] - row["begin_ns"]
    for rank, (low, high) in lives.items():
        outside = [r for r in rows if (r["rank"], r["step"]) == (rank, -1)]
        assert sum(r["stall_ns"] for r in outside) == high - low - inside[rank]
        assert all(r["high_ns"] <= high - low - inside[rank] for r in outside)
