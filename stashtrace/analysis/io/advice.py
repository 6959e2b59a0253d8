"""io_advice: what to change about the way files are read, in sentences with the figures that speak for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Int64
from stashtrace.analysis.io.data_files import is_pseudo_file
from stashtrace.analysis.io.file_counters import FileCounters, count_files
from stashtrace.analysis.io.files import groups
from stashtrace.analysis.io.io_tables import IO_ADVICE
from stashtrace.analysis.io.ranges import file_reads
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.units import bytes_text, duration_text, percent_text

#: A directory with fewer calls, or a smaller share of the time, gets no advice.
MIN_CALLS = 100
MIN_RATIO_OF_TIME = 0.05
#: Reads are small if their mean size is below this; for larger reads, the cost of the call itself hardly matters.
SMALL_READ_BYTES = 64 << 10
GOOD_READ_BYTES = 1 << 20
#: Reads count as consecutive from this share on, and as random below the second one.
CONSECUTIVE_FROM = 0.8
RANDOM_BELOW = 0.2
#: Share of reads that must have waited before the advice names read-ahead.
WAITED_FROM = 0.1
EMPTY_FROM = 0.3
METADATA_FROM = 0.2
REOPENED_FROM = 4.0
SMALL_FILE_BYTES = 1 << 20
#: Advice on read amplification starts at so many reads of each byte in a pass over the data, and so many bytes.
AMPLIFIED_FROM = 2.0
AMPLIFIED_BYTES = 64 << 20

_Found = tuple[int, str] | None
_Sums = Mapping[str, int]


def io_advice(trace: Trace) -> Table:
    """Say what to change about the reading of the files of each directory, most time first.

    Each sentence states its figures and the threshold that they passed. ``saving_ns`` is a bound: the time of the calls
    in question, or the part of it that the change removes. A directory gets no advice if it has fewer than 100 calls or
    less than 5 % of the time inside calls; for ``read_amplification``, fewer calls of 67 MB are enough. Files of the
    kernel (/proc, /sys, /dev), pipes and sockets are left out.

    Parameters
    ----------
    trace : Trace
        Needs I/O calls.

    Columns
    -------
    path, kind, saving_ns, advice

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
    worth = np.flatnonzero((calls >= MIN_CALLS) & (spent >= MIN_RATIO_OF_TIME * spent.sum()))
    rows: list[tuple[str, str, int, str]] = []
    for place in worth.tolist():
        own = {name: int(values[place]) for name, values in sums.items()}
        for kind, rule in RULES.items():
            advice = rule(own)
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
    chosen = (excess > 0) & (reads.read_bytes >= AMPLIFIED_FROM * reads.needed_bytes)
    rows = []
    for place in np.unique(of_path[chosen[used]]).tolist():
        files = used[(of_path == place) & chosen[used]]
        read, needed, distinct = (
            int(values[files].sum()) for values in (reads.read_bytes, reads.needed_bytes, reads.distinct_bytes)
        )
        if read - needed < AMPLIFIED_BYTES or spent[place] < MIN_RATIO_OF_TIME * spent.sum():
            continue
        largest = trace.text(int(files[np.argmax(excess[files])])).rpartition("/")[2]
        which = largest if len(files) == 1 else f"{len(files):,} files, most of it of {largest}"
        saving = float((counters.sums["read_ns"][files] * (excess[files] / reads.read_bytes[files])).sum())
        advice = (
            f"{which}: {bytes_text(read)} are read, {bytes_text(distinct)} without repetition; a rank reads each byte"
            f" at least {read / needed:.3g} times in a pass over its data (from {AMPLIFIED_FROM:.0f}): read what a"
            " sample needs alone (smaller row groups or chunks, fewer columns), take samples in the order of the file,"
            " or keep what was decoded"
        )
        rows.append((str(names[place]), "read_amplification", round(saving), advice))
    return rows


def _small_reads(sums: _Sums) -> _Found:
    full = sums["reads_count"] - sums["empty_reads_count"]
    if full < MIN_CALLS or sums["read_bytes"] >= SMALL_READ_BYTES * full:
        return None
    share = _ratio(sums["consecutive_reads_count"], sums["located_reads_count"])
    if share < CONSECUTIVE_FROM:
        return None
    needed = max(-(-sums["read_bytes"] // GOOD_READ_BYTES), sums["read_files_count"], 1)
    if needed >= full:
        return None
    # The time of reads that did not wait is the cost of the calls themselves; fewer calls remove a part of it.
    quick = full - sums["blocked_reads_count"]
    quick_ns = sums["read_ns"] - min(sums["blocked_read_ns"], sums["read_ns"])
    saving = round(quick_ns / quick * (full - needed)) if quick > 0 else 0
    return saving, (
        f"{full:,} reads of {bytes_text(sums['read_bytes'] / full)} on average (small: below"
        f" {bytes_text(SMALL_READ_BYTES)}), {percent_text(share)} of them right behind the last one (from"
        f" {percent_text(CONSECUTIVE_FROM)}): a buffer of {bytes_text(GOOD_READ_BYTES)} needs {needed:,}"
    )


def _read_ahead(sums: _Sums) -> _Found:
    follow, waited = sums["consecutive_reads_count"], sums["consecutive_blocked_count"]
    share, blocked = _ratio(follow, sums["located_reads_count"]), _ratio(waited, follow)
    if follow < MIN_CALLS or share < CONSECUTIVE_FROM or blocked < WAITED_FROM:
        return None
    return min(sums["blocked_read_ns"], sums["read_ns"]), (
        f"{percent_text(share)} of reads go on where the last one ended (from {percent_text(CONSECUTIVE_FROM)}), and"
        f" {percent_text(blocked)} of these wait for storage (from {percent_text(WAITED_FROM)}),"
        f" {duration_text(sums['blocked_read_ns'])} in all: read ahead further, by read_ahead_kb of the disk,"
        " posix_fadvise(POSIX_FADV_WILLNEED) or a reader thread"
    )


def _random_reads(sums: _Sums) -> _Found:
    located, waited = sums["located_reads_count"], sums["blocked_reads_count"]
    share = _ratio(sums["sequential_reads_count"], located)
    several = located - sums["opens_count"]  # the first read after an open is at the begin of the file
    if located < MIN_CALLS or several < located / 2 or share >= RANDOM_BELOW:
        return None
    blocked = _ratio(waited, sums["reads_count"])
    if blocked < WAITED_FROM:
        return None
    return -1, (
        f"{percent_text(share)} of {located:,} reads lie behind the last one (random: below"
        f" {percent_text(RANDOM_BELOW)}), {percent_text(blocked)} wait for storage (from {percent_text(WAITED_FROM)}):"
        " sort the reads by offset, or say posix_fadvise(POSIX_FADV_RANDOM) so that nothing is read ahead in vain"
    )


def _empty_reads(sums: _Sums) -> _Found:
    share = _ratio(sums["empty_reads_count"], sums["reads_count"])
    if sums["reads_count"] < MIN_CALLS or share < EMPTY_FROM:
        return None
    return -1, (
        f"{percent_text(share)} of {sums['reads_count']:,} reads return nothing (from {percent_text(EMPTY_FROM)}): they"
        " ask for the end of the file; read as many bytes as fstat says"
    )


def _many_opens(sums: _Sums) -> _Found:
    times = _ratio(sums["opens_count"], sums["files_count"])
    spent = sums["read_ns"] + sums["write_ns"] + sums["metadata_ns"]
    share = _ratio(sums["metadata_ns"], spent)
    if sums["opens_count"] < MIN_CALLS or times < REOPENED_FROM or share < METADATA_FROM:
        return None
    saving = round(sums["metadata_ns"] * (1 - 1 / times))
    return saving, (
        f"each of {sums['files_count']:,} files is opened {times:.3g} times (from {REOPENED_FROM:.0f}), and metadata"
        f" calls are {percent_text(share)} of the time (from {percent_text(METADATA_FROM)}): keep the files open"
    )


def _small_files(sums: _Sums) -> _Found:
    files = sums["files_count"]
    if sums["extent_bytes"] == 0 or 2 * sums["read_files_count"] < files:  # sizes unknown; a job that writes
        return None
    spent = sums["read_ns"] + sums["write_ns"] + sums["metadata_ns"]
    share, size = _ratio(sums["metadata_ns"], spent), _ratio(sums["extent_bytes"], files)
    if files < MIN_CALLS or size >= SMALL_FILE_BYTES or share < METADATA_FROM:
        return None
    return sums["metadata_ns"], (
        f"{files:,} files of {bytes_text(size)} on average (small: below {bytes_text(SMALL_FILE_BYTES)}), and metadata"
        f" calls are {percent_text(share)} of the time (from {percent_text(METADATA_FROM)}): pack them into archives of"
        " 100 MB and more that are read from front to back"
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


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole > 0 else 0.0
