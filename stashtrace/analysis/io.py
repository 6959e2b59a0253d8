"""io, io_directories: what the job did to its files."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.timeset import Int64
from stashtrace.analysis.trace_index import IO_WAITED
from stashtrace.errors import MissingDataError
from stashtrace.model.kinds import IoOp
from stashtrace.model.schemas import IO_TIMES
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace

_OPENS = (IoOp.OPEN, IoOp.FOPEN)
_READS = (IoOp.READ, IoOp.PREAD, IoOp.READV, IoOp.PREADV, IoOp.FREAD, IoOp.SENDFILE)
_WRITES = (IoOp.WRITE, IoOp.PWRITE, IoOp.WRITEV, IoOp.PWRITEV, IoOp.FWRITE)


def io(trace: Trace) -> Table:
    """Sum the calls on each file, all ranks and workers together, longest blocked first.

    Parameters
    ----------
    trace : Trace
        Needs I/O calls.

    Columns
    -------
    path, opens_count, reads_count, writes_count, read_bytes, write_bytes, call_ns, blocked_ns, sequential_ratio,
    read_bytes_per_s

    Raises
    ------
    MissingDataError
        If no call was recorded.
    """
    names = np.asarray(list(trace.strings), dtype=object)
    return _sums(trace, trace.io["path_code"], trace.io_totals["path_code"], names)


def io_directories(trace: Trace) -> Table:
    """Sum the calls on the files of each directory, longest blocked first.

    Parameters
    ----------
    trace : Trace
        Needs I/O calls.

    Columns
    -------
    path, opens_count, reads_count, writes_count, read_bytes, write_bytes, call_ns, blocked_ns, sequential_ratio,
    read_bytes_per_s

    Raises
    ------
    MissingDataError
        If no call was recorded.
    """
    used = np.union1d(trace.io["path_code"], trace.io_totals["path_code"])
    parents = [trace.text(code).rpartition("/")[0] or "/" * trace.text(code).startswith("/") for code in used.tolist()]
    names, of_used = np.unique(np.array(parents, dtype=object), return_inverse=True)
    directory = np.zeros(len(trace.strings), dtype=np.int64)
    directory[used] = of_used
    return _sums(trace, directory[trace.io["path_code"]], directory[trace.io_totals["path_code"]], names)


def _sums(trace: Trace, key: npt.NDArray[np.integer], summed_key: Int64, names: npt.NDArray[np.object_]) -> Table:
    table, summed = trace.io, trace.io_totals
    if len(table) == 0 and len(summed) == 0:
        raise MissingDataError("no I/O call was recorded", hint="run with the collector posix_io on")
    seen = np.bincount(key, minlength=len(names)) + np.bincount(summed_key, minlength=len(names))
    used = np.flatnonzero(seen)  # far cheaper than sorting the keys
    place = np.zeros(len(names), dtype=np.int64)
    place[used] = np.arange(len(used))
    row, count = place[key], len(used)
    op, result = table["op_code"], np.maximum(table["result_bytes"], 0)
    length = table["end_ns"] - table["begin_ns"]
    reads, writes, opens = (np.isin(op, ops) for ops in (_READS, _WRITES, _OPENS))
    blocked = (table["io_flags"] & IO_WAITED) != 0

    def total(chosen: npt.NDArray[np.bool_], column: Int64) -> Int64:
        # bincount adds floats: exact up to 2**53 ns, which is 104 days of calls.
        weights = column[chosen].astype(np.float64)
        return np.bincount(row[chosen], weights, count).astype(np.int64)

    def more(column: str) -> Int64:
        out = np.zeros(count, dtype=np.int64)
        np.add.at(out, place[summed_key], summed[column])
        return out

    every = np.ones(len(table), dtype=bool)
    read_bytes = total(reads, result) + more("read_bytes")
    read_ns = total(reads, length) + more("read_ns")
    followed, followers = _sequential(table, reads & (table["offset_bytes"] >= 0), row, count)
    told = summed["consecutive_reads_count"] >= 0
    np.add.at(followed, place[summed_key[told]], summed["consecutive_reads_count"][told])
    np.add.at(followers, place[summed_key[told]], np.maximum(summed["reads_count"][told] - 1, 0))
    blocked_ns = total(blocked, length)
    out = Table(
        IO_TIMES,
        {
            "path": names[used].astype(str),
            "opens_count": np.bincount(row[opens & (table["result_bytes"] >= 0)], minlength=count)
            + more("opens_count"),
            "reads_count": np.bincount(row[reads], minlength=count) + more("reads_count"),
            "writes_count": np.bincount(row[writes], minlength=count) + more("writes_count"),
            "read_bytes": read_bytes,
            "write_bytes": total(writes, result) + more("write_bytes"),
            "call_ns": total(every, length) + more("read_ns") + more("write_ns") + more("other_ns"),
            "blocked_ns": blocked_ns,
            "sequential_ratio": np.where(followers > 0, followed / np.maximum(followers, 1), -1.0),
            "read_bytes_per_s": read_bytes * 1e9 / np.maximum(read_ns, 1),
        },
    )
    return out.take(np.lexsort((used, -out["call_ns"], -blocked_ns)))


def _sequential(table: Table, reads: npt.NDArray[np.bool_], row: Int64, count: int) -> tuple[Int64, Int64]:
    """Per row of the result: reads that follow another of the same thread and file, and how many began at its end."""
    chosen = np.flatnonzero(reads)
    chosen = chosen[np.argsort(table["path_code"][chosen], kind="stable")]  # the table is by track, then time
    path, track = table["path_code"][chosen], table["track_id"][chosen]
    same = (path[1:] == path[:-1]) & (track[1:] == track[:-1])
    end = table["offset_bytes"][chosen] + np.maximum(table["result_bytes"][chosen], 0)
    hit = same & (table["offset_bytes"][chosen][1:] == end[:-1])
    target = row[chosen[1:]]
    return np.bincount(target[hit], minlength=count), np.bincount(target[same], minlength=count)
