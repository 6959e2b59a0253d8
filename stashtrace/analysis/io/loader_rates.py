"""loader_rates: bytes and time per batch, rates of storage and page cache, compute: the inputs of the cache model.

A range of a file that a thread reads without a jump within one batch is one sample: from storage if any of its read
calls waited there, else from the page cache. That also holds with read-ahead, where one call waits and later calls find
their pages. A file that is read whole is one range. The offsets of a stream are unknown, so all that a batch reads of
it counts as one range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stashtrace.analysis.intervals import Bools, Floats, Int64, TimeSet, int64, window_around, window_at
from stashtrace.analysis.io.data_files import data_files
from stashtrace.analysis.io.policy import POLICY
from stashtrace.analysis.io.ranges import DistinctBytes, batch_of, loader_passes
from stashtrace.analysis.registry import analyze
from stashtrace.analysis.stalls.rows_by_thread import process_of_track
from stashtrace.analysis.steps.epochs import workers_count
from stashtrace.errors import MissingDataError
from stashtrace.schema import columns as col
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.kinds import IO_WAITED, NOT_FILES, OPENS, READS, BatchPhase
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

LOADER_RATES = col.schema(
    "loader_rates",
    "What the speed of loading depends on, over the steps without warm-up; a quantity not seen has no row",
    col.rank("rank", "global rank, -1 for what all ranks share", missing=-1),
    col.word("quantity", "its name; the unit ends it"),
    col.real("mean", "mean, in that unit; of a rate: all bytes by all time"),
    col.real("median", "median of the samples"),
    col.real("low", "lower quartile of the samples"),
    col.real("high", "upper quartile of the samples"),
    col.real("error", "standard error of the mean, 0 if it has none"),
    col.number("samples_count", "steps, batches or files that it is taken from"),
    col.word("origin", "what was measured"),
)

#: Quantities of one rank, then those that all ranks share.
COMPUTE, STEP, PREP, QUEUED = "compute_ns", "step_ns", "prep_ns", "queued_ns"
BATCH, FILES, RANGES, WORKERS = "batch_bytes", "files_per_batch", "ranges_per_batch", "workers_count"
HIT, CACHED, READER, STORAGE = "hit_ratio", "cached_bytes_per_s", "reader_bytes_per_s", "storage_bytes_per_s"
READERS, DATASET, EPOCHS, RANKS = "readers_count", "dataset_bytes", "epochs_count", "ranks_count"
PASSES, UNLOCATED, ELSEWHERE = "passes_count", "unlocated_files_count", "elsewhere_ratio"

_DATA_STALLS = (*COLUMNS["data"], *COLUMNS["late"])

Row = tuple[int, str, float, float, float, float, float, int, str]


def loader_rates(trace: Trace) -> Table:
    """Measure what the speed of loading depends on, from the steps of a run.

    Columns: table ``loader_rates`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs steps, DataLoader batches, and for the rates the I/O calls of the workers.

    Raises
    ------
    MissingDataError
        If there are no steps or no batches.
    """
    steps = analyze(trace, "steps")
    counted = steps.take((steps["warmup"] == 0) & (steps["kind"] != "validation"))
    stalls = analyze(trace, "stalls", warmup=True)
    rows: list[Row] = []
    batches: list[_Batches] = []
    wanted = data_files(trace)
    for rank in np.unique(counted["rank"]).tolist():
        rank_steps = counted.take(counted["rank"] == rank)
        made = _batches(trace, rank_steps, wanted)
        if made is None:
            continue
        batches.append(made)
        rows += _rank_rows(trace, rank, rank_steps, stalls.take(stalls["rank"] == rank), made)
    if not batches:
        raise MissingDataError(
            "no batch was made within the counted steps",
            hint="record a DataLoader with the collector torch_dataloader on, for more than a few steps",
        )
    rows += _shared_rows(trace, batches)
    return Table.from_rows(LOADER_RATES, rows)


@dataclass(frozen=True, slots=True)
class _Batches:
    """Batches that were made for one rank, and the reads for them.

    ``range_*`` have one entry per range of a file that a batch read; ``range_batch`` is the row of the batch.
    ``read_*`` have one per read call with a known offset, of all threads of the processes that made the batches;
    ``elsewhere_bytes`` were read by threads that made none. ``stream_*`` have one entry per file and batch of the other
    calls, with the number of times the batch opened the file. ``calls_*`` are the calls of ranges read from storage.
    """

    begin: Int64
    end: Int64
    queued: Int64
    workers: int
    host: int
    range_batch: Int64
    range_path: Int64
    range_bytes: Int64
    range_ns: Int64
    range_cold: Bools
    read_path: Int64
    read_offset: Int64
    read_bytes: Int64
    elsewhere_bytes: int
    stream_path: Int64
    stream_bytes: Int64
    stream_opens: Int64
    calls_begin: Int64
    calls_end: Int64
    calls_bytes: Int64


def _batches(trace: Trace, steps: Table, wanted: Bools) -> _Batches | None:
    """Return the batches begun after the first counted step began and made before the last one ended."""
    table = trace.batches
    first, last = int(steps["begin_ns"].min()), int(steps["end_ns"].max())
    waits = (table["phase_code"] == BatchPhase.WAIT) & np.isin(table["track_id"], steps["track_id"])
    waits &= (table["begin_ns"] >= first) & (table["begin_ns"] < last) & (table["batch_index"] >= 0)
    # Only waits inside training steps; those of a validation loader lie in its own steps.
    waits &= window_at(table["begin_ns"], steps["begin_ns"], steps["end_ns"]) >= 0
    loaders = np.unique(table["loader_id"][waits])
    chosen = (table["phase_code"] == BatchPhase.FETCH) & (table["rank"] == steps["rank"][0])
    chosen &= np.isin(table["loader_id"], loaders) & (table["begin_ns"] >= first) & (table["end_ns"] <= last)
    made = table.take(np.flatnonzero(chosen))
    if len(made) == 0:
        return None
    made = made.take(order_by(made["track_id"], made["begin_ns"]))
    owner = int(made["process_id"][0])
    reads = _reads(trace, made, wanted)
    return _Batches(
        made["begin_ns"],
        made["end_ns"],
        np.maximum(made["runqueue_ns"], 0),
        workers_count(made["worker_id"]),
        int(trace.processes["host_code"][owner]),
        *reads,
    )


def _reads(trace: Trace, made: Table, wanted: Bools) -> tuple[Any, ...]:
    """Return reads of the threads that make the batches, by batch, file and range; ``made`` is by thread and begin."""
    io = trace.io
    rows = np.flatnonzero((io["io_flags"] & NOT_FILES) == 0)
    rows = rows[wanted[io["path_code"][rows]]]
    elsewhere = _reads_elsewhere(trace, made, rows)
    rows = rows[np.isin(io["track_id"][rows], made["track_id"])]
    batch = batch_of(made, io["track_id"][rows], io["begin_ns"][rows])
    rows, batch = rows[batch >= 0], batch[batch >= 0]
    op, result = io["op_code"][rows], io["result_bytes"][rows]
    opens = np.isin(op, OPENS) & (result >= 0)
    opened = batch[opens], io["path_code"][rows[opens]]
    moved = np.isin(op, READS) & (result > 0)
    rows, batch = rows[moved], batch[moved]
    path = int64(io["path_code"][rows])
    order = order_by(batch, path, io["begin_ns"][rows])
    rows, batch, path = rows[order], batch[order], path[order]
    offset, size, begin, end = (int64(io[n][rows]) for n in ("offset_bytes", "result_bytes", "begin_ns", "end_ns"))
    ranges = GroupBy.runs(np.cumsum(_begins_a_range(batch, path, offset, size)))
    cold = ranges.any((io["io_flags"][rows] & IO_WAITED) != 0)
    of_storage = cold[ranges.number]
    located = offset >= 0
    streams = GroupBy(batch[~located], path[~located])
    times = GroupBy.numbered(streams.find(*opened), len(streams)).sizes
    return (
        batch[ranges.first],
        path[ranges.first],
        ranges.sum(size),
        ranges.sum(end - begin),
        cold,
        np.append(path[located], io["path_code"][elsewhere]),
        np.append(offset[located], io["offset_bytes"][elsewhere]),
        np.append(size[located], io["result_bytes"][elsewhere]),
        int(io["result_bytes"][elsewhere].sum()),
        streams.keys[1],
        streams.sum(size[~located]),
        times,
        begin[of_storage],
        end[of_storage],
        size[of_storage],
    )


def _reads_elsewhere(trace: Trace, made: Table, rows: Int64) -> Int64:
    """Return those calls that are reads at a known offset by other threads of a process while it makes a batch."""
    io = trace.io
    rows = rows[np.isin(io["op_code"][rows], READS) & (io["result_bytes"][rows] > 0) & (io["offset_bytes"][rows] >= 0)]
    rows = rows[~np.isin(io["track_id"][rows], made["track_id"])]
    owner, meanwhile = process_of_track(trace)[io["track_id"][rows]], [rows[:0]]
    for process, batches in GroupBy(made["process_id"]).items():
        chosen, time = rows[owner == process], TimeSet.of_rows(made, batches)
        meanwhile.append(chosen[window_at(io["begin_ns"][chosen], time.begin, time.end) >= 0])
    return np.concatenate(meanwhile)


def _begins_a_range(batch: Int64, path: Int64, offset: Int64, size: Int64) -> Bools:
    """Return a mask of reads that begin a range: the read before does not leave the kernel reading ahead there."""
    new = np.ones(len(batch), dtype=bool)
    same = (batch[1:] == batch[:-1]) & (path[1:] == path[:-1])
    before, now = offset[:-1], offset[1:]
    near = (now >= before) & (now <= before + size[:-1] + POLICY.read_ahead_bytes)
    new[1:] = ~(same & np.where((before >= 0) & (now >= 0), near, before == now))
    return new


def _rank_rows(trace: Trace, rank: int, steps: Table, stalls: Table, made: _Batches) -> list[Row]:
    length = steps["end_ns"] - steps["begin_ns"]
    data = stalls.take(np.isin(stalls["kind"], _DATA_STALLS))
    lost = GroupBy.numbered(GroupBy(steps["step"]).row_of(data["step"]), len(steps)).sum(data["stall_ns"])
    table = trace.batches
    receives = table.take((table["phase_code"] == BatchPhase.RECEIVE) & np.isin(table["track_id"], steps["track_id"]))
    at = window_around(receives["begin_ns"], receives["end_ns"], steps["begin_ns"], steps["end_ns"])
    received = GroupBy.numbered(at, len(steps)).sum(receives["end_ns"] - receives["begin_ns"])
    by_batch = GroupBy.numbered(made.range_batch, len(made.begin))
    size, reading = by_batch.sum(made.range_bytes), by_batch.sum(made.range_ns)
    files = GroupBy.numbered(GroupBy(made.range_batch, made.range_path).keys[0], len(made.begin)).sizes
    rows = [
        _spread(rank, STEP, length, "steps"),
        _spread(rank, COMPUTE, np.maximum(length - lost + received, 0), "steps without data stalls and stragglers"),
        _spread(rank, PREP, np.maximum(made.end - made.begin - reading, 0), "batches without their read calls"),
        _spread(rank, QUEUED, made.queued, "of prep: ready to run, and no CPU was free"),
        _plain(rank, WORKERS, made.workers, len(made.begin), "workers that made batches; 0: the step thread"),
    ]
    if len(made.range_batch):
        rows.append(_spread(rank, BATCH, size, "batches: bytes of read calls"))
        rows.append(_spread(rank, FILES, files, "batches: files read"))
        rows.append(_spread(rank, RANGES, by_batch.sizes, "batches: ranges of files read; a file read whole is one"))
    return rows


def _shared_rows(trace: Trace, batches: list[_Batches]) -> list[Row]:
    path, size, taken, cold = (
        np.concatenate([getattr(b, name) for b in batches])
        for name in ("range_path", "range_bytes", "range_ns", "range_cold")
    )
    hosts = [b.host for b in batches]
    most = max(hosts, key=hosts.count)
    rows: list[Row] = [_plain(-1, RANKS, hosts.count(most), len(hosts), "ranks on one host, which share its cache")]
    elsewhere, here = sum(b.elsewhere_bytes for b in batches), int(size.sum())
    if elsewhere:
        share = elsewhere / (elsewhere + here)
        rows.append(_plain(-1, ELSEWHERE, share, len(path), "bytes that threads read which make no batches"))
    if not len(path):
        return rows
    rows += _data_set(trace, batches, here + elsewhere)
    hit = float(size[~cold].sum()) / max(float(size.sum()), 1.0)
    rows.append(_plain(-1, HIT, hit, len(path), "bytes of ranges that no call had to wait for"))
    if (~cold).any():
        rows.append(_rate(CACHED, size[~cold], taken[~cold], "ranges from the page cache, time in read calls"))
    if cold.any():
        rows += _storage(batches, size[cold], taken[cold])
    return rows


def _data_set(trace: Trace, batches: list[_Batches], read_bytes: int) -> list[Row]:
    """Return rows of distinct bytes and of reads per byte; neither if a stream of a file stayed open over batches."""
    path, offset, size, stream, streamed, opens = (
        np.concatenate([getattr(b, name) for b in batches])
        for name in ("read_path", "read_offset", "read_bytes", "stream_path", "stream_bytes", "stream_opens")
    )
    ranges = DistinctBytes()
    ranges.add(path, offset, size)
    located, distinct = ranges.totals()
    other = ~np.isin(stream, located)
    stream, streamed, opens = stream[other], streamed[other], opens[other]
    lost = np.unique(stream[opens == 0])
    if len(lost):
        return [_plain(-1, UNLOCATED, len(lost), len(stream), "files read through streams that stay open over batches")]
    # A stream that is opened for each batch starts at the begin of the file.
    whole = np.zeros(len(trace.strings), dtype=np.int64)
    np.maximum.at(whole, stream, -(-streamed // np.maximum(opens, 1)))
    total, files = int(distinct.sum()) + int(whole.sum()), len(located) + int((whole > 0).sum())
    passes = loader_passes(trace)
    return [
        _plain(-1, DATASET, total, files, "pages of files that were read, each once"),
        _plain(-1, EPOCHS, read_bytes / max(total, 1), files, "files: how often a byte of them was read, mean"),
        _plain(-1, PASSES, max(passes.values(), default=1), len(passes), "ranks: iterations of a loader, at most"),
    ]


def _storage(batches: list[_Batches], size: Int64, taken: Int64) -> list[Row]:
    """Return the rate of one reader among the job's readers, and of all together; each host has its storage."""
    together_bytes = together_ns = busy_ns = calls_ns = 0.0
    for host in {b.host for b in batches}:
        chosen = [b for b in batches if b.host == host]
        begin, end, amount = (
            np.concatenate([getattr(b, name) for b in chosen]) for name in ("calls_begin", "calls_end", "calls_bytes")
        )
        length = np.maximum(end - begin, 1).astype(np.float64)
        edges = np.unique(np.concatenate([begin, end]))
        readers = np.searchsorted(np.sort(begin), edges, "right") - np.searchsorted(np.sort(end), edges, "right")
        span = np.append(np.diff(edges), 0)
        several = readers >= 2
        shared = TimeSet.of(edges[several], edges[several] + span[several])
        together_bytes += float((amount / length * shared.within(begin, end)).sum())
        together_ns += float(span[several].sum())
        busy_ns += float(span[readers >= 1].sum())
        calls_ns += float(length.sum())
    rows = [_rate(READER, size, taken, "ranges from storage, time in read calls")]
    rows.append(_plain(-1, READERS, calls_ns / max(busy_ns, 1.0), len(size), "readers in storage while one was, mean"))
    if together_ns > POLICY.together_ratio * busy_ns:
        rate = together_bytes / together_ns * 1e9
        rows.append(_plain(-1, STORAGE, rate, len(size), "all readers while two or more were in storage"))
    return rows


def _ratio_error(rate: float, rates: Floats) -> float:
    """Return the standard error of a rate, from that of the mean time per byte, which is additive."""
    if len(rates) < 2 or not (rates > 0).all():
        return 0.0
    inverse = 1.0 / rates
    return rate * float(inverse.std(ddof=1)) / float(inverse.mean()) / float(np.sqrt(len(rates)))


def _rate(quantity: str, size: Int64, taken: Int64, origin: str) -> Row:
    rate = float(size.sum()) / max(float(taken.sum()), 1.0) * 1e9
    rates = size / np.maximum(taken, 1) * 1e9
    low, median, high = np.percentile(rates, [25, 50, 75]).tolist()
    return (-1, quantity, rate, median, low, high, _ratio_error(rate, rates), len(rates), origin)


def _spread(rank: int, quantity: str, amounts: Int64, origin: str) -> Row:
    values = amounts.astype(np.float64)
    low, median, high = np.percentile(values, [25, 50, 75]).tolist()
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
    return (rank, quantity, float(values.mean()), median, low, high, error, len(values), origin)


def _plain(rank: int, quantity: str, value: float, count: int, origin: str) -> Row:
    return (rank, quantity, float(value), float(value), float(value), float(value), 0.0, count, origin)
