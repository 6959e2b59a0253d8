"""The native encoder, judged by the real trace processor: what went in is what a viewer will show."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
import trace_processor
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_processor import TraceProcessor, fields

from stashtrace._native import perfetto

pytestmark = pytest.mark.skipif(bool(trace_processor.missing()), reason=trace_processor.missing() or "-")


def encode(write, chunk_bytes: int = 1 << 20) -> bytes:
    parts: list[bytes] = []
    encoder = perfetto.Encoder(lambda part: parts.append(bytes(part)), chunk_bytes)
    write(encoder)
    encoder.flush()
    assert encoder.byte_count == sum(map(len, parts))
    return b"".join(parts)


def load(write) -> TraceProcessor:
    """Trace processor with it; no error statistics allowed."""
    processor = TraceProcessor.of(encode(write))
    assert processor.errors() == []
    return processor


def columns(*rows):
    return [np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)]


def one_track(*intervals, names=("a", "b", "c", "d")):
    """Slices on track 2 named in the order given."""
    begin, end = columns(*intervals)
    count = np.arange(len(begin))
    return perfetto.Slices(np.full(len(begin), 2), begin, end, count, perfetto.TextTable(list(names[: len(begin)])))


def write_one_track(*intervals):
    def write(encoder):
        encoder.process(1, 1, "rank 000")
        encoder.track(2, "line", 1)
        encoder.slices(1, [one_track(*intervals)])

    return write


def test_processes_keep_their_order_whatever_is_on_them() -> None:
    """Viewers heed the rank among siblings of a process only if the root says so; else most slices come first."""

    def write(encoder):
        for place in range(2):
            encoder.process(place + 1, place + 1, f"rank 00{place}", [], place)

    descriptors = [dict(fields(dict(fields(packet)).get(60, b""))) for _, packet in fields(encode(write))]
    assert [each for each in descriptors if each.get(1) == 0] == [{1: 0, 19: 1}]
    assert [each[12] for each in descriptors if 3 in each] == [0, 1]
    load(write)


SLICES = "select name, ts, dur, depth from slice order by name"


def test_end_comes_before_begin_at_one_instant() -> None:
    """An END closes the innermost slice, so the wrong order would swap durations without an error."""
    found = load(write_one_track((100, 200), (200, 300), (200, 250))).rows(SLICES)
    assert found == [("a", 100, 100, 0), ("b", 200, 100, 0), ("c", 200, 50, 1)]


def test_parent_comes_before_child_at_one_instant() -> None:
    found = load(write_one_track((100, 150), (100, 200))).rows(SLICES)
    assert found == [("a", 100, 50, 1), ("b", 100, 100, 0)]


def test_empty_slices_stay_empty() -> None:
    found = load(write_one_track((100, 100), (100, 200), (150, 150), (200, 200))).rows(SLICES)
    assert [(n, t, d) for n, t, d, _ in found] == [("a", 100, 0), ("b", 100, 100), ("c", 150, 0), ("d", 200, 0)]


def test_times_need_64_bits() -> None:
    begin = 2**62 + 1
    found = load(write_one_track((begin, begin + 2**40 + 3), (begin + 5, begin + 6))).rows(SLICES)
    assert found == [("a", begin, 2**40 + 3, 0), ("b", begin + 5, 1, 1)]


def test_arguments_of_every_kind() -> None:
    def write(encoder):
        encoder.track(2, "line")
        slices = one_track((1, 2), (3, 4), (5, 6))
        slices.arg_int("size_bytes", np.array([2**62 + 1, -(2**62) - 1, perfetto.NO_VALUE]))
        slices.arg_double("rate", np.array([1.5, float("nan"), -0.25]))
        slices.arg_text("path", np.array([1, -1, 0]), perfetto.TextTable(["", "/data/ä" + "x" * 300]))
        encoder.slices(1, [slices])

    processor = load(write)
    args = processor.rows("select slice.name, key, display_value from slice join args using (arg_set_id) order by 1, 2")
    assert args == [
        ("a", "debug.path", "/data/ä" + "x" * 300),
        ("a", "debug.rate", "1.5"),
        ("a", "debug.size_bytes", str(2**62 + 1)),
        ("b", "debug.size_bytes", str(-(2**62) - 1)),
        ("c", "debug.path", ""),
        ("c", "debug.rate", "-0.25"),
    ]


def test_names_longer_than_one_length_byte() -> None:
    """Packets beyond 127 and 16383 bytes need longer length fields."""
    names = ["n" * 127, "m" * 128, "k" * 20_000]

    def write(encoder):
        encoder.track(2, "line")
        encoder.slices(1, [one_track((1, 2), (3, 4), (5, 6), names=names)])

    assert sorted(n for (n,) in load(write).rows("select name from slice")) == sorted(names)


def test_many_arguments_and_flows_in_one_packet() -> None:
    def write(encoder):
        encoder.track(2, "line")
        slices = one_track((1, 2), (3, 4))
        for i in range(40):
            slices.arg_int(f"argument_{i}", np.array([i, perfetto.NO_VALUE]))
        ids = np.arange(1, 101)
        slices.flow(np.zeros(100, dtype=np.int64), ids).flow(np.ones(100, dtype=np.int64), ids, terminating=True)
        encoder.slices(1, [slices])

    processor = load(write)
    assert processor.one("select count() from args where flat_key glob 'debug.argument_*'") == 40
    assert processor.rows(
        "select distinct a.name, b.name from flow join slice a on slice_out = a.id join slice b on slice_in = b.id"
    ) == [("a", "b")]
    assert processor.one("select count() from flow") == 100


def test_flow_at_one_instant_points_from_the_earlier_batch() -> None:
    def write(encoder):
        encoder.track(2, "late")
        encoder.track(3, "waiting")
        names = perfetto.TextTable(["operation", "transfer"])
        target = perfetto.Slices(*columns((3, 50, 500, 1)), names).flow(np.array([0]), np.array([9]))
        source = perfetto.Slices(*columns((2, 50, 60, 0)), names).flow(np.array([0]), np.array([9]))
        encoder.slices(1, [source, target], batch_first=True)

    (pair,) = load(write).rows(
        "select a.name, b.name from flow join slice a on slice_out = a.id join slice b on slice_in = b.id"
    )
    assert pair == ("operation", "transfer")


def test_counters() -> None:
    def write(encoder):
        encoder.process(1, 1, "rank 000")
        encoder.counter_track(2, "CPU user", 1, 0, "about", "%")
        encoder.counter(7, 2, np.array([10, 20, 30]), np.array([0.5, -1e300, 3]))

    processor = load(write)
    assert processor.rows("select ts, value from counter order by ts") == [(10, 0.5), (20, -1e300), (30, 3.0)]
    assert processor.rows("select name, unit from counter_track") == [("CPU user", "%")]


def test_tracks_keep_order_parent_and_description() -> None:
    def write(encoder):
        encoder.process(1, 77, "rank 003 · node01", ["pid 4711", "3 records lost"], 3)
        encoder.track(2, "trunk", 1)
        for uuid, name, order in ((3, "z first", 0), (4, "a second", 1), (5, "m third", 20)):
            encoder.track(uuid, name, 2, order, f"about {name}")
        encoder.slices(
            1,
            [
                perfetto.Slices(
                    *columns((2, 1, 9, 0), (5, 1, 2, 0), (4, 1, 2, 0), (3, 1, 2, 0)), perfetto.TextTable(["s"])
                )
            ],
        )

    processor = load(write)
    shown = processor.rows(
        "include perfetto module viz.summary.track_event;"
        "select name, description from _track_event_tracks_ordered_groups where parent_id is not null order by order_id"
    )
    assert shown == [("z first", "about z first"), ("a second", "about a second"), ("m third", "about m third")]
    assert processor.rows("select name, pid from process where pid = 77") == [("rank 003 · node01", 77)]
    labels = "select display_value from args where flat_key = 'chrome.process_label' order by 1"
    assert processor.rows(labels) == [("3 records lost",), ("pid 4711",)]


def test_sequences_intern_separately() -> None:
    """The same texts on two sequences, and tables that share texts on one."""
    first, second = perfetto.TextTable(["same", "other"]), perfetto.TextTable(["other", "same"])

    def write(encoder):
        for sequence in (1, 2):
            encoder.track(sequence + 1, f"line {sequence}")
            for table, at in ((first, 10), (second, 20)):
                encoder.slices(sequence, [perfetto.Slices(*columns((sequence + 1, at, at + 1, 0)), table)])

    found = load(write).rows(
        "select track.name, slice.name from slice join track on track_id = track.id order by ts, 1"
    )
    assert found == [("line 1", "same"), ("line 2", "same"), ("line 1", "other"), ("line 2", "other")]


nested = st.recursive(
    st.tuples(st.integers(0, 20), st.just(())),
    lambda inner: st.tuples(st.integers(0, 20), st.lists(inner, max_size=4)),
    max_leaves=20,
)


def lay_out(tree, at: int, rows: list[tuple[int, int]]) -> int:
    """Turn (length without children, children) into intervals; where the tree ends."""
    length, children = tree
    here = len(rows)
    rows.append((at, at))
    end = at
    for child in children:
        end = lay_out(child, end, rows)
    rows[here] = (at, end + length)
    return end + length


def several(case):
    """Some cases, which one trace holds on separate sequences: a trace takes longer than what is in it."""
    return st.lists(case, min_size=4, max_size=6)


def slices_by_case(processor: TraceProcessor) -> dict[str, list[tuple[int, int]]]:
    """Begin and end of the slices of each case, whose number its tracks have as their name."""
    found: dict[str, list[tuple[int, int]]] = {}
    for case, begin, end in processor.rows(
        "select track.name, ts, ts + dur from slice join track on track_id = track.id order by 2, 3"
    ):
        found.setdefault(case, []).append((begin, end))
    return found


@settings(max_examples=7, deadline=None)
@given(cases=several(st.lists(nested, min_size=1, max_size=5)), seed=st.randoms(use_true_random=False))
def test_nested_slices_come_back_whatever_their_order(cases, seed) -> None:
    written: dict[str, list[tuple[int, int]]] = {}
    for number, trees in enumerate(cases):
        rows: list[tuple[int, int]] = []
        at = 1000
        for tree in trees:
            at = lay_out(tree, at, rows)
        seed.shuffle(rows)
        written[str(number)] = rows

    def write(encoder):
        names = perfetto.TextTable(["s"])
        for case, rows in written.items():
            track = int(case) + 2
            encoder.track(track, case)
            half = len(rows) // 2
            parts = [part for part in (rows[:half], rows[half:]) if part]  # two batches are merged into one order
            batches = [perfetto.Slices(*columns(*((track, b, e, 0) for b, e in part)), names) for part in parts]
            encoder.slices(track, batches)

    assert slices_by_case(load(write)) == {case: sorted(rows) for case, rows in written.items()}


@settings(max_examples=7, deadline=None)
@given(
    cases=several(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 30)), min_size=1, max_size=40),
            st.booleans(),
        )
    )
)
def test_overlapping_slices_come_back_on_lanes(cases) -> None:
    written: dict[str, list[tuple[int, int]]] = {}

    def write(encoder):
        for number, (rows, nest) in enumerate(cases):
            key, begin, length = columns(*rows)
            end = begin + length
            track = 1000 * number + key * 100 + perfetto.lanes(key, begin, end, nest).astype(np.int64) + 2
            written[str(number)] = sorted(zip(begin.tolist(), end.tolist(), strict=True))
            for uuid in np.unique(track).tolist():
                encoder.track(uuid, str(number))
            slices = perfetto.Slices(track, begin, end, np.zeros_like(key), perfetto.TextTable(["s"]))
            encoder.slices(number + 1, [slices])

    processor = load(write)
    assert slices_by_case(processor) == written
    deep = processor.rows("select distinct track.name from slice join track on track_id = track.id where depth > 0")
    nests = {str(number) for number, (_, nest) in enumerate(cases) if nest}
    assert {case for (case,) in deep} <= nests


def test_chunks_reach_a_descriptor_whole(tmp_path: Path) -> None:
    write = write_one_track(*((i, i + 1) for i in range(0, 8, 2)))
    path = tmp_path / "t.pftrace"
    with path.open("wb") as file:
        encoder = perfetto.Encoder(file.fileno(), 16)
        write(encoder)
        encoder.flush()
    assert path.read_bytes() == encode(write) == encode(write, 16)


def test_sink_errors_reach_the_caller() -> None:
    def refuse(_part: memoryview) -> None:
        raise ConnectionError("gone")

    write = write_one_track((1, 2))
    encoder = perfetto.Encoder(refuse, 16)
    with pytest.raises(ConnectionError):
        write(encoder)
    with open("/dev/full", "wb", buffering=0) as full:
        encoder = perfetto.Encoder(full.fileno(), 16)
        with pytest.raises(OSError, match="No space left") as caught:
            write(encoder)
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize(
    "build",
    [
        lambda: perfetto.Slices(*columns((2, 1, 2, 1)), perfetto.TextTable(["only one"])),
        lambda: perfetto.Slices(np.zeros(2), np.zeros(1), np.zeros(1), np.zeros(1), perfetto.TextTable(["a"])),
        lambda: one_track((1, 2)).arg_int("x", np.zeros(2)),
        lambda: one_track((1, 2)).arg_text("x", np.array([1]), perfetto.TextTable(["a"])),
        lambda: one_track((1, 2)).flow(np.array([1]), np.array([1])),
        lambda: one_track((1, 2), (3, 4)).flow(np.array([1, 0]), np.array([1, 2])),
    ],
)
def test_wrong_columns_are_refused(build) -> None:
    with pytest.raises(ValueError, match=r".+"):
        build()
