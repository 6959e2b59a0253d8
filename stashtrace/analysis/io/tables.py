"""Tables that the analyses of files return."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from stashtrace.schema.columns import Column, schema

_PATH = ("path", "U16", "", "file, or directory; empty if the path was not known, or of the whole run")
_HOST = ("host", "U16", "", "whose page cache: processes of one host share it")

IO_TIMES = schema(
    "io_times",
    "Calls on each file or directory",
    ("path", "U16", "", "file, or directory; empty if the path was not known"),
    ("opens_count", "i8", "", "successful opens", 3),
    ("reads_count", "i8", "", "read calls"),
    ("writes_count", "i8", "", "write calls", 2),
    ("read_bytes", "i8", "bytes", "bytes read"),
    ("write_bytes", "i8", "bytes", "bytes written", 1),
    ("call_ns", "i8", "ns", "time inside calls of all kinds, all threads added"),
    ("blocked_ns", "i8", "ns", "of this, in calls that blocked"),
    Column(
        "metadata_ns",
        "i8",
        "ns",
        "of this, in opens, closes, seeks, stats, maps and renames; -1 if unknown",
        missing=-1,
    ),
    Column(
        "sequential_ratio",
        "f8",
        "",
        "reads that began where the thread's last one on the file ended, -1 if unknown",
        missing=-1,
    ),
    ("read_bytes_per_s", "f8", "", "bytes read by the time inside read calls, 0 if none"),
)
IO_PATTERNS = schema(
    "io_patterns",
    "How files are read and written, in Darshan's counters; a process's threads count as one reader",
    _PATH,
    ("located_reads_count", "i8", "", "read calls whose offset is known: the shares are theirs", 1),
    Column(
        "sequential_reads_ratio",
        "f8",
        "",
        "reads at a higher offset than the last byte of the one before, -1 if none",
        missing=-1,
    ),
    Column("consecutive_reads_ratio", "f8", "", "reads at the byte after the last one, -1 if none", missing=-1),
    ("located_writes_count", "i8", "", "write calls whose offset is known", 5),
    ("sequential_writes_ratio", "f8", "", "as of reads", 4),
    ("consecutive_writes_ratio", "f8", "", "as of reads", 3),
    ("empty_reads_count", "i8", "", "reads that returned no byte: the end of the file", 2),
    ("extent_bytes", "i8", "bytes", "end of the last byte touched: the file is not smaller; directories: the sum"),
    *(
        column
        for place, detail, of_count in ((1, 0, 1), (2, 6, 5), (3, 7, 6), (4, 8, 7))
        for column in (
            Column(
                f"access{place}_bytes",
                "i8",
                "bytes",
                f"size of calls, number {place} by how often; -1 if none",
                detail,
                missing=-1,
            ),
            (f"access{place}_count", "i8", "", "calls of this size", of_count),
        )
    ),
    ("read_ns", "i8", "ns", "inside reads; what threads of a process overlap on a file counts once"),
    ("write_ns", "i8", "ns", "inside writes and flushes, likewise"),
    ("metadata_ns", "i8", "ns", "inside opens, closes, seeks, stats, maps and renames, likewise"),
    ("moved_bytes_per_s", "f8", "", "bytes read and written by the three times added, 0 if none"),
)
IO_SIZES = schema(
    "io_sizes",
    "How large reads and writes were, in Darshan's ten bins; bins without a call are left out",
    _PATH,
    ("op", "U16", "", "read or write"),
    ("size", "U16", "", "bin as Darshan names it: 0_100, 100_1K, ... 1G_PLUS"),
    ("low_bytes", "i8", "bytes", "smallest size of the bin"),
    Column("high_bytes", "i8", "bytes", "largest size of the bin, -1 of the last", missing=-1),
    ("calls_count", "i8", "", "calls that moved so much"),
)
IO_BANDWIDTH = schema(
    "io_bandwidth",
    "Bandwidth of each layer by Darshan's definition, and by the clock on the wall",
    ("layer", "U16", "", "posix, stdio or mpi-io"),
    ("processes_count", "i8", "", "processes that moved or opened something; Darshan's ranks"),
    ("files_count", "i8", "", "files"),
    ("shared_count", "i8", "", "of these, used by every one of several processes"),
    ("moved_bytes", "i8", "bytes", "read and written"),
    ("slowest_process_ns", "i8", "ns", "longest time of a process on files that are not shared"),
    Column("shared_ns", "i8", "ns", "slowest process of each shared file, added; -1 if unknown", missing=-1),
    Column(
        "darshan_bytes_per_s",
        "f8",
        "",
        "moved_bytes by the sum of both: agg_perf_by_slowest; -1 if unknown",
        missing=-1,
    ),
    Column("wall_ns", "i8", "ns", "first call to last; -1 if unknown", missing=-1),
    Column("wall_bytes_per_s", "f8", "", "moved_bytes by this, as tf-Darshan has it; -1 if unknown", missing=-1),
)
IO_ADVICE = schema(
    "io_advice",
    "What to change about the reading of files, most time first",
    ("path", "U16", "", "directory"),
    (
        "kind",
        "U16",
        "",
        "small_reads, read_ahead, random_reads, empty_reads, many_opens, small_files or read_amplification",
    ),
    Column("saving_ns", "i8", "ns", "at most, inside calls, all threads added; -1 if nothing can be said", missing=-1),
    ("advice", "U16", "", "a sentence with the figures, and the thresholds that they passed"),
)
IO_STAGING = schema(
    "io_staging",
    "Which files to put on a fast tier: most time saved by byte first, until it is full",
    ("path", "U16", "", "file"),
    ("staged", "i8", "", "1 if it goes to the fast tier"),
    ("size_bytes", "i8", "bytes", "end of the last byte read, at least; what it takes on the tier"),
    ("requests_count", "i8", "", "calls that waited for storage; all of them where a source was stated", 3),
    ("request_bytes", "i8", "bytes", "what they read", 3),
    ("source_ns", "i8", "ns", "time inside them, all threads added: measured, or by the stated source"),
    ("tier_ns", "i8", "ns", "the same requests on the tier: requests * latency + bytes / bandwidth", 2),
    ("gain_ns", "i8", "ns", "source_ns - tier_ns, 0 if the tier is slower"),
    ("sum_bytes", "i8", "bytes", "staged up to this row"),
    ("sum_gain_ns", "i8", "ns", "gained up to this row", 1),
    ("bound_ns", "i8", "ns", "no choice of files for this tier gains more", 2),
    ("method", "U16", "", "where both costs come from: measured or stated, then calibration or stated", 7),
)
IO_REUSE = schema(
    "io_reuse",
    "Reuse distances: how much other data was read between two reads of the same",
    _HOST,
    Column(
        "low_bytes", "i8", "bytes", "shortest distance of the row, this block included; -1 for first reads", missing=-1
    ),
    Column(
        "high_bytes", "i8", "bytes", "longest; a cache of so much serves the row by LRU; -1 for first reads", missing=-1
    ),
    ("accesses_count", "i8", "", "reads of a block, estimated where sampled_ratio is below 1"),
    ("read_bytes", "i8", "bytes", "bytes of them"),
    ("sampled_ratio", "f8", "", "share of blocks looked at; 1 is exact", 1),
)
IO_CACHE = schema(
    "io_cache",
    "What a cache of some size would have served, by bytes, beginning empty",
    _HOST,
    ("cache_bytes", "i8", "bytes", "size of the cache"),
    ("cached_ratio", "f8", "", "of the data that was read at all"),
    ("data_bytes", "i8", "bytes", "that data"),
    ("read_bytes", "i8", "bytes", "read altogether"),
    ("reread_ratio", "f8", "", "of this, read before: no cache serves more"),
    ("lru_hit_ratio", "f8", "", "served by a cache that drops what was not used for longest"),
    ("kept_hit_ratio", "f8", "", "served by one that keeps what came first and drops nothing"),
    ("important_hit_ratio", "f8", "", "served by one that keeps what --importance ranks highest; NaN without"),
    ("shuffled_lru_hit_ratio", "f8", "", "LRU by the law of epochs in random order, for comparison", 1),
    ("sampled_ratio", "f8", "", "share of blocks looked at; 1 is exact", 1),
)
