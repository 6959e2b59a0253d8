"""breakdown and idle: every instant of a device has one kind of work or one cause, drawn and at random."""

from __future__ import annotations

import numpy as np
import pytest
from builders import US, TraceBuilder
from device_text import device_trace
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from stashtrace.analysis.devices.breakdown import CAUSES
from stashtrace.analysis.registry import analyze
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.schema.kinds import DeviceCall, DeviceWork
from stashtrace.schema.trace import Trace


def row_of(trace: Trace, **options) -> dict:
    rows = list(analyze(trace, "breakdown", **options).rows())
    assert len(rows) == 1
    return {n: v // US if n.endswith("_ns") else v for n, v in rows[0].items()}


def causes_of(trace: Trace, **options) -> dict[str, int]:
    rows = analyze(trace, "idle", **options).rows()
    return {r["cause"]: r["idle_ns"] // US for r in rows if r["idle_ns"]}


def test_work_at_once_counts_once_and_what_hides_it_is_named() -> None:
    trace = device_trace("""
        rank 0 stream a: AAAA....BBBB....mm..
        rank 0 stream b: ..nnnnnnn...........
        rank 0 stream c: ...........ccc....dd
    """)
    row = row_of(trace)
    assert (row["window_ns"], row["busy_ns"], row["idle_ns"]) == (20, 18, 2)
    assert (row["compute_ns"], row["communication_ns"], row["exposed_communication_ns"]) == (8, 7, 4)
    assert row["overlap_ratio"] == pytest.approx(3 / 7)
    assert (row["memcpy_ns"], row["exposed_memcpy_ns"], row["memset_ns"]) == (7, 6, 2)
    assert row["compute_ns"] + row["exposed_communication_ns"] + row["exposed_memcpy_ns"] == row["busy_ns"]
    assert (row["work_count"], row["orphans_count"]) == (6, 6)


def test_orphans_and_the_last_step_can_be_left_out() -> None:
    trace = device_trace("""
        rank 0 host    : A....B.....C
        rank 0 step    : |...|......|.....|
        rank 0 stream a: XX.AA..BBB...CCC
    """)
    assert (row_of(trace)["window_ns"], row_of(trace)["orphans_count"]) == (16, 1)
    assert row_of(trace, orphans="drop")["window_ns"] == 13
    dropped = row_of(trace, orphans="drop", last_step="drop")
    assert (dropped["window_ns"], dropped["busy_ns"], dropped["work_count"]) == (7, 5, 2)
    assert row_of(trace, last_step="drop")["window_ns"] == 10


def test_a_single_step_is_kept() -> None:
    trace = device_trace("""
        rank 0 step    : |.......|
        rank 0 stream a: .AA..BB
    """)
    assert row_of(trace, last_step="drop") == row_of(trace)


def test_steps_are_those_of_the_device() -> None:
    trace = device_trace("""
        rank 0 host    : A...B...C
        rank 0 step    : |...|...|...|
        rank 0 stream a: ..AAAABBB...CC
    """)
    table = analyze(trace, "breakdown", by="step")
    assert (table["window_ns"] // US).tolist() == [6, 3, 5]
    assert (table["busy_ns"] // US).tolist() == [4, 3, 2]
    assert table["work_count"].tolist() == [1, 1, 1]
    left = analyze(trace, "breakdown", by="step", last_step="drop")
    assert left["step"].tolist() == [0, 1]


def test_input_waits_count_before_the_first_work_too() -> None:
    trace = device_trace("""
        rank 0 host    : ......A.........B
        rank 0 loader  : 00000.....11111
        rank 0 stream a: .......AAAA......BB
    """)
    row = row_of(trace)
    assert (row["input_wait_ns"], row["exposed_input_wait_ns"], row["idle_ns"]) == (10, 4, 6)


def test_each_device_has_a_row() -> None:
    trace = device_trace("""
        rank 0 gpu 0 stream a: AA..AA
        rank 0 gpu 1 stream b: BBBB
        rank 1 stream a: CCC
    """)
    table = analyze(trace, "breakdown")
    assert list(zip(table["rank"].tolist(), table["device_index"].tolist(), strict=True)) == [(0, 0), (0, 1), (1, 0)]
    assert (table["busy_ns"] // US).tolist() == [4, 4, 3]


def test_markers_of_synchronisation_are_no_work() -> None:
    trace = device_trace("""
        rank 0 stream a: xxxxAAAA..BB
    """)
    assert (row_of(trace)["window_ns"], row_of(trace)["busy_ns"]) == (8, 6)


def test_idle_by_cause() -> None:
    trace = device_trace("""
        rank 0 host    : A...B...C..........sssssss..D........E
        rank 0 loader  : ...............................000000
        rank 0 stream a: .AAAA..BBBB.CCCCCCCCCCCC......DDD.......EE
    """)
    # [5, 7) B launched at 4 and held back; [11, 12) C launched at 8; [24, 28) the call at 19 drained the device;
    # [28, 30) the launch of D; [33, 37) the loader; [37, 40) the launch of E, as A at the begin
    assert causes_of(trace) == {"kernel_wait": 3, "sync": 4, "launch": 5, "input": 4}


def test_a_call_that_drained_the_device_costs_no_more_than_it_took() -> None:
    trace = device_trace("""
        rank 0 host    : A.sss.............B
        rank 0 stream a: .AAAA..............BB
    """)
    assert causes_of(trace) == {"sync": 3, "host": 10, "launch": 1}


def test_gaps_between_queued_kernels_are_not_the_loaders() -> None:
    trace = device_trace("""
        rank 0 host    : ABC...........D
        rank 0 loader  : ....0000000000.
        rank 0 stream a: ..AAA.BBB.CC...DD
    """)
    assert causes_of(trace) == {"kernel_wait": 2, "input": 2, "launch": 1}


def test_the_host_is_blamed_for_what_it_launched_late() -> None:
    trace = device_trace("""
        rank 0 host    : AA......BBB
        rank 0 stream a: .AAAA......BB
    """)
    assert causes_of(trace) == {"host": 3, "launch": 3}


def test_a_queue_behind_an_unlaunched_event_is_the_hosts_doing() -> None:
    """A collective stands in its queue and waits for a kernel that the host has not launched: the host decides."""
    trace = device_trace("""
        rank 0 host    : A.n.......B
        rank 0 stream a: .AAAA......BB
        rank 0 stream b: .............nnn
    """)
    assert causes_of(trace) == {"host": 5, "launch": 1}


def test_unknown_launches_are_said_to_be_unknown() -> None:
    trace = device_trace("""
        rank 0 stream a: AA..BB
    """)
    assert causes_of(trace) == {"unknown": 2}


def test_idle_pieces_and_the_longest() -> None:
    trace = device_trace("""
        rank 0 host    : A...B......C
        rank 0 stream a: A...B......C
    """)
    rows = {r["cause"]: r for r in analyze(trace, "idle").rows()}
    assert (rows["host"]["pieces_count"], rows["host"]["longest_ns"], rows["host"]["idle_ns"]) == (2, 6 * US, 9 * US)
    assert rows["host"]["share_ratio"] == pytest.approx(9 / 12)


@pytest.mark.parametrize("name", ["breakdown", "idle", "launches", "kernels"])
def test_options_that_do_not_exist(name: str) -> None:
    with pytest.raises(UsageError, match="'epoch'"):
        analyze(device_trace("rank 0 stream a: AA"), name, by="epoch")


def test_nothing_left_says_so() -> None:
    trace = device_trace("rank 0 stream a: AA")
    with pytest.raises(MissingDataError, match="left"):
        analyze(trace, "breakdown", orphans="drop")
    with pytest.raises(MissingDataError, match="no rank has a step"):
        analyze(trace, "idle", by="step")


moment = st.integers(0, 60).map(lambda n: n * US)
interval = st.tuples(moment, st.integers(0, 20).map(lambda n: n * US)).map(lambda p: (p[0], p[0] + p[1]))


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    build = TraceBuilder()
    for number in range(draw(st.integers(1, 2))):
        rank = build.rank(number)
        at = 0
        for _ in range(draw(st.integers(1, 4))):
            length = draw(st.integers(2, 20)) * US
            rank.phase("forward", at, at + length // 2).phase("optimizer", at + length // 2, at + length)
            at += length
        streams = [rank.gpu(0).stream(name) for name in ("a", "b", "c")]
        for _ in range(draw(st.integers(1, 12))):
            draw(st.sampled_from(streams)).kernel(
                *draw(interval),
                work=draw(st.sampled_from(list(DeviceWork))),
                launch=draw(st.one_of(st.none(), interval)),
                copy=draw(st.integers(0, 6)),
                size_bytes=draw(st.integers(0, 1 << 22)),
            )
        for _ in range(draw(st.integers(0, 3))):
            rank.gpu(0).call(draw(st.sampled_from(list(DeviceCall))), *draw(interval))
            rank.batch_wait(0, *draw(interval), worker=0)
    return build.trace()


keep = st.sampled_from(["keep", "drop"])


@given(traces(), st.sampled_from(["rank", "step"]), keep, keep)
@settings(max_examples=examples(150), deadline=None)
def test_identities(trace: Trace, by: str, orphans: str, last_step: str) -> None:
    options = {"by": by, "orphans": orphans, "last_step": last_step}
    try:
        table = analyze(trace, "breakdown", **options)
    except MissingDataError:
        return
    assert (table["busy_ns"] + table["idle_ns"] == table["window_ns"]).all()
    parts = table["compute_ns"] + table["exposed_communication_ns"] + table["exposed_memcpy_ns"]
    assert (parts == table["busy_ns"]).all()
    assert (table["exposed_communication_ns"] <= table["communication_ns"]).all()
    assert (table["exposed_memcpy_ns"] <= table["memcpy_ns"]).all()
    assert (table["memset_ns"] <= table["memcpy_ns"]).all()
    assert (table["exposed_input_wait_ns"] <= table["idle_ns"]).all()
    causes = analyze(trace, "idle", **options)
    sums = causes["idle_ns"].reshape(-1, len(CAUSES))
    assert (sums.sum(axis=1) == table["idle_ns"]).all()
    assert (sums >= 0).all()
    assert (sums[:, CAUSES.index("input")] <= table["exposed_input_wait_ns"]).all()
    assert (causes["longest_ns"] <= causes["idle_ns"]).all()
    assert ((causes["pieces_count"] > 0) == (causes["idle_ns"] > 0)).all()


@given(traces(), st.integers(0, 1000))
@settings(max_examples=examples(60), deadline=None)
def test_row_order_does_not_matter(trace: Trace, seed: int) -> None:
    random = np.random.default_rng(seed)
    shuffled = {}
    for name in ("kernels", "device_calls", "batches"):
        table = trace.table(name)
        shuffled[name] = table.take(random.permutation(len(table)))
    for name in ("breakdown", "idle", "launches", "copies"):
        try:
            expected = list(analyze(trace, name).rows())
        except MissingDataError:
            continue
        assert list(analyze(trace.replace(**shuffled), name).rows()) == expected
