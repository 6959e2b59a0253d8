"""loader_rates: bytes and time per batch, rates of storage and page cache, compute: the inputs of the cache model.

A file read within one batch is one sample: from storage if any of its read calls waited there, else from the page
cache. That holds with read-ahead too, where one call waits and those after it find their pages.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.io_calls import NOT_FILES, READS
from stashtrace.analysis.registry import analyze
from stashtrace.analysis.timeset import Int64, TimeSet, int64, place_of
from stashtrace.analysis.trace_index import IO_WAITED
from stashtrace.errors import MissingDataError
from stashtrace.model.kinds import BatchPhase
from stashtrace.model.schemas import LOADER_RATES
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace

#: Quantities of one rank, then those that all ranks share.
COMPUTE, STEP, PREP, QUEUED = "compute_ns", "step_ns", "prep_ns", "queued_ns"
BATCH, FILES, WORKERS = "batch_bytes", "files_per_batch", "workers_count"
HIT, CACHED, READER, STORAGE = "hit_ratio", "cached_bytes_per_s", "reader_bytes_per_s", "storage_bytes_per_s"
READERS, DATASET, EPOCHS, RANKS = "readers_count", "dataset_bytes", "epochs_count", "ranks_count"

_DATA_STALLS = ("fetch", "prep", "handoff", "straggler")
#: Two readers at once for less than this part of the time that storage was busy say nothing of what it can do.
_TOGETHER_RATIO = 0.05

Floats = npt.NDArray[np.float64]
Row = tuple[int, str, float, float, float, float, int, str]


def loader_rates(trace: Trace) -> Table:
    """Measure what the speed of loading depends on, from the steps of a run.

    Parameters
    ----------
    trace : Trace
        Needs steps, DataLoader batches, and for the rates the I/O calls of the workers.

    Columns
    -------
    rank, quantity, mean, low, high, error, samples_count, origin

    Raises
    ------
    MissingDataError
        If there are no steps or no batches.
    """
    steps = analyze(trace, "steps")
    counted = steps.take((steps["warmup"] == 0) & (steps["kind"] != "validation"))
    stalls = analyze(trace, "stalls")
    rows: list[Row] = []
    batches: list[_Batches] = []
    for rank in np.unique(counted["rank"]).tolist():
        own = counted.take(counted["rank"] == rank)
        made = _batches(trace, own)
        if made is None:
            continue
        batches.append(made)
        rows += _rank_rows(trace, rank, own, stalls.take(stalls["rank"] == rank), made)
    if not batches:
        raise MissingDataError(
            "no batch was made within the counted steps",
            hint="record a DataLoader with the collector torch_dataloader on, for more than a few steps",
        )
    rows += _shared_rows(trace, batches)
    return Table.from_rows(LOADER_RATES, rows)


@dataclass(frozen=True, slots=True)
class _Batches:
    """Batches that were made for one rank, and the files read for them.

    ``file_*`` have one entry per file and batch; ``file_batch`` is the row of the batch.
    """

    begin: Int64
    end: Int64
    queued: Int64
    workers: int
    host: int
    file_batch: Int64
    file_path: Int64
    file_bytes: Int64
    file_ns: Int64
    file_cold: npt.NDArray[np.bool_]
    calls_begin: Int64
    calls_end: Int64
    calls_bytes: Int64


def _batches(trace: Trace, own: Table) -> _Batches | None:
    """Those begun after the first counted step began and made before the last one ended."""
    table = trace.batches
    first, last = int(own["begin_ns"].min()), int(own["end_ns"].max())
    waits = (table["phase_code"] == BatchPhase.WAIT) & np.isin(table["track_id"], own["track_id"])
    waits &= (table["begin_ns"] >= first) & (table["begin_ns"] < last) & (table["batch_index"] >= 0)
    # A wait inside a training step; those of a validation loader lie in its own steps.
    at = np.searchsorted(own["begin_ns"], table["begin_ns"], side="right") - 1
    waits &= (at >= 0) & (table["begin_ns"] < own["end_ns"][np.maximum(at, 0)])
    loaders = np.unique(table["loader_id"][waits])
    chosen = (table["phase_code"] == BatchPhase.FETCH) & (table["rank"] == own["rank"][0])
    chosen &= np.isin(table["loader_id"], loaders) & (table["begin_ns"] >= first) & (table["end_ns"] <= last)
    made = table.take(np.flatnonzero(chosen))
    if len(made) == 0:
        return None
    made = made.take(np.lexsort((made["begin_ns"], made["track_id"])))
    owner = int(made["process_id"][0])
    reads = _reads(trace, made)
    main = np.unique(made["worker_id"])
    return _Batches(
        made["begin_ns"], made["end_ns"], np.maximum(made["runqueue_ns"], 0),
        0 if main.tolist() == [-1] else len(main), int(trace.processes["host_code"][owner]), *reads,
    )  # fmt: skip


def _reads(trace: Trace, made: Table) -> tuple[Any, ...]:
    """Read calls of the threads that make the batches, grouped by batch and file."""
    io = trace.io
    wanted = np.isin(io["op_code"], READS) & (io["result_bytes"] > 0) & ((io["io_flags"] & NOT_FILES) == 0)
    rows = np.flatnonzero(wanted & np.isin(io["track_id"], made["track_id"]))
    track, begin = int64(io["track_id"][rows]), io["begin_ns"][rows]
    order = np.lexsort((begin, track))
    rows, track, begin = rows[order], track[order], begin[order]
    batch = np.full(len(rows), -1, dtype=np.int64)
    for one in np.unique(made["track_id"]).tolist():  # workers, never many
        low, high = np.searchsorted(track, [one, one + 1])
        of_track = np.flatnonzero(made["track_id"] == one)
        at = np.searchsorted(made["begin_ns"][of_track], begin[low:high], side="right") - 1
        inside = (at >= 0) & (begin[low:high] < made["end_ns"][of_track][np.maximum(at, 0)])
        batch[low:high] = np.where(inside, of_track[np.maximum(at, 0)], -1)
    rows, batch = rows[batch >= 0], batch[batch >= 0]
    path, size = int64(io["path_code"][rows]), io["result_bytes"][rows]
    begin, end = io["begin_ns"][rows], io["end_ns"][rows]
    key, group = np.unique(batch * len(trace.strings) + path, return_inverse=True)
    sums = [np.zeros(len(key), dtype=np.int64) for _ in range(3)]
    waited = (io["io_flags"][rows] & IO_WAITED) != 0
    for total, values in zip(sums, (size, end - begin, waited), strict=True):
        np.add.at(total, group, values)
    cold = sums[2] > 0
    calls = cold[group]
    return (
        key // len(trace.strings), key % len(trace.strings), sums[0], sums[1], cold,
        begin[calls], end[calls], size[calls],
    )  # fmt: skip


def _rank_rows(trace: Trace, rank: int, own: Table, stalls: Table, made: _Batches) -> list[Row]:
    length = (own["end_ns"] - own["begin_ns"]).astype(np.float64)
    lost = np.zeros(len(own))
    data = stalls.take(np.isin(stalls["kind"], _DATA_STALLS) & np.isin(stalls["step"], own["step"]))
    np.add.at(lost, place_of(data["step"], own["step"]), data["stall_ns"])
    received = np.zeros(len(own))
    table = trace.batches
    receives = table.take((table["phase_code"] == BatchPhase.RECEIVE) & np.isin(table["track_id"], own["track_id"]))
    at = np.searchsorted(own["begin_ns"], receives["begin_ns"], side="right") - 1
    inside = (at >= 0) & (receives["end_ns"] <= own["end_ns"][np.maximum(at, 0)])
    np.add.at(received, at[inside], (receives["end_ns"] - receives["begin_ns"])[inside])
    size, reading = np.zeros(len(made.begin)), np.zeros(len(made.begin))
    np.add.at(size, made.file_batch, made.file_bytes)
    np.add.at(reading, made.file_batch, made.file_ns)
    files = np.bincount(made.file_batch, minlength=len(made.begin)).astype(np.float64)
    rows = [
        _spread(rank, STEP, length, "steps"),
        _spread(rank, COMPUTE, np.maximum(length - lost + received, 0), "steps without data stalls and stragglers"),
        _spread(rank, PREP, np.maximum(made.end - made.begin - reading, 0), "batches without their read calls"),
        _spread(rank, QUEUED, made.queued.astype(np.float64), "of prep: ready to run, and no CPU was free"),
        _plain(rank, WORKERS, made.workers, len(made.begin), "workers that made batches; 0: the step thread"),
    ]
    if len(made.file_batch):
        rows.append(_spread(rank, BATCH, size, "bytes of read calls in a batch"))
        rows.append(_spread(rank, FILES, files, "files read in a batch"))
    return rows


def _shared_rows(trace: Trace, batches: list[_Batches]) -> list[Row]:
    path, size, taken, cold = (
        np.concatenate([getattr(b, name) for b in batches])
        for name in ("file_path", "file_bytes", "file_ns", "file_cold")
    )
    hosts = [b.host for b in batches]
    most = max(hosts, key=hosts.count)
    rows: list[Row] = [_plain(-1, RANKS, hosts.count(most), len(hosts), "ranks on one host, which share its cache")]
    if not len(path):
        return rows
    whole = np.zeros(len(trace.strings), dtype=np.int64)
    np.maximum.at(whole, path, size)
    rows.append(_plain(-1, DATASET, int(whole.sum()), int((whole > 0).sum()), "files that were read, each once"))
    rows.append(_plain(-1, EPOCHS, len(path) / max(int((whole > 0).sum()), 1), len(path), "reads of a file, mean"))
    hit = float(size[~cold].sum()) / max(float(size.sum()), 1.0)
    rows.append(_plain(-1, HIT, hit, len(path), "bytes of files that no call had to wait for"))
    if (~cold).any():
        rows.append(_rate(CACHED, size[~cold], taken[~cold], "files from the page cache: bytes by time in read calls"))
    if cold.any():
        rows += _storage(batches, size[cold], taken[cold])
    return rows


def _storage(batches: list[_Batches], size: Int64, taken: Int64) -> list[Row]:
    """Rate of one reader as the job's own readers leave it, and of all together; storage is a host's own."""
    together_bytes = together_ns = busy_ns = calls_ns = 0.0
    for host in {b.host for b in batches}:
        own = [b for b in batches if b.host == host]
        begin, end, amount = (
            np.concatenate([getattr(b, name) for b in own]) for name in ("calls_begin", "calls_end", "calls_bytes")
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
    rows = [_rate(READER, size, taken, "files from storage: bytes by time in read calls")]
    rows.append(_plain(-1, READERS, calls_ns / max(busy_ns, 1.0), len(size), "readers in storage while one was, mean"))
    if together_ns > _TOGETHER_RATIO * busy_ns:
        rate = together_bytes / together_ns * 1e9
        rows.append(_plain(-1, STORAGE, rate, len(size), "all readers while two or more were in storage"))
    return rows


def _ratio_error(rate: float, rates: Floats) -> float:
    """Standard error of a rate by that of the mean time per byte, which is what adds up."""
    if len(rates) < 2 or not (rates > 0).all():
        return 0.0
    inverse = 1.0 / rates
    return rate * float(inverse.std(ddof=1)) / float(inverse.mean()) / float(np.sqrt(len(rates)))


def _rate(quantity: str, size: Int64, taken: Int64, origin: str) -> Row:
    rate = float(size.sum()) / max(float(taken.sum()), 1.0) * 1e9
    rates = size / np.maximum(taken, 1) * 1e9
    low, high = np.percentile(rates, [25, 75])
    return (-1, quantity, rate, float(low), float(high), _ratio_error(rate, rates), len(rates), origin)


def _spread(rank: int, quantity: str, values: Floats, origin: str) -> Row:
    low, high = np.percentile(values, [25, 75])
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
    return (rank, quantity, float(values.mean()), float(low), float(high), error, len(values), origin)


def _plain(rank: int, quantity: str, value: float, count: int, origin: str) -> Row:
    return (rank, quantity, float(value), float(value), float(value), 0.0, count, origin)
