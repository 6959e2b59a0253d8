"""io, io_directories: calls of the job on its files; io_patterns, io_sizes: access patterns in Darshan's counters."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Int64
from stashtrace.analysis.io.file_counters import BIN_ENDS, BIN_NAMES, FileCounters, count_files
from stashtrace.analysis.io.io_tables import IO_PATTERNS, IO_SIZES, IO_TIMES
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: One row per file, per directory, or of the whole run.
Per = Literal["file", "directory", "run"]
_PLACES = 4
_PATTERN_SUMS = ("empty_reads_count", "extent_bytes", "read_ns", "write_ns", "metadata_ns")


def io(trace: Trace) -> Table:
    """Sum the calls on each file, all ranks and workers together, longest blocked first.

    Parameters
    ----------
    trace : Trace
        Needs I/O calls.

    Columns
    -------
    path, opens_count, reads_count, writes_count, read_bytes, write_bytes, call_ns, blocked_ns, metadata_ns,
    sequential_ratio, read_bytes_per_s

    Raises
    ------
    MissingDataError
        If no call was recorded.
    """
    return _times(trace, "file")


def io_directories(trace: Trace) -> Table:
    """Sum the calls on the files of each directory, longest blocked first.

    Parameters
    ----------
    trace : Trace
        Needs I/O calls.

    Columns
    -------
    path, opens_count, reads_count, writes_count, read_bytes, write_bytes, call_ns, blocked_ns, metadata_ns,
    sequential_ratio, read_bytes_per_s

    Raises
    ------
    MissingDataError
        If no call was recorded.
    """
    return _times(trace, "directory")


def io_patterns(trace: Trace, *, per: Per = "file", under: str | None = None) -> Table:
    """Count how files are read and written as Darshan does, longest in calls first.

    The threads of a process are one reader; sockets and pipes are left out. Times count once where threads overlap on
    a file. If another tool recorded only sums, times and bytes are included; their shares and sizes are unknown.

    Parameters
    ----------
    trace : Trace
        Needs I/O calls.
    per : {"file", "directory", "run"}
        What a row is.
    under : str, optional
        Only files below this directory.

    Columns
    -------
    path, located_reads_count, sequential_reads_ratio, consecutive_reads_ratio, located_writes_count,
    sequential_writes_ratio, consecutive_writes_ratio, empty_reads_count, extent_bytes, access1_bytes, access1_count,
    access2_bytes, access2_count, access3_bytes, access3_count, access4_bytes, access4_count, read_ns, write_ns,
    metadata_ns, moved_bytes_per_s

    Raises
    ------
    MissingDataError
        If no call was recorded.
    """
    counters = count_files(trace)
    names, by_row, used = groups(trace, counters, per, under)

    def total(name: str) -> Int64:
        return by_row.sum(counters.sums[name][used])

    columns: dict[str, npt.NDArray[Any]] = {name: total(name) for name in _PATTERN_SUMS}
    for word in ("reads", "writes"):
        located = total(f"located_{word}_count")
        columns[f"located_{word}_count"] = located
        for order in ("sequential", "consecutive"):
            columns[f"{order}_{word}_ratio"] = _ratio(total(f"{order}_{word}_count"), located)
    spent = columns["read_ns"] + columns["write_ns"] + columns["metadata_ns"]
    moved = total("read_bytes") + total("write_bytes")
    rate: npt.NDArray[np.float64] = np.where(spent > 0, moved * 1e9 / np.maximum(spent, 1), 0.0)
    columns |= _common_sizes(counters, by_row, used)
    table = Table(IO_PATTERNS, {"path": names, "moved_bytes_per_s": rate, **columns})
    return table.take(np.argsort(-spent, kind="stable"))


def io_sizes(trace: Trace, *, per: Per = "file", under: str | None = None) -> Table:
    """Count calls by how much they moved, in Darshan's bins.

    Parameters
    ----------
    trace : Trace
        Needs I/O calls.
    per : {"file", "directory", "run"}
        What a row is.
    under : str, optional
        Only files below this directory.

    Columns
    -------
    path, op, size, low_bytes, high_bytes, calls_count

    Raises
    ------
    MissingDataError
        If no call was recorded.
    """
    counters = count_files(trace)
    names, by_row, used = groups(trace, counters, per, under)
    low = np.array([0, *(end + 1 for end in BIN_ENDS)])
    high = np.array([*BIN_ENDS, -1])
    parts = []
    for op, bins in (("read", counters.read_bins), ("write", counters.write_bins)):
        table = by_row.sum(bins.reshape(-1, len(BIN_NAMES))[used])
        row, place = np.nonzero(table)
        columns = {
            "path": names[row],
            "op": np.full(len(row), op),
            "size": np.array(BIN_NAMES)[place],
            "low_bytes": low[place],
            "high_bytes": high[place],
            "calls_count": table[row, place],
        }
        parts.append(Table(IO_SIZES, columns))
    return Table.concat(IO_SIZES, parts).sort_by("path", "op", "low_bytes")


def groups(
    trace: Trace, counters: FileCounters, per: Per, under: str | None = None
) -> tuple[npt.NDArray[np.str_], GroupBy, Int64]:
    """Return names of rows, the used paths grouped by row, and their codes; only below a directory if one is given."""
    used = np.flatnonzero(counters.seen)
    if under is not None:
        used = used[below(trace, used, under)]
        if not len(used):
            raise MissingDataError(
                f"no call on a file below {under} was recorded", hint="`stashtrace analyze io_directories` lists them"
            )
    if per == "run":
        return np.array([""]), GroupBy.numbered(np.zeros(len(used)), 1), used
    paths = [trace.text(code) for code in used.tolist()]
    if per == "file":
        return np.array(paths, dtype=str), GroupBy.numbered(np.arange(len(used)), len(used)), used
    if per != "directory":
        raise UsageError(f"rows of files cannot be per {per!r}", hint="file, directory or run")
    parents = [path.rpartition("/")[0] or "/" * path.startswith("/") for path in paths]
    by_parent = GroupBy(np.array(parents, dtype=object))
    return by_parent.values.astype(str), by_parent, used


def below(trace: Trace, path: Int64, under: str) -> npt.NDArray[np.bool_]:
    """Return a mask of the path codes that lie below a directory."""
    prefix = under.rstrip("/") + "/"
    return np.array([trace.text(code).startswith(prefix) for code in path.tolist()], dtype=bool)


def _times(trace: Trace, per: Per) -> Table:
    counters = count_files(trace)
    names, by_row, used = groups(trace, counters, per)
    sums = {name: by_row.sum(values[used]) for name, values in counters.sums.items()}
    plain = ("opens_count", "reads_count", "writes_count", "read_bytes", "write_bytes", "call_ns", "blocked_ns")
    table = Table(
        IO_TIMES,
        {
            "path": names,
            **{name: sums[name] for name in plain},
            "metadata_ns": sums["metadata_ns"],
            "sequential_ratio": _ratio(sums["followed_count"], sums["followers_count"]),
            "read_bytes_per_s": sums["read_bytes"] * 1e9 / np.maximum(sums["read_call_ns"], 1),
        },
    )
    return table.take(order_by(-table["blocked_ns"], -table["call_ns"]))


def _ratio(part: Int64, whole: Int64) -> npt.NDArray[np.float64]:
    return np.where(whole > 0, part / np.maximum(whole, 1), -1.0)


def _common_sizes(counters: FileCounters, by_row: GroupBy, used: Int64) -> dict[str, Int64]:
    """Return the most frequent sizes of calls; of two equally frequent ones, the smaller comes first."""
    path, size, calls = counters.sizes()
    row_of = np.full(counters.count, -1, dtype=np.int64)
    row_of[used] = by_row.number
    own = row_of[path] >= 0
    pairs = GroupBy(row_of[path[own]], size[own])
    (row, size), calls = pairs.keys, pairs.sum(calls[own])
    order = order_by(row, -calls, size)
    row, size, calls = row[order], size[order], calls[order]
    place = GroupBy.runs(row).position
    columns: dict[str, Int64] = {}
    for number in range(_PLACES):
        own = place == number
        sizes, counts = np.full(len(by_row), -1, dtype=np.int64), np.zeros(len(by_row), dtype=np.int64)
        sizes[row[own]], counts[row[own]] = size[own], calls[own]
        columns |= {f"access{number + 1}_bytes": sizes, f"access{number + 1}_count": counts}
    return columns
