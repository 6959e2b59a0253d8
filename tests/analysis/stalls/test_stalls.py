"""Each kind of stall receives exactly the time that the drawing shows. One character is one millisecond."""

from __future__ import annotations

import pytest
from analysis.table_text import expected, stall_text
from builders import MS, TraceBuilder, trace_from_text

from stashtrace.analysis.registry import analyze
from stashtrace.analysis.stalls.budget import bounds_of_groups, stalls
from stashtrace.analysis.steps.steps import steps
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.schema.kinds import CollectiveOp, IoOp, WaitOp
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

CASES = {
    "fetch: the worker of the awaited batch is blocked in storage": (
        """
        rank 0 loader : 000000
        rank 0 phase  : ......FBBO
        rank 0 worker 0: 000000
        rank 0 worker 0 io: .bbbc.
        """,
        "0 0: compute 4, fetch 3, prep 3",
    ),
    "prep: it decodes, hand-off: the batch is made": (
        """
        rank 0 loader : 00000000
        rank 0 phase  : ........FBBO
        rank 0 worker 0: 00000...
        """,
        "0 0: compute 4, prep 5, handoff 3",
    ),
    "the worker still works on an earlier batch: its state at that instant decides": (
        """
        rank 0 loader : 00...22222222...
        rank 0 phase  : ..FBO........FBO
        rank 0 worker 0: 00222222.22222
        rank 0 worker 1: 1111111111
        rank 0 worker 0 io: .....bb.....
        rank 0 worker 1 io: ..bbbbbbbb..
        """,
        """
        0 0: compute 3, prep 2
        0 1: compute 3, fetch 2, prep 6
        """,
    ),
    "num_workers=0: the main process is the worker, and hands nothing over": (
        """
        rank 0 loader : 000000
        rank 0 fetch  : .0000.
        rank 0 io     : ..bb..
        rank 0 phase  : ......FBO
        """,
        "0 0: compute 3, fetch 2, prep 4",
    ),
    "receives of a worker inside its fetch are fetch, a pipe is not, nor is a receive elsewhere": (
        """
        rank 0 loader : 000000000
        rank 0 phase  : .........FBO
        rank 0 worker 0: .0000000.
        rank 0 worker 0 io: rrrr.qq..
        """,
        "0 0: compute 3, fetch 3, prep 5, handoff 1",
    ),
    "a batch wait with a collective in flight waits for the batch": (
        """
        rank 0 loader : ....1111
        rank 0 wait   : ....pppp
        rank 0 phase  : FBBO....FBO
        rank 0 coll   : ..000000
        rank 1 coll   : ..000000
        rank 1 phase  : FBBO
        rank 0 worker 0: 11111111
        """,
        """
        0 0: compute 4
        0 1: compute 3, prep 4
        1 0: compute 4
        """,
    ),
    "straggler until the last rank calls, then the link inside one host": (
        """
        rank 0 phase  : FFBBBBBBBBO
        rank 0 coll   : ...000000..
        rank 0 block  : ....00000..
        rank 1 phase  : FFFBBBBBBBO
        rank 1 coll   : ......000..
        rank 1 block  : .......00..
        """,
        """
        0 0: compute 6, straggler 2 <1, interconnect 3
        1 0: compute 9, interconnect 2
        """,
    ),
    "DDP waits inside C++: a blocking call while a collective is in flight; without one it is an OpenMP barrier": (
        """
        rank 0 phase  : FFBBBBBBBBO
        rank 0 wait   : .f...ccccc.
        rank 0 coll   : ....00000..
        rank 1 phase  : FFBBBBBBBBO
        rank 1 coll   : ....00000..
        """,
        """
        0 0: compute 7, interconnect 4
        1 0: compute 11
        """,
    ),
    "the oldest incomplete collective blocks, even when the wait is for a later one": (
        """
        rank 0 phase  : FBBBBBBBBBO
        rank 0 coll   : .00000.....
        rank 0 coll   : ..1111111..
        rank 0 block  : ..1111111..
        rank 1 phase  : FBBBBBBBBBO
        rank 1 coll   : ....00.....
        rank 1 coll   : ..1111111..
        """,
        """
        0 0: compute 4, straggler 2 <1, interconnect 5
        1 0: compute 11
        """,
    ),
    "a sleep is other on the rank that sleeps and straggler on the one that waits": (
        """
        rank 0 phase  : FBBBBBBO
        rank 0 cpu    : xxx...xx
        rank 0 coll   : ..0000..
        rank 0 wait   : ...ccc..
        rank 1 phase  : F...BBBO
        rank 1 cpu    : x...xxxx
        rank 1 coll   : .....0..
        """,
        """
        0 0: compute 5, straggler 2 <1, interconnect 1
        1 0: compute 5, other 3
        """,
    ),
    "a sleep inside forward or an annotation is other all the same": (
        """
        rank 0 phase  : FFFFB....BO
        rank 0 user   : .....aaaa.
        rank 0 wait   : .ss...s...
        """,
        "0 0: compute 5 [5..8], python 3 [0..3], other 3",
    ),
    "checkpoint on the step thread": (
        """
        rank 0 phase  : FBOFB..CCCO
        rank 0 cpu    : xxxxxxx...x
        """,
        """
        0 0: compute 3
        0 1: compute 3 [3..5], checkpoint 3, python 2 [0..2]
        """,
    ),
    "an fsync or rename of a file that the checkpoint wrote belongs to it, other files do not": (
        """
        rank 0 phase  : FBOFBCCC..|....O
        rank 0 cpu    : xxxxxxxx......x
        rank 0 io path=/model.tmp : ......ww|ww
        rank 0 io path=/log : ...........ww
        """,
        """
        0 0: compute 3
        0 1: compute 3, checkpoint 5, other 4
        """,
    ),
    "a gap that ran is python, one that was blocked is other, run-queue time is not blocked": (
        """
        rank 0 phase  : F..B....O...FBO
        rank 0 cpu    : xxxxq...xqqqxxx
        """,
        """
        0 0: compute 3 [3..6], python 3 [0..3], other 3
        0 1: compute 3 [3..6], python 3 [0..3]
        """,
    ),
    "off the CPU in a phase, the thread may wait for others that compute for it, or for a lock": (
        """
        rank 0 phase  : FFFFBBBBOO
        rank 0 cpu    : xx..xqq.xx
        rank 0 wait   : ..cc......
        """,
        "0 0: compute 10 [7..10], other 0 [0..3]",
    ),
    "a wait for the GIL is other wherever it stands": (
        """
        rank 0 phase  : FFFFBB..OO
        rank 0 cpu    : x...xx..xx
        rank 0 wait   : .ggg..g...
        """,
        "0 0: compute 5, other 5",
    ),
    "a gap without clocks is python, with alternatives": (
        """
        rank 0 phase  : F..BO
        """,
        "0 0: compute 3 [3..5], python 2 [0..2], other 0 [0..2]",
    ),
    "the CPU time of a batch wait does not excuse the rest of its gap": (
        """
        rank 0 loader : 0000
        rank 0 worker 0: 0
        rank 0 phase  : ......FO
        rank 0 cpu    : .xxx..xx
        """,
        "0 0: compute 2, prep 1, handoff 3, other 2",
    ),
    "the step thread reads files itself: fetch; it writes: other": (
        """
        rank 0 phase  : F....BO
        rank 0 io     : .bb.w..
        rank 0 cpu    : x..x.xx
        """,
        "0 0: compute 3 [3..4], fetch 2, python 1 [0..1], other 1",
    ),
    "broadcast: receivers wait for the root, the root for nobody": (
        """
        rank 0 phase  : F..BBBBBO
        rank 0 cpu    : xxxxxxxxx
        rank 0 coll op=broadcast root=0: ....0....
        rank 1 phase  : FBBBBBBBO
        rank 1 coll op=broadcast root=0: .0000....
        rank 1 block  : ..000....
        rank 2 phase  : FBBBBBBBO
        rank 2 coll op=broadcast root=0: ......0..
        rank 2 block  : ......00.
        """,
        """
        0 0: compute 7 [7..9], python 2 [0..2]
        1 0: compute 6, straggler 2 <0, interconnect 1
        2 0: compute 7, interconnect 2
        """,
    ),
    "reduce: only the root waits": (
        """
        rank 0 phase  : FBBBBBO
        rank 0 coll op=reduce root=0: .0000..
        rank 0 block  : .0000..
        rank 1 phase  : FBBBBBO
        rank 1 coll op=reduce root=0: ...00..
        rank 1 block  : ...00..
        """,
        """
        0 0: compute 3, straggler 2 <1, interconnect 2
        1 0: compute 5, interconnect 2
        """,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_drawn(name: str) -> None:
    drawing, budget = CASES[name]
    assert stall_text(trace_from_text(drawing)) == expected(budget)


def test_network_between_hosts() -> None:
    drawing = """
        rank 0 phase  : FBBBBO
        rank 0 coll   : .000..
        rank 0 block  : ..00..
        rank 1 phase  : FBBBBO
        rank 1 coll   : .000..
    """
    assert stall_text(trace_from_text(drawing, hosts=("a", "b"))) == "0 0: compute 4, network 2\n1 0: compute 6"


def test_network_with_neighbours_on_a_host_is_an_interval() -> None:
    drawing = """
        rank 0 phase  : FBBBBO
        rank 0 coll   : .000..
        rank 0 block  : ..00..
        rank 1 coll   : .000..
        rank 2 coll   : .000..
    """
    trace = trace_from_text(drawing, hosts=("a", "a", "b"))
    assert stall_text(trace) == "0 0: compute 4, network 2 [0..2], interconnect 0 [0..2]"


def test_point_to_point() -> None:
    build = TraceBuilder()
    for number in (0, 1):
        build.rank(number).phase("forward", 0, 9 * MS).phase("optimizer", 9 * MS, 10 * MS)
    build.group([0, 1])
    build.collective({0: (4 * MS, 6 * MS)}, op=CollectiveOp.SEND, peer_rank=1, sequence=0)
    key = build.collective({1: (1 * MS, 6 * MS)}, op=CollectiveOp.RECEIVE, peer_rank=0, sequence=5)[1]
    build.rank(1).collective_wait(key, 2 * MS, 6 * MS)
    assert stall_text(build.trace()) == "0 0: compute 10\n1 0: compute 6, straggler 2 <0, interconnect 2"


def test_threads_of_a_worker_read_for_it() -> None:
    build = TraceBuilder()
    rank = build.rank(0).batch_wait(0, 0, 10 * MS, worker=0)
    rank.phase("forward", 10 * MS, 11 * MS).phase("optimizer", 11 * MS, 12 * MS)
    worker = rank.worker(0).fetch(0, 0, 10 * MS, cpu=4 * MS, runqueue=0)
    worker.thread("reader").io(2 * MS, 8 * MS, blocked=True)
    assert stall_text(build.trace()) == "0 0: compute 2, fetch 6 [0..6], prep 4 [4..10]"


def test_threads_of_a_worker_read_ahead_while_it_decodes() -> None:
    build = TraceBuilder()
    rank = build.rank(0).batch_wait(0, 0, 10 * MS, worker=0)
    rank.phase("forward", 10 * MS, 11 * MS).phase("optimizer", 11 * MS, 12 * MS)
    worker = rank.worker(0).fetch(0, 0, 10 * MS, cpu=9 * MS, runqueue=1 * MS)
    worker.thread("reader").io(2 * MS, 8 * MS, blocked=True)
    assert stall_text(build.trace()) == "0 0: compute 2, fetch 0 [0..6], prep 10 [4..10]"


def test_page_faults_of_a_mapped_file_are_an_estimate() -> None:
    build = TraceBuilder()
    rank = build.rank(0).batch_wait(0, 5 * MS, 10 * MS, worker=0)
    rank.phase("forward", 10 * MS, 11 * MS).phase("optimizer", 11 * MS, 12 * MS)
    rank.worker(0).fetch(0, 0, 10 * MS, cpu=5 * MS, runqueue=1 * MS, major_faults=9)
    # 4 of 10 ms off the CPU, half of the batch was waited for: 2, and at most 4.
    assert stall_text(build.trace()) == "0 0: compute 2, fetch 2 [0..4], prep 3 [1..5]"


def test_killed_worker_leaves_a_doubt() -> None:
    drawing = """
        rank 0 loader : 000..222222
        rank 0 phase  : ...FO......FO
        rank 0 worker 0: 000
        rank 0 worker 0 io: .......bb
    """
    assert stall_text(trace_from_text(drawing)).endswith("0 1: compute 2, fetch 2, prep 4 [0..4], handoff 0 [0..4]")


@pytest.mark.parametrize(("worker", "handoff"), [(0, ", handoff 0 [0..3]"), (-1, "")], ids=["a worker", "itself"])
def test_unknown_maker_is_an_interval(worker: int, handoff: str) -> None:
    build = TraceBuilder()
    build.rank(0).batch_wait(0, 0, 3 * MS, worker=worker).phase("forward", 3 * MS, 4 * MS)
    build.rank(0).phase("optimizer", 4 * MS, 5 * MS)
    assert stall_text(build.trace()) == f"0 0: compute 2, fetch 0 [0..3], prep 3 [0..3]{handoff}"


def test_collective_never_entered_by_a_rank() -> None:
    drawing = """
        rank 0 phase  : FBO
        rank 0 coll   : ....0>
        rank 0 life   : xxxxxxxxxx
        rank 1 phase  : FBO
        rank 1 life   : xxxxxxxxxx
    """
    text = stall_text(trace_from_text(drawing), outside=True)
    assert "0 -1: compute 0 [0..1], straggler 6 [0..6] <1, python 1 [0..1], other 0 [0..7]" in text.splitlines()


def test_missing_rank_widens_the_link() -> None:
    build = TraceBuilder()
    build.rank(0).phase("forward", 0, 9 * MS).phase("optimizer", 9 * MS, 10 * MS)
    key = build.collective({0: (1 * MS, 6 * MS)})[0]
    build.rank(0).collective_wait(key, 2 * MS, 6 * MS)
    build.rows["groups"].clear()
    build._group_options[0xABCDEF] = {}
    build.add(
        "groups",
        process_id=0,
        rank=0,
        group_hash=0xABCDEF,
        group_size=2,
        crosses_hosts=0,
        members_code=build.strings.code("0,1"),
    )
    assert stall_text(build.trace()) == "0 0: compute 6, straggler 0 [0..4], interconnect 4 [0..4]"


def test_time_outside_steps_is_a_separate_row() -> None:
    drawing = """
        rank 0 phase  : LL.FBO.CC..
        rank 0 cpu    : xxxxxxxxxx.
        rank 0 life   : xxxxxxxxxxx
    """
    assert stall_text(trace_from_text(drawing), outside=True) == expected("""
        0 -1: compute 0 [0..4], checkpoint 4, python 4 [0..4], other 0 [0..2]
        0 0: compute 3
    """)


def test_sums_over_steps() -> None:
    trace = trace_from_text("""
        rank 0 phase  : FB|OFB|O
        rank 0 coll   : .0..1...
        rank 0 block  : .0..1...
        rank 1 phase  : FB|OFB|O
        rank 1 coll   : .0..1...
    """)
    rows = {(r["rank"], r["kind"]): r for r in stalls(trace, by="rank").rows()}
    assert rows[0, "interconnect"]["stall_ns"] == 2 * MS
    assert rows[0, "interconnect"]["share_ratio"] == pytest.approx(1 / 3)
    assert rows[1, "compute"]["steps_count"] == 2
    total = {r["kind"]: r["stall_ns"] for r in stalls(trace, by="run").rows()}
    assert total == {"compute": 10 * MS, "interconnect": 2 * MS, "other": 0}


def test_late_rank_of_the_sum_is_the_one_waited_for_longest() -> None:
    build = TraceBuilder()
    for number in range(3):
        build.rank(number).phase("forward", 0, 19 * MS).phase("optimizer", 19 * MS, 20 * MS)
    for late, begin, length in ((1, 0, 2), (2, 5, 1), (1, 10, 2)):
        calls = {r: ((begin + (length if r == late else 0)) * MS, (begin + 3) * MS) for r in range(3)}
        build.rank(0).collective_wait(build.collective(calls)[0], begin * MS, (begin + 3) * MS)
    row = next(r for r in stalls(build.trace(), by="rank").rows() if r["kind"] == "straggler")
    assert (row["rank"], row["stall_ns"], row["cause_rank"]) == (0, 5 * MS, 1)


def test_time_in_the_call_that_starts_a_collective_is_the_links_with_a_doubt() -> None:
    build = TraceBuilder()
    for number in range(2):
        build.rank(number).phase("backward", 0, 10 * MS).phase("optimizer", 10 * MS, 11 * MS)
    build.collective({0: (2 * MS, 6 * MS, 9 * MS), 1: (3 * MS, 3 * MS, 9 * MS)})
    build.rank(0).wait(WaitOp.COND_WAIT, 6 * MS, 9 * MS)
    assert stall_text(build.trace()).splitlines()[0] == (
        "0 0: compute 4 [4..8], straggler 1 [0..1] <1, interconnect 6 [3..6]"
    )


def test_a_step_of_no_length_has_no_bounds() -> None:
    trace = trace_from_text("rank 0 phase : FBOFBO")
    rows = steps(trace)
    rows = Table(rows.schema, {**{name: rows[name] for name in rows.schema.names}, "end_ns": rows["begin_ns"]})
    assert bounds_of_groups(trace, rows, {"compute": ("compute",)}) == {0: {"compute": (0, 0)}}


def test_nothing_to_attribute() -> None:
    with pytest.raises(MissingDataError) as error:
        analyze(Trace(StringPool(), {}), "stalls")
    assert "stashtrace.step()" in (error.value.hint or "")
    with pytest.raises(UsageError, match="by 'phase'"):
        stalls(trace_from_text("rank 0 phase: FBO"), by="phase")  # type: ignore[arg-type]


def test_opens_on_the_step_thread_count_as_reads() -> None:
    build = TraceBuilder()
    rank = build.rank(0).phase("forward", 0, 5 * MS).phase("optimizer", 5 * MS, 6 * MS)
    rank.io(1 * MS, 3 * MS, op=IoOp.OPEN, blocked=True)
    assert stall_text(build.trace()) == "0 0: compute 4, fetch 2"


def test_creating_an_iterator_is_the_step_threads_work() -> None:
    build = TraceBuilder()
    rank = build.rank(0).batch_wait(-1, 0, 4 * MS, worker=-1).io(1 * MS, 2 * MS, blocked=True)
    rank.batch_wait(0, 5 * MS, 6 * MS, worker=0).phase("optimizer", 6 * MS, 7 * MS)
    rank.worker(0).fetch(0, 2 * MS, 6 * MS)
    assert stall_text(build.trace()) == "0 0: compute 1 [1..2], fetch 1, prep 4, python 1 [0..1], other 0 [0..1]"


def test_annotation_around_the_loop_does_not_vouch_for_what_a_step_did() -> None:
    def gap(annotated: tuple[int, int]) -> tuple[int, int]:
        build = TraceBuilder()
        rank = build.rank(0).annotate("part", annotated[0] * MS, annotated[1] * MS)
        for step in range(3):
            begin = step * 10 * MS
            rank.phase("forward", begin, begin + 6 * MS).phase("optimizer", begin + 9 * MS, begin + 10 * MS)
        found = stalls(build.trace()).to_pandas()
        python, other = (found[(found["step"] == 1) & (found["kind"] == kind)].iloc[0] for kind in ("python", "other"))
        return int(python["stall_ns"]), int(other["high_ns"])

    assert gap((16, 19)) == (3 * MS, 0)
    assert gap((1, 29)) == (3 * MS, 3 * MS)


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
