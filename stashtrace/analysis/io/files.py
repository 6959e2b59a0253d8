"""io, io_directories: calls of the job on its files; io_patterns, io_sizes: access patterns; io_advice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Bools, Floats, Int64
from stashtrace.analysis.io.data_files import is_pseudo_file
from stashtrace.analysis.io.file_counters import BIN_ENDS, BIN_NAMES, FileCounters, count_files
from stashtrace.analysis.io.io_tables import IO_ADVICE, IO_PATTERNS, IO_SIZES, IO_TIMES
from stashtrace.analysis.io.policy import POLICY
from stashtrace.analysis.io.ranges import file_reads
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.text.units import bytes_text, duration_text, percent_text

#: One row per file, per directory, or of the whole run.
Per = Literal["file", "directory", "run"]
_PATTERN_SUMS = ("empty_reads_count", "extent_bytes", "read_ns", "write_ns", "metadata_ns")


def io(trace: Trace) -> Table:
    """Sum the calls on each file, all ranks and workers together, longest blocked first.

    Columns: table ``io_times`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs I/O calls.

    Raises
    ------
    MissingDataError
        If no call was recorded.
    """
    return _times(trace, "file")


def io_directories(trace: Trace) -> Table:
    """Sum the calls on the files of each directory, longest blocked first.

    Columns: table ``io_times`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs I/O calls.

    Raises
    ------
    MissingDataError
        If no call was recorded.
    """
    return _times(trace, "directory")


def io_patterns(trace: Trace, *, per: Per = "file", under: str | None = None) -> Table:
    """Count how files are read and written as Darshan does, longest in calls first.

    The threads of a process are one reader; sockets and pipes are left out. Times count once where threads overlap on a
    file. If another tool recorded only sums, times and bytes are included; their shares and sizes are unknown. Columns:
    table ``io_patterns`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs I/O calls.
    per : {"file", "directory", "run"}
        What a row is.
    under : str, optional
        Only files below this directory.

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
    rate: Floats = np.where(spent > 0, moved * 1e9 / np.maximum(spent, 1), 0.0)
    columns |= _common_sizes(counters, by_row, used)
    table = Table(IO_PATTERNS, {"path": names, "moved_bytes_per_s": rate, **columns})
    return table.take(np.argsort(-spent, kind="stable"))


def io_sizes(trace: Trace, *, per: Per = "file", under: str | None = None) -> Table:
    """Count calls by how much they moved, in Darshan's bins.

    Columns: table ``io_sizes`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs I/O calls.
    per : {"file", "directory", "run"}
        What a row is.
    under : str, optional
        Only files below this directory.

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


def below(trace: Trace, path: Int64, under: str) -> Bools:
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


def _ratio(part: Int64, whole: Int64) -> Floats:
    return np.where(whole > 0, part / np.maximum(whole, 1), -1.0)


def _common_sizes(counters: FileCounters, by_row: GroupBy, used: Int64) -> dict[str, Int64]:
    """Return the most frequent sizes of calls; of two equally frequent ones, the smaller comes first."""
    path, size, calls = counters.sizes()
    row_of = np.full(counters.count, -1, dtype=np.int64)
    row_of[used] = by_row.number
    chosen = row_of[path] >= 0
    pairs = GroupBy(row_of[path[chosen]], size[chosen])
    (row, size), calls = pairs.keys, pairs.sum(calls[chosen])
    order = order_by(row, -calls, size)
    row, size, calls = row[order], size[order], calls[order]
    place = GroupBy.runs(row).position
    columns: dict[str, Int64] = {}
    for number in range(POLICY.common_sizes_count):
        chosen = place == number
        sizes, counts = np.full(len(by_row), -1, dtype=np.int64), np.zeros(len(by_row), dtype=np.int64)
        sizes[row[chosen]], counts[row[chosen]] = size[chosen], calls[chosen]
        columns |= {f"access{number + 1}_bytes": sizes, f"access{number + 1}_count": counts}
    return columns


_Found = tuple[int, str] | None
_Sums = Mapping[str, int]


def io_advice(trace: Trace) -> Table:
    """Say what to change about the reading of the files of each directory, most time first.

    Each sentence states its figures and the threshold that they passed. ``saving_ns`` is a bound: the time of the calls
    in question, or the part of it that the change removes. A directory gets no advice if it has fewer than 100 calls or
    less than 5 % of the time inside calls; for ``read_amplification``, fewer calls of 67 MB are enough. Files of the
    kernel (/proc, /sys, /dev), pipes and sockets are left out. Columns: table ``io_advice`` of
    ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs I/O calls.

    Raises
    ------
    MissingDataError
        If no call was recorded.
    """
    counters = count_files(trace)
    names, by_directory, used = groups(trace, counters, "directory")
    real = np.array([not is_pseudo_file(trace.text(code)) for code in used.tolist()], dtype=bool)
    used, files = used[real], GroupBy.numbered(by_directory.number[real], len(names))
    sums = {name: files.sum(values[used]) for name, values in counters.sums.items()}
    read, written = counters.sums["read_bytes"][used] > 0, counters.sums["write_bytes"][used] > 0
    sums["read_files_count"] = files.count(read)
    sums["files_count"] = files.count(read | written)
    spent = sums["read_ns"] + sums["write_ns"] + sums["metadata_ns"]
    calls = sums["opens_count"] + sums["reads_count"]
    worth = np.flatnonzero((calls >= POLICY.least_calls_count) & (spent >= POLICY.least_time_ratio * spent.sum()))
    rows: list[tuple[str, str, int, str]] = []
    for place in worth.tolist():
        figures = {name: int(values[place]) for name, values in sums.items()}
        for kind, rule in RULES.items():
            advice = rule(figures)
            if advice is not None:
                rows.append((str(names[place]), kind, *advice))
    rows += _repeated_directories(trace, counters, names, files.number, used, spent)
    table = Table.from_rows(IO_ADVICE, rows)
    return table.take(np.argsort(-table["saving_ns"], kind="stable"))


def _repeated_directories(
    trace: Trace, counters: FileCounters, names: npt.NDArray[np.str_], of_path: Int64, used: Int64, spent: Int64
) -> list[tuple[str, str, int, str]]:
    """Return rows of directories whose files a rank reads repeatedly in one pass over its data."""
    reads = file_reads(trace)
    excess = reads.read_bytes - reads.needed_bytes
    chosen = (excess > 0) & (reads.read_bytes >= POLICY.amplified_times * reads.needed_bytes)
    rows = []
    for place in np.unique(of_path[chosen[used]]).tolist():
        files = used[(of_path == place) & chosen[used]]
        read, needed, distinct = (
            int(values[files].sum()) for values in (reads.read_bytes, reads.needed_bytes, reads.distinct_bytes)
        )
        if read - needed < POLICY.amplified_bytes or spent[place] < POLICY.least_time_ratio * spent.sum():
            continue
        largest = trace.text(int(files[np.argmax(excess[files])])).rpartition("/")[2]
        which = largest if len(files) == 1 else f"{len(files):,} files, most of it of {largest}"
        saving = float((counters.sums["read_ns"][files] * (excess[files] / reads.read_bytes[files])).sum())
        advice = (
            f"{which}: {bytes_text(read)} are read, {bytes_text(distinct)} without repetition; a rank reads each byte"
            f" at least {read / needed:.3g} times in a pass over its data (from {POLICY.amplified_times:.0f}): read"
            " what a sample needs alone (smaller row groups or chunks, fewer columns), take samples in the order of"
            " the file, or keep what was decoded"
        )
        rows.append((str(names[place]), "read_amplification", round(saving), advice))
    return rows


def _small_reads(sums: _Sums) -> _Found:
    full = sums["reads_count"] - sums["empty_reads_count"]
    if full < POLICY.least_calls_count or sums["read_bytes"] >= POLICY.small_read_bytes * full:
        return None
    share = _share(sums["consecutive_reads_count"], sums["located_reads_count"])
    if share < POLICY.consecutive_ratio:
        return None
    needed = max(-(-sums["read_bytes"] // POLICY.good_read_bytes), sums["read_files_count"], 1)
    if needed >= full:
        return None
    # The time of reads that did not wait is the cost of the calls themselves; fewer calls remove a part of it.
    quick = full - sums["blocked_reads_count"]
    quick_ns = sums["read_ns"] - min(sums["blocked_read_ns"], sums["read_ns"])
    saving = round(quick_ns / quick * (full - needed)) if quick > 0 else 0
    return saving, (
        f"{full:,} reads of {bytes_text(sums['read_bytes'] / full)} on average (small: below"
        f" {bytes_text(POLICY.small_read_bytes)}), {percent_text(share)} of them right behind the last one (from"
        f" {percent_text(POLICY.consecutive_ratio)}): a buffer of {bytes_text(POLICY.good_read_bytes)} needs {needed:,}"
    )


def _read_ahead(sums: _Sums) -> _Found:
    follow, waited = sums["consecutive_reads_count"], sums["consecutive_blocked_count"]
    share, blocked = _share(follow, sums["located_reads_count"]), _share(waited, follow)
    if follow < POLICY.least_calls_count or share < POLICY.consecutive_ratio or blocked < POLICY.waited_ratio:
        return None
    return min(sums["blocked_read_ns"], sums["read_ns"]), (
        f"{percent_text(share)} of reads go on where the last one ended (from"
        f" {percent_text(POLICY.consecutive_ratio)}), and {percent_text(blocked)} of these wait for storage (from"
        f" {percent_text(POLICY.waited_ratio)}), {duration_text(sums['blocked_read_ns'])} in all: read ahead"
        " further, by read_ahead_kb of the disk, posix_fadvise(POSIX_FADV_WILLNEED) or a reader thread"
    )


def _random_reads(sums: _Sums) -> _Found:
    located, waited = sums["located_reads_count"], sums["blocked_reads_count"]
    share = _share(sums["sequential_reads_count"], located)
    several = located - sums["opens_count"]  # the first read after an open is at the begin of the file
    if located < POLICY.least_calls_count or several < located / 2 or share >= POLICY.random_ratio:
        return None
    blocked = _share(waited, sums["reads_count"])
    if blocked < POLICY.waited_ratio:
        return None
    return -1, (
        f"{percent_text(share)} of {located:,} reads lie behind the last one (random: below"
        f" {percent_text(POLICY.random_ratio)}), {percent_text(blocked)} wait for storage (from"
        f" {percent_text(POLICY.waited_ratio)}): sort the reads by offset, or say posix_fadvise(POSIX_FADV_RANDOM) so"
        " that no read-ahead is wasted"
    )


def _empty_reads(sums: _Sums) -> _Found:
    share = _share(sums["empty_reads_count"], sums["reads_count"])
    if sums["reads_count"] < POLICY.least_calls_count or share < POLICY.empty_ratio:
        return None
    return -1, (
        f"{percent_text(share)} of {sums['reads_count']:,} reads return nothing (from"
        f" {percent_text(POLICY.empty_ratio)}): they ask for the end of the file; read as many bytes as fstat says"
    )


def _many_opens(sums: _Sums) -> _Found:
    times = _share(sums["opens_count"], sums["files_count"])
    spent = sums["read_ns"] + sums["write_ns"] + sums["metadata_ns"]
    share = _share(sums["metadata_ns"], spent)
    if sums["opens_count"] < POLICY.least_calls_count or times < POLICY.reopened_times or share < POLICY.metadata_ratio:
        return None
    saving = round(sums["metadata_ns"] * (1 - 1 / times))
    return saving, (
        f"each of {sums['files_count']:,} files is opened {times:.3g} times (from {POLICY.reopened_times:.0f}), and"
        f" metadata calls are {percent_text(share)} of the time (from {percent_text(POLICY.metadata_ratio)}): keep the"
        " files open"
    )


def _small_files(sums: _Sums) -> _Found:
    files = sums["files_count"]
    if sums["extent_bytes"] == 0 or 2 * sums["read_files_count"] < files:  # sizes unknown; a job that writes
        return None
    spent = sums["read_ns"] + sums["write_ns"] + sums["metadata_ns"]
    share, size = _share(sums["metadata_ns"], spent), _share(sums["extent_bytes"], files)
    if files < POLICY.least_calls_count or size >= POLICY.small_file_bytes or share < POLICY.metadata_ratio:
        return None
    return sums["metadata_ns"], (
        f"{files:,} files of {bytes_text(size)} on average (small: below {bytes_text(POLICY.small_file_bytes)}), and"
        f" metadata calls are {percent_text(share)} of the time (from {percent_text(POLICY.metadata_ratio)}): pack them"
        " into archives of 100 MB and more that are read from front to back"
    )


#: Kind -> rule on the sums of a directory, which returns (saving in ns, sentence) or None.
RULES: dict[str, Callable[[_Sums], _Found]] = {
    "small_reads": _small_reads,
    "read_ahead": _read_ahead,
    "random_reads": _random_reads,
    "empty_reads": _empty_reads,
    "many_opens": _many_opens,
    "small_files": _small_files,
}


def _share(part: int, whole: int) -> float:
    return part / whole if whole > 0 else 0.0
