"""What stands next to the budget: hidden work, contention, matched collectives, files, evidence, two runs compared."""

from __future__ import annotations

import inspect
import re

import pytest
from builders import MS, S, TraceBuilder, trace_from_text

from stashtrace.analysis.registry import ANALYSES, analyze, find
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.schema.events import ALIGNMENT
from stashtrace.schema.kinds import CollectiveOp, IoOp
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

TWO_RANKS = """
    rank 0 loader : 00........11
    rank 0 phase  : ..FFBBBBOO..FFBBBBO.
    rank 0 wait   : ......cc...........
    rank 0 coll   : .....000.......111..
    rank 0 block  : ...............111..
    rank 0 gc     : ...x...............
    rank 0 background: ...CCC.............
    rank 0 worker 0: 00..11111111
    rank 1 phase  : FFFFBBBBOOFFFFBBBBBO
    rank 1 coll   : ......00........11..
    rank 1 block  : ......00............
"""


@pytest.mark.parametrize("name", [n for n, _, _ in ANALYSES])
def test_docstrings_name_the_table(name: str) -> None:
    build = TraceBuilder()
    rank = build.rank(0).phase("forward", 0, 5 * MS).phase("optimizer", 5 * MS, 6 * MS).io(0, MS, offset_bytes=0)
    rank.batch_wait(0, 0, 1, worker=0).worker(0).fetch(0, 0, MS)
    build.collective({0: (1 * MS, 2 * MS)})
    build.collective({0: (2 * MS, 3 * MS)}, op=CollectiveOp.SEND, peer_rank=0)
    for way in ("transmit", "receive"):
        build.counter(0, f"net_{way}_bytes_total.eth0", {0: 0.0, 3 * MS: 1e6, 6 * MS: 2e6})
    rank.gpu(0).stream("compute", compute=True).kernel(2 * MS, 3 * MS, launch=(0, MS))
    build.add("stacks", track_id=rank.track_id, end_ns=MS, name_code=build.strings.code("fetch at train.py"))
    build.add("execution_nodes", process_id=rank.process_id, name_code=build.strings.code("aten::mm"), op_code=-1)
    document = " ".join((inspect.getdoc(find(name)) or "").split())
    table = analyze(build.trace(), name)
    listed = re.search(r"Columns -+ ((?:\w+, )*\w+)", document)
    if listed is not None:
        assert list(table.columns) == listed.group(1).split(", ")
    else:
        assert f"Columns: table ``{table.schema.name}`` of ``docs/reference/tables.md``." in document
    assert rank.rank == 0


def test_unknown_analysis() -> None:
    with pytest.raises(UsageError) as error:
        analyze(Trace(StringPool(), {}), "astrology")
    assert "stalls" in (error.value.hint or "")


@pytest.mark.parametrize("name", [n for n, _, _ in ANALYSES])
def test_empty_trace_says_what_to_record(name: str) -> None:
    with pytest.raises(MissingDataError) as error:
        analyze(Trace(StringPool(), {}), name)
    assert error.value.hint


def test_hidden_work_and_collections() -> None:
    row = next(analyze(trace_from_text(TWO_RANKS), "hidden").rows())
    assert (row["rank"], row["step"], row["wall_ns"]) == (0, 0, 10 * MS)
    assert row["hidden_communication_ns"] == 1 * MS  # in flight from 5, blocked from 6
    assert row["hidden_loading_ns"] == 6 * MS
    assert row["hidden_checkpoint_ns"] == 3 * MS
    assert row["gc_ns"] == 1 * MS
    assert row["cpu_contention_ns"] == -1
    assert row["steal_ratio"] == -1.0


def test_run_queue_time_of_the_step_thread() -> None:
    trace = trace_from_text("""
        rank 0 phase  : FFF.BBO..FBO
        rank 0 cpu    : xqx.xxqq.xxx
    """)
    assert analyze(trace, "hidden")["cpu_contention_ns"].tolist() == [2 * MS, 1 * MS]


def test_steal_of_the_host() -> None:
    build = TraceBuilder()
    build.rank(0).phase("forward", 1 * S, 2 * S).phase("optimizer", 2 * S, 3 * S)
    build.rank(1).phase("forward", 1 * S, 2 * S).phase("optimizer", 2 * S, 3 * S)
    for name, per_second in (("user", 1.0), ("system", 0.2), ("idle", 0.5), ("iowait", 0.1), ("steal", 0.2)):
        build.counter(1, f"host_{name}_ns_total", {t * S: per_second * t * S for t in range(5)}, unit="ns")
    assert analyze(build.trace(), "hidden")["steal_ratio"] == pytest.approx([0.1, 0.1])


def test_time_behind_an_earlier_collective_is_queued() -> None:
    trace = trace_from_text("""
        rank 0 phase  : FBBBBBBBBO
        rank 0 coll   : .0000.....
        rank 0 coll   : ..111111..
        rank 0 block  : ..111111..
        rank 1 coll   : ...00.....
        rank 1 coll   : ....1111..
    """)
    # Waits for 1 from 2 to 8: until 3 rank 1 is late for 0, until 5 operation 0 moves, then 1 does.
    assert analyze(trace, "hidden")["queued_ns"].tolist() == [2 * MS]


def test_collectives_wait_then_transfer_and_the_last_rank_is_late() -> None:
    trace = trace_from_text(TWO_RANKS)
    table = analyze(trace, "collectives")
    rows = [
        (r["rank"], r["sequence"], r["step"], r["wait_ns"] // MS, r["transfer_ns"] // MS, r["last_rank"])
        for r in table.rows()
    ]
    assert rows == [(0, 0, 0, 1, 2, 1), (1, 0, 0, 0, 2, -1), (0, 1, 1, 1, 2, 1), (1, 1, 1, 0, 2, -1)]
    assert set(table["op"].tolist()) == {"all_reduce"}
    assert set(table["communicator"].tolist()) == {"default_pg"}
    late = {r["rank"]: r for r in analyze(trace, "stragglers").rows()}
    assert (late[1]["last_count"], late[1]["caused_wait_ns"], late[1]["wait_ns"]) == (2, 1 * MS, 0)
    assert (late[0]["last_count"], late[0]["caused_wait_ns"], late[0]["wait_ns"]) == (0, 0, 1 * MS)


def test_clocks_that_are_too_far_apart_are_not_used() -> None:
    build = TraceBuilder(hosts=("a", "b"))
    build.collective({0: (0, 9 * MS), 1: (50 * MS, 53 * MS)})
    code = build.strings.code
    rows = [(code("boot-b"), code("boot-a"), 0, 0, 20 * MS, -1, code("realtime"))]
    trace = build.trace().replace(alignment=Table.from_rows(ALIGNMENT, rows))
    table = analyze(trace, "collectives")
    assert table["method"].tolist() == ["duration", "duration"]
    assert table["transfer_ns"].tolist() == [3 * MS, 3 * MS]
    assert table["wait_ns"].tolist() == [6 * MS, 0]


def test_unseen_ends_are_bounded_by_later_ones() -> None:
    build = TraceBuilder()
    build.collective({0: (0, 1 * MS, -1), 1: (0, 2 * MS)})
    build.collective({0: (4 * MS, 6 * MS), 1: (4 * MS, 6 * MS)})
    assert analyze(build.trace(), "collectives")["end_ns"].tolist() == [6 * MS, 2 * MS, 6 * MS, 6 * MS]


def test_files_and_directories() -> None:
    build = TraceBuilder()
    rank = build.rank(0).io(0, MS, op=IoOp.OPEN, path="/d/a/x", result_bytes=3)
    for number, offset in enumerate((0, 100, 500, 600)):
        rank.io(
            (2 + number) * MS,
            (3 + number) * MS,
            path="/d/a/x",
            offset_bytes=offset,
            result_bytes=100,
            blocked=number == 2,
        )
    rank.io(10 * MS, 11 * MS, op=IoOp.OPEN, path="/d/a/missing", result_bytes=-2)
    rank.io(12 * MS, 13 * MS, op=IoOp.WRITE, path="/d/b/y", result_bytes=7)
    table = analyze(build.trace(), "io")
    first = next(table.rows())
    assert table["path"].tolist()[0] == "/d/a/x"
    assert (first["opens_count"], first["reads_count"], first["read_bytes"]) == (1, 4, 400)
    assert (first["call_ns"], first["blocked_ns"]) == (5 * MS, 1 * MS)
    assert first["sequential_ratio"] == pytest.approx(2 / 3)
    assert first["read_bytes_per_s"] == pytest.approx(400 / 0.004)
    folders = analyze(build.trace(), "io_directories")
    assert dict(zip(folders["path"].tolist(), folders["call_ns"].tolist(), strict=True)) == {"/d/a": 6 * MS, "/d/b": MS}
    assert folders["write_bytes"].tolist() == [0, 7]


def test_rooted_operations_have_no_last_rank_for_the_root() -> None:
    build = TraceBuilder()
    build.collective({0: (5 * MS, 6 * MS), 1: (0, 6 * MS)}, op=CollectiveOp.BROADCAST, peer_rank=0)
    table = analyze(build.trace(), "collectives")
    assert dict(zip(table["rank"].tolist(), table["wait_ns"].tolist(), strict=True)) == {0: 0, 1: 5 * MS}
