"""Tables that the analyses of files return."""

from __future__ import annotations

from stashtrace.schema import columns as col

_PATH = col.word("path", "file, or directory; empty if the path was not known, or of the whole run")
_HOST = col.word("host", "whose page cache: processes of one host share it")

IO_TIMES = col.schema(
    "io_times",
    "Calls on each file or directory",
    col.word("path", "file, or directory; empty if the path was not known"),
    col.number("opens_count", "successful opens", detail=3),
    col.number("reads_count", "read calls"),
    col.number("writes_count", "write calls", detail=2),
    col.nbytes("read_bytes", "bytes read"),
    col.nbytes("write_bytes", "bytes written", detail=1),
    col.ns("call_ns", "time inside calls of all kinds, all threads added"),
    col.ns("blocked_ns", "of this, in calls that blocked"),
    col.ns("metadata_ns", "of this, in opens, closes, seeks, stats, maps and renames; -1 if unknown", missing=-1),
    col.real(
        "sequential_ratio", "reads that began where the thread's last one on the file ended, -1 if unknown", missing=-1
    ),
    col.real("read_bytes_per_s", "bytes read by the time inside read calls, 0 if none"),
)
IO_PATTERNS = col.schema(
    "io_patterns",
    "How files are read and written, in Darshan's counters; a process's threads count as one reader",
    _PATH,
    col.number("located_reads_count", "read calls whose offset is known: the shares are theirs", detail=1),
    col.real(
        "sequential_reads_ratio",
        "reads at a higher offset than the last byte of the one before, -1 if none",
        missing=-1,
    ),
    col.real("consecutive_reads_ratio", "reads at the byte after the last one, -1 if none", missing=-1),
    col.number("located_writes_count", "write calls whose offset is known", detail=5),
    col.real("sequential_writes_ratio", "as of reads", detail=4),
    col.real("consecutive_writes_ratio", "as of reads", detail=3),
    col.number("empty_reads_count", "reads that returned no byte: the end of the file", detail=2),
    col.nbytes("extent_bytes", "end of the last byte touched: the file is not smaller; directories: the sum"),
    *(
        column
        for place, detail, of_count in ((1, 0, 1), (2, 6, 5), (3, 7, 6), (4, 8, 7))
        for column in (
            col.nbytes(
                f"access{place}_bytes",
                f"size of calls, number {place} by how often; -1 if none",
                missing=-1,
                detail=detail,
            ),
            col.number(f"access{place}_count", "calls of this size", detail=of_count),
        )
    ),
    col.ns("read_ns", "inside reads; what threads of a process overlap on a file counts once"),
    col.ns("write_ns", "inside writes and flushes, likewise"),
    col.ns("metadata_ns", "inside opens, closes, seeks, stats, maps and renames, likewise"),
    col.real("moved_bytes_per_s", "bytes read and written by the three times added, 0 if none"),
)
IO_SIZES = col.schema(
    "io_sizes",
    "How large reads and writes were, in Darshan's ten bins; bins without a call are left out",
    _PATH,
    col.word("op", "read or write"),
    col.word("size", "bin as Darshan names it: 0_100, 100_1K, ... 1G_PLUS"),
    col.nbytes("low_bytes", "smallest size of the bin"),
    col.nbytes("high_bytes", "largest size of the bin, -1 of the last", missing=-1),
    col.number("calls_count", "calls that moved this much"),
)
IO_BANDWIDTH = col.schema(
    "io_bandwidth",
    "Bandwidth of each layer by Darshan's definition, and by wall-clock time",
    col.word("layer", "posix, stdio or mpi-io"),
    col.number("processes_count", "processes that moved or opened something; Darshan's ranks"),
    col.number("files_count", "files"),
    col.number("shared_count", "of these, used by every one of several processes"),
    col.nbytes("moved_bytes", "read and written"),
    col.ns("slowest_process_ns", "longest time of a process on files that are not shared"),
    col.ns("shared_ns", "slowest process of each shared file, added; -1 if unknown", missing=-1),
    col.real("darshan_bytes_per_s", "moved_bytes by the sum of both: agg_perf_by_slowest; -1 if unknown", missing=-1),
    col.ns("wall_ns", "first call to last; -1 if unknown", missing=-1),
    col.real("wall_bytes_per_s", "moved_bytes by this, as tf-Darshan has it; -1 if unknown", missing=-1),
)
IO_ADVICE = col.schema(
    "io_advice",
    "What to change about the reading of files, most time first",
    col.word("path", "directory"),
    col.word(
        "kind", "small_reads, read_ahead, random_reads, empty_reads, many_opens, small_files or read_amplification"
    ),
    col.ns("saving_ns", "at most, inside calls, all threads added; -1 if nothing can be said", missing=-1),
    col.word("advice", "a sentence with the figures, and the thresholds that they passed"),
)
IO_STAGING = col.schema(
    "io_staging",
    "Which files to put on a fast tier: most time saved by byte first, until it is full",
    col.word("path", "file"),
    col.number("staged", "1 if it goes to the fast tier"),
    col.nbytes("size_bytes", "end of the last byte read, at least; what it takes on the tier"),
    col.number("requests_count", "calls that waited for storage; all of them where a source was stated", detail=3),
    col.nbytes("request_bytes", "what they read", detail=3),
    col.ns("source_ns", "time inside them, all threads added: measured, or by the stated source"),
    col.ns("tier_ns", "the same requests on the tier: requests * latency + bytes / bandwidth", detail=2),
    col.ns("gain_ns", "source_ns - tier_ns, 0 if the tier is slower"),
    col.nbytes("sum_bytes", "staged up to this row"),
    col.ns("sum_gain_ns", "gained up to this row", detail=1),
    col.ns("bound_ns", "no choice of files for this tier gains more", detail=2),
    col.word("method", "where both costs come from: measured or stated, then calibration or stated", detail=7),
)
IO_REUSE = col.schema(
    "io_reuse",
    "Reuse distances: how much other data was read between two reads of the same",
    _HOST,
    col.nbytes("low_bytes", "shortest distance of the row, this block included; -1 for first reads", missing=-1),
    col.nbytes("high_bytes", "longest; an LRU cache of this size serves the row; -1 for first reads", missing=-1),
    col.number("accesses_count", "reads of a block, estimated where sampled_ratio is below 1"),
    col.nbytes("read_bytes", "bytes of them"),
    col.real("sampled_ratio", "share of blocks looked at; 1 is exact", detail=1),
)
IO_CACHE = col.schema(
    "io_cache",
    "What a cache of some size would have served, by bytes, beginning empty",
    _HOST,
    col.nbytes("cache_bytes", "size of the cache"),
    col.real("cached_ratio", "of the data that was read at all"),
    col.nbytes("data_bytes", "that data"),
    col.nbytes("read_bytes", "read altogether"),
    col.real("reread_ratio", "of this, read before: no cache serves more"),
    col.real("lru_hit_ratio", "served by a cache that drops what was not used for longest"),
    col.real("kept_hit_ratio", "served by one that keeps what came first and drops nothing"),
    col.real("important_hit_ratio", "served by one that keeps what --importance ranks highest; NaN without"),
    col.real("shuffled_lru_hit_ratio", "LRU by the law of epochs in random order, for comparison", detail=1),
    col.real("sampled_ratio", "share of blocks looked at; 1 is exact", detail=1),
)
