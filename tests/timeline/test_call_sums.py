"""Sums of I/O calls per thread and time bin: equal to counting call by call, however the calls come in parts."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from builders import TraceBuilder

from stashtrace import _native
from stashtrace.schema.events import TABLES
from stashtrace.schema.kinds import IO_WAITED
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.timeline.host_tracks import Bins, sum_piece
from stashtrace.timeline.rows_by_rank import RankRows, TraceRows, Window
from stashtrace.timeline.tracks import Piece

FIGURES = ("calls_count", "bytes", "busy_ns", "blocked_count")


def random_calls(seed: int, threads: int = 4, count: int = 300) -> Table:
    """Calls of some threads within 6 us: nested, overlapping, empty, bunched, and as long as others."""
    random = np.random.default_rng(seed)
    track = np.sort(random.integers(0, threads, count))
    begin = random.integers(0, 5_000, count)
    begin[random.random(count) < 0.3] //= 50  # a bunch in the first bins
    order = np.lexsort((begin, track))
    length = random.choice([0, 1, 7, 7, 40, 40, 900], count)
    columns = {
        "track_id": track,
        "begin_ns": begin[order],
        "end_ns": begin[order] + length,
        "path_code": random.integers(0, 4, count),
        "op_code": random.integers(0, 9, count),
        "io_flags": random.integers(0, 64, count),
        "offset_bytes": np.zeros(count, dtype=np.int64),
        "result_bytes": random.integers(-30, 1000, count),
    }
    return Table(TABLES["io"], columns)


def one_by_one(calls: Table, bins: Bins) -> list[dict[str, int]]:
    """The sums by definition: a nanosecond of a thread is busy once, in the bin of the call that first reaches it."""
    found: dict[tuple[int, int], dict[str, int]] = {}
    busy: dict[int, set[int]] = {}
    for call in calls.rows():
        track, begin, end = call["track_id"], call["begin_ns"], call["end_ns"]
        key = track, (begin - bins.origin_ns) // bins.width_ns
        zero = {"track": track, "begin": begin, "end": end, "longest": -1, "path": 0, **dict.fromkeys(FIGURES, 0)}
        sums = found.setdefault(key, zero)
        sums["end"] = max(sums["end"], end)
        sums["calls_count"] += 1
        sums["bytes"] += max(call["result_bytes"], 0)
        sums["blocked_count"] += (call["io_flags"] & IO_WAITED) != 0
        own = set(range(begin, end)) - busy.setdefault(track, set())
        busy[track] |= own
        sums["busy_ns"] += len(own)
        if end - begin > sums["longest"]:
            sums["longest"], sums["path"] = end - begin, call["path_code"]
    rows = list(found.values())
    for row, following in itertools.pairwise(rows):
        if row["track"] == following["track"]:  # slices of one thread do not overlap
            row["end"] = max(min(row["end"], following["begin"]), row["begin"])
    return rows


def rows_of(piece: Piece) -> list[dict[str, int]]:
    columns = {"track": piece.key, "begin": piece.begin_ns, "end": piece.end_ns, **piece.ints}
    columns["path"] = np.maximum(piece.texts["path_of_longest"][0], 0)
    return [dict(zip(columns, row, strict=True)) for row in zip(*(c.tolist() for c in columns.values()), strict=True)]


def summed(parts: Iterator[Table], bins: Bins) -> list[dict[str, int]]:
    texts = TraceRows(four_texts(), None).texts
    return rows_of(sum_piece(SimpleNamespace(texts=texts), parts, bins))


def four_texts() -> Trace:
    build = TraceBuilder()
    build.rank(0).io(0, 1, path="/a").io(1, 2, path="/b").io(2, 3, path="/c")
    return build.trace()


def cut(calls: Table, random: np.random.Generator, rows: int) -> Iterator[Table]:
    """Parts of one thread each, cut anywhere, also in the middle of a bin."""
    track = calls["track_id"]
    ends = np.flatnonzero(np.append(track[1:] != track[:-1], True)) + 1
    cuts = np.unique(np.concatenate([[0], ends, random.integers(0, len(calls), len(calls) // rows)]))
    for begin, end in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        yield calls.take(slice(begin, end))


def without_work(rows: list[dict[str, int]]) -> list[dict[str, int]]:
    return [{name: value for name, value in row.items() if name != "longest"} for row in rows]


@pytest.mark.parametrize("width_ns", [1, 13, 600, 1 << 40])
@pytest.mark.parametrize("seed", range(6))
def test_sums_are_those_of_counting_call_by_call(seed: int, width_ns: int) -> None:
    calls = random_calls(seed)
    bins = Bins(int(calls["begin_ns"].min()), width_ns)
    expected = without_work(one_by_one(calls, bins))
    assert sum(row["calls_count"] for row in expected) == len(calls)
    for rows in (len(calls), 40, 2):
        assert summed(cut(calls, np.random.default_rng(seed), rows), bins) == expected, rows


@pytest.mark.parametrize("seed", range(4))
def test_sums_of_a_window(seed: int) -> None:
    """Calls that reach into the window count whole, in a bin before its begin."""
    build = TraceBuilder()
    rank = build.rank(0)
    for number in range(3):
        rank.worker(number).fetch(0, 0, 1)
    trace = build.trace()
    calls = random_calls(seed, threads=len(trace.tracks))
    trace = trace.replace(io=calls)
    window = Window(1_000, 3_000)
    bins = Bins(window.begin_ns, 170)
    own = RankRows(TraceRows(trace, window), 0)
    inside = calls.take(window.touches(calls["begin_ns"], calls["end_ns"]))
    assert (inside["begin_ns"] < window.begin_ns).any()
    found = rows_of(sum_piece(own, own.io_parts(), bins))
    assert found == without_work(one_by_one(inside, bins))


def test_parts_of_one_bin_are_not_gathered() -> None:
    """A burst of calls within one bin of a long run takes no memory, and so no time, beyond that of a part."""
    count, parts = 500, 400
    calls = np.arange(count, dtype=np.int64)

    def burst() -> Iterator[Table]:
        for part in range(parts):
            begin = (part * count + calls) * 10
            zero = np.zeros(count, dtype=np.int64)
            columns = {"begin_ns": begin, "end_ns": begin + 5, "track_id": zero + 1, "result_bytes": zero + 3}
            yield Table(TABLES["io"], {name: columns.get(name, zero) for name in TABLES["io"].names})

    rows = SimpleNamespace(texts=TraceRows(four_texts(), None).texts)
    tracemalloc.start()
    piece = sum_piece(rows, burst(), Bins(0, 1 << 50))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    whole = parts * count
    assert [piece.ints[name].tolist() for name in FIGURES] == [[whole], [3 * whole], [5 * whole], [0]]
    assert peak < 20 * count * 44


def test_numbers_of_a_damaged_file_wrap() -> None:
    """Any 64 bits may stand in a row; sums of them wrap as numpy's do, and nothing else happens."""
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    sums = _native.perfetto.CallSums(high - 5, 3, IO_WAITED)
    begin = np.array([low, low + 1, -1, 0, high - 1, high], dtype=np.int64)
    end = np.array([high, low, high, low, high, low], dtype=np.int64)
    sums.add(7, begin, end, end, np.zeros(6, dtype=np.int32), np.full(6, -1, dtype=np.int16))
    found = sums.columns()
    assert int(found["calls_count"].sum()) == 6
    assert found["blocked_count"].tolist() == found["calls_count"].tolist()
    assert found["track"].tolist() == [7] * len(found["track"])


def test_columns_that_do_not_fit_are_refused() -> None:
    sums = _native.perfetto.CallSums(0, 10, IO_WAITED)
    three, two = np.zeros(3, dtype=np.int64), np.zeros(2, dtype=np.int64)
    with pytest.raises(ValueError, match="differ in length"):
        sums.add(0, three, two, three, three.astype(np.int32), three.astype(np.int16))
    with pytest.raises(ValueError, match="width"):
        _native.perfetto.CallSums(0, 0, IO_WAITED)
